//! The chunked coding (RFC 9112 §7.1), decoded in place.

use super::parse::{HeadLimits, parse_trailers};
use super::tolerance::Tolerance;
use crate::Headers;

/// The longest chunk extension in bytes, including white space around it; only attackers send longer ones, to hide
/// work.
const EXTENSION_MAX: u16 = 256;
/// Digits of a chunk size after its leading zeros; 16 would not overflow u64, and no chunk is that large.
const SIZE_DIGITS_MAX: u8 = 15;
/// Leading zeros of a chunk size: some senders pad to a fixed width, never further than this.
const ZEROS_MAX: u8 = 64;
/// The limit of trailers in bytes.
const TRAILERS_MAX: usize = 16 * 1024;
/// The limit of trailer fields.
const TRAILER_FIELDS_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    /// White space after the size; only an extension or the end of the line may follow.
    SizeSpace,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Done,
}

/// Decodes a chunked body.
#[derive(Debug, Clone)]
pub struct ChunkedDecoder {
    state: State,
    size: u64,
    zeros: u8,
    digits: u8,
    extension: u16,
    trailer_bytes: Vec<u8>,
    /// Trailers of responses are repaired like their heads.
    is_response: bool,
}

/// The result of one call of [`ChunkedDecoder::decode`].
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of input that belong to this message.
    pub consumed: usize,
    /// Bytes of payload, now at the front of the input.
    pub payload: usize,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        ChunkedDecoder {
            state: State::Size,
            size: 0,
            zeros: 0,
            digits: 0,
            extension: 0,
            trailer_bytes: Vec::new(),
            is_response: false,
        }
    }
}

impl ChunkedDecoder {
    /// Returns a decoder for the body of a response. The default one is for requests.
    pub fn of_response() -> ChunkedDecoder {
        ChunkedDecoder { is_response: true, ..ChunkedDecoder::default() }
    }

    /// Returns true at the end of the message.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns true if `input` has the rest of the message.
    pub(super) fn completes_with(&self, input: &[u8]) -> bool {
        if self.is_done() {
            return true;
        }
        let mut trial = self.clone();
        let decoded = trial.decode(&mut input.to_vec());
        decoded.is_ok() && trial.is_done() && trial.take_trailers().is_ok()
    }

    /// Decodes the next piece of the message in place: the payload moves to the front of `data`. Bytes after
    /// `consumed` follow the message.
    ///
    /// # Errors
    /// Returns an error, which is the broken rule; the connection cannot be used further.
    pub fn decode(&mut self, data: &mut [u8]) -> Result<Decoded, &'static str> {
        let (mut at, mut payload) = (0, 0);
        while at < data.len() && self.state != State::Done {
            match self.state {
                State::Data => {
                    let n = (data.len() - at).min(usize::try_from(self.size).unwrap_or(usize::MAX));
                    data.copy_within(at..at + n, payload);
                    payload += n;
                    at += n;
                    self.size -= n as u64;
                    if self.size == 0 {
                        self.state = State::DataCr;
                    }
                }
                State::Trailers => {
                    self.trailer_byte(data[at])?;
                    at += 1;
                }
                _ => {
                    self.framing_byte(data[at])?;
                    at += 1;
                }
            }
        }
        Ok(Decoded { consumed: at, payload })
    }

    fn framing_byte(&mut self, byte: u8) -> Result<(), &'static str> {
        self.state = match (self.state, byte) {
            (State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => return self.size_digit(byte),
            (State::Size, _) if self.digits == 0 && self.zeros == 0 => return Err("a chunk size is missing"),
            // RFC 9112 §7.1.1 requires recipients to accept white space around extensions.
            (State::Size | State::SizeSpace, b' ' | b'\t') => {
                self.count_extension()?;
                State::SizeSpace
            }
            (State::Size | State::SizeSpace, b';') => State::Extension,
            (State::Size | State::SizeSpace | State::Extension, b'\r') => State::SizeLf,
            (State::Size | State::SizeSpace, _) => return Err("a chunk size is not hexadecimal"),
            (State::Extension, b'\t' | 0x20..=0x7e | 0x80..) => {
                self.count_extension()?;
                State::Extension
            }
            (State::Extension, _) => return Err("a chunk extension contains a control byte"),
            (State::SizeLf, b'\n') => {
                (self.zeros, self.digits, self.extension) = (0, 0, 0);
                if self.size == 0 { State::Trailers } else { State::Data }
            }
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size,
            _ => return Err("a chunk does not end in CRLF"),
        };
        Ok(())
    }

    fn count_extension(&mut self) -> Result<(), &'static str> {
        self.extension += 1;
        if self.extension > EXTENSION_MAX { Err("chunk extensions are too long") } else { Ok(()) }
    }

    fn size_digit(&mut self, byte: u8) -> Result<(), &'static str> {
        if byte == b'0' && self.digits == 0 {
            self.zeros += 1;
            return if self.zeros > ZEROS_MAX { Err("a chunk size has too many zeros") } else { Ok(()) };
        }
        self.digits += 1;
        if self.digits > SIZE_DIGITS_MAX {
            return Err("a chunk size is too large");
        }
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            _ => (byte | 0x20) - b'a' + 10,
        };
        self.size = self.size << 4 | u64::from(digit);
        Ok(())
    }

    fn trailer_byte(&mut self, byte: u8) -> Result<(), &'static str> {
        let ended_line = self.trailer_bytes.is_empty() || self.trailer_bytes.ends_with(b"\r\n");
        self.trailer_bytes.push(byte);
        match byte {
            b'\n' if !self.trailer_bytes.ends_with(b"\r\n") => {
                return Err("a trailer line ends in a bare LF");
            }
            b'\n' if self.trailer_bytes == b"\r\n" || self.trailer_bytes.ends_with(b"\r\n\r\n") => {
                self.state = State::Done
            }
            _ if self.trailer_bytes.len() > TRAILERS_MAX => return Err("the trailers are too large"),
            b' ' | b'\t' if ended_line && !self.is_response => {
                return Err("a trailer field is folded over lines");
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the trailer fields, once the message is complete; `None` without trailers.
    ///
    /// # Errors
    /// Returns the broken rule.
    pub fn take_trailers(&mut self) -> Result<Option<Box<Headers>>, &'static str> {
        if self.trailer_bytes.len() <= 2 {
            return Ok(None);
        }
        let mut headers = Box::<Headers>::default();
        let limits = HeadLimits {
            line_bytes: 0,
            head_bytes: TRAILERS_MAX,
            fields: TRAILER_FIELDS_MAX,
            tolerance: Tolerance::NONE,
        };
        let mut parsed = parse_trailers(&self.trailer_bytes, &limits, &mut headers);
        if parsed.is_err()
            && self.is_response
            && let Some(mended) = Tolerance::NONE.mended_trailers(&self.trailer_bytes)
        {
            parsed = parse_trailers(&mended, &limits, &mut headers);
        }
        match parsed {
            Ok(Some(_)) => {
                headers.check_trailers().map_err(|_| "a trailer field belongs in the header")?;
                self.trailer_bytes.clear();
                Ok(Some(headers))
            }
            Ok(None) | Err(_) => Err("a trailer field is invalid"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `wire` split into pieces of `step` bytes.
    fn decode(wire: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), &'static str> {
        let mut decoder = ChunkedDecoder::default();
        let (mut out, mut consumed) = (Vec::new(), 0);
        for piece in wire.chunks(step) {
            let mut piece = piece.to_vec();
            let decoded = decoder.decode(&mut piece)?;
            out.extend_from_slice(&piece[..decoded.payload]);
            consumed += decoded.consumed;
        }
        decoder.take_trailers()?;
        Ok((out, consumed, decoder.is_done()))
    }

    fn check(wire: &[u8], expected: Result<(&[u8], usize), ()>) {
        for step in [1, 2, 3, 7, wire.len()] {
            let got = decode(wire, step).map_err(|_| ());
            let want = expected.map(|(payload, consumed)| (payload.to_vec(), consumed, true));
            assert_eq!(got, want, "{:?} in steps of {step}", String::from_utf8_lossy(wire));
        }
    }

    #[test]
    fn accepted() {
        check(b"0\r\n\r\n", Ok((b"", 5)));
        check(b"5\r\nhello\r\n0\r\n\r\n", Ok((b"hello", 15)));
        check(b"1\r\nh\r\n4;a=b\r\nello\r\n000\r\n\r\n", Ok((b"hello", 26)));
        check(b"5 \t;a=b\r\nhello\r\n0 ; x\r\n\r\n", Ok((b"hello", 25)));
        check(b"5 \r\nhello\r\n0\t\r\n\r\n", Ok((b"hello", 17)));
        check(
            b"00000000000000000000000000000005\r\nhello\r\n0000000000000000000\r\n\r\n",
            Ok((b"hello", 64)),
        );
        check(b"A\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET /", Ok((b"0123456789", 26)));
    }

    #[test]
    fn refused() {
        let wires: &[&[u8]] = &[
            b"\r\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n",
            b"5 5\r\nhello\r\n",
            b" 5\r\nhello\r\n",
            &[&[b'0'; 65][..], b"\r\n\r\n"].concat(),
            b"5\nhello\r\n0\r\n\r\n",
            b"5\r\nhelloX\r\n0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"ffffffffffffffff1\r\n",
            b"00001000000000000000\r\n",
            b"5;\x01\r\nhello\r\n",
            b"0\r\nbad line\r\n\r\n",
            b"0\r\nA: b\n\r\n",
            b"0\r\n A: b\r\n\r\n",
            b"0\r\nContent-Length: 1\r\n\r\n",
            b"0\r\nHost: h\r\n\r\n",
            b"0\r\ntransfer-encoding: chunked\r\n\r\n",
            b"-1\r\n",
            b";x\r\n",
        ];
        for wire in wires {
            check(wire, Err(()));
        }
    }

    /// Trailers of responses are parsed like their heads. Trailers of requests are strict.
    #[test]
    fn trailers_of_old_origins() {
        let check = |trailers: &str, expected: Option<&str>| {
            let wire = format!("1\r\na\r\n0\r\n{trailers}\r\n\r\n");
            for step in [1, 2, 5, wire.len()] {
                let read = |mut decoder: ChunkedDecoder| {
                    for piece in wire.as_bytes().chunks(step) {
                        decoder.decode(&mut piece.to_vec())?;
                    }
                    let headers = decoder.take_trailers()?.ok_or("no trailers")?;
                    headers
                        .find(b"a")
                        .map(|value| String::from_utf8_lossy(value).into_owned())
                        .ok_or("no `a`")
                };
                assert_eq!(read(ChunkedDecoder::of_response()).ok().as_deref(), expected, "{trailers:?}");
                assert!(read(ChunkedDecoder::default()).is_err(), "{trailers:?}");
            }
        };
        check("A : b", Some("b"));
        check("C: d\r\nA\t \t:b", Some("b"));
        check("A: b\r\n  c", Some("b c"));
        check("A:\r\n\tb\r\n c", Some("b c"));
        // A folded first line, a missing name, and fields that belong into the head.
        check(" A: b", None);
        check(" : b", None);
        check("A B : c", None);
        check("A: b\r\nContent-Length : 1", None);
        check("A: b\r\nTransfer-Encoding : chunked", None);
        check("A : b\n", None);
    }
}
