//! Code that several plugins of this group share.

pub(crate) mod charset;
pub(crate) mod inquiry;
pub(crate) mod refusal;
pub(crate) mod user_digest;
