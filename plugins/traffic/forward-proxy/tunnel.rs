//! Open tunnels: bytes over TCP, datagrams over UDP as capsules (RFC 9297).

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use sigma_http::Chunk;
use sigma_http::capsule::{CapsuleReader, put_udp, udp_payload};
use sigma_net::Stream;
use sigma_net::datagram::{Batch, DatagramSocket};
use sigma_plugin::Takeover;

use sigma_plugin_kit::destinations::Lookups;
use sigma_plugin_kit::tallies::{Event, Tally};

/// The largest datagram of a target: a jumbo frame. A larger one is dropped; a path over the Internet has no such packets.
const DATAGRAM_BYTES: usize = 9_216;

/// Tunnels, by their fate.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tunnels {
    Opened,
    Closed,
    Refused,
    OverLimit,
    Failed,
}

impl Event for Tunnels {
    const METRIC: &'static str = "forward_proxy_tunnels_total";
    const HELP: &'static str =
        "Tunnels that clients requested; opened minus closed is the number of open tunnels.";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("result", "opened")],
        &[("result", "closed")],
        &[("result", "refused")],
        &[("result", "over_limit")],
        &[("result", "failed")],
    ];

    fn number(self) -> usize {
        self as usize
    }
}

/// Bytes in tunnels, by their direction.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bytes {
    ToTarget,
    ToClient,
}

impl Event for Bytes {
    const METRIC: &'static str = "forward_proxy_bytes_total";
    const HELP: &'static str = "Bytes in tunnels.";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] =
        &[&[("direction", "to_target")], &[("direction", "to_client")]];

    fn number(self) -> usize {
        self as usize
    }
}

/// The tunnels of a worker, and their shared state.
pub(super) struct Seats {
    open: Rc<Cell<usize>>,
    pub(super) lookups: Lookups,
    pub(super) batch: Rc<RefCell<Batch>>,
}

/// A place among the tunnels of a worker.
pub(super) struct Seat(Rc<Cell<usize>>);

impl Seats {
    pub(super) fn new() -> Seats {
        let batch = Rc::new(RefCell::new(Batch::new(DATAGRAM_BYTES)));
        Seats { open: Rc::default(), lookups: Lookups::default(), batch }
    }

    /// Takes a place; None if there are `most` tunnels.
    pub(super) fn take(&self, most: usize) -> Option<Seat> {
        if self.open.get() >= most {
            return None;
        }
        self.open.set(self.open.get() + 1);
        Some(Seat(Rc::clone(&self.open)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// An open tunnel, which counts until it is dropped.
pub(super) struct OpenTunnel {
    pub(super) _seat: Seat,
    pub(super) tunnels: Tally<Tunnels>,
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.tunnels.count(Tunnels::Closed);
    }
}

/// Counts and limits the bytes of a tunnel.
pub(super) struct Meter {
    bytes: Tally<Bytes>,
    left: Option<u64>,
}

impl Meter {
    pub(super) fn new(bytes: Tally<Bytes>, most: Option<u64>) -> Meter {
        Meter { bytes, left: most }
    }

    /// Counts bytes. Bytes beyond the limit pass: the tunnel ends behind them.
    fn count(&mut self, direction: Bytes, bytes: usize) {
        self.bytes.add(direction, bytes as u64);
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(bytes as u64);
        }
    }

    fn is_used_up(&self) -> bool {
        self.left == Some(0)
    }
}

/// A tunnel over TCP.
pub(super) struct ByteTunnel {
    stream: Stream,
    /// Bytes of the client that the target has not taken.
    pending: Chunk,
    meter: Meter,
    _held: OpenTunnel,
}

impl ByteTunnel {
    pub(super) fn new(stream: Stream, meter: Meter, held: OpenTunnel) -> ByteTunnel {
        ByteTunnel { stream, pending: Chunk::empty(), meter, _held: held }
    }
}

impl Takeover for ByteTunnel {
    fn poll_next(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        if self.meter.is_used_up() {
            return Poll::Ready(Ok(None));
        }
        let mut chunk = Chunk::empty();
        let filled = ready!(self.stream.poll_fill(task, &mut chunk))?;
        self.meter.count(Bytes::ToClient, filled);
        Poll::Ready(Ok((filled > 0).then_some(chunk)))
    }

    fn poll_ready(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            match ready!(self.stream.poll_write(task, &self.pending))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.pending.advance(n),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, data: Chunk) {
        self.meter.count(Bytes::ToTarget, data.len());
        self.pending = data;
    }
}

/// A tunnel over UDP.
pub(super) struct DatagramTunnel {
    socket: DatagramSocket,
    batch: Rc<RefCell<Batch>>,
    reader: CapsuleReader,
    /// The client has broken a rule of capsules.
    is_broken: bool,
    /// The target's machine has reported that nothing receives there.
    is_refused: bool,
    meter: Meter,
    _held: OpenTunnel,
}

impl DatagramTunnel {
    pub(super) fn new(
        socket: DatagramSocket,
        batch: Rc<RefCell<Batch>>,
        meter: Meter,
        held: OpenTunnel,
    ) -> DatagramTunnel {
        let reader = CapsuleReader::default();
        DatagramTunnel { socket, batch, reader, is_broken: false, is_refused: false, meter, _held: held }
    }
}

impl Takeover for DatagramTunnel {
    fn poll_next(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if self.is_refused || self.meter.is_used_up() {
                return Poll::Ready(Ok(None));
            }
            let mut batch = self.batch.borrow_mut();
            match ready!(self.socket.poll_receive(task, &mut batch)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Poll::Ready(Ok(None));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            let mut capsules = Vec::new();
            for datagram in batch.iter().filter(|datagram| !datagram.is_cut) {
                self.meter.count(Bytes::ToClient, datagram.bytes.len());
                put_udp(datagram.bytes, &mut capsules);
            }
            if !capsules.is_empty() {
                return Poll::Ready(Ok(Some(Chunk::copy_of(&capsules))));
            }
        }
    }

    fn poll_ready(&mut self, _task: &mut Task<'_>) -> Poll<io::Result<()>> {
        match self.is_broken {
            true => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "an invalid capsule"))),
            false => Poll::Ready(Ok(())),
        }
    }

    fn take(&mut self, data: Chunk) {
        let Self { socket, reader, is_refused, meter, .. } = self;
        let mut has_no_context = false;
        let read = reader.read(&data, |datagram| match udp_payload(datagram) {
            Ok(Some(payload)) => {
                meter.count(Bytes::ToTarget, payload.len());
                // A datagram without room is lost, as on any path.
                if let Err(error) = socket.send(None, [payload]) {
                    *is_refused |= error.kind() == io::ErrorKind::ConnectionRefused;
                }
            }
            // Another context was never agreed on (RFC 9298 §4).
            Ok(None) => {}
            Err(_) => has_no_context = true,
        });
        self.is_broken |= has_no_context || read.is_err();
    }
}
