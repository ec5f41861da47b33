//! Outgoing frames of messages.

use super::connection::Codec;
use super::frame::{FrameHeader, HEADER_BYTES_MAX, kind};
use crate::multiplex::fields::is_of_connection;
use crate::multiplex::{Priority, RequestLine};
use crate::{HeaderId, Headers, RequestHead};

/// Instructions that wait for the peer's window; beyond them no field enters the table.
const INSTRUCTIONS_MAX: usize = 4096;

/// The usual size of the prefix of a field section.
const PREFIX_BYTES: usize = 8;

/// The memory for field sections that is kept between heads.
const KEPT_SECTION_BYTES: usize = 4096;

impl Codec {
    /// Writes the head of a response, with `date` if it lacks one. Interim heads need no date.
    pub fn put_response(
        &mut self,
        stream: u64,
        status: u16,
        headers: &Headers,
        date: &[u8],
        out: &mut Vec<u8>,
    ) {
        self.put_section(stream, out, |encoder, section| {
            encoder.status(status, section);
            for (id, name, value) in headers.fields() {
                if !is_of_connection(id) {
                    encoder.encode(id, name, value, section);
                }
            }
            if !date.is_empty() && !headers.has(HeaderId::Date) {
                encoder.encode(HeaderId::Date, b"date", date, section);
            }
        });
    }

    /// Writes the head of a request.
    pub fn put_request(&mut self, stream: u64, head: &RequestHead, line: RequestLine<'_>, out: &mut Vec<u8>) {
        self.put_section(stream, out, |encoder, section| {
            let other = HeaderId::Other;
            encoder.encode(other, b":method", head.method_token(), section);
            encoder.encode(other, b":scheme", line.scheme, section);
            if let Some(host) = head.headers.get(HeaderId::Host) {
                encoder.encode(other, b":authority", host, section);
            }
            encoder.encode(other, b":path", line.target, section);
            for (id, name, value) in head.headers.fields() {
                if id != HeaderId::Host && !is_of_connection(id) {
                    encoder.encode(id, name, value, section);
                }
            }
            // The gateway forwards trailers in every version, and gRPC needs them.
            encoder.encode(HeaderId::Te, b"te", b"trailers", section);
        });
    }

    /// Writes trailers.
    pub fn put_trailers(&mut self, stream: u64, headers: &Headers, out: &mut Vec<u8>) {
        self.put_section(stream, out, |encoder, section| {
            for (id, name, value) in headers.fields() {
                if !is_of_connection(id) {
                    encoder.encode(id, name, value, section);
                }
            }
        });
    }

    fn put_section(
        &mut self,
        stream: u64,
        out: &mut Vec<u8>,
        fields: impl FnOnce(&mut super::qpack::Encoder, &mut Vec<u8>),
    ) {
        let mut section = std::mem::take(&mut self.fields.section);
        let instructions = &mut self.outputs.encoder;
        self.fields.encoder.begin(stream, instructions.len() < INSTRUCTIONS_MAX);
        fields(&mut self.fields.encoder, &mut section);
        instructions.append(&mut self.fields.encoder.instructions);
        let mut prefix = Vec::with_capacity(PREFIX_BYTES);
        self.fields.encoder.end(&mut prefix);
        FrameHeader { kind: kind::HEADERS, length: (prefix.len() + section.len()) as u64 }.put(out);
        out.extend_from_slice(&prefix);
        out.extend_from_slice(&section);
        if section.capacity() <= KEPT_SECTION_BYTES {
            section.clear();
            self.fields.section = section;
        }
    }
}

/// Returns the header of a DATA frame with `length` bytes of payload.
pub fn data_header(length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES_MAX);
    FrameHeader { kind: kind::DATA, length: length as u64 }.put(&mut out);
    out
}

/// Returns the order of a stream with this priority among others, for a transport that sends the streams of the
/// highest order first and takes turns within one order (RFC 9218 §10).
///
/// Streams of one urgency that are not incremental go one after another: earlier requests are higher. The transport
/// has 32 bits; the last 2^26 requests of a connection differ.
pub fn send_order(priority: Priority, id: u64) -> i32 {
    /// The orders of one urgency.
    const LEVEL: i32 = 1 << 27;
    let urgency = i32::from(priority.urgency.min(7));
    let base = (3 - urgency) * LEVEL;
    if priority.incremental {
        return base;
    }
    let turn = (id / 4 % (1 << 26)) as i32;
    base + (1 << 26) - turn
}
