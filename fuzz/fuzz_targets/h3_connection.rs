//! A connection of HTTP/3 in either role: for any bytes on its streams, little is held, and the pieces in which bytes
//! come do not matter.
//!
//! The first byte chooses the role and the kind of the unidirectional stream. Its bytes follow behind a byte of their
//! length; the rest are the bytes of a request stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_http::Chunk;
use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_http::h3::{Codec, Config, Event, FloodLimits, Message, Role, Scope, UniStream};

const CONFIG: Config = Config {
    role: Role::Server,
    streams: 8,
    header_list_bytes: 4_096,
    table_bytes: 512,
    blocked_streams: 1,
    head: HeadLimits { line_bytes: 1_024, head_bytes: 4_096, fields: 32, tolerance: Tolerance::NONE },
    flood: FloodLimits { resets_per_minute: 1_000, controls_per_second: 1_000 },
};

/// The most memory of a connection, and of a message.
const MEMORY_MAX: usize = 64 * 1024;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, rest)) = data.split_first() else { return };
    let role = if mode & 1 == 0 { Role::Server } else { Role::Client };
    let Some((&length, rest)) = rest.split_first() else { return };
    let (uni, request) = rest.split_at(rest.len().min(length.into()));
    let config = Config { role, ..CONFIG };
    let kind = [0, 2, 3, 0x21][usize::from(mode >> 1 & 3)];
    let ends = mode & 8 != 0;
    let whole = run(config, kind, uni, request, usize::MAX, ends);
    let pieces = run(config, kind, uni, request, 1 + usize::from(mode >> 4), ends);
    assert_eq!(whole, pieces);
});

/// The result of a run: error codes, and a message without the borders of its pieces.
#[derive(Debug, PartialEq, Eq, Default)]
struct Outcome {
    uni: Option<u64>,
    heads: Vec<Vec<u8>>,
    body: Vec<u8>,
    end: Option<u64>,
}

fn run(config: Config, kind: u8, uni: &[u8], request: &[u8], size: usize, ends: bool) -> Outcome {
    let mut codec = Codec::new(config);
    let mut outcome = Outcome::default();
    let mut stream = UniStream::default();
    for piece in [&[kind][..]].into_iter().chain(uni.chunks(size.min(uni.len().max(1)))) {
        if let Err(broken) = codec.receive_uni(&mut stream, piece) {
            assert_eq!(broken.scope, Scope::Connection);
            outcome.uni = Some(broken.code.0);
            return outcome;
        }
        assert!(codec.memory() < MEMORY_MAX, "{} bytes", codec.memory());
    }
    let mut message = Message::new(0, false);
    let mut input = Chunk::empty();
    let mut pieces = request.chunks(size.min(request.len().max(1))).peekable();
    loop {
        if let Some(piece) = pieces.next() {
            input.reserve_total(input.len() + piece.len());
            assert!(input.try_append(piece));
        }
        let ended = ends && pieces.peek().is_none();
        loop {
            assert!(message.memory() < MEMORY_MAX);
            match codec.read(&mut message, &mut input, ended) {
                Ok(Event::Nothing) => break,
                Ok(Event::Blocked) => return outcome,
                Ok(Event::Request(request)) => {
                    if request.length.is_err() {
                        return outcome;
                    }
                    outcome.heads.push(request.head.headers.iter().flat_map(|(name, _)| name.to_vec()).collect());
                }
                Ok(Event::Response(head)) => outcome.heads.push(head.status.to_string().into_bytes()),
                Ok(Event::Data(data)) => {
                    assert!(!data.is_empty());
                    outcome.body.extend_from_slice(&data);
                }
                Ok(Event::Trailers(_)) => outcome.heads.push(b"trailers".to_vec()),
                Ok(Event::End) => {
                    assert!(ended);
                    return outcome;
                }
                Err(broken) => {
                    outcome.end = Some(broken.code.0);
                    return outcome;
                }
            }
        }
        if pieces.peek().is_none() {
            return outcome;
        }
    }
}
