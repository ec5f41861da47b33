//! Both ends of connections, towards nodes and clients: HTTP in every version, and FastCGI and Dubbo towards nodes.
//! One side has streams of bytes, the other heads and frames.
//!
//! Users of [`Connection`] and [`Downstream`] do not see the protocol. Code that both ends of a version share is next
//! to them. Limits and times are arguments: this crate reads no configuration, chooses no node and does not know the
//! purpose of a request.

mod client;
mod complaints;
pub mod dubbo;
pub mod fcgi;
pub mod h1;
pub mod h2;
pub mod h3;
mod multiplexed;
mod no_client;
mod rest;
mod rules;
mod server;
pub mod splice;
mod subrequest;
mod traffic;
mod tunnel;

pub use client::{Connection, Terms};
pub use multiplexed::MultiplexedConnection;
pub use no_client::NoClient;
pub use rest::Rest;
pub use server::Downstream;
/// Limits of a head.
pub use sigma_http::h1::HeadLimits;
pub use subrequest::{Received, Subrequest};
