//! Pushed items, and their receivers.

use std::sync::Arc;

use sigma_http::websocket::messages::Kind;

/// Most bytes of a channel's name.
const CHANNEL_BYTES: usize = 128;

/// Whom an item is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Connection(Box<str>),
    Channel(Box<str>),
}

/// An item for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pushed {
    Message(Kind, Arc<[u8]>),
    /// Its end, with a code and a reason.
    End(u16, Box<str>),
}

/// One push, in the forms of all media.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) target: Target,
    pub(crate) websocket: Option<Pushed>,
    pub(crate) events: Option<Pushed>,
}

/// Whether a name of a channel may be one.
pub(crate) fn is_channel(name: &str) -> bool {
    !name.is_empty() && name.len() <= CHANNEL_BYTES && name.bytes().all(|b| b.is_ascii_graphic() && b != b',')
}
