//! Plugins in other languages: the gateway starts a runner, and calls it over its Unix socket.
//!
//! | module | subject |
//! |---|---|
//! | `process` | the process of the runner |
//! | `runner` | the part that all workers share: the socket, the tokens |
//! | `client` | the calls of one worker, and its pool |
//! | `connection` | frames on one connection |
//! | `tokens` | the names of configurations in the runner |
//! | `messages`, `flat` | the protocol's messages, and their encoding |
//! | `caller` | the common part of the plugins |
//! | `request` | `ext-plugin-pre-req`, `ext-plugin-post-req` |
//! | `response` | `ext-plugin-post-resp` |

use sigma_plugin::Descriptor;

mod caller;
mod client;
mod config;
mod connection;
mod fields;
mod flat;
mod messages;
mod process;
mod request;
mod response;
mod runner;
#[cfg(test)]
mod scripted;
#[cfg(test)]
#[path = "../../plugins/testing.rs"]
mod testing;
#[cfg(test)]
mod tests;
mod tokens;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use super::messages::fuzzing::runner_messages;
}

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] =
    &[&request::EXT_PLUGIN_POST_REQ, &response::EXT_PLUGIN_POST_RESP, &request::EXT_PLUGIN_PRE_REQ];
