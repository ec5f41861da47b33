//! Every path of the Control API, asked of a fake process.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use sigma_schema::plugins::NoPlugins;

use super::*;

struct Fake;

impl Inspect for Fake {
    fn in_force(&self, kind: Kind) -> Vec<InForce> {
        let key = match kind {
            Kind::PluginMetadata => ResourceKey::new(kind, "prometheus"),
            kind => ResourceKey::new(kind, "1"),
        };
        vec![InForce { key, value: json!({"a": 1}), created: 2, modified: 3, has_domain: false }]
    }

    fn health(&self) -> Vec<HealthReport> {
        let key = ResourceKey::new(Kind::Upstream, "1");
        vec![HealthReport { key, check: "http", nodes: vec![json!({"ip": "127.0.0.1"})] }]
    }

    fn registry(&self, registry: Registry) -> Option<Value> {
        (registry == Registry::ConsulKv).then(|| json!({"config": {}, "services": {"web": []}}))
    }

    fn registry_file(&self, registry: Registry) -> Option<Asked<'static, Result<Value, String>>> {
        match registry {
            Registry::Consul => Some(Box::pin(async { Ok(json!({"services": {}})) })),
            Registry::Eureka => Some(Box::pin(async { Err("no disk".to_owned()) })),
            _ => None,
        }
    }

    fn nodes(&self) -> Vec<UpstreamNodes> {
        let nodes = vec![json!({"node": "a:80"})];
        vec![UpstreamNodes { key: "upstreams/1".to_owned(), uri: None, nodes, reason: None }]
    }

    fn set_node_state(&self, upstream: &str, node: &str, state: NodeState) -> Result<NodeState, String> {
        match (upstream, node, state) {
            ("upstreams/1", "[::1]:80", NodeState::Drain) => Ok(state),
            other => Err(format!("{other:?}")),
        }
    }

    fn stress(&self, call: StressCall<'_>) -> Result<Value, RefusedCall> {
        match call {
            StressCall::Stop("upstreams/9") => Err(RefusedCall::new(StatusCode::NOT_FOUND, "no test")),
            call => Ok(json!(format!("{call:?}"))),
        }
    }

    fn live(&self) -> Value {
        json!({})
    }

    fn members(&self) -> Asked<'static, Value> {
        Box::pin(std::future::ready(json!({"members": [{"id": "a"}]})))
    }

    fn server_info(&self) -> Asked<'static, Value> {
        Box::pin(std::future::ready(json!({"id": "a"})))
    }

    fn certificates(&self) -> Vec<Value> {
        vec![json!({"resource": "ssls/1"})]
    }

    fn orders(&self) -> Option<Vec<Value>> {
        Some(vec![json!({"ssl": "1", "state": "valid"})])
    }

    fn order_now(&self, ssl: &str) -> Asked<'_, Result<(), RefusedCall>> {
        let result = match ssl {
            "1" => Ok(()),
            _ => {
                let message = format!("no certificate is ordered for ssls/{ssl}");
                Err(RefusedCall::new(StatusCode::NOT_FOUND, message))
            }
        };
        Box::pin(std::future::ready(result))
    }

    fn revisions(&self) -> Revisions {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        Revisions {
            store: StoreStatus {
                kind: "etcd",
                revision: 9,
                lost: Some((since, "refused".into())),
                copied: None,
            },
            published: 8,
            workers: vec![8, 7],
            quarantined: vec![Quarantined {
                key: ResourceKey::new(Kind::Route, "2"),
                reason: "no uri".into(),
                since,
                revision: 8,
                standing: Standing::LastGood,
            }],
            warnings: vec![Problem::new("routes/3.plugins.cors.x", "unknown_key", "no x").hint("remove it")],
        }
    }

    fn reload(&self) -> Asked<'_, Result<(), String>> {
        Box::pin(std::future::ready(Err("the file has problems".into())))
    }
}

async fn ask(line: &str) -> (u16, Value) {
    send(line, String::new()).await
}

async fn send(line: &str, body: String) -> (u16, Value) {
    let (method, path) = line.split_once(' ').expect("method and path");
    let state = ControlState::new(Arc::new(Fake), Arc::new(NoPlugins), "/apisix");
    let request = Request::builder().method(method).uri(path).body(Body::from(body)).expect("a request");
    let mut service = router(state).into_service();
    let response = tower_service::Service::call(&mut service, request).await.expect("an answer");
    let (head, body) = response.into_parts();
    let text = body.collect().await.expect("a body").to_bytes();
    (head.status.as_u16(), serde_json::from_slice(&text).unwrap_or_default())
}

async fn check(line: &str, status: u16, expected: Value) {
    assert_eq!(ask(line).await, (status, expected), "{line}");
}

#[tokio::test]
async fn all_schemas_are_listed() {
    let (status, schemas) = ask("GET /v1/schema").await;
    assert_eq!(status, 200);
    let mut names: Vec<&str> =
        schemas["main"].as_object().expect("schemas").keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected = [
        "consumer",
        "consumer_group",
        "credential",
        "global_rule",
        "graphql_cost_decoration",
        "plugin_config",
        "plugins",
        "proto",
        "route",
        "service",
        "ssl",
        "stream_route",
        "upstream",
        "upstream_hash_header_schema",
        "upstream_hash_vars_schema",
    ];
    assert_eq!(names, expected);
    assert!(schemas["plugins"].is_object() && schemas["stream_plugins"].is_object(), "{schemas}");
    for line in [
        "POST /v1/routes",
        "DELETE /v1/route/1",
        "GET /v1/gc",
        "GET /v1/plugins/reload",
        "POST /v1/plugins/reload",
    ] {
        check(line, 404, json!({"error_msg": "not found"})).await;
    }
}

#[tokio::test]
async fn the_served_revision_is_shown() {
    let error = |message: &str| json!({"error_msg": message});
    let item = |kind: &str| {
        json!({"key": format!("/apisix/{kind}/1"), "value": {"a": 1}, "createdIndex": 2, "modifiedIndex": 3,
            "has_domain": false})
    };
    let mut route = item("routes");
    route["orig_modifiedIndex"] = json!(3);
    let health = json!({"name": "/apisix/upstreams/1", "type": "http", "nodes": [{"ip": "127.0.0.1"}]});
    check("GET /v1/routes", 200, json!([route])).await;
    check("GET /v1/route/1", 200, route).await;
    check("GET /v1/route/9", 404, error("route[9] not found")).await;
    check("GET /v1/services", 200, json!([item("services")])).await;
    check("GET /v1/service/1", 200, item("services")).await;
    check("GET /v1/service/9", 404, error("service[9] not found")).await;
    check("GET /v1/upstreams", 200, json!([item("upstreams")])).await;
    check("GET /v1/upstream/1", 200, item("upstreams")).await;
    check("GET /v1/upstream/9", 404, error("upstream[9] not found")).await;
    check("GET /v1/plugin_metadatas", 200, json!([{"a": 1}])).await;
    check("GET /v1/plugin_metadata/prometheus", 200, json!({"a": 1})).await;
    check("GET /v1/plugin_metadata/x", 404, error("plugin metadata[x] not found")).await;
    check("GET /v1/members", 200, json!({"members": [{"id": "a"}]})).await;
    // No plugin serves it.
    check("GET /v1/server_info", 404, json!({"error_msg": "not found"})).await;
    check("GET /v1/certificates", 200, json!([{"resource": "ssls/1"}])).await;
    check("GET /v1/healthcheck", 200, json!([health])).await;
    check("GET /v1/healthcheck/upstreams/1", 200, health).await;
    check("GET /v1/healthcheck/upstreams/9", 404, error("upstreams[9] not found")).await;
    check("GET /v1/healthcheck/routes/1", 404, error("no checker for routes[1]")).await;
    check("GET /v1/healthcheck/upstreams", 404, error("missing src id for src type upstreams")).await;
    check("GET /v1/healthcheck/services/1", 404, error("no checker for services[1]")).await;
    check("GET /v1/healthcheck/x", 400, error("invalid src type x")).await;
    check("GET /v1/healthcheck/x/1", 400, error("invalid src type x")).await;
    check("POST /v1/gc", 200, Value::Null).await;
    check("PUT /v1/plugins/reload", 503, error("the file has problems")).await;
    check("GET /v1/discovery/dns/dump", 404, error("not found")).await;
    check("GET /v1/discovery/consul/show_dump_file", 200, json!({"services": {}})).await;
    check("GET /v1/discovery/eureka/show_dump_file", 503, error("no disk")).await;
    check("GET /v1/discovery/dns/show_dump_file", 404, error("not found")).await;
    check("GET /v1/discovery/zookeeper/dump", 404, error("not found")).await;
    check("POST /v1/acme/1/order", 202, json!({"ssl": "1", "state": "ordering"})).await;
    check("POST /v1/acme/2/order", 404, error("no certificate is ordered for ssls/2")).await;
    check("GET /v1/discovery/consul_kv/dump", 200, json!({"config": {}, "services": {"web": []}})).await;
    let revision = json!({
        "revision": 7,
        "published": 8,
        "workers": [{"worker": 0, "revision": 8}, {"worker": 1, "revision": 7}],
        "store": {"kind": "etcd", "revision": 9, "lost": {"since": 5, "reason": "refused"}, "copied": null},
        "quarantined": [{"key": "routes/2", "reason": "no uri", "since": 5, "revision": 8, "served": "last_good", "last_good_served": true}],
        "warnings": [{"place": "routes/3.plugins.cors.x", "message": "no x", "remedy": "remove it"}],
    });
    check("GET /v1/revision", 200, revision).await;
}

/// Values as the process has them, with everything written out, are shown as APISIX shows them.
#[test]
fn items_are_shown_as_they_were_meant() {
    struct Limits(Value);
    impl PluginSchemas for Limits {
        fn names(&self) -> Vec<&str> {
            vec!["limit"]
        }

        fn schema(&self, name: &str, scope: PluginScope) -> Option<&Value> {
            (name == "limit" && scope == PluginScope::Http).then_some(&self.0)
        }

        fn is_auth(&self, _: &str) -> bool {
            false
        }

        fn check(
            &self,
            _: &str,
            _: PluginScope,
            _: &Value,
        ) -> Result<(), sigma_schema::plugins::PluginRefusal> {
            Ok(())
        }

        fn unique_attribute(&self, _: &str) -> Option<&str> {
            None
        }

        fn secret_fields(&self, _: &str, _: PluginScope) -> Vec<&str> {
            vec!["password"]
        }

        fn show_defaults(&self, name: &str, _: PluginScope, conf: &mut Value) {
            if name == "limit" {
                conf["key"] = json!("remote_addr");
            }
        }
    }
    let schema = json!({"type": "object", "properties": {
        "key": {"type": "string"}, "password": {"type": "string"}}});
    let state = ControlState::new(Arc::new(Fake), Arc::new(Limits(schema)), "");
    let shown = |kind: Kind, value: Value| {
        let key = ResourceKey::new(kind, "1");
        let item = InForce { key, value, created: 1, modified: 1, has_domain: false };
        let shown = state.item(item);
        (shown["key"].clone(), shown["value"].clone())
    };
    let upstream = |extra: Value| {
        let mut upstream =
            json!({"nodes": [{"host": "a", "weight": 1}, {"host": "b", "weight": 1, "priority": 2}]});
        for (name, value) in extra.as_object().expect("an object") {
            upstream[name] = value.clone();
        }
        upstream
    };
    let mut full = upstream(json!({"retry_timeout": 0.0}));
    full["nodes"][0]["priority"] = json!(0);
    assert_eq!(shown(Kind::Upstream, full.clone()), (json!("/upstreams/1"), upstream(json!({}))));
    let kept = upstream(json!({"retry_timeout": 2.5}));
    assert_eq!(shown(Kind::Upstream, kept.clone()).1, kept);
    let route = json!({"upstream": full, "plugins": {"limit": {"password": "sesame"}, "other": {"a": 1}}});
    let expected = json!({"upstream": upstream(json!({})), "plugins": {
        "limit": {"password": "***", "key": "remote_addr", "_meta": {}}, "other": {"a": 1, "_meta": {}}}});
    assert_eq!(shown(Kind::Route, route), (json!("/routes/1"), expected));
    assert_eq!(listed(std::iter::empty()), json!({}));
}

#[tokio::test]
async fn stress_tests_are_started_shown_and_stopped() {
    check("GET /v1/stress", 200, json!("List")).await;
    check("GET /v1/stress/routes/1", 200, json!(r#"Show("routes/1")"#)).await;
    check("DELETE /v1/stress/upstreams/1", 200, json!(r#"Stop("upstreams/1")"#)).await;
    check("DELETE /v1/stress/upstreams/9", 404, json!({"error_msg": "no test"})).await;
    for (body, read) in [(r#"{"a": 1}"#, r#"Some(Object {"a": Number(1)})"#), ("{", "None")] {
        let started = send("POST /v1/stress/upstreams/1", body.to_owned()).await;
        assert_eq!(started, (202, json!(format!(r#"Start("upstreams/1", {read})"#))));
    }
}

#[tokio::test]
async fn nodes_are_put_into_states() {
    let nodes = json!({"upstream": "upstreams/1", "nodes": [{"node": "a:80"}]});
    check("GET /v1/nodes", 200, json!([nodes])).await;
    check("GET /v1/nodes/upstreams/1", 200, nodes).await;
    let error = |message: &str| json!({"error_msg": message});
    check("GET /v1/nodes/upstreams/9", 404, error("upstreams/9 has no upstream")).await;
    let put = async |node: &str, body: &str, status: u16, expected: Value| {
        let line = format!("PUT /v1/nodes/upstreams/1/{node}");
        assert_eq!(send(&line, body.to_owned()).await, (status, expected), "{line} {body}");
    };
    let drain = r#"{"state": "drain"}"#;
    put("%5B::1%5D:80", drain, 200, json!({"node": "[::1]:80", "state": "drain"})).await;
    put("b:80", drain, 404, error(r#"("upstreams/1", "b:80", Drain)"#)).await;
    let none = "there is no state up: write ready, drain or maintenance";
    put("a:80", r#"{"state": "up"}"#, 400, error(none)).await;
    for broken in ["", "{}", "[]", r#"{"state": 1}"#] {
        let message = r#"the body must be a JSON object such as {"state": "drain"}"#;
        put("a:80", broken, 400, error(message)).await;
    }
}
