//! Caches: requests of which a node gets different bytes never share a response.

use sigma_testkit::{Gateway, Message, Origin};

use crate::{PATIENCE, SIGMA, nodes};

/// The two caches, with the name of the status field.
const CACHES: [(&str, &str); 2] = [
    ("cache: { purge: true, valid: [{ statuses: [200, 404], seconds: 600 }] }", "cache-status"),
    ("plugins: { proxy-cache: { cache_strategy: memory, cache_zone: memory_cache } }", "apisix-cache-status"),
];

/// A node that matches paths as they come, and puts the Host and the forwarded host into its pages.
fn node() -> Origin {
    Origin::answer(|request| {
        let target = request.head.line.split(' ').nth(1).unwrap_or_default().to_owned();
        let field = |name| request.head.get(name).unwrap_or_default();
        let status = match target.as_str() {
            "/page" | "/css/site.css" => "200 OK",
            _ if target.starts_with("/account/") => "200 OK",
            _ => "404 Not Found",
        };
        let body = format!("{target} {} {} {}", field("host"), field("x-forwarded-host"), field("cookie"));
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
    .unwrap()
}

fn gateway(origin: &Origin, cache: &str, settings: &str, upstream: &str) -> Gateway {
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\n{settings}\nroutes:\n  - id: kept\n    uris: [\"/css/*\", \"/page\"]\n    \
         {cache}\n    upstream: {{ {upstream}nodes: {nodes} }}\n  - id: open\n    uri: \"/*\"\n    upstream: {{ nodes: {nodes} }}\n",
        nodes = nodes(&[origin])
    );
    Gateway::start(SIGMA, &config).unwrap()
}

fn ask(gateway: &Gateway, line: &str, fields: &str) -> Message {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.ask(format!("{line} HTTP/1.1\r\n{fields}\r\n")).unwrap()
}

fn is_hit(answer: &Message, field: &str) -> bool {
    answer.head.get(field).is_some_and(|told| told.contains("HIT") || told.contains("; hit"))
}

#[test]
fn spellings_of_a_path_have_entries_of_their_own() {
    for (cache, field) in CACHES {
        let origin = node();
        let gateway = gateway(&origin, cache, "router: { ambiguous_paths: allow }", "");
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
    }
}

#[test]
fn spellings_of_a_host_have_entries_of_their_own() {
    for (cache, field) in CACHES {
        for upstream in ["", "pass_host: rewrite, upstream_host: inner.test, ", "pass_host: node, "] {
            let origin = node();
            let gateway = gateway(&origin, cache, "", upstream);
            for host in ["shop.test:4444", "SHOP.test", "shop.test.", "shop.test"] {
                let answer = ask(&gateway, "GET /page", &format!("Host: {host}\r\n"));
                assert!(!is_hit(&answer, field), "{host}");
                assert!(answer.text().contains(&format!(" {host} ")), "{}", answer.text());
                let again = ask(&gateway, "GET /page", &format!("Host: {host}\r\n"));
                assert!(is_hit(&again, field) && again.text() == answer.text(), "{host}");
            }
        }
    }
}

#[test]
fn canonical_paths_share_an_entry() {
    for (cache, field) in CACHES {
        let origin = node();
        let gateway = gateway(&origin, cache, "router: { forward_path: canonical }", "");
        let first = ask(&gateway, "GET /x/%2e%2e//%70age", "Host: h\r\n");
        assert_eq!((first.status(), is_hit(&first, field)), (200, false));
        assert!(first.text().starts_with("/page "), "{}", first.text());
        assert!(is_hit(&ask(&gateway, "GET /page", "Host: h\r\n"), field));
    }
}

#[test]
fn rewritten_targets_are_part_of_the_key() {
    let origin = node();
    let plugins = "plugins: { proxy-rewrite: { uri: \"/account/$http_x_name\" }, proxy-cache: { cache_strategy: memory, cache_zone: memory_cache } }";
    let gateway = gateway(&origin, plugins, "", "");
    let name = |name: &str| ask(&gateway, "GET /page", &format!("Host: h\r\nX-Name: {name}\r\n")).text();
    assert!(name("jack").starts_with("/account/jack "));
    assert!(name("jill").starts_with("/account/jill "));
}

#[test]
fn answers_to_post_are_kept_by_the_body() {
    let origin = Origin::answer(|request| {
        let method = request.head.line.split(' ').next().unwrap_or_default().to_owned();
        let body = format!("{method} {}", String::from_utf8_lossy(&request.body));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
    .unwrap();
    for key in ["", ", cache_key: [\"$host\", \"$request_uri\", \"$request_method\"]"] {
        let plugins = format!(
            "plugins: {{ proxy-cache: {{ cache_strategy: memory, cache_zone: memory_cache, cache_method: [GET, HEAD, POST]{key} }} }}"
        );
        let gateway = gateway(&origin, &plugins, "", "");
        let post = |body: &str, more: &str| {
            let length = body.len();
            let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
            let head =
                format!("POST /page HTTP/1.1\r\nHost: h\r\n{more}Content-Length: {length}\r\n\r\n{body}");
            let answer = peer.ask(head).unwrap();
            (answer.head.get("apisix-cache-status").map(str::to_owned), answer.text())
        };
        let told = |status: &str, text: &str| (Some(status.to_owned()), text.to_owned());
        assert_eq!(post("one", ""), told("MISS", "POST one"));
        assert_eq!(post("two", ""), told("MISS", "POST two"));
        assert_eq!(post("one", ""), told("HIT", "POST one"));
        assert_eq!(post("one", "Content-Type: a/b\r\n"), told("MISS", "POST one"));
        let get = ask(&gateway, "GET /page", "Host: h\r\n");
        assert_eq!((is_hit(&get, "apisix-cache-status"), get.text().as_str()), (false, "GET "));
        let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        peer.send("HEAD /page HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        assert!(is_hit(&peer.read_response("HEAD").unwrap(), "apisix-cache-status"));
        // A body that is too long for the key is not stored.
        let long = "x".repeat(70_000);
        assert_eq!(post(&long, ""), (None, format!("POST {long}")));
        assert_eq!(post(&long, ""), (None, format!("POST {long}")));
    }
}
