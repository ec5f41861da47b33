//! Code from users in Lua, as APISIX and OpenResty run it.

use sigma_plugin::Descriptor;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[];
