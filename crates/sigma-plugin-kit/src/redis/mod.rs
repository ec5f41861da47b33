//! Redis, for plugins that share their counters with other gateways.
//!
//! A plugin's configuration names a [`Target`]; equal ones are one object. Each worker has one
//! [`SharedConnection`] to each target, over which the commands of all its exchanges go at once. It is made when first needed, and made again, with growing pauses, when it was lost.
//!
//! | file | question |
//! |---|---|
//! | `settings` | the configuration of Redis |
//! | `target` | the target of a connection |
//! | `connect` | how a connection is made: alone, to a cluster, through sentinels |
//! | `connection` | the choice of a command's connection |
//! | `script` | how a script runs on the server |

mod connect;
mod connection;
mod script;
mod settings;
mod target;
#[cfg(test)]
mod tests;

pub use connection::{Connections, SharedConnection};
pub use script::Script;
pub use settings::{Policy, idle_settings, policies};
pub use target::{Encryption, ServerAddress, Target, single_server};
