//! `ngx.thread`: light threads of one request.

use std::rc::Rc;

use mlua::{Lua, Table, Thread, Value};

use crate::engine::arguments::Arguments;
use crate::engine::host::{Host, ScriptNeed, Wait};

/// The members of `ngx.thread`.
pub(super) fn group(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let thread = lua.create_table()?;
    host.waiting_function(lua, &thread, "spawn", |_, arguments| match arguments.value(1) {
        Value::Function(function) => {
            Ok(Wait::For(ScriptNeed::Spawn { function, arguments: arguments.rest(2) }))
        }
        _ => Err(arguments.wrong(1, "function")),
    })?;
    host.waiting_function(lua, &thread, "wait", |_, arguments| {
        if arguments.count() == 0 {
            return Err("at least one coroutine should be specified".to_owned());
        }
        let threads = (1..=arguments.count()).map(|place| thread_of(&arguments, place));
        Ok(Wait::For(ScriptNeed::Join(threads.collect::<Result<_, _>>()?)))
    })?;
    host.waiting_function(lua, &thread, "kill", |_, arguments| {
        Ok(Wait::For(ScriptNeed::Kill(thread_of(&arguments, 1)?)))
    })?;
    Ok(thread)
}

fn thread_of(arguments: &Arguments<'_>, place: usize) -> Result<Thread, String> {
    match arguments.value(place) {
        Value::Thread(thread) => Ok(thread),
        _ => Err(arguments.bad(place, "lua thread expected")),
    }
}

#[cfg(test)]
mod tests {
    use crate::snippets::check;

    #[test]
    fn light_threads() {
        check(&[
            (
                "ngx.thread.spawn(function() ngx.status = 409 ngx.say('from the thread') ngx.exit(409) end) \
                 ngx.sleep(1) ngx.say('main')",
                "409 from the thread",
            ),
            (
                "local t = ngx.thread.spawn(function() ngx.say('thread') end) ngx.thread.wait(t) ngx.say('main')",
                "thread\nmain\n",
            ),
            (
                "local t = ngx.thread.spawn(function(a, b) ngx.sleep(0.001) return a + b, 'x' end, 1, 2) \
                 ngx.say(ngx.thread.wait(t)) ngx.say(ngx.thread.wait(t))",
                "true3x\nnilalready waited or killed\n",
            ),
            // The first that ends is returned.
            (
                "local slow = ngx.thread.spawn(function() ngx.sleep(5) return 'slow' end) \
                 local fast = ngx.thread.spawn(function() ngx.sleep(0.001) return 'fast' end) \
                 ngx.say(ngx.thread.wait(slow, fast)) ngx.say(ngx.thread.kill(slow)) ngx.say(ngx.thread.kill(slow))",
                "truefast\n1\nnilalready waited or killed\n",
            ),
            (
                "local t = ngx.thread.spawn(function() end) ngx.say(ngx.thread.kill(t))",
                "nilalready terminated\n",
            ),
            // The request waits for threads that no coroutine waited for.
            (
                "ngx.thread.spawn(function() ngx.sleep(0.01) ngx.say('late') end) ngx.say('main')",
                "main\nlate\n",
            ),
            // A failure is a result of the wait; the value of the error is kept.
            (
                "local t = ngx.thread.spawn(function() error({code = 7}) end) local ok, e = ngx.thread.wait(t) \
                 ngx.say(ok, e.code)",
                "false7\n",
            ),
            (
                "local t = ngx.thread.spawn(function() error('no', 0) end) ngx.say(ngx.thread.wait(t))",
                "falseno\n",
            ),
            (
                "local t t = ngx.thread.spawn(function() ngx.sleep(0.001) end) \
                 local u = ngx.thread.spawn(function() return pcall(ngx.thread.wait, t) end) \
                 ngx.say(ngx.thread.wait(u))",
                "truefalseonly the parent coroutine can wait on the thread\n",
            ),
            (
                "local o = {} for _, f in ipairs{'wait', 'kill', 'spawn'} do local ok, e = pcall(ngx.thread[f], 1) \
                 o[#o + 1] = e end ngx.say(table.concat(o, '; '))",
                "bad argument #1 to 'wait' (lua thread expected); bad argument #1 to 'kill' (lua thread expected); \
                 bad argument #1 to 'spawn' (function expected, got number)\n",
            ),
            (
                "local ok, e for i = 1, 70 do ok, e = pcall(ngx.thread.spawn, ngx.sleep, 0.001) if not ok then \
                 ngx.say(i, e) break end end",
                "65a script may have 64 light threads at most\n",
            ),
        ]);
    }

    #[test]
    fn sleeps_and_facts() {
        check(&[
            ("ngx.say(pcall(ngx.sleep, -1))", "falseinvalid sleep duration \"-1000\"\n"),
            ("ngx.say(pcall(ngx.sleep))", "falseattempt to pass 0 arguments, but accepted 1\n"),
            ("ngx.say(select('#', ngx.sleep(0.001)))", "0\n"),
            (
                "ngx.say(ngx.worker.id(), ngx.worker.count() > 0, ngx.worker.pid() > 0, ngx.worker.exiting(), \
                 ngx.config.subsystem, ngx.config.nginx_version > 1e6)",
                "0truetruefalsehttptrue\n",
            ),
            (
                "local ok, e = pcall(function() ngx.worker.id = nil end) ngx.say((e:gsub('^.-:%d+: ', '')))",
                "attempt to change `ngx.worker.id`, which all scripts share\n",
            ),
        ]);
    }
}
