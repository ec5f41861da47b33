//! Ports for processes that cannot report which port they were given.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ephemeral range of Linux (32768), so that no outgoing connection takes the port
/// between the moment it is chosen and the moment the gateway binds it.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Returns a loopback TCP port without a listener, given out once per process.
///
/// Ports are never given out twice, and each is probed with an exclusive bind: a gateway refuses one
/// that is taken.
///
/// # Panics
/// When no port of the range is free.
pub fn free_port() -> u16 {
    let seed = (std::process::id().wrapping_mul(257) % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (seed + step) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && TcpListener::bind(("::", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
