//! Both ends of each version understand each other, with nothing of a gateway between them.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use sigma_http::h1::{Tolerance, parse_request};
use sigma_http::{BodyLength, Chunk, Frame, Headers, Method, RequestHead, ResponseHead};
use sigma_net::{Deadline, Peer, Stream};
use sigma_wire::h1::{Server, ServerLimits};
use sigma_wire::h2::{
    FloodLimits, Reused, ServerStream, Session, SessionLimits, SharedConnection, SharedLimits,
};
use sigma_wire::{Connection, Downstream, HeadLimits};
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
    stream_window_bytes: 65_535,
    connection_window_bytes: 65_535,
    pending_resets: 10,
    flood: FloodLimits::NONE,
};

const SHARED: SharedLimits = SharedLimits {
    head: HEAD,
    streams: 10,
    stream_window_bytes: 65_535,
    connection_window_bytes: 65_535,
    frame_bytes: 16_384,
    header_list_bytes: 1_000,
    controls_per_second: u32::MAX,
};

fn pair() -> (Stream, Stream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    (Stream::Unix(near), Stream::Unix(far))
}

/// More than a socket takes at once, so that both ends have to wait.
fn long() -> Vec<u8> {
    (0..1_000_000u32).map(|n| n as u8).collect()
}

/// Sends a request with a long body, and checks the answer of [`answer`].
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
    // It asks first and reads then, so the request is kept until it is there.
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
    });
    let mut server = Server::new(far, Chunk::empty(), limits);
    let serve = async {
        let mut head = RequestHead::default();
        server.wait(|| false).await.expect("a request");
        server.read_head(&mut head).await.expect("its head");
        answer(Downstream::H1(&mut server), &head).await;
        assert!(server.continues());
    };
    let both = async { tokio::join!(ask(Connection::single(near, Deadline::new())), serve) };
    timeout(NOT_LONG, both).await.expect("an end in time");
}

#[tokio::test]
async fn several_at_a_time_share_a_connection() {
    let serve = async |far| {
        let mut session = Session::accept(far, Chunk::empty(), Peer::Unix, SESSION);
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
