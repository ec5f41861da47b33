//! Conversations of a client, made of choices: mostly valid, so that deep states are reached.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sigma_http::HeaderId;
use sigma_http::h2::hpack::Encoder;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const WITH_PRIORITY: u8 = 0x20;

/// The limit of all bodies in bytes if they are read at once: both codecs announce a window when half of it is used.
const READ_AT_ONCE_BYTES: usize = 30_000;

/// A step of a conversation.
#[derive(Debug)]
pub(crate) enum Step {
    /// The client sends a frame
    Send(Vec<u8>),
    /// The server sends the whole response to a request
    Answer(u32),
}

/// The actions of both sides.
pub(crate) struct Conversation {
    pub(crate) steps: Vec<Step>,
    /// The window of each stream, and the client's limit of streams.
    pub(crate) stream_window: u32,
    pub(crate) streams: u32,
    /// Bodies are read as they arrive, or at the end.
    pub(crate) reads_at_once: bool,
    /// Bytes that arrive at a time.
    pub(crate) piece: usize,
    /// Streams whose head or end each codec may treat in its own way.
    taste: BTreeSet<u32>,
    /// Streams with an invalid head.
    refused: BTreeSet<u32>,
    /// The step in which the client ended a stream, or reset it.
    ended: BTreeMap<u32, usize>,
}

/// A head: its fields, and whether both codecs must agree on it.
type Head = (&'static [(&'static str, &'static str)], bool);

/// More streams than a conversation has.
const MANY: u32 = 1_000;

/// The number of valid [`HEADS`].
const RIGHT: usize = 8;

/// Heads that both accept, or both reject, and heads that one may reject.
const HEADS: &[Head] = &[
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")], true),
    (
        &[
            (":method", "POST"),
            (":scheme", "https"),
            (":path", "/a?b=c"),
            (":authority", "h:81"),
            ("x-a", "1"),
            ("x-a", "2"),
        ],
        true,
    ),
    (
        &[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/l"),
            (":authority", "h"),
            ("content-length", "10"),
        ],
        true,
    ),
    (
        &[
            (":method", "PUT"),
            (":scheme", "http"),
            (":path", "/z"),
            (":authority", "h"),
            ("content-length", "0"),
        ],
        true,
    ),
    (
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/c"),
            (":authority", "h"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("te", "trailers"),
        ],
        true,
    ),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/h"), ("host", "only.host")], true),
    (&[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), (":authority", "h")], true),
    (
        &[
            (":method", "CONNECT"),
            (":scheme", "http"),
            (":path", "/ws"),
            (":authority", "h"),
            (":protocol", "websocket"),
        ],
        true,
    ),
    // Malformed (RFC 9113 §8.1.1).
    (&[(":method", "GET"), (":scheme", "http"), (":authority", "h")], true),
    (&[(":scheme", "http"), (":path", "/"), (":authority", "h")], true),
    (&[(":method", "GET"), (":path", "/"), (":authority", "h")], true),
    (
        &[(":method", "GET"), (":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")],
        true,
    ),
    (
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), (":status", "200")],
        true,
    ),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), (":what", "x")], true),
    (&[(":method", "GET"), (":scheme", "http"), ("x-a", "1"), (":path", "/"), (":authority", "h")], true),
    (
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "h"),
            ("connection", "close"),
        ],
        true,
    ),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("te", "gzip")], true),
    (
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "h"),
            ("transfer-encoding", "chunked"),
        ],
        true,
    ),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("x-a", "a\nb")], true),
    (
        &[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "h"),
            ("content-length", "x"),
        ],
        true,
    ),
    // One codec is stricter, or responds to a request that the other resets.
    (&[(":method", "CONNECT"), (":authority", "h:443")], false),
    (&[(":method", "GET"), (":scheme", "http"), (":path", ""), (":authority", "h")], false),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "x"), (":authority", "h")], false),
    (
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("host", "other")],
        false,
    ),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/")], false),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a b")], false),
    (&[(":method", "G T"), (":scheme", "http"), (":path", "/"), (":authority", "h")], false),
    (
        &[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "h"),
            ("content-length", "1"),
            ("content-length", "1"),
        ],
        false,
    ),
    (
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("upgrade", "x")],
        false,
    ),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("x-b", " a ")], false),
];

/// The number of valid [`TRAILERS`].
const RIGHT_TRAILERS: usize = 2;

const TRAILERS: &[Head] = &[
    (&[("grpc-status", "0")], true),
    (&[("x-t", "1"), ("x-u", "2"), ("x-t", "3")], true),
    (&[(":path", "/")], false),
    (&[("connection", "close")], false),
    (&[], false),
];

/// The choices, one after the other; then zeros.
struct Choices<'c>(&'c [u8]);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.next()) % end
    }

    fn flag(&mut self, one_in: u8) -> bool {
        self.next() % one_in == one_in - 1
    }
}

/// Makes the steps.
struct Speaker<'c> {
    choices: Choices<'c>,
    encoder: Encoder,
    conversation: Conversation,
    /// The last stream.
    last: u32,
    body_bytes: usize,
}

impl Conversation {
    pub(crate) fn new(choices: &[u8]) -> Conversation {
        let mut choices = Choices(choices);
        let mode = choices.next();
        let reads_at_once = mode & 1 == 0;
        let conversation = Conversation {
            steps: Vec::new(),
            stream_window: if reads_at_once { 65_535 } else { 1_000 },
            streams: if mode & 2 == 0 { MANY } else { 3 },
            reads_at_once,
            piece: [100_000, 1, 10, 1_000][usize::from(mode >> 2) % 4],
            taste: BTreeSet::new(),
            refused: BTreeSet::new(),
            ended: BTreeMap::new(),
        };
        let mut speaker =
            Speaker { choices, encoder: Encoder::new(4096), conversation, last: 0, body_bytes: 0 };
        speaker.conversation.steps.push(Step::Send(PREFACE.to_vec()));
        speaker.send(SETTINGS, 0, 0, &[]);
        if mode & 0x80 == 0 {
            speaker.send(SETTINGS, ACK, 0, &[]);
        }
        while !speaker.choices.0.is_empty() {
            speaker.say();
        }
        speaker.conversation
    }

    /// Returns true if the codecs may differ about a stream.
    pub(crate) fn is_matter_of_taste(&self, stream: u32) -> bool {
        self.taste.contains(&stream)
    }

    /// Returns true if the stream's head is malformed, or may be treated as malformed.
    pub(crate) fn is_refused(&self, stream: u32) -> bool {
        self.refused.contains(&stream)
    }

    /// Returns true if the client had ended the stream before the step.
    pub(crate) fn is_ended(&self, stream: u32, step: usize) -> bool {
        self.ended.get(&stream).is_some_and(|end| *end < step)
    }
}

impl Speaker<'_> {
    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let ends = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        if ends || kind == RST_STREAM {
            self.conversation.ended.entry(stream).or_insert(self.conversation.steps.len());
        }
        self.conversation.steps.push(Step::Send(frame(kind, flags, stream, payload)));
    }

    /// Returns a stream, mostly one of the last.
    fn stream(&mut self) -> u32 {
        let back = 2 * self.choices.below(4) as u32;
        let special = self.choices.next();
        match special {
            255 => 0,
            254 => self.last + 2,
            253 => 2,
            252 => 1,
            _ => self.last.saturating_sub(back).max(1),
        }
    }

    fn say(&mut self) {
        match self.choices.below(32) {
            0..8 => self.request(),
            8..16 => self.data(),
            16..19 => self.trailers(),
            19 | 20 => self.reset(),
            21 | 22 => self.window(),
            23 => self.settings(),
            24 => self.ping(),
            25 => self.priority(),
            26..29 => {
                let stream = self.stream();
                self.conversation.steps.push(Step::Answer(stream));
            }
            29 => {
                // Unknown types, and priorities of RFC 9218, which both may ignore.
                let (kind, flags, stream) = (self.choices.next() | 0x40, self.choices.next(), self.stream());
                self.send(kind, flags, stream, b"whatever");
            }
            30 => {
                let urgent = [&self.last.max(1).to_be_bytes()[..], b"u=1,i"].concat();
                self.send(0x10, 0, 0, &urgent);
            }
            _ => self.odd(),
        }
    }

    fn request(&mut self) {
        // With few streams, it matters which ones were accepted.
        let any = self.conversation.streams == MANY && self.choices.flag(2);
        let which = self.choices.below(if any { HEADS.len() } else { RIGHT });
        let (fields, agreed) = HEADS[which];
        let stream = match self.choices.next() {
            255 if any => self.last,
            254 => 2,
            253 => self.last + 20,
            _ => self.last + 2 - (self.last + 1) % 2,
        };
        if stream == self.last {
            // The other codec accepts trailers with pseudo-fields.
            self.conversation.taste.insert(stream);
        }
        if stream % 2 == 1 {
            self.last = self.last.max(stream);
        }
        if !agreed {
            self.conversation.taste.insert(stream);
        }
        let ends = self.choices.flag(2);
        let is_split = self.head(stream, ends, fields);
        if which >= RIGHT {
            self.conversation.refused.insert(stream);
            if is_split {
                // The other codec forgets an error in the first piece.
                self.conversation.taste.insert(stream);
            }
        }
    }

    fn trailers(&mut self) {
        let stream = self.stream();
        let any = self.conversation.streams == MANY;
        let (fields, agreed) =
            TRAILERS[self.choices.below(if any { TRAILERS.len() } else { RIGHT_TRAILERS })];
        if !agreed {
            self.conversation.taste.insert(stream);
        }
        let ends = !self.choices.flag(8);
        self.head(stream, ends, fields);
    }

    /// Writes a head in one frame or several; returns true for several.
    fn head(&mut self, stream: u32, ends: bool, fields: &[(&str, &str)]) -> bool {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            self.encoder.encode(HeaderId::of(name.as_bytes()), name.as_bytes(), value.as_bytes(), &mut block);
        }
        let shape = self.choices.next();
        let mut payload = Vec::new();
        let mut flags = if ends { END_STREAM } else { 0 };
        let padding = if shape & 1 == 1 { self.choices.below(20) } else { 0 };
        if shape & 1 == 1 {
            flags |= PADDED;
            payload.push(padding as u8);
        }
        if shape & 0x0e == 0x0e {
            flags |= WITH_PRIORITY;
            payload.extend([0, 0, 0, 0, 15]);
        }
        let first = if shape & 0x30 == 0x30 { self.choices.below(block.len() + 1) } else { block.len() };
        payload.extend_from_slice(&block[..first]);
        payload.extend(vec![0; padding]);
        let mut rest = &block[first..];
        let split = first < block.len();
        self.send(HEADERS, if split { flags } else { flags | END_HEADERS }, stream, &payload);
        // The other codec accepts a handful.
        for left in (0..4).rev() {
            if rest.is_empty() {
                break;
            }
            let piece = if left == 0 { rest.len() } else { 1 + self.choices.below(rest.len()) };
            let (now, later) = rest.split_at(piece);
            rest = later;
            self.send(CONTINUATION, if rest.is_empty() { END_HEADERS } else { 0 }, stream, now);
        }
        split
    }

    fn data(&mut self) {
        let stream = self.stream();
        let mut length = match self.choices.next() {
            length @ 0..250 => usize::from(length) / 8,
            250 | 251 => 1_001,
            252 => 700,
            _ => 16_384,
        };
        if self.conversation.reads_at_once {
            length = length.min(READ_AT_ONCE_BYTES.saturating_sub(self.body_bytes));
        }
        self.body_bytes += length;
        let body = vec![b'a' + (self.body_bytes % 26) as u8; length];
        let shape = self.choices.next();
        let ends = if shape & 3 == 3 { END_STREAM } else { 0 };
        if shape & 0x1c == 0x1c && length < 16_000 {
            let padding = shape >> 5;
            self.body_bytes += 1 + usize::from(padding);
            let payload = [&[padding], &body[..], &vec![0; padding.into()]].concat();
            self.send(DATA, ends | PADDED, stream, &payload);
        } else {
            self.send(DATA, ends, stream, &body);
        }
    }

    fn reset(&mut self) {
        let (stream, code) = (self.stream(), self.choices.below(14) as u32);
        self.send(RST_STREAM, 0, stream, &code.to_be_bytes());
    }

    fn window(&mut self) {
        let stream = if self.choices.flag(2) { 0 } else { self.stream() };
        // In the other codec an invalid stream counts for longer, and the window of a finished stream cannot grow too
        // large.
        let is_answered =
            self.conversation.steps.iter().any(|step| matches!(step, Step::Answer(id) if *id == stream));
        let any = self.conversation.streams == MANY && !is_answered;
        let bytes = self.choices.below(if any { 6 } else { 3 });
        let bytes: u32 = [1, 1_000, 65_535, 0, 0x7fff_ffff, 0x4000_0000][bytes];
        self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
    }

    fn settings(&mut self) {
        let (id, value): (u16, u32) = [
            (1, 0),
            (1, 100),
            (1, 65_536),
            (2, 0),
            (2, 2),
            (3, 10),
            (4, 0),
            (4, 100_000),
            (4, 0x8000_0000),
            (5, 20_000),
            (5, 100),
            (5, 0x0100_0000),
            (6, 1_000),
            (0xabcd, 7),
        ][self.choices.below(14)];
        let one = [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        self.send(SETTINGS, 0, 0, &one);
    }

    fn ping(&mut self) {
        let byte = self.choices.next();
        match byte {
            255 => self.send(PING, 0, 1, &[7; 8]),
            254 => self.send(PING, 0, 0, &[7; 7]),
            253 => self.send(PING, ACK, 0, &[7; 8]),
            _ => self.send(PING, 0, 0, &[byte; 8]),
        }
    }

    fn priority(&mut self) {
        let stream = self.stream();
        let parent = if self.choices.flag(8) { stream } else { 0 };
        self.send(PRIORITY, 0, stream, &[&parent.to_be_bytes()[..], &[3]].concat());
    }

    /// Sends frames that clients never send.
    fn odd(&mut self) {
        let stream = self.stream();
        match self.choices.below(12) {
            0 => self.send(PUSH_PROMISE, END_HEADERS, stream, &[0, 0, 0, 2, 0x82]),
            1 => self.send(CONTINUATION, END_HEADERS, stream, &[0x82]),
            2 => self.send(DATA, PADDED, stream, &[9, 1, 2]),
            3 => self.send(HEADERS, END_HEADERS | PADDED, self.last + 2, &[200, 0x82]),
            4 => self.send(RST_STREAM, 0, stream, &[0; 3]),
            5 => self.send(WINDOW_UPDATE, 0, 0, &[0; 3]),
            6 => self.send(SETTINGS, 0, 0, &[0; 5]),
            7 => self.send(SETTINGS, ACK, 0, &[0; 6]),
            8 => self.send(SETTINGS, 0, stream, &[]),
            // The other codec ignores everything after it.
            9 => {
                self.send(GOAWAY, 0, 0, &[0; 8]);
                self.choices = Choices(&[]);
            }
            10 => self.send(DATA, 0, stream, &[0; 16_385]),
            // An index of no table.
            _ => self.send(HEADERS, END_HEADERS, self.last + 2, &[0xff, 0x7f]),
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "at once: {}, pieces of {}, {} streams", self.reads_at_once, self.piece, self.streams)?;
        for step in &self.steps {
            match step {
                Step::Answer(stream) => writeln!(f, "  answer {stream}")?,
                Step::Send(bytes) => {
                    if bytes.as_slice() == PREFACE {
                        continue;
                    }
                    let names = [
                        "DATA",
                        "HEADERS",
                        "PRIORITY",
                        "RST_STREAM",
                        "SETTINGS",
                        "PUSH_PROMISE",
                        "PING",
                        "GOAWAY",
                        "WINDOW_UPDATE",
                        "CONTINUATION",
                    ];
                    let name = names.get(usize::from(bytes[3])).copied().unwrap_or("UNKNOWN");
                    let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
                    let shown = &bytes[9..bytes.len().min(60)];
                    let length = bytes.len() - 9;
                    writeln!(f, "  {name} {:#x} on {stream}, {length}: {}", bytes[4], shown.escape_ascii())?;
                }
            }
        }
        Ok(())
    }
}
