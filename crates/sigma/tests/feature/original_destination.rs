//! Listeners whose connections the kernel has redirected, in a network namespace of their own.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::json;
use sigma_testkit::{Gateway, free_port, until};

use crate::{PATIENCE, SIGMA};

/// Set in the process that runs within the namespace.
const WITHIN: &str = "SIGMA_TEST_NAMESPACE";

/// The user whose connections are redirected. Connections of the gateway are not.
const CLIENT_UID: &str = "12345";

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

/// Returns the first line that a redirected client gets from an address, or an empty text.
fn asked(address: &str, port: u16) -> String {
    let script = format!("exec 3<>/dev/tcp/{address}/{port} && echo hello >&3 && head -n 1 <&3");
    let arguments = ["--reuid", CLIENT_UID, "--clear-groups", "timeout", "20", "bash", "-c", &script];
    let ran = Command::new("setpriv").args(arguments).output().unwrap();
    String::from_utf8_lossy(&ran.stdout).trim().to_owned()
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
    for address in ["10.9.9.1/32", "10.9.9.2/32", "fd00:9::1/128"] {
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
    // A direct connection has no original destination.
    let direct = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    assert!(until(PATIENCE, || refused(&four) == 1));
    drop(direct);
}
