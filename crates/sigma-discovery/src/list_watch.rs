//! Registries that are read once, and then report each change: Kubernetes and etcd.
//!
//! A watch is a response without an end, one JSON text a line. After its end, the next one continues at the same
//! position; if the registry has lost the history, everything is read again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Response;
use serde_json::Value;
use tokio::time::{sleep_until, timeout_at};

use crate::http::parsed;
use crate::source::{Env, Listing, Source, Trouble};
use crate::tally::Tally;

/// Changes within this time are reported together.
const SETTLE: Duration = Duration::from_millis(100);

/// The shortest time between two full reads or starts of a watch.
const PACE: Duration = Duration::from_secs(1);

/// The effect of a watch message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// No change
    Nothing,
    /// A change
    Change,
    /// Everything must be read again
    Gone,
}

/// A registry that can be read and watched.
pub(crate) trait Watched: Send + 'static {
    /// Reads everything.
    fn load(&mut self) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Starts a watch of later changes; None if everything must be read again.
    fn open(&mut self) -> impl Future<Output = Result<Option<Lines>, Trouble>> + Send;

    /// Handles a message of the watch.
    fn hear(&mut self, message: &Value) -> Heard;

    /// Returns the current listing.
    fn listing(&self) -> Listing;

    /// Returns true if a removal message certainly means that the node is gone.
    fn names_what_is_gone(&self) -> bool {
        false
    }

    /// Switches to another server after a failure.
    fn turn(&mut self);
}

/// Reads everything, and follows the changes.
pub(crate) struct ListWatch<W> {
    watched: W,
    is_loaded: bool,
    watch: Option<Lines>,
    /// The last listing came from messages of a watch.
    is_by_messages: bool,
    /// A failure was reported: its end must be reported too.
    has_failed: bool,
    tally: Arc<Tally>,
    /// The time of the last full read or start of a watch.
    begun: Option<Instant>,
}

impl<W: Watched> ListWatch<W> {
    pub(crate) fn new(watched: W, env: &Env) -> ListWatch<W> {
        let tally = Arc::clone(&env.tally);
        ListWatch {
            watched,
            is_loaded: false,
            watch: None,
            is_by_messages: false,
            has_failed: false,
            tally,
            begun: None,
        }
    }

    /// Waits, so that a registry which ends every watch at once causes no busy loop.
    async fn pace(&mut self) {
        if let Some(begun) = self.begun {
            sleep_until((begun + PACE).into()).await;
        }
        self.begun = Some(Instant::now());
    }

    fn fail(&mut self, trouble: Trouble) -> Trouble {
        self.watched.turn();
        (self.watch, self.has_failed) = (None, true);
        trouble
    }

    /// Returns the effect of the next message; the end of a watch has no effect.
    async fn hear(&mut self) -> Heard {
        let Some(watch) = &mut self.watch else { return Heard::Nothing };
        match watch.next().await {
            Ok(Some(message)) => {
                self.tally.succeeded();
                self.watched.hear(&message)
            }
            Ok(None) => {
                self.watch = None;
                Heard::Nothing
            }
            Err(trouble) => {
                tracing::debug!(%trouble, "starting another watch");
                self.watch = None;
                Heard::Nothing
            }
        }
    }

    /// Handles further messages that arrive together.
    async fn settle(&mut self) -> Heard {
        let until = Instant::now() + SETTLE;
        while self.watch.is_some() {
            match timeout_at(until.into(), self.hear()).await {
                Ok(Heard::Gone) => return Heard::Gone,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Heard::Change
    }
}

impl<W: Watched> Source for ListWatch<W> {
    fn is_certain(&self) -> bool {
        self.is_by_messages && self.watched.names_what_is_gone()
    }

    async fn next(&mut self) -> Result<Listing, Trouble> {
        self.is_by_messages = false;
        loop {
            if !self.is_loaded {
                self.pace().await;
                self.watch = None;
                self.watched.load().await.map_err(|trouble| self.fail(trouble))?;
                (self.is_loaded, self.has_failed, self.begun) = (true, false, None);
                return Ok(self.watched.listing());
            }
            if self.watch.is_none() {
                self.pace().await;
                let opened = self.watched.open().await;
                self.watch = opened.map_err(|trouble| self.fail(trouble))?;
                self.is_loaded = self.watch.is_some();
                self.tally.succeeded();
                if self.is_loaded && std::mem::take(&mut self.has_failed) {
                    return Ok(self.watched.listing());
                }
                continue;
            }
            let mut heard = self.hear().await;
            if heard == Heard::Change {
                heard = self.settle().await;
            }
            match heard {
                Heard::Nothing => {}
                Heard::Change => {
                    self.is_by_messages = true;
                    return Ok(self.watched.listing());
                }
                Heard::Gone => self.is_loaded = false,
            }
        }
    }
}

/// The lines of an endless response.
pub(crate) struct Lines {
    response: Response,
    /// Received bytes that are not read yet.
    rest: Vec<u8>,
    /// The length of `rest` that was searched for a line end.
    searched: usize,
    /// The limit of a line in bytes.
    most: usize,
}

impl Lines {
    pub(crate) fn new(response: Response, most: usize) -> Lines {
        Lines { response, rest: Vec::new(), searched: 0, most }
    }

    /// Returns the next line; None at the end of the response.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, Trouble> {
        loop {
            if let Some(at) = self.rest[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=self.searched + at).collect();
                self.searched = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return parsed(line)
                    .await
                    .map(Some)
                    .map_err(|error| Trouble(format!("a line of a watch is not JSON: {error}")));
            }
            self.searched = self.rest.len();
            if self.rest.len() > self.most {
                let most = self.most;
                return Err(Trouble(format!(
                    "a line is longer than {most} bytes (`discovery.limits.answer_bytes`)"
                )));
            }
            match self.response.chunk().await {
                Ok(Some(part)) => self.rest.extend_from_slice(&part),
                // The rest after the last line end is incomplete.
                Ok(None) => return Ok(None),
                Err(error) => {
                    let reason = if error.is_timeout() { "is over" } else { "was broken off" };
                    return Err(Trouble(format!("a watch {reason}")));
                }
            }
        }
    }
}
