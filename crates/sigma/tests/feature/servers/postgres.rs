//! PostgreSQL behind a stream route, with its own client: queries of all sizes, and a database that dies.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::json;
use sigma_testkit::{Gateway, free_port, until};
use tempfile::TempDir;

use crate::streams::{config, upstream};
use crate::{PATIENCE, SIGMA};

/// Whom the databases belong to where the tests run as root, as which PostgreSQL does not run.
const NOBODY: u32 = 65_534;

/// A program of PostgreSQL, which Debian keeps apart by version.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").unwrap();
    let found =
        versions.map(|version| version.unwrap().path().join("bin").join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not there: make test-servers installs it"))
}

/// A command that runs as the owner of `dir`.
fn command(name: &str, dir: &Path) -> Command {
    if fs::metadata(dir).unwrap().uid() != NOBODY {
        return Command::new(program(name));
    }
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
    command.arg(program(name));
    command
}

/// A database on a port of its own; stopped at once when dropped.
struct Postgres {
    port: u16,
    child: Child,
    _dir: TempDir,
}

impl Postgres {
    fn start(name: &str) -> Postgres {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        if fs::metadata(dir.path()).unwrap().uid() == 0 {
            chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let data = dir.path().join("data");
        let mut make = command("initdb", dir.path());
        make.arg("-D").arg(&data).args(["-U", "postgres", "--auth=trust", "--no-sync", "--locale=C"]);
        let made = make.current_dir("/").output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut serve = command("postgres", dir.path());
        serve.arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", "", "-F"]);
        serve.arg(format!("--cluster_name={name}"));
        let child = serve.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let postgres = Postgres { port, child, _dir: dir };
        assert!(until(PATIENCE, || ask(port, "select 1").is_ok()), "{name} does not answer");
        postgres
    }

    /// Kills it in the middle of its work, without a message to its clients.
    fn die(&mut self) {
        let quit = Command::new("kill").args(["-QUIT", &self.child.id().to_string()]).status().unwrap();
        assert!(quit.success());
        self.child.wait().unwrap();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.die();
        }
    }
}

fn psql(port: u16) -> Command {
    let mut client = Command::new("psql");
    client.args([
        "-X",
        "-w",
        "-At",
        "-h",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-U",
        "postgres",
        "postgres",
    ]);
    client.env("PGCONNECT_TIMEOUT", "30");
    client
}

/// Returns the answer to a session of its own.
fn ask(port: u16, query: &str) -> Result<String, String> {
    let Output { status, stdout, stderr } = psql(port).args(["-c", query]).output().unwrap();
    match status.success() {
        true => Ok(String::from_utf8(stdout).unwrap().trim_end().to_owned()),
        false => Err(String::from_utf8_lossy(&stderr).into_owned()),
    }
}

#[test]
fn clients_of_a_database_that_dies_find_the_other_one() {
    let (mut one, two) = (Postgres::start("one"), Postgres::start("two"));
    let routes = json!({ "stream_routes": [{ "upstream": upstream(&[one.port, two.port]) }] });
    let gateway = Gateway::start(SIGMA, &config(json!({ "stream": "tcp" }), routes)).unwrap();
    let port = gateway.address().port().unwrap();
    let name = || ask(port, "show cluster_name").unwrap();
    let names: Vec<String> = (0..8).map(|_| name()).collect();
    assert!(names.iter().any(|name| name == "one") && names.iter().any(|name| name == "two"), "{names:?}");
    let (large, length) = (ask(port, "select repeat('0123456789', 400000)").unwrap(), 4_000_000);
    assert_eq!(large.len(), length);
    // It comes back as it was sent.
    let sum = ask(port, &format!("select length('{}')", &large[..100_000]));
    assert_eq!(sum.unwrap(), "100000");
    // Sessions that sleep on both: one of them is cut off, and says so.
    let asleep = [(); 2].map(|()| {
        let mut sleep = psql(port);
        sleep.args(["-c", "select 'awake' from pg_sleep(600)"]);
        sleep.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    });
    let sleepers = |port: u16| {
        let count = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
        ask(port, count).unwrap_or_default() == "1"
    };
    assert!(until(PATIENCE, || sleepers(one.port) && sleepers(two.port)));
    one.die();
    let mut asleep = asleep;
    let has_failed = |child: &mut Child| child.try_wait().unwrap().is_some_and(|status| !status.success());
    assert!(until(PATIENCE, || asleep
        .iter_mut()
        .filter_map(|child| has_failed(child).then_some(()))
        .count()
        == 1));
    for _ in 0..8 {
        assert_eq!(name(), "two");
    }
    assert!(sleepers(two.port), "the session on the other one goes on");
    for mut child in asleep {
        let _ = child.kill();
        child.wait().unwrap();
    }
}
