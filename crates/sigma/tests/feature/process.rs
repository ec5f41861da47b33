//! The process among others: logs without readers, signals, descriptors, addresses that are taken.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sigma_testkit::{Gateway, Origin, Peer, free_port, until};

use crate::held_bytes::{GET, frame};
use crate::{PATIENCE, SIGMA, catch_all, in_front_of, nodes};

/// Nodes that refuse: at level debug, every request logs another attempt.
const DEAD: &str = "{ \"127.0.0.1:1\": 1, \"127.0.0.2:1\": 1 }";

/// A program that starts Sigma after `preparation`, commands of a shell.
pub(crate) fn after(dir: &Path, preparation: &str, redirection: &str) -> String {
    let path = dir.join("start");
    fs::write(&path, format!("#!/bin/bash\n{preparation}\nexec {SIGMA} \"$@\" {redirection}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A program that starts Sigma with a stderr that is open and never read.
fn with_unread_stderr(dir: &Path) -> String {
    after(dir, &format!("mkfifo {0}/unread; exec 9<>{0}/unread", dir.display()), "2>&9")
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Runs `sigma` with these arguments.
fn sigma(arguments: &[&str]) -> Output {
    Command::new(SIGMA).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_error_log_has_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let settings = "status: { address: \"{status}\" }\nerror_log: { level: debug }";
    let config = catch_all(settings, DEAD, "");
    let gateway = Gateway::start(&with_unread_stderr(dir.path()), &config).unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    // Each causes a line: more than the pipe and the queue hold.
    let mut asked = 0;
    while gateway.counter("sigma_error_lines_dropped_total") == 0 {
        assert!(asked < 20_000, "lines are kept without bound");
        for _ in 0..500 {
            assert_eq!(client.get("/").unwrap().status(), 502);
        }
        asked += 500;
    }
    assert!(gateway.stop().unwrap().success());
}

#[test]
fn a_slow_reader_of_the_error_log_learns_of_missed_lines() {
    let (dir, path) = (tempfile::tempdir().unwrap(), "unread");
    let settings = "status: { address: \"{status}\" }\nerror_log: { level: debug }";
    let config = catch_all(settings, DEAD, "");
    let gateway = Gateway::start(&with_unread_stderr(dir.path()), &config).unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    while gateway.counter("sigma_error_lines_dropped_total") == 0 {
        for _ in 0..500 {
            client.get("/").unwrap();
        }
    }
    let mut reader = std::io::BufReader::new(fs::File::open(dir.path().join(path)).unwrap());
    let told = std::thread::spawn(move || {
        let mut line = String::new();
        while std::io::BufRead::read_line(&mut reader, &mut line).unwrap_or(0) > 0 {
            if line.contains("lines of the error log were dropped") {
                return true;
            }
            line.clear();
        }
        false
    });
    let heard = until(PATIENCE, || {
        client.get("/").unwrap();
        told.is_finished()
    });
    assert!(heard && told.join().unwrap());
}

#[test]
fn lines_that_clients_cause_are_few() {
    const REQUESTS: usize = 1_000;
    let gateway = Gateway::start(SIGMA, &catch_all("", DEAD, "")).unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    let lines = || gateway.stderr().lines().filter(|line| line.contains("cannot connect to a node")).count();
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/").unwrap().status(), 502);
    }
    let heard = until(PATIENCE, || {
        client.get("/").unwrap();
        gateway.stderr().contains("similar lines were dropped")
    });
    assert!(heard, "{}", gateway.stderr());
    assert!((1..REQUESTS / 2).contains(&lines()), "{} lines", lines());
}

#[test]
fn a_start_and_a_reload_leave_a_line_each() {
    let origin = Origin::echo("a").unwrap();
    let config = catch_all("", &nodes(&[&origin]), "");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let pid = gateway.pid().to_string();
    let says =
        |word: &str| until(PATIENCE, || gateway.stderr().lines().filter(|l| l.contains(word)).count() == 1);
    assert!(says(" serving "), "{}", gateway.stderr());
    let output = sigma(&["reload", "--pid", &pid]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(says("configuration reloaded"), "{}", gateway.stderr());
    gateway.rewrite("routes:\n  - uri: /a\n    upstrem: {}\n").unwrap();
    let output = sigma(&["reload", "--pid", &pid]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("upstrem"), "{}", said(&output));
    assert!(says("the reload failed"), "{}", gateway.stderr());
    gateway.rewrite(&config).unwrap();
    assert!(sigma(&["reload", "--pid", &pid]).status.success());
}

#[test]
fn an_access_log_without_a_reader_refuses_the_start() {
    let dir = tempfile::tempdir().unwrap();
    fifo(&dir.path().join("access"));
    let settings = format!("access_log: {{ path: \"{}/access\" }}", dir.path().display());
    let refused = Gateway::start(SIGMA, &catch_all(&settings, "{ \"127.0.0.1:1\": 1 }", "")).unwrap_err();
    let text = format!("{refused:#}");
    assert!(text.contains("without a reader") && text.contains("start its reader first"), "{text}");
}

#[test]
fn an_access_log_without_a_reader_refuses_only_the_reload() {
    let (dir, origin) = (tempfile::tempdir().unwrap(), Origin::echo("a").unwrap());
    fifo(&dir.path().join("access"));
    let status = "status: { address: \"{status}\" }";
    let config = |settings: &str| catch_all(&format!("{status}\n{settings}"), &nodes(&[&origin]), "");
    let gateway = Gateway::start(SIGMA, &config("")).unwrap();
    gateway
        .rewrite(&config(&format!("access_log: {{ path: \"{}/access\" }}", dir.path().display())))
        .unwrap();
    let output = sigma(&["reload", "--pid", &gateway.pid().to_string()]);
    assert!(!output.status.success() && said(&output).contains("without a reader"), "{}", said(&output));
    assert_eq!(Peer::connect(&gateway.status_address()).unwrap().get("/status").unwrap().status(), 200);
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200);
    assert!(gateway.stop().unwrap().success());
}

#[test]
fn an_access_log_with_a_stuck_reader_costs_lines_only() {
    let (dir, origin) = (tempfile::tempdir().unwrap(), Origin::echo("a").unwrap());
    let path = dir.path().join("access");
    fifo(&path);
    // Opened for both, so that it does not wait for the other end; never read.
    let reader = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let settings = format!(
        "status: {{ address: \"{{status}}\" }}\naccess_log: {{ path: \"{}\", flush_ms: 50, buffer_bytes: 512 }}",
        path.display()
    );
    let gateway = in_front_of(&origin, &settings);
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    let dropped = until(PATIENCE, || {
        (0..200).for_each(|_| assert_eq!(client.get("/").unwrap().status(), 200));
        gateway.counter("sigma_access_lines_dropped_total") > 0
    });
    assert!(dropped);
    assert!(gateway.stop().unwrap().success());
    drop(reader);
}

#[test]
fn lines_lost_on_a_full_disk_are_counted() {
    let origin = Origin::echo("a").unwrap();
    let gateway = in_front_of(
        &origin,
        "status: { address: \"{status}\" }\naccess_log: { path: /dev/full, flush_ms: 50 }",
    );
    gateway.connect().unwrap().get("/").unwrap();
    let counted = || gateway.counter("sigma_access_lines_dropped_total") == 1;
    assert!(until(PATIENCE, counted), "{}", gateway.counter("sigma_access_lines_dropped_total"));
}

#[test]
fn a_second_signal_ends_the_wait_of_the_first() {
    let origin = Origin::serve(|mut peer| {
        // Answers nothing and keeps the exchange open.
        let _ = peer.read_request();
        let _ = peer.with_deadline(PATIENCE).read_exactly(1);
    })
    .unwrap();
    let mut gateway = in_front_of(&origin, "timeouts: { drain_ms: 600000 }");
    let mut client = gateway.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(until(PATIENCE, || origin.connections() > 0), "the request does not reach its node");
    gateway.terminate().unwrap();
    let refuses = || gateway.connect().is_err();
    assert!(until(PATIENCE, refuses), "it accepts although it is told to end");
    let end = std::time::Instant::now() + PATIENCE;
    let status = loop {
        let _ = gateway.terminate();
        match gateway.wait(Duration::from_millis(200)) {
            Ok(status) => break status,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
    };
    assert_eq!(status.code(), Some(128 + 15));
}

#[test]
fn run_takes_the_file_that_is_named() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let listening = |port: u16| format!("listeners: [\"127.0.0.1:{port}\"]\n");
    fs::write(dir.path().join("sigma.yaml"), listening(free_port())).unwrap();
    fs::write(dir.path().join("other.yaml"), listening(port)).unwrap();
    let mut child = Command::new(SIGMA).args(["run", "other.yaml"]).current_dir(dir.path()).spawn().unwrap();
    let listens = until(PATIENCE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(listens, "other.yaml is not what runs");
}

#[test]
fn a_command_without_its_process_or_file_says_what_to_name() {
    let dir = tempfile::tempdir().unwrap();
    let check = |arguments: &[&str], words: &[&str]| {
        let output = Command::new(SIGMA).args(arguments).current_dir(dir.path()).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}: {}", said(&output));
        for word in words {
            assert!(said(&output).contains(word), "{arguments:?}: {word} is missing in {}", said(&output));
        }
    };
    check(&["stop"], &["--pid", "--pid-file"]);
    check(&["reload", "--pid", "99999999"], &["99999999", "has ended"]);
    check(&["check"], &["sigma.yaml"]);
}

#[test]
fn a_second_gateway_on_the_same_port_is_refused() {
    let origin = Origin::echo("a").unwrap();
    let config = |settings: &str| {
        let text = catch_all(settings, &nodes(&[&origin]), "");
        text.replace("- address: \"{listen}\"", "- { address: \"{listen}\" }")
    };
    let gateway = Gateway::start(SIGMA, &config("")).unwrap();
    let file = gateway.dir().join("sigma.yaml").display().to_string();
    let output = sigma(&["run", &file]);
    let pid = format!("pid {}", gateway.pid());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains(&pid) && said(&output).contains("shared: true"), "{}", said(&output));
    // A reload that changes the options of a listener is no second gateway.
    let reload = || sigma(&["reload", "--pid", &gateway.pid().to_string()]);
    gateway.rewrite(&config("").replace("{listen}\"", "{listen}\", backlog: 77")).unwrap();
    let output = reload();
    assert!(output.status.success(), "{}", said(&output));
    gateway.rewrite(&config("").replace("{listen}", "0.0.0.0:{port}")).unwrap();
    let output = reload();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200);
}

#[test]
fn gateways_that_want_to_share_a_port_do() {
    let origin = Origin::echo("a").unwrap();
    let text = catch_all("", &nodes(&[&origin]), "");
    let text = text.replace("- address: \"{listen}\"", "- { address: \"{listen}\", shared: true }");
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    // The folder of the first goes with it.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sigma.yaml");
    fs::copy(gateway.dir().join("sigma.yaml"), &file).unwrap();
    let mut second = Command::new(SIGMA).args(["run", "-c"]).arg(file).spawn().unwrap();
    let port = gateway.address().port().unwrap();
    let answers = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    drop(gateway);
    let served = until(PATIENCE, answers);
    let ended = second.try_wait().unwrap();
    second.kill().unwrap();
    second.wait().unwrap();
    assert!(served && ended.is_none(), "{ended:?}");
}

#[test]
fn a_unix_listener_leaves_other_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    fs::write(&path, "kept").unwrap();
    let config = format!("listeners: [ {{ address: \"unix:{}\" }} ]\n", path.display());
    let refused = Gateway::start(SIGMA, &config).unwrap_err();
    assert!(format!("{refused:#}").contains("is not a socket"), "{refused:#}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
}

fn set_open_files(gateway: &Gateway, current: Option<u64>) {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let pid = Pid::from_raw(i32::try_from(gateway.pid()).unwrap());
    // Never above the limit at its start.
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(pid, Resource::Nofile, Rlimit { current: current.or(maximum), maximum }).unwrap();
}

#[test]
fn missing_resources_of_the_gateway_are_not_the_nodes_fault() {
    let origin = Origin::echo("a").unwrap();
    let checks = "      retries: 1\n      checks:\n        active: { type: http, http_path: / }\n        passive: { type: http, unhealthy: { tcp_failures: 1, timeouts: 1, http_statuses: [500], http_failures: 1 }, healthy: { http_statuses: [299], successes: 1 } }\n";
    let config = catch_all("status: { address: \"{status}\" }", &nodes(&[&origin]), checks);
    let config = config.replace("uri: \"/*\"", "uri: /served");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert_eq!(client.get("/nowhere").unwrap().status(), 404);
    set_open_files(&gateway, Some(1));
    let answer = client.get("/served").unwrap();
    assert_eq!(answer.status(), 503, "{}", answer.text());
    assert!(answer.text().contains("connection_limit_reached"), "{}", answer.text());
    set_open_files(&gateway, None);
    // Requests are shed until the next look at descriptors, if the last one fell into that moment.
    let mut answer = None;
    until(PATIENCE, || answer.insert(client.get("/served").unwrap()).status() == 200);
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(!gateway.stderr().contains("health check"), "{}", gateway.stderr());
}

#[test]
fn clients_leave_descriptors_to_nodes_and_operators() {
    const FLOOD: usize = 200;
    let (dir, origin) = (tempfile::tempdir().unwrap(), Origin::echo("a").unwrap());
    let config = catch_all("status: { address: \"{status}\" }", &nodes(&[&origin]), "");
    let config = config.replace("uri: \"/*\"", "uri: /served");
    let gateway = Gateway::start(&after(dir.path(), "ulimit -n 160", ""), &config).unwrap();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert_eq!(client.get("/nowhere").unwrap().status(), 404);
    let port = gateway.address().port().unwrap();
    let flood: Vec<_> =
        (0..FLOOD).map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let full = || gateway.stderr().contains("clients have used up their share of file descriptors");
    assert!(until(PATIENCE, full), "{}", gateway.stderr());
    let taken = gateway.counter("sigma_connections_active");
    assert!((10..80).contains(&taken), "{taken} connections");
    let answer = client.get("/served").unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    drop(flood);
    let mut next = gateway.connect().unwrap().with_deadline(PATIENCE);
    assert_eq!(next.get("/served").unwrap().status(), 200);
}

/// One client of HTTP/2 has many requests at a node that does not respond.
#[test]
fn nodes_leave_descriptors_to_clients() {
    let (dir, node) = (tempfile::tempdir().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let upstream = json!({ "nodes": { node.local_addr().unwrap().to_string(): 1 } });
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((connection, _)) = node.accept() {
            open.push(connection);
            count.store(open.len(), Ordering::SeqCst);
        }
    });
    let config = json!({
        "workers": 1, "listeners": ["{listen}"],
        "routes": [
            { "id": "own", "uri": "/own", "plugins": { "mocking": { "response_example": "own" } } },
            { "id": "node", "uri": "/*", "upstream": upstream },
        ],
    });
    // 50 are reserved; connections to nodes get 262 of the other 350.
    let gateway = Gateway::start(&after(dir.path(), "ulimit -n 400", ""), &config.to_string()).unwrap();
    let port = gateway.address().port().unwrap();
    let flood: Vec<_> = (0..4)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            bytes.extend(frame(4, 0, 0, b""));
            (0..100).for_each(|n| bytes.extend(frame(1, 5, 2 * n + 1, GET)));
            client.write_all(&bytes).unwrap();
            client
        })
        .collect();
    let full = || gateway.stderr().contains("cannot open a connection to a node");
    assert!(until(PATIENCE, full), "{}", gateway.stderr());
    assert!(until(PATIENCE, || accepted.load(Ordering::SeqCst) > 200));
    // The gateway looks at its descriptors every second.
    let began = Instant::now();
    assert!(until(PATIENCE, || {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        assert_eq!(client.get("/own").unwrap().status(), 200, "{}", gateway.stderr());
        began.elapsed() > Duration::from_secs(2)
    }));
    drop(flood);
}
