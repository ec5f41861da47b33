//! The sandbox, budgets and coroutines.

use std::task::{self, Poll};

use serde_json::{Value, json};
use sigma_http::{Chunk, Frame};
use sigma_plugin::script_counts::{ScriptBoard, ScriptTotals};
use sigma_plugin::{Entry, Phase, ResponseStep};

use crate::engine::exchange::Exchange;
use crate::snippets::{
    OnWorker, case_of, case_with, check, check_ended, function, output_of, output_with, refusal_of,
};
use crate::testing::{Case, Given};

#[test]
fn texts_that_do_not_compile_are_refused_with_the_line() {
    let start = "failed to check the configuration of plugin serverless-pre-function err: ";
    for (text, expected) in [
        (
            "return function(conf, ctx)\n  ngx.say('a' end",
            "failed to loadstring: [string \"return function(conf, ctx)...\"]:2: ')' expected",
        ),
        ("error('no')", "pcall error: [string \"error('no')\"]:1: no"),
        ("return 7", "only accept Lua function, the input code type is number"),
        ("local a = 1", "only accept Lua function, the input code type is nil"),
        ("\u{1b}LJ\u{2}", "failed to loadstring: "),
        ("while true do end", "pcall error: the script ran longer than 20 ms without a wait"),
    ] {
        let refusal = refusal_of(text);
        let refusal = refusal.strip_prefix(start).unwrap_or(&refusal);
        assert!(refusal.starts_with(expected), "{text}: {refusal}");
    }
}

#[test]
fn scripts_write_and_exit() {
    check(&[
        ("ngx.say('a', 1, 1.5, nil, true, ngx.null) ngx.print({'b', {2}})", "a11.5niltruenull\nb2"),
        ("ngx.say(1) ngx.exit(200) ngx.say(2)", "1\n"),
        ("pcall(function() ngx.exit(403) end) ngx.say('on')", "403"),
        ("coroutine.wrap(function() ngx.exit(404) end)() ngx.say('on')", "404"),
        ("ngx.exit(0) ngx.say('on')", "passed"),
        ("ngx.status = 201 ngx.say('made')", "201 made"),
        ("ngx.exit(444)", "444"),
        (
            "local ok, e = xpcall(function() ngx.sayy() end, function(e) return 'handled' end) ngx.say(ok, e)",
            "falsehandled\n",
        ),
        ("error('broken')", "500"),
        ("ngx.say('begun') error('broken')", "444"),
        ("local t = nil t.x = 1", "500"),
    ]);
}

#[test]
fn endless_scripts_end() {
    check_ended(&[
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() return f() end f()",
        "local co = coroutine.wrap(function() while true do end end) co()",
        "while true do coroutine.yield() end",
        "setmetatable({}, {__index = function() while true do end end})[1] = nil local x = setmetatable({}, {__index = function() while true do end end}).y",
        "xpcall(function() while true do end end, function() while true do end end)",
        "require('apisix.core').string.match(('a'):rep(60), ('a?'):rep(60) .. ('a'):rep(60))",
        "require('apisix.core').utils.get_last_index(('a'):rep(60), ('a?'):rep(60) .. ('a'):rep(60))",
    ]);
}

/// A coroutine of the gateway runs many functions. A script that has kept it could resume it while another request waits.
#[test]
fn a_coroutine_that_a_script_has_seen_runs_no_other_request() {
    let mut worker = OnWorker::new(&json!({}));
    let entry = function(
        "access",
        "if not kept then kept = coroutine.running() ngx.print('kept') return end \
         ngx.print(coroutine.status(kept), coroutine.running() == kept, coroutine.resume(kept))",
    );
    assert_eq!(worker.run(&entry), "200 kept");
    assert_eq!(worker.run(&entry), "200 deadfalsefalsecannot resume dead coroutine");
    worker.end();
}

#[test]
fn memory_is_bounded() {
    check_ended(&[
        "local t = {} while true do t[#t + 1] = ('x'):rep(1000000) end",
        "local s = 'x' while true do s = s .. s end",
        "local function f(n) return n + f(n + 1) end f(1)",
        "local t = {} for i = 1, 1e9 do t[i] = coroutine.create(function() end) end",
    ]);
}

#[test]
fn scripts_do_not_reach_the_machine() {
    check(&[
        (
            "ngx.say(type(io), type(ffi), type(package), type(debug.getinfo), type(string.dump), type(jit), type(newproxy))",
            "nilnilnilnilnilnilnil\n",
        ),
        (
            "local ok, e = pcall(os.execute, 'true') ngx.say(ok, e)",
            "falsescripts of a configuration may not reach the machine\n",
        ),
        ("local ok, e = pcall(require, 'ffi') ngx.say(ok)", "false\n"),
        ("ngx.say(loadstring('\\27LJ\\2') == nil)", "true\n"),
        // No global is left behind the environments.
        ("local ok, e = pcall(getfenv, 0) ngx.say(ok)", "false\n"),
        (
            "ngx.say(type(getmetatable('').__index), tostring(getmetatable(_G)), tostring(getmetatable(string)))",
            "tablefalsefalse\n",
        ),
        ("local n = 0 for k in pairs(getfenv(ngx.say)) do n = n + 1 end ngx.say(n)", "0\n"),
    ]);
}

#[test]
fn scripts_share_nothing_by_accident() {
    check(&[
        ("leaked = 1 ngx.say(tostring(leaked), tostring(_G.leaked))", "11\n"),
        ("ngx.say(tostring(leaked))", "nil\n"),
        (
            "local ok, e = pcall(function() string.format = nil end) ngx.say(ok, type(string.format))",
            "falsefunction\n",
        ),
        ("local ok, e = pcall(function() ngx.say = nil end) ngx.say(ok)", "false\n"),
        ("local ok, e = pcall(setmetatable, string, {}) ngx.say(ok)", "false\n"),
        ("local ok = pcall(rawset, string, 'format', 1) ngx.say(type(('x').format))", "function\n"),
    ]);
}

#[test]
fn coroutines_and_environments() {
    check(&[
        (
            "local co = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end) \
          ngx.say(coroutine.resume(co, 1)) ngx.say(coroutine.resume(co, 5)) ngx.say(coroutine.resume(co))",
            "true2\ntrue10\nfalsecannot resume dead coroutine\n",
        ),
        (
            "local f = function() return y end setfenv(f, {y = 'mine'}) ngx.say(f(), type(getfenv(1)))",
            "minetable\n",
        ),
        ("ngx.say(coroutine.yield() == nil)", "true\n"),
        // No results are no nil.
        (
            "local co = coroutine.create(function() coroutine.yield() end) \
          ngx.say(select('#', coroutine.resume(co)), select('#', coroutine.wrap(function() end)()))",
            "10\n",
        ),
        (
            "ngx.say(select(2, pcall(coroutine.create, 1)), select(2, pcall(coroutine.wrap, 'x')))",
            "bad argument #1 to '?' (Lua function expected)bad argument #1 to '?' (Lua function expected)\n",
        ),
        ("local ok, e = pcall(error, {1}) ngx.say(ok, type(e))", "falsetable\n"),
    ]);
}

#[test]
fn calls_within_each_other_do_not_exhaust_the_stack() {
    let core = "local core = require('apisix.core') local f, t";
    for body in [
        "f = function() return tostring(core.log.delay_exec(f)) end f()",
        "f = function() return core.utils.resolve_var('$a', {a = 1}, f) end f()",
        "t = setmetatable({}, {__index = function() return core.utils.resolve_var('$a', t) end}) local x = t.a",
        "t = setmetatable({}, {__tostring = function() return core.json.encode({[t] = 1}, true) end}) tostring(t)",
        "f = function() return load(f) end f()",
        "f = function(s) return (string.gsub(s, '.', f)) end f('a')",
        "f = function() table.sort({1, 2, 3}, f) return false end f()",
        "f = function() core.table.sort({1, 2, 3}, f) return false end f()",
        "t = setmetatable({}, {__tostring = function() return string.format('%s', t) end}) tostring(t)",
        "t = setmetatable({}, {__tostring = function() return ('%s'):format(t) end}) tostring(t)",
        "f = function() return coroutine.wrap(f)() end f()",
        "f = function() return coroutine.resume(coroutine.create(f)) end assert(f())",
        "t = setmetatable({}, {__tostring = function() return tostring(t) end}) tostring(t)",
        "f = function() return pcall(f) end f()",
        "f = function() return xpcall(f, f) end f()",
        "t = setmetatable({}, {__index = function(_, k) return t[k] end}) local x = t.a",
        "t = setmetatable({}, {__lt = function(a, b) return a < b end, __concat = function(a, b) return a .. b end}) local x = t < t",
        "t = setmetatable({}, {__concat = function(a, b) return a .. b end}) local x = t .. t",
    ] {
        // It ends, in any way.
        let output = output_with(json!({"run_ms": 20}), &format!("{core} {body} ngx.say('on')"));
        assert!(output == "500" || output == "on\n" || output == "passed", "{body}: {output}");
    }
    assert_eq!(
        output_of("ngx.say(select(2, pcall(string.gsub, {}, 'a', 'b')))"),
        "bad argument #1 to 'gsub' (string expected, got table)\n"
    );
    assert_eq!(
        output_of(
            "local n = 0 for i = 1, 200 do pcall(string.gsub, 'a', '.', error) end ngx.say((('a'):gsub('a', 'b')))"
        ),
        "b\n"
    );
}

/// The end of the budget skips the count down of calls nested in each other. It must not add up over runs of a worker.
#[test]
fn a_worker_recovers_from_endless_callbacks() {
    // Without pacing: each run must begin.
    let settings = json!({"run_ms": 20, "aborted_ms_per_second": 1000});
    let mut case = case_with(settings, "GET / HTTP/1.1\nHost: h.test");
    for body in [
        "table.sort({1, 2, 3}, function() while true do end end)",
        "coroutine.wrap(function() while true do end end)()",
    ] {
        let endless = function("access", body);
        for _ in 0..60 {
            assert_eq!(case.run(&endless, Phase::Access).map(|reply| reply.status), Some(500), "{body}");
        }
        let fine = function(
            "access",
            "table.sort({2, 1}) coroutine.wrap(function() ngx.say(('%d'):format(7)) end)()",
        );
        let reply = case.run(&fine, Phase::Access).unwrap();
        assert_eq!((reply.status, &*reply.body.unwrap()), (200, &b"7\n"[..]), "{body}");
    }
}

/// A script of one route must not change the modules of another route.
#[test]
fn functions_of_the_gateway_cannot_be_changed() {
    check(&[
        ("ngx.say(tostring(getmetatable(require('resty.http').new())))", "false\n"),
        ("ngx.say(tostring(getmetatable(require('resty.redis').new())))", "false\n"),
        (
            "ngx.say(pcall(setfenv, require('resty.http').new, {}))",
            "false'setfenv' cannot change environment of given object\n",
        ),
        (
            "ngx.say(pcall(setfenv, ngx.say, {}))",
            "false'setfenv' cannot change environment of given object\n",
        ),
        (
            "local ok = pcall(function() getfenv(require('resty.http').new).ngx = {} end) ngx.say(ok)",
            "false\n",
        ),
        (
            "pcall(rawset, getfenv(require('resty.http').new), 'ngx', 7) ngx.say(type(require('resty.http').new()))",
            "table\n",
        ),
        (
            "local core = require('apisix.core') ngx.say(pcall(setfenv, core.response.exit, {}))",
            "false'setfenv' cannot change environment of given object\n",
        ),
        (
            "for level = 1, 20 do local ok, e = pcall(getfenv, level) if ok and e ~= _G then pcall(rawset, e, 'ngx', 7) end end ngx.say('on')",
            "on\n",
        ),
    ]);
}

/// Functions that write without regard to metatables refuse the tables that all scripts share.
#[test]
fn shared_tables_cannot_be_written_raw() {
    let shared = "for name, t in pairs({ string = string, ngx = ngx, core = require('apisix.core'), \
         response = require('apisix.core').response, request = require('apisix.core').request, \
         dict = ngx.shared['plugin-limit-count'], cjson = require('cjson'), mt = require('cjson').array_mt, \
         uuid = require('resty.jit-uuid'), http = require('resty.http') }) do";
    for write in [
        "t.evil = 1",
        "rawset(t, 'evil', 1)",
        "table.insert(t, 1)",
        "require('apisix.core').table.insert(t, 1)",
        "ngx.re.match('x', '(?<evil>x)', '', nil, t)",
        "ngx.re.match('x', 'x', '', t)",
        "require('apisix.core').schema.check({properties = {evil = {default = 1}}}, t)",
        "require('apisix.plugin').conf_version(t)",
    ] {
        let body = format!(
            "{shared} pcall(function() {write} end) \
             if t.evil or rawget(t, 'evil') or rawget(t, 'pos') or rawget(t, '_version') or rawget(t, 0) or (name ~= 'dict' and rawget(t, 1)) \
             then ngx.say(name) end end ngx.say('end')"
        );
        assert_eq!(output_of(&body), "end\n", "{write}");
    }
}

#[test]
fn instructions_on_much_data_do_not_overrun_the_time() {
    let mut worker = OnWorker::new(&json!({"run_ms": 20}));
    for body in [
        "local s = ('x'):rep(16e6) while true do local t = s .. 'y' end",
        "local a = ('x'):rep(8e6) local b = a .. 'y' while a < b do end",
        "while true do local s = ('x'):rep(3e7) end",
        "local s = ('x'):rep(5e6) while true do ngx.md5(s) end",
        "local s = ('x'):rep(5e6) while true do pcall(ngx.encode_base64, s) end",
    ] {
        // Without the limit it would never end.
        assert_eq!(worker.output(body), "500", "{body}");
    }
    assert_eq!(worker.output("ngx.say('fine')"), "200 fine");
}

/// Values of any kind in `ctx` keep no memory from the others.
#[test]
fn an_exchange_is_emptied_whatever_scripts_left() {
    let mut case = case_of("GET / HTTP/1.1\nHost: h");
    case.run(&function("access", "rawset(ctx, 'var', 1) ctx.held = {} ngx.ctx.held = {}"), Phase::Access);
    let exchange = Exchange::known(&mut case.ctx).expect("a script has run");
    exchange.empty().unwrap();
    assert!(exchange.api_ctx.is_empty() && exchange.known_ngx_ctx().is_none());
}

/// A script that keeps all memory does not take it from the others.
#[test]
fn scripts_get_their_memory_back() {
    let mut worker = OnWorker::new(&json!({"memory_mib": 8}));
    let fine = function("access", "ngx.say(('x'):rep(100000):len())");
    for body in [
        "kept = {} while true do kept[#kept + 1] = {} end",
        "kept = {} local i = 0 while true do i = i + 1 kept[i] = ('x'):rep(1000) .. i end",
        "kept = {} while true do kept[#kept + 1] = function() return kept end end",
        "kept = {} while true do local co = coroutine.wrap(function() coroutine.yield() end) co() kept[#kept + 1] = co end",
        "local kept = {} ngx.timer.at(3600, function() return kept end) while true do kept[#kept + 1] = {} end",
        "local core = require('apisix.core') local kept = {} core.ctx.register_var('held', function() return kept end) while true do kept[#kept + 1] = {} end",
        "local core = require('apisix.core') local kept = {} core.lrucache.global('a', 1, function() return kept end) while true do kept[#kept + 1] = {} end",
    ] {
        let hostile = function("access", body);
        for _ in 0..40 {
            worker.run(&hostile);
        }
        // The first one may fail: a timer that was ended frees its memory when it is woken.
        worker.run(&fine);
        worker.turn();
        assert_eq!(worker.run(&fine), "200 100000", "{body}");
    }
    worker.end();
    // After failed allocations LuaJIT with assertions misses some bytes when it closes a state.
    std::mem::forget(worker);
}

/// The counters of the scripts of a plugin.
fn totals(worker: &OnWorker, plugin: &str) -> ScriptTotals {
    let board = worker.node().part(ScriptBoard::default);
    board.totals().get(plugin).copied().unwrap_or_default()
}

/// Runs until a run is refused. Each run is answered in the same way.
fn exhaust(worker: &mut OnWorker, plugin: &str, mut run: impl FnMut(&mut OnWorker)) -> ScriptTotals {
    loop {
        run(worker);
        let counted = totals(worker, plugin);
        if counted.refused > 0 {
            return counted;
        }
    }
}

/// Settings under which a refusal lasts long enough for a slow machine.
fn paced() -> Value {
    json!({"run_ms": 20, "aborted_ms_per_second": 1})
}

#[test]
fn an_aborted_script_is_refused_like_an_aborted_run() {
    let mut worker = OnWorker::new(&paced());
    let endless = function("access", "while true do end");
    let plugin = "serverless-pre-function";
    let counted = exhaust(&mut worker, plugin, |worker| assert_eq!(worker.run(&endless), "500"));
    assert!(counted.aborted >= 3, "two whole runs and a short one: {counted:?}");
    assert_eq!(counted.errors, counted.aborted + counted.refused);
    // Scripts that were not aborted run, also with the same plugin.
    for _ in 0..10 {
        assert_eq!(worker.output("ngx.say('fine')"), "200 fine");
    }
    assert_eq!(totals(&worker, plugin).refused, counted.refused);
    worker.end();
}

#[test]
fn a_chunk_that_never_returns_is_paced() {
    // The check of the text has no worker, and sees a function.
    let chunk = "if ngx.worker.count() > 1 then while true do end end return function() end";
    let mut worker = OnWorker::among(&paced(), 2);
    let entry = crate::testing::entry("serverless-pre-function", json!({"functions": [chunk]})).unwrap();
    let counted =
        exhaust(&mut worker, "serverless-pre-function", |worker| assert_eq!(worker.run(&entry), "500"));
    assert!(counted.aborted >= 3, "{counted:?}");
    worker.end();
}

#[test]
fn timers_and_light_threads_are_paced_with_their_script() {
    for body in [
        "local ended ngx.timer.at(0, function() while true do end end) ngx.sleep(0.01)",
        "ngx.thread.spawn(function() while true do end end) ngx.sleep(0.01)",
        "ngx.thread.spawn(function() ngx.sleep(0.001) while true do end end) ngx.sleep(0.01)",
    ] {
        let mut worker = OnWorker::new(&paced());
        let script = function("access", &format!("{body} ngx.say('on')"));
        let counted = exhaust(&mut worker, "serverless-pre-function", |worker| {
            let response = worker.run(&script);
            assert!(["200 on", "500"].contains(&&*response), "{body}: {response}");
        });
        assert!(counted.aborted >= 2, "{body}: {counted:?}");
        worker.end();
    }
}

#[test]
fn conditions_of_routes_are_paced() {
    let mut worker = OnWorker::new(&paced());
    assert_eq!(worker.output("ngx.say('this thread has a worker')"), "200 this thread has a worker");
    let endless = crate::scripts::scripts().condition("1", "function(vars) while true do end end");
    let fine = crate::scripts::scripts().condition("2", "function(vars) return true end");
    let counted = exhaust(&mut worker, "filter_func", |worker| assert!(!endless.holds(worker.variables())));
    assert!(counted.aborted >= 3, "{counted:?}");
    assert!(fine.holds(worker.variables()), "the other condition still holds");
    worker.end();
}

/// Runs a script that fails in a phase after the node's response. No byte of the response leaves then.
fn fail(case: &mut Case, entry: &Entry, phase: &str) {
    match phase {
        "header_filter" => match case.response_step(entry) {
            ResponseStep::Replace(reply) => assert!(reply.is_silent, "{phase}"),
            _ => panic!("the response passes"),
        },
        "body_filter" => {
            let mut filter = case.body_filter(entry).expect("a filter");
            let mut frames = Given([Frame::Data(Chunk::copy_of(b"a"))].into());
            let mut task = task::Context::from_waker(task::Waker::noop());
            assert!(matches!(filter.poll_frame(&mut frames, &mut case.ctx, &mut task), Poll::Ready(Err(_))));
        }
        _ => case.log(entry),
    }
}

#[test]
fn filters_and_logs_are_paced() {
    for phase in ["header_filter", "body_filter", "log"] {
        let mut case = case_with(paced(), "GET / HTTP/1.1\nHost: h.test");
        let endless = function(phase, "while true do end");
        let board = case.node.part(ScriptBoard::default);
        loop {
            case.ctx.begin();
            case.respond(200, "Content-Type: text/plain");
            fail(&mut case, &endless, phase);
            let counted = board.totals()["serverless-pre-function"];
            if counted.refused > 0 {
                assert!(counted.aborted >= 3, "{phase}: {counted:?}");
                break;
            }
        }
    }
}
