//! Reading of responses: small ones at once into memory, large ones block by block while they are sent.

use std::io;
use std::sync::Arc;

use sigma_http::Headers;
use tokio::sync::oneshot;

use super::entry::Entry;
use super::format::{Layout, Read, block_bytes, decode};
use super::port::{Disk, FileId, OpenFile, Trouble};
use super::{Counts, DiskCache};
use crate::body::{Blocks, Body, PIECE_BYTES, Piece, Reading};
use crate::stored::Stored;

/// Bodies up to this size are read at once, and are in memory then.
const AT_ONCE_BYTES: u64 = 256 << 10;

/// The size of the first read of a file: most heads, many with their bodies.
const FIRST_BYTES: usize = 16 << 10;

/// A response that is being read, or None if it is unavailable.
pub(crate) type Reads = oneshot::Receiver<Option<Arc<Stored>>>;

impl DiskCache {
    /// Reads the newest response under a key for a request with these fields; None without a response, or if the disk
    /// is busy.
    pub(crate) fn fetch(self: &Arc<DiskCache>, key: &[u8], request: &Headers, now: u64) -> Option<Reads> {
        let entry = self.find(key, request, now)?;
        entry.mark.touch(now);
        self.load(&entry)
    }

    /// Reads a response for all concurrent requests; None if all threads are busy.
    fn load(self: &Arc<DiskCache>, entry: &Arc<Entry>) -> Option<Reads> {
        let (answer, is_first) = entry.wait();
        if !is_first {
            return Some(answer);
        }
        let (disk_cache, wanted) = (Arc::clone(self), Arc::clone(entry));
        let is_taken = self.threads.offer(Box::new(move || {
            let read = disk_cache.read(&wanted).map(Arc::new);
            wanted.tell(read.as_ref());
        }));
        if !is_taken {
            entry.tell(None);
            self.fail(Trouble::Slow, None);
        }
        is_taken.then_some(answer)
    }

    /// Reads the file of an entry. A response with a wrong checksum is removed.
    fn read(self: &Arc<DiskCache>, entry: &Arc<Entry>) -> Option<Stored> {
        let disk = self.disk().filter(|_| !entry.is_gone())?;
        let found = match self.read_file(&*disk, entry) {
            Ok(found) => found,
            // The file was removed by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.fail(Trouble::Read, Some(&error));
                return None;
            }
        };
        if found.is_none() && !entry.is_gone() {
            self.spoil(entry);
        }
        Counts::add(&self.counts.read);
        found
    }

    fn read_file(self: &Arc<DiskCache>, disk: &dyn Disk, entry: &Arc<Entry>) -> io::Result<Option<Stored>> {
        let file = disk.open(entry.id)?;
        let Some((layout, beginning)) = beginning(&*file, entry.id)? else { return Ok(None) };
        let Some(head) = layout.head(&beginning) else { return Ok(None) };
        let is_meant = |read: &Read| read.key == entry.key && read.stored.label == entry.label;
        let Some(Read { mut stored, body_length, .. }) = decode(head.text).filter(is_meant) else {
            return Ok(None);
        };
        let body = DiskBody {
            disk_cache: Arc::clone(self),
            entry: Arc::clone(entry),
            file,
            layout,
            length: body_length,
        };
        stored.body = match body_length {
            0..=AT_ONCE_BYTES => match body.read_whole(&beginning)? {
                Some(pieces) => Body::whole(pieces),
                None => return Ok(None),
            },
            _ => Body::Elsewhere(Arc::new(body)),
        };
        stored.label = Arc::clone(&entry.label);
        stored.mark = Some(Arc::clone(&entry.mark));
        Ok(Some(stored))
    }

    /// Pauses reads for a while: the disk is too slow.
    pub(crate) fn rest_reading(&self, now: u64) {
        self.pauses.pause_reading(now);
        self.fail(Trouble::Slow, None);
    }
}

/// Returns the part of a file before its body, with the bytes read together with it; None if it is not a valid file.
pub(super) fn beginning(file: &dyn OpenFile, id: FileId) -> io::Result<Option<(Layout, Vec<u8>)>> {
    let mut bytes = vec![0; FIRST_BYTES];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    let Some(layout) = Layout::read(id, &bytes) else { return Ok(None) };
    if layout.body_at() > read {
        bytes.resize(layout.body_at(), 0);
        let more = file.read_at(&mut bytes[read..], read as u64)?;
        bytes.truncate(read + more);
    }
    Ok(Some((layout, bytes)))
}

/// A body on a disk. It stays readable while this exists, even if its file is removed.
#[derive(Debug)]
struct DiskBody {
    disk_cache: Arc<DiskCache>,
    entry: Arc<Entry>,
    file: Arc<dyn OpenFile>,
    layout: Layout,
    length: u64,
}

impl Blocks for DiskBody {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(self: Arc<DiskBody>, number: u64) -> Reading {
        let (sender, reading) = oneshot::channel();
        let threads = Arc::clone(&self.disk_cache.threads);
        threads.give(Box::new(move || {
            if !sender.is_closed() {
                // A reader that has left needs nothing.
                let _ = sender.send(self.read_block(number));
            }
        }));
        reading
    }
}

impl DiskBody {
    fn read_block(&self, number: u64) -> io::Result<Piece> {
        let mut block = vec![0; block_bytes(self.length, number)];
        let read = self.file.read_at(&mut block, self.layout.block_at(number));
        let read = read.inspect_err(|error| self.disk_cache.fail(Trouble::Read, Some(error)))?;
        match self.layout.read_block(number, &block[..read]).filter(|_| read == block.len()) {
            Some(bytes) => Ok(bytes.into()),
            None => {
                self.disk_cache.spoil(&self.entry);
                Err(io::Error::other("a stored response is corrupt"))
            }
        }
    }

    /// Reads all of it, with the bytes `known` from the first read; None if a checksum is wrong.
    fn read_whole(&self, known: &[u8]) -> io::Result<Option<Vec<Piece>>> {
        let mut pieces = Vec::new();
        for number in 0..self.length.div_ceil(PIECE_BYTES as u64) {
            let (at, bytes) = (self.layout.block_at(number), block_bytes(self.length, number));
            let mut read = Vec::new();
            let known = usize::try_from(at).ok().and_then(|at| known.get(at..)?.get(..bytes));
            let block = match known {
                Some(block) => block,
                None => {
                    read.resize(bytes, 0);
                    let count = self.file.read_at(&mut read, at)?;
                    &read[..count]
                }
            };
            match self.layout.read_block(number, block).filter(|_| block.len() == bytes) {
                Some(bytes) => pieces.push(bytes.into()),
                None => return Ok(None),
            }
        }
        Ok(Some(pieces))
    }
}
