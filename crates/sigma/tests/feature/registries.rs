//! Upstreams that take their nodes from registries.
//!
//! etcd is a real one; Consul is one of the test, with the responses of a real one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_testkit::{Dns, EtcdServer, Gateway, Message, Operator, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};

/// A test Consul's entries of the service `web`.
#[derive(Default)]
struct Consul {
    state: Mutex<ConsulState>,
    changed: Condvar,
}

#[derive(Default)]
struct ConsulState {
    index: u64,
    ports: Vec<u16>,
    /// Answers errors.
    is_ill: bool,
}

impl Consul {
    fn start() -> (Arc<Consul>, Origin) {
        let consul = Arc::new(Consul::default());
        consul.set(&[]);
        let shared = Arc::clone(&consul);
        let origin = Origin::answer(move |request| shared.answer(request)).unwrap();
        (consul, origin)
    }

    fn state(&self) -> MutexGuard<'_, ConsulState> {
        self.state.lock().unwrap()
    }

    fn set(&self, ports: &[u16]) {
        let mut state = self.state();
        state.index += 1;
        state.ports = ports.to_vec();
        self.changed.notify_all();
    }

    fn set_ill(&self, is_ill: bool) {
        self.state().is_ill = is_ill;
        self.changed.notify_all();
    }

    /// Waits for news, as a blocking query does, but for no longer than a second.
    fn answer(&self, request: &Message) -> Vec<u8> {
        let (_, target) = request.head.request_line().unwrap();
        assert!(target.starts_with("/v1/health/service/web?passing=true"), "{target}");
        assert_eq!(request.head.get("x-consul-token"), Some("hush"));
        let index: u64 = target
            .split_once("&index=")
            .map_or(0, |(_, rest)| rest.split('&').next().unwrap().parse().unwrap());
        let is_old = |state: &mut ConsulState| state.index == index && !state.is_ill;
        let waited = self.changed.wait_timeout_while(self.state(), Duration::from_secs(1), is_old);
        let (state, _) = waited.unwrap();
        let entry = |port: &u16| json!({"Node": {"Address": "127.0.0.9"}, "Service": {"Address": "127.0.0.1", "Port": port, "Meta": {}}});
        let body = state.ports.iter().map(entry).collect::<Value>().to_string();
        let status = if state.is_ill { "500 Internal Server Error" } else { "200 OK" };
        let (index, length) = (state.index, body.len());
        format!("HTTP/1.1 {status}\r\nX-Consul-Index: {index}\r\nContent-Length: {length}\r\n\r\n{body}")
            .into_bytes()
    }
}

fn config(port: u16, more: &str) -> String {
    format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ncontrol: {{ address: \"{{control}}\" }}\nstatus: {{ address: \"{{status}}\" }}\ndiscovery:\n  consul: {{ servers: [\"http://127.0.0.1:{port}\"], token: hush }}\n  protection: {{ believed_after_ms: 2000 }}\n  last_good: {{ path: \"{{dir}}/data/lists.json\" }}\n{more}routes:\n  - id: all\n    uri: \"/*\"\n    upstream: {{ service_name: web, discovery_type: consul }}\n"
    )
}

/// The name of the origin that responds, or the status.
pub(crate) fn who(gateway: &Gateway) -> String {
    let answer = gateway.connect().unwrap().get("/").unwrap();
    answer.head.get("x-origin").map_or_else(|| answer.status().to_string(), str::to_owned)
}

#[test]
fn nodes_follow_consul_and_outlive_it() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let (consul, origin) = Consul::start();
    let mut gateway = Gateway::start(SIGMA, &config(origin.port(), "")).unwrap();
    assert_eq!(who(&gateway), "503", "nobody has registered yet");
    consul.set(&[a.port()]);
    assert!(until(PATIENCE, || who(&gateway) == "a"), "{}", who(&gateway));
    consul.set(&[b.port()]);
    assert!(until(PATIENCE, || who(&gateway) == "b"));

    // One that fails, and one that is empty all at once, change nothing; the latter for a while.
    consul.set_ill(true);
    gateway.await_log("responded with status 500");
    assert_eq!(who(&gateway), "b");
    assert!(counted(&gateway, "update_failures_total") >= 1);
    consul.set_ill(false);
    consul.set(&[a.port()]);
    assert!(until(PATIENCE, || who(&gateway) == "a"), "it is followed again");
    consul.set(&[]);
    gateway.await_log("most nodes of a service disappeared at once");
    assert_eq!(who(&gateway), "a");
    assert_eq!(counted(&gateway, "held_back_total"), 1);
    assert!(until(PATIENCE, || who(&gateway) == "503"), "it is believed after all");
    assert_eq!(["held_back_services", "services", "nodes"].map(|name| counted(&gateway, name)), [0, 1, 0]);
    assert!(counted(&gateway, "updates_total") >= 4 && counted(&gateway, "requests_total") >= 5);
    assert!(counted(&gateway, "last_success_timestamp_seconds") > 1_700_000_000);
    assert_eq!(counted(&gateway, "stored_list"), 0);

    // A start without Consul serves by the last good list.
    consul.set(&[b.port()]);
    assert!(until(PATIENCE, || who(&gateway) == "b"));
    let lists = gateway.dir().join("data/lists.json");
    let is_kept = || std::fs::read_to_string(&lists).is_ok_and(|text| text.contains(&b.port().to_string()));
    assert!(until(PATIENCE, is_kept));
    let control = Operator::new(gateway.control_address());
    let stored = control.get("/v1/discovery/consul/show_dump_file").unwrap();
    assert_eq!(stored["services"]["web"][0]["port"], b.port());
    assert!(stored["expire"] == 0 && stored["last_update"].as_u64().is_some_and(|at| at > 1_700_000_000));
    assert_eq!(control.call("GET", "/v1/discovery/nacos/show_dump_file", None).unwrap().status(), 404);
    drop(origin);
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert!(until(PATIENCE, || who(&gateway) == "b"), "{}", gateway.stderr());
    assert_eq!(["stored_list", "nodes"].map(|name| counted(&gateway, name)), [1, 1]);
    assert!(!gateway.stderr().contains("hush"), "no secret is told");
}

/// Returns Consul's counter on the page of counters.
fn counted(gateway: &Gateway, name: &str) -> u64 {
    let page = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap().text();
    let start = format!("sigma_discovery_{name}{{type=\"consul\",id=\"\"}} ");
    let number = page.lines().find_map(|line| line.strip_prefix(&start));
    number.unwrap_or_else(|| panic!("{name}\n{page}")).parse().unwrap()
}

#[test]
fn nodes_follow_a_folder_in_etcd_and_outlive_it() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let mut etcd = EtcdServer::start().unwrap();
    let put = |etcd: &EtcdServer, name: &str, origin: &Origin| {
        let value = json!({ "host": "127.0.0.1", "port": origin.port() }).to_string();
        etcd.put(&format!("/services/web/{name}"), &value).unwrap();
    };
    put(&etcd, "a", &a);
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ndiscovery:\n  etcd: {{ host: [\"{}\"] }}\n  protection: {{ max_vanished_percent: 100 }}\n  last_good: {{ path: \"{{dir}}/lists.json\" }}\nroutes:\n  - id: all\n    uri: \"/*\"\n    upstream: {{ service_name: web, discovery_type: etcd }}\n",
        etcd.endpoint()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    assert!(until(PATIENCE, || who(&gateway) == "a"), "{}", who(&gateway));
    put(&etcd, "b", &b);
    assert!(until(PATIENCE, || who(&gateway) == "b"));
    etcd.delete("/services/web/a").unwrap();
    assert!(until(PATIENCE, || (0..4).all(|_| who(&gateway) == "b")));

    etcd.kill().unwrap();
    gateway.await_log("the last list stays in use");
    assert_eq!(who(&gateway), "b");
    etcd.run().unwrap();
    put(&etcd, "a", &a);
    etcd.delete("/services/web/b").unwrap();
    assert!(until(PATIENCE, || (0..4).all(|_| who(&gateway) == "a")), "{}", gateway.stderr());
    // Compacted data of etcd is read again.
    etcd.kill().unwrap();
    etcd.run().unwrap();
    etcd.compact().unwrap();
    put(&etcd, "b", &b);
    etcd.delete("/services/web/a").unwrap();
    assert!(until(PATIENCE, || (0..4).all(|_| who(&gateway) == "b")), "{}", gateway.stderr());
    etcd.delete("/services/web/b").unwrap();
    assert!(until(PATIENCE, || who(&gateway) == "503"), "nobody is left");
}

#[test]
fn nodes_are_not_where_none_may_be() {
    let a = Origin::echo("a").unwrap();
    let dns = Dns::start().unwrap();
    dns.set_addresses("credentials.sigma.test", &[[169, 254, 169, 254].into()]);
    dns.set_addresses("web.sigma.test", &[[127, 0, 0, 1].into()]);
    let port = a.port();
    // One that lies about weights as well.
    let host = |ip: &str| json!({"ip": ip, "port": port, "weight": 1e300, "healthy": true, "enabled": true, "metadata": {}});
    let told = ["169.254.169.254", "::ffff:169.254.169.254", "credentials.sigma.test", "web.sigma.test"];
    let body = json!({ "name": "web", "hosts": told.map(host) }).to_string();
    let registry = Origin::answer(move |_| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    });
    let registry = registry.unwrap();
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ncontrol: {{ address: \"{{control}}\" }}\ndns: {{ servers: [\"{}\"] }}\ndiscovery:\n  nacos: {{ host: [\"http://127.0.0.1:{}\"], subscribe: false }}\n  last_good: {{ path: \"off\" }}\nroutes:\n  - id: all\n    uri: \"/*\"\n    upstream: {{ service_name: web, discovery_type: nacos }}\n",
        dns.address(),
        registry.port()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    assert!(until(PATIENCE, || who(&gateway) == "a"), "{}", gateway.stderr());
    assert!((0..8).all(|_| who(&gateway) == "a"));
    let nodes = Operator::new(gateway.control_address()).get("/v1/nodes/routes/all").unwrap().to_string();
    assert!(!nodes.contains("169.254") && nodes.contains("127.0.0.1"), "{nodes}");
    assert!(
        gateway.stderr().contains("a registry lists nodes in `discovery.refused_networks`; they are ignored")
    );
}
