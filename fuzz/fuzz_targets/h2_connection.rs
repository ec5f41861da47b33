//! A connection of HTTP/2 in either role: for any input of the peer, the output consists of frames, and
//! little is held.
//!
//! The first byte chooses the role, how many bytes come at a time, and what exchanges do. The rest are frames, each a
//! byte for its kind, flags, stream and length and then its payload; or, in one of four runs, bytes as they are.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::h1::{HeadLimits, Tolerance, parse_request};
use sigma_http::h2::frame::PREFACE;
use sigma_http::h2::{
    Arrival, Codec, Config, ErrorCode, FloodLimits, FlowWindows, RequestLine, Role, StreamKey,
};
use sigma_http::{BodyLength, Chunk, Frame, Headers, RequestHead};

const CONFIG: Config = Config {
    role: Role::Server,
    streams: 8,
    pending_resets: 4,
    windows: FlowWindows { stream_bytes: 2_000, connection_bytes: 65_535 },
    frame_bytes: 16_384,
    header_list_bytes: 4_096,
    head: HeadLimits { line_bytes: 1_024, head_bytes: 4_096, fields: 32, tolerance: Tolerance::NONE },
    flood: FloodLimits { resets_per_minute: 1_000, controls_per_second: 1_000 },
};
/// Incomplete input is held up to a frame.
const HEADER_BYTES: usize = 9;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, rest)) = data.split_first() else { return };
    let role = if mode & 1 == 0 { Role::Server } else { Role::Client };
    let mut end = End { codec: Codec::new(Config { role, ..CONFIG }), keys: Vec::new(), manners: mode >> 4 };
    if role == Role::Client {
        end.ask();
    }
    let bytes = if mode & 6 == 6 { rest.to_vec() } else { framed(role, rest) };
    let mut input = Vec::new();
    for piece in bytes.chunks(if mode & 8 == 0 { 1 << 20 } else { 7 }) {
        input.extend_from_slice(piece);
        let mut chunk = Chunk::copy_of(&input);
        end.codec.receive(&mut chunk, 1_000);
        input = chunk.to_vec();
        assert!(input.len() <= HEADER_BYTES + CONFIG.frame_bytes as usize, "a frame at most waits for its rest");
        assert!(end.codec.failure().is_none() || input.is_empty());
        end.act();
        end.check_output(bytes.len());
        let most = CONFIG.streams as usize + CONFIG.pending_resets;
        assert!(end.codec.held() <= most, "{} streams are held", end.codec.held());
    }
    end.codec.leave();
    end.codec.lose();
    end.check_output(bytes.len());
    end.keys.drain(..).for_each(|key| end.codec.release(key));
    while let Some(incoming) = end.codec.next_incoming() {
        end.codec.release(incoming.key);
    }
    assert_eq!(end.codec.held(), 0);
});

/// Frames of the input, after the required beginning.
fn framed(role: Role, mut data: &[u8]) -> Vec<u8> {
    let mut out = if role == Role::Server { PREFACE.to_vec() } else { Vec::new() };
    out.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    while let [kind, flags, stream, length, rest @ ..] = data {
        // A large one now and then, of zeros.
        let (payload, after) = rest.split_at(rest.len().min((*length).into()));
        let zeros = if *length == 255 { 16_000 } else { 0 };
        out.extend(&((payload.len() + zeros) as u32).to_be_bytes()[1..]);
        out.extend([kind % 17, *flags, 0, 0, 0, *stream]);
        out.extend_from_slice(payload);
        out.resize(out.len() + zeros, 0);
        data = after;
    }
    out
}

/// One side, with its exchanges.
struct End {
    codec: Codec,
    keys: Vec<StreamKey>,
    manners: u8,
}

impl End {
    fn ask(&mut self) {
        for text in ["GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "POST /b HTTP/1.1\r\nHost: h\r\nX-A: b\r\n\r\n", "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"] {
            let mut head = RequestHead::default();
            parse_request(text.as_bytes(), &CONFIG.head, &mut head).expect("a valid head").expect("a whole one");
            let length = if text.starts_with('P') { BodyLength::Streamed } else { BodyLength::None };
            let line = RequestLine { scheme: b"http", target: head.path_and_query() };
            let key = self.codec.open(&head, line, length).expect("the peer has not spoken yet");
            self.keys.push(key);
        }
        self.send(self.keys[1]);
    }

    /// Sends more of a body, if there is room.
    fn send(&mut self, key: StreamKey) {
        if self.codec.has_room(key) {
            self.codec.queue(key, Frame::Data(Chunk::copy_of(&[b'x'; 3_000])));
            self.codec.flush(key);
        }
    }

    fn act(&mut self) {
        while let Some(incoming) = self.codec.next_incoming() {
            let key = incoming.key;
            match (incoming.length, (self.manners ^ key.id() as u8) % 4) {
                (Err(_), _) | (_, 0) => self.codec.release(key),
                (_, 1) => {
                    let mut headers = Headers::default();
                    headers.append("X-Answer", b"yes");
                    self.codec.send_answer(key, 200, &headers, b"now", BodyLength::Streamed, false);
                    self.send(key);
                    self.codec.queue(key, Frame::Trailers(Box::new(headers)));
                    self.codec.flush(key);
                    self.keys.push(key);
                }
                (_, 2) => {
                    self.codec.send_answer(key, 204, &Headers::default(), b"", BodyLength::None, true);
                    self.keys.push(key);
                }
                (Ok(_), _) => self.keys.push(key),
            }
        }
        self.codec.take_woken(|_| {});
        if self.manners & 8 == 0 {
            let codec = &mut self.codec;
            self.keys.retain(|key| {
                while let Ok(Some(_)) = codec.take_head(*key) {}
                loop {
                    match codec.take_frame(*key) {
                        Arrival::Frame(Frame::Data(_)) => {}
                        Arrival::Nothing => return true,
                        Arrival::Frame(_) | Arrival::Cut(_) => break,
                    }
                }
                codec.release(*key);
                false
            });
        }
    }

    /// The output consists of whole frames, of the size that every peer accepts.
    fn check_output(&mut self, received: usize) {
        let mut bytes = Vec::new();
        loop {
            let output = self.codec.output();
            if output.is_empty() {
                break;
            }
            let n = output.len();
            bytes.extend_from_slice(output);
            self.codec.advance(n);
        }
        assert!(bytes.len() <= 200_000 + received * 100, "{} bytes leave for {received}", bytes.len());
        let mut rest = bytes.strip_prefix(PREFACE).unwrap_or(&bytes);
        let mut failed = false;
        while let [a, b, c, kind, _, _, _, _, _, tail @ ..] = rest {
            assert!(!failed, "a frame behind the end of the connection");
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            assert!(length <= tail.len(), "half a frame leaves");
            failed = *kind == 7 && tail[4..8] != ErrorCode::NO_ERROR.0.to_be_bytes();
            rest = &tail[length..];
        }
        assert!(rest.is_empty());
    }
}
