//! Loggers with files, and entries in all their forms.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_plugin::address::NodeAddr;
use sigma_plugin::context::RouteFacts;
use sigma_plugin::record::Attempt;
use sigma_plugin::{Env, Node, Phase};

use crate::testing::{Case, entry, entry_with, refusal};

/// The line that `file-logger` writes about a request: the usual one, or after `prepare`.
fn logged(conf: Value, metadata: Option<Value>, prepare: impl FnOnce(&mut Case)) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log.json");
    let mut conf = conf;
    conf["path"] = json!(path);
    let entry = entry_with("file-logger", conf, metadata).unwrap();
    let mut case = Case::new("POST /p/a?x=1&x=2&y&z=%20 HTTP/1.1\nHost: Example.com:80\nX-A: 1\nX-A: 2");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    case.node =
        Arc::new(Node::new(crate::testing::spawning(runtime.handle()), Value::Null, "node1".to_owned()));
    case.body = b"question".to_vec();
    case.ctx.record.started = Some(std::time::Instant::now());
    prepare(&mut case);
    case.run(&entry, Phase::Access);
    if let Some(copy) = &case.ctx.request_copy {
        copy.see(b"ques");
        copy.see(b"tion");
    }
    case.respond(200, "Content-Type: text/plain");
    case.filter(&entry, &[b"ans", b"wer"]);
    case.ctx.record.bytes_sent = 230;
    case.ctx.record.bytes_received = 85;
    let env = Env::new(&case.node, &case.local, &case.consumers);
    entry.plugin.log(&mut case.ctx, &env);
    runtime.block_on(case.node.end());
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The line about a response with these fields and this body, which is shown.
fn one_answer(fields: &str, body: &[&[u8]]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log.json");
    let entry = entry("file-logger", json!({"path": path, "include_resp_body": true})).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    case.node = Arc::new(Node::new(crate::testing::spawning(runtime.handle()), Value::Null, String::new()));
    case.respond(200, fields);
    assert_eq!(case.filter(&entry, body), body.concat(), "the client gets it unchanged");
    case.log(&entry);
    runtime.block_on(case.node.end());
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

fn one(conf: Value, metadata: Option<Value>, prepare: impl FnOnce(&mut Case)) -> Value {
    let mut lines = logged(conf, metadata, prepare);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

fn routed(case: &mut Case) {
    case.ctx.route = Some(Arc::new(RouteFacts { id: "1".into(), ..RouteFacts::default() }));
    case.ctx.client.local = Some("127.0.0.1:9080".parse().unwrap());
    let attempt = |port: u16| Attempt {
        addr: NodeAddr::Tcp(([127, 0, 0, 1], port).into()),
        host: String::new(),
        began: None,
        reused: false,
        version: None,
        linked_ms: None,
        status: 200,
        sent_ms: None,
        connect_ms: Some(0.4),
        header_ms: Some(2.0),
        carried: None,
        response_ms: Some(5.2),
    };
    case.ctx.record.attempts = vec![attempt(1980), attempt(1981)];
}

#[test]
fn the_usual_entry() {
    let mut entry = one(json!({}), None, routed);
    for (name, most) in [("latency", 60_000.0), ("apisix_latency", 60_000.0), ("start_time", 1e15)] {
        let value = entry.as_object_mut().unwrap().remove(name).unwrap();
        assert!((0.0..most).contains(&value.as_f64().unwrap()), "{name}: {value}");
    }
    let expected = json!({
        "request": {
            "url": "http://example.com:9080/p/a?x=1&x=2&y&z=%20", "uri": "/p/a?x=1&x=2&y&z=%20", "method": "POST",
            "headers": {"host": "Example.com:80", "x-a": ["1", "2"]},
            "querystring": {"x": ["1", "2"], "y": true, "z": " "}, "size": 85
        },
        "response": {"status": 200, "headers": {"content-type": "text/plain"}, "size": 230},
        "server": {"hostname": "node1", "version": env!("CARGO_PKG_VERSION")},
        "service_id": "", "route_id": "1", "client_ip": "127.0.0.1",
        "upstream": "127.0.0.1:1980, 127.0.0.1:1981", "upstream_latency": 10
    });
    assert_eq!(entry, expected);
}

#[test]
fn hidden_arguments_are_not_listed() {
    let entry = one(json!({}), None, |case| case.ctx.hide_argument("z"));
    assert_eq!(entry["request"]["querystring"], json!({"x": ["1", "2"], "y": true}));
}

#[test]
fn an_entry_without_a_route_names_the_host() {
    let entry = one(json!({}), None, |_| {});
    assert_eq!((&entry["service_id"], entry.get("route_id")), (&json!("example.com"), None));
    assert_eq!(entry.get("upstream").or(entry.get("upstream_latency")), None);
}

#[test]
fn bodies_are_shown_on_demand_and_cut() {
    let conf = json!({"include_req_body": true, "include_resp_body": true, "max_req_body_bytes": 5, "max_resp_body_bytes": 4});
    let entry = one(conf, None, routed);
    assert_eq!((&entry["request"]["body"], &entry["response"]["body"]), (&json!("quest"), &json!("answ")));
    let conf = json!({
        "include_req_body": true, "include_req_body_expr": [["arg_x", "==", "7"]],
        "include_resp_body": true, "include_resp_body_expr": [["status", "==", 200]]
    });
    let entry = one(conf, None, routed);
    assert_eq!((entry["request"].get("body"), &entry["response"]["body"]), (None, &json!("answer")));
}

#[test]
fn a_compressed_body_is_decoded_and_a_broken_one_shown_as_it_is() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"plain").unwrap();
    let body = encoder.finish().unwrap();
    let mut brotlied = Vec::new();
    brotli::BrotliCompress(&mut &b"plain"[..], &mut brotlied, &Default::default()).unwrap();
    for (coding, sent, expected) in [
        ("gzip", &body[..], "plain"),
        ("BR", &brotlied[..], "plain"),
        ("gzip", b"no gzip", "no gzip"),
        ("zstd", b"unknown", "unknown"),
    ] {
        let entry = one_answer(&format!("Content-Encoding: {coding}"), &[sent]);
        assert_eq!(entry["response"]["body"], expected, "{coding}");
    }
}

#[test]
fn a_format_replaces_the_entry() {
    let conf = json!({
        "include_resp_body": true,
        "log_format": {
            "host": "$host", "status": "$status", "no": "$arg_none", "text": "plain", "n": 7,
            "up": "$upstream_response_time", "body": "$request_body", "answer": "$resp_body", "flag": "$arg_y",
            "in": {"addr": "$remote_addr"}, "route_id": "mine",
            "a": {"b": {"c": {"d": {"e": {"f": 1}}}}}
        },
        "log_format_extra": {"not": "used"}
    });
    let expected = json!({
        "host": "example.com", "status": 200, "text": "plain", "n": 7, "up": 0.01, "body": "question",
        "answer": "answer", "flag": true, "in": {"addr": "127.0.0.1"}, "route_id": "1",
        "a": {"b": {"c": {"d": {"e": {}}}}}
    });
    assert_eq!(one(conf, None, routed), expected);
}

#[test]
fn formats_of_the_metadata_stand_back() {
    let metadata = json!({"log_format": {"from": "metadata"}, "log_format_extra": {"extra": "metadata"}});
    assert_eq!(one(json!({}), Some(metadata.clone()), |_| {}), json!({"from": "metadata"}));
    let own = json!({"log_format": {"from": "conf"}});
    assert_eq!(one(own, Some(metadata), |_| {}), json!({"from": "conf"}));
    let metadata = json!({"log_format": {}, "log_format_extra": {"extra": "$host", "client_ip": "never"}});
    let entry = one(json!({}), Some(metadata.clone()), |_| {});
    assert_eq!((&entry["extra"], &entry["client_ip"]), (&json!("example.com"), &json!("127.0.0.1")));
    let entry = one(json!({"log_format_extra": {}}), Some(metadata), |_| {});
    assert_eq!(entry.get("extra"), None);
}

#[test]
fn only_what_matches_is_written() {
    let conf = |value: &str| json!({"match": [[["arg_x", "==", value]], [["arg_q", "==", "1"]]]});
    assert_eq!(logged(conf("1"), None, |_| {}).len(), 1);
    assert_eq!(logged(conf("9"), None, |_| {}).len(), 0);
}

#[test]
fn files_are_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("a"), dir.path().join("b"));
    let logger = entry("file-logger", json!({"path": path, "log_format": {"uri": "$uri"}})).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut case = Case::new("GET /1 HTTP/1.1\nHost: h");
    case.node = Arc::new(Node::new(crate::testing::spawning(runtime.handle()), Value::Null, String::new()));
    let log = |case: &mut Case| {
        let env = Env::new(&case.node, &case.local, &case.consumers);
        logger.plugin.log(&mut case.ctx, &env);
    };
    log(&mut case);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !std::fs::read(&path).is_ok_and(|bytes| !bytes.is_empty()) {
        assert!(std::time::Instant::now() < deadline, "nothing was written");
        // The thread is started by the control thread, which is this runtime.
        runtime.block_on(tokio::task::yield_now());
    }
    std::fs::rename(&path, &moved).unwrap();
    case.node.reopen_logs();
    case.request("GET /2 HTTP/1.1\nHost: h");
    log(&mut case);
    runtime.block_on(case.node.end());
    assert_eq!(std::fs::read_to_string(&moved).unwrap(), "{\"uri\":\"/1\"}\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"uri\":\"/2\"}\n");
}

/// Logs requests to this file until a condition holds, then ends; the lines lost.
fn log_to(path: &Path, enough: impl Fn(&Node) -> bool) -> u64 {
    let logger = entry("file-logger", json!({"path": path, "log_format": {"uri": "$uri"}})).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut case = Case::new("GET /1 HTTP/1.1\nHost: h");
    case.node = Arc::new(Node::new(crate::testing::spawning(runtime.handle()), Value::Null, String::new()));
    case.log(&logger);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !enough(&case.node) {
        assert!(std::time::Instant::now() < deadline, "nothing has happened");
        // The thread is started by the control thread, which is this runtime.
        runtime.block_on(tokio::task::yield_now());
    }
    runtime.block_on(case.node.end());
    case.node.lost_lines()
}

#[test]
fn files_are_not_for_everybody_and_keep_their_mode() {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let dir = tempfile::tempdir().unwrap();
    let (new, old) = (dir.path().join("new"), dir.path().join("old"));
    std::fs::write(&old, "").unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o604)).unwrap();
    for path in [&new, &old] {
        assert_eq!(log_to(path, |_| std::fs::read(path).is_ok_and(|bytes| !bytes.is_empty())), 0);
    }
    assert_eq!(mode(&new) & 0o007, 0);
    assert_eq!(mode(&new) & 0o600, 0o600);
    assert_eq!(mode(&old), 0o604);
}

#[test]
fn lost_lines_are_counted_and_a_pipe_delays_no_request() {
    assert_eq!(log_to(Path::new("/dev/full"), |node| node.lost_lines() > 0), 1);
    assert_eq!(log_to(Path::new("/nonexistent/log"), |node| node.lost_lines() > 0), 1);
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert_eq!(log_to(&pipe, |node| node.lost_lines() > 0), 1, "nobody reads it");
}

#[test]
fn bad_configurations() {
    let cases = [
        (
            "file-logger",
            json!({"path": 1}),
            r#"property "path" validation failed: wrong type: expected string, got number"#,
        ),
        (
            "file-logger",
            json!({"path": "a", "match": [[["a", "~", 1]]]}),
            "failed to validate the 'match' expression: ",
        ),
        (
            "file-logger",
            json!({"path": "a", "max_req_body_bytes": 0}),
            r#"property "max_req_body_bytes" validation failed: expected 0 to be at least 1"#,
        ),
        ("http-logger", json!({}), r#"property "uri" is required"#),
        (
            "http-logger",
            json!({"uri": "127.0.0.1"}),
            r#"property "uri" validation failed: failed to match pattern"#,
        ),
        (
            "http-logger",
            json!({"uri": "http://h", "concat_method": "x"}),
            r#"property "concat_method" validation failed: matches none of the enum values"#,
        ),
        (
            "http-logger",
            json!({"uri": "http://h", "include_req_body_expr": [["a", "~", 1]]}),
            "failed to validate the 'include_req_body_expr' expression: ",
        ),
        (
            "http-logger",
            json!({"uri": "http://h", "include_resp_body_expr": [["a", "~", 1]]}),
            "failed to validate the 'include_resp_body_expr' expression: ",
        ),
        (
            "http-logger",
            json!({"uri": "http://h", "batch_max_size": 0}),
            r#"property "batch_max_size" validation failed: expected 0 to be at least 1"#,
        ),
    ];
    for (name, conf, expected) in cases {
        let refused = refusal(name, &conf);
        assert!(refused.contains(expected), "{name} {conf}: {refused}");
    }
    let unset = entry("file-logger", json!({})).map(|_| ()).unwrap_err();
    assert_eq!(unset, r#"property "path" is not set in either the plugin conf or the metadata"#);
    assert!(entry_with("file-logger", json!({}), Some(json!({"path": "a"}))).is_ok());
}

#[test]
fn fields_of_a_body_are_shown_where_it_has_passed() {
    let json = |case: &mut Case| {
        case.request("POST /p HTTP/1.1\nHost: h\nContent-Type: application/json");
        case.ctx.record.started = Some(std::time::Instant::now());
    };
    let pass = |conf: Value, body: &'static [u8]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.json");
        let mut conf = conf;
        conf["path"] = json!(path);
        let entry = entry("file-logger", conf).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        case.node =
            Arc::new(Node::new(crate::testing::spawning(runtime.handle()), Value::Null, String::new()));
        json(&mut case);
        case.run(&entry, Phase::Access);
        if let Some(copy) = &case.ctx.request_copy {
            body.chunks(3).for_each(|piece| copy.see(piece));
        }
        case.respond(200, "");
        case.log(&entry);
        runtime.block_on(case.node.end());
        serde_json::from_str::<Value>(&std::fs::read_to_string(&path).unwrap()).unwrap()
    };
    let format = json!({"log_format": {"who": "$post_arg.user.name", "ids": "$post_arg.items[*].id"}});
    let body = br#"{"user":{"name":"jack"},"items":[{"id":1},{"id":2}]}"#;
    assert_eq!(pass(format.clone(), body), json!({"who": "jack", "ids": ["1", "2"]}));
    // Cut off, it is not what its type says.
    let mut short = format;
    short["max_req_body_bytes"] = json!(20);
    assert_eq!(pass(short, body), json!({}));
    // A condition on the body is queried when all of it has passed.
    let shown = |name: &str| {
        let conf =
            json!({"include_req_body": true, "include_req_body_expr": [["post_arg.user.name", "==", name]]});
        pass(conf, body)["request"].get("body").cloned()
    };
    assert!(shown("jack").is_some());
    assert_eq!(shown("jill"), None);
}
