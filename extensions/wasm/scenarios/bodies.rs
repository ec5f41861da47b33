//! Bodies and trailers.

use serde_json::json;

use super::{Body, World, status};

/// Replaces each part of a body by `[n]` with `n` its length, and the end by `.`.
const REPLACE: &str = r#"
    (data (i32.const 1024) "[.]")
    (func $replace (param $buffer i32) (param $size i32) (param $end i32) (result i32)
        (i32.store8 (i32.const 1025) (i32.add (i32.const 48) (local.get $size)))
        (drop (call $set_buffer (local.get $buffer) (i32.const 0) (local.get $size) (i32.const 1024) (i32.const 3)))
        (if (local.get $end) (then
            (drop (call $set_buffer (local.get $buffer) (i32.const 99) (i32.const 0) (i32.const 1025) (i32.const 1)))))
        (i32.const 0))
    (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
        (call $replace (i32.const 0) (local.get 1) (local.get 2)))
    (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
        (call $replace (i32.const 1) (local.get 1) (local.get 2)))
"#;

/// Pauses each part of the body, and continues at its end.
const HOLD: &str = r#"
    (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
        (i32.eqz (local.get 2)))
    (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
        (i32.eqz (local.get 2)))
"#;

/// Pauses for ever.
const STOP: &str = r#"
    (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) (i32.const 1))
"#;

/// Responds from the callback of a body.
const REFUSE: &str = r#"
    (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
        (drop (call $respond (i32.const 403) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 0) (i32.const -1)))
        (i32.const 1))
    (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
        ;; The head has left: the host refuses.
        (i32.eqz (call $respond (i32.const 403) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 0) (i32.const -1))))
"#;

/// Sends pieces through the filter of the request, then through the one of the response.
fn both(module: &str, pieces: &[&str]) -> (Body, Body) {
    let world = World::new(&json!({}));
    let entry = world.plugin(module, json!({}));
    let mut ctx = world.request("POST / HTTP/1.1\nHost: x\nContent-Length: 9");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    let request = match world.request_filter(&entry, &mut ctx) {
        Some(mut filter) => world.filtered(&mut *filter, &mut ctx, pieces, &[]).0,
        None => Body::Whole("no filter".to_owned()),
    };
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    world.access(&entry, &mut ctx, b"");
    world.respond(&entry, &mut ctx, 200, &[]);
    let response = match world.body_filter(&entry, &mut ctx) {
        Some(mut filter) => world.filtered(&mut *filter, &mut ctx, pieces, &[]).0,
        None => Body::Whole("no filter".to_owned()),
    };
    world.log(&entry, &mut ctx);
    (request, response)
}

fn whole(text: &str) -> Body {
    Body::Whole(text.to_owned())
}

#[test]
fn parts_of_bodies_are_replaced() {
    assert_eq!(both(REPLACE, &["ab", "c"]), (whole("[2][1][0]0"), whole("[2][1][0]0")));
    assert_eq!(both(REPLACE, &[]), (whole("[0]0"), whole("[0]0")));
}

#[test]
fn held_bodies_are_passed_whole() {
    assert_eq!(both(HOLD, &["ab", "c"]), (whole("abc"), whole("abc")));
    // The limit is 64.
    let (piece, half) = ("x".repeat(65), "x".repeat(40));
    assert_eq!(both(HOLD, &[&half, &half]), (Body::Cut(413), Body::Cut(500)));
    // A part that came in one piece is no larger than the buffers of a connection.
    assert_eq!(both(HOLD, &[&piece]), (whole(&piece), whole(&piece)));
}

#[test]
fn a_pause_without_an_end_fails() {
    assert_eq!(both(STOP, &["a"]), (whole("no filter"), Body::Cut(503)));
}

#[test]
fn responses_from_body_callbacks() {
    assert_eq!(both(REFUSE, &["a"]), (Body::Cut(403), whole("a")));
}

#[test]
fn modules_without_body_callbacks_have_no_filter() {
    assert_eq!(both("", &["a"]), (whole("no filter"), whole("no filter")));
}

#[test]
fn trailers_are_changed() {
    let world = World::new(&json!({}));
    let entry = world.plugin(
        r#"
        (data (i32.const 1024) "x-ax-b")
        (func (export "proxy_on_response_trailers") (param i32 i32) (result i32)
            (drop (call $add_field (i32.const 3) (i32.const 1024) (i32.const 3) (i32.const 1027) (i32.const 3)))
            (drop (call $remove_field (i32.const 3) (i32.const 1027) (i32.const 3)))
            (i32.const 0))"#,
        json!({}),
    );
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    world.access(&entry, &mut ctx, b"");
    world.respond(&entry, &mut ctx, 200, &[]);
    let mut filter = world.body_filter(&entry, &mut ctx).unwrap();
    let got = world.filtered(&mut *filter, &mut ctx, &["ab"], &[("x-b", "1"), ("x-z", "2")]);
    assert_eq!(got, (whole("ab"), vec!["x-z: 2".to_owned(), "x-a: x-b".to_owned()]));
}

#[test]
fn the_body_can_be_read_before_the_head_is_sent() {
    let world = World::new(&json!({}));
    let module = format!(
        r#"{REPLACE}
        (data (i32.const 2048) "x-seen")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))"#
    );
    let entry = world.plugin(&module, json!({"allow_on_headers_stop_iteration": true}));
    let mut ctx = world.request("POST / HTTP/1.1\nHost: x\nContent-Length: 3");
    assert_eq!(status(world.access(&entry, &mut ctx, b"abc").as_ref()), 0);
    assert_eq!(ctx.body.as_deref(), Some(&b"[3]3"[..]));
    assert!(world.request_filter(&entry, &mut ctx).is_none());
    let mut ctx = world.request("POST / HTTP/1.1\nHost: x\nContent-Length: 65");
    assert_eq!(status(world.access(&entry, &mut ctx, &[b'x'; 65]).as_ref()), 413);
}

#[test]
fn a_body_that_another_plugin_has_read_is_not_skipped() {
    let world = World::new(&json!({}));
    let entry = world.plugin(REFUSE, json!({"allow_on_headers_stop_iteration": true}));
    let mut ctx = world.request("POST / HTTP/1.1\nHost: x\nContent-Length: 3");
    ctx.body = Some(b"abc".to_vec());
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    let mut filter = world.request_filter(&entry, &mut ctx).unwrap();
    assert_eq!(world.filtered(&mut *filter, &mut ctx, &["abc"], &[]).0, Body::Cut(403));
}
