//! Schemas, plugins and the OpenAPI document.

use super::*;

#[tokio::test]
async fn schemas_are_served() {
    let api = Api::new();
    for name in [
        "route",
        "service",
        "upstream",
        "consumer",
        "consumer_group",
        "credential",
        "ssl",
        "proto",
        "global_rule",
        "plugin_config",
        "stream_route",
        "plugins",
        "graphql_cost_decoration",
    ] {
        let schema = api.done(&format!("GET /schema/{name}"), "").await;
        assert!(schema.is_object(), "{name}");
    }
    api.refused("GET /schema/nothing", "", 400, "not found schema: nothing").await;
    api.refused("PUT /schema/route", "{}", 404, "not found").await;
    let schema = api.done("GET /schema/plugins/key-auth", "").await;
    assert_eq!(schema["properties"]["_meta"]["additionalProperties"], json!(false));
    assert_eq!(schema["$comment"], json!("this is a mark for our injected plugin schema"));
    let consumers = api.done("GET /plugins/key-auth?schema_type=consumer", "").await;
    assert_eq!((consumers.get("$comment"), consumers["properties"].get("_meta")), (None, None));
    assert_eq!(api.done("GET /plugins/key-auth?schema_type=consumer", "").await["type"], json!("object"));
    api.refused("GET /plugins/prometheus?schema_type=consumer", "", 400, "not found schema").await;
    api.refused("GET /plugins/key-auth?subsystem=x", "", 400, "unsupported subsystem: x").await;
    api.refused("GET /plugins/nothing", "", 404, "plugin not found in subsystem http").await;
}

#[tokio::test]
async fn plugins_are_listed() {
    let api = Api::new();
    let names = json!(["key-auth", "limit-count", "traffic-split", "grpc-transcode", "prometheus"]);
    api.check("GET /plugins/list", "", 200, names).await;
    api.check("GET /plugins/list?subsystem=stream", "", 200, json!([])).await;
    api.check("GET /plugins/list?subsystem=x", "", 400, json!("invalid subsystem passed")).await;
    let all = api.done("GET /plugins?all=true", "").await;
    assert_eq!((&all["key-auth"]["type"], all["prometheus"].get("type")), (&json!("auth"), None));
    let shown = &all["key-auth"];
    assert_eq!((&shown["version"], &shown["priority"]), (&json!("0.1"), &json!(2500)));
    assert!(shown["schema"].is_object() && shown["consumer_schema"].is_object(), "{shown}");
    assert_eq!(all["prometheus"].get("consumer_schema"), None);
    api.refused("GET /plugins", "", 404, "plugin not found in subsystem http").await;
    api.refused("GET /plugins?subsystem=x", "", 400, "unsupported subsystem: x").await;
    api.refused("GET /plugins?all=true&subsystem=x", "", 400, "unsupported subsystem: x").await;
    api.check("PUT /plugins/reload", "", 200, json!("done")).await;
    let message = "please use PUT method to reload the plugins, POST method is not allowed.";
    api.refused("POST /plugins/reload", "", 405, message).await;
}

#[tokio::test]
async fn bodies_are_validated_without_being_stored() {
    let api = Api::new();
    let answer = api.call("POST /schema/validate/routes", ROUTE).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, ""));
    let text =
        "property \"methods\" validation failed: failed to validate item 1: matches none of the enum values";
    api.refused("POST /schema/validate/routes", r#"{"uri":"/","methods":["X"]}"#, 400, text).await;
    api.refused("POST /schema/validate/x", "{}", 404, "Unsupported resource type: x").await;
}

#[tokio::test]
async fn decorations_live_below_their_service() {
    let api = Api::new();
    let path = "/services/s/graphql_cost_decorations";
    let body = r#"{"field_path":"query.a"}"#;
    api.refused(&format!("PUT {path}/d"), body, 404, "service not found").await;
    api.done("PUT /services/s", "{}").await;
    api.check(&format!("GET {path}"), "", 404, json!({"message": "Key not found"})).await;
    let put = api.done(&format!("PUT {path}/d"), body).await;
    assert_eq!(put["value"]["service_id"], json!("s"));
    let message = "field_path query.a is already decorated on this service by [d]";
    api.refused(&format!("POST {path}"), body, 400, message).await;
    let wrong = r#"{"field_path":"q","service_id":"t"}"#;
    let message = "wrong service_id, it is taken from the path";
    api.refused(&format!("PUT {path}/e"), wrong, 400, message).await;
    api.refused(&format!("PATCH {path}/d"), wrong, 400, "service_id can not be patched").await;
    assert_eq!(api.done(&format!("GET {path}"), "").await["total"], json!(1));
    assert_eq!(api.done("GET /services", "").await["total"], json!(1));
    api.done("DELETE /services/s", "").await;
    assert_eq!(api.call(&format!("GET {path}/d"), "").await.status, 404);
}

#[tokio::test]
async fn secrets_are_encrypted() {
    let api = Api::new();
    let jack = r#"{"username":"jack","plugins":{"key-auth":{"key":"open sesame"}}}"#;
    let put = api.done("PUT /consumers", jack).await;
    assert_ne!(put["value"]["plugins"]["key-auth"]["key"], json!("open sesame"));
    let got = api.done("GET /consumers/jack", "").await;
    assert_eq!(got["value"]["plugins"]["key-auth"]["key"], json!("open sesame"));
    let sessions = json!({ "nodes": { "a:80": 1 }, "session_affinity": { "cookie": { "name": "s" }, "secret": "sesame of sixteen" } });
    let route = json!({ "uri": "/", "upstream": sessions });
    let put = api.done("PUT /upstreams/1", &sessions.to_string()).await;
    assert_ne!(put["value"]["session_affinity"]["secret"], json!("sesame of sixteen"));
    let got = api.done("GET /upstreams/1", "").await;
    assert_eq!(got["value"]["session_affinity"], sessions["session_affinity"]);
    api.done("PATCH /upstreams/1/session_affinity/on_gone", "\"reject\"").await;
    let got = api.done("GET /upstreams/1", "").await;
    assert_eq!(got["value"]["session_affinity"]["secret"], json!("sesame of sixteen"));
    api.done("PUT /routes/1", &route.to_string()).await;
    for key in ["consumers/jack", "upstreams/1", "routes/1"] {
        let stored = api.state.store.get(key).await.expect("a store").expect("a record");
        let text = String::from_utf8_lossy(&stored.value).into_owned();
        assert!(!text.contains("sesame"), "{text}");
    }
}

#[tokio::test]
async fn a_certificate_is_read_without_its_key() {
    let api = Api::new();
    let made = rcgen::generate_simple_self_signed(["a.com".to_owned()]).expect("a certificate");
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let body = json!({"sni": "a.com", "cert": cert, "key": key}).to_string();
    let put = api.done("PUT /ssls/1", &body).await;
    let sealed = put["value"]["key"].as_str().expect("a ciphertext").to_owned();
    assert!(!sealed.contains("PRIVATE"));
    let got = api.done("GET /ssls/1", "").await;
    assert_eq!((got["value"].get("key"), &got["value"]["cert"]), (None, &json!(cert)));
    let patched = api.done("PATCH /ssls/1", r#"{"status":0}"#).await;
    assert_eq!(patched["value"]["key"], json!(sealed), "a change of a part keeps the key");
    // The content of a dump may be sent back.
    let dumped = api.done("GET /configs", "").await;
    assert_eq!(dumped["ssls"][0]["key"], json!(sealed));
    let before = api.done("GET /ssls/1", "").await["modifiedIndex"].clone();
    api.done("PUT /configs X-Digest:a", &json!({"ssls": dumped["ssls"]}).to_string()).await;
    assert_eq!(api.done("GET /ssls/1", "").await["modifiedIndex"], before);
}
