//! How far the peer's bytes have been read.

use super::stream::StreamKey;

/// Where in the peer's bytes this side is.
#[derive(Debug)]
pub(super) enum Reading {
    /// Before the end of the client's preface.
    Preface,
    /// Before the first frame, which is SETTINGS.
    FirstSettings,
    /// Between frames, or in one that is not complete.
    Frame { in_head: bool },
    /// In a DATA frame.
    Data(Data),
    /// Between the pieces of a head.
    Block(Block),
    /// Nothing is read any more.
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
    /// The stream that takes it; None if nobody does.
    pub(super) key: Option<StreamKey>,
    /// Bytes of the payload that are left, padding included.
    pub(super) left: u32,
    /// Bytes of padding at the end; None if its length has not come yet.
    pub(super) padding: Option<u32>,
    pub(super) ends: bool,
    /// Whether a byte of a body was in it.
    pub(super) useful: bool,
}

/// A head of which pieces are missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends: bool,
    /// Its priority of RFC 7540 names the stream itself.
    pub(super) own_parent: bool,
}
