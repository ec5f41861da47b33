//! Encoding of frames (RFC 9113 §4 and §6).

/// The size of a frame header.
pub const HEADER_BYTES: usize = 9;

/// The largest window (RFC 9113 §6.9.1), and the largest stream identifier.
pub const MAX_31_BITS: u32 = (1 << 31) - 1;

/// The window of a connection, and of a stream before any SETTINGS.
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest frame that every peer accepts.
pub const DEFAULT_FRAME_BYTES: u32 = 16_384;

/// The largest frame that a peer may announce.
pub const MAX_FRAME_BYTES: u32 = (1 << 24) - 1;

/// The connection preface of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
pub mod kind {
    /// Bytes of a body
    pub const DATA: u8 = 0x0;
    /// The beginning of a head, or of trailers
    pub const HEADERS: u8 = 0x1;
    /// Priorities of RFC 7540, which are obsolete
    pub const PRIORITY: u8 = 0x2;
    /// The end of a stream
    pub const RST_STREAM: u8 = 0x3;
    /// The settings of the sender
    pub const SETTINGS: u8 = 0x4;
    /// A promise of a server push
    pub const PUSH_PROMISE: u8 = 0x5;
    /// A ping
    pub const PING: u8 = 0x6;
    /// The end of new streams
    pub const GOAWAY: u8 = 0x7;
    /// Flow-control window for more bytes
    pub const WINDOW_UPDATE: u8 = 0x8;
    /// More of a head
    pub const CONTINUATION: u8 = 0x9;
    /// Priorities of RFC 9218
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags.
pub mod flag {
    /// SETTINGS and PING: acknowledges the peer's frame
    pub const ACK: u8 = 0x1;
    /// HEADERS and DATA: the message ends here
    pub const END_STREAM: u8 = 0x1;
    /// HEADERS and CONTINUATION: the head ends here
    pub const END_HEADERS: u8 = 0x4;
    /// HEADERS and DATA: the payload has padding
    pub const PADDED: u8 = 0x8;
    /// HEADERS: the payload begins with a priority
    pub const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings.
pub mod setting {
    /// Size of the header table
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    /// Server push is allowed
    pub const ENABLE_PUSH: u16 = 0x2;
    /// Concurrent streams
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    /// The initial window of streams
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    /// The largest payload of a frame
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    /// The largest list of fields, as advice
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// Extended CONNECT is supported (RFC 8441)
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    /// Priorities of RFC 7540 are ignored (RFC 9218 §2.1)
    pub const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// The reason for the end of a stream or a connection (RFC 9113 §7); any number is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error
    pub const NO_ERROR: ErrorCode = ErrorCode(0x0);
    /// A broken rule without its own code
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(0x1);
    /// An internal error
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(0x2);
    /// More bytes than the window
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(0x3);
    /// A frame for a stream that has ended
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(0x5);
    /// A frame of a wrong size
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(0x6);
    /// The request was not processed
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(0x7);
    /// The response is no longer wanted
    pub const CANCEL: ErrorCode = ErrorCode(0x8);
    /// The fields cannot be decoded
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(0x9);
    /// The peer causes too much load
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(0xb);
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The size of the payload.
    pub length: u32,
    /// One of [`kind`], or an unknown type.
    pub kind: u8,
    /// Flags of [`flag`].
    pub flags: u8,
    /// The stream; 0 for the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Parses the header at the start of `bytes`, if they are long enough.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<FrameHeader> {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3, ..] = *bytes else { return None };
        Some(FrameHeader {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            kind,
            flags,
            // The highest bit is reserved (§4.1).
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & MAX_31_BITS,
        })
    }

    /// Returns true if a flag is set.
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the bytes of the header.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let [_, l0, l1, l2] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }
}

/// Appends a frame whose payload is `parts`.
pub fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    out.extend_from_slice(&FrameHeader { length, kind, flags, stream }.bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends a SETTINGS frame.
pub fn write_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    let length = settings.len() as u32 * 6;
    out.extend_from_slice(&FrameHeader { length, kind: kind::SETTINGS, flags: 0, stream: 0 }.bytes());
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends a WINDOW_UPDATE frame.
pub fn write_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    write(out, kind::WINDOW_UPDATE, 0, stream, &[&bytes.to_be_bytes()]);
}

/// Appends an RST_STREAM frame.
pub fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write(out, kind::RST_STREAM, 0, stream, &[&code.0.to_be_bytes()]);
}

/// Appends a GOAWAY frame.
pub fn write_go_away(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode) {
    write(out, kind::GOAWAY, 0, 0, &[&last_stream.to_be_bytes(), &code.0.to_be_bytes()]);
}

/// Returns the settings in the payload of a SETTINGS frame, whose length must be a multiple of six.
pub fn settings_in(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> + '_ {
    payload.chunks_exact(6).map(|entry| {
        let id = u16::from_be_bytes([entry[0], entry[1]]);
        (id, u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_a_round_trip() {
        let header = FrameHeader { length: 0x0001_0203, kind: kind::DATA, flags: 9, stream: 0x7fff_fffe };
        assert_eq!(FrameHeader::parse(&header.bytes()), Some(header));
        assert_eq!(FrameHeader::parse(&header.bytes()[..8]), None);
        let reserved = [0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(FrameHeader::parse(&reserved).map(|header| header.stream), Some(MAX_31_BITS));
    }

    #[test]
    fn frames_are_encoded() {
        let mut out = Vec::new();
        write_settings(&mut out, &[(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, 70_000)]);
        assert_eq!(&out[..9], [0, 0, 12, 4, 0, 0, 0, 0, 0]);
        assert_eq!(settings_in(&out[9..]).collect::<Vec<_>>(), [(2, 0), (4, 70_000)]);
        out.clear();
        write_go_away(&mut out, 7, ErrorCode::ENHANCE_YOUR_CALM);
        assert_eq!(out, [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 11]);
    }
}
