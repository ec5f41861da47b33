//! The Admin API and `sigma ctl` in front of a whole gateway.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Operator, Origin, Peer, until};

use crate::managed::{
    self, EMBEDDED, KEY, VIEWER, admin, answerer, await_admin, await_answerer, revision, route, start,
    start_again, upstream,
};
use crate::{PATIENCE, SIGMA};

#[test]
fn a_route_is_made_changed_and_deleted() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    assert_eq!(answerer(&gateway, "/one"), "404");
    let put = |origin: &Origin| {
        admin.call("PUT", "/apisix/admin/routes/1", Some(&route("/one", origin))).unwrap().status()
    };
    assert_eq!(put(&a), 201);
    await_answerer(&gateway, "/one", "a");
    assert_eq!(put(&b), 200);
    await_answerer(&gateway, "/one", "b");
    admin.patch("routes/1", &json!({"uri": "/two", "upstream": upstream(&a)})).unwrap();
    await_answerer(&gateway, "/one", "404");
    // The patch has added a second node to the first: either may respond.
    assert!(until(PATIENCE, || ["a", "b"].contains(&&*answerer(&gateway, "/two"))));
    admin.delete("routes/1").unwrap();
    await_answerer(&gateway, "/two", "404");
    assert_eq!(admin.call("GET", "/apisix/admin/routes/1", None).unwrap().status(), 404);
}

/// A service, an upstream and a plugin config that routes name are followed as they change.
#[test]
fn references_of_routes_are_followed() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    admin.put("upstreams/u", &upstream(&a)).unwrap();
    admin.put("services/s", &json!({"upstream_id": "u"})).unwrap();
    admin.put("routes/1", &json!({"uri": "/x", "service_id": "s"})).unwrap();
    await_answerer(&gateway, "/x", "a");
    admin.put("upstreams/u", &upstream(&b)).unwrap();
    await_answerer(&gateway, "/x", "b");
    admin.put("services/s", &json!({"upstream": upstream(&a)})).unwrap();
    await_answerer(&gateway, "/x", "a");
    let refused = admin.call("DELETE", "/apisix/admin/services/s", None).unwrap();
    assert_eq!(refused.status(), 400, "{}", refused.text());
    await_answerer(&gateway, "/x", "a");
}

/// Variables of the settings, and those that a route sets, are values in resources of a store.
#[test]
fn resources_of_a_store_use_variables() {
    let variables = "variables:\n  kind: { map: $arg_k, exact: { a: one }, default: none }\n";
    let gateway = start(&format!("{EMBEDDED}\n{variables}"));
    let admin = admin(&gateway);
    let respond = json!({"respond": {"status": 200, "text": "$var_kind $var_mine"}});
    let chosen = json!({"uri": "/x", "set": {"mine": "$arg_z"}, "vars": [["var_kind", "==", "one"]], "plugins": respond});
    admin.put("routes/1", &chosen).unwrap();
    let body = |target: &str| {
        let mut client = gateway.connect().unwrap();
        let answer = client.ask(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).unwrap();
        (answer.status(), answer.text())
    };
    assert!(until(PATIENCE, || body("/x?k=a&z=7") == (200, "one 7".to_owned())));
    assert_eq!(body("/x?k=b").0, 404);
}

#[test]
fn callers_without_a_key_are_refused() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let check = |key: Option<&str>, method: &str, status: u16| {
        let caller = Operator::new(gateway.admin_address());
        let caller = key.map_or_else(|| caller.clone(), |key| caller.clone().with_key(key));
        let body = (method == "PUT").then(|| route("/x", &origin));
        let answer = caller.call(method, "/apisix/admin/routes/1", body.as_ref()).unwrap();
        assert_eq!(answer.status(), status, "{key:?} {method}: {}", answer.text());
    };
    for key in [None, Some(""), Some("0123456789abcdef0123456789abcdeX"), Some(&KEY[1..])] {
        check(key, "GET", 401);
        check(key, "PUT", 401);
    }
    check(Some(VIEWER), "PUT", 401);
    check(Some(VIEWER), "DELETE", 401);
    check(Some(VIEWER), "GET", 404);
    check(Some(KEY), "PUT", 201);
    check(Some(VIEWER), "GET", 200);
    let said = gateway.stderr() + &gateway.stdout();
    assert!(!said.contains(KEY) && !said.contains(VIEWER), "a key stands in the log:\n{said}");
}

#[test]
fn a_key_is_made_once_and_its_place_is_printed() {
    let settings = format!(
        "listeners:\n  - address: \"{{listen}}\"\ncontrol: {{ address: \"{{control}}\" }}\nadmin: {{ address: \"{{admin}}\" }}\n{EMBEDDED}\n"
    );
    let mut gateway = Gateway::start(SIGMA, &settings).unwrap();
    await_admin(&gateway);
    let file = gateway.dir().join("data/admin.key");
    let key = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let works = |gateway: &Gateway| {
        let caller = Operator::new(gateway.admin_address()).with_key(&key);
        caller.call("GET", "/apisix/admin/routes", None).unwrap().status() == 200
    };
    assert!(works(&gateway));
    let said = gateway.stderr() + &gateway.stdout();
    assert!(said.contains("data/admin.key") && !said.contains(&key), "{said}");
    gateway.kill().unwrap();
    start_again(&mut gateway);
    assert!(works(&gateway));
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), key);
}

/// `kill -9` in the middle of writes, three times over: acknowledged writes are there and served.
#[test]
fn a_killed_gateway_loses_no_acknowledged_write() {
    const ENOUGH: usize = 30;
    let origin = Origin::echo("a").unwrap();
    let mut gateway = start(EMBEDDED);
    let acknowledged = AtomicUsize::new(0);
    for life in 0..3 {
        let (admin, begin) = (admin(&gateway), acknowledged.load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut next = begin;
                while admin.put(&format!("routes/{next}"), &route(&format!("/{next}"), &origin)).is_ok() {
                    next += 1;
                    acknowledged.store(next, Ordering::SeqCst);
                }
            });
            let written = || acknowledged.load(Ordering::SeqCst) >= begin + ENOUGH;
            assert!(until(PATIENCE, written), "life {life}: writes are not acknowledged");
            gateway.kill().unwrap();
        });
        start_again(&mut gateway);
        let list = managed::admin(&gateway).get("/apisix/admin/routes").unwrap();
        let stored: Vec<&str> =
            list["list"].as_array().unwrap().iter().filter_map(|item| item["value"]["id"].as_str()).collect();
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        for number in 0..acknowledged.load(Ordering::SeqCst) {
            assert!(stored.contains(&&*number.to_string()), "life {life}: route {number} is lost");
            let answer = client.get(&format!("/{number}")).unwrap();
            assert_eq!(answer.head.get("x-origin"), Some("a"), "life {life}: route {number} is not served");
        }
    }
}

#[test]
fn a_whole_configuration_comes_into_force_at_once_or_not_at_all() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    let whole = |origin: &Origin, second: Value| {
        let first = json!({"id": "1", "uri": "/1", "upstream_id": "u"});
        let mut upstream = upstream(origin);
        upstream["id"] = "u".into();
        json!({"upstreams": [upstream], "routes": [first, second]})
    };
    let put = |digest: &str, whole: &Value| {
        let digest = format!("X-Digest: {digest}\r\n");
        admin.call_with("PUT", "/apisix/admin/configs", &digest, Some(whole)).unwrap().status()
    };
    let second = |uri: Value| json!({"id": "2", "uri": uri, "upstream_id": "u"});
    assert_eq!(put("one", &whole(&a, second("/2".into()))), 202);
    await_answerer(&gateway, "/1", "a");
    await_answerer(&gateway, "/2", "a");
    assert_eq!(put("one", &whole(&a, second("/2".into()))), 204);
    let before = revision(&gateway)["store"]["revision"].clone();
    // Half of it is right; nothing of it is taken.
    assert_eq!(put("two", &whole(&b, second(7.into()))), 400);
    assert_eq!(revision(&gateway)["store"]["revision"], before);
    assert_eq!(answerer(&gateway, "/1"), "a");
    assert_eq!(put("three", &json!({"routes": [route("/3", &b)]})), 400, "an item without an id was taken");
    let mut only = route("/3", &b);
    only["id"] = "3".into();
    assert_eq!(put("four", &json!({"routes": [only]})), 202);
    await_answerer(&gateway, "/3", "b");
    await_answerer(&gateway, "/1", "404");
}

#[test]
fn a_rehearsal_changes_nothing() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    admin.put("routes/1", &route("/1", &a)).unwrap();
    await_answerer(&gateway, "/1", "a");
    let before =
        (admin.get("/apisix/admin/configs").unwrap(), revision(&gateway)["store"]["revision"].clone());
    let check = |method: &str, path: &str, body: Option<Value>, status: u16| {
        let target = format!("/apisix/admin/{path}?dry_run=true");
        let answer = admin.call_with(method, &target, "X-Digest: d\r\n", body.as_ref()).unwrap();
        assert_eq!(answer.status(), status, "{method} {path}: {}", answer.text());
        let now =
            (admin.get("/apisix/admin/configs").unwrap(), revision(&gateway)["store"]["revision"].clone());
        assert_eq!(now, before, "{method} {path}");
    };
    check("PUT", "routes/1", Some(route("/1", &b)), 200);
    check("PUT", "routes/2", Some(route("/2", &b)), 201);
    check("POST", "routes", Some(route("/2", &b)), 201);
    check("PATCH", "routes/1", Some(json!({"uri": "/changed"})), 200);
    check("DELETE", "routes/1", None, 200);
    check("DELETE", "routes/nowhere", None, 404);
    check("PUT", "routes/2", Some(json!({"uri": "/2", "upstream_id": "nowhere"})), 400);
    check("PUT", "configs", Some(json!({"routes": []})), 202);
    assert_eq!(answerer(&gateway, "/1"), "a");
}

/// A shell that talks to one gateway.
struct Shell<'g>(&'g Gateway);

impl Shell<'_> {
    fn run(&self, args: &[&str]) -> Output {
        let admin = format!("http://{}", self.0.admin_address());
        let mut command = Command::new(SIGMA);
        command.args(["ctl", "--admin", &admin]).args(args).current_dir(self.0.dir());
        command.env("SIGMA_ADMIN_KEY", KEY).output().unwrap()
    }

    /// Runs a command that must end with this status; returns its output.
    fn check(&self, args: &[&str], status: i32, words: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = text.clone() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: {word:?} is missing in {said}");
        }
        text
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.dir().join(name), text).unwrap();
    }
}

#[test]
fn every_verb_of_the_shell_does_its_work() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let shell = Shell(&gateway);
    let nodes = format!("upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }}", origin.port());
    shell.write("route.yaml", &format!("uri: /1\nname: first\n{nodes}\n"));
    shell.write("patch.yaml", "uri: /2\n");
    shell.write("bad.yaml", "uri: 7\n");
    shell.check(&["put", "routes", "1", "-f", "route.yaml", "--dry-run"], 0, &["would be written"]);
    shell.check(&["get", "routes", "1"], 1, &["404"]);
    shell.check(&["put", "routes", "1", "-f", "route.yaml"], 0, &["routes/1: written"]);
    await_answerer(&gateway, "/1", "a");
    shell.check(&["put", "routes", "1", "-f", "bad.yaml"], 1, &["uri"]);
    shell.check(&["put", "routes", "1", "-f", "absent.yaml"], 1, &["absent.yaml"]);
    shell.check(&["get", "routes", "1"], 0, &["\"uri\": \"/1\"", "first"]);
    shell.check(&["list", "routes"], 0, &["/1", "first"]);
    let json: Value = serde_json::from_str(&shell.check(&["list", "routes", "-o", "json"], 0, &[])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    shell.check(&["patch", "routes", "1", "-f", "patch.yaml"], 0, &["routes/1: written"]);
    await_answerer(&gateway, "/2", "a");
    shell.write("all.yaml", &shell.check(&["dump"], 0, &["routes:"]));
    shell.check(&["diff", "-f", "all.yaml"], 0, &[]);
    shell.check(&["validate", "-f", "all.yaml"], 0, &["ok"]);
    shell.check(&["delete", "routes", "1", "--dry-run"], 0, &[]);
    assert_eq!(answerer(&gateway, "/2"), "a");
    shell.check(&["delete", "routes", "1"], 0, &[]);
    await_answerer(&gateway, "/2", "404");
    shell.check(&["delete", "routes", "1"], 1, &["404"]);
    shell.check(&["diff", "-f", "all.yaml"], 3, &["+ routes/1"]);
    shell.check(&["apply", "-f", "all.yaml", "--dry-run"], 0, &["would be applied"]);
    shell.check(&["diff", "-f", "all.yaml"], 3, &[]);
    shell.check(&["apply", "-f", "all.yaml"], 0, &["applied"]);
    await_answerer(&gateway, "/2", "a");
    shell.check(&["apply", "-f", "all.yaml"], 0, &["already in force"]);
    shell.write("wrong.yaml", "routes:\n  - { id: 1, uri: /1, upstream_id: nowhere }\n");
    shell.check(&["apply", "-f", "wrong.yaml"], 1, &["nowhere"]);
    shell.write("wrong.yaml", "routes:\n  - { id: 1, uri: 7 }\n  - { id: 2, hosts: 8 }\n");
    shell.check(&["validate", "-f", "wrong.yaml"], 1, &["uri", "hosts"]);
    let control = format!("http://{}", gateway.control_address());
    let served = revision(&gateway)["revision"].to_string();
    shell.check(&["nodes", &control], 0, &["SERVED", &served, "embedded"]);
    shell.check(&["nodes", &control, "http://127.0.0.1:1"], 1, &["127.0.0.1:1", &served]);
    shell.check(&["frobnicate"], 2, &["frobnicate"]);
    shell.check(
        &["--key", VIEWER, "put", "routes", "1", "-f", "route.yaml"],
        1,
        &["this key has the role viewer"],
    );
    shell.check(&["--key", VIEWER, "delete", "routes", "1"], 1, &["401"]);
    assert_eq!(answerer(&gateway, "/2"), "a");
}

/// Many clients change parts of one resource at once: each change is made, or refused for the client
/// to try again.
#[test]
fn patches_at_once_lose_nothing() {
    const CLIENTS: usize = 8;
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    admin.put("routes/1", &route("/1", &origin)).unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let admin = &admin;
            scope.spawn(move || {
                for step in 0..5 {
                    let label = json!({"labels": {format!("l{client}-{step}"): "x"}});
                    let done = until(PATIENCE, || {
                        let answer = admin.call("PATCH", "/apisix/admin/routes/1", Some(&label)).unwrap();
                        assert!([200, 503].contains(&answer.status()), "{}", answer.text());
                        answer.status() == 200
                    });
                    assert!(done, "client {client} is overtaken for good");
                }
            });
        }
    });
    let labels = admin.get("/apisix/admin/routes/1").unwrap()["value"]["labels"].clone();
    assert_eq!(labels.as_object().unwrap().len(), CLIENTS * 5, "{labels}");
}

/// The shell accepts the content of a gateway's file: short forms, items without an id, and the settings,
/// which it leaves out with a message.
#[test]
fn the_shell_accepts_the_content_of_a_file() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let shell = Shell(&gateway);
    let url = format!("http://127.0.0.1:{}", origin.port());
    shell.write("short.yaml", &format!("uri: /short\nupstream: {url}\n"));
    shell.check(&["put", "routes", "1", "-f", "short.yaml"], 0, &["routes/1: written"]);
    await_answerer(&gateway, "/short", "a");
    shell.check(&["put", "routes", "-f", "short.yaml"], 0, &["routes/0000", "written"]);
    shell.write("patch.yaml", "upstream: nowhere\n");
    shell.check(&["patch", "routes", "1", "-f", "patch.yaml"], 1, &["has no scheme"]);
    shell.check(&["put", "consumers", "-f", "short.yaml"], 1, &["400"]);
    let whole = format!(
        "listeners: [\":9080\"]\nworkers: 2\nroutes:\n  - uri: /whole\n    upstream: {url}\n  - uri: /split\n    plugins: {{ traffic-split: {{ rules: [ {{ weighted_upstreams: [ {{ upstream: \"{url}\", weight: 1 }} ] }} ] }} }}\n"
    );
    shell.write("whole.yaml", &whole);
    let left_out = "ignored here: listeners, workers";
    shell.check(&["validate", "-f", "whole.yaml"], 0, &["ok", left_out]);
    shell.check(&["diff", "-f", "whole.yaml"], 3, &["+ routes/arr_1", "- routes/1", left_out]);
    shell.check(&["apply", "-f", "whole.yaml"], 0, &["applied", left_out]);
    await_answerer(&gateway, "/whole", "a");
    await_answerer(&gateway, "/split", "a");
    await_answerer(&gateway, "/short", "404");
    shell.check(&["diff", "-f", "whole.yaml"], 0, &[]);
    shell.write("whole.yaml", &whole.replace("workers", "wrokers"));
    shell.check(&["apply", "-f", "whole.yaml"], 1, &["`wrokers` is not a section"]);
    shell.write("variable.yaml", "listeners: [\"${{OWN}}\"]\nupstream: ${{NODE}}\n");
    shell.check(&["apply", "-f", "variable.yaml"], 1, &["NODE"]);
    shell.write("shortest.yaml", &format!("upstream: ${{{{NODE:={url}}}}}\n"));
    shell.check(&["apply", "-f", "shortest.yaml"], 0, &["applied"]);
    await_answerer(&gateway, "/anything", "a");
}

/// Kinds whose paths are not plain, and the forms of output.
#[test]
fn the_shell_knows_every_kind_and_form() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let shell = Shell(&gateway);
    let plugins = "plugins: {}\n";
    let vault = "{ uri: \"http://127.0.0.1:1\", prefix: kv, token: t }";
    let route = "id: r\nname: one\nlabels: { env: test }\nuri: /1\nupstream_id: u\n";
    for (kind, id, text) in [
        ("upstream", "u", format!("nodes: {{ \"127.0.0.1:{}\": 1 }}", origin.port())),
        ("service", "s", "{}".to_owned()),
        ("plugin-config", "p", plugins.to_owned()),
        ("consumer_group", "g", plugins.to_owned()),
        ("global-rules", "g", plugins.to_owned()),
        ("consumers", "jack-the-lad", "username: jack-the-lad".to_owned()),
        ("consumers/jack-the-lad/credentials", "c", plugins.to_owned()),
        ("plugin_metadata", "prometheus", "{}".to_owned()),
        ("protos", "1", "content: message M {}".to_owned()),
        ("secrets/vault", "1", vault.to_owned()),
        ("secret", "vault/2", vault.to_owned()),
    ] {
        shell.write("one.yaml", &text);
        shell.check(&["put", kind, id, "-f", "one.yaml"], 0, &["written"]);
        let got: Value =
            serde_json::from_str(&shell.check(&["get", kind, id, "-o", "json"], 0, &[])).unwrap();
        assert!(got.is_object(), "{kind}: {got}");
    }
    // The file says which one.
    shell.write("route.yaml", route);
    shell.check(&["put", "routes", "-f", "route.yaml"], 0, &["routes/r: written"]);
    await_answerer(&gateway, "/1", "a");
    shell.check(&["get", "route", "r"], 0, &["\"upstream_id\": \"u\""]);
    shell.check(&["get", "route", "r", "-o", "yaml"], 0, &["upstream_id: u"]);
    shell.check(&["get", "route", "r", "-o", "table"], 0, &["MEMBER", "upstream_id"]);
    shell.check(&["list", "routes"], 0, &["ID  NAME  SERVES  REVISION", "r   one   /1"]);
    shell.check(&["list", "routes", "-o", "yaml"], 0, &["- id: r"]);
    for (filter, value, hit) in [
        ("--name", "^on", true),
        ("--name", "two", false),
        ("--uri", "1$", true),
        ("--uri", "2", false),
        ("--label", "env", true),
        ("--label", "test", false),
    ] {
        let text = shell.check(&["list", "routes", filter, value, "-o", "json"], 0, &[]);
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(list.as_array().unwrap().len(), usize::from(hit), "{filter} {value}");
    }
    shell.check(&["list", "credentials"], 1, &["consumers/NAME/credentials"]);
    shell.check(&["delete", "upstreams", "u"], 1, &["route [r] is still using it now"]);
    shell.check(&["delete", "upstreams", "u", "--force", "--dry-run"], 0, &[]);
    shell.check(&["get", "upstreams", "u"], 0, &[]);
    shell.check(&["delete", "secret", "vault/2"], 0, &[]);
    shell.check(&["list", "secrets/vault", "-o", "json"], 0, &["vault/1"]);
    let dumped: Value = serde_json::from_str(&shell.check(&["dump", "-o", "json"], 0, &[])).unwrap();
    assert_eq!(dumped["consumers"][1]["id"], "jack-the-lad/credentials/c");
    shell.write("dump.json", &dumped.to_string());
    shell.check(&["diff", "-f", "dump.json"], 0, &[]);
    shell.check(&["apply", "-f", "dump.json"], 0, &["applied"]);
    let control = format!("http://{}", gateway.control_address());
    let nodes: Value =
        serde_json::from_str(&shell.check(&["nodes", &control, "-o", "json"], 0, &[])).unwrap();
    assert_eq!((&nodes[0]["node"], &nodes[0]["store"]["kind"]), (&json!(control), &json!("embedded")));
    shell.write("key", KEY);
    let own = format!("http://{}", gateway.admin_address());
    for (admin, status) in [(own.as_str(), 0), ("http://127.0.0.1:1", 1)] {
        let mut command = Command::new(SIGMA);
        command.args(["ctl", "--admin", admin, "--key-file", "key", "list", "routes"]);
        command.current_dir(gateway.dir()).env_remove("SIGMA_ADMIN_KEY");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{admin}: {said}");
        assert!(status == 0 || said.contains("127.0.0.1:1"), "{said}");
    }
}

/// A definition that cannot be read is refused wherever it comes from, and says where its fault is.
#[test]
fn an_invalid_proto_is_refused() {
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    let put = |content: &str| {
        let answer = admin.call("PUT", "/apisix/admin/protos/1", Some(&json!({"content": content}))).unwrap();
        (answer.status(), answer.text())
    };
    let (status, text) = put("syntax = \"proto3\";\nmessage M { string = 1; }");
    assert!(status == 400 && text.contains("invalid content: content:2:20: "), "{status} {text}");
    assert_eq!(put("syntax = \"proto3\";\nmessage M { string s = 1; }").0, 201);
    let whole = json!({"protos": [{"id": "1", "content": "message"}]});
    let refused = admin.call_with("PUT", "/apisix/admin/configs", "X-Digest: d\r\n", Some(&whole)).unwrap();
    assert!(refused.status() == 400 && refused.text().contains("invalid content: "), "{}", refused.text());
}

const TWO_SOURCES: &str = "this file contains resources, but `store` or `admin` is set";

#[test]
fn resources_in_a_file_with_a_store_are_refused() {
    let with_resources = managed::config(&format!(
        "{EMBEDDED}\nroutes:\n  - id: r\n    uri: /r\n    upstream: {{ nodes: {{ \"127.0.0.1:1\": 1 }} }}"
    ));
    let refused = Gateway::start(SIGMA, &with_resources).unwrap_err().to_string();
    assert!(refused.contains(TWO_SOURCES) && refused.contains("sigma ctl apply"), "{refused}");
    // The check says the same as the start.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sigma.yaml");
    let port = |name| [name, "127.0.0.1:0"];
    let places = ["{listen}", "{status}", "{control}", "{admin}"].map(port);
    let text = places.iter().fold(with_resources.clone(), |text, [name, place]| text.replace(name, place));
    std::fs::write(&file, text.replace("{dir}", "/nowhere")).unwrap();
    let checked = std::process::Command::new(SIGMA).arg("check").arg(&file).output().unwrap();
    let checked = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.contains(TWO_SOURCES), "{checked}");
    // The same at a reload, which changes nothing.
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    admin(&gateway).put("routes/1", &route("/1", &origin)).unwrap();
    await_answerer(&gateway, "/1", "a");
    gateway.rewrite(&with_resources).unwrap();
    gateway.reload().unwrap();
    let said = until(PATIENCE, || (gateway.stderr() + &gateway.stdout()).contains(TWO_SOURCES));
    assert!(said, "{}", gateway.stderr());
    assert_eq!((answerer(&gateway, "/1"), answerer(&gateway, "/r")), ("a".to_owned(), "404".to_owned()));
    // A reload that is right keeps the resources of the store.
    gateway.rewrite(&managed::config(&format!("{EMBEDDED}\nlimits: {{ request_headers: 50 }}"))).unwrap();
    gateway.reload().unwrap();
    let status = Operator::new(gateway.status_address());
    assert!(until(PATIENCE, || status.get("/status").unwrap()["reloads"] == 2), "{}", gateway.stderr());
    await_answerer(&gateway, "/1", "a");
    admin(&gateway).put("routes/2", &route("/2", &origin)).unwrap();
    await_answerer(&gateway, "/2", "a");
}

/// Another program writes an invalid object: the last good form stays, everything else is applied, and both
/// operators' listeners say so.
#[test]
fn invalid_objects_in_the_store_are_quarantined_and_shown() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let etcd = EtcdServer::start().unwrap();
    let mut gateway = start(&managed::etcd(etcd.port()));
    etcd.put("/apisix/routes/1", &route("/1", &a).to_string()).unwrap();
    await_answerer(&gateway, "/1", "a");
    etcd.put("/apisix/routes/1", r#"{"uri": 7}"#).unwrap();
    etcd.put("/apisix/routes/2", r#"{"uri": "/2", "nonsense": true}"#).unwrap();
    let last = etcd.put("/apisix/routes/3", &route("/3", &b).to_string()).unwrap();
    await_answerer(&gateway, "/3", "b");
    let check = |gateway: &Gateway, good_form: bool| {
        let shown = revision(gateway);
        assert_eq!(shown["revision"], last, "{shown}");
        let status =
            Peer::connect(&gateway.status_address()).unwrap().get("/status").unwrap().json().unwrap();
        for place in [&shown, &status["configuration"]] {
            let list = place["quarantined"].as_array().unwrap();
            let keys: Vec<&str> = list.iter().filter_map(|one| one["key"].as_str()).collect();
            assert_eq!(keys, ["routes/1", "routes/2"], "{place}");
            assert!(list[0]["reason"].as_str().unwrap().contains("uri"), "{place}");
            assert!(list[0]["since"].as_u64().unwrap() > 1_600_000_000);
            let good: Vec<_> = list.iter().map(|one| one["last_good_served"].as_bool().unwrap()).collect();
            assert_eq!(good, [good_form, false]);
        }
        assert_eq!(status["configuration"]["store"]["kind"], "etcd");
    };
    check(&gateway, true);
    // An object without a good form keeps its place: nothing more open answers there.
    assert_eq!((answerer(&gateway, "/1"), answerer(&gateway, "/2")), ("a".to_owned(), "503".to_owned()));
    // The last invalid object is not applied, but its revision is seen.
    let last = etcd.put("/apisix/routes/2", r#"{"uri": "/2", "nonsense": false}"#).unwrap();
    assert!(until(PATIENCE, || revision(&gateway)["revision"] == last), "{}", revision(&gateway));
    etcd.put("/apisix/routes/2", &route("/2", &b).to_string()).unwrap();
    await_answerer(&gateway, "/2", "b");
    etcd.delete("/apisix/routes/1").unwrap();
    await_answerer(&gateway, "/1", "404");
    assert_eq!(revision(&gateway)["quarantined"], json!([]));
    // Over restarts the last good form comes from the local copy, also where the value is no JSON.
    let copy = gateway.dir().join("data/etcd.copy");
    let holds = |text: &str| {
        std::fs::read(&copy).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    assert!(until(PATIENCE, || holds("\"/3\"")), "the copy lacks what is served");
    etcd.put("/apisix/routes/3", "garbage").unwrap();
    etcd.put("/apisix/routes/4", "garbage that was never good").unwrap();
    for _ in 0..2 {
        gateway.kill().unwrap();
        start_again(&mut gateway);
        assert_eq!((answerer(&gateway, "/2"), answerer(&gateway, "/3")), ("b".to_owned(), "b".to_owned()));
        let shown = revision(&gateway);
        let good: Vec<_> = [0, 1].map(|place| shown["quarantined"][place]["last_good_served"].clone()).into();
        assert_eq!(good, [true, false], "{shown}");
        assert!(until(PATIENCE, || holds("never good")), "the copy lacks what is in etcd");
    }
}
