//! Stream routes over UDP, with real sockets and clients.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use sigma_testkit::{DEADLINE, Dns, Gateway, Operator, Origin, Peer, until};

use crate::docs::{block, paste, text_of};
use crate::process::after;
use crate::upgrade::{sigma_upgrade, upgrade};
use crate::{PATIENCE, SIGMA};

/// How soon a node that is dropped closes its socket.
const TICK: Duration = Duration::from_millis(20);

/// The datagrams of a node, and their senders.
type Seen = Arc<Mutex<Vec<(SocketAddr, Vec<u8>)>>>;

/// A node that answers datagrams; dropping it closes its port.
struct Node {
    port: u16,
    seen: Seen,
    stopped: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Node {
    /// One that sends what `answers` makes of each datagram.
    fn start(answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Node {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(TICK)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (seen, stopped) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let (noted, ends) = (Arc::clone(&seen), Arc::clone(&stopped));
        let thread = std::thread::spawn(move || {
            let mut bytes = vec![0; 65_536];
            while !ends.load(Ordering::SeqCst) {
                let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
                noted.lock().unwrap().push((from, bytes[..len].to_vec()));
                for answer in answers(&bytes[..len]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Node { port, seen, stopped, thread: Some(thread) }
    }

    /// A node that responds with its name and the datagram.
    fn parrot(name: &str) -> Node {
        let name = name.to_owned();
        Node::start(move |bytes| vec![[name.as_bytes(), b":", bytes].concat()])
    }

    fn silent() -> Node {
        Node::start(|_| Vec::new())
    }

    /// How many datagrams have come.
    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The ports that they came from, in order.
    fn ports(&self) -> Vec<u16> {
        self.seen.lock().unwrap().iter().map(|(from, _)| from.port()).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A UDP port without a listener.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A configuration with one worker and a listener for datagrams at `address`.
fn config(address: &str, routes: &Value, rest: Value) -> String {
    let mut whole = json!({
        "workers": 1,
        "listeners": ["{listen}", { "address": address, "stream": "udp" }],
        "status": { "address": "{status}" },
        "stream_routes": routes,
    });
    whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    whole.to_string()
}

fn upstream(ports: &[u16]) -> Value {
    let nodes: serde_json::Map<String, Value> =
        ports.iter().map(|port| (format!("127.0.0.1:{port}"), json!(1))).collect();
    json!({ "scheme": "udp", "nodes": nodes })
}

/// A gateway with a listener for datagrams on 127.0.0.1.
struct Setup {
    gateway: Gateway,
    port: u16,
}

impl Setup {
    fn start(routes: &Value, rest: Value) -> Setup {
        Setup::start_by(SIGMA, routes, rest)
    }

    /// The same, by another program.
    fn start_by(binary: &str, routes: &Value, rest: Value) -> Setup {
        let port = free_port();
        let text = config(&format!("127.0.0.1:{port}"), routes, rest);
        let gateway = Gateway::start(binary, &text).unwrap();
        Setup { gateway, port }
    }

    fn put(&self, routes: &Value, rest: Value) {
        self.gateway.rewrite(&config(&format!("127.0.0.1:{}", self.port), routes, rest)).unwrap();
        self.gateway.reload().unwrap();
    }

    fn client(&self) -> Client {
        Client::of("127.0.0.1:0", ("127.0.0.1", self.port))
    }

    fn counter(&self, name: &str) -> u64 {
        let page = Operator::new(self.gateway.status_address()).call("GET", "/status/counters", None);
        let page = page.unwrap().text();
        let is_it = |line: &&str| {
            let known = line.split(['{', ' ']).next().unwrap_or_default().strip_prefix("sigma_");
            known.is_some_and(|known| known.strip_suffix("_total").unwrap_or(known) == name)
        };
        let line = page.lines().find(is_it);
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("{name}: {page}"))
    }

    fn counts(&self, name: &str, value: u64) {
        assert!(until(PATIENCE, || self.counter(name) == value), "{name}: {}", self.counter(name));
    }
}

/// A client, which takes answers from the gateway's address only.
struct Client(UdpSocket);

impl Client {
    fn of(own: &str, gateway: impl std::net::ToSocketAddrs) -> Client {
        let socket = UdpSocket::bind(own).unwrap();
        socket.connect(gateway).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Client(socket)
    }

    fn send(&self, bytes: &[u8]) {
        self.0.send(bytes).unwrap();
    }

    fn receive(&self) -> String {
        let mut bytes = vec![0; 65_536];
        let len = self.0.recv(&mut bytes).expect("an answer");
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    fn ask(&self, text: &str) -> String {
        self.send(text.as_bytes());
        self.receive()
    }

    /// Sends until the response is the expected one, for gateways that change.
    fn gets(&self, expected: &str) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let got = until(PATIENCE, || {
            self.send(b"x");
            let mut bytes = [0; 64];
            self.0.recv(&mut bytes).is_ok_and(|len| &bytes[..len] == expected.as_bytes())
        });
        self.0.set_read_timeout(Some(DEADLINE)).unwrap();
        got
    }

    fn hears_nothing(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let nothing = self.0.recv(&mut [0; 16]).is_err();
        self.0.set_nonblocking(false).unwrap();
        nothing
    }
}

#[test]
fn datagrams_pass_both_ways_and_keep_their_bounds() {
    for io in ["epoll", "auto"] {
        let node = Node::parrot("one");
        let setup = Setup::start(&json!([{ "upstream": upstream(&[node.port]) }]), json!({ "io": io }));
        let client = setup.client();
        assert_eq!(client.ask("a"), "one:a");
        assert_eq!(client.ask(""), "one:");
        let large = "x".repeat(60_000);
        assert_eq!(client.ask(&large).len(), large.len() + 4);
        // Several at once come through with their bounds.
        (0..20).for_each(|n| client.send(format!("{n}").as_bytes()));
        let mut answers: Vec<String> = (0..20).map(|_| client.receive()).collect();
        answers.sort();
        let mut expected: Vec<String> = (0..20).map(|n| format!("one:{n}")).collect();
        expected.sort();
        assert_eq!(answers, expected, "{io}");
        // All of it was one session, by one socket.
        assert!(node.ports().windows(2).all(|two| two[0] == two[1]));
        setup.counts("stream_sessions", 1);
        setup.counts("stream_sessions_active", 1);
        setup.counts("stream_datagrams_in", 23);
        setup.counts("stream_datagrams_out", 23);
        setup.counts("stream_bytes_in", 60_001 + 30);
        setup.counts("stream_datagrams_dropped", 0);
    }
}

/// A client accepts a response only from the address that it sent to.
#[test]
fn answers_leave_from_the_address_that_was_asked() {
    let node = Node::parrot("one");
    for (everywhere, own, asked) in
        [("0.0.0.0", "127.0.0.1:0", "127.0.0.2"), ("[::]", "[::1]:0", "[::1]"), ("[::1]", "[::1]:0", "[::1]")]
    {
        let port = free_port();
        // The address that was asked is also a condition.
        let server = asked.trim_matches(['[', ']']);
        let routes =
            json!([{ "server_addr": server, "server_port": port, "upstream": upstream(&[node.port]) }]);
        let text = config(&format!("{everywhere}:{port}"), &routes, json!({}));
        let _gateway = Gateway::start(SIGMA, &text).unwrap();
        let client = Client::of(own, format!("{asked}:{port}"));
        assert_eq!(client.ask("hello"), "one:hello", "{asked}");
    }
}

#[test]
fn a_node_that_refuses_is_passed_over() {
    let (node, dead) = (Node::parrot("alive"), free_port());
    let mut to = upstream(&[dead, node.port]);
    to["checks"] = json!({ "passive": { "type": "tcp", "unhealthy": { "tcp_failures": 1 } } });
    let setup = Setup::start(&json!([{ "upstream": to }]), json!({}));
    for n in 0..6 {
        // The first datagram of a session goes to another node, as no node has read it.
        assert_eq!(setup.client().ask(&format!("{n}")), format!("alive:{n}"));
    }
    // The checks notice it, and then it gets no sessions any more.
    let is_out = until(PATIENCE, || {
        let before = setup.counter("upstream_retries");
        (0..4).for_each(|_| assert_eq!(setup.client().ask("x"), "alive:x"));
        before >= 1 && setup.counter("upstream_retries") == before
    });
    assert!(is_out, "{}", setup.gateway.stderr());
    // Where no other node is the session ends, without a byte for the client.
    setup.put(&json!([{ "upstream": upstream(&[dead]) }]), json!({}));
    let mut client = setup.client();
    let is_in_force = until(PATIENCE, || {
        client = setup.client();
        client.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        client.send(b"x");
        client.0.recv(&mut [0; 16]).is_err()
    });
    assert!(is_in_force, "{}", setup.gateway.stderr());
    let all = setup.counter("stream_sessions");
    let ended = until(PATIENCE, || {
        client.send(b"x");
        setup.counter("stream_sessions") > all + 2
    });
    assert!(ended, "each datagram picks again");
    assert!(client.hears_nothing());
}

#[test]
fn a_session_ends_with_its_answers() {
    let node = Node::parrot("one");
    let routes = |udp: Value| json!([{ "udp": udp, "upstream": upstream(&[node.port]) }]);
    let setup = Setup::start(&routes(json!({ "responses": 1 })), json!({}));
    let client = setup.client();
    for n in 0..3 {
        assert_eq!(client.ask(&format!("{n}")), format!("one:{n}"));
        setup.counts("stream_sessions_active", 0);
    }
    setup.counts("stream_sessions", 3);
    // One that is for one datagram ends for the next one, though its own response may be late.
    setup.put(&routes(json!({ "requests": 1 })), json!({ "timeouts": { "stream_udp_idle_ms": 300 } }));
    let is_apart = until(PATIENCE, || {
        let before = node.count();
        (0..2).for_each(|_| drop(client.ask("x")));
        let ports = node.ports();
        setup.counter("stream_sessions_active") >= 2 && ports[before] != ports[before + 1]
    });
    assert!(is_apart, "{:?}", node.ports());
    setup.counts("stream_sessions_active", 0);
}

/// A node that owes answers has failed when the session idles.
#[test]
fn silence_ends_a_session() {
    let node = Node::silent();
    let mut to = upstream(&[node.port]);
    to["timeout"] = json!({ "connect": 1, "send": 1, "read": 0.2 });
    let format = "$protocol $status $bytes_received $bytes_sent $upstream_bytes_sent $route_id $remote_addr";
    let rest = json!({ "access_log": { "path": "stdout", "stream_format": format, "flush_ms": 100 } });
    let routes = json!([
        { "id": "owing", "server_addr": "127.0.0.1", "udp": { "responses": 1 }, "upstream": to },
    ]);
    let setup = Setup::start(&routes, rest.clone());
    setup.client().send(b"12345");
    let has = |line: &str| until(PATIENCE, || setup.gateway.stdout().lines().any(|other| other == line));
    assert!(has("UDP 502 5 0 5 owing 127.0.0.1"), "{}", setup.gateway.stdout());
    setup.put(&json!([{ "id": "logs", "upstream": to }]), rest);
    let is_fine = until(PATIENCE, || {
        setup.client().send(b"12345");
        setup.gateway.stdout().contains("UDP 200 5 0 5 logs 127.0.0.1")
    });
    assert!(is_fine, "{}", setup.gateway.stdout());
}

/// More clients than there is room for are not served, and those who have a session do not notice.
#[test]
fn sessions_are_bounded() {
    let node = Node::parrot("one");
    let places = |most: u32| json!({ "limits": { "stream_udp_sessions_per_worker": most } });
    let routes = json!([{ "upstream": upstream(&[node.port]) }]);
    let setup = Setup::start(&routes, places(2));
    let (first, second, third) = (setup.client(), setup.client(), setup.client());
    assert_eq!(first.ask("a"), "one:a");
    assert_eq!(second.ask("b"), "one:b");
    (0..10).for_each(|_| third.send(b"c"));
    setup.counts("stream_datagrams_refused", 10);
    assert!(third.hears_nothing());
    let complaint = "limits.stream_udp_sessions_per_worker";
    // Another thread writes it.
    setup.gateway.await_log(complaint);
    let complaints = setup.gateway.stderr().matches(complaint).count();
    assert!((1..10).contains(&complaints), "{}", setup.gateway.stderr());
    assert_eq!(first.ask("d"), "one:d");
    setup.put(&routes, places(3));
    assert!(third.gets("one:x"));
}

/// A node that replies to all but the datagrams of the flood.
fn silent_to_the_flood() -> Node {
    Node::start(|bytes| if bytes == b"!" { Vec::new() } else { vec![[b"one:", bytes].concat()] })
}

/// Sends a datagram from each of `count` new ports, of several addresses.
fn flood(setup: &Setup, bytes: &[u8], count: usize) {
    for number in 0..count {
        let own = format!("127.0.0.{}:0", 2 + number % 50);
        Client::of(&own, ("127.0.0.1", setup.port)).send(bytes);
    }
}

#[test]
fn flood_of_new_sessions_leaves_other_clients_served() {
    let (dir, node, origin) =
        (tempfile::tempdir().unwrap(), silent_to_the_flood(), Origin::echo("a").unwrap());
    // 125 descriptors are kept, 437 of the rest are for clients, and 109 for sessions.
    let binary = after(dir.path(), "ulimit -n 1000", "");
    let nodes = json!({ format!("127.0.0.1:{}", origin.port()): 1 });
    let rest = json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": nodes } }] });
    let setup = Setup::start_by(&binary, &json!([{ "upstream": upstream(&[node.port]) }]), rest);
    let known = setup.client();
    assert_eq!(known.ask("a"), "one:a");
    assert!(until(PATIENCE, || {
        flood(&setup, b"!", 50);
        setup.counter("stream_sessions_evicted") >= 500
    }));
    // The kernel may have dropped what came behind the flood.
    assert!(known.gets("one:x"));
    assert!(setup.counter("stream_sessions_active") <= 150, "{}", setup.counter("stream_sessions_active"));
    let kept: Vec<Peer> = (0..100)
        .map(|_| {
            let mut http = setup.gateway.connect().unwrap().with_deadline(PATIENCE);
            assert_eq!(http.get("/").unwrap().status(), 200);
            http
        })
        .collect();
    flood(&setup, b"!", 50);
    assert!(setup.client().gets("one:x"), "{}", setup.gateway.stderr());
    setup.gateway.await_log("sessions without a reply are evicted");
    // The known client kept its session, and so its port.
    let seen = node.seen.lock().unwrap();
    let port = |text: &[u8]| seen.iter().find(|(_, bytes)| bytes == text).map(|(from, _)| from.port());
    assert_eq!((port(b"a"), kept.len()), (port(b"x"), 100));
}

/// A node that replies to everything makes all sessions answered ones: those that are quiet give way.
#[test]
fn flood_of_answered_sessions_leaves_known_clients_served() {
    let node = Node::parrot("one");
    let rest = json!({ "limits": { "stream_udp_sessions_per_worker": 20 } });
    let setup = Setup::start(&json!([{ "upstream": upstream(&[node.port]) }]), rest);
    let known = setup.client();
    assert_eq!((known.ask("a"), known.ask("b")), ("one:a".to_owned(), "one:b".to_owned()));
    assert!(until(PATIENCE, || {
        flood(&setup, b"y", 20);
        setup.counter("stream_sessions_evicted") >= 20
    }));
    assert!(known.gets("one:x"));
    let ports: Vec<u16> = {
        let seen = node.seen.lock().unwrap();
        seen.iter().filter(|(_, bytes)| bytes != b"y").map(|(from, _)| from.port()).collect()
    };
    assert!(ports.len() >= 3 && ports.windows(2).all(|two| two[0] == two[1]), "{ports:?}");
    assert!(setup.client().gets("one:x"));
}

#[test]
fn sessions_of_an_address_and_a_network_are_limited() {
    let node = silent_to_the_flood();
    let limits = json!({ "stream_udp_sessions_per_address": 2, "stream_udp_sessions_per_network": 3 });
    let setup = Setup::start(&json!([{ "upstream": upstream(&[node.port]) }]), json!({ "limits": limits }));
    let from = |own: &str| Client::of(&format!("{own}:0"), ("127.0.0.1", setup.port));
    let known = |own: &str| {
        let client = from(own);
        assert_eq!((client.ask("a"), client.ask("b")), ("one:a".to_owned(), "one:b".to_owned()), "{own}");
        client
    };
    let (first, second) = (known("127.0.0.1"), known("127.0.0.1"));
    let third = from("127.0.0.1");
    third.send(b"c");
    setup.counts("stream_datagrams_refused_address", 1);
    // Another address, whose new sessions give way to its own.
    (0..3).for_each(|_| from("127.0.0.2").send(b"!"));
    setup.counts("stream_sessions_evicted", 2);
    let other = known("127.0.0.2");
    from("127.0.0.3").send(b"c");
    setup.counts("stream_datagrams_refused_network", 1);
    setup.counts("stream_datagrams_refused", 2);
    known("127.0.1.1");
    for setting in ["stream_udp_sessions_per_address", "stream_udp_sessions_per_network"] {
        setup.gateway.await_log(setting);
    }
    assert_eq!([&first, &second, &other].map(|client| client.ask("d")), ["one:d"; 3]);
    assert!(third.hears_nothing());
}

#[test]
fn session_without_a_reply_ends_early() {
    let node = silent_to_the_flood();
    let rest = json!({ "timeouts": { "stream_udp_new_ms": 200 } });
    let setup = Setup::start(&json!([{ "upstream": upstream(&[node.port]) }]), rest);
    let known = setup.client();
    assert_eq!(known.ask("a"), "one:a");
    let silent = setup.client();
    silent.send(b"!");
    setup.counts("stream_sessions", 2);
    setup.counts("stream_sessions_active", 1);
    assert_eq!(known.ask("b"), "one:b");
    setup.counts("stream_sessions", 2);
    assert_eq!(setup.counter("stream_sessions_evicted"), 0);
}

#[test]
fn garbage_and_oversize_are_dropped() {
    let node = Node::parrot("one");
    let rest = json!({ "limits": { "stream_udp_datagram_bytes": 512 } });
    let route = json!({ "remote_addr": "127.0.0.1", "upstream": upstream(&[node.port]) });
    let setup = Setup::start(&json!([route]), rest);
    let client = setup.client();
    client.send(&[b'x'; 513]);
    setup.counts("stream_datagrams_dropped", 1);
    setup.counts("stream_sessions", 0);
    client.send(&[b'x'; 508]);
    assert_eq!(client.receive().len(), 512);
    // The response is larger than the question was, by four bytes.
    client.send(&[b'x'; 509]);
    setup.counts("stream_datagrams_dropped", 2);
    assert!(client.hears_nothing());
    // A client without a route gets no response to any datagram.
    let stranger = Client::of("127.0.0.9:0", ("127.0.0.1", setup.port));
    for bytes in [&b""[..], &[0; 12], &[0xff; 512], b"GET / HTTP/1.1\r\n\r\n"] {
        stranger.send(bytes);
    }
    setup.counts("stream_sessions", 5);
    setup.counts("stream_sessions_active", 1);
    assert!(stranger.hears_nothing());
    assert_eq!(node.count(), 2);
}

#[test]
fn plugins_refuse_and_count_sessions() {
    let node = Node::parrot("one");
    let routes = |plugins: Value| json!([{ "plugins": plugins, "upstream": upstream(&[node.port]) }]);
    let setup = Setup::start(&routes(json!({ "ip-restriction": { "blacklist": ["127.0.0.1"] } })), json!({}));
    let client = setup.client();
    client.send(b"x");
    setup.counts("stream_sessions_refused", 1);
    assert!(client.hears_nothing());
    let limit = json!({ "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr" });
    setup.put(&routes(json!({ "limit-conn": limit })), json!({}));
    assert!(client.gets("one:x"));
    let refused = setup.counter("stream_sessions_refused");
    let second = setup.client();
    second.send(b"x");
    setup.counts("stream_sessions_refused", refused + 1);
    assert_eq!(client.ask("y"), "one:y");
    // A datagram is all that there is for a plugin that waits for more.
    setup.put(&routes(json!({})), json!({}));
    assert!(setup.client().gets("one:x"));
    let refused = setup.counter("stream_sessions_refused");
    setup.put(&routes(json!({ "mqtt-proxy": { "protocol_level": 4 } })), json!({}));
    let is_refused = until(PATIENCE, || {
        setup.client().send(b"\x10\xff\xff\xff");
        setup.counter("stream_sessions_refused") > refused
    });
    assert!(is_refused, "{}", setup.gateway.stderr());
}

/// A session stays where it is; a client that comes later gets the new configuration.
#[test]
fn sessions_outlive_reloads_and_routes_change() {
    let (one, two) = (Node::parrot("one"), Node::parrot("two"));
    let to = |node: &Node| json!([{ "upstream": upstream(&[node.port]) }]);
    let setup = Setup::start(&to(&one), json!({}));
    let old = setup.client();
    assert_eq!(old.ask("a"), "one:a");
    setup.put(&to(&two), json!({}));
    assert!(until(PATIENCE, || setup.client().ask("b") == "two:b"));
    assert_eq!(old.ask("c"), "one:c");
    // The listener keeps its socket under another name.
    let address = format!("127.0.0.1:{}", setup.port);
    let named = json!({ "listeners": ["{listen}", { "address": address, "stream": "udp", "name": "dns" }] });
    setup.put(&to(&one), named);
    assert!(until(PATIENCE, || setup.client().ask("d") == "one:d"));
    assert_eq!(old.ask("e"), "one:e");
    // One that is gone answers no more, and its port is free soon.
    setup.put(&to(&one), json!({ "listeners": ["{listen}"] }));
    assert!(until(PATIENCE, || UdpSocket::bind(("127.0.0.1", setup.port)).is_ok()));
    setup.put(&to(&one), json!({}));
    assert!(setup.client().gets("one:x"), "{}", setup.gateway.stderr());
}

/// Two nodes of one upstream, which hold back their responses to `late` until they may respond.
fn two_that_wait() -> ([Node; 2], Arc<AtomicBool>) {
    let may_answer = Arc::new(AtomicBool::new(true));
    let nodes = ["a", "b"].map(|name| {
        let may = Arc::clone(&may_answer);
        Node::start(move |bytes| {
            assert!(bytes != b"late" || until(PATIENCE, || may.load(Ordering::SeqCst)));
            vec![[name.as_bytes(), b":", bytes].concat()]
        })
    });
    (nodes, may_answer)
}

/// Over each upgrade, also one that fails after everything was given, all clients keep their node and get a response.
#[test]
fn sessions_outlive_upgrades() {
    let check = |process: Value, upgrade: &dyn Fn(&Gateway)| {
        let (nodes, may_answer) = two_that_wait();
        let routes = json!([{ "upstream": upstream(&nodes.each_ref().map(|node| node.port)) }]);
        let rest = json!({ "workers": 2, "process": process, "pid_file": "{dir}/sigma.pid" });
        let setup = Setup::start(&routes, rest.clone());
        let clients: Vec<Client> = (0..8).map(|_| setup.client()).collect();
        let names: Vec<String> = clients.iter().map(|client| client.ask("")).collect();
        assert!(names.contains(&"a:".to_owned()) && names.contains(&"b:".to_owned()), "{names:?}");
        let over = |disturbance: &dyn Fn()| {
            may_answer.store(false, Ordering::SeqCst);
            let before = nodes.each_ref().map(Node::count);
            clients.iter().for_each(|client| client.send(b"late"));
            let are_asked = || nodes.iter().zip(before).all(|(node, before)| node.count() > before);
            assert!(until(PATIENCE, are_asked));
            disturbance();
            may_answer.store(true, Ordering::SeqCst);
            for (client, name) in clients.iter().zip(&names) {
                assert_eq!(client.receive(), format!("{name}late"), "{}", setup.gateway.stderr());
                assert_eq!(client.ask("now"), format!("{name}now"), "{}", setup.gateway.stderr());
            }
        };
        over(&|| upgrade(&setup.gateway));
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut unfit = rest.clone();
        unfit["control"] = json!({ "address": taken.local_addr().unwrap().to_string() });
        let address = format!("127.0.0.1:{}", setup.port);
        setup.gateway.rewrite(&config(&address, &routes, unfit)).unwrap();
        over(&|| assert!(!sigma_upgrade(&setup.gateway).status.success()));
        setup.gateway.rewrite(&config(&address, &routes, rest)).unwrap();
        over(&|| upgrade(&setup.gateway));
        let mut ports: Vec<u16> = nodes.iter().flat_map(Node::ports).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), clients.len(), "each has one socket to its node from begin to end");
        setup.counts("stream_sessions_active", 8);
        assert_eq!((setup.counter("stream_sessions"), setup.counter("stream_datagrams_dropped")), (8, 0));
    };
    check(json!({ "mode": "single" }), &upgrade);
    check(json!({ "mode": "supervised" }), &|gateway| assert!(sigma_upgrade(gateway).status.success()));
}

/// A client whose route or node is no more gets another session from the process that does not know it.
#[test]
fn new_settings_apply_after_an_upgrade() {
    let (one, two) = (Node::parrot("one"), Node::parrot("two"));
    let to = |node: &Node| json!([{ "upstream": upstream(&[node.port]) }]);
    let rest = json!({ "pid_file": "{dir}/sigma.pid" });
    let setup = Setup::start(&to(&one), rest.clone());
    let client = setup.client();
    assert_eq!(client.ask("a"), "one:a");
    let address = format!("127.0.0.1:{}", setup.port);
    setup.gateway.rewrite(&config(&address, &to(&two), rest.clone())).unwrap();
    upgrade(&setup.gateway);
    assert_eq!(client.ask("b"), "two:b");
    let refuse = json!([{ "upstream": upstream(&[two.port]), "plugins": {
        "ip-restriction": { "blacklist": ["127.0.0.1"] }
    } }]);
    setup.gateway.rewrite(&config(&address, &refuse, rest.clone())).unwrap();
    upgrade(&setup.gateway);
    setup.counts("stream_sessions_active", 0);
    client.send(b"c");
    setup.counts("stream_sessions_refused", 2);
    assert!(client.hears_nothing());
    // None at all.
    setup.gateway.rewrite(&config(&address, &json!([]), rest)).unwrap();
    upgrade(&setup.gateway);
    client.send(b"d");
    assert!(until(PATIENCE, || setup.counter("stream_sessions") >= 4), "{}", setup.gateway.stderr());
    assert_eq!(two.count(), 1);
}

#[test]
fn clients_keep_to_their_node() {
    let nodes = ["a", "b", "c"].map(Node::parrot);
    let mut to = upstream(&nodes.each_ref().map(|node| node.port));
    (to["type"], to["key"]) = ("chash".into(), "remote_addr".into());
    let setup = Setup::start(&json!([{ "udp": { "responses": 1 }, "upstream": to }]), json!({}));
    let node_of = |client: u8| Client::of(&format!("127.0.0.{client}:0"), ("127.0.0.1", setup.port)).ask("");
    let first: Vec<String> = (1..20).map(node_of).collect();
    assert_eq!(first, (1..20).map(node_of).collect::<Vec<_>>());
    assert!(first.iter().any(|name| *name != first[0]), "{first:?}");
    let split = json!({ "traffic-split": { "rules": [{ "weighted_upstreams": [
        { "upstream": upstream(&[nodes[0].port]), "weight": 1 },
        { "upstream": upstream(&[nodes[1].port]), "weight": 1 },
    ] }] } });
    setup.put(&json!([{ "plugins": split, "upstream": upstream(&[nodes[2].port]) }]), json!({}));
    assert!(until(PATIENCE, || setup.client().ask("") == "a:"));
    assert!(until(PATIENCE, || setup.client().ask("") == "b:"));
}

/// Each client has a session and answers of its own.
#[test]
fn a_thousand_clients_at_once() {
    let node = Node::parrot("one");
    let setup = Setup::start(&json!([{ "upstream": upstream(&[node.port]) }]), json!({ "workers": 2 }));
    let clients: Vec<Client> = (0..1_000).map(|_| setup.client()).collect();
    for round in ["a", "b"] {
        // As many as the kernel keeps for a process that is slow.
        for (chunk, clients) in clients.chunks(50).enumerate() {
            let text = |n: usize| format!("{round}{chunk}-{n}");
            clients.iter().enumerate().for_each(|(n, client)| client.send(text(n).as_bytes()));
            for (n, client) in clients.iter().enumerate() {
                assert_eq!(client.receive(), format!("one:{}", text(n)));
            }
        }
        setup.counts("stream_sessions_active", 1_000);
    }
    setup.counts("stream_sessions", 1_000);
    assert_eq!(setup.counter("stream_datagrams_dropped"), 0);
}

/// A client of a stopping gateway still gets its response, and the gateway waits no longer than that.
#[test]
fn a_stop_waits_for_answers() {
    let (asked, may_answer) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (was_asked, may) = (Arc::clone(&asked), Arc::clone(&may_answer));
    let node = Node::start(move |_| {
        was_asked.store(true, Ordering::SeqCst);
        until(PATIENCE, || may.load(Ordering::SeqCst));
        vec![b"late".to_vec()]
    });
    let routes = json!([{ "udp": { "responses": 1 }, "upstream": upstream(&[node.port]) }]);
    let setup = Setup::start(&routes, json!({}));
    let client = setup.client();
    client.send(b"x");
    assert!(until(PATIENCE, || asked.load(Ordering::SeqCst)));
    let Setup { mut gateway, .. } = setup;
    gateway.terminate().unwrap();
    assert!(until(PATIENCE, || gateway.connect().is_err()), "it accepts no more");
    may_answer.store(true, Ordering::SeqCst);
    assert_eq!(client.receive(), "late");
    assert!(gateway.wait(PATIENCE).unwrap().success());
}

#[test]
fn settings_that_datagrams_lack_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |listener: &str, word: &str| {
        let file = dir.path().join("sigma.yaml");
        std::fs::write(&file, format!("listeners: [{listener}]\n")).unwrap();
        let output = Command::new(SIGMA).args(["check"]).arg(&file).output().unwrap();
        assert!(!output.status.success() && text_of(&output).contains(word), "{}", text_of(&output));
    };
    check(r#"{ address: ":5353", stream: udp, tls: true }"#, "DTLS and QUIC end at the node");
    check(
        r#"{ address: ":5353", stream: udp, proxy_protocol: { trusted: ["127.0.0.1"] } }"#,
        "the PROXY protocol needs TCP, but the listener uses UDP",
    );
    check(r#"{ address: "unix:/tmp/a", stream: udp }"#, "this listener is a Unix socket");
    check(r#"{ address: ":5353", stream: udp }, { address: ":5353", stream: udp }"#, "already the address");
}

/// The commands of the page, on free ports.
#[test]
fn names_as_the_page_says() {
    let (dns, dir) = (Dns::start().unwrap(), tempfile::tempdir().unwrap());
    dns.set_addresses("www.example.com", &["192.0.2.7".parse().unwrap()]);
    let put = |text: String| {
        text.replace("5353", &free_port_of_both().to_string())
            .replace("127.0.0.1:53\"", &format!("{}\"", dns.address()))
    };
    let both = put(format!(
        "{}\n#\n{}",
        block("docs/udp.md", "yaml", "responses: 1"),
        block("docs/udp.md", "sh", "dig")
    ));
    let (config, commands) = both.split_once("\n#\n").unwrap();
    std::fs::write(dir.path().join("sigma.yaml"), config).unwrap();
    let output = paste(dir.path(), commands, &[]);
    assert!(text_of(&output).contains("192.0.2.7"), "{}", text_of(&output));
}

/// A port that is free of TCP and of UDP.
fn free_port_of_both() -> u16 {
    loop {
        let port = sigma_testkit::free_port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[test]
fn logs_as_the_page_says() {
    let (nodes, dir) = ([Node::silent(), Node::silent()], tempfile::tempdir().unwrap());
    let port = free_port_of_both();
    let put = |text: String| {
        let places = ["10.0.0.1:514", "10.0.0.2:514"].iter().zip(&nodes);
        let text =
            places.fold(text, |text, (place, node)| text.replace(place, &format!("127.0.0.1:{}", node.port)));
        text.replace("1514", &port.to_string())
    };
    let config = put(block("docs/udp.md", "yaml", "10.0.0.1:514"));
    std::fs::write(dir.path().join("sigma.yaml"), config).unwrap();
    let output = paste(dir.path(), &put(block("docs/udp.md", "sh", "logger")), &[]);
    let has_line = |node: &Node| {
        let seen = node.seen.lock().unwrap();
        seen.iter().any(|(_, bytes)| String::from_utf8_lossy(bytes).contains("hello from here"))
    };
    assert!(until(PATIENCE, || nodes.iter().any(has_line)), "{}", text_of(&output));
}
