//! Queries as they are counted, refused and asked about.

use serde::de::DeserializeOwned;
use sigma_plugin::context::RouteFacts;
use sigma_plugin::resource::AnyResource;

use super::*;
use crate::testing::{Case, assert_refusal, entry, entry_with, merged, summary};

fn conf(more: &Value) -> Value {
    merged(json!({"count": 10, "time_window": 600, "rejected_code": 429}), more)
}

/// Returns the results of requests one after the other, each a body of `application/graphql`: the response, or the
/// cost and quota that the client sees.
fn outcomes(conf: &Value, bodies: &[&str]) -> Vec<String> {
    let plugin = entry(NAME, conf.clone()).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let mut seen = Vec::new();
    for body in bodies {
        case.request("POST /graphql HTTP/1.1\nHost: h\nContent-Type: application/graphql");
        case.body = (*body).into();
        let reply = case.run(&plugin, Phase::Access);
        case.respond(200, "");
        case.header_filter(&plugin);
        let told = ["X-Graphql-Query-Cost", "X-RateLimit-Remaining"].map(|name| case.answered(name));
        seen.push(format!("{} {}", summary(reply.as_ref()), told.join("/")));
    }
    seen
}

#[test]
fn queries_count_by_their_cost() {
    let check = |more: Value, bodies: &[&str], expected: &[&str]| {
        assert_eq!(outcomes(&conf(&more), bodies), expected, "{more}");
    };
    check(
        json!({}),
        &["{a}", "{a{b{c{d}}}}", "{a{b{c{d{e}}}}}", "{a}"],
        &["passed 1/9", "passed 4/5", "passed 5/0", "429 1/0"],
    );
    check(
        json!({}),
        &["{a{b{c{d}}}}", "{a{b{c{d{e{f{g}}}}}}}", "{a}"],
        &["passed 4/6", "429 7/0", "429 1/0"],
    );
    check(json!({"score_factor": 2.5}), &["{a}", "{a{b}}"], &["passed 3/7", "passed 5/2"]);
    check(json!({"cost_strategy": "complexity"}), &["{a b}"], &["passed 4/6"]);
    check(json!({"cost_strategy": "node_quantifier"}), &["{a(first: 9) b}"], &["passed 1/9"]);
    check(json!({"show_limit_quota_header": false}), &["{a}"], &["passed /"]);
    let over = "403 {\"message\":\"Invalid graphql request: query cost 3 exceeds max_cost 2\"} 3";
    // It was counted nevertheless, and the refusal wins over the limit's.
    let seen = [
        "passed 1/9",
        &format!("{over}/6"),
        &format!("{over}/3"),
        &format!("{over}/0"),
        &format!("{over}/0"),
    ];
    check(json!({"max_cost": 2}), &["{a}", "{a{b{c}}}", "{a{b{c}}}", "{a{b{c}}}", "{a{b{c}}}"], &seen);
    check(json!({"max_cost": 2, "dry_run": true}), &["{a{b{c}}}"], &["passed 3/7"]);
}

#[test]
fn an_unknown_limit_is_not_an_invalid_query() {
    let unknown = json!({"count": "$consumer_name"});
    let failed = "500 {\"error_msg\":\"failed to limit count\"} 2/";
    for more in [json!({"max_cost": 1}), json!({"max_cost": 1, "rejected_code": 500})] {
        assert_eq!(outcomes(&conf(&merged(unknown.clone(), &more)), &["{a{b}}"]), [failed]);
    }
    let lets = json!({"max_cost": 1, "allow_degradation": true});
    let seen = outcomes(&conf(&merged(unknown, &lets)), &["{a{b}}", "{a}"]);
    assert!(seen[0].starts_with("403 ") && seen[1] == "passed 1/", "{seen:?}");
    let of_client = merged(json!({"count": "$arg_none"}), &lets);
    assert!(outcomes(&conf(&of_client), &["{a{b}}"])[0].starts_with("400 "));
}

#[test]
fn invalid_queries_are_refused() {
    let check = |head: &str, body: &str, expected: &str| {
        let mut case = Case::new(head);
        case.body = body.into();
        let reply = case.run(&entry(NAME, conf(&json!({}))).unwrap(), Phase::Access);
        let message = |text: &str| format!("400 {{\"message\":\"{text}\"}}");
        let seen = summary(reply.as_ref());
        assert!(seen == expected || seen == message(expected), "{seen} is not {expected}");
    };
    let post = |body: &str, expected: &str| {
        check("POST / HTTP/1.1\nHost: h\nContent-Type: application/graphql", body, expected);
    };
    let nothing = "Invalid graphql request: can't get graphql request body";
    post("", nothing);
    post(&"a".repeat((1 << 20) + 1), nothing);
    post("{a", "Invalid graphql request: failed to parse graphql query");
    post("fragment F on T {a}", "Invalid graphql request: empty graphql query");
    post(" ", "Invalid graphql request: empty graphql query");
    post("{...F} fragment F on T {...F}", "Invalid graphql request: fragment spreads must not form cycles");
    post(
        &format!("{{{}}}", "a ".repeat(100_001)),
        "Invalid graphql request: the query expands too many selections",
    );
    let json = "POST / HTTP/1.1\nHost: h\nContent-Type: application/json";
    check(json, r#"{"query": ""}"#, "Invalid graphql request: empty graphql query");
    check(json, "{}", "invalid graphql request, json body[query] is nil");
    check("POST / HTTP/1.1\nHost: h", "{a}", "invalid graphql request, error content-type: ");
    check("GET / HTTP/1.1\nHost: h", "", nothing);
    check("GET /?query={a} HTTP/1.1\nHost: h", "", "passed");
    check("PUT / HTTP/1.1\nHost: h", "{a}", "405");
    check("HEAD /?query={a} HTTP/1.1\nHost: h", "", "405");
}

/// A decoration that cannot be read does not disable the others.
#[test]
fn costs_that_are_not_known_are_no_small_ones() {
    let check = |strategy: &str, expected: &str| {
        let service = json!({"id": "s", "graphql_cost_decorations": [{"field_path": "Query.a"}]});
        let mut service: resources::Service = serde_json::from_value(service).unwrap();
        service.graphql_cost_decorations.set().set_below([None]);
        let resources = RouteResources {
            route: None,
            service: Some(Resource::new(Arc::new(service))),
            plugin_config: None,
        };
        let mut case = Case::new("GET /?query={a} HTTP/1.1\nHost: h");
        case.ctx.route = Some(Arc::new(RouteFacts { resources, ..RouteFacts::default() }));
        let reply = case.run(&entry(NAME, conf(&json!({"cost_strategy": strategy}))).unwrap(), Phase::Access);
        assert_eq!(summary(reply.as_ref()), expected);
    };
    let unknown = "503 {\"message\":\"the cost of the graphql query is unknown\"}";
    check("complexity", unknown);
    check("node_quantifier", unknown);
    // Decorations say nothing of depth.
    check("depth", "passed");
}

#[test]
fn groups_belong_to_the_plugin() {
    let group = conf(&json!({"group": "g"}));
    assert_eq!(outcomes(&group, &["{a}"]), ["passed 1/9"]);
    let metadata = json!({"limit_header": "L"});
    let plugin = entry_with(NAME, conf(&json!({})), Some(metadata)).unwrap();
    let mut case = Case::new("GET /?query={a} HTTP/1.1\nHost: h");
    assert!(case.run(&plugin, Phase::Access).is_none());
    case.respond(200, "");
    case.header_filter(&plugin);
    assert_eq!(case.answered("L"), "10");
}

fn resource<T: AnyResource + DeserializeOwned>(value: Value) -> Resource {
    Resource::new(Arc::new(serde_json::from_value::<T>(value).unwrap()))
}

#[test]
fn the_upstream_of_the_service_is_queried() {
    let check = |service: Option<Value>, route: Value, expected: Option<&str>| {
        let of = RouteResources {
            route: Some(resource::<resources::Route>(route.clone())),
            service: service.clone().map(resource::<resources::Service>),
            plugin_config: None,
        };
        assert_eq!(upstream(&of).map(|(key, _)| key).as_deref(), expected, "{service:?} {route}");
    };
    let inline = json!({"nodes": {"127.0.0.1:1": 1}});
    let with = |id: &str, of: Value| merged(json!({"id": id}), &of);
    let route = with("r", json!({"uri": "/", "upstream": inline}));
    check(Some(with("s", json!({"upstream": inline}))), route.clone(), Some("services/s"));
    check(Some(with("s", json!({"upstream_id": "u"}))), route.clone(), Some("upstreams/u"));
    check(Some(with("s", json!({}))), route.clone(), Some("routes/r"));
    check(None, with("r", json!({"uri": "/", "upstream_id": "u"})), Some("upstreams/u"));
    check(None, with("r", json!({"uri": "/"})), None);
}

#[test]
fn bad_configurations_are_refused() {
    let check = |more: Value, expected: &str| assert_refusal(NAME, &conf(&more), expected);
    check(json!({}), "");
    check(json!({"introspection_endpoint": "https://h/graphql", "introspection_headers": {"A": "b"}}), "");
    check(
        json!({"cost_strategy": "size"}),
        "property \"cost_strategy\" validation failed: matches none of the enum",
    );
    check(json!({"max_cost": -1}), "property \"max_cost\" validation failed: expected -1 to be at least 0");
    check(
        json!({"score_factor": 0}),
        "property \"score_factor\" validation failed: expected 0 to be greater than 0",
    );
    check(
        json!({"introspection_endpoint": "ftp://h"}),
        "property \"introspection_endpoint\" validation failed",
    );
    check(
        json!({"introspection_headers": {"a:b": "c"}}),
        "introspection_headers: `a:b` is not the name of a field",
    );
    check(
        json!({"rules": [{"count": 1, "time_window": 1, "key": "$uri"}]}),
        "cannot be specified at the same time",
    );
    assert_refusal(
        NAME,
        &json!({}),
        "object matches none of the required: [\"count\",\"time_window\"] or [\"rules\"]",
    );
}
