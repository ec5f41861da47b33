//! Caches: requests of which a node gets different bytes never share a response.

use serde_json::{Value, json};

use super::gateway::{Gateway, joined};
use super::peers::{Message, Node, response};
use super::{Simulation, example};

/// A cache of a route: the name of its status field, and the members of the route.
fn cache(is_plugin: bool) -> (&'static str, Value) {
    let cache = json!({ "purge": true, "valid": [{ "statuses": [200, 404], "seconds": 600 }] });
    let plugin = json!({ "proxy-cache": { "cache_strategy": "memory", "cache_zone": "memory_cache" } });
    match is_plugin {
        true => ("apisix-cache-status", json!({ "plugins": plugin })),
        false => ("cache-status", json!({ "cache": cache })),
    }
}

/// Runs an example for both caches.
fn for_both(test: fn(&Simulation, &str, Value)) {
    for is_plugin in [false, true] {
        example(move |simulation| {
            let (field, members) = cache(is_plugin);
            test(simulation, field, members);
        });
    }
}

/// A node that matches paths as they come, and puts the Host and the forwarded host into its pages.
fn node(simulation: &Simulation) -> Node {
    simulation.answer(|request| {
        let target = request.target();
        let field = |name| request.get(name).unwrap_or_default();
        let is_page = ["/page", "/css/site.css"].contains(&target) || target.starts_with("/account/");
        let body = format!("{target} {} {} {}", field("host"), field("x-forwarded-host"), field("cookie"));
        response(if is_page { 200 } else { 404 }, "", &body)
    })
}

fn gateway(
    simulation: &Simulation,
    node: &Node,
    members: Value,
    settings: Value,
    upstream: Value,
) -> Gateway {
    let nodes = json!({ "nodes": { node.name(): 1 } });
    let kept =
        json!({ "id": "kept", "uris": ["/css/*", "/page"], "upstream": joined(nodes.clone(), upstream) });
    let open = json!({ "id": "open", "uri": "/*", "upstream": nodes });
    simulation.gateway(joined(json!({ "routes": [joined(kept, members), open] }), settings))
}

fn ask(gateway: &Gateway, line: &str, fields: &str) -> Message {
    gateway.ask(&format!("{line} HTTP/1.1\r\n{fields}\r\n"))
}

fn is_hit(answer: &Message, field: &str) -> bool {
    answer.get(field).is_some_and(|told| told.contains("HIT") || told.contains("; hit"))
}

#[test]
fn spellings_of_a_path_have_entries_of_their_own() {
    for_both(|simulation, field, members| {
        let node = node(simulation);
        let settings = json!({ "router": { "ambiguous_paths": "allow" } });
        let gateway = gateway(simulation, &node, members, settings, json!({}));
        for odd in ["/x/%2e%2e/page", "/%70age", "//page", "/./page"] {
            assert_eq!(ask(&gateway, &format!("GET {odd}"), "Host: h\r\n").status(), 404, "{odd}");
        }
        let page = ask(&gateway, "GET /page", "Host: h\r\n");
        assert_eq!((page.status(), is_hit(&page, field)), (200, false));
        let page = ask(&gateway, "GET /page", "Host: h\r\n");
        assert_eq!((page.status(), is_hit(&page, field)), (200, true));
        // Deception: the victim's page is not kept as the style sheet.
        let odd = "GET /account/%2e%2e/css/site.css";
        let victim = ask(&gateway, odd, "Host: h\r\nCookie: sid=victim\r\n");
        assert!(victim.text().contains("sid=victim"));
        let sheet = ask(&gateway, "GET /css/site.css", "Host: h\r\n");
        assert!(!sheet.text().contains("victim"), "{}", sheet.text());
        // Forgetting goes on working.
        assert_eq!(ask(&gateway, "PURGE /page", "Host: h\r\n").status(), 200);
        assert_eq!(ask(&gateway, "PURGE /page", "Host: h\r\n").status(), 404);
        assert!(!is_hit(&ask(&gateway, "GET /page", "Host: h\r\n"), field));
    });
}

#[test]
fn spellings_of_a_host_have_entries_of_their_own() {
    fn check(simulation: &Simulation, field: &str, members: Value, upstream: Value) {
        let node = node(simulation);
        let gateway = gateway(simulation, &node, members, json!({}), upstream);
        for host in ["shop.test:4444", "SHOP.test", "shop.test.", "shop.test"] {
            let answer = ask(&gateway, "GET /page", &format!("Host: {host}\r\n"));
            assert!(!is_hit(&answer, field), "{host}");
            assert!(answer.text().contains(&format!(" {host} ")), "{}", answer.text());
            let again = ask(&gateway, "GET /page", &format!("Host: {host}\r\n"));
            assert!(is_hit(&again, field) && again.text() == answer.text(), "{host}");
        }
    }
    for_both(|simulation, field, members| check(simulation, field, members, json!({})));
    for_both(|simulation, field, members| {
        let rewritten = json!({ "pass_host": "rewrite", "upstream_host": "inner.test" });
        check(simulation, field, members, rewritten);
    });
    for_both(|simulation, field, members| check(simulation, field, members, json!({ "pass_host": "node" })));
}

#[test]
fn canonical_paths_share_an_entry() {
    for_both(|simulation, field, members| {
        let node = node(simulation);
        let settings = json!({ "router": { "forward_path": "canonical" } });
        let gateway = gateway(simulation, &node, members, settings, json!({}));
        let first = ask(&gateway, "GET /x/%2e%2e//%70age", "Host: h\r\n");
        assert_eq!((first.status(), is_hit(&first, field)), (200, false));
        assert!(first.text().starts_with("/page "), "{}", first.text());
        assert!(is_hit(&ask(&gateway, "GET /page", "Host: h\r\n"), field));
    });
}

#[test]
fn rewritten_targets_are_part_of_the_key() {
    example(|simulation| {
        let node = node(simulation);
        let (_, mut members) = cache(true);
        members["plugins"]["proxy-rewrite"] = json!({ "uri": "/account/$http_x_name" });
        let gateway = gateway(simulation, &node, members, json!({}), json!({}));
        let name = |name: &str| ask(&gateway, "GET /page", &format!("Host: h\r\nX-Name: {name}\r\n")).text();
        assert!(name("jack").starts_with("/account/jack "));
        assert!(name("jill").starts_with("/account/jill "));
    });
}

#[test]
fn answers_to_post_are_kept_by_the_body() {
    for key in [json!(null), json!(["$host", "$request_uri", "$request_method"])] {
        example(move |simulation| {
            let node = simulation.answer(|request| {
                let body = format!("{} {}", request.method(), request.text());
                response(200, "", &body)
            });
            let (field, mut members) = cache(true);
            members["plugins"]["proxy-cache"]["cache_method"] = json!(["GET", "HEAD", "POST"]);
            if !key.is_null() {
                members["plugins"]["proxy-cache"]["cache_key"] = key;
            }
            let gateway = gateway(simulation, &node, members, json!({}), json!({}));
            let post = |body: &str, more: &str| {
                let length = body.len();
                let answer = gateway.ask(&format!(
                    "POST /page HTTP/1.1\r\nHost: h\r\n{more}Content-Length: {length}\r\n\r\n{body}"
                ));
                (answer.get(field).map(str::to_owned), answer.text())
            };
            let told = |status: &str, text: &str| (Some(status.to_owned()), text.to_owned());
            assert_eq!(post("one", ""), told("MISS", "POST one"));
            assert_eq!(post("two", ""), told("MISS", "POST two"));
            assert_eq!(post("one", ""), told("HIT", "POST one"));
            assert_eq!(post("one", "Content-Type: a/b\r\n"), told("MISS", "POST one"));
            let get = ask(&gateway, "GET /page", "Host: h\r\n");
            assert_eq!((is_hit(&get, field), &*get.text()), (false, "GET "));
            assert!(is_hit(&ask(&gateway, "HEAD /page", "Host: h\r\n"), field));
            // A body that is too long for the key is not stored.
            let long = "x".repeat(70_000);
            assert_eq!(post(&long, ""), (None, format!("POST {long}")));
            assert_eq!(post(&long, ""), (None, format!("POST {long}")));
        });
    }
}
