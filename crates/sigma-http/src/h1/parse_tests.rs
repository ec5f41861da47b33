//! Valid heads, and heads that must be rejected.

use super::*;
use crate::BodyLength;
use crate::h1::{request_body, response_body, response_persists};

const LIMITS: HeadLimits =
    HeadLimits { line_bytes: 64, head_bytes: 512, fields: 8, tolerance: crate::h1::Tolerance::NONE };

fn request(wire: &str) -> Result<Option<(RequestHead, usize)>, ParseError> {
    let mut head = RequestHead::default();
    Ok(parse_request(wire.as_bytes(), &LIMITS, &mut head)?.map(|n| (head, n)))
}

fn accepted(wire: &str) -> RequestHead {
    match request(wire) {
        Ok(Some((head, _))) => head,
        other => panic!("{wire:?}: {other:?}"),
    }
}

#[test]
fn request_parts() {
    let head = accepted(
        "POST /a/b?c=d HTTP/1.1\r\nHost: Example.com:80\r\nX-Pad: \t v v \t\r\nEmpty:\r\nContent-Length: 3\r\n\r\n",
    );
    assert_eq!(head.method, Method::Post);
    assert_eq!(head.path_and_query(), b"/a/b?c=d");
    assert_eq!(head.raw_path(), b"/a/b");
    assert_eq!(head.query(), Some(&b"c=d"[..]));
    assert_eq!(head.authority(), b"Example.com:80");
    assert_eq!(head.headers.find(b"x-pad"), Some(&b"v v"[..]));
    assert_eq!(head.headers.find(b"empty"), Some(&b""[..]));
    assert_eq!(request_body(&head), Ok(BodyLength::Known(3)));
}

#[test]
fn target_forms() {
    let head = accepted("GET http://h:1?q HTTP/1.1\r\nHost: other\r\n\r\n");
    assert_eq!(
        (head.form, head.authority(), head.raw_path()),
        (TargetForm::Absolute, &b"h:1"[..], &b"/"[..])
    );
    assert_eq!(accepted("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").form, TargetForm::Asterisk);
    assert_eq!(accepted("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n").form, TargetForm::Authority);
    assert_eq!(accepted("\r\nGET / HTTP/1.0\r\n\r\n").version, Version::Http10);
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    let wire = "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n";
    for lines in 0..=4 {
        let wire = format!("{}{wire}", "\r\n".repeat(lines));
        let (head, length) = request(&wire).unwrap().unwrap();
        assert_eq!((head.path_and_query(), head.authority(), length), (&b"/"[..], &b"x"[..], wire.len()));
        assert_eq!(head.headers.find(b"a"), Some(&b"b"[..]));
        let mut scanner = HeadScanner::default();
        for cut in 0..wire.len() {
            assert!(matches!(request(&wire[..cut]), Ok(None)), "{lines} lines, cut at {cut}");
            assert!(!scanner.ready(&wire.as_bytes()[..cut]), "{lines} lines, cut at {cut}");
        }
        assert!(scanner.ready(wire.as_bytes()), "{lines} lines");
    }
    let many = "\r\n".repeat(5);
    assert!(
        matches!(request(&many), Err(ParseError::Invalid(_)))
            && HeadScanner::default().ready(many.as_bytes())
    );
    for bare in ["\nGET / HTTP/1.1\r\n", "\r\n\nGET / HTTP/1.1\r\n", "\r\n\r\n\n"] {
        assert!(matches!(request(bare), Err(ParseError::Invalid(_))), "{bare:?}");
        assert!(HeadScanner::default().ready(bare.as_bytes()), "{bare:?}");
    }
}

#[test]
fn every_prefix_is_incomplete_or_rejected_early() {
    let wire = "GET /index.html HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n";
    for cut in 0..wire.len() {
        assert!(matches!(request(&wire[..cut]), Ok(None)), "cut at {cut}");
        assert!(!HeadScanner::default().ready(&wire.as_bytes()[..cut]), "cut at {cut}");
    }
    assert!(HeadScanner::default().ready(wire.as_bytes()));
    let mut scanner = HeadScanner::default();
    let ready = (1..=wire.len()).filter(|n| scanner.ready(&wire.as_bytes()[..*n])).collect::<Vec<_>>();
    assert_eq!(ready, [wire.len()]);
    assert!(HeadScanner::default().ready(b"GET / HTTP/1.1\n"), "a bare LF is refused at once");
}

#[test]
fn invalid_requests_are_rejected() {
    let host = "Host: x\r\n";
    let cases = [
        ("GET /\r\n\r\n".to_owned(), "HTTP/0.9"),
        (format!("GET / HTTP/1.2\r\n{host}\r\n"), "version 1.2"),
        (format!("GET / HTTP/2.0\r\n{host}\r\n"), "version 2.0"),
        (format!("GET / http/1.1\r\n{host}\r\n"), "lower-case version"),
        (format!("GET  / HTTP/1.1\r\n{host}\r\n"), "two spaces"),
        (format!("GET / HTTP/1.1 \r\n{host}\r\n"), "space after the version"),
        (format!("GET /a b HTTP/1.1\r\n{host}\r\n"), "space in the target"),
        (format!("GET /a#b HTTP/1.1\r\n{host}\r\n"), "fragment"),
        (format!("GET /\u{e4} HTTP/1.1\r\n{host}\r\n"), "non-ASCII target"),
        (format!("GET a HTTP/1.1\r\n{host}\r\n"), "relative target"),
        (format!("GET * HTTP/1.1\r\n{host}\r\n"), "asterisk with GET"),
        (format!("GET http:///a HTTP/1.1\r\n{host}\r\n"), "no authority"),
        (format!("GET http://u@h/ HTTP/1.1\r\n{host}\r\n"), "userinfo"),
        (format!("G(T / HTTP/1.1\r\n{host}\r\n"), "method not a token"),
        (" / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "empty method"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "no Host"),
        (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), "two Hosts"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n".to_owned(), "empty Host"),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(), "space in Host"),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".to_owned(), "port not a number"),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".to_owned(), "open bracket"),
        (format!("GET / HTTP/1.1\n{host}\r\n"), "bare LF"),
        (format!("GET / HTTP/1.1\r\n{host}A: b\n\r\n"), "bare LF in a field"),
        (format!("GET / HTTP/1.1\r\n{host}A: b\rc\r\n\r\n"), "bare CR"),
        (format!("GET / HTTP/1.1\r\n{host}A: b\r\n c\r\n\r\n"), "obs-fold"),
        (format!("GET / HTTP/1.1\r\n{host}A : b\r\n\r\n"), "space before the colon"),
        (format!("GET / HTTP/1.1\r\n{host}: b\r\n\r\n"), "empty name"),
        (format!("GET / HTTP/1.1\r\n{host}A(: b\r\n\r\n"), "name not a token"),
        (format!("GET / HTTP/1.1\r\n{host}A\r\n\r\n"), "no colon"),
        (format!("GET / HTTP/1.1\r\n{host}A: \0\r\n\r\n"), "NUL"),
        (format!("GET / HTTP/1.1\r\n{host}A: \x7f\r\n\r\n"), "DEL"),
    ];
    for (wire, what) in cases {
        assert!(matches!(request(&wire), Err(ParseError::Invalid(_))), "{what}: {wire:?}");
    }
}

/// Logs of a rejected head show its valid beginning.
#[test]
fn the_known_part_of_a_rejected_head() {
    let check = |wire: &str, expected: &str| {
        let mut head = accepted("HEAD /earlier HTTP/1.1\r\nHost: e\r\nA: e\r\n\r\n");
        parse_known(wire.as_bytes(), &LIMITS, &mut head);
        let parts = match head.method_token() {
            b"" => Vec::new(),
            token => vec![token, head.path_and_query(), head.version.as_str().as_bytes(), head.authority()],
        };
        let fields: Vec<&[u8]> = head.headers.iter().map(|(_, value)| value).collect();
        let shown = [parts.join(&b' '), fields.join(&b',')].join(&b'|');
        assert_eq!(String::from_utf8(shown).unwrap(), expected, "{wire:?}");
    };
    check("", "|");
    check("GET /a HTTP/1.1\r", "|");
    check("GET /a HTTP/1.1\r\n", "GET /a HTTP/1.1 |");
    check("\r\n\r\nGET /a?b HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", "GET /a?b HTTP/1.1 h|h");
    check("PUT /a HTTP/1.0\r\nA: b\r\nHost: h\r\nC: d", "PUT /a HTTP/1.0 h|b,h");
    check("GET /a HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", "GET /a HTTP/1.1 h|h,i");
    check("GET http://x?y HTTP/1.1\r\nA: \0\r\n\r\n", "GET /?y HTTP/1.1 x|");
    check("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", "|");
    check("GET /a HTTP/3.0\r\nHost: h\r\n\r\n", "|");
    check(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(64)), "|");
    let many = format!("GET /a HTTP/1.1\r\n{}", "A: b\r\n".repeat(20));
    check(&many, &format!("GET /a HTTP/1.1 |{}", ["b"; 8].join(",")));
}

#[test]
fn limits() {
    let long = "a".repeat(70);
    assert!(matches!(request(&format!("GET /{long}")), Err(ParseError::LineTooLong)));
    assert!(matches!(request(&format!("GET /{long} HTTP/1.1\r\n\r\n")), Err(ParseError::LineTooLong)));
    let fields = "A: b\r\n".repeat(9);
    assert!(matches!(request(&format!("GET / HTTP/1.1\r\n{fields}\r\n")), Err(ParseError::HeadTooLarge)));
    let value = "v".repeat(600);
    assert!(matches!(
        request(&format!("GET / HTTP/1.1\r\nA: {value}\r\n\r\n")),
        Err(ParseError::HeadTooLarge)
    ));
    assert!(matches!(request(&format!("GET / HTTP/1.1\r\nA: {value}")), Err(ParseError::HeadTooLarge)));
}

#[test]
fn body_lengths_of_requests() {
    let body = |fields: &str| request_body(&accepted(&format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n")));
    assert_eq!(body(""), Ok(BodyLength::None));
    assert_eq!(body("Transfer-Encoding: Chunked\r\n"), Ok(BodyLength::Streamed));
    for refused in [
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 1\r\nContent-Length: 1\r\n",
        "Content-Length: 1, 1\r\n",
        "Content-Length: +1\r\n",
        "Content-Length: -1\r\n",
        "Content-Length:\r\n",
        "Content-Length: 0x1\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding:\r\n",
    ] {
        assert!(body(refused).is_err(), "{refused:?}");
    }
}

#[test]
fn body_lengths_of_responses() {
    let body = |line: &str, fields: &str| {
        let mut head = ResponseHead::default();
        let parsed = parse_response(format!("{line}\r\n{fields}\r\n").as_bytes(), &LIMITS, &mut head);
        assert!(matches!(parsed, Ok(Some(_))), "{line} {fields}");
        (response_body(&head, Method::Get), response_persists(&head))
    };
    let (new, old) = ("HTTP/1.1 200 OK", "HTTP/1.0 200 OK");
    assert_eq!(body(new, "Transfer-Encoding: chunked\r\n"), (Ok(BodyLength::Streamed), true));
    assert_eq!(body(new, "Transfer-Encoding: Identity\r\n"), (Ok(BodyLength::UntilClose), true));
    assert_eq!(
        body(new, "Transfer-Encoding: identity\r\nContent-Length: 2\r\n"),
        (Ok(BodyLength::Known(2)), true)
    );
    let kept = "Connection: keep-alive\r\n";
    assert_eq!(body(old, &format!("{kept}Content-Length: 2\r\n")), (Ok(BodyLength::Known(2)), true));
    let chunks = format!("{kept}Transfer-Encoding: chunked\r\n");
    assert_eq!(body(old, &chunks), (Ok(BodyLength::Streamed), false));
    for refused in [
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 2\r\nContent-Length: 3\r\n",
    ] {
        assert!(body(new, refused).0.is_err() && body(old, refused).0.is_err(), "{refused:?}");
    }
}

#[test]
fn responses() {
    let response = |wire: &str| {
        let mut head = ResponseHead::default();
        parse_response(wire.as_bytes(), &LIMITS, &mut head).map(|n| n.map(|_| head))
    };
    let head =
        response("HTTP/1.1 404 Not Here\r\nA: b\r\n\r\nbody").ok().flatten().expect("a valid response");
    assert_eq!((head.status, head.reason(), head.headers.len()), (404, &b"Not Here"[..], 1));
    for valid in ["HTTP/1.1 200\r\n\r\n", "HTTP/1.0 200 \r\n\r\n"] {
        assert!(matches!(response(valid), Ok(Some(_))), "{valid:?}");
    }
    for refused in [
        "junk",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 X\r\n\r\n",
        "HTTP/1.1 200 a\0b\r\n\r\n",
        "HTTP/1.1 200 OK\n\r\n",
    ] {
        assert!(matches!(response(refused), Err(ParseError::Invalid(_))), "{refused:?}");
    }
}

/// Forms of old origins that RFC 9112 allows a proxy to accept, each with its result.
#[test]
fn responses_of_old_origins() {
    let check = |wire: &str, name: &str, expected: Option<&str>| {
        let mut head = ResponseHead::default();
        let parsed = parse_response(wire.as_bytes(), &LIMITS, &mut head);
        let value = head.headers.find(name.as_bytes()).filter(|_| matches!(parsed, Ok(Some(_))));
        assert_eq!(value, expected.map(str::as_bytes), "{wire:?}: {parsed:?}");
        if let (Ok(Some(len)), Some(_)) = (parsed, expected) {
            assert!(wire[..len].ends_with("\n\r\n"), "{wire:?}");
        }
    };
    check("HTTP/1.1 200 OK\r\nX-Frame-Options : DENY\r\n\r\nbody", "x-frame-options", Some("DENY"));
    check("HTTP/1.1 200 OK\r\nA\t :b\r\nC: d\r\n\r\n", "c", Some("d"));
    check("HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\n", "content-length", Some("4"));
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n", "transfer-encoding", Some("chunked"));
    check("HTTP/1.1 200 OK\r\nA: b\r\n  c\r\n\r\n", "a", Some("b c"));
    check("HTTP/1.1 200 OK\r\nA: b\r\n\tX: c\r\n\r\n", "a", Some("b X: c"));
    check("HTTP/1.0 200\r\nA:\r\n b\r\n\r\n", "a", Some("b"));
    check("HTTP/1.1 200 \r\nA: b\r\n\r\n", "a", Some("b"));
    // A missing name, a fold without a field, or a name that is not a token even without the space.
    check("HTTP/1.1 200 OK\r\n : b\r\n\r\n", "", None);
    check("HTTP/1.1 200 OK\r\n A: b\r\n\r\n", "a", None);
    check("HTTP/1.1 200 OK\r\nA B : c\r\n\r\n", "a b", None);
    check("HTTP/1.1 200 OK\r\nA : b\rc\r\n\r\n", "a", None);
    check("http/1.1 200 OK\r\nA: b\r\n\r\n", "a", None);
}
