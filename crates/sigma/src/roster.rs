//! The plugins of this build.

use std::sync::Arc;

use sigma_plugin::Roster;

/// All plugins of this build, enabled.
pub(crate) fn roster() -> Arc<Roster> {
    Arc::new(Roster::new(sigma_plugins::kinds(), None))
}
