//! Profiles of a gateway under load, by the Control API; `go tool pprof` reads them.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::{PATIENCE, SIGMA, nodes};

/// The prefix of functions that serve a request.
const EXCHANGE: &str = "sigma_proxy::exchange::";

fn gateway(origin: &Origin, process: &str) -> Gateway {
    gateway_with(origin, process, "{}")
}

fn gateway_with(origin: &Origin, process: &str, plugins: &str) -> Gateway {
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ncontrol: {{ address: \"{{control}}\" }}\n{process}\n\
         routes:\n  - uri: \"/*\"\n    plugins: {plugins}\n    upstream: {{ nodes: {} }}\n",
        nodes(&[origin])
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn asked(gateway: &Gateway, target: &str) -> Message {
    Peer::connect(&gateway.control_address()).unwrap().with_deadline(PATIENCE * 2).get(target).unwrap()
}

fn message(answer: &Message) -> String {
    answer.json().unwrap_or_default()["error_msg"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn there_are_no_profiles_unless_they_are_asked_for() {
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&origin, "");
    for target in ["/v1/profile/cpu", "/v1/profile/heap", "/v1/profile/heap?seconds=1"] {
        let answer = asked(&gateway, target);
        assert_eq!(answer.status(), 403, "{target}");
        assert!(message(&answer).contains("`process.profiling: true`"), "{}", answer.text());
    }
}

/// Returns the content of a profile by `go tool pprof`.
fn read(gateway: &Gateway, profile: &Message, options: &[&str]) -> String {
    let file = gateway.dir().join("profile.pb");
    std::fs::write(&file, &profile.body).unwrap();
    let mut pprof = Command::new("go");
    let read = pprof.args(["tool", "pprof", "-nodecount=1000"]).args(options).arg(&file).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    String::from_utf8_lossy(&read.stdout).into_owned()
}

/// Ends the load, also where the test fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_profile_shows_the_functions_of_a_worker() {
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&origin, "process: { profiling: true }");
    for (target, expected) in [
        ("/v1/profile/cpu?seconds=121", "invalid argument seconds"),
        ("/v1/profile/cpu?hz=1000", "invalid argument hz"),
        ("/v1/profile/cpu?format=dot", "invalid argument format"),
    ] {
        let answer = asked(&gateway, target);
        assert_eq!(answer.status(), 400, "{target}");
        assert!(message(&answer).contains(expected), "{}", answer.text());
    }
    let heap = asked(&gateway, "/v1/profile/heap");
    let figures: Value = heap.json().unwrap();
    assert!(figures["own_bytes"].as_u64() > Some(1 << 20) && figures["allocator"].is_object(), "{figures}");

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                // A busy machine may make a client wait, which is not tested here.
                let Ok(mut client) = gateway.connect() else { continue };
                while !is_over.load(Ordering::SeqCst) && client.get("/").is_ok() {
                    std::hint::spin_loop();
                }
            }
        });
        let taken = |form: &str| asked(&gateway, &format!("/v1/profile/cpu?seconds=1&hz=200&format={form}"));
        let mut lines = String::new();
        // On a busy machine one process shows little in a second.
        let is_seen = until(PATIENCE, || {
            let folded = taken("folded");
            lines = folded.text();
            if folded.status() == 503 {
                return true;
            }
            let of_worker = || lines.lines().filter(|line| line.starts_with("sigma-worker-0;"));
            // From the beginning of the thread, and down to the exchange. Without optimisation that is more than is copied of
            // a stack.
            of_worker().any(|line| line.contains("thread_start;"))
                && of_worker().any(|line| line.contains(EXCHANGE))
        });
        if lines.contains("error_msg") {
            assert!(lines.contains("perf_event_open"), "{lines}");
            return;
        }
        assert!(is_seen, "{lines}");
        for line in lines.lines() {
            assert!(line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap() > 0, "{line}");
        }
        let with = |form: &str| {
            let mut answer = taken(form);
            let has_it = |answer: &Message| {
                answer.body.windows(EXCHANGE.len()).any(|bytes| bytes == EXCHANGE.as_bytes())
            };
            assert!(until(PATIENCE, || {
                answer = taken(form);
                has_it(&answer)
            }));
            answer
        };
        let [profile, picture] = ["pprof", "svg"].map(with);
        drop(over);
        assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200);
        let field = |answer: &Message, name: &str| answer.head.all(name).next().map(str::to_owned);
        assert_eq!(field(&profile, "content-type").as_deref(), Some("application/octet-stream"));
        assert_eq!(field(&picture, "content-type").as_deref(), Some("image/svg+xml"));
        assert!(picture.text().starts_with("<svg ") && !picture.text().contains("<script"));
        let top = read(&gateway, &profile, &["-top"]);
        assert!(top.contains("Type: cpu") && top.contains(EXCHANGE), "{top}");
        let tags = read(&gateway, &profile, &["-tags"]);
        assert!(tags.contains("thread:") && tags.contains("sigma-worker-0"), "{tags}");
    });
}

#[test]
fn a_profile_of_the_heap_is_asked_for_within_bounds() {
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&origin, "process: { profiling: true }");
    let check = |query: &str, expected: &str| {
        let answer = asked(&gateway, &format!("/v1/profile/heap?{query}"));
        assert_eq!((answer.status(), &*message(&answer)), (400, expected), "{query}");
    };
    check("seconds=0", "invalid argument seconds: 0 is not a number from 1 to 120");
    check("bytes=1", "invalid argument bytes: 1 is not a number from 16384 to 67108864");
    check("of=all", "invalid argument of: all is not in_use or allocated");
    check("format=dot", "invalid argument format: dot is not pprof, folded, svg or figures");
    check("hz=99", "unknown argument hz: write seconds, bytes, of or format");
    let both = "invalid argument format: figures takes no seconds and no other argument";
    check("seconds=1&format=figures", both);
    for target in ["/v1/profile/heap", "/v1/profile/heap?format=figures"] {
        let figures: Value = asked(&gateway, target).json().unwrap();
        assert!(figures["allocator"].is_object(), "{figures}");
    }
}

/// Bytes of the responses that the gateway is made to keep, in all and each. Larger ones would be kept in a file.
const KEPT: usize = 16 << 20;
const ANSWER: usize = 32 << 10;

/// The bytes of all lines that have a call of an exchange or of the cache in them.
fn of_exchanges(lines: &str) -> usize {
    let of_them = lines.lines().filter(|line| line.contains(EXCHANGE) || line.contains("sigma_cache::"));
    of_them.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}

/// Requests a profile, makes the gateway keep answers when it is being taken, and returns it.
fn taken_while_answers_are_kept(gateway: &Gateway, round: usize, query: &str) -> Message {
    let lines = || gateway.stderr().matches("an operator requested a profile").count();
    let before = lines();
    let address = gateway.control_address();
    std::thread::scope(|scope| {
        let profile = scope.spawn(move || {
            let mut operator = Peer::connect(&address).unwrap().with_deadline(PATIENCE * 2);
            operator.get(&format!("/v1/profile/heap?seconds=4&bytes=65536&{query}")).unwrap()
        });
        assert!(until(PATIENCE, || lines() > before));
        for other in ["heap?seconds=1", "cpu?seconds=1"] {
            let refused = asked(gateway, &format!("/v1/profile/{other}"));
            let expected = "another profile is running, and only one can run at a time: repeat the call when it has ended";
            assert_eq!((refused.status(), &*message(&refused)), (409, expected));
        }
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        for n in 0..KEPT / ANSWER {
            assert_eq!(client.get(&format!("/{round}/{n}")).unwrap().body.len(), ANSWER);
        }
        profile.join().unwrap()
    })
}

#[test]
fn a_profile_of_the_heap_shows_who_keeps_memory() {
    let body = "a".repeat(ANSWER);
    let origin = Origin::answer(move |_| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER}\r\nCache-Control: max-age=3600\r\n\r\n{body}")
            .into_bytes()
    })
    .unwrap();
    let process = "process: { profiling: true }\nerror_log: { level: info }\n\
                   plugin_attr: { proxy-cache: { zones: [{ name: z, memory_size: 400m }] } }";
    let plugins = "{ proxy-cache: { cache_strategy: memory, cache_zone: z } }";
    let gateway = gateway_with(&origin, process, plugins);
    // On a machine that is busy a profile may be over before the responses have come.
    let with = |first: usize, query: &str, is_good: &dyn Fn(&Message) -> bool| {
        let (mut round, mut answer) = (first, None);
        let is_found = until(PATIENCE * 4, || {
            round += 1;
            answer = Some(taken_while_answers_are_kept(&gateway, round, query));
            answer.as_ref().is_some_and(is_good)
        });
        let answer = answer.unwrap();
        assert!(is_found, "{query}: {}", answer.text());
        answer
    };
    let is_kept = |bytes: usize| (KEPT / 4 * 3..KEPT * 2).contains(&bytes);
    with(0, "format=folded", &|answer| is_kept(of_exchanges(&answer.text())));
    // None of that is allocated now.
    let later = asked(&gateway, "/v1/profile/heap?seconds=1&bytes=65536&format=folded");
    assert_eq!(later.status(), 200);
    assert!(of_exchanges(&later.text()) < KEPT / 8, "{}", later.text());
    let all = with(100, "format=folded&of=allocated", &|answer| of_exchanges(&answer.text()) > KEPT / 4 * 3);
    assert!(!all.text().contains("sigma_net::allocations"), "{}", all.text());
    let profile = with(200, "", &|answer| answer.text().contains(EXCHANGE));
    assert_eq!(profile.head.get("content-type"), Some("application/octet-stream"));
    let top = |kind: &str| read(&gateway, &profile, &["-top", &format!("-sample_index={kind}")]);
    for kind in ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"] {
        let top = top(kind);
        assert!(top.contains(&format!("Type: {kind}")) && top.contains(EXCHANGE), "{top}");
    }
    let first = read(&gateway, &profile, &["-top"]);
    assert!(first.contains("Type: inuse_space"), "{first}");
    let comments = read(&gateway, &profile, &["-comments"]);
    assert!(comments.contains("memory in use: allocated during the profile"), "{comments}");
    assert_eq!(gateway.connect().unwrap().get("/200/1").unwrap().status(), 200);
}
