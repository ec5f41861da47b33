//! systemd as it is: it boots in its own container, and has the shipped unit start the gateway.
//!
//! The container has the network of this machine, so clients reach the gateway as they do any other. It needs
//! root; another user leaves the test out, with a message.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use sigma_testkit::{Origin, Peer, children, free_port, until};

use super::*;
use crate::nodes;

/// A container with systemd as its first process.
pub(super) struct Machine {
    nspawn: Running,
    dir: tempfile::TempDir,
    port: u16,
}

/// A root for containers, made once. None if this user may not.
fn root(file: &str, arguments: &[&str]) -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: a container with systemd needs root");
        return None;
    }
    Some(built("systemd", file, |source, draft| {
        let made = Command::new(source.join("make-root")).arg(draft).args(arguments).output().unwrap();
        assert!(made.status.success(), "{}{}", text(&made.stdout), text(&made.stderr));
    }))
}

impl Machine {
    /// Boots. None if this user may not.
    fn boot(settings: &str, origin: &Origin) -> Option<Machine> {
        let root = root("systemd-root", &[])?;
        let dir = tempfile::tempdir().unwrap();
        let (opt, etc) = (dir.path().join("opt"), dir.path().join("etc"));
        fs::create_dir(&opt).unwrap();
        fs::create_dir(&etc).unwrap();
        // Other users may read them: the gateway is a user without rights.
        for folder in [dir.path(), &opt, &etc] {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/sigma.service");
        fs::copy(unit, opt.join("sigma.service")).unwrap();
        let binds = [(&*opt, "/opt/sigma"), (&*etc, "/etc/sigma")];
        let (nspawn, port) = start(&root, &dir, &binds, &[]);
        let machine = Machine { nspawn, dir, port };
        machine.install();
        machine.configure(settings, origin);
        machine.is_up();
        Some(machine)
    }

    /// Boots one that has nothing of the gateway, and its own network; `packages` is its folder /opt/packages.
    pub(super) fn boot_bare(packages: &Path) -> Option<Machine> {
        let root = root("systemd-root-bare", &["bare"])?;
        let dir = tempfile::tempdir().unwrap();
        let (nspawn, port) = start(&root, &dir, &[(packages, "/opt/packages")], &["--private-network"]);
        let machine = Machine { nspawn, dir, port };
        machine.is_up();
        Some(machine)
    }

    fn is_up(&self) {
        let has_booted = || {
            let state = self.systemctl(&["is-system-running"]);
            matches!(text(&state.stdout).trim(), "running" | "degraded")
        };
        assert!(until(PATIENCE, has_booted), "{}", self.console());
    }

    fn console(&self) -> String {
        fs::read_to_string(self.dir.path().join("console")).unwrap_or_default()
    }

    /// Replaces the program by a copy of it, another file each time.
    fn install(&self) {
        let program = self.dir.path().join("opt/sigma");
        let new = program.with_extension("new");
        fs::copy(SIGMA, &new).unwrap();
        fs::rename(new, program).unwrap();
    }

    fn configure(&self, settings: &str, origin: &Origin) {
        self.write(&format!(
            "workers: 1\nlisteners: [\"127.0.0.1:{}\"]\n{settings}\nroutes: [{{ id: all, uri: \"/*\", upstream: {{ nodes: {} }} }}]",
            self.port,
            nodes(&[origin])
        ));
    }

    fn write(&self, text: &str) {
        fs::write(self.dir.path().join("etc/sigma.yaml"), text).unwrap();
    }

    /// The process that is the first within.
    fn first(&self) -> Option<u32> {
        children(self.nspawn.0.id()).first().copied()
    }

    /// Runs a command within.
    pub(super) fn run(&self, command: &[&str]) -> Output {
        let first = self.first().unwrap_or_default();
        let mut enter = Command::new("nsenter");
        enter.args([
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--net",
            "--cgroup",
            "--target",
            &first.to_string(),
        ]);
        enter.args(command).output().unwrap()
    }

    pub(super) fn systemctl(&self, arguments: &[&str]) -> Output {
        self.run(&[&["systemctl"], arguments].concat())
    }

    pub(super) fn does(&self, arguments: &[&str]) {
        let output = self.systemctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {}\n{}", text(&output.stderr), self.journal());
    }

    pub(super) fn property(&self, name: &str) -> String {
        let shown = self.systemctl(&["show", "sigma", "--value", "--property", name]);
        text(&shown.stdout).trim().to_owned()
    }

    pub(super) fn journal(&self) -> String {
        text(&self.run(&["journalctl", "--no-pager", "--unit", "sigma"]).stdout)
    }

    fn says(&self, line: &str, times: usize) {
        assert!(
            until(PATIENCE, || self.journal().matches(line).count() == times),
            "{line}: {}",
            self.journal()
        );
    }

    /// Whether a client gets a response, from this node.
    fn serves(&self, origin: &Origin) {
        let address = Address::loopback(self.port);
        let asks = || {
            let before = origin.requests();
            let answer = Peer::connect(&address).and_then(|peer| peer.with_deadline(PATIENCE).get("/"));
            answer.is_ok_and(|answer| answer.status() == 200) && origin.requests() > before
        };
        assert!(until(PATIENCE, asks), "{}", self.journal());
    }

    /// Kills the gateway that the main process watches.
    fn kill_the_gateway(&self) {
        let main = self.property("MainPID");
        let script = format!("kill -9 $(cat /proc/{main}/task/{main}/children)");
        assert!(self.run(&["sh", "-c", &script]).status.success());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // All others within end with it; it goes on where nspawn alone is ended.
        let first = self.first().and_then(|first| Pid::from_raw(first.try_into().ok()?));
        let _ = first.map(|first| kill_process(first, Signal::KILL));
        let _ = self.nspawn.0.wait();
    }
}

/// Starts a container; it, and a number that is in its name.
fn start(
    root: &Path,
    dir: &tempfile::TempDir,
    binds: &[(&Path, &str)],
    arguments: &[&str],
) -> (Running, u16) {
    let port = free_port();
    let mut command = Command::new("systemd-nspawn");
    command.args(["--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe"]);
    command.args(["--volatile=overlay", "--machine"]).arg(format!("sigma-{port}"));
    command.arg("--directory").arg(root).args(arguments);
    for (from, to) in binds {
        command.arg(format!("--bind-ro={}:{to}", from.display()));
    }
    command.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
    (Running::start(&mut command, &dir.path().join("console")), port)
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the program of a process within, seen from there.
pub(super) fn program_of(machine: &Machine, pid: &str) -> PathBuf {
    let link = machine.run(&["readlink", &format!("/proc/{pid}/exe")]);
    text(&link.stdout).trim().into()
}

const SUPERVISED: &str = "process: { mode: supervised }";

#[test]
fn the_shipped_unit_starts_reloads_upgrades_and_stops() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let Some(machine) = Machine::boot(SUPERVISED, &a) else { return };
    machine.does(&["start", "sigma"]);
    assert_eq!(machine.property("StatusText"), "serving");
    machine.serves(&a);
    machine.configure(SUPERVISED, &b);
    machine.does(&["reload", "sigma"]);
    machine.serves(&b);
    machine.write("routes: 7");
    assert!(!machine.systemctl(&["reload", "sigma"]).status.success(), "{}", machine.journal());
    machine.says("the reload failed", 1);
    machine.serves(&b);
    assert_eq!(machine.property("ActiveState"), "active");

    // The main process stays, as another program.
    machine.configure(SUPERVISED, &b);
    let main = machine.property("MainPID");
    for round in 1..=2 {
        machine.install();
        machine.does(&["kill", "--kill-whom=main", "--signal=USR2", "sigma"]);
        machine.says("the parent process executes the new program", round);
        assert_eq!(program_of(&machine, &main), Path::new("/opt/sigma/sigma"));
        machine.serves(&b);
        machine.kill_the_gateway();
        machine.serves(&b);
    }
    assert_eq!((machine.property("MainPID"), machine.property("NRestarts")), (main, "0".to_owned()));

    // Without a parent, systemd replaces it.
    machine.does(&["kill", "--kill-whom=main", "--signal=KILL", "sigma"]);
    let is_back = || machine.property("NRestarts") == "1" && machine.property("ActiveState") == "active";
    assert!(until(PATIENCE, is_back), "{}", machine.journal());
    machine.serves(&b);
    machine.does(&["stop", "sigma"]);
    assert_eq!(
        (machine.property("Result"), machine.property("ActiveState")),
        ("success".into(), "inactive".into())
    );
    machine.says("stopping: no new connections", 3);
}

/// Without a parent the process changes, and systemd learns which one it is now.
#[test]
fn systemd_follows_the_main_process() {
    let a = Origin::echo("a").unwrap();
    let Some(machine) = Machine::boot("", &a) else { return };
    machine.does(&["start", "sigma"]);
    machine.serves(&a);
    let first = machine.property("MainPID");
    machine.does(&["kill", "--kill-whom=main", "--signal=USR2", "sigma"]);
    let has_changed = || !["0", &*first].contains(&&*machine.property("MainPID"));
    assert!(until(PATIENCE, has_changed), "{}", machine.journal());
    machine.serves(&a);
    assert_eq!(machine.property("ActiveState"), "active");
}
