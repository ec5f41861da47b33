//! External processors: servers of Envoy's `ext_proc` protocol that read and change messages.

use sigma_plugin::Descriptor;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[];
