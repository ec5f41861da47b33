//! Modules that do harm.

use serde_json::json;

use super::{Body, World, sent, status};

/// Traps in the callback that the request's field `x-trap` names by its first letter: `l` loops, `u` traps, `r` recurses.
const TRAPS: &str = r#"
    (data (i32.const 1024) "x-trapx-ok")
    (func $recurse (param i32) (result i32) (i32.add (call $recurse (local.get 0)) (i32.const 1)))
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (local $letter i32)
        (if (call $get_field (i32.const 0) (i32.const 1024) (i32.const 6) (i32.const 8) (i32.const 12))
            (then
                (drop (call $set_field (i32.const 0) (i32.const 1030) (i32.const 4) (i32.const 1024) (i32.const 1)))
                (return (i32.const 0))))
        (local.set $letter (i32.load8_u (call $value)))
        (if (i32.eq (local.get $letter) (i32.const 108)) (then (loop $l (br $l))))
        (if (i32.eq (local.get $letter) (i32.const 114)) (then (drop (call $recurse (i32.const 1)))))
        unreachable)
"#;

fn run(world: &World, entry: &sigma_plugin::Entry, head: &str) -> (u16, Option<String>) {
    let mut ctx = world.request(&format!("GET / HTTP/1.1\nHost: x{head}"));
    let reply = world.access(entry, &mut ctx, b"");
    let seen = sent(&ctx, "x-ok");
    world.log(entry, &mut ctx);
    (status(reply.as_ref()), seen)
}

#[test]
fn a_trap_ends_one_exchange() {
    let world = World::new(&json!({}));
    let entry = world.plugin(TRAPS, json!({}));
    // One exchange is in flight over all traps, on the first instance.
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    for (number, letter) in ["u", "l", "r", "u"].into_iter().enumerate() {
        assert_eq!(run(&world, &entry, &format!("\nX-Trap: {letter}")), (503, None), "{letter}");
        assert_eq!(world.events("aborted"), number as u64 + 1);
        assert_eq!(run(&world, &entry, ""), (0, Some("x".to_owned())), "after {letter}");
    }
    world.respond(&entry, &mut ctx, 200, &[]);
    world.log(&entry, &mut ctx);
}

#[test]
fn a_failure_opens_the_route_only_if_that_is_configured() {
    let world = World::new(&json!({}));
    let entry = world.plugin(TRAPS, json!({"fail_open": true}));
    assert_eq!(run(&world, &entry, "\nX-Trap: u"), (0, None));
    assert_eq!(world.events("failed_open"), 1);
}

#[test]
fn a_trap_in_each_callback() {
    for (callback, arguments) in [
        ("proxy_on_context_create", 2),
        ("proxy_on_response_headers", 3),
        ("proxy_on_done", 1),
        ("proxy_on_log", 1),
        ("proxy_on_delete", 1),
    ] {
        let world = World::new(&json!({}));
        let parameters = "i32 ".repeat(arguments);
        let result = if matches!(callback, "proxy_on_response_headers" | "proxy_on_done") {
            "(result i32)"
        } else {
            ""
        };
        // The plugin's own context has the number 1.
        let body = format!(
            r#"(func (export "{callback}") (param {parameters}) {result}
                (if (i32.gt_u (local.get 0) (i32.const 1)) (then unreachable)) {})"#,
            if result.is_empty() { "" } else { "(i32.const 0)" }
        );
        let module = match callback {
            "proxy_on_context_create" => {
                super::PRELUDE.replace(r#"(func (export "proxy_on_context_create") (param i32 i32))"#, &body)
            }
            _ => format!("{} {body}", super::PRELUDE),
        };
        let module = format!(r#"(module {module} (func (export "proxy_abi_version_0_2_0")))"#);
        let entry = world.entry(&wat::parse_str(&module).unwrap(), json!({})).unwrap();
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        let reply = world.access(&entry, &mut ctx, b"");
        let request = status(reply.as_ref());
        let response = status(world.respond(&entry, &mut ctx, 200, &[]).as_ref());
        world.log(&entry, &mut ctx);
        let expected = match callback {
            "proxy_on_context_create" => (503, 0),
            "proxy_on_response_headers" => (0, 503),
            _ => (0, 0),
        };
        assert_eq!((request, response), expected, "{callback}");
        assert_eq!(world.events("aborted"), 1, "{callback}");
    }
}

#[test]
fn memory_is_bounded() {
    let world = World::new(&json!({}));
    // The status: 200 and the number of pages that could be added.
    let entry = world.plugin(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (local $pages i32)
            (loop $grow
                (if (i32.ne (memory.grow (i32.const 1)) (i32.const -1))
                    (then (local.set $pages (i32.add (local.get $pages) (i32.const 1))) (br $grow))))
            (drop (call $respond (i32.add (i32.const 200) (local.get $pages)) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
            (i32.const 1))"#,
        json!({}),
    );
    assert_eq!(run(&world, &entry, "").0, 200 + 14);
}

#[test]
fn instances_are_bounded() {
    let world = World::new(&json!({"instances": 2}));
    let entries: Vec<_> =
        (0..3).map(|number| world.plugin(TRAPS, json!({"conf": number.to_string()}))).collect();
    let statuses: Vec<u16> = entries.iter().map(|entry| run(&world, entry, "").0).collect();
    assert_eq!(statuses, [0, 0, 503]);
    assert_eq!(world.events("not_started"), 1);
}

#[test]
fn wild_pointers_and_lengths() {
    // Each function with pointers that are out of bounds: the host returns a status, and reads or writes nothing else.
    let calls = [
        "(call $log (i32.const 2) (i32.const -1) (i32.const -1))",
        "(call $log (i32.const 2) (i32.const 131071) (i32.const 2))",
        "(call $get_field (i32.const 0) (i32.const -4) (i32.const 8) (i32.const 8) (i32.const 12))",
        "(call $get_field (i32.const 0) (i32.const 1024) (i32.const -1) (i32.const 8) (i32.const 12))",
        "(call $get_field (i32.const 0) (i32.const 1024) (i32.const 4) (i32.const -2) (i32.const 12))",
        "(call $get_field (i32.const 99) (i32.const 1024) (i32.const 4) (i32.const 8) (i32.const 12))",
        "(call $get_fields (i32.const 0) (i32.const -1) (i32.const -1))",
        "(call $set_fields (i32.const 0) (i32.const 131070) (i32.const 100))",
        "(call $set_field (i32.const 0) (i32.const 1024) (i32.const 4) (i32.const -1) (i32.const 1))",
        "(call $remove_field (i32.const 2) (i32.const 1024) (i32.const 4))",
        "(call $get_buffer (i32.const 0) (i32.const 0) (i32.const 9) (i32.const 8) (i32.const 12))",
        "(call $get_buffer (i32.const 6) (i32.const -1) (i32.const -1) (i32.const -1) (i32.const 12))",
        "(call $set_buffer (i32.const 0) (i32.const -1) (i32.const -1) (i32.const -1) (i32.const -1))",
        "(call $get_property (i32.const -1) (i32.const -1) (i32.const 8) (i32.const 12))",
        "(call $set_property (i32.const 0) (i32.const 4096) (i32.const 0) (i32.const 131072))",
        "(call $set_shared (i32.const 0) (i32.const 131072) (i32.const 0) (i32.const 0) (i32.const 0))",
        "(call $get_shared (i32.const -1) (i32.const 1) (i32.const 8) (i32.const 12) (i32.const 16))",
        "(call $define (i32.const 0) (i32.const 0) (i32.const 131072) (i32.const 16))",
        "(call $define (i32.const 7) (i32.const 1024) (i32.const 4) (i32.const 16))",
        "(call $increment (i32.const -1) (i64.const 1))",
        "(call $effective (i32.const 77))",
        "(call $continue (i32.const 9))",
        "(call $call (i32.const -1) (i32.const -1) (i32.const -1) (i32.const -1) (i32.const -1) (i32.const -1) \
            (i32.const -1) (i32.const -1) (i32.const -1) (i32.const -1))",
        "(call $respond (i32.const 200) (i32.const -1) (i32.const -1) (i32.const -1) (i32.const 60) (i32.const -1) \
            (i32.const 4) (i32.const -1))",
        "(call $respond (i32.const 99) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) \
            (i32.const 0) (i32.const -1))",
    ];
    for call in calls {
        let world = World::new(&json!({}));
        let entry = world.plugin(
            &format!(
                r#"(data (i32.const 1024) "host")
                (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                    (if (i32.eqz {call}) (then unreachable)) (i32.const 0))"#
            ),
            json!({}),
        );
        assert_eq!(run(&world, &entry, "").0, 0, "{call}");
    }
}

#[test]
fn the_allocator_may_not_call_the_host() {
    let world = World::new(&json!({}));
    let check = |call: &str, expected: u16| {
        let module =
            super::PRELUDE.replace("(global.get $heap)\n", &format!("(drop {call}) (global.get $heap)\n"));
        let module = format!(
            r#"(module {module} (func (export "proxy_abi_version_0_2_0"))
            (data (i32.const 1024) ":path")
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (drop (call $get_field (i32.const 0) (i32.const 1024) (i32.const 5) (i32.const 8) (i32.const 12)))
                (i32.const 0)))"#
        );
        let entry = world.entry(&wat::parse_str(&module).unwrap(), json!({})).unwrap();
        assert_eq!(run(&world, &entry, "").0, expected, "{call}");
    };
    check("(call $log (i32.const 2) (i32.const 0) (i32.const 0))", 0);
    check("(call $continue (i32.const 0))", 503);
}

/// The collector of Go waits and reads the time during an allocation, and ends the module if it cannot.
#[test]
fn the_allocator_may_call_functions_of_wasi() {
    let world = World::new(&json!({}));
    let calls = r#"(if (call $poll (i32.const 4096) (i32.const 5000) (i32.const 1) (i32.const 6000)) (then unreachable))
        (if (call $time (i32.const 0) (i64.const 0) (i32.const 6000)) (then unreachable))
        (global.get $heap)
    "#;
    let prelude = super::PRELUDE.replace("(global.get $heap)\n", calls);
    let module = format!(
        r#"(module
            (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))
            {prelude} (func (export "proxy_abi_version_0_2_0"))
            (data (i32.const 1024) ":path")
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (if (call $get_field (i32.const 0) (i32.const 1024) (i32.const 5) (i32.const 8) (i32.const 12))
                    (then unreachable))
                (i32.const 0)))"#
    );
    let entry = world.entry(&wat::parse_str(&module).unwrap(), json!({})).unwrap();
    assert_eq!(run(&world, &entry, "").0, 0);
}

#[test]
fn loops_in_the_background_leave_time_for_requests() {
    let world = World::new(&json!({}));
    let module = r#"
        (global $rounds (mut i32) (i32.const 0))
        (func (export "proxy_on_configure") (param i32 i32) (result i32)
            (drop (call $set_tick (i32.const 1))) (i32.const 1))
        (func (export "proxy_on_tick") (param i32)
            (local $left i32)
            (global.set $rounds (i32.add (global.get $rounds) (i32.const 1)))
            (local.set $left (i32.const 1000000))
            (loop $l
                (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                (br_if $l (local.get $left))))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (drop (call $respond (i32.add (i32.const 200) (global.get $rounds)) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
            (i32.const 1))"#;
    let entry = world.plugin(module, json!({}));
    let before = run(&world, &entry, "").0;
    world.run(async { tokio::time::sleep(std::time::Duration::from_millis(300)).await });
    // Without a rest the request would wait for the ticks forever.
    let after = run(&world, &entry, "").0;
    assert!(after > before, "{before} {after}");
}

#[test]
fn fields_and_properties_are_bounded() {
    let world = World::new(&json!({"call_ms": 2000}));
    // Adds a field, or sets a property of another name, until the host refuses.
    for call in [
        "(call $add_field (i32.const 0) (i32.const 1024) (i32.const 4) (i32.const 1024) (i32.const 4))",
        "(call $set_property (i32.const 1024) (i32.const 4) (i32.const 1024) (i32.const 4))",
    ] {
        let module = format!(
            r#"(data (i32.const 1024) "aaaa")
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (loop $again
                    (i32.store8 (i32.const 1025) (i32.add (i32.const 97) (i32.rem_u (global.get $heap) (i32.const 26))))
                    (i32.store8 (i32.const 1026) (i32.add (i32.const 97)
                        (i32.rem_u (i32.div_u (global.get $heap) (i32.const 26)) (i32.const 26))))
                    (global.set $heap (i32.add (global.get $heap) (i32.const 1)))
                    (br_if $again (i32.eqz {call})))
                (i32.const 0))"#
        );
        let entry = world.plugin(&module, json!({}));
        assert_eq!(run(&world, &entry, "").0, 0, "{call}");
    }
}

#[test]
fn a_trap_in_each_callback_of_a_body() {
    let callbacks = [
        ("proxy_on_request_body", 3),
        ("proxy_on_response_body", 3),
        ("proxy_on_request_trailers", 2),
        ("proxy_on_response_trailers", 2),
    ];
    for (callback, arguments) in callbacks {
        let world = World::new(&json!({}));
        let parameters = "i32 ".repeat(arguments);
        let module = format!(r#"(func (export "{callback}") (param {parameters}) (result i32) unreachable)"#);
        for (conf, expected) in
            [(json!({}), Body::Cut(503)), (json!({"fail_open": true}), Body::Whole("ab".to_owned()))]
        {
            let entry = world.plugin(&module, conf);
            let mut ctx = world.request("POST / HTTP/1.1\nHost: x\nContent-Length: 2");
            assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
            let filter = match callback.contains("request") {
                true => world.request_filter(&entry, &mut ctx),
                false => {
                    world.respond(&entry, &mut ctx, 200, &[]);
                    world.body_filter(&entry, &mut ctx)
                }
            };
            let got = world.filtered(&mut *filter.unwrap(), &mut ctx, &["ab"], &[("x-a", "1")]).0;
            assert_eq!(got, expected, "{callback}");
            world.log(&entry, &mut ctx);
        }
        assert_eq!(world.events("aborted"), 2, "{callback}");
    }
}

#[test]
fn a_trap_in_each_callback_in_the_background() {
    let (fields, length) = super::calls::call_fields();
    let callbacks = [
        ("proxy_on_tick", "i32", "(drop (call $set_tick (i32.const 1)))".to_owned(), 0),
        (
            "proxy_on_http_call_response",
            "i32 i32 i32 i32 i32",
            format!(
                "(drop (call $call (i32.const 1024) (i32.const 1) (i32.const 2048) (i32.const {length}) (i32.const 0) \
                 (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 500) (i32.const 16))) (return (i32.const 1))"
            ),
            503,
        ),
        (
            "proxy_on_queue_ready",
            "i32 i32",
            "(drop (call $register (i32.const 1024) (i32.const 1) (i32.const 16))) \
             (drop (call $enqueue (i32.load (i32.const 16)) (i32.const 0) (i32.const 1)))"
                .to_owned(),
            0,
        ),
    ];
    for (callback, parameters, begin, expected) in callbacks {
        let world = World::new(&json!({}));
        let module = format!(
            r#"{fields} (data (i32.const 1024) "s")
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {begin} (i32.const 0))
            (func (export "{callback}") (param {parameters}) unreachable)"#
        );
        let entry = world.plugin(&module, json!({"upstreams": {"s": {"uri": "http://127.0.0.1:1"}}}));
        // Each instance is aborted in its background, and requests are served by new ones.
        for round in 1..4 {
            assert_eq!(run(&world, &entry, "").0, expected, "{callback}");
            world.wait_until(callback, || world.events("aborted") >= round);
        }
    }
}

#[test]
fn callbacks_at_the_end_may_call_the_host() {
    let (fields, length) = super::calls::call_fields();
    let calls = format!(
        "(drop (call $call (i32.const 1024) (i32.const 1) (i32.const 2048) (i32.const {length}) (i32.const 0) \
         (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 500) (i32.const 16)))
         (drop (call $continue (i32.const 0))) (drop (call $continue (i32.const 1))) (drop (call $done))
         (drop (call $respond (i32.const 200) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) \
         (i32.const 0) (i32.const -1)))
         (drop (call $set_field (i32.const 0) (i32.const 1024) (i32.const 1) (i32.const 1024) (i32.const 1)))
         (drop (call $set_property (i32.const 1024) (i32.const 1) (i32.const 1024) (i32.const 1)))
         (drop (call $effective (i32.const 1))) (drop (call $set_tick (i32.const 1))) (drop (call $done))"
    );
    for callback in ["proxy_on_done", "proxy_on_log", "proxy_on_delete"] {
        let world = World::new(&json!({}));
        let (kind, result) =
            if callback == "proxy_on_done" { ("(result i32)", "(i32.const 1)") } else { ("", "") };
        let module = format!(
            r#"{fields} (data (i32.const 1024) "s")
            (func (export "{callback}") (param i32) {kind} {calls} {result})"#
        );
        let entry = world.plugin(&module, json!({"upstreams": {"s": {"uri": "http://127.0.0.1:1"}}}));
        for _ in 0..5 {
            assert_eq!(run(&world, &entry, "").0, 0, "{callback}");
        }
        assert_eq!(world.events("aborted"), 0, "{callback}");
        // The instance ends with its configuration, and its last callbacks do the same.
        drop(entry);
        let instances = world.local.part(crate::instances::Instances::default);
        world.wait_until(callback, || instances.len() == 0);
    }
}

#[test]
fn lists_of_fields_are_bounded() {
    let world = World::new(&json!({"call_ms": 5000, "memory_mib": 4}));
    // Lists of `count` pairs with names `a` and no values. The status of the host is added to 200.
    let check = |count: u32, written: u32, expected: u16| {
        let module = format!(
            r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (local $at i32) (local $left i32)
                (drop (memory.grow (i32.const 16)))
                (i32.store (i32.const 131072) (i32.const {count}))
                (local.set $at (i32.const 131076))
                (local.set $left (i32.const {written}))
                (loop $lengths
                    (i32.store (local.get $at) (i32.const 1))
                    (local.set $at (i32.add (local.get $at) (i32.const 8)))
                    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                    (br_if $lengths (local.get $left)))
                (local.set $left (i32.const {written}))
                (loop $texts
                    (i32.store (local.get $at) (i32.const 97))
                    (local.set $at (i32.add (local.get $at) (i32.const 3)))
                    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                    (br_if $texts (local.get $left)))
                (drop (call $respond
                    (i32.add (i32.const 200) (call $set_fields (i32.const 0) (i32.const 131072)
                        (i32.sub (local.get $at) (i32.const 131072))))
                    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
                (i32.const 1))"#
        );
        let entry = world.plugin(&module, json!({}));
        assert_eq!(run(&world, &entry, "").0, expected, "{count} {written}");
    };
    check(2, 2, 200);
    check(999, 999, 200);
    check(1001, 1001, 202);
    check(1025, 1025, 202);
    check(u32::MAX, 1, 202);
    check(3, 2, 202);
}

#[test]
fn waits_of_a_module_end_at_once() {
    let world = World::new(&json!({}));
    let import = r#"(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))"#;
    // A clock of an hour; the number of the subscription comes back.
    let module = format!(
        r#"(module {import} {} (func (export "proxy_abi_version_0_2_1"))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (i64.store (i32.const 2048) (i64.const 77))
            (i64.store (i32.const 2072) (i64.const 3600000000000))
            (if (call $poll (i32.const 2048) (i32.const 3072) (i32.const 1) (i32.const 4096)) (then unreachable))
            (if (i32.ne (i32.load (i32.const 4096)) (i32.const 1)) (then unreachable))
            (if (i64.ne (i64.load (i32.const 3072)) (i64.const 77)) (then unreachable))
            (if (i32.load16_u (i32.const 3080)) (then unreachable))
            (if (i32.eqz (call $poll (i32.const 2048) (i32.const 3072) (i32.const 0) (i32.const 4096))) (then unreachable))
            (if (i32.eqz (call $poll (i32.const -1) (i32.const 3072) (i32.const 1) (i32.const 4096))) (then unreachable))
            (if (i32.eqz (call $poll (i32.const 0) (i32.const 0) (i32.const -1) (i32.const 4096))) (then unreachable))
            (i32.const 0)))"#,
        super::PRELUDE
    );
    let entry = world.entry(&wat::parse_str(module).unwrap(), json!({})).unwrap();
    assert_eq!(run(&world, &entry, "").0, 0);
}
