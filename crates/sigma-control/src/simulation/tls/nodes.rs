//! TLS towards nodes: verification, certificates of the gateway, HTTP/2 by agreement, probes.

use serde_json::{Value, json};

use super::super::gateway::{ACCESS_LOG, Gateway, catch_all, joined, managed};
use super::super::{Simulation, example};
use super::{Authority, Seen, in_cleartext, node};

/// The status of a request in cleartext.
fn status_for(gateway: &Gateway, host: &str) -> u16 {
    gateway.ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).status()
}

#[test]
fn nodes_over_tls_are_verified_and_shown_a_certificate() {
    for case in 0..5 {
        example(move |simulation| {
            let (root, clients) = (Authority::new("Root"), Authority::new("Clients"));
            let own = clients.issue("gateway");
            let by_id = json!({ "ssls": [own.ssl(json!({ "id": "c", "type": "client" }))] });
            let shown = json!({ "client_cert": own.cert, "client_key": own.key });
            let (tls, rest, expected, verified) = match case {
                0 => (json!({}), json!({}), 200, "NONE"),
                1 => (json!({ "verify": true, "ca": root.pem }), json!({}), 200, "NONE"),
                2 => (json!({ "verify": true, "ca": clients.pem }), json!({}), 502, ""),
                3 => (shown, json!({}), 200, "SUCCESS"),
                _ => (json!({ "client_cert_id": "c" }), by_id, 200, "SUCCESS"),
            };
            let (node, seen) = node(simulation, &root.issue("node.test"), Some(&clients));
            let upstream = json!({
                "nodes": { node.name(): 1 }, "scheme": "https", "tls": tls,
                "pass_host": "rewrite", "upstream_host": "node.test",
            });
            let gateway = in_cleartext(simulation, upstream, rest);
            for _ in 0..2 {
                assert_eq!(status_for(&gateway, "client.test"), expected, "{tls}");
            }
            if expected == 200 {
                let seen = seen.borrow();
                let alpn = "http/1.1".to_owned();
                let wanted = Seen { server_name: "node.test".into(), verified, alpn };
                assert!(!seen.is_empty() && seen.iter().all(|seen| *seen == wanted), "{tls}: {seen:?}");
            }
            gateway.await_access(&format!("{expected} https"));
        });
    }
}

/// HTTP/2 is no way around it.
#[test]
fn the_clients_host_is_verified_where_it_is_forwarded() {
    for scheme in ["https", "grpcs"] {
        example(move |simulation| {
            let root = Authority::new("Root");
            let (node, _) = node(simulation, &root.issue("node.test"), None);
            let tls = json!({ "verify": true, "ca": root.pem });
            let upstream = json!({ "nodes": { node.name(): 1 }, "scheme": scheme, "tls": tls });
            let gateway = in_cleartext(simulation, upstream, json!({}));
            assert_eq!(status_for(&gateway, "node.test"), 200);
            assert_eq!(status_for(&gateway, "other.test"), 502);
        });
    }
}

#[test]
fn probes_go_over_tls() {
    for (verify, is_trusted, expected) in [
        (false, false, "healthy"),
        (false, true, "healthy"),
        (true, true, "healthy"),
        (true, false, "unhealthy"),
    ] {
        example(move |simulation| {
            let (root, other) = (Authority::new("Root"), Authority::new("Other"));
            let (node, seen) = node(simulation, &root.issue("node.test"), None);
            let active = json!({
                "type": "https", "https_verify_certificate": verify, "host": "node.test",
                "healthy": { "interval": 1, "successes": 1 },
                "unhealthy": { "interval": 1, "tcp_failures": 1 },
            });
            let trusted = if is_trusted { root.pem } else { other.pem };
            let upstream = json!({
                "nodes": { node.name(): 1 }, "scheme": "https",
                "tls": { "ca": trusted }, "checks": { "active": active },
            });
            let gateway = in_cleartext(simulation, upstream, json!({}));
            let is_known = || {
                let is_probed = expected == "unhealthy" || !seen.borrow().is_empty();
                let answer = gateway.control("GET", "/v1/healthcheck", None).text;
                is_probed && answer.contains(&format!("\"{expected}\""))
            };
            assert!(simulation.until(is_known), "{}", gateway.log());
            assert!(seen.borrow().iter().all(|seen| seen.server_name == "node.test"));
        });
    }
}

#[test]
fn a_node_that_agrees_on_http2_is_spoken_to_in_it() {
    const UPGRADE: &str = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a2V5\r\n";
    for (scheme, tls, upgrade, expected) in [
        ("https", json!({}), "", "http/1.1"),
        ("https", json!({ "alpn": ["h2", "http/1.1"] }), "", "h2"),
        ("https", json!({ "alpn": ["h2", "http/1.1"] }), UPGRADE, "http/1.1"),
        ("grpcs", json!({}), "", "h2"),
    ] {
        example(move |simulation| {
            let root = Authority::new("Root");
            let (node, seen) = node(simulation, &root.issue("node.test"), None);
            let upstream = json!({ "nodes": { node.name(): 1 }, "scheme": scheme, "tls": tls });
            let gateway = in_cleartext(simulation, upstream, json!({}));
            let request = format!("GET / HTTP/1.1\r\nHost: node.test\r\n{upgrade}\r\n");
            assert_eq!(gateway.ask(&request).status(), 200, "{scheme} {tls}");
            let seen = seen.borrow();
            assert!(
                !seen.is_empty() && seen.iter().all(|seen| seen.alpn == expected),
                "{scheme} {tls}: {seen:?}"
            );
        });
    }
}

#[test]
fn a_certificate_for_nodes_changes_with_its_ssl() {
    example(|simulation| {
        let (root, clients, others) =
            (Authority::new("Root"), Authority::new("Clients"), Authority::new("Others"));
        let (node, seen) = node(simulation, &root.issue("node.test"), Some(&clients));
        let gateway = simulation.gateway(managed());
        let upstream = json!({
            "nodes": { node.name(): 1 }, "scheme": "https", "tls": { "client_cert_id": "c" },
        });
        for (issued, expected) in [(clients.issue("gateway"), "SUCCESS"), (others.issue("gateway"), "FAILED")]
        {
            gateway.put("ssls/c", &issued.ssl(json!({ "type": "client" })));
            if expected == "SUCCESS" {
                gateway.put("routes/1", &json!({ "uri": "/*", "upstream": upstream }));
            }
            // The change reaches the worker soon; connections made before it serve on no longer.
            let is_shown = || {
                status_for(&gateway, "node.test");
                seen.borrow().last().is_some_and(|seen| seen.verified == expected)
            };
            assert!(simulation.until(is_shown), "{expected}: {}", gateway.log());
        }
    });
}

/// The response and the error log about an upstream without a session; the response is the same each time.
fn unreached(simulation: &Simulation, upstream: Value, error: &str) -> Gateway {
    let upstream = joined(upstream, json!({ "retries": 0 }));
    let access_log = json!({ "path": ACCESS_LOG, "format": "fault=$fault", "flush_ms": 100 });
    let settings = json!({ "proxy_status": "edge", "access_log": access_log });
    let gateway = simulation.gateway(joined(catch_all(upstream), settings));
    let response = gateway.get("/here");
    let field = response.get("proxy-status").unwrap_or_default();
    assert_eq!(response.status(), 502, "{field}");
    assert!(field.starts_with(&format!("edge; error={error}; details=\"")), "{error}: {field}");
    gateway.await_access(&format!("fault={error}\n"));
    assert!(gateway.counter(&format!("sigma_faults_total{{kind=\"{error}\"}}")) > 0);
    gateway
}

#[test]
fn a_certificate_that_is_not_trusted_has_its_own_fault() {
    example(|simulation| {
        let (root, other) = (Authority::new("Root"), Authority::new("Other"));
        let (node, _) = node(simulation, &root.issue("h"), None);
        let tls = json!({ "verify": true, "ca": other.pem });
        let to = json!({ "nodes": { node.name(): 1 }, "scheme": "https", "tls": tls });
        unreached(simulation, to, "tls_certificate_error");
    });
    example(|simulation| {
        let root = Authority::new("Root");
        let (node, _) = node(simulation, &root.issue("h"), None);
        let by_name = json!({
            "nodes": { node.name(): 1 }, "scheme": "https", "tls": { "verify": true, "ca": root.pem },
            "pass_host": "rewrite", "upstream_host": "another.test",
        });
        unreached(simulation, by_name, "tls_certificate_error");
    });
    // HTTP/2 that several exchanges wait for fails for all of them with the same kind.
    example(|simulation| {
        let (root, other) = (Authority::new("Root"), Authority::new("Other"));
        let (node, _) = node(simulation, &root.issue("h"), None);
        let tls = json!({ "verify": true, "ca": other.pem });
        let to = json!({ "nodes": { node.name(): 1 }, "scheme": "grpcs", "tls": tls });
        unreached(simulation, to, "tls_certificate_error");
    });
}

#[test]
fn a_node_without_a_tls_session_differs_from_one_that_refuses() {
    // The last one is an alert: handshake_failure.
    for (sent, error) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "tls_protocol_error"),
        (b"", "tls_protocol_error"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "tls_alert_received"),
    ] {
        example(move |simulation| {
            let node = simulation.serve(move |mut gateway| async move {
                if !sent.is_empty() {
                    gateway.send(sent).await.unwrap();
                    gateway.rest().await;
                }
            });
            let to = json!({ "nodes": { node.name(): 1 }, "scheme": "https", "tls": {} });
            unreached(simulation, to, error);
        });
    }
}

#[test]
fn faults_of_a_nodes_certificate_are_reported_and_logged_once() {
    for (years, is_trusted, name, reason) in [
        (2001..2090, false, "h", "the node's certificate is not issued by a trusted authority"),
        (2001..2090, true, "another.test", "the node's certificate is for another name"),
        (2000..2001, true, "h", "the node's certificate has expired"),
        (4000..4001, true, "h", "the node's certificate is not valid yet"),
    ] {
        example(move |simulation| {
            let (root, other) = (Authority::new("Root"), Authority::new("Other"));
            let (node, _) = node(simulation, &root.issue_within("h", years), None);
            let trusted = if is_trusted { root.pem } else { other.pem };
            let gateway = simulation.gateway(catch_all(json!({
                "nodes": { node.name(): 1 }, "scheme": "https", "retries": 0,
                "pass_host": "rewrite", "upstream_host": name, "tls": { "verify": true, "ca": trusted },
            })));
            for _ in 0..3 {
                let response = gateway.get("/");
                let (status, text) = (response.status(), response.text());
                assert!(status == 502 && text.contains("tls_certificate_error"), "{text}");
                assert!(text.contains(reason), "{reason}: {text}");
            }
            let log = gateway.log();
            // In addition to the lines about the requests there is one about the node.
            let about_node =
                log.lines().filter(|line| line.contains(reason) && !line.contains("a request failed"));
            assert_eq!(about_node.count(), 1, "{reason}: {log}");
            assert!(log.contains(&node.name()), "{log}");
        });
    }
}
