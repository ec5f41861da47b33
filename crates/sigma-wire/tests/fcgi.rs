//! The connection to FastCGI applications: its output, and its reuse.

use std::future::poll_fn;
use std::time::Duration;

use sigma_http::h1::{Tolerance, parse_request};
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, RequestHead, ResponseHead};
use sigma_net::{Deadline, Stream};
use sigma_wire::{Connection, HeadLimits, Terms, fcgi};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

const HEAD: HeadLimits =
    HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE };

const NOT_LONG: Duration = Duration::from_secs(60);

fn pair() -> (Connection, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    (Connection::fcgi(Stream::Unix(near), Deadline::new(), "test"), far)
}

fn request(text: &str) -> RequestHead {
    let mut head = RequestHead::default();
    parse_request(text.as_bytes(), &HEAD, &mut head).expect("a valid head").expect("a whole one");
    head
}

fn terms(keep: bool, unsized_body_bytes: usize) -> fcgi::Terms {
    let mut terms = fcgi::Terms { keep, unsized_body_bytes, ..fcgi::Terms::default() };
    terms.params.set(b"OWN", b"1");
    terms
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[1, kind, 0, 1, high, low, 0, 0][..], content].concat()
}

/// Returns a whole response, with `behind` after it.
fn answer(text: &str, behind: &[u8]) -> Vec<u8> {
    [record(6, text.as_bytes()), record(6, b""), record(3, &[0; 8]), behind.to_vec()].concat()
}

/// Sends a body in pieces, gets the response `answered`, and reads it; returns the bytes written, and the body.
async fn ask(
    connection: &mut Connection,
    far: &mut UnixStream,
    (text, length, pieces): (&str, BodyLength, &[&[u8]]),
    answered: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), Fault> {
    let mut head = request(text);
    let method = head.method;
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
    poll_fn(|cx| connection.poll_head(cx, method, &HEAD, &mut head)).await?;
    let mut body = Vec::new();
    if !connection.body_length().is_empty() {
        while let Frame::Data(data) = poll_fn(|cx| connection.poll_frame(cx)).await? {
            body.extend_from_slice(&data);
        }
    }
    let mut written = vec![0; connection.carried().sent as usize];
    far.read_exact(&mut written).await.expect("what was written");
    Ok((written, body))
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

const GET: &str = "GET /a?b HTTP/1.1\r\nHost: h\r\n\r\n";
const NOTHING: (&str, BodyLength, &[&[u8]]) = (GET, BodyLength::None, &[]);

#[tokio::test]
async fn parameters_of_a_request_do_not_reach_the_next() {
    let both = async {
        let (mut connection, mut far) = pair();
        connection.describe(Terms::Fcgi(terms(true, 0)));
        let text = answer("A: b\n\nhello", b"");
        let (written, body) = ask(&mut connection, &mut far, NOTHING, &text).await.expect("an answer");
        assert_eq!(body, b"hello");
        assert_eq!(&written[..16], &[1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
        assert!(has(&written, b"\x03\x01OWN1"));
        assert!(has(&written, b"\x0c\x01QUERY_STRINGb") && has(&written, b"\x09\x01HTTP_HOSTh"));
        assert!(written.ends_with(&[1, 5, 0, 1, 0, 0, 0, 0]), "the body has an end");
        assert!(connection.is_reusable(10) && !connection.is_reusable(1));
        let (written, _) = ask(&mut connection, &mut far, NOTHING, &text).await.expect("an answer");
        assert!(!has(&written, b"OWN") && written[10] == 0, "{written:?}");
        assert!(!connection.is_reusable(10), "nobody asked to keep it");
    };
    timeout(NOT_LONG, both).await.expect("an end in time");
}

#[tokio::test]
async fn a_connection_that_is_out_of_step_does_not_serve_again() {
    let check = async |text: &[u8], expected: bool| {
        let (mut connection, mut far) = pair();
        connection.describe(Terms::Fcgi(terms(true, 0)));
        ask(&mut connection, &mut far, NOTHING, text).await.expect("an answer");
        assert_eq!(connection.is_reusable(10), expected, "{text:?}");
    };
    let all = async {
        check(&answer("A: b\n\nhello", b""), true).await;
        check(&answer("Status: 204\n\n", b""), true).await;
        check(&answer("Content-Length: 2\n\nhello", b""), true).await;
        check(&answer("A: b\n\nhello", b"\x01"), false).await;
        // The padding of the last record is missing.
        let mut padded = answer("A: b\n\nhello", b"");
        let at = padded.len() - 10;
        padded[at] = 4;
        check(&padded, false).await;
        check(&record(6, b"Status: 204\n\n"), false).await;
    };
    timeout(NOT_LONG, all).await.expect("an end in time");
}

#[tokio::test]
async fn a_body_of_unknown_length_is_buffered_to_its_end() {
    let all = async {
        let text = answer("A: b\n\nhello", b"");
        let post = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (mut connection, mut far) = pair();
        connection.describe(Terms::Fcgi(terms(true, 5)));
        let asked = (post, BodyLength::Streamed, &[&b"ab"[..], b"cde"][..]);
        let (written, _) = ask(&mut connection, &mut far, asked, &text).await.expect("an answer");
        assert!(has(&written, b"\x0e\x01CONTENT_LENGTH5") && has(&written, &record(5, b"abcde")));
        connection.describe(Terms::Fcgi(terms(true, 4)));
        let fault = ask(&mut connection, &mut far, asked, b"").await.expect_err("too long a body");
        assert_eq!(fault.kind, FaultKind::RequestBodyTooLarge);
        assert!(connection.is_unsent() && !connection.is_reusable(10));
    };
    timeout(NOT_LONG, all).await.expect("an end in time");
}

#[tokio::test]
async fn oversized_parameters_are_not_sent() {
    let all = async {
        let (mut connection, mut far) = pair();
        let mut long = terms(false, 0);
        long.params.set(b"LONG", &vec![b'x'; 70_000]);
        connection.describe(Terms::Fcgi(long));
        let fault = ask(&mut connection, &mut far, NOTHING, b"").await.expect_err("too long a parameter");
        assert_eq!(fault.kind, FaultKind::RequestHeadTooLarge);
        assert!(connection.is_unsent());
    };
    timeout(NOT_LONG, all).await.expect("an end in time");
}
