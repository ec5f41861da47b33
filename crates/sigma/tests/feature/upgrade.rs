//! Another process replaces the running one: clients do not notice, and if it fails, nothing has changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use sigma_testkit::{Address, Gateway, Operator, Origin, Peer, free_port, until};

use crate::{PATIENCE, SIGMA, catch_all, nodes};

/// The file that names the serving process, and its status address.
const SETTINGS: &str = "pid_file: \"{dir}/sigma.pid\"\nstatus: { address: \"{status}\" }";

pub(crate) fn sigma_upgrade(gateway: &Gateway) -> Output {
    Command::new(SIGMA).args(["upgrade", "--pid", &gateway.pid().to_string()]).output().unwrap()
}

/// Lets the clients of a test end, also when the test fails.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Upgrades, and waits until the pid file names the successor.
pub(crate) fn upgrade(gateway: &Gateway) {
    let before = gateway.pid();
    let output = sigma_upgrade(gateway);
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), gateway.stderr());
    assert!(until(PATIENCE, || gateway.pid() != before), "{}", gateway.stderr());
}

fn counters(gateway: &Gateway) -> String {
    let mut status = Peer::connect(&gateway.status_address()).unwrap().with_deadline(PATIENCE);
    status.get("/status/counters").unwrap().text()
}

/// Replaces the binary that the gateway was started as.
fn install(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn five_upgrades_lose_no_request() {
    let origin = Origin::echo("a").unwrap();
    let gateway = Gateway::start(SIGMA, &catch_all(SETTINGS, &nodes(&[&origin]), "")).unwrap();
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (gateway, stop, sent) = (&gateway, &stop, &sent);
            scope.spawn(move || {
                let mut client = None;
                while !stop.load(Ordering::SeqCst) {
                    // Two clients keep their connection as long as the gateway does, two take a new one each time.
                    let mut peer = client
                        .take()
                        .unwrap_or_else(|| gateway.connect().expect("a connection").with_deadline(PATIENCE));
                    let answer = peer.get("/").expect("an answer");
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                    sent.fetch_add(1, Ordering::SeqCst);
                    let closes = answer.head.get("connection") == Some("close");
                    client = (number < 2 && !closes).then_some(peer);
                }
            });
        }
        let _stop = Stop(&stop);
        for _ in 0..5 {
            let before = sent.load(Ordering::SeqCst);
            upgrade(&gateway);
            assert!(until(PATIENCE, || sent.load(Ordering::SeqCst) > before + 50));
        }
    });
    assert!(gateway.counter("sigma_requests_total") >= 250, "the numbers go on");
}

#[test]
fn a_successor_that_fails_changes_nothing() {
    let origin = Origin::echo("a").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("sigma");
    fs::copy(SIGMA, &program).unwrap();
    let good = catch_all(SETTINGS, &nodes(&[&origin]), "");
    let gateway = Gateway::start(&program.display().to_string(), &good).unwrap();
    let refused = |word: &str| {
        let pid = gateway.pid();
        let output = sigma_upgrade(&gateway);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word), "{said}");
        assert!(said.contains("the old process keeps serving"), "{said}");
        assert_eq!(gateway.pid(), pid);
        assert_eq!(gateway.connect().unwrap().with_deadline(PATIENCE).get("/").unwrap().status(), 200);
        assert!(counters(&gateway).contains("sigma_requests_total"), "operators are answered");
    };
    install(&program, "#!/bin/sh\nexit 7\n");
    refused("exit status: 7");
    install(&program, "not a program");
    refused("cannot start");
    fs::remove_file(&program).unwrap();
    refused("cannot start");
    fs::copy(SIGMA, &program).unwrap();
    gateway.rewrite("listeners: [nonsense").unwrap();
    refused("sigma.yaml");
    // An address that another process has is found out when everything was given already.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let control = format!("control: {{ address: \"{}\" }}", taken.local_addr().unwrap());
    gateway.rewrite(&format!("{control}\n{good}")).unwrap();
    refused(&format!("pid {} (", std::process::id()));
    gateway.rewrite(&good).unwrap();
    upgrade(&gateway);
    assert_eq!(gateway.connect().unwrap().with_deadline(PATIENCE).get("/").unwrap().status(), 200);
}

#[test]
fn the_store_and_its_callers_go_to_the_successor() {
    let origin = Origin::echo("a").unwrap();
    let config = "listeners: [\"{listen}\"]
admin: { address: \"{admin}\", keys: [{ key: \"edd1c9f034335f136f87ad84b625c8f1\" }] }
store: { path: \"{dir}/data\" }
";
    let gateway = Gateway::start(SIGMA, &format!("{config}{SETTINGS}")).unwrap();
    let admin = Operator::new(gateway.admin_address()).with_key("edd1c9f034335f136f87ad84b625c8f1");
    let put = |number: usize| {
        let nodes = json!({ format!("127.0.0.1:{}", origin.port()): 1 });
        let route = json!({ "uri": format!("/{number}"), "upstream": { "nodes": nodes } });
        admin.call("PUT", &format!("/apisix/admin/routes/{number}"), Some(&route)).unwrap()
    };
    assert_eq!(put(0).status(), 201);
    let (stop, written) = (AtomicBool::new(false), AtomicUsize::new(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let number = written.load(Ordering::SeqCst);
                let answer = put(number);
                assert_eq!(answer.status(), 201, "{}", answer.text());
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        let _stop = Stop(&stop);
        for _ in 0..3 {
            let before = written.load(Ordering::SeqCst);
            upgrade(&gateway);
            assert!(until(PATIENCE, || written.load(Ordering::SeqCst) > before + 5));
        }
    });
    // Acknowledged writes are there, and are served.
    let all = admin.get("/apisix/admin/routes").unwrap();
    assert_eq!(all["total"], json!(written.load(Ordering::SeqCst)));
    let last = format!("/{}", written.load(Ordering::SeqCst) - 1);
    let is_served = || gateway.connect().unwrap().with_deadline(PATIENCE).get(&last).unwrap().status() == 200;
    assert!(until(PATIENCE, is_served));
}

#[test]
fn a_unix_socket_and_more_workers_stay_reachable() {
    let origin = Origin::echo("a").unwrap();
    let with = |workers: u32| {
        let nodes = nodes(&[&origin]);
        format!(
            "workers: {workers}\nlisteners: [\"{{listen}}\", \"unix:{{dir}}/socket\"]\npid_file: \"{{dir}}/sigma.pid\"
routes: [{{ id: all, uri: \"/*\", upstream: {{ nodes: {nodes} }} }}]"
        )
    };
    let gateway = Gateway::start(SIGMA, &with(3)).unwrap();
    let socket = Address::Unix(gateway.dir().join("socket"));
    for workers in [1, 2] {
        gateway.rewrite(&with(workers)).unwrap();
        let before = gateway.pid();
        upgrade(&gateway);
        // The one before has ended, and has left the socket's file.
        assert!(until(PATIENCE, || !Path::new(&format!("/proc/{before}/stat")).exists()
            || fs::read_to_string(format!("/proc/{before}/stat")).is_ok_and(|stat| stat.contains(") Z "))));
        // Each of the sockets that share the port has a process that accepts.
        for _ in 0..30 {
            assert_eq!(gateway.connect().unwrap().with_deadline(PATIENCE).get("/").unwrap().status(), 200);
            let mut local = Peer::connect(&socket).unwrap().with_deadline(PATIENCE);
            assert_eq!(local.get("/").unwrap().status(), 200);
        }
    }
}

/// A pid file that a successor cannot write when the former one has left does not stop it any more.
#[test]
fn a_successor_without_its_pid_file_serves() {
    let origin = Origin::echo("a").unwrap();
    let settings = "pid_file: \"{dir}/run/sigma.pid\"";
    let config = catch_all(settings, &nodes(&[&origin]), "");
    let failed = Gateway::start(SIGMA, &config).unwrap_err();
    assert!(format!("{failed:#}").contains("cannot write the pid file"), "{failed:#}");
    let dir = tempfile::tempdir().unwrap();
    let settings = format!("pid_file: \"{}/run/sigma.pid\"", dir.path().display());
    fs::create_dir(dir.path().join("run")).unwrap();
    let gateway = Gateway::start(SIGMA, &catch_all(&settings, &nodes(&[&origin]), "")).unwrap();
    fs::remove_dir_all(dir.path().join("run")).unwrap();
    gateway.upgrade().unwrap();
    let is_told = until(PATIENCE, || gateway.stderr().contains("the gateway serves without it"));
    let told = gateway.stderr();
    let pid = told.split_once(" pid=").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    let successor = rustix::process::Pid::from_raw(pid.expect("the successor's number")).unwrap();
    let status = gateway.connect().and_then(|client| client.with_deadline(PATIENCE).get("/"));
    rustix::process::kill_process(successor, rustix::process::Signal::TERM).unwrap();
    assert!(is_told, "{told}");
    assert_eq!(status.unwrap().status(), 200);
}

/// An upgrade does not renew a used-up limit.
#[test]
fn limits_go_on() {
    let check = |plugin: &str, conf: serde_json::Value| {
        let origin = Origin::echo("a").unwrap();
        let plugins = format!("    plugins: {}", json!({ plugin: conf }));
        let gateway = Gateway::start(SIGMA, &catch_all(SETTINGS, &nodes(&[&origin]), &plugins)).unwrap();
        let ask = || gateway.connect().unwrap().with_deadline(PATIENCE).get("/").unwrap().status();
        assert_eq!([ask(), ask()], [200, 200], "{plugin}");
        upgrade(&gateway);
        assert_eq!(ask(), 503, "{plugin}");
        upgrade(&gateway);
        assert_eq!(ask(), 503, "{plugin}");
    };
    check("limit-count", json!({ "count": 2, "time_window": 3600 }));
    check("limit-count", json!({ "count": 2, "time_window": 3600, "window_type": "sliding" }));
    check("limit-req", json!({ "rate": 0.001, "burst": 1, "nodelay": true, "key": "remote_addr" }));
}

/// The successor starts the demo servers again, at addresses that the process before still has.
#[test]
fn demo_servers_go_on() {
    let node = format!("127.0.0.1:{}", free_port());
    let config = catch_all(SETTINGS, &format!("{{ \"{node}\": 1 }}"), "");
    let option = format!("--with-demo-origin={node}");
    let gateway = Gateway::start_with(SIGMA, &option, &config).unwrap();
    let ask = || gateway.connect().unwrap().with_deadline(PATIENCE).get("/").unwrap().status();
    for _ in 0..2 {
        assert_eq!(ask(), 200);
        let before = gateway.pid();
        upgrade(&gateway);
        // Until its end the process before gets connections too, and those that it has not accepted end with it.
        let command_line = || fs::read(format!("/proc/{before}/cmdline")).unwrap_or_default();
        assert!(until(PATIENCE, || command_line().is_empty()), "{}", gateway.stderr());
    }
    assert_eq!(ask(), 200);
}
