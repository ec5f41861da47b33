//! HTTP message signatures (RFC 9421): what `hmac-auth` verifies and `upstream-auth` makes.
//!
//! [`structured`] reads the fields that hold signatures, [`base`] writes the text that is signed, [`sigma_plugin_kit::key_pair`] has
//! the algorithms, [`digest`] binds the body, [`verify`] puts them together.

pub(crate) mod base;
pub(crate) mod digest;
pub(crate) mod structured;
pub(crate) mod verify;

#[cfg(test)]
mod tests;
