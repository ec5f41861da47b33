//! The ends of connections, towards nodes and towards clients, in every version of HTTP, and towards nodes in
//! FastCGI and Dubbo: streams of bytes on one side, heads and frames on the other.
//!
//! Behind [`Connection`] and [`Downstream`] nobody knows what is spoken. What both ends of a
//! version share is written once, beside them. Limits and times are arguments: nothing here reads a
//! configuration, chooses a node or knows what a request is for.

mod client;
mod complaints;
pub mod dubbo;
pub mod fcgi;
pub mod h1;
pub mod h2;
mod nobody;
mod rest;
mod rules;
mod server;
mod subrequest;

pub use client::{Connection, Terms};
pub use nobody::Nobody;
pub use rest::Rest;
pub use server::Downstream;
/// Limits of a head.
pub use sigma_http::h1::HeadLimits;
pub use subrequest::{Received, Subrequest};
