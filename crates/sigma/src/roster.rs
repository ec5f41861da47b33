//! The plugins of this build.

use std::sync::Arc;

use sigma_plugin::{Kind, Roster};

/// The plugins of this build, and the names of those that it has left out.
pub(crate) fn all_kinds() -> Vec<Arc<dyn Kind>> {
    sigma_plugins::kinds().into_iter().chain(sigma_plugins::left_out()).collect()
}

/// All plugins of this build, enabled.
pub(crate) fn roster() -> Arc<Roster> {
    Arc::new(Roster::new(all_kinds(), None))
}
