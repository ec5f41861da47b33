//! Registries without pushes: they are polled, one member until it fails.

use std::time::Duration;

use sigma_config::discovery::RegistryAddress;

use crate::http::Members;
use crate::source::{Listing, Source, Trouble};

/// A request that any member can serve.
pub(crate) trait MemberQuery: Send + 'static {
    /// Sends it to this member.
    fn ask(&mut self, address: &RegistryAddress) -> impl Future<Output = Result<Listing, Trouble>> + Send;

    /// Handles a switch to the next member after a failure.
    fn turned(&mut self) {}
}

/// Polls at intervals.
pub(crate) struct Polling<A> {
    asked: A,
    members: Members,
    interval: Duration,
    has_answer: bool,
}

impl<A: MemberQuery> Polling<A> {
    pub(crate) fn new(asked: A, members: Members, interval: Duration) -> Polling<A> {
        Polling { asked, members, interval, has_answer: false }
    }

    /// Makes the next request at once.
    pub(crate) fn hurry(&mut self) {
        self.has_answer = false;
    }
}

impl<A: MemberQuery> Source for Polling<A> {
    async fn next(&mut self) -> Result<Listing, Trouble> {
        if std::mem::take(&mut self.has_answer) {
            tokio::time::sleep(self.interval).await;
        }
        let mut tries = self.members.len();
        loop {
            let trouble = match self.asked.ask(self.members.current()).await {
                Ok(listing) => {
                    self.has_answer = true;
                    return Ok(listing);
                }
                Err(trouble) => trouble,
            };
            tries -= 1;
            self.members.turn();
            self.asked.turned();
            if tries == 0 {
                return Err(trouble);
            }
            tracing::warn!(%trouble, "switching to another member of the registry");
        }
    }
}
