//! The library of tables.

use std::rc::Rc;

use mlua::{Lua, Table, Value};

use crate::engine::arguments::{nothing, one};
use crate::engine::host::Host;
use crate::engine::sandbox::check_own;

/// Functions that are modules too.
pub(crate) const MODULES: &[&str] = &["clear", "clone", "isarray", "isempty", "new", "nkeys"];

/// The most places that a new table has ready: they are a wish, not a limit.
const MOST_READY: i64 = 1 << 16;

/// Adds functions to the libraries of scripts.
pub(crate) fn register(lua: &Lua, host: &Rc<Host>, libraries: &Table, gateway: &Table) -> mlua::Result<()> {
    let tables: Table = libraries.raw_get("table")?;
    host.function(lua, &tables, "new", |_, arguments| {
        let ready = |place: usize| {
            let told = arguments.integer(place)?.clamp(0, MOST_READY);
            Ok::<_, String>(usize::try_from(told).unwrap_or_default())
        };
        let table = arguments.lua().create_table_with_capacity(ready(1)?, ready(2)?);
        one(arguments.lua(), table.map_err(|error| error.to_string())?)
    })?;
    host.function(lua, &tables, "clear", |_, arguments| {
        let Value::Table(table) = arguments.value(1) else { return Err(arguments.wrong(1, "table")) };
        check_own(arguments.lua(), &table)?;
        table.clear().map_err(|error| error.to_string())?;
        nothing()
    })?;
    let late =
        host.raw(lua, "late", |host, arguments| host.check_much(arguments.lua()).and_then(|()| nothing()))?;
    let texts: Table = libraries.raw_get("string")?;
    let text = lua.load(include_str!("lua/tables.lua")).set_name("=table");
    text.into_function()?.call::<()>((tables, texts, late, gateway.get::<Table>("shared")?))
}
