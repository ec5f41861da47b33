//! The two seed formats: their published examples run as they stand, the ports aside.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use crate::{PATIENCE, SIGMA};

/// Ends with the test, whatever happens in it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sigma_json(listen: &str, node: u16) -> String {
    // A node at a name, as in the published example.
    r#"{
  // Comments are accepted.
  "proxy-server": { "http": { "id": "s1", "server-id": "x", "port": LISTEN } },
  "proxy-client": { "max-pool-size-per-server": 256 },
  "router": [ { "id": "r", "enable": true, "proxy-server-id": "s1", "route": [
    { "id": "a", "enable": true, "path": "/test/*", "allow-method": [], "consumes": [], "produces": [], "proxy-pass-id": "p" } ] } ],
  "proxy-pass": [ { "id": "p", "upstream-id": "u", "plugin": { "rewrite-path": {
    "enable": true, "regexp": "/test/(?<segment>.*)", "replacement": "/${segment}" } } } ],
  "upstream": [ { "id": "u", "discovery": "static-config", "rule-strategy": "round-robin", "nodes": ["http://localhost:NODE"] } ]
}"#
    .replace("LISTEN", listen)
    .replace("NODE", &node.to_string())
}

fn assert_sigma_serves(client: &mut Peer) {
    let answer = client.get("/test/benchmark?x=1").unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(answer.json().unwrap()["target"], "/benchmark?x=1");
    assert_eq!(client.get("/elsewhere").unwrap().status(), 404);
}

#[test]
fn sigma_json_answers() {
    let origin = Origin::echo("a").unwrap();
    let gateway = Gateway::start_file(SIGMA, "sigma.json", &sigma_json("{port}", origin.port())).unwrap();
    assert_sigma_serves(&mut gateway.connect().unwrap());
}

#[test]
fn the_start_lines_of_sigma_work() {
    let origin = Origin::echo("a").unwrap();
    let full: &[&str] = &[
        "run",
        "net.oooops.sigma.Sigma",
        "-conf",
        "sigma.json",
        "-options",
        "options.json",
        "-instance",
        "1",
    ];
    for args in [full, &[]] {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        std::fs::write(dir.path().join("sigma.json"), sigma_json(&port.to_string(), origin.port())).unwrap();
        std::fs::write(dir.path().join("options.json"), "{ \"eventLoopPoolSize\": 2 }").unwrap();
        let mut command = Command::new(SIGMA);
        command.args(args).current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let _running = Running(command.spawn().unwrap());
        let address = Address::Tcp(([127, 0, 0, 1], port).into());
        let mut client = None;
        until(PATIENCE, || {
            client = Peer::connect(&address).ok();
            client.is_some()
        });
        assert_sigma_serves(&mut client.unwrap_or_else(|| panic!("{args:?} does not listen")));
    }
}

/// The document and its options are the arguments themselves.
#[test]
fn json_on_the_command_line_serves() {
    let (origin, port) = (Origin::echo("a").unwrap(), free_port());
    let dir = tempfile::tempdir().unwrap();
    let conf = sigma_json(&port.to_string(), origin.port());
    let mut command = Command::new(SIGMA);
    command.args([
        "run",
        "net.oooops.sigma.Sigma",
        "-conf",
        &conf,
        "-options",
        "{ \"eventLoopPoolSize\": 2 }",
    ]);
    command.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let _running = Running(command.spawn().unwrap());
    assert_sigma_serves(&mut connected(port));
}

/// A client of a gateway that begins to listen.
fn connected(port: u16) -> Peer {
    let mut client = None;
    until(PATIENCE, || {
        client = Peer::connect(&Address::Tcp(([127, 0, 0, 1], port).into())).ok();
        client.is_some()
    });
    client.expect("the gateway listens")
}

/// Stops the gateway with this process id.
struct Background(String);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = Command::new(SIGMA).args(["stop", "--pid", &self.0]).output();
    }
}

#[test]
fn start_runs_a_gateway_in_the_background_and_list_shows_it() {
    let (origin, port) = (Origin::echo("a").unwrap(), free_port());
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("log")).unwrap();
    std::fs::write(dir.path().join("sigma.json"), sigma_json(&port.to_string(), origin.port())).unwrap();
    let sigma = |args: &[&str]| {
        let output = Command::new(SIGMA).args(args).current_dir(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    let said =
        sigma(&["start", "net.oooops.sigma.Sigma", "-id", "mine", "-conf", "sigma.json", "-instance", "1"]);
    let pid = said.trim().rsplit(' ').next().unwrap().to_owned();
    let _running = Background(pid.clone());
    assert_sigma_serves(&mut connected(port));
    let listed = sigma(&["list"]);
    assert!(listed.lines().any(|line| line.starts_with(&format!("{pid}\t"))), "{pid}: {listed}");
    let log = dir.path().join("log/sigma.log");
    assert!(until(PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("serving"))));
}

#[test]
fn niubix_json_answers() {
    let origin = Origin::echo("a").unwrap();
    let config = r#"{
  // Comments are accepted.
  "version": "1", "pid_file": "{dir}/niubix.pid", "master_log": "{dir}/master.log", "max_fds": 0, "worker_num": 0,
  "log_dir": "{dir}", "log_level": "info|warn|error", "admin_listen": "{status}", "admin_ip_white_list": "127.0.0.1",
  "apps": [ { "name": "test", "listen": ":{port}", "protocol": "http", "http_host": "default", "balance_policy": "roundrobin",
    "connect_backend_timeout": 2000, "frontend_a_complete_req_timeout": 5000, "frontend_idle_timeout": 10000,
    "x-forwarded-for": true, "x-real-ip": true, "backend_protocol": "http",
    "backends": [ { "host": "127.0.0.1:NODE", "weight": 5, "health_check_period": 1000, "health_check_timeout": 2000, "health_check_uri": "/x" } ] } ]
}"#
    .replace("NODE", &origin.port().to_string());
    let gateway = Gateway::start_file(SIGMA, "niubix.json", &config).unwrap();
    let answer = gateway.connect().unwrap().get("/path?q").unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let echoed = answer.json().unwrap();
    assert_eq!(echoed["target"], "/path?q");
    let headers = echoed["headers"].to_string().to_lowercase();
    assert!(headers.contains(r#"["x-forwarded-for","127.0.0.1"]"#), "{headers}");
}

/// NiubiX' own command line: in the background, with a master that starts the gateway again, and its limit on
/// open files.
#[test]
fn niubix_runs_as_it_did() {
    let (origin, dir, port) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap(), free_port());
    let config = niubix_app(&format!(
        r#""protocol": "http", "http_host": "default", "balance_policy": "roundrobin", "backend_protocol": "http",
        "backends": [ {{ "host": "127.0.0.1:{}" }} ]"#,
        origin.port()
    ))
        .replace("{dir}", &dir.path().display().to_string())
        .replace("{port}", &port.to_string())
        .replacen('{', "{ \"max_fds\": 1024, ", 1);
    let file = dir.path().join("niubix.json");
    std::fs::write(&file, config).unwrap();
    let output = Command::new(SIGMA).arg("-c").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("in the background"), "{said}{output:?}");
    let pid_file = dir.path().join("niubix.pid");
    let pid = || std::fs::read_to_string(&pid_file).ok()?.trim().parse::<u32>().ok();
    assert!(until(PATIENCE, || pid().is_some()));
    let master = pid().unwrap();
    let serves = || {
        let client = Peer::connect(&Address::loopback(port));
        client
            .and_then(|client| client.with_deadline(PATIENCE).get("/"))
            .is_ok_and(|answer| answer.status() == 200)
    };
    assert!(until(PATIENCE, serves));
    let worker = sigma_testkit::children(master).first().copied().unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{worker}/limits")).unwrap();
    assert!(
        limits.lines().any(|line| line.starts_with("Max open files") && line.contains(" 1024 ")),
        "{limits}"
    );
    kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL).unwrap();
    assert!(until(PATIENCE, || {
        sigma_testkit::children(master).first().is_some_and(|next| *next != worker) && serves()
    }));
    kill_process(Pid::from_raw(master as i32).unwrap(), Signal::TERM).unwrap();
    assert!(until(PATIENCE, || !pid_file.exists()));
}

/// A file with one app, with these members in addition to name and address.
fn niubix_app(app: &str) -> String {
    r#"{ "pid_file": "{dir}/niubix.pid", "master_log": "{dir}/master.log", "log_dir": "{dir}", "log_level": "info",
  "worker_num": 2, "apps": [ { "name": "test", "listen": "127.0.0.1:{port}", APP } ] }"#
        .replace("APP", app)
}

#[test]
fn niubix_json_serves_sessions() {
    let (origin, dead) = (crate::streams::parrot("one"), sigma_testkit::free_port());
    let check = r#""health_check_period": 1000, "health_check_timeout": 500"#;
    let backends = format!(
        r#"{{ "host": "127.0.0.1:{}", {check} }}, {{ "host": "127.0.0.1:{dead}", {check} }}"#,
        origin.port()
    );
    let app = |backends: &str, more: &str| {
        niubix_app(&format!(
            r#""protocol": "tcp", "balance_policy": "roundrobin", "backend_protocol": "tcp", {more} "backends": [{backends}]"#
        ))
    };
    let gateway = Gateway::start_file(SIGMA, "niubix.json", &app(&backends, "")).unwrap();
    // The one without a listener is found out by connections, and gets no more sessions.
    let is_served = || gateway.connect().unwrap().read_line().is_ok_and(|line| line.trim_end() == "one");
    assert!(until(PATIENCE, || (0..8).all(|_| is_served())), "{}", gateway.stderr());
    assert_eq!(crate::streams::talk(&gateway, "hello"), ("one".to_owned(), "hello".to_owned()));

    // The client's address, and its idle time-out.
    let node = Origin::scripted().unwrap();
    let (backend, more) = (
        format!(r#"{{ "host": "127.0.0.1:{}" }}"#, node.port()),
        r#""proxy_protocol": "v1", "frontend_idle_timeout": 300,"#,
    );
    let gateway = Gateway::start_file(SIGMA, "niubix.json", &app(&backend, more)).unwrap();
    let mut client = gateway.connect().unwrap();
    let own = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} ", client.local_port());
    let mut peer = node.accept().unwrap();
    assert!(peer.read_line().unwrap().starts_with(&own));
    client.expect_reset().unwrap();
}

#[test]
fn niubix_json_serves_https() {
    let (origin, root, dir) =
        (Origin::echo("a").unwrap(), crate::tls::Authority::new("Root"), tempfile::tempdir().unwrap());
    let files = root.issue("shop.test").files(dir.path(), "shop");
    let config = niubix_app(&format!(
        r#""protocol": "https", "http_host": "default", "ssl_certificate": {}, "ssl_certificate_key": {},
        "balance_policy": "roundrobin", "backend_protocol": "http", "backends": [{{ "host": "127.0.0.1:{}" }}]"#,
        files["cert"],
        files["key"],
        origin.port()
    ));
    let gateway = Gateway::start_file(SIGMA, "niubix.json", &config).unwrap();
    crate::tls::run(async {
        let mut stream = crate::tls::shake(&gateway, &root.client(None), "shop.test").await.unwrap();
        let answer = crate::tls::ask(&mut stream, "shop.test", "/path?q", "").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(
            answer.contains("\"/path?q\"") && answer.to_lowercase().contains("x-forwarded-for"),
            "{answer}"
        );
    });
    // In cleartext there is nothing.
    let refused = gateway.connect().unwrap().get("/");
    assert!(refused.is_err() || refused.unwrap().status() != 200);
}

fn niubix_json(version: &str, a: u16, b: u16) -> String {
    r#"{
  "version": "VERSION", "pid_file": "{dir}/niubix.pid", "master_log": "{dir}/master.log", "worker_num": 1,
  "log_dir": "{dir}", "log_level": "info", "admin_listen": "{status}", "admin_ip_white_list": "127.0.0.1",
  "apps": [ { "name": "test", "listen": "127.0.0.1:{port}", "protocol": "http", "http_host": "default",
    "balance_policy": "roundrobin", "backend_protocol": "http",
    "backends": [ { "host": "127.0.0.1:NODE_A" }, { "host": "127.0.0.1:NODE_B" } ] } ]
}"#
    .replace("VERSION", version)
    .replace("NODE_A", &a.to_string())
    .replace("NODE_B", &b.to_string())
}

/// Returns the servers of `count` requests, sorted.
fn served_by(gateway: &Gateway, count: usize) -> String {
    let mut client = gateway.connect().unwrap();
    let mut names: Vec<String> = (0..count)
        .map(|_| client.get("/").unwrap().head.get("x-origin").unwrap_or("nobody").to_string())
        .collect();
    names.sort();
    names.concat()
}

/// The address of the admin calls, once they are taken: traffic is taken first.
fn admin_of(gateway: &Gateway) -> Address {
    let address = gateway.status_address();
    assert!(until(PATIENCE, || Peer::connect(&address).is_ok()), "the admin listener is missing");
    address
}

/// Calls get 200 whatever their method and outcome; the outcome is `code`.
#[test]
fn the_five_admin_calls_of_niubix() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let mut gateway =
        Gateway::start_file(SIGMA, "niubix.json", &niubix_json("v1", a.port(), b.port())).unwrap();
    let address = admin_of(&gateway);
    let call = |method: &str, target: &str| {
        let mut peer = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
        let answer = peer.ask(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        assert_eq!(answer.status(), 200, "{target}");
        answer.json().unwrap()
    };
    let check = |method: &str, target: &str, code: u16| {
        let answer = call(method, target);
        assert_eq!(answer["code"], code, "{target}: {answer}");
        assert!(answer["msg"].is_string(), "{target}: {answer}");
    };
    assert_eq!(call("GET", "/conf_version")["conf_version"], "v1");
    assert_eq!(served_by(&gateway, 4), "aabb");

    let node_a = format!("name=test&host=127.0.0.1:{}", a.port());
    check("GET", &format!("/set_backend_down?{node_a}&down=true"), 0);
    assert!(until(PATIENCE, || served_by(&gateway, 4) == "bbbb"));
    check("POST", &format!("/set_backend_down?{node_a}&down=false"), 0);
    assert!(until(PATIENCE, || served_by(&gateway, 4) == "aabb"));
    check("GET", &format!("/set_backend_weight?{node_a}&weight=3"), 0);
    assert!(until(PATIENCE, || served_by(&gateway, 4) == "aaab"));

    check("GET", &format!("/set_backend_down?{node_a}&down=perhaps"), 400);
    check("GET", &format!("/set_backend_weight?{node_a}&weight=-1"), 400);
    check("GET", "/set_backend_down?name=test&down=true", 400);
    check("GET", "/set_backend_down?name=other&host=127.0.0.1:1&down=true", 404);
    check("GET", "/set_backend_down?name=test&host=127.0.0.1:1&down=true", 404);
    check("GET", "/unknown", 404);

    // Changes are in memory only: a reload goes back to the file.
    assert_eq!(call("GET", "/reload")["msg"], "reloading");
    assert!(until(PATIENCE, || served_by(&gateway, 4) == "aabb"));
    assert_eq!(call("GET", "/shutdown")["msg"], "shutdowning");
    assert!(gateway.wait(PATIENCE).unwrap().success());
}

/// Any page can make a browser send a GET: it is refused, wherever it can be known.
#[test]
fn niubix_admin_refuses_pages() {
    let origin = Origin::echo("a").unwrap();
    let config = niubix_json("v1", origin.port(), origin.port())
        .replace("\"admin_ip_white_list\": \"127.0.0.1\"", "\"admin_ip_white_list\": \"\"");
    let gateway = Gateway::start_file(SIGMA, "niubix.json", &config).unwrap();
    let call = |fields: &str| {
        let request = format!("GET /shutdown HTTP/1.1\r\n{fields}\r\n\r\n");
        let answer = Peer::connect(&admin_of(&gateway)).unwrap().ask(request).unwrap();
        answer.json().unwrap()["code"].clone()
    };
    for stranger in [
        "Host: evil.example",
        "Host: localhost\r\nOrigin: http://evil.example",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nUser-Agent: Mozilla/5.0",
        "Host: 10.0.0.1\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)",
    ] {
        assert_eq!(call(stranger), 403, "{stranger}");
    }
    assert_eq!(served_by(&gateway, 1), "a");
    assert_eq!(call("Host: localhost\r\nUser-Agent: curl/8.0"), 0);
}

#[test]
fn niubix_admin_refuses_other_addresses() {
    let origin = Origin::echo("a").unwrap();
    let config = niubix_json("v1", origin.port(), origin.port())
        .replace("\"admin_ip_white_list\": \"127.0.0.1\"", "\"admin_ip_white_list\": \"192.0.2.1\"");
    let gateway = Gateway::start_file(SIGMA, "niubix.json", &config).unwrap();
    let answer = Peer::connect(&admin_of(&gateway)).unwrap().get("/shutdown").unwrap();
    assert_eq!((answer.status(), &answer.json().unwrap()["code"]), (200, &serde_json::json!(403)));
    assert_eq!(served_by(&gateway, 1), "a");
}

#[test]
fn sigma_json_with_all_its_plugins_answers() {
    let origin = Origin::answer(|_| {
        let text = "text ".repeat(500);
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}", text.len())
            .into_bytes()
    })
    .unwrap();
    let config = r#"{
  "proxy-server": { "http": { "id": "web", "port": {port}, "plugin": {
    "gzip": { "enable": true, "compression-level": 6, "window-bits": 15, "mem-level": 8 },
    "static-resources": { "enable": true, "root-path": "{dir}/www" } } } },
  "router": [ { "id": "r", "enable": true, "proxy-server-id": "web",
    "plugin": {
      "x-frame": "deny",
      "cors": { "enable": true, "allow-origins": ["https://a.example"], "allow-methods": ["GET", "PUT"] },
      "hsts": { "enable": true },
      "csp": { "enable": true, "directive": [ { "name": "default-src", "value": "self" } ] }
    },
    "route": [ { "id": "a", "enable": true, "path": "/test/*", "allow-method": ["GET"], "proxy-pass-id": "p" } ] } ],
  "proxy-pass": [ { "id": "p", "upstream-id": "u" } ],
  "upstream": [ { "id": "u", "nodes": ["127.0.0.1:NODE"] } ],
  "plugins": { "log-config": true }
}"#
    .replace("NODE", &origin.port().to_string());
    let gateway = Gateway::start_file(SIGMA, "sigma.json", &config).unwrap();
    std::fs::create_dir(gateway.dir().join("www")).unwrap();
    std::fs::write(gateway.dir().join("www/a.css"), "p {}").unwrap();
    let mut client = gateway.connect().unwrap();
    let answer = client
        .ask("GET /test/x HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\nOrigin: https://a.example\r\n\r\n")
        .unwrap();
    let field = |name| answer.head.get(name).unwrap_or("");
    assert_eq!(field("content-encoding"), "gzip");
    assert_eq!(field("x-frame-options"), "DENY");
    assert_eq!(field("content-security-policy"), "default-src 'self'");
    assert_eq!(field("strict-transport-security"), "", "not over cleartext");
    assert_eq!(field("access-control-allow-origin"), "https://a.example");
    let preflight = client
        .ask("OPTIONS /test/x HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: PUT\r\n\r\n")
        .unwrap();
    assert_eq!(
        (preflight.status(), preflight.head.get("access-control-allow-methods")),
        (200, Some("GET,PUT"))
    );
    let file = client.get("/static/a.css").unwrap();
    assert_eq!((file.status(), file.text().as_str()), (200, "p {}"));
    assert_eq!(client.get("/static/none").unwrap().status(), 404);
    let log = gateway.dir().join("log/access.log");
    let logged =
        || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("\"GET /test/x HTTP/1.1\" 200"));
    assert!(until(PATIENCE, logged), "{:?}", std::fs::read_to_string(&log));
}

#[test]
fn sigma_json_redirects_and_niubix_json_stays_silent() {
    let origin = Origin::echo("a").unwrap();
    let config = sigma_json("{port}", origin.port())
        .replace("\"proxy-client\"", "\"plugins\": { \"http-redirect-https\": true }, \"proxy-client\"");
    let gateway = Gateway::start_file(SIGMA, "sigma.json", &config).unwrap();
    let mut client = gateway.connect().unwrap();
    let answer =
        client.ask("POST /any?x=1 HTTP/1.1\r\nHost: h.example\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!((answer.status(), answer.head.get("location")), (302, Some("https://h.example/any?x=1")));
    let config = niubix_json("1", origin.port(), origin.port()).replace(
        "\"balance_policy\"",
        "\"x-forwarded-for\": false, \"x-real-ip\": false, \"balance_policy\"",
    );
    let gateway = Gateway::start_file(SIGMA, "niubix.json", &config).unwrap();
    let echoed = gateway.connect().unwrap().get("/").unwrap().json().unwrap();
    let headers = echoed["headers"].to_string().to_lowercase();
    assert!(!headers.contains("x-forwarded-for") && !headers.contains("x-real-ip"), "{headers}");
}
