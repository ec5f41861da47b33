//! The ends of connections, towards nodes and towards clients, in every version of HTTP: streams of
//! bytes on one side, heads and frames on the other.
//!
//! Behind [`Connection`] nobody knows which version is spoken.
//! What both sides of a version share is written once, beside them. Limits and times are arguments:
//! nothing here reads a configuration, chooses a node or knows what a request is for.

pub mod client;
mod fault;
pub mod h1;
pub mod h2;

pub use client::Connection;
/// Limits of a head.
pub use sigma_http::h1::HeadLimits;
