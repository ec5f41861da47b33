//! Datagrams of QUIC (RFC 9297 §2) as capsules of a tunnel.
//!
//! Users of a tunnel see capsules in every version. Here a datagram of the client becomes a DATAGRAM capsule between
//! two others, and DATAGRAM capsules for the client leave as datagrams if it takes them.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use sigma_http::Chunk;
use sigma_http::capsule::{CapsuleBounds, put_datagram, whole_datagrams};
use sigma_http::h3::{Broken, ErrorCode, Scope, varint};

use super::common::{Common, Running};

/// Datagrams that a connection reads before other tasks run.
const PER_TURN: usize = 64;

/// Bytes of datagrams that wait for their tunnel. Later ones are lost, as on any path.
const WAITING_BYTES: usize = 64 * 1024;

/// The counted overhead of a datagram that waits.
const OVERHEAD_BYTES: usize = 64;

/// Datagrams that wait for their tunnel.
#[derive(Debug, Default)]
pub(super) struct DatagramQueue {
    /// As capsules.
    capsules: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl DatagramQueue {
    /// Takes a datagram, unless too many wait.
    fn push(&mut self, value: &[u8]) {
        let bytes = value.len() + OVERHEAD_BYTES;
        if self.bytes + bytes <= WAITING_BYTES {
            let mut capsule = Vec::with_capacity(bytes);
            put_datagram(value, &mut capsule);
            self.capsules.push_back(capsule);
            self.bytes += bytes;
        }
    }

    /// Returns all of them.
    fn take(&mut self) -> Vec<u8> {
        self.bytes = 0;
        std::mem::take(&mut self.capsules).into_iter().flatten().collect()
    }
}

/// A tunnel with capsules.
#[derive(Debug)]
pub(super) struct Capsules {
    /// The number of the stream as datagrams have it.
    quarter: u64,
    received: CapsuleBounds,
    sent: CapsuleBounds,
}

impl Capsules {
    /// Opens the tunnel of a stream for datagrams.
    pub(super) fn begin(id: u64, running: &Running) -> Capsules {
        running.datagrams.borrow_mut().get_or_insert_default();
        Capsules { quarter: id / 4, received: CapsuleBounds::default(), sent: CapsuleBounds::default() }
    }

    /// Returns the datagrams of the client that wait, as capsules.
    pub(super) fn next_received(&mut self, running: &Running) -> Option<Chunk> {
        if !self.received.is_between() {
            return None;
        }
        let capsules = running.datagrams.borrow_mut().as_mut()?.take();
        (!capsules.is_empty()).then(|| Chunk::copy_of(&capsules))
    }

    /// Follows the capsules of the client on the stream.
    pub(super) fn pass_received(&mut self, bytes: &[u8]) {
        self.received.pass(bytes);
    }

    /// Sends DATAGRAM capsules as datagrams; returns the bytes that have to go over the stream.
    pub(super) fn send(&mut self, common: &Common, data: Chunk) -> Option<Chunk> {
        let takes_datagrams = common.look(|codec| codec.peer().datagrams);
        let values = whole_datagrams(&data).filter(|_| takes_datagrams && self.sent.is_between());
        let Some(values) = values else {
            self.sent.pass(&data);
            return Some(data);
        };
        let mut rest = Vec::new();
        for value in values {
            let mut datagram = Vec::with_capacity(value.len() + varint::BYTES_MAX);
            varint::put(self.quarter, &mut datagram);
            datagram.extend_from_slice(value);
            // A datagram that does not fit the path arrives over the stream.
            if !common.connection.send_datagram(datagram) {
                put_datagram(value, &mut rest);
            }
        }
        (!rest.is_empty()).then(|| Chunk::copy_of(&rest))
    }
}

/// Passes received datagrams to their tunnels. Datagrams of other streams are dropped: their tunnel is gone, or not open
/// yet.
///
/// # Errors
/// Returns the rule that the peer broke.
pub(super) fn read_datagrams(common: &Common, cx: &mut Context<'_>) -> Result<(), Broken> {
    if common.look(|codec| codec.peer().datagrams) && !common.connection.takes_datagrams() {
        return Err(Broken {
            scope: Scope::Connection,
            code: ErrorCode::SETTINGS_ERROR,
            reason: "H3_DATAGRAM without the transport parameter of QUIC",
        });
    }
    for _ in 0..PER_TURN {
        let Poll::Ready(Ok(datagram)) = common.connection.poll_datagram(cx) else { return Ok(()) };
        let quarter = varint::take(&datagram).filter(|(quarter, _)| *quarter <= varint::MAX / 4);
        let Some((quarter, used)) = quarter else {
            return Err(Broken {
                scope: Scope::Connection,
                code: ErrorCode::DATAGRAM_ERROR,
                reason: "a datagram for an invalid stream",
            });
        };
        if let Some(running) = common.find(quarter * 4)
            && let Some(queue) = &mut *running.datagrams.borrow_mut()
        {
            queue.push(&datagram[used..]);
            running.wake();
        }
    }
    cx.waker().wake_by_ref();
    Ok(())
}
