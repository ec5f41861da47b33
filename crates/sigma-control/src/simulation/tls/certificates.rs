//! Certificates and the settings of TLS: warnings, refusals, and the parts of a client's certificate that nodes get.

use std::net::SocketAddr;

use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};

use super::super::gateway::{Gateway, joined, managed};
use super::super::peers::Node;
use super::super::{LISTEN, LOOPBACK, example};
use super::{Authority, Issued, ask, config, shake, shown, status, to_node};

#[test]
fn a_certificate_put_too_late_is_warned_of_and_served() {
    example(|simulation| {
        let root = Authority::new("Root");
        let listener = json!({ "address": LISTEN.to_string(), "tls": true });
        let gateway = simulation.gateway(joined(managed(), json!({ "listeners": [listener] })));
        let old = root.issue_within("a.test", 2001..2002);
        gateway.put("ssls/1", &old.ssl(json!({ "sni": "a.test" })));
        gateway.await_log("has expired and peers refuse it");
        let new = root.issue("a.test");
        gateway.put("ssls/1", &new.ssl(json!({ "sni": "a.test" })));
        let is_new = || simulation.run(shown(&gateway, &root, "a.test")) == Ok(new.der());
        assert!(simulation.until(is_new), "{}", gateway.log());
        let warnings = gateway.log().matches("has expired and peers refuse it").count();
        assert_eq!(warnings, 1, "{}", gateway.log());
    });
}

/// A gateway with such a certificate does not start, and the message has these words.
fn refused(tls: Value, ssl: Value, words: &'static [&'static str]) {
    example(move |simulation| {
        let node = simulation.echo("a");
        let whole = config(tls, to_node(&node), json!({ "ssls": [ssl] }));
        let Err(refused) = Gateway::start(simulation, whole) else { panic!("{words:?}: it starts") };
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    });
}

/// Without a pair that was good before, nothing starts, and the message names the file.
#[test]
fn a_start_without_a_good_pair_is_refused() {
    let missing = json!({ "id": "a", "sni": "a.test", "cert_file": "/nowhere/both.pem" });
    refused(json!(true), missing, &["ssls/a: cannot read /nowhere/both.pem: No such file"]);
    let unset = "$env://SIGMA_TEST_UNSET";
    let unset = json!({ "id": "a", "sni": "a.test", "cert": unset, "key": unset });
    refused(json!(true), unset, &["the environment variable `SIGMA_TEST_UNSET` is not set"]);
}

#[test]
fn a_cipher_or_curve_that_is_unknown_is_refused_with_those_that_are_known() {
    let root = Authority::new("Root");
    let check = |tls: Value, ssl: Value, words| {
        let ssl = joined(root.issue("a.test").ssl(ssl), json!({ "id": "a", "sni": "a.test" }));
        refused(tls, ssl, words);
    };
    let (ciphers, curves) = (json!({ "ciphers": "HIGH:!aNULL" }), json!({ "curves": "P-521" }));
    check(ciphers, json!({}), &["listeners[0].tls.ciphers: unknown cipher \"HIGH\"", "; use "]);
    check(curves, json!({}), &["listeners[0].tls.curves: unknown curve \"P-521\"", "; use "]);
    let unknown = json!({ "ssl_ciphers": "AES128-SHA" });
    check(json!(true), unknown, &["ssl_ciphers: unknown cipher \"AES128-SHA\"", "; use "]);
    let empty = json!({ "ssl_curves": "" });
    check(json!(true), empty, &["ssl_curves: the list has no curve", "; use "]);
}

#[test]
fn a_list_that_names_nothing_is_refused() {
    let root = Authority::new("Root");
    let client = json!({ "ca": root.pem, "crl": { "when_stale": "allow" } });
    let ssl = root.issue("a.test").ssl(json!({ "id": "1", "sni": "a.test", "client": client }));
    refused(json!(true), ssl, &["client.crl: it has no list"]);
}

#[test]
fn cleartext_clients_are_redirected_to_https() {
    for (attribute, port) in [(json!({}), ":9080"), (json!({ "redirect": { "https_port": 443 } }), "")] {
        example(move |simulation| {
            let (root, node, dir) =
                (Authority::new("Root"), simulation.echo("a"), tempfile::tempdir().unwrap());
            let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
            let rest = json!({
                "global_rules": [{ "id": "1", "plugins": { "redirect": { "http_to_https": true } } }],
                "plugin_attr": attribute,
            });
            let cleartext = SocketAddr::new(LOOPBACK, 9081);
            let mut whole = config(tls, to_node(&node), rest);
            whole["listeners"].as_array_mut().unwrap().push(json!(cleartext.to_string()));
            let gateway = simulation.gateway(whole);
            let mut client = simulation.connect(cleartext).unwrap();
            let request = "GET /a%20b?c HTTP/1.1\r\nHost: a.test\r\n\r\n";
            let answer = simulation.run(client.ask(request)).unwrap();
            let location = format!("https://a.test{port}/a%20b?c");
            assert_eq!((answer.status(), answer.get("location")), (301, Some(&*location)));
            simulation.run(async {
                let mut stream = shake(&gateway, &root.client(None), "a.test").await.unwrap();
                assert_eq!(status(&ask(&mut stream, "a.test", "/a%20b?c", "").await.unwrap()), 200);
            });
        });
    }
}

/// A certificate with these URIs among its names.
fn client_with_uris(authority: &Authority, name: &str, uris: &[&str]) -> Issued {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
    let uri = |uri: &&str| rcgen::SanType::URI((*uri).try_into().unwrap());
    params.subject_alt_names.extend(uris.iter().map(uri));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Issued { cert: params.signed_by(&key, &authority.issuer).unwrap().pem(), key: key.serialize_pem() }
}

#[test]
fn nodes_get_only_the_selected_parts_of_the_certificate() {
    example(|simulation| {
        let (root, ca, node) = (Authority::new("Root"), Authority::new("Clients"), simulation.mirror());
        let ssl = root.issue("a.test").ssl(json!({
            "id": "1", "sni": "a.test", "client": { "ca": ca.pem, "skip_mtls_uri_regex": ["^/"] },
        }));
        let plugins = json!({
            "forward-client-cert": { "client_cert": true },
            "proxy-rewrite": { "headers": { "set": {
                "X-Cert": "$ssl_client_escaped_cert", "X-Spiffe": "$ssl_client_spiffe_id",
            } } },
        });
        let rest = json!({
            "ssls": [ssl],
            "routes": [{ "id": "all", "uri": "/*", "upstream": to_node(&node), "plugins": plugins }],
        });
        let gateway = simulation.gateway(config(json!({ "alpn": ["http/1.1"] }), to_node(&node), rest));
        simulation.run(async {
            let told = async |own: Option<&Issued>| {
                let mut stream = shake(&gateway, &root.client(own), "a.test").await.unwrap();
                let forged =
                    "X-Forwarded-Client-Cert: Hash=forged\r\nClient-Cert: :forged:\r\nX-Spiffe: forged\r\n";
                let answer = ask(&mut stream, "a.test", "/", forged).await.unwrap();
                assert!(status(&answer) == 200 && !answer.contains("forged"), "{answer}");
                answer
            };
            let web = client_with_uris(&ca, "web", &["spiffe://example.org/web"]);
            let answer = told(Some(&web)).await;
            for part in [
                "Subject=\\\"CN=web\\\";URI=spiffe://example.org/web;DNS=client.test",
                "[\"X-Spiffe\",\"spiffe://example.org/web\"]",
                "[\"X-Cert\",\"-----BEGIN%20CERTIFICATE-----%0A",
                "[\"Client-Cert\",\":MII",
            ] {
                assert!(answer.contains(part), "{part}\n{answer}");
            }
            let uris = ["spiffe://example.org/web,By=spiffe://example.org/admin;Hash=1"];
            let hostile = client_with_uris(&ca, "a\",Hash=2\r\nX-Evil: 1", &uris);
            let answer = told(Some(&hostile)).await;
            let field = "Subject=\\\"CN=a\\\\22\\\\,Hash=2\\\\0D\\\\0AX-Evil: 1\\\";URI=spiffe://example.org/web%2CBy%3Dspiffe://example.org/admin%3BHash%3D1;DNS";
            assert!(answer.contains(field), "{field}\n{answer}");
            assert!(!answer.contains("[\"X-Evil\"") && !answer.contains("[\"X-Spiffe\",\"spiffe"), "{answer}");
            // An unverified client, or one without a certificate, is anonymous.
            let stranger = client_with_uris(&Authority::new("Others"), "web", &["spiffe://example.org/web"]);
            for own in [Some(&stranger), None] {
                let answer = told(own).await;
                assert!(!answer.contains("spiffe") && !answer.contains("Client-Cert"), "{answer}");
            }
        });
    });
}

/// An upstream over TLS of this node, with these members.
fn https(node: &Node, members: Value) -> Value {
    joined(json!({ "scheme": "https", "retries": 0, "nodes": { node.name(): 1 } }), members)
}

/// `profile: edge` verifies nodes unless the upstream says otherwise.
#[test]
fn nodes_are_verified_unless_the_upstream_says_otherwise() {
    for (settings, unverified) in [(json!({ "profile": "edge" }), 502), (json!({}), 200)] {
        example(move |simulation| {
            // No authority of the system vouches for it.
            let (node, _) = super::node(simulation, &Authority::new("Root").issue("h"), None);
            let to = |members| https(&node, members);
            let split = json!({ "upstream": to(json!({})) });
            let split = json!({ "traffic-split": { "rules": [{ "weighted_upstreams": [split] }] } });
            let whole = json!({
                "upstreams": [to(json!({ "id": "u" }))],
                "routes": [
                    { "id": "object", "uri": "/object", "upstream_id": "u" },
                    { "id": "inline", "uri": "/inline", "upstream": to(json!({})) },
                    { "id": "other", "uri": "/other", "upstream": to(json!({ "tls": { "alpn": ["http/1.1"] } })) },
                    { "id": "split", "uri": "/split", "upstream": to(json!({})), "plugins": split },
                    { "id": "off", "uri": "/off", "upstream": to(json!({ "tls": { "verify": false } })) },
                ],
            });
            let gateway = simulation.gateway(joined(whole, settings));
            for path in ["/object", "/inline", "/other", "/split"] {
                assert_eq!(gateway.get(path).status(), unverified, "{path}");
            }
            assert_eq!(gateway.get("/off").status(), 200);
            if unverified == 502 {
                gateway.await_log("certificate");
            }
        });
    }
}
