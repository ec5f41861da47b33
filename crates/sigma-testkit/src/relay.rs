//! A wire that can be cut: a TCP relay between two processes of a test.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// How soon a cut is noticed.
const TICK: Duration = Duration::from_millis(10);

const WHOLE: u8 = 0;
const CUT: u8 = 1;
const GONE: u8 = 2;

/// A relay that accepts connections and forwards their bytes to another port of this machine.
///
/// While it is cut, it forwards nothing and reports nothing, like a network partition: connections stay open and new
/// ones are accepted. Connections that were open then end when it is whole again.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    state: Arc<AtomicU8>,
}

impl Relay {
    /// Starts a relay to `target`, a port on 127.0.0.1 that need not listen yet.
    pub fn to(target: u16) -> Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0").context("bind a relay")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(AtomicU8::new(WHOLE));
        let seen = Arc::clone(&state);
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if seen.load(Ordering::SeqCst) == GONE {
                    return;
                }
                let state = Arc::clone(&seen);
                std::thread::spawn(move || connect(near, target, &state));
            }
        });
        Ok(Relay { port, state })
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops forwarding.
    pub fn cut(&self) {
        self.state.store(CUT, Ordering::SeqCst);
    }

    /// Forwards again.
    pub fn mend(&self) {
        self.state.store(WHOLE, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.store(GONE, Ordering::SeqCst);
        // Wakes the accept call so that its thread sees the end.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

/// Waits out a cut; returns true if there was one.
fn was_cut(state: &AtomicU8) -> bool {
    let mut cut = false;
    while state.load(Ordering::SeqCst) == CUT {
        cut = true;
        std::thread::sleep(TICK);
    }
    cut
}

fn connect(near: TcpStream, target: u16, state: &Arc<AtomicU8>) {
    if was_cut(state) {
        return;
    }
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { return };
    let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else { return };
    let there = Arc::clone(state);
    std::thread::spawn(move || carry(near_again, far_again, &there));
    carry(far, near, state);
}

/// Forwards one direction until it ends, or was cut.
fn carry(mut from: TcpStream, mut to: TcpStream, state: &AtomicU8) {
    let _ = from.set_nodelay(true).and(from.set_read_timeout(Some(TICK)));
    let mut buffer = [0; 16 * 1024];
    while !was_cut(state) && state.load(Ordering::SeqCst) != GONE {
        match from.read(&mut buffer) {
            Ok(0) => break,
            // Bytes that were read before the cut was noticed must not be forwarded either.
            Ok(n) if was_cut(state) || to.write_all(&buffer[..n]).is_err() => break,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    // Both ends see it; one of them may have closed by itself.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Origin, Peer};

    #[test]
    fn a_cut_relay_forwards_nothing_and_a_mended_one_does() {
        let origin = Origin::echo("a").unwrap();
        let relay = Relay::to(origin.port()).unwrap();
        let connect = || Peer::connect(&Address::loopback(relay.port())).unwrap().with_deadline(TICK * 20);
        let mut client = connect();
        assert_eq!(client.get("/").unwrap().status(), 200);
        relay.cut();
        assert!(client.get("/").is_err() && connect().get("/").is_err());
        relay.mend();
        assert_eq!(connect().get("/").unwrap().status(), 200);
    }
}
