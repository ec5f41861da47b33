//! The Debian package, made of the program under test and installed on a bare system: its processes, its
//! state over upgrades, and its leftovers.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use sigma_testkit::until;

use super::systemd::{Machine, program_of, text};
use crate::{PATIENCE, SIGMA};

/// The administrator's own file instead of the shipped one.
const OWN: &str = "listeners: [\"127.0.0.1:9080\"]\nupstream: \"http://127.0.0.1:9000\"\nprocess: { mode: supervised }\n# own\n";

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

/// Two packages in this folder, of which the second is newer: `first.deb`, `second.deb`.
fn make(folder: &Path) {
    let program = folder.join("sigma");
    done(Command::new("strip").arg("-o").arg(&program).arg(SIGMA));
    let mut packer = Command::new(env!("CARGO"));
    packer.args(["run", "--quiet", "--locked", "-p", "xtask", "--", "package", "--binary"]).arg(&program);
    // The runner of the tests sets it for libtest; with it, build scripts would run again.
    packer.env_remove("RUSTC_BOOTSTRAP");
    packer.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    done(packer.arg("--out").arg(folder));
    let made = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let made = made.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "deb")).unwrap();
    let unpacked = folder.join("unpacked");
    done(Command::new("dpkg-deb").arg("-R").arg(&made).arg(&unpacked));
    fs::rename(made, folder.join("first.deb")).unwrap();
    let control = unpacked.join("DEBIAN/control");
    let fields = fs::read_to_string(&control).unwrap();
    assert!(fields.contains("-1\n"), "{fields}");
    fs::write(control, fields.replacen("-1\n", "-2\n", 1)).unwrap();
    // Unpacked files have the time of the package: a file written now would be newer.
    let second = folder.join("second.deb");
    done(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "-b"]).arg(&unpacked).arg(second));
    fs::remove_dir_all(unpacked).unwrap();
}

/// Runs dpkg within; returns its output.
fn dpkg(machine: &Machine, arguments: &[&str]) -> Output {
    let output = machine.run(&[&["dpkg"], arguments].concat());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}{}", machine.journal());
    output
}

fn install(machine: &Machine, package: &str) -> Output {
    dpkg(machine, &["--install", &format!("/opt/packages/{package}.deb")])
}

fn shell(machine: &Machine, script: &str) -> String {
    let output = machine.run(&["bash", "-c", script]);
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// Nothing listens behind the gateway: the response is its own.
fn serves(machine: &Machine) {
    const ASK: &str = "exec 3<>/dev/tcp/127.0.0.1/9080; printf 'GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n' >&3; head -n1 <&3";
    let asks = || text(&machine.run(&["bash", "-c", ASK]).stdout).starts_with("HTTP/1.1 502 ");
    assert!(until(PATIENCE, asks), "{}", machine.journal());
}

fn is(machine: &Machine, state: &str) -> bool {
    machine.property("ActiveState") == state
}

/// Whether a path is there, within.
fn is_there(machine: &Machine, path: &str) -> bool {
    machine.run(&["test", "-e", path]).status.success()
}

fn is_installed(machine: &Machine) {
    assert!(is(machine, "active"), "{}", machine.journal());
    serves(machine);
    assert_eq!(shell(machine, "stat -c '%U %G %a' /etc/sigma/sigma.yaml"), "root sigma 640");
    assert_eq!(shell(machine, "stat -c '%U' /proc/$(systemctl show -P MainPID sigma)"), "sigma");
    assert_eq!(shell(machine, "systemctl is-enabled sigma"), "enabled");
    assert_eq!(shell(machine, "dpkg --verify sigma"), "");
    assert!(is_there(machine, "/usr/share/man/man1/sigma.1.gz"));
}

/// The gateway is upgraded with the package: its main process stays, as the new program.
fn is_upgraded(machine: &Machine) {
    shell(machine, &format!("cat > /etc/sigma/sigma.yaml <<'END'\n{OWN}END"));
    let main = machine.property("MainPID");
    install(machine, "second");
    let is_new = || program_of(machine, &main) == Path::new("/usr/bin/sigma");
    assert!(until(PATIENCE, is_new), "{}", machine.journal());
    assert_eq!((machine.property("MainPID"), machine.property("NRestarts")), (main, "0".to_owned()));
    serves(machine);
    assert!(shell(machine, "cat /etc/sigma/sigma.yaml").ends_with("# own"), "what was changed is kept");
    assert_eq!(shell(machine, "stat -c '%U %G %a' /etc/sigma/sigma.yaml"), "root sigma 640");
}

/// A program that cannot serve does not replace one that serves.
fn an_upgrade_that_fails_takes_nothing_away(machine: &Machine) {
    shell(machine, "cp -p /etc/sigma/sigma.yaml /root/good; echo 'routes: 7' > /etc/sigma/sigma.yaml");
    let output = install(machine, "first");
    let said = text(&output.stderr);
    assert!(said.contains("the gateway goes on as the old program"), "{said}");
    assert!(is(machine, "active"));
    serves(machine);
    shell(machine, "cp -p /root/good /etc/sigma/sigma.yaml");
    install(machine, "second");
    serves(machine);
}

#[test]
fn the_package_installs_upgrades_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: a container with systemd needs root");
        return;
    }
    make(folder.path());
    let Some(machine) = Machine::boot_bare(folder.path()) else { return };
    install(&machine, "first");
    is_installed(&machine);
    is_upgraded(&machine);
    an_upgrade_that_fails_takes_nothing_away(&machine);

    // A service that an administrator has stopped stays so.
    machine.does(&["stop", "sigma"]);
    install(&machine, "first");
    assert!(is(&machine, "inactive"), "{}", machine.journal());
    machine.does(&["start", "sigma"]);
    serves(&machine);

    // The configuration outlives the package, and it comes back with it.
    dpkg(&machine, &["--remove", "sigma"]);
    assert!(!is(&machine, "active") && !is_there(&machine, "/usr/bin/sigma"));
    assert!(shell(&machine, "cat /etc/sigma/sigma.yaml").ends_with("# own"));
    assert!(is_there(&machine, "/var/lib/sigma"));
    install(&machine, "second");
    assert!(is(&machine, "active"), "{}", machine.journal());
    serves(&machine);
    assert_eq!(shell(&machine, "systemctl is-enabled sigma"), "enabled");

    dpkg(&machine, &["--purge", "sigma"]);
    for path in
        ["/etc/sigma", "/var/lib/sigma", "/var/log/sigma", "/run/sigma", "/etc/systemd/system/sigma.service"]
    {
        assert!(!is_there(&machine, path), "{path}");
    }
    assert_eq!(shell(&machine, "find /etc/systemd /var/lib/systemd /lib/systemd -name '*sigma*'"), "");
    assert_eq!(
        shell(&machine, "getent passwd sigma | cut -d: -f1,6"),
        "sigma:/var/lib/sigma",
        "its files may be elsewhere"
    );
    assert_eq!(shell(&machine, "systemctl --failed --no-legend | grep sigma || true"), "");

    // As if it had never been there.
    install(&machine, "first");
    is_installed(&machine);
}
