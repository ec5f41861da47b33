//! Profiles of a gateway under load, by the Control API; `go tool pprof` reads them.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::{PATIENCE, SIGMA, nodes};

/// What functions that serve a request are called.
const EXCHANGE: &str = "sigma_proxy::exchange::";

fn gateway(origin: &Origin, process: &str) -> Gateway {
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ncontrol: {{ address: \"{{control}}\" }}\n{process}\n\
         routes:\n  - uri: \"/*\"\n    upstream: {{ nodes: {} }}\n",
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
    for target in ["/v1/profile/cpu", "/v1/profile/heap"] {
        let answer = asked(&gateway, target);
        assert_eq!(answer.status(), 403, "{target}");
        assert!(message(&answer).contains("`process.profiling: true`"), "{}", answer.text());
    }
}

/// Ends the load, also where the test fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_profile_shows_what_a_worker_does() {
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
                // A machine that is busy may keep a client waiting, which is not what is looked at here.
                let Ok(mut client) = gateway.connect() else { continue };
                while !is_over.load(Ordering::SeqCst) && client.get("/").is_ok() {
                    std::hint::spin_loop();
                }
            }
        });
        let taken = |form: &str| asked(&gateway, &format!("/v1/profile/cpu?seconds=1&hz=200&format={form}"));
        let mut lines = String::new();
        // Who looks at a machine that is busy sees little of one process in a second.
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
        let file = gateway.dir().join("cpu.pb");
        std::fs::write(&file, &profile.body).unwrap();
        let read = |option: &str| {
            let mut pprof = Command::new("go");
            let read = pprof.args(["tool", "pprof", option, "-nodecount=1000"]).arg(&file).output().unwrap();
            assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
            String::from_utf8_lossy(&read.stdout).into_owned()
        };
        let top = read("-top");
        assert!(top.contains("Type: cpu") && top.contains(EXCHANGE), "{top}");
        let tags = read("-tags");
        assert!(tags.contains("thread:") && tags.contains("sigma-worker-0"), "{tags}");
    });
}
