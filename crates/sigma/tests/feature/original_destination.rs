//! Listeners whose connections the kernel has redirected, in a network namespace of their own.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::json;
use sigma_testkit::{Gateway, free_port, until};

use crate::{PATIENCE, SIGMA};

/// Set in the process that runs within the namespace.
const WITHIN: &str = "SIGMA_TEST_NAMESPACE";

/// The users whose connections are redirected: to listeners for sessions, and for HTTP. Connections of the gateway are
/// not.
const CLIENT_UID: &str = "12345";
const HTTP_UID: &str = "12346";

/// A gateway with a listener at this address, whose route for port 9 leads to a node at `other`.
fn gateway(address: &str, networks: &[&str], other: u16) -> Gateway {
    let config = json!({
        "workers": 1,
        "listeners": [{ "address": address, "stream": "tcp", "original_destination": true }],
        "status": { "address": "{status}" },
        "stream_routes": [
            { "id": "other", "server_port": 9, "upstream": { "nodes": { format!("127.0.0.1:{other}"): 1 } } },
            { "id": "any", "upstream": { "original_destination": { "networks": networks } } },
        ],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

/// A gateway for HTTP, whose routes by host and by port lead to the destination. One of them stores responses.
fn http_gateway(address: &str, port: u16) -> Gateway {
    let upstream = json!({ "original_destination": { "networks": ["10.9.9.1/32", "10.9.9.3/32"] } });
    let cache = json!({ "proxy-cache": { "cache_strategy": "memory", "cache_zone": "z" } });
    let config = json!({
        "workers": 1,
        "listeners": [{ "address": address, "original_destination": true }],
        "status": { "address": "{status}" },
        "plugin_attr": { "proxy-cache": { "zones": [{ "name": "z", "memory_size": "1m" }] } },
        "routes": [
            { "id": "stored", "uri": "/stored", "plugins": cache, "upstream": upstream },
            { "id": "named", "uri": "/*", "host": "a.example", "vars": [["server_port", "==", port]],
              "upstream": upstream },
            { "id": "closed", "uri": "/closed", "upstream": upstream },
        ],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn refused(gateway: &Gateway) -> u64 {
    gateway.counter("sigma_refusals_total{kind=\"no_original_destination\"}")
}

#[test]
fn connection_without_a_redirection_is_refused() {
    let gateway = gateway("{listen}", &["127.0.0.0/8"], 9);
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.expect_closed().unwrap();
    assert!(until(PATIENCE, || refused(&gateway) == 1));
}

#[test]
fn request_without_a_redirection_is_refused() {
    let gateway = http_gateway("{listen}", 80);
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    client.expect_closed().unwrap();
    assert!(until(PATIENCE, || refused(&gateway) == 1));
}

/// The upstream of a listener that does not read the destination has no node.
#[test]
fn request_without_an_original_destination_has_no_node() {
    let config = json!({
        "listeners": [{ "address": "{listen}" }],
        "routes": [
            { "uri": "/*", "upstream": { "original_destination": { "networks": ["127.0.0.0/8"] } } },
        ],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 503);
}

/// Runs a command, and returns whether it succeeds.
fn runs(program: &str, arguments: &[&str]) -> bool {
    let ran = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.is_ok_and(|status| status.success())
}

fn must(program: &str, arguments: &[&str]) {
    let ran = Command::new(program).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// The test below in a namespace: it is skipped where there can be none.
#[test]
fn redirected_connection_reaches_its_destination() {
    if std::env::var_os(WITHIN).is_some() {
        return within_namespace();
    }
    let probe = "ip link set lo up && nft add table ip probe && \
                 nft 'add chain ip probe c { type nat hook output priority -100; }' && \
                 nft add rule ip probe c tcp dport 1 redirect to :2 && setpriv --version";
    if !runs("unshare", &["-n", "sh", "-c", probe]) {
        eprintln!("skipped: it needs root, and the commands unshare, ip, nft and setpriv");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let name = "original_destination::redirected_connection_reaches_its_destination";
    let arguments = ["-n", own.to_str().unwrap(), "--exact", name, "--nocapture"];
    let ran = Command::new("unshare").args(arguments).env(WITHIN, "1").output().unwrap();
    let said = [&ran.stdout[..], &ran.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// Returns the output of a shell script that a user runs.
fn run_as(user: &str, script: &str) -> String {
    let arguments = ["--reuid", user, "--clear-groups", "timeout", "20", "bash", "-c", script];
    let ran = Command::new("setpriv").args(arguments).output().unwrap();
    String::from_utf8_lossy(&ran.stdout).trim().to_owned()
}

/// Returns the first line that a redirected client gets from an address, or an empty text.
fn asked(address: &str, port: u16) -> String {
    run_as(CLIENT_UID, &format!("exec 3<>/dev/tcp/{address}/{port} && echo hello >&3 && head -n 1 <&3"))
}

/// Returns the status lines and bodies that a redirected client gets for two requests on one connection.
fn requested(address: &str, port: u16, host: &str, path: &str) -> String {
    let request = |end: &str| format!("GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\n{end}\\r\\n");
    let both = request("") + &request("Connection: close\\r\\n");
    let script = format!(
        "exec 3<>/dev/tcp/{address}/{port} && printf '{both}' >&3 && grep -aoE '^HTTP/1.1 [0-9]+|^node .*' <&3"
    );
    run_as(HTTP_UID, &script).lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

/// A node for HTTP at this address: it responds with the host of the request, its name and the number of its
/// connection.
fn http_node(address: &str, name: &'static str) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            std::thread::spawn(move || answer(stream.unwrap(), name, number));
        }
    });
    port
}

/// Answers the requests of a connection, each without a body.
fn answer(stream: TcpStream, name: &str, number: usize) {
    let mut host = String::new();
    for line in BufReader::new(&stream).lines().map_while(Result::ok) {
        if let Some(name) = line.strip_prefix("Host: ") {
            host = name.to_owned();
        } else if line.is_empty() {
            let body = format!("node {host} {name} {number}\n");
            let head = format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = (&stream).write_all((head + &body).as_bytes());
        }
    }
}

/// A node at this address that responds to each line with its name; its port.
fn node(address: &str, name: &'static str) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            let _ = BufReader::new(&mut stream).read_line(&mut line);
            let _ = writeln!(stream, "{name}: {}", line.trim());
        }
    });
    port
}

fn within_namespace() {
    must("ip", &["link", "set", "lo", "up"]);
    for address in ["10.9.9.1/32", "10.9.9.2/32", "10.9.9.3/32", "fd00:9::1/128"] {
        must("ip", &["address", "add", address, "dev", "lo", "nodad"]);
    }
    let (first, second) = (node("10.9.9.1", "first"), node("10.9.9.2", "second"));
    let (third, other) = (node("fd00:9::1", "third"), node("127.0.0.1", "other"));
    let networks = ["10.9.9.1/32", "fd00:9::/64"];
    let ports = [free_port(), free_port()];
    let four = gateway(&format!("127.0.0.1:{}", ports[0]), &networks, other);
    let _six = gateway(&format!("[::1]:{}", ports[1]), &networks, other);
    for (family, port) in ["ip", "ip6"].into_iter().zip(ports) {
        must("nft", &["add", "table", family, "sigma"]);
        must("nft", &[&format!("add chain {family} sigma output {{ type nat hook output priority -100; }}")]);
        let all = format!("add rule {family} sigma output meta skuid {CLIENT_UID} tcp dport 1-65535");
        must("nft", &[&format!("{all} redirect to :{port}")]);
    }
    assert_eq!(asked("10.9.9.1", first), "first: hello");
    assert_eq!(asked("fd00:9::1", third), "third: hello");
    assert_eq!(asked("10.9.9.2", second), "", "outside of the networks");
    assert_eq!(asked("10.9.9.2", 9), "other: hello", "a route by the port before the redirection");
    http_within_namespace();
    // A direct connection has no original destination.
    let direct = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    assert!(until(PATIENCE, || refused(&four) == 1));
    drop(direct);
}

fn http_within_namespace() {
    let (port, listen) = (http_node("10.9.9.1", "one"), free_port());
    let _gateway = http_gateway(&format!("127.0.0.1:{listen}"), port);
    let all = format!("add rule ip sigma output meta skuid {HTTP_UID} tcp dport 1-65535");
    must("nft", &[&format!("{all} redirect to :{listen}")]);
    let first = "HTTP/1.1 200, node a.example one 0, HTTP/1.1 200, node a.example one 0";
    assert_eq!(requested("10.9.9.1", port, "a.example", "/"), first);
    assert_eq!(requested("10.9.9.1", port, "a.example", "/"), first, "the connection to the node is pooled");
    assert_eq!(requested("10.9.9.1", port, "b.example", "/"), "HTTP/1.1 404, HTTP/1.1 404");
    // Nothing listens at this port of the same machine.
    assert_eq!(requested("10.9.9.1", 9, "a.example", "/closed"), "HTTP/1.1 502, HTTP/1.1 502");
    assert_eq!(
        requested("10.9.9.2", port, "a.example", "/"),
        "HTTP/1.1 503, HTTP/1.1 503",
        "another network"
    );
    // One client must not fill the cache for another destination of the same name.
    let other = http_node("10.9.9.3", "two");
    let stored = |address: &str, port: u16| requested(address, port, "a.example", "/stored");
    let of_two = "HTTP/1.1 200, node a.example two 0, HTTP/1.1 200, node a.example two 0";
    assert_eq!(stored("10.9.9.3", other), of_two);
    assert!(stored("10.9.9.1", port).starts_with("HTTP/1.1 200, node a.example one "));
    assert_eq!(stored("10.9.9.3", other), of_two, "and has its own response");
}
