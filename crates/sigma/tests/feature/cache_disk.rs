//! Caches on disks: over restarts, over processes that are killed, and for who should not have them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use sigma_testkit::{EtcdServer, Gateway, Message, Origin, Peer, until};

use crate::managed::{EMBEDDED, KEY, admin, etcd, start, start_again};
use crate::upgrade::Stop;
use crate::{PATIENCE, SIGMA, nodes};

/// Its bodies are as long as their paths say, and all of one letter; a body is never the same twice but for that.
fn node() -> Origin {
    Origin::answer(|request| {
        let path = request.head.line.split(' ').nth(1).unwrap_or_default();
        let length = path.rsplit('/').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let letter = b'a' + (length % 26) as u8;
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nETag: \"{path}\"\r\nCache-Tag: t\r\nContent-Length: {length}\r\n\r\n"
        );
        [head.into_bytes(), vec![letter; length]].concat()
    })
    .unwrap()
}

const SMALL: &str = "/small/100";
const LARGE: &str = "/large/9000000";
const SETTINGS: &str = "workers: 2\npid_file: \"{dir}/sigma.pid\"\nstatus: { address: \"{status}\" }\n\
    cache: { memory_bytes: 4194304, disk: { path: \"{dir}/cache\" } }\nlisteners: [\"{listen}\"]\n";

fn config(origin: &Origin) -> String {
    format!(
        "{SETTINGS}routes:\n  - {{ id: all, uri: \"/*\", cache: {{ purge: true }}, upstream: {{ nodes: {} }} }}\n",
        nodes(&[origin])
    )
}

fn ask(gateway: &Gateway, method: &str, path: &str, field: &str) -> Message {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send(format!("{method} {path} HTTP/1.1\r\nHost: shop.test\r\n{field}\r\n")).unwrap();
    peer.read_response(method).unwrap()
}

/// Whether it is a cache hit; its body is checked in any case.
fn is_hit(gateway: &Gateway, path: &str) -> bool {
    let answer = ask(gateway, "GET", path, "");
    let length: usize = path.rsplit('/').next().unwrap().parse().unwrap();
    let letter = b'a' + (length % 26) as u8;
    let is_right = answer.body.len() == length && answer.body.iter().all(|b| *b == letter);
    assert!(answer.status() == 200 && is_right, "{path}: {} bytes", answer.body.len());
    answer.head.get("cache-status").unwrap().contains("; hit")
}

fn counter(gateway: &Gateway, name: &str) -> u64 {
    let mut status = Peer::connect(&gateway.status_address()).unwrap().with_deadline(PATIENCE);
    let text = status.get("/status/counters").unwrap().text();
    let name = format!("sigma_cache_disk_{name}{{zone=\"\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
}

/// Waits until the disk of a gateway can be used.
fn await_disk(gateway: &Gateway) {
    assert!(until(PATIENCE, || counter(gateway, "ready") == 1), "{}", gateway.stderr());
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false if !path.file_name().unwrap().to_string_lossy().starts_with("sigma.") => found.push(path),
            false => {}
        }
    }
    found
}

fn kept_files(gateway: &Gateway) -> Vec<PathBuf> {
    files(&gateway.dir().join("cache"))
}

#[test]
fn a_restart_keeps_answers() {
    let origin = node();
    let mut gateway = Gateway::start(SIGMA, &config(&origin)).unwrap();
    await_disk(&gateway);
    for path in [SMALL, LARGE, "/empty/0"] {
        assert!(!is_hit(&gateway, path));
        assert!(until(PATIENCE, || is_hit(&gateway, path)), "{path}: {}", gateway.stderr());
    }
    assert!(until(PATIENCE, || counter(&gateway, "answers") == 3));
    for file in kept_files(&gateway) {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }
    let asked = origin.requests();
    for killed in [false, true] {
        match killed {
            true => gateway.kill().unwrap(),
            false => {
                gateway.terminate().unwrap();
                gateway.wait(PATIENCE).unwrap();
            }
        }
        gateway.start_again().unwrap();
        await_disk(&gateway);
        for path in [SMALL, LARGE, "/empty/0"] {
            assert!(is_hit(&gateway, path), "{path}");
        }
        // A part of a response that is on the disk alone, and its own fields.
        let part = ask(&gateway, "GET", LARGE, "Range: bytes=8999990-\r\n");
        assert_eq!((part.status(), part.body.len()), (206, 10));
        let known = ask(&gateway, "GET", LARGE, &format!("If-None-Match: \"{LARGE}\"\r\n"));
        assert_eq!((known.status(), known.body.len()), (304, 0));
    }
    assert_eq!(origin.requests(), asked);
    // A purged response is gone permanently.
    assert_eq!(ask(&gateway, "PURGE", LARGE, "").status(), 200);
    gateway.kill().unwrap();
    assert_eq!(kept_files(&gateway).len(), 2);
    gateway.start_again().unwrap();
    await_disk(&gateway);
    assert!(is_hit(&gateway, SMALL) && !is_hit(&gateway, LARGE));
}

/// Killed in the middle of many writes, again and again: all remaining answers are whole.
#[test]
fn a_gateway_that_is_killed_leaves_nothing_torn() {
    let origin = node();
    let mut gateway = Gateway::start(SIGMA, &config(&origin)).unwrap();
    await_disk(&gateway);
    let paths: Vec<String> = (0..60).map(|n| format!("/{n}/{}", 1 << (n % 24))).collect();
    for round in 0..6 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (gateway, stop, paths) = (&gateway, &stop, &paths);
                scope.spawn(move || {
                    for path in paths.iter().skip(worker * 15).chain(paths).cycle() {
                        if stop.load(Ordering::SeqCst) {
                            return;
                        }
                        // The gateway dies in the middle of some of them.
                        let Ok(peer) = gateway.connect() else { continue };
                        let mut peer = peer.with_deadline(PATIENCE);
                        if peer.send(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")).is_ok() {
                            let _ = peer.read_response("GET");
                        }
                        let request = format!("PURGE {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n");
                        if path.ends_with('4') && peer.send(request).is_ok() {
                            let _ = peer.read_response("PURGE");
                        }
                    }
                });
            }
            let _stop = Stop(&stop);
            let before = counter(&gateway, "written_total");
            assert!(until(PATIENCE, || counter(&gateway, "written_total") > before + 10 + round));
            gateway.strike().unwrap();
        });
        gateway.kill().unwrap();
        gateway.start_again().unwrap();
        await_disk(&gateway);
        paths.iter().for_each(|path| {
            is_hit(&gateway, path);
        });
        assert_eq!(counter(&gateway, "corrupt_total"), 0, "{}", gateway.stderr());
        assert!(counter(&gateway, "found_total") > 0);
    }
}

/// A changed file is not served.
#[test]
fn a_file_that_has_changed_is_forgotten() {
    let origin = node();
    let mut gateway = Gateway::start(SIGMA, &config(&origin)).unwrap();
    await_disk(&gateway);
    for path in [SMALL, LARGE] {
        is_hit(&gateway, path);
    }
    assert!(until(PATIENCE, || counter(&gateway, "answers") == 2));
    gateway.kill().unwrap();
    for file in kept_files(&gateway) {
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes.len() - 50;
        bytes[at] ^= 1;
        fs::write(&file, bytes).unwrap();
    }
    gateway.start_again().unwrap();
    await_disk(&gateway);
    assert!(!is_hit(&gateway, SMALL));
    // Of a large one a part is on its way when it shows.
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.send(format!("GET {LARGE} HTTP/1.1\r\nHost: shop.test\r\n\r\n")).unwrap();
    assert!(peer.read_head().unwrap().get("cache-status").unwrap().contains("hit"));
    assert!(peer.read_exactly(9_000_000).is_err());
    assert!(!is_hit(&gateway, LARGE));
    assert_eq!(counter(&gateway, "corrupt_total"), 2);
    assert!(gateway.stderr().contains("is corrupt"), "{}", gateway.stderr());
}

/// Orders of operators reach the disk, also where memory has nothing of it and the process is killed behind them.
#[test]
fn purged_answers_stay_gone() {
    let origin = node();
    let settings =
        format!("cache: {{ memory_bytes: 4194304, disk: {{ path: \"{{dir}}/cache\" }} }}\n{EMBEDDED}");
    let mut gateway = start(&settings);
    let upstream = json!({"nodes": {(format!("127.0.0.1:{}", origin.port())): 1}});
    admin(&gateway).put("routes/r", &json!({"uri": "/*", "cache": {}, "upstream": upstream})).unwrap();
    await_disk(&gateway);
    let hits = |gateway: &Gateway, path: &str| {
        until(PATIENCE, || ask(gateway, "GET", path, "").status() == 200) && is_hit(gateway, path)
    };
    assert!(until(PATIENCE, || hits(&gateway, SMALL) && hits(&gateway, LARGE)));
    assert!(until(PATIENCE, || counter(&gateway, "answers") == 2));
    gateway.kill().unwrap();
    start_again(&mut gateway);
    await_disk(&gateway);
    let order = |gateway: &Gateway, body: &str| {
        let mut peer = Peer::connect(&gateway.admin_address()).unwrap();
        let length = body.len();
        let request = format!(
            "POST /apisix/admin/cache/purge HTTP/1.1\r\nHost: h\r\nX-API-KEY: {KEY}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        peer.ask(request).unwrap().json().unwrap()
    };
    let url = format!("{{\"urls\": [\"shop.test{LARGE}\"]}}");
    assert_eq!(order(&gateway, &url), json!({"forgotten": 1, "gateways": "this"}));
    gateway.kill().unwrap();
    assert_eq!(kept_files(&gateway).len(), 1);
    start_again(&mut gateway);
    await_disk(&gateway);
    assert!(hits(&gateway, SMALL) && !is_hit(&gateway, LARGE));
    assert!(until(PATIENCE, || counter(&gateway, "answers") == 2));
    assert_eq!(order(&gateway, "{\"tags\": [\"t\"]}"), json!({"forgotten": 2, "gateways": "this"}));
    assert_eq!((counter(&gateway, "answers"), kept_files(&gateway)), (0, Vec::new()));
}

/// A gateway that was away reads missed orders before its disk answers requests.
#[test]
fn a_gateway_that_was_away_forgets_too() {
    let etcd_server = EtcdServer::start().unwrap();
    let origin = node();
    let settings = format!(
        "cache: {{ memory_bytes: 4194304, disk: {{ path: \"{{dir}}/cache\" }} }}\n{}",
        etcd(etcd_server.port())
    );
    let (one, mut other) = (start(&settings), start(&settings));
    let upstream = json!({"nodes": {(format!("127.0.0.1:{}", origin.port())): 1}});
    admin(&one).put("routes/r", &json!({"uri": "/*", "cache": {}, "upstream": upstream})).unwrap();
    await_disk(&other);
    let is_there = || ask(&other, "GET", SMALL, "").status() == 200 && is_hit(&other, SMALL);
    assert!(until(PATIENCE, is_there) && until(PATIENCE, || is_hit(&other, "/other/7")));
    assert!(until(PATIENCE, || counter(&other, "answers") == 2));
    // It has recorded in its folder that it knows all orders.
    assert!(until(PATIENCE, || other.dir().join("cache/sigma.stamp").exists()));
    other.kill().unwrap();
    let body = format!("{{\"urls\": [\"shop.test{SMALL}\"]}}");
    let mut peer = Peer::connect(&one.admin_address()).unwrap();
    let request = format!(
        "POST /apisix/admin/cache/purge HTTP/1.1\r\nHost: h\r\nX-API-KEY: {KEY}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(peer.ask(request).unwrap().status(), 200);
    start_again(&mut other);
    await_disk(&other);
    assert!(is_hit(&other, "/other/7") && !is_hit(&other, SMALL));
    // One that does not know since when it was away starts empty.
    other.kill().unwrap();
    fs::write(other.dir().join("cache/sigma.stamp"), "1000000\n").unwrap();
    start_again(&mut other);
    await_disk(&other);
    assert!(!is_hit(&other, "/other/7"));
}

/// The folder passes to the next process; one that has no right to it serves without.
#[test]
fn a_folder_is_one_processes() {
    let origin = node();
    let gateway = Gateway::start(SIGMA, &config(&origin)).unwrap();
    await_disk(&gateway);
    assert!(!is_hit(&gateway, LARGE) && until(PATIENCE, || is_hit(&gateway, LARGE)));
    let own = gateway.dir().join("cache").display().to_string();
    let second = Gateway::start(SIGMA, &config(&origin).replace("{dir}/cache", &own)).unwrap();
    let told = "another process uses the folder of a disk cache";
    second.await_log(told);
    assert!(!is_hit(&second, SMALL) && is_hit(&second, SMALL), "it has memory");
    assert_eq!((counter(&second, "ready"), counter(&second, "answers")), (0, 0));
    second.stop().unwrap();
    let before = gateway.pid();
    gateway.upgrade().unwrap();
    assert!(until(PATIENCE, || gateway.pid() != before), "{}", gateway.stderr());
    await_disk(&gateway);
    assert!(is_hit(&gateway, LARGE));

    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let open = dir.path().display().to_string();
    let third = Gateway::start(SIGMA, &config(&origin).replace("{dir}/cache", &open)).unwrap();
    third.await_log("other users may write to it");
    assert!(!is_hit(&third, SMALL) && is_hit(&third, SMALL));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The zones of `proxy-cache` with the strategy `disk`, which is its default.
#[test]
fn proxy_cache_keeps_answers_on_a_disk() {
    let origin = node();
    let config = format!(
        "workers: 2\nerror_log: {{ level: info }}\nlisteners: [\"{{listen}}\"]\nplugin_attr: {{ proxy-cache: {{ zones: [{{ name: z, memory_size: 1m, disk_size: \
         20m, disk_path: \"{{dir}}/cache\", cache_levels: \"2\", inactive: 1h }}] }} }}\nroutes:\n  - {{ id: all, uri: \"/*\", plugins: \
         {{ proxy-cache: {{ cache_zone: z }} }}, upstream: {{ nodes: {} }} }}\n",
        nodes(&[&origin])
    );
    let mut gateway = Gateway::start(SIGMA, &config).unwrap();
    let status = |gateway: &Gateway, path: &str| {
        ask(gateway, "GET", path, "").head.get("apisix-cache-status").unwrap().to_owned()
    };
    // Responses from before the folder is open are not written.
    gateway.await_log("the scan of a disk cache is complete");
    for path in [SMALL, "/large/5000000"] {
        assert_eq!(status(&gateway, path), "MISS");
    }
    assert!(until(PATIENCE, || kept_files(&gateway)
        .iter()
        .filter(|path| path.extension().unwrap() == "kept")
        .count()
        == 2));
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    gateway.await_log("the scan of a disk cache is complete");
    for path in [SMALL, "/large/5000000"] {
        assert_eq!(status(&gateway, path), "HIT");
    }
    // There is an end to the disk.
    for n in 0..8 {
        status(&gateway, &format!("/{n}/4000000"));
        let bytes: u64 = kept_files(&gateway)
            .iter()
            .filter_map(|path| fs::metadata(path).ok())
            .map(|file| file.len())
            .sum();
        assert!(bytes <= 20 << 20, "{bytes}");
    }
}
