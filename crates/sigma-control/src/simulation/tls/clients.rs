//! TLS and the PROXY protocol of clients: certificates by name, sessions, handshakes that take too long.

use std::time::Duration;

use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::tls::ClientTls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::gateway::{ACCESS_LOG, Client, Gateway, joined, managed};
use super::super::peers::Message;
use super::super::{LISTEN, Simulation, example};
use super::{Authority, Issued, ask, config, shake, shown, status, to_node};

#[test]
fn the_name_decides_which_certificate_is_shown() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
        let [exact, wildcard, own] = ["a.test", "*.a.test", "b.test"].map(|name| root.issue(name));
        let tls = json!({ "certificates": [own.files(dir.path(), "own")] });
        let ssls = json!([
            exact.ssl(json!({ "id": "exact", "sni": "a.test" })),
            wildcard.ssl(json!({ "id": "wild", "snis": ["*.a.test", "c.test"] })),
            own.ssl(json!({ "id": "off", "sni": "x.a.test", "status": 0 })),
        ]);
        let gateway = simulation.gateway(config(tls, to_node(&node), json!({ "ssls": ssls })));
        simulation.run(async {
            for (name, expected) in
                [("a.test", &exact), ("A.TEST", &exact), ("x.a.test", &wildcard), ("b.test", &own)]
            {
                assert_eq!(shown(&gateway, &root, name).await, Ok(expected.der()), "{name}");
            }
            // The star matches exactly one label: the default is shown, and is not for this name.
            let refused = shown(&gateway, &root, "x.y.a.test").await.unwrap_err();
            assert!(refused.contains("certificate"), "{refused}");
        });
    });
}

#[test]
fn the_name_decides_among_the_pairs_of_a_listener() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
        let [shop, blog] = ["shop.test", "blog.test"].map(|name| root.issue(name));
        let tls = json!({ "certificates": [shop.files(dir.path(), "shop"), blog.files(dir.path(), "blog")] });
        let gateway = simulation.gateway(config(tls, to_node(&node), json!({})));
        simulation.run(async {
            for (name, expected) in [("shop.test", &shop), ("blog.test", &blog), ("BLOG.test", &blog)] {
                assert_eq!(shown(&gateway, &root, name).await, Ok(expected.der()), "{name}");
            }
            let refused = shown(&gateway, &root, "other.test").await.unwrap_err();
            assert!(refused.contains("certificate"), "{refused}");
        });
    });
}

#[test]
fn a_session_goes_on_as_the_settings_say() {
    for (resumption, expected) in [("tickets", true), ("cache", true), ("off", false)] {
        example(move |simulation| {
            let (root, node, dir) =
                (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
            let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
            let rest = json!({ "tls": { "resumption": resumption } });
            let gateway = simulation.gateway(config(tls, to_node(&node), rest));
            simulation.run(async {
                let client = root.client(None);
                for first in [true, false] {
                    let mut stream = shake(&gateway, &client, "a.test").await.unwrap();
                    assert_eq!(stream.tls().unwrap().is_resumed, expected && !first, "{resumption}");
                    // The ticket comes with the response.
                    assert_eq!(status(&ask(&mut stream, "a.test", "/", "").await.unwrap()), 200);
                }
            });
        });
    }
}

/// The gateway shows this certificate for a name in the end; None for no certificate.
fn settles(
    simulation: &Simulation,
    gateway: &Gateway,
    root: &Authority,
    name: &str,
    expected: Option<&Issued>,
) {
    let expected = expected.map(Issued::der);
    let settled = simulation.until(|| simulation.run(shown(gateway, root, name)).ok() == expected);
    assert!(settled, "{name}: {}", gateway.log());
}

#[test]
fn certificates_change_through_the_admin_api_without_effect_on_others() {
    example(|simulation| {
        let (root, node) = (Authority::new("Root"), simulation.echo("a"));
        let [first, second, other] = ["a.test", "a.test", "b.test"].map(|name| root.issue(name));
        let listener = json!({ "address": LISTEN.to_string(), "tls": true });
        let gateway = simulation.gateway(joined(managed(), json!({ "listeners": [listener] })));
        gateway.put("routes/1", &json!({ "uri": "/*", "upstream": to_node(&node) }));
        let put = |id: &str, name: &str, issued: &Issued| {
            let answer =
                gateway.admin("PUT", &format!("ssls/{id}"), Some(&issued.ssl(json!({ "sni": name }))));
            assert!(answer.status < 300, "{answer:?}");
            assert!(!answer.text.contains("PRIVATE KEY"), "{answer:?}");
        };
        let settled = |name: &str, expected| settles(simulation, &gateway, &root, name, expected);
        put("a", "a.test", &first);
        put("b", "b.test", &other);
        settled("a.test", Some(&first));
        settled("b.test", Some(&other));
        let [mut of_a, mut of_b] = ["a.test", "b.test"]
            .map(|name| simulation.run(shake(&gateway, &root.client(None), name)).unwrap());
        put("a", "a.test", &second);
        settled("a.test", Some(&second));
        let unfit = json!({ "sni": "a.test", "cert": first.cert, "key": other.key });
        // APISIX takes a pair that does not fit; here nothing is stored that could not be served.
        let answer = gateway.admin("PUT", "ssls/a", Some(&unfit));
        assert_eq!(answer.status, 400, "{answer:?}");
        settled("a.test", Some(&second));
        put("a", "a.test", &second);
        assert_eq!(gateway.admin("DELETE", "ssls/a", None).status, 200);
        settled("a.test", None);
        for (stream, host) in [(&mut of_a, "a.test"), (&mut of_b, "b.test")] {
            assert_eq!(status(&simulation.run(ask(stream, host, "/", "")).unwrap()), 200, "{host}");
        }
        settled("b.test", Some(&other));
        for path in ["ssls/b", "ssls"] {
            let text = gateway.admin("GET", path, None).text;
            assert!(text.contains("b.test") && !text.contains("PRIVATE KEY"), "{text}");
        }
        let log = gateway.log();
        assert!(!log.contains("PRIVATE KEY") && !log.contains(&first.key[40..80]), "{log}");
    });
}

#[test]
fn clients_show_their_certificates() {
    example(|simulation| {
        let (root, clients, node) = (Authority::new("Root"), Authority::new("Clients"), simulation.echo("a"));
        let (open, strict, lax) =
            (root.issue("open.test"), root.issue("strict.test"), root.issue("lax.test"));
        let deep = root.issue("*.deep.test");
        let (known, stranger) = (clients.issue("known"), Authority::new("Others").issue("stranger"));
        let ssls = json!([
            open.ssl(json!({ "id": "open", "sni": "open.test" })),
            strict.ssl(json!({ "id": "strict", "sni": "strict.test", "client": { "ca": clients.pem } })),
            lax.ssl(json!({
                "id": "lax", "sni": "lax.test",
                "client": { "ca": clients.pem, "skip_mtls_uri_regex": ["^/open"] },
            })),
            deep.ssl(json!({ "id": "deep", "sni": "*.deep.test", "client": { "ca": clients.pem } })),
        ]);
        let format =
            "$uri $status $scheme $https $ssl_protocol $ssl_server_name $ssl_client_verify $ssl_client_s_dn";
        let access_log = json!({ "path": ACCESS_LOG, "format": format, "flush_ms": 100 });
        let rest = json!({ "ssls": ssls, "access_log": access_log });
        let gateway = simulation.gateway(config(json!(true), to_node(&node), rest));
        simulation.run(async {
            let answer = async |own: Option<&Issued>, name: &str, host: &str, path: &str| {
                let mut stream = shake(&gateway, &root.client(own), name).await?;
                let answer = ask(&mut stream, host, path, "").await;
                answer.map(|text| status(&text)).map_err(|error| error.to_string())
            };
            for (own, name, host, path, expected) in [
                (None, "open.test", "open.test", "/", Some(200)),
                (None, "strict.test", "strict.test", "/", None),
                (Some(&stranger), "strict.test", "strict.test", "/", None),
                (Some(&known), "strict.test", "strict.test", "/strict", Some(200)),
                (None, "lax.test", "lax.test", "/open", Some(200)),
                (None, "lax.test", "lax.test", "/closed", Some(400)),
                (Some(&stranger), "lax.test", "lax.test", "/stranger", Some(400)),
                (Some(&known), "lax.test", "lax.test:443", "/closed", Some(200)),
                // One name is no way to another one that requests more.
                (None, "open.test", "strict.test", "/", Some(421)),
                (None, "open.test", "LAX.test", "/open", Some(421)),
                (None, "open.test", "strict.test.", "/", Some(421)),
                (Some(&known), "strict.test", "lax.test", "/", Some(421)),
                (None, "lax.test", "open.test", "/closed", Some(400)),
                // A wildcard guards all names that it routes, at any depth.
                (Some(&known), "a.deep.test", "a.deep.test", "/", Some(200)),
                (None, "open.test", "a.deep.test", "/", Some(421)),
                (None, "open.test", "a.b.deep.test", "/", Some(421)),
                (Some(&known), "a.deep.test", "b.deep.test", "/", Some(421)),
                // Once any name has a guard, a session is for its own names.
                (None, "open.test", "elsewhere.test", "/", Some(421)),
                (None, "open.test", "open.test.", "/", Some(200)),
            ] {
                let got = answer(own, name, host, path).await;
                assert_eq!(got.as_ref().ok(), expected.as_ref(), "{name} {host} {path}: {got:?}");
            }
        });
        for line in [
            "/strict 200 https on TLSv1.3 strict.test SUCCESS CN=known",
            "/stranger 400 https on TLSv1.3 lax.test FAILED CN=stranger",
            "/open 200 https on TLSv1.3 lax.test NONE -",
        ] {
            gateway.await_access(line);
        }
    });
}

#[test]
fn nodes_get_facts_about_tls_and_the_end_is_sent() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.mirror(), tempfile::tempdir().unwrap());
        let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
        let gateway = simulation.gateway(config(tls, to_node(&node), json!({})));
        simulation.run(async {
            let mut stream = shake(&gateway, &root.client(None), "a.test").await.unwrap();
            let answer = ask(&mut stream, "a.test", "/", "Connection: close\r\n").await.unwrap();
            let answer = answer.to_lowercase();
            assert!(answer.contains("x-forwarded-proto") && answer.contains("https"), "{answer}");
            // A close without the closing alert would be an error here.
            assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0);
        });
    });
}

#[test]
fn a_slow_handshake_is_ended() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
        let files = root.issue("a.test").files(dir.path(), "own");
        let tls = json!({ "certificates": [files], "handshake_timeout_ms": 300, "hello_bytes": 1024 });
        let gateway = simulation.gateway(config(tls, to_node(&node), json!({})));
        let large = [&[22, 3, 1, 8, 0][..], &[1, 0, 7, 252], &[0; 1100]].concat();
        for bytes in [&b""[..], &[22, 3, 1], &large] {
            let mut client = gateway.connect();
            client.send(bytes);
            // After any alert the end follows.
            client.rest();
        }
        assert!(simulation.until(|| gateway.counter("sigma_tls_handshake_failures_total") > 0));
    });
}

#[test]
fn a_recording_of_today_is_no_use_to_a_quantum_computer() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
        let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
        let gateway = simulation.gateway(config(tls, to_node(&node), json!({})));
        let stream = simulation.run(shake(&gateway, &root.client(None), "a.test")).unwrap();
        assert_eq!(stream.tls().unwrap().key_exchange, "X25519MLKEM768");
    });
}

/// The first message of a client, whole.
async fn hello(simulation: &Simulation, client: &ClientTls) -> Vec<u8> {
    let (server, mut accepted) = simulation.scripted();
    let socket = Stream::connect_tcp(server.address).await.unwrap();
    let taken = async {
        let mut server = accepted.recv().await.unwrap();
        let head = server.exactly(5).await;
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        [head, server.exactly(length).await].concat()
    };
    tokio::select! {
        biased;
        bytes = taken => bytes,
        shaken = client.shake(socket, "a.test") => panic!("no server responds: {:?}", shaken.err()),
    }
}

/// A slow client that holds a slot loses it to the next one that needs it, long before its time has ended; where there
/// is room for both, both stay.
#[test]
fn a_handshake_that_stalls_makes_room_for_others() {
    for (places, makes_room) in [(1, true), (2, false)] {
        example(move |simulation| {
            let (root, node, dir) =
                (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
            let files = root.issue("a.test").files(dir.path(), "own");
            // Longer than anything here takes.
            let tls = json!({ "certificates": [files], "handshake_timeout_ms": 600_000 });
            let rest = json!({ "tls": { "handshakes_per_worker": places } });
            let gateway = simulation.gateway(config(tls, to_node(&node), rest));
            let client = root.client(None);
            let first = simulation.run(hello(simulation, &client));
            let mut dawdler = gateway.connect();
            dawdler.send(&first);
            // It gets a response, so it has its place.
            assert_eq!(dawdler.exactly(5).len(), 5);
            simulation.run(shake(&gateway, &client, "a.test")).unwrap();
            let ended = dawdler.rest_within(Duration::from_secs(1));
            // Ends with the gateway's alert, or with a reset.
            let is_open = ended.is_err_and(|error| error == "the connection is open");
            assert_eq!(is_open, !makes_room);
        });
    }
}

/// A request behind a header of the PROXY protocol; the response in lower case.
fn ask_after(gateway: &Gateway, header: &[u8]) -> String {
    let mut client = gateway.connect();
    client.send(header);
    client.send(REQUEST);
    let answer = client.response("GET").unwrap();
    format!("HTTP/1.1 {}\n{}", answer.status(), answer.text()).to_lowercase()
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn a_trusted_balancer_says_whose_connection_it_is() {
    let v1 = b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n";
    let listening = |trusted: Value| {
        let proxy_protocol = json!({ "trusted": trusted, "timeout_ms": 300 });
        json!({ "listeners": [{ "address": LISTEN.to_string(), "proxy_protocol": proxy_protocol }] })
    };
    example(move |simulation| {
        let node = simulation.mirror();
        let rest = listening(json!(["127.0.0.0/8"]));
        let gateway = simulation.gateway(config(json!(true), to_node(&node), rest));
        let v2 = [
            &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
            &[203, 0, 113, 8, 192, 0, 2, 1, 0x12, 0x67, 1, 0xbb],
        ]
        .concat();
        let own = &b"PROXY UNKNOWN\r\n"[..];
        for (header, client) in [(&v1[..], "203.0.113.7"), (&v2, "203.0.113.8"), (own, "127.0.0.1")] {
            let answer = ask_after(&gateway, header);
            assert!(answer.contains(&format!("\"x-real-ip\",\"{client}\"")), "{client}: {answer}");
        }
        // A trusted peer that does not begin with a header is not served at all.
        for bad in [REQUEST, b"PROXY TCP4 bad\r\n", b"PRO"] {
            let mut client = gateway.connect();
            client.send(bad);
            assert_eq!(client.whole_rest().unwrap(), b"", "{bad:?}");
        }
    });
    example(move |simulation| {
        let node = simulation.mirror();
        let rest = listening(json!(["192.0.2.0/24"]));
        let gateway = simulation.gateway(config(json!(true), to_node(&node), rest));
        // From others a header is nothing but a malformed request.
        let answer = ask_after(&gateway, v1);
        assert!(answer.starts_with("http/1.1 400"), "{answer}");
        let answer = ask_after(&gateway, b"");
        assert!(answer.contains("\"x-real-ip\",\"127.0.0.1\""), "{answer}");
    });
}

#[test]
fn the_header_comes_before_the_handshake() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.mirror(), tempfile::tempdir().unwrap());
        let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
        let mut whole = config(tls, to_node(&node), json!({}));
        whole["listeners"][0]["proxy_protocol"] = json!({ "trusted": ["127.0.0.1"] });
        let gateway = simulation.gateway(whole);
        simulation.run(async {
            let mut socket = gateway.dial();
            socket.write_all(b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n").await.unwrap();
            let mut stream = root.client(None).shake(socket, "a.test").await.unwrap();
            let answer = ask(&mut stream, "a.test", "/", "").await.unwrap().to_lowercase();
            assert!(answer.contains("2001:db8::7") && answer.contains("https"), "{answer}");
        });
    });
}

/// Responds to the next request of a connection, at the node; returns the client's view.
fn exchange(node: &mut Client, client: &mut Client) -> Message {
    node.request();
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    client.response("GET").unwrap()
}

#[test]
fn nodes_get_the_address_of_the_client() {
    for version in ["v1", "v2"] {
        example(move |simulation| {
            let (node, mut accepted) = simulation.scripted();
            let to = joined(to_node(&node), json!({ "proxy_protocol": version }));
            let gateway = super::in_cleartext(simulation, to, json!({}));
            let mut clients = [gateway.connect(), gateway.connect()];
            for client in &mut clients {
                client.send(REQUEST);
                // Never the connection of another client, idle or not.
                let mut node = simulation.accept(&mut accepted);
                if version == "v1" {
                    let line = node.line();
                    let port = format!(" {} ", client.port());
                    assert!(line.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "), "{line}");
                    assert!(line.contains(&port), "{line}");
                } else {
                    let header = node.exactly(28);
                    assert!(header.starts_with(b"\r\n\r\n\0\r\nQUIT\n\x21\x11"), "{header:?}");
                    assert_eq!(header[24..26], client.port().to_be_bytes());
                }
                // The same client's next request may continue with it.
                for _ in 0..2 {
                    assert_eq!(exchange(&mut node, client).status(), 200);
                    client.send(REQUEST);
                }
                assert_eq!(exchange(&mut node, client).status(), 200);
            }
        });
    }
}

/// An authority under another one, and its certificate.
fn under(parent: &Authority, name: &str) -> Authority {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.signed_by(&key, &parent.issuer).unwrap().pem();
    Authority { issuer: Issuer::new(params, key), pem }
}

#[test]
fn depth_bounds_the_chain_that_a_client_may_show() {
    example(|simulation| {
        let (root, clients, node) = (Authority::new("Root"), Authority::new("Clients"), simulation.echo("a"));
        let middle = under(&clients, "Middle");
        let low = under(&middle, "Low");
        let chain = |own: Issued, above: &[&Authority]| {
            let above: String = above.iter().map(|authority| authority.pem.as_str()).collect();
            Issued { cert: own.cert + &above, key: own.key }
        };
        let chains = [
            chain(clients.issue("direct"), &[]),
            chain(middle.issue("one"), &[&middle]),
            chain(low.issue("two"), &[&low, &middle]),
        ];
        let names = ["d0.test", "d1.test", "d2.test", "usual.test"];
        let mut ssls: Vec<Value> = names
            .iter()
            .enumerate()
            .map(|(depth, name)| {
                let client = json!({ "ca": clients.pem, "depth": depth });
                root.issue(name).ssl(json!({ "id": name, "sni": name, "client": client }))
            })
            .collect();
        ssls[3]["client"] = json!({ "ca": clients.pem });
        let gateway = simulation.gateway(config(json!(true), to_node(&node), json!({ "ssls": ssls })));
        simulation.run(async {
            for (name, most) in names.iter().zip([0, 1, 2, 1]) {
                for (intermediates, own) in chains.iter().enumerate() {
                    let answer = async {
                        let mut stream = shake(&gateway, &root.client(Some(own)), name).await?;
                        ask(&mut stream, name, "/", "").await.map_err(|error| error.to_string())
                    };
                    let answer = answer.await.map(|text| status(&text));
                    assert_eq!(answer.is_ok(), intermediates <= most, "{name}, {intermediates}: {answer:?}");
                }
            }
        });
    });
}

#[test]
fn certificate_files_are_read_again_by_a_reload() {
    example(|simulation| {
        let (root, node, dir) = (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
        let [first, second] = ["a.test", "a.test"].map(|name| root.issue(name));
        let tls = json!({ "certificates": [first.files(dir.path(), "own")] });
        let gateway = simulation.gateway(config(tls, to_node(&node), json!({})));
        let shown = || simulation.run(shown(&gateway, &root, "a.test"));
        let mut open = simulation.run(shake(&gateway, &root.client(None), "a.test")).unwrap();
        second.files(dir.path(), "own");
        // Not before it is requested.
        assert_eq!(shown(), Ok(first.der()));
        gateway.reload().unwrap();
        assert_eq!(shown(), Ok(second.der()));
        assert_eq!(status(&simulation.run(ask(&mut open, "a.test", "/", "")).unwrap()), 200);
        // Half of a new pair leaves the old one in force.
        std::fs::write(dir.path().join("own.key"), &first.key).unwrap();
        let refused = gateway.reload().unwrap_err();
        assert!(refused.contains("own.key"), "{refused}");
        assert_eq!(shown(), Ok(second.der()));
    });
}
