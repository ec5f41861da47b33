//! Long bodies between plain connections of HTTP/1, which the kernel moves from one socket to the other.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use sigma_http::h1::Tolerance;
use sigma_http::{Chunk, Fault, FaultKind, Frame, Method, RequestHead, ResponseHead};
use sigma_net::splice::Pipe;
use sigma_net::{Deadline, Stream};
use sigma_wire::h1::{Server, ServerLimits};
use sigma_wire::{Connection, Downstream, HeadLimits, splice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE };

/// More than all buffers on the way hold.
const LONG: usize = 24 << 20;

const DATE: &[u8; 29] = b"Mon, 30 Nov 2026 00:00:00 GMT";

/// The gateway between a client and a node, and their ends.
struct Gateway {
    down: Server,
    up: Connection,
    /// The bytes that passed by a pipe.
    spliced: u64,
    /// The bytes that were read.
    read: u64,
}

/// Returns a connection: the gateway's end, and the other one.
async fn pair() -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let far = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
    (Stream::Tcp(listener.accept().await.expect("a connection").0), far)
}

async fn gateway(body_bytes: u64) -> (Gateway, TcpStream, TcpStream) {
    let limits = ServerLimits {
        head: HEAD,
        body_bytes,
        requests: 10,
        head_ms: 60_000,
        idle_ms: 60_000,
        half_close_ms: 60_000,
        alternative: None,
    };
    let ((near, client), (far, node)) = (pair().await, pair().await);
    let down = Server::new(near, Chunk::empty(), Rc::new(limits), Rc::new(Cell::new(true)));
    let up = Connection::single(far, Deadline::new());
    (Gateway { down, up, spliced: 0, read: 0 }, client, node)
}

/// Returns bytes whose position is recognizable, since no buffer size is a multiple of 251.
fn long() -> Vec<u8> {
    let mut bytes = (0..=250).collect::<Vec<u8>>().repeat(LONG / 251 + 1);
    bytes.truncate(LONG);
    bytes
}

impl Gateway {
    /// Reads a request and sends its head to the node.
    async fn open(&mut self) {
        let mut head = RequestHead::default();
        self.down.wait(|_| false).await.expect("a request");
        self.down.read_head(&mut head).await.expect("a head");
        let length = Downstream::H1(&mut self.down).body_length();
        self.up.send_head(&mut head, None, length, None);
        poll_fn(|cx| self.up.poll_flush(cx)).await.expect("the head leaves");
    }

    /// Moves the body of the request, as long as there is one.
    async fn upload(&mut self) -> Result<(), Fault> {
        let Gateway { down, up, spliced, read } = self;
        let mut down = Downstream::H1(down);
        let mut ended = false;
        poll_fn(|cx| {
            loop {
                while !ended && up.has_room() {
                    if let Some(moved) = splice::poll_request(&mut down, up, cx) {
                        std::task::ready!(moved)?;
                        *spliced += 1;
                        continue;
                    }
                    let frame = std::task::ready!(down.poll_frame(cx))?;
                    ended = matches!(frame, Frame::End);
                    *read += u64::from(!ended);
                    up.send(frame);
                }
                std::task::ready!(up.poll_flush(cx))?;
                if ended {
                    return Poll::Ready(Ok(()));
                }
            }
        })
        .await
    }

    /// Moves a response to the client.
    async fn deliver(&mut self) -> Result<(), Fault> {
        let Gateway { down, up, spliced, read } = self;
        let mut down = Downstream::H1(down);
        let mut head = ResponseHead::default();
        poll_fn(|cx| up.poll_head(cx, Method::Get, &HEAD, &mut head)).await?;
        down.send_head(&mut head, up.body_length(), DATE);
        let (mut ended, mut fault) = (false, None);
        poll_fn(|cx| {
            loop {
                while !ended && fault.is_none() && down.has_room() {
                    if let Some(moved) = splice::poll_response(up, &mut down, cx) {
                        match std::task::ready!(moved) {
                            Ok(()) => *spliced += 1,
                            Err(broken) => fault = Some(broken),
                        }
                        continue;
                    }
                    match std::task::ready!(up.poll_frame(cx)) {
                        Ok(frame) => {
                            ended = matches!(frame, Frame::End);
                            *read += u64::from(!ended);
                            down.send(frame);
                        }
                        Err(broken) => fault = Some(broken),
                    }
                }
                std::task::ready!(down.poll_flush(cx))?;
                match fault {
                    Some(fault) => return Poll::Ready(Err(fault)),
                    None if ended => return Poll::Ready(Ok(())),
                    None => {}
                }
            }
        })
        .await
    }
}

/// Reads a head and as many bytes of body as it declares.
async fn read_message(peer: &mut TcpStream) -> (String, Vec<u8>) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        peer.read_exact(&mut byte).await.expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    peer.read_exact(&mut body).await.expect("the whole body");
    (head, body)
}

async fn send_response(node: &mut TcpStream, body: &[u8]) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    node.write_all(head.as_bytes()).await.expect("the head");
    node.write_all(body).await.expect("the body");
}

#[tokio::test]
async fn long_responses_pass_whole_and_the_next_one_follows() {
    let (mut gateway, mut client, mut node) = gateway(0).await;
    let sent = long();
    for turn in 1..=2 {
        let serve = async {
            gateway.open().await;
            gateway.deliver().await.expect("a response");
        };
        let ask = async {
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("a request");
            read_message(&mut client).await.1
        };
        let answer = async {
            read_message(&mut node).await;
            send_response(&mut node, &sent).await;
        };
        let ((), got, ()) = tokio::join!(serve, ask, answer);
        assert!(got == sent, "{turn}: other bytes");
        assert!(gateway.down.continues() && gateway.up.is_reusable(10), "{turn}");
        assert_eq!(Downstream::H1(&mut gateway.down).bytes_sent().1, LONG as u64);
        assert!(gateway.up.carried().received > LONG as u64, "the head counts too");
    }
    assert!(gateway.spliced > 0);
}

#[tokio::test]
async fn without_a_pipe_a_body_is_read() {
    let (mut gateway, mut client, mut node) = gateway(0).await;
    let all: Vec<Pipe> = std::iter::from_fn(Pipe::take).collect();
    assert!(!all.is_empty());
    let sent = long();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("a request");
    gateway.open().await;
    let (delivered, got, ()) =
        tokio::join!(gateway.deliver(), read_message(&mut client), send_response(&mut node, &sent));
    delivered.expect("a response");
    assert!(got.1 == sent && gateway.spliced == 0 && gateway.read > 0);
}

#[tokio::test]
async fn a_truncated_response_is_a_fault_after_its_bytes() {
    let (mut gateway, mut client, mut node) = gateway(0).await;
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("a request");
    gateway.open().await;
    let cut = LONG - 1;
    let answer = async {
        // A close over unread bytes would reset the connection.
        read_message(&mut node).await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
        node.write_all(head.as_bytes()).await.expect("the head");
        node.write_all(&long()[..cut]).await.expect("a part of the body");
        drop(node);
    };
    let read = async {
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.expect("the truncated response");
        got
    };
    let serve = async {
        let fault = gateway.deliver().await.expect_err("a truncated body");
        drop(gateway.down);
        (fault.kind, gateway.spliced)
    };
    let ((kind, spliced), got, ()) = tokio::join!(serve, read, answer);
    assert_eq!(kind, FaultKind::ResponseIncomplete);
    let head = got.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
    assert_eq!(got.len() - head, cut);
    assert!(spliced > 0 && got[head..] == long()[..cut]);
}

#[tokio::test]
async fn long_requests_pass_whole_and_a_pipelined_one_stays() {
    let (mut gateway, mut client, mut node) = gateway(0).await;
    let body = long();
    let ask = async {
        let head = format!("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n");
        let next = b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(&[head.as_bytes(), &body, next].concat()).await.expect("two requests");
        (read_message(&mut client).await, read_message(&mut client).await)
    };
    let answer = async {
        let mut got = Vec::new();
        for _ in 0..2 {
            got.push(read_message(&mut node).await);
            send_response(&mut node, b"ok").await;
        }
        got
    };
    let serve = async {
        for _ in 0..2 {
            gateway.open().await;
            gateway.upload().await.expect("a request");
            gateway.deliver().await.expect("a response");
        }
    };
    let (_, got, ()) = tokio::join!(ask, answer, serve);
    assert!(got[0].0.starts_with("POST /first") && got[0].1 == body);
    assert!(got[1].0.starts_with("GET /second") && got[1].1.is_empty());
    assert!(gateway.spliced > 0);
}

#[tokio::test]
async fn a_client_that_leaves_within_its_request_is_gone() {
    let (mut gateway, mut client, mut node) = gateway(0).await;
    let ask = async {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n");
        client.write_all(&[head.as_bytes(), &long()[1..]].concat()).await.expect("a part of a request");
        drop(client);
    };
    let read = async {
        let mut got = Vec::new();
        node.read_to_end(&mut got).await.expect("the truncated request");
        got.len()
    };
    let serve = async {
        gateway.open().await;
        let fault = gateway.upload().await.expect_err("a truncated body");
        drop(gateway.up);
        (fault.kind, gateway.spliced)
    };
    let ((), length, (kind, spliced)) = tokio::join!(ask, read, serve);
    assert_eq!(kind, FaultKind::ClientGone);
    assert!(spliced > 0 && length >= LONG - 1);
}

#[tokio::test]
async fn a_body_over_a_lowered_limit_is_read_and_rejected() {
    let (mut gateway, mut client, _node) = gateway(0).await;
    let ask = async {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n");
        // The gateway stops reading: the rest of it may have no room.
        let _ = client.write_all(&[head.as_bytes(), &long()].concat()).await;
    };
    let serve = async {
        gateway.open().await;
        Downstream::H1(&mut gateway.down).limit_body(100_000);
        let fault = gateway.upload().await.expect_err("a long body");
        drop(gateway.down);
        (fault.kind, gateway.spliced)
    };
    let ((), served) = tokio::join!(ask, serve);
    assert_eq!(served, (FaultKind::RequestBodyTooLarge, 0));
}
