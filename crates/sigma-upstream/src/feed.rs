//! Where an upstream's nodes come from when they are not configured.
//!
//! A registry is one type that implements [`Feed`]; everything else is the same for all of them:
//! a [`Watch`](crate::watch::Watch) asks for lists, resolves the names in them, keeps the last good
//! list while the feed fails, and publishes endpoints. To add a registry: one file, and one line
//! where the control plane makes feeds.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use sigma_config::resources::Node;
use sigma_http::Fault;

/// A source that fails is asked again after this long, then twice as long, up to [`RETRY_MAX`].
pub(crate) const RETRY_MIN: Duration = Duration::from_secs(1);

/// Longest pause between failures.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The pause after the first failure (0) and those that follow it.
pub(crate) fn backoff(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MAX)
}

/// Why a feed has no list now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedError {
    /// A sentence.
    pub(crate) why: String,
    /// What is said to those who need a node, as long as none was ever known.
    pub(crate) lack: Option<Fault>,
}

impl FeedError {
    /// A registry that does not answer, or not with a list.
    pub fn new(why: impl Into<String>) -> FeedError {
        FeedError { why: why.into(), lack: None }
    }
}

impl fmt::Display for FeedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for FeedError {}

/// The next list, or why there is none.
pub type NextNodes<'f> = Pin<Box<dyn Future<Output = Result<Vec<Node>, FeedError>> + Send + 'f>>;

/// A stream of complete lists of nodes.
pub trait Feed: Send + fmt::Debug {
    /// What it follows, for the log: `dns web.internal`.
    fn name(&self) -> String;

    /// The next list: at once the first time and after an error, else when it may have changed. A
    /// list replaces the one before. An empty list means that the registry knows of no node, and is
    /// served as such; a feed that cannot tell that from a failure yields an error. After an error
    /// the caller pauses, so a feed need not.
    fn next(&mut self) -> NextNodes<'_>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_failures_grow() {
        let pauses: Vec<u64> = (0..7).map(|n| backoff(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    }
}
