//! Nodes by name with addresses of both families: one node, whatever address takes the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sigma_testkit::{Address, Dns, Gateway, Origin, Peer};

use crate::SIGMA;

/// A name with these addresses, and a gateway whose routes go there without retries.
fn gateway(names: &Dns, addresses: &[IpAddr], port: u16) -> Gateway {
    names.set_addresses("*", addresses);
    let config = format!(
        "workers: 1\nlisteners: [{{ address: \"{{listen}}\" }}]\n\
         dns: {{ servers: [\"{}\"] }}\n\
         routes: [{{ id: r, uri: \"/*\", upstream: {{ nodes: {{ \"web.sigma.test:{port}\": 1 }}, retries: 0 }} }}]\n",
        names.address()
    );
    Gateway::start(SIGMA, &config).unwrap()
}

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

#[test]
fn the_other_family_is_tried_with_any_number_of_retries() {
    let names = Dns::start().unwrap();
    let origin = Origin::echo("a").unwrap();
    for addresses in [&[V4, V6][..], &[V6, V4], &[V6, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9)), V4]] {
        let gateway = gateway(&names, addresses, origin.port());
        for request in
            ["GET / HTTP/1.1\r\nHost: h\r\n\r\n", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"]
        {
            for round in 0..6 {
                // Each on a connection to the node of its own.
                let mut client = gateway.connect().unwrap();
                assert_eq!(client.ask(request).unwrap().status(), 200, "{addresses:?}: {round}");
            }
        }
    }
}

#[test]
fn a_node_that_no_address_of_it_takes_a_connection_for_is_502() {
    let names = Dns::start().unwrap();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = unused.local_addr().unwrap().port();
    drop(unused);
    let gateway = gateway(&names, &[V4, V6], port);
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 502);
}

#[test]
fn stream_sessions_and_calls_of_plugins_do_so_too() {
    let names = Dns::start().unwrap();
    names.set_addresses("*", &[V6, V4]);
    let origin = Origin::echo("a").unwrap();
    let config = format!(
        "workers: 1\nlisteners: [{{ address: \"{{listen}}\" }}, {{ address: \"unix:{{dir}}/stream\", stream: tcp }}]\n\
         dns: {{ servers: [\"{}\"] }}\n\
         stream_routes: [{{ id: s, upstream: {{ nodes: {{ \"web.sigma.test:{port}\": 1 }}, retries: 0 }} }}]\n\
         routes: [{{ id: r, uri: \"/*\", plugins: {{ forward-auth: {{ uri: \"http://auth.sigma.test:{port}/\" }} }}, upstream: {{ nodes: {{ \"127.0.0.1:{port}\": 1 }} }} }}]\n",
        names.address(),
        port = origin.port()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    for round in 0..6 {
        assert_eq!(gateway.connect().unwrap().get("/").unwrap().status(), 200, "{round}");
        let place = Address::Unix(gateway.dir().join("stream"));
        assert_eq!(Peer::connect(&place).unwrap().get("/").unwrap().status(), 200, "{round}");
    }
}
