//! `core.lrucache`.
//!
//! It is Lua, so that functions that make values can wait. Several runs may make the same value at a time.

use std::rc::Rc;
use std::time::Instant;

use mlua::{Function, Lua, Table};

use crate::engine::host::Host;
use crate::engine::modules::Modules;

/// The most entries of one cache. The memory limit of scripts holds besides.
const MOST_ENTRIES: usize = 1_000_000;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let start = Instant::now();
    let clock = lua.create_function(move |_, ()| Ok(start.elapsed().as_secs_f64()))?;
    let chunk = lua.load(include_str!("lrucache.lua")).set_name("=core.lrucache");
    let (members, forget): (Table, Function) = chunk.call((clock, MOST_ENTRIES))?;
    host.on_forget(forget);
    core.raw_set("lrucache", modules.shared("apisix.core.lrucache", members)?)
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    #[test]
    fn values_are_kept_by_key_and_version() {
        for (body, expected) in [
            // The same version is made once.
            ("local c = new() get(c, 'a', 1) get(c, 'a', 1) get(c, 'a', 2)", "2"),
            // The least recently used entry goes first.
            (
                "local c = new({count = 2}) get(c, 'a') get(c, 'b') get(c, 'a') get(c, 'c') get(c, 'a') get(c, 'b')",
                "4",
            ),
            // An old value of the right version is used again, unless the cache says otherwise.
            ("local c = new({ttl = 1e-9}) get(c, 'a', 1) get(c, 'a', 1)", "1"),
            ("local c = new({ttl = 1e-9, invalid_stale = true}) get(c, 'a', 1) get(c, 'a', 1)", "2"),
            // Without a value nothing is kept, unless failures have their own time.
            ("local c = new() fail(c) fail(c)", "2"),
            (
                "local c = new({neg_ttl = 9, neg_count = 9}) fail(c) local v, e = fail(c) assert(v == nil and e == 'no')",
                "1",
            ),
            (
                "local ctx = {conf_type = 'route', conf_id = '1', conf_version = 5} local c = new() local v = lru.plugin_ctx(c, ctx, 'x', function() return 'v' end) n = lru.plugin_ctx_id(ctx, 'x') .. v",
                "route#1#x#5v",
            ),
            ("n = select(2, pcall(new, {count = 0}))", "core.lrucache.new: `count` is between 1 and 1000000"),
            ("get(lru.global, 'a', 1) get(lru.global, 'a', 1)", "1"),
        ] {
            let text = format!(
                "local lru = require('apisix.core').lrucache local new, n = lru.new, 0
                local function get(c, k, v) return c(k, v, function() n = n + 1 return k end) end
                local function fail(c) return c('f', 1, function() n = n + 1 return nil, 'no' end) end
                {body} ngx.print(n)"
            );
            assert_eq!(output_of(&text), expected, "{body}");
        }
    }
}
