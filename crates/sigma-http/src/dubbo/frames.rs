//! Frames from a provider.

use super::{ANSWER_BYTES_MAX, HEADER_BYTES, MAGIC, flag, header, status};
use crate::Chunk;

/// The largest event: a null, or a letter.
const EVENT_BYTES_MAX: usize = 64;
/// The limit of events during one call. A provider checks its connections once a minute.
const EVENTS_MAX: u32 = 64;

/// A message of the provider.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// The response to the call
    Answer {
        /// Its Dubbo status.
        status: u8,
        /// Its values.
        body: Vec<u8>,
    },
    /// A heartbeat, which must be sent back
    Heartbeat(Vec<u8>),
    /// The provider takes no further calls on this connection
    Leaving,
}

/// Reads the response to one call from the bytes of its connection. Frames may be split in any way.
#[derive(Debug)]
pub struct Frames {
    id: u64,
    serialization: u8,
    /// The current frame.
    frame: Option<Header>,
    body: Vec<u8>,
    events: u32,
    is_over: bool,
}

#[derive(Debug, Clone, Copy)]
struct Header {
    flags: u8,
    status: u8,
    id: u64,
    length: usize,
}

impl Frames {
    pub(super) fn new(id: u64, serialization: u8) -> Frames {
        Frames { id, serialization, frame: None, body: Vec::new(), events: 0, is_over: false }
    }

    /// Returns the next piece in `input`, or `None` if it needs more bytes. No pieces follow the response.
    ///
    /// # Errors
    /// Returns an error, which is the broken rule; the connection cannot be used further.
    pub fn next(&mut self, input: &mut Chunk) -> Result<Option<Piece>, &'static str> {
        if self.is_over {
            return Err("the Dubbo provider sent data after its response");
        }
        let frame = match self.frame {
            Some(frame) => frame,
            None => {
                let there = input.len().min(MAGIC.len());
                if input[..there] != MAGIC[..there] {
                    return Err("not a Dubbo frame");
                }
                let Some((fields, _)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
                let frame = self.begin(fields)?;
                input.advance(HEADER_BYTES);
                *self.frame.insert(frame)
            }
        };
        let missing = frame.length - self.body.len();
        if missing > 0 {
            let taken = missing.min(input.len());
            self.body.extend_from_slice(&input[..taken]);
            input.advance(taken);
            if taken < missing {
                return Ok(None);
            }
        }
        self.frame = None;
        let body = std::mem::take(&mut self.body);
        if frame.flags & flag::EVENT == 0 {
            self.is_over = true;
            return Ok(Some(Piece::Answer { status: frame.status, body }));
        }
        if frame.flags & flag::TWO_WAY == 0 {
            return Ok(Some(Piece::Leaving));
        }
        // The same null in the same serialization.
        let flags = flag::EVENT | (frame.flags & flag::SERIALIZATION);
        let reply = [&header(flags, status::OK, frame.id, body.len())[..], &body].concat();
        Ok(Some(Piece::Heartbeat(reply)))
    }

    fn begin(&mut self, fields: &[u8; HEADER_BYTES]) -> Result<Header, &'static str> {
        let [_, _, flags, status, i0, i1, i2, i3, i4, i5, i6, i7, l0, l1, l2, l3] = *fields;
        let id = u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let is_event = flags & flag::EVENT != 0;
        match flags & flag::REQUEST != 0 {
            true if !is_event => return Err("the Dubbo provider sent a request"),
            true if length > EVENT_BYTES_MAX => return Err("a Dubbo event exceeds its limit"),
            true if self.events == EVENTS_MAX => return Err("too many Dubbo events during one call"),
            true => self.events += 1,
            false if is_event => return Err("a Dubbo response to an event that was not sent"),
            false if id != self.id => return Err("a Dubbo response to a call that was not made"),
            false if length > ANSWER_BYTES_MAX => return Err("a Dubbo response of more than 8 MiB"),
            false if status == status::OK && flags & flag::SERIALIZATION != self.serialization => {
                return Err("a Dubbo response in another serialization");
            }
            false => {}
        }
        Ok(Header { flags, status, id, length })
    }

    /// Returns true after the response.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(flags: u8, status: u8, id: u64, body: &[u8]) -> Vec<u8> {
        [&header(flags, status, id, body.len())[..], body].concat()
    }

    /// Reads all pieces of `wire` in steps.
    fn read(wire: &[u8], step: usize) -> Result<Vec<Piece>, &'static str> {
        let (mut frames, mut input) = (Frames::new(7, 2), Chunk::empty());
        let mut found = Vec::new();
        for piece in wire.chunks(step.max(1)) {
            input = Chunk::copy_of(&[&input[..], piece].concat());
            while let Some(piece) =
                if frames.is_over() && input.is_empty() { None } else { frames.next(&mut input)? }
            {
                found.push(piece);
            }
        }
        Ok(found)
    }

    #[test]
    fn answers_in_any_pieces() {
        let wire = [
            frame(0xe2, 0, 3, b"N"),
            frame(0xa2, 0, 4, b"R"),
            frame(0xe6, 0, 5, b"null\n"),
            frame(0xe2, 0, 6, b""),
            frame(0x02, 20, 7, b"hello"),
        ]
        .concat();
        let expected = vec![
            Piece::Heartbeat(frame(0x22, 20, 3, b"N")),
            Piece::Leaving,
            Piece::Heartbeat(frame(0x26, 20, 5, b"null\n")),
            Piece::Heartbeat(frame(0x22, 20, 6, b"")),
            Piece::Answer { status: 20, body: b"hello".to_vec() },
        ];
        for step in 1..=wire.len() {
            assert_eq!(read(&wire, step).as_ref(), Ok(&expected), "steps of {step}");
        }
    }

    #[test]
    fn frames_that_are_refused() {
        let check = |wire: &[u8], expected: &'static str| {
            for step in [1, 5, 100] {
                assert_eq!(read(wire, step), Err(expected), "{wire:?}");
            }
        };
        check(b"HTTP/1.1 200 OK", "not a Dubbo frame");
        check(b"\xda\xbc", "not a Dubbo frame");
        check(&frame(0x02, 20, 8, b"a"), "a Dubbo response to a call that was not made");
        check(&frame(0x06, 20, 7, b"a"), "a Dubbo response in another serialization");
        check(&frame(0xc2, 0, 7, b"a"), "the Dubbo provider sent a request");
        check(&frame(0x22, 20, 7, b"N"), "a Dubbo response to an event that was not sent");
        check(&frame(0xe2, 0, 7, &[b'N'; 65]), "a Dubbo event exceeds its limit");
        check(&header(0x02, 20, 7, ANSWER_BYTES_MAX + 1), "a Dubbo response of more than 8 MiB");
        check(&frame(0xe2, 0, 1, b"N").repeat(65), "too many Dubbo events during one call");
        let twice = frame(0x02, 20, 7, b"a").repeat(2);
        check(&twice, "the Dubbo provider sent data after its response");
        assert_eq!(read(&frame(0x02, 20, 7, b"abc")[..18], 4), Ok(Vec::new()));
        let failed = Piece::Answer { status: 70, body: b"oh".to_vec() };
        assert_eq!(read(&frame(0x06, 70, 7, b"oh"), 3), Ok(vec![failed]));
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(
            mut wire in proptest::collection::vec(any::<u8>(), 0..200),
            starts_right: bool,
            step in 1..50usize,
        ) {
            if starts_right {
                wire.splice(..wire.len().min(15), header(0x02, 20, 7, wire.len() / 2));
            }
            let _ = read(&wire, step);
        }
    }
}
