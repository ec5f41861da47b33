//! Writing of responses: into a draft first, which becomes a complete file in one step.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::entry::Entry;
use super::format::{Layout, encode};
use super::port::{Disk, OpenFile, ScannedFile, Trouble};
use super::{Counts, DiskCache, PENDING_MAX, held};
use crate::body::{Body, PIECE_BYTES, Piece};
use crate::stored::Stored;

/// Blocks that one stream writes in its turn.
const BLOCKS_AT_ONCE: usize = 16;

/// The reason why a response was not written.
enum Unwritten {
    /// It is not wanted any more, or there is no room for it.
    Unwanted,
    Failed(io::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Unwritten {
        Unwritten::Failed(error)
    }
}

impl DiskCache {
    /// Announces a response, which replaces older ones. Returns its entry, if it can be written; [`DiskCache::write`]
    /// writes it.
    pub(crate) fn expect(
        self: &Arc<DiskCache>,
        key: &Arc<[u8]>,
        stored: &Stored,
        now: u64,
    ) -> Option<Arc<Entry>> {
        self.outdate(key);
        if !self.takes(now) || stored.body.length() > self.largest() {
            // Responses on the disk are older than the one that clients get now.
            self.forget_replaced(key, stored);
            return None;
        }
        let entry = Arc::new(Entry::new(self.names.next(), Arc::clone(key), stored, 0, now));
        let gone = self.index.begin(&entry);
        self.doom(gone, None);
        Some(entry)
    }

    fn forget_replaced(self: &Arc<DiskCache>, key: &[u8], stored: &Stored) {
        let gone = self.index.forget_replaced(key, &stored.label);
        self.doom(gone, None);
    }

    /// Writes a response with its body in memory, under its entry.
    pub(crate) fn write(self: &Arc<DiskCache>, entry: Arc<Entry>, stored: Arc<Stored>, now: u64) {
        let bytes = stored.body.length();
        if !self.queue(bytes) {
            return self.leave_out(&entry);
        }
        let (disk_cache, draft) = (Arc::clone(self), Arc::clone(&entry));
        let is_taken = self.threads.offer(Box::new(move || {
            disk_cache.unqueue(bytes);
            let written = match disk_cache.disk() {
                Some(disk) => disk_cache.write_whole(&*disk, &draft, &stored),
                None => Err(Unwritten::Unwanted),
            };
            disk_cache.settle(&draft, written, now);
        }));
        if !is_taken {
            self.unqueue(bytes);
            self.leave_out(&entry);
        }
    }

    fn queue(&self, bytes: u64) -> bool {
        let before = self.pending.fetch_add(bytes, Ordering::Relaxed);
        let fits = before + bytes <= PENDING_MAX;
        if !fits {
            self.unqueue(bytes);
        }
        fits
    }

    fn unqueue(&self, bytes: u64) {
        self.pending.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Skips a draft because the disk is too slow.
    fn leave_out(&self, draft: &Entry) {
        self.index.give_up(draft);
        self.free(draft);
        self.fail(Trouble::Slow, None);
    }

    fn write_whole(&self, disk: &dyn Disk, draft: &Arc<Entry>, stored: &Stored) -> Result<(), Unwritten> {
        let Body::Whole(pieces) = &stored.body else { return Err(Unwritten::Unwanted) };
        let length = stored.body.length();
        let head = encode(&draft.key, stored, length);
        let layout = Layout::of(draft.id, head.len()).ok_or(Unwritten::Unwanted)?;
        self.make_room(disk, draft, layout.size(length))?;
        let file = disk.create(draft.id)?;
        let (mut out, mut at) = (layout.beginning(&head), 0);
        let (mut number, mut block) = (0, Vec::new());
        // Pieces have their received sizes; blocks have one size, except the last one.
        for piece in pieces.iter() {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(PIECE_BYTES - block.len()));
                block.extend_from_slice(now);
                rest = later;
                if block.len() == PIECE_BYTES {
                    layout.write_block(number, &block, &mut out);
                    file.write_at(&out, at)?;
                    at += out.len() as u64;
                    number += 1;
                    out.clear();
                    block.clear();
                }
            }
        }
        if !block.is_empty() {
            layout.write_block(number, &block, &mut out);
        }
        file.write_at(&out, at)?;
        self.publish(disk, draft)
    }

    /// Reserves disk space for a draft in all; others are evicted for it.
    fn make_room(&self, disk: &dyn Disk, draft: &Arc<Entry>, size: u64) -> Result<(), Unwritten> {
        if draft.is_gone() {
            return Err(Unwritten::Unwanted);
        }
        self.index.set_aside(draft, size);
        while self.index.size() > self.bounds.disk_bytes || self.index.weight() > self.bounds.table_bytes {
            let oldest = self.index.oldest(u32::MAX).ok_or(Unwritten::Unwanted)?;
            Counts::add(&self.counts.evicted);
            if !self.remove(disk, &oldest) {
                return Err(Unwritten::Unwanted);
            }
        }
        Ok(())
    }

    fn publish(&self, disk: &dyn Disk, draft: &Arc<Entry>) -> Result<(), Unwritten> {
        if draft.is_gone() {
            return Err(Unwritten::Unwanted);
        }
        disk.publish(draft.id)?;
        let (is_kept, gone) = self.index.finish(draft);
        for oldest in &gone {
            self.remove(disk, oldest);
        }
        if !is_kept {
            self.remove(disk, draft);
            draft.let_go();
            // `settle` has no draft to remove.
            draft.size.store(0, Ordering::Relaxed);
            return Err(Unwritten::Unwanted);
        }
        Counts::add(&self.counts.written);
        Ok(())
    }

    /// Completes a draft, or removes all of it.
    fn settle(&self, draft: &Arc<Entry>, written: Result<(), Unwritten>, now: u64) {
        let Err(why) = written else { return };
        self.index.give_up(draft);
        if let Unwritten::Failed(error) = &why {
            self.pauses.pause_writing(now);
            self.fail(Trouble::Write, Some(error));
        }
        if let Some(disk) = self.disk() {
            // A remaining one is removed at the next start.
            let _ = disk.remove(ScannedFile { id: draft.id, is_draft: true });
        }
        self.free(draft);
        draft.let_go();
    }

    fn free(&self, draft: &Entry) {
        self.index.free(draft.size.swap(0, Ordering::Relaxed));
    }

    /// Rewrites the head of a response with an unchanged body: a node has revalidated it.
    pub(crate) fn renew(self: &Arc<DiskCache>, key: &[u8], stored: Arc<Stored>, now: u64) {
        let known = stored.mark.as_ref().and_then(|mark| self.index.of_file(key, mark.id));
        // One that is being written will count as stale, which is nearly true.
        let Some(entry) = known else { return };
        let disk_cache = Arc::clone(self);
        let is_taken = self.takes(now)
            && self.threads.offer(Box::new(move || {
                let Some(disk) = disk_cache.disk().filter(|_| !entry.is_gone()) else { return };
                match rewrite(&*disk, &entry, &stored) {
                    Ok(true) => {}
                    // There is no room for the new head. The response is written again when it is fetched next.
                    Ok(false) => disk_cache.lose(&entry),
                    Err(error) => {
                        disk_cache.pauses.pause_writing(now);
                        disk_cache.fail(Trouble::Write, Some(&error));
                    }
                }
            }));
        if !is_taken {
            self.fail(Trouble::Slow, None);
        }
    }

    /// Returns true if a response is being written that this one would replace.
    pub(crate) fn is_writing(&self, key: &[u8], stored: &Stored) -> bool {
        self.index.is_writing(key, &stored.label)
    }

    /// Starts to write a response whose body is too large for memory; None if it cannot be written.
    pub(crate) fn stream(
        self: &Arc<DiskCache>,
        key: &Arc<[u8]>,
        stored: &Stored,
        now: u64,
    ) -> Option<Stream> {
        self.outdate(key);
        let id = self.takes(now).then(|| self.names.next())?;
        let layout = Layout::of(id, encode(key, stored, 0).len())?;
        let entry = Arc::new(Entry::new(id, Arc::clone(key), stored, 0, now));
        // The old response stays until this one is complete.
        self.index.begin_beside(&entry);
        let lane = Lane {
            disk_cache: Arc::clone(self),
            draft: entry,
            layout,
            now,
            state: Mutex::default(),
            file: Mutex::default(),
        };
        Some(Stream { lane: Arc::new(lane) })
    }
}

/// Writes a new head next to the old one. Returns false if it does not fit.
fn rewrite(disk: &dyn Disk, entry: &Entry, stored: &Stored) -> io::Result<bool> {
    let file = match disk.open(entry.id) {
        Ok(file) => file,
        // It is still being written, or was removed by hand.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let Some((layout, beginning)) = super::read::beginning(&*file, entry.id)? else { return Ok(false) };
    let known =
        layout.head(&beginning).and_then(|head| Some((head.serial, super::format::decode(head.text)?)));
    let Some((serial, known)) = known else { return Ok(false) };
    let head = encode(&entry.key, stored, known.body_length);
    let Some((at, place)) = layout.renewal(serial, &head) else { return Ok(false) };
    file.write_at(&place, at).map(|()| true)
}

/// A response that is written while it arrives. A drop before its end removes all of it.
#[derive(Debug)]
pub(crate) struct Stream {
    lane: Arc<Lane>,
}

/// The write queue of one response, block by block.
#[derive(Debug)]
struct Lane {
    disk_cache: Arc<DiskCache>,
    draft: Arc<Entry>,
    layout: Layout,
    now: u64,
    state: Mutex<State>,
    /// Held by the writer; there is one at a time.
    file: Mutex<Written>,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Piece>,
    end: Option<End>,
    is_under_way: bool,
}

#[derive(Debug)]
enum End {
    /// It is complete; the notification of waiters is dropped when it is written.
    Whole(Box<Stored>, Box<dyn Any + Send>),
    Broken,
}

#[derive(Debug, Default)]
struct Written {
    file: Option<Arc<dyn OpenFile>>,
    blocks: u64,
    length: u64,
    is_over: bool,
}

impl Stream {
    /// Adds the next piece; all but the last one have one size. Returns false if it cannot be written any more.
    pub(crate) fn push(&self, piece: Piece) -> bool {
        let Lane { disk_cache, draft, .. } = &*self.lane;
        if draft.is_gone() {
            return false;
        }
        if !disk_cache.queue(piece.len() as u64) {
            disk_cache.fail(Trouble::Slow, None);
            return false;
        }
        self.lane.add(|state| state.pieces.push_back(piece));
        true
    }

    /// Ends the body, with this head. `waited` is dropped when it is written.
    pub(crate) fn end(self, stored: Stored, waited: Box<dyn Any + Send>) {
        self.lane.add(|state| state.end = Some(End::Whole(Box::new(stored), waited)));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.lane.add(|state| {
            state.end.get_or_insert(End::Broken);
        });
    }
}

/// The next step of a lane.
enum Next {
    Piece(Piece),
    End(End),
    Nothing,
}

impl Lane {
    fn add(self: &Arc<Lane>, add: impl FnOnce(&mut State)) {
        let mut state = held(&self.state);
        add(&mut state);
        if std::mem::replace(&mut state.is_under_way, true) {
            return;
        }
        drop(state);
        self.go_on();
    }

    fn go_on(self: &Arc<Lane>) {
        let lane = Arc::clone(self);
        self.disk_cache.threads.give(Box::new(move || {
            if lane.write_some() {
                lane.go_on();
            }
        }));
    }

    /// Writes a few blocks; returns false if there are no more for the moment.
    fn write_some(self: &Arc<Lane>) -> bool {
        for _ in 0..BLOCKS_AT_ONCE {
            match self.next() {
                Next::Nothing => return false,
                Next::Piece(piece) => {
                    self.disk_cache.unqueue(piece.len() as u64);
                    let mut written = held(&self.file);
                    if !written.is_over
                        && let Err(why) = self.write(&mut written, &piece)
                    {
                        written.is_over = true;
                        self.disk_cache.settle(&self.draft, Err(why), self.now);
                    }
                }
                Next::End(end) => self.end(end),
            }
        }
        true
    }

    fn next(&self) -> Next {
        let mut state = held(&self.state);
        if let Some(piece) = state.pieces.pop_front() {
            return Next::Piece(piece);
        }
        match state.end.take() {
            Some(end) => Next::End(end),
            None => {
                state.is_under_way = false;
                Next::Nothing
            }
        }
    }

    fn write(&self, written: &mut Written, piece: &[u8]) -> Result<(), Unwritten> {
        let disk = self.disk_cache.disk().ok_or(Unwritten::Unwanted)?;
        let length = written.length + piece.len() as u64;
        self.disk_cache.make_room(&*disk, &self.draft, self.layout.size(length))?;
        let file = match &written.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(written.file.insert(disk.create(self.draft.id)?)),
        };
        let mut block = Vec::with_capacity(PIECE_BYTES + 4);
        self.layout.write_block(written.blocks, piece, &mut block);
        file.write_at(&block, self.layout.block_at(written.blocks))?;
        written.blocks += 1;
        written.length = length;
        Ok(())
    }

    fn end(&self, end: End) {
        let mut written = held(&self.file);
        if std::mem::replace(&mut written.is_over, true) {
            return;
        }
        let (result, waited) = match end {
            End::Broken => (Err(Unwritten::Unwanted), None),
            End::Whole(stored, waited) => (self.finish(&written, &stored), Some(waited)),
        };
        written.file = None;
        self.disk_cache.settle(&self.draft, result, self.now);
        // Waiting requests look again, and find it.
        drop(waited);
    }

    fn finish(&self, written: &Written, stored: &Stored) -> Result<(), Unwritten> {
        let disk = self.disk_cache.disk().ok_or(Unwritten::Unwanted)?;
        let Some(file) = &written.file else { return Err(Unwritten::Unwanted) };
        let head = encode(&self.draft.key, stored, written.length);
        file.write_at(&self.layout.beginning(&head), 0)?;
        self.disk_cache.publish(&*disk, &self.draft)
    }
}
