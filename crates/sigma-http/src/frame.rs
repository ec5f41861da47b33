//! The pieces of a message after its head, as they pass between the two sides of an exchange.

use crate::{Chunk, Headers};

/// One piece of a message after its head. Both sides of every protocol version use them.
#[derive(Debug)]
pub enum Frame {
    /// Bytes of the body, never empty
    Data(Chunk),
    /// Trailer fields, which end the message
    Trailers(Box<Headers>),
    /// The end of a message without trailers
    End,
}

/// The declared length of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyLength {
    /// No body
    #[default]
    None,
    /// Exactly this number of bytes (may be 0)
    Known(u64),
    /// Unknown in advance; the message marks its own end
    Streamed,
    /// Until the connection closes (HTTP/1 responses only)
    UntilClose,
}

impl BodyLength {
    /// Returns true if the body has no bytes.
    pub fn is_empty(self) -> bool {
        matches!(self, BodyLength::None | BodyLength::Known(0))
    }
}
