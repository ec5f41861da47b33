//! No setting is silently without effect: an unknown field is refused at any place, or warned of wherever a
//! warning can be seen.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Operator, Origin, until};

use crate::managed::{EMBEDDED, admin, config, revision, start, upstream};
use crate::{PATIENCE, SIGMA};

fn put(admin: &Operator, resource: &str, value: &Value) -> Message {
    admin.call("PUT", &format!("/apisix/admin/{resource}"), Some(value)).unwrap()
}

/// A route with slips in a plugin and in its upstream.
fn sloppy(origin: &Origin) -> Value {
    let mut upstream = upstream(origin);
    (upstream["scheme"], upstream["tls"]) = (json!("https"), json!({"verfy": true}));
    json!({"uri": "/a", "upstream": upstream,
        "plugins": {"limit-count": {"count": 1, "time_window": 60, "rejeted_code": 429}}})
}

/// The warnings of a response.
fn warnings(answer: &Message) -> Vec<&str> {
    let fields = answer.head.fields.iter();
    let told = fields.filter(|(name, _)| name.eq_ignore_ascii_case("x-sigma-warning"));
    told.map(|(_, text)| text.as_str()).collect()
}

/// Returns the gateway's warnings, as `place: message`.
fn listed(gateway: &Gateway) -> Vec<String> {
    let list = revision(gateway)["warnings"].as_array().cloned().unwrap_or_default();
    let text = |warning: &Value, field: &str| warning[field].as_str().unwrap_or_default().to_owned();
    list.iter().map(|warning| format!("{}: {}", text(warning, "place"), text(warning, "message"))).collect()
}

#[test]
fn unknown_fields_are_refused() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    let answer = put(&admin, "routes/1", &sloppy(&origin));
    assert_eq!(answer.status(), 400, "{}", answer.text());
    let said = answer.json().unwrap()["error_msg"].as_str().unwrap().to_owned();
    assert_eq!(
        said,
        "invalid configuration: unknown field `verfy` at upstream.tls: did you mean `verify`?; unknown field \
         `rejeted_code` at plugins.limit-count: did you mean `rejected_code`?"
    );
    let consumer = json!({"username": "jack", "plugins": {"key-auth": {"key": "a", "kye": "b"}}});
    let answer = put(&admin, "consumers/jack", &consumer);
    assert!(
        answer.text().contains("unknown field `kye` at plugins.key-auth: did you mean `key`?"),
        "{}",
        answer.text()
    );
    let answer = put(&admin, "plugin_metadata/cors", &json!({"allow_origin": {}}));
    assert!(
        answer.text().contains("unknown field `allow_origin`: did you mean `allow_origins`?"),
        "{}",
        answer.text()
    );
    let answer = put(&admin, "plugin_metadata/key-auth", &json!({"anything": 1}));
    assert!(answer.text().contains("unknown field `anything`: remove it"), "{}", answer.text());
}

#[test]
fn unknown_fields_may_be_warned_of() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("compat: {{ unknown_fields: warn }}\n{EMBEDDED}"));
    let admin = admin(&gateway);
    let answer = put(&admin, "routes/1", &sloppy(&origin));
    assert_eq!(answer.status(), 201, "{}", answer.text());
    let expected = [
        "upstream.tls.verfy: unknown field `verfy`, without effect (did you mean `verify`?)",
        "plugins.limit-count.rejeted_code: unknown field `rejeted_code`, without effect (did you mean `rejected_code`?)",
        "plugins.limit-count.rejected_code: clients over the limit get 503, as in an outage (write `rejected_code: 429`, or 503 if you mean it)",
    ];
    assert_eq!(warnings(&answer), expected);
    let in_status = [
        "routes/1.upstream.tls.verfy: unknown field `verfy`, without effect",
        "routes/1.plugins.limit-count.rejeted_code: unknown field `rejeted_code`, without effect",
        "routes/1.plugins.limit-count.rejected_code: clients over the limit get 503, as in an outage",
    ];
    assert!(
        until(PATIENCE, || listed(&gateway) == in_status),
        "{:?}\n{}",
        listed(&gateway),
        gateway.stderr()
    );
    for text in in_status {
        assert!(gateway.stderr().contains(text), "{}", gateway.stderr());
    }
    // A repaired problem is not reported any more.
    let mended = json!({"uri": "/a", "upstream": upstream(&origin)});
    let answer = put(&admin, "routes/1", &mended);
    assert_eq!((answer.status(), warnings(&answer).len()), (200, 0), "{}", answer.text());
    assert!(until(PATIENCE, || listed(&gateway).is_empty()), "{:?}", listed(&gateway));
}

/// Warnings that need the other resources are equal to the warnings of `sigma check`.
#[test]
fn a_writer_is_warned_by_the_other_resources() {
    let (root, origin) = (crate::tls::Authority::new("Root"), Origin::echo("a").unwrap());
    let port = sigma_testkit::free_port();
    let stream = format!("listeners:\n  - {{ address: \"127.0.0.1:{port}\", stream: tls }}\n");
    let gateway = Gateway::start(SIGMA, &config(EMBEDDED).replace("listeners:\n", &stream)).unwrap();
    let admin = admin(&gateway);
    let check = |method: &str, resource: &str, value: Value, expected: &[&str]| {
        // A rehearsal, which the dashboard's review shows, and the write itself.
        for query in ["?dry_run=true", ""] {
            let answer =
                admin.call(method, &format!("/apisix/admin/{resource}{query}"), Some(&value)).unwrap();
            assert!(answer.status() < 300, "{resource}: {}", answer.text());
            assert_eq!(warnings(&answer), expected, "{method} {resource}{query}");
        }
    };
    let to = upstream(&origin);
    let stream = json!({ "sni": "db.test", "upstream": { "scheme": "tcp", "nodes": { "127.0.0.1:1": 1 } } });
    check(
        "PUT",
        "stream_routes/1",
        stream.clone(),
        &[
            "sni: no certificate is for `db.test`: every handshake fails (add one to `ssls`, or write `tls: passthrough` where the node has it)",
        ],
    );
    check("PUT", "ssls/1", root.issue("db.test").ssl(json!({ "sni": "db.test" })), &[]);
    check("PUT", "stream_routes/1", stream, &[]);
    let guarded = json!({ "uri": "/a", "upstream": to, "plugins": { "key-auth": {} } });
    let no_consumer = "plugins.key-auth: no consumer has key-auth: every request is refused (add a consumer with `key-auth`)";
    check("PUT", "routes/1", guarded.clone(), &[no_consumer]);
    check("PATCH", "routes/1", json!({ "desc": "guarded" }), &[no_consumer]);
    let jack = json!({ "username": "jack", "plugins": { "key-auth": { "key": "jacks-key" } } });
    check("PUT", "consumers/jack", jack, &[]);
    check("PUT", "routes/1", guarded, &[]);
    let shadowed =
        warnings_of_post(&admin, &json!({ "uri": "/b", "upstream": to, "plugins": { "prometheus": {} } }));
    assert!(shadowed[0].contains("no listener exports the metrics"), "{shadowed:?}");
}

/// A write may cause warnings about other resources, and about all resources together.
#[test]
fn a_writer_is_warned_about_other_resources() {
    let origin = Origin::echo("a").unwrap();
    let gateway = Gateway::start(SIGMA, &config(EMBEDDED)).unwrap();
    let admin = admin(&gateway);
    let call = |method: &str, path: &str, value: Option<&Value>| {
        let answer = admin.call(method, &format!("/apisix/admin/{path}"), value).unwrap();
        assert!(answer.status() < 300, "{path}: {}", answer.text());
        answer
    };
    let no_consumer = "plugins.key-auth: no consumer has key-auth: every request is refused (add a consumer with `key-auth`)";
    let of_route = format!("routes/1.{no_consumer}");
    let jack = json!({ "username": "jack", "plugins": { "key-auth": { "key": "jacks-key" } } });
    let guarded =
        json!({ "uri": "/a", "upstream": upstream(&origin), "plugins": { "key-auth": {} }, "id": "1" });
    let both = json!({ "routes": [guarded], "consumers": [jack] });
    let alone = json!({ "routes": [guarded] });
    let whole = |text: &Value, digest: &str, query: &str| {
        let path = format!("/apisix/admin/configs{query}");
        let answer = admin.call_with("PUT", &path, &format!("X-Digest: {digest}\r\n"), Some(text)).unwrap();
        assert_eq!(answer.status(), 202, "{}", answer.text());
        answer
    };
    assert_eq!(warnings(&whole(&both, "1", "")), Vec::<&str>::new());
    // The route lacks a consumer without this one.
    for query in ["?dry_run=true", ""] {
        let gone = call("DELETE", &format!("consumers/jack{query}"), None);
        assert_eq!(warnings(&gone), [&*of_route], "{query}");
    }
    assert_eq!(warnings(&whole(&both, "2", "")), Vec::<&str>::new());
    let validated = call("POST", "configs/validate", Some(&alone));
    assert_eq!(warnings(&validated), [&*of_route]);
    for query in ["?dry_run=true", ""] {
        assert_eq!(warnings(&whole(&alone, "3", query)), [&*of_route], "{query}");
    }
    // Versions 2 and 4 have both, versions 3 and 5 the route alone.
    assert_eq!(warnings(&call("POST", "history/4/rollback", None)), Vec::<&str>::new());
    for query in ["?dry_run=true", ""] {
        let back = call("POST", &format!("history/3/rollback{query}"), None);
        assert_eq!(warnings(&back), [&*of_route], "{query}");
    }
    let told = of_route.split(" (").next().unwrap();
    assert!(until(PATIENCE, || listed(&gateway).iter().any(|line| line == told)), "{:?}", listed(&gateway));
}

fn warnings_of_post(admin: &Operator, route: &Value) -> Vec<String> {
    let answer = admin.call("POST", "/apisix/admin/routes", Some(route)).unwrap();
    assert_eq!(answer.status(), 201, "{}", answer.text());
    warnings(&answer).into_iter().map(str::to_owned).collect()
}
