//! The pieces that cross between the two sides of an exchange once the head is known.

use crate::{Chunk, Headers};

/// One piece of a message after its head. Both sides of every protocol version speak in these.
#[derive(Debug)]
pub enum Frame {
    /// Bytes of the body, never empty.
    Data(Chunk),
    /// Trailer fields; the message ends with them.
    Trailers(Box<Headers>),
    /// The message ends without trailers.
    End,
}

/// How long a body is, as its head declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyLength {
    /// There is no body.
    #[default]
    None,
    /// Exactly this many bytes (may be 0).
    Known(u64),
    /// Unknown in advance; the message says itself where it ends.
    Streamed,
    /// Until the connection closes (HTTP/1 responses only).
    UntilClose,
}

impl BodyLength {
    /// Whether not a single byte of body will come.
    pub fn is_empty(self) -> bool {
        matches!(self, BodyLength::None | BodyLength::Known(0))
    }
}
