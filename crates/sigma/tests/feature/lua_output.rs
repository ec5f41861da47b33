//! Responses that Lua functions write piece by piece, and the upstream that they choose.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, Peer};

use crate::{PATIENCE, SIGMA};

/// Waits for another request between two pieces.
const PIECES: &str = r#"
local sem = require("ngx.semaphore").new(0)
return function(conf, ctx)
  if ngx.var.arg_go then sem:post(1) return 200, "gone" end
  ngx.status = 201
  ngx.header["X-A"] = "1"
  ngx.say("one")
  ngx.flush(true)
  ngx.header["X-Late"] = "1"
  sem:wait(60)
  ngx.say("two")
  ngx.flush(true)
  if ngx.var.arg_fail then error("after the head") end
  return 200, "three"
end
"#;

/// Writes without an end, as fast as the client reads.
const ENDLESS: &str = "return function() while true do ngx.print(('x'):rep(65536)) end end";

const CHOICE: &str = "return function(conf, ctx) if ngx.var.arg_id then ctx.upstream_id = ngx.var.arg_id end \
     if ngx.var.arg_set then require('apisix.upstream').set(ctx, 'k', 1, {id = ngx.var.arg_set}) end end";

fn route(path: &str, phase: &str, text: &str, node: &str) -> Value {
    json!({
        "id": path,
        "uri": format!("/{path}"),
        "plugins": { "serverless-pre-function": { "phase": phase, "functions": [text] } },
        "upstream": { "nodes": { node: 1 } },
    })
}

fn gateway() -> (Gateway, Origin, Origin) {
    let [one, other] = ["one", "other"].map(|name| {
        Origin::answer(move |_| {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).into_bytes()
        })
    });
    let (one, other) = (one.unwrap(), other.unwrap());
    let node = one.address().to_string();
    let config = json!({
        "workers": 1,
        "listeners": ["{listen}"],
        "routes": [
            route("pieces", "access", PIECES, &node),
            route("endless", "access", ENDLESS, &node),
            route("choice", "rewrite", CHOICE, &node),
        ],
        "upstreams": [{ "id": "other", "nodes": { other.address().to_string(): 1 } }],
    });
    (Gateway::start(SIGMA, &config.to_string()).unwrap(), one, other)
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// Reads one chunk of a body.
fn chunk(client: &mut Peer) -> String {
    let length = usize::from_str_radix(client.read_line().unwrap().trim(), 16).unwrap();
    let bytes = client.read_exactly(length + 2).unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn output_leaves_while_the_function_waits() {
    let (gateway, _one, _other) = gateway();
    for (target, last) in [("/pieces", Some("three")), ("/pieces?fail=1", None)] {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        client.send(get(target)).unwrap();
        let head = client.read_head().unwrap();
        assert_eq!((head.status().unwrap(), head.get("x-a"), head.get("x-late")), (201, Some("1"), None));
        assert_eq!(chunk(&mut client), "one\n");
        // Other requests are served meanwhile; this one wakes the function.
        let gone = gateway.connect().unwrap().with_deadline(PATIENCE).ask(get("/pieces?go=1")).unwrap();
        assert_eq!(gone.text(), "gone");
        assert_eq!(chunk(&mut client), "two\n");
        match last {
            Some(last) => {
                assert_eq!(chunk(&mut client), last);
                assert_eq!(chunk(&mut client), "");
            }
            // A response that is cut off must not look whole.
            None => assert!(client.read_line().map_or(true, |line| line.trim() != "0")),
        }
    }
}

/// A client that reads slowly holds the function back: its output takes no memory.
#[test]
fn endless_output_is_bounded_by_the_client() {
    let (gateway, _one, _other) = gateway();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.send(get("/endless")).unwrap();
    assert_eq!(client.read_head().unwrap().status().unwrap(), 200);
    let mut bytes = 0;
    while bytes < 4 << 20 {
        bytes += chunk(&mut client).len();
    }
    // Its time is up after some output, or the client has left: the worker serves others.
    drop(client);
    let gone = gateway.connect().unwrap().with_deadline(PATIENCE).ask(get("/choice")).unwrap();
    assert_eq!(gone.text(), "one");
}

#[test]
fn functions_choose_declared_upstreams() {
    let (gateway, _one, _other) = gateway();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    for (target, status, body) in [
        ("/choice", 200, "one"),
        ("/choice?id=other", 200, "other"),
        ("/choice?set=other", 200, "other"),
        ("/choice?id=none", 500, "failed to fetch upstream info by upstream id: none"),
    ] {
        let answer = client.ask(get(target)).unwrap();
        assert_eq!((answer.status(), &*answer.text()), (status, body), "{target}");
    }
}

/// Waits that are over at once: for connections to a refused address. Returns the number of other requests meanwhile.
const WAITS_AT_ONCE: &str = r#"
return function(conf, ctx)
  local before = ngx.shared.counts:get("others") or 0
  for _ = 1, 30 do
    local sum = 0
    for i = 1, 300000 do sum = sum + i end
    ngx.socket.tcp():connect("127.0.0.1", 1)
  end
  return 200, tostring((ngx.shared.counts:get("others") or 0) - before)
end
"#;

#[test]
fn waits_that_are_over_at_once_leave_turns_to_other_requests() {
    let route = |uri: &str, function: &str| {
        let plugins = json!({ "serverless-pre-function": { "phase": "access", "functions": [function] } });
        json!({ "uri": uri, "plugins": plugins, "upstream": { "nodes": { "127.0.0.1:1": 1 } } })
    };
    let other = "return function() ngx.shared.counts:incr('others', 1, 0) return 200, 'other' end";
    let config = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "plugin_attr": { "serverless-pre-function": { "custom_lua_shared_dict": { "counts": "1m" } } },
        "routes": [route("/waits", WAITS_AT_ONCE), route("/other", other)],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let mut waiting = gateway.connect().unwrap();
    let waiting = std::thread::spawn(move || waiting.get("/waits").unwrap());
    let mut client = gateway.connect().unwrap();
    while !waiting.is_finished() {
        assert_eq!(client.get("/other").unwrap().text(), "other");
    }
    let response = waiting.join().unwrap();
    assert_eq!(response.status(), 200, "{}", gateway.stderr());
    assert!(response.text().parse::<u32>().unwrap() > 0);
}
