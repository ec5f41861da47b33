//! The UDP socket of an endpoint: batches with receive offload, sends with segmentation offload, ECN.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use tokio::io::unix::AsyncFd;

/// Received pieces of one system call; each may be several datagrams of one sender.
const BATCH: usize = 16;

/// The size of a receive buffer: the kernel joins datagrams up to this size. Untouched pages take no memory.
const SLOT_BYTES: usize = 64 * 1024;

/// The buffers of the socket in the kernel: defaults of some 200 KiB hold 150 datagrams.
pub(super) const KERNEL_BYTES: usize = 2 * 1024 * 1024;

/// A received datagram.
pub(super) struct Packet {
    pub(super) from: SocketAddr,
    pub(super) to: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) bytes: BytesMut,
}

/// The receive buffers of a worker, which all its sockets share.
pub(super) struct Batch {
    bytes: Box<[u8]>,
    metas: [RecvMeta; BATCH],
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { bytes: vec![0; BATCH * SLOT_BYTES].into(), metas: [RecvMeta::default(); BATCH] }
    }
}

/// A UDP socket for QUIC.
pub(super) struct QuicSocket {
    fd: AsyncFd<OwnedFd>,
    state: UdpSocketState,
}

impl QuicSocket {
    /// Takes a bound socket.
    pub(super) fn adopt(socket: OwnedFd) -> io::Result<QuicSocket> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // The system may allow less; the kernel drops then sooner, and peers send again.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), KERNEL_BYTES);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), KERNEL_BYTES);
        Ok(QuicSocket { fd: crate::uring::watch(socket)?, state })
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        socket2::SockRef::from(&self.fd).local_addr().ok()?.as_socket()
    }

    /// Returns true if the kernel never cuts a datagram into fragments, which path MTU discovery needs.
    pub(super) fn discovers_mtu(&self) -> bool {
        !self.state.may_fragment()
    }

    /// Returns how many datagrams one call sends.
    pub(super) fn segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Receives a batch and passes each datagram to `take`.
    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        mut take: impl FnMut(Packet),
    ) -> Poll<io::Result<()>> {
        let count = loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let received = guard.try_io(|fd| {
                let mut slots = batch.bytes.chunks_exact_mut(SLOT_BYTES);
                let mut slices: [IoSliceMut<'_>; BATCH] =
                    std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
                self.state.recv(UdpSockRef::from(fd.get_ref()), &mut slices, &mut batch.metas)
            });
            match received {
                Ok(count) => break count?,
                Err(_would_block) => {}
            }
        };
        for (meta, slot) in batch.metas.iter().zip(batch.bytes.chunks_exact(SLOT_BYTES)).take(count) {
            let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
            // An empty datagram has no stride.
            for bytes in slot[..meta.len.min(SLOT_BYTES)].chunks(meta.stride.max(1)) {
                take(Packet { from: meta.addr, to: meta.dst_ip, ecn, bytes: BytesMut::from(bytes) });
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends datagrams; returns false if the socket has no room for them now. Other errors count as loss.
    pub(super) fn send(&self, transmit: &Transmit, bytes: &[u8]) -> bool {
        let outgoing = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &bytes[..transmit.size.min(bytes.len())],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.state.try_send(UdpSockRef::from(&self.fd), &outgoing) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Ok(()) => true,
            Err(error) => {
                // A probe of the path's MTU may be too large, and an address may have no route.
                tracing::debug!(%error, to = %transmit.destination, "cannot send a datagram");
                true
            }
        }
    }
}

impl AsFd for QuicSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}
