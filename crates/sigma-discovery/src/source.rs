//! The interface of a registry.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sigma_config::discovery::DiscoveryLimits;
use sigma_config::resources::Node;

use crate::tally::Tally;

/// Every known service, by name, with its nodes. A clone is cheap, and shares the data.
pub(crate) type Listing = BTreeMap<Arc<str>, Arc<[Node]>>;

/// The reason why a registry has no data now; a sentence without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble(pub(crate) String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The environment of a source, besides its settings.
#[derive(Debug, Clone, Default)]
pub(crate) struct Env {
    /// The limits of a registry's responses.
    pub(crate) limits: DiscoveryLimits,
    /// Counts requests.
    pub(crate) tally: Arc<Tally>,
}

#[cfg(test)]
impl Env {
    /// Returns limits of 64 KiB a response, with these numbers of nodes in a service and of objects.
    pub(crate) fn of(nodes: u32, objects: u32) -> Env {
        let limits = DiscoveryLimits { answer_bytes: 1 << 16, nodes, objects };
        Env { limits, ..Env::default() }
    }
}

/// A repeatable request to a registry.
pub(crate) trait Source: Send + 'static {
    /// Returns the next complete listing: at once the first time and after an error, otherwise when it may have
    /// changed. An empty one means that the registry is empty; an unreadable response is an error. After an error the
    /// caller pauses. Dropped at any time, it loses at most the listing that it was about to return.
    fn next(&mut self) -> impl Future<Output = Result<Listing, Trouble>> + Send;

    /// Returns true if the registry has named each node that is gone from the last listing, so that there is nothing
    /// to doubt.
    fn is_certain(&self) -> bool {
        false
    }
}
