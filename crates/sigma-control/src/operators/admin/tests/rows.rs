//! The tables of the API, row by row: verbs of collections, the order of faults, references.

use super::*;
use crate::store::{Contents, Pending, Record, StoreStatus, Watch, Write};

/// Writes past the API, as another program on the same store does.
async fn store(api: &Api, key: &str, value: Value) {
    let write = Write::Put { key: key.into(), value: value.to_string().into(), ttl: None };
    let transaction = Transaction { conditions: Vec::new(), writes: vec![write] };
    api.state.store.commit(transaction).await.expect("written");
}

fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["a.com".to_owned()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// Of every collection: path and id, a body, a part of it, and the responses to POST, PATCH of the whole and PATCH of
/// a part.
#[tokio::test]
async fn every_collection_has_its_verbs() {
    let api = Api::new();
    api.done("PUT /consumers", r#"{"username":"owner"}"#).await;
    api.done("PUT /services/owner", "{}").await;
    let (cert, key) = certificate();
    let ssl = json!({"sni": "a.com", "cert": cert, "key": key}).to_string();
    let check = async |path: &str, id: &str, body: &str, [post, patch, part]: [u16; 3]| {
        let one = format!("{path}/{id}");
        let missing = json!({"message": "Key not found"});
        api.check(&format!("GET {one}"), "", 404, missing.clone()).await;
        api.check(&format!("DELETE {one}"), "", 404, missing.clone()).await;
        let status = async |line: String, body: &str| api.call(&line, body).await.status;
        assert_eq!(status(format!("PUT {one}"), body).await, 201, "{one}");
        assert_eq!(status(format!("PUT {one}"), body).await, 200, "{one}");
        assert_eq!(status(format!("PATCH {one}"), r#"{"desc":null}"#).await, patch, "{one}");
        assert_eq!(status(format!("PATCH {one}/labels"), r#"{"a":"b"}"#).await, part, "{one}");
        let listed = api.done(&format!("GET {path}"), "").await;
        let keys: Vec<&str> = listed["list"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|item| item["key"].as_str())
            .collect();
        let key = format!("/apisix{one}");
        assert!(keys.contains(&key.as_str()), "{one} in {keys:?}");
        assert_eq!(api.done(&format!("GET {path}/"), "").await, listed, "a slash at the end changes nothing");
        let got = api.done(&format!("GET {one}"), "").await;
        assert!(got["createdIndex"].as_u64() < got["modifiedIndex"].as_u64(), "{got}");
        let deleted = json!({"deleted": "1", "key": key});
        api.check(&format!("DELETE {one}"), "", 200, deleted).await;
        api.check(&format!("GET {one}"), "", 404, missing).await;
        // A POST makes an id of 20 digits.
        let posted = api.call(&format!("POST {path}"), body).await;
        assert_eq!(posted.status, post, "{path}: {}", posted.text);
        if post == 201 {
            let key = posted.json()["key"].as_str().expect("a key").to_owned();
            let id = key.rsplit('/').next().expect("an id");
            assert!(id.len() == 20 && id.bytes().all(|b| b.is_ascii_digit()), "{key}");
            api.done(&format!("DELETE {path}/{id}"), "").await;
        }
    };
    let plugins = r#"{"plugins":{}}"#;
    let upstream = r#"{"nodes":{"127.0.0.1:1":1}}"#;
    let vault = r#"{"uri":"http://127.0.0.1:1","prefix":"p","token":"t"}"#;
    check("/routes", "1", ROUTE, [201, 200, 200]).await;
    check("/services", "1", "{}", [201, 200, 200]).await;
    check("/upstreams", "1", upstream, [201, 200, 200]).await;
    check("/ssls", "1", &ssl, [201, 200, 200]).await;
    check("/consumers", "jack", r#"{"username":"jack"}"#, [405, 405, 405]).await;
    check("/consumers/owner/credentials", "c", plugins, [405, 405, 405]).await;
    check("/consumer_groups", "1", plugins, [405, 200, 200]).await;
    check("/plugin_configs", "1", plugins, [405, 200, 200]).await;
    // It has no labels, nor has a secret.
    check("/global_rules", "1", plugins, [405, 200, 400]).await;
    check("/plugin_metadata", "prometheus", "{}", [405, 405, 405]).await;
    check("/protos", "1", r#"{"content":"message M {}"}"#, [201, 405, 405]).await;
    check("/stream_routes", "1", upstream_of(upstream).as_str(), [201, 405, 405]).await;
    check("/secrets/vault", "1", vault, [405, 200, 400]).await;
    let decoration = r#"{"field_path":"query.a"}"#;
    check("/services/owner/graphql_cost_decorations", "1", decoration, [201, 200, 404]).await;
}

fn upstream_of(upstream: &str) -> String {
    format!(r#"{{"upstream":{upstream}}}"#)
}

/// Two faults in one call: the first in the order of checks is reported.
#[tokio::test]
async fn faults_have_an_order() {
    let api = Api::with(Admin { body_bytes: 60, ..settings() });
    let long = "x".repeat(61);
    let check = async |line: &str, body: &str, status: u16, begins: &str| {
        let answer = api.call(line, body).await;
        let message = answer.json()["error_msg"].as_str().unwrap_or_default().to_owned();
        assert!(
            answer.status == status && message.starts_with(begins),
            "{line}: {} {message}",
            answer.status
        );
    };
    check("GET /nothing No-Key:1", "", 401, "failed to check token").await;
    check("PUT /nothing/1", &long, 404, "Unsupported resource type: nothing").await;
    check("PUT /plugins/list", &long, 400, "invalid request body: request size 61 is greater").await;
    check("PUT /routes/1?ttl=x", &long, 400, "invalid request body: request size 61 is greater").await;
    check("PUT /routes/1?ttl=x", "{", 400, "invalid request body: Expected object key string").await;
    check("POST /consumers?ttl=x", "{}", 400, "invalid argument ttl").await;
    check("POST /consumers/1", r#"{"id":"2"}"#, 405, "not supported `POST` method for consumer").await;
    check("PUT /routes/1", r#"{"id":"2","create_time":1}"#, 400, "wrong route id").await;
    check("PUT /routes/1", r#"{"create_time":1,"uri":1}"#, 400, "the property is forbidden:  create_time")
        .await;
    check(
        "PUT /routes/1",
        r#"{"plugins":{"create_time":1}}"#,
        400,
        "the property is forbidden:  plugins.create_time",
    )
    .await;
    check("PUT /routes/1", r#"{"uri":1,"upstream_id":"9"}"#, 400, "invalid configuration: property \"uri\"")
        .await;
    check("PUT /routes/1", r#"{"uri":"/","upstream_id":"9"}"#, 400, "failed to fetch upstream info").await;
    check("DELETE /plugins/list", "", 404, "not found").await;
    check("PUT /schema/route", "{}", 404, "not found").await;
}

/// A resource in use is not deleted, unless force is requested explicitly.
#[tokio::test]
async fn every_use_keeps_a_resource() {
    let check = async |used: &str, user: &str, value: Value, message: &str| {
        let api = Api::new();
        store(&api, used, json!({})).await;
        store(&api, user, value).await;
        for force in ["", "?force=1", "?force=false", "?force=TRUE"] {
            api.refused(&format!("DELETE /{used}{force}"), "", 400, message).await;
        }
        api.done(&format!("DELETE /{used}?force=true"), "").await;
        // Another resource that happens to have the same id is not in the way of anything.
        store(&api, used, json!({})).await;
        store(&api, user, json!({"desc": "u"})).await;
        api.done(&format!("DELETE /{used}"), "").await;
    };
    let split = |id: Value| {
        json!({"plugins": {"traffic-split": {"rules": [
            {"weighted_upstreams": [{"weight": 1}]},
            {"weighted_upstreams": [{"weight": 1}, {"upstream_id": id, "weight": 1}]},
        ]}}})
    };
    for (user, word) in [
        ("routes/r", "route [r]"),
        ("services/s", "service [s]"),
        ("plugin_configs/p", "plugin_config [p]"),
        ("consumers/jack", "consumer [jack]"),
        ("consumer_groups/g", "consumer_group [g]"),
        ("global_rules/g", "global_rules [g]"),
    ] {
        let message = format!("can not delete this upstream, plugin in {word} is still using it now");
        check("upstreams/u", user, split(json!("u")), &message).await;
        check("upstreams/7", user, split(json!(7)), &message).await;
    }
    let field = |name: &str, id: Value| json!({ name: id });
    for id in [json!("7"), json!(7)] {
        for (used, what, user, word, name) in [
            ("upstreams/7", "upstream", "routes/r", "route [r]", "upstream_id"),
            ("upstreams/7", "upstream", "services/s", "service [s]", "upstream_id"),
            ("services/7", "service directly", "routes/r", "route [r]", "service_id"),
            ("services/7", "service directly", "stream_routes/s", "stream_route [s]", "service_id"),
            ("plugin_configs/7", "plugin config", "routes/r", "route [r]", "plugin_config_id"),
            ("consumer_groups/7", "consumer group", "consumers/jack", "consumer [jack]", "group_id"),
        ] {
            let message = format!("can not delete this {what}, {word} is still using it now");
            check(used, user, field(name, id.clone()), &message).await;
        }
        let transcode = json!({"plugins": {"grpc-transcode": {"proto_id": id}}});
        for (user, word) in [("routes/r", "route [r]"), ("services/s", "service [s]")] {
            let message = format!("can not delete this proto, {word} is still using it now");
            check("protos/7", user, transcode.clone(), &message).await;
        }
        let branch = json!({"protocol": {"name": "redis", "superior_id": id}});
        let message =
            "can not delete this stream route directly, stream route [b] is still using it as superior_id";
        check("stream_routes/7", "stream_routes/b", branch, message).await;
    }
    // The first one in the order of kinds is named.
    let api = Api::new();
    for (key, value) in [
        ("upstreams/u", json!({})),
        ("global_rules/g", split(json!("u"))),
        ("services/s", json!({"upstream_id": "u"})),
        ("routes/b", json!({"upstream_id": "u"})),
        ("routes/a", split(json!("u"))),
    ] {
        store(&api, key, value).await;
    }
    let message = "can not delete this upstream, plugin in route [a] is still using it now";
    api.refused("DELETE /upstreams/u", "", 400, message).await;
}

#[tokio::test]
async fn every_reference_is_looked_up() {
    let api = Api::new();
    let (cert, key) = certificate();
    api.done("PUT /ssls/server", &json!({"sni": "a.com", "cert": cert, "key": key}).to_string()).await;
    api.done("PUT /ssls/client", &json!({"type": "client", "cert": cert, "key": key}).to_string()).await;
    let inline = |id: &str| json!({"nodes": {}, "tls": {"client_cert_id": id}});
    let check = async |line: &str, body: Value, expected: &str| {
        let line = format!("PUT {line}?dry_run=true");
        match expected {
            "" => drop(api.done(&line, &body.to_string()).await),
            text => api.refused(&line, &body.to_string(), 400, text).await,
        }
    };
    let missing = |what: &str| format!("failed to fetch {what} [9], response code: 404");
    for (path, wrap) in [("/upstreams/1", ""), ("/routes/1", "upstream"), ("/services/1", "upstream")] {
        let body = |id: &str| match wrap {
            "" => inline(id),
            name => json!({"uri": "/", name: inline(id)}),
        };
        let mut bodies = ["client", "server", "9"].map(body);
        if path == "/services/1" {
            bodies.iter_mut().for_each(|body| drop(body.as_object_mut().and_then(|body| body.remove("uri"))));
        }
        let [client, server, nobody] = bodies;
        check(path, client, "").await;
        check(path, server, "failed to fetch ssl info by ssl id [server], wrong ssl type").await;
        check(path, nobody, &missing("ssl info by ssl id")).await;
    }
    check("/stream_routes/1", json!({"upstream_id": 9}), &missing("upstream info by upstream id")).await;
    check("/stream_routes/1", json!({"service_id": 9}), &missing("service info by service id")).await;
    check("/routes/1", json!({"uri": "/", "service_id": "9"}), &missing("service info by service id")).await;
    // A patch is checked as a whole, but names in plugins are not.
    api.done("PUT /routes/1", ROUTE).await;
    api.refused("PATCH /routes/1", r#"{"upstream_id":"9"}"#, 400, &missing("upstream info by upstream id"))
        .await;
    let split = r#"{"plugins":{"traffic-split":{"rules":[{"weighted_upstreams":[{"upstream_id":"9"}]}]}}}"#;
    api.done("PATCH /routes/1", split).await;
}

/// A store that something happens to before each transaction.
struct Meddled {
    inner: Arc<Memory>,
    before: Before,
}

enum Before {
    /// Another program writes this key.
    Write(&'static str),
    /// The store is lost.
    Loss(&'static str),
}

impl Store for Meddled {
    fn load(&self) -> Pending<'_, Contents> {
        self.inner.load()
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>> {
        self.inner.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>> {
        self.inner.list(prefix)
    }

    fn commit(&self, transaction: Transaction) -> Pending<'_, u64> {
        Box::pin(async move {
            match self.before {
                Before::Loss(reason) => return Err(StoreError::Unavailable(reason.to_owned())),
                Before::Write(key) => {
                    let write = Write::Put { key: key.to_owned(), value: ROUTE.into(), ttl: None };
                    self.inner.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await?
                }
            };
            self.inner.commit(transaction).await
        })
    }

    fn next_id(&self) -> Pending<'_, u64> {
        self.inner.next_id()
    }

    fn watch(self: Arc<Self>, revision: u64) -> Watch {
        Arc::clone(&self.inner).watch(revision)
    }

    fn status(&self) -> StoreStatus {
        self.inner.status()
    }
}

impl Meddled {
    async fn check(before: Before, line: &str, body: &str, expected: &str) {
        let inner = Arc::new(Memory::default());
        let write = Write::Put { key: "routes/1".into(), value: ROUTE.into(), ttl: None };
        inner.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.expect("written");
        let plugins = Arc::new(Plugins { any: json!({"type": "object"}) });
        let state = AdminState::new(Arc::new(Meddled { inner, before }), plugins, keyring(), settings());
        let api = Api { state: Arc::new(state), peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000)) };
        api.refused(line, body, 503, expected).await;
    }
}

#[tokio::test]
async fn writes_that_the_store_refuses() {
    let overtaken = "value changed before overwritten";
    for line in ["PATCH /routes/1", "PUT /routes/1", "DELETE /routes/1"] {
        Meddled::check(Before::Write("routes/1"), line, ROUTE, overtaken).await;
    }
    let lost = "has no healthy etcd endpoint available";
    for line in
        ["PATCH /routes/1", "PUT /routes/1", "POST /routes", "DELETE /routes/1", "PUT /configs X-Digest:d"]
    {
        let body = if line.contains("configs") { "{}" } else { ROUTE };
        Meddled::check(Before::Loss(lost), line, body, lost).await;
    }
}

#[tokio::test]
async fn keys_of_upstreams_stay_inside() {
    let api = Api::new();
    let (cert, key) = certificate();
    let upstream = json!({"nodes": {}, "tls": {"client_cert": cert, "client_key": key}});
    for (path, body, pointer) in [
        ("/upstreams/1", upstream.clone(), "/tls/client_key"),
        ("/routes/1", json!({"uri": "/", "upstream": upstream}), "/upstream/tls/client_key"),
        ("/services/1", json!({"upstream": upstream}), "/upstream/tls/client_key"),
    ] {
        let put = api.done(&format!("PUT {path}"), &body.to_string()).await;
        let got = api.done(&format!("GET {path}"), "").await;
        for answer in [&put, &got] {
            let shown = answer["value"].pointer(pointer).and_then(Value::as_str).expect("a ciphertext");
            assert!(!shown.contains("PRIVATE") && shown.len() > 100, "{path}: {shown}");
        }
        // A read value may be sent back, and is the same key.
        let mut again = got["value"].clone();
        for name in ["create_time", "update_time"] {
            again.as_object_mut().expect("an object").remove(name);
        }
        let back = api.done(&format!("PUT {path}"), &again.to_string()).await;
        assert_eq!(back["value"].pointer(pointer), put["value"].pointer(pointer), "{path}");
    }
    let sealed = async |answer: Value| answer["value"]["key"].as_str().expect("a ciphertext").to_owned();
    let body = json!({"sni": "a.com", "cert": cert, "key": key}).to_string();
    let first = sealed(api.done("PUT /ssls/1", &body).await).await;
    let (_, other) = certificate();
    let second = sealed(api.done("PATCH /ssls/1/key", &json!(other).to_string()).await).await;
    assert!(first != second && !second.contains("PRIVATE"), "{second}");
}

#[tokio::test]
async fn the_old_form_of_patches_and_empty_lists() {
    let api = Api::with(Admin { api_version: AdminApiVersion::V2, ..settings() });
    let empty =
        json!({"action": "get", "count": 0, "node": {"key": "/apisix/routes", "dir": true, "nodes": []}});
    api.check("GET /routes", "", 200, empty).await;
    api.done("PUT /routes/1", ROUTE).await;
    let patched = api.done("PATCH /routes/1", r#"{"desc":"x"}"#).await;
    assert_eq!(
        (&patched["action"], &patched["node"]["value"]["desc"]),
        (&json!("compareAndSwap"), &json!("x"))
    );
    assert_eq!(api.call("GET /routes", "").await.headers["x-api-version"], "v2");
    let posted = api.done("POST /routes", ROUTE).await;
    assert_eq!(posted["action"], json!("create"));
}
