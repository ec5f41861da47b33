//! The whole configuration in one transaction.

use super::*;

async fn put(api: &Api, digest: &str, body: &Value) -> u16 {
    api.call(&format!("PUT /configs X-Digest:{digest}"), &body.to_string()).await.status
}

fn config() -> Value {
    json!({
        "routes": [{"id": "1", "uri": "/a", "upstream_id": "u"}],
        "upstreams": [{"id": "u", "nodes": {"127.0.0.1:1": 1}}],
        "consumers": [
            {"username": "jack", "plugins": {"key-auth": {"key": "k1"}}},
            {"id": "jack/credentials/c", "plugins": {"key-auth": {"key": "k2"}}},
        ],
        "secrets": [{"id": "vault/1", "uri": "http://127.0.0.1:1", "prefix": "p", "token": "t"}],
        "plugin_metadata": [{"id": "prometheus", "a": 1}],
    })
}

#[tokio::test]
async fn a_configuration_is_replaced_as_a_whole() {
    let api = Api::new();
    api.done("PUT /routes/old", ROUTE).await;
    api.refused("PUT /configs", "{}", 400, "missing digest header").await;
    api.refused("PUT /configs X-Digest:a", "", 400, "invalid request body: empty request body").await;
    assert_eq!(put(&api, "a", &config()).await, 202);
    assert_eq!(put(&api, "a", &config()).await, 204);
    assert_eq!(api.call("GET /routes/old", "").await.status, 404);
    assert_eq!(api.done("GET /consumers/jack/credentials/c", "").await["value"]["id"], json!("c"));
    let modified = async || api.done("GET /routes/1", "").await["modifiedIndex"].clone();
    let before = modified().await;
    let answer = api.call("GET /configs", "").await;
    assert_eq!(answer.headers["x-digest"], "a");
    let mut dumped = answer.json();
    strip_times(&mut dumped);
    assert_eq!(dumped["consumers"], config()["consumers"]);
    assert_eq!((&dumped["routes_conf_version"], &dumped["X-Digest"]), (&json!(1), &json!("a")));
    // An unchanged resource keeps its revision.
    assert_eq!(put(&api, "b", &config()).await, 202);
    assert_eq!(modified().await, before);
    // A single write takes the digest away.
    api.done("PUT /routes/2", ROUTE).await;
    assert!(api.call("GET /configs", "").await.headers.get("x-digest").is_none());
    assert_eq!(put(&api, "b", &config()).await, 202);
    assert_eq!(api.call("GET /routes/2", "").await.status, 404);
    let yaml = api.call("GET /configs Accept:application/yaml", "").await;
    assert_eq!(yaml.headers["content-type"], "application/yaml");
    let back = api
        .call(
            "PUT /configs X-Digest:c Content-Type:application/yaml",
            "routes:\n- id: 3\n  uri: /a\n  plugins: {}\n",
        )
        .await;
    assert_eq!((back.status, api.call("GET /routes/3", "").await.status), (202, 200));
    assert_eq!(api.call("GET /upstreams/u", "").await.status, 404);
}

#[tokio::test]
async fn versions_grow() {
    let api = Api::new();
    let with = |version: Value| json!({"routes": config()["routes"], "routes_conf_version": version});
    assert_eq!(put(&api, "a", &with(json!(5))).await, 202);
    let message = "routes_conf_version must be greater than or equal to (5)";
    api.refused("PUT /configs X-Digest:b", &with(json!(4)).to_string(), 400, message).await;
    let kept = json!({"routes_conf_version": 5});
    assert_eq!(put(&api, "b", &kept).await, 202);
    assert_eq!(api.call("GET /routes/1", "").await.status, 200);
    let message = "routes_conf_version must be a number";
    api.refused("PUT /configs X-Digest:c", &with(json!("x")).to_string(), 400, message).await;
    assert_eq!(put(&api, "c", &json!({"routes_conf_version": 6})).await, 202);
    assert_eq!(api.call("GET /routes/1", "").await.status, 404);
}

#[tokio::test]
async fn nothing_of_a_wrong_configuration_is_stored() {
    let api = Api::new();
    let check = async |body: Value, message: &str| {
        api.refused("PUT /configs X-Digest:a", &body.to_string(), 400, message).await;
    };
    let uri = "invalid configuration: allOf 1 failed: value should match only one schema, but matches none";
    check(json!({"upstreams": config()["upstreams"], "routes": [{"id": "1", "plugins": {}}]}), uri).await;
    let route = &config()["routes"][0];
    check(json!({"routes": [route, route]}), "found duplicate id 1 in routes").await;
    check(json!({"secrets": [{"id": "vault"}]}), "invalid secret id: vault").await;
    let jack = json!({"username": "jack"});
    check(json!({"consumers": [jack, jack]}), "found duplicate username jack in consumers").await;
    assert_eq!(api.call("GET /upstreams/u", "").await.status, 404);
    let dangling = json!({"routes": [route]}).to_string();
    let message = "routes/1: failed to fetch upstream info by upstream id [u], response code: 404";
    api.refused("PUT /configs?check_references=true X-Digest:a", &dangling, 400, message).await;
    api.refused("PUT /configs?dry_run=true X-Digest:a", &dangling, 400, message).await;
    assert_eq!(api.call("PUT /configs?dry_run=true X-Digest:a", &config().to_string()).await.status, 202);
    assert_eq!(api.call("GET /routes/1", "").await.status, 404);
    assert_eq!(api.call("PUT /configs X-Digest:a", &dangling).await.status, 202);
}

#[tokio::test]
async fn all_faults_are_listed() {
    let api = Api::new();
    api.check("POST /configs/validate", &config().to_string(), 200, json!({})).await;
    // A resource needs an id only if it is stored.
    let nameless =
        json!({"routes": [{"uri": "/a", "plugins": {}}, {"uri": "/a", "plugins": {}}]}).to_string();
    api.check("POST /configs/validate", &nameless, 200, json!({})).await;
    api.refused("PUT /configs X-Digest:a", &nameless, 400, "missing route id").await;
    let wrong = json!({"routes": [{"uri": 7}], "global_rules": [{"plugins": {}}]});
    let answer = api.call("POST /configs/validate", &wrong.to_string()).await.json();
    let errors: Vec<&Value> =
        answer["errors"].as_array().expect("errors").iter().map(|e| &e["resource_id"]).collect();
    assert_eq!(errors, [&json!(""), &json!("")], "{answer}");
    let text = "invalid configuration: allOf 1 failed: value should match only one schema, but matches none";
    let body = json!({
        "routes": [{"id": "1", "plugins": {}}, config()["routes"][0]],
        "consumers": [{"username": "jack", "plugins": {"nothing": {}}}],
        "upstreams_conf_version": "1",
    });
    let expected = json!({"error_msg": "Configuration validation failed", "errors": [
        {"resource_type": "routes", "resource_id": "1", "index": 0, "error": text},
        {"resource_type": "upstreams", "error": "upstreams_conf_version must be a number, got string"},
        {"resource_type": "consumers", "resource_id": "jack", "index": 0,
            "error": "invalid plugins configuration: unknown plugin [nothing]"},
    ]});
    api.check("POST /configs/validate", &body.to_string(), 400, expected).await;
}

#[tokio::test]
async fn before_and_after_the_first_replacement() {
    let api = Api::new();
    let sections = [
        "routes",
        "services",
        "upstreams",
        "consumers",
        "ssls",
        "global_rules",
        "protos",
        "plugin_configs",
        "consumer_groups",
        "plugin_metadata",
        "stream_routes",
        "secrets",
        "plugins",
    ];
    let expected: Value = sections
        .iter()
        .map(|section| (format!("{section}_conf_version"), json!(0)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let headers = async |method: &str| {
        let answer = api.call(&format!("{method} /configs"), "").await;
        assert_eq!(answer.status, 200, "{method}");
        ["x-digest", "x-last-modified"]
            .map(|name| answer.headers.get(name).map(|value| value.to_str().expect("text").to_owned()))
    };
    api.check("GET /configs", "", 200, expected).await;
    assert_eq!((headers("GET").await, headers("HEAD").await), ([None, None], [None, None]));
    let written = api.call("PUT /configs X-Digest:one", &config().to_string()).await;
    assert_eq!((written.status, written.text.as_str()), (202, ""));
    let time = written.headers["x-last-modified"].to_str().expect("text").to_owned();
    assert!(time.parse::<u64>().is_ok_and(|time| time > 1_600_000_000), "{time}");
    let told = [Some("one".to_owned()), Some(time)];
    assert_eq!((headers("GET").await, headers("HEAD").await), (told.clone(), told));
    let got = api.done("GET /configs", "").await;
    assert!(got["X-Digest"] == "one" && got["X-Last-Modified"].is_u64(), "{got}");
    // A section that is sent as it is now gets another version all the same, and one that is not sent is emptied.
    assert_eq!(put(&api, "two", &json!({"routes": []})).await, 202);
    let got = api.done("GET /configs", "").await;
    assert_eq!((&got["routes_conf_version"], got.get("routes"), got.get("secrets")), (&json!(2), None, None));
    for line in
        ["POST /configs", "DELETE /configs", "PATCH /configs", "GET /configs/validate", "GET /configs/x"]
    {
        api.refused(line, "{}", 404, "not found").await;
    }
}

#[tokio::test]
async fn bodies_that_are_no_configuration() {
    let api = Api::with(Admin { body_bytes: 100, ..settings() });
    let check = async |headers: &str, body: &str, begins: &str| {
        for line in ["PUT /configs X-Digest:d", "POST /configs/validate"] {
            let answer = api.call(&format!("{line} {headers}"), body).await;
            let message = answer.json()["error_msg"].as_str().unwrap_or_default().to_owned();
            assert!(answer.status == 400 && message.starts_with(begins), "{line} {body}: {message}");
        }
    };
    check("", "", "invalid request body: empty request body").await;
    check("", "{", "invalid request body: Expected object key string but found T_END at character 2").await;
    check("", "[1]", "invalid request body: it must be an object").await;
    check("Content-Type:application/yaml", "a: [", "invalid request body: invalid yaml request body: ").await;
    let large = "x".repeat(101);
    let message = "invalid request body: request size 101 is greater than the maximum size 100 allowed";
    api.refused("POST /configs/validate", &large, 400, message).await;
    // The limit of a whole configuration is its own.
    api.refused(
        "PUT /configs X-Digest:d",
        &large,
        400,
        "invalid request body: Expected value but found invalid token at character 1",
    )
    .await;
    let credential = json!({"id": "jack/credentials/c", "plugins": {}});
    for (sent, message) in [
        (
            json!({"consumers": [credential, credential]}),
            "found duplicate credential id jack/credentials/c in consumers",
        ),
        (json!({"routes": {"a": 1}}), "routes must be an array"),
        (json!({"routes": [1]}), "an item must be an object"),
        (json!({"upstreams": [{}]}), "missing upstream id"),
    ] {
        api.refused("PUT /configs X-Digest:d", &sent.to_string(), 400, message).await;
    }
    let kept = json!({"routes": {}, "services": null, "consumers": []}).to_string();
    assert_eq!(api.call("PUT /configs X-Digest:d", &kept).await.status, 202);
}
