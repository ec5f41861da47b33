//! Dubbo, the side of a consumer: requests to calls, and what providers answer to answers.
//!
//! | file | role |
//! |---|---|
//! | `question` | a request as a call |
//! | `frames` | the frames that a provider sends |
//! | `answer` | what an answer says in HTTP |
//! | `hessian` | values in Hessian 2 |
//! | `lines` | values in lines of JSON, as the serialization `fastjson` has them |
//!
//! One call at a time is on a connection; the next one has the next number.

mod answer;
mod frames;
pub mod hessian;
mod lines;
mod question;

pub use answer::{Said, read_answer};
pub use frames::{Frames, Piece};
pub use lines::count_types;
pub use question::{Question, Unfit};

/// Bytes of what a provider may answer. Dubbo's own bound on what is sent (`payload`), in both directions.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Bytes of a request's body that a call takes where nothing else is said.
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

/// The fourth byte of an answer's header.
mod status {
    pub(super) const OK: u8 = 20;
    pub(super) const CLIENT_TIMEOUT: u8 = 30;
    pub(super) const SERVER_TIMEOUT: u8 = 31;
    pub(super) const THREADS_EXHAUSTED: u8 = 100;
}

/// The version of the protocol that calls say they are of.
const PROTOCOL: &str = "2.0.2";

/// What a request calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The interface of the service.
    pub service: Box<str>,
    /// Its version.
    pub version: Box<str>,
    /// The method.
    pub method: Box<str>,
    /// How the request is said to it.
    pub form: Form,
    /// Bytes of the request's body that are taken.
    pub body_bytes_max: usize,
}

/// How a request is said to a method, and how its answer becomes one in HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// The method takes one map with the fields and the body of the request, in Hessian 2, and answers with such a map.
    Map,
    /// The body has the parameters, which the method is given in lines of JSON.
    Lines {
        /// Their types, as JVM descriptors.
        types: Box<str>,
        /// The body is such lines already; else it is JSON.
        is_serialized: bool,
    },
}

impl Form {
    /// The number of its serialization.
    fn serialization(&self) -> u8 {
        match self {
            Form::Map => 2,
            Form::Lines { .. } => 6,
        }
    }
}

impl Call {
    /// The frames of the answer to this call, which goes by the number `id`.
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
