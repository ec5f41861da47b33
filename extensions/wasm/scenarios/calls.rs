//! Calls, ticks, shared data and metrics.

use std::sync::Arc;

use serde_json::json;
use sigma_http::Headers;
use sigma_plugin::outbound::ServiceResponse;
use sigma_plugin_kit::tallies::Families;

use super::{World, sent, status, text_at};

/// The fields of a call: `:method` GET, `:path` /check, `:authority` auth.
pub(super) fn call_fields() -> (String, usize) {
    let pairs = [(":method", "GET"), (":path", "/check"), (":authority", "auth")];
    let bytes = crate::host::encode(pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    (text_at(2048, std::str::from_utf8(&bytes).unwrap()), bytes.len())
}

/// Calls `service` and pauses; responds 403 unless the service's status is 200, else sets `x-user` to its body.
fn asking(service: &str) -> String {
    let (fields, length) = call_fields();
    format!(
        r#"{fields} {} (data (i32.const 1200) ":statusx-user200")
        (global $stream (mut i32) (i32.const 0))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (global.set $stream (local.get 0))
            (if (call $call (i32.const 1024) (i32.const {}) (i32.const 2048) (i32.const {length}) (i32.const 0)
                    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 500) (i32.const 16))
                (then unreachable))
            (i32.const 1))
        (func $deny
            (drop (call $respond (i32.const 403) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const -1))))
        (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then unreachable))
            (drop (call $effective (global.get $stream)))
            (if (i32.eqz (local.get 2)) (then (call $deny) (return)))
            (drop (call $get_field (i32.const 6) (i32.const 1200) (i32.const 7) (i32.const 8) (i32.const 12)))
            (if (i32.ne (i32.load8_u (call $value)) (i32.const 50)) (then (call $deny) (return)))
            (drop (call $get_buffer (i32.const 4) (i32.const 0) (i32.const 100) (i32.const 8) (i32.const 12)))
            (drop (call $set_field (i32.const 0) (i32.const 1207) (i32.const 6) (call $value) (call $length)))
            (drop (call $continue (i32.const 0))))"#,
        text_at(1024, service),
        service.len()
    )
}

fn response(status: u16, body: &str) -> ServiceResponse {
    ServiceResponse { status, headers: Headers::default(), body: body.into(), trailers: Headers::default() }
}

#[test]
fn a_request_waits_for_a_call() {
    let world = World::new(&json!({}));
    let entry = world.plugin(&asking("auth"), json!({"upstreams": {"auth": {"uri": "http://127.0.0.1:1"}}}));
    let run = || {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x\nX-User: forged");
        let reply = world.access(&entry, &mut ctx, b"");
        (status(reply.as_ref()), sent(&ctx, "x-user"))
    };
    world.services.0.answers.borrow_mut().push_back(Ok(response(200, "jack")));
    assert_eq!(run(), (0, Some("jack".to_owned())));
    world.services.0.answers.borrow_mut().push_back(Ok(response(401, "")));
    assert_eq!(run().0, 403);
    // The service cannot be reached.
    assert_eq!(run().0, 403);
    assert_eq!(world.events("call_failed"), 1);
    let calls = world.services.0.calls.borrow();
    let first = &calls[0];
    assert_eq!((&first.target[..], &*first.host, first.timeout_ms), (&b"/check"[..], "auth", 500));
    assert!(first.upstream.contains("auth"), "{}", first.upstream);
}

#[test]
fn only_services_of_the_configuration_are_called() {
    let world = World::new(&json!({}));
    let entry = world.plugin(&asking("other"), json!({"upstreams": {"auth": {"uri": "http://127.0.0.1:1"}}}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    // The module is aborted by its own check of the status.
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 503);
    assert!(world.services.0.calls.borrow().is_empty());
}

#[test]
fn modules_of_apisix_wait_for_calls_and_not_for_pauses() {
    let world = World::new(&json!({}));
    let module = super::module(&asking("auth"));
    let path = world.folder.path().join("a.wasm");
    std::fs::write(&path, module).unwrap();
    let kind =
        crate::apisix::kinds(&json!({"plugins": [{"name": "asks", "priority": 7, "file": path}]})).unwrap();
    let roster = crate::testing::roster().with(kind);
    let conf = json!({"conf": "x", "upstreams": {"auth": {"uri": "http://127.0.0.1:1"}}});
    let entry = roster
        .build("asks", &Arc::new(conf.clone()), conf, "/apisix/routes/1", &|_: &str| None, &world.node)
        .unwrap();
    world.services.0.answers.borrow_mut().push_back(Ok(response(200, "jack")));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    assert_eq!(sent(&ctx, "x-user").as_deref(), Some("jack"));
}

#[test]
fn ticks_continue_paused_requests() {
    let world = World::new(&json!({}));
    let module = r#"
        (global $stream (mut i32) (i32.const 0))
        (func (export "proxy_on_configure") (param i32 i32) (result i32)
            (drop (call $set_tick (i32.const 1))) (i32.const 1))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (global.set $stream (local.get 0)) (i32.const 1))
        (func (export "proxy_on_tick") (param i32)
            (if (global.get $stream) (then
                (drop (call $effective (global.get $stream)))
                (drop (call $continue (i32.const 0))))))"#;
    let entry = world.plugin(module, json!({}));
    for _ in 0..3 {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
        world.log(&entry, &mut ctx);
    }
}

#[test]
fn instances_share_data_and_metrics() {
    let world = World::new(&json!({}));
    // Responds with the number of the shared value, which each request replaces by its own.
    let module = r#"
        (data (i32.const 1024) "keyhits")
        (func (export "proxy_on_vm_start") (param i32 i32) (result i32)
            (drop (call $define (i32.const 0) (i32.const 1027) (i32.const 4) (i32.const 20))) (i32.const 1))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (drop (call $increment (i32.load (i32.const 20)) (i64.const 2)))
            (drop (call $get_shared (i32.const 1024) (i32.const 3) (i32.const 8) (i32.const 12) (i32.const 16)))
            (drop (call $set_shared (i32.const 1024) (i32.const 3) (i32.const 1024) (i32.const 3) (i32.load (i32.const 16))))
            (drop (call $respond (i32.add (i32.const 200) (i32.load (i32.const 16))) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
            (i32.const 1))"#;
    let entries =
        [json!({"conf": "a", "vm_id": "v"}), json!({"conf": "b", "vm_id": "v"}), json!({"vm_id": "w"})]
            .map(|conf| world.plugin(module, conf));
    let run = |entry| {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        status(world.access(entry, &mut ctx, b"").as_ref())
    };
    assert_eq!(
        [run(&entries[0]), run(&entries[0]), run(&entries[1]), run(&entries[2])],
        [200, 201, 202, 200]
    );
    // Without a `vm_id`, other modules have other data.
    let other = format!("{module} (data (i32.const 9000) \"other\")");
    let entries = [module, &other].map(|module| world.plugin(module, json!({})));
    assert_eq!([run(&entries[0]), run(&entries[1]), run(&entries[0])], [200, 200, 201]);
    let families = world.node.part(Families::default).all();
    let counter = families.iter().find(|(name, _)| *name == "wasm_counter").unwrap();
    let expected = (vec![("module", "filter".into()), ("name", "hits".into())], 14);
    assert_eq!(counter.1.all(), [expected]);
}

#[test]
fn a_request_waits_for_a_call_by_grpc() {
    let world = World::new(&json!({}));
    // The service is a `GrpcService` with the cluster `auth`.
    let module = r#"
        (data (i32.const 1024) "\0a\06\0a\04authpack.SvcCheckpingx-user")
        (global $stream (mut i32) (i32.const 0))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (global.set $stream (local.get 0))
            (if (call $grpc (i32.const 1024) (i32.const 8) (i32.const 1032) (i32.const 8) (i32.const 1040) (i32.const 5)
                    (i32.const 0) (i32.const 0) (i32.const 1045) (i32.const 4) (i32.const 500) (i32.const 16))
                (then unreachable))
            (i32.const 1))
        (func (export "proxy_on_grpc_receive") (param i32 i32 i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then unreachable))
            (drop (call $get_buffer (i32.const 5) (i32.const 0) (i32.const 100) (i32.const 8) (i32.const 12)))
            (drop (call $set_field (i32.const 0) (i32.const 1049) (i32.const 6) (call $value) (call $length))))
        (func (export "proxy_on_grpc_close") (param i32 i32 i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then unreachable))
            (if (local.get 2) (then
                (drop (call $respond (i32.add (i32.const 500) (local.get 2)) (i32.const 0) (i32.const 0) (i32.const 0)
                    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))))
            (drop (call $continue (i32.const 0))))"#;
    let target = json!({"uri": "http://127.0.0.1:1", "grpc": true});
    let entry = world.plugin(module, json!({"upstreams": {"auth": target}}));
    let run = || {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        (status(world.access(&entry, &mut ctx, b"").as_ref()), sent(&ctx, "x-user"))
    };
    world.services.0.messages.borrow_mut().push_back(b"jack".to_vec());
    assert_eq!(run(), (0, Some("jack".to_owned())));
    let streams = world.services.0.streams.borrow().clone();
    assert_eq!(streams, ["/pack.Svc/Check ping"]);
    // There is no response: the status is 14.
    assert_eq!(run(), (514, None));
}

/// The service `auth`, method `/pack.Svc/Check`, in the memory.
const SERVICE: &str = r#"
    (data (i32.const 1024) "authpack.SvcCheckabx-headx-trailx-userx-byegrpc-status")
    (global $stream (mut i32) (i32.const 0))
    (func $open (result i32)
        (call $grpc_stream (i32.const 1024) (i32.const 4) (i32.const 1028) (i32.const 8) (i32.const 1036) (i32.const 5)
            (i32.const 0) (i32.const 0) (i32.const 16)))
"#;

#[test]
fn streams_by_grpc_carry_messages_both_ways() {
    let world = World::new(&json!({}));
    world.services.0.echoes.set(true);
    // Sends `a`, and `b` when `a` has come back.
    let module = format!(
        r#"{SERVICE}
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (global.set $stream (local.get 0))
            (if (call $open) (then unreachable))
            (if (call $grpc_send (i32.load (i32.const 16)) (i32.const 1041) (i32.const 1) (i32.const 0)) (then unreachable))
            (i32.const 1))
        (func $copy (param $map i32) (param $name i32) (param $n i32)
            (if (call $get_field (local.get $map) (local.get $name) (local.get $n) (i32.const 8) (i32.const 12))
                (then unreachable))
            (drop (call $set_field (i32.const 0) (local.get $name) (local.get $n) (call $value) (call $length))))
        (func (export "proxy_on_grpc_receive_initial_metadata") (param i32 i32 i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then unreachable))
            (call $copy (i32.const 4) (i32.const 1043) (i32.const 6)))
        (func (export "proxy_on_grpc_receive") (param i32 i32 i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then unreachable))
            (drop (call $get_buffer (i32.const 5) (i32.const 0) (i32.const 9) (i32.const 8) (i32.const 12)))
            (drop (call $add_field (i32.const 0) (i32.const 1056) (i32.const 6) (call $value) (call $length)))
            (if (i32.eq (i32.load8_u (call $value)) (i32.const 97)) (then
                (if (call $grpc_send (local.get 1) (i32.const 1042) (i32.const 1) (i32.const 1)) (then unreachable))
                ;; This side has ended.
                (if (i32.ne (call $grpc_send (local.get 1) (i32.const 1042) (i32.const 1) (i32.const 1)) (i32.const 2))
                    (then unreachable)))))
        (func (export "proxy_on_grpc_receive_trailing_metadata") (param i32 i32 i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then unreachable))
            (call $copy (i32.const 5) (i32.const 1049) (i32.const 7)))
        (func (export "proxy_on_grpc_close") (param i32 i32 i32)
            (if (i32.ne (local.get 0) (i32.const 1)) (then unreachable))
            (if (i32.ne (local.get 2) (i32.const 7)) (then unreachable))
            (drop (call $get_status (i32.const 20) (i32.const 8) (i32.const 12)))
            (drop (call $set_field (i32.const 0) (i32.const 1062) (i32.const 5) (call $value) (call $length)))
            (drop (call $continue (i32.const 0))))"#
    );
    let target = json!({"uri": "http://127.0.0.1:1", "grpc": true});
    let entry = world.plugin(&module, json!({"upstreams": {"auth": target}}));
    for _ in 0..3 {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
        let fields = ["x-head", "x-user", "x-trail", "x-bye"].map(|name| sent(&ctx, name));
        assert_eq!(fields, ["1", "a", "1", "bye"].map(|value| Some(value.to_owned())));
        world.log(&entry, &mut ctx);
    }
    assert_eq!(world.services.0.streams.borrow().len(), 6);
    assert_eq!(world.events("aborted"), 0);
}

#[test]
fn streams_by_grpc_end_with_their_exchange() {
    let world = World::new(&json!({}));
    world.services.0.echoes.set(true);
    // A cancelled stream is gone; without an end there are as many as allowed, and no more.
    let module = format!(
        r#"{SERVICE}
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (if (call $open) (then unreachable))
            (if (call $grpc_cancel (i32.load (i32.const 16))) (then unreachable))
            (if (i32.ne (call $grpc_cancel (i32.load (i32.const 16))) (i32.const 1)) (then unreachable))
            (if (i32.ne (call $grpc_close (i32.load (i32.const 16))) (i32.const 1)) (then unreachable))
            (if (call $open) (then unreachable))
            (if (call $open) (then unreachable))
            (if (i32.ne (call $open) (i32.const 10)) (then unreachable))
            (if (i32.ne (call $grpc_send (i32.const -1) (i32.const 0) (i32.const 1) (i32.const 0)) (i32.const 1))
                (then unreachable))
            (i32.const 0))"#
    );
    let target = json!({"uri": "http://127.0.0.1:1", "grpc": true});
    let entry = world.plugin(&module, json!({"upstreams": {"auth": target}}));
    for _ in 0..5 {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
        world.log(&entry, &mut ctx);
    }
    assert_eq!(world.events("aborted"), 0);
}

#[test]
fn foreign_functions_compress() {
    let world = World::new(&json!({"body_bytes": 4096}));
    let module = r#"
        (data (i32.const 1024) "compressuncompressothera")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            ;; 4000 zeros become few bytes, and 4000 zeros again.
            (if (call $foreign (i32.const 1024) (i32.const 8) (i32.const 2048) (i32.const 4000) (i32.const 8) (i32.const 12))
                (then unreachable))
            (if (i32.gt_u (call $length) (i32.const 100)) (then unreachable))
            (if (call $foreign (i32.const 1032) (i32.const 10) (call $value) (call $length) (i32.const 8) (i32.const 12))
                (then unreachable))
            (if (i32.ne (call $length) (i32.const 4000)) (then unreachable))
            (if (i32.ne (call $foreign (i32.const 1032) (i32.const 10) (i32.const 1024) (i32.const 9) (i32.const 8)
                    (i32.const 12)) (i32.const 3)) (then unreachable))
            (if (i32.ne (call $foreign (i32.const 1042) (i32.const 5) (i32.const 0) (i32.const 0) (i32.const 8)
                    (i32.const 12)) (i32.const 1)) (then unreachable))
            (if (i32.ne (call $foreign (i32.const 1024) (i32.const 8) (i32.const 0) (i32.const 5000) (i32.const 8)
                    (i32.const 12)) (i32.const 2)) (then unreachable))
            (i32.const 0))"#;
    let entry = world.plugin(module, json!({}));
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
}
