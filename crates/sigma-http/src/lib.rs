//! The message model of all crates, and the wire formats of HTTP/1, HTTP/2, HTTP/3, FastCGI and Dubbo as pure state machines.
//!
//! This crate does no I/O, reads no clock and does not wait: bytes go in and messages come out, and vice versa. So
//! every codec can be fuzzed, replayed and tested byte by byte.

pub mod capsule;
mod carried_bytes;
pub mod condition;
pub mod dubbo;
pub mod fault;
pub mod fcgi;
mod field_coding;
pub mod frame;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod head;
pub mod header;
mod header_id;
pub mod method;
mod multiplex;
pub mod proxy_protocol;
pub mod pseudo_fields;
pub mod range;
mod swar;
pub mod websocket;

pub use carried_bytes::CarriedBytes;
pub use fault::{EarlyRefusal, Fault, FaultKind, ReasonRow, Side};
pub use frame::{BodyLength, Frame};
pub use h1::bytes::{is_authority, is_target, is_token};
pub use head::{RequestHead, ResponseHead, TargetForm, Version};
pub use header::Headers;
pub use header_id::{HeaderId, HeaderIds};
pub use method::Method;
pub use pseudo_fields::{Assembly, Field, PseudoFields};
pub use sigma_buffer::Chunk;
