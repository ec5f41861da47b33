//! The limits of QUIC connections.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::{IdleTimeout, TransportConfig, VarInt};

/// Unidirectional streams of a peer at a time. HTTP/3 needs three; the others allow reserved types (RFC 9114 §6.2.3).
const UNI_STREAMS: u32 = 16;

/// Bytes of datagrams that wait in each direction of a connection; the oldest ones are dropped. Peers that use none
/// cost nothing.
const DATAGRAM_BYTES: usize = 64 * 1024;

/// The limits of the connections of an endpoint. Each connection has them for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicLimits {
    /// Concurrent streams of the peer in both directions.
    pub streams: u32,
    /// Bytes that the peer may send ahead on one stream.
    pub stream_window_bytes: u32,
    /// Bytes that the peer may send ahead on all streams.
    pub window_bytes: u32,
    /// Bytes that are sent and not acknowledged yet; they stay in memory until then.
    pub send_window_bytes: u32,
    /// The time without any packet after which the connection is dropped.
    pub idle_ms: u64,
    /// The time for a handshake.
    pub handshake_ms: u64,
    /// Half-open handshakes of a worker, above which a client has to prove its address first (Retry).
    pub retry_above: u32,
    /// Half-open handshakes of a worker, above which new clients get no response.
    pub half_open: u32,
    /// Frames without data that a peer may send per second, besides responses to frames of this side.
    pub controls_per_second: u32,
    /// The largest ClientHello.
    pub hello_bytes: usize,
}

impl Default for QuicLimits {
    fn default() -> QuicLimits {
        QuicLimits {
            streams: 128,
            stream_window_bytes: 256 * 1024,
            window_bytes: 1024 * 1024,
            send_window_bytes: 1024 * 1024,
            idle_ms: 30_000,
            handshake_ms: 10_000,
            retry_above: 100,
            half_open: 1_000,
            controls_per_second: 1_000,
            hello_bytes: 16 * 1024,
        }
    }
}

impl QuicLimits {
    /// Returns the limits that a client remembers for its next connection.
    pub(super) fn remembered(&self) -> [u32; 3] {
        [self.streams, self.stream_window_bytes, self.window_bytes]
    }

    /// Returns the transport settings of the state machine. Its own defaults trust the peer.
    pub(super) fn transport(&self) -> Arc<TransportConfig> {
        let mut transport = TransportConfig::default();
        let idle = Duration::from_millis(self.idle_ms.max(1));
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(self.streams))
            .max_concurrent_uni_streams(VarInt::from_u32(UNI_STREAMS))
            .max_idle_timeout(Some(IdleTimeout::try_from(idle).unwrap_or(VarInt::MAX.into())))
            .stream_receive_window(VarInt::from_u32(self.stream_window_bytes))
            .receive_window(VarInt::from_u32(self.window_bytes))
            .send_window(self.send_window_bytes.into())
            .send_fairness(true)
            // A ClientHello with post-quantum keys has 2 KiB; a certificate of a client some more.
            .crypto_buffer_size(self.hello_bytes.max(16 * 1024))
            // The bit shows the round trip to observers.
            .allow_spin(false)
            .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
            .datagram_send_buffer_size(DATAGRAM_BYTES)
            .keep_alive_interval(None);
        Arc::new(transport)
    }
}
