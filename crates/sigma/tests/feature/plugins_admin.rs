//! Every plugin through the Admin API: valid configurations are served, invalid ones are refused with the
//! place and the reason.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Operator, Origin, until};

use crate::PATIENCE;
use crate::managed::{EMBEDDED, admin, start, upstream};

/// A row for each plugin. `good` is a configuration for a route, `with` are further plugins for it; each of `asks` is
/// a request line (its path below the route's) with fields, the status, and texts in the response. `bad` are
/// configurations and the text after `err: ` in the refusal; `bad_consumers` and `bad_metadata` the same for those
/// places.
const ROWS: &str = include_str!("plugins_admin.json");

/// `{"key":"jack"}`, signed by HS256 with `s3cret`.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJrZXkiOiJqYWNrIn0.NvH31TQWh2903tr7eozhTAiGEcgxuZekQQw5GW1tB_8";

/// Creates the objects that the rows need besides their routes.
fn furnish(gateway: &Gateway, admin: &Operator, other: &Origin) {
    std::fs::write(gateway.dir().join("file.txt"), "text of a file").unwrap();
    admin.put("upstreams/other", &upstream(other)).unwrap();
    for (name, plugins) in [
        (
            "jack",
            json!({"key-auth": {"key": "jacks-key"}, "basic-auth": {"username": "jack", "password": "secret"},
                "jwt-auth": {"key": "jack", "secret": "s3cret"}, "hmac-auth": {"key_id": "jack", "secret_key": "s3cret"}}),
        ),
        ("jill", json!({"key-auth": {"key": "jills-key"}})),
    ] {
        let labels = if name == "jack" { json!({"team": "sales"}) } else { json!({}) };
        let consumer = json!({"username": name, "labels": labels, "plugins": plugins});
        admin.put(&format!("consumers/{name}"), &consumer).unwrap();
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The whole response as text; names of fields in lower case.
fn shown(answer: &Message) -> String {
    let fields = answer.head.fields.iter();
    let fields: String = fields.map(|(name, value)| format!("{}: {value}\n", name.to_lowercase())).collect();
    format!("{}\n{fields}\n{}", answer.status(), answer.text())
}

/// Whether a response has the status and the texts of a row's question; if not, what came instead.
fn ask(gateway: &Gateway, path: &str, question: &[Value]) -> Result<(), String> {
    let text = |value: &Value| value.as_str().unwrap().replace("{path}", path).replace("{jwt}", TOKEN);
    let request = text(&question[0]).replacen(" /", &format!(" {path}/"), 1);
    let (line, fields) = request.split_once('\n').unwrap_or((&request, ""));
    let fields: String = fields.lines().map(|field| format!("{field}\r\n")).collect();
    let answer = gateway
        .connect()
        .and_then(|mut client| client.ask(format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")))
        .map_err(|error| format!("{error:#}"))?;
    let (status, shown) = (answer.status().to_string(), shown(&answer));
    let missing = question[2..].iter().map(text).find(|text| !shown.contains(text));
    match (text(&question[1]) == status, missing) {
        (true, None) => Ok(()),
        (_, missing) => Err(format!("{request:?}: without {missing:?} in {shown}")),
    }
}

/// Writes what must be refused so, and with nothing stored.
fn refused(admin: &Operator, resource: &str, value: &Value, message: &str) -> Option<String> {
    let answer = admin.call("PUT", &format!("/apisix/admin/{resource}"), Some(value)).unwrap();
    let said = answer.json().ok().and_then(|json| Some(json["error_msg"].as_str()?.to_owned()));
    // An explanation may follow the words of APISIX.
    let is_explained = |rest: &str| rest.is_empty() || rest.starts_with(" (");
    let begins = said.as_deref().and_then(|said| said.strip_prefix(message)).is_some_and(is_explained);
    let is_right = answer.status() == 400 && begins;
    (!is_right).then(|| format!("{value}\n  expected {message}\n  got {} {}", answer.status(), answer.text()))
}

/// A configuration with the members that every plugin may have in addition.
fn with_meta(conf: &Value, meta: Value) -> Value {
    let mut conf = conf.clone();
    conf["_meta"] = meta;
    conf
}

/// Writes a plugin's good configuration with a field that does not exist. A few schemas are closed in
/// APISIX as well, and have its words.
fn unknown_field(admin: &Operator, plugin: &str, resource: &str, mut value: Value) -> Option<String> {
    value["plugins"][plugin]["no_such_field"] = json!(1);
    let answer = admin.call("PUT", &format!("/apisix/admin/{resource}"), Some(&value)).unwrap();
    let said = answer.json().ok().and_then(|json| Some(json["error_msg"].as_str()?.to_owned()));
    let said = said.unwrap_or_default();
    let closed = format!(
        "failed to check the configuration of plugin {plugin} err: additional properties forbidden, found no_such_field"
    );
    let ours = format!("invalid configuration: unknown field `no_such_field` at plugins.{plugin}: ");
    let is_right = answer.status() == 400 && (said == closed || said.starts_with(&ours));
    (!is_right).then(|| format!("{value}\n  got {} {}", answer.status(), answer.text()))
}

/// Everything that a row says of configurations that are not taken.
fn refusals(admin: &Operator, plugin: &str, row: &Value) -> Vec<String> {
    let failed = |reason: &Value| {
        format!("failed to check the configuration of plugin {plugin} err: {}", reason.as_str().unwrap())
    };
    let route = |conf: &Value| json!({"uri": "/refused", "plugins": {plugin: conf}, "upstream_id": "other"});
    let misspelt = with_meta(&row["good"], json!({"disabled": true}));
    let reason =
        json!("property \"_meta\" validation failed: additional properties forbidden, found disabled");
    let consumer = |conf: &Value| json!({"username": "mary", "plugins": {plugin: conf}});
    let mut wrong = Vec::new();
    let good = row["good"].to_string().replace("{dir}", "/tmp").replace("{path}", "/refused");
    let good: Value = serde_json::from_str(&good).unwrap();
    wrong.extend(unknown_field(admin, plugin, "routes/refused", route(&good)));
    wrong.extend(refused(admin, "routes/refused", &route(&misspelt), &failed(&reason)));
    for bad in list(&row["bad"]) {
        wrong.extend(refused(admin, "routes/refused", &route(&bad[0]), &failed(&bad[1])));
    }
    for bad in list(&row["bad_consumers"]) {
        let message = format!("invalid plugins configuration: {}", failed(&bad[1]));
        wrong.extend(refused(admin, "consumers/mary", &consumer(&bad[0]), &message));
    }
    for bad in list(&row["bad_metadata"]) {
        let message = format!("invalid configuration: {}", bad[1].as_str().unwrap());
        wrong.extend(refused(admin, &format!("plugin_metadata/{plugin}"), &bad[0], &message));
    }
    wrong
}

/// Lua has one form for 5 and 5.0, and one for an empty list and an empty object; clients of APISIX
/// send either.
#[test]
fn numbers_and_empty_lists_may_be_written_as_lua_does() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("{EMBEDDED}\nprocess: {{ sandbox_write: [\"{{dir}}\"] }}"));
    let admin = admin(&gateway);
    for (name, plugins, status) in [
        ("redirect", json!({"redirect": {"uri": "/x", "ret_code": 301.0}}), "301"),
        ("limit", json!({"limit-count": {"count": 7.0, "time_window": 6e1, "rejected_code": 429.0}}), "200"),
        (
            "mocking",
            json!({"mocking": {"response_example": "a", "response_status": 202.0, "delay": 0.0}}),
            "202",
        ),
        ("split", json!({"traffic-split": {"rules": {}}}), "200"),
        ("groups", json!({"response-rewrite": {"status_code": 203.0, "vars": {}}}), "203"),
    ] {
        let route = json!({"uri": format!("/{name}/*"), "plugins": plugins, "upstream": upstream(&origin)});
        let put = admin.call("PUT", &format!("/apisix/admin/routes/{name}"), Some(&route)).unwrap();
        assert_eq!(put.status(), 201, "{name}: {}", put.text());
        let question = [json!("GET /"), json!(status)];
        assert!(
            until(PATIENCE, || ask(&gateway, &format!("/{name}"), &question).is_ok()),
            "{}",
            gateway.stderr()
        );
    }
}

#[test]
fn every_plugin_is_taken_served_and_refused() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = start(&format!("{EMBEDDED}\nprocess: {{ sandbox_write: [\"{{dir}}\"] }}"));
    let admin = admin(&gateway);
    furnish(&gateway, &admin, &b);
    let rows: Value = serde_json::from_str(ROWS).unwrap();
    let mut wrong = Vec::new();
    for row in list(&rows) {
        let plugin = row["plugin"].as_str().unwrap();
        let path = format!("/{plugin}");
        let node = if row["refused_node"].is_null() { a.port() } else { sigma_testkit::free_port() };
        let good = row["good"].to_string().replace("{dir}", &gateway.dir().display().to_string());
        let good: Value = serde_json::from_str(&good.replace("{path}", &path)).unwrap();
        let mut plugins = row["with"].as_object().cloned().unwrap_or_default();
        plugins.insert(plugin.to_owned(), with_meta(&good, json!({"filter": [["uri", "~~", "^/"]]})));
        let route = json!({"uri": format!("{path}/*"), "plugins": plugins,
            "upstream": {"nodes": {format!("127.0.0.1:{node}"): 1}}});
        let put = admin.call("PUT", &format!("/apisix/admin/routes/{plugin}"), Some(&route)).unwrap();
        assert_eq!(put.status(), 201, "{plugin}: {}", put.text());
        wrong.extend(refusals(&admin, plugin, row).into_iter().map(|text| format!("{plugin}: {text}")));
        for question in list(&row["asks"]) {
            let mut last = Ok(());
            until(PATIENCE, || {
                last = ask(&gateway, &path, list(question));
                last.is_ok()
            });
            wrong.extend(last.err().map(|text| format!("{plugin}: {text}")));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), gateway.stderr());
    let names: Vec<&Value> = list(&rows).iter().map(|row| &row["plugin"]).collect();
    let mut known = admin.get("/apisix/admin/plugins/list").unwrap();
    known.as_array_mut().unwrap().sort_by_key(ToString::to_string);
    assert_eq!(json!(names), known, "a plugin has no row, or the rows are not in order");
}
