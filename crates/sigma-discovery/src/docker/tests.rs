//! Docker on the wire: the forms come from version 27 of the Engine API.

use std::sync::Arc;

use super::*;
use crate::list_watch::ListWatch;
use crate::scripted::Scripted;
use crate::source::Source;

fn container(id: &str, more: Value) -> Value {
    let mut container = json!({
        "Id": id, "Names": [format!("/{id}-1")], "Image": "web:1", "State": "running", "Status": "Up 2 minutes",
        "Labels": { "sigma.service": "web" },
        "Ports": [
            { "PrivatePort": 9090, "Type": "tcp" },
            { "IP": "0.0.0.0", "PrivatePort": 8080, "PublicPort": 80, "Type": "tcp" },
            { "PrivatePort": 53, "Type": "udp" },
        ],
        "HostConfig": { "NetworkMode": "front" },
        "NetworkSettings": { "Networks": { "front": { "IPAddress": format!("10.0.0.{}", id.len()) } } },
    });
    container.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    container
}

fn event(kind: &str, action: &str, id: &str, attributes: Value) -> String {
    let event = json!({
        "status": action, "id": id, "Type": kind, "Action": action, "scope": "local", "time": 1_700_000_000,
        "Actor": { "ID": id, "Attributes": attributes },
    });
    format!("{event}\n")
}

fn settings(more: Value) -> Docker {
    serde_json::from_value(more).expect("settings")
}

fn shown(listing: &Listing) -> Vec<String> {
    let node = |node: &Node| format!("{}:{}*{}", node.host, node.port.unwrap_or(0), node.weight);
    let of = |(service, nodes): (&Arc<str>, &Arc<[Node]>)| {
        format!("{service} = {}", nodes.iter().map(node).collect::<Vec<_>>().join(" "))
    };
    listing.iter().map(of).collect()
}

/// The nodes of a list, or None if it is refused.
fn read(docker: Value, list: Value) -> Option<Vec<String>> {
    let mut containers = Containers::new(&settings(docker), &Env::of(10, 5));
    containers.known = containers.read(&list)?;
    Some(shown(&containers.listing()))
}

#[test]
fn labels_and_ports_of_a_container_make_a_node() {
    let check = |docker: Value, more: Value, want: &[&str]| {
        assert_eq!(read(docker, json!([container("a", more.clone())])).expect("a list"), want, "{more}");
    };
    let labels = |more: Value| {
        let mut all = json!({ "sigma.service": "web" });
        all.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        json!({ "Labels": all })
    };
    check(json!({}), json!({}), &["web = 10.0.0.1:8080*1"]);
    check(json!({ "weight": 9 }), json!({}), &["web = 10.0.0.1:8080*9"]);
    let chosen = labels(json!({ "sigma.port": "81", "sigma.weight": "5" }));
    check(json!({}), chosen, &["web = 10.0.0.1:81*5"]);
    for wrong in [
        labels(json!({ "sigma.port": "0" })),
        labels(json!({ "sigma.port": "80x" })),
        labels(json!({ "sigma.weight": "-1" })),
        labels(json!({ "sigma.service": " " })),
        labels(json!({ "sigma.network": "other" })),
        json!({ "Ports": [] }),
        json!({ "Ports": [{ "PrivatePort": 53, "Type": "udp" }] }),
        json!({ "State": "paused" }),
        json!({ "Status": "Up 1 second (health: starting)" }),
        json!({ "Status": "Up 1 minute (unhealthy)" }),
        json!({ "NetworkSettings": { "Networks": { "front": { "IPAddress": "" } } } }),
        json!({ "NetworkSettings": { "Networks": { "front": { "IPAddress": "/run/s" } } } }),
        json!({ "NetworkSettings": {} }),
    ] {
        check(json!({}), wrong, &[]);
    }
    check(json!({}), json!({ "Status": "Up 1 minute (healthy)" }), &["web = 10.0.0.1:8080*1"]);
}

#[test]
fn the_address_is_one_of_the_chosen_network() {
    let networks = |label: Option<&str>| {
        let mut labels = json!({ "sigma.service": "web", "com.docker.compose.project": "shop" });
        if let Some(label) = label {
            labels["sigma.network"] = label.into();
        }
        json!([container(
            "a",
            json!({ "Labels": labels, "NetworkSettings": { "Networks": {
            "shop_front": { "IPAddress": "10.0.1.1" },
            "back": { "IPAddress": "", "GlobalIPv6Address": "fd00::1" },
            "down": { "IPAddress": "" },
        } } })
        )])
    };
    let check = |docker: Value, label: Option<&str>, want: &[&str]| {
        assert_eq!(read(docker, networks(label)).expect("a list"), want, "{label:?}");
    };
    check(json!({}), None, &[]);
    check(json!({}), Some("front"), &["web = 10.0.1.1:8080*1"]);
    check(json!({}), Some("shop_front"), &["web = 10.0.1.1:8080*1"]);
    check(json!({ "network": "front" }), Some("back"), &["web = fd00::1:8080*1"]);
    check(json!({ "network": "back" }), None, &["web = fd00::1:8080*1"]);
    check(json!({ "network": "down" }), None, &[]);
    let host = || {
        let labels = json!({ "sigma.service": "web", "sigma.port": "81" });
        let networks = json!({ "Networks": { "host": { "IPAddress": "" } } });
        let mode = json!({ "NetworkMode": "host" });
        json!([container("a", json!({ "Labels": labels, "NetworkSettings": networks, "HostConfig": mode }))])
    };
    assert_eq!(read(json!({}), host()).expect("a list"), [""; 0]);
    assert_eq!(
        read(json!({ "host_address": "127.0.0.1" }), host()).expect("a list"),
        ["web = 127.0.0.1:81*1"]
    );
}

#[test]
fn invalid_lists_are_refused_and_single_entries_are_left_out() {
    let many: Vec<Value> = (0..6).map(|n| container(&"x".repeat(n + 1), json!({}))).collect();
    for refused in
        [json!({}), json!(null), json!("[]"), json!([7, null, {}]), json!([{ "Id": "a" }]), json!(many)]
    {
        assert_eq!(read(json!({}), refused.clone()), None, "{refused}");
    }
    let mixed = json!([7, { "Labels": {} }, container("aa", json!({})), { "Id": 7, "Labels": {} }]);
    assert_eq!(read(json!({}), mixed), Some(vec!["web = 10.0.0.2:8080*1".to_owned()]));
    assert_eq!(read(json!({}), json!([])), Some(Vec::new()));
}

/// The decoded filters in a target.
fn filters(target: &str, path: &str) -> Value {
    let text = target.strip_prefix(path).and_then(|rest| rest.strip_prefix("?filters=")).expect(target);
    let text = percent_encoding::percent_decode_str(text).decode_utf8().expect("UTF-8");
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test]
async fn events_remove_containers_and_lead_to_another_list() {
    let server = Scripted::start();
    let docker = json!({ "endpoint": server.address().base(), "labels": ["env=prod"] });
    let mut source = ListWatch::new(Containers::new(&settings(docker), &Env::of(10, 5)), &Env::of(10, 5));
    let ours = || json!({ "sigma.service": "web", "name": "aaa-1" });
    let events = [
        event("container", "start", "x", json!({ "name": "other" })),
        event("network", "connect", "n", json!({ "container": "x" })),
        event("container", "die", "x", json!({ "name": "other" })),
        event("container", "die", "aa", ours()),
        event("container", "exec_start: curl", "x", json!({})),
        event("container", "start", "aaa", ours()),
    ];
    server.answer("200 OK", "", &events[..5].concat());
    server.answer("200 OK", "", &json!([container("a", json!({})), container("aa", json!({}))]).to_string());
    let first = source.next().await.expect("a listing");
    assert_eq!(shown(&first), ["web = 10.0.0.1:8080*1 10.0.0.2:8080*1"]);
    let (asked, _) = server.asked("host");
    assert_eq!(filters(&asked, "/events"), json!({ "type": ["container", "network"], "event": EVENTS }));
    let (asked, _) = server.asked("host");
    let want = json!({ "status": ["running"], "label": ["sigma.service", "env=prod"] });
    assert_eq!(filters(&asked, "/containers/json"), want);
    assert!(!source.is_certain());

    // The daemon names the end of a container: that is certain.
    assert_eq!(shown(&source.next().await.expect("a listing")), ["web = 10.0.0.1:8080*1"]);
    assert!(source.is_certain());
    // The stream has ended: everything is read again. Then a container starts.
    server.answer("200 OK", "", &events[5]);
    server.answer("200 OK", "", &json!([container("a", json!({}))]).to_string());
    assert_eq!(shown(&source.next().await.expect("a listing")), ["web = 10.0.0.1:8080*1"]);
    server.answer("200 OK", "", "");
    server.answer("200 OK", "", &json!([container("a", json!({})), container("aaa", json!({}))]).to_string());
    let started = source.next().await.expect("a listing");
    assert_eq!(shown(&started), ["web = 10.0.0.1:8080*1 10.0.0.3:8080*1"]);
    assert!(!source.is_certain());
}

#[test]
fn events_of_nodes_matter() {
    let mut containers = Containers::new(&settings(json!({})), &Env::of(10, 5));
    let list = json!([container("a", json!({}))]);
    containers.known = containers.read(&list).expect("a list");
    let mut check = |event: String, want: Heard| {
        let event = serde_json::from_str(&event).expect("JSON");
        assert_eq!(containers.hear(&event), want, "{event}");
    };
    let ours = || json!({ "sigma.service": "web" });
    check(event("container", "health_status: healthy", "b", ours()), Heard::Gone);
    check(event("container", "health_status: healthy", "b", json!({})), Heard::Nothing);
    check(event("container", "unpause", "b", ours()), Heard::Gone);
    check(event("network", "disconnect", "n", json!({ "container": "a" })), Heard::Gone);
    check(event("network", "disconnect", "n", json!({ "container": "b" })), Heard::Nothing);
    check(event("image", "pull", "i", json!({})), Heard::Nothing);
    check("7".to_owned(), Heard::Nothing);
    check(event("container", "pause", "b", ours()), Heard::Nothing);
    check(event("container", "pause", "a", ours()), Heard::Change);
    check(event("container", "die", "a", ours()), Heard::Nothing);
}

#[tokio::test]
async fn failures_of_the_daemon_are_errors() {
    let server = Scripted::start();
    let docker = json!({ "endpoint": server.address().base() });
    let mut source = ListWatch::new(Containers::new(&settings(docker), &Env::of(10, 5)), &Env::of(10, 5));
    server.answer("403 Forbidden", "", "");
    let trouble = source.next().await.expect_err("an error").0;
    assert!(trouble.contains("responded with status 403"), "{trouble}");
    server.answer("200 OK", "", "");
    server.answer("200 OK", "", "{\"message\": \"no\"}");
    let trouble = source.next().await.expect_err("an error").0;
    assert!(trouble.contains("returned no list of containers"), "{trouble}");
    server.answer("200 OK", "", "");
    server.answer("500 Internal Server Error", "", "");
    assert!(source.next().await.is_err());
    let dir = tempfile::tempdir().expect("a folder");
    let missing = dir.path().join("docker.sock").display().to_string();
    let docker = json!({ "endpoint": format!("unix://{missing}") });
    let mut source = ListWatch::new(Containers::new(&settings(docker), &Env::of(10, 5)), &Env::of(10, 5));
    let trouble = source.next().await.expect_err("an error").0;
    assert!(trouble.contains(&missing), "{trouble}");
    let docker = json!({ "endpoint": "https://127.0.0.1:1", "certificate": missing, "key": missing });
    let mut source = ListWatch::new(Containers::new(&settings(docker), &Env::of(10, 5)), &Env::of(10, 5));
    let trouble = source.next().await.expect_err("an error").0;
    assert!(trouble.contains("cannot read"), "{trouble}");
}
