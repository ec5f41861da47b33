//! Reading of a zone's disk responses into memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};

use sigma_http::Headers;

use crate::disk_cache::{DiskCache, Reads};
use crate::stored::Stored;
use crate::zone::{Epoch, Zone};

/// A response that is being read. Then the zone has it in memory, unless it is large.
#[derive(Debug)]
pub struct Fetch {
    zone: Arc<Zone>,
    disk_cache: Arc<DiskCache>,
    key: Arc<[u8]>,
    epoch: Epoch,
    answer: Reads,
}

impl Zone {
    /// Reads the response under a key for a request with these fields from the disk; None without a response, or if
    /// the disk is busy.
    pub fn fetch(self: &Arc<Zone>, key: &[u8], request: &Headers, now: u64) -> Option<Fetch> {
        let disk_cache = Arc::clone(self.disk_cache()?);
        let epoch = self.epoch(key);
        let answer = disk_cache.fetch(key, request, now)?;
        Some(Fetch { zone: Arc::clone(self), disk_cache, key: key.into(), epoch, answer })
    }
}

impl Fetch {
    /// Cancels the wait: the disk is too slow, and is not read for a while.
    pub fn give_up(self, now: u64) {
        self.disk_cache.rest_reading(now);
    }
}

impl Future for Fetch {
    /// The response, unless it was purged meanwhile or cannot be read.
    type Output = Option<Arc<Stored>>;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(task));
        // Without a result, the reading task has gone.
        let stored = answer.ok().flatten().filter(|stored| stored.is_kept());
        if let Some(stored) = &stored {
            self.zone.promote(&self.key, stored, self.epoch);
        }
        Poll::Ready(stored)
    }
}
