//! Frames, and the numbers of frames, streams and settings (RFC 9114 §6, §7 and §11.2).

use super::varint;

/// Frame types.
pub mod kind {
    /// Bytes of a body
    pub const DATA: u64 = 0x0;
    /// A head, or trailers
    pub const HEADERS: u64 = 0x1;
    /// The end of a server push
    pub const CANCEL_PUSH: u64 = 0x3;
    /// The settings of the sender
    pub const SETTINGS: u64 = 0x4;
    /// A promise of a server push
    pub const PUSH_PROMISE: u64 = 0x5;
    /// The end of new streams
    pub const GOAWAY: u64 = 0x7;
    /// The number of pushes that a client accepts
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// A priority of a request (RFC 9218 §7.2)
    pub const PRIORITY_UPDATE: u64 = 0xf_0700;
    /// A priority of a push (RFC 9218 §7.2)
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

    /// Returns true for types of HTTP/2 that HTTP/3 does not have (RFC 9114 §7.2.8).
    pub fn is_of_http2(kind: u64) -> bool {
        matches!(kind, 0x2 | 0x6 | 0x8 | 0x9)
    }

    /// Returns true for types with a meaning for this side.
    pub fn is_known(kind: u64) -> bool {
        kind <= GOAWAY
            || is_of_http2(kind)
            || matches!(kind, MAX_PUSH_ID | PRIORITY_UPDATE | PRIORITY_UPDATE_PUSH)
    }
}

/// Types of unidirectional streams.
pub mod stream {
    /// Frames of the connection
    pub const CONTROL: u64 = 0x0;
    /// A server push
    pub const PUSH: u64 = 0x1;
    /// Instructions of an encoder (RFC 9204 §4.2)
    pub const QPACK_ENCODER: u64 = 0x2;
    /// Instructions of a decoder (RFC 9204 §4.2)
    pub const QPACK_DECODER: u64 = 0x3;
}

/// Identifiers of settings.
pub mod setting {
    /// Size of the dynamic table (RFC 9204 §5)
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
    /// Size of a field section
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
    /// Streams that may wait for the dynamic table (RFC 9204 §5)
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x7;
    /// Extended CONNECT is supported (RFC 9220)
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
    /// Datagrams are supported (RFC 9297)
    pub const H3_DATAGRAM: u64 = 0x33;

    /// Returns true for identifiers of HTTP/2 that HTTP/3 does not have (RFC 9114 §7.2.4.1 and §11.2.2).
    pub fn is_of_http2(id: u64) -> bool {
        matches!(id, 0x0 | 0x2..=0x5)
    }
}

/// The type and the length of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// See [`kind`].
    pub kind: u64,
    /// Bytes of the payload.
    pub length: u64,
}

/// The most bytes of a frame header.
pub const HEADER_BYTES_MAX: usize = 2 * varint::BYTES_MAX;

impl FrameHeader {
    /// Reads a header at the start of `bytes`; returns it and its length. None if it is incomplete.
    #[inline]
    pub fn take(bytes: &[u8]) -> Option<(FrameHeader, usize)> {
        let (kind, first) = varint::take(bytes)?;
        let (length, second) = varint::take(&bytes[first..])?;
        Some((FrameHeader { kind, length }, first + second))
    }

    /// Writes it.
    #[inline]
    pub fn put(self, out: &mut Vec<u8>) {
        varint::put(self.kind, out);
        varint::put(self.length, out);
    }
}

/// Writes a frame whose payload is one integer.
pub(super) fn put_number(kind: u64, number: u64, out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(varint::BYTES_MAX);
    varint::put(number, &mut payload);
    FrameHeader { kind, length: payload.len() as u64 }.put(out);
    out.extend_from_slice(&payload);
}

/// Writes a SETTINGS frame.
pub(super) fn put_settings(settings: &[(u64, u64)], out: &mut Vec<u8>) {
    let mut payload = Vec::new();
    for (id, value) in settings {
        varint::put(*id, &mut payload);
        varint::put(*value, &mut payload);
    }
    FrameHeader { kind: kind::SETTINGS, length: payload.len() as u64 }.put(out);
    out.extend_from_slice(&payload);
}
