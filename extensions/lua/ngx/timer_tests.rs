//! Timers, on a worker's runtime.

use serde_json::json;

use crate::snippets::{OnWorker, said_on_worker};

/// Runs a function in a timer, waits for its end, and writes its result.
fn in_timer(body: &str) -> String {
    let text = format!(
        "local result ngx.ctx.a = 1 ngx.timer.at(0, function(...) result = (function(...) {body} end)(...) end, 'x', 2) \
         while not result do ngx.sleep(0.001) end ngx.say(result)"
    );
    said_on_worker(&json!({}), &text)
}

#[test]
fn timers_run_without_a_request() {
    for (body, expected) in [
        ("return table.concat({tostring((...)), select(2, ...)}, ',')", "200 false,x,2"),
        (
            "local ok, e = pcall(function() return ngx.status end) return e:gsub('^.-:%d+: ', '')",
            "200 API disabled in the current context",
        ),
        ("local ok, e = pcall(ngx.say, 'x') return e", "200 API disabled in the context of ngx.timer"),
        (
            "local a = ngx.ctx.a ngx.ctx.b = 2 return tostring(a) .. ngx.ctx.b .. ngx.get_phase()",
            "200 nil2timer",
        ),
        ("ngx.sleep(0.002) return ngx.timer.running_count() .. ngx.timer.pending_count()", "200 10"),
        (
            "local t = ngx.thread.spawn(function() return 'in a thread' end) return select(2, ngx.thread.wait(t))",
            "200 in a thread",
        ),
    ] {
        assert_eq!(in_timer(body), expected, "{body}");
    }
}

#[test]
fn arguments_of_timers_are_checked() {
    for (body, expected) in [
        (
            "local o = {} for _, a in ipairs{{-1, print}, {'x', print}, {0, 'f'}, {0, print}, {-1, function() end}} do \
             local ok, h = pcall(ngx.timer.at, a[1], a[2]) o[#o + 1] = tostring(h) end ngx.say(table.concat(o, '; '))",
            "200 bad argument #2 to '?' (Lua function expected); \
             bad argument #1 to '?' (number expected, got string); \
             bad argument #2 to '?' (Lua function expected); bad argument #2 to '?' (Lua function expected); 1",
        ),
        ("ngx.say(pcall(ngx.timer.every, 0, print))", "200 falsedelay cannot be zero"),
        ("ngx.say(pcall(ngx.timer.at, 0))", "200 falseexpecting at least 2 arguments but got 1"),
        ("ngx.say(ngx.timer.running_count(), ' ', ngx.timer.pending_count() >= 0)", "200 0 true"),
        (
            "for i = 1, 3 do ngx.say(ngx.timer.at(9, function() end)) end ngx.say(ngx.timer.pending_count())",
            "200 1\n1\nniltoo many pending timers\n2",
        ),
    ] {
        assert_eq!(said_on_worker(&json!({"pending_timers": 2}), body), expected, "{body}");
    }
}

#[test]
fn a_failure_of_a_timer_ends_only_that_run() {
    let body = "local n = 0 ngx.timer.every(0.001, function() n = n + 1 error('in a timer') end) \
                while n < 3 do ngx.sleep(0.001) end ngx.say('runs again')";
    assert_eq!(said_on_worker(&json!({}), body), "200 runs again");
    let endless = "local done ngx.timer.at(0, function() while true do end end) \
                   ngx.timer.at(0.01, function() done = true end) \
                   while not done do ngx.sleep(0.001) end ngx.say('goes on')";
    assert_eq!(said_on_worker(&json!({"run_ms": 5}), endless), "200 goes on");
}

#[test]
fn too_many_running_timers_are_dropped() {
    let body = "local ran = 0 for i = 1, 3 do ngx.timer.at(0, function() ran = ran + 1 ngx.sleep(9) end) end \
                while ngx.timer.pending_count() > 0 do ngx.sleep(0.001) end ngx.say(ran)";
    assert_eq!(said_on_worker(&json!({"running_timers": 2}), body), "200 2");
}

#[test]
fn the_end_of_a_worker_runs_timers_early() {
    let mut worker = OnWorker::new(&json!({}));
    let body = "ngx.timer.at(600, function(premature) \
                ngx.log(ngx.WARN, tostring(premature), tostring(ngx.worker.exiting())) end) \
                ngx.timer.every(600, function(premature) if not premature then while true do end end end) ngx.say('ok')";
    assert_eq!(worker.output(body), "200 ok");
    worker.end();
    assert_eq!(
        worker.output("ngx.say(ngx.worker.exiting(), ngx.timer.at(1, function() end))"),
        "200 truenilprocess exiting"
    );
}

#[test]
fn a_check_of_a_text_starts_no_timer() {
    let text = "local h = ngx.timer.at(0, function() end) return function() ngx.say(h) end";
    assert!(crate::testing::entry("serverless-pre-function", json!({"functions": [text]})).is_ok());
}
