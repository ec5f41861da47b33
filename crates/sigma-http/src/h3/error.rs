//! Errors of streams and connections (RFC 9114 §8, RFC 9204 §6, RFC 9297 §5.2).

/// The reason for the end of a stream or a connection; any number is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u64);

impl ErrorCode {
    /// No error
    pub const NO_ERROR: ErrorCode = ErrorCode(0x100);
    /// A broken rule without its own code
    pub const GENERAL_PROTOCOL_ERROR: ErrorCode = ErrorCode(0x101);
    /// An internal error
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(0x102);
    /// A stream that the peer may not open
    pub const STREAM_CREATION_ERROR: ErrorCode = ErrorCode(0x103);
    /// A stream ended that lasts as long as the connection
    pub const CLOSED_CRITICAL_STREAM: ErrorCode = ErrorCode(0x104);
    /// A frame that is not allowed here
    pub const FRAME_UNEXPECTED: ErrorCode = ErrorCode(0x105);
    /// A frame of a wrong size or form
    pub const FRAME_ERROR: ErrorCode = ErrorCode(0x106);
    /// The peer causes too much load
    pub const EXCESSIVE_LOAD: ErrorCode = ErrorCode(0x107);
    /// A wrong stream or push identifier
    pub const ID_ERROR: ErrorCode = ErrorCode(0x108);
    /// A wrong setting
    pub const SETTINGS_ERROR: ErrorCode = ErrorCode(0x109);
    /// The control stream does not begin with SETTINGS
    pub const MISSING_SETTINGS: ErrorCode = ErrorCode(0x10a);
    /// The request was not processed
    pub const REQUEST_REJECTED: ErrorCode = ErrorCode(0x10b);
    /// The request or response is no longer wanted
    pub const REQUEST_CANCELLED: ErrorCode = ErrorCode(0x10c);
    /// The stream ended within a request
    pub const REQUEST_INCOMPLETE: ErrorCode = ErrorCode(0x10d);
    /// A malformed message
    pub const MESSAGE_ERROR: ErrorCode = ErrorCode(0x10e);
    /// The connection of a CONNECT broke
    pub const CONNECT_ERROR: ErrorCode = ErrorCode(0x10f);
    /// Another version of HTTP is needed
    pub const VERSION_FALLBACK: ErrorCode = ErrorCode(0x110);
    /// A datagram that belongs to no possible request
    pub const DATAGRAM_ERROR: ErrorCode = ErrorCode(0x33);
    /// A field section that cannot be decoded
    pub const QPACK_DECOMPRESSION_FAILED: ErrorCode = ErrorCode(0x200);
    /// An instruction of the peer's encoder that cannot be followed
    pub const QPACK_ENCODER_STREAM_ERROR: ErrorCode = ErrorCode(0x201);
    /// An instruction of the peer's decoder that cannot be followed
    pub const QPACK_DECODER_STREAM_ERROR: ErrorCode = ErrorCode(0x202);
}

/// The scope of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The stream on which it occurred
    Stream,
    /// The connection with all its streams
    Connection,
}

/// A broken rule of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// Its scope.
    pub scope: Scope,
    /// The code for the peer.
    pub code: ErrorCode,
    /// The rule, for logs.
    pub reason: &'static str,
}

impl Broken {
    /// Returns an error of the connection.
    pub(crate) const fn connection(code: ErrorCode, reason: &'static str) -> Broken {
        Broken { scope: Scope::Connection, code, reason }
    }

    /// Returns an error of one stream.
    pub(crate) const fn stream(code: ErrorCode, reason: &'static str) -> Broken {
        Broken { scope: Scope::Stream, code, reason }
    }
}
