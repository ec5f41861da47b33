//! `core.table`, and the modules `table.new`, `table.clear` and their like.

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use super::string;
use crate::engine::host::Host;
use crate::engine::modules::Modules;

/// Members that are modules of their own in OpenResty's LuaJIT.
const MODULES: &[(&str, &str)] = &[
    ("table.new", "new"),
    ("table.clear", "clear"),
    ("table.nkeys", "nkeys"),
    ("table.clone", "clone"),
    ("table.isarray", "isarray"),
    ("table.isempty", "isempty"),
];

/// Members that are for the gateway alone.
const INNER: &[&str] = &["set_null", "split_path"];

/// Makes the table; `split_path` is returned for other modules.
pub(super) fn register(
    lua: &Lua,
    _host: &Rc<Host>,
    core: &Table,
    modules: &Modules,
    library: Table,
) -> mlua::Result<Function> {
    let has_prefix = lua.create_function(|_, (text, prefix): (mlua::LuaString, mlua::LuaString)| {
        Ok(string::has_prefix(&text.as_bytes(), &prefix.as_bytes()))
    })?;
    let chunk = lua.load(include_str!("table.lua")).set_name("=core.table");
    let members: Table = chunk.call((library, has_prefix))?;
    members.raw_get::<Function>("set_null")?.call::<()>(crate::ngx::null())?;
    let split_path: Function = members.raw_get("split_path")?;
    for name in INNER {
        members.raw_set(*name, Value::Nil)?;
    }
    for (module, name) in MODULES {
        modules.add_value(module, members.raw_get::<Value>(*name)?);
    }
    core.raw_set("table", modules.shared("apisix.core.table", members)?)?;
    Ok(split_path)
}

#[cfg(test)]
mod tests {
    use crate::snippets::{check, output_of};

    /// A body with `core`, `t` and `json` that says one value.
    fn says(value: &str) -> String {
        output_of(&format!(
            "local core = require('apisix.core') local t = core.table local json = core.json.canonical_encode {value}"
        ))
    }

    #[test]
    fn tables_are_compared_copied_and_merged() {
        for (body, expected) in [
            (
                "local a = {1, 2} t.clear(a) ngx.say(#a, t.nkeys({1, x = 2}), t.isempty({}), t.isarray({1, x = 2}))",
                "02truefalse\n",
            ),
            ("local a = t.new(2, 0) ngx.say(t.insert_tail(a, 'a', 'b'), t.concat(a, ','))", "2a,b\n"),
            ("local a = {9, 9, 9} t.set(a, 1, 2) ngx.say(json(a))", "[1,2,9]\n"),
            (
                "ngx.say(t.try_read_attr({a = {b = 3}}, 'a', 'b'), t.try_read_attr({a = 1}, 'a', 'b'))",
                "3nil\n",
            ),
            (
                "ngx.say(t.array_find({'a', 'b'}, 'b'), t.array_find({'a'}, 'b'), t.array_find('a', 'a'))",
                "2nilnil\n",
            ),
            (
                "local a = {x = {1}} a.self = a local b = t.deepcopy(a) ngx.say(b.self == b, b.x ~= a.x, b.x[1])",
                "truetrue1\n",
            ),
            (
                "local a = {x = {y = {}}, z = {}} local b = t.deepcopy(a, {shallows = {'self.x.y'}}) ngx.say(b.x.y == a.x.y, b.x == a.x, b.z == a.z)",
                "truefalsefalse\n",
            ),
            (
                "local a = {x = {y = {}}, z = {}} local b = t.deepcopy(a, {shallow_prefix = 'self.x'}) ngx.say(b.x.y == a.x.y, b.x == a.x, b.z == a.z)",
                "truefalsefalse\n",
            ),
            (
                "ngx.say(json(t.merge({a = {b = 1}, l = {1, 2}, n = 1}, {a = {c = 2}, l = {3}, n = ngx.null})))",
                "{\"a\":{\"b\":1,\"c\":2},\"l\":[3]}\n",
            ),
            (
                "local code, err, new = t.patch({a = {}}, 'a/b', 1) ngx.say(code, err, json(new))",
                "nilnil{\"a\":{\"b\":1}}\n",
            ),
            ("ngx.say(t.patch({a = 1}, 'a/b', 1))", "400invalid sub-path: /a\n"),
            (
                "ngx.say(t.set_eq({a = 1}, {a = 2}), t.deep_eq({a = {1}}, {a = {1}}), t.deep_eq({a = {1}}, {a = {2}}))",
                "truetruefalse\n",
            ),
            (
                "ngx.say(json(t.pick({a = 1, b = 2}, {a = true})), json(t.reverse({1, 2, 3})))",
                "{\"a\":1}[3,2,1]\n",
            ),
            ("local a = {3, 1, 2} t.sort(a) t.insert(a, 4) ngx.say(json(a), t.remove(a))", "[1,2,3,4]4\n"),
            ("ngx.say(pcall(t.clear, 1))", "falsebad argument #1 to 'clear' (table expected, got number)\n"),
            ("t.new = 1", "500"),
        ] {
            assert_eq!(says(body), expected, "{body}");
        }
        check(&[(
            "local t = {1} require('table.clear')(t) ngx.say(#t, require('table.nkeys')({a = 1}))",
            "01\n",
        )]);
    }
}
