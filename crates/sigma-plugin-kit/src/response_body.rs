//! Replacements in a response body: it is held back as a whole, decoded, and searched.
//!
//! A node decides about the size, and a few encoded bytes can decode to a gigabyte. So every step has a limit: the
//! held bytes, their decoded size, the result of the replacements, and all of that together in one worker.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::header::list_items;
use sigma_http::{Chunk, Fault, FaultKind, HeaderId, Headers};
use sigma_plugin::{Context, Pieces, Transform};

use crate::budget::Share;
use crate::changed_body::remove_digests;
use crate::inflate::{self, Failure};
use crate::log_throttle::LogThrottle;
use crate::substitute::{Substitution, TooLong};

/// Replacements, in their order.
#[derive(Debug)]
pub struct Filters {
    /// The substitutions, in order.
    pub all: Vec<(Substitution, Scope)>,
    /// Bytes of a body, encoded and decoded.
    pub limit: usize,
    /// The treatment of bodies that cannot be searched.
    pub unfiltered: Unfiltered,
}

impl Filters {
    /// Returns true if bodies of this encoding go through the filters; otherwise they pass unchanged.
    pub fn reads(&self, encoding: Encoding) -> bool {
        encoding != Encoding::Other || self.unfiltered == Unfiltered::Cut
    }
}

/// The matches that are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The first match only.
    Once,
    /// All matches.
    Global,
}

/// The treatment of a body that cannot be filtered: it exceeds the limit, or has an unknown encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unfiltered {
    // The response breaks off.
    /// The response is cut off.
    Cut,
    // If the body exceeds the limit, the held part is filtered.
    /// The response passes unchanged.
    Pass,
}

/// Removes the range from a request: a part of the node's body would count bytes that the client never gets. Some
/// servers read the old `Request-Range` as well.
pub fn ask_for_whole(request: &mut Headers) {
    for name in ["Range", "If-Range", "Request-Range"] {
        request.remove_name(name.as_bytes());
    }
}

/// Restricts a request to bodies that can be filtered: whole ones, in known encodings. Otherwise a client could
/// bypass the filters.
pub fn ask_for_readable(request: &mut Headers) {
    ask_for_whole(request);
    if !request.has(HeaderId::AcceptEncoding) {
        return;
    }
    let is_readable = |item: &&[u8]| {
        let coding = item.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        ["gzip", "br", "identity"].iter().any(|known| coding.eq_ignore_ascii_case(known.as_bytes()))
    };
    let all = request.get_all(HeaderId::AcceptEncoding).flat_map(list_items);
    let readable: Vec<&[u8]> = all.filter(is_readable).collect();
    let readable = if readable.is_empty() { b"identity".to_vec() } else { readable.join(&b", "[..]) };
    request.set(HeaderId::AcceptEncoding, &readable);
}

/// The node's encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// No coding.
    Identity,
    /// gzip (RFC 1952).
    Gzip,
    /// Brotli (RFC 7932).
    Brotli,
    /// An unknown coding.
    Other,
}

/// The reason why an encoded body was not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecoded {
    /// The decoded body is longer than allowed.
    TooLong,
    /// The encoding is invalid.
    Broken,
    /// The encoding is unknown.
    Unknown,
}

impl Encoding {
    /// Returns the coding in `Content-Encoding`.
    pub fn of(headers: &Headers) -> Encoding {
        match headers.find(b"Content-Encoding") {
            None | Some(b"") => Encoding::Identity,
            Some(value) if value.eq_ignore_ascii_case(b"identity") => Encoding::Identity,
            Some(value) if value.eq_ignore_ascii_case(b"gzip") => Encoding::Gzip,
            // An old name of the same coding (RFC 9110 §8.4.1.3).
            Some(value) if value.eq_ignore_ascii_case(b"x-gzip") => Encoding::Gzip,
            Some(value) if value.eq_ignore_ascii_case(b"br") => Encoding::Brotli,
            Some(_) => Encoding::Other,
        }
    }

    /// Decodes a body of this encoding to at most `limit` bytes, and in proportion to the encoded size.
    ///
    /// # Errors
    /// Returns an error if it is longer, or cannot be decoded.
    pub fn decoded(self, encoded: &[u8], limit: usize) -> Result<Vec<u8>, Undecoded> {
        /// Room for the decoder's own output.
        const BROTLI_BUFFER_BYTES: usize = 16 * 1024;
        if encoded.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = encoded.len();
        let decoded = match self {
            Encoding::Gzip => inflate::decoded(flate2::read::MultiGzDecoder::new(encoded), bytes, limit),
            Encoding::Brotli => {
                inflate::decoded(brotli::Decompressor::new(encoded, BROTLI_BUFFER_BYTES), bytes, limit)
            }
            Encoding::Identity => inflate::decoded(encoded, bytes, limit),
            Encoding::Other => return Err(Undecoded::Unknown),
        };
        decoded.map_err(|failure| match failure {
            Failure::TooLong => Undecoded::TooLong,
            Failure::Broken => Undecoded::Broken,
        })
    }
}

const TOO_LONG: Fault = Fault::new(
    FaultKind::ResponseBodyTooLarge,
    "the body exceeds max_resp_body_size, or its compression ratio is too high",
);
const WORKER_FULL: Fault =
    Fault::new(FaultKind::MemoryLimit, "the bodies that response-rewrite buffers exceed their limit");
const UNREADABLE: Fault =
    Fault::new(FaultKind::ResponseCoding, "filters cannot read the content coding of the body");
const BROKEN: Fault = Fault::new(FaultKind::ResponseCoding, "the body does not match its Content-Encoding");

/// A filter that holds a body back up to the limit, and replaces matches when it is complete.
pub struct Filtering {
    filters: Arc<Filters>,
    encoding: Encoding,
    held: Vec<u8>,
    /// Kept to the end of the exchange: forwarded bytes may wait for a slow client until then.
    share: Share,
    /// The limit was reached and the held bytes have been forwarded: the rest follows unchanged.
    passes: bool,
}

impl Filtering {
    /// Returns a filter that holds no byte yet.
    pub fn new(filters: Arc<Filters>, encoding: Encoding, share: Share) -> Filtering {
        Filtering { filters, encoding, held: Vec::new(), share, passes: false }
    }

    /// Accepts a piece; a fault ends the response.
    fn take(&mut self, data: &[u8], out: &mut Pieces) -> Result<(), Fault> {
        if self.encoding == Encoding::Other {
            return Err(UNREADABLE);
        }
        let room = self.filters.limit - self.held.len();
        let kept = &data[..data.len().min(room)];
        if kept.len() > self.share.room() {
            return Err(WORKER_FULL);
        }
        self.share.grow(kept.len());
        self.held.extend_from_slice(kept);
        if data.len() <= room {
            return Ok(());
        }
        // The rest of an encoded body cannot be read without its beginning.
        if self.filters.unfiltered == Unfiltered::Cut || self.encoding != Encoding::Identity {
            return Err(TOO_LONG);
        }
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::warn!(
                left_out,
                "response-rewrite: a body exceeds max_resp_body_size; the rest is not filtered"
            );
        }
        self.passes = true;
        self.release(out)?;
        out.bytes(&data[room..]);
        Ok(())
    }

    /// Forwards the held bytes, filtered.
    fn release(&mut self, out: &mut Pieces) -> Result<(), Fault> {
        let mut text = std::mem::take(&mut self.held);
        if self.encoding != Encoding::Identity {
            text = self.decoded(&text)?;
            self.share.grow(text.len());
        }
        for (substitution, scope) in &self.filters.all {
            let matches = if *scope == Scope::Once { 1 } else { usize::MAX };
            // The text itself has its share already.
            let limit = text.len() + self.share.room();
            let before = text.len();
            text = substitution.bounded(text, matches, limit).map_err(|TooLong| WORKER_FULL)?;
            self.share.grow(text.len().saturating_sub(before));
        }
        out.bytes(&text);
        Ok(())
    }

    fn decoded(&self, encoded: &[u8]) -> Result<Vec<u8>, Fault> {
        let room = self.share.room();
        let limit = self.filters.limit.min(room);
        self.encoding.decoded(encoded, limit).map_err(|reason| match reason {
            Undecoded::TooLong if room < self.filters.limit => WORKER_FULL,
            Undecoded::TooLong => TOO_LONG,
            Undecoded::Broken => BROKEN,
            Undecoded::Unknown => UNREADABLE,
        })
    }
}

fn give_up(fault: Fault, out: &mut Pieces) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(left_out, "response-rewrite: a response was cut off: {}", fault.reason);
    }
    out.fail(fault);
}

impl Transform for Filtering {
    fn data(&mut self, _cx: &mut Context, data: Chunk, out: &mut Pieces) {
        if self.passes {
            out.piece(data);
        } else if let Err(fault) = self.take(&data, out) {
            give_up(fault, out);
        }
    }

    fn end(&mut self, _cx: &mut Context, trailers: Option<&mut Headers>, out: &mut Pieces) {
        trailers.into_iter().for_each(remove_digests);
        if !self.passes
            && let Err(fault) = self.release(out)
        {
            give_up(fault, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::rc::Rc;

    use super::*;
    use crate::budget::WorkerBytes;

    const LIMIT: usize = 64 << 10;

    fn filtering(
        unfiltered: Unfiltered,
        encoding: Encoding,
        held: &Rc<WorkerBytes>,
        replacement: &str,
    ) -> Filtering {
        let substitution = Substitution::new("a", replacement, "").unwrap();
        let all = vec![(substitution, Scope::Global)];
        let filters = Filters { all, limit: LIMIT, unfiltered };
        Filtering::new(Arc::new(filters), encoding, Share::within(2 * LIMIT, held))
    }

    /// Returns the size of the output, or the reason of its end.
    fn run(filter: &mut Filtering, body: &[u8]) -> Result<usize, &'static str> {
        let (mut ctx, mut out) = (Context::default(), Pieces::default());
        for piece in body.chunks(16 * 1024) {
            filter.data(&mut ctx, Chunk::copy_of(piece), &mut out);
        }
        if out.fault().is_none() {
            filter.end(&mut ctx, None, &mut out);
        }
        match out.fault() {
            Some(fault) => Err(fault.reason),
            None => Ok(out
                .drain()
                .map(|frame| match frame {
                    sigma_http::Frame::Data(data) => data.len(),
                    _ => 0,
                })
                .sum()),
        }
    }

    fn gzipped(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn brotlied(text: &[u8]) -> Vec<u8> {
        let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 20);
        encoder.write_all(text).unwrap();
        encoder.into_inner()
    }

    #[test]
    fn only_readable_bodies_are_requested() {
        let check = |fields: &[&str], expected: &str| {
            let mut request = Headers::default();
            for value in fields {
                request.append("Accept-Encoding", value.as_bytes());
            }
            request.append("Range", b"bytes=0-1");
            request.append("If-Range", b"x");
            ask_for_readable(&mut request);
            let mut left = Vec::new();
            request.write_to(&mut left);
            assert_eq!(String::from_utf8(left).unwrap(), expected, "{fields:?}");
        };
        check(&[], "");
        check(&["gzip, br;q=0.5"], "Accept-Encoding: gzip, br;q=0.5\r\n");
        check(&["zstd, GZIP;q=0.5", "deflate"], "Accept-Encoding: GZIP;q=0.5\r\n");
        check(&["zstd"], "Accept-Encoding: identity\r\n");
        check(&["*"], "Accept-Encoding: identity\r\n");
    }

    #[test]
    fn every_step_has_a_limit() {
        let check = |unfiltered, encoding, replacement: &str, body: &[u8], expected: Result<usize, &str>| {
            let held = Rc::new(WorkerBytes::default());
            let mut filter = filtering(unfiltered, encoding, &held, replacement);
            assert_eq!(run(&mut filter, body), expected, "{unfiltered:?} {encoding:?} {replacement}");
            drop(filter);
            assert_eq!(Share::within(LIMIT, &held).room(), LIMIT);
        };
        let (whole, long) = (vec![b'x'; LIMIT], vec![b'x'; 64 * LIMIT]);
        let (cut, pass) = (Unfiltered::Cut, Unfiltered::Pass);
        check(cut, Encoding::Identity, "", &whole, Ok(LIMIT));
        check(cut, Encoding::Identity, "", &long, Err(TOO_LONG.reason));
        check(pass, Encoding::Identity, "", &long, Ok(64 * LIMIT));
        for (encoding, encode) in
            [(Encoding::Gzip, gzipped as fn(&[u8]) -> Vec<u8>), (Encoding::Brotli, brotlied)]
        {
            check(cut, encoding, "", &encode(&whole), Ok(LIMIT));
            let bomb = encode(&long);
            assert!(bomb.len() < LIMIT / 10);
            check(cut, encoding, "", &bomb, Err(TOO_LONG.reason));
            check(pass, encoding, "", &bomb, Err(TOO_LONG.reason));
            let mut torn = encode(b"hello hello hello");
            torn.truncate(torn.len() - 4);
            check(pass, encoding, "", &torn, Err(BROKEN.reason));
            check(cut, encoding, "", b"not encoded", Err(BROKEN.reason));
        }
        check(cut, Encoding::Other, "", b"x", Err(UNREADABLE.reason));
        check(cut, Encoding::Identity, "aa", &vec![b'a'; LIMIT], Ok(2 * LIMIT));
        check(cut, Encoding::Identity, "aaa", &vec![b'a'; LIMIT], Err(WORKER_FULL.reason));
    }

    #[test]
    fn the_bodies_of_a_worker_share_a_limit() {
        let held = Rc::new(WorkerBytes::default());
        let new = || filtering(Unfiltered::Cut, Encoding::Identity, &held, "");
        let (mut one, mut two, mut three) = (new(), new(), new());
        let body = vec![b'x'; LIMIT];
        assert_eq!(run(&mut one, &body), Ok(LIMIT));
        assert_eq!(run(&mut two, &body), Ok(LIMIT));
        assert_eq!(run(&mut three, b"x"), Err(WORKER_FULL.reason), "the others may not have left yet");
        drop((one, three));
        assert_eq!(run(&mut new(), &body), Ok(LIMIT));
    }

    #[test]
    fn names_of_codings() {
        let check = |value: &str, expected: Encoding| {
            let mut headers = Headers::default();
            headers.append("Content-Encoding", value.as_bytes());
            assert_eq!(Encoding::of(&headers), expected, "{value}");
        };
        for gzip in ["gzip", "GZIP", "x-gzip", "X-Gzip"] {
            check(gzip, Encoding::Gzip);
        }
        check("br", Encoding::Brotli);
        check("", Encoding::Identity);
        check("identity", Encoding::Identity);
        check("gzip, gzip", Encoding::Other);
        check("x-br", Encoding::Other);
    }
}
