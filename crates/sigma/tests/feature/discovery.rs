//! Upstreams that take their nodes from DNS.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sigma_testkit::{Dns, Gateway, Origin, ServiceRecord, free_port, until};

use crate::{PATIENCE, SIGMA};

fn gateway(dns: &Dns, service: &str) -> Gateway {
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ndiscovery:\n  dns:\n    servers: [\"{}\"]\nroutes:\n  - id: all\n    uri: \"/*\"\n    upstream: {{ service_name: \"{service}\", discovery_type: dns }}\n",
        dns.address()
    );
    Gateway::start(SIGMA, &config).unwrap()
}

/// The name of the origin that responds, or the status.
fn who(gateway: &Gateway) -> String {
    let answer = gateway.connect().unwrap().get("/").unwrap();
    answer.head.get("x-origin").map_or_else(|| answer.status().to_string(), str::to_owned)
}

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));

#[test]
fn servers_have_ports_weights_and_priorities() {
    let (a, b, spare) =
        (Origin::echo("a").unwrap(), Origin::echo("b").unwrap(), Origin::echo("spare").unwrap());
    let dns = Dns::start().unwrap();
    dns.set_addresses("one.sigma.test", &[A]);
    dns.set_addresses("two.sigma.test", &[A]);
    let server = |priority, weight, port, target| ServiceRecord { priority, weight, port, target };
    let set = |ports: (u16, u16)| {
        let servers = [
            server(10, 3, ports.0, "one.sigma.test"),
            server(10, 1, ports.1, "two.sigma.test"),
            server(20, 9, spare.port(), "two.sigma.test"),
        ];
        dns.set_servers("_web._tcp.sigma.test", &servers);
    };
    set((a.port(), b.port()));
    let gateway = gateway(&dns, "_web._tcp.sigma.test.");
    let mut served = BTreeMap::new();
    for _ in 0..40 {
        *served.entry(who(&gateway)).or_insert(0) += 1;
    }
    assert_eq!(served, BTreeMap::from([("a".to_owned(), 30), ("b".to_owned(), 10)]));
    // The first priority is dead now: a retry reaches the second.
    set((free_port(), free_port()));
    assert!(until(PATIENCE, || who(&gateway) == "spare"), "{}", who(&gateway));
}
