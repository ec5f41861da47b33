//! A look at the frames of an HTTP/2 stream of bytes, without decoding them.
//!
//! The codec answers every frame of a flood faithfully; whoever counts them must see them first.

/// The preface that a client begins with (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const DATA: u8 = 0;
const END_HEADERS: u8 = 4;

/// The class of a frame, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameClass {
    /// Begins a head, interim ones and trailers included.
    Head,
    /// Carries another part of a message.
    Message,
    /// Takes a stream back.
    Reset,
    /// All else: settings, pings, windows, priorities, unknown ones.
    Control,
}

/// Follows the frame boundaries in the bytes that a peer sends.
#[derive(Debug, Clone, Default)]
pub struct FrameScanner {
    head: [u8; HEAD_BYTES],
    /// Bytes of `head` that have come.
    filled: usize,
    /// Bytes to pass over: the rest of a payload, or the preface.
    skip: usize,
    /// Within the field block of a head that has begun and not ended.
    block_open: bool,
    /// The frame whose payload is passed over ends its field block.
    block_ends: bool,
}

impl FrameScanner {
    /// A scanner of what a client sends, from its preface on.
    pub fn of_client() -> FrameScanner {
        FrameScanner { skip: PREFACE.len(), ..FrameScanner::default() }
    }

    /// Whether a head has begun that is not complete.
    pub fn is_head_open(&self) -> bool {
        self.block_open
    }

    /// Passes over `bytes`; tells of each frame when its nine-byte head is complete.
    pub fn feed(&mut self, mut bytes: &[u8], mut on_frame: impl FnMut(FrameClass)) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let n = self.skip.min(bytes.len());
                self.skip -= n;
                bytes = &bytes[n..];
                self.end_of_payload();
                continue;
            }
            let n = (HEAD_BYTES - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
            if self.filled == HEAD_BYTES {
                self.filled = 0;
                on_frame(self.begin_frame());
                self.end_of_payload();
            }
        }
    }

    fn begin_frame(&mut self) -> FrameClass {
        let [a, b, c, kind, flags, ..] = self.head;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block_open = true;
            self.block_ends = flags & END_HEADERS != 0;
        }
        match kind {
            HEADERS => FrameClass::Head,
            DATA | CONTINUATION => FrameClass::Message,
            RST_STREAM => FrameClass::Reset,
            _ => FrameClass::Control,
        }
    }

    fn end_of_payload(&mut self) {
        if self.skip == 0 && self.block_ends {
            self.block_open = false;
            self.block_ends = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, len: usize) -> Vec<u8> {
        let mut out = vec![0, 0, len as u8, kind, flags, 0, 0, 0, 1];
        out.extend(vec![b'x'; len]);
        out
    }

    #[test]
    fn classes_whatever_the_step() {
        use FrameClass::{Control, Head, Message, Reset};
        let mut wire = PREFACE.to_vec();
        for (kind, flags, len) in [(4, 0, 0), (1, 0, 5), (9, 4, 7), (0, 0, 200), (3, 0, 4), (6, 0, 8)] {
            wire.extend(frame(kind, flags, len));
        }
        for step in [1, 2, 7, 9, 1000] {
            let (mut scanner, mut seen) = (FrameScanner::of_client(), Vec::new());
            for piece in wire.chunks(step) {
                scanner.feed(piece, |class| seen.push(class));
            }
            assert_eq!(seen, [Control, Head, Message, Message, Reset, Control], "steps of {step}");
            assert!(!scanner.is_head_open());
        }
    }

    #[test]
    fn a_head_is_open_until_its_last_byte() {
        let mut scanner = FrameScanner::default();
        let mut feed = |bytes: &[u8]| {
            scanner.feed(bytes, |_| {});
            scanner.is_head_open()
        };
        assert!(feed(&frame(1, 0, 3)), "more fields follow");
        let last = frame(9, 4, 3);
        assert!(feed(&last[..11]));
        assert!(!feed(&last[11..]));
        assert!(!feed(&frame(1, 4, 0)));
    }
}
