//! Both ends of HTTP/3 understand each other, over QUIC on loopback.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use sigma_http::h1::{Tolerance, parse_request};
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, Headers, Method, RequestHead, ResponseHead};
use sigma_net::quic::{
    self, ConnectionLost, ConnectionOwner, Endpoint, EndpointOptions, Identities, Neighbours, QuicKeys,
    QuicLimits, RecvError,
};
use sigma_net::tls::pem::Pair;
use sigma_net::tls::{
    Certificates, ClientSettings, ClientTls, Identity, Offer, Resumption, ServerIdentity, Versions,
};
use sigma_wire::h2::Reused;
use sigma_wire::h3::{
    FloodLimits, Incoming, ServerStream, Session, SessionLimits, SharedConnection, SharedLimits,
};
use sigma_wire::{Connection, Downstream, HeadLimits};
use tokio::task::{LocalSet, spawn_local};

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE };

const PATIENCE: Duration = Duration::from_secs(60);

const SESSION: SessionLimits = SessionLimits {
    head: HEAD,
    body_bytes: 0,
    requests: 100,
    head_ms: 60_000,
    idle_ms: 60_000,
    streams: 10,
    pending_resets: 10,
    header_list_bytes: 1_000,
    table_bytes: 4_096,
    blocked_streams: 16,
    flood: FloodLimits::NONE,
};

const SHARED: SharedLimits = SharedLimits {
    head: HEAD,
    streams: 10,
    header_list_bytes: 1_000,
    table_bytes: 4_096,
    blocked_streams: 16,
    controls_per_second: u32::MAX,
    silence_ms: 60_000,
};

struct Shown(Certificates);

impl Identities for Shown {
    fn choose(&self, name: Option<&str>) -> Option<Arc<ServerIdentity>> {
        self.0.choose(name).cloned()
    }
}

fn shown() -> Arc<dyn Identities> {
    let key = KeyPair::generate().expect("it is set up");
    let cert = CertificateParams::new(vec!["a.test".to_owned()])
        .expect("it is set up")
        .self_signed(&key)
        .expect("it is set up");
    let pairs = vec![Pair::parse(&cert.pem(), &key.serialize_pem(), None).expect("it is set up")];
    let identity = Identity {
        pairs,
        versions: Versions::ALL,
        offer: Offer::default(),
        client_auth: None,
        resumption: Resumption::Off,
    };
    let identity = Arc::new(ServerIdentity::new(identity).expect("it is set up"));
    Arc::new(Shown(Certificates::new([("a.test", identity)], None)))
}

fn bound() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").expect("it is set up")
}

fn drive(endpoint: &Endpoint) {
    let endpoint = endpoint.clone();
    spawn_local(async move { endpoint.run().await });
}

fn listen() -> (Endpoint, SocketAddr) {
    let options = EndpointOptions {
        keys: Arc::new(QuicKeys::random().expect("it is set up")),
        place: ConnectionOwner { generation: 0, worker: 0 },
        neighbours: Arc::new(Neighbours::new(1)),
        steering: None,
        limits: QuicLimits::default(),
    };
    let endpoint = Endpoint::server(bound().into(), options).expect("it is set up");
    let addr = endpoint.local_addr().expect("it is set up");
    drive(&endpoint);
    (endpoint, addr)
}

/// Runs a client against a server whose requests go to `serve`; `closing` ends the server's session.
fn run<S: Future<Output = ()> + 'static>(
    limits: SessionLimits,
    closing: Rc<Cell<bool>>,
    serve: impl Fn(Incoming) -> S,
    ask: impl AsyncFnOnce(Rc<SharedConnection>),
) {
    run_raw(limits, closing, serve, async |connection| {
        ask(SharedConnection::open(connection, &SHARED)).await;
    });
}

/// As [`run`], for a client without our own end.
fn run_raw<S: Future<Output = ()> + 'static>(
    limits: SessionLimits,
    closing: Rc<Cell<bool>>,
    serve: impl Fn(Incoming) -> S,
    ask: impl AsyncFnOnce(quic::Connection),
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it is set up");
    LocalSet::new().block_on(&runtime, async {
        let (server, addr) = listen();
        let client = Endpoint::client(bound().into(), QuicLimits::default()).expect("it is set up");
        drive(&client);
        let serving = async {
            let connection = server
                .next()
                .await
                .expect("it is set up")
                .accept(shown(), &Offer::default())
                .await
                .expect("it is set up");
            let peer = connection.peer();
            let mut session = Session::accept(connection, peer, limits);
            while let Some(incoming) = session.next(|| closing.get()).await {
                spawn_local(serve(incoming));
            }
        };
        let asking = async {
            let settings = ClientSettings {
                alpn: vec![b"h3".to_vec()],
                versions: Versions::ONLY_13,
                ..ClientSettings::default()
            };
            let tls = ClientTls::new(settings).expect("it is set up");
            let connection = client.connect(addr, "a.test", &tls).await.expect("it is set up");
            ask(connection).await;
        };
        tokio::select! {
            () = sigma_net::deadline::drive(|_| 1) => unreachable!("the wheel turns for ever"),
            done = tokio::time::timeout(PATIENCE, async { tokio::join!(serving, asking) }) => {
                done.expect("the test hangs");
            }
        }
    });
}

fn open() -> Rc<Cell<bool>> {
    Rc::new(Cell::new(false))
}

/// More than all windows, so that both ends have to wait.
fn long() -> Vec<u8> {
    (0..3_000_000u32).map(|n| n as u8).collect()
}

fn head_of(text: &str) -> RequestHead {
    let mut head = RequestHead::default();
    parse_request(text.as_bytes(), &HEAD, &mut head).expect("a valid head").expect("a whole one");
    head
}

async fn answer_head(connection: &mut Connection, method: Method) -> Result<ResponseHead, Fault> {
    let mut head = ResponseHead::default();
    poll_fn(|cx| connection.poll_head(cx, method, &HEAD, &mut head)).await?;
    Ok(head)
}

/// Sends a request with a long body, and checks the response of [`echo`].
async fn ask_echo(mut connection: Connection) {
    let mut head = head_of("POST /a?b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nConnection: x-b\r\n\r\n");
    let (body, mut taken) = (long(), 0);
    connection.send_head(&mut head, None, BodyLength::Known(body.len() as u64), None);
    let (mut got, mut trailers, mut answer) = (Vec::new(), None, None);
    let mut ended = false;
    while !ended || trailers.is_none() {
        poll_fn(|cx| {
            loop {
                let flushed = connection.poll_flush(cx).map(|sent| sent.expect("the request leaves"));
                if flushed.is_pending() || ended || !connection.has_room() {
                    break;
                }
                let piece = Chunk::next_of(&body, &mut taken);
                ended = piece.is_none();
                connection.send(piece.map_or(Frame::End, Frame::Data));
            }
            if answer.is_none() {
                let mut head = ResponseHead::default();
                let came = connection.poll_head(cx, Method::Post, &HEAD, &mut head);
                if came.map(|came| came.expect("a response")).is_pending() {
                    return std::task::Poll::Pending;
                }
                answer = Some(head);
            }
            connection.poll_frame(cx).map(|frame| match frame.expect("a body") {
                Frame::Data(data) => got.extend_from_slice(&data),
                Frame::Trailers(fields) => trailers = Some(fields),
                Frame::End => panic!("the trailers are lost"),
            })
        })
        .await;
    }
    let answer = answer.expect("a response");
    assert_eq!((answer.status, answer.headers.find(b"x-c")), (203, Some(&b"3"[..])));
    assert!(got == body, "{} bytes", got.len());
    assert_eq!(trailers.expect("trailers").find(b"x-sum"), Some(&b"9"[..]));
}

/// Sends the body of the request back as it comes, with trailers.
async fn echo(incoming: Incoming) {
    let mut head = RequestHead::default();
    let (mut stream, accepted) = ServerStream::accept(incoming, [1, 2], &mut head);
    accepted.expect("a valid head");
    assert_eq!((head.method, head.path_and_query()), (Method::Post, &b"/a?b"[..]));
    assert_eq!((head.authority(), head.headers.find(b"x-a")), (&b"h"[..], Some(&b"1"[..])));
    let mut down = Downstream::H3(&mut stream);
    let mut answer = ResponseHead::default();
    answer.status = 203;
    answer.headers.append("X-C", b"3");
    down.send_head(&mut answer, BodyLength::Streamed, b"Sun, 06 Nov 1994 08:49:37 GMT");
    let mut trailers = Headers::default();
    trailers.append("X-Sum", b"9");
    let mut trailers = Some(Box::new(trailers));
    while trailers.is_some() {
        let frame = poll_fn(|cx| down.poll_frame(cx)).await.expect("a body");
        assert!(down.has_room());
        match frame {
            Frame::Data(_) => down.send(frame),
            _ => down.send(trailers.take().map_or(Frame::End, Frame::Trailers)),
        }
        poll_fn(|cx| down.poll_flush(cx)).await.expect("the response leaves");
    }
}

#[test]
fn several_at_a_time_share_a_connection() {
    run(SESSION, open(), echo, async |shared| {
        tokio::join!(
            ask_echo(Connection::on_h3(&shared, Reused::No)),
            ask_echo(Connection::on_h3(&shared, Reused::No)),
        );
        assert!(shared.is_idle() && shared.has_room(100));
    });
}

async fn serve_early(incoming: Incoming) {
    let (mut stream, _) = ServerStream::accept(incoming, [1, 2], &mut RequestHead::default());
    let mut down = Downstream::H3(&mut stream);
    let mut interim = ResponseHead::default();
    interim.start(103);
    down.send_interim(&mut interim);
    let mut answer = ResponseHead::default();
    answer.start(413);
    down.send_head(&mut answer, BodyLength::Known(6), b"");
    down.send(Frame::Data(Chunk::copy_of(b"early\n")));
    poll_fn(|cx| down.poll_flush(cx)).await.expect("the response leaves");
}

#[test]
fn an_early_response_arrives_whole() {
    run(SESSION, open(), serve_early, async |shared| {
        let mut connection = Connection::on_h3(&shared, Reused::No);
        connection.send_head(
            &mut head_of("POST / HTTP/1.1\r\nHost: h\r\n\r\n"),
            None,
            BodyLength::Streamed,
            None,
        );
        poll_fn(|cx| connection.poll_flush(cx)).await.expect("the head leaves");
        assert_eq!(answer_head(&mut connection, Method::Post).await.expect("an interim head").status, 103);
        assert_eq!(answer_head(&mut connection, Method::Post).await.expect("a head").status, 413);
        // The rest of the request is not wanted, which is no fault of the response.
        for _ in 0..3 {
            connection.send(Frame::Data(Chunk::copy_of(&[b'x'; 4_000])));
            poll_fn(|cx| connection.poll_flush(cx)).await.expect("it is sent or dropped");
        }
        let frame = poll_fn(|cx| connection.poll_frame(cx)).await.expect("a body");
        assert!(matches!(frame, Frame::Data(data) if data[..] == *b"early\n"));
        assert!(matches!(poll_fn(|cx| connection.poll_frame(cx)).await, Ok(Frame::End)));
    });
}

#[test]
fn a_dropped_exchange_cuts_its_response() {
    let serve = async |incoming| {
        let (mut stream, _) = ServerStream::accept(incoming, [1, 2], &mut RequestHead::default());
        let mut down = Downstream::H3(&mut stream);
        let mut answer = ResponseHead::default();
        answer.start(200);
        down.send_head(&mut answer, BodyLength::Known(10), b"");
        down.send(Frame::Data(Chunk::copy_of(b"half")));
        poll_fn(|cx| down.poll_flush(cx)).await.expect("it leaves");
        // The client cancels its second request only.
        if poll_fn(|cx| down.poll_frame(cx)).await.is_ok() {
            down.abort();
        }
    };
    run(SESSION, open(), serve, async |shared| {
        let mut first = Connection::on_h3(&shared, Reused::No);
        first.send_head(&mut head_of("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), None, BodyLength::None, None);
        poll_fn(|cx| first.poll_flush(cx)).await.expect("the head leaves");
        let mut result = answer_head(&mut first, Method::Get).await.map(|_| ());
        while result.is_ok() {
            result = poll_fn(|cx| first.poll_frame(cx)).await.map(|_| ());
        }
        let kind = result.expect_err("a cut response").kind;
        assert!(matches!(kind, FaultKind::ResponseIncomplete | FaultKind::ConnectionTerminated), "{kind:?}");
        let mut second = Connection::on_h3(&shared, Reused::No);
        second.send_head(
            &mut head_of("POST / HTTP/1.1\r\nHost: h\r\n\r\n"),
            None,
            BodyLength::Streamed,
            None,
        );
        poll_fn(|cx| second.poll_flush(cx)).await.expect("the head leaves");
        assert_eq!(answer_head(&mut second, Method::Get).await.expect("a head").status, 200);
        drop((first, second));
        assert!(shared.is_idle() && !shared.is_spent(100));
    });
}

#[test]
fn a_closing_server_ends_its_requests_and_takes_no_more() {
    let closing = open();
    let close = Rc::clone(&closing);
    let serve = move |incoming| {
        let close = Rc::clone(&close);
        async move {
            let (mut stream, _) = ServerStream::accept(incoming, [1, 2], &mut RequestHead::default());
            let mut down = Downstream::H3(&mut stream);
            while !matches!(poll_fn(|cx| down.poll_frame(cx)).await, Ok(Frame::End)) {}
            close.set(true);
            let mut answer = ResponseHead::default();
            answer.start(200);
            down.send_head(&mut answer, BodyLength::Known(2), b"");
            down.send(Frame::Data(Chunk::copy_of(b"hi")));
            poll_fn(|cx| down.poll_flush(cx)).await.expect("the response leaves");
        }
    };
    run(SESSION, closing, serve, async |shared| {
        let mut first = Connection::on_h3(&shared, Reused::No);
        first.send_head(&mut head_of("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), None, BodyLength::None, None);
        poll_fn(|cx| first.poll_flush(cx)).await.expect("the head leaves");
        assert_eq!(answer_head(&mut first, Method::Get).await.expect("a head").status, 200);
        assert!(matches!(poll_fn(|cx| first.poll_frame(cx)).await, Ok(Frame::Data(_))));
        while !shared.is_spent(100) {
            tokio::task::yield_now().await;
        }
        let mut late = Connection::on_h3(&shared, Reused::Yes);
        late.send_head(&mut head_of("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), None, BodyLength::None, None);
        let fault = answer_head(&mut late, Method::Get).await.expect_err("no stream");
        assert!(late.is_unsent() && fault.kind == FaultKind::ConnectionTerminated);
    });
}

/// A request of GET / by the static table, with an authority of one letter.
const GET: &[u8] = b"\x01\x08\0\0\xd1\xd7\xc1\x50\x01h";

/// The beginning of a control stream.
const CONTROL: &[u8] = b"\0\x04\0";

/// Opens a stream with these bytes, and ends it if `ends`.
async fn open_uni(connection: &quic::Connection, bytes: &[u8], ends: bool) -> quic::SendStream {
    let mut send = poll_fn(|cx| connection.poll_open_uni(cx)).await.expect("a stream");
    send.put(bytes.to_vec());
    if ends {
        send.finish();
    }
    send
}

#[test]
fn a_client_that_breaks_a_rule_loses_its_connection() {
    for (control, request, code) in [
        (&b"\0\x21\0"[..], &b""[..], 0x10a),
        (b"\0\x04\x02\x02\x01", b"", 0x109),
        (b"\x01", b"", 0x103),
        (b"\x02\x3f\xff\xff\x7f", b"", 0x201),
        (b"\x03\x01", b"", 0x202),
        (CONTROL, b"\0\x01x", 0x105),
        (CONTROL, b"\x01\x04\0\0\xff\x24", 0x200),
    ] {
        run_raw(SESSION, open(), echo, async |connection| {
            let _control = open_uni(&connection, control, false).await;
            let (mut send, _recv) = poll_fn(|cx| connection.poll_open_bidi(cx)).await.expect("a stream");
            send.put(request.to_vec());
            let lost = poll_fn(|cx| connection.poll_closed(cx)).await;
            assert_eq!(lost, ConnectionLost::Application(code), "{control:x?} {request:x?}");
        });
    }
    run_raw(SESSION, open(), echo, async |connection| {
        let _ended = open_uni(&connection, CONTROL, true).await;
        let lost = poll_fn(|cx| connection.poll_closed(cx)).await;
        assert_eq!(lost, ConnectionLost::Application(0x104), "a control stream that ends");
    });
}

/// Takes an integer (RFC 9000 §16) from the beginning.
fn integer(bytes: &mut &[u8]) -> u64 {
    let (own, rest) = bytes.split_at(1 << (bytes[0] >> 6));
    *bytes = rest;
    own[1..].iter().fold(u64::from(own[0] & 0x3f), |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the numbers in the GOAWAY frames of a control stream.
fn goaways(mut control: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    assert_eq!(integer(&mut control), 0, "the type of the stream");
    while !control.is_empty() {
        let (kind, length) = (integer(&mut control), integer(&mut control));
        let (mut content, rest) = control.split_at(usize::try_from(length).expect("a short frame"));
        if kind == 7 {
            numbers.push(integer(&mut content));
        }
        control = rest;
    }
    numbers
}

/// Returns the stream of the server that begins with 0: the control stream.
async fn control_of(connection: &quic::Connection) -> quic::RecvStream {
    loop {
        let accepted = poll_fn(|cx| connection.poll_accept(cx, quic::Dir::Uni)).await;
        let mut recv = accepted.expect("a stream").recv;
        let kind = poll_fn(|cx| recv.poll_bytes(cx, 1)).await.expect("a type").expect("a type");
        if *kind == [0] {
            return recv;
        }
    }
}

/// Without the last GOAWAY a client does not know which requests were processed.
#[test]
fn a_client_gets_the_last_goaway_before_the_connection_closes() {
    let closing = open();
    let close = Rc::clone(&closing);
    let refuse = |incoming| async move { drop(incoming) };
    run_raw(SESSION, closing, refuse, async |connection| {
        let _own = open_uni(&connection, CONTROL, false).await;
        close.set(true);
        let (mut send, mut recv) = poll_fn(|cx| connection.poll_open_bidi(cx)).await.expect("a stream");
        send.put(GET.to_vec());
        send.finish();
        let mut control = control_of(&connection).await;
        while let Ok(Some(_)) = poll_fn(|cx| recv.poll_bytes(cx, 1_000)).await {}
        let mut bytes = vec![0];
        while let Ok(Some(more)) = poll_fn(|cx| control.poll_bytes(cx, 1_000)).await {
            bytes.extend_from_slice(&more);
        }
        assert_eq!(connection.lost(), Some(ConnectionLost::Application(0x100)));
        assert_eq!(goaways(&bytes).last().copied(), Some(4), "{bytes:x?}");
    });
}

#[test]
fn a_head_has_to_come_in_time() {
    let limits = SessionLimits { head_ms: 200, ..SESSION };
    run_raw(limits, open(), echo, async |connection| {
        let _control = open_uni(&connection, CONTROL, false).await;
        let (mut send, mut recv) = poll_fn(|cx| connection.poll_open_bidi(cx)).await.expect("a stream");
        send.put(GET[..5].to_vec());
        let error = poll_fn(|cx| recv.poll_reset(cx)).await;
        assert_eq!(error, RecvError::Reset(0x10b));
        assert!(connection.lost().is_none());
    });
}

#[test]
fn a_silent_client_is_sent_away() {
    let limits = SessionLimits { head_ms: 200, ..SESSION };
    run_raw(limits, open(), echo, async |connection| {
        let lost = poll_fn(|cx| connection.poll_closed(cx)).await;
        assert_eq!(lost, ConnectionLost::Application(0x100));
    });
}

#[test]
fn requests_of_a_connection_are_limited() {
    let limits = SessionLimits { requests: 1, ..SESSION };
    run_raw(limits, open(), serve_early, async |connection| {
        let _control = open_uni(&connection, CONTROL, false).await;
        let (mut send, mut recv) = poll_fn(|cx| connection.poll_open_bidi(cx)).await.expect("a stream");
        send.put(GET.to_vec());
        send.finish();
        let mut response = Chunk::empty();
        while poll_fn(|cx| recv.poll_fill(cx, &mut response)).await.expect("a response") > 0 {}
        assert!(response.ends_with(b"early\n"));
        let lost = poll_fn(|cx| connection.poll_closed(cx)).await;
        assert_eq!(lost, ConnectionLost::Application(0x100));
    });
}

#[test]
fn a_malformed_request_gets_a_response_and_costs_its_stream_only() {
    let refuse = async |incoming| {
        let (mut stream, accepted) = ServerStream::accept(incoming, [1, 2], &mut RequestHead::default());
        let mut down = Downstream::H3(&mut stream);
        let mut answer = ResponseHead::default();
        answer.start(if accepted.is_err() { 400 } else { 204 });
        down.send_head(&mut answer, BodyLength::None, b"");
        poll_fn(|cx| down.poll_flush(cx)).await.expect("the response leaves");
    };
    run_raw(SESSION, open(), refuse, async |connection| {
        let _control = open_uni(&connection, CONTROL, false).await;
        // The first has no :path; its client would send more.
        for (request, status, is_stopped) in
            [(&b"\x01\x07\0\0\xd1\xd7\x50\x01h"[..], 67, true), (GET, 64, false)]
        {
            let (mut send, mut recv) = poll_fn(|cx| connection.poll_open_bidi(cx)).await.expect("a stream");
            send.put(request.to_vec());
            if !is_stopped {
                send.finish();
            }
            let mut response = Chunk::empty();
            while poll_fn(|cx| recv.poll_fill(cx, &mut response)).await.expect("a response") > 0 {}
            // The static indices of :status 400 and 204 need two bytes.
            assert_eq!(response[4..6], [0xff, status - 63], "{response:?}");
            if is_stopped {
                let stopped = poll_fn(|cx| send.poll_stopped(cx)).await;
                assert_eq!(stopped, quic::Stopped::Code(0x10e));
            }
        }
    });
}

#[test]
fn the_limit_of_the_node_is_known_before_a_request() {
    // The session's limit of streams is the endpoint's, 128; the client allows itself 10.
    run(SESSION, open(), echo, async |shared| {
        let places: Vec<Connection> = (0..10).map(|_| Connection::on_h3(&shared, Reused::No)).collect();
        assert!(!shared.has_room(100), "each exchange counts, also one without a request yet");
        drop(places);
        assert!(shared.has_room(100) && shared.is_idle());
        // An unused stream is used by the next exchange.
        ask_echo(Connection::on_h3(&shared, Reused::No)).await;
    });
}

/// A field section with literals only.
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        // A name of at least 7 bytes continues in a second one.
        match name.len() {
            length @ 0..7 => out.push(0x20 | length as u8),
            length => out.extend([0x27, (length - 7) as u8]),
        }
        out.extend_from_slice(name.as_bytes());
        assert!(value.len() < 127);
        out.push(value.len() as u8);
        out.extend_from_slice(value.as_bytes());
    }
    out
}

fn raw_frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    sigma_http::h3::varint::put(payload.len() as u64, &mut out);
    out.extend_from_slice(payload);
    out
}

/// Echoes the capsules of a tunnel.
async fn echo_capsules(incoming: Incoming) {
    let mut head = RequestHead::default();
    let (mut stream, accepted) = ServerStream::accept(incoming, [1, 2], &mut head);
    accepted.expect("a valid request");
    let mut down = Downstream::H3(&mut stream);
    assert!(down.asks_tunnel());
    let mut answer = ResponseHead::default();
    answer.start(101);
    answer.headers.append("Upgrade", b"connect-udp");
    answer.headers.append("Capsule-Protocol", b"?1");
    down.send_interim(&mut answer);
    down.upgrade();
    loop {
        let frame = poll_fn(|cx| {
            let _ = down.poll_flush(cx);
            down.poll_frame(cx)
        });
        match frame.await {
            Ok(Frame::Data(data)) => down.send(Frame::Data(data)),
            Ok(_) => {
                down.send(Frame::End);
                let _ = poll_fn(|cx| down.poll_flush(cx)).await;
                return;
            }
            Err(_) => return,
        }
    }
}

async fn read_at_least(recv: &mut quic::RecvStream, bytes: &mut Vec<u8>, length: usize) {
    while bytes.len() < length {
        let piece = poll_fn(|cx| recv.poll_bytes(cx, 4_096)).await.expect("it goes on");
        bytes.extend_from_slice(&piece.expect("no end yet"));
    }
}

fn tunnel_request() -> Vec<u8> {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "connect-udp"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/.well-known/masque/udp/192.0.2.1/53/"),
        ("capsule-protocol", "?1"),
    ];
    raw_frame(1, &section(&fields))
}

#[test]
fn datagrams_of_quic_are_capsules_of_their_tunnel() {
    run_raw(SESSION, open(), echo_capsules, async |connection| {
        let mut control = poll_fn(|cx| connection.poll_open_uni(cx)).await.expect("a stream");
        // SETTINGS with H3_DATAGRAM = 1
        control.put([&[0][..], &raw_frame(4, &[0x33, 1])].concat());
        let (mut to, mut from) = poll_fn(|cx| connection.poll_open_bidi(cx)).await.expect("a stream");
        to.put(tunnel_request());
        let mut bytes = Vec::new();
        read_at_least(&mut from, &mut bytes, 2).await;
        let length = 2 + usize::from(bytes[1]);
        read_at_least(&mut from, &mut bytes, length).await;
        assert_eq!(bytes[0], 1, "the response head");
        // Datagrams of other streams are dropped; this one may come before the others, so it is sent again.
        assert!(connection.send_datagram(b"\x04\0other".to_vec()));
        assert!(connection.send_datagram(b"\0\0one".to_vec()));
        assert_eq!(&poll_fn(|cx| connection.poll_datagram(cx)).await.expect("it lives")[..], b"\0\0one");
        // A capsule on the stream goes both ways too.
        let mut capsule = Vec::new();
        sigma_http::capsule::put_udp(b"two", &mut capsule);
        to.put(raw_frame(0, &capsule));
        assert_eq!(&poll_fn(|cx| connection.poll_datagram(cx)).await.expect("it lives")[..], b"\0\0two");
        // One that no datagram can hold comes back on the stream.
        let (mut capsule, big) = (Vec::new(), vec![7; 20_000]);
        sigma_http::capsule::put_udp(&big, &mut capsule);
        to.put(raw_frame(0, &capsule));
        let mut bytes = bytes.split_off(length);
        read_at_least(&mut from, &mut bytes, capsule.len()).await;
        to.finish();
        // A datagram without a stream breaks the connection.
        assert!(connection.send_datagram(vec![0x40]));
        assert_eq!(poll_fn(|cx| connection.poll_closed(cx)).await, ConnectionLost::Application(0x33));
    });
}

#[test]
fn datagrams_go_over_the_stream_where_the_client_takes_none() {
    run_raw(SESSION, open(), echo_capsules, async |connection| {
        let mut control = poll_fn(|cx| connection.poll_open_uni(cx)).await.expect("a stream");
        control.put([&[0][..], &raw_frame(4, &[])].concat());
        let (mut to, mut from) = poll_fn(|cx| connection.poll_open_bidi(cx)).await.expect("a stream");
        let mut capsule = Vec::new();
        sigma_http::capsule::put_udp(b"one", &mut capsule);
        to.put([tunnel_request(), raw_frame(0, &capsule)].concat());
        to.finish();
        let mut bytes = Vec::new();
        while let Some(piece) = poll_fn(|cx| from.poll_bytes(cx, 4_096)).await.expect("it goes on") {
            bytes.extend_from_slice(&piece);
        }
        let length = 2 + usize::from(bytes[1]);
        assert_eq!(bytes.split_off(length), raw_frame(0, &capsule));
    });
}
