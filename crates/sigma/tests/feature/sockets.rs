//! IPv6 and Unix sockets on both sides.

use sigma_testkit::{Address, Gateway, Origin, Peer};

use crate::SIGMA;

#[test]
fn every_family_reaches_every_family() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("origin.sock");
    let (v4, v6) = (Origin::echo("v4").unwrap(), Origin::echo_ipv6("v6").unwrap());
    let _unix = Origin::echo_unix("unix", &path).unwrap();
    let node = |uri: &str, node: String| {
        format!(
            "  - id: {uri}\n    uri: /{uri}\n    upstream:\n      nodes:\n        - {{ {node}, weight: 1 }}\n"
        )
    };
    let config = format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\n  - address: \"[::1]:{{port}}\"\n  - address: \"unix:{{dir}}/gateway.sock\"\nroutes:\n{}{}{}",
        node("v4", format!("host: 127.0.0.1, port: {}", v4.port())),
        node("v6", format!("host: \"[::1]\", port: {}", v6.port())),
        node("unix", format!("host: \"unix:{}\"", path.display())),
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let port = gateway.address().port().unwrap();
    let listeners = [
        gateway.address(),
        Address::Tcp(format!("[::1]:{port}").parse().unwrap()),
        Address::Unix(gateway.dir().join("gateway.sock")),
    ];
    for address in listeners {
        let mut client = Peer::connect(&address).unwrap();
        for name in ["v4", "v6", "unix"] {
            let answer = client.get(&format!("/{name}")).unwrap();
            assert_eq!(answer.status(), 200, "{address} to {name}: {}", answer.text());
            assert_eq!(answer.head.get("x-origin"), Some(name), "{address}");
        }
    }
}

#[test]
fn a_unix_socket_left_behind_is_replaced() {
    let origin = Origin::echo("a").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.sock");
    // Bound and dropped: the file stays without a listener, as after a crash.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let config = format!(
        "listeners:\n  - address: \"{{listen}}\"\n  - address: \"unix:{}\"\nroutes:\n  - id: a\n    uri: /*\n    upstream:\n      nodes: {{ \"127.0.0.1:{}\": 1 }}\n",
        path.display(),
        origin.port()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    assert_eq!(Peer::connect(&Address::Unix(path)).unwrap().get("/").unwrap().status(), 200);
    assert!(gateway.stop().unwrap().success());
}
