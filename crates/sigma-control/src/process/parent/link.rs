//! Messages between a gateway and its parent while the gateway runs.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sigma_observe::error_lines;
use sigma_plugin::Node;

use super::renewal::ProgramFile;
use crate::process::handover::Channel;

/// The messages of both sides.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(super) enum Word {
    /// The gateway: some of the sockets that it listens on, as descriptors.
    Socket,
    /// The gateway: all sockets are sent. They replace the former ones.
    Sockets,
    /// The gateway: it serves. One of an earlier version says nothing of lines, and takes none. Its program is one
    /// that a parent can continue as.
    Ready {
        #[serde(default)]
        takes_lines: bool,
        #[serde(default)]
        program: Option<ProgramFile>,
    },
    /// The gateway: it is alive.
    Beat,
    /// The gateway: another one should replace it.
    Replace { why: String },
    /// The gateway: what became of an order of operators. One of an earlier version has no note.
    CarriedOut {
        problem: Option<String>,
        #[serde(default)]
        note: String,
    },
    /// The gateway: an operator has ordered it to stop, and its parent with it.
    Stop,
    /// The parent: a successor is at the other end of this descriptor.
    Succeed,
    /// The parent: a line of its error log, and how many it has lost before that one.
    Line { level: String, text: String, lost: u64 },
}

/// A gateway's link to its parent.
pub(crate) struct Link {
    channel: Channel,
    /// It was not heard, which the log has said.
    is_deaf: Cell<bool>,
}

/// How long a word may wait for the parent.
const PATIENCE: Duration = Duration::from_secs(1);

impl Link {
    pub(crate) fn over(channel: Channel) -> Link {
        Link { channel, is_deaf: Cell::new(false) }
    }

    /// Gives the parent the sockets to hold.
    pub(crate) async fn hold(&self, sockets: &[OwnedFd]) {
        self.say(&Word::Socket, sockets).await;
        self.say(&Word::Sockets, &[]).await;
    }

    pub(crate) async fn ready(&self) {
        let program = ProgramFile::of_this_process();
        self.say(&Word::Ready { takes_lines: true, program }, &[]).await;
    }

    pub(crate) async fn beat(&self) {
        self.say(&Word::Beat, &[]).await;
    }

    pub(crate) async fn ask_for_replacement(&self, why: &str) {
        self.say(&Word::Replace { why: why.to_owned() }, &[]).await;
    }

    pub(crate) async fn carried_out(&self, result: Result<&str, &str>) {
        let (note, problem) = (result.unwrap_or_default().to_owned(), result.err().map(str::to_owned));
        self.say(&Word::CarriedOut { problem, note }, &[]).await;
    }

    /// Tells the parent that no gateway is to run any more.
    pub(crate) async fn stop(&self) {
        self.say(&Word::Stop, &[]).await;
    }

    /// A parent that has gone is noticed by [`Link::successor`]; a stuck one is not waited for.
    async fn say(&self, word: &Word, descriptors: &[OwnedFd]) {
        let said = tokio::time::timeout(PATIENCE, self.channel.say(word, descriptors)).await;
        if said.is_err() && !self.is_deaf.replace(true) {
            tracing::error!("cannot send to the parent process");
        }
    }

    /// The channel to the next successor; None once the parent has gone. Lines of its error log that come
    /// before go to the log of this process.
    pub(crate) async fn successor(&self, node: &Node) -> Option<Channel> {
        loop {
            match self.channel.hear().await {
                Ok(Some((Word::Succeed, descriptors))) => {
                    let channel = descriptors.into_iter().next().map(Channel::over);
                    if let Some(Ok(channel)) = channel {
                        return Some(channel);
                    }
                    tracing::error!("cannot reach the successor that the parent process named");
                }
                Ok(Some((Word::Line { level, text, lost }, _))) => {
                    node.lose_lines(lost);
                    // One that is no level was not said by a parent of this program: it is shipped as the worst.
                    let level = level.parse().unwrap_or(tracing::Level::ERROR);
                    error_lines::relay(level, text.as_bytes());
                }
                Ok(Some((word, _))) => {
                    tracing::warn!(?word, "received an unknown message from the parent process")
                }
                Ok(None) => return None,
                Err(error) => {
                    let error: io::Error = error;
                    tracing::error!(%error, "cannot read messages of the parent process");
                    return None;
                }
            }
        }
    }
}
