//! A simulated surrounding of a worker: time and randomness from a seed ([`world`]), connections in memory ([`stream`]),
//! and a strict reader of messages for the peers of the gateway ([`message`]).
//!
//! For tests of this crate, and with the feature `simulation` of the crates above it.

pub mod message;
pub mod stream;
pub mod world;
