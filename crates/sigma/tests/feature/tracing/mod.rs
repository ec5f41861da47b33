//! Requests as collectors see them: OTLP over HTTP and gRPC, Zipkin, SkyWalking, DogStatsD; and metrics over
//! OTLP.
//!
//! The collectors are here: each one decodes its input by itself, after the same descriptions.

mod metrics;
mod otlp;
mod pushes;
mod segments;

use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};

pub(crate) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(crate) const PARENT: &str = "b7ad6b7169203331";

/// A gateway with these routes.
fn gateway(config: &str) -> Gateway {
    Gateway::start(SIGMA, &format!("workers: 1\nlisteners: [\"{{listen}}\"]\n{config}")).unwrap()
}

/// Requests a path with these fields.
fn ask(gateway: &Gateway, path: &str, fields: &str) -> Message {
    gateway.connect().unwrap().ask(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n")).unwrap()
}

/// Waits for something that comes over the network.
fn comes(gateway: &Gateway, what: impl Fn() -> bool) {
    assert!(until(PATIENCE, what), "{}", gateway.stderr());
}

/// A node that breaks its connections without a response.
fn breaking() -> Origin {
    Origin::serve(|mut peer: Peer| drop(peer.read_head())).unwrap()
}
