//! Plugins in Lua files: reload, the Admin API, the command line, and the page about them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, until};
use tempfile::TempDir;

use crate::docs::{block, paste, text_of};
use crate::managed::{EMBEDDED, admin, start};
use crate::{PATIENCE, SIGMA};

/// A folder with plugin files.
struct Files(TempDir);

impl Files {
    fn new(plugins: &[(&str, &str)]) -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        plugins.iter().for_each(|(name, lines)| files.write(name, lines));
        files
    }

    /// Writes the file of a plugin whose phase `access` has these lines.
    fn write(&self, name: &str, lines: &str) {
        let path = self.0.path().join(format!("apisix/plugins/{name}.lua"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = format!(
            "local _M = {{ version = 1, priority = 10, schema = {{ type = 'object', properties = {{ word = {{ type = 'string' }} }} }} }}\nfunction _M.access(conf, ctx)\n{lines}\nend\nreturn _M\n"
        );
        fs::write(path, text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(format!("apisix/plugins/{name}.lua"))).unwrap();
    }

    fn path(&self) -> String {
        format!("{}/?.lua", self.0.path().display())
    }
}

/// A gateway whose one route has the plugin `greet`.
fn config(files: &Files) -> String {
    json!({
        "workers": 2,
        "listeners": ["{listen}"],
        "status": { "address": "{status}" },
        "control": { "address": "{control}" },
        "lua": { "path": files.path() },
        "plugin_attr": { "serverless-pre-function": { "custom_lua_shared_dict": { "counts": "1m" } } },
        "routes": [{ "id": "a", "uri": "/*", "plugins": { "greet": { "word": "hello" } },
            "upstream": { "nodes": { "127.0.0.1:1": 1 } } }],
    })
    .to_string()
}

fn answer(gateway: &Gateway) -> String {
    let answer = gateway.connect().and_then(|mut client| client.get("/"));
    answer.map_or_else(|error| error.to_string(), |answer| format!("{} {}", answer.status(), answer.text()))
}

/// Waits until both workers answer so: several fresh connections in a row.
fn await_answer(gateway: &Gateway, expected: &str) {
    let settled = until(PATIENCE, || (0..8).all(|_| answer(gateway) == expected));
    assert!(settled, "{expected}: {}\n{}", answer(gateway), gateway.stderr());
}

#[test]
fn files_are_reloaded_all_or_nothing() {
    let files = Files::new(&[("greet", "return 200, conf.word"), ("other", "")]);
    let gateway = Gateway::start(SIGMA, &config(&files)).unwrap();
    await_answer(&gateway, "200 hello");
    let control = Operator::new(gateway.control_address());
    let reload = || {
        let reply = control.call("PUT", "/v1/plugins/reload", None).unwrap();
        (reply.status(), reply.text())
    };
    files.write("greet", "return 200, conf.word .. '!'");
    assert_eq!(reload().0, 200);
    await_answer(&gateway, "200 hello!");
    // Each mistake keeps all versions, also of the file that is fine.
    files.write("greet", "return 200, 'newer'");
    files.write("other", "return return");
    let (status, text) = reload();
    assert!(status == 503 && text.contains("apisix/plugins/other.lua:3: "), "{status} {text}");
    await_answer(&gateway, "200 hello!");
    files.remove("other");
    files.remove("greet");
    let (status, text) = reload();
    assert!(status == 503 && text.contains("unknown plugin [greet]"), "{status} {text}");
    await_answer(&gateway, "200 hello!");
    files.write("greet", "return 200, 'newest'");
    assert_eq!(reload().0, 200);
    await_answer(&gateway, "200 newest");
    let status = Operator::new(gateway.status_address()).get("/status").unwrap();
    let counts = &status["lua"]["plugins"]["greet"];
    assert!(counts["runs"].as_u64() > Some(20) && counts["errors"] == 0, "{status}");
    let counters = Operator::new(gateway.status_address()).call("GET", "/status/counters", None).unwrap();
    assert!(counters.text().contains("sigma_lua_runs_total{plugin=\"greet\"} "), "{}", counters.text());
}

/// A plugin with paths on the Control API. Its handlers see the shared dictionaries of the workers.
const WITH_PATHS: &str = r#"local _M = { version = 1, priority = 10, schema = { type = "object" } }
local core = require("apisix.core")
local counts = ngx.shared.counts

function _M.access(conf, ctx)
  counts:incr("greeted", 1, 0)
  return 200, "hello"
end

local function count(ctx)
  ngx.sleep(0.001)
  return 200, { greeted = counts:get("greeted") or 0, by = core.request.get_uri_args(ctx).by, method = ngx.req.get_method() }
end

local function fail() error("this handler fails") end

function _M.control_api()
  return {
    { methods = { "GET", "POST" }, uris = { "/v1/plugin/greet/count", "/v1/plugin/greet/n" }, handler = count },
    { methods = { "GET" }, uris = { "/v1/plugin/greet/fail" }, handler = fail },
    { methods = { "GET" }, uris = { "/v1/plugin/greet/loop" }, handler = function() while true do end end },
    { methods = { "GET" }, uris = { "/v1/plugin/greet/nothing" }, handler = function() end },
  }
end

return _M
"#;

#[test]
fn plugins_serve_paths_on_the_control_api() {
    let files = Files::new(&[("greet", "")]);
    let file = files.0.path().join("apisix/plugins/greet.lua");
    fs::write(&file, WITH_PATHS).unwrap();
    let gateway = Gateway::start(SIGMA, &config(&files)).unwrap();
    for _ in 0..5 {
        assert_eq!(answer(&gateway), "200 hello");
    }
    let control = Operator::new(gateway.control_address());
    let call = |method: &str, path: &str| {
        let reply = control.call(method, path, None).unwrap();
        (reply.status(), reply.text().trim().to_owned())
    };
    let reply = control.call("GET", "/v1/plugin/greet/count?by=me", None).unwrap();
    assert_eq!(reply.head.get("content-type"), Some("application/json"));
    assert_eq!(reply.json().unwrap(), json!({ "greeted": 5, "by": "me", "method": "GET" }));
    let posted = control.call("POST", "/v1/plugin/greet/n", None).unwrap().json().unwrap();
    assert_eq!((&posted["greeted"], &posted["method"]), (&json!(5), &json!("POST")));
    assert_eq!(call("GET", "/v1/plugin/greet/nothing"), (200, String::new()));
    for path in ["/v1/plugin/greet/fail", "/v1/plugin/greet/loop"] {
        assert_eq!(call("GET", path).0, 500, "{path}");
    }
    let log = gateway.stderr();
    assert!(log.contains("greet control_api /v1/plugin/greet/fail: a Lua function failed"), "{log}");
    for (method, path) in [("PUT", "/v1/plugin/greet/count"), ("GET", "/v1/plugin/greet/other")] {
        assert_eq!(call(method, path).0, 404, "{method} {path}");
    }
    // A reload takes paths away.
    files.write("greet", "return 200, 'hello'");
    assert_eq!(call("PUT", "/v1/plugins/reload").0, 200);
    assert_eq!(call("GET", "/v1/plugin/greet/count").0, 404);
}

/// Each request of a client gets a response of one version, also if its script waits during a reload; versions never go
/// back.
#[test]
fn a_reload_under_load_loses_no_request() {
    const RELOADS: u32 = 20;
    let version = |number: u32| format!("ngx.sleep(0.002) return 200, '{number}'");
    let files = Files::new(&[("greet", &version(0))]);
    let gateway = Gateway::start(SIGMA, &config(&files)).unwrap();
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let mut client = gateway.connect().unwrap();
            std::thread::spawn(move || {
                let mut seen: Vec<u32> = Vec::new();
                while seen.last() != Some(&RELOADS) {
                    let response = client.get("/").unwrap();
                    assert_eq!(response.status(), 200, "{}", response.text());
                    seen.push(response.text().parse().unwrap());
                }
                seen
            })
        })
        .collect();
    let control = Operator::new(gateway.control_address());
    let reload = || control.call("PUT", "/v1/plugins/reload", None).unwrap().status();
    for number in 1..=RELOADS {
        if number % 5 == 0 {
            files.write("greet", "return return");
            assert_eq!(reload(), 503);
        }
        files.write("greet", &version(number));
        assert_eq!(reload(), 200);
    }
    for client in clients {
        let seen = client.join().unwrap();
        assert!(seen.is_sorted(), "{seen:?}");
        let versions = seen.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert!(versions > 5, "{versions} versions in {} responses", seen.len());
    }
}

#[test]
fn a_file_that_cannot_be_loaded_closes_what_names_it() {
    let files = Files::new(&[("greet", "return return")]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sigma.yaml");
    fs::write(&file, config(&files).replace("{listen}", "127.0.0.1:0")).unwrap();
    for command in ["check", "run"] {
        let run = Command::new(SIGMA).args([command, "-c"]).arg(&file).output().unwrap();
        let text = text_of(&run);
        assert!(!run.status.success() && text.contains("greet.lua:3: "), "{command}: {text}");
    }
    let valid = Files::new(&[("greet", "")]);
    fs::write(
        &file,
        config(&valid)
            .replace("{listen}", "127.0.0.1:9")
            .replace("{status}", "127.0.0.1:10")
            .replace("{control}", "127.0.0.1:11"),
    )
    .unwrap();
    let run = Command::new(SIGMA).args(["check", "-c"]).arg(&file).output().unwrap();
    assert!(run.status.success(), "{}", text_of(&run));
    let run = Command::new(SIGMA).args(["plugins", "greet", "-c"]).arg(&file).output().unwrap();
    assert!(text_of(&run).contains("greet") && run.status.success(), "{}", text_of(&run));
}

#[test]
fn the_admin_api_lists_checks_and_reloads_files() {
    let files = Files::new(&[("greet", "return 200, conf.word")]);
    let gateway = start(&format!("{EMBEDDED}\nlua: {{ path: \"{}\" }}\n", files.path()));
    let admin = admin(&gateway);
    let names = || admin.get("/apisix/admin/plugins/list").unwrap();
    let has = |name: &str| names().as_array().unwrap().iter().any(|known| known == name);
    assert!(has("greet") && !has("second"));
    let schema = admin.get("/apisix/admin/plugins/greet").unwrap();
    assert_eq!(schema["properties"]["word"]["type"], "string");
    let route =
        |plugins: Value| json!({"uri": "/*", "plugins": plugins, "upstream": {"nodes": {"127.0.0.1:1": 1}}});
    let refused = admin.call("PUT", "/apisix/admin/routes/1", Some(&route(json!({"greet": {"word": 1}}))));
    assert_eq!(refused.unwrap().status(), 400);
    admin.put("routes/1", &route(json!({"greet": {"word": "a"}}))).unwrap();
    await_answer(&gateway, "200 a");
    files.write("second", "return 201, 'second'");
    files.write("greet", "return 200, 'new'");
    let reload = || admin.call("PUT", "/apisix/admin/plugins/reload", None).unwrap();
    let reply = reload();
    assert_eq!((reply.status(), &*reply.text()), (200, "done"));
    await_answer(&gateway, "200 new");
    assert!(has("second"));
    admin.put("routes/1", &route(json!({"second": {}}))).unwrap();
    await_answer(&gateway, "201 second");
    files.write("second", "return return");
    let reply = reload();
    assert!(reply.status() == 503 && reply.text().contains("second.lua:3: "), "{}", reply.text());
    await_answer(&gateway, "201 second");
}

#[test]
fn a_plugin_as_the_page_says() {
    let page = "docs/lua-plugins.md";
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("lua/apisix/plugins");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("greet.lua"), block(page, "lua", "priority = 1000")).unwrap();
    follow(folder.path(), &block(page, "console", "sigma lua"));
    let origin = Origin::echo("a").unwrap();
    let config = block(page, "yaml", "good morning")
        .replace("lua/?.lua", &format!("{}/lua/?.lua", folder.path().display()))
        .replace("127.0.0.1:9080", "{listen}")
        .replace("127.0.0.1:9000", &origin.address().to_string());
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut client = gateway.connect().unwrap();
    assert_eq!(client.get("/orders").unwrap().text(), "{\"message\":\"who are you?\"}\n");
    let greeted = client.get("/orders?name=jack").unwrap().text();
    assert!(greeted.contains("good morning jack"), "{greeted}");
}

/// Types the commands of a block, and looks for each line of their output.
fn follow(folder: &Path, console: &str) {
    for part in console.split("$ ").skip(1) {
        let (command, shown) = part.split_once('\n').unwrap();
        let text = text_of(&paste(folder, command, &[]));
        for line in shown.lines().filter(|line| *line != "…" && !line.is_empty()) {
            assert!(text.contains(line), "{command}: {line}\n{text}");
        }
    }
}
