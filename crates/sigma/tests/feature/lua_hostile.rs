//! Scripts that take time, memory or the gateway's own values: each ends with an error of its own or does no harm, and
//! other requests get their responses.

use std::fs;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, children};

use crate::SIGMA;

/// Name, body of a function, status of its response. A slow machine may abort one with 200, which ends with 500 then.
const SCRIPTS: &[(&str, &str, u16)] = &[
    ("loop", r#"while true do end"#, 500),
    ("loop_pcall", r#"while true do pcall(function() while true do end end) end"#, 500),
    (
        "loop_xpcall",
        r#"while true do xpcall(function() error('x') end, function() while true do end end) end"#,
        500,
    ),
    (
        "loop_coroutine",
        r#"while true do local c=coroutine.wrap(function() while true do end end) pcall(c) end"#,
        500,
    ),
    (
        "coroutine_storm",
        r#"local t={} while true do local c=coroutine.create(function() coroutine.yield() end) coroutine.resume(c) t[#t+1]=c end"#,
        500,
    ),
    ("pattern_bomb", r#"string.find(('a'):rep(100000), ('a?'):rep(3000)..('a'):rep(3000))"#, 500),
    (
        "pattern_bomb2",
        r#"local s=('a'):rep(50000) return 200, tostring(s:match('(a*)*b'))  or s:find('.-.-.-.-.-b')"#,
        500,
    ),
    ("pattern_bomb3", r#"local s=('a'):rep(50000) s:find('.-.-.-.-.-.-b') s:gsub('.-.-.-b','')"#, 500),
    (
        "regex_bomb",
        r#"ngx.re.find(('a'):rep(40)..'!', '^(a+)+$') ngx.re.gsub(('a'):rep(100000), '(a|aa)+$', 'b')  return 200"#,
        500,
    ),
    ("memory_table", r#"local t={} while true do t[#t+1]={} end"#, 500),
    ("memory_text", r#"local s='x' while true do s=s..s end"#, 500),
    ("memory_rep", r#"return 200, (('x'):rep(1e9))"#, 500),
    (
        "memory_concat",
        r#"local t={} for i=1,1e6 do t[i]='xxxxxxxxxxxxxxxx' end while true do local s=table.concat(t) t[#t+1]=s end"#,
        500,
    ),
    ("memory_format", r#"local s=string.format('%99999999s','x') return 200,'x'"#, 500),
    ("memory_upvalue", r#"_G.keep=_G.keep or {} for i=1,20000 do keep[#keep+1]={i} end return 200,'x'"#, 200),
    ("recursion", r#"local function f() return 1+f() end f()"#, 500),
    ("recursion_tail", r#"local function f() return f() end f()"#, 500),
    ("recursion_gsub", r#"local function f() string.gsub('a','a',f) end f()"#, 500),
    (
        "recursion_tostring",
        r#"local t=setmetatable({},{__tostring=function(s) return tostring(s) end}) tostring(t)"#,
        500,
    ),
    (
        "recursion_index",
        r#"local t={} setmetatable(t,{__index=function(t,k) return t[k..'x'] end}) return 200,t.a"#,
        500,
    ),
    ("recursion_json", r#"local t={} t.t=t return 200, t"#, 500),
    (
        "recursion_deep_json",
        r#"local s=('['):rep(200000) return 200, tostring(require('cjson.safe').decode(s))"#,
        200,
    ),
    (
        "timers",
        r#"local function f() ngx.timer.at(0,f) ngx.timer.at(0,f) while true do end end ngx.timer.at(0,f) return 200,'x'"#,
        200,
    ),
    (
        "threads",
        r#"local function f() ngx.thread.spawn(f) ngx.sleep(0) end for i=1,100 do ngx.thread.spawn(f) end ngx.sleep(0.01) return 200,'x'"#,
        200,
    ),
    (
        "sort_bad",
        r#"local t={} for i=1,50000 do t[i]=i end table.sort(t,function(a,b) return true end) return 200,'x'"#,
        500,
    ),
    ("metatable_string", r#"getmetatable('').__index=nil return 200,'x'"#, 500),
    ("metatable_set", r#"rawset(string,'find',nil) string.find=nil return 200,'x'"#, 500),
    (
        "globals",
        r#"ngx.say=nil ngx.var=nil _G=nil string=nil table=nil require=nil error=nil return 200,'x'"#,
        500,
    ),
    ("setfenv", r#"setfenv(0,{}) setfenv(1,{}) return 200,'x'"#, 500),
    ("getfenv", r#"for k in pairs(getfenv(0)) do getfenv(0)[k]=nil end return 200,'x'"#, 500),
    ("load_bytecode", r#"local f=string.dump(function() end) loadstring('\27LJ'..f) return 200,'x'"#, 500),
    ("io", r#"io.open('/etc/passwd'):read('*a') return 200,'x'"#, 500),
    ("os_exit", r#"os.exit(1)"#, 500),
    ("debug_hook", r#"debug.sethook() while true do end"#, 500),
    ("collect", r#"collectgarbage('stop') local t={} while true do t[#t+1]={} end"#, 500),
    ("req_headers", r#"for i=1,1e5 do ngx.req.set_header('x-'..i,('y'):rep(1000)) end return"#, 500),
    ("ctx_var", r#"for i=1,1e6 do ctx.var['k'..i]=('y'):rep(1000) end return 200,'x'"#, 500),
    (
        "sockets",
        r#"for i=1,2000 do local s=ngx.socket.tcp() s:settimeout(10) s:connect('127.0.0.1',1) end return 200,'x'"#,
        200,
    ),
    (
        "tostring_meta",
        r#"ngx.say(setmetatable({},{__tostring=function() while true do end end})) return 200,'x'"#,
        200,
    ),
    (
        "gc_finalizer",
        r#"local p=newproxy and newproxy(true) if p then getmetatable(p).__gc=function() while true do end end p=nil end collectgarbage() return 200,'x'"#,
        200,
    ),
    ("yield_abuse", r#"while true do coroutine.yield() end"#, 500),
    ("error_object", r#"error(setmetatable({},{__tostring=function() error('y') end}))"#, 500),
    ("varargs", r#"local t={} for i=1,1e6 do t[i]=i end return 200, select('#', unpack(t))"#, 500),
    (
        "nested_pcall",
        r#"local function f(n) if n>0 then return pcall(f,n-1) end while true do end end f(180)"#,
        500,
    ),
];

/// The most memory of the gateway: two workers with 64 MiB of scripts each, and room for one value that is refused.
const MEMORY_KIB: u64 = 512 << 10;

fn route(name: &str, function: &str) -> Value {
    let text = format!("return function(conf, ctx)\n{function}\nend");
    json!({
        "id": name, "uri": format!("/{name}"), "upstream": { "nodes": { "127.0.0.1:1": 1 } },
        "plugins": { "serverless-pre-function": { "phase": "access", "functions": [text] } },
    })
}

/// Resident memory of a process and its children.
fn memory_kib(gateway: &Gateway) -> u64 {
    let of = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    of(gateway.pid()) + children(gateway.pid()).into_iter().map(of).sum::<u64>()
}

#[test]
fn hostile_scripts_harm_only_themselves() {
    let other = "return 200, tostring(string.find('abc', 'b')) .. type(ngx.say) .. tostring(kept)";
    let mut routes = vec![route("other", other)];
    routes.extend(SCRIPTS.iter().map(|(name, function, _)| route(name, function)));
    let config = json!({ "workers": 2, "listeners": [{ "address": "{listen}" }], "routes": routes });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let get = |name: &str| gateway.connect().unwrap().get(&format!("/{name}")).unwrap();
    for (name, _, expected) in SCRIPTS {
        // Both workers.
        for _ in 0..2 {
            let status = get(name).status();
            assert!([*expected, 500].contains(&status), "{name}: {status} {}", gateway.stderr());
            let response = get("other");
            assert_eq!((response.status(), &*response.text()), (200, "2functionnil"), "after {name}");
        }
        let memory = memory_kib(&gateway);
        assert!(memory < MEMORY_KIB, "{name}: {memory} KiB");
    }
    let log = gateway.stderr();
    assert!(log.contains("a Lua function failed") && !log.contains("panicked"), "{log}");
}
