//! Both roles against each other, and each against frames that our codecs never write.

use super::frame::{ErrorCode, FrameHeader, HEADER_BYTES, PREFACE, flag, kind, setting};
use super::*;
use crate::h1::{HeadLimits, Tolerance, parse_request};
use crate::{BodyLength, Chunk, FaultKind, Frame, Headers, RequestHead};

const CONFIG: Config = Config {
    role: Role::Server,
    streams: 4,
    pending_resets: 3,
    windows: FlowWindows { stream_bytes: 1_000, connection_bytes: 100_000 },
    frame_bytes: 16_384,
    header_list_bytes: 2_000,
    head: HeadLimits { line_bytes: 500, head_bytes: 1_000, fields: 20, tolerance: Tolerance::NONE },
    flood: FloodLimits { resets_per_minute: 10, controls_per_second: 20 },
};

/// `GET /` for `h`
const GET: &[u8] = b"\x82\x86\x84\x41\x01h";
/// `POST /` for `h`
const POST: &[u8] = b"\x83\x86\x84\x41\x01h";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    super::frame::write(&mut out, kind, flags, stream, &[payload]);
    out
}

/// Returns a server after the client's preface.
fn server(config: Config) -> Codec {
    let mut codec = Codec::new(config);
    feed(&mut codec, &[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat());
    feed(&mut codec, &frame(kind::SETTINGS, flag::ACK, 0, &[]));
    frames(&mut codec);
    codec
}

/// Returns a client with open streams for GET, after the server's SETTINGS.
fn client(streams: u32) -> (Codec, Vec<StreamKey>) {
    let mut codec = Codec::new(Config { role: Role::Client, flood: FloodLimits::NONE, ..CONFIG });
    feed(&mut codec, &frame(kind::SETTINGS, 0, 0, &[]));
    let head = request("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let keys = (0..streams).map(|_| open(&mut codec, &head, BodyLength::None)).collect();
    drain(&mut codec);
    (codec, keys)
}

fn open(codec: &mut Codec, head: &RequestHead, length: BodyLength) -> StreamKey {
    let line = RequestLine { scheme: b"http", target: head.path_and_query() };
    codec.open(head, line, length).expect("a stream")
}

fn request(text: &str) -> RequestHead {
    let mut head = RequestHead::default();
    parse_request(text.as_bytes(), &CONFIG.head, &mut head).expect("valid").expect("whole");
    head
}

fn feed(codec: &mut Codec, bytes: &[u8]) {
    let mut input = Chunk::copy_of(bytes);
    codec.receive(&mut input, 1_000);
    assert!(input.is_empty(), "{} bytes are left", input.len());
}

/// Returns all output of a codec.
fn drain(codec: &mut Codec) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = codec.output().to_vec();
        if bytes.is_empty() {
            return all;
        }
        codec.advance(bytes.len());
        all.extend(bytes);
    }
}

fn frames(codec: &mut Codec) -> Vec<(FrameHeader, Vec<u8>)> {
    let bytes = drain(codec);
    let (mut rest, mut all) = (&bytes[..], Vec::new());
    while let Some(header) = FrameHeader::parse(rest) {
        let end = HEADER_BYTES + header.length as usize;
        all.push((header, rest[HEADER_BYTES..end].to_vec()));
        rest = &rest[end..];
    }
    all
}

/// Returns kinds and streams of frames, in order.
fn sent(codec: &mut Codec) -> Vec<(u8, u32)> {
    frames(codec).iter().map(|(header, _)| (header.kind, header.stream)).collect()
}

fn failure(codec: &Codec) -> Option<ErrorCode> {
    codec.failure().map(|(code, _)| code)
}

/// Returns the code of the stream's RST_STREAM, if one was sent.
fn reset_of(codec: &mut Codec, stream: u32) -> Option<u32> {
    let is_reset =
        |(header, _): &&(FrameHeader, Vec<u8>)| (header.kind, header.stream) == (kind::RST_STREAM, stream);
    let frames = frames(codec);
    frames.iter().find(is_reset).map(|(_, payload)| u32::from_be_bytes(payload[..].try_into().unwrap()))
}

fn exchange(from: &mut Codec, to: &mut Codec) {
    let bytes = drain(from);
    for piece in bytes.chunks(7_000) {
        let mut input = Chunk::copy_of(piece);
        to.receive(&mut input, 1_000);
        assert!(input.is_empty() || failure(to).is_none());
        // An incomplete frame comes again with the next piece.
        assert!(input.is_empty(), "a piece ends within a frame");
    }
}

fn data(bytes: &[u8]) -> Frame {
    Frame::Data(Chunk::copy_of(bytes))
}

#[test]
fn a_request_and_its_answer() {
    let mut client = Codec::new(Config { role: Role::Client, flood: FloodLimits::NONE, ..CONFIG });
    let mut server = Codec::new(CONFIG);
    let head = request("POST /a?b HTTP/1.1\r\nHost: h:81\r\nX-A: 1\r\nConnection: x\r\nCookie: a=1\r\n\r\n");
    let asked = open(&mut client, &head, BodyLength::Known(5));
    client.queue(asked, data(b"hello"));
    client.flush(asked);
    assert!(client.is_flushed(asked) && client.taken(asked) == 5);
    exchange(&mut client, &mut server);
    let incoming = server.next_incoming().expect("a request");
    assert_eq!((incoming.number, incoming.length), (1, Ok(BodyLength::Streamed)));
    let mut text = Vec::new();
    incoming.head.headers.write_to(&mut text);
    assert_eq!(incoming.head.path_and_query(), b"/a?b");
    assert_eq!(String::from_utf8(text).unwrap(), "Host: h:81\r\nx-a: 1\r\ncookie: a=1\r\nte: trailers\r\n");
    assert!(matches!(server.take_frame(incoming.key), Arrival::Frame(Frame::Data(d)) if &d[..] == b"hello"));
    assert!(matches!(server.take_frame(incoming.key), Arrival::Frame(Frame::End)));

    let (mut headers, mut trailers) = (Headers::default(), Headers::default());
    headers.append("Link", b"</x>");
    trailers.append("Grpc-Status", b"0");
    server.send_interim(incoming.key, 103, &headers);
    server.send_answer(incoming.key, 200, &headers, b"now", BodyLength::Streamed, false);
    server.queue(incoming.key, data(b"world"));
    server.queue(incoming.key, Frame::Trailers(Box::new(trailers)));
    server.flush(incoming.key);
    server.release(incoming.key);
    exchange(&mut server, &mut client);
    let statuses: Vec<u16> =
        std::iter::from_fn(|| client.take_head(asked).ok().flatten()).map(|head| head.status).collect();
    assert_eq!(statuses, [103, 200]);
    assert!(matches!(client.take_frame(asked), Arrival::Frame(Frame::Data(d)) if &d[..] == b"world"));
    let Arrival::Frame(Frame::Trailers(got)) = client.take_frame(asked) else { panic!("no trailers") };
    assert_eq!(got.find(b"grpc-status"), Some(&b"0"[..]));
    client.release(asked);
    assert_eq!((client.held(), server.held()), (0, 0));
    assert_eq!((client.failure(), server.failure()), (None, None));
}

/// A conversation gives the same result in any pieces.
#[test]
fn pieces_of_any_size() {
    let trailers = frame(kind::HEADERS, flag::END_STREAM, 1, b"\x00\x01t");
    let whole = [
        PREFACE.to_vec(),
        frame(kind::SETTINGS, 0, 0, &[]),
        frame(
            kind::HEADERS,
            flag::PADDED | flag::PRIORITY,
            1,
            &[&[2, 0, 0, 0, 0, 9][..], &POST[..3], &[0; 2]].concat(),
        ),
        frame(kind::CONTINUATION, flag::END_HEADERS, 1, &POST[3..]),
        frame(kind::DATA, flag::PADDED, 1, &[&[3][..], b"body", &[0; 3]].concat()),
        frame(0xfa, 0xff, 7, b"nobody knows"),
        frame(kind::DATA, 0, 1, b"more"),
        trailers,
        frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"\x01u"),
    ]
    .concat();
    for size in 1..whole.len() {
        let (mut codec, mut input) = (Codec::new(CONFIG), Chunk::empty());
        for piece in whole.chunks(size) {
            let together = [&input[..], piece].concat();
            input = Chunk::copy_of(&together);
            codec.receive(&mut input, 1_000);
        }
        assert_eq!((input.len(), codec.failure()), (0, None), "{size}");
        let key = codec.next_incoming().expect("a request").key;
        let mut body = Vec::new();
        let trailers = loop {
            match codec.take_frame(key) {
                Arrival::Frame(Frame::Data(data)) => body.extend_from_slice(&data),
                Arrival::Frame(Frame::Trailers(trailers)) => break trailers,
                other => panic!("{size}: {other:?}"),
            }
        };
        assert_eq!((&body[..], trailers.find(b"t")), (&b"bodymore"[..], Some(&b"u"[..])), "{size}");
    }
}

#[test]
fn windows_hold_both_sides() {
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::HEADERS, flag::END_HEADERS, 1, POST));
    let key = codec.next_incoming().expect("a request").key;
    // Input is acknowledged in halves of the window.
    for _ in 0..3 {
        feed(&mut codec, &frame(kind::DATA, 0, 1, &[b'x'; 250]));
        assert!(matches!(codec.take_frame(key), Arrival::Frame(Frame::Data(_))));
    }
    assert!(matches!(codec.take_frame(key), Arrival::Nothing));
    assert_eq!(sent(&mut codec), [(kind::WINDOW_UPDATE, 1)]);
    feed(&mut codec, &frame(kind::DATA, 0, 1, &[b'x'; 751]));
    assert_eq!(reset_of(&mut codec, 1), Some(ErrorCode::FLOW_CONTROL_ERROR.0));
    assert!(matches!(codec.take_frame(key), Arrival::Cut(Fate::Broken(_))));
    codec.release(key);

    // Output waits for the windows, and continues with them; a reduced window may be negative.
    feed(&mut codec, &frame(kind::HEADERS, 5, 3, GET));
    let key = codec.next_incoming().expect("a request").key;
    codec.send_answer(key, 200, &Headers::default(), b"", BodyLength::Known(70_000), false);
    codec.queue(key, data(&[b'y'; 60_000]));
    codec.flush(key);
    assert!(codec.is_flushed(key));
    codec.queue(key, data(&[b'y'; 10_000]));
    codec.flush(key);
    assert!(!codec.is_flushed(key) && codec.taken(key) == 60_000, "a large piece is on its way");
    drain(&mut codec);
    assert!(!codec.is_flushed(key) && codec.taken(key) == 65_535);
    let window = |id: u16, value: u32| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    feed(&mut codec, &frame(kind::SETTINGS, 0, 0, &window(setting::INITIAL_WINDOW_SIZE, 65_000)));
    feed(&mut codec, &frame(kind::WINDOW_UPDATE, 0, 0, &100_000u32.to_be_bytes()));
    feed(&mut codec, &frame(kind::WINDOW_UPDATE, 0, 3, &535u32.to_be_bytes()));
    drain(&mut codec);
    assert_eq!(codec.taken(key), 65_535);
    feed(&mut codec, &frame(kind::WINDOW_UPDATE, 0, 3, &5_000u32.to_be_bytes()));
    let last = frames(&mut codec).pop().expect("a frame").0;
    assert_eq!((last.kind, last.flags, codec.taken(key)), (kind::DATA, flag::END_STREAM, 70_000));
    assert!(codec.is_flushed(key));
}

/// A body in frames of one byte needs the memory of one body.
#[test]
fn small_pieces_share_a_buffer() {
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::HEADERS, flag::END_HEADERS, 1, POST));
    let key = codec.next_incoming().expect("a request").key;
    for _ in 0..1_000 {
        feed(&mut codec, &frame(kind::DATA, 0, 1, b"x"));
    }
    assert!(matches!(codec.take_frame(key), Arrival::Frame(Frame::Data(d)) if d.len() == 1_000));
}

#[test]
fn urgent_streams_go_first() {
    let mut codec = server(Config { streams: 10, ..CONFIG });
    let ask = |codec: &mut Codec, stream: u32, priority: &[u8]| {
        let field = [GET, b"\x00\x08priority", &[priority.len() as u8], priority].concat();
        feed(codec, &frame(kind::HEADERS, 5, stream, &field));
        let key = codec.next_incoming().expect("a request").key;
        codec.send_answer(key, 200, &Headers::default(), b"", BodyLength::Streamed, false);
        key
    };
    feed(&mut codec, &frame(kind::WINDOW_UPDATE, 0, 0, &1_000_000u32.to_be_bytes()));
    let first = ask(&mut codec, 1, b"u=5");
    drain(&mut codec);
    // It fills the output limit; the others take turns from here on.
    codec.queue(first, data(&[b'a'; 65_535]));
    codec.flush(first);
    let keys: Vec<StreamKey> =
        [(3, b"u=4, i"), (5, b"u=4, i"), (7, b"u=1   "), (9, b"u=1   "), (11, b"u=7   ")]
            .iter()
            .map(|(stream, priority)| ask(&mut codec, *stream, priority.trim_ascii()))
            .collect();
    for key in &keys {
        codec.queue(*key, data(&[b'b'; 40_000]));
        codec.flush(*key);
    }
    feed(&mut codec, &frame(kind::PRIORITY_UPDATE, 0, 0, &[&11u32.to_be_bytes()[..], b"u=0"].concat()));
    let turns = |codec: &mut Codec| {
        let sent = frames(codec);
        let data = sent.iter().filter(|(header, _)| header.kind == kind::DATA && header.stream != 1);
        data.map(|(header, _)| header.stream).collect::<Vec<_>>()
    };
    // 11 kept its place when it became urgent, and moves with its next turn.
    assert_eq!(turns(&mut codec), [7, 7, 7, 9, 9, 9, 3, 5, 3, 5, 3, 5, 11, 11, 11]);
}

/// A node knows the priority of its responses.
#[test]
fn an_answer_may_set_its_priority() {
    let mut codec = server(CONFIG);
    let mut keys = Vec::new();
    for (stream, priority) in [(1, &b"u=6, i"[..]), (3, b"u=2")] {
        feed(&mut codec, &frame(kind::HEADERS, 5, stream, GET));
        let key = codec.next_incoming().expect("a request").key;
        let mut headers = Headers::default();
        headers.append("Priority", priority);
        codec.send_answer(key, 200, &headers, b"", BodyLength::Streamed, false);
        keys.push(key);
    }
    for key in &keys {
        codec.queue(*key, data(&[b'x'; 65_000]));
        codec.flush(*key);
    }
    feed(&mut codec, &frame(kind::WINDOW_UPDATE, 0, 0, &1_000_000u32.to_be_bytes()));
    feed(&mut codec, &frame(kind::WINDOW_UPDATE, 0, 1, &1_000_000u32.to_be_bytes()));
    let first = keys[0];
    drain(&mut codec);
    codec.queue(first, data(&[b'y'; 100_000]));
    codec.flush(first);
    assert!(!codec.is_flushed(first), "it fills what may wait for the socket");
    feed(&mut codec, &frame(kind::HEADERS, 5, 5, GET));
    let urgent = codec.next_incoming().expect("a request").key;
    let mut headers = Headers::default();
    headers.append("Priority", b"u=0");
    codec.send_answer(urgent, 200, &headers, b"", BodyLength::Streamed, false);
    codec.queue(urgent, data(b"now"));
    codec.flush(urgent);
    let order: Vec<u32> =
        sent(&mut codec).iter().filter(|(k, _)| *k == kind::DATA).map(|(_, id)| *id).collect();
    let place = order.iter().position(|id| *id == 5).expect("it is sent");
    assert!(order[place..].contains(&1), "before the rest of the other: {order:?}");
}

#[test]
fn a_large_head_continues_in_further_frames() {
    let (mut codec, mut server) = (client(0).0, Codec::new(Config { header_list_bytes: 100_000, ..CONFIG }));
    server.config.head = HeadLimits { head_bytes: 100_000, ..CONFIG.head };
    let mut head = request("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    head.headers.append("X-Long", &[b'{'; 40_000]);
    open(&mut codec, &head, BodyLength::None);
    let out = [PREFACE, &frame(kind::SETTINGS, 0, 0, &[]), &drain(&mut codec)].concat();
    let mut input = Chunk::copy_of(&out);
    server.receive(&mut input, 1);
    assert_eq!(server.failure(), None);
    let got = server.next_incoming().expect("a request").head;
    assert_eq!(got.headers.find(b"x-long").map(<[u8]>::len), Some(40_000));
}

#[test]
fn a_server_leaves_in_two_steps() {
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::HEADERS, 5, 1, GET));
    let key = codec.next_incoming().expect("a request").key;
    codec.leave();
    assert_eq!(sent(&mut codec), [(kind::GOAWAY, 0), (kind::PING, 0)]);
    feed(&mut codec, &frame(kind::HEADERS, 5, 3, GET));
    let late = codec.next_incoming().expect("it did not know yet").key;
    feed(&mut codec, &frame(kind::PING, flag::ACK, 0, &connection::LEAVING));
    let told = frames(&mut codec);
    assert_eq!((told.len(), &told[0].1[..]), (1, &[0, 0, 0, 3, 0, 0, 0, 0][..]));
    feed(&mut codec, &frame(kind::HEADERS, 5, 5, GET));
    assert!(codec.next_incoming().is_none() && !codec.is_done());
    for key in [key, late] {
        codec.send_answer(key, 200, &Headers::default(), b"", BodyLength::None, true);
        codec.release(key);
    }
    assert!(codec.is_done() && codec.failure().is_none());
}

#[test]
fn a_node_that_leaves_did_not_process_later_streams() {
    let (mut codec, keys) = client(3);
    feed(&mut codec, &frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]));
    let fates: Vec<_> = keys.iter().map(|key| codec.fate(*key)).collect();
    assert_eq!(fates, [None, None, Some(Fate::Unprocessed)]);
    assert!(codec.is_spent() && !codec.may_open());
    feed(&mut codec, &frame(kind::RST_STREAM, 0, 1, &7u32.to_be_bytes()));
    assert_eq!(codec.fate(keys[0]), Some(Fate::Unprocessed), "REFUSED_STREAM");
    codec.lose();
    assert_eq!(codec.fate(keys[1]), Some(Fate::Lost));
}

/// A server may have sent all before it says that it needs no more of the request.
#[test]
fn a_complete_answer_stays_complete() {
    let (mut codec, _) = client(0);
    let head = request("POST / HTTP/1.1\r\nHost: h\r\n\r\n");
    let key = open(&mut codec, &head, BodyLength::Streamed);
    feed(&mut codec, &frame(kind::HEADERS, 4, 1, b"\x88"));
    feed(&mut codec, &frame(kind::DATA, flag::END_STREAM, 1, b"done"));
    feed(&mut codec, &frame(kind::RST_STREAM, 0, 1, &[0; 4]));
    codec.queue(key, data(b"nobody needs it"));
    codec.flush(key);
    assert!(codec.is_flushed(key) && codec.fate(key).is_none());
    assert!(matches!(codec.take_frame(key), Arrival::Frame(Frame::Data(_))));
    assert!(matches!(codec.take_frame(key), Arrival::Frame(Frame::End)));
}

#[test]
fn answers_that_break_a_rule() {
    let name = |name: &str, value: &str| {
        [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let ok = b"\x88".to_vec();
    let broken = [
        (
            vec![frame(kind::HEADERS, 5, 1, &[ok.clone(), name(":path", "/")].concat())],
            "a pseudo-field in a head",
        ),
        (vec![frame(kind::HEADERS, 5, 1, &[ok.clone(), ok.clone()].concat())], "two statuses"),
        (vec![frame(kind::HEADERS, 5, 1, &name("a", "b"))], "no status"),
        (vec![frame(kind::HEADERS, 5, 1, &name(":status", "20"))], "a short status"),
        (vec![frame(kind::HEADERS, 5, 1, &name(":status", "101"))], "a switch of protocols"),
        (vec![frame(kind::HEADERS, 5, 1, &name(":status", "103"))], "an interim head that ends"),
        (
            vec![frame(kind::HEADERS, 4, 1, &ok), frame(kind::HEADERS, 5, 1, &ok)],
            "a pseudo-field in trailers",
        ),
        (
            vec![frame(kind::HEADERS, 4, 1, &ok), frame(kind::HEADERS, 4, 1, &name("a", "b"))],
            "trailers without end",
        ),
        (
            vec![frame(kind::HEADERS, 5, 1, &[ok.clone(), name("content-length", "1")].concat())],
            "a byte is missing",
        ),
        (vec![frame(kind::HEADERS, 5, 1, &[ok.clone(), name("Upper", "1")].concat())], "an upper-case name"),
        (
            vec![frame(kind::HEADERS, 5, 1, &[ok.clone(), name("connection", "x")].concat())],
            "a connection's field",
        ),
        (vec![frame(kind::DATA, 1, 1, b"x")], "a body without a head"),
    ];
    for (bytes, what) in broken {
        let (mut codec, keys) = client(1);
        feed(&mut codec, &bytes.concat());
        let fault = codec.fate(keys[0]).and_then(Fate::broken).unwrap_or_else(|| panic!("{what}"));
        assert_eq!((fault.kind, codec.failure()), (FaultKind::BadResponse, None), "{what}");
        assert_eq!(reset_of(&mut codec, 1), Some(ErrorCode::PROTOCOL_ERROR.0), "{what}");
    }
}

#[test]
fn invalid_requests_get_a_response_and_then_a_reset() {
    let block = |block: &[u8]| frame(kind::HEADERS, 5, 1, block);
    for (bytes, kind) in [
        (block(b"\x86\x84\x41\x01h"), FaultKind::BadRequest),
        (block(b"\x82\x84\x41\x01h"), FaultKind::BadRequest),
        (block(b"\x82\x86\x41\x01h"), FaultKind::BadRequest),
        (block(b"\x82\x82\x86\x84\x41\x01h"), FaultKind::BadRequest),
        (block(b"\x82\x86\x84\x41\x01h\x00\x01a\x01b\x84"), FaultKind::BadRequest),
        (block(b"\x82\x86\x84\x41\x01h\x00\x04:new\x01b"), FaultKind::BadRequest),
        (block(b"\x82\x86\x84\x41\x01h\x0f\x0d\x015"), FaultKind::BadRequest),
        (
            block(&[GET, b"\x00\x01a\x7f\xb1\x07", &[b'x'; 1_072][..]].concat()),
            FaultKind::RequestHeadTooLarge,
        ),
    ] {
        let mut codec = server(CONFIG);
        feed(&mut codec, &bytes);
        let incoming = codec.next_incoming().expect("a request");
        assert_eq!(incoming.length.map_err(|fault| fault.kind), Err(kind), "{bytes:?}");
        codec.send_answer(incoming.key, 400, &Headers::default(), b"", BodyLength::None, true);
        codec.release(incoming.key);
        let reset = (kind == FaultKind::BadRequest).then_some(ErrorCode::PROTOCOL_ERROR.0);
        assert_eq!(reset_of(&mut codec, 1), reset, "{bytes:?}");
    }
}

#[test]
fn trailers_of_a_request_have_no_pseudo_fields() {
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::HEADERS, 4, 1, POST));
    let key = codec.next_incoming().expect("a request").key;
    feed(&mut codec, &frame(kind::HEADERS, 5, 1, b"\x84"));
    assert!(matches!(codec.take_frame(key), Arrival::Cut(Fate::Broken(_))));
    assert_eq!(reset_of(&mut codec, 1), Some(ErrorCode::PROTOCOL_ERROR.0));
}

/// Useless frames of a peer end its connection, and are counted.
#[test]
fn floods() {
    let calm = Some(ErrorCode::ENHANCE_YOUR_CALM);
    let head = |n: u32| frame(kind::HEADERS, 5, 2 * n + 1, GET);
    type Flood<'f> = (&'f dyn Fn(u32) -> Vec<u8>, u32, Glitch);
    let all: [Flood<'_>; 12] = [
        (&|_| frame(kind::PING, 0, 0, &[0; 8]), 20, Glitch::Control),
        (&|_| frame(kind::SETTINGS, 0, 0, &[]), 20, Glitch::Control),
        (&|_| frame(kind::PRIORITY, 0, 9, &[0; 5]), 20, Glitch::Control),
        (&|_| frame(0xee, 0, 0, &[]), 20, Glitch::Control),
        (&|_| frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), 20, Glitch::Window),
        (
            &|n| if n == 0 { frame(kind::HEADERS, 4, 1, POST) } else { frame(kind::DATA, 0, 1, &[]) },
            21,
            Glitch::Empty,
        ),
        (
            &|n| {
                if n == 0 {
                    frame(kind::HEADERS, 1, 1, GET)
                } else {
                    frame(kind::CONTINUATION, 0, 1, b"\x84")
                }
            },
            21,
            Glitch::Continuation,
        ),
        (&|n| [head(n), frame(kind::RST_STREAM, 0, 2 * n + 1, &[0; 4])].concat(), 10, Glitch::Reset),
        // 160 entries count as ten.
        (&|_| frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0].repeat(160)), 2, Glitch::Control),
        // Frames for a stream that was reset.
        (
            &|n| {
                let reset = [head(0), frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4])].concat();
                if n == 0 { reset } else { frame(kind::DATA, 0, 1, &[]) }
            },
            18,
            Glitch::Empty,
        ),
        (
            &|n| {
                let reset = [head(0), frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4])].concat();
                if n == 0 { reset } else { frame(kind::HEADERS, 5, 1, GET) }
            },
            9,
            Glitch::Head,
        ),
        // The peer makes this side reset its streams.
        (&|n| [head(n), frame(kind::WINDOW_UPDATE, 0, 2 * n + 1, &[0; 4])].concat(), 6, Glitch::StreamError),
    ];
    for (flood, allowed, glitch) in all {
        let mut codec = server(CONFIG);
        // The preface counts.
        codec.receive(&mut Chunk::empty(), 3_000);
        let mut rounds = 0;
        while codec.failure().is_none() && rounds < 100 {
            let mut input = Chunk::copy_of(&flood(rounds));
            codec.receive(&mut input, 3_000);
            // The driver releases cancelled streams at once.
            assert!(codec.next_incoming().is_none_or(|incoming| glitch == Glitch::Empty || {
                codec.release(incoming.key);
                true
            }));
            rounds += 1;
        }
        assert_eq!(failure(&codec), calm, "{glitch:?}");
        assert_eq!(rounds, allowed + 1, "{glitch:?}");
        let place = Glitch::ALL.iter().position(|kind| *kind == glitch).expect("a kind");
        assert!(codec.take_glitches()[place] >= rounds.min(allowed), "{glitch:?}");
    }
}

/// Returns a client with a frame budget for its node.
fn guarded_client() -> (Codec, StreamKey) {
    let flood = FloodLimits { resets_per_minute: u32::MAX, controls_per_second: 20 };
    let mut codec = Codec::new(Config { role: Role::Client, flood, ..CONFIG });
    feed(&mut codec, &frame(kind::SETTINGS, 0, 0, &[]));
    let key = open(&mut codec, &request("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), BodyLength::None);
    drain(&mut codec);
    codec.receive(&mut Chunk::empty(), 3_000);
    (codec, key)
}

#[test]
fn floods_of_a_node_end_the_connection() {
    let floods: [&dyn Fn(u32) -> Vec<u8>; 8] = [
        &|_| frame(kind::PING, 0, 0, &[0; 8]),
        &|_| frame(kind::SETTINGS, 0, 0, &[]),
        &|_| frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        &|_| frame(0xee, 0, 0, &[]),
        &|n| if n == 0 { frame(kind::HEADERS, 4, 1, b"\x88") } else { frame(kind::DATA, 0, 1, &[]) },
        &|n| {
            if n == 0 { frame(kind::HEADERS, 4, 1, b"\x88") } else { frame(kind::DATA, 8, 1, &[3, 0, 0, 0]) }
        },
        &|n| if n == 0 { frame(kind::HEADERS, 0, 1, b"\x88") } else { frame(kind::CONTINUATION, 0, 1, &[]) },
        // Heads for a stream that has ended.
        &|n| {
            frame(
                if n == 0 { kind::RST_STREAM } else { kind::HEADERS },
                4,
                1,
                if n == 0 { &[0; 4] } else { b"\x88" },
            )
        },
    ];
    for (number, flood) in floods.iter().enumerate() {
        let (mut codec, _) = guarded_client();
        let mut rounds = 0;
        while codec.failure().is_none() && rounds < 100 {
            codec.receive(&mut Chunk::copy_of(&flood(rounds)), 3_000);
            rounds += 1;
        }
        assert_eq!(failure(&codec), Some(ErrorCode::ENHANCE_YOUR_CALM), "flood {number}");
        assert!((20..=26).contains(&rounds), "flood {number}: {rounds}");
    }
}

#[test]
fn frames_of_honest_nodes_are_within_the_budget() {
    let (mut codec, first) = guarded_client();
    codec.release(first);
    let head = request("POST / HTTP/1.1\r\nHost: h\r\n\r\n");
    for n in 1..1_000 {
        let key = open(&mut codec, &head, BodyLength::Streamed);
        codec.queue(key, data(b"x"));
        codec.queue(key, Frame::End);
        codec.flush(key);
        drain(&mut codec);
        let id = 2 * n + 1;
        let answer = [
            frame(kind::PING, 0, 0, &[0; 8]),
            frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            frame(kind::WINDOW_UPDATE, 0, id, &[0, 0, 0, 1]),
            frame(kind::HEADERS, 4, id, b"\x88"),
            frame(kind::DATA, 0, id, &[]),
            frame(kind::DATA, 8, id, &[2, 0, 0, 0][..3]),
            // A client that has gone: the frames are for a stream that was reset.
            frame(kind::DATA, 1, id, &[]),
        ];
        for (at, bytes) in answer.iter().enumerate() {
            codec.receive(&mut Chunk::copy_of(bytes), 3_000);
            if at == 3 && n % 2 == 0 {
                codec.reset(key, ErrorCode::CANCEL);
            }
        }
        assert_eq!(failure(&codec), None, "request {n}");
        codec.release(key);
        drain(&mut codec);
    }
}

#[test]
fn a_connection_whose_streams_are_reset_is_retired() {
    let reset = |n: usize, code: u32| frame(kind::RST_STREAM, 0, 2 * n as u32 + 1, &code.to_be_bytes());
    let (mut codec, _) = client(4);
    (0..2).for_each(|n| feed(&mut codec, &reset(n, 2)));
    assert!(!codec.is_spent(), "two may be bad luck");
    feed(&mut codec, &reset(2, 8));
    assert!(codec.is_spent() && !codec.may_open());
    // The open stream continues.
    feed(&mut codec, &frame(kind::HEADERS, 5, 7, b"\x88"));
    assert!(codec.failure().is_none());
    // A head in between shows that the node serves requests.
    let (mut codec, _) = client(4);
    (0..2).for_each(|n| feed(&mut codec, &reset(n, 2)));
    feed(&mut codec, &frame(kind::HEADERS, 4, 5, b"\x88"));
    feed(&mut codec, &reset(3, 2));
    assert!(!codec.is_spent());
    // One ENHANCE_YOUR_CALM is enough, before a head and after one.
    for begins in [false, true] {
        let (mut codec, _) = client(1);
        if begins {
            feed(&mut codec, &frame(kind::HEADERS, 4, 1, b"\x88"));
        }
        feed(&mut codec, &reset(0, ErrorCode::ENHANCE_YOUR_CALM.0));
        assert!(codec.is_spent());
    }
}

#[test]
fn unread_streams_end_when_others_wait() {
    let config = Config {
        role: Role::Client,
        windows: FlowWindows { stream_bytes: 200_000, connection_bytes: 200_000 },
        ..CONFIG
    };
    let mut codec = Codec::new(config);
    feed(&mut codec, &frame(kind::SETTINGS, 0, 0, &[]));
    feed(&mut codec, &frame(kind::SETTINGS, flag::ACK, 0, &[]));
    let head = request("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let stalled = open(&mut codec, &head, BodyLength::None);
    feed(&mut codec, &frame(kind::HEADERS, 4, 1, b"\x88"));
    (0..12).for_each(|_| feed(&mut codec, &frame(kind::DATA, 0, 1, &[0; 16_384])));
    assert!(!codec.is_starved(), "no other stream waits");
    let other = open(&mut codec, &head, BodyLength::None);
    assert!(codec.is_starved());
    codec.mark_stalled();
    // A stream that was read continues.
    assert!(matches!(codec.take_frame(stalled), Arrival::Frame(Frame::Data(_))));
    assert_eq!(codec.end_stalled(), 0);
    codec.mark_stalled();
    drain(&mut codec);
    assert_eq!(codec.end_stalled(), 1);
    let sent = sent(&mut codec);
    assert!(sent.contains(&(kind::RST_STREAM, 1)) && sent.contains(&(kind::WINDOW_UPDATE, 0)), "{sent:?}");
    let Arrival::Cut(fate) = codec.take_frame(stalled) else { panic!("it has ended") };
    assert_eq!(fate.broken().map(|fault| fault.kind), Some(FaultKind::ResponseSendTimeout));
    assert!(!codec.is_starved());
    feed(&mut codec, &frame(kind::HEADERS, 5, 3, b"\x88"));
    assert!(codec.take_head(other).is_ok_and(|head| head.is_some()));
}

#[test]
fn streams_are_counted() {
    let mut codec = server(CONFIG);
    for n in 0..5 {
        feed(&mut codec, &frame(kind::HEADERS, 4, 2 * n + 1, POST));
    }
    let keys: Vec<StreamKey> = std::iter::from_fn(|| codec.next_incoming()).map(|it| it.key).collect();
    assert_eq!((keys.len(), reset_of(&mut codec, 9)), (4, Some(ErrorCode::REFUSED_STREAM.0)));
    // Cancelled streams make room for others, as long as their exchanges end too.
    for n in 0..4 {
        feed(&mut codec, &frame(kind::RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8]));
        let mut input = Chunk::copy_of(&frame(kind::HEADERS, 4, 2 * n + 11, POST));
        codec.receive(&mut input, 1_000);
        assert_eq!(failure(&codec), (n == 3).then_some(ErrorCode::ENHANCE_YOUR_CALM), "{n}");
    }
    assert!(keys.iter().all(|key| codec.fate(*key).is_some()));
}

#[test]
fn decompression_bombs_and_endless_heads() {
    let mut codec = server(CONFIG);
    let mut block = [GET, b"\x40\x01a\x7f\x81\x1e", &[b'x'; 4_000]].concat();
    block.extend([0xbe; 200]);
    feed(&mut codec, &frame(kind::HEADERS, 5, 1, &block));
    assert_eq!(failure(&codec), Some(ErrorCode::ENHANCE_YOUR_CALM));
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::HEADERS, 1, 1, GET));
    assert!(codec.is_head_open());
    for _ in 0..2 {
        feed(&mut codec, &frame(kind::CONTINUATION, 0, 1, &[b'x'; 16_000]));
    }
    assert_eq!(failure(&codec), Some(ErrorCode::ENHANCE_YOUR_CALM));
}

/// A peer that sends requests and does not read is not read from either.
#[test]
fn unread_output_is_bounded() {
    let mut codec = server(Config { flood: FloodLimits::NONE, ..CONFIG });
    let mut asked = 0;
    while codec.may_receive() && asked < 100_000 {
        feed(&mut codec, &frame(kind::PING, 0, 0, &[7; 8]));
        asked += 1;
    }
    assert!((10_000..20_000).contains(&asked), "{asked}");
    drain(&mut codec);
    assert!(codec.may_receive());
}

#[test]
fn connection_errors() {
    let hello = |rest: &[u8]| [PREFACE, &frame(kind::SETTINGS, 0, 0, &[]), rest].concat();
    let setting = |id: u16, value: u32| {
        frame(kind::SETTINGS, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
    };
    for (bytes, code) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), ErrorCode::PROTOCOL_ERROR),
        ([PREFACE, &frame(kind::PING, 0, 0, &[0; 8])].concat(), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::HEADERS, 5, 2, GET)), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::HEADERS, 5, 1, b"\xff")), ErrorCode::COMPRESSION_ERROR),
        (hello(&frame(kind::DATA, 0, 0, b"x")), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::DATA, 0, 1, b"x")), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::CONTINUATION, 4, 1, b"")), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::PUSH_PROMISE, 4, 1, &[0; 8])), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::PING, 0, 0, &[0; 7])), ErrorCode::FRAME_SIZE_ERROR),
        (hello(&frame(kind::RST_STREAM, 0, 1, &[0; 4])), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4])), ErrorCode::PROTOCOL_ERROR),
        (hello(&frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])), ErrorCode::FLOW_CONTROL_ERROR),
        (hello(&frame(kind::SETTINGS, 1, 0, b"x")), ErrorCode::FRAME_SIZE_ERROR),
        (hello(&frame(kind::GOAWAY, 0, 0, &[0; 7])), ErrorCode::FRAME_SIZE_ERROR),
        (hello(&setting(setting::ENABLE_PUSH, 2)), ErrorCode::PROTOCOL_ERROR),
        (hello(&setting(setting::MAX_FRAME_SIZE, 1)), ErrorCode::PROTOCOL_ERROR),
        (hello(&setting(setting::INITIAL_WINDOW_SIZE, 1 << 31)), ErrorCode::FLOW_CONTROL_ERROR),
        (hello(&[0, 64, 1, 6, 0, 0, 0, 0, 0]), ErrorCode::FRAME_SIZE_ERROR),
        (hello(&frame(kind::HEADERS, 0x0c, 1, &[9, 0])), ErrorCode::PROTOCOL_ERROR),
    ] {
        let mut codec = Codec::new(CONFIG);
        let mut input = Chunk::copy_of(&bytes);
        codec.receive(&mut input, 1_000);
        assert_eq!(failure(&codec), Some(code), "{bytes:?}");
        let (last, payload) = frames(&mut codec).pop().expect("a frame");
        assert_eq!((last.kind, payload[7]), (kind::GOAWAY, code.0 as u8));
    }
}

#[test]
fn a_stream_is_counted_from_its_head_to_its_release() {
    use sigma_buffer::held;
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::SETTINGS, 0, 0, b"\0\x04\0\0\0\0"));
    feed(&mut codec, &frame(kind::HEADERS, flag::END_HEADERS, 1, POST));
    let head = held::total();
    assert!(head >= held::EXCHANGE_BYTES, "{head}");
    feed(&mut codec, &frame(kind::DATA, flag::END_STREAM, 1, &[b'a'; 100]));
    let with_data = held::total();
    assert!(with_data > head, "{with_data}");
    let key = codec.next_incoming().expect("a request").key;
    assert!(matches!(codec.take_frame(key), Arrival::Frame(Frame::Data(_))));
    assert_eq!(held::total(), head);
    codec.hold(key, 5_000);
    assert_eq!(held::total(), head + 5_000);
    codec.hold(key, 0);
    codec.queue(key, data(&[b'b'; 500]));
    codec.flush(key);
    let waiting = held::total() - head;
    assert!(
        (500..2_048).contains(&waiting),
        "a piece that waits has little more memory than it needs: {waiting}"
    );
    codec.release(key);
    assert_eq!(held::total(), 0);
}

#[test]
fn a_stream_without_room_is_refused_and_leaves_nothing() {
    use sigma_buffer::held;
    let mut codec = server(CONFIG);
    codec.take_glitches();
    held::set_limit(0);
    feed(&mut codec, &frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, GET));
    assert_eq!(reset_of(&mut codec, 1), Some(ErrorCode::REFUSED_STREAM.0));
    assert_eq!((held::total(), held::refusals(), codec.held()), (0, 1, 0));
    assert_eq!(codec.take_glitches(), [0; GLITCHES], "it is not a fault of the client");
    held::set_limit(held::DEFAULT_LIMIT_BYTES);
    feed(&mut codec, &frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, GET));
    assert_eq!(codec.next_incoming().map(|incoming| incoming.key.id()), Some(3));
}

#[test]
fn a_revoked_stream_is_reset_and_its_exchange_gets_a_fault() {
    use sigma_buffer::held;
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, GET));
    let key = codec.next_incoming().expect("a request").key;
    codec.hold(key, 1 << 20);
    held::set_limit(1 << 20);
    assert_eq!(held::reclaim(60_000), 1);
    codec.end_revoked();
    assert_eq!(reset_of(&mut codec, 1), Some(ErrorCode::ENHANCE_YOUR_CALM.0));
    assert_eq!(codec.fate(key).and_then(Fate::broken).map(|fault| fault.kind), Some(FaultKind::MemoryLimit));
    codec.release(key);
    assert_eq!((held::total(), failure(&codec)), (0, None));
}

#[test]
fn a_stream_that_is_never_blocked_makes_progress() {
    use sigma_buffer::held;
    let mut codec = server(CONFIG);
    feed(&mut codec, &frame(kind::SETTINGS, 0, 0, b"\0\x04\0\x0f\0\0"));
    feed(&mut codec, &frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, GET));
    let key = codec.next_incoming().expect("a request").key;
    codec.hold(key, 1 << 20);
    held::set_limit(1 << 20);
    for _ in 0..5 {
        codec.queue(key, data(&[b'a'; 10_000]));
        codec.flush(key);
        drain(&mut codec);
        assert!(codec.is_flushed(key));
    }
    assert_eq!(held::reclaim(60_000), 0);
    codec.release(key);
}
