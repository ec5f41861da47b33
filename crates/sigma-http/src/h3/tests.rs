//! The rules of RFC 9114, by tables of bytes and results.

use super::frame::{FrameHeader, kind, put_number, put_settings};
use super::*;
use crate::h1::{HeadLimits, Tolerance};
use crate::{BodyLength, Chunk, HeaderId, Method, RequestHead, ResponseHead, Version};

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 1024, head_bytes: 8192, fields: 40, tolerance: Tolerance::NONE };

fn codec(role: Role) -> Codec {
    codec_with(role, FloodLimits::NONE)
}

fn codec_with(role: Role, flood: FloodLimits) -> Codec {
    Codec::new(Config {
        role,
        streams: 100,
        header_list_bytes: 16 * 1024,
        table_bytes: 4096,
        blocked_streams: 2,
        head: HEAD,
        flood,
    })
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FrameHeader { kind, length: payload.len() as u64 }.put(&mut out);
    out.extend_from_slice(payload);
    out
}

fn number(kind: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(kind, value, &mut out);
    out
}

fn settings(pairs: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    put_settings(pairs, &mut out);
    out
}

fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = qpack::Encoder::default();
    encoder.end(&mut out);
    for (name, value) in fields {
        encoder.encode(HeaderId::of(name.as_bytes()), name.as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "h.test"), (":path", "/x?y")];
const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "https"), (":authority", "h.test"), (":path", "/")];

fn head(base: &[(&str, &str)], more: &[(&str, &str)]) -> Vec<u8> {
    frame(kind::HEADERS, &section(&[base, more].concat()))
}

/// A unidirectional stream of `kind` with `bytes`.
fn uni(codec: &mut Codec, kind: u8, bytes: &[u8]) -> (UniStream, Result<bool, u64>) {
    let mut stream = UniStream::default();
    let opened = codec.receive_uni(&mut stream, &[kind]).and_then(|_| codec.receive_uni(&mut stream, bytes));
    (stream, opened.map_err(|broken| broken.code.0))
}

/// The events of a whole stream as text, each in a word; an error as `stream:code` or `connection:code`.
fn events(codec: &mut Codec, bytes: &[u8], ended: bool) -> String {
    pieces(codec, bytes, bytes.len().max(1), ended)
}

fn pieces(codec: &mut Codec, bytes: &[u8], size: usize, ended: bool) -> String {
    let mut message = Message::new(0, false);
    let mut words: Vec<String> = Vec::new();
    let mut input = Chunk::empty();
    let mut left: Vec<&[u8]> = bytes.chunks(size).collect();
    left.reverse();
    loop {
        if let Some(piece) = left.pop() {
            input.reserve_total(input.len() + piece.len());
            assert!(input.try_append(piece));
        }
        loop {
            let ended = ended && left.is_empty();
            let word = match codec.read(&mut message, &mut input, ended) {
                Ok(Event::Nothing) => break,
                Ok(Event::Blocked) => return words.join(" ") + " blocked",
                Ok(Event::Request(request)) => {
                    let Request { head, length, .. } = *request;
                    match length {
                        Ok(length) => format!("{:?}:{length:?}", head.method),
                        Err(fault) => format!("bad:{}", fault.kind.row().status.unwrap_or(0)),
                    }
                }
                Ok(Event::Response(head)) => head.status.to_string(),
                Ok(Event::Data(data)) => format!("data:{}", data.len()),
                Ok(Event::Trailers(trailers)) => format!("trailers:{}", trailers.iter().count()),
                Ok(Event::End) => return [words.join(" "), "end".to_owned()].join(" "),
                Err(Broken { scope, code, .. }) => {
                    words.push(format!("{scope:?}:{:x}", code.0).to_lowercase());
                    return words.join(" ");
                }
            };
            words.push(word);
        }
        if left.is_empty() {
            return words.join(" ");
        }
    }
}

fn server(bytes: &[u8], ended: bool) -> String {
    events(&mut codec(Role::Server), bytes, ended)
}

#[test]
fn requests_are_read() {
    let trailers = frame(kind::HEADERS, &section(&[("x-t", "1")]));
    let grease = [frame(0x21 + 0x1f * 7, b"grease"), frame(0x4444, b"")].concat();
    for (parts, expected) in [
        (vec![head(&GET, &[])], "Get:None end"),
        (vec![grease.clone(), head(&GET, &[]), grease.clone()], "Get:None end"),
        (vec![head(&POST, &[]), frame(0, b"hello")], "Post:Streamed data:5 end"),
        (
            vec![head(&POST, &[("content-length", "5")]), frame(0, b"hel"), frame(0, b"lo")],
            "Post:Known(5) data:3 data:2 end",
        ),
        (vec![head(&POST, &[]), frame(0, b"hello"), trailers.clone()], "Post:Streamed data:5 trailers:1 end"),
        (
            vec![head(&POST, &[]), grease.clone(), frame(0, b"hi"), grease.clone(), trailers.clone(), grease],
            "Post:Streamed data:2 trailers:1 end",
        ),
        (vec![head(&POST, &[]), frame(0, b"")], "Post:Streamed end"),
        (vec![head(&[(":method", "CONNECT"), (":authority", "h:1")], &[])], "Connect:None end"),
    ] {
        let bytes = parts.concat();
        assert_eq!(server(&bytes, true), expected, "{expected}");
        // The end is seen later than the head, and data comes in pieces.
        let merged = |text: String| text.replace("Streamed", "None");
        let slow = pieces(&mut codec(Role::Server), &bytes, 1, true);
        assert_eq!(
            slow.split(' ').next().map(|word| merged(word.to_owned())),
            expected.split(' ').next().map(|word| merged(word.to_owned()))
        );
        assert!(slow.ends_with("end"), "{slow}");
    }
}

#[test]
fn long_varints_are_read() {
    let section = section(&POST);
    let mut bytes =
        [&[0xc0, 0, 0, 0, 0, 0, 0, 1, 0xc0, 0, 0, 0, 0, 0, 0, section.len() as u8][..], &section].concat();
    bytes.extend_from_slice(&[0x40, 0, 0x80, 0, 0, 5]);
    bytes.extend_from_slice(b"hello");
    assert_eq!(server(&bytes, true), "Post:Streamed data:5 end");
}

#[test]
fn frames_in_a_wrong_place_end_the_connection() {
    let trailers = frame(kind::HEADERS, &section(&[("x-t", "1")]));
    let post = head(&POST, &[]);
    let connect = head(&[(":method", "CONNECT"), (":authority", "h:1")], &[]);
    let tunnel = head(
        &[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", "h"),
            (":path", "/"),
        ],
        &[],
    );
    let mut cases = vec![
        (vec![frame(0, b"x")], "connection:105"),
        (vec![post.clone(), trailers.clone(), frame(0, b"x")], "Post:Streamed trailers:1 connection:105"),
        (vec![post.clone(), trailers.clone(), trailers.clone()], "Post:Streamed trailers:1 connection:105"),
        (vec![post.clone(), frame(6, &[0; 8])], "Post:Streamed connection:105"),
        (vec![frame(kind::SETTINGS, b"")], "connection:105"),
        (vec![number(kind::MAX_PUSH_ID, 1)], "connection:105"),
        (vec![number(kind::CANCEL_PUSH, 1)], "connection:105"),
        (vec![number(kind::GOAWAY, 0)], "connection:105"),
        (vec![frame(kind::PUSH_PROMISE, &[0, 0, 0])], "connection:105"),
        (vec![frame(kind::PRIORITY_UPDATE, &[0])], "connection:105"),
        (vec![connect, trailers.clone()], "Connect:None connection:105"),
        (vec![tunnel, trailers], "Get:Streamed connection:105"),
    ];
    for reserved in [2, 6, 8, 9] {
        cases.push((vec![frame(reserved, &[0; 4])], "connection:105"));
    }
    for (parts, expected) in cases {
        assert_eq!(server(&parts.concat(), false), expected, "{parts:x?}");
    }
}

#[test]
fn truncated_streams() {
    let post = head(&POST, &[]);
    for (bytes, expected) in [
        (vec![], "stream:10d"),
        ([&post[..], &[0, 0x40, 100], b"short"].concat(), "Post:Streamed data:5 connection:106"),
        ([&post[..], &[0, 0x40]].concat(), "Post:Streamed connection:106"),
        ([&post[..], &[0x21, 50], b"abc"].concat(), "Post:Streamed connection:106"),
        (post[..post.len() - 1].to_vec(), "connection:106"),
        (frame(0x21, b"grease only"), "stream:10d"),
    ] {
        assert_eq!(server(&bytes, true), expected, "{bytes:x?}");
    }
}

#[test]
fn malformed_messages_end_their_stream() {
    let length = |value| ("content-length", value);
    for (parts, expected) in [
        (vec![head(&POST, &[length("10")])], "bad:400 end"),
        (vec![head(&POST, &[length("abc")])], "bad:400 end"),
        (vec![head(&POST, &[length("5"), length("6")])], "bad:400 end"),
        (vec![head(&POST, &[length("10")]), frame(0, b"hello")], "Post:Known(10) data:5 stream:10e"),
        (vec![head(&POST, &[length("3")]), frame(0, b"hello")], "Post:Known(3) stream:10e"),
        (vec![head(&POST, &[]), frame(1, &section(&[(":path", "/")]))], "Post:Streamed stream:10e"),
        (vec![head(&POST, &[]), frame(1, &section(&[("connection", "close")]))], "Post:Streamed stream:10e"),
        (vec![head(&GET, &[("connection", "close")])], "bad:400 end"),
        (vec![head(&GET, &[("te", "gzip")])], "bad:400 end"),
        (vec![head(&GET, &[("x-a", "1\r\nx-b: 2")])], "bad:400 end"),
        (vec![head(&GET, &[(":authority", "late")])], "bad:400 end"),
        (vec![head(&GET[..3], &[])], "bad:400 end"),
        (vec![frame(1, &section(&[("host", "h")]))], "bad:400 end"),
        (vec![head(&GET, &[(":protocol", "websocket")])], "bad:400 end"),
    ] {
        assert_eq!(server(&parts.concat(), true), expected, "{parts:x?}");
    }
    assert_eq!(server(&frame(1, &[0, 0, 0xff, 0x24]), true), "connection:200", "static index 99");
}

#[test]
fn large_heads_are_rejected_without_memory() {
    let mut bytes = vec![1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
    assert_eq!(server(&bytes, false), "bad:431");
    bytes = [head(&POST, &[]), vec![1, 0x80, 1, 0, 0]].concat();
    assert_eq!(server(&bytes, false), "Post:Streamed stream:107");
    let value = "v".repeat(9000);
    assert_eq!(server(&head(&GET, &[("x", &value)]), true), "bad:431 end");
}

#[test]
fn responses_are_read() {
    let response = |status| head(&[(":status", status)], &[]);
    for (parts, to_head, expected) in [
        (vec![response("103"), response("200"), frame(0, b"hi")], false, "103 200 data:2 end"),
        (vec![response("204"), frame(0, b"hi")], false, "204 stream:10e"),
        (vec![head(&[(":status", "200")], &[("content-length", "5")])], true, "200 end"),
        (vec![head(&[(":status", "200")], &[("content-length", "5")])], false, "stream:10e"),
        (vec![response("101")], false, "stream:10e"),
        (vec![response("100")], false, "100 stream:10d"),
        (vec![frame(kind::PUSH_PROMISE, &[0, 0, 0])], false, "connection:108"),
    ] {
        let mut codec = codec(Role::Client);
        let mut message = Message::new(0, to_head);
        let mut input = Chunk::copy_of(&parts.concat());
        let mut words = Vec::new();
        let expected: Vec<&str> = expected.split(' ').collect();
        while words.len() < expected.len() {
            words.push(match codec.read(&mut message, &mut input, true) {
                Ok(Event::Response(head)) => head.status.to_string(),
                Ok(Event::Data(data)) => format!("data:{}", data.len()),
                Ok(Event::End) => "end".to_owned(),
                Ok(other) => format!("{other:?}"),
                Err(Broken { scope, code, .. }) => format!("{scope:?}:{:x}", code.0).to_lowercase(),
            });
        }
        assert_eq!(words, expected);
    }
}

#[test]
fn control_streams_of_clients() {
    let greeting = settings(&[(1, 4096), (6, 1 << 20), (7, 16)]);
    let check = |more: Vec<Vec<u8>>, expected: Result<bool, u64>| {
        let bytes = more.concat();
        let (_, got) = uni(&mut codec(Role::Server), 0, &bytes);
        assert_eq!(got, expected, "{bytes:x?}");
        let mut by_byte = codec(Role::Server);
        let mut stream = UniStream::default();
        let mut result = by_byte.receive_uni(&mut stream, &[0]);
        for byte in bytes {
            result = result.and_then(|_| by_byte.receive_uni(&mut stream, &[byte]));
        }
        assert_eq!(result.map_err(|broken| broken.code.0), expected);
    };
    let after = |frame: Vec<u8>| vec![greeting.clone(), frame];
    let priority = |id: u64, value: &[u8]| {
        let mut payload = Vec::new();
        varint::put(id, &mut payload);
        frame(kind::PRIORITY_UPDATE, &[&payload[..], value].concat())
    };
    check(vec![greeting.clone()], Ok(true));
    check(vec![frame(0x21, b"abc")], Err(0x10a));
    check(vec![number(kind::MAX_PUSH_ID, 1)], Err(0x10a));
    check(vec![settings(&[(4, 1)])], Err(0x109));
    check(after(greeting.clone()), Err(0x105));
    check(after(frame(0x21, b"grease")), Ok(true));
    for kind in [0, 1, 2, 5, 6, 8, 9] {
        check(after(frame(kind, &[0; 4])), Err(0x105));
    }
    check(after(number(kind::CANCEL_PUSH, 0)), Err(0x108));
    check(after([number(0xd, 5), number(0xd, 5), number(0xd, 9)].concat()), Ok(true));
    check(after([number(0xd, 5), number(0xd, 4)].concat()), Err(0x108));
    check(after(frame(0xd, b"")), Err(0x106));
    check(after(frame(0xd, &[1, 1])), Err(0x106));
    check(after(frame(7, &[0; 9])), Err(0x106));
    check(after([number(7, 8), number(7, 4), number(7, 4)].concat()), Ok(true));
    check(after([number(7, 4), number(7, 8)].concat()), Err(0x108));
    check(after([priority(0, b"u=2, i"), priority(40, b"u=7")].concat()), Ok(true));
    check(after(priority(1, b"u=2")), Err(0x108));
    check(after(priority(4 * 101, b"u=2")), Err(0x108));
    check(after(frame(kind::PRIORITY_UPDATE, b"")), Err(0x106));
    check(after(frame(kind::PRIORITY_UPDATE_PUSH, &[0])), Err(0x108));
}

#[test]
fn control_streams_of_servers() {
    for (bytes, expected) in [
        (number(7, 8), Ok(true)),
        (number(7, 2), Err(0x108)),
        ([number(7, 8), number(7, 12)].concat(), Err(0x108)),
        (number(kind::MAX_PUSH_ID, 1), Err(0x105)),
        (frame(kind::PRIORITY_UPDATE, &[0]), Err(0x105)),
    ] {
        let mut codec = codec(Role::Client);
        assert_eq!(uni(&mut codec, 0, &[settings(&[]), bytes].concat()).1, expected);
    }
}

#[test]
fn critical_streams_come_once_and_last() {
    for kind in [0, 2, 3] {
        let mut codec = codec(Role::Server);
        let (stream, first) = uni(&mut codec, kind, b"");
        assert_eq!((first, uni(&mut codec, kind, b"").1), (Ok(true), Err(0x103)), "{kind}");
        assert_eq!(codec.end_uni(&stream).map_err(|broken| broken.code.0), Err(0x104));
    }
    assert_eq!(uni(&mut codec(Role::Server), 1, b"").1, Err(0x103), "a push stream from a client");
    assert_eq!(uni(&mut codec(Role::Client), 1, b"").1, Err(0x108), "a push without permission");
    let mut codec = codec(Role::Server);
    let (ignored, taken) = uni(&mut codec, 0x21, b"data");
    assert_eq!((taken, codec.end_uni(&ignored)), (Ok(false), Ok(())));
    assert_eq!(codec.end_uni(&UniStream::default()), Ok(()), "it ended before its type");
    let mut long = UniStream::default();
    assert_eq!(codec.receive_uni(&mut long, &[0x40]), Ok(true));
    assert_eq!(codec.receive_uni(&mut long, &[0x54, 0, 1]), Ok(false));
}

#[test]
fn sections_wait_for_their_entries() {
    let mut codec = codec(Role::Server);
    let (mut encoder, _) = uni(&mut codec, 2, &[0x3f, 0xe1, 0x1f]);
    let blocked = frame(1, &[&[2, 0][..], &section(&GET)[2..], &[0x80]].concat());
    let mut messages: Vec<(Message, Chunk)> =
        [0, 4].map(|id| (Message::new(id, false), Chunk::copy_of(&blocked))).into();
    for (message, input) in &mut messages {
        assert!(matches!(codec.read(message, input, true), Ok(Event::Blocked)));
        assert!(matches!(codec.read(message, input, true), Ok(Event::Blocked)));
    }
    let mut third = Message::new(8, false);
    let error = codec.read(&mut third, &mut Chunk::copy_of(&blocked), true).unwrap_err();
    assert_eq!((error.scope, error.code), (Scope::Connection, ErrorCode::QPACK_DECOMPRESSION_FAILED));
    codec.abandon(4);
    codec.outputs().decoder.clear();
    codec.receive_uni(&mut encoder, b"\x43x-a\x011").unwrap();
    let mut unblocked = Vec::new();
    codec.take_unblocked(|id| unblocked.push(id));
    assert_eq!(unblocked, [0]);
    let (message, input) = &mut messages[0];
    let Ok(Event::Request(request)) = codec.read(message, input, true) else { panic!("a request") };
    assert_eq!(request.head.headers.find(b"x-a"), Some(&b"1"[..]));
    assert_eq!(request.length.unwrap(), BodyLength::None);
    assert_eq!(codec.outputs().decoder, [1, 0x80], "one entry, then the section");
}

#[test]
fn connections_begin_and_leave_in_two_steps() {
    let mut codec = codec(Role::Server);
    let outputs = std::mem::take(codec.outputs());
    assert_eq!((outputs.encoder, outputs.decoder), (vec![2], vec![3]));
    let mut client = self::codec(Role::Client);
    let mut control = UniStream::default();
    client.receive_uni(&mut control, &outputs.control).unwrap();
    assert!(client.is_greeted() && client.peer().extended_connect);
    assert_eq!(client.peer().field_section_bytes, 16 * 1024);
    assert!(codec.begin(0) && codec.begin(8));
    assert!(codec.leave() && !codec.leave());
    client.receive_uni(&mut control, &std::mem::take(codec.outputs()).control).unwrap();
    assert_eq!(client.peer_goaway(), Some((1 << 62) - 4));
    assert!(codec.begin(12) && codec.begin(4), "no request is excluded yet");
    codec.leave_at_last();
    client.receive_uni(&mut control, &std::mem::take(codec.outputs()).control).unwrap();
    assert_eq!(client.peer_goaway(), Some(16));
    assert!(codec.begin(0) && !codec.begin(16) && codec.has_left());
}

#[test]
fn floods_end_the_connection() {
    let flood = FloodLimits { resets_per_minute: 50, controls_per_second: 50 };
    let grease = frame(0x21, b"x").repeat(100);
    let empty = [head(&POST, &[]), frame(0, b"").repeat(100)].concat();
    assert_eq!(events(&mut codec_with(Role::Server, flood), &grease, false), "connection:107");
    assert_eq!(events(&mut codec_with(Role::Server, flood), &empty, false), "Post:Streamed connection:107");
    let updates = [settings(&[]), frame(kind::PRIORITY_UPDATE, &[0]).repeat(100)].concat();
    assert_eq!(uni(&mut codec_with(Role::Server, flood), 0, &updates).1, Err(0x107));
    let inserts = [&[0x3f, 0xe1, 0x1f][..], &b"\x41x\x01y".repeat(400)].concat();
    assert_eq!(uni(&mut codec_with(Role::Server, flood), 2, &inserts).1, Err(0x107));
    assert_eq!(uni(&mut codec_with(Role::Server, flood), 2, &inserts[..3 + 4 * 200]).1, Ok(true));
}

#[test]
fn heads_pass_from_side_to_side() {
    let (mut client, mut server) = (codec(Role::Client), codec(Role::Server));
    let mut head = RequestHead::default();
    let wire = b"PUT /a?b HTTP/1.1\r\nHost: h.test\r\nX-One: 1\r\nConnection: close\r\n\r\n";
    crate::h1::parse_request(wire, &HEAD, &mut head).unwrap();
    let mut out = Vec::new();
    client.put_request(0, &head, RequestLine { scheme: b"https", target: b"/a?b" }, &mut out);
    let Ok(Event::Request(request)) =
        server.read(&mut Message::new(0, false), &mut Chunk::copy_of(&out), false)
    else {
        panic!("a request")
    };
    let got = request.head;
    assert_eq!((got.method, got.version, got.path_and_query()), (Method::Put, Version::Http3, &b"/a?b"[..]));
    assert_eq!(got.headers.find(b"x-one"), Some(&b"1"[..]));
    assert!(!got.headers.has(HeaderId::Connection));

    let mut answer = ResponseHead::default();
    answer.start(404);
    answer.headers.append("X-Two", b"2");
    let mut out = Vec::new();
    server.put_response(0, 404, &answer.headers, b"today", &mut out);
    out.extend_from_slice(&data_header(2));
    out.extend_from_slice(b"hi");
    server.put_trailers(0, &answer.headers, &mut out);
    let (mut message, mut input) = (Message::new(0, false), Chunk::copy_of(&out));
    let Ok(Event::Response(got)) = client.read(&mut message, &mut input, true) else { panic!("a response") };
    assert_eq!((got.status, got.headers.get(HeaderId::Date)), (404, Some(&b"today"[..])));
    assert!(
        matches!(client.read(&mut message, &mut input, true), Ok(Event::Data(data)) if data[..] == *b"hi")
    );
    let Ok(Event::Trailers(trailers)) = client.read(&mut message, &mut input, true) else {
        panic!("trailers")
    };
    assert_eq!(trailers.find(b"x-two"), Some(&b"2"[..]));
    assert!(matches!(client.read(&mut message, &mut input, true), Ok(Event::End)));
}

#[test]
fn priorities_come_from_fields_and_frames() {
    let mut codec = codec(Role::Server);
    let (mut control, _) = uni(&mut codec, 0, &settings(&[]));
    let update = |value: &[u8]| frame(kind::PRIORITY_UPDATE, &[&[4][..], value].concat());
    codec.receive_uni(&mut control, &update(b"u=1")).unwrap();
    let read = |codec: &mut Codec, id| {
        codec.begin(id);
        let mut input = Chunk::copy_of(&head(&GET, &[("priority", "u=5, i")]));
        match codec.read(&mut Message::new(id, false), &mut input, true) {
            Ok(Event::Request(request)) => request.priority,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(&mut codec, 0), Priority { urgency: 5, incremental: true });
    assert_eq!(read(&mut codec, 4), Priority { urgency: 1, incremental: false });
    codec.receive_uni(&mut control, &update(b"u=7")).unwrap();
    let mut changed = Vec::new();
    codec.take_priorities(|change| changed.push(change));
    assert_eq!(changed, [(4, Priority { urgency: 7, incremental: false })]);

    let order = |urgency, incremental, id| send_order(Priority { urgency, incremental }, id);
    assert!(order(0, false, 400) > order(1, true, 0) && order(1, false, 400) > order(2, false, 0));
    assert!(order(3, false, 0) > order(3, false, 4) && order(3, false, 4) > order(3, true, 0));
    assert_eq!(order(3, true, 0), order(3, true, 4));
    assert!(order(7, false, 0) < order(6, true, 0) && order(0, false, 0) > order(0, true, 0));
}
