//! The parts of the state of a connection.

use std::collections::VecDeque;

use super::frame::{DEFAULT_FRAME_BYTES, DEFAULT_WINDOW, ErrorCode, MAX_31_BITS};
use super::hpack::{Decoder, Encoder};
use super::output::Output;
use crate::multiplex::fields::Pseudo;

/// The default size of each side's header table (RFC 9113 §6.5.2).
const TABLE_BYTES: u32 = 4_096;

/// The number of recent resets by this side, whose streams may still get frames.
const RECENT_RESETS: usize = 128;

/// The number of concurrent streams before the server's SETTINGS: the recommended minimum (RFC 9113 §6.5.2).
const UNTOLD_STREAMS: u32 = 100;

/// The announced settings of the peer.
#[derive(Debug)]
pub(super) struct PeerSettings {
    pub(super) initial_window: u32,
    pub(super) frame_bytes: u32,
    pub(super) streams: u32,
    pub(super) extended_connect: bool,
}

/// The progress of a graceful end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum GracefulEnd {
    No,
    /// The peer has the first GOAWAY, without its last stream.
    Announced,
    /// The peer has the second GOAWAY, with its last stream.
    Told,
}

/// The compression of the heads of a connection.
#[derive(Debug)]
pub(super) struct HeaderCodec {
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) pseudo: Pseudo,
    /// An incomplete head.
    pub(super) block: Vec<u8>,
}

impl HeaderCodec {
    pub(super) fn new() -> HeaderCodec {
        HeaderCodec {
            decoder: Decoder::new(TABLE_BYTES),
            encoder: Encoder::new(TABLE_BYTES),
            pseudo: Pseudo::default(),
            block: Vec::new(),
        }
    }
}

/// The known state of the peer.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) settings: PeerSettings,
    /// No SETTINGS of the peer have arrived.
    pub(super) first_settings: bool,
    /// The peer has acknowledged this side's settings.
    pub(super) settled: bool,
    /// The peer accepts no further streams.
    pub(super) leaves: bool,
}

impl PeerState {
    /// Returns the state before the first byte of the peer.
    pub(super) fn new() -> PeerState {
        PeerState {
            settings: PeerSettings {
                initial_window: DEFAULT_WINDOW,
                frame_bytes: DEFAULT_FRAME_BYTES,
                streams: UNTOLD_STREAMS,
                extended_connect: false,
            },
            first_settings: true,
            settled: false,
            leaves: false,
        }
    }
}

/// The identifiers of streams.
#[derive(Debug)]
pub(super) struct StreamIds {
    pub(super) last_of_peer: u32,
    /// The next one of this side.
    pub(super) next: u32,
    /// The number of streams begun so far.
    pub(super) begun: u32,
    /// Streams that this side has reset.
    pub(super) recent_resets: VecDeque<u32>,
    /// Streams that the node has reset since its last head.
    pub(super) resets_in_a_row: u32,
}

impl StreamIds {
    pub(super) fn new() -> StreamIds {
        StreamIds { last_of_peer: 0, next: 1, begun: 0, recent_resets: VecDeque::new(), resets_in_a_row: 0 }
    }

    /// Returns true if this side has an identifier for another stream.
    pub(super) fn has_next(&self) -> bool {
        self.next <= MAX_31_BITS
    }

    pub(super) fn add_reset(&mut self, id: u32) {
        if self.recent_resets.len() == RECENT_RESETS {
            self.recent_resets.pop_front();
        }
        self.recent_resets.push_back(id);
    }
}

/// The bytes of a connection that are not written.
#[derive(Debug)]
pub(super) struct ConnectionOutput {
    pub(super) queue: Output,
    /// Bytes of the queue and of an incomplete head in the account.
    pub(super) held: usize,
    /// DATA frames written, and streams opened by this side.
    pub(super) frames_sent: u64,
}

/// The end of a connection.
#[derive(Debug)]
pub(super) struct ConnectionEnd {
    pub(super) failed: Option<(ErrorCode, &'static str)>,
    pub(super) leaving: GracefulEnd,
}

impl ConnectionEnd {
    /// Returns true if it has begun, in either way.
    pub(super) fn has_begun(&self) -> bool {
        self.failed.is_some() || self.leaving != GracefulEnd::No
    }
}
