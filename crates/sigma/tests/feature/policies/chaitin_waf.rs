//! A detector of SafeLine, which speaks T1K as detectors do: it is written here by itself, after their
//! recorded messages. Its verdict depends on the path in its request.

use std::sync::{Arc, Mutex};

use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};

const PASSES: &[u8] = b"\xc1\x01\0\0\0.";

const REFUSES: &[u8] =
    b"\x41\x01\0\0\0?\x02\x03\0\0\x00405\x23\x08\0\0\0X-Waf:1\n\xa4\x17\0\0\0<!-- event_id: a1b2 -->";

/// Inputs of detectors: the head, the body if there is one, and the facts.
type Asked = Arc<Mutex<Vec<(String, Option<Vec<u8>>, String)>>>;

/// Reads one question; None at the end of the connection.
fn question(peer: &mut Peer) -> Option<(String, Option<Vec<u8>>, String)> {
    let (mut head, mut body, mut facts) = (String::new(), None, String::new());
    let mut is_first = true;
    loop {
        let prefix = peer.read_exactly(5).ok()?;
        let length = u32::from_le_bytes(prefix[1..].try_into().unwrap());
        let data = peer.read_exactly(length as usize).ok()?;
        assert_eq!(prefix[0] & 0x40 != 0, is_first, "the first frame, and no other, says that it is");
        is_first = false;
        match prefix[0] & 0x3f {
            0x01 => head = String::from_utf8(data).unwrap(),
            0x02 => body = Some(data),
            0x03 => facts = String::from_utf8(data).unwrap(),
            0x20 => assert_eq!(data, b"Proto:2\n"),
            other => panic!("a frame of kind {other}"),
        }
        if prefix[0] & 0x80 != 0 {
            return Some((head, body, facts));
        }
    }
}

/// Answers questions on one connection, each by its path.
fn detect(mut peer: Peer, asked: &Asked) {
    while let Some(question) = question(&mut peer) {
        let path = question.0.split(' ').nth(1).unwrap_or_default().to_owned();
        asked.lock().unwrap().push(question);
        let way = path.rsplit('/').next().unwrap_or_default();
        let huge = [&b"\x41\x01\0\0\0.\xa4\xff\xff\xff\x7f"[..], &[b'x'; 100_000]].concat();
        let answer: &[u8] = match way {
            "attack" => REFUSES,
            "garbage" => b"\x01\0\0\0\0",
            "undecided" => b"\xc1\x01\0\0\0!",
            "surplus" => b"\xc1\x01\0\0\0..",
            "huge" => &huge,
            // A part of a response, and no more for as long as the gateway waits.
            "half" => &REFUSES[..9],
            "silent" => b"",
            "broken" => return drop(peer.send(&REFUSES[..9])),
            _ => PASSES,
        };
        if peer.send(answer).is_err() || way == "bye" {
            return;
        }
    }
}

/// A detector, and its inputs.
fn detector() -> (Origin, Asked) {
    let asked = Asked::default();
    let keeps = Arc::clone(&asked);
    (Origin::serve(move |peer| detect(peer, &keeps)).unwrap(), asked)
}

fn ask(gateway: &Gateway, line: &str, body: &str) -> Message {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!("{line} HTTP/1.1\r\nHost: h.test\r\nX-A: b\r\n{length}\r\n{body}");
    gateway.connect().unwrap().ask(request).unwrap()
}

/// Returns a response's fields about the WAF: its verdict, the status and the action.
fn told(answer: &Message) -> (u16, [Option<String>; 3]) {
    let field = |name: &str| answer.head.get(&format!("X-APISIX-CHAITIN-WAF{name}")).map(str::to_owned);
    (answer.status(), ["", "-STATUS", "-ACTION"].map(field))
}

fn says(outcome: &str) -> [Option<String>; 3] {
    [Some(outcome.to_owned()), None, None]
}

fn config(nodes: &str, origin: u16) -> String {
    format!(
        r#"
workers: 1
listeners: ["{{listen}}"]
plugin_metadata:
  - id: chaitin-waf
    nodes: [{nodes}]
    config: {{ connect_timeout: 30000, send_timeout: 30000, read_timeout: 30000 }}
routes:
  - uri: /watched/*
    plugins: {{ chaitin-waf: {{}} }}
    upstream: http://127.0.0.1:{origin}
  - uri: /guarded/*
    plugins:
      chaitin-waf:
        mode: block
        config: {{ req_body_size: 1, connect_timeout: 30000, send_timeout: 30000, read_timeout: 30000 }}
    upstream: http://127.0.0.1:{origin}
  - uri: /hasty/*
    plugins: {{ chaitin-waf: {{ mode: block, append_waf_debug_header: true, config: {{ read_timeout: 100 }} }} }}
    upstream: http://127.0.0.1:{origin}
"#
    )
}

fn node(port: u16) -> String {
    format!("{{ host: 127.0.0.1, port: {port} }}")
}

#[test]
fn a_detector_decides() {
    let ((waf, asked), origin) = (detector(), Origin::echo("a").unwrap());
    let gateway = Gateway::start(SIGMA, &config(&node(waf.port()), origin.port())).unwrap();
    let (pass, reject) = (
        ["yes", "200", "pass"].map(|w| Some(w.to_owned())),
        ["yes", "405", "reject"].map(|w| Some(w.to_owned())),
    );

    let answer = ask(&gateway, "POST /guarded//f%69ne?x=%20y", &"b".repeat(3000));
    assert_eq!(told(&answer), (200, pass.clone()));
    assert_eq!(answer.json().unwrap()["body_bytes"], 3000);
    let (head, body, facts) = asked.lock().unwrap().pop().unwrap();
    // The detector sees the client's bytes, and the beginning of a body that the node gets whole.
    assert!(head.starts_with("POST /guarded//f%69ne?x=%20y HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nHost: h.test\r\n") && head.contains("\r\nX-A: b\r\n"), "{head}");
    assert_eq!(body, Some(vec![b'b'; 1024]));
    assert!(facts.contains("\nRemoteAddr:127.0.0.1\n") && facts.contains("\nServerName:h.test\n"), "{facts}");

    let before = origin.requests();
    let answer = ask(&gateway, "GET /guarded/attack", "");
    assert_eq!((told(&answer), answer.head.get("x-waf")), ((405, reject.clone()), Some("1")));
    let expected = "{\"code\": 405, \"success\":false, \"message\": \"blocked by Chaitin SafeLine Web Application \
                    Firewall\", \"event_id\": \"a1b2\"}\n";
    assert_eq!((answer.text().as_str(), origin.requests()), (expected, before));
    assert_eq!(asked.lock().unwrap().pop().unwrap().1, None);
    let answer = ask(&gateway, "GET /watched/attack", "");
    assert_eq!((told(&answer), answer.head.get("x-waf")), ((200, reject), None));
    let is_told = || gateway.stderr().contains("request would have been rejected, event_id: a1b2");
    assert!(until(PATIENCE, is_told), "{}", gateway.stderr());

    // One connection has served them all, until the detector closes it. That it did is no failure.
    assert_eq!(waf.connections(), 1);
    for _ in 0..3 {
        assert_eq!(told(&ask(&gateway, "GET /guarded/bye", "")), (200, pass.clone()));
    }
}

#[test]
fn a_detector_without_a_verdict_denies_every_request() {
    let ((waf, asked), origin) = (detector(), Origin::echo("a").unwrap());
    let gateway = Gateway::start(SIGMA, &config(&node(waf.port()), origin.port())).unwrap();
    for way in ["garbage", "undecided", "surplus", "huge", "broken"] {
        let before = origin.requests();
        assert_eq!(told(&ask(&gateway, &format!("GET /guarded/{way}"), "")), (500, says("waf-err")), "{way}");
        assert_eq!(origin.requests(), before, "{way}");
        assert_eq!(told(&ask(&gateway, &format!("GET /watched/{way}"), "")), (200, says("waf-err")), "{way}");
        // Its connection is not used again: the rest on it is not a response to the next query.
        assert_eq!(told(&ask(&gateway, "GET /guarded/fine", "")).0, 200, "{way}");
    }
    for way in ["silent", "half"] {
        let before = origin.requests();
        let answer = ask(&gateway, &format!("GET /hasty/{way}"), "");
        assert_eq!((told(&answer), origin.requests()), ((500, says("timeout")), before), "{way}");
        assert!(answer.head.get("X-APISIX-CHAITIN-WAF-ERROR").is_some(), "{way}");
        assert_eq!(told(&ask(&gateway, "GET /guarded/fine", "")).0, 200, "{way}");
    }
    assert!(asked.lock().unwrap().iter().all(|(head, ..)| head.starts_with("GET /")));
}

#[test]
fn detectors_stand_in_for_each_other() {
    let ((waf, asked), origin) = (detector(), Origin::echo("a").unwrap());
    // Nobody listens there.
    let nodes = format!("{}, {}", node(1), node(waf.port()));
    let gateway = Gateway::start(SIGMA, &config(&nodes, origin.port())).unwrap();
    for _ in 0..4 {
        assert_eq!(told(&ask(&gateway, "GET /guarded/fine", "")).0, 200);
    }
    assert_eq!(asked.lock().unwrap().len(), 4);
    drop(waf);
    let away = Gateway::start(SIGMA, &config(&node(1), origin.port())).unwrap();
    assert_eq!(told(&ask(&away, "GET /guarded/fine", "")), (500, says("waf-err")));
    assert_eq!(told(&ask(&away, "GET /watched/fine", "")), (200, says("waf-err")));
}
