//! Heads of requests and responses.

use serde_json::json;

use super::{World, sent, status, text_at};

/// Sets `x-a` of the request to its field `x-b`, and `x-c` of the response.
const COPY: &str = r#"
    (data (i32.const 1024) "x-ax-bx-cvia")
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (if (i32.eqz (call $get_field (i32.const 0) (i32.const 1027) (i32.const 3) (i32.const 8) (i32.const 12)))
            (then (drop (call $set_field (i32.const 0) (i32.const 1024) (i32.const 3) (call $value) (call $length)))))
        (i32.const 0))
    (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
        (drop (call $add_field (i32.const 2) (i32.const 1030) (i32.const 3) (i32.const 1024) (i32.const 3)))
        (drop (call $remove_field (i32.const 2) (i32.const 1033) (i32.const 3)))
        (i32.const 0))
"#;

#[test]
fn fields_of_requests_and_responses() {
    let world = World::new(&json!({}));
    let entry = world.plugin(COPY, json!({}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x\nX-B: 7\nX_A: forged\nX-A: forged");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    assert_eq!(sent(&ctx, "x-a").as_deref(), Some("7"));
    assert_eq!(sent(&ctx, "x_a"), None, "another spelling of a field that the module sets is removed");
    let reply = world.respond(&entry, &mut ctx, 200, &[("Via", "1"), ("X-C", "0")]);
    assert_eq!(status(reply.as_ref()), 0);
    let fields: Vec<String> = ctx
        .response
        .headers
        .iter()
        .map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii()))
        .collect();
    assert_eq!(fields, ["X-C=0", "x-c=x-a"]);
    world.log(&entry, &mut ctx);
    // The field is missing: nothing is set.
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    world.access(&entry, &mut ctx, b"");
    assert_eq!(sent(&ctx, "x-a"), None);
}

/// Returns a module that sets a field of the request, or of the response.
fn setting(map: u32, name: &str, value: &str) -> String {
    let callback = if map == 0 { "proxy_on_request_headers" } else { "proxy_on_response_headers" };
    let (n, v) = (name.len(), value.len());
    format!(
        r#"{} {}
        (func (export "{callback}") (param i32 i32 i32) (result i32)
            (if (i32.eqz (call $set_field (i32.const {map}) (i32.const 1024) (i32.const {n}) (i32.const 4096) (i32.const {v})))
                (then (return (i32.const 0))))
            unreachable)"#,
        text_at(1024, name),
        text_at(4096, value)
    )
}

#[test]
fn pseudo_fields_and_fields_of_the_gateway() {
    // The result: 503 if the host refuses the change with a status; else the target, the host and the method.
    let check = |name: &str, value: &str, expected: &str| {
        let world = World::new(&json!({}));
        let entry = world.plugin(&setting(0, name, value), json!({}));
        let mut ctx = world.request("GET /a?b HTTP/1.1\nHost: x\nContent-Length: 0");
        let reply = world.access(&entry, &mut ctx, b"");
        let got = match status(reply.as_ref()) {
            0 => [ctx.outgoing_target(), ctx.request.authority(), ctx.request.method_token()]
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .join(" "),
            status => status.to_string(),
        };
        assert_eq!(got, expected, "{name}: {value}");
        sent(&ctx, name)
    };
    check(":path", "/c", "/c x GET");
    check(":path", "/../c", "503");
    check(":path", "/a b", "503");
    check(":path", "c", "503");
    check(":method", "PUT", "/a?b x PUT");
    check(":method", "CONNECT", "/a?b x GET");
    check(":method", "A B", "503");
    check(":scheme", "ftp", "/a?b x GET");
    check("x", "1\r\ny: 2", "503");
    check("a b", "1", "503");
    assert_eq!(check("content-length", "9", "/a?b x GET").as_deref(), Some("0"));
    assert_eq!(check("transfer-encoding", "chunked", "/a?b x GET"), None);
}

#[test]
fn statuses_of_responses() {
    let check = |value: &str, expected: u16| {
        let world = World::new(&json!({}));
        let entry = world.plugin(&setting(2, ":status", value), json!({}));
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        world.access(&entry, &mut ctx, b"");
        let reply = world.respond(&entry, &mut ctx, 200, &[]);
        assert_eq!(reply.map_or(ctx.response.status, |reply| reply.status), expected, "{value}");
    };
    check("404", 404);
    check("204", 200);
    check("101", 503);
    check("x", 503);
}

/// Responds with `status` and a body of the segment at 1024.
fn responding(callback: &str, status: u32) -> String {
    format!(
        r#"(data (i32.const 1024) "no!")
        (data (i32.const 2048) "\02\00\00\00\04\00\00\00\01\00\00\00\0e\00\00\00\01\00\00\00www-\001\00content-length\009\00")
        (func (export "{callback}") (param i32 i32 i32) (result i32)
            (drop (call $respond (i32.const {status}) (i32.const 0) (i32.const 0) (i32.const 1024) (i32.const 3)
                (i32.const 2048) (i32.const 44) (i32.const -1)))
            ;; A second response has no effect.
            (drop (call $respond (i32.const 500) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const -1)))
            (i32.const 1))"#
    )
}

#[test]
fn responses_by_the_module() {
    let world = World::new(&json!({}));
    let entry = world.plugin(&responding("proxy_on_request_headers", 403), json!({}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    let reply = world.access(&entry, &mut ctx, b"").unwrap();
    assert_eq!((reply.status, reply.body.as_deref()), (403, Some(&b"no!"[..])));
    // The gateway sets the length.
    assert_eq!(reply.headers, [("www-".into(), b"1".to_vec())]);
    assert_eq!(world.events("responded"), 1);

    let world = World::new(&json!({}));
    let entry = world.plugin(&responding("proxy_on_response_headers", 502), json!({}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    assert_eq!(status(world.respond(&entry, &mut ctx, 200, &[]).as_ref()), 502);
}

#[test]
fn properties_have_the_encoding_of_envoy() {
    let check = |path: &str, expected: Option<&[u8]>| {
        let world = World::new(&json!({}));
        // The property becomes the body of the response; a missing one continues.
        let body = format!(
            r#"{}
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (if (i32.eqz (call $get_property (i32.const 1024) (i32.const {}) (i32.const 8) (i32.const 12)))
                    (then (drop (call $respond (i32.const 200) (i32.const 0) (i32.const 0) (call $value) (call $length)
                        (i32.const 0) (i32.const 0) (i32.const -1)))))
                (i32.const 0))"#,
            text_at(1024, &path.replace('.', "\0")),
            path.len()
        );
        let entry = world.plugin(&body, json!({"root_id": "r", "vm_id": "v"}));
        let mut ctx = world.request("GET /a?b=1 HTTP/1.1\nHost: x.y\nUser-Agent: u\nX-A: 1");
        ctx.client.port = 81;
        let reply = world.access(&entry, &mut ctx, b"");
        assert_eq!(reply.and_then(|reply| reply.body).as_deref(), expected, "{path}");
    };
    check("request.path", Some(b"/a?b=1"));
    check("request.url_path", Some(b"/a"));
    check("request.query", Some(b"b=1"));
    check("request.host", Some(b"x.y"));
    check("request.method", Some(b"GET"));
    check("request.useragent", Some(b"u"));
    check("request.headers.x-a", Some(b"1"));
    check("request.headers.x-b", None);
    check("request.protocol", Some(b"HTTP/1.1"));
    check("source.port", Some(&[81, 0, 0, 0, 0, 0, 0, 0]));
    check("source.address", Some(b"127.0.0.1:81"));
    check("connection.mtls", Some(&[0]));
    check("plugin_root_id", Some(b"r"));
    check("plugin_vm_id", Some(b"v"));
    check("plugin_name", Some(b"filter"));
    check("response.code", None);
    check("unknown.thing", None);
    check("uri", Some(b"/a"));
    check("", None);
}
