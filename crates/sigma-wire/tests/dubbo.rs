//! The connection to Dubbo providers: its output, and its reuse.

use std::future::poll_fn;
use std::time::Duration;

use sigma_http::dubbo::{Call, Form};
use sigma_http::h1::{Tolerance, parse_request};
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, Method, RequestHead, ResponseHead};
use sigma_net::{Deadline, Stream};
use sigma_wire::{Connection, HeadLimits, Terms};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE };

const NOT_LONG: Duration = Duration::from_secs(60);

fn pair() -> (Connection, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    (Connection::dubbo(Stream::Unix(near), Deadline::new(), "test"), far)
}

fn terms(body_bytes_max: usize) -> Terms {
    let [service, version, method] = ["a.B", "1.0.0", "m"].map(Box::from);
    let form = Form::Lines { types: "I".into(), is_serialized: false };
    Terms::Dubbo(Call { service, version, method, form, body_bytes_max })
}

fn request(text: &str) -> RequestHead {
    let mut head = RequestHead::default();
    parse_request(text.as_bytes(), &HEAD, &mut head).expect("a valid head").expect("a whole one");
    head
}

fn frame(flags: u8, id: u8, body: &[u8]) -> Vec<u8> {
    [&[0xda, 0xbb, flags, 20, 0, 0, 0, 0, 0, 0, 0, id, 0, 0, 0, body.len() as u8][..], body].concat()
}

/// Sends a body in pieces, gets the response `answered`, and reads it; returns the bytes written, and the body.
async fn ask(
    connection: &mut Connection,
    far: &mut UnixStream,
    (length, pieces): (BodyLength, &[&[u8]]),
    answered: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), Fault> {
    let mut head = request("POST / HTTP/1.1\r\nHost: h\r\n\r\n");
    connection.send_head(&mut head, None, length, None);
    for piece in pieces {
        connection.send(Frame::Data(Chunk::copy_of(piece)));
        let _ = poll_fn(|cx| connection.poll_flush(cx)).await;
    }
    if !length.is_empty() {
        connection.send(Frame::End);
    }
    let _ = poll_fn(|cx| connection.poll_flush(cx)).await;
    far.write_all(answered).await.expect("the answer is written");
    let mut head = ResponseHead::default();
    poll_fn(|cx| connection.poll_head(cx, Method::Post, &HEAD, &mut head)).await?;
    let mut body = Vec::new();
    while let Frame::Data(data) = poll_fn(|cx| connection.poll_frame(cx)).await? {
        body.extend_from_slice(&data);
    }
    let mut written = vec![0; connection.carried().sent as usize];
    far.read_exact(&mut written).await.expect("what was written");
    Ok((written, body))
}

const BODY: (BodyLength, &[&[u8]]) = (BodyLength::Streamed, &[b"[", b"7]"]);

#[tokio::test]
async fn a_call_leaves_when_its_body_is_whole() {
    let all = async {
        let (mut connection, mut far) = pair();
        for id in 1..3 {
            connection.describe(terms(10));
            let answer = frame(6, id, b"1\n42\n");
            let (written, body) = ask(&mut connection, &mut far, BODY, &answer).await.expect("an answer");
            assert_eq!(body, b"42");
            assert!(written.starts_with(&[0xda, 0xbb, 0xc6, 0, 0, 0, 0, 0, 0, 0, 0, id]), "{written:?}");
            assert!(written.ends_with(b"\"I\"\n7\n{}\n"), "{written:?}");
            assert!(connection.is_reusable(10) && !connection.is_reusable(id.into()));
        }
        // The next request has no call.
        let fault = ask(&mut connection, &mut far, BODY, b"").await.expect_err("no call");
        assert_eq!(fault.kind, FaultKind::Internal);
        assert!(connection.is_unsent() && !connection.is_reusable(10));
    };
    timeout(NOT_LONG, all).await.expect("an end in time");
}

#[tokio::test]
async fn a_request_without_a_call_is_not_sent() {
    let check = async |asked: (BodyLength, &[&[u8]]), expected: FaultKind| {
        let (mut connection, mut far) = pair();
        connection.describe(terms(3));
        let fault = ask(&mut connection, &mut far, asked, b"").await.expect_err("no call");
        assert_eq!(fault.kind, expected, "{asked:?}");
        assert!(connection.is_unsent() && !connection.has_room() && !connection.is_reusable(10));
    };
    let all = async {
        check((BodyLength::Known(4), &[]), FaultKind::RequestBodyTooLarge).await;
        check((BodyLength::Streamed, &[b"[777"]), FaultKind::RequestBodyTooLarge).await;
        check((BodyLength::Streamed, &[b"[7"]), FaultKind::Untranslatable).await;
        check((BodyLength::None, &[]), FaultKind::Untranslatable).await;
    };
    timeout(NOT_LONG, all).await.expect("an end in time");
}

#[tokio::test]
async fn a_connection_that_is_out_of_step_does_not_serve_again() {
    let check = async |answer: &[u8], expected: bool| {
        let (mut connection, mut far) = pair();
        connection.describe(terms(10));
        ask(&mut connection, &mut far, BODY, answer).await.expect("an answer");
        assert_eq!(connection.is_reusable(10), expected, "{answer:?}");
    };
    let all = async {
        let answer = frame(6, 1, b"2\n");
        check(&answer, true).await;
        check(&[&answer[..], &[0xda]].concat(), false).await;
        check(&[answer.clone(), frame(0xe2, 1, b"N")].concat(), false).await;
        check(&[frame(0xe2, 1, b"N"), answer.clone()].concat(), true).await;
        check(&[frame(0xa2, 1, b"R"), answer].concat(), false).await;
        let (mut connection, far) = pair();
        assert!(connection.is_quiet());
        drop(far);
        poll_fn(|cx| connection.poll_answer(cx, &HEAD)).await.expect_err("it is closed");
        assert!(!connection.is_quiet());
    };
    timeout(NOT_LONG, all).await.expect("an end in time");
}
