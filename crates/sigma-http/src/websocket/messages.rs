//! Messages of a WebSocket (RFC 6455 §5) for an endpoint: messages of a client, and frames of a server.

use std::str::from_utf8;

use super::{CLOSE, CONTROL, CONTROL_BYTES, FINAL, MASKED, head_bytes, is_shortest};

const RESERVED: u8 = 0x70;
const CONTINUES: u8 = 0x00;
const TEXT: u8 = 0x01;
const BINARY: u8 = 0x02;
const PING: u8 = 0x09;
const PONG: u8 = 0x0a;

/// The longest head of a client's frame, with its mask.
const MASKED_HEAD_BYTES: usize = 14;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8
    Text,
    /// Any bytes
    Binary,
}

/// A complete message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebsocketMessage {
    /// A message; text is valid UTF-8
    Message(Kind, Vec<u8>),
    /// A ping, which wants this payload in a [`pong`]
    Ping(Vec<u8>),
    /// A pong, requested or not
    Pong(Vec<u8>),
    /// A close frame, with the code if it has one. No message follows.
    Close(Option<u16>),
}

/// The reason why a client is not read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The frames are invalid for a client
    Protocol,
    /// Text that is not UTF-8
    Text,
    /// A message over the limit
    TooLong,
}

impl Violation {
    /// Returns the code of the close frame that reports it (RFC 6455 §7.4.1).
    pub fn code(self) -> u16 {
        match self {
            Violation::Protocol => 1002,
            Violation::Text => 1007,
            Violation::TooLong => 1009,
        }
    }
}

/// The current frame.
#[derive(Debug)]
struct Frame {
    opcode: u8,
    is_final: bool,
    left: u64,
    mask: [u8; 4],
    /// The bytes of the payload so far, which determine the mask position.
    come: usize,
}

/// Reads messages of a client, in any pieces. It holds at most one message and one control frame.
#[derive(Debug)]
pub struct Reader {
    /// The limit of a message in bytes, over all its frames.
    limit: usize,
    head: [u8; MASKED_HEAD_BYTES],
    have: usize,
    frame: Option<Frame>,
    /// The current message.
    message: Option<(Kind, Vec<u8>)>,
    control: Vec<u8>,
}

impl Reader {
    /// Returns a reader for messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Reader {
        let head = [0; MASKED_HEAD_BYTES];
        Reader { limit, head, have: 0, frame: None, message: None, control: Vec::new() }
    }

    /// Reads `bytes` up to the end of a message; returns the number of bytes read, and the message if it is complete.
    /// Without a complete message it reads all bytes.
    ///
    /// # Errors
    /// Returns an error if the client breaks the protocol. Read no further bytes after it.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Option<WebsocketMessage>), Violation> {
        let mut taken = 0;
        loop {
            if self.frame.is_none() {
                taken += self.read_head(&bytes[taken..])?;
            }
            let Some(frame) = &mut self.frame else { return Ok((taken, None)) };
            let rest = &bytes[taken..];
            let here = usize::try_from(frame.left).map_or(rest.len(), |left| left.min(rest.len()));
            let into = match (&mut self.message, frame.opcode & CONTROL) {
                (Some((_, message)), 0) => message,
                _ => &mut self.control,
            };
            let mask = frame.mask.iter().cycle().skip(frame.come % 4);
            into.extend(rest[..here].iter().zip(mask).map(|(byte, key)| byte ^ key));
            (frame.left, frame.come, taken) = (frame.left - here as u64, frame.come + here, taken + here);
            if frame.left > 0 {
                return Ok((taken, None));
            }
            if let Some(said) = self.end_frame()? {
                return Ok((taken, Some(said)));
            }
        }
    }

    /// Reads bytes of a head; the frame begins with its last byte.
    fn read_head(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let mut taken = 0;
        for byte in bytes {
            self.head[self.have] = *byte;
            (self.have, taken) = (self.have + 1, taken + 1);
            let [first, second, ..] = self.head;
            if self.have == 2 && second & MASKED == 0 {
                return Err(Violation::Protocol);
            }
            let length = [0, second, 0, 0, 0, 0, 0, 0, 0, 0];
            let bare = head_bytes(&length);
            if self.have >= 2 && self.have == bare + 4 {
                let left = match bare {
                    2 => u64::from(second & !MASKED),
                    _ => self.head[2..bare].iter().fold(0, |n, byte| n << 8 | u64::from(*byte)),
                };
                if !is_shortest(bare, left) {
                    return Err(Violation::Protocol);
                }
                let [.., a, b, c, d] = self.head[..self.have] else { return Err(Violation::Protocol) };
                self.have = 0;
                self.begin_frame(first, left, [a, b, c, d])?;
                break;
            }
        }
        Ok(taken)
    }

    fn begin_frame(&mut self, first: u8, left: u64, mask: [u8; 4]) -> Result<(), Violation> {
        let (opcode, is_final) = (first & 0x0f, first & FINAL != 0);
        if first & RESERVED != 0 || left >> 63 != 0 {
            return Err(Violation::Protocol);
        }
        match (opcode, self.message.is_some()) {
            (TEXT, false) => self.message = Some((Kind::Text, Vec::new())),
            (BINARY, false) => self.message = Some((Kind::Binary, Vec::new())),
            (CONTINUES, true) => {}
            (CLOSE | PING | PONG, _) if is_final && left <= CONTROL_BYTES => {}
            _ => return Err(Violation::Protocol),
        }
        if opcode & CONTROL == 0 {
            let held = self.message.as_ref().map_or(0, |(_, message)| message.len());
            if left > (self.limit - held) as u64 {
                return Err(Violation::TooLong);
            }
        }
        self.frame = Some(Frame { opcode, is_final, left, mask, come: 0 });
        Ok(())
    }

    /// Ends a frame; returns the message that it completes.
    fn end_frame(&mut self) -> Result<Option<WebsocketMessage>, Violation> {
        let Some(Frame { opcode, is_final, .. }) = self.frame.take() else { return Ok(None) };
        if opcode & CONTROL != 0 {
            let payload = std::mem::take(&mut self.control);
            return match opcode {
                PING => Ok(Some(WebsocketMessage::Ping(payload))),
                PONG => Ok(Some(WebsocketMessage::Pong(payload))),
                _ => close_code(&payload).map(|code| Some(WebsocketMessage::Close(code))),
            };
        }
        if !is_final {
            return Ok(None);
        }
        match self.message.take() {
            Some((Kind::Text, text)) if from_utf8(&text).is_err() => Err(Violation::Text),
            message => Ok(message.map(|(kind, bytes)| WebsocketMessage::Message(kind, bytes))),
        }
    }
}

/// Parses the code in a close frame (RFC 6455 §5.5.1, §7.4).
fn close_code(payload: &[u8]) -> Result<Option<u16>, Violation> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
        _ => return Err(Violation::Protocol),
    };
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Violation::Protocol);
    }
    if from_utf8(reason).is_err() {
        return Err(Violation::Text);
    }
    Ok(Some(code))
}

/// Returns a message of the server, in one frame.
pub fn message(kind: Kind, payload: &[u8]) -> Vec<u8> {
    frame(if kind == Kind::Text { TEXT } else { BINARY }, payload)
}

/// Returns a ping of the server; a long payload is cut.
pub fn ping(payload: &[u8]) -> Vec<u8> {
    control(PING, payload)
}

/// Returns the response to a ping.
pub fn pong(payload: &[u8]) -> Vec<u8> {
    control(PONG, payload)
}

/// Returns a close frame of the server with `code` and a reason; a long reason is cut between two characters.
pub fn close(code: u16, reason: &str) -> Vec<u8> {
    let mut fits = reason.len().min(CONTROL_BYTES as usize - 2);
    while !reason.is_char_boundary(fits) {
        fits -= 1;
    }
    control(CLOSE, &[&code.to_be_bytes()[..], &reason.as_bytes()[..fits]].concat())
}

fn control(opcode: u8, payload: &[u8]) -> Vec<u8> {
    frame(opcode, &payload[..payload.len().min(CONTROL_BYTES as usize)])
}

fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(10 + payload.len());
    out.push(FINAL | opcode);
    match payload.len() {
        length @ 0..126 => out.push(length as u8),
        length @ 126..65_536 => {
            out.push(126);
            out.extend((length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

    /// Returns a client's frame with `first` as its first byte.
    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let bare = frame(first & 0x0f, payload);
        let head = bare.len() - payload.len();
        let mut out = vec![first, bare[1] | MASKED];
        out.extend(&bare[2..head]);
        out.extend(MASK);
        out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, key)| byte ^ key));
        out
    }

    /// Reads all messages, in pieces of `cut` bytes.
    fn all(limit: usize, bytes: &[u8], cut: usize) -> (Vec<WebsocketMessage>, Option<Violation>) {
        let (mut reader, mut said) = (Reader::new(limit), Vec::new());
        for mut piece in bytes.chunks(cut) {
            while !piece.is_empty() {
                match reader.read(piece) {
                    Ok((taken, next)) => {
                        assert!(taken == piece.len() || next.is_some());
                        piece = &piece[taken..];
                        said.extend(next);
                    }
                    Err(violation) => return (said, Some(violation)),
                }
            }
        }
        (said, None)
    }

    #[track_caller]
    fn check(bytes: &[u8], expected: &[WebsocketMessage], violation: Option<Violation>) {
        for cut in [1, 2, 3, 7, 1000] {
            assert_eq!(all(10, bytes, cut), (expected.to_vec(), violation), "cut at {cut}");
        }
    }

    fn text(text: &str) -> WebsocketMessage {
        WebsocketMessage::Message(Kind::Text, text.into())
    }

    #[test]
    fn messages_are_read_whole() {
        check(&masked(0x81, b"hi"), &[text("hi")], None);
        check(&masked(0x81, b""), &[text("")], None);
        check(&masked(0x82, &[0xff, 0]), &[WebsocketMessage::Message(Kind::Binary, vec![0xff, 0])], None);
        // In three frames, with a ping between them.
        let parts = [masked(0x01, b"a"), masked(0x89, b"?"), masked(0x00, b""), masked(0x80, b"b")].concat();
        check(&parts, &[WebsocketMessage::Ping(b"?".to_vec()), text("ab")], None);
        let two = [masked(0x81, b"1"), masked(0x8a, b""), masked(0x81, b"2")].concat();
        check(&two, &[text("1"), WebsocketMessage::Pong(Vec::new()), text("2")], None);
    }

    #[test]
    fn close_frames_have_a_code_or_none() {
        check(&masked(0x88, b""), &[WebsocketMessage::Close(None)], None);
        check(&masked(0x88, b"\x03\xe8bye"), &[WebsocketMessage::Close(Some(1000))], None);
        check(&masked(0x88, &4999_u16.to_be_bytes()), &[WebsocketMessage::Close(Some(4999))], None);
        for code in [999_u16, 1004, 1005, 1006, 1015, 2999, 5000] {
            check(&masked(0x88, &code.to_be_bytes()), &[], Some(Violation::Protocol));
        }
        check(&masked(0x88, b"\x03"), &[], Some(Violation::Protocol));
        check(&masked(0x88, b"\x03\xe8\xff"), &[], Some(Violation::Text));
    }

    #[test]
    fn violations_are_reported() {
        let protocol = Some(Violation::Protocol);
        // A missing mask, bits of unused extensions, unknown opcodes.
        check(b"\x81\x01a", &[], protocol);
        for first in [0xc1, 0xa1, 0x91, 0x83, 0x8b] {
            check(&masked(first, b""), &[], protocol);
        }
        // Control frames in pieces or too long; a message within another, and a continuation without a start.
        check(&masked(0x09, b""), &[], protocol);
        check(&masked(0x89, &[b'a'; 126]), &[], protocol);
        check(&[masked(0x01, b"a"), masked(0x81, b"b")].concat(), &[], protocol);
        check(&masked(0x80, b"a"), &[], protocol);
        check(&[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], &[], protocol);
        // Lengths that are not encoded in the fewest bytes.
        check(&[0x82, 0xfe, 0, 125, 1, 2, 3, 4], &[], protocol);
        check(&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4], &[], protocol);
        check(&[0x81, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, b'a'], &[], protocol);
        check(&masked(0x81, b"\xff"), &[], Some(Violation::Text));
        check(&[masked(0x01, b"\xe2\x82"), masked(0x80, b"\xac")].concat(), &[text("€")], None);
    }

    #[test]
    fn messages_have_a_limit() {
        let too_long = Some(Violation::TooLong);
        check(&masked(0x82, &[1; 10]), &[WebsocketMessage::Message(Kind::Binary, vec![1; 10])], None);
        check(&masked(0x82, &[1; 11]), &[], too_long);
        // No memory is reserved for an announced length.
        check(&[0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4], &[], too_long);
        check(&[masked(0x02, &[1; 6]), masked(0x80, &[1; 5])].concat(), &[], too_long);
        check(
            &[masked(0x02, &[1; 6]), masked(0x80, &[1; 4])].concat(),
            &[WebsocketMessage::Message(Kind::Binary, vec![1; 10])],
            None,
        );
    }

    #[test]
    fn frames_of_the_server() {
        assert_eq!(message(Kind::Text, b"hi"), b"\x81\x02hi");
        assert_eq!(message(Kind::Binary, &[7; 126])[..4], [0x82, 126, 0, 126]);
        assert_eq!(message(Kind::Binary, &[7; 65_536])[..10], [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(pong(b"x"), b"\x8a\x01x");
        assert_eq!(ping(&[1; 200]).len(), 2 + 125);
        assert_eq!(close(1001, "bye"), b"\x88\x05\x03\xe9bye");
        let long = close(1000, &"€".repeat(60));
        assert_eq!(long.len(), 2 + 2 + 123);
        assert_eq!(close(1000, &format!("a{}", "€".repeat(60))).len(), 2 + 2 + 121);
    }

    proptest! {
        /// The pieces make no difference, and memory stays within the limit.
        #[test]
        fn cuts_make_no_difference(
            frames in prop::collection::vec(
                (prop::sample::select(vec![0x01, 0x00, 0x80, 0x81, 0x82, 0x88, 0x89, 0x8a]), 0usize..200),
                0..8,
            ),
            noise in prop::collection::vec(any::<u8>(), 0..40),
            cut in 1usize..50,
        ) {
            let mut bytes: Vec<u8> =
                frames.into_iter().flat_map(|(first, length)| masked(first, &vec![b'a'; length])).collect();
            bytes.extend(noise);
            prop_assert_eq!(all(300, &bytes, cut), all(300, &bytes, bytes.len().max(1)));
        }
    }
}
