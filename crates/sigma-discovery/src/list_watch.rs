//! Registries that are read once, and then tell each change: Kubernetes and etcd.
//!
//! A watch is an answer without an end, one JSON text a line. When it ends, the next one begins where it
//! was; what the registry cannot tell any more is read anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Response;
use serde_json::Value;
use tokio::time::{sleep_until, timeout_at};

use crate::http::parsed;
use crate::source::{Env, Listing, Source, Trouble};
use crate::tally::Tally;

/// Changes within this time are told together.
const SETTLE: Duration = Duration::from_millis(100);

/// Neither is everything read, nor a watch begun, more often.
const PACE: Duration = Duration::from_secs(1);

/// What a message of a watch means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing is different.
    Nothing,
    /// Something is.
    Change,
    /// Everything is to be read anew.
    Gone,
}

/// What can be read and watched.
pub(crate) trait Watched: Send + 'static {
    /// Reads everything.
    fn load(&mut self) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Begins a watch of what comes after that, and after what was heard; None if everything is to be
    /// read anew.
    fn open(&mut self) -> impl Future<Output = Result<Option<Lines>, Trouble>> + Send;

    /// Takes in a message of the watch.
    fn hear(&mut self, message: &Value) -> Heard;

    /// What is known.
    fn listing(&self) -> Listing;

    /// Whether a message that takes something away is certain to mean that it is gone.
    fn names_what_is_gone(&self) -> bool {
        false
    }

    /// The server that was asked has failed.
    fn turn(&mut self);
}

/// Reads, and follows what is told.
pub(crate) struct ListWatch<W> {
    watched: W,
    is_loaded: bool,
    watch: Option<Lines>,
    /// The last listing came by messages of a watch.
    is_by_messages: bool,
    /// A failure was yielded: that it is over is to be told.
    has_failed: bool,
    tally: Arc<Tally>,
    /// When the registry was last read, or a watch last begun.
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

    /// Waits so that a registry which ends every watch at once does not keep anybody busy.
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

    /// What the next message means; the end of a watch means nothing.
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
                tracing::debug!(%trouble, "another watch is begun");
                self.watch = None;
                Heard::Nothing
            }
        }
    }

    /// Takes in what else is told at the same time.
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

/// The lines of an answer that goes on.
pub(crate) struct Lines {
    response: Response,
    /// What has come and was not read yet.
    rest: Vec<u8>,
    /// How much of `rest` has no end of a line.
    searched: usize,
    /// Bytes of a line.
    most: usize,
}

impl Lines {
    pub(crate) fn new(response: Response, most: usize) -> Lines {
        Lines { response, rest: Vec::new(), searched: 0, most }
    }

    /// The next line; None at the end of the answer.
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
                    .map_err(|error| Trouble(format!("a line of a watch is no JSON: {error}")));
            }
            self.searched = self.rest.len();
            if self.rest.len() > self.most {
                let most = self.most;
                return Err(Trouble(format!(
                    "a line has over {most} bytes (`discovery.limits.answer_bytes`)"
                )));
            }
            match self.response.chunk().await {
                Ok(Some(part)) => self.rest.extend_from_slice(&part),
                // What stands behind the last end of a line was broken off.
                Ok(None) => return Ok(None),
                Err(error) => {
                    let reason = if error.is_timeout() { "is over" } else { "was broken off" };
                    return Err(Trouble(format!("a watch {reason}")));
                }
            }
        }
    }
}
