//! A parent that watches the gateway: clients are served after any failure of the gateway.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use sigma_testkit::{Gateway, Origin, Peer, children, until};

use crate::upgrade::Stop;
use crate::{PATIENCE, SIGMA, catch_all, nodes};

const SETTINGS: &str = "process: { mode: supervised }
pid_file: \"{dir}/sigma.pid\"
status: { address: \"{status}\" }";

/// The gateways that a parent has started and that run.
fn gateways(parent: &Gateway) -> Vec<u32> {
    children(parent.pid())
}

/// The one gateway that serves.
fn gateway_of(parent: &Gateway) -> u32 {
    let mut found = Vec::new();
    let is_one = until(PATIENCE, || {
        found = gateways(parent);
        found.len() == 1
    });
    assert!(is_one, "{found:?}\n{}", parent.stderr());
    found[0]
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// A parent whose first gateway serves, not only listens.
fn start(settings: &str, origin: &Origin) -> Gateway {
    let parent = Gateway::start(SIGMA, &catch_all(settings, &nodes(&[origin]), "")).unwrap();
    parent.await_log("a gateway serves");
    parent
}

fn serves(gateway: &Gateway) -> bool {
    let answer = gateway.connect().and_then(|client| client.with_deadline(PATIENCE).get("/"));
    answer.is_ok_and(|answer| answer.status() == 200)
}

/// Five times the gateway is killed while clients connect: each of them is served, and only exchanges in
/// flight are lost.
#[test]
fn a_killed_gateway_is_replaced_and_no_client_is_refused() {
    let origin = Origin::echo("a").unwrap();
    let parent = start(SETTINGS, &origin);
    let (stop, sent, lost) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let mut client = parent.connect().expect("nobody is refused").with_deadline(PATIENCE);
                    let counted = match client.get("/") {
                        Ok(answer) => {
                            assert_eq!(answer.status(), 200, "{}", answer.text());
                            &sent
                        }
                        Err(_) => &lost,
                    };
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _stop = Stop(&stop);
        for _ in 0..5 {
            let (before, gateway) = (sent.load(Ordering::SeqCst), gateway_of(&parent));
            signal(gateway, Signal::KILL);
            let is_replaced = until(PATIENCE, || gateways(&parent).iter().any(|&pid| pid != gateway));
            assert!(is_replaced, "{}", parent.stderr());
            assert!(until(PATIENCE, || sent.load(Ordering::SeqCst) > before + 20), "{}", parent.stderr());
        }
    });
    // Each client has one exchange at a time; those that wait in the kernel for the next gateway are not lost.
    assert!(lost.load(Ordering::SeqCst) <= 2 * 2 * 5, "{lost:?} of {sent:?}");
    assert!(parent.stop().unwrap().success());
}

#[test]
fn orders_go_through_the_parent() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let parent = start(SETTINGS, &a);
    let first = gateway_of(&parent);
    let told = |order: &str| {
        let output = Command::new(SIGMA).args([order, "--pid", &parent.pid().to_string()]).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    parent.rewrite(&catch_all(SETTINGS, &nodes(&[&b]), "")).unwrap();
    assert_eq!(told("reload"), (true, String::new()), "{}", parent.stderr());
    assert_eq!(gateway_of(&parent), first, "a reload takes no new process");
    parent.rewrite("routes: 7").unwrap();
    let (is_done, said) = told("reload");
    assert!(!is_done && said.contains("the old configuration stays in force"), "{said}");
    let (is_done, said) = told("upgrade");
    assert!(!is_done && said.contains("the old process keeps serving"), "{said}");
    assert!(serves(&parent));
    parent.rewrite(&catch_all(SETTINGS, &nodes(&[&b]), "")).unwrap();
    assert_eq!(told("upgrade"), (true, String::new()), "{}", parent.stderr());
    assert!(until(PATIENCE, || gateway_of(&parent) != first));
    assert!(serves(&parent));
    let last = gateway_of(&parent);
    assert!(parent.stop().unwrap().success());
    assert!(!Path::new(&format!("/proc/{last}/exe")).exists(), "it has ended before its parent");
}

/// A listener that came by a reload is served by the next gateway too; one that went is closed by the parent as well.
#[test]
fn the_parent_holds_the_current_listeners() {
    let origin = Origin::echo("a").unwrap();
    let parent = start(SETTINGS, &origin);
    let further = sigma_testkit::free_port();
    let listeners = format!("  - address: \"127.0.0.1:{further}\"\n{SETTINGS}");
    parent.rewrite(&catch_all(&listeners, &nodes(&[&origin]), "")).unwrap();
    parent.reload().unwrap();
    let address = sigma_testkit::Address::loopback(further);
    let is_there = || {
        let client = Peer::connect(&address);
        client
            .and_then(|client| client.with_deadline(PATIENCE).get("/"))
            .is_ok_and(|answer| answer.status() == 200)
    };
    assert!(until(PATIENCE, is_there), "{}", parent.stderr());
    signal(gateway_of(&parent), Signal::KILL);
    assert!(until(PATIENCE, is_there), "{}", parent.stderr());
    parent.rewrite(&catch_all(SETTINGS, &nodes(&[&origin]), "")).unwrap();
    parent.reload().unwrap();
    assert!(until(PATIENCE, || Peer::connect(&address).is_err()), "the port stays open");
    // A former listener's address can be bound by others.
    assert!(until(PATIENCE, || std::net::TcpListener::bind(("127.0.0.1", further)).is_ok()));
    assert!(serves(&parent));
}

/// The starting gateway may have read the file before it changed.
#[test]
fn a_reload_while_a_gateway_starts_is_not_lost() {
    let nodes_of = [Origin::echo("a").unwrap(), Origin::echo("b").unwrap()];
    let quickly = "supervised, restart_pause_ms: 10, restart_pause_max_ms: 100 }";
    let settings = SETTINGS.replace("supervised }", quickly);
    let parent = start(&settings, &nodes_of[0]);
    for round in 1..=10 {
        let node = &nodes_of[round % 2];
        signal(gateway_of(&parent), Signal::KILL);
        // The next one answers a little before its parent knows that it serves.
        assert!(serves(&parent), "{}", parent.stderr());
        parent.rewrite(&catch_all(&settings, &nodes(&[node]), "")).unwrap();
        parent.reload().unwrap();
        let before = node.requests();
        assert!(until(PATIENCE, || serves(&parent) && node.requests() > before), "{}", parent.stderr());
    }
}

#[test]
fn a_gateway_that_cannot_start_ends_the_parent_at_first_and_is_tried_again_later() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sigma.yaml");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config =
        format!("process: {{ mode: supervised }}\nlisteners: [\"{}\"]\n", taken.local_addr().unwrap());
    fs::write(&file, config).unwrap();
    let output = Command::new(SIGMA).args(["run", "-c"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot listen on"), "{said}");

    let origin = Origin::echo("a").unwrap();
    let settings =
        SETTINGS.replace("supervised }", "supervised, restart_pause_ms: 10, restart_pause_max_ms: 100 }");
    let parent = start(&settings, &origin);
    let good = catch_all(&settings, &nodes(&[&origin]), "");
    parent.rewrite("routes: 7").unwrap();
    signal(gateway_of(&parent), Signal::KILL);
    let is_tried = || parent.stderr().matches("the gateway cannot start").count() >= 3;
    assert!(until(PATIENCE, is_tried), "{}", parent.stderr());
    parent.rewrite(&good).unwrap();
    // Clients that connect meanwhile wait, and are served.
    assert!(serves(&parent), "{}", parent.stderr());
    parent.rewrite("routes: 7").unwrap();
    signal(gateway_of(&parent), Signal::KILL);
    assert!(until(PATIENCE, || parent.stderr().matches("the gateway cannot start").count() >= 4));
    // A parent without a gateway stops as well.
    assert!(until(PATIENCE, || gateways(&parent).is_empty()));
    parent.stop().unwrap();
}

/// The gateway is stuck as a whole: it gives no sign of life.
#[test]
fn a_gateway_that_gives_no_sign_of_life_is_replaced() {
    let origin = Origin::echo("a").unwrap();
    let parent = start(&SETTINGS.replace("supervised }", "supervised, silence_ms: 2500 }"), &origin);
    let first = gateway_of(&parent);
    signal(first, Signal::STOP);
    let stands = || fs::read_to_string(format!("/proc/{first}/stat")).is_ok_and(|stat| stat.contains(") T "));
    assert!(until(PATIENCE, stands));
    assert!(serves(&parent), "whoever connects meanwhile waits");
    assert!(parent.stderr().contains("does not respond: killing it"), "{}", parent.stderr());
    assert_ne!(gateway_of(&parent), first);
}

/// A parent that is killed leaves a gateway that continues.
#[test]
fn the_gateway_outlives_its_parent() {
    let origin = Origin::echo("a").unwrap();
    let mut parent = start(SETTINGS, &origin);
    let gateway = gateway_of(&parent);
    parent.kill().unwrap();
    parent.await_log("the parent process ended");
    assert!(serves(&parent));
    signal(gateway, Signal::TERM);
    assert!(until(PATIENCE, || !serves(&parent)));
}

/// Replaces the program by a copy of it.
fn install(program: &Path) {
    let new = program.with_extension("new");
    fs::copy(SIGMA, &new).unwrap();
    fs::rename(new, program).unwrap();
}

/// Returns the program of a process, which is marked if another file has replaced it.
fn runs(pid: u32) -> String {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap().display().to_string()
}

/// How often the log has said this.
fn said(parent: &Gateway, text: &str) -> usize {
    parent.stderr().matches(text).count()
}

const GOES_ON: &str = "the parent process executes the new program";

/// With an upgrade the parent is replaced as well, in its own process, and does all that it did before.
#[test]
fn the_parent_goes_on_as_the_new_program() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().canonicalize().unwrap().join("sigma");
    install(&program);
    let path = program.display().to_string();
    let mut parent = Gateway::start(&path, &catch_all(SETTINGS, &nodes(&[&a]), "")).unwrap();
    let pid = parent.pid();
    let told = |order: &str| {
        let output = Command::new(SIGMA).args([order, "--pid", &pid.to_string()]).output().unwrap();
        assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stderr), parent.stderr());
    };
    parent.await_log("a gateway serves");
    for round in 1..=2 {
        install(&program);
        assert_eq!(runs(pid), format!("{path} (deleted)"));
        let before = gateway_of(&parent);
        told("upgrade");
        assert!(until(PATIENCE, || said(&parent, GOES_ON) == round), "{}", parent.stderr());
        assert_eq!((parent.pid(), runs(pid)), (pid, path.clone()));
        let gateway = gateway_of(&parent);
        assert_ne!(gateway, before);
        assert_eq!(runs(gateway), path);
        assert!(serves(&parent));
        // Its gateway dies: it sees that, and has the sockets.
        signal(gateway, Signal::KILL);
        assert!(serves(&parent), "{}", parent.stderr());
        assert!(until(PATIENCE, || gateway_of(&parent) != gateway));
        // The waiting caller of an order finds its result at the same place.
        parent.rewrite(&catch_all(SETTINGS, &nodes(&[&b]), "")).unwrap();
        told("reload");
        let before = b.requests();
        assert!(serves(&parent) && b.requests() > before);
    }
    told("upgrade");
    assert!(until(PATIENCE, || said(&parent, "a gateway serves") >= 6), "{}", parent.stderr());
    assert!(serves(&parent));
    let last = gateway_of(&parent);
    let file = parent.dir().join("sigma.pid");
    assert!(file.exists());
    parent.terminate().unwrap();
    assert!(parent.wait(PATIENCE).unwrap().success());
    assert!(!Path::new(&format!("/proc/{last}/exe")).exists(), "it has ended before its parent");
    assert!(!file.exists(), "the pid file is its own as well");
}

/// In any moment of a signal, one of the two images follows it.
#[test]
fn a_signal_while_the_parent_changes_is_not_lost() {
    let nodes_of = [Origin::echo("a").unwrap(), Origin::echo("b").unwrap()];
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("sigma");
    install(&program);
    let config = |node: &Origin| catch_all(SETTINGS, &nodes(&[node]), "");
    let parent = Gateway::start(&program.display().to_string(), &config(&nodes_of[0])).unwrap();
    let serves_one = |count| until(PATIENCE, || said(&parent, "a gateway serves") == count);
    assert!(serves_one(1), "{}", parent.stderr());
    for round in 1..=8 {
        let node = &nodes_of[round % 2];
        install(&program);
        signal(parent.pid(), Signal::USR2);
        // From here on it changes; more and more of that is over when the signal comes.
        assert!(serves_one(round + 1), "{}", parent.stderr());
        std::thread::sleep(std::time::Duration::from_micros(500 * (round as u64 - 1)));
        parent.rewrite(&config(node)).unwrap();
        parent.reload().unwrap();
        let before = node.requests();
        assert!(until(PATIENCE, || serves(&parent) && node.requests() > before), "{}", parent.stderr());
        assert!(until(PATIENCE, || said(&parent, GOES_ON) == round), "{}", parent.stderr());
    }
    install(&program);
    signal(parent.pid(), Signal::USR2);
    assert!(serves_one(10), "{}", parent.stderr());
    assert!(parent.stop().unwrap().success());
}
