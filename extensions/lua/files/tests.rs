//! Tests of plugins in files, without sockets.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_plugin::scripts::{FileKinds, FileSearch};
use sigma_plugin::{Consumer, Entry, FlowPlugin, FlowStep, Identity, Kind, Node, Phase, Roster, Session};
use sigma_schema::plugins::{PluginSchemas, PluginScope};

use crate::snippets::{case_of, case_with};
use crate::testing::{FlowCase, summary};

/// A folder with Lua files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, text)| folder.write(name, text));
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn search(&self) -> FileSearch {
        let folder = self.path().display();
        let taken = ["serverless-pre-function"].map(Box::from).into();
        let path = format!("{folder}/?.lua;{folder}/?/init.lua;");
        FileSearch { path, taken, ..FileSearch::default() }
    }

    fn load(&self) -> FileKinds {
        super::load(&self.search())
    }

    /// The plugins of the files, next to the crate's own.
    fn roster(&self) -> Roster {
        let loaded = self.load();
        assert_eq!(loaded.problems(), []);
        roster_of(&loaded)
    }

    /// An instance, of a file that is fine.
    fn entry(&self, name: &str, conf: Value) -> Entry {
        entry_of(&self.roster(), name, conf, None)
    }
}

fn roster_of(loaded: &FileKinds) -> Roster {
    let own = crate::ROSTER.iter().map(|descriptor| Arc::new(**descriptor) as Arc<dyn Kind>);
    Roster::new(own.chain(loaded.kinds.iter().cloned()), None)
}

fn entry_of(roster: &Roster, name: &str, conf: Value, metadata: Option<Value>) -> Entry {
    roster.check(name, PluginScope::Http, &conf).unwrap();
    let (conf, metadata) = (Arc::new(conf), metadata.map(Arc::new));
    let (resolved, lookup) = (Value::clone(&conf), |_: &str| metadata.clone());
    roster.build(name, &conf, resolved, "/apisix/routes/1", &lookup, &Arc::new(Node::default())).unwrap()
}

/// A plugin file with these lines after the required fields.
fn plugin(lines: &str) -> String {
    format!(
        "local core = require('apisix.core')\nlocal _M = {{ version = 0.2, priority = 412, name = 'x', schema = {{ type = 'object', properties = {{}} }} }}\n{lines}\nreturn _M\n"
    )
}

/// A file of the plugin `x` with these lines.
fn one(lines: &str) -> Folder {
    Folder::new(&[("apisix/plugins/x.lua", &plugin(lines))])
}

/// The response of the plugin's phase `access` to a plain request.
fn reply(folder: &Folder, conf: Value) -> String {
    let mut case = case_of("GET /a?x=1 HTTP/1.1\nHost: h.test");
    summary(case.run(&folder.entry("x", conf), Phase::Access).as_ref())
}

#[test]
fn a_file_is_a_plugin() {
    let folder = Folder::new(&[(
        "apisix/plugins/greet.lua",
        r#"-- Greets clients.
--
-- The greeting has the client's path.
local core = require("apisix.core")
local schema = {
  type = "object",
  properties = { word = { type = "string", default = "hello" }, secret = { type = "string" } },
  encrypt_fields = { "secret" },
}
local _M = { version = 0.3, priority = 1234, name = "greet", schema = schema, run_policy = "prefer_route" }
function _M.check_schema(conf)
  if conf.word == "no" then return false, "no is no greeting" end
  return core.schema.check(schema, conf)
end
function _M.access(conf, ctx)
  return 200, conf.word .. " " .. ctx.var.uri
end
return _M
"#,
    )]);
    let roster = folder.roster();
    let kind = roster.get("greet").unwrap();
    assert_eq!((kind.priority(), kind.version()), (1234, "0.3"));
    assert!(kind.phases().contains(Phase::Access) && !kind.phases().contains(Phase::Log) && kind.guards());
    assert!(sigma_plugin::docs::reference(&**kind).contains("Greets clients."));
    assert_eq!(roster.secret_fields("greet", PluginScope::Http), ["secret"]);
    let refusal =
        |conf| roster.check("greet", PluginScope::Http, &conf).map_err(|refusal| refusal.to_string());
    assert_eq!(refusal(json!({"word": "no"})), Err("no is no greeting".to_owned()));
    assert!(refusal(json!({"word": 1})).unwrap_err().contains("wrong type"));
    let mut case = case_of("GET /a%20b HTTP/1.1\nHost: h");
    let reply = case.run(&entry_of(&roster, "greet", json!({}), None), Phase::Access);
    assert_eq!(summary(reply.as_ref()), "200 hello /a b");
}

#[test]
fn a_broken_file_refuses_every_configuration() {
    for (text, expected) in [
        ("local a = \nreturn {}", "x.lua:2: unexpected symbol near 'return'"),
        ("error('no')", "x.lua:1: no"),
        ("return 1", "x.lua: the file returns a number, not the table of a plugin"),
        ("return { version = 1, schema = {} }", "x.lua: invalid plugin [x], missing field: priority"),
        ("return { priority = 1, schema = {} }", "x.lua: invalid plugin [x], missing field: version"),
        ("return { priority = 1, version = 1 }", "x.lua: invalid plugin [x], missing field: schema"),
        (
            "return { priority = 1, version = 1, schema = { type = 'odd' } }",
            "x.lua: `schema` is not a JSON schema",
        ),
        (
            "return { priority = 1, version = 1, schema = {}, access = 1 }",
            "x.lua: `access` is a number, not a function",
        ),
        (
            "return { priority = 1, version = 1, schema = {}, type = 'auth' }",
            "x.lua: `type` is \"auth\", so the plugin needs a `consumer_schema`",
        ),
        ("while true do end", "the script ran longer than 20 ms"),
        ("os.execute('true')", "x.lua:1: scripts of a configuration may not reach the machine"),
        ("require('nothing')", "x.lua:1: error loading module 'nothing': module 'nothing' not found"),
        ("\x1bLJ", "x.lua"),
        ("require('apisix.plugins.x')", "loop or previous error loading module 'apisix.plugins.x'"),
    ] {
        let folder = Folder::new(&[("apisix/plugins/x.lua", text)]);
        let loaded = folder.load();
        let problem = loaded.broken.first().unwrap_or_else(|| panic!("{text}")).message.clone();
        assert!(problem.contains(expected), "{text}: {problem}");
        assert!(problem.contains(&*folder.path().to_string_lossy()), "{problem}");
        let roster = roster_of(&loaded);
        for scope in [PluginScope::Http, PluginScope::Consumer, PluginScope::Stream] {
            let refusal = roster.check("x", scope, &json!({})).unwrap_err().to_string();
            assert!(refusal.contains("cannot load the file of plugin x"), "{refusal}");
        }
        let (conf, node) = (Arc::new(json!({})), Arc::new(Node::default()));
        assert!(roster.build("x", &conf, json!({}), "r", &|_: &str| None, &node).is_err());
        assert!(roster.get("x").unwrap().guards());
    }
}

#[test]
fn mistakes_of_the_search_path_are_refused() {
    let folder = Folder::new(&[("apisix/plugins/serverless-pre-function.lua", &plugin(""))]);
    let loaded = folder.load();
    assert!(loaded.kinds.is_empty());
    assert!(loaded.refused[0].message.contains("serverless-pre-function is built in"), "{loaded:?}");
    for (path, expected) in [
        ("/nothing-here/?.lua", "cannot read /nothing-here/"),
        ("/tmp", "a path needs one `?`"),
        ("/tmp/?.so", "write it like"),
        ("/tmp/a?.lua", "write it like"),
    ] {
        let loaded = super::load(&FileSearch { path: path.to_owned(), ..FileSearch::default() });
        assert!(loaded.refused[0].to_string().contains(expected), "{path}: {:?}", loaded.refused);
    }
}

#[test]
fn the_setting_plugins_chooses_files() {
    let folder = Folder::new(&[("apisix/plugins/a.lua", &plugin("")), ("apisix/plugins/b.lua", "broken")]);
    let enabled = [Some([Box::from("a")].into()), None];
    let loaded = super::load(&FileSearch { enabled, ..folder.search() });
    assert_eq!(loaded.problems(), []);
    assert_eq!(loaded.kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn files_require_each_other_and_keep_their_globals() {
    let folder = Folder::new(&[
        ("lib/words/init.lua", "count = 0\nreturn { next = function() count = count + 1 return count end }"),
        ("apisix/plugins/x/part.lua", "return 'part'"),
        (
            "apisix/plugins/x.lua",
            &plugin(
                "local words, name = require('lib.words'), ...\nfunction _M.access() return 200, { words.next(), require('lib.words').next(), tostring(count), require('apisix.plugins.x.part'), name } end",
            ),
        ),
    ]);
    assert_eq!(folder.load().kinds.len(), 1);
    assert_eq!(reply(&folder, json!({})), r#"200 [1,2,"nil","part","apisix.plugins.x"]"#);
}

#[test]
fn phases_share_the_exchange_and_response_fields() {
    let folder = one(
        "function _M.rewrite(conf, ctx) ctx.seen = conf.n ngx.header['X-N'] = 'v' core.request.set_header(ctx, 'x-a', 'b') end
        function _M.header_filter(conf, ctx) core.response.set_header('x-seen', ctx.seen) end
        function _M.body_filter(conf, ctx) if ngx.arg[1] then ngx.arg[1] = ngx.arg[1]:upper() end end
        function _M.delayed_body_filter(conf, ctx) if ngx.arg[1] then ngx.arg[1] = '<' .. ngx.arg[1] .. '>' end end
        function _M.log(conf, ctx) ctx.logged = true end",
    );
    let entry = folder.entry("x", json!({"n": 7}));
    let mut case = case_of("GET / HTTP/1.1\nHost: h");
    assert!(case.run(&entry, Phase::Rewrite).is_none());
    assert_eq!(case.sent("x-a").as_deref(), Some("b"));
    case.respond(200, "");
    let body = case.filter(&entry, &[b"ab", b"c"]);
    assert_eq!(String::from_utf8_lossy(&body), "<AB><C><>");
    assert_eq!((case.answered("x-seen"), case.answered("x-n")), ("7".to_owned(), "v".to_owned()));
    case.log(&entry);
}

#[test]
fn delayed_filters_alone_run_last() {
    let last = |lines| one(lines).roster().get("x").unwrap().filters_last();
    assert!(last("function _M.delayed_body_filter() end"));
    assert!(!last("function _M.delayed_body_filter() end function _M.body_filter() end"));
}

#[test]
fn a_plugin_reads_its_own_metadata() {
    let folder = one(
        "_M.metadata_schema = { type = 'object', properties = { a = { type = 'integer', default = 3 } } }
        function _M.check_schema(conf, schema_type) return not (schema_type == core.schema.TYPE_METADATA and conf.a == 9), 'not 9' end
        function _M.access() local m = require('apisix.plugin').plugin_metadata('x') return 200, tostring(m and m.value.a) end",
    );
    let roster = folder.roster();
    assert!(roster.check("x", PluginScope::Metadata, &json!({"a": "b"})).is_err());
    let refusal = roster.check("x", PluginScope::Metadata, &json!({"a": 9})).unwrap_err().to_string();
    assert_eq!(refusal, "not 9");
    let answer = |metadata| {
        let mut case = case_of("GET / HTTP/1.1\nHost: h");
        summary(case.run(&entry_of(&roster, "x", json!({}), metadata), Phase::Access).as_ref())
    };
    assert_eq!(answer(Some(json!({"a": 5}))), "200 5");
    assert_eq!(answer(Some(json!({}))), "200 3");
    assert_eq!(answer(None), "200 nil");
}

/// A plugin that finds consumers by a key, in the three ways of public plugins.
const AUTH: &str = "
local consumer_mod = require('apisix.consumer')
_M.type = 'auth'
_M.consumer_schema = { type = 'object', properties = { key = { type = 'string' } }, required = { 'key' }, encrypt_fields = { 'key' } }
function _M.check_schema(conf, schema_type)
  if schema_type == core.schema.TYPE_CONSUMER then
    if conf.key == 'bad' then return false, 'a bad key' end
    return core.schema.check(_M.consumer_schema, conf)
  end
  return core.schema.check(_M.schema, conf)
end
function _M.rewrite(conf, ctx)
  local key = core.request.header(ctx, 'apikey')
  if not key then return 401, { message = 'Missing key' } end
  local consumer, consumer_conf, err
  if conf.way == 'find' then
    consumer, consumer_conf, err = consumer_mod.find_consumer('x', 'key', key)
  elseif conf.way == 'nodes' then
    consumer_conf = consumer_mod.plugin('x')
    for _, node in ipairs(consumer_conf and consumer_conf.nodes or {}) do
      if node.auth_conf.key == key then consumer = node end
    end
  else
    consumer_conf = consumer_mod.plugin('x')
    if consumer_conf then consumer = consumer_mod.consumers_kv('x', consumer_conf, 'key')[key] end
  end
  if not consumer then return 401, { message = err or 'Invalid key' } end
  consumer_mod.attach_consumer(ctx, consumer, consumer_conf)
  ngx.ctx.name = ctx.consumer_name
end";

#[test]
fn consumers_are_found_and_attached() {
    let folder = one(AUTH);
    let roster = folder.roster();
    assert_eq!((roster.unique_attribute("x"), roster.is_auth("x")), (Some("key"), true));
    let refusal = roster.check("x", PluginScope::Consumer, &json!({"key": "bad"})).unwrap_err();
    assert_eq!(refusal.to_string(), "a bad key");
    assert!(roster.check("x", PluginScope::Consumer, &json!({})).is_err());
    let (key, data) = roster.identity("x", &json!({"key": "k1"})).unwrap().unwrap();
    for way in ["find", "nodes", "kv"] {
        let entry = entry_of(&roster, "x", json!({"way": way}), None);
        let ask = |field: &str, with_consumer: bool| {
            let mut case = case_of(&format!("GET / HTTP/1.1\nHost: h\nX-Consumer-Username: forged{field}"));
            if with_consumer {
                let consumer = Arc::new(Consumer { name: "jack".into(), ..Consumer::default() });
                case.consumers.put(Arc::clone(&consumer));
                let identity = Identity { consumer, credential: None, data: Arc::clone(&data) };
                case.consumers.put_identity("x", &key, Arc::new(identity));
            }
            let reply = case.run(&entry, Phase::Rewrite);
            (summary(reply.as_ref()), case.sent("x-consumer-username").unwrap_or_default())
        };
        assert_eq!(ask("\napikey: k1", true), ("passed".to_owned(), "jack".to_owned()), "{way}");
        assert_eq!(ask("", true).0, r#"401 {"message":"Missing key"}"#, "{way}");
        for (field, with_consumer) in [("\napikey: k2", true), ("\napikey: k1", false)] {
            let (reply, sent) = ask(field, with_consumer);
            assert!(reply.starts_with("401 ") && sent.is_empty(), "{way}: {reply} {sent}");
        }
    }
}

#[test]
fn consumers_of_other_plugins_are_out_of_reach() {
    let folder = one(&format!(
        "{AUTH}\nfunction _M.access(conf, ctx) local ok, err = pcall(consumer_mod.plugin, 'key-auth') return 200, err end
        function _M.before_proxy(conf, ctx) local ok, err = pcall(consumer_mod.find_consumer, 'x', 'name', 'k1') return 200, tostring(err) end"
    ));
    let entry = folder.entry("x", json!({}));
    let mut case = case_of("GET / HTTP/1.1\nHost: h");
    let text = summary(case.run(&entry, Phase::Access).as_ref());
    assert!(text.contains("plugin x cannot read consumers of key-auth"), "{text}");
}

#[test]
fn plugins_begin_and_end_once_for_each_worker() {
    let lines = "local began = 0
        function _M.init() began = began + 1 end
        function _M.destroy() ngx.shared['plugin-limit-count']:incr('ended', 1, 0) end
        function _M.access() return 200, began .. (ngx.shared['plugin-limit-count']:get('ended') or 0) end";
    let folder = one(lines);
    let first = folder.entry("x", json!({}));
    let mut case = case_of("GET / HTTP/1.1\nHost: h");
    let mut ask = |entry: &Entry| {
        let reply = summary(case.run(entry, Phase::Access).as_ref());
        case.ctx.begin();
        reply
    };
    assert_eq!((ask(&first), ask(&first)), ("200 10".to_owned(), "200 10".to_owned()));
    folder.write("apisix/plugins/x.lua", &plugin(&format!("{lines}\n-- changed")));
    let second = folder.entry("x", json!({}));
    assert_eq!(ask(&second), "200 11", "the old one has ended");
    assert_eq!(ask(&first), "200 11", "exchanges of the old configuration go on");
}

#[test]
fn a_failing_init_closes_the_plugin() {
    let folder = one("function _M.init() error('no service') end function _M.access() end");
    let entry = folder.entry("x", json!({}));
    for _ in 0..2 {
        let mut case = case_of("GET / HTTP/1.1\nHost: h");
        assert_eq!(summary(case.run(&entry, Phase::Access).as_ref()), "500");
    }
}

#[test]
fn a_plugin_serves_paths_of_its_own() {
    let folder = one(
        "function _M.api() return { { methods = { 'GET', 'POST' }, uri = '/apisix/plugin/x', handler = function(ctx) return 200, { method = ngx.req.get_method() } end } } end",
    );
    let roster = folder.roster();
    let kind = roster.get("x").unwrap();
    let paths: Vec<_> = kind.endpoints().iter().map(|one| (one.method.as_str(), one.path)).collect();
    assert_eq!(paths, [("GET", "/apisix/plugin/x"), ("POST", "/apisix/plugin/x")]);
    let mut case = case_of("POST /apisix/plugin/x HTTP/1.1\nHost: h");
    let env = sigma_plugin::Env::new(&case.node, &case.local, &case.consumers);
    match kind.respond(&kind.endpoints()[1], &mut case.ctx, &env) {
        sigma_plugin::Step::Reply(reply) => assert_eq!(summary(Some(&reply)), r#"200 {"method":"POST"}"#),
        _ => panic!("no reply"),
    }
    assert!(std::ptr::eq(kind.endpoints(), folder.roster().get("x").unwrap().endpoints()));
}

#[test]
fn sessions_have_plugins_too() {
    let text = "local _M = { version = 0.1, priority = 5, name = 's', schema = { type = 'object', properties = { deny = { type = 'string' } } } }
        function _M.check_schema(conf) return conf.deny ~= 'x', 'not x' end
        function _M.preread(conf, ctx) if ctx.var.remote_addr == conf.deny then return 403 end end
        return _M";
    let folder = Folder::new(&[("apisix/stream/plugins/s.lua", text)]);
    let roster = folder.roster();
    assert!(roster.schema("s", PluginScope::Http).is_none());
    assert_eq!(
        roster.check("s", PluginScope::Stream, &json!({"deny": "x"})).unwrap_err().to_string(),
        "not x"
    );
    let node = Arc::new(Node::default());
    for (deny, expected) in [("10.0.0.1", 403), ("10.0.0.2", 0)] {
        let conf = Arc::new(json!({ "deny": deny }));
        let entry: Entry<dyn FlowPlugin> = roster
            .build_flow("s", &conf, Value::clone(&conf), "/apisix/stream_routes/1", &|_: &str| None, &node)
            .unwrap();
        let mut session = Session::default();
        session.client.addr = Some("10.0.0.1".parse().unwrap());
        let status = match FlowCase::default().preread(&entry, &mut session) {
            FlowStep::Close(status) => status,
            _ => 0,
        };
        assert_eq!(status, expected);
    }
}

#[test]
fn files_are_read_in_named_folders_only() {
    let folder =
        one("function _M.access(conf) local f, err = io.open(conf.path) if not f then return 403, err end
        return 200, f:read('*l') .. '|' .. f:read('*a') end");
    folder.write("data/a.txt", "one\ntwo\n");
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("data/link")).unwrap();
    let readable_folders = vec![folder.path().join("data")];
    let loaded = super::load(&FileSearch { readable_folders, ..folder.search() });
    let roster = roster_of(&loaded);
    let ask = |path: &str| {
        let mut case = case_of("GET / HTTP/1.1\nHost: h");
        let conf = json!({"path": folder.path().join(path)});
        summary(case.run(&entry_of(&roster, "x", conf, None), Phase::Access).as_ref())
    };
    assert_eq!(ask("data/a.txt"), "200 one|two");
    for path in ["apisix/plugins/x.lua", "data/../apisix/plugins/x.lua", "/etc/hostname", "data/link"] {
        assert!(ask(path).contains("its folder is not in `lua.readable_folders`"), "{path}: {}", ask(path));
    }
    assert_eq!(reply(&folder, json!({"path": "/etc/hostname"})), "500", "closed without the setting");
}

#[test]
fn content_and_stamp_change_with_files() {
    let folder = one("");
    let (content, stamp) = (folder.load().content, super::stamp(&folder.search()));
    assert_eq!((folder.load().content, super::stamp(&folder.search())), (content, stamp));
    folder.write("lib/new.lua", "return 1");
    assert_ne!((folder.load().content, super::stamp(&folder.search())), (content, stamp));
}

#[test]
fn runs_are_counted_by_plugin() {
    let folder =
        one("function _M.access(conf) if conf.fails then error('no') end while conf.loops do end end");
    let roster = folder.roster();
    let mut case = case_with(json!({"plugin_limits": {"x": {"run_ms": 5}}}), "GET / HTTP/1.1\nHost: h");
    for (conf, expected) in
        [(json!({}), "passed"), (json!({"fails": true}), "500"), (json!({"loops": true}), "500")]
    {
        let reply = case.run(&entry_of(&roster, "x", conf, None), Phase::Access);
        assert_eq!(summary(reply.as_ref()), expected);
        case.ctx.begin();
    }
    let board = case.node.part(sigma_plugin::script_counts::ScriptBoard::default);
    let totals = board.totals()["x"];
    assert_eq!((totals.runs, totals.errors, totals.aborted), (3, 2, 1));
    assert!((5_000..200_000).contains(&totals.cpu_us), "{totals:?}");
    assert!(board.memory()[0] > 10_000);
}

#[test]
fn hostile_files_are_broken() {
    for (lines, expected) in [
        ("function _M.api() while true do end end", "the script ran longer than 20 ms"),
        ("function _M.api() pcall(function() while true do end end) end", "the script ran longer than 20 ms"),
        ("function _M.control_api() while true do end end", "the script ran longer than 20 ms"),
        (
            "function _M.control_api() return { { methods = { 'GET' }, uris = { '/v1/routes' }, handler = print } } end",
            "`control_api`: `/v1/routes` does not begin with `/v1/plugin/`",
        ),
        ("_M.control_api = {}", "`control_api` is a table, not a function"),
        ("_M.schema.properties.a = _M.schema", "nested too deeply"),
        ("local t = {} for i = 1, 40 do t = {t, t} end _M.schema.enum = t", "more than 100000 values"),
        ("setmetatable(_M, { __index = function(_, k) error('no ' .. k) end })", "no consumer_schema"),
        // Its time or its memory ends first.
        ("local s = ('x'):rep(1024) while true do s = s .. s end", "x.lua: "),
        ("local function f() return f() + 1 end f()", "stack overflow"),
        ("coroutine.yield()", "attempt to yield"),
        ("ngx.sleep(1)", "API disabled in the context of init_worker"),
        ("ngx.req.get_headers()", "API disabled in the current context"),
    ] {
        let loaded = one(lines).load();
        let problem = loaded.broken.first().unwrap_or_else(|| panic!("{lines}")).message.clone();
        assert!(problem.contains(expected), "{lines}: {problem}");
    }
}

#[test]
fn hostile_hooks_end_their_request_alone() {
    let folder = one(
        "function _M.check_schema(conf) if conf.way == 'check' then while true do end end return true end
        function _M.access(conf)
          if conf.way == 'loop' then pcall(function() while true do end end) while true do end end
          if conf.way == 'memory' then local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(1e6) .. i end end
          if conf.way == 'recursion' then local function f() return f() + 1 end f() end
          if conf.way == 'coroutines' then local function f() coroutine.wrap(f)() end f() end
          if conf.way == 'pattern' then (('a'):rep(30)):find(('a?'):rep(30) .. ('a'):rep(30)) end
          if conf.way == 'globals' then string.upper = nil end
          if conf.way == 'metatable' then getmetatable('').__index.upper = nil end
          return 200, 'fine'
        end",
    );
    let roster = folder.roster();
    let refusal = roster.check("x", PluginScope::Http, &json!({"way": "check"})).unwrap_err().to_string();
    assert!(refusal.contains("the script ran longer than 20 ms"), "{refusal}");
    let mut case = case_with(json!({"run_ms": 20}), "GET / HTTP/1.1\nHost: h");
    let fine = entry_of(&roster, "x", json!({}), None);
    for way in ["loop", "memory", "recursion", "coroutines", "pattern", "globals", "metatable"] {
        let reply = case.run(&entry_of(&roster, "x", json!({"way": way}), None), Phase::Access);
        assert_eq!(summary(reply.as_ref()), "500", "{way}");
        case.ctx.begin();
        assert_eq!(summary(case.run(&fine, Phase::Access).as_ref()), "200 fine", "after {way}");
        case.ctx.begin();
    }
}
