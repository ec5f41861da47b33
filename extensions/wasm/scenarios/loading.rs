//! Modules that cannot be used, and the lives of instances.

use std::rc::Rc;

use serde_json::json;

use super::{PRELUDE, World, module, status};

#[test]
fn unusable_modules_are_refused() {
    let world = World::new(&json!({"module_bytes": 4000}));
    let check = |bytes: &[u8], expected: &str| {
        let error = world.entry(bytes, json!({})).err().unwrap_or_default();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let text = |text: &str| wat::parse_str(text).unwrap();
    check(b"x", "filter.wasm: it is not a WebAssembly module");
    check(&text("(module)"), "it exports no version of proxy-wasm");
    check(
        &text(r#"(module (import "env" "proxy_x" (func)) (func (export "proxy_abi_version_0_2_1")))"#),
        "it imports `env.proxy_x`, which the gateway does not have",
    );
    let whole = module("");
    check(&whole[..whole.len() - 1], "the module");
    check(&[0; 4001], "plugin_attr.wasm.module_bytes allows 4000");
    let conf = json!({"sha256": "0".repeat(64)});
    let error = world.entry(&whole, conf).err().unwrap_or_default();
    assert!(error.contains("its SHA-256 is"), "{error}");
}

/// The status of a request for a module in this world.
fn served(world: &World, module: &[u8], conf: serde_json::Value) -> u16 {
    let entry = world.entry(module, conf).unwrap();
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    status(world.access(&entry, &mut ctx, b"").as_ref())
}

#[test]
fn a_module_that_does_not_start_serves_nothing() {
    let check = |body: &str, expected: u16| {
        let world = World::new(&json!({}));
        assert_eq!(served(&world, &module(body), json!({"conf": "abc"})), expected, "{body}");
        assert_eq!(world.events("not_started"), u64::from(expected != 0), "{body}");
    };
    let configure = |result: &str| {
        format!(r#"(func (export "proxy_on_configure") (param i32 i32) (result i32) {result})"#)
    };
    check(&configure("(i32.const 1)"), 0);
    check(&configure("(i32.const 0)"), 503);
    check(&configure("unreachable"), 503);
    check(&configure("(loop $l (br $l)) (i32.const 1)"), 503);
    // The length of the configuration.
    check(&configure("(i32.eq (local.get 1) (i32.const 3))"), 0);
    check(r#"(func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 0))"#, 503);
    check(r#"(func (export "_initialize") unreachable)"#, 503);
    check(r#"(func (export "_initialize") (loop $l (br $l)))"#, 503);
    check(r#"(func (export "proxy_on_request_headers") (param i32))"#, 503);
    check(r#"(func $s unreachable) (start $s)"#, 503);
    // An older form has two arguments.
    check(r#"(func (export "proxy_on_request_headers") (param i32 i32) (result i32) (i32.const 0))"#, 0);
    // Without `_initialize`, `_start` runs.
    check(r#"(func (export "_start") unreachable)"#, 503);
    check(r#"(func (export "_initialize")) (func (export "_start") unreachable)"#, 0);
}

#[test]
fn functions_of_wasi_are_there() {
    let world = World::new(&json!({}));
    let text = format!(
        r#"(module
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))
        (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        {PRELUDE} (func (export "proxy_abi_version_0_2_0"))
        (data (i32.const 1024) "\18\04\00\00\06\00\00\00hello\0a")
        (func $must (param i32 i32) (if (i32.ne (local.get 0) (local.get 1)) (then unreachable)))
        (func (export "_initialize")
            (call $must (call $write (i32.const 1) (i32.const 1024) (i32.const 1) (i32.const 8)) (i32.const 0))
            (call $must (i32.load (i32.const 8)) (i32.const 6))
            (call $must (call $write (i32.const 5) (i32.const 1024) (i32.const 1) (i32.const 8)) (i32.const 8))
            (call $must (call $write (i32.const 1) (i32.const 1024) (i32.const -1) (i32.const 8)) (i32.const 28))
            (call $must (call $prestat (i32.const 3) (i32.const 8)) (i32.const 8))
            (call $must (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0)
                (i64.const 0) (i32.const 0) (i32.const 0)) (i32.const 52))
            (call $must (call $random (i32.const 8) (i32.const 65537)) (i32.const 28))
            (call $must (call $random (i32.const 8) (i32.const 8)) (i32.const 0))
            (call $must (call $time (i32.const 0) (i64.const 0) (i32.const -1)) (i32.const 21))
            (call $must (call $time (i32.const 0) (i64.const 0) (i32.const 8)) (i32.const 0))
            (if (i64.lt_u (i64.load (i32.const 8)) (i64.const 1600000000000000000)) (then unreachable))
            (call $must (call $sizes (i32.const 8) (i32.const 12)) (i32.const 0))
            (call $must (i32.load (i32.const 8)) (i32.const 1))
            (call $must (i32.load (i32.const 12)) (i32.const 4)))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (call $exit (i32.const 3)) unreachable))"#
    );
    let bytes = wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(served(&world, &bytes, json!({"env": {"A": "1"}})), 503);
    assert_eq!((world.events("aborted"), world.events("not_started")), (1, 0));
}

#[test]
fn equal_configurations_share_an_instance_which_ends_with_the_last() {
    let world = World::new(&json!({}));
    let one = world.plugin("", json!({"conf": "a"}));
    let other = world.plugin("", json!({"conf": "a"}));
    let instances = world.local.part(crate::instances::Instances::default);
    for entry in [&one, &other] {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(entry, &mut ctx, b"").as_ref()), 0);
        world.log(entry, &mut ctx);
    }
    assert_eq!(instances.len(), 1);
    drop(one);
    world.run(async { tokio::time::sleep(std::time::Duration::from_millis(20)).await });
    assert_eq!(instances.len(), 1);
    drop(other);
    let instances = Rc::clone(&instances);
    world.wait_until("the instance ends", || instances.len() == 0);
}

#[test]
fn a_broken_instance_is_freed() {
    let world = World::new(&json!({"instances": 2}));
    let entry = world.plugin(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) unreachable)"#,
        json!({}),
    );
    for _ in 0..20 {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 503);
        world.log(&entry, &mut ctx);
    }
    assert_eq!((world.events("aborted"), world.events("not_started")), (20, 0));
}

#[test]
fn compiled_modules_are_kept_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wasm");
    let files = || -> usize {
        let mut count = 0;
        let mut folders = vec![path.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() { folders.push(entry.path()) } else { count += 1 }
            }
        }
        count
    };
    let settings = json!({ "disk_path": path });
    assert_eq!(served(&World::new(&settings), &module(""), json!({})), 0);
    let first = files();
    assert!(first > 0);
    assert_eq!(served(&World::new(&settings), &module(""), json!({})), 0);
    // Files are machine code: a folder that others may write to is refused.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = World::new(&settings).entry(&module(""), json!({})).err().unwrap_or_default();
    assert!(error.contains("other users may write to it"), "{error}");
}
