//! Modules with the handler ABI of http-wasm.

use serde_json::{Value, json};
use sigma_plugin::{Context, Entry};

use super::{Body, World, sent, status, text_at};

const PRELUDE: &str = r#"
    (import "http_handler" "enable_features" (func $enable (param i32) (result i32)))
    (import "http_handler" "get_config" (func $get_config (param i32 i32) (result i32)))
    (import "http_handler" "log" (func $log (param i32 i32 i32)))
    (import "http_handler" "log_enabled" (func $log_enabled (param i32) (result i32)))
    (import "http_handler" "get_method" (func $get_method (param i32 i32) (result i32)))
    (import "http_handler" "set_method" (func $set_method (param i32 i32)))
    (import "http_handler" "get_uri" (func $get_uri (param i32 i32) (result i32)))
    (import "http_handler" "set_uri" (func $set_uri (param i32 i32)))
    (import "http_handler" "get_protocol_version" (func $get_version (param i32 i32) (result i32)))
    (import "http_handler" "get_header_names" (func $get_names (param i32 i32 i32) (result i64)))
    (import "http_handler" "get_header_values" (func $get_values (param i32 i32 i32 i32 i32) (result i64)))
    (import "http_handler" "set_header_value" (func $set_field (param i32 i32 i32 i32 i32)))
    (import "http_handler" "add_header_value" (func $add_field (param i32 i32 i32 i32 i32)))
    (import "http_handler" "remove_header" (func $remove_field (param i32 i32 i32)))
    (import "http_handler" "write_body" (func $write_body (param i32 i32 i32)))
    (import "http_handler" "get_status_code" (func $get_status (result i32)))
    (import "http_handler" "set_status_code" (func $set_status (param i32)))
    (import "http_handler" "get_source_addr" (func $get_source (param i32 i32) (result i32)))
    (memory (export "memory") 1)
"#;

/// The import of the function that reads bodies: a module with it gets the body of the request in advance.
const READS: &str =
    r#"(import "http_handler" "read_body" (func $read_body (param i32 i32 i32) (result i64)))"#;

/// A module that lets the request continue.
const NEXT: &str = r#"(func (export "handle_request") (result i64) (i64.const 1))"#;

/// A module that does not look at the response.
const IGNORE: &str = r#"(func (export "handle_response") (param i32 i32))"#;

fn module(body: &str) -> Vec<u8> {
    let reads = if body.contains("$read_body") { READS } else { "" };
    wat::parse_str(format!("(module {reads} {PRELUDE} {body})")).unwrap_or_else(|error| panic!("{error}"))
}

impl World {
    fn handler(&self, body: &str, conf: Value) -> Entry {
        self.entry(&module(body), conf).unwrap()
    }

    /// Sends a response through the module; returns its body, its trailers, and the status after the module.
    fn answered(
        &self,
        entry: &Entry,
        ctx: &mut Context,
        body: &str,
        trailers: &[(&str, &str)],
    ) -> (Body, Vec<String>) {
        if let Some(reply) = self.respond(entry, ctx, 200, &[("x-node", "1")]) {
            return (Body::Cut(reply.status), Vec::new());
        }
        match self.body_filter(entry, ctx) {
            Some(mut filter) => self.filtered(&mut *filter, ctx, &[body], trailers),
            None => (Body::Whole("no filter".to_owned()), Vec::new()),
        }
    }
}

fn whole(text: &str) -> Body {
    Body::Whole(text.to_owned())
}

#[test]
fn requests_are_read_and_changed() {
    let world = World::new(&json!({}));
    // Each value is returned in a field of the request.
    let text = text_at(1024, "x-methodx-urix-versionx-sourcex-configx-allx-gone/new?a=%26PATCH");
    let entry = world.handler(
        &format!(
            r#"{text}
            (func $tell (param $name i32) (param $n i32) (param $length i32)
                (call $set_field (i32.const 0) (local.get $name) (local.get $n) (i32.const 4096) (local.get $length)))
            (func (export "handle_request") (result i64)
                (call $tell (i32.const 1024) (i32.const 8) (call $get_method (i32.const 4096) (i32.const 100)))
                (call $tell (i32.const 1032) (i32.const 5) (call $get_uri (i32.const 4096) (i32.const 100)))
                (call $tell (i32.const 1037) (i32.const 9) (call $get_version (i32.const 4096) (i32.const 100)))
                (call $tell (i32.const 1046) (i32.const 8) (call $get_source (i32.const 4096) (i32.const 100)))
                (call $tell (i32.const 1054) (i32.const 8) (call $get_config (i32.const 4096) (i32.const 100)))
                ;; As many bytes as values.
                (call $tell (i32.const 1062) (i32.const 5)
                    (i32.wrap_i64 (i64.shr_u (call $get_values (i32.const 0) (i32.const 1062) (i32.const 5)
                        (i32.const 8192) (i32.const 100)) (i64.const 32))))
                (call $remove_field (i32.const 0) (i32.const 1067) (i32.const 6))
                (call $set_uri (i32.const 1073) (i32.const 10))
                (call $set_method (i32.const 1083) (i32.const 5))
                (call $add_field (i32.const 0) (i32.const 1067) (i32.const 6) (i32.const 1083) (i32.const 5))
                ;; The six above, x-gone and host.
                (if (i64.ne (i64.const 8)
                        (i64.shr_u (call $get_names (i32.const 0) (i32.const 8192) (i32.const 1000)) (i64.const 32)))
                    (then unreachable))
                (i64.const 1))
            {IGNORE}"#
        ),
        json!({"conf": "hello"}),
    );
    let mut ctx = world.request("GET /a?b HTTP/1.1\nHost: x\nX-All: 4\nX-all: 5\nX-Gone: 1");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    let expected = [
        ("x-method", "GET"),
        ("x-uri", "/a?b"),
        ("x-version", "HTTP/1.1"),
        ("x-config", "hello"),
        ("x-gone", "PATCH"),
    ];
    for (name, value) in expected {
        assert_eq!(sent(&ctx, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!((ctx.outgoing_target(), ctx.request.method_token()), (&b"/new?a=%26"[..], &b"PATCH"[..]));
    assert_eq!(sent(&ctx, "x-all").map(|value| value.len()), Some(2));
    world.log(&entry, &mut ctx);
    assert_eq!(world.events("aborted"), 0);
}

#[test]
fn a_module_responds() {
    let world = World::new(&json!({}));
    let text = text_at(1024, "x-whyno!content-length");
    let entry = world.handler(
        &format!(
            r#"{text}
            (func (export "handle_request") (result i64)
                (call $set_status (i32.const 403))
                (call $set_field (i32.const 1) (i32.const 1024) (i32.const 5) (i32.const 1029) (i32.const 3))
                (call $set_field (i32.const 1) (i32.const 1032) (i32.const 14) (i32.const 1029) (i32.const 3))
                (call $write_body (i32.const 1) (i32.const 1029) (i32.const 2))
                (call $write_body (i32.const 1) (i32.const 1031) (i32.const 1))
                (i64.const 0))
            {IGNORE}"#
        ),
        json!({}),
    );
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    let reply = world.access(&entry, &mut ctx, b"").unwrap();
    assert_eq!((reply.status, reply.body.as_deref()), (403, Some(&b"no!"[..])));
    assert_eq!(reply.headers, [("x-why".into(), b"no!".to_vec())]);
    assert!(world.respond(&entry, &mut ctx, 403, &[]).is_none());
    world.log(&entry, &mut ctx);
}

/// Reads the whole body of the request, and writes it twice.
const TWICE: &str = r#"
    (func (export "handle_request") (result i64)
        (local $n i32)
        (local.set $n (i32.wrap_i64 (call $read_body (i32.const 0) (i32.const 4096) (i32.const 100))))
        (call $write_body (i32.const 0) (i32.const 4096) (local.get $n))
        (call $write_body (i32.const 0) (i32.const 4096) (local.get $n))
        (i64.const 1))
"#;

#[test]
fn bodies_of_requests_are_read_and_written() {
    let world = World::new(&json!({}));
    let run = |module: &str, body: &[u8]| {
        let entry = world.handler(&format!("{module}{IGNORE}"), json!({}));
        let length = format!("Content-Length: {}", body.len());
        let mut ctx = world.request(&format!("POST / HTTP/1.1\nHost: x\n{length}"));
        let status = status(world.access(&entry, &mut ctx, body).as_ref());
        world.log(&entry, &mut ctx);
        (status, ctx.body.map(|body| String::from_utf8(body).unwrap()))
    };
    assert_eq!(run(TWICE, b"abc"), (0, Some("abcabc".to_owned())));
    // The limit is 64.
    assert_eq!(run(TWICE, &[b'x'; 65]).0, 413);
    assert_eq!(run(TWICE, &[b'x'; 64]).0, 503);
    // A module that imports the function and does not call it gets the request.
    let imports =
        format!("(func $unused (drop (call $read_body (i32.const 0) (i32.const 0) (i32.const 0)))) {NEXT}");
    assert_eq!(run(&imports, &[b'x'; 65]).0, 0);
    let writes = r#"
        (data (i32.const 1024) "new")
        (func (export "handle_request") (result i64)
            (call $write_body (i32.const 0) (i32.const 1024) (i32.const 3)) (i64.const 1))"#;
    assert_eq!(run(writes, b"abc"), (0, Some("new".to_owned())));
    assert_eq!(run(writes, &[b'x'; 65]).0, 413);
}

/// Holds responses; sets the status to 201, adds the token as a field, and writes `[` before the body of the response.
const CHANGES: &str = r#"
    (data (i32.const 1024) "[x-tokenx-setx-nodex-trail")
    (start $begin)
    (func $begin (drop (call $enable (i32.const 6))))
    (func (export "handle_request") (result i64)
        (call $set_field (i32.const 1) (i32.const 1032) (i32.const 5) (i32.const 1032) (i32.const 5))
        (i64.const 0x4100000001))
    (func (export "handle_response") (param $token i32) (param $error i32)
        (local $n i32)
        (if (local.get $error) (then (return)))
        (call $set_status (i32.add (call $get_status) (i32.const 1)))
        (i32.store8 (i32.const 2048) (local.get $token))
        (call $set_field (i32.const 1) (i32.const 1025) (i32.const 7) (i32.const 2048) (i32.const 1))
        (call $remove_field (i32.const 1) (i32.const 1037) (i32.const 6))
        (call $set_field (i32.const 3) (i32.const 1043) (i32.const 7) (i32.const 2048) (i32.const 1))
        (local.set $n (i32.wrap_i64 (call $read_body (i32.const 1) (i32.const 4096) (i32.const 100))))
        (call $write_body (i32.const 1) (i32.const 1024) (i32.const 1))
        (call $write_body (i32.const 1) (i32.const 4096) (local.get $n)))
"#;

fn field(ctx: &Context, name: &str) -> Option<String> {
    ctx.response.headers.find(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
}

#[test]
fn held_responses_are_changed() {
    let world = World::new(&json!({}));
    let entry = world.handler(CHANGES, json!({}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    let (body, trailers) = world.answered(&entry, &mut ctx, "abc", &[("x-b", "2")]);
    assert_eq!((body, trailers), (whole("[abc"), vec!["x-b: 2".to_owned(), "x-trail: A".to_owned()]));
    assert_eq!(ctx.response.status, 201);
    let fields = ["x-token", "x-set", "x-node"].map(|name| field(&ctx, name));
    assert_eq!(fields, [Some("A".to_owned()), Some("x-set".to_owned()), None]);
    world.log(&entry, &mut ctx);
    // A held body has a limit.
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    world.access(&entry, &mut ctx, b"");
    assert_eq!(world.answered(&entry, &mut ctx, &"x".repeat(65), &[]).0, Body::Cut(500));
    world.log(&entry, &mut ctx);
    assert_eq!((world.events("aborted"), world.events("too_large")), (0, 1));
}

#[test]
fn bytes_written_in_advance_come_before_the_body() {
    let world = World::new(&json!({}));
    for (features, expected) in [("0", "<abc"), ("2", "<abc!")] {
        let module = format!(
            r#"(data (i32.const 1024) "<!")
            (start $begin)
            (func $begin (drop (call $enable (i32.const {features}))))
            (func (export "handle_request") (result i64)
                (call $write_body (i32.const 1) (i32.const 1024) (i32.const 1)) (i64.const 1))
            (func (export "handle_response") (param i32 i32)
                (local $n i32)
                (if (i32.eqz (i32.const {features})) (then (return)))
                (local.set $n (i32.wrap_i64 (call $read_body (i32.const 1) (i32.const 4096) (i32.const 100))))
                (call $write_body (i32.const 1) (i32.const 4096) (local.get $n))
                (call $write_body (i32.const 1) (i32.const 1025) (i32.const 1)))"#
        );
        let entry = world.handler(&module, json!({}));
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
        assert_eq!(world.answered(&entry, &mut ctx, "abc", &[]).0, whole(expected));
        world.log(&entry, &mut ctx);
    }
    assert_eq!(world.events("aborted"), 0);
}

#[test]
fn responses_that_are_not_held_cannot_be_changed() {
    let world = World::new(&json!({}));
    let module = format!(
        r#"{NEXT} (func (export "handle_response") (param i32 i32) (call $set_status (i32.const 201)))"#
    );
    let entry = world.handler(&module, json!({}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    assert_eq!(world.answered(&entry, &mut ctx, "abc", &[]).0, whole("no filter"));
    assert_eq!((ctx.response.status, world.events("aborted")), (200, 0));
    world.log(&entry, &mut ctx);
    assert_eq!((ctx.response.status, world.events("aborted")), (200, 1));
}

/// Keeps the first byte of the path in its memory, and adds it to the response.
const KEEPS: &str = r#"
    (data (i32.const 1024) "x-path")
    (func (export "handle_request") (result i64)
        (drop (call $enable (i32.const 2)))
        (drop (call $get_uri (i32.const 2048) (i32.const 100)))
        (i64.const 1))
    (func (export "handle_response") (param i32 i32)
        (call $set_field (i32.const 1) (i32.const 1024) (i32.const 6) (i32.const 2049) (i32.const 1)))
"#;

#[test]
fn exchanges_have_instances_of_their_own() {
    let world = World::new(&json!({"exchanges": 3, "start_wait_ms": 100}));
    let entry = world.handler(KEEPS, json!({}));
    for _ in 0..3 {
        let mut all: Vec<Context> = ["a", "b", "c"]
            .map(|path| {
                let mut ctx = world.request(&format!("GET /{path} HTTP/1.1\nHost: x"));
                assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
                ctx
            })
            .into();
        // The fourth one waits, and there is no room in time.
        let mut fourth = world.request("GET /d HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut fourth, b"").as_ref()), 503);
        for (ctx, path) in all.iter_mut().zip(["a", "b", "c"]) {
            assert_eq!(world.answered(&entry, ctx, "z", &[]).0, whole("z"));
            assert_eq!(field(ctx, "x-path").as_deref(), Some(path));
            world.log(&entry, ctx);
        }
    }
    // An exchange that is dropped takes its instance with it, and makes room.
    for _ in 0..5 {
        let mut ctx = world.request("GET /a HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    }
}

#[test]
fn failures_end_one_exchange() {
    let world = World::new(&json!({}));
    let calls = [
        "(unreachable)",
        "(loop $l (br $l))",
        "(drop (call $get_uri (i32.const -1) (i32.const -1)))",
        "(drop (call $get_values (i32.const 9) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 0)))",
        "(drop (call $get_values (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))",
        "(drop (call $get_names (i32.const 0) (i32.const -1) (i32.const 65536)))",
        "(call $set_field (i32.const 0) (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 0))",
        "(call $set_field (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1))",
        "(call $write_body (i32.const 1) (i32.const 0) (i32.const 65))",
        "(call $write_body (i32.const 7) (i32.const 0) (i32.const 1))",
        "(call $set_method (i32.const 0) (i32.const 0))",
        "(call $set_uri (i32.const 0) (i32.const 1))",
        "(call $set_status (i32.const 99))",
        "(call $log (i32.const 2) (i32.const -1) (i32.const 5))",
        "(call $set_field (i32.const 2) (i32.const 1024) (i32.const 4) (i32.const 1024) (i32.const 4))",
    ];
    for (number, call) in calls.iter().enumerate() {
        let module = format!(
            r#"(data (i32.const 1024) "host")
            (func (export "handle_request") (result i64)
                (if (i64.eqz (call $get_values (i32.const 0) (i32.const 1024) (i32.const 1) (i32.const 0) (i32.const 0)))
                    (then {call}))
                (i64.const 1))
            {IGNORE}"#
        );
        for (conf, expected) in [(json!({}), 503), (json!({"fail_open": true}), 0)] {
            let entry = world.handler(&module, conf);
            let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
            assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), expected, "{call}");
            world.log(&entry, &mut ctx);
            let mut ctx = world.request("GET / HTTP/1.1\nHost: x\nh: 1");
            assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0, "after {call}");
            world.log(&entry, &mut ctx);
        }
        assert_eq!(world.events("aborted"), 2 * (number as u64 + 1), "{call}");
    }
}

#[test]
fn a_trap_while_a_response_is_held() {
    let world = World::new(&json!({}));
    let module = r#"
        (start $begin)
        (func $begin (drop (call $enable (i32.const 2))))
        (func (export "handle_request") (result i64) (i64.const 1))
        (func (export "handle_response") (param i32 i32) unreachable)"#;
    for (conf, expected) in [(json!({}), Body::Cut(503)), (json!({"fail_open": true}), whole("abc"))] {
        let entry = world.handler(module, conf);
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
        assert_eq!(world.answered(&entry, &mut ctx, "abc", &[]).0, expected);
        world.log(&entry, &mut ctx);
    }
    assert_eq!((world.events("aborted"), world.events("failed_open")), (2, 1));
}

#[test]
fn the_end_of_an_exchange_is_reported() {
    let world = World::new(&json!({}));
    // Traps if it gets no error: the response that it holds never came.
    let module = r#"
        (start $begin)
        (func $begin (drop (call $enable (i32.const 2))))
        (func (export "handle_request") (result i64) (i64.const 1))
        (func (export "handle_response") (param i32 i32) (if (i32.eqz (local.get 1)) (then unreachable)))"#;
    let entry = world.handler(module, json!({}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    world.log(&entry, &mut ctx);
    assert_eq!(world.events("aborted"), 0);
}

#[test]
fn modules_that_are_not_whole_are_refused() {
    let world = World::new(&json!({}));
    let check = |module: &str, expected: &str| {
        let error = world.entry(&wat::parse_str(module).unwrap(), json!({})).map(drop).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check(&format!("(module {NEXT})"), "handle_request and handle_response");
    let other = r#"(import "http_handler" "call_service" (func))"#;
    check(&format!("(module {other} {NEXT} {IGNORE})"), "http_handler.call_service");
    let env = r#"(import "env" "proxy_log" (func (param i32 i32 i32) (result i32)))"#;
    check(&format!("(module {env} {NEXT} {IGNORE})"), "env.proxy_log");
    // A function with another type.
    let entry =
        world.entry(&module(&format!(r#"(func (export "handle_request")) {IGNORE}"#)), json!({})).unwrap();
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 503);
    assert_eq!(world.events("not_started"), 1);
}
