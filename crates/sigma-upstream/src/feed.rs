//! Sources of an upstream's nodes other than its configuration.
//!
//! A registry is one type that implements [`Feed`]. The rest is common: a [`Watch`](crate::watch::Watch) reads lists,
//! resolves the names in them, keeps the last good list while the feed fails, and publishes endpoints. To add a
//! registry, write one file, and one line where the control plane makes feeds.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use sigma_config::resources::Node;
use sigma_http::Fault;

/// The pause after the first failure of a source; it doubles up to [`RETRY_MAX`].
pub(crate) const RETRY_MIN: Duration = Duration::from_secs(1);

/// The longest pause after failures.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Returns the pause after the first failure (0) and later ones.
pub(crate) fn backoff(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MAX)
}

/// The reason why a feed has no list now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedError {
    /// A sentence.
    pub(crate) why: String,
    /// The fault of requests that need a node, while no list was ever known.
    pub(crate) lack: Option<Fault>,
}

impl FeedError {
    /// Returns the error of a registry that does not respond, or not with a list.
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

/// The next list, or the reason for its absence.
pub type NextNodes<'f> = Pin<Box<dyn Future<Output = Result<Vec<Node>, FeedError>> + Send + 'f>>;

/// A stream of complete node lists.
pub trait Feed: Send + fmt::Debug {
    /// Returns its source, for the log: `dns web.internal`.
    fn name(&self) -> String;

    /// Returns the next list: at once the first time and after an error, otherwise when it may have changed. A list
    /// replaces the previous one. An empty list means that the registry has no nodes, and is used as such; a feed
    /// that cannot distinguish that from a failure returns an error. After an error the caller pauses, so a feed need
    /// not.
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
