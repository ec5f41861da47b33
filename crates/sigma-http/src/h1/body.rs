//! Frames from the bytes of a body, in both directions.

use super::chunked::ChunkedDecoder;
use crate::{BodyLength, Chunk, Frame};

/// Reads the frames of one message from the bytes of its connection.
#[derive(Debug, Default)]
pub enum BodyReader {
    /// The message has ended.
    #[default]
    Done,
    /// The remaining number of bytes.
    Known(u64),
    /// Chunked coding.
    Chunked(Box<ChunkedDecoder>),
    /// All bytes until the stream ends.
    UntilClose,
}

impl BodyReader {
    /// Returns a reader for a request body of `length`.
    pub fn new(length: BodyLength) -> BodyReader {
        match length {
            BodyLength::None | BodyLength::Known(0) => BodyReader::Done,
            BodyLength::Known(n) => BodyReader::Known(n),
            BodyLength::Streamed => BodyReader::Chunked(Box::default()),
            BodyLength::UntilClose => BodyReader::UntilClose,
        }
    }

    /// Returns a reader for a response body. Its trailers are parsed with the same tolerance as its head.
    pub fn of_response(length: BodyLength) -> BodyReader {
        match length {
            BodyLength::Streamed => BodyReader::Chunked(Box::new(ChunkedDecoder::of_response())),
            length => BodyReader::new(length),
        }
    }

    /// Returns true at the end of the message.
    pub fn is_done(&self) -> bool {
        matches!(self, BodyReader::Done)
    }

    /// Returns true if `input` has the rest of the message.
    pub fn completes_with(&self, input: &[u8]) -> bool {
        match self {
            BodyReader::Done => true,
            BodyReader::Known(left) => input.len() as u64 >= *left,
            BodyReader::Chunked(decoder) => decoder.completes_with(input),
            BodyReader::UntilClose => false,
        }
    }

    /// Returns the next frame in `input`, or `None` if it needs more bytes. Bytes after the message stay in `input`.
    /// After [`Frame::End`] or [`Frame::Trailers`] the reader is done.
    ///
    /// # Errors
    /// Returns an error, which is the broken rule; the connection cannot be used further.
    pub fn next(&mut self, input: &mut Chunk) -> Result<Option<Frame>, &'static str> {
        match self {
            BodyReader::Done => Ok(Some(Frame::End)),
            BodyReader::Known(_) | BodyReader::UntilClose if input.is_empty() => Ok(None),
            BodyReader::UntilClose => Ok(Some(Frame::Data(std::mem::take(input)))),
            BodyReader::Known(left) => {
                let data = input.split_to(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                if *left == 0 {
                    *self = BodyReader::Done;
                }
                Ok(Some(Frame::Data(data)))
            }
            BodyReader::Chunked(decoder) => {
                let frame = next_chunked(decoder, input)?;
                if matches!(frame, Some(Frame::End | Frame::Trailers(_))) {
                    *self = BodyReader::Done;
                }
                Ok(frame)
            }
        }
    }

    /// Handles the end of the stream, which is valid for a body until close and after the message.
    ///
    /// # Errors
    /// Returns an error if the message is truncated.
    pub fn end_of_stream(&mut self) -> Result<Frame, &'static str> {
        match self {
            BodyReader::Done | BodyReader::UntilClose => {
                *self = BodyReader::Done;
                Ok(Frame::End)
            }
            BodyReader::Known(_) => Err("the stream ended before the declared length"),
            BodyReader::Chunked(_) => Err("the stream ended before the last chunk"),
        }
    }
}

fn next_chunked(decoder: &mut ChunkedDecoder, input: &mut Chunk) -> Result<Option<Frame>, &'static str> {
    if !decoder.is_done() && !input.is_empty() {
        let decoded = decoder.decode(input)?;
        // Bytes after the message are rare (pipelining); they are split off.
        let mut data = if decoded.consumed == input.len() {
            std::mem::take(input)
        } else {
            input.split_to(decoded.consumed)
        };
        if decoded.payload > 0 {
            data.truncate(decoded.payload);
            return Ok(Some(Frame::Data(data)));
        }
    }
    if !decoder.is_done() {
        return Ok(None);
    }
    Ok(Some(decoder.take_trailers()?.map_or(Frame::End, Frame::Trailers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(length: BodyLength, wire: &[u8], body: &[u8], rest: &[u8]) {
        for step in [1, 3, wire.len().max(1)] {
            let (mut reader, mut input, mut got) = (BodyReader::new(length), Chunk::empty(), Vec::new());
            let mut pieces = wire.chunks(step);
            let mut left = loop {
                match reader.next(&mut input).expect("a valid body") {
                    Some(Frame::Data(data)) => got.extend_from_slice(&data),
                    Some(_) => break input.to_vec(),
                    None => match pieces.next() {
                        Some(piece) => input = Chunk::copy_of(&[&input[..], piece].concat()),
                        None => {
                            reader.end_of_stream().expect("a body that may end here");
                        }
                    },
                }
            };
            pieces.for_each(|piece| left.extend_from_slice(piece));
            assert_eq!((&got[..], &left[..]), (body, rest), "{length:?} in steps of {step}");
        }
    }

    #[test]
    fn bodies_end_before_the_next_message() {
        check(BodyLength::None, b"GET", b"", b"GET");
        check(BodyLength::Known(3), b"abcGET", b"abc", b"GET");
        check(BodyLength::UntilClose, b"abc", b"abc", b"");
        check(BodyLength::Streamed, b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\nGET", b"abc", b"GET");
    }

    #[test]
    fn input_completes_a_message() {
        let check = |length: BodyLength, wire: &[u8], until: usize| {
            for end in 0..=wire.len() {
                let reader = BodyReader::new(length);
                assert_eq!(reader.completes_with(&wire[..end]), end >= until, "{length:?} {end}");
            }
        };
        check(BodyLength::None, b"GET", 0);
        check(BodyLength::Known(3), b"abcGET", 3);
        check(BodyLength::UntilClose, b"abc", usize::MAX);
        check(BodyLength::Streamed, b"1\r\na\r\n0\r\n\r\nGET", 11);
        check(BodyLength::Streamed, b"0\r\nA: b\r\n\r\n", 11);
        // Broken rules are found by reading.
        check(BodyLength::Streamed, b"0\r\nA b\r\n\r\n", usize::MAX);
        check(BodyLength::Streamed, b"x", usize::MAX);
    }

    #[test]
    fn truncated_bodies_are_errors() {
        assert!(BodyReader::new(BodyLength::Known(1)).end_of_stream().is_err());
        assert!(BodyReader::new(BodyLength::Streamed).end_of_stream().is_err());
    }
}
