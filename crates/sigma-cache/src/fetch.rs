//! What a zone keeps on a disk, on its way into memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};

use sigma_http::Headers;

use crate::shelf::{Reads, Shelf};
use crate::stored::Stored;
use crate::zone::{Epoch, Zone};

/// An answer that is being read. The zone has it in memory then, unless it is large.
#[derive(Debug)]
pub struct Fetch {
    zone: Arc<Zone>,
    shelf: Arc<Shelf>,
    key: Arc<[u8]>,
    epoch: Epoch,
    answer: Reads,
}

impl Zone {
    /// Reads from a disk what is kept under a key for a request with these fields; None if there is nothing, or no time
    /// for it.
    pub fn fetch(self: &Arc<Zone>, key: &[u8], request: &Headers, now: u64) -> Option<Fetch> {
        let shelf = Arc::clone(self.shelf()?);
        let epoch = self.epoch(key);
        let answer = shelf.fetch(key, request, now)?;
        Some(Fetch { zone: Arc::clone(self), shelf, key: key.into(), epoch, answer })
    }
}

impl Fetch {
    /// Nobody waits for it any longer: the disk is too slow, and is left alone for a while.
    pub fn give_up(self, now: u64) {
        self.shelf.rest_reading(now);
    }
}

impl Future for Fetch {
    /// The answer, unless it was forgotten meanwhile or cannot be read.
    type Output = Option<Arc<Stored>>;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(task));
        // Without an answer whoever should have read it has gone.
        let stored = answer.ok().flatten().filter(|stored| stored.is_kept());
        if let Some(stored) = &stored {
            self.zone.promote(&self.key, stored, self.epoch);
        }
        Poll::Ready(stored)
    }
}
