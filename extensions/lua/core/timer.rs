//! `core.timer`.

use mlua::{Lua, Table};

use crate::engine::modules::Modules;

pub(super) fn register(lua: &Lua, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let chunk = lua.load(include_str!("timer.lua")).set_name("=core.timer");
    let log: Table = core.raw_get("log")?;
    let timer: Table = chunk.call((crate::ngx::table(lua)?, log))?;
    core.raw_set("timer", modules.shared("apisix.core.timer", timer)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::snippets::OnWorker;

    #[test]
    fn a_timer_runs_its_function_again_and_again() {
        let mut worker = OnWorker::new(&json!({}));
        let started = "local core = require('apisix.core') runs = 0 \
             local sem = require('ngx.semaphore').new(0) \
             local t = core.timer.new('mine', function() runs = runs + 1 sem:post(1) if runs == 1 then error('once') end end, \
               {each_ttl = 0.01, sleep_succ = 0.001, sleep_fail = 0.001}) \
             ngx.say(t.name, sem:wait(5), sem:wait(5), runs >= 2)";
        assert_eq!(worker.output(started), "200 minetruetruetrue");
        let wrong = "local new = require('apisix.core.timer').new ngx.say(new()) ngx.say(new('x'))";
        let expected = "200 nilmissing argument: name\nnilmissing argument: callback_fun";
        assert_eq!(worker.output(wrong), expected);
        worker.end();
    }
}
