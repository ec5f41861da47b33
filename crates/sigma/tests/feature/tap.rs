//! Taps: an operator sees exchanges of a running gateway, without secrets.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, Peer, until};

use crate::managed::{EMBEDDED, KEY, VIEWER, admin, await_answerer, start, upstream};
use crate::{PATIENCE, SIGMA};

/// A reader of a tap.
struct Reader(Peer);

impl Reader {
    fn open(gateway: &Gateway, query: &str) -> Reader {
        let mut reader = Reader::ask(gateway, query).expect("there is room for a tap");
        // The first sign of life comes at once.
        assert_eq!(reader.next(), json!({"type": "alive"}));
        reader
    }

    /// None if it is refused.
    fn ask(gateway: &Gateway, query: &str) -> Option<Reader> {
        let mut peer = Peer::connect(&gateway.admin_address()).unwrap().with_deadline(PATIENCE);
        let head = format!("GET /apisix/admin/tap?{query} HTTP/1.1\r\nHost: h\r\nX-API-KEY: {KEY}\r\n\r\n");
        peer.send(head).unwrap();
        peer.read_head().unwrap().line.contains(" 200 ").then(|| Reader(peer))
    }

    /// The next line, which is its own chunk; null at the end.
    fn next(&mut self) -> Value {
        let size = usize::from_str_radix(&self.0.read_line().unwrap(), 16).unwrap();
        let line = self.0.read_exactly(size).unwrap();
        self.0.read_line().unwrap();
        serde_json::from_slice(&line).unwrap_or_default()
    }

    /// Returns the first tapped request; requests are sent until then: workers learn of taps with their
    /// clocks. One that began before has no time.
    fn first(&mut self, send: impl Fn()) -> Value {
        let mut seen = Value::Null;
        let is_seen = until(PATIENCE, || {
            send();
            if !self.0.is_idle() {
                seen = self.next();
            }
            seen["type"] == "exchange" && !seen["ms"].is_null()
        });
        assert!(is_seen, "nothing is seen");
        seen
    }

    /// The next exchange or end.
    fn news(&mut self) -> Value {
        loop {
            let line = self.next();
            if line["type"] != "alive" {
                return line;
            }
        }
    }
}

fn ask(gateway: &Gateway, line: &str, fields: &str) -> u16 {
    let request = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    gateway.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap().status()
}

fn refused(gateway: &Gateway, key: &str, query: &str) -> (u16, String) {
    let operator = Operator::new(gateway.admin_address()).with_key(key);
    let answer = operator.call("GET", &format!("/apisix/admin/tap?{query}"), None).unwrap();
    (answer.status(), answer.text())
}

/// Two routes to an origin, one of which requests a key under its own name.
fn world(settings: &str) -> (Gateway, Origin) {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("{EMBEDDED}\n{settings}"));
    let operator = admin(&gateway);
    let guarded = json!({"key-auth": {"header": "X-Door", "query": "door"}});
    operator
        .put("consumers/jack", &json!({"username": "jack", "plugins": {"key-auth": {"key": "s3cret"}}}))
        .unwrap();
    operator.put("routes/open", &json!({"uri": "/open", "upstream": upstream(&origin)})).unwrap();
    operator
        .put("routes/door", &json!({"uri": "/door", "plugins": guarded, "upstream": upstream(&origin)}))
        .unwrap();
    await_answerer(&gateway, "/open", "a");
    await_answerer(&gateway, "/door", "401");
    (gateway, origin)
}

#[test]
fn a_tap_shows_what_its_filter_lets_through_and_no_secret() {
    let (gateway, _origin) = world("");
    let mut all = Reader::open(&gateway, "");
    let mut door = Reader::open(&gateway, "route=door&status=2xx&consumer=jack&client=127.0.0.0/8");
    let mut none = Reader::open(&gateway, "client=10.0.0.0/8");
    let secrets = "Authorization: Bearer s3cret\r\nCookie: id=s3cret\r\nX-Door: s3cret\r\nX-Plain: plain\r\n";
    let shown = door.first(|| {
        assert_eq!(ask(&gateway, "GET /open", ""), 200);
        assert_eq!(ask(&gateway, "GET /door?page=2&door=s3cret&token=s3cret", secrets), 200);
    });
    let text = shown.to_string();
    assert!(!text.contains("s3cret"), "{text}");
    assert_eq!(shown["target"], "/door?page=2&door=***&token=***");
    let field = |part: &str, name: &str| {
        let fields = shown[part]["fields"].as_array().unwrap().iter();
        fields
            .filter(|field| field[0].as_str().unwrap().eq_ignore_ascii_case(name))
            .map(|field| field[1].clone())
            .next()
    };
    assert_eq!(field("request", "x-plain"), Some(json!("plain")), "{text}");
    assert_eq!(field("request", "x-door"), Some(json!("***")), "{text}");
    assert_eq!(field("answer", "x-origin"), Some(json!("a")), "{text}");
    assert_eq!(
        (&shown["method"], &shown["status"], &shown["route"], &shown["consumer"], &shown["source"]),
        (&json!("GET"), &json!(200), &json!("door"), &json!("jack"), &json!("node"))
    );
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(shown["plugin"], Value::Null);
    // A refusal has the name of the plugin.
    let mut refused = Reader::open(&gateway, "route=door&status=401");
    let shown = refused.first(|| assert_eq!(ask(&gateway, "GET /door", ""), 401));
    assert_eq!((&shown["plugin"], &shown["fault"]), (&json!("key-auth"), &Value::Null), "{shown}");
    drop(refused);
    // The other tap sees that one as well; the third sees nothing but signs of life.
    assert!((0..10_000).any(|_| all.news()["route"] == "door"));
    assert!(none.0.is_idle() || none.next()["type"] == "alive");

    // A tap ends with its reader, and makes room for another one.
    drop((all, door, none));
    let has_room = until(PATIENCE, || {
        let readers: [Option<Reader>; 4] = std::array::from_fn(|_| Reader::ask(&gateway, "route=nobody"));
        readers.iter().all(Option::is_some)
    });
    assert!(has_room, "taps stay open");
}

#[test]
fn taps_are_for_admins_and_there_are_only_so_many() {
    let (gateway, _origin) = world("tap: { taps: 1, seconds: 3 }\n");
    let mut first = Reader::open(&gateway, "");
    let (status, text) = refused(&gateway, KEY, "");
    assert!(status == 429 && text.contains("tap.taps"), "{status} {text}");
    for (key, query, expected, words) in [
        (VIEWER, "", 401, "role"),
        ("nobody", "", 401, "wrong apikey"),
        (KEY, "sample=0", 400, "sample"),
        (KEY, "status=9xx", 400, "status"),
        (KEY, "client=here", 400, "client"),
        (KEY, "rout=1", 400, "unknown argument rout"),
    ] {
        let (status, text) = refused(&gateway, key, query);
        assert!(status == expected && text.contains(words), "{key} {query}: {status} {text}");
    }
    // Its time has ended.
    assert_eq!(first.news()["type"], "end");
    let control = Operator::new(gateway.control_address());
    assert_eq!(control.call("GET", "/v1/tap", None).unwrap().status(), 403);
    // A gateway that stops does not wait for its readers.
    let last = Reader::open(&gateway, "");
    assert!(gateway.stop().unwrap().success());
    drop(last);
}

#[test]
fn a_shell_shows_blocks_or_lines() {
    let (gateway, _origin) = world("tap: { control_api: true }\n");
    for (arguments, shown) in
        [(vec!["--route", "open"], "  > X-Plain: plain\n"), (vec!["--json"], "\"X-Plain\",\"plain\"")]
    {
        let url = format!("http://{}", gateway.admin_address());
        let mut command = Command::new(SIGMA);
        command.args(["ctl", "--admin", &url, "--key", KEY, "tap", "--count", "1"]).args(&arguments);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let done = std::thread::spawn(move || child.wait_with_output().unwrap());
        let seen = until(PATIENCE, || {
            ask(&gateway, "GET /open", "X-Plain: plain\r\n");
            done.is_finished()
        });
        assert!(seen, "{arguments:?}");
        let output = done.join().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(shown), "{arguments:?}: {text}");
    }
    let control = format!("http://{}", gateway.control_address());
    let mut command = Command::new(SIGMA);
    command.args(["ctl", "tap", "--count", "1", "--control", &control]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let done = std::thread::spawn(move || child.wait_with_output().unwrap());
    assert!(until(PATIENCE, || {
        ask(&gateway, "GET /open", "");
        done.is_finished()
    }));
    assert!(done.join().unwrap().status.success());
}
