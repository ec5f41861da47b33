//! Stream routes: sessions of other protocols than HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::gateway::{ACCESS_LOG, Gateway, joined, managed};
use super::peers::Node;
use super::tls::{Authority, over_tls, shake};
use super::{LISTEN, LOOPBACK, Simulation, example};

/// A node that sends its name, then sends back its input, and ends when the client does.
pub(super) fn parrot(simulation: &Simulation, name: &str) -> Node {
    let greeting = format!("{name}\r\n");
    simulation.serve(move |mut client| {
        let greeting = greeting.clone();
        async move {
            if client.send(greeting).await.is_ok() {
                let bytes = client.rest().await;
                // A client may leave before.
                let _ = client.send(bytes).await;
            }
        }
    })
}

/// A configuration with one listener for streams.
pub(super) fn config(mut listener: Value, rest: Value) -> Value {
    listener["address"] = LISTEN.to_string().into();
    joined(json!({ "listeners": [listener] }), rest)
}

fn tcp(routes: Value) -> Value {
    config(json!({ "stream": "tcp" }), json!({ "stream_routes": routes }))
}

pub(super) fn upstream(nodes: &[SocketAddr]) -> Value {
    let nodes: serde_json::Map<String, Value> =
        nodes.iter().map(|node| (node.to_string(), json!(1))).collect();
    json!({ "scheme": "tcp", "nodes": nodes })
}

/// A session's greeting, and the response to `sent`.
pub(super) fn talk(gateway: &Gateway, sent: &str) -> (String, String) {
    let mut client = gateway.connect();
    let greeting = client.line();
    client.send(sent);
    client.finish();
    (greeting, String::from_utf8(client.whole_rest().unwrap()).unwrap())
}

/// The time in which a session that is refused ends.
const END: Duration = Duration::from_secs(2);

/// The session ends without a byte.
pub(super) fn is_closed(gateway: &Gateway) -> bool {
    gateway.connect().rest_within(END).is_ok_and(|bytes| bytes.is_empty())
}

#[test]
fn bytes_pass_both_ways_and_each_side_ends_for_itself() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let gateway = simulation.gateway(tcp(json!([{ "upstream": upstream(&[node.address]) }])));
        assert_eq!(talk(&gateway, "hello"), ("one".to_owned(), "hello".to_owned()));
        // More than any buffer on the way holds.
        let large = "0123456789abcdef".repeat(1 << 18);
        assert_eq!(talk(&gateway, &large).1.len(), large.len());
        let counted = simulation.until(|| {
            gateway.counter("sigma_stream_bytes_in_total") >= large.len() as u64
                && gateway.counter("sigma_stream_bytes_out_total") > large.len() as u64
        });
        assert!(counted);
    });
}

#[test]
fn nodes_that_refuse_are_passed_over_and_no_node_closes() {
    example(|simulation| {
        let (node, dead) = (parrot(simulation, "alive"), simulation.free_address());
        let gateway = simulation.gateway(tcp(json!([{ "upstream": upstream(&[dead, node.address]) }])));
        for _ in 0..6 {
            assert_eq!(talk(&gateway, "x").0, "alive");
        }
        gateway.change(tcp(json!([{ "upstream": upstream(&[dead]) }])));
        assert!(is_closed(&gateway));
    });
}

/// As for requests, the error log names the route, the client and the node of a session that found no node.
#[test]
fn logs_name_a_session_whose_nodes_refuse() {
    example(|simulation| {
        let dead = simulation.free_address();
        let gateway = simulation.gateway(tcp(json!([{ "id": "db", "upstream": upstream(&[dead]) }])));
        assert!(is_closed(&gateway));
        let node = format!("node={dead}");
        let words = [
            "a session failed",
            "reason=\"connection_refused\"",
            "client=127.0.0.1",
            "listener=127.0.0.1:",
            "route=\"db\"",
            &node,
        ];
        let is_named = || gateway.log().lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(simulation.until(is_named), "{}", gateway.log());
    });
}

/// Databases and brokers hold their connections for days: a change of the configuration does not end them.
#[test]
fn sessions_outlive_reloads_and_the_route_that_they_came_by() {
    example(|simulation| {
        let (one, two) = (parrot(simulation, "one"), parrot(simulation, "two"));
        let to = |node: &Node| tcp(json!([{ "upstream": upstream(&[node.address]) }]));
        let gateway = simulation.gateway(to(&one));
        let mut old = gateway.connect();
        assert_eq!(old.line(), "one");
        gateway.change(to(&two));
        assert_eq!(gateway.connect().line(), "two");
        gateway.change(tcp(json!([])));
        assert!(is_closed(&gateway));
        old.send("still here");
        old.finish();
        assert_eq!(old.whole_rest().unwrap(), b"still here");
    });
}

/// A cut transfer must not look whole to the other side.
#[test]
fn a_broken_side_breaks_the_other() {
    example(|simulation| {
        let (node, mut accepted) = simulation.scripted();
        let gateway = simulation.gateway(tcp(json!([{ "upstream": upstream(&[node.address]) }])));
        let mut pair = || {
            let mut client = gateway.connect();
            client.send("hello");
            let mut node = simulation.accept(&mut accepted);
            assert_eq!(node.exactly(5), b"hello");
            (client, node)
        };
        let (mut client, mut node) = pair();
        node.send("half an ans");
        assert_eq!(client.exactly(11), b"half an ans");
        node.reset();
        client.expect_reset();
        let (client, mut node) = pair();
        client.reset();
        node.expect_reset();
    });
}

#[test]
fn silence_ends_a_session() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let mut upstream = upstream(&[node.address]);
        upstream["timeout"] = json!({ "connect": 1, "send": 1, "read": 0.2 });
        let gateway = simulation.gateway(tcp(json!([{ "upstream": upstream }])));
        let mut client = gateway.connect();
        assert_eq!(client.line(), "one");
        client.expect_reset();
    });
}

#[test]
fn routes_are_found_by_address_and_plugins_refuse() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let to = upstream(&[node.address]);
        let closed = json!({ "blacklist": ["127.0.0.0/8"] });
        let elsewhere = upstream(&[simulation.free_address()]);
        let routes = |plugins: Value| {
            tcp(json!([
                { "id": "elsewhere", "remote_addr": "192.0.2.0/24", "upstream": elsewhere },
                { "id": "here", "server_addr": "127.0.0.1", "plugins": plugins, "upstream": to },
            ]))
        };
        let gateway = simulation.gateway(routes(json!({})));
        assert_eq!(talk(&gateway, "x").0, "one");
        gateway.change(routes(json!({ "ip-restriction": closed })));
        assert!(is_closed(&gateway));
        let limit = json!({ "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr" });
        gateway.change(routes(json!({ "limit-conn": limit })));
        let mut held = gateway.connect();
        assert_eq!(held.line(), "one");
        assert!(is_closed(&gateway), "one at a time");
        held.finish();
        held.whole_rest().unwrap();
        // The place is given back when the session has ended.
        assert!(simulation.until(|| !is_closed(&gateway)));
    });
}

#[test]
fn a_share_of_the_sessions_goes_elsewhere() {
    example(|simulation| {
        let (own, other) = (parrot(simulation, "own"), parrot(simulation, "other"));
        let plugins = json!({ "traffic-split": { "rules": [{
            "match": [{ "vars": [["server_port", "~~", "^[0-9]+$"]] }],
            "weighted_upstreams": [
                { "upstream": upstream(&[other.address]), "weight": 1 }, { "weight": 1 },
            ],
        }] } });
        let routes = json!([{ "plugins": plugins, "upstream": upstream(&[own.address]) }]);
        let gateway = simulation.gateway(tcp(routes));
        let names: Vec<String> = (0..20).map(|_| talk(&gateway, "x").0).collect();
        for expected in ["own", "other"] {
            assert!(names.iter().any(|name| name == expected), "{names:?}");
        }
    });
}

/// The packet with which a client of MQTT 3.1.1 begins.
fn mqtt_connect(client_id: &str) -> Vec<u8> {
    let mut body = b"\x00\x04MQTT\x04\x02\x00\x3c".to_vec();
    body.extend((client_id.len() as u16).to_be_bytes());
    body.extend(client_id.as_bytes());
    [vec![0x10, body.len() as u8], body].concat()
}

#[test]
fn clients_of_mqtt_keep_to_their_broker() {
    example(|simulation| {
        let brokers = ["a", "b", "c"].map(|name| parrot(simulation, name));
        let mut upstream = upstream(&brokers.each_ref().map(|broker| broker.address));
        (upstream["type"], upstream["key"]) = ("chash".into(), "mqtt_client_id".into());
        let routes = json!([{ "plugins": { "mqtt-proxy": { "protocol_level": 4 } }, "upstream": upstream }]);
        let gateway = simulation.gateway(tcp(routes));
        let broker_of = |client_id: &str| {
            let packet = mqtt_connect(client_id);
            let mut client = gateway.connect();
            // In pieces: it is looked at when it is whole, and forwarded as it was.
            packet.iter().for_each(|byte| client.send([*byte]));
            let name = client.line();
            client.finish();
            assert_eq!(client.whole_rest().unwrap(), packet);
            name
        };
        let first: Vec<String> = (0..12).map(|n| broker_of(&format!("sensor-{n}"))).collect();
        let again: Vec<String> = (0..12).map(|n| broker_of(&format!("sensor-{n}"))).collect();
        assert_eq!(first, again);
        assert!(first.iter().any(|name| *name != first[0]), "{first:?}");
        let mut other = gateway.connect();
        other.send("GET / HTTP/1.1\r\n\r\n");
        assert!(other.whole_rest().unwrap().is_empty());
    });
}

/// A server name decides where TLS ends: at the gateway, or at the node, which has the certificate.
#[test]
fn a_name_decides_where_tls_ends() {
    example(|simulation| {
        let (root, elsewhere) = (Authority::new("Root"), Authority::new("Elsewhere"));
        let plain = parrot(simulation, "plain");
        // Turns each input around.
        let node = over_tls(simulation, &elsewhere.issue("deep.pass.test"), async |mut stream| {
            let mut line = [0; 4];
            while stream.read_exact(&mut line).await.is_ok() {
                line[..3].reverse();
                stream.write_all(&line).await.unwrap();
                stream.flush().await.unwrap();
            }
        });
        let mut again = upstream(&[node.address]);
        again["scheme"] = "tls".into();
        let of_other = upstream(&[simulation.free_address()]);
        let ssls = [
            root.issue("here.test").ssl(json!({ "id": "here", "snis": ["here.test", "again.test"] })),
            root.issue("twice.test").ssl(json!({ "id": "twice", "sni": "twice.test" })),
        ];
        let rest = json!({
            "ssls": ssls,
            "stream_routes": [
                { "id": "here", "sni": "here.test", "upstream": upstream(&[plain.address]) },
                { "id": "again", "sni": "again.test", "upstream": again },
                { "id": "twice", "sni": "twice.test", "upstream": again },
                { "id": "pass", "sni": "*.pass.test", "tls": "passthrough", "upstream": upstream(&[node.address]) },
                { "id": "h2", "alpn": ["made-up"], "sni": "here.test", "upstream": of_other },
            ],
        });
        let gateway = simulation.gateway(config(json!({ "stream": "tls" }), rest));
        simulation.run(async {
            let ours = root.client(None);
            let mut stream = shake(&gateway, &ours, "here.test").await.unwrap();
            let mut greeting = [0; 7];
            stream.read_exact(&mut greeting).await.unwrap();
            assert_eq!(&greeting, b"plain\r\n");
            stream.write_all(b"bye").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = String::new();
            stream.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "bye");
            let reversed = async |client, name| {
                let mut stream = shake(&gateway, client, name).await.unwrap();
                stream.write_all(b"abc\n").await.unwrap();
                stream.flush().await.unwrap();
                let mut answer = [0; 4];
                stream.read_exact(&mut answer).await.unwrap();
                answer
            };
            // TLS ends here, and begins again towards the node.
            assert_eq!(&reversed(&ours, "twice.test").await, b"cba\n");
            // The certificate of the ssl is for one name only.
            assert!(shake(&gateway, &ours, "again.test").await.is_err());
            let theirs = elsewhere.client(None);
            assert_eq!(&reversed(&theirs, "deep.pass.test").await, b"cba\n");
            // The certificate of the node is not ours.
            assert!(shake(&gateway, &ours, "deep.pass.test").await.is_err());
            assert!(shake(&gateway, &ours, "nobody.test").await.is_err());
        });
    });
}

#[test]
fn a_client_without_its_certificate_gets_no_session() {
    example(|simulation| {
        let (root, clients) = (Authority::new("Root"), Authority::new("Clients"));
        let node = parrot(simulation, "one");
        // The paths that a request may be for without a certificate are no paths of a session.
        let client = json!({ "ca": clients.pem, "depth": 1, "skip_mtls_uri_regex": ["/.*"] });
        let rest = json!({
            "ssls": [root.issue("a.test").ssl(json!({ "id": "a", "snis": ["a.test"], "client": client }))],
            "stream_routes": [{ "sni": "a.test", "upstream": upstream(&[node.address]) }],
        });
        let gateway = simulation.gateway(config(json!({ "stream": "tls" }), rest));
        simulation.run(async {
            let greeting = async |own| {
                let client = root.client(own);
                let Ok(mut stream) = shake(&gateway, &client, "a.test").await else { return String::new() };
                let mut bytes = [0; 5];
                match stream.read_exact(&mut bytes).await {
                    Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
                    Err(_) => String::new(),
                }
            };
            let (good, bad) = (clients.issue("me"), root.issue("me"));
            assert_eq!(greeting(Some(&good)).await, "one\r\n");
            assert_eq!(greeting(None).await, "");
            assert_eq!(greeting(Some(&bad)).await, "");
        });
    });
}

#[test]
fn the_admin_api_changes_the_served_routes() {
    example(|simulation| {
        let (one, two) = (parrot(simulation, "one"), parrot(simulation, "two"));
        let gateway = simulation.gateway(config(json!({ "stream": "tcp" }), managed()));
        assert!(is_closed(&gateway), "no route is there yet");
        gateway.put("upstreams/db", &upstream(&[one.address]));
        gateway.put("stream_routes/1", &json!({ "upstream_id": "db" }));
        assert!(simulation.until(|| !is_closed(&gateway)));
        assert_eq!(talk(&gateway, "x").0, "one");
        gateway.put("upstreams/db", &upstream(&[two.address]));
        assert!(simulation.until(|| gateway.connect().line() == "two"));
        // One that cannot be served keeps its place: no session slips past it to the next.
        let unknown = json!({ "upstream_id": "db", "plugins": { "key-auth": {} } });
        let answer = gateway.admin("PUT", "stream_routes/1", Some(&unknown));
        assert_eq!((answer.status, answer.text.contains("unknown plugin [key-auth]")), (400, true));
        assert_eq!(talk(&gateway, "x").0, "two");
        assert_eq!(gateway.admin("DELETE", "stream_routes/1", None).status, 200);
        assert!(simulation.until(|| is_closed(&gateway)));
    });
}

/// A plugin of the service that only requests have would be missed.
#[test]
fn a_services_guards_are_not_left_out() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let with = |plugins: Value| {
            let rest = json!({
                "services": [{ "id": "s", "plugins": plugins, "upstream": upstream(&[node.address]) }],
                "stream_routes": [{ "id": "r", "service_id": "s" }],
            });
            config(json!({ "stream": "tcp" }), rest)
        };
        let gateway = simulation.gateway(with(json!({ "ip-restriction": { "whitelist": ["127.0.0.1"] } })));
        assert_eq!(talk(&gateway, "x").0, "one");
        gateway.change(with(json!({ "ip-restriction": { "whitelist": ["192.0.2.1"] } })));
        assert!(is_closed(&gateway));
        gateway.rewrite(with(json!({ "key-auth": {} })));
        let refused = gateway.reload().unwrap_err();
        assert!(refused.contains("plugin key-auth of its service needs requests"), "{refused}");
        assert!(is_closed(&gateway), "what was served before goes on");
    });
}

#[test]
fn proxies_say_who_the_client_is_and_the_log_has_it() {
    example(|simulation| {
        let (node, mut accepted) = simulation.scripted();
        let to = joined(upstream(&[node.address]), json!({ "proxy_protocol": "v1" }));
        let format = "$remote_addr $protocol $status $bytes_received $bytes_sent $upstream_addr $route_id";
        let rest = json!({
            "access_log": { "path": ACCESS_LOG, "stream_format": format, "flush_ms": 100 },
            "stream_routes": [{ "id": "r", "remote_addr": "192.0.2.7", "upstream": to }],
        });
        let listener = json!({ "stream": "tcp", "proxy_protocol": { "trusted": ["127.0.0.1"] } });
        let gateway = simulation.gateway(config(listener, rest));
        let mut client = gateway.connect();
        client.send("PROXY TCP4 192.0.2.7 192.0.2.1 4000 5432\r\nhello");
        let mut at_node = simulation.accept(&mut accepted);
        assert_eq!(at_node.line(), "PROXY TCP4 192.0.2.7 192.0.2.1 4000 5432");
        assert_eq!(at_node.exactly(5), b"hello");
        at_node.send("bye");
        // Dropped with unread bytes it would be a reset.
        at_node.finish();
        assert_eq!(client.exactly(3), b"bye");
        drop((client, at_node));
        gateway.await_access(&format!("192.0.2.7 TCP 200 5 3 {} r\n", node.name()));
    });
}

/// Hundreds of sessions that come and go at the same time leave nothing behind.
#[test]
fn many_sessions_at_a_time() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let gateway = simulation.gateway(tcp(json!([{ "upstream": upstream(&[node.address]) }])));
        let clients: Vec<_> = (0..20)
            .map(|_| {
                let network = simulation.clone();
                simulation.begin(async move {
                    for n in 0..15 {
                        let sent = format!("message {n}");
                        let mut client = network.connect(LISTEN).unwrap();
                        assert_eq!(client.line().await, "one");
                        client.send(&sent).await.unwrap();
                        client.finish();
                        assert_eq!(client.whole_rest().await.unwrap(), sent.as_bytes());
                    }
                    15
                })
            })
            .collect();
        assert_eq!(clients.into_iter().map(|client| client.join()).sum::<usize>(), 300);
        assert!(simulation.until(|| gateway.counter("sigma_stream_sessions_active") == 0));
    });
}

/// A client that never sends its first message is closed after a time.
#[test]
fn sessions_without_tls_are_closed() {
    example(|simulation| {
        let node = parrot(simulation, "one");
        let rest = json!({ "stream_routes": [{ "sni": "a.test", "upstream": upstream(&[node.address]) }] });
        let tls = json!({ "handshake_timeout_ms": 300, "hello_bytes": 1024 });
        let gateway = simulation.gateway(config(json!({ "stream": "tls", "tls": tls }), rest));
        for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff\x01", &[0x16; 4096]] {
            let mut client = gateway.connect();
            client.send(bytes);
            // An alert may come; the greeting of the node does not.
            let rest = client.rest();
            assert!(!rest.windows(3).any(|three| three == b"one"), "{rest:?}");
        }
        assert_eq!(node.connections(), 0);
    });
}

/// One file has both: neither replaces the other, also after a reload.
#[test]
fn requests_and_sessions_are_served_side_by_side() {
    example(|simulation| {
        let (node, web) = (parrot(simulation, "one"), simulation.echo("web"));
        let sessions = SocketAddr::new(LOOPBACK, 9100);
        let with = |routes: usize| {
            let route = |number: usize| json!({ "uri": format!("/{number}"), "upstream": { "nodes": { web.name(): 1 } } });
            let streams = [5_000, sessions.port()]
                .map(|port| json!({ "server_port": port, "upstream": upstream(&[node.address]) }));
            json!({
                "listeners": [LISTEN.to_string(), { "address": sessions.to_string(), "stream": "tcp" }],
                "routes": (0..routes).map(route).collect::<Vec<_>>(),
                "stream_routes": streams,
            })
        };
        let gateway = simulation.gateway(with(2));
        let status = |path: &str| gateway.get(path).status();
        let greeting = || simulation.run(async { simulation.connect(sessions).unwrap().line().await });
        assert_eq!([status("/0"), status("/1"), status("/2")], [200, 200, 404]);
        assert_eq!(greeting(), "one");
        gateway.change(with(3));
        assert_eq!([status("/0"), status("/1"), status("/2")], [200; 3]);
        assert_eq!(greeting(), "one");
    });
}
