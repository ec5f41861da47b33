//! Slices, combined as a client wants them.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use sigma_cache::{MayUse, Reader, SliceTable, Stored, Version, may_use, slice, slice_key};
use sigma_http::Chunk;
use sigma_http::range::ByteRange;
use sigma_plugin::{BodySource, Context};
use tokio::sync::oneshot;

use super::super::present::{RequestedPart, hide, present_of};
use super::super::{Look, wishes};
use super::{LOOKED_AT, SliceRequest, TRIES};
use crate::exchange::local_reply::LocalReply;

/// The reason why a slice is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The node has another version now
    Changed,
    Failed,
}

/// A slice that is there when the others are requested.
pub(super) struct FirstSlice {
    pub(super) number: u64,
    pub(super) stored: Arc<Stored>,
}

/// Slices of one version, at least one of which is there.
pub(super) struct Assembly {
    slice_request: Rc<SliceRequest>,
    table: SliceTable,
    first: RefCell<Option<FirstSlice>>,
}

impl Assembly {
    pub(super) fn new(slice_request: Rc<SliceRequest>, table: SliceTable, first: FirstSlice) -> Rc<Assembly> {
        Rc::new(Assembly { slice_request, table, first: RefCell::new(Some(first)) })
    }

    /// Sets the head, for the part of the whole that the client wants.
    pub(super) fn present(self: &Rc<Assembly>, ctx: &mut Context) -> LocalReply {
        let total = self.table.version.total;
        let head = &mut ctx.response;
        head.start(200);
        if let Some(first) = &*self.first.borrow() {
            head.headers.copy_from(&first.stored.headers);
        }
        head.headers.remove_name(b"Content-Range");
        let wanted = self.slice_request.wanted(&head.headers, total);
        hide(&self.slice_request.wish.rule, &mut head.headers);
        let read = |range: ByteRange| -> Box<dyn BodySource> {
            Box::new(SliceReader {
                assembly: Rc::clone(self),
                next: range.start / self.table.slice_bytes,
                skip: range.start % self.table.slice_bytes,
                left: range.length(),
                now: None,
                left_now: 0,
                ahead: None,
            })
        };
        present_of(total, &read, wanted, ctx)
    }

    /// Returns the first and last wanted slice of each range.
    fn wanted(&self) -> Vec<(u64, u64)> {
        let first = self.first.borrow();
        let Some(first) = &*first else { return Vec::new() };
        let total = self.table.version.total;
        let all = ByteRange { start: 0, end: total.saturating_sub(1) };
        let ranges = match self.slice_request.wanted(&first.stored.headers, total) {
            RequestedPart::Whole => vec![all],
            RequestedPart::Part(part) => vec![part],
            RequestedPart::Parts(parts) => parts,
            RequestedPart::Beyond | RequestedPart::Nothing => Vec::new(),
        };
        let size = self.table.slice_bytes;
        ranges.iter().map(|range| (range.start / size, range.end / size)).collect()
    }

    /// Returns the first wanted slice that is neither in memory nor on a disk.
    pub(super) fn first_missing(&self, now: u64) -> Option<u64> {
        let (zone, rule) = (&self.slice_request.zone, &self.slice_request.wish.rule);
        let is_there = |number: u64| {
            if self.first.borrow().as_ref().is_some_and(|first| first.number == number) {
                return true;
            }
            let key = slice_key(&self.slice_request.wish.key, self.table.id, number);
            match zone.find(&key, self.slice_request.asked()) {
                Some(kept) => {
                    may_use(rule, &kept.freshness, &wishes(self.slice_request.asked()), now) == MayUse::Yes
                }
                None => zone.has(&key),
            }
        };
        let wanted = self.wanted();
        let numbers = wanted.into_iter().flat_map(|(first, last)| first..=last);
        numbers.take(LOOKED_AT as usize).find(|number| !is_there(*number))
    }

    /// Returns a slice as it arrives: stored, fetched by another request, or fetched now.
    ///
    /// # Errors
    /// Returns the reason why it is unavailable. Slices of another version are purged then.
    pub(super) async fn obtain(self: Rc<Assembly>, number: u64) -> Result<Arc<Stored>, Trouble> {
        let slice_request = &self.slice_request;
        // It counts as used with its slices, so that it is not evicted before them.
        self.is_in_force();
        for _ in 0..TRIES {
            let mut turn = slice_request.turn(number, Some(self.table.clone()));
            turn.fetch(slice_request.request(), slice_request.now_s()).await;
            match turn.look(slice_request.request(), slice_request.now_s(), true) {
                Look::Use(stored, _) | Look::Share(stored) => return self.fitting(number, stored),
                Look::UseAndAsk(stored) => {
                    slice_request.prepare(&mut turn);
                    slice_request.ask_in_background(turn, None);
                    return self.fitting(number, stored);
                }
                Look::Wait(flight) => {
                    let Some(place) = flight.join(slice_request.wish.rule.waiters_max) else { continue };
                    let _ = tokio::time::timeout(slice_request.wait(), place.news()).await;
                }
                Look::Ask => {
                    let stale = turn.stand_in(slice_request.now_s());
                    let (tell, told) = oneshot::channel();
                    slice_request.prepare(&mut turn);
                    slice_request.ask_in_background(turn, Some(tell));
                    return match (told.await, stale) {
                        (Ok(stored), _) => self.fitting(number, stored),
                        (Err(_), Some(stale)) if self.is_in_force() => self.fitting(number, stale),
                        (Err(_), _) if self.is_in_force() => Err(Trouble::Failed),
                        (Err(_), _) => Err(Trouble::Changed),
                    };
                }
                Look::Nothing | Look::Slices | Look::Again => return Err(Trouble::Failed),
            }
        }
        Err(Trouble::Failed)
    }

    /// Returns true if the table of these slices was not purged.
    fn is_in_force(&self) -> bool {
        let kept = self.slice_request.zone.find(&self.slice_request.table_key(), self.slice_request.asked());
        let Some(kept) = kept else { return false };
        kept.touch(self.slice_request.now_s());
        SliceTable::of(&kept).is_some_and(|table| table.id == self.table.id)
    }

    fn fitting(&self, number: u64, stored: Arc<Stored>) -> Result<Arc<Stored>, Trouble> {
        let version = Version::of_kept(&stored, number, self.table.slice_bytes);
        if version.as_ref() == Some(&self.table.version) {
            stored.touch(self.slice_request.now_s());
            return Ok(stored);
        }
        self.slice_request.zone.purge(&self.slice_request.table_key());
        Err(Trouble::Changed)
    }
}

type Obtaining = Pin<Box<dyn Future<Output = Result<Arc<Stored>, Trouble>>>>;

/// A slice that is wanted next.
enum Ahead {
    Coming(Obtaining),
    There(Result<Arc<Stored>, Trouble>),
}

impl Ahead {
    fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        if let Ahead::Coming(coming) = self {
            *self = Ahead::There(ready!(coming.as_mut().poll(task)));
        }
        Poll::Ready(())
    }
}

/// A reader of bytes over several slices. It holds at most two: the next one is requested when half of the current
/// one is sent.
struct SliceReader {
    assembly: Rc<Assembly>,
    /// The number of the next slice, and the unwanted bytes at its beginning.
    next: u64,
    skip: u64,
    left: u64,
    now: Option<Reader>,
    left_now: u64,
    ahead: Option<Ahead>,
}

impl SliceReader {
    fn begin(&mut self) -> Ahead {
        let mut first = self.assembly.first.borrow_mut();
        match first.take_if(|first| first.number == self.next) {
            Some(first) => Ahead::There(Ok(first.stored)),
            None => Ahead::Coming(Box::pin(Rc::clone(&self.assembly).obtain(self.next))),
        }
    }

    /// Starts the next slice.
    fn poll_next(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let mut ahead = self.ahead.take().unwrap_or_else(|| self.begin());
        if ahead.poll(task).is_pending() {
            self.ahead = Some(ahead);
            return Poll::Pending;
        }
        let Ahead::There(Ok(stored)) = ahead else {
            return Poll::Ready(Err(io::Error::other("cannot get a slice of the response")));
        };
        let table = &self.assembly.table;
        let Some((_, length)) = slice(self.next, table.slice_bytes, table.version.total) else {
            return Poll::Ready(Err(io::Error::other("the response has no such slice")));
        };
        self.left_now = length.saturating_sub(self.skip).min(self.left);
        self.now = Some(stored.body.read(self.skip, self.left_now));
        (self.next, self.skip) = (self.next + 1, 0);
        Poll::Ready(Ok(()))
    }

    /// Requests the next slice when it is time.
    fn look_ahead(&mut self, task: &mut Task<'_>) {
        let is_time = self.left_now < self.assembly.table.slice_bytes / 2 && self.left > self.left_now;
        if is_time && self.ahead.is_none() {
            self.ahead = Some(self.begin());
        }
        if let Some(ahead) = &mut self.ahead {
            // Its result is checked when it is needed.
            let _ = ahead.poll(task);
        }
    }
}

impl BodySource for SliceReader {
    fn poll_piece(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if self.left == 0 {
                return Poll::Ready(Ok(None));
            }
            self.look_ahead(task);
            let Some(now) = &mut self.now else {
                ready!(self.poll_next(task))?;
                continue;
            };
            match ready!(now.poll_piece(task))? {
                Some(chunk) => {
                    self.left -= chunk.len() as u64;
                    self.left_now -= chunk.len() as u64;
                    return Poll::Ready(Ok(Some(chunk)));
                }
                None => self.now = None,
            }
        }
    }
}
