//! Code that several plugins of this group share.

pub(crate) mod answers;
pub(crate) mod code_login;
pub(crate) mod form;
pub(crate) mod message_signatures;
pub(crate) mod origin;
pub(crate) mod pages;
pub(crate) mod policy;
pub(crate) mod seal;
pub(crate) mod session_cookie;
pub(crate) mod tokens;
pub(crate) mod used_once;
pub(crate) mod way_back;
