//! The authors of changes, and rollback.

use std::process::{Command, Output};

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Operator, Origin, Peer, until};

use crate::managed::{
    self, EMBEDDED, KEY, VIEWER, admin, await_admin, await_answerer, route, start, start_again, upstream,
};
use crate::{PATIENCE, SIGMA, catch_all, nodes};

const HISTORY: &str = "/apisix/admin/history";

/// Waits until the newest version is as it is wanted, and returns all, the newest first.
fn await_newest(operator: &Operator, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut list = Vec::new();
    let found = until(PATIENCE, || {
        list = operator.get(path).unwrap()["list"].as_array().cloned().unwrap_or_default();
        list.first().is_some_and(&is_wanted)
    });
    assert!(found, "{list:#?}");
    list
}

/// Waits until the change of a key is in force, and is the newest.
fn await_change(operator: &Operator, key: &str) -> Vec<Value> {
    await_newest(operator, HISTORY, |one| one["keys"][0] == key && one["result"]["state"] != "pending")
}

fn number(version: &Value) -> u64 {
    version["version"].as_u64().unwrap()
}

fn rollback(operator: &Operator, version: u64, more: &str, fields: &str) -> (u16, Value) {
    let answer =
        operator.call_with("POST", &format!("{HISTORY}/{version}/rollback{more}"), fields, None).unwrap();
    (answer.status(), answer.json().unwrap_or_default())
}

#[test]
fn changes_are_recorded_and_rolled_back() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = start(EMBEDDED);
    let (writer, viewer) = (admin(&gateway), Operator::new(gateway.admin_address()).with_key(VIEWER));
    writer.put("routes/1", &route("/one", &a)).unwrap();
    let first = await_change(&writer, "routes/1");
    let (begin, first) = (number(&first[1]), first[0].clone());
    assert_eq!((&first["author"]["by"], &first["summary"]["created"]), (&json!("admin"), &json!(1)));
    let name = first["author"]["key"].as_str().unwrap();
    assert!(name.starts_with("key-") && !KEY.contains(name), "{name}");
    assert_eq!(
        (&first["author"]["address"], &first["result"]["state"]),
        (&json!("127.0.0.1"), &json!("in_force"))
    );
    writer.put("routes/1", &route("/one", &b)).unwrap();
    await_answerer(&gateway, "/one", "b");
    writer.put("upstreams/u", &upstream(&b)).unwrap();
    writer.put("routes/2", &json!({"uri": "/two", "upstream_id": "u"})).unwrap();
    await_answerer(&gateway, "/two", "b");
    let list = await_change(&writer, "routes/2");
    let newest = number(&list[0]);
    let of_one = writer.get(&format!("{HISTORY}?key=routes/1&limit=1")).unwrap();
    assert_eq!(of_one["list"].as_array().map(Vec::len), Some(1));
    assert_eq!(of_one["next_before"], of_one["list"][0]["version"]);
    let change = writer.get(&format!("{HISTORY}/{}", of_one["list"][0]["version"])).unwrap();
    assert!(change["changes"][0]["fields"].to_string().contains("upstream.nodes"), "{change}");
    let difference = writer.get(&format!("{HISTORY}/{}/diff/{newest}", number(&first))).unwrap();
    assert_eq!(difference["total"], 3, "{difference}");
    // A reader may not roll back, and a rehearsal changes nothing.
    assert_eq!(rollback(&viewer, number(&first), "", "").0, 401);
    let (status, rehearsal) = rollback(&writer, number(&first), "?dry_run=true", "");
    assert_eq!((status, &rehearsal["keys"]), (200, &json!(["routes/1", "routes/2", "upstreams/u"])));
    let stale = format!("If-Match: \"{}\"\r\n", newest - 1);
    assert_eq!(rollback(&writer, number(&first), "", &stale).0, 412);
    assert_eq!(rollback(&writer, 999, "", "").0, 404);
    await_answerer(&gateway, "/one", "b");
    let fresh = format!("If-Match: \"{newest}\"\r\n");
    let (status, back) = rollback(&writer, number(&first), "", &fresh);
    assert_eq!((status, &back["objects"]), (200, &json!(3)), "{back}");
    let lists = json!([[], ["routes/1"], ["routes/2", "upstreams/u"]]);
    assert_eq!(json!([back["created"], back["changed"], back["deleted"]]), lists, "{back}");
    await_answerer(&gateway, "/one", "a");
    await_answerer(&gateway, "/two", "404");
    let list = await_newest(&writer, HISTORY, |one| one["rollback_to"] == number(&first));
    assert_eq!(list[0]["author"]["key"], name);
    // And forward again, and to the very beginning.
    assert_eq!(rollback(&writer, newest, "", "").0, 200);
    await_answerer(&gateway, "/two", "b");
    assert_eq!(rollback(&writer, begin, "", "").0, 200);
    await_answerer(&gateway, "/one", "404");
    let (status, nothing) = rollback(&writer, begin, "", "");
    assert_eq!((status, &nothing["objects"]), (200, &json!(0)));
}

/// Secrets stay secret: from viewers, from admins and in the file.
#[test]
fn no_secret_is_in_the_history() {
    let gateway = start(EMBEDDED);
    let writer = admin(&gateway);
    let consumer = |key: &str| json!({"username": "jack", "plugins": {"key-auth": {"key": key}}});
    writer.put("consumers/jack", &consumer("the-first-secret-of-jack")).unwrap();
    writer.put("consumers/jack", &consumer("another-secret-of-jack")).unwrap();
    let list = await_newest(&writer, HISTORY, |one| one["summary"]["changed"] == 1);
    let viewer = Operator::new(gateway.admin_address()).with_key(VIEWER);
    let control = Operator::new(gateway.control_address());
    for (operator, place) in [(&writer, HISTORY), (&viewer, HISTORY), (&control, "/v1/history")] {
        let (newest, first) = (number(&list[0]), number(&list[1]));
        for path in
            ["".to_owned(), format!("/{newest}"), format!("/{first}"), format!("/{first}/diff/{newest}")]
        {
            let text = operator.get(&format!("{place}{path}")).unwrap().to_string();
            assert!(!text.contains("secret-of-jack") && !text.contains(KEY), "{path}: {text}");
        }
        let change = operator.get(&format!("{place}/{newest}")).unwrap();
        let change = &change["changes"][0];
        let fields = change["fields"].to_string();
        assert!(fields.contains("plugins.key-auth.key"), "{change}");
        assert_eq!(change["after"]["plugins"]["key-auth"]["key"], "***");
    }
    let file = std::fs::read(gateway.dir().join("data/history.redb")).unwrap();
    assert!(!file.windows(14).any(|window| window == b"secret-of-jack"));
    // The restored secret is the former one.
    assert_eq!(rollback(&writer, number(&list[1]), "", "").0, 200);
    let jack = writer.get("/apisix/admin/consumers/jack").unwrap();
    assert_eq!(jack["value"]["plugins"]["key-auth"]["key"], "the-first-secret-of-jack");
}

/// An object that could not be served today is not restored, nor one that another object needs deleted.
#[test]
fn unservable_objects_are_not_restored() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let writer = admin(&gateway);
    let begin = number(&writer.get(HISTORY).unwrap()["list"][0]);
    writer.put("upstreams/u", &upstream(&origin)).unwrap();
    writer.put("routes/1", &json!({"uri": "/one", "upstream_id": "u"})).unwrap();
    let with_both = number(&await_change(&writer, "routes/1")[0]);
    writer.delete("routes/1").unwrap();
    writer.delete("upstreams/u").unwrap();
    await_change(&writer, "upstreams/u");
    writer.put("upstreams/v", &upstream(&origin)).unwrap();
    let before_use = number(&await_change(&writer, "upstreams/v")[1]);
    writer.put("routes/9", &json!({"uri": "/nine", "upstream_id": "v"})).unwrap();
    await_change(&writer, "routes/9");
    // The route is gone as well, so this is whole.
    assert_eq!(rollback(&writer, before_use, "?dry_run=true", "").0, 200);
    assert_eq!(rollback(&writer, with_both, "", "").0, 200);
    await_answerer(&gateway, "/one", "a");
    await_answerer(&gateway, "/nine", "404");
    assert_eq!(rollback(&writer, begin, "", "").0, 200);
    await_answerer(&gateway, "/one", "404");
    // An expired object stays gone, and nothing comes back that needs it.
    writer.put("upstreams/t?ttl=8", &upstream(&origin)).unwrap();
    let only = number(&await_change(&writer, "upstreams/t")[0]);
    writer.put("routes/1", &json!({"uri": "/one", "upstream_id": "t"})).unwrap();
    let with_both = number(&await_change(&writer, "routes/1")[0]);
    writer.delete("routes/1").unwrap();
    await_newest(&writer, HISTORY, |one| {
        one["author"]["by"] == "expiry" && one["result"]["state"] == "in_force"
    });
    let (status, back) = rollback(&writer, only, "", "");
    assert_eq!((status, &back["left"]["expired"]), (200, &json!(["upstreams/t"])), "{back}");
    let (status, refused) = rollback(&writer, with_both, "", "");
    assert_eq!(status, 400, "{refused}");
    assert!(
        refused["error_msg"].as_str().is_some_and(|text| text.contains("needs upstreams/t")),
        "{refused}"
    );
}

/// Killed between a write and its version, the gateway finds the change by comparing.
#[test]
fn changes_that_a_kill_took_from_the_history_are_found() {
    let origin = Origin::echo("a").unwrap();
    let mut gateway = start(EMBEDDED);
    admin(&gateway).put("routes/1", &route("/one", &origin)).unwrap();
    await_change(&admin(&gateway), "routes/1");
    gateway.kill().unwrap();
    let file = gateway.dir().join("data/history.redb");
    let kept = std::fs::read(&file).unwrap();
    start_again(&mut gateway);
    admin(&gateway).put("routes/2", &route("/two", &origin)).unwrap();
    // At once: whether its version is written is up to chance; then it is as if it were not.
    gateway.kill().unwrap();
    for _ in 0..2 {
        start_again(&mut gateway);
        let list = await_change(&admin(&gateway), "routes/2");
        assert_eq!((&list[0]["summary"]["created"], &list[1]["keys"][0]), (&json!(1), &json!("routes/1")));
        assert_eq!(
            rollback(&admin(&gateway), number(&list[1]), "?dry_run=true", "").1["keys"],
            json!(["routes/2"])
        );
        gateway.kill().unwrap();
        std::fs::write(&file, &kept).unwrap();
    }
    start_again(&mut gateway);
    let list = await_change(&admin(&gateway), "routes/2");
    assert_eq!(list[0]["author"]["by"], "unknown");
    assert!(list[0]["note"].as_str().is_some_and(|note| note.contains("comparison")), "{}", list[0]);
}

#[test]
fn old_versions_go() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("{EMBEDDED}\nhistory: {{ keep: 3 }}"));
    let writer = admin(&gateway);
    for uri in ["/a", "/b", "/c", "/d", "/e"] {
        writer.put("routes/1", &route(uri, &origin)).unwrap();
    }
    let list = await_newest(&writer, HISTORY, |one| one["version"] == 6);
    assert_eq!(list.iter().map(number).collect::<Vec<_>>(), [6, 5, 4]);
    let (status, refused) = rollback(&writer, 2, "", "");
    assert_eq!(status, 404, "{refused}");
    assert!(refused["error_msg"].as_str().is_some_and(|text| text.contains("history.keep")), "{refused}");
    assert_eq!(rollback(&writer, 4, "", "").0, 200);
    await_answerer(&gateway, "/c", "a");
    let none = start(&format!("{EMBEDDED}\nhistory: {{ keep: 0 }}"));
    assert_eq!(admin(&none).call("GET", HISTORY, None).unwrap().status(), 404);
    assert!(!none.dir().join("data/history.redb").exists());
}

/// Each node on an etcd records its own writes with their authors, and others' changes.
#[test]
fn nodes_on_an_etcd_record_their_observations() {
    let origin = Origin::echo("a").unwrap();
    let etcd = EtcdServer::start().unwrap();
    let (one, two) = (start(&managed::etcd(etcd.port())), start(&managed::etcd(etcd.port())));
    admin(&one).put("routes/1", &route("/one", &origin)).unwrap();
    await_answerer(&two, "/one", "a");
    for (gateway, by) in [(&one, "admin"), (&two, "etcd")] {
        let list = await_newest(&admin(gateway), HISTORY, |one| {
            one["keys"][0] == "routes/1" && one["author"]["by"] == by && one["result"]["state"] == "in_force"
        });
        assert_eq!(list[0]["summary"]["created"], 1);
    }
    // Another program writes what cannot be served.
    etcd.put("/apisix/routes/1", r#"{"id": "1", "uri": "/one", "plugins": {"no-such": {}}}"#).unwrap();
    let list = await_newest(&admin(&two), HISTORY, |one| one["result"]["state"] == "quarantined");
    assert_eq!(
        (&list[0]["author"]["by"], &list[0]["result"]["objects"][0]["key"]),
        (&json!("etcd"), &json!("routes/1"))
    );
    assert_eq!(rollback(&admin(&two), number(&list[1]), "", "").0, 200);
    await_answerer(&one, "/one", "a");
    await_newest(&admin(&one), HISTORY, |one| {
        one["author"]["by"] == "etcd" && one["result"]["state"] == "in_force"
    });
}

/// With a file as the source there is a history, and nothing to roll back.
#[test]
fn a_file_has_a_history_too() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let settings = |more: &str| format!("control: {{ address: \"{{control}}\" }}\n{more}");
    let gateway = Gateway::start(SIGMA, &catch_all(&settings(""), &nodes(&[&a]), "")).unwrap();
    let control = Operator::new(gateway.control_address());
    let open = until(PATIENCE, || Peer::connect(&gateway.control_address()).is_ok());
    assert!(open, "{}", gateway.stderr());
    await_newest(&control, "/v1/history", |one| one["note"].is_string());
    gateway.rewrite(&catch_all(&settings("via: edge\n"), &nodes(&[&b]), "")).unwrap();
    gateway.reload().unwrap();
    let list = await_newest(&control, "/v1/history", |one| one["version"] == 2);
    assert_eq!((&list[0]["author"]["by"], &list[0]["author"]["trigger"]), (&json!("file"), &json!("SIGHUP")));
    assert_eq!(list[0]["keys"], json!(["routes/all", "settings/via"]));
    gateway.rewrite("listeners: 7\n").unwrap();
    gateway.reload().unwrap();
    let list = await_newest(&control, "/v1/history", |one| one["version"] == 3);
    assert_eq!(list[0]["result"]["state"], "refused");
    assert!(list[0]["result"]["reason"].as_str().is_some_and(|reason| reason.contains("listeners")));
    let refused = control.call("POST", "/v1/history/1/rollback", None).unwrap();
    assert_eq!(refused.status(), 409);
    assert!(refused.text().contains("sigma reload"), "{}", refused.text());
    let shown = ctl(&gateway, &["history", "--control", &control_url(&gateway)]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("settings/via"), "{shown:?}");
}

fn control_url(gateway: &Gateway) -> String {
    format!("http://{}", gateway.control_address())
}

fn ctl(gateway: &Gateway, args: &[&str]) -> Output {
    let admin = format!("http://{}", gateway.admin_address());
    let mut command = Command::new(SIGMA);
    command.args(["ctl", "--admin", &admin]).args(args).env("SIGMA_ADMIN_KEY", KEY).output().unwrap()
}

#[test]
fn the_history_is_read_and_gone_back_in_from_a_shell() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = start(EMBEDDED);
    let writer = admin(&gateway);
    writer.put("routes/1", &route("/one", &a)).unwrap();
    let first = number(&await_change(&writer, "routes/1")[0]).to_string();
    writer.put("routes/1", &route("/two", &b)).unwrap();
    let newest = number(&await_newest(&writer, HISTORY, |one| one["summary"]["changed"] == 1)[0]).to_string();
    let check = |args: &[&str], status: i32, words: &[&str]| {
        let output = ctl(&gateway, args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {output:?}");
        for word in words {
            assert!(text.contains(word), "{args:?}: {text}");
        }
    };
    check(&["history"], 0, &["VERSION", "~1 ~routes/1", "+1 +routes/1"]);
    check(&["history", "--object", "routes/1", "--limit", "1"], 0, &["~1 ~routes/1"]);
    check(&["history", &newest], 0, &["~ routes/1", "uri: \"/one\" -> \"/two\"", "from 127.0.0.1"]);
    check(&["diff", &first, &newest], 3, &["uri: \"/one\" -> \"/two\""]);
    check(&["diff", &first, &first], 0, &[]);
    check(&["diff"], 2, &[]);
    check(&["diff", &first], 2, &[]);
    check(&["rollback", &first, "--dry-run"], 0, &["routes/1: would be changed"]);
    check(&["rollback", &first], 0, &["routes/1: changed"]);
    await_answerer(&gateway, "/one", "a");
    check(&["rollback", "99"], 1, &[]);
    // The rollback is the newest change itself.
    await_newest(&writer, HISTORY, |one| one["rollback_to"] == first.parse::<u64>().unwrap());
    check(&["undo", "--dry-run"], 0, &["would be undone", "routes/1: would be changed"]);
    check(&["undo"], 0, &["is undone", "routes/1: changed"]);
    await_answerer(&gateway, "/two", "b");
    let before: u64 = first.parse().unwrap();
    check(&["rollback", &(before - 1).to_string()], 0, &["routes/1: deleted"]);
    await_newest(&writer, HISTORY, |one| one["summary"]["deleted"] == 1);
    check(&["undo"], 0, &["routes/1: created"]);
    await_answerer(&gateway, "/two", "b");
}

/// The successor continues with the file.
#[test]
fn an_upgrade_keeps_the_history() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("{EMBEDDED}\npid_file: \"{{dir}}/sigma.pid\""));
    admin(&gateway).put("routes/1", &route("/one", &origin)).unwrap();
    await_change(&admin(&gateway), "routes/1");
    let before = gateway.pid();
    gateway.upgrade().unwrap();
    assert!(until(PATIENCE, || gateway.pid() != before), "{}", gateway.stderr());
    await_admin(&gateway);
    let list = await_change(&admin(&gateway), "routes/1");
    assert_eq!(list.len(), 2, "{list:?}");
    admin(&gateway).put("routes/2", &route("/two", &origin)).unwrap();
    let list = await_change(&admin(&gateway), "routes/2");
    assert_eq!((list.len(), &list[0]["author"]["by"]), (3, &json!("admin")));
}

/// A line for each call that changes something and for each that is refused, and no secret in any of them.
#[test]
fn calls_are_written_down() {
    let origin = Origin::echo("a").unwrap();
    let log = "audit_log: { path: \"{dir}/audit.log\", refused_per_second: 5 }";
    let gateway = start(&format!("{EMBEDDED}\n{log}"));
    let file = gateway.dir().join("audit.log");
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let await_line = |is_wanted: &dyn Fn(&Value) -> bool| -> Value {
        let mut found = None;
        assert!(
            until(PATIENCE, || {
                found = lines().into_iter().find(is_wanted);
                found.is_some()
            }),
            "{:?}",
            lines()
        );
        found.unwrap()
    };
    let writer = admin(&gateway);
    let consumer = json!({"username": "jack", "plugins": {"key-auth": {"key": "the-secret-of-jack"}}});
    writer.put("consumers/jack", &consumer).unwrap();
    let line = await_line(&|line| line["path"] == "/apisix/admin/consumers/jack");
    assert_eq!(
        (&line["method"], &line["status"], &line["address"]),
        (&json!("PUT"), &json!(201), &json!("127.0.0.1"))
    );
    assert!(line["key"].as_str().is_some_and(|key| key.starts_with("key-")), "{line}");
    assert!(line["revision"].is_u64() && line["version"].is_u64() && line["ms"].is_u64(), "{line}");
    let version = writer.get(&format!("{HISTORY}/{}", line["version"])).unwrap();
    assert_eq!((&version["keys"], &version["revision"]), (&json!(["consumers/jack"]), &line["revision"]));
    // Reading leaves no line; a wrong key, a viewer that writes and an invalid body do.
    writer.get("/apisix/admin/routes").unwrap();
    let nobody = Operator::new(gateway.admin_address());
    nobody.call("GET", "/apisix/admin/routes?api_key=a-key-that-is-wrong", None).unwrap();
    let line = await_line(&|line| line["status"] == 401);
    assert_eq!((&line["key"], &line["path"]), (&Value::Null, &json!("/apisix/admin/routes")));
    let viewer = Operator::new(gateway.admin_address()).with_key(VIEWER);
    viewer.call("DELETE", "/apisix/admin/routes/1", None).unwrap();
    let line = await_line(&|line| line["method"] == "DELETE");
    assert!(line["status"] == 401 && line["key"].is_string(), "{line}");
    writer.call("PUT", "/apisix/admin/routes/%0a%22x", Some(&json!({}))).unwrap();
    await_line(&|line| line["status"] == 400);
    let control = Operator::new(gateway.control_address());
    control.call("PUT", "/v1/plugins/reload", None).unwrap();
    await_line(&|line| line["path"] == "/v1/plugins/reload");
    writer.call("PUT", "/apisix/admin/routes/1?dry_run=true", Some(&route("/one", &origin))).unwrap();
    let line = await_line(&|line| line["dry_run"] == true);
    assert!(line.get("revision").is_none(), "{line}");
    // A caller without a key cannot fill the disk.
    for _ in 0..200 {
        nobody.call("DELETE", "/apisix/admin/routes/1", None).unwrap();
    }
    let refused = lines().iter().filter(|line| line["method"] == "DELETE").count();
    assert!(refused < 200, "{refused}");
    let text = std::fs::read_to_string(&file).unwrap();
    for secret in ["the-secret-of-jack", "a-key-that-is-wrong", KEY, VIEWER] {
        assert!(!text.contains(secret), "{text}");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777 & !0o640, 0);
    // A file that was moved away is followed by another one.
    std::fs::rename(&file, file.with_extension("old")).unwrap();
    gateway.reopen_logs().unwrap();
    assert!(until(PATIENCE, || file.exists()), "{}", gateway.stderr());
    writer.put("routes/1", &route("/one", &origin)).unwrap();
    await_line(&|line| line["path"] == "/apisix/admin/routes/1");
}
