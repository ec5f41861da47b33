//! The plugins that come with the gateway, a file each, and their roster.
//!
//! To add one: write its file in the folder of the question it answers, and its line in
//! [`roster`]. `docs/writing-a-plugin.md` builds one from nothing.

mod asked_once;
mod auth;
mod batch;
mod compose;
mod condition;
mod decisions;
#[cfg(test)]
mod explained;
mod fetched;
mod freshness;
mod functions;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod inflate;
mod json_body;
mod kafka;
mod ldap;
mod limit;
mod log;
mod log_throttle;
mod metrics;
mod multipart;
mod networks;
mod redis;
mod registry;
mod rewrite;
pub mod roster;
mod security;
mod server;
mod service;
mod sigv4;
mod t1k;
mod tallies;
#[cfg(test)]
pub(crate) mod testing;
mod trace;
mod traffic;
mod utc;
mod web;
mod websocket;

pub use roster::kinds;
