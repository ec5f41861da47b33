//! The consumer side of Dubbo: requests become calls, and responses of providers become HTTP responses.
//!
//! | file | role |
//! |---|---|
//! | `question` | a request as a call |
//! | `frames` | the frames that a provider sends |
//! | `answer` | responses of a provider as HTTP responses |
//! | `hessian` | values in Hessian 2 |
//! | `lines` | values in lines of JSON, the serialization `fastjson` |
//!
//! A connection has one call at a time, with increasing numbers.

mod frames;
pub mod hessian;
mod lines;
mod request;
mod response;

pub use frames::{Frames, Piece};
pub use lines::count_types;
pub use request::{DubboRequest, Unfit};
pub use response::{DubboResponse, read_answer};

/// The largest response of a provider in bytes. Dubbo has the same limit for messages in both directions (`payload`).
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

/// The default limit of a request body for a call, in bytes.
pub const BODY_BYTES_MAX: usize = 64 << 20;

const HEADER_BYTES: usize = 16;
const MAGIC: [u8; 2] = [0xda, 0xbb];

/// Bits of the third byte of a header.
mod flag {
    pub(super) const REQUEST: u8 = 0x80;
    pub(super) const TWO_WAY: u8 = 0x40;
    pub(super) const EVENT: u8 = 0x20;
    pub(super) const SERIALIZATION: u8 = 0x1f;
}

/// The fourth byte of a response's header.
mod status {
    pub(super) const OK: u8 = 20;
    pub(super) const CLIENT_TIMEOUT: u8 = 30;
    pub(super) const SERVER_TIMEOUT: u8 = 31;
    pub(super) const THREADS_EXHAUSTED: u8 = 100;
}

/// The protocol version in calls.
const PROTOCOL: &str = "2.0.2";

/// The call of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The interface of the service.
    pub service: Box<str>,
    /// Its version.
    pub version: Box<str>,
    /// The method.
    pub method: Box<str>,
    /// The form of request and response.
    pub form: Form,
    /// The largest request body in bytes.
    pub body_bytes_max: usize,
}

/// The form of a call and its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// The method takes one map with the fields and the body of the request, in Hessian 2, and returns such a map.
    Map,
    /// The body has the parameters, which the method gets in lines of JSON.
    Lines {
        /// Their types, as JVM descriptors.
        types: Box<str>,
        /// The body already has such lines; otherwise it is JSON.
        is_serialized: bool,
    },
}

impl Form {
    /// Returns the number of its serialization.
    fn serialization(&self) -> u8 {
        match self {
            Form::Map => 2,
            Form::Lines { .. } => 6,
        }
    }
}

impl Call {
    /// Returns the reader of the response to this call, with the number `id`.
    pub fn frames(&self, id: u64) -> Frames {
        Frames::new(id, self.form.serialization())
    }
}

fn header(flags: u8, status: u8, id: u64, length: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(u32::try_from(length).is_ok(), "more than a frame holds");
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&MAGIC);
    (header[2], header[3]) = (flags, status);
    header[4..12].copy_from_slice(&id.to_be_bytes());
    header[12..].copy_from_slice(&(length as u32).to_be_bytes());
    header
}
