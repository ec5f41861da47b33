//! Plugins in other languages: the gateway starts a runner, and calls it over its Unix socket.

use sigma_plugin::Descriptor;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[];
