//! Frames of a WebSocket (RFC 6455 §5) for a forwarder: the end of each frame, and whether a side has closed. An
//! endpoint uses [`messages`].

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod messages;

/// The endpoint goes away (RFC 6455 §7.4.1).
pub const GOING_AWAY: u16 = 1001;

/// The longest part of a frame head before the mask.
const HEAD_BYTES: usize = 10;

/// The size of a mask.
const MASK_BYTES: u64 = 4;

/// The longest payload of a control frame.
const CONTROL_BYTES: u64 = 125;

const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
const CONTROL: u8 = 0x08;
const CLOSE: u8 = 0x08;

/// The side that sends the frames of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// Its frames are masked
    Client,
    /// Its frames are not masked
    Server,
}

/// The position in the frames of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramePosition {
    /// In a head with this many bytes so far; between two frames for 0.
    Head([u8; HEAD_BYTES], u8),
    /// This many bytes before the end of a frame.
    Payload(u64),
    /// The bytes are not frames; the position is unknown from here on.
    Lost,
}

/// Follows the frames of one direction, in any pieces. It reads their heads and counts their payloads.
#[derive(Debug)]
pub struct Follower {
    sender: Sender,
    place: FramePosition,
    /// The current or last frame is a close frame.
    closing: bool,
}

const BETWEEN: FramePosition = FramePosition::Head([0; HEAD_BYTES], 0);

impl Follower {
    /// Returns a follower at the first frame of `sender`.
    pub fn new(sender: Sender) -> Follower {
        Follower { sender, place: BETWEEN, closing: false }
    }

    /// Returns true if the gateway may insert a frame here.
    pub fn is_between(&self) -> bool {
        self.place == BETWEEN
    }

    /// Returns true if the bytes are not frames.
    pub fn is_lost(&self) -> bool {
        self.place == FramePosition::Lost
    }

    /// Returns true after a complete close frame of the sender. No frame follows it.
    pub fn is_closed(&self) -> bool {
        self.closing && self.is_between()
    }

    /// Follows `bytes`.
    pub fn pass(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.pass_frame(rest)..];
        }
    }

    /// Follows the bytes of one frame in `bytes`, the current or the next one. Returns their number: all bytes,
    /// unless the frame ends before.
    pub fn pass_frame(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        loop {
            match &mut self.place {
                FramePosition::Lost => return bytes.len(),
                FramePosition::Payload(left) => {
                    let here = (*left).min((bytes.len() - passed) as u64);
                    *left -= here;
                    // At most the length of a slice.
                    passed += here as usize;
                    if *left == 0 {
                        self.place = BETWEEN;
                    }
                    return passed;
                }
                FramePosition::Head(head, have) => {
                    let Some(byte) = bytes.get(passed) else { return passed };
                    head[usize::from(*have)] = *byte;
                    (*have, passed) = (*have + 1, passed + 1);
                    let (head, have) = (*head, usize::from(*have));
                    if have >= head_bytes(&head) {
                        self.enter(&head[..have]);
                        if self.is_between() {
                            return passed;
                        }
                    }
                }
            }
        }
    }

    /// Handles a complete head.
    fn enter(&mut self, head: &[u8]) {
        let (kind, opcode) = (head[0], head[0] & 0x0f);
        let length = match head.len() {
            2 => u64::from(head[1] & !MASKED),
            _ => head[2..].iter().fold(0, |n, byte| n << 8 | u64::from(*byte)),
        };
        let masked = head[1] & MASKED != 0;
        let is_control = opcode & CONTROL != 0;
        let is_known = matches!(opcode, 0..=2 | 8..=10);
        let breaks_control = is_control && (kind & FINAL == 0 || length > CONTROL_BYTES);
        let breaks_length = length >> 63 != 0 || !is_shortest(head.len(), length);
        if !is_known || breaks_control || masked != (self.sender == Sender::Client) || breaks_length {
            self.place = FramePosition::Lost;
            return;
        }
        self.closing = opcode == CLOSE;
        let left = if masked { length + MASK_BYTES } else { length };
        self.place = if left == 0 { BETWEEN } else { FramePosition::Payload(left) };
    }
}

/// Returns the size of a head up to its mask; at least 2, the bytes that determine it.
fn head_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    match head[1] & !MASKED {
        126 => 4,
        127 => 10,
        _ => 2,
    }
}

/// Returns true if a length is encoded in the fewest bytes (RFC 6455 §5.2). `head` is the size of the frame's head up
/// to its mask.
fn is_shortest(head: usize, length: u64) -> bool {
    match head {
        2 => true,
        4 => length >= 126,
        _ => length > u64::from(u16::MAX),
    }
}

/// Returns a close frame with `code`; a client's frame is masked with an unpredictable key.
pub fn close_frame(code: u16, mask: Option<[u8; 4]>) -> Vec<u8> {
    let [high, low] = code.to_be_bytes();
    match mask {
        None => vec![FINAL | CLOSE, 2, high, low],
        Some(key) => {
            let [a, b, c, d] = key;
            vec![FINAL | CLOSE, MASKED | 2, a, b, c, d, high ^ a, low ^ b]
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SENDERS: [Sender; 2] = [Sender::Client, Sender::Server];

    /// Returns a frame of `sender` with a payload of `length`.
    fn frame(sender: Sender, first: u8, length: usize) -> Vec<u8> {
        let masked = if sender == Sender::Client { MASKED } else { 0 };
        let mut frame = vec![first];
        match length {
            0..126 => frame.push(masked | length as u8),
            126..65_536 => {
                frame.push(masked | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(masked | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        if sender == Sender::Client {
            frame.extend([0x81, 0x88, 0xff, 0]);
        }
        // A payload is ignored, even if it looks like a frame.
        frame.extend([0x88, 0x02, 0x03].iter().cycle().take(length));
        frame
    }

    #[test]
    fn a_close_frame_is_recognized() {
        assert_eq!(close_frame(GOING_AWAY, None), [0x88, 0x02, 0x03, 0xe9]);
        let masked = close_frame(GOING_AWAY, Some([1, 2, 3, 4]));
        assert_eq!(masked, [0x88, 0x82, 1, 2, 3, 4, 0x03 ^ 1, 0xe9 ^ 2]);
        for (sender, bytes) in SENDERS.into_iter().zip([masked, close_frame(GOING_AWAY, None)]) {
            let mut follower = Follower::new(sender);
            follower.pass(&bytes[..3]);
            assert!(!follower.is_closed() && !follower.is_between());
            follower.pass(&bytes[3..]);
            assert!(follower.is_closed() && follower.is_between());
        }
    }

    #[test]
    fn invalid_frames_end_the_tracking() {
        let check = |sender: Sender, bytes: &[u8]| {
            let mut follower = Follower::new(sender);
            follower.pass(bytes);
            assert!(follower.is_lost() && !follower.is_between() && !follower.is_closed(), "{bytes:x?}");
            assert_eq!(follower.pass_frame(b"more"), 4);
        };
        // Unknown opcodes, control frames in pieces or too long, unexpected masks.
        check(Sender::Server, &[0x83, 0x00]);
        check(Sender::Server, &[0x8b, 0x00]);
        check(Sender::Server, &[0x08, 0x00]);
        check(Sender::Server, &[0x89, 126, 0, 126]);
        check(Sender::Server, &[0x81, 0x80]);
        check(Sender::Client, &[0x81, 0x00]);
        check(Sender::Server, &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        check(Sender::Server, b"HTTP/1.1 400");
        // Lengths that are not encoded in the fewest bytes.
        check(Sender::Server, &[0x82, 126, 0, 125]);
        check(Sender::Client, &[0x82, MASKED | 126, 0, 0]);
        check(Sender::Server, &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        check(Sender::Client, &[0x82, MASKED | 127, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    proptest! {
        /// The ends of frames do not depend on the pieces.
        #[test]
        fn ends_are_found_in_pieces_of_any_cut(
            client in any::<bool>(),
            frames in prop::collection::vec(
                (prop::sample::select(vec![0x01, 0x00, 0x80, 0x81, 0x82, 0xc1, 0x89, 0x8a]), 0usize..70_000),
                1..6,
            ),
            cuts in prop::collection::vec(1usize..40_000, 1..40),
            closes in any::<bool>(),
        ) {
            let sender = if client { Sender::Client } else { Sender::Server };
            let (mut bytes, mut ends) = (Vec::new(), Vec::new());
            let last = closes.then_some((0x88, 2));
            for (first, length) in frames.into_iter().chain(last) {
                let length = if first & CONTROL == 0 { length } else { length % 126 };
                bytes.extend(frame(sender, first, length));
                ends.push(bytes.len());
            }
            let (mut follower, mut at, mut found) = (Follower::new(sender), 0, Vec::new());
            for cut in cuts.into_iter().cycle() {
                let mut piece = &bytes[at..bytes.len().min(at + cut)];
                while !piece.is_empty() {
                    let passed = follower.pass_frame(piece);
                    prop_assert!(passed > 0);
                    (at, piece) = (at + passed, &piece[passed..]);
                    if follower.is_between() {
                        found.push(at);
                    }
                }
                if at == bytes.len() {
                    break;
                }
            }
            prop_assert_eq!(&found, &ends);
            prop_assert_eq!(follower.is_closed(), closes);
        }

        /// Any bytes of a peer are accepted, and the pieces make no difference.
        #[test]
        fn any_bytes_pass(
            client in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            cut in 1usize..50,
        ) {
            let sender = if client { Sender::Client } else { Sender::Server };
            let (mut whole, mut cut_up) = (Follower::new(sender), Follower::new(sender));
            whole.pass(&bytes);
            bytes.chunks(cut).for_each(|piece| cut_up.pass(piece));
            prop_assert_eq!(whole.place, cut_up.place);
            prop_assert_eq!(whole.closing, cut_up.closing);
        }
    }
}
