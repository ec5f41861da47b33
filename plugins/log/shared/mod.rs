//! Code that several plugins of this group share.

pub(crate) mod http_sender;
pub(crate) mod kafka;
pub(crate) mod message;
pub(crate) mod rfc5424;
