//! Objects that cannot be served as they were written: nothing more open replaces them, and operators see the
//! object and the reason.

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Operator, Origin, Peer, until};

use crate::managed::{self, EMBEDDED, admin, answerer, await_answerer, revision, route, start, start_again};
use crate::tls::{self, Authority, ask, run, shake};
use crate::{PATIENCE, SIGMA};

/// A certificate of X.509 version 1, which no authority may be.
const VERSION_1: &str = include_str!("version_1.pem");

/// Returns the status for `jack`, whose key it is.
fn as_jack(gateway: &Gateway, target: &str) -> u16 {
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\napikey: jack-key\r\n\r\n");
    gateway.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap().status()
}

fn quarantined(gateway: &Gateway) -> Vec<(String, String)> {
    let shown = revision(gateway);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = shown["quarantined"].as_array().unwrap();
    list.iter().map(|one| (text(&one["key"]), text(&one["served"]))).collect()
}

/// Waits until exactly these are quarantined, all closed.
fn await_closed(gateway: &Gateway, expected: &[&str]) {
    let expected: Vec<_> = expected.iter().map(|key| ((*key).to_owned(), "closed".to_owned())).collect();
    let mut last = Vec::new();
    let settled = until(PATIENCE, || {
        last = quarantined(gateway);
        last == expected
    });
    assert!(settled, "{last:?}, not {expected:?}:\n{}", gateway.stderr());
}

/// A store that another program has written, with plugins that this build does not have.
#[test]
fn a_plugin_that_is_not_there_closes_what_names_it() {
    let origin = Origin::echo("a").unwrap();
    let etcd = EtcdServer::start().unwrap();
    let put = |key: &str, value: &Value| etcd.put(&format!("/apisix/{key}"), &value.to_string()).unwrap();
    let gone = json!({"retired-auth": {"client_id": "x"}});
    let with = |mut value: Value, plugins: &Value| {
        value["plugins"] = plugins.clone();
        value
    };
    let referring = |uri: &str, field: &str| {
        let mut value = route(uri, &origin);
        value[field] = "1".into();
        value
    };
    put("routes/all", &route("/*", &origin));
    put("routes/own", &with(route("/own", &origin), &gone));
    put("routes/off", &with(route("/off", &origin), &json!({"retired-auth": {"_meta": {"disable": true}}})));
    put("services/1", &with(json!({}), &gone));
    put("routes/service", &referring("/service", "service_id"));
    put("plugin_configs/1", &with(json!({"id": "1"}), &gone));
    put("routes/config", &referring("/config", "plugin_config_id"));
    put("routes/keys", &with(route("/keys", &origin), &json!({"key-auth": {}})));
    let jack = json!({"key-auth": {"key": "jack-key"}, "retired-auth": {}});
    put("consumers/jack", &with(json!({"username": "jack"}), &jack));
    let mut gateway = start(&managed::etcd(etcd.port()));
    await_closed(&gateway, &["routes/own", "services/1", "consumers/jack", "plugin_configs/1"]);
    for (path, expected) in [
        ("/other", "a"),
        ("/off", "a"),
        ("/own", "503"),
        ("/service", "503"),
        ("/config", "503"),
        ("/keys", "401"),
    ] {
        await_answerer(&gateway, path, expected);
    }
    assert_eq!(as_jack(&gateway, "/keys"), 503);
    // It is repaired by its writer, and not reported any more.
    put("services/1", &json!({}));
    await_answerer(&gateway, "/service", "a");
    await_closed(&gateway, &["routes/own", "consumers/jack", "plugin_configs/1"]);
    // A rule for everything that cannot be obeyed closes everything.
    put("global_rules/1", &with(json!({"id": "1"}), &gone));
    await_answerer(&gateway, "/other", "503");
    await_answerer(&gateway, "/nowhere", "503");
    etcd.delete("/apisix/global_rules/1").unwrap();
    await_answerer(&gateway, "/other", "a");
    // The operator says that it may be left out.
    put("global_rules/1", &with(json!({"id": "1"}), &gone));
    let settings = managed::etcd(etcd.port()) + "compat: { ignored_plugins: [retired-auth] }\n";
    gateway.rewrite(&managed::config(&settings)).unwrap();
    gateway.kill().unwrap();
    start_again(&mut gateway);
    for path in ["/other", "/own", "/config"] {
        await_answerer(&gateway, path, "a");
    }
    assert_eq!((as_jack(&gateway, "/keys"), quarantined(&gateway)), (200, Vec::new()));
    let log = gateway.stderr() + &gateway.stdout();
    assert!(log.contains("retired-auth") && log.contains("is ignored"), "{log}");
}

/// Another program writes something unreadable: the present state stays in force, and all gateways report it.
/// A gateway that starts has nothing to keep, and is closed.
#[test]
fn a_change_that_cannot_be_read_is_not_applied() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let etcd = EtcdServer::start().unwrap();
    let put = |key: &str, text: &str| etcd.put(&format!("/apisix/{key}"), text).unwrap();
    put("routes/all", &route("/*", &a).to_string());
    let mut gateway = start(&managed::etcd(etcd.port()));
    await_answerer(&gateway, "/x", "a");
    let rows = [
        ("global_rules/new", "garbage", "left_out"),
        ("global_rules/plugins", r#"{"plugins":"key-auth"}"#, "left_out"),
        ("global_rules/twice", r#"{"plugins":{"key-auth":{}},"plugins":{}}"#, "left_out"),
        ("stream_routes/new", "{", "left_out"),
        ("routes/all", "{\"uri\":", "last_good"),
        ("routes/other", "[]", "left_out"),
    ];
    for (key, text, _) in &rows {
        put(key, text);
    }
    let mut expected: Vec<_> = rows.iter().map(|(key, _, served)| (*key, *served)).collect();
    expected.sort_unstable();
    let mut last = Vec::new();
    let settled = until(PATIENCE, || {
        last = quarantined(&gateway);
        last.sort();
        last.iter().map(|(key, served)| (&**key, &**served)).eq(expected.iter().copied())
    });
    assert!(settled, "{last:?}, not {expected:?}");
    await_answerer(&gateway, "/x", "a");
    let log = gateway.stderr();
    assert!(log.contains("global_rules/new") && log.contains("quarantined"), "{log}");
    let ready = Operator::new(gateway.status_address()).get("/status/ready").unwrap();
    assert!(ready.to_string().contains("global_rules/new"), "{ready}");
    let counters = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap().text();
    assert!(counters.contains("sigma_quarantined_objects{kind=\"global_rules\"} 3"), "{counters}");
    // Other changes continue.
    put("routes/more", &route("/more", &b).to_string());
    await_answerer(&gateway, "/more", "b");
    gateway.kill().unwrap();
    start_again(&mut gateway);
    await_answerer(&gateway, "/more", "503");
    for key in ["new", "plugins", "twice"] {
        etcd.delete(&format!("/apisix/global_rules/{key}")).unwrap();
    }
    await_answerer(&gateway, "/more", "b");
}

/// The plugins are there, but an operator has enabled others.
#[test]
fn a_plugin_that_is_not_enabled_closes_what_names_it() {
    let origin = Origin::echo("a").unwrap();
    let mut gateway = start(EMBEDDED);
    let mut guarded = route("/x", &origin);
    guarded["plugins"] = json!({"key-auth": {}});
    admin(&gateway).put("routes/1", &guarded).unwrap();
    admin(&gateway).put("routes/2", &route("/*", &origin)).unwrap();
    await_answerer(&gateway, "/y", "a");
    await_answerer(&gateway, "/x", "401");
    gateway.rewrite(&managed::config(&format!("{EMBEDDED}\nplugins: [prometheus]"))).unwrap();
    gateway.kill().unwrap();
    start_again(&mut gateway);
    assert_eq!((answerer(&gateway, "/x"), answerer(&gateway, "/y")), ("503".to_owned(), "a".to_owned()));
    let ready = Operator::new(gateway.status_address()).get("/status/ready").unwrap();
    assert_eq!(ready["quarantined"][0]["key"], "routes/1", "{ready}");
    assert!(
        ready["quarantined"][0]["reason"].as_str().unwrap().contains("unknown plugin [key-auth]"),
        "{ready}"
    );
    let counters = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap().text();
    assert!(counters.contains("sigma_quarantined_objects{kind=\"routes\"} 1"), "{counters}");
    assert!(counters.contains("sigma_quarantined_objects{kind=\"ssls\"} 0"), "{counters}");
    let listed = std::process::Command::new(SIGMA)
        .args(["ctl", "quarantine", &format!("http://{}", gateway.control_address())])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("routes/1") && listed.contains("unknown plugin [key-auth]"), "{listed}");
}

/// A name that requests certificates of clients is not served by a wildcard that requests none.
#[test]
fn a_certificate_that_cannot_be_used_keeps_its_names() {
    let (root, clients, origin) =
        (Authority::new("Root"), Authority::new("Clients"), Origin::echo("a").unwrap());
    let etcd = EtcdServer::start().unwrap();
    let settings = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}", "tls": true }],
        "status": { "address": "{status}" }, "control": { "address": "{control}" },
        "store": { "kind": "etcd", "endpoints": [format!("http://127.0.0.1:{}", etcd.port())], "path": "{dir}/data" },
    });
    let put = |key: &str, value: &Value| etcd.put(&format!("/apisix/{key}"), &value.to_string()).unwrap();
    put("routes/1", &json!({ "uri": "/*", "upstream": tls::to_origin(&origin) }));
    put("ssls/wild", &root.issue("*.a.test").ssl(json!({ "sni": "*.a.test" })));
    let mut strict =
        root.issue("strict.a.test").ssl(json!({ "sni": "strict.a.test", "client": { "ca": clients.pem } }));
    strict["key"] = "$env://SIGMA_TEST_THAT_IS_NOT_SET".into();
    put("ssls/strict", &strict);
    let gateway = Gateway::start(SIGMA, &settings.to_string()).unwrap();
    managed::await_control(&gateway);
    await_closed(&gateway, &["ssls/strict"]);
    run(async {
        let mut open = shake(&gateway, &root.client(None), "open.a.test").await.unwrap();
        assert_eq!(tls::status(&ask(&mut open, "open.a.test", "/", "").await.unwrap()), 200);
        shake(&gateway, &root.client(None), "strict.a.test").await.unwrap_err();
        assert_eq!(tls::status(&ask(&mut open, "strict.a.test", "/", "").await.unwrap()), 421);
        // The same where a form without client certificates was in force before.
        let plain = root.issue("later.a.test").ssl(json!({ "sni": "later.a.test" }));
        put("ssls/later", &plain);
        while shake(&gateway, &root.client(None), "later.a.test").await.is_err() {}
        let mut stricter = plain.clone();
        stricter["client"] = json!({ "ca": VERSION_1 });
        put("ssls/later", &stricter);
        while shake(&gateway, &root.client(None), "later.a.test").await.is_ok() {}
    });
    await_closed(&gateway, &["ssls/later", "ssls/strict"]);
}

/// The Admin API refuses a resource that the compiler would refuse.
#[test]
fn unservable_objects_are_not_stored() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    let issued = root.issue("a.test");
    let client = json!({ "sni": "a.test", "client": { "ca": VERSION_1 } });
    let other = root.issue("b.test");
    let unlike = json!({ "sni": "a.test", "cert": issued.cert, "key": other.key });
    let mut limited = route("/x", &origin);
    limited["upstream"]["scheme"] = "tcp".into();
    for (resource, value, words) in [
        ("ssls/1", issued.ssl(client), "version"),
        ("ssls/1", unlike, "key"),
        ("routes/1", limited, "http, https, grpc, grpcs, fcgi and kafka"),
        (
            "consumers",
            json!({ "username": "jack", "plugins": { "key-auth": { "key": "" } } }),
            "`key` is empty",
        ),
    ] {
        let answer = admin.call("PUT", &format!("/apisix/admin/{resource}"), Some(&value)).unwrap();
        let text = answer.text();
        assert!(
            answer.status() == 400 && text.to_lowercase().contains(words),
            "{resource}: {} {text}",
            answer.status()
        );
    }
    // For streams: stored, and of no use to a route.
    let mut streams = managed::upstream(&origin);
    streams["scheme"] = "udp".into();
    admin.put("upstreams/1", &streams).unwrap();
    await_closed(&gateway, &[]);
    let answer = admin
        .call("PUT", "/apisix/admin/routes/1", Some(&json!({ "uri": "/x", "upstream_id": "1" })))
        .unwrap();
    assert!(answer.status() == 400 && answer.text().contains("has the scheme udp"), "{}", answer.text());
}

/// A certificate that nodes are shown is needed for as long as something shows it.
#[test]
fn an_upstream_goes_with_the_certificate_that_it_shows() {
    let root = Authority::new("Root");
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    let issued = root.issue("gateway");
    admin.put("ssls/c", &issued.ssl(json!({ "type": "client" }))).unwrap();
    // Nobody is there.
    let upstream =
        json!({ "nodes": { "127.0.0.1:1": 1 }, "scheme": "https", "tls": { "client_cert_id": "c" } });
    admin.put("upstreams/1", &upstream).unwrap();
    admin.put("routes/1", &json!({ "uri": "/x", "upstream_id": "1" })).unwrap();
    await_answerer(&gateway, "/x", "502");
    let answer = admin.call("DELETE", "/apisix/admin/ssls/c", None).unwrap();
    assert_eq!((answer.status(), answer.text().contains("upstream [1] is still using it")), (400, true));
    admin.put("ssls/c", &issued.ssl(json!({ "sni": "gateway" }))).unwrap();
    await_answerer(&gateway, "/x", "503");
    await_closed(&gateway, &["upstreams/1"]);
    admin.put("ssls/c", &issued.ssl(json!({ "type": "client" }))).unwrap();
    await_answerer(&gateway, "/x", "502");
    await_closed(&gateway, &[]);
}

/// A file with a stale item, served with `--skip-invalid`: the paths that it guards stay closed.
#[test]
fn invalid_items_of_a_file_are_closed() {
    let origin = Origin::echo("a").unwrap();
    let nodes = format!("upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }}", origin.port());
    let route = |uri: &str, more: &str| format!("  - {{ uri: {uri}, {nodes}{more} }}\n");
    let file = |bad: &str| {
        let good = route("\"/*\"", "") + &route("/keys", ", plugins: { key-auth: {} }");
        format!(
            "listeners: [ {{ address: \"{{listen}}\" }} ]\nstatus: {{ address: \"{{status}}\" }}\nroutes:\n{good}{bad}"
        )
    };
    let stale = route("/gone", ", plugins: { retired-auth: {} }")
        + &route("/typo", ", plugins: { key-auth: { heder: x } }")
        + &route("/ref", ", plugin_config_id: nowhere")
        + &route("/type", ", priority: high");
    let refused = Gateway::start(SIGMA, &file(&stale)).expect_err("a file is served whole");
    assert!(refused.to_string().contains("retired-auth"), "{refused}");
    let gateway = Gateway::start_with(SIGMA, "--skip-invalid", &file(&stale)).unwrap();
    let closed = ["/gone", "/typo", "/ref", "/type"];
    let answers = |gateway: &Gateway, path: &str| answerer(gateway, path);
    for path in closed {
        assert_eq!(answers(&gateway, path), "503", "{path}");
    }
    assert_eq!((answers(&gateway, "/other"), answers(&gateway, "/keys")), ("a".into(), "401".into()));
    let ready = Operator::new(gateway.status_address()).get("/status/ready").unwrap();
    assert_eq!(ready["quarantined"].as_array().map(Vec::len), Some(4), "{ready}");
    let log = gateway.stderr();
    assert!(log.contains("an object of the file is quarantined") && log.contains("heder"), "{log}");
    // A rule for everything closes everything; a repaired file opens it again.
    gateway
        .rewrite(&(file(&stale) + "global_rules:\n  - { id: 1, plugins: { retired-auth: {} } }\n"))
        .unwrap();
    gateway.reload().unwrap();
    assert!(until(PATIENCE, || answers(&gateway, "/other") == "503"));
    gateway.rewrite(&file("")).unwrap();
    gateway.reload().unwrap();
    for path in closed {
        assert!(until(PATIENCE, || answers(&gateway, path) == "a"), "{path}");
    }
    let ready = Operator::new(gateway.status_address()).get("/status/ready").unwrap();
    assert_eq!(ready["quarantined"].as_array().map(Vec::len), Some(0), "{ready}");
    // A mistake in a setting stops the file, as ever.
    gateway.rewrite(&(file("") + "limits: { nothing: 1 }\n")).unwrap();
    gateway.reload().unwrap();
    gateway.await_log("limits.nothing");
    assert_eq!(answers(&gateway, "/keys"), "401");
}

/// A file of the gateway's machine is for the author of its configuration file, who names the folders that others may
/// use.
#[test]
fn stores_name_files_in_allowed_folders_only() {
    let origin = Origin::echo("a").unwrap();
    let etcd = EtcdServer::start().unwrap();
    let logged = |path: &str| {
        let mut value = route("/logged", &origin);
        value["plugins"] = json!({"file-logger": {"path": path}});
        value
    };
    let site = |root: &str| {
        json!({"uri": "/site/*", "plugins": {"multi-auth": {"auth_plugins": [
            {"basic-auth": {"auth_file": root}}, {"key-auth": {}}]}}, "upstream": {"nodes": {"127.0.0.1:1": 1}}})
    };
    etcd.put("/apisix/routes/all", &route("/*", &origin).to_string()).unwrap();
    etcd.put("/apisix/routes/outside", &logged("/tmp/outside.log").to_string()).unwrap();
    etcd.put("/apisix/routes/site", &site("/etc/shadow").to_string()).unwrap();
    let folders = "process: { sandbox_write: [\"{dir}/logs\"], sandbox_read: [\"{dir}/users\"] }";
    let gateway = start(&format!("{}\n{folders}", managed::etcd(etcd.port())));
    await_closed(&gateway, &["routes/outside", "routes/site"]);
    assert_eq!(answerer(&gateway, "/logged"), "503");
    let admin = admin(&gateway);
    let refused = |value: &Value| {
        let answer = admin.call("PUT", "/apisix/admin/routes/1", Some(value)).unwrap();
        (answer.status(), answer.json().unwrap()["error_msg"].as_str().unwrap_or_default().to_owned())
    };
    let dir = gateway.dir().display().to_string();
    for path in ["/tmp/outside.log", "logs.txt", "$env://HOME", &format!("{dir}/logs/../sigma.yaml")] {
        let (status, message) = refused(&logged(path));
        assert!(status == 400 && message.contains("`plugins.file-logger.path` names a file"), "{message}");
        assert!(message.contains("`process.sandbox_write`"), "{message}");
    }
    let (status, message) = refused(&site("/etc/shadow"));
    assert!(status == 400 && message.contains("basic-auth.auth_file` names a file"), "{message}");
    admin.put("routes/outside", &logged(&format!("{dir}/logs/own.log"))).unwrap();
    await_closed(&gateway, &["routes/site"]);
    await_answerer(&gateway, "/logged", "a");
}
