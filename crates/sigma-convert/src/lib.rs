//! Translates formats of other programs to Sigma's own: configurations of other gateways, the files of Sigma's
//! predecessors, and OpenAPI.
//!
//! A document is translated before the check, so the check knows only Sigma's own format.

pub mod import;
pub mod openapi;
pub mod seed;
