//! `ext-plugin-pre-req`, `ext-plugin-post-req` and `ext-plugin-post-resp` with the Python runner of `contrib`, and with
//! runners that fail.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin, Peer, children, until};

use crate::docs::block;
use crate::{PATIENCE, SIGMA};

fn python_runner() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/python-runner")).canonicalize().unwrap()
}

/// The command of the Python runner, without an installation.
fn command() -> Value {
    let folder = python_runner();
    let path = format!("PYTHONPATH={}", folder.display());
    json!(["env", path, "python3", "-m", "apisix.runner", folder.join("plugins")])
}

/// A plugin with one external plugin.
fn with(plugin: &str, name: &str, value: &Value) -> Value {
    json!({ plugin: { "conf": [{ "name": name, "value": value.to_string() }] } })
}

fn start(origin: &Origin, runner: Value, routes: &[(&str, Value)]) -> Gateway {
    let nodes = json!({ origin.address().to_string(): 1 });
    let route = |(uri, plugins): &(&str, Value)| json!({ "id": &uri[1..], "uri": uri, "plugins": plugins, "upstream": { "nodes": nodes } });
    let config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "pid_file": "{dir}/sigma.pid",
        "status": { "address": "{status}" },
        "ext-plugin": runner,
        "routes": routes.iter().map(route).collect::<Vec<_>>(),
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn await_runner(gateway: &Gateway, times: usize) {
    let serves = || gateway.stderr().matches("ext-plugin: serving on unix:").count() >= times;
    assert!(until(PATIENCE, serves), "{}", gateway.stderr());
}

fn post(gateway: &Gateway, target: &str, body: &str) -> Message {
    let fields = format!("Host: h\r\nContent-Length: {}\r\n", body.len());
    gateway.connect().unwrap().ask(format!("POST {target} HTTP/1.1\r\n{fields}\r\n{body}")).unwrap()
}

fn say() -> Value {
    with("ext-plugin-pre-req", "say", &json!({ "body": "hello" }))
}

/// The runner of a gateway.
fn runner_of(gateway: &Gateway) -> u32 {
    let all = children(gateway.pid());
    assert_eq!(all.len(), 1, "{}", gateway.stderr());
    all[0]
}

/// Returns true if a process has ended, although nothing may have waited for it.
fn has_ended(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['Z', 'X']))
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn plugins_in_python_handle_requests_and_responses() {
    let origin = Origin::answer(|request| {
        let fields = request.head.fields.iter().map(|(name, value)| format!("{name}: {value}\n"));
        let text = String::from_utf8_lossy(&request.body);
        let body = format!(
            "{} secret\n{}{text}",
            request.head.request_line().unwrap().1,
            fields.collect::<String>()
        );
        let fields = format!("Content-Type: text/plain\r\nX-Node: 1\r\nContent-Length: {}\r\n", body.len());
        format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}").into_bytes()
    });
    let origin = origin.unwrap();
    let rewrite = json!({
        "path": "/new path", "args": { "a": "2" }, "headers": { "x-user": "jack" }, "body": "new and ",
    });
    let mut both = with("ext-plugin-pre-req", "rewrite", &json!({}));
    both.as_object_mut().unwrap().extend(
        with("ext-plugin-post-resp", "redact", &json!({ "words": ["secret"] })).as_object().unwrap().clone(),
    );
    let gateway = start(
        &origin,
        json!({ "cmd": command() }),
        &[
            ("/say", say()),
            ("/rewrite", with("ext-plugin-post-req", "rewrite", &rewrite)),
            ("/redact", with("ext-plugin-post-resp", "redact", &json!({ "words": ["secret"] }))),
            ("/clean", with("ext-plugin-post-resp", "redact", &json!({ "words": ["nowhere"] }))),
            ("/both", both),
            ("/unknown", with("ext-plugin-pre-req", "no-such-plugin", &json!({}))),
        ],
    );
    await_runner(&gateway, 1);
    let mut client = gateway.connect().unwrap();
    for _ in 0..10 {
        let response = client.get("/say").unwrap();
        assert_eq!((response.status(), &*response.text()), (200, "hello"));
        assert_eq!(response.head.get("x-runner"), Some("Python"));
    }
    let response = post(&gateway, "/rewrite?a=1&b=3", "old");
    let text = response.text().to_lowercase();
    assert!(text.starts_with("/new%20path?b=3&a=2 secret\n"), "{text}");
    for expected in
        ["\nx-user: jack\n", "\nx-client: 127.0.0.1\n", "\nx-route: rewrite\n", "\ncontent-length: 11\n"]
    {
        assert!(text.contains(expected), "{text}");
    }
    assert!(text.ends_with("new and old"), "{text}");
    assert_eq!(response.head.get("x-runner"), Some("Python"));
    let response = client.get("/redact").unwrap();
    assert!(response.text().starts_with("/redact ******\n"), "{}", response.text());
    let fields = ["x-redacted", "x-node", "content-type"].map(|name| response.head.get(name));
    assert_eq!(fields, [Some("1"), Some("1"), Some("text/plain")]);
    let response = client.get("/clean").unwrap();
    assert!(response.text().starts_with("/clean secret\n"), "{}", response.text());
    assert_eq!((response.head.get("x-redacted"), response.head.get("x-node")), (None, Some("1")));
    let response = client.get("/both").unwrap();
    assert!(response.text().starts_with("/both ******\n"), "{}", response.text());
    assert_eq!((response.head.get("x-runner"), response.head.get("x-redacted")), (Some("Python"), Some("1")));
    assert_eq!(client.get("/unknown").unwrap().status(), 503);
    for expected in
        ["failed to receive RPC_PREPARE_CONF: bad request", "ext-plugin: there is no plugin 'no-such-plugin'"]
    {
        gateway.await_log(expected);
    }
    let runner = runner_of(&gateway);
    assert!(gateway.stop().unwrap().success() && until(PATIENCE, || has_ended(runner)));
}

/// The kill of a runner under load: only requests that need it see a failure, and they end when it is back.
#[test]
fn a_kill_of_the_runner_harms_only_its_own_requests() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&origin, json!({ "cmd": command() }), &[("/say", say()), ("/plain", json!({}))]);
    await_runner(&gateway, 1);
    let runner = runner_of(&gateway);
    let stops = Arc::new(AtomicBool::new(false));
    let load = |target: &'static str| {
        let (stops, mut client) = (Arc::clone(&stops), gateway.connect().unwrap());
        std::thread::spawn(move || {
            let mut statuses = Vec::new();
            while !stops.load(Ordering::Relaxed) {
                statuses.push(client.get(target).unwrap().status());
            }
            statuses
        })
    };
    let plain: Vec<_> = (0..2).map(|_| load("/plain")).collect();
    let said: Vec<_> = (0..4).map(|_| load("/say")).collect();
    let mut client = gateway.connect().unwrap();
    assert_eq!(client.get("/say").unwrap().status(), 200);
    kill(runner);
    assert!(until(PATIENCE, || client.get("/say").unwrap().status() == 503));
    await_runner(&gateway, 2);
    assert!(until(PATIENCE, || client.get("/say").unwrap().status() == 200), "{}", gateway.stderr());
    stops.store(true, Ordering::Relaxed);
    for load in plain {
        assert!(load.join().unwrap().iter().all(|status| *status == 200));
    }
    for load in said {
        let statuses = load.join().unwrap();
        assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
        assert!(statuses.contains(&503) && statuses.contains(&200));
    }
    let second = runner_of(&gateway);
    assert_ne!(second, runner);
    let status = Peer::connect(&gateway.status_address()).unwrap().get("/status").unwrap().json().unwrap();
    let shown = &status["runner"];
    assert_eq!(
        (&shown["state"], &shown["starts"], &shown["pid"]),
        (&json!("running"), &json!(2), &json!(second))
    );
    assert!(shown["last_end"].as_str().unwrap().contains("signal: 9"), "{shown}");
    assert!(
        shown["calls"].as_u64().unwrap() > 0 && !shown["output"].as_array().unwrap().is_empty(),
        "{shown}"
    );
    let failures = ["refused", "broken"].map(|reason| shown["failures"][reason].as_u64().unwrap());
    assert!(failures[0] + failures[1] > 0, "{shown}");
    let log = gateway.stderr();
    assert!(log.contains("ext-plugin: the runner ended"), "{log}");
    assert!(log.contains("ext-plugin: the runner restarts in 3 s"), "{log}");
}

/// After an upgrade of the binary the successor has its own runner; a gateway that is killed leaves none behind.
#[test]
fn each_process_has_its_own_runner() {
    let origin = Origin::echo("a").unwrap();
    let mut gateway = start(&origin, json!({ "cmd": command() }), &[("/say", say())]);
    await_runner(&gateway, 1);
    let (old, first) = (gateway.pid(), runner_of(&gateway));
    crate::upgrade::upgrade(&gateway);
    await_runner(&gateway, 2);
    assert!(until(PATIENCE, || has_ended(old) && has_ended(first)), "{}", gateway.stderr());
    assert_eq!(gateway.connect().unwrap().get("/say").unwrap().text(), "hello");
    let second = runner_of(&gateway);
    let sockets = || {
        let files = fs::read_dir(gateway.dir().join("run")).unwrap();
        files
            .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "sock"))
            .count()
    };
    assert_eq!(sockets(), 1);
    gateway.strike().unwrap();
    assert!(until(PATIENCE, || has_ended(second)));
    gateway.kill().unwrap_or_default();
}

/// Serves each connection of a socket by a function, once for each.
fn listen(path: &Path, serve: impl Fn(UnixStream) + Send + Sync + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream.unwrap()));
        }
    });
}

/// A runner that ends, or sends something else, costs its own requests an error with a name; one that hangs delays no
/// other request.
#[test]
fn runners_that_fail_are_named() {
    let origin = Origin::echo("a").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, serve: fn(UnixStream), expected: &str| {
        let path = folder.path().join(name);
        listen(&path, serve);
        let mut degraded = say();
        degraded["ext-plugin-pre-req"]["allow_degradation"] = true.into();
        let routes = [("/say", say()), ("/degraded", degraded), ("/plain", json!({}))];
        let gateway = start(&origin, json!({ "path_for_test": path }), &routes);
        let mut client = gateway.connect().unwrap();
        if expected.is_empty() {
            let mut waiting: Vec<_> = (0..20).map(|_| gateway.connect().unwrap()).collect();
            for client in &mut waiting {
                client.send("GET /say HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            }
            for _ in 0..20 {
                assert_eq!(client.get("/plain").unwrap().status(), 200);
            }
            assert!(waiting.iter_mut().all(|client| client.is_idle()));
            return;
        }
        assert_eq!(client.get("/say").unwrap().status(), 503);
        assert_eq!(client.get("/degraded").unwrap().status(), 200);
        assert_eq!(client.get("/plain").unwrap().status(), 200);
        let told = || gateway.stderr().contains(expected);
        assert!(until(PATIENCE, told), "{name}: {}", gateway.stderr());
    };
    check("ends", |_| {}, "failed to ");
    check(
        "garbage",
        |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        },
        "failed to receive RPC_PREPARE_CONF: unexpected type 72",
    );
    check(
        "cut",
        |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&[1, 255, 255, 255, 0, 0]);
        },
        "failed to receive RPC_PREPARE_CONF: data truncated",
    );
    check("hangs", |mut stream| while stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}, "");
}

/// A runner that takes a response with its body and then ends: the client gets the whole response of the failure, and the
/// runner is not called for that one.
#[test]
fn a_runner_that_fails_on_a_body_does_not_get_the_reply() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    // The token of a configuration, and the query for the body of a response, as FlatBuffers.
    const TOKEN: [u8; 24] = [1, 0, 0, 20, 12, 0, 0, 0, 0, 0, 6, 0, 8, 0, 4, 0, 6, 0, 0, 0, 7, 0, 0, 0];
    const QUERY: [u8; 36] = [
        3, 0, 0, 32, 12, 0, 0, 0, 8, 0, 12, 0, 11, 0, 4, 0, 8, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 3, 4, 0, 4, 0,
        4, 0, 0, 0,
    ];
    let origin = Origin::echo("a").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runner");
    listen(&path, |mut stream| {
        let mut header = [0; 4];
        while stream.read_exact(&mut header).is_ok() {
            let mut payload = vec![0; u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize];
            stream.read_exact(&mut payload).unwrap();
            match header[0] {
                1 => stream.write_all(&TOKEN).unwrap(),
                4 => {
                    CALLS.fetch_add(1, Ordering::Relaxed);
                    stream.write_all(&QUERY).unwrap();
                }
                _ => return,
            }
        }
    });
    let routes = [("/body", with("ext-plugin-post-resp", "any", &json!({})))];
    let gateway = start(&origin, json!({ "path_for_test": path }), &routes);
    let response = gateway.connect().unwrap().get("/body").unwrap();
    assert_eq!((response.status(), CALLS.load(Ordering::Relaxed)), (503, 1), "{}", gateway.stderr());
    assert!(!response.body.is_empty() && response.head.get("content-length").is_some());
}

/// The reader of the page has installed the runner, and saves the plugin and the configuration.
#[test]
fn a_plugin_as_the_page_says() {
    let page = "docs/runners.md";
    let origin = Origin::echo("a").unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("plugins")).unwrap();
    fs::write(folder.path().join("plugins/greet.py"), block(page, "python", "class Greet")).unwrap();
    let path = python_runner();
    let installed = format!(
        "env, PYTHONPATH={}, python3, -m, apisix.runner, {}",
        path.display(),
        folder.path().join("plugins").display()
    );
    let config = block(page, "yaml", "ext-plugin-pre-req");
    let config =
        config.replace("sigma-python-runner, plugins", &installed).replace("127.0.0.1:9080", "{listen}");
    let gateway =
        Gateway::start(SIGMA, &config.replace("127.0.0.1:9000", &origin.address().to_string())).unwrap();
    await_runner(&gateway, 1);
    let mut client = gateway.connect().unwrap();
    let console = block(page, "console", "x-greeting");
    let response = client.get("/orders").unwrap();
    assert_eq!(response.status(), 400);
    assert!(console.contains(&format!("/orders\n{}$ curl", response.text())), "{console}");
    let response = client.get("/orders?name=jack").unwrap();
    assert!(response.text().contains("hello jack") && console.contains("hello jack"), "{}", response.text());
    assert_eq!(response.head.get("x-greeted"), Some("yes"));
    assert!(console.ends_with("\nyes\n"), "{console}");
}

#[test]
fn the_python_runner_passes_its_own_tests() {
    let run = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "tests"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(python_runner())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
