//! Code that several plugins of this group share.

pub(crate) mod arguments;
pub(crate) mod encoder;
pub(crate) mod whole_body;
