//! The real-socket harness of the integration tests: a gateway process, scripted origins, raw clients, the language
//! of the wire cases, and the other programs that a gateway works with.
//!
//! Everything here blocks, and every wait has a deadline ([`DEADLINE`] unless set otherwise); no test relies on a
//! fixed sleep. The readers are stricter than any real peer: they accept only HTTP/1.1 that follows RFC 9112 exactly,
//! so sloppy output of the gateway fails here first.

mod case;
mod dns;
mod dubbo;
mod etcd;
mod gateway;
mod geo_database;
mod message;
mod notifications;
mod operator;
mod origin;
mod peer;
mod ports;
mod process;
mod redis;
mod relay;
mod secrets;
mod seeds;
mod slapd;
mod socket;
mod streams;
mod tls;
pub mod wire;
mod zone;

pub use case::{Action, Case, Check, Expect, Side, Step, parse_cases};
pub use dns::{Dns, HttpsRecord, RecordKind, ServiceRecord};
pub use dubbo::{DubboFrame, DubboProvider, hessian_map, hessian_text};
pub use etcd::EtcdServer;
pub use gateway::{Gateway, children};
pub use geo_database::GeoDatabase;
pub use message::{Framing, Head, Message};
pub use operator::Operator;
pub use origin::{Origin, checksum};
pub use peer::Peer;
pub use ports::free_port;
pub use redis::Redis;
pub use relay::Relay;
pub use seeds::{for_few_seeds, for_inputs_of, for_seeds};
pub use slapd::Slapd;
pub use socket::{Address, Socket};
pub use zone::Zone;

use std::time::{Duration, Instant};

/// How long one step of a test may take before it counts as failed. Long, as other processes may use all CPUs.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Raises the limit of open files of this process, and of its children, to at least `count`.
pub fn allow_open_files(count: u64) -> anyhow::Result<()> {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.current.is_some_and(|c| c < count) {
        limit.current = Some(limit.maximum.map_or(count, |m| m.min(count)));
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    }
    Ok(())
}

/// Returns a text with another letter in this place, for sure: one that is always the same may be there already.
pub fn damaged(text: &str, place: usize) -> String {
    let other = if text[place..].starts_with('A') { 'B' } else { 'A' };
    text.chars().enumerate().map(|(at, letter)| if at == place { other } else { letter }).collect()
}

/// Polls `condition` until it holds; returns false if `limit` passed first.
pub fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_text_differs_in_one_letter() {
        assert_eq!((damaged("xyz", 1), damaged("xAz", 1)), ("xAz".to_owned(), "xBz".to_owned()));
    }
}
