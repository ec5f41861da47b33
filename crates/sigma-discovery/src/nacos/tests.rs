//! Nacos on the wire.

use super::*;
use crate::scripted::Scripted;
use crate::source::Source;
use serde_json::json;

fn host(ip: &str, more: Value) -> Value {
    let mut host = json!({
        "ip": ip, "port": 8080, "weight": 1.0, "healthy": true, "enabled": true, "ephemeral": true,
        "clusterName": "DEFAULT", "serviceName": "DEFAULT_GROUP@@web", "metadata": {},
        "instanceHeartBeatInterval": 5000, "instanceHeartBeatTimeOut": 15000, "ipDeleteTimeout": 30000
    });
    host.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    host
}

fn hosts(hosts: &[Value]) -> String {
    json!({
        "name": "DEFAULT_GROUP@@web", "groupName": "DEFAULT_GROUP", "clusters": "", "cacheMillis": 10000,
        "hosts": hosts, "lastRefTime": 1, "checksum": "", "allIPs": false,
        "reachProtectionThreshold": false, "valid": true
    })
    .to_string()
}

fn settings(host: &[String], more: &Value) -> Nacos {
    let mut settings = json!({ "host": host, "fetch_interval": 1, "subscribe": false });
    settings.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    serde_json::from_value(settings).expect("settings")
}

fn server(host: &[String], more: &Value) -> Arc<Server> {
    Server::new(&settings(host, more), &Env::of(10, 20))
}

fn source(host: &[String], more: Value, args: Option<Value>) -> NacosService {
    let settings = settings(host, &more);
    let args: Option<DiscoveryArgs> = args.map(|args| serde_json::from_value(args).expect("arguments"));
    NacosService::new(Server::new(&settings, &Env::of(10, 20)), ServiceKey::new("web", args.as_ref()))
}

fn shown(listing: Result<Listing, Trouble>, key: &str) -> Vec<String> {
    let listing = listing.expect("a listing");
    let shown = |node: &Node| format!("{}:{} {}", node.host, node.port.unwrap_or(0), node.weight);
    listing[key].iter().map(shown).collect()
}

const KEY: &str = "default/public/DEFAULT_GROUP/web";

#[tokio::test]
async fn healthy_instances_are_nodes() {
    let server = Scripted::start();
    let address = server.address().base().to_owned();
    let args = json!({ "namespace_id": "n 1", "group_name": "g&h" });
    let mut source = source(&[address], json!({}), Some(args));
    let of = [
        host("10.0.0.1", json!({ "metadata": {"gRPC_port": "9090"} })),
        host("10.0.0.2", json!({ "weight": 3.0 })),
        host("10.0.0.3", json!({ "weight": null, "port": "81" })),
        host("10.0.0.4", json!({ "enabled": false })),
        host("10.0.0.5", json!({ "healthy": false })),
        host("10.0.0.7", json!({ "healthy": "false", "enabled": "true" })),
        host("10.0.0.8", json!({ "healthy": "true", "weight": "2.0" })),
        host("10.0.0.9", json!({ "weight": "inf" })),
        host("unix:/s", json!({})),
        host("10.0.0.6", json!({ "port": 0 })),
    ];
    server.answer("200 OK", "", &hosts(&of));
    let key = "default/n 1/g&h/web";
    assert_eq!(
        shown(source.next().await, key),
        ["10.0.0.1:8080 1", "10.0.0.2:8080 3", "10.0.0.3:81 100", "10.0.0.8:8080 2", "10.0.0.9:8080 100"]
    );
    let want =
        "/nacos/v1/ns/instance/list?healthyOnly=true&serviceName=web&namespaceId=n%201&groupName=g%26h";
    assert_eq!(server.asked("host").0, want);
    // Fractions are scaled, all of them.
    server.answer("200 OK", "", &hosts(&[host("a", json!({ "weight": 0.5 })), host("b", json!({}))]));
    assert_eq!(shown(source.next().await, key), ["a:8080 50", "b:8080 100"]);
    let mixed = json!({ "hosts": [{}, 7, {"ip": 7}, null, host("10.0.0.1", json!({}))] });
    server.answer("200 OK", "", &mixed.to_string());
    assert_eq!(shown(source.next().await, key), ["10.0.0.1:8080 1"]);
    for lie in ["caused: service not found", "{}", "{\"hosts\": {}}", "{\"hosts\": [{}]}"] {
        server.answer("200 OK", "", lie);
        assert!(source.next().await.is_err(), "{lie}");
    }
}

#[tokio::test]
async fn a_user_is_logged_in_and_its_token_renewed() {
    let server = Scripted::start();
    let address = server.address().base().replace("http://", "http://nacos:p&w@");
    let mut source = source(&[address], json!({}), None);
    let token =
        |text: &str| json!({ "accessToken": text, "tokenTtl": 18000, "globalAdmin": true }).to_string();
    server.answer("200 OK", "", &token("first"));
    server.answer("200 OK", "", &hosts(&[host("10.0.0.1", json!({}))]));
    assert_eq!(shown(source.next().await, KEY), ["10.0.0.1:8080 1"]);
    let login = server.question();
    assert_eq!(login.head.line, "POST /nacos/v1/auth/login HTTP/1.1");
    assert_eq!(login.text(), "username=nacos&password=p%26w");
    assert!(server.asked("host").0.ends_with("&accessToken=first"));
    // The token is rejected early: another one is requested, once.
    server.answer("403 Forbidden", "", "token invalid!");
    server.answer("200 OK", "", &token("second"));
    server.answer("200 OK", "", &hosts(&[]));
    assert_eq!(shown(source.next().await, KEY), [""; 0]);
    server.question();
    server.question();
    assert!(server.asked("host").0.ends_with("&accessToken=second"));
    // A permanent rejection is an error without the password or the token.
    server.answer("403 Forbidden", "", "");
    server.answer("403 Forbidden", "", "unknown user!");
    let trouble = source.next().await.expect_err("an error").0;
    assert!(
        trouble.contains("cannot log in") && !trouble.contains("p&w") && !trouble.contains("second"),
        "{trouble}"
    );
}

#[tokio::test]
async fn requests_are_signed() {
    let keys = json!({ "access_key": "ak", "secret_key": "sk" });
    let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_000);
    let args = serde_json::from_value(json!({ "group_name": "g" })).expect("arguments");
    let key = ServiceKey::new("s", Some(&args));
    // Computed with `printf '1700000000000@@g@@s' | openssl dgst -sha1 -hmac sk -binary | base64`.
    let signed = server(&["http://h:1".to_owned()], &keys).signature(&key, at).expect("a signature");
    assert_eq!((&*signed.data, &*signed.signature), ("1700000000000@@g@@s", "rbRPDAUXl6VahTFWYChhIS48n8s="));
    let plain = server(&["http://h:1".to_owned()], &json!({ "access_key": "ak" }));
    assert!(plain.signature(&key, at).is_none());
    let scripted = Scripted::start();
    let mut source = source(&[scripted.address().base().to_owned()], keys, None);
    scripted.answer("200 OK", "", &hosts(&[]));
    assert_eq!(shown(source.next().await, KEY), [""; 0]);
    let (asked, _) = scripted.asked("host");
    assert!(
        asked.contains("&ak=ak&data=") && asked.contains("%40%40DEFAULT_GROUP%40%40web&signature="),
        "{asked}"
    );
}
