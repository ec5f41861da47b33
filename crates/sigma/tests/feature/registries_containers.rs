//! Upstreams that take their nodes from the labels of containers and from Nomad: servers of the test, with the responses
//! of real ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, Peer, until};

use crate::registries::who;
use crate::{PATIENCE, SIGMA};

/// A daemon of the test with containers in the network of this machine.
#[derive(Default)]
struct Daemon {
    state: Mutex<DaemonState>,
}

#[derive(Default)]
struct DaemonState {
    /// The port of each running container.
    containers: BTreeMap<String, u16>,
    /// Streams of events that are open.
    listeners: Vec<Sender<String>>,
    /// Closes every connection.
    is_away: bool,
}

impl Daemon {
    fn start(path: &Path) -> (Arc<Daemon>, Origin) {
        let daemon = Arc::new(Daemon::default());
        let shared = Arc::clone(&daemon);
        let origin = Origin::serve_unix(path, move |peer| {
            // A gateway that closes the connection ends it.
            let _ = shared.serve(peer);
        });
        (daemon, origin.unwrap())
    }

    fn serve(&self, mut peer: Peer) -> anyhow::Result<()> {
        while let Ok(request) = peer.read_request() {
            let (_, target) = request.head.request_line().unwrap();
            let mut state = self.state.lock().unwrap();
            if state.is_away {
                return Ok(());
            }
            if target.starts_with("/events?filters=") {
                let (tell, told) = channel();
                state.listeners.push(tell);
                drop(state);
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                for event in told {
                    peer.send(format!("{:x}\r\n{event}\r\n", event.len()))?;
                }
                return Ok(());
            }
            assert!(target.starts_with("/containers/json?filters="), "{target}");
            let body = state.containers.iter().map(container).collect::<Value>().to_string();
            drop(state);
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))?;
        }
        Ok(())
    }

    /// Changes the containers, and reports an event.
    fn change(&self, id: &str, port: Option<u16>) {
        let mut state = self.state.lock().unwrap();
        let action = match port {
            Some(port) => state.containers.insert(id.to_owned(), port).map_or("start", |_| "rename"),
            None => state.containers.remove(id).map_or("kill", |_| "die"),
        };
        let event = json!({
            "Type": "container", "Action": action, "Actor": { "ID": id, "Attributes": { "sigma.service": "web" } }
        });
        state.listeners.retain(|listener| listener.send(format!("{event}\n")).is_ok());
    }

    fn set_away(&self, is_away: bool) {
        let mut state = self.state.lock().unwrap();
        (state.is_away, state.listeners) = (is_away, Vec::new());
    }
}

fn container((id, port): (&String, &u16)) -> Value {
    json!({
        "Id": id, "Names": [format!("/{id}")], "State": "running", "Status": "Up 2 minutes",
        "Labels": { "sigma.service": "web", "sigma.port": port.to_string() }, "Ports": [],
        "NetworkSettings": { "Networks": { "front": { "IPAddress": "127.0.0.1" } } },
    })
}

fn config(registry: &str, more: &str) -> String {
    format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ncontrol: {{ address: \"{{control}}\" }}\ndiscovery:\n  {more}\n  last_good: {{ path: \"{{dir}}/lists.json\" }}\nroutes:\n  - id: all\n    uri: \"/*\"\n    upstream: {{ service_name: web, discovery_type: {registry} }}\n"
    )
}

#[test]
fn nodes_follow_containers_of_docker_and_outlive_it() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("docker.sock");
    let (daemon, origin) = Daemon::start(&socket);
    let text = config("docker", &format!("docker: {{ endpoint: \"unix://{}\" }}", socket.display()));
    let mut gateway = Gateway::start(SIGMA, &text).unwrap();
    assert_eq!(who(&gateway), "503", "there is no container yet");
    daemon.change("one", Some(a.port()));
    assert!(until(PATIENCE, || who(&gateway) == "a"), "{}", gateway.stderr());
    daemon.change("two", Some(b.port()));
    assert!(until(PATIENCE, || who(&gateway) == "b"), "{}", gateway.stderr());
    daemon.change("one", None);
    assert!(until(PATIENCE, || (0..4).all(|_| who(&gateway) == "b")), "{}", gateway.stderr());
    let control = Operator::new(gateway.control_address());
    let dump = control.get("/v1/discovery/docker/dump").unwrap();
    assert_eq!(dump["services"]["web"], json!([{ "host": "127.0.0.1", "port": b.port(), "weight": 1 }]));

    // A daemon that is away changes nothing; what happened meanwhile is read again.
    daemon.set_away(true);
    gateway.await_log("the last list stays in use");
    assert_eq!(who(&gateway), "b");
    daemon.change("three", Some(a.port()));
    daemon.change("two", None);
    daemon.set_away(false);
    assert!(until(PATIENCE, || (0..4).all(|_| who(&gateway) == "a")), "{}", gateway.stderr());

    // A start without the daemon serves by the last good list.
    let lists = gateway.dir().join("lists.json");
    let is_kept = || std::fs::read_to_string(&lists).is_ok_and(|text| text.contains(&a.port().to_string()));
    assert!(until(PATIENCE, is_kept));
    drop(origin);
    daemon.set_away(true);
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert!(until(PATIENCE, || who(&gateway) == "a"), "{}", gateway.stderr());
}

#[test]
fn nodes_follow_services_of_nomad() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let state = Arc::new((Mutex::new((1_u64, a.port())), Condvar::new()));
    let shared = Arc::clone(&state);
    let nomad = Origin::answer(move |request| {
        let (_, target) = request.head.request_line().unwrap();
        assert!(target.starts_with("/v1/service/web?namespace=shop"), "{target}");
        assert_eq!(request.head.get("x-nomad-token"), Some("hush"));
        let known: u64 = target
            .split_once("&index=")
            .map_or(0, |(_, rest)| rest.split('&').next().unwrap().parse().unwrap());
        let (lock, changed) = &*shared;
        let is_old = |state: &mut (u64, u16)| state.0 == known;
        let waited = changed.wait_timeout_while(lock.lock().unwrap(), Duration::from_secs(1), is_old);
        let (index, port) = *waited.unwrap().0;
        let body = json!([{ "Address": "127.0.0.1", "Port": port, "Tags": ["sigma.weight=3"], "Datacenter": "dc1" }]);
        let body = body.to_string();
        format!("HTTP/1.1 200 OK\r\nX-Nomad-Index: {index}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    });
    let nomad = nomad.unwrap();
    let settings = format!(
        "nomad: {{ servers: [\"http://127.0.0.1:{}\"], token: hush, namespace: shop }}",
        nomad.port()
    );
    let gateway = Gateway::start(SIGMA, &config("nomad", &settings)).unwrap();
    assert!(until(PATIENCE, || who(&gateway) == "a"), "{}", gateway.stderr());
    *state.0.lock().unwrap() = (2, b.port());
    state.1.notify_all();
    assert!(until(PATIENCE, || who(&gateway) == "b"), "{}", gateway.stderr());
    let dump = Operator::new(gateway.control_address()).get("/v1/discovery/nomad/dump").unwrap();
    assert_eq!(dump["services"]["web"], json!([{ "host": "127.0.0.1", "port": b.port(), "weight": 3 }]));
    assert_eq!((&dump["config"]["token"], &dump["config"]["namespace"]), (&json!("***"), &json!("shop")));
    assert!(!gateway.stderr().contains("hush"), "no secret is logged");
}

#[test]
fn settings_of_containers_are_strict() {
    let refused = |settings: &str, want: &str| {
        let error = Gateway::start(SIGMA, &config("docker", settings)).map(drop).unwrap_err();
        let shown = format!("{error:#}");
        assert!(shown.contains(want), "{shown}");
    };
    refused("docker: { endpoint: \"tcp://127.0.0.1:2375\" }", "write tcp://host:port as http://host:port");
    refused("docker: { netwrk: front }", "did you mean `network`?");
    refused("docker: { ca: /x.pem }", "the endpoint has no TLS");
    refused("nomad: { servers: [\"http://127.0.0.1:1\"] }", "the registry `docker` has no settings");
}
