//! Gateways on one store know of each other, and of the revision that each serves.

use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{EtcdServer, Gateway, Operator, until};

use crate::managed::{EMBEDDED, admin, etcd, start, start_again};
use crate::{PATIENCE, SIGMA};

fn members(gateway: &Gateway) -> Vec<Value> {
    let listed = admin(gateway).get("/apisix/admin/members").unwrap();
    listed["members"].as_array().unwrap().clone()
}

fn ids(gateway: &Gateway) -> Vec<String> {
    members(gateway).iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn await_members(gateway: &Gateway, what: &str, holds: impl Fn(&[Value]) -> bool) {
    let seen = until(PATIENCE, || holds(&members(gateway)));
    assert!(seen, "{what}: {:?}\n{}", members(gateway), gateway.stderr());
}

#[test]
fn gateways_on_one_etcd_list_each_other() {
    let server = EtcdServer::start().unwrap();
    let settings = |id: &str| format!("{}members: {{ id: {id}, ttl: 5 }}\n", etcd(server.port()));
    let [first, mut second] = ["first", "second"].map(|id| start(&settings(id)));
    for gateway in [&first, &second] {
        await_members(gateway, "both", |all| all.len() == 2 && all.iter().all(|one| one["behind"] == false));
    }
    let shown = &members(&second)[0];
    let listener = json!([first.address().to_string()]);
    assert_eq!((&shown["id"], &shown["listeners"]), (&json!("first"), &listener), "{shown}");
    let told = Operator::new(second.control_address()).get("/v1/members").unwrap();
    assert_eq!(told["members"].as_array().unwrap().len(), 2, "{told}");
    assert!(shown["this"].is_null() && members(&second)[1]["this"] == true);
    let shell = |more: &[&str]| {
        let control = format!("http://{}", second.control_address());
        let mut command = Command::new(SIGMA);
        let output = command.args(["ctl", "members", "--control", &control]).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let rows = shell(&[]);
    let rows: Vec<Vec<&str>> = rows.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows.len(), rows[1][0], rows[2][0]), (3, "first", "second*"), "{rows:?}");
    assert!(rows[1].contains(&&*first.address().to_string()) && rows[1].contains(&"ok"), "{rows:?}");
    let whole: Value = serde_json::from_str(&shell(&["-o", "json"])).unwrap();
    assert_eq!(whole["members"][1]["id"], "second");

    // A change is served by both, and both say so; their records do not change the configuration.
    admin(&first)
        .put("routes/r", &json!({"uri": "/a", "plugins": {"mocking": {"response_example": "a"}}}))
        .unwrap();
    let changed = admin(&first).get("/apisix/admin/routes/r").unwrap()["modifiedIndex"].as_u64().unwrap();
    let knows = |all: &[Value]| all.iter().all(|one| one["revision"].as_u64() >= Some(changed));
    await_members(&first, "the change", knows);
    await_members(&second, "the change", knows);
    let store =
        || Operator::new(first.control_address()).get("/v1/revision").unwrap()["store"]["revision"].clone();
    let settled = store();
    // Three times as long as it takes to tell that it lives on.
    assert!(!until(std::time::Duration::from_secs(5), || store() != settled), "the store goes on moving");
    assert_eq!(ids(&second), ["first", "second"]);

    // A dead gateway is forgotten with its lease, and a stopped one at once.
    second.kill().unwrap();
    await_members(&first, "the dead one", |all| all.len() == 1);
    start_again(&mut second);
    await_members(&first, "the one that is back", |all| all.len() == 2);
    second.stop().unwrap();
    assert_eq!(ids(&first), ["first"]);
}

#[test]
fn a_gateway_alone_lists_itself_under_an_id_that_stays() {
    let mut gateway = start(EMBEDDED);
    let own = ids(&gateway);
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].len(), 36, "{own:?}");
    let info = Operator::new(gateway.control_address()).get("/v1/server_info").unwrap();
    assert_eq!((&info["id"], &info["etcd_version"]), (&json!(own[0]), &json!("unknown")));
    gateway.kill().unwrap();
    start_again(&mut gateway);
    assert_eq!(ids(&gateway), own);
}

#[test]
fn server_info_reports_to_etcd_where_it_is_named() {
    let server = EtcdServer::start().unwrap();
    let named = format!(
        "{}members: {{ id: edge }}\nplugins: [server-info]\nplugin_attr: {{ server-info: {{ report_ttl: 3 }} }}\n",
        etcd(server.port())
    );
    let gateway = start(&named);
    let key = "/apisix/data_plane/server_info/edge";
    assert!(until(PATIENCE, || server.count(key).unwrap() == 1), "{}", gateway.stderr());
    let info = Operator::new(gateway.control_address()).get("/v1/server_info").unwrap();
    assert!(info["etcd_version"].as_str().unwrap().starts_with('3'), "{info}");
    assert_eq!(serde_json::from_slice::<Value>(&server.get(key).unwrap().unwrap().0).unwrap(), info);
    assert!(gateway.stderr().contains("The server-info plugin is deprecated"));
    gateway.stop().unwrap();
    assert_eq!(server.count("/apisix/data_plane/").unwrap(), 0);
}

#[test]
fn without_an_etcd_nothing_is_shared() {
    for (settings, said) in [
        ("members: { ttl: 60 }\n", "members.ttl"),
        ("members: { report: true }\n", "members.report"),
        ("members: { id: \"a/b\" }\n", "members.id"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sigma.yaml");
        std::fs::write(&file, format!("listeners: [\"127.0.0.1:9080\"]\n{settings}")).unwrap();
        let checked = std::process::Command::new(SIGMA).args(["check", "-c"]).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(!checked.status.success() && text.contains(said), "{settings}: {text}");
    }
}
