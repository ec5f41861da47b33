//! What a registry has to be able to do.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sigma_config::discovery::DiscoveryLimits;
use sigma_config::resources::Node;

use crate::tally::Tally;

/// Every service that is known, by name, with its nodes. A copy is cheap, and shares what it holds.
pub(crate) type Listing = BTreeMap<Arc<str>, Arc<[Node]>>;

/// Why a registry has nothing to tell now; a sentence without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble(pub(crate) String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a source is given beside its settings.
#[derive(Debug, Clone, Default)]
pub(crate) struct Env {
    /// What a registry may answer.
    pub(crate) limits: DiscoveryLimits,
    /// Counts what is asked.
    pub(crate) tally: Arc<Tally>,
}

#[cfg(test)]
impl Env {
    /// For answers of 64 KiB, with so many nodes of a service and so many objects.
    pub(crate) fn of(nodes: u32, objects: u32) -> Env {
        let limits = DiscoveryLimits { answer_bytes: 1 << 16, nodes, objects };
        Env { limits, ..Env::default() }
    }
}

/// Something that can be asked of a registry again and again.
pub(crate) trait Source: Send + 'static {
    /// The next complete listing: at once the first time and after an error, else when it may have
    /// changed. An empty one means that the registry says so; what cannot be read is an error. After an
    /// error the caller pauses. Dropped at any time, it loses at most what it was about to yield.
    fn next(&mut self) -> impl Future<Output = Result<Listing, Trouble>> + Send;

    /// Whether the registry has named each node that is gone from the last listing, so that there is nothing to doubt.
    fn is_certain(&self) -> bool {
        false
    }
}
