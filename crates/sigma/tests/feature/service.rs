//! The gateway as a service: under systemd, in the background, as a user without rights.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use crate::process::after;
use crate::{PATIENCE, SIGMA, catch_all, nodes};

/// A gateway whose service manager wants a sign of life each second, with these settings.
fn watched(dir: &Path, settings: &str) -> Gateway {
    let settings = format!("pid_file: \"{{dir}}/sigma.pid\"\n{settings}");
    let config = catch_all(&settings, "{ \"127.0.0.1:1\": 1 }", "");
    Gateway::start(&after(dir, "export WATCHDOG_USEC=2000000", ""), &config).unwrap()
}

#[test]
fn systemd_is_notified_of_a_life() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = watched(dir.path(), "");
    assert!(gateway.notifies("READY=1"));
    assert!(gateway.notifies("WATCHDOG=1") && gateway.notifies("WATCHDOG=1"));
    gateway.reload().unwrap();
    assert!(
        gateway.notifies("RELOADING=1") && gateway.notifies("MONOTONIC_USEC=") && gateway.notifies("READY=1")
    );
    let before = gateway.pid();
    gateway.upgrade().unwrap();
    assert!(gateway.notifies("READY=1") && gateway.notifies("MAINPID="));
    assert!(until(PATIENCE, || gateway.pid() != before));
    assert!(gateway.notifies("WATCHDOG=1") && gateway.notifies("WATCHDOG=1"));
    gateway.terminate().unwrap();
    assert!(gateway.notifies("STOPPING=1"));
}

#[test]
fn a_parent_notifies_systemd() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = watched(dir.path(), "process: { mode: supervised }");
    assert!(gateway.notifies("READY=1") && gateway.notifies("WATCHDOG=1"));
    gateway.reload().unwrap();
    assert!(gateway.notifies("RELOADING=1") && gateway.notifies("READY=1"));
    assert!(!gateway.notifications().contains("MAINPID="), "the parent is the service");
    gateway.terminate().unwrap();
    assert!(gateway.notifies("STOPPING=1"));
    assert!(!gateway.notifications().contains("MAINPID="), "the parent is the service");
}

/// Sockets that systemd has bound are listened on, by one process and by a parent and its gateways.
#[test]
fn sockets_of_systemd_are_used() {
    let origin = Origin::echo("a").unwrap();
    for process in ["", "process: { mode: supervised }\n"] {
        let dir = tempfile::tempdir().unwrap();
        let bound = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::io::fcntl_setfd(&bound, rustix::io::FdFlags::empty()).unwrap();
        let address = bound.local_addr().unwrap();
        let nodes = nodes(&[&origin]);
        let config = format!(
            "{process}listeners: [\"{address}\"]\nroutes: [{{ id: all, uri: \"/*\", upstream: {{ nodes: {nodes} }} }}]\n"
        );
        let file = dir.path().join("sigma.yaml");
        fs::write(&file, config).unwrap();
        let script = format!(
            "exec 3<&{}; LISTEN_PID=$$ LISTEN_FDS=1 exec {SIGMA} run -c {}",
            bound.as_raw_fd(),
            file.display()
        );
        let mut gateway = Command::new("bash").args(["-c", &script]).spawn().unwrap();
        // From now on only the gateway has it. Without it, the port would have been taken.
        drop(bound);
        let serves = || {
            let client = Peer::connect(&Address::Tcp(address));
            client
                .and_then(|client| client.with_deadline(PATIENCE).get("/"))
                .is_ok_and(|answer| answer.status() == 200)
        };
        assert!(until(PATIENCE, serves), "{process}");
        kill_process(Pid::from_child(&gateway), Signal::TERM).unwrap();
        assert!(gateway.wait().unwrap().success());
    }
}

fn run(file: &Path) -> Output {
    Command::new(SIGMA).args(["run", "-c"]).arg(file).output().unwrap()
}

#[test]
fn a_gateway_goes_to_the_background_once_it_serves() {
    let origin = Origin::echo("a").unwrap();
    for mode in ["single", "supervised"] {
        let dir = tempfile::tempdir().unwrap();
        let (port, file) = (free_port(), dir.path().join("sigma.yaml"));
        let (pid_file, log) = (dir.path().join("sigma.pid"), dir.path().join("error.log"));
        let nodes = nodes(&[&origin]);
        let rest = format!(
            "process: {{ mode: {mode}, daemon: true }}
pid_file: {}
listeners: [\"127.0.0.1:{port}\"]
routes: [{{ id: all, uri: \"/*\", upstream: {{ nodes: {nodes} }} }}]\n",
            pid_file.display()
        );
        fs::write(&file, &rest).unwrap();
        let output = run(&file);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("error_log.path"), "{said}");
        let logged = format!("error_log: {{ path: {} }}\n{rest}", log.display());
        fs::write(&file, &logged).unwrap();
        let output = run(&file);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("in the background"), "{said}{output:?}");
        let pid = || fs::read_to_string(&pid_file).ok()?.trim().parse().ok().and_then(Pid::from_raw);
        assert!(until(PATIENCE, || pid().is_some()));
        let mut client = Peer::connect(&Address::loopback(port)).unwrap().with_deadline(PATIENCE);
        assert_eq!(client.get("/").unwrap().status(), 200);
        // The one that runs has the file.
        let output = run(&file);
        let (said, told) = (String::from_utf8_lossy(&output.stderr), fs::read_to_string(&log).unwrap());
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("listens on this address")
                || format!("{said}{told}").contains("runs with this file"),
            "{said}{told}"
        );
        kill_process(pid().unwrap(), Signal::TERM).unwrap();
        assert!(until(PATIENCE, || !pid_file.exists()), "{}", fs::read_to_string(&log).unwrap());
    }
}

/// Root starts it, and it runs as a user without rights: it may bind low ports, also after an upgrade, and
/// nothing else.
#[test]
fn rights_are_dropped_but_for_low_ports() {
    let origin = Origin::echo("a").unwrap();
    let low = "127.86.4.1:97";
    let settings =
        format!("  - address: \"{low}\"\nprocess: {{ user: nobody, max_fds: 3000, core_bytes: 0 }}");
    let started = Gateway::start(SIGMA, &catch_all(&settings, &nodes(&[&origin]), ""));
    if !rustix::process::getuid().is_root() {
        let said = format!("{:#}", started.unwrap_err());
        assert!(said.contains("process.user") || said.contains("process.max_fds"), "{said}");
        return;
    }
    let gateway = started.unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(!line("Uid:").split_whitespace().any(|field| field == "0"), "{status}");
    assert!(!line("Gid:").split_whitespace().any(|field| field == "0"), "{status}");
    assert!(line("CapEff:").ends_with("0000000000000400"), "{status}");
    let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.pid())).unwrap();
    assert!(
        limits.lines().any(|line| line.starts_with("Max open files") && line.contains(" 3000 ")),
        "{limits}"
    );
    let mut client = Peer::connect(&Address::Tcp(low.parse().unwrap())).unwrap().with_deadline(PATIENCE);
    assert_eq!(client.get("/").unwrap().status(), 200);
}
