//! Code that several plugins of this group share.

pub(crate) mod count;
pub(crate) mod hub;
pub(crate) mod platform;
pub(crate) mod push;
pub(crate) mod quota;
pub(crate) mod room;
pub(crate) mod subrequest;
pub(crate) mod zones;
