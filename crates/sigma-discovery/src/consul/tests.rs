//! Consul as it answers on the wire: the answers are those of 1.18.

use serde_json::json;
use sigma_config::discovery::RegistryAddress;

use super::*;
use crate::scripted::Scripted;

fn entry(address: &str, port: u16) -> Value {
    json!({
        "Node": {"ID": "5d4a", "Node": "n1", "Address": "10.9.9.9", "Datacenter": "dc1", "Meta": {}},
        "Service": {
            "ID": format!("web-{port}"), "Service": "web", "Tags": ["v2"], "Address": address,
            "Meta": {"version": "2"}, "Port": port, "Weights": {"Passing": 1, "Warning": 1}
        },
        "Checks": [{"Node": "n1", "CheckID": "serfHealth", "Status": "passing"}]
    })
}

fn source(servers: &[RegistryAddress], more: Value, args: Option<Value>) -> ConsulService {
    let mut settings = json!({ "servers": servers });
    settings.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let settings: Consul = serde_json::from_value(settings).expect("settings");
    let args: Option<DiscoveryArgs> = args.map(|args| serde_json::from_value(args).expect("arguments"));
    ConsulService::new(client(settings.timeout, &Env::of(100, 100)), &settings, "web", args.as_ref(), 100)
}

fn shown(listing: Result<Listing, Trouble>) -> Vec<String> {
    let listing = listing.expect("a listing");
    let shown = |node: &Node| format!("{}:{} {}", node.host, node.port.unwrap_or(0), node.weight);
    listing["web"].iter().map(shown).collect()
}

#[tokio::test]
async fn a_question_waits_for_the_next_index() {
    let server = Scripted::start();
    let more = json!({ "token": "hush", "weight": 7, "timeout": { "wait": 5 } });
    let args = json!({ "datacenter": "dc 2", "tags": ["v2", "a&b"] });
    let mut source = source(&[server.address()], more, Some(args));
    let target = "/v1/health/service/web?passing=true&dc=dc%202&tag=v2&tag=a%26b";
    let answer = |index: &str, entries: &[Value]| {
        let head = format!("X-Consul-Index: {index}\r\nX-Consul-Knownleader: true\r\n");
        server.answer("200 OK", &head, &Value::from(entries).to_string());
    };
    let asked = |index: Option<u32>| {
        let (asked, token) = server.asked("x-consul-token");
        let want = index.map_or_else(|| target.to_owned(), |index| format!("{target}&index={index}&wait=5s"));
        assert_eq!((asked, token.as_deref()), (want, Some("hush")));
    };
    answer("20", &[entry("10.0.0.2", 81), entry("", 0), entry("10.0.0.2", 81), entry("unix:/s", 1)]);
    let first = source.next().await.expect("a listing");
    assert_eq!(first["web"][0].metadata.as_ref().map(|meta| &meta["version"]), Some(&json!("2")));
    assert_eq!(shown(Ok(first)), ["10.0.0.2:81 7", "10.9.9.9:80 7"]);
    asked(None);
    // The time is over and nothing has changed: nothing is told. Then something has.
    answer("20", &[entry("10.0.0.2", 81)]);
    answer("25", &[entry("10.0.0.3", 81)]);
    assert_eq!(shown(source.next().await), ["10.0.0.3:81 7"]);
    asked(Some(20));
    asked(Some(20));
    // The index goes back, as after a restore: the question after that does not wait.
    answer("3", &[]);
    assert_eq!(shown(source.next().await), [""; 0]);
    asked(Some(25));
    answer("4", &[entry("10.0.0.4", 81)]);
    assert_eq!(shown(source.next().await), ["10.0.0.4:81 7"]);
    asked(None);
    answer("4", &[]);
    answer("5", &[]);
    assert_eq!(shown(source.next().await), [""; 0]);
    asked(Some(4));
}

#[tokio::test]
async fn without_an_index_it_is_asked_at_intervals() {
    let server = Scripted::start();
    let mut polled = source(&[server.address()], json!({ "keepalive": false, "fetch_interval": 1 }), None);
    for index in ["X-Consul-Index: 9\r\n", "", "X-Consul-Index: x\r\n"] {
        server.answer("200 OK", index, "[]");
        assert_eq!(shown(polled.next().await), [""; 0]);
        assert_eq!(server.asked("host").0, "/v1/health/service/web?passing=true");
    }
}

#[tokio::test]
async fn what_is_no_list_of_services_is_an_error() {
    let server = Scripted::start();
    let mut source = source(&[server.address()], json!({ "token": "hush" }), None);
    let long = format!("[\"{}\"]", "x".repeat(1 << 16));
    let cases = [
        ("403 Forbidden", "Permission denied", "answered status 403"),
        ("500 Internal Server Error", "No cluster leader", "answered status 500"),
        ("200 OK", "<html>", "answered no JSON"),
        ("200 OK", "{}", "something else"),
        ("200 OK", "[{\"Node\": {}}]", "something else"),
        ("200 OK", "[{\"Service\": ", "answered no JSON"),
        ("200 OK", &long, "more than 65536 bytes"),
        ("302 Found", "", "answered status 302"),
        ("404 Not Found", "", "answered status 404"),
    ];
    for (status, body, want) in cases {
        // A redirect would take the token elsewhere.
        let head = "X-Consul-Index: 9\r\nLocation: http://127.0.0.1:1/v1/health/service/web\r\n";
        server.answer(status, head, body);
        let trouble = source.next().await.expect_err("an error").0;
        assert!(trouble.contains(want) && !trouble.contains("hush"), "{status} {body:.20}: {trouble}");
        assert_eq!(server.asked("host").0, "/v1/health/service/web?passing=true");
    }
    // Too slow.
    let hasty = json!({ "timeout": { "connect": 50, "read": 50 } });
    let slow = self::source(&[server.address()], hasty, None).next().await.expect_err("an error").0;
    assert!(slow.contains("did not answer in time"), "{slow}");
    server.answer("200 OK", "", "[]");
    // Broken off in the middle, and nobody there at all.
    server.answer("200 OK", "X-Consul-Index: 9\r\nConnection: close\r\nContent-Length: 99\r\n", "[");
    assert!(source.next().await.is_err());
    drop(server);
    assert!(source.next().await.is_err());
}

#[tokio::test]
async fn another_agent_is_asked_when_one_fails() {
    let (first, second) = (Scripted::start(), Scripted::start());
    let mut source = source(&[first.address(), second.address()], json!({}), None);
    first.answer("200 OK", "X-Consul-Index: 20\r\n", &json!([entry("10.0.0.1", 80)]).to_string());
    assert_eq!(shown(source.next().await), ["10.0.0.1:80 1"]);
    first.asked("host");
    first.answer("500 Internal Server Error", "", "");
    second.answer("200 OK", "X-Consul-Index: 7\r\n", &json!([entry("10.0.0.2", 80)]).to_string());
    assert_eq!(shown(source.next().await), ["10.0.0.2:80 1"]);
    // Where the first was is nothing to the second.
    assert_eq!(second.asked("host").0, "/v1/health/service/web?passing=true");
}

#[test]
fn nodes_can_be_sorted() {
    let nodes = || {
        let places = [("10.0.0.2", 81), ("10.0.0.1", 82), ("10.0.0.2", 80)];
        places.map(|(host, port)| node::node(host, Some(port), 1).expect("a node")).to_vec()
    };
    let ports = |sort| sorted(nodes(), sort).iter().map(|node| node.port.unwrap_or(0)).collect::<Vec<_>>();
    assert_eq!(ports(SortType::Origin), [81, 82, 80]);
    assert_eq!(ports(SortType::HostSort), [82, 81, 80]);
    assert_eq!(ports(SortType::PortSort), [80, 81, 82]);
    assert_eq!(ports(SortType::CombineSort), [82, 80, 81]);
}
