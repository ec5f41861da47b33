//! The limit of bytes to an address that is not validated yet (RFC 9000 §8.1, §9.3.1).
//!
//! The state machine allows one datagram more than the limit, and probes of the path's MTU in addition. So an attacker
//! who forges the source of a packet could make the gateway send several times as much to a victim.

use std::net::SocketAddr;

use quinn_proto::Transmit;

/// Bytes sent for each byte received, before an address is validated.
const FACTOR: u64 = 3;

/// The addresses of a connection's peer.
pub(super) struct Path {
    /// The address of the handshake, or a later one that is validated.
    validated: SocketAddr,
    candidate: Option<Candidate>,
}

/// Another address that packets have come from.
struct Candidate {
    remote: SocketAddr,
    received: u64,
    sent: u64,
    /// The PATH_RESPONSE frames received before: one more validates the address.
    responses: u64,
    /// A datagram that the limit does not allow yet: mostly the challenge, which has a fixed size.
    waiting: Option<(Transmit, Vec<u8>)>,
}

impl Path {
    pub(super) fn new(validated: SocketAddr) -> Path {
        Path { validated, candidate: None }
    }

    /// Returns true if the limit does not concern an address.
    pub(super) fn is_validated(&self, addr: SocketAddr) -> bool {
        self.validated == addr
    }

    /// Counts a datagram from an address that is not validated, after `responses` PATH_RESPONSE frames.
    pub(super) fn received(&mut self, from: SocketAddr, bytes: u64, responses: u64) {
        match &mut self.candidate {
            Some(candidate) if candidate.remote == from => candidate.received += bytes,
            _ => {
                let candidate =
                    Candidate { remote: from, received: bytes, sent: 0, responses, waiting: None };
                self.candidate = Some(candidate);
            }
        }
    }

    /// Returns true if a datagram may leave; one that may not is kept until it may, and further ones are lost.
    pub(super) fn admits(&mut self, transmit: &Transmit, bytes: &[u8], responses: u64) -> bool {
        let to = transmit.destination;
        let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.remote == to) else {
            // A former address, to which the state machine returns.
            return true;
        };
        if responses > candidate.responses {
            self.validated = to;
            self.candidate = None;
            return true;
        }
        let is_allowed = candidate.takes(transmit.size);
        if !is_allowed && candidate.waiting.is_none() {
            candidate.waiting = Some((clone(transmit), bytes[..transmit.size.min(bytes.len())].to_vec()));
        }
        is_allowed
    }

    /// Returns the datagram that waits, if it may leave now.
    pub(super) fn take_waiting(&mut self) -> Option<(Transmit, Vec<u8>)> {
        let candidate = self.candidate.as_mut()?;
        let (transmit, bytes) = candidate.waiting.take()?;
        if candidate.takes(transmit.size) {
            return Some((transmit, bytes));
        }
        candidate.waiting = Some((transmit, bytes));
        None
    }
}

impl Candidate {
    /// Counts bytes to the address; returns false if they would exceed the limit.
    fn takes(&mut self, bytes: usize) -> bool {
        let sent = self.sent + bytes as u64;
        let is_allowed = sent <= self.received * FACTOR;
        if is_allowed {
            self.sent = sent;
        }
        is_allowed
    }
}

fn clone(transmit: &Transmit) -> Transmit {
    Transmit { ..*transmit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_address_gets_three_times_what_came_from_it() {
        let (old, new): (SocketAddr, SocketAddr) =
            ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap());
        let to =
            |destination, size| Transmit { destination, size, ecn: None, segment_size: None, src_ip: None };
        let (bytes, mut path) = ([7; 2000], Path::new(old));
        assert!(path.is_validated(old) && !path.is_validated(new));
        path.received(new, 100, 0);
        assert!(path.admits(&to(new, 200), &bytes, 0));
        // The challenge waits, the probe behind it is lost.
        assert!(!path.admits(&to(new, 1200), &bytes, 0) && !path.admits(&to(new, 1400), &bytes, 0));
        assert!(path.take_waiting().is_none());
        assert!(path.admits(&to(old, 1400), &bytes, 0));
        path.received(new, 367, 0);
        let (transmit, waited) = path.take_waiting().unwrap();
        assert_eq!((transmit.size, waited.len()), (1200, 1200));
        assert!(path.take_waiting().is_none() && !path.admits(&to(new, 10), &bytes, 0));
        // The response proves the address.
        assert!(path.admits(&to(new, 1400), &bytes, 1) && path.is_validated(new));
    }
}
