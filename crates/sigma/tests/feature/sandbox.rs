//! Rights that the process gives up, and a gateway that serves without them.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{DEADLINE, Gateway, Origin, children, until};

use crate::tls::Authority;
use crate::upgrade::sigma_upgrade;
use crate::{PATIENCE, SIGMA, catch_all, nodes};

/// The values of one field in the status of each thread of a process, with the names of the threads.
fn of_threads(pid: u32, field: &str) -> Vec<(String, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let value = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    texts.map(|text| (value(&text, "Name"), value(&text, field))).collect()
}

/// Whether the kernel restricts files; the log says so if it does not.
fn has_landlock(gateway: &Gateway) -> bool {
    !gateway.stderr().contains("the kernel has no Landlock")
}

#[test]
fn programs_gain_no_privileges_and_memory_is_not_dumped() {
    let origin = Origin::echo("a").unwrap();
    let is_root = rustix::process::getuid().is_root();
    for core_dumps in [false, true] {
        // The change of the user has its own effect on dumps.
        let user = if is_root { ", user: nobody" } else { "" };
        let settings = format!("process: {{ core_dumps: {core_dumps}{user} }}");
        let gateway = Gateway::start(SIGMA, &catch_all(&settings, &nodes(&[&origin]), "")).unwrap();
        let pid = gateway.pid();
        for (thread, value) in of_threads(pid, "NoNewPrivs") {
            assert_eq!(value, "1", "{thread}");
        }
        // The files of a process that is not dumpable belong to root.
        let owner = fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
        assert_eq!(owner == 0, !core_dumps, "{owner}");
    }
}

struct Setup {
    gateway: Gateway,
    /// The files of the certificate.
    _keys: tempfile::TempDir,
    outside: tempfile::TempDir,
    node: UdpSocket,
    tls: u16,
    udp: u16,
    origin: Origin,
    mode: &'static str,
    io: &'static str,
}

fn free_port(udp: bool) -> u16 {
    let local = ("127.0.0.1", 0);
    let address = match udp {
        true => UdpSocket::bind(local).unwrap().local_addr(),
        false => std::net::TcpListener::bind(local).unwrap().local_addr(),
    };
    address.unwrap().port()
}

impl Setup {
    fn start(mode: &'static str, io: &'static str) -> Setup {
        let (keys, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Authority::new("test").issue("localhost").files(keys.path(), "own");
        let node = UdpSocket::bind("127.0.0.1:0").unwrap();
        node.set_read_timeout(Some(DEADLINE)).unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let (origin, tls, udp) = (Origin::echo("a").unwrap(), free_port(false), free_port(true));
        let config = config((&origin, &node, &files), (tls, udp), (mode, io), json!({}));
        let gateway = Gateway::start(SIGMA, &config).unwrap();
        let site = gateway.dir().join("site");
        fs::write(site.join("page"), "page").unwrap();
        symlink(outside.path().join("secret"), site.join("link")).unwrap();
        Setup { gateway, _keys: keys, outside, node, tls, udp, origin, mode, io }
    }

    fn rewrite(&self, rest: Value) {
        let path = |kind: &str| self._keys.path().join(format!("own.{kind}"));
        let files = json!({ "cert": path("crt"), "key": path("key") });
        let config =
            config((&self.origin, &self.node, &files), (self.tls, self.udp), (self.mode, self.io), rest);
        self.gateway.rewrite(&config).unwrap();
    }

    /// The process that has workers.
    fn serving(&self) -> Option<u32> {
        match self.mode {
            "supervised" => children(self.gateway.pid()).into_iter().last(),
            _ => Some(self.gateway.pid()),
        }
    }

    fn reload(&self) -> Result<(), String> {
        let output =
            Command::new(SIGMA).args(["reload", "--pid", &self.gateway.pid().to_string()]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    }

    fn curl(&self, arguments: &[&str], url: &str) -> String {
        let port = self.gateway.address().port().unwrap();
        let url = url.replace("{port}", &port.to_string()).replace("{tls}", &self.tls.to_string());
        let mut curl = Command::new("curl");
        curl.args(["-sk", "-w", " %{http_version} %{http_code}"]).args(arguments).arg(url);
        String::from_utf8_lossy(&curl.output().unwrap().stdout).into_owned()
    }

    fn serves_everything(&self) {
        let check = |arguments: &[&str], url: &str, end: &str| {
            let said = self.curl(arguments, url);
            assert!(said.ends_with(end), "{url}: {said}\n{}", self.gateway.stderr());
        };
        check(&[], "http://127.0.0.1:{port}/", " 1.1 200");
        check(&["-d", "x=1"], "http://127.0.0.1:{port}/form", " 1.1 200");
        check(&["--http2-prior-knowledge"], "http://127.0.0.1:{port}/", " 2 200");
        check(&["--http1.1"], "https://127.0.0.1:{tls}/", " 1.1 200");
        check(&["--http2"], "https://127.0.0.1:{tls}/", " 2 200");
        check(&[], "http://127.0.0.1:{port}/site/page", "page 1.1 200");
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(("127.0.0.1", self.udp)).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        client.send(b"question").unwrap();
        let mut bytes = [0; 64];
        let (length, from) = self.node.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"question");
        self.node.send_to(b"answer", from).unwrap();
        let length = client.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"answer");
    }

    fn is_confined(&self) {
        let pid = self.serving().unwrap();
        let filters = of_threads(pid, "Seccomp");
        let workers: Vec<_> = filters.iter().filter(|(name, _)| name.starts_with("sigma-worker")).collect();
        // A thread has the name of the one that began it until it has its own.
        let names: BTreeSet<_> = workers.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 2, "{filters:?}");
        assert!(workers.iter().all(|(_, value)| value == "2"), "{filters:?}");
        assert!(of_threads(pid, "NoNewPrivs").iter().all(|(_, value)| value == "1"));
        if has_landlock(&self.gateway) {
            let said = self.curl(&[], "http://127.0.0.1:{port}/site/link");
            assert!(!said.contains("secret") && !said.ends_with("200"), "{said}");
        }
    }
}

fn config(
    (origin, node, files): (&Origin, &UdpSocket, &Value),
    (tls, udp): (u16, u16),
    (mode, io): (&str, &str),
    rest: Value,
) -> String {
    let upstream = json!({ "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } });
    let site = json!({ "root": "{dir}/site", "prefix": "/site", "symlinks": "follow" });
    let mut whole = json!({
        "workers": 2,
        "io": io,
        "pid_file": "{dir}/sigma.pid",
        "process": { "mode": mode, "sandbox": "full", "sandbox_write": ["{dir}/site"] },
        "access_log": { "path": "{dir}/logs/access.log", "flush_ms": 20 },
        "health_file": { "path": "off" },
        "tls": { "storage": "off" },
        "cache": { "disk": { "path": "{dir}/cache" } },
        "listeners": [
            "{listen}",
            { "address": format!("127.0.0.1:{tls}"), "tls": { "certificates": [files] } },
            { "address": format!("127.0.0.1:{udp}"), "stream": "udp" },
        ],
        "routes": [
            { "id": "site", "uri": "/site/*", "plugins": { "static-files": site } },
            { "id": "all", "uri": "/*", "cache": {}, "upstream": upstream },
        ],
        "stream_routes": [{ "id": "udp", "server_port": udp, "upstream": {
            "scheme": "udp", "nodes": { node.local_addr().unwrap().to_string(): 1 } } }],
    });
    whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    whole.to_string()
}

/// Everything works in the sandbox that works outside of it: by either way of moving bytes, with a parent and without.
#[test]
fn a_gateway_in_the_sandbox_serves() {
    for (mode, io) in [("single", "epoll"), ("single", "io_uring"), ("supervised", "auto")] {
        let setup = Setup::start(mode, io);
        setup.serves_everything();
        setup.is_confined();
        setup.rewrite(json!({ "server_header": "reloaded" }));
        setup.reload().unwrap();
        assert!(setup.curl(&["-i"], "http://127.0.0.1:{port}/site/none").contains("reloaded"));
        let log = setup.gateway.dir().join("logs/access.log");
        fs::rename(&log, log.with_extension("old")).unwrap();
        setup.gateway.reopen_logs().unwrap();
        let is_written = || {
            setup.serves_everything();
            fs::metadata(&log).is_ok_and(|found| found.len() > 0)
        };
        assert!(until(PATIENCE, is_written), "{}", setup.gateway.stderr());
        let before = setup.serving();
        let output = sigma_upgrade(&setup.gateway);
        assert!(output.status.success(), "{output:?}\n{}", setup.gateway.stderr());
        let is_replaced = || setup.serving().is_some_and(|now| Some(now) != before);
        assert!(until(PATIENCE, is_replaced), "{}", setup.gateway.stderr());
        setup.serves_everything();
        setup.is_confined();
    }
}

/// A process cannot widen its sandbox: a file outside takes a successor.
#[test]
fn a_reload_that_names_a_file_outside_is_refused() {
    for mode in ["single", "supervised"] {
        let setup = Setup::start(mode, "auto");
        if !has_landlock(&setup.gateway) {
            return;
        }
        let log = setup.outside.path().join("access.log");
        setup.rewrite(json!({ "access_log": log }));
        let refused = setup.reload().unwrap_err();
        let place = format!("`access_log.path`: {} is outside the sandbox", log.display());
        assert!(refused.contains(&place) && refused.contains("sigma upgrade"), "{refused}");
        setup.serves_everything();
        assert!(!log.exists());
        assert!(sigma_upgrade(&setup.gateway).status.success(), "{}", setup.gateway.stderr());
        assert!(until(PATIENCE, || log.exists()), "{}", setup.gateway.stderr());
        setup.serves_everything();
    }
}
