//! PHP's own process manager: `make test-servers` installs it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Peer, free_port, until};

use crate::{PATIENCE, SIGMA};

const ECHO: &str = r#"<?php
header('X-Sapi: ' . PHP_SAPI);
if (isset($_GET['complain'])) {
    error_log('a complaint of the script');
}
if (isset($_GET['moved'])) {
    header('Location: /elsewhere');
    exit;
}
if (isset($_GET['long'])) {
    for ($i = 0; $i < 1000; $i++) {
        echo str_repeat('x', 4096);
        flush();
    }
    exit;
}
$body = file_get_contents('php://input');
echo json_encode([
    'script' => basename(__FILE__), 'pid' => getmypid(), 'method' => $_SERVER['REQUEST_METHOD'],
    'uri' => $_SERVER['REQUEST_URI'], 'get' => $_GET, 'post' => $_POST,
    'info' => $_SERVER['PATH_INFO'] ?? null, 'proxy' => getenv('HTTP_PROXY'),
    'user' => $_SERVER['HTTP_X_USER'] ?? null, 'https' => $_SERVER['HTTPS'] ?? null,
    'length' => strlen($body), 'sum' => md5($body),
]);
"#;

/// The program, whose name has PHP's version in it.
fn program() -> PathBuf {
    let files = std::fs::read_dir("/usr/sbin").unwrap().map(|entry| entry.unwrap().path());
    let is_manager = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("php-fpm");
    files.filter(is_manager).max().expect("php-fpm is installed")
}

/// A manager with its processes, which end with the test.
struct Fpm(Child);

impl Fpm {
    /// With two processes at a port and at a path.
    fn start(dir: &Path, port: u16) -> Fpm {
        let path = dir.join("php.sock");
        // It would run any file: that a picture is not run is the gateway's doing.
        let pool = "pm = static\npm.max_children = 2\nuser = root\nsecurity.limit_extensions =\n";
        let config = format!(
            "[global]\nerror_log = {}\ndaemonize = no\n[tcp]\nlisten = 127.0.0.1:{port}\n{pool}\
             [unix]\nlisten = {}\n{pool}",
            dir.join("fpm.log").display(),
            path.display()
        );
        let file = dir.join("fpm.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(program());
        command.args(["-n", "-F", "-R", "-y"]).arg(file);
        let child = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let manager = Fpm(child.expect("php-fpm is installed"));
        let at = sigma_testkit::Address::Tcp(([127, 0, 0, 1], port).into());
        assert!(until(PATIENCE, || Peer::connect(&at).is_ok() && path.exists()), "it does not listen");
        manager
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        // Its processes would continue without it.
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

fn gateway(dir: &Path, port: u16) -> Gateway {
    let root = dir.display().to_string();
    let upstream = |more: Value| {
        let mut fastcgi = json!({ "root": root });
        fastcgi.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "scheme": "fcgi", "nodes": { format!("127.0.0.1:{port}"): 1 }, "fastcgi": fastcgi })
    };
    let split = json!({ "split_path_info": "^(.+?\\.php)(/.*)?$" });
    let mut by_path = upstream(json!({}));
    by_path["nodes"] = json!([{ "host": format!("unix:{root}/php.sock"), "weight": 1 }]);
    let config = json!({
        "workers": 1, "listeners": ["{listen}"],
        "routes": [
            { "id": "front", "uri": "/*", "upstream": upstream(json!({})) },
            { "id": "kept", "host": "kept.test", "uri": "/*", "upstream": upstream(json!({ "keep_conn": true })) },
            { "id": "split", "host": "split.test", "uri": "/*", "upstream": upstream(split) },
            { "id": "unix", "host": "unix.test", "uri": "/*", "upstream": by_path },
        ],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

#[test]
fn a_real_php_is_asked() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    std::fs::write(dir.path().join("index.php"), ECHO).unwrap();
    std::fs::write(dir.path().join("other.php"), ECHO).unwrap();
    std::fs::write(dir.path().join("upload.jpg"), "<?php echo 'run';").unwrap();
    let manager = Fpm::start(dir.path(), port);
    let gateway = gateway(dir.path(), port);
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    let mut ask = |line: &str, fields: &str, body: &[u8]| {
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let host = if fields.contains("Host") { "" } else { "Host: a.test\r\n" };
        let head = format!("{line} HTTP/1.1\r\n{host}{fields}{length}\r\n");
        peer.ask([head.as_bytes(), body].concat()).unwrap()
    };

    let answer = ask("GET /some/page?a=1&b[]=2", "Proxy: http://evil/\r\nX.User: a\r\nX_User: b\r\n", b"");
    assert_eq!((answer.status(), answer.head.get("x-sapi")), (200, Some("fpm-fcgi")));
    let said = answer.json().unwrap();
    assert_eq!(said["script"], "index.php");
    assert_eq!(said["uri"], "/some/page?a=1&b[]=2");
    assert_eq!(said["get"], json!({ "a": "1", "b": ["2"] }));
    for nothing in ["proxy", "user", "https", "info"] {
        assert!(said[nothing].is_null() || said[nothing] == false, "{nothing}: {said}");
    }

    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(ask("POST /", form, b"c=3").json().unwrap()["post"], json!({ "c": "3" }));
    let long: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let sent = ask("POST /", "Content-Type: a/b\r\n", &long).json().unwrap();
    assert_eq!(sent["length"], 5_000_000);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut other = gateway.connect().unwrap().with_deadline(PATIENCE);
    let sent = other.ask(format!("{head}5\r\nhello\r\n3\r\n ab\r\n0\r\n\r\n")).unwrap().json().unwrap();
    assert_eq!((&sent["length"], &sent["sum"]), (&json!(8), &json!("9453c8d6e3b019ef1d54341659ab91a8")));

    let moved = ask("GET /?moved", "", b"");
    assert_eq!((moved.status(), moved.head.get("location")), (302, Some("/elsewhere")));
    assert_eq!(ask("GET /?long", "", b"").text().len(), 4_096_000);
    assert_eq!(ask("HEAD /", "", b"").status(), 200);
    ask("GET /?complain", "", b"");
    gateway.await_log("a complaint of the script");

    let split = "Host: split.test\r\n";
    let other = ask("GET /other.php/x/y", split, b"").json().unwrap();
    assert_eq!((&other["script"], &other["info"]), (&json!("other.php"), &json!("/x/y")));
    assert_eq!(ask("GET /upload.jpg/x.php", split, b"").status(), 404);
    assert_eq!(ask("GET /upload.jpg/x.php", "", b"").json().unwrap()["script"], "index.php");
    assert_eq!(ask("GET /none.php", split, b"").status(), 404);
    assert_eq!(ask("GET /", "Host: unix.test\r\n", b"").json().unwrap()["script"], "index.php");

    let kept = "Host: kept.test\r\n";
    let first = ask("GET /", kept, b"").json().unwrap()["pid"].clone();
    for _ in 0..5 {
        // A process keeps its connection, so the same one responds.
        assert_eq!(ask("GET /", kept, b"").json().unwrap()["pid"], first);
    }
    drop(manager);
    assert_eq!(ask("GET /", kept, b"").status(), 502);
    let _manager = Fpm::start(dir.path(), port);
    let back = || ask("GET /", kept, b"").status() == 200;
    assert!(until(PATIENCE, back), "it does not come back");
}
