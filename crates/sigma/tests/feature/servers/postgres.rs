//! PostgreSQL behind a stream route, with its own client: queries of all sizes, a database that dies, and TLS on each
//! side.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, free_port, until};
use tempfile::TempDir;

use crate::docs::block;
use crate::streams::{config, upstream};
use crate::tls::{Authority, Issued};
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

/// A database on its own port; stopped at once when dropped.
struct Postgres {
    port: u16,
    child: Child,
    _dir: TempDir,
}

impl Postgres {
    fn start(name: &str) -> Postgres {
        Postgres::start_with(name, None)
    }

    /// One with TLS, if it has a certificate.
    fn start_with(name: &str, own: Option<&Issued>) -> Postgres {
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
        if let Some(own) = own {
            for (file, text) in [("server.crt", &own.cert), ("server.key", &own.key)] {
                // The server takes no key that others may read.
                private(&data.join(file), text, dir.path());
            }
            serve.arg("--ssl=on");
        }
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

/// Writes a file that only the owner of `dir` reads.
fn private(file: &Path, text: &str, dir: &Path) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    let owner = fs::metadata(dir).unwrap();
    chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
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

/// Returns the response to its own session.
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

/// The output of one query over TLS, or the error.
fn ask_over_tls(port: u16, name: &str, options: &str, query: &str) -> Result<String, String> {
    let place = format!("host={name} hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres {options}");
    let mut client = Command::new("psql");
    client.args(["-X", "-w", "-At", "-c", query, &place]).env("PGCONNECT_TIMEOUT", "30");
    let Output { status, stdout, stderr } = client.output().unwrap();
    match status.success() {
        true => Ok(String::from_utf8(stdout).unwrap().trim_end().to_owned()),
        false => Err(String::from_utf8_lossy(&stderr).into_owned()),
    }
}

/// Whether the session is encrypted, as the database sees it.
const IS_ENCRYPTED: &str = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";

#[test]
fn clients_verify_the_certificate_on_either_side() {
    let (root, nodes, clients) = (Authority::new("Root"), Authority::new("Nodes"), Authority::new("Clients"));
    let (plain, encrypted) =
        (Postgres::start("plain"), Postgres::start_with("encrypted", Some(&nodes.issue("pass.db.test"))));
    let over_tls = |port: u16, more: Value| {
        let mut to = upstream(&[port]);
        (to["scheme"], to["tls"]) = ("tls".into(), json!({ "starttls": "postgres" }));
        to["tls"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        to
    };
    let verified = json!({ "verify": true, "ca": nodes.pem });
    let known = json!({ "ca": clients.pem, "depth": 1 });
    let rest = json!({
        "ssls": [
            root.issue("*.db.test").ssl(json!({ "id": "db", "sni": "*.db.test" })),
            root.issue("known.db.test").ssl(json!({ "id": "known", "sni": "known.db.test", "client": known })),
        ],
        "stream_routes": [
            { "id": "plain", "sni": "plain.db.test", "upstream": upstream(&[plain.port]) },
            { "id": "known", "sni": "known.db.test", "upstream": upstream(&[plain.port]) },
            // The name that the client requested is the one that the node has to prove.
            { "id": "pass", "sni": "pass.db.test", "upstream": over_tls(encrypted.port, verified.clone()) },
            { "id": "other", "sni": "other.db.test", "upstream": over_tls(encrypted.port, verified) },
            { "id": "declines", "sni": "declines.db.test", "upstream": over_tls(plain.port, json!({})) },
        ],
    });
    let gateway = Gateway::start(SIGMA, &config(json!({ "stream": "tls" }), rest.clone())).unwrap();
    let port = gateway.address().port().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        private(&path, text, dir.path());
        path.display().to_string()
    };
    let ours = format!("sslmode=verify-full sslrootcert={}", file("root.crt", &root.pem));
    let name = "show cluster_name";
    assert_eq!(ask_over_tls(port, "plain.db.test", &ours, name).unwrap(), "plain");
    let large = ask_over_tls(port, "plain.db.test", &ours, "select repeat('0123456789', 400000)").unwrap();
    assert_eq!(large.len(), 4_000_000);
    assert_eq!(ask_over_tls(port, "pass.db.test", &ours, name).unwrap(), "encrypted");
    assert_eq!(ask_over_tls(port, "pass.db.test", &ours, IS_ENCRYPTED).unwrap(), "t");
    let error = ask_over_tls(port, "other.db.test", &ours, name).unwrap_err();
    assert!(error.contains("closed"), "{error}");
    let error = ask_over_tls(port, "declines.db.test", &ours, name).unwrap_err();
    assert!(error.contains("closed"), "{error}");
    let reason = "the node does not support TLS: it responded N to PostgreSQL";
    gateway.await_log(reason);
    // A client that does not verify would not know; one without TLS gets an error message.
    let theirs = format!("sslmode=verify-full sslrootcert={}", file("nodes.crt", &nodes.pem));
    assert!(ask_over_tls(port, "plain.db.test", &theirs, name).is_err());
    let error = ask_over_tls(port, "plain.db.test", "sslmode=disable", name).unwrap_err();
    assert!(error.contains("this port takes TLS only"), "{error}");
    let own = clients.issue("postgres");
    let shown = format!("{ours} sslcert={} sslkey={}", file("own.crt", &own.cert), file("own.key", &own.key));
    assert_eq!(ask_over_tls(port, "known.db.test", &shown, name).unwrap(), "plain");
    assert!(ask_over_tls(port, "known.db.test", &ours, name).is_err());
    // TLS between client and node: the node's certificate.
    let mut passing = rest;
    passing["stream_routes"] = json!([
        { "id": "pass", "sni": "pass.db.test", "tls": "passthrough", "upstream": upstream(&[encrypted.port]) },
    ]);
    gateway.rewrite(&config(json!({ "stream": "tls" }), passing)).unwrap();
    gateway.reload().unwrap();
    assert!(
        until(PATIENCE, || ask_over_tls(port, "pass.db.test", &theirs, name).is_ok()),
        "{}",
        gateway.stderr()
    );
    assert_eq!(ask_over_tls(port, "pass.db.test", &theirs, IS_ENCRYPTED).unwrap(), "t");
}

/// The example of the page, with a database and the client that it names.
#[test]
fn postgres_as_the_page_says() {
    let (root, postgres) = (Authority::new("Root"), Postgres::start("db"));
    let (dir, port) = (tempfile::tempdir().unwrap(), sigma_testkit::free_port());
    let own = root.issue("db.example.com");
    for (name, text) in [("db.crt", &own.cert), ("db.key", &own.key), ("root.crt", &root.pem)] {
        private(&dir.path().join(name), text, dir.path());
    }
    let renamed = |text: String| {
        text.replace("10.0.0.1:5432", &format!("127.0.0.1:{}", postgres.port))
            .replace("0.0.0.0:5432", &format!("127.0.0.1:{port}"))
            .replace("/etc/sigma/", &format!("{}/", dir.path().display()))
            .replace("dbname=shop", &format!("dbname=postgres hostaddr=127.0.0.1 port={port}"))
    };
    let config = renamed(block("docs/databases.md", "yaml", "/etc/sigma/db.crt"));
    fs::write(dir.path().join("sigma.yaml"), config).unwrap();
    let output = crate::docs::paste(dir.path(), &renamed(block("docs/databases.md", "sh", "psql")), &[]);
    assert!(
        crate::docs::text_of(&output).contains("encrypted to the gateway"),
        "{}",
        crate::docs::text_of(&output)
    );
}
