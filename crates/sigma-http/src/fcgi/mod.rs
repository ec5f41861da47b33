//! FastCGI 1.0, the side of a web server: requests to records, and records to answers in the form of CGI
//! (RFC 3875).
//!
//! | file | role |
//! |---|---|
//! | `params` | what an application is told of a request |
//! | `records` | the records that an application sends |
//! | `answer` | the head of its answer |
//!
//! One request at a time is on a connection, under the number 1: PHP's process manager knows nothing else.

mod answer;
mod params;
mod records;

pub use answer::{body_length, head_end, parse_head};
pub use params::{Params, TooLong};
pub use records::{EndKind, Piece, Records};

/// Bytes of content in one record. A multiple of eight, below what two bytes can tell.
pub const CONTENT_MAX: usize = 65_528;

const VERSION: u8 = 1;
/// The number that every request goes by.
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 8;

/// The types of records.
mod kind {
    pub(super) const BEGIN_REQUEST: u8 = 1;
    pub(super) const END_REQUEST: u8 = 3;
    pub(super) const PARAMS: u8 = 4;
    pub(super) const STDIN: u8 = 5;
    pub(super) const STDOUT: u8 = 6;
    pub(super) const STDERR: u8 = 7;
    pub(super) const GET_VALUES_RESULT: u8 = 10;
    pub(super) const UNKNOWN_TYPE: u8 = 11;
}

/// Writes the record that begins a request. With `keep` the application is asked to leave the connection open.
pub fn begin(keep: bool, out: &mut Vec<u8>) {
    /// The application answers requests; it neither authorises nor filters.
    const RESPONDER: u8 = 1;
    header(kind::BEGIN_REQUEST, 8, out);
    out.extend_from_slice(&[0, RESPONDER, u8::from(keep), 0, 0, 0, 0, 0]);
}

/// Writes what stands before `length` bytes of the request's body, at most [`CONTENT_MAX`]; 0 ends the body.
pub fn body(length: usize, out: &mut Vec<u8>) {
    header(kind::STDIN, length, out);
}

fn header(kind: u8, length: usize, out: &mut Vec<u8>) {
    debug_assert!(length <= usize::from(u16::MAX), "more than a record holds");
    let [high, low] = (length as u16).to_be_bytes();
    let [number_high, number_low] = REQUEST.to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, number_high, number_low, high, low, 0, 0]);
}
