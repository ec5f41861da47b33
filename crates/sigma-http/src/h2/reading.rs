//! The read position in the peer's bytes.

use super::stream::StreamKey;

/// The read position in the peer's bytes.
#[derive(Debug)]
pub(super) enum Reading {
    /// Before the end of the client's preface
    Preface,
    /// Before the first frame, which is SETTINGS
    FirstSettings,
    /// Between frames, or in an incomplete one
    Frame { in_head: bool },
    /// In a DATA frame
    Data(Data),
    /// Between the pieces of a head
    Block(Block),
    /// The end of reading
    Over,
}

impl Reading {
    pub(super) fn is_in_head(&self) -> bool {
        matches!(self, Reading::Block(_) | Reading::Frame { in_head: true })
    }
}

/// The rest of a DATA frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    /// The stream of the frame; None if the bytes are discarded.
    pub(super) key: Option<StreamKey>,
    /// Bytes of the payload that are left, padding included.
    pub(super) left: u32,
    /// Bytes of padding at the end; None before its length has arrived.
    pub(super) padding: Option<u32>,
    pub(super) ends: bool,
    /// It had a byte of a body.
    pub(super) useful: bool,
}

/// An incomplete head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends: bool,
    /// Its priority of RFC 7540 names the stream itself.
    pub(super) own_parent: bool,
}
