//! Modules that SDKs have built, and the filters of the tests of the whole program.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{World, status};

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap()
}

#[test]
fn the_filters_of_the_program_are_current() {
    let folder = repository().join("crates/sigma/tests/servers/wasm");
    for name in ["filter", "tcp", "refuses"] {
        let text = std::fs::read_to_string(folder.join(name).with_extension("wat")).unwrap();
        let made = wat::parse_str(text).unwrap();
        let path = folder.join(name).with_extension("wasm");
        if std::env::var_os("SIGMA_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        assert!(std::fs::read(&path).is_ok_and(|bytes| bytes == made), "run this test with SIGMA_BLESS=1");
    }
}

/// Builds a module with Go.
fn build(source: &Path, out: &Path) -> Vec<u8> {
    let mut go = Command::new("go");
    go.args(["build", "-buildmode=c-shared", "-o"]).arg(out).arg(".");
    let status = go.current_dir(source).env("GOOS", "wasip1").env("GOARCH", "wasm").status().unwrap();
    assert!(status.success(), "{}", source.display());
    std::fs::read(out).unwrap()
}

/// The example of `docs/wasm.md`, with the Go SDK.
#[test]
fn the_example_in_go_runs() {
    let source = std::fs::read_to_string(repository().join("examples/wasm-go/main.go")).unwrap();
    let page = std::fs::read_to_string(repository().join("docs/wasm.md")).unwrap();
    let shown = page.split("```go\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(source.contains(shown), "docs/wasm.md shows another filter than examples/wasm-go");
    let settings = json!({"memory_mib": 64, "start_ms": 60_000, "call_ms": 5000, "body_bytes": 1 << 20,
        "pause_ms": 60_000, "start_wait_ms": 600_000});
    let world = World::new(&settings);
    let module = build(&repository().join("examples/wasm-go"), &world.folder.path().join("go.wasm"));
    let entry = world.entry(&module, json!({"conf": {"greeting": "hello"}})).unwrap();
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
    assert!(world.respond(&entry, &mut ctx, 200, &[]).is_none());
    assert_eq!(ctx.response.headers.find(b"x-greeting"), Some(&b"hello"[..]));
    world.log(&entry, &mut ctx);
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x\nX-Name: guest");
    let reply = world.access(&entry, &mut ctx, b"").unwrap();
    assert_eq!((reply.status, reply.body.as_deref()), (403, Some(&b"not for guests\n"[..])));
    world.log(&entry, &mut ctx);
    // It refuses a configuration without a greeting.
    let entry = world.entry(&module, json!({"conf": {"greeting": ""}})).unwrap();
    let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
    assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 503);
}

/// The example of `docs/wasm-http.md`, without an SDK.
#[test]
fn the_handler_in_go_runs() {
    let source = std::fs::read_to_string(repository().join("examples/wasm-http-go/main.go")).unwrap();
    let page = std::fs::read_to_string(repository().join("docs/wasm-http.md")).unwrap();
    let shown = page.split("```go\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(source.contains(shown), "docs/wasm-http.md shows another handler than examples/wasm-http-go");
    let settings = json!({"memory_mib": 64, "start_ms": 60_000, "call_ms": 5000, "start_wait_ms": 600_000});
    let world = World::new(&settings);
    let module = build(&repository().join("examples/wasm-http-go"), &world.folder.path().join("go.wasm"));
    let entry = world.entry(&module, json!({})).unwrap();
    for _ in 0..3 {
        let mut ctx = world.request("GET / HTTP/1.1\nHost: x");
        assert_eq!(status(world.access(&entry, &mut ctx, b"").as_ref()), 0);
        assert!(world.respond(&entry, &mut ctx, 200, &[]).is_none());
        assert_eq!(ctx.response.headers.find(b"x-greeting"), Some(&b"hello"[..]));
        world.log(&entry, &mut ctx);
    }
    assert_eq!(world.events("aborted"), 0);
}
