//! The web server side of FastCGI 1.0: requests become records, and records become responses in the form of CGI (RFC
//! 3875).
//!
//! | file | role |
//! |---|---|
//! | `params` | request parameters for an application |
//! | `records` | records from an application |
//! | `answer` | the head of its response |
//!
//! A connection has one request at a time, with the number 1: PHP's process manager supports nothing else.

mod params;
mod records;
mod response;

pub use params::{Params, TooLong};
pub use records::{EndKind, Piece, Records};
pub use response::{body_length, head_end, parse_head};

/// The largest content of one record in bytes. A multiple of eight that fits two bytes.
pub const CONTENT_MAX: usize = 65_528;

const VERSION: u8 = 1;
/// The number of every request.
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

/// Writes the record that starts a request. `keep` asks the application to leave the connection open.
pub fn begin(keep: bool, out: &mut Vec<u8>) {
    /// The role of an application that responds; it neither authorises nor filters.
    const RESPONDER: u8 = 1;
    header(kind::BEGIN_REQUEST, 8, out);
    out.extend_from_slice(&[0, RESPONDER, u8::from(keep), 0, 0, 0, 0, 0]);
}

/// Writes the header before `length` bytes of the request body, at most [`CONTENT_MAX`]; 0 ends the body.
pub fn body(length: usize, out: &mut Vec<u8>) {
    header(kind::STDIN, length, out);
}

fn header(kind: u8, length: usize, out: &mut Vec<u8>) {
    debug_assert!(length <= usize::from(u16::MAX), "more than a record holds");
    let [high, low] = (length as u16).to_be_bytes();
    let [number_high, number_low] = REQUEST.to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, number_high, number_low, high, low, 0, 0]);
}
