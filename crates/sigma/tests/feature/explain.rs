//! The result of a request, explained without sending it.

use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, Peer, until};

use crate::managed::{EMBEDDED, KEY, VIEWER, admin, await_answerer, start, upstream};
use crate::{PATIENCE, SIGMA};

const EXPLAIN: &str = "/apisix/admin/explain";

/// A gateway with a route of a service, a rule for all, and a consumer in a group.
fn gateway(origin: &Origin) -> Gateway {
    let gateway = start(EMBEDDED);
    let writer = admin(&gateway);
    let limit = |count: u32| json!({"count": count, "time_window": 60, "key": "remote_addr"});
    writer.put("global_rules/1", &json!({"plugins": {"request-id": {}}})).unwrap();
    writer.put("consumer_groups/g", &json!({"plugins": {"limit-count": limit(7)}})).unwrap();
    let jack = json!({"username": "jack", "group_id": "g", "plugins": {"key-auth": {"key": "the-key-of-jack-himself"}}});
    writer.put("consumers/jack", &jack).unwrap();
    let service = json!({
        "upstream": upstream(origin),
        "plugins": {
            "limit-count": limit(5),
            "key-auth": {"_meta": {"filter": [["arg_free", "~=", "1"]]}},
            "ip-restriction": {"whitelist": ["127.0.0.0/8"], "_meta": {"disable": true}},
        },
    });
    writer.put("services/s", &service).unwrap();
    let one = json!({
        "uri": "/one/*", "service_id": "s", "vars": [["http_x_tenant", "==", "a"]],
        "plugins": {"limit-count": limit(3)},
    });
    writer.put("routes/1", &one).unwrap();
    writer.put("routes/2", &json!({"uri": "/one/*", "methods": ["POST"], "service_id": "s"})).unwrap();
    writer.put("routes/3", &json!({"uri": "/three", "upstream": upstream(origin)})).unwrap();
    await_answerer(&gateway, "/three", "a");
    gateway
}

fn plugin<'v>(explained: &'v Value, name: &str) -> &'v Value {
    explained["plugins"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap()
}

#[test]
fn a_request_is_explained_as_it_would_be_served() {
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&origin);
    let viewer = Operator::new(gateway.admin_address()).with_key(VIEWER);
    let query = "?url=http://api.test/one/x%3Ffree%3D1&header=X-Tenant:+a&client=10.1.2.3";
    let explained = viewer.get(&format!("{EXPLAIN}{query}")).unwrap();
    assert_eq!(explained["routes"][0], json!({"id": "1", "name": null, "matched": true, "reason": null}));
    assert_eq!((&explained["routes"][1]["id"], &explained["other_routes"]), (&json!("2"), &json!(1)));
    assert_eq!(explained["routes_with_other_paths"], 1);
    assert_eq!(explained["may_be_refused_by"], json!(["request-id", "limit-count"]));
    let reason = explained["routes"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("method GET not in [POST]"), "{reason}");
    assert_eq!(
        (&explained["route"]["key"], &explained["service"]["key"]),
        (&json!("routes/1"), &json!("services/s"))
    );
    let limit = plugin(&explained, "limit-count");
    assert_eq!((&limit["source"], &limit["instead_of"]), (&json!("routes/1"), &json!(["services/s"])));
    let id = plugin(&explained, "request-id");
    assert_eq!(
        (&id["source"], &id["global"], &id["runs"]),
        (&json!("global_rules/1"), &json!(true), &json!(true))
    );
    let auth = plugin(&explained, "key-auth");
    assert_eq!((&auth["filter"], &auth["runs"]), (&json!(false), &json!(false)));
    assert_eq!(plugin(&explained, "ip-restriction")["reason"], "_meta.disable");
    assert!(!explained["phases"].to_string().contains("key-auth"), "{}", explained["phases"]);
    let node = &explained["upstream"]["nodes"][0];
    assert_eq!(node["status"], "unchecked");
    assert_eq!((&node["node"], &node["weight"]), (&json!(format!("127.0.0.1:{}", origin.port())), &json!(1)));
    let sent = &explained["to_node"];
    assert_eq!((&sent["path"], &sent["headers"]["Host"]), (&json!("/one/x?free=1"), &json!("api.test")));
    assert_eq!(sent["headers"]["X-Forwarded-For"], "10.1.2.3");
    assert!(sent["may_be_changed_by"].to_string().contains("limit-count"), "{sent}");
    // A consumer's plugins replace the route's.
    let explained = viewer.get(&format!("{EXPLAIN}{query}&consumer=jack")).unwrap();
    let limit = plugin(&explained, "limit-count");
    assert_eq!(limit["source"], "consumer_groups/g", "{limit}");
    assert!(!explained.to_string().contains("the-key-of-jack"), "{explained}");
    // No route serves this; the Control API says the same.
    let control = Operator::new(gateway.control_address());
    let explained = control.get("/v1/explain?url=http://api.test/none&method=DELETE").unwrap();
    assert!(
        explained["route"].is_null() && explained["refused"].as_str().unwrap().contains("404"),
        "{explained}"
    );
    for (query, words) in [
        ("", "missing argument url"),
        ("?url=http://a/&consumer=jill", "unknown consumer jill"),
        ("?url=http://a/&listener=x", "unknown listener x"),
        ("?url=http://a/&method=G%20T", "no such request"),
    ] {
        let refused = viewer.call("GET", &format!("{EXPLAIN}{query}"), None).unwrap();
        assert_eq!(refused.status(), 400, "{query}");
        assert!(refused.text().contains(words), "{query}: {}", refused.text());
    }
}

#[test]
fn the_rest_of_limits_and_rewritten_parts_are_shown() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let rewrite = json!({"uri": "/new?from=$arg_a", "method": "PUT", "headers": {"set": {"X-Api-Key": "s3cret", "X-To": "n"}}});
    let plugins = json!({
        "proxy-rewrite": rewrite,
        "limit-count": {"count": 3, "time_window": 600, "key": "remote_addr"},
        "limit-conn": {"conn": 2, "burst": 1, "default_conn_delay": 0.1, "key": "remote_addr"},
        "limit-req": {"rate": 0.001, "burst": 0, "key": "http_x_whose", "nodelay": true},
    });
    let route = json!({"uri": "/old", "plugins": plugins, "upstream": upstream(&origin)});
    admin(&gateway).put("routes/r", &route).unwrap();
    let control = Operator::new(gateway.control_address());
    let ask = |more: &str| control.get(&format!("/v1/explain?url=http://h/old%3Fa%3Db{more}")).unwrap();
    assert!(until(PATIENCE, || !ask("")["route"].is_null()));
    for expected in [3, 3] {
        let explained = ask("");
        let left = &plugin(&explained, "limit-count")["would"]["limits"][0];
        assert_eq!((&left["limit"], &left["remaining"]), (&json!(3), &json!(expected)), "{explained}");
        let places = &plugin(&explained, "limit-conn")["would"]["limits"][0];
        assert_eq!((&places["now"], &places["remaining"]), (&json!(0), &json!(3)), "{explained}");
        assert_eq!(plugin(&explained, "limit-req")["would"]["delay_ms"], 0, "{explained}");
        let would = &plugin(&explained, "proxy-rewrite")["would"];
        assert_eq!((&would["uri"], &would["method"]), (&json!("/new?from=b&a=b"), &json!("PUT")), "{would}");
        assert_eq!(would["headers"]["set"], json!([["X-Api-Key", "***"], ["X-To", "n"]]));
        let sent = &explained["to_node"];
        assert_eq!((&sent["method"], &sent["path"]), (&json!("PUT"), &json!("/new?from=b&a=b")));
    }
    let served =
        gateway.connect().unwrap().ask("GET /old?a=b HTTP/1.1\r\nHost: h\r\nX-Whose: mine\r\n\r\n").unwrap();
    assert_eq!(served.status(), 200);
    let explained = ask("&header=X-Whose:+mine");
    assert_eq!(plugin(&explained, "limit-count")["would"]["limits"][0]["remaining"], 2, "{explained}");
    assert_eq!(plugin(&explained, "limit-req")["would"]["refused"], true, "{explained}");
    // Another client's quota is unused.
    let explained = ask("&client=10.0.0.1");
    assert_eq!(plugin(&explained, "limit-count")["would"]["limits"][0]["remaining"], 3, "{explained}");
}

/// Nothing was sent and nothing counted: the limit has all of its places afterwards.
#[test]
fn an_explanation_counts_nothing() {
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&origin);
    let control = Operator::new(gateway.control_address());
    for _ in 0..5 {
        control.get("/v1/explain?url=http://a/one/x%3Ffree%3D1&header=X-Tenant:a").unwrap();
    }
    let mut left = None;
    let served = until(PATIENCE, || {
        let mut client: Peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        let request = "GET /one/x?free=1 HTTP/1.1\r\nHost: a\r\nX-Tenant: a\r\nConnection: close\r\n\r\n";
        let answer = client.ask(request).unwrap();
        left = answer.head.get("x-ratelimit-remaining").map(str::to_owned);
        answer.status() == 200
    });
    assert!(served);
    assert_eq!(left.as_deref(), Some("2"));
}

/// A node that is out of service serves no request, and its upstream says why.
#[test]
fn an_upstream_without_usable_nodes_serves_nothing() {
    let gateway = start(EMBEDDED);
    let writer = admin(&gateway);
    let check = |upstream: Value, expected: &str| {
        writer.put("routes/1", &json!({"uri": "/one", "upstream": upstream})).unwrap();
        let control = Operator::new(gateway.control_address());
        let explained = || control.get("/v1/explain?url=http://a/one").unwrap();
        let is_said = until(PATIENCE, || explained()["refused"] == expected);
        let explained = explained();
        assert!(is_said, "{expected}: {explained}");
        assert!(explained["to_node"].is_null() && explained["route"]["key"] == "routes/1", "{explained}");
    };
    check(json!({"nodes": {}}), "503 destination_unavailable: the upstream has no node");
    let states = json!({"nodes": {"127.0.0.1:9": 1}, "node_states": {"127.0.0.1:9": "maintenance"}});
    check(states, "502 destination_unavailable: all nodes are in maintenance");
}

#[test]
fn a_shell_shows_it() {
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&origin);
    let admin = format!("http://{}", gateway.admin_address());
    let check = |args: &[&str], status: i32, words: &[&str]| {
        let mut command = Command::new(SIGMA);
        let output =
            command.args(["ctl", "--admin", &admin]).args(args).env("SIGMA_ADMIN_KEY", KEY).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        for word in words {
            assert!(text.contains(word), "{text}");
        }
    };
    let words = [
        "1: matches this request; ",
        "2: no: method GET",
        "limit-count (routes/1)",
        "to the node: GET /one/x",
    ];
    check(&["explain", "GET", "http://a/one/x", "-H", "X-Tenant: a"], 0, &words);
    check(&["explain", "GET", "http://a/none", "--client", "10.0.0.1"], 3, &["404"]);
    let control = format!("http://{}", gateway.control_address());
    check(&["explain", "GET", "http://a/three", "--control", &control], 0, &["3: matches this request; "]);
}
