//! Formats of other programs as Sigma's own: the files of the programs that Sigma succeeds, and OpenAPI.
//!
//! A document is translated before it is checked, so the check knows none of these formats.

pub mod openapi;
pub mod seed;
