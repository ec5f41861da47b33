//! Both ends of each version understand each other, without a gateway between them.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use sigma_http::h1::{Tolerance, parse_request};
use sigma_http::{BodyLength, Chunk, Frame, Headers, Method, RequestHead, ResponseHead};
use sigma_net::{Deadline, Peer, Stream};
use sigma_wire::h1::{Server, ServerLimits};
use sigma_wire::h2::{
    FloodLimits, FlowWindows, Reused, ServerStream, Session, SessionLimits, SharedConnection, SharedLimits,
};
use sigma_wire::{Connection, Downstream, HeadLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::LocalSet;
use tokio::time::timeout;

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE };

const NOT_LONG_MS: u64 = 60_000;
const NOT_LONG: Duration = Duration::from_millis(NOT_LONG_MS);

const SESSION: SessionLimits = SessionLimits {
    head: HEAD,
    body_bytes: 0,
    requests: 100,
    head_ms: NOT_LONG_MS,
    idle_ms: NOT_LONG_MS,
    send_ms: NOT_LONG_MS,
    progress_bytes: 1,
    streams: 10,
    header_list_bytes: 1_000,
    frame_bytes: 16_384,
    windows: FlowWindows { stream_bytes: 65_535, connection_bytes: 65_535 },
    pending_resets: 10,
    flood: FloodLimits::NONE,
};

const SHARED: SharedLimits = SharedLimits {
    head: HEAD,
    streams: 10,
    windows: FlowWindows { stream_bytes: 65_535, connection_bytes: 65_535 },
    frame_bytes: 16_384,
    header_list_bytes: 1_000,
    controls_per_second: u32::MAX,
    crowded_ms: 1_000,
    stalled_ms: 14_000,
};

fn pair() -> (Stream, Stream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    (Stream::Unix(near), Stream::Unix(far))
}

/// More than a socket takes at once, so that both ends have to wait.
fn long() -> Vec<u8> {
    (0..1_000_000u32).map(|n| n as u8).collect()
}

/// Sends a request with a long body, and checks the response of [`answer`].
async fn ask(mut connection: Connection) {
    let text = b"POST /a?b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nConnection: x-b\r\n\r\n";
    let mut head = RequestHead::default();
    parse_request(text, &HEAD, &mut head).expect("a valid head").expect("a whole one");
    let (body, mut taken) = (long(), 0);
    connection.send_head(&mut head, None, BodyLength::Known(body.len() as u64), None);
    let mut ended = false;
    while !ended {
        while connection.has_room() && !ended {
            let piece = Chunk::next_of(&body, &mut taken);
            ended = piece.is_none();
            connection.send(piece.map_or(Frame::End, Frame::Data));
        }
        poll_fn(|cx| connection.poll_flush(cx)).await.expect("the request leaves");
    }
    let mut answer = ResponseHead::default();
    poll_fn(|cx| connection.poll_head(cx, Method::Post, &HEAD, &mut answer)).await.expect("an answer");
    assert_eq!((answer.status, answer.headers.find(b"x-c")), (203, Some(&b"3"[..])));
    let (mut got, mut trailers) = (Vec::new(), None);
    while trailers.is_none() {
        match poll_fn(|cx| connection.poll_frame(cx)).await.expect("a body") {
            Frame::Data(data) => got.extend_from_slice(&data),
            Frame::Trailers(fields) => trailers = Some(fields),
            Frame::End => panic!("the trailers are lost"),
        }
    }
    assert!(got == body, "{} bytes", got.len());
    assert_eq!(trailers.expect("trailers").find(b"x-sum"), Some(&b"9"[..]));
}

/// Sends the body of the request back, with trailers.
async fn answer(mut down: Downstream<'_>, head: &RequestHead) {
    assert_eq!((head.method, head.path_and_query()), (Method::Post, &b"/a?b"[..]));
    assert_eq!((head.authority(), head.headers.find(b"x-a")), (&b"h"[..], Some(&b"1"[..])));
    let mut answer = ResponseHead::default();
    answer.status = 203;
    answer.headers.append("X-C", b"3");
    down.send_head(&mut answer, BodyLength::Streamed, b"Sun, 06 Nov 1994 08:49:37 GMT");
    let mut trailers = Headers::default();
    trailers.append("X-Sum", b"9");
    // The client sends everything before it reads, so the request is buffered.
    let mut pieces = Vec::new();
    while let Frame::Data(data) = poll_fn(|cx| down.poll_frame(cx)).await.expect("a body") {
        pieces.push(data);
    }
    let data = pieces.into_iter().map(Frame::Data);
    for frame in data.chain([Frame::Trailers(Box::new(trailers))]) {
        poll_fn(|cx| down.poll_flush(cx)).await.expect("the answer leaves");
        assert!(down.has_room());
        down.send(frame);
    }
    poll_fn(|cx| down.poll_flush(cx)).await.expect("the answer leaves");
}

#[tokio::test]
async fn one_exchange_at_a_time() {
    let (near, far) = pair();
    let limits = Rc::new(ServerLimits {
        head: HEAD,
        body_bytes: 0,
        requests: 100,
        head_ms: NOT_LONG_MS,
        idle_ms: NOT_LONG_MS,
        half_close_ms: NOT_LONG_MS,
        alternative: None,
    });
    let mut server = Server::new(far, Chunk::empty(), limits, Rc::new(Cell::new(true)));
    let serve = async {
        let mut head = RequestHead::default();
        server.wait(|_| false).await.expect("a request");
        server.read_head(&mut head).await.expect("its head");
        answer(Downstream::H1(&mut server), &head).await;
        assert!(!server.continues(), "the answer began before the whole body was there");
    };
    let both = async { tokio::join!(ask(Connection::single(near, Deadline::new())), serve) };
    timeout(NOT_LONG, both).await.expect("an end in time");
}

/// Returns an HTTP/1 connection whose listener accepts as long as `listens` is set, and its client's end.
fn served(half_close_ms: u64, listens: &Rc<Cell<bool>>) -> (Stream, Server) {
    let (near, far) = pair();
    let limits = ServerLimits {
        head: HEAD,
        body_bytes: 0,
        requests: 100,
        head_ms: NOT_LONG_MS,
        idle_ms: NOT_LONG_MS,
        half_close_ms,
        alternative: None,
    };
    (near, Server::new(far, Chunk::empty(), Rc::new(limits), Rc::clone(listens)))
}

async fn reads_head(server: &mut Server) {
    server.wait(|_| false).await.expect("a request");
    server.read_head(&mut RequestHead::default()).await.expect("its head");
}

fn send_response(down: &mut Downstream<'_>, length: BodyLength) {
    let mut head = ResponseHead::default();
    head.start(200);
    down.send_head(&mut head, length, b"Sun, 06 Nov 1994 08:49:37 GMT");
}

/// Returns true if the response to `request` announces the end of the connection; the body is not read.
async fn announces_close(request: &str, listens: bool) -> bool {
    let (mut near, mut server) = served(NOT_LONG_MS, &Rc::new(Cell::new(listens)));
    near.write_all(request.as_bytes()).await.expect("the request leaves");
    reads_head(&mut server).await;
    let mut down = Downstream::H1(&mut server);
    down.forgo_body();
    send_response(&mut down, BodyLength::None);
    poll_fn(|cx| down.poll_flush(cx)).await.expect("the response leaves");
    let mut response = vec![0; 1_000];
    let read = near.read(&mut response).await.expect("a response");
    let text = String::from_utf8_lossy(&response[..read]).into_owned();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\n"), "{text}");
    text.contains("Connection: close\r\n")
}

#[tokio::test]
async fn an_early_response_announces_whether_the_connection_continues() {
    let long = "x".repeat(700);
    for (head, body, closes) in [
        ("GET / HTTP/1.1", "", false),
        ("GET / HTTP/1.0", "", true),
        ("GET / HTTP/1.1\r\nConnection: close", "", true),
        ("POST / HTTP/1.1\r\nContent-Length: 3", "abc", false),
        ("POST / HTTP/1.1\r\nContent-Length: 700", long.as_str(), false),
        // A short rest of it is read and dropped; a long one is not.
        ("POST / HTTP/1.1\r\nContent-Length: 65536", "", false),
        ("POST / HTTP/1.1\r\nContent-Length: 65537", "", true),
        ("POST / HTTP/1.1\r\nContent-Length: 65539", "abc", false),
        ("POST / HTTP/1.1\r\nContent-Length: 9999999999", "abc", true),
        // A client that waits for `100 Continue` may send the body, or the next request.
        ("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3", "", true),
        ("POST / HTTP/1.1\r\nExpect: 100-Continue\r\nTransfer-Encoding: chunked", "", true),
        ("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3", "abc", false),
        ("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3", "a", false),
        ("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 0", "", false),
        // A body without a length may be endless.
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n", false),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked", "0\r\nX-Sum: 9\r\n\r\n", false),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked", "3\r\nabc\r\n", true),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked", "", true),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked", "z\r\n", true),
    ] {
        let request = format!("{head}\r\nHost: h\r\n\r\n{body}");
        assert_eq!(announces_close(&request, true).await, closes, "{request:.120}");
        assert!(announces_close(&request, false).await, "its listener is gone: {request:.120}");
    }
}

#[tokio::test]
async fn an_idle_connection_ends_with_its_listener_unless_it_is_new() {
    let listens = Rc::new(Cell::new(false));
    let (mut near, mut server) = served(NOT_LONG_MS, &listens);
    near.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n")
        .await
        .expect("sent");
    for _ in 0..2 {
        // Received requests are served, the first of a connection too.
        reads_head(&mut server).await;
        send_response(&mut Downstream::H1(&mut server), BodyLength::None);
        let mut down = Downstream::H1(&mut server);
        poll_fn(|cx| down.poll_flush(cx)).await.expect("the response leaves");
    }
    assert!(timeout(NOT_LONG, server.wait(|is_left| is_left)).await.expect("at once").is_err());
}

#[tokio::test]
async fn a_half_closed_client_is_gone_after_a_time_without_a_byte() {
    let half_close_ms = 200;
    let (mut near, mut server) = served(half_close_ms, &Rc::new(Cell::new(true)));
    let test = async {
        near.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sent");
        near.shutdown().await.expect("an end of its sending");
        reads_head(&mut server).await;
        let mut down = Downstream::H1(&mut server);
        // Before the response, and after each sent part of it, the time starts again.
        for round in 0..3 {
            let began_ms = sigma_net::deadline::now_ms();
            poll_fn(|cx| down.poll_departure(cx)).await;
            let took_ms = sigma_net::deadline::now_ms() - began_ms;
            assert!(took_ms >= half_close_ms, "{round}: {took_ms} ms");
            match round {
                0 => send_response(&mut down, BodyLength::Streamed),
                _ => down.send(Frame::Data(Chunk::copy_of(b"data: 1\n\n"))),
            }
            if round == 1 {
                // Bytes that wait for the client do not count as silence.
                let is_gone = poll_fn(|cx| std::task::Poll::Ready(down.poll_departure(cx).is_ready())).await;
                assert!(!is_gone);
            }
            poll_fn(|cx| down.poll_flush(cx)).await.expect("the response leaves");
        }
    };
    tokio::select! {
        () = sigma_net::deadline::drive(|_| 1) => unreachable!("it never ends"),
        ended = timeout(NOT_LONG, test) => ended.expect("an end in time"),
    }
}

#[tokio::test]
async fn several_at_a_time_share_a_connection() {
    let serve = async |far| {
        let mut session = Session::accept(far, Chunk::empty(), Peer::Unix, SESSION, None);
        let mut served = 0;
        while let Some(incoming) = session.next(|| false).await {
            served += 1;
            tokio::task::spawn_local(async move {
                let mut head = RequestHead::default();
                let (mut stream, accepted) = ServerStream::accept(incoming, [1, 2], &mut head);
                accepted.expect("a valid head");
                answer(Downstream::H2(&mut stream), &head).await;
            });
        }
        assert_eq!(served, 2);
    };
    let ask_twice = async |near| {
        let shared = SharedConnection::open(near, &SHARED).await.expect("a connection");
        tokio::join!(ask(Connection::on(&shared, Reused::No)), ask(Connection::on(&shared, Reused::No)),);
        assert!(shared.is_idle());
    };
    let (near, far) = pair();
    let both = async { tokio::join!(ask_twice(near), serve(far)) };
    timeout(NOT_LONG, LocalSet::new().run_until(both)).await.expect("an end in time");
}
