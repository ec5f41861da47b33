//! Every verb on every kind of resource.

use super::*;

fn route(id: &str) -> Value {
    json!({
        "uri": "/a",
        "upstream": {"type": "roundrobin", "nodes": {"127.0.0.1:1980": 1}},
        "id": id,
    })
}

fn shown(id: &str, created: u64, modified: u64) -> Value {
    json!({"key": format!("/apisix/routes/{id}"), "value": route(id), "createdIndex": created, "modifiedIndex": modified})
}

#[tokio::test]
async fn a_route_lives_and_dies() {
    let api = Api::new();
    let written = json!({"key": "/apisix/routes/1", "value": route("1")});
    api.check("PUT /routes/1", ROUTE, 201, written.clone()).await;
    api.check("PUT /routes/1", ROUTE, 200, written).await;
    api.check("GET /routes/1", "", 200, shown("1", 1, 2)).await;
    api.check("GET /routes", "", 200, json!({"list": [shown("1", 1, 2)], "total": 1})).await;
    api.check("DELETE /routes/1", "", 200, json!({"deleted": "1", "key": "/apisix/routes/1"})).await;
    let missing = json!({"message": "Key not found"});
    api.check("GET /routes/1", "", 404, missing.clone()).await;
    api.check("DELETE /routes/1", "", 404, missing.clone()).await;
    api.check("PATCH /routes/1", "{}", 404, missing).await;
}

#[tokio::test]
async fn ids_come_from_the_path_or_the_body() {
    let api = Api::new();
    let body = |id: &str| ROUTE.replace("{\"uri\"", &format!("{{\"id\":{id},\"uri\""));
    api.refused("PUT /routes", ROUTE, 400, "missing route id").await;
    api.refused("DELETE /routes", "", 400, "missing route id").await;
    api.refused("PATCH /routes", "{}", 400, "missing route id").await;
    api.refused("PATCH /secrets/vault", "{}", 400, "no secret id").await;
    api.refused("PUT /routes/1", &body("2"), 400, "wrong route id").await;
    api.refused("POST /routes/1", ROUTE, 400, "wrong route id, do not need it").await;
    api.refused("POST /routes", &body("1"), 400, "wrong route id, do not need it").await;
    api.refused("PUT /routes/1/upstream", ROUTE, 404, "not found").await;
    api.refused("DELETE /routes/1/upstream", "", 404, "not found").await;
    let put = api.done("PUT /routes", &body("7")).await;
    assert_eq!((&put["key"], &put["value"]["id"]), (&json!("/apisix/routes/7"), &json!(7)));
    let put = api.done("PUT /routes/7", &body("7")).await;
    assert_eq!(put["value"]["id"], json!("7"));
    let posted = api.done("POST /routes", ROUTE).await;
    assert_eq!(posted["key"], json!("/apisix/routes/00000000000000000003"));
    assert_eq!(posted["value"]["id"], json!("00000000000000000003"));
}

/// A stream route has no upstream of a scheme that carries no sessions, whichever of the two is written last.
#[tokio::test]
async fn stream_routes_have_upstreams_for_sessions() {
    let api = Api::new();
    let of = |scheme: &str| json!({"nodes": {"127.0.0.1:1": 1}, "scheme": scheme}).to_string();
    for scheme in ["kafka", "fcgi"] {
        let message = format!(
            "upstream [1] has the scheme {scheme}: stream routes support the schemes tcp, tls and udp"
        );
        api.done("PUT /upstreams/1", &of(scheme)).await;
        api.refused("PUT /stream_routes/1", r#"{"upstream_id":"1"}"#, 400, &message).await;
        api.done("PUT /upstreams/1", &of("tcp")).await;
        api.done("PUT /stream_routes/1", r#"{"upstream_id":1}"#).await;
        api.refused("PUT /upstreams/1", &of(scheme), 400, &message).await;
        let patch = json!({ "scheme": scheme }).to_string();
        api.refused("PATCH /upstreams/1", &patch, 400, &message).await;
        api.done("PUT /upstreams/1", &of("http")).await;
        api.done("PUT /upstreams/2", &of(scheme)).await;
        api.done("DELETE /stream_routes/1", "").await;
    }
}

#[tokio::test]
async fn definitions_are_described() {
    let api = Api::new();
    let definition = "syntax = \"proto3\"; package p; import \"google/api/annotations.proto\"; message M { string a = 1; } \
        service S { rpc A(M) returns (M) { option (google.api.http) = { get: \"/v1/{a}\" }; } }";
    let put = |content: &str| json!({ "content": content }).to_string();
    api.done("PUT /protos/1", &put(definition)).await;
    let document = api.done("GET /protos/1/openapi", "").await;
    assert_eq!(document["openapi"], "3.0.3");
    assert_eq!(document["paths"]["/v1/{a}"]["get"]["parameters"][0]["name"], "a");
    api.check("GET /protos/2/openapi", "", 404, json!({"message": "Key not found"})).await;
    api.refused("GET /protos/1/other", "", 404, "not found").await;
    api.refused("GET /routes/1/openapi", "", 404, "not found").await;
    api.refused("PUT /protos/1/openapi", &put(definition), 404, "not found").await;
    let wrong = "the annotation of p.S.A: `v1` does not begin with `/`";
    api.done("PUT /protos/1", &put(&definition.replace("/v1/{a}", "v1"))).await;
    let message = format!("cannot convert proto [1] to an OpenAPI document: {wrong}");
    api.refused("GET /protos/1/openapi", "", 400, &message).await;
}

#[tokio::test]
async fn times_are_the_servers() {
    let api = Api::new();
    let forbidden = |what: &str| format!("the property is forbidden: {what}");
    let with = |text: &str| ROUTE.replace("{\"uri\"", &format!("{{{text},\"uri\""));
    api.refused("PUT /routes/1", &with("\"create_time\":1"), 400, &forbidden(" create_time")).await;
    let both = with("\"update_time\":1,\"create_time\":1");
    api.refused("POST /routes", &both, 400, &forbidden(" create_time update_time")).await;
    let inner = r#"{"uri":"/a","upstream":{"update_time":1,"nodes":{}}}"#;
    api.refused("PUT /routes/1", inner, 400, &forbidden(" upstream.update_time")).await;
    api.done("PUT /routes/1", ROUTE).await;
    let patched = api.done("PATCH /routes/1", r#"{"create_time":5,"update_time":6}"#).await;
    assert_eq!((&patched["value"]["create_time"], &patched["value"]["update_time"]), (&json!(5), &json!(6)));
    let put = api.done("PUT /routes/1", ROUTE).await;
    assert_eq!(put["value"]["create_time"], json!(5));
    let patched = api.done("PATCH /routes/1", r#"{"desc":"x"}"#).await;
    assert_ne!(patched["value"]["update_time"], json!(6));
}

#[tokio::test]
async fn verbs_that_are_not_supported() {
    let api = Api::new();
    for (line, kind) in [
        ("POST /consumers", "consumer"),
        ("PATCH /consumers/jack", "consumer"),
        ("POST /consumers/jack/credentials", "credential"),
        ("POST /consumer_groups", "consumer group"),
        ("POST /plugin_configs", "plugin config"),
        ("POST /global_rules", "global rule"),
        ("POST /plugin_metadata", "plugin_metadata"),
        ("PATCH /plugin_metadata/x", "plugin_metadata"),
        ("PATCH /protos/1", "proto"),
        ("PATCH /stream_routes/1", "stream route"),
        ("POST /secrets/vault", "secret"),
    ] {
        let method = line.split(' ').next().expect("a method");
        api.refused(line, "{}", 405, &format!("not supported `{method}` method for {kind}")).await;
    }
    api.refused("GET /nothing", "", 404, "Unsupported resource type: nothing").await;
    api.refused("TRACE /routes", "", 404, "not found").await;
}

#[tokio::test]
async fn parts_are_patched() {
    let api = Api::new();
    api.done("PUT /routes/1", ROUTE).await;
    let nodes = |answer: &Value| answer["value"]["upstream"]["nodes"].clone();
    let merge = r#"{"upstream":{"nodes":{"127.0.0.1:1980":null,"127.0.0.1:1981":2}}}"#;
    assert_eq!(nodes(&api.done("PATCH /routes/1", merge).await), json!({"127.0.0.1:1981": 2}));
    let replaced = api.done("PATCH /routes/1/upstream/nodes", r#"{"h:1":1}"#).await;
    assert_eq!(nodes(&replaced), json!({"h:1": 1}));
    let numbered = api.done("PUT /routes", &ROUTE.replacen('{', r#"{"id":7,"#, 1)).await;
    assert_eq!(numbered["value"]["id"], json!(7));
    assert_eq!(api.done("PATCH /routes/7", r#"{"desc":"x"}"#).await["value"]["id"], json!("7"));
    api.refused("PATCH /routes/1/uri/x", "1", 400, "invalid sub-path: /uri").await;
    api.refused("PATCH /routes/1", "1", 400, "invalid configuration").await;
    api.refused("PATCH /routes/absent", "[1]", 400, "invalid configuration").await;
    api.check("PATCH /routes/absent", "[]", 404, json!({"message": "Key not found"})).await;
    api.done("PATCH /routes/1", r#"{"id":1.0}"#).await;
    api.refused("PATCH /routes/1", r#"{"id":"2"}"#, 400, "wrong route id").await;
    let whole = "invalid configuration: allOf 1 failed: value should match only one schema, but matches none";
    api.refused("PATCH /routes/1", r#"{"uri":null}"#, 400, whole).await;
}

/// As strict as a file: of two members with one name it is ambiguous which counts.
#[tokio::test]
async fn members_that_are_given_twice_are_refused() {
    let api = Api::new();
    api.done("PUT /routes/1", ROUTE).await;
    let check = async |line: &str, body: &str, place: &str| {
        let message = format!("invalid request body: the member `{place}` exists twice; remove one");
        api.check(line, body, 400, json!({"error_msg": message, "req_body": body})).await;
    };
    check(
        "PUT /routes/2",
        r#"{"uri":"/x","vars":[],"vars":[["a","==","1"]],"upstream":{"nodes":{"a:1":1}}}"#,
        "vars",
    )
    .await;
    check(
        "PUT /routes/2",
        r#"{"uri":"/x","upstream":{"nodes":{"a:1":1,"a:1":2}}}"#,
        r#"upstream.nodes["a:1"]"#,
    )
    .await;
    check(
        "PUT /routes/2",
        r#"{"uri":"/x","plugins":{"key-auth":{},"key-auth":{"header":"x"}}}"#,
        "plugins.key-auth",
    )
    .await;
    check("POST /routes", r#"{"uri":"/x","uri":"/y"}"#, "uri").await;
    check("PATCH /routes/1", r#"{"upstream":{"nodes":{"b:1":1},"nodes":{}}}"#, "upstream.nodes").await;
    check("PATCH /routes/1/upstream/nodes", r#"{"b:1":1,"b:1":2}"#, r#"["b:1"]"#).await;
    check(
        "PUT /stream_routes/1",
        r#"{"server_port":1,"server_port":2,"upstream":{"nodes":{"a:1":1}}}"#,
        "server_port",
    )
    .await;
    check("PUT /global_rules/1", r#"{"plugins":{},"plugins":{"key-auth":{}}}"#, "plugins").await;
    check(
        "PUT /consumers",
        r#"{"username":"jack","plugins":{"key-auth":{"key":"a","key":"b"}}}"#,
        "plugins.key-auth.key",
    )
    .await;
    check("PUT /upstreams/1", r#"{"nodes":[{"host":"a","port":1,"port":2,"weight":1}]}"#, "nodes[0].port")
        .await;
    check("PUT /ssls/1", r#"{"snis":["a"],"cert":"a","cert":"b"}"#, "cert").await;
}

#[tokio::test]
async fn references_must_exist() {
    let api = Api::new();
    let check = async |line: &str, body: &str, what: &str| {
        api.refused(line, body, 400, &format!("failed to fetch {what} [9], response code: 404")).await;
    };
    check("PUT /routes/1", r#"{"uri":"/","upstream_id":"9"}"#, "upstream info by upstream id").await;
    check("PUT /routes/1", r#"{"uri":"/","service_id":9}"#, "service info by service id").await;
    let body = r#"{"uri":"/","plugins":{},"plugin_config_id":"9"}"#;
    check("PUT /routes/1", body, "plugin config info by plugin config id").await;
    check("PUT /services/1", r#"{"upstream_id":"9"}"#, "upstream info by upstream id").await;
    let body = r#"{"username":"jack","group_id":"9"}"#;
    check("PUT /consumers", body, "consumer group info by consumer group id").await;
    let body = r#"{"nodes":{},"tls":{"client_cert_id":"9"}}"#;
    check("PUT /upstreams/1", body, "ssl info by ssl id").await;
    let credential = r#"{"plugins":{"key-auth":{"key":"k"}}}"#;
    api.refused("PUT /consumers/jack/credentials/c", credential, 404, "consumer not found").await;
}

#[tokio::test]
async fn members_of_upstreams_have_nodes() {
    let api = Api::new();
    let members = |id: &str| format!(r#"{{"members":[{{"upstream_id":"{id}"}}]}}"#);
    api.done("PUT /upstreams/1", r#"{"nodes":{"127.0.0.1:1":1}}"#).await;
    api.done("PUT /upstreams/m", &members("1")).await;
    let missing = "failed to fetch upstream info by upstream id [9], response code: 404";
    api.refused("PUT /upstreams/n", &members("9"), 400, missing).await;
    let nested = "upstream [m] has members itself: list the members of that upstream instead";
    api.refused("PUT /upstreams/n", &members("m"), 400, nested).await;
    let own = "an upstream cannot be a member of itself";
    api.refused("PUT /upstreams/m", &members("m"), 400, own).await;
    // One that is a member cannot get any.
    api.done("PUT /upstreams/2", r#"{"nodes":{}}"#).await;
    let message =
        "upstream [1] is a member of [upstreams/m], so it cannot have members: list them there instead";
    api.refused("PUT /upstreams/1", &members("2"), 400, message).await;
    api.refused(
        "PUT /upstreams/2",
        r#"{"members":[{"upstream_id":"1"}],"retries":2}"#,
        400,
        "`retries` has no effect together with `members`: each member uses its own fields",
    )
    .await;
}

#[tokio::test]
async fn resources_in_use_stay() {
    let api = Api::new();
    let upstream = r#"{"nodes":{"127.0.0.1:1":1}}"#;
    let split = r#"{"traffic-split":{"rules":[{"weighted_upstreams":[{"upstream_id":"2","weight":1}]}]}}"#;
    for (line, body) in [
        ("PUT /upstreams/1", upstream.to_owned()),
        ("PUT /upstreams/2", upstream.to_owned()),
        ("PUT /services/s", r#"{"upstream_id":"1"}"#.to_owned()),
        ("PUT /plugin_configs/p", format!(r#"{{"plugins":{split}}}"#)),
        ("PUT /consumer_groups/g", r#"{"plugins":{}}"#.to_owned()),
        ("PUT /consumers", r#"{"username":"jack","group_id":"g"}"#.to_owned()),
        ("PUT /routes/r", r#"{"uri":"/","service_id":"s","plugin_config_id":"p"}"#.to_owned()),
    ] {
        api.done(line, &body).await;
    }
    for (line, message) in [
        ("/upstreams/1", "can not delete this upstream, service [s] is still using it now"),
        ("/upstreams/2", "can not delete this upstream, plugin in plugin_config [p] is still using it now"),
        ("/services/s", "can not delete this service directly, route [r] is still using it now"),
        ("/plugin_configs/p", "can not delete this plugin config, route [r] is still using it now"),
        ("/consumer_groups/g", "can not delete this consumer group, consumer [jack] is still using it now"),
    ] {
        api.refused(&format!("DELETE {line}"), "", 400, message).await;
        api.done(&format!("DELETE {line}?force=true&dry_run=true"), "").await;
    }
    // An upstream is a part of another one, or is fallen back to.
    let breaker =
        r#"{"nodes":{},"circuit_breaker":{"failure_rate_threshold":50,"fallback":{"upstream_id":"4"}}}"#;
    for (line, body) in [
        ("PUT /upstreams/3", upstream),
        ("PUT /upstreams/4", upstream),
        ("PUT /upstreams/m", r#"{"members":[{"upstream_id":"3"}]}"#),
        ("PUT /upstreams/b", breaker),
    ] {
        api.done(line, body).await;
    }
    for (id, user) in [("3", "m"), ("4", "b")] {
        let message = format!("can not delete this upstream, upstream [{user}] is still using it now");
        api.refused(&format!("DELETE /upstreams/{id}"), "", 400, &message).await;
    }
    api.done("PUT /routes/r", r#"{"uri":"/","upstream_id":"1"}"#).await;
    let message = "can not delete this upstream, route [r] is still using it now";
    api.refused("DELETE /upstreams/1", "", 400, message).await;
    api.done("DELETE /upstreams/1?force=true", "").await;
}

#[tokio::test]
async fn consumers_and_their_credentials() {
    let api = Api::new();
    let jack = r#"{"username":"jack","plugins":{"key-auth":{"key":"k1"}}}"#;
    let put = api.done("PUT /consumers", jack).await;
    assert_eq!(put["key"], json!("/apisix/consumers/jack"));
    assert_eq!(put["value"].get("id"), None);
    api.refused("PUT /consumers/jill", jack, 400, "wrong username").await;
    api.check("GET /consumers/jack/credentials", "", 404, json!({"message": "Key not found"})).await;
    let put =
        api.done("PUT /consumers/jack/credentials/c1", r#"{"plugins":{"key-auth":{"key":"k2"}}}"#).await;
    assert_eq!(
        (&put["key"], &put["value"]["id"]),
        (&json!("/apisix/consumers/jack/credentials/c1"), &json!("c1"))
    );
    let long = r#"{"id":"jill/credentials/c1","plugins":{}}"#;
    api.refused("PUT /consumers/jack/credentials", long, 400, "wrong credential id").await;
    assert_eq!(api.done("GET /consumers", "").await["total"], json!(1));
    assert_eq!(api.done("GET /consumers/jack/credentials", "").await["total"], json!(1));
    let duplicate =
        |key: &str| format!(r#"{{"username":"jill","plugins":{{"key-auth":{{"key":"{key}"}}}}}}"#);
    let message = "duplicate key of plugin key-auth found with consumer: jack";
    api.refused("PUT /consumers", &duplicate("k1"), 400, message).await;
    let message = "duplicate key of plugin key-auth found with credential: c1 of consumer: jack";
    api.refused("PUT /consumers", &duplicate("k2"), 400, message).await;
    api.done("PUT /consumers", &duplicate("$secret://vault/1/k")).await;
    api.done("PUT /consumers/jack", jack).await;
    api.done("DELETE /consumers/jack", "").await;
    api.check("GET /consumers/jack/credentials/c1", "", 404, json!({"message": "Key not found"})).await;
}

/// However consumers come and go: by single writes, as a whole, or past this API.
#[tokio::test]
async fn identities_are_followed() {
    let api = Api::new();
    let consumer = |name: &str, key: &str| {
        format!(r#"{{"username":"{name}","plugins":{{"key-auth":{{"key":"{key}"}}}}}}"#)
    };
    let taken = "duplicate key of plugin key-auth found with consumer: jack";
    api.done("PUT /consumers", &consumer("jack", "one")).await;
    // Many times in a row: the index must never be behind what this API has written itself.
    for _ in 0..50 {
        api.refused("PUT /consumers", &consumer("jill", "one"), 400, taken).await;
        api.done("PUT /consumers", &consumer("jack", "two")).await;
        api.done("PUT /consumers", &consumer("jill", "one")).await;
        api.done("DELETE /consumers/jill", "").await;
        api.done("PUT /consumers", &consumer("jack", "one")).await;
    }
    let whole = format!(r#"{{"consumers":[{}]}}"#, consumer("jack", "three"));
    api.done("PUT /configs X-Digest:d", &whole).await;
    api.refused("PUT /consumers", &consumer("jill", "three"), 400, taken).await;
    api.done("PUT /consumers", &consumer("jill", "one")).await;
    // Another gateway on the same store.
    let write = crate::store::Write::Put {
        key: "consumers/jack".into(),
        value: consumer("jack", "four").into(),
        ttl: None,
    };
    let transaction = Transaction { conditions: Vec::new(), writes: vec![write] };
    api.state.store.commit(transaction).await.expect("written");
    for attempt in 0.. {
        let answer = api.call("PUT /consumers", &consumer("jim", "four")).await;
        if answer.status == 400 {
            break;
        }
        assert!(attempt < 1000, "the change of another gateway is not noticed");
        api.done("DELETE /consumers/jim", "").await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_plugin_has_one_global_rule() {
    let api = Api::new();
    api.done("PUT /global_rules/1", r#"{"plugins":{"prometheus":{}}}"#).await;
    api.done("PUT /global_rules/1", r#"{"plugins":{"prometheus":{}}}"#).await;
    let message = "plugin 'prometheus' already exists in global rule with id '1'";
    api.refused("PUT /global_rules/2", r#"{"plugins":{"prometheus":{}}}"#, 400, message).await;
}

#[tokio::test]
async fn a_group_of_limits_changes_while_it_has_one_member() {
    let api = Api::new();
    let limit = |count: u64, more: &str| {
        format!(r#""plugins":{{"limit-count":{{"count":{count},"time_window":60,"group":"g1"{more}}}}}"#)
    };
    let route = |uri: &str, limit: String| format!(r#"{{"uri":"{uri}",{limit}}}"#);
    let message = "failed to check the configuration of plugin limit-count err: group conf mismatched";
    api.done("PUT /routes/1", &route("/a", limit(5, ""))).await;
    api.done("PUT /routes/1", &route("/a", limit(20, ""))).await;
    // Defaults and `_meta` make no difference.
    api.done("PUT /routes/2", &route("/b", limit(20, r#","key":"remote_addr","_meta":{"priority":1}"#)))
        .await;
    api.refused("PUT /routes/1", &route("/a", limit(5, "")), 400, message).await;
    api.refused("PUT /services/1", &format!("{{{}}}", limit(5, "")), 400, message).await;
    api.refused("PUT /global_rules/1", &format!("{{{}}}", limit(5, "")), 400, message).await;
    api.refused("PUT /plugin_configs/1", &format!("{{{}}}", limit(5, "")), 400, message).await;
    api.refused("PUT /consumer_groups/1", &format!("{{{}}}", limit(5, "")), 400, message).await;
    let consumer = format!(r#"{{"username":"jack",{}}}"#, limit(5, ""));
    api.refused("PUT /consumers", &consumer, 400, message).await;
    let patch = r#"{"plugins":{"limit-count":{"count":6}}}"#;
    api.refused("PATCH /routes/2", patch, 400, message).await;
    api.done("PUT /routes/3", &route("/c", limit(5, "").replace("g1", "g2"))).await;
    api.done("DELETE /routes/2", "").await;
    api.done("PUT /routes/1", &route("/a", limit(5, ""))).await;
}

#[tokio::test]
async fn other_kinds_have_their_keys() {
    let api = Api::new();
    api.refused("PUT /plugin_metadata", "{}", 400, "missing plugin name").await;
    let written = json!({"key": "/apisix/plugin_metadata/prometheus", "value": {"a": 1, "id": "prometheus"}});
    api.check("PUT /plugin_metadata/prometheus", r#"{"a":1}"#, 201, written).await;
    let vault = r#"{"uri":"http://127.0.0.1:8200","prefix":"kv/x","token":"t"}"#;
    let put = api.done("PUT /secrets/vault/1", vault).await;
    assert_eq!((&put["key"], &put["value"]["id"]), (&json!("/apisix/secrets/vault/1"), &json!("vault/1")));
    for path in ["/secrets", "/secrets/vault"] {
        assert_eq!(api.done(&format!("GET {path}"), "").await["total"], json!(1), "{path}");
    }
    let patched = api.done("PATCH /secrets/vault/1/token", "\"u\"").await;
    assert_eq!(patched["value"]["token"], json!("u"));
    let mut closed = Api::new();
    Arc::get_mut(&mut closed.state).expect("one owner").rules.has_streams = Arc::new(|| false);
    let message = "stream mode is disabled, can not add stream routes";
    closed.refused("GET /stream_routes", "", 400, message).await;
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let api = Api::new();
    for n in 0..25 {
        let body = format!(
            r#"{{"uri":"/r/{n}","name":"route {n}","labels":{{"l{}":"x"}},"plugins":{{}},"priority":{n}}}"#,
            n % 5
        );
        api.done(&format!("PUT /routes/{}", 100 - n), &body).await;
    }
    let check = async |query: &str, shown: usize, total: usize, first: &str| {
        let list = api.done(&format!("GET /routes?{query}"), "").await;
        let items = list["list"].as_array().expect("a list");
        let id = items.first().and_then(|item| item["value"]["id"].as_str()).unwrap_or_default();
        assert_eq!((items.len(), &list["total"], id), (shown, &json!(total), first), "{query}");
    };
    check("", 25, 25, "100").await;
    check("page=1&page_size=10", 10, 25, "100").await;
    check("page=3&page_size=10", 5, 25, "80").await;
    check("page=9&page_size=10", 0, 25, "").await;
    check("page=0&page_size=10", 10, 25, "100").await;
    check("page=1", 25, 25, "100").await;
    check("page=x&page_size=10", 25, 25, "100").await;
    check("name=e%202$", 1, 1, "98").await;
    check("name=nil", 0, 0, "").await;
    check("uri=/r/1[0-4]$", 5, 5, "86").await;
    check("label=l0", 5, 5, "100").await;
    check("label=x", 0, 0, "").await;
    check("label=l0&uri=/1", 2, 2, "85").await;
    check("filter=service_id%3D1", 0, 0, "").await;
    check("filter=unknown%3D1", 25, 25, "100").await;
    for size in ["9", "501"] {
        let answer = api.call(&format!("GET /routes?page=1&page_size={size}"), "").await;
        assert_eq!((answer.status, answer.text.as_str()), (400, "page_size must be between 10 and 500"));
    }
    for pattern in ["(", "(%5Cw{90}){90}", "a{9999}{9999}", "(?=a)"] {
        let answer = api.call(&format!("GET /routes?name={pattern}"), "").await;
        assert_eq!(answer.status, 400, "{pattern}: {}", answer.text);
    }
    for page in ["1e308", "-1e308", "inf", "NaN"] {
        assert_eq!(
            api.call(&format!("GET /routes?page={page}&page_size=10"), "").await.status,
            200,
            "{page}"
        );
    }
    for ttl in ["1e308", "inf", "NaN", "0", "-0", "9000000001"] {
        assert_eq!(api.call(&format!("PUT /routes/1?ttl={ttl}"), ROUTE).await.status, 400, "{ttl}");
    }
}

#[tokio::test]
async fn revisions_and_dry_runs() {
    let api = Api::new();
    let dry = api.call("PUT /routes/1?dry_run=true", ROUTE).await;
    assert_eq!((dry.status, dry.headers["sigma-dry-run"].to_str().ok()), (201, Some("true")));
    api.check("GET /routes/1", "", 404, json!({"message": "Key not found"})).await;
    let answer = api.call("PUT /routes/1 If-None-Match:*", ROUTE).await;
    assert_eq!((answer.status, answer.headers["etag"].to_str().ok()), (201, Some("\"1\"")));
    assert_eq!(api.call("PUT /routes/1 If-None-Match:*", ROUTE).await.status, 412);
    assert_eq!(api.call("PUT /routes/1 If-Match:\"1\"", ROUTE).await.status, 200);
    for line in ["PUT /routes/1", "PATCH /routes/1", "DELETE /routes/1"] {
        assert_eq!(api.call(&format!("{line} If-Match:\"1\""), ROUTE).await.status, 412, "{line}");
    }
    assert_eq!(api.call("PUT /routes/2 If-Match:*", ROUTE).await.status, 412);
    let answer = api.call("GET /routes/1", "").await;
    assert_eq!(answer.headers["etag"], "\"2\"");
    assert_eq!(api.call("GET /routes/1 If-None-Match:\"2\"", "").await.status, 304);
    for line in ["POST /routes", "PATCH /routes/1", "DELETE /routes/1"] {
        api.done(&format!("{line}?dry_run=true"), ROUTE).await;
    }
    assert_eq!(api.done("GET /routes/1", "").await["modifiedIndex"], json!(2));
    assert_eq!(api.done("GET /routes", "").await["total"], json!(1));
}

#[tokio::test]
async fn the_old_form_of_answers() {
    let api = Api::with(Admin { api_version: AdminApiVersion::V2, ..settings() });
    let node = json!({"key": "/apisix/routes/1", "value": route("1")});
    api.check("PUT /routes/1", ROUTE, 201, json!({"action": "create", "node": node})).await;
    api.check("PUT /routes/1", ROUTE, 200, json!({"action": "set", "node": node})).await;
    api.check("GET /routes/1", "", 200, json!({"action": "get", "node": node})).await;
    let list =
        json!({"action": "get", "count": 1, "node": {"key": "/apisix/routes", "dir": true, "nodes": [node]}});
    api.check("GET /routes?page=5&page_size=10", "", 200, list).await;
    let deleted = json!({"action": "delete", "node": {}, "deleted": "1", "key": "/apisix/routes/1"});
    api.check("DELETE /routes/1", "", 200, deleted).await;
}
