//! Consul on the wire: the responses come from version 1.18.

use serde_json::json;
use sigma_config::discovery::RegistryAddress;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

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
    ConsulService::new(agent(&settings), &settings, "web", args.as_ref(), 100)
}

fn agent(settings: &Consul) -> Arc<Agent> {
    Agent::new(settings.agents.timeout, settings.max_blocking_queries, &Env::of(100, 100))
}

fn shown(listing: Result<Listing, Trouble>) -> Vec<String> {
    let listing = listing.expect("a listing");
    let shown = |node: &Node| format!("{}:{} {}", node.host, node.port.unwrap_or(0), node.weight);
    listing["web"].iter().map(shown).collect()
}

#[tokio::test]
async fn a_request_waits_for_the_next_index() {
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
    // The wait ends without a change: nothing is reported. Then there is a change.
    answer("20", &[entry("10.0.0.2", 81)]);
    answer("25", &[entry("10.0.0.3", 81)]);
    assert_eq!(shown(source.next().await), ["10.0.0.3:81 7"]);
    asked(Some(20));
    asked(Some(20));
    // The index goes back, as after a restore: the next request does not wait.
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
async fn without_an_index_it_polls() {
    let server = Scripted::start();
    let mut polled = source(&[server.address()], json!({ "keepalive": false, "fetch_interval": 1 }), None);
    for index in ["X-Consul-Index: 9\r\n", "", "X-Consul-Index: x\r\n"] {
        server.answer("200 OK", index, "[]");
        assert_eq!(shown(polled.next().await), [""; 0]);
        assert_eq!(server.asked("host").0, "/v1/health/service/web?passing=true");
    }
}

#[test]
fn a_malformed_entry_is_left_out_and_the_others_stay() {
    for malformed in [
        json!({"Node": {"Address": "10.0.0.9"}, "Checks": []}),
        json!({}),
        json!(null),
        json!("web"),
        json!([]),
        json!(7),
        json!({"Service": null}),
        json!({"Service": "web"}),
        json!({"Service": {}, "Node": "n1"}),
        json!({"Service": {"Address": 7, "Port": 80}}),
        json!({"Service": {"Address": "unix:/run/s", "Port": 80}}),
    ] {
        let answer = json!([entry("10.0.0.1", 81), malformed, entry("10.0.0.2", 81)]);
        let hosts =
            nodes(&answer, 1).map(|nodes| nodes.iter().map(|n| n.host.to_string()).collect::<Vec<_>>());
        assert_eq!(hosts, Some(vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()]), "{malformed}");
    }
}

#[tokio::test]
async fn invalid_lists_are_errors() {
    let server = Scripted::start();
    let mut source = source(&[server.address()], json!({ "token": "hush" }), None);
    let long = format!("[\"{}\"]", "x".repeat(1 << 16));
    let cases = [
        ("403 Forbidden", "Permission denied", "responded with status 403"),
        ("500 Internal Server Error", "No cluster leader", "responded with status 500"),
        ("200 OK", "<html>", "did not return JSON"),
        ("200 OK", "{}", "unexpected response"),
        ("200 OK", "[{\"Node\": {}}]", "unexpected response"),
        ("200 OK", "[{\"Service\": ", "did not return JSON"),
        ("200 OK", &long, "exceeds 65536 bytes"),
        ("302 Found", "", "responded with status 302"),
        ("404 Not Found", "", "responded with status 404"),
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
    assert!(slow.contains("did not respond in time"), "{slow}");
    server.answer("200 OK", "", "[]");
    // Cut in the middle, and no server at all.
    server.answer("200 OK", "X-Consul-Index: 9\r\nConnection: close\r\nContent-Length: 99\r\n", "[");
    assert!(source.next().await.is_err());
    drop(server);
    assert!(source.next().await.is_err());
}

#[tokio::test]
async fn another_agent_is_tried_when_one_fails() {
    let (first, second) = (Scripted::start(), Scripted::start());
    let mut source = source(&[first.address(), second.address()], json!({}), None);
    first.answer("200 OK", "X-Consul-Index: 20\r\n", &json!([entry("10.0.0.1", 80)]).to_string());
    assert_eq!(shown(source.next().await), ["10.0.0.1:80 1"]);
    first.asked("host");
    first.answer("500 Internal Server Error", "", "");
    second.answer("200 OK", "X-Consul-Index: 7\r\n", &json!([entry("10.0.0.2", 80)]).to_string());
    assert_eq!(shown(source.next().await), ["10.0.0.2:80 1"]);
    // The second starts without the index of the first.
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

/// A Consul of the test whose services all change at once. It counts its connections.
#[derive(Default)]
struct Crowd {
    index: tokio::sync::watch::Sender<u64>,
    connections: AtomicU32,
    most: AtomicU32,
}

impl Crowd {
    async fn start() -> (Arc<Crowd>, RegistryAddress) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let crowd = Arc::<Crowd>::default();
        crowd.index.send_replace(1);
        let serving = Arc::clone(&crowd);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let crowd = Arc::clone(&serving);
                tokio::spawn(async move {
                    let open = crowd.connections.fetch_add(1, Ordering::Relaxed) + 1;
                    crowd.most.fetch_max(open, Ordering::Relaxed);
                    let _ = crowd.serve(socket).await;
                    crowd.connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        (crowd, address.parse().expect("an address"))
    }

    async fn serve(&self, socket: TcpStream) -> std::io::Result<()> {
        let mut socket = BufReader::new(socket);
        let mut index = self.index.subscribe();
        loop {
            let (mut first, mut line) = (String::new(), String::new());
            if socket.read_line(&mut first).await? == 0 {
                return Ok(());
            }
            while line != "\r\n" {
                line.clear();
                socket.read_line(&mut line).await?;
            }
            let number = |name: &str| -> Option<u64> {
                let (_, rest) = first.split_once(name)?;
                rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
            };
            if let (Some(known), Some(wait)) = (number("&index="), number("&wait=")) {
                let news = index.wait_for(|index| *index > known);
                // The test waits only in milliseconds.
                let _ = tokio::time::timeout(Duration::from_millis(wait), news).await;
            }
            let now = *index.borrow();
            let head = format!("HTTP/1.1 200 OK\r\nX-Consul-Index: {now}\r\nContent-Length: 2\r\n\r\n[]");
            socket.write_all(head.as_bytes()).await?;
        }
    }
}

#[tokio::test]
async fn a_thousand_services_take_turns_at_fewer_connections_than_consul_allows() {
    let (crowd, address) = Crowd::start().await;
    let settings = json!({ "servers": [address], "timeout": { "connect": 20_000, "read": 20_000 } });
    let settings: Consul = serde_json::from_value(settings).expect("settings");
    let agent = agent(&settings);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut asking = tokio::task::JoinSet::new();
    for service in 0..1000 {
        let mut source = ConsulService::new(Arc::clone(&agent), &settings, &service.to_string(), None, 100);
        let tell = tell.clone();
        asking.spawn(async move { while source.next().await.is_ok() && tell.send(()).is_ok() {} });
    }
    assert_eq!(agent.wait(Duration::from_secs(60)), Duration::from_millis(900));
    for round in 0..3 {
        for answered in 0..1000 {
            let next = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
            assert!(next.is_ok(), "round {round}: {answered} answered");
        }
        crowd.index.send_modify(|index| *index += 1);
    }
    let most = crowd.most.load(Ordering::Relaxed);
    assert!((90..=180).contains(&most), "{most} connections");
    asking.shutdown().await;
    assert_eq!(agent.wait(Duration::from_secs(60)), Duration::from_secs(60));
}
