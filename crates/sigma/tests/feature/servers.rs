//! Real registries, started by the tests, killed and brought back: `make test-servers`. The first time, Go
//! and Maven fetch and build them, which takes minutes.

mod browser;
mod cache_suite;
mod cas;
mod centres;
mod clickhouse;
mod collectors;
mod dashboard;
mod dashboard_editing;
mod dashboard_tools;
mod dubbo;
mod ext_proc;
mod go_runner;
mod http3_browser;
mod http3_caddy;
mod http3_clients;
mod http3_ngtcp2;
mod http3_upgrades;
mod java_runner;
mod kafka;
mod keycloak;
mod keycloak_saml;
mod knot;
mod loki;
mod numbered;
mod opa;
mod opensearch;
mod package;
mod php_fpm;
mod postgres;
mod python_runner;
mod rocketmq;
mod systemd;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use sigma_testkit::{Address, Dns, EtcdServer, Gateway, Message, Operator, Origin, Peer, free_port, until};

use crate::registries::who;
use crate::{PATIENCE, SIGMA};

/// The result of `build` from the folder `tests/servers/<name>` at its output path, built once into
/// `target/tools`.
pub(crate) fn built(name: &str, file: &str, build: impl FnOnce(&Path, &Path)) -> PathBuf {
    // Two builds at a time would only take turns.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let tools = Path::new(SIGMA).ancestors().nth(2).unwrap().join("tools");
    let built = tools.join(file);
    if !built.exists() {
        std::fs::create_dir_all(&tools).unwrap();
        let draft = tools.join(format!("{name}.new"));
        build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers").join(name), &draft);
        std::fs::rename(draft, &built).unwrap();
    }
    built
}

/// Returns the folder of a package of npm, `name@version`, which is installed the first time in `target/tools`.
fn npm_package(name: &str, version: &str) -> PathBuf {
    let folder = built(name, &format!("{name}-{version}"), |_, draft| {
        let _ = std::fs::remove_dir_all(draft);
        std::fs::create_dir_all(draft).unwrap();
        let mut install = Command::new("npm");
        install.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix"]).arg(draft);
        let status = install.arg(format!("{name}@{version}")).stdout(Stdio::null()).status();
        assert!(status.expect("npm is there").success(), "`npm install` failed");
    });
    folder.join("node_modules").join(name)
}

/// Returns the response of a server at this port; None if it does not. `line` has no version.
fn try_ask(port: u16, line: &str, fields: &str, body: &str) -> Option<Message> {
    let mut peer = Peer::connect(&Address::Tcp(([127, 0, 0, 1], port).into())).ok()?.with_deadline(PATIENCE);
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let host = if fields.contains("Host: ") { String::new() } else { format!("Host: 127.0.0.1:{port}\r\n") };
    peer.ask(format!("{line} HTTP/1.1\r\n{host}{fields}{length}\r\n{body}")).ok()
}

/// The same; it must respond.
fn ask(port: u16, line: &str, fields: &str, body: &str) -> Message {
    try_ask(port, line, fields, body).unwrap_or_else(|| panic!("{line} is not answered"))
}

/// A client with cookies for one host.
#[derive(Default)]
struct Cookies(BTreeMap<String, String>);

impl Cookies {
    fn take(&mut self, answer: &Message) {
        for line in answer.head.all("set-cookie") {
            let (pair, attributes) = line.split_once(';').unwrap_or((line, ""));
            let (name, value) = pair.split_once('=').unwrap();
            match attributes.contains("Max-Age=0") {
                true => self.0.remove(name),
                false => self.0.insert(name.to_owned(), value.to_owned()),
            };
        }
    }

    fn field(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if pairs.is_empty() { String::new() } else { format!("Cookie: {}\r\n", pairs.join("; ")) }
    }
}

/// The program of a Go module.
pub(crate) fn server(name: &str, flags: &str) -> PathBuf {
    built(name, name, |module, draft| {
        let flags = format!("-s -w {flags}");
        let mut build = Command::new("go");
        build.current_dir(module).env("CGO_ENABLED", "0");
        let status =
            build.args(["build", "-trimpath", "-ldflags", &flags, "-o"]).arg(draft).arg(".").status();
        assert!(status.expect("Go builds it").success(), "`go build` failed in {}", module.display());
    })
}

/// A server in Java, which Maven builds, on this port and with further arguments.
fn java(name: &str, options: &[&str], port: u16, arguments: &[&str], log: &Path) -> Running {
    // Another jar for other sources.
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers").join(name);
    let jar = built(name, &format!("{name}-{:x}.jar", fingerprint(&project)), |project, draft| {
        let folder = draft.with_extension("folder");
        let target = format!("-Dbuild.folder={}", folder.display());
        let mut build = Command::new("mvn");
        let status = build.current_dir(project).args(["-q", "-B", &target, "package"]).status();
        assert!(status.expect("Maven builds it").success(), "`mvn package` failed in {}", project.display());
        std::fs::rename(folder.join(format!("{name}.jar")), draft).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    });
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1"]).args(options).arg("-jar").arg(jar);
    command.args([&format!("--server.port={port}"), "--server.address=127.0.0.1"]).args(arguments);
    Running::start(&mut command, log)
}

/// Returns a fingerprint of the files in a folder.
fn fingerprint(folder: &Path) -> u64 {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let mut hasher = DefaultHasher::new();
    for entry in entries {
        match entry.is_dir() {
            true => fingerprint(&entry).hash(&mut hasher),
            false => (entry.file_name(), std::fs::read(&entry).unwrap()).hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Returns a client of a server on this port.
fn caller(port: u16) -> Operator {
    Operator::new(Address::Tcp(([127, 0, 0, 1], port).into()))
}

/// The status of a call with a body of JSON.
fn status(port: u16, method: &str, target: &str, body: Option<&Value>) -> Option<u16> {
    let fields = "Content-Type: application/json\r\n";
    caller(port).call_with(method, target, fields, body).ok().map(|answer| answer.status())
}

/// A server that ends with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, log: &Path) -> Running {
        let log = std::fs::File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Running(command.spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A gateway with these settings of `discovery`, and one upstream for everything.
fn gateway(discovery: &Value, upstream: &Value) -> Gateway {
    gateway_with("", discovery, upstream)
}

fn gateway_with(settings: &str, discovery: &Value, upstream: &Value) -> Gateway {
    let mut discovery = discovery.clone();
    discovery["last_good"] = json!({ "path": "{dir}/lists.json" });
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ncontrol: {{ address: \"{{control}}\" }}\ndiscovery: {discovery}\n{settings}routes:\n  - id: all\n    uri: \"/*\"\n    upstream: {upstream}\n"
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn turns_to(gateway: &Gateway, want: &str) {
    let turned = until(PATIENCE, || (0..4).all(|_| who(gateway) == want));
    assert!(turned, "want {want}, have {}\n{}", who(gateway), gateway.stderr());
}

const TOKEN: &str = "5d4a2c1e-0b1f-4f0e-9a35-0e6d7c3b2a19";

/// A Consul of one test alone, which keeps nothing over a restart.
struct Consul {
    dir: tempfile::TempDir,
    ports: [u16; 4],
    process: Option<Running>,
}

impl Consul {
    fn start() -> Consul {
        let dir = tempfile::tempdir().unwrap();
        let tokens = json!({ "initial_management": TOKEN, "agent": TOKEN });
        let acl = json!({ "acl": { "enabled": true, "default_policy": "deny", "tokens": tokens } });
        std::fs::write(dir.path().join("acl.json"), acl.to_string()).unwrap();
        let mut consul = Consul { dir, ports: std::array::from_fn(|_| free_port()), process: None };
        consul.run();
        consul
    }

    fn run(&mut self) {
        let [http, dns, server_port, serf] = self.ports;
        let mut command = Command::new(server("consul", ""));
        command.args(["agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-serf-wan-port=-1"]);
        command.args(["-grpc-port=-1", "-grpc-tls-port=-1"]);
        command.args([format!("-http-port={http}"), format!("-dns-port={dns}")]);
        command.args([format!("-server-port={server_port}"), format!("-serf-lan-port={serf}")]);
        command.arg("-config-file").arg(self.dir.path().join("acl.json"));
        self.process = Some(Running::start(&mut command, &self.dir.path().join("log")));
        let is_up = || self.call("GET", "/v1/agent/self", None).is_some_and(|status| status == 200);
        assert!(until(PATIENCE, is_up), "{}", self.log());
        // Its own node is known only a moment after that.
        let has_node = || {
            let nodes = self.operator().call_with("GET", "/v1/catalog/nodes", &token(), None);
            nodes.is_ok_and(|nodes| {
                nodes.json().is_ok_and(|nodes| nodes.as_array().is_some_and(|all| !all.is_empty()))
            })
        };
        assert!(until(PATIENCE, has_node), "{}", self.log());
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn operator(&self) -> Operator {
        caller(self.ports[0])
    }

    /// The status of a call.
    fn call(&self, method: &str, target: &str, body: Option<&Value>) -> Option<u16> {
        self.operator().call_with(method, target, &token(), body).ok().map(|answer| answer.status())
    }

    fn put(&self, target: &str, body: Option<&Value>) {
        assert_eq!(self.call("PUT", target, body), Some(200), "{target}\n{}", self.log());
    }

    fn register(&self, id: &str, tag: &str, origin: &Origin) {
        let service = json!({
            "ID": id, "Name": "web", "Tags": [tag], "Address": "127.0.0.1", "Port": origin.port(),
            "Meta": { "version": tag }
        });
        self.put("/v1/agent/service/register", Some(&service));
    }

    fn settings(&self) -> Value {
        let address = format!("http://127.0.0.1:{}", self.ports[0]);
        json!({
            "consul": { "servers": [address], "token": TOKEN, "timeout": { "wait": 30 } },
            "consul_kv": { "servers": [address], "token": TOKEN },
            "protection": { "believed_after_ms": 3000 },
        })
    }
}

fn token() -> String {
    format!("X-Consul-Token: {TOKEN}\r\n")
}

#[test]
fn nodes_follow_consul() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let mut consul = Consul::start();
    consul.register("a", "v1", &a);
    let upstream = json!({ "service_name": "web", "discovery_type": "consul" });
    let gateway_of_all = gateway(&consul.settings(), &upstream);
    turns_to(&gateway_of_all, "a");
    consul.register("b", "v2", &b);
    assert!(until(PATIENCE, || who(&gateway_of_all) == "b"));
    let tagged = json!({
        "service_name": "web", "discovery_type": "consul",
        "discovery_args": { "tags": ["v2"], "datacenter": "dc1", "metadata": { "version": "v2" } }
    });
    turns_to(&gateway(&consul.settings(), &tagged), "b");
    // One that is in maintenance is not passing, and one that is gone is no longer there.
    consul.put("/v1/agent/service/maintenance/b?enable=true", None);
    turns_to(&gateway_of_all, "a");
    consul.put("/v1/agent/service/maintenance/b?enable=false", None);
    consul.put("/v1/agent/service/deregister/a", None);
    turns_to(&gateway_of_all, "b");

    consul.kill();
    gateway_of_all.await_log("the last list stays in use");
    turns_to(&gateway_of_all, "b");
    // It comes back empty, and its index starts again.
    consul.run();
    assert!(until(PATIENCE, || gateway_of_all
        .stderr()
        .contains("most nodes of a service disappeared at once")));
    turns_to(&gateway_of_all, "503");
    consul.register("a", "v1", &a);
    turns_to(&gateway_of_all, "a");
    assert!(!gateway_of_all.stderr().contains(TOKEN), "no secret is told");
}

#[test]
fn services_of_consul_take_turns() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let consul = Consul::start();
    consul.register("a", "v1", &a);
    let upstream = |name: &str| format!("{{ id: {name}, service_name: {name}, discovery_type: consul }}");
    let others = format!("upstreams: [{}, {}]\n", upstream("api"), upstream("mail"));
    let mut settings = consul.settings();
    settings["consul"]["max_blocking_queries"] = 1.into();
    let web = json!({ "service_name": "web", "discovery_type": "consul" });
    let gateway = gateway_with(&others, &settings, &web);
    let control = Operator::new(gateway.control_address());
    let dump = || control.get("/v1/discovery/consul/dump").unwrap()["services"].clone();
    let are_known = || ["web", "api", "mail"].iter().all(|name| dump().get(name).is_some());
    assert!(until(PATIENCE, are_known), "{}\n{}", dump(), gateway.stderr());
    consul.register("b", "v2", &b);
    consul.put("/v1/agent/service/deregister/a", None);
    turns_to(&gateway, "b");
    assert!(!gateway.stderr().contains("cannot get the list of nodes"), "{}", gateway.stderr());
}

#[test]
fn nodes_follow_the_keys_of_consul() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let consul = Consul::start();
    let key = |origin: &Origin| format!("/v1/kv/upstreams/web/127.0.0.1:{}", origin.port());
    let name = format!("http://127.0.0.1:{}/v1/kv/upstreams/web/", consul.ports[0]);
    let gateway =
        gateway(&consul.settings(), &json!({ "service_name": name, "discovery_type": "consul_kv" }));
    assert_eq!(who(&gateway), "503", "there is no key yet");
    consul.put(&key(&a), Some(&json!({ "weight": 1, "max_fails": 2, "fail_timeout": 1 })));
    turns_to(&gateway, "a");
    consul.put(&key(&b), Some(&json!({ "weight": 1 })));
    assert!(until(PATIENCE, || who(&gateway) == "b"));
    assert_eq!(consul.call("DELETE", &key(&a), None), Some(200));
    turns_to(&gateway, "b");
    let dump = Operator::new(gateway.control_address()).get("/v1/discovery/consul_kv/dump").unwrap();
    assert_eq!(dump["services"][&name][0]["port"], b.port());
    // An agent that is refused its own token says so, and tells nothing else.
    let mut settings = consul.settings();
    settings["consul_kv"]["token"] = "wrong".into();
    let refused = self::gateway(&settings, &json!({ "service_name": "web", "discovery_type": "consul_kv" }));
    refused.await_log("responded with status 403");
}

/// The version of the API server in `/version`; without it that is v0.0.0.
const KUBERNETES: &str = "-X k8s.io/component-base/version.gitVersion=v1.34.1 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34";

/// An API server of one test alone, over its own etcd. There are no controllers: the test writes their objects.
struct Kubernetes {
    dir: tempfile::TempDir,
    etcd: EtcdServer,
    port: u16,
    process: Option<Running>,
}

impl Kubernetes {
    fn start() -> Kubernetes {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("sa.key");
        let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048").output().unwrap();
        assert!(made.status.success());
        let tokens = "admin-token,admin,1,\"system:masters\"\ngateway-token,gateway,2\n";
        std::fs::write(dir.path().join("tokens.csv"), tokens).unwrap();
        let etcd = EtcdServer::start().unwrap();
        let mut kubernetes = Kubernetes { dir, etcd, port: free_port(), process: None };
        kubernetes.run();
        kubernetes
    }

    fn run(&mut self) {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new(server("kube-apiserver", KUBERNETES));
        command.args([
            format!("--etcd-servers={}", self.etcd.endpoint()),
            format!("--secure-port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", path("certificates")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", path("sa.key")),
            format!("--service-account-signing-key-file={}", path("sa.key")),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ]);
        self.process = Some(Running::start(&mut command, &self.dir.path().join("log")));
        let is_ready = || self.call("GET", "/readyz", None).0 == "200";
        let patience = PATIENCE * 4;
        assert!(until(patience, is_ready), "{}", std::fs::read_to_string(path("log")).unwrap());
    }

    fn kill(&mut self) {
        self.process = None;
    }

    /// Status and body of a call by the administrator.
    fn call(&self, method: &str, target: &str, body: Option<&Value>) -> (String, String) {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut curl = Command::new("curl");
        curl.args(["-ks", "-m", "20", "-X", method, "-w", "\n%{http_code}"]);
        curl.args(["-H", "Authorization: Bearer admin-token", "-H", &format!("Content-Type: {kind}")]);
        if let Some(body) = body {
            curl.args(["-d", &body.to_string()]);
        }
        let output = curl.arg(format!("https://127.0.0.1:{}{target}", self.port)).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap_or(("", ""));
        (status.to_owned(), body.to_owned())
    }

    fn write(&self, method: &str, target: &str, body: &Value) {
        let (status, text) = self.call(method, target, Some(body));
        assert!(matches!(status.as_str(), "200" | "201"), "{method} {target}: {status} {text}");
    }

    /// Lets the gateway list and watch endpoints in the namespace `shop`, and nothing else.
    fn allow(&self) {
        self.write("POST", "/api/v1/namespaces", &json!({ "metadata": { "name": "shop" } }));
        let rule = |group: &str, resource: &str| json!({ "apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"] });
        let rules = [rule("", "endpoints"), rule("discovery.k8s.io", "endpointslices")];
        let role = json!({ "metadata": { "name": "gateway" }, "rules": rules });
        let of_rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop";
        self.write("POST", &format!("{of_rbac}/roles"), &role);
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": { "name": "gateway" },
            "subjects": [{ "kind": "User", "name": "gateway", "apiGroup": group }],
            "roleRef": { "kind": "Role", "name": "gateway", "apiGroup": group }
        });
        self.write("POST", &format!("{of_rbac}/rolebindings"), &binding);
    }

    fn cluster(&self, more: &Value) -> Value {
        let mut cluster = json!({
            "service": { "host": "127.0.0.1", "port": self.port.to_string() },
            "client": { "token": "gateway-token" }, "namespace_selector": { "equal": "shop" }
        });
        cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        cluster
    }
}

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";

/// An address of a slice must not be one of the loopback, so that it is a name here.
fn slice(name: &str, origin: &Origin) -> Value {
    json!({
        "metadata": { "name": format!("web-{name}"), "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "FQDN",
        "endpoints": [{ "addresses": [format!("{name}.sigma.test")], "conditions": { "ready": true }, "zone": "z1" }],
        "ports": [{ "name": "http", "port": origin.port(), "protocol": "TCP" }]
    })
}

#[test]
fn nodes_follow_kubernetes() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let dns = Dns::start().unwrap();
    for name in ["a.sigma.test", "b.sigma.test"] {
        dns.set_addresses(name, &[[127, 0, 0, 1].into()]);
    }
    let mut kubernetes = Kubernetes::start();
    kubernetes.allow();
    kubernetes.write("POST", SLICES, &slice("a", &a));
    let settings = format!("dns: {{ servers: [\"{}\"] }}\n", dns.address());
    let clusters = [
        kubernetes.cluster(&json!({ "id": "first", "watch_endpoint_slices": true })),
        kubernetes.cluster(&json!({ "id": "second" })),
    ];
    let discovery = json!({ "kubernetes": clusters, "protection": { "believed_after_ms": 3000 } });
    let upstream = json!({ "service_name": "first/shop/web:http", "discovery_type": "kubernetes" });
    let gateway = gateway_with(&settings, &discovery, &upstream);
    turns_to(&gateway, "a");
    kubernetes.write("POST", SLICES, &slice("b", &b));
    assert!(until(PATIENCE, || who(&gateway) == "b"));
    // Not ready is not used, unless nothing else is left that serves.
    let of = |name: &str| format!("{SLICES}/web-{name}");
    let conditions = |name: &str, origin: &Origin, conditions: Value| {
        let mut endpoints = slice(name, origin)["endpoints"].clone();
        endpoints[0]["conditions"] = conditions;
        kubernetes.write("PATCH", &of(name), &json!({ "endpoints": endpoints }));
    };
    conditions("a", &a, json!({ "ready": false, "serving": true, "terminating": true }));
    turns_to(&gateway, "b");
    assert_eq!(kubernetes.call("DELETE", &of("b"), None).0, "200");
    turns_to(&gateway, "a");

    kubernetes.kill();
    gateway.await_log("the last list stays in use");
    turns_to(&gateway, "a");
    kubernetes.run();
    kubernetes.write("POST", SLICES, &slice("b", &b));
    turns_to(&gateway, "b");
    assert!(!gateway.stderr().contains("gateway-token"), "no secret is told");
}

#[test]
fn endpoints_of_kubernetes_are_known_where_the_gateway_may_read_them() {
    let kubernetes = Kubernetes::start();
    kubernetes.allow();
    let endpoints = json!({
        "metadata": { "name": "api" },
        "subsets": [{ "addresses": [{ "ip": "10.1.1.1" }], "ports": [{ "name": "http", "port": 8080 }] }]
    });
    kubernetes.write("POST", "/api/v1/namespaces/shop/endpoints", &endpoints);
    let upstream = json!({ "service_name": "shop/api:http", "discovery_type": "kubernetes" });
    let discovery = json!({ "kubernetes": kubernetes.cluster(&json!({})) });
    let gateway_of_shop = gateway(&discovery, &upstream);
    let dump =
        || Operator::new(gateway_of_shop.control_address()).get("/v1/discovery/kubernetes/dump").unwrap();
    let want = r#"{"http":[{"host":"10.1.1.1","port":8080,"weight":50}]}"#;
    let is_known = || dump()["endpoints"][0]["endpoints"][0] == json!({ "name": "shop/api", "value": want });
    assert!(until(PATIENCE, is_known), "{}", dump());
    // All namespaces are more than it may read.
    let discovery = json!({ "kubernetes": kubernetes.cluster(&json!({ "namespace_selector": {} })) });
    let refused = gateway(&discovery, &upstream);
    refused.await_log("responded with status 403");
}

/// A Eureka of one test alone, which keeps nothing over a restart.
struct Eureka {
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Running>,
}

impl Eureka {
    fn start() -> Eureka {
        let mut eureka = Eureka { dir: tempfile::tempdir().unwrap(), port: free_port(), process: None };
        eureka.run();
        eureka
    }

    fn run(&mut self) {
        let arguments = [
            "--eureka.client.register-with-eureka=false",
            "--eureka.client.fetch-registry=false",
            "--eureka.server.response-cache-update-interval-ms=500",
        ];
        let log = self.dir.path().join("log");
        self.process = Some(java("eureka", &[], self.port, &arguments, &log));
        let is_up = || status(self.port, "GET", "/eureka/apps", None) == Some(200);
        assert!(until(PATIENCE * 4, is_up), "{}", std::fs::read_to_string(&log).unwrap());
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn register(&self, id: &str, origin: &Origin) {
        let instance = json!({ "instance": {
            "instanceId": id, "hostName": "localhost", "app": "USER", "ipAddr": "127.0.0.1", "status": "UP",
            "port": { "$": origin.port(), "@enabled": "true" }, "securePort": { "$": 443, "@enabled": "false" },
            "dataCenterInfo": { "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn" },
            "metadata": { "zone": "z1" }, "vipAddress": "user"
        } });
        assert_eq!(status(self.port, "POST", "/eureka/apps/USER", Some(&instance)), Some(204));
    }
}

#[test]
fn nodes_follow_eureka() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let mut eureka = Eureka::start();
    eureka.register("a", &a);
    let host = [format!("http://127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", eureka.port)];
    let discovery = json!({
        "eureka": { "host": host, "fetch_interval": 1, "delta": true }, "protection": { "believed_after_ms": 3000 }
    });
    let gateway = gateway(&discovery, &json!({ "service_name": "USER", "discovery_type": "eureka" }));
    turns_to(&gateway, "a");
    eureka.register("b", &b);
    assert!(until(PATIENCE, || who(&gateway) == "b"));
    let out = "/eureka/apps/USER/a/status?value=OUT_OF_SERVICE";
    assert_eq!(status(eureka.port, "PUT", out, None), Some(200));
    turns_to(&gateway, "b");
    eureka.kill();
    gateway.await_log("the last list stays in use");
    turns_to(&gateway, "b");
    eureka.run();
    eureka.register("a", &a);
    turns_to(&gateway, "a");
    assert_eq!(status(eureka.port, "DELETE", "/eureka/apps/USER/a", None), Some(200));
    turns_to(&gateway, "503");
}

/// A Nacos of one test alone.
struct Nacos {
    dir: tempfile::TempDir,
    port: u16,
    /// Whether questions need the token of a user.
    has_users: bool,
    process: Option<Running>,
}

impl Nacos {
    fn start(has_users: bool) -> Nacos {
        let dir = tempfile::tempdir().unwrap();
        let mut nacos = Nacos { dir, port: Nacos::free_ports(), has_users, process: None };
        nacos.run();
        nacos
    }

    /// A port whose neighbours are free as well, which it opens too: below the ports that connections get.
    fn free_ports() -> u16 {
        let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        // Even ones: the neighbours of two that start at the same time differ.
        let mut ports = (0..200).map(|_| 20_000 + free_port() % 5_000 * 2);
        let are_free = |port: &u16| [port - 1000, *port, port + 1000, port + 1001].into_iter().all(is_free);
        ports.find(are_free).expect("free ports")
    }

    fn run(&mut self) {
        let home = format!("-Dnacos.home={}", self.dir.path().display());
        let log = self.dir.path().join("log");
        let users = [
            "--nacos.core.auth.enabled=true",
            "--nacos.core.auth.system.type=test",
            "--nacos.core.auth.server.identity.key=server",
            "--nacos.core.auth.server.identity.value=hush",
        ];
        let arguments = if self.has_users { &users[..] } else { &[] };
        let options = ["-Dnacos.standalone=true", &home];
        self.process = Some(java("nacos", &options, self.port, arguments, &log));
        let is_up = || status(self.port, "GET", "/nacos/v1/console/health/readiness", None).is_some();
        assert!(until(PATIENCE * 4, is_up), "{}", std::fs::read_to_string(&log).unwrap());
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn token(&self) -> Option<String> {
        let login = "/nacos/v1/auth/login?username=nacos&password=p%26w";
        let answer = caller(self.port).call("POST", login, None).ok()?.json().ok()?;
        Some(answer["accessToken"].as_str()?.to_owned())
    }

    fn write(&self, method: &str, origin: &Origin) {
        let mut target = format!(
            "/nacos/v1/ns/instance?serviceName=web&ip=127.0.0.1&port={}&namespaceId=shop&groupName=G&weight=2&ephemeral=true&metadata=version%3Dv2",
            origin.port()
        );
        if self.has_users {
            let mut token = None;
            assert!(until(PATIENCE, || {
                token = self.token();
                token.is_some()
            }));
            target.push_str(&format!("&accessToken={}", token.unwrap()));
        }
        let is_done = || status(self.port, method, &target, None) == Some(200);
        assert!(until(PATIENCE, is_done), "{method} {target}");
    }

    /// Waits for a response of this origin; it registers again meanwhile, as it would go without a beat.
    fn turns_to(&self, gateway: &Gateway, origin: &Origin, want: &str) {
        let turned = until(PATIENCE, || {
            self.write("POST", origin);
            (0..4).all(|_| who(gateway) == want)
        });
        assert!(turned, "want {want}, have {}\n{}", who(gateway), gateway.stderr());
    }

    /// A gateway that takes nodes of the service, with further settings.
    fn gateway(&self, user: &str, more: &Value) -> Gateway {
        let mut settings = json!({ "host": [format!("http://{user}127.0.0.1:{}", self.port)] });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let discovery = json!({ "nacos": settings, "protection": { "believed_after_ms": 3000 } });
        let args = json!({ "namespace_id": "shop", "group_name": "G", "metadata": { "version": "v2" } });
        let upstream = json!({ "service_name": "web", "discovery_type": "nacos", "discovery_args": args });
        gateway(&discovery, &upstream)
    }
}

/// No poll comes at such intervals: earlier changes were pushed.
const NEVER: u32 = 100_000;

#[test]
fn nodes_follow_nacos() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let mut nacos = Nacos::start(false);
    nacos.write("POST", &a);
    let gateways = [
        nacos.gateway("", &json!({ "fetch_interval": NEVER })),
        nacos.gateway("", &json!({ "fetch_interval": 1, "subscribe": false })),
    ];
    let turn_to = |nacos: &Nacos, origin: &Origin, want: &str| {
        gateways.iter().for_each(|gateway| nacos.turns_to(gateway, origin, want));
    };
    turn_to(&nacos, &a, "a");
    nacos.write("POST", &b);
    nacos.write("DELETE", &a);
    turn_to(&nacos, &b, "b");
    let dump = Operator::new(gateways[0].control_address()).get("/v1/discovery/nacos/dump").unwrap();
    assert_eq!(dump["services"]["default/shop/G/web"]["nodes"][0]["weight"], 2);
    nacos.kill();
    let is_told = |gateway: &Gateway| gateway.stderr().contains("the last list stays in use");
    assert!(until(PATIENCE, || gateways.iter().all(is_told)), "{}", gateways[0].stderr());
    gateways.iter().for_each(|gateway| turns_to(gateway, "b"));
    nacos.run();
    turn_to(&nacos, &a, "a");
    nacos.write("POST", &b);
    nacos.write("DELETE", &a);
    turn_to(&nacos, &b, "b");
}

#[test]
fn users_log_in_to_nacos() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let nacos = Nacos::start(true);
    nacos.write("POST", &a);
    let gateways = [
        nacos.gateway("nacos:p&w@", &json!({ "fetch_interval": NEVER })),
        nacos.gateway("nacos:p&w@", &json!({ "fetch_interval": 1, "subscribe": false })),
    ];
    gateways.iter().for_each(|gateway| nacos.turns_to(gateway, &a, "a"));
    nacos.write("POST", &b);
    nacos.write("DELETE", &a);
    gateways.iter().for_each(|gateway| nacos.turns_to(gateway, &b, "b"));
    let stranger = nacos.gateway("nacos:wrong@", &json!({}));
    stranger.await_log("cannot log in");
    // A client without a login is refused.
    let nobody = nacos.gateway("", &json!({}));
    nobody.await_log("responded with status 403");
    nobody.await_log("refuses a subscription");
}
