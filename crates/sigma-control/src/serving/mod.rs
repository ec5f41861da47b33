//! What is served: from what a file or a store says to a snapshot in force.
//!
//! `source` reads the file. `desired` knows what is to be served and quarantines what is invalid.
//! `publisher` compiles what changed, with the endpoints of `endpoints` and the secrets of `secret`,
//! which `references` finds. `trial` compiles what is not stored yet.

pub(crate) mod desired;
pub(crate) mod endpoints;
pub(crate) mod publisher;
pub(crate) mod references;
pub mod secret;
pub(crate) mod source;
pub mod trial;
