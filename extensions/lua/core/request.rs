//! `core.request`.

use std::rc::Rc;

use mlua::{Function, Lua, Table};

use super::to_lua;
use crate::engine::arguments::{failed, one};
use crate::engine::host::Host;

/// Registers `core.request`.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table) -> mlua::Result<()> {
    let parts = lua.create_table()?;
    host.function(lua, &parts, "decode", |_, arguments| {
        match serde_json::from_slice(&arguments.text(1)?.as_bytes()) {
            Ok(value) => {
                one(arguments.lua(), to_lua(arguments.lua(), &value).map_err(|error| error.to_string())?)
            }
            Err(error) => failed(arguments.lua(), error.to_string()),
        }
    })?;
    let decode: Function = parts.raw_get("decode")?;
    let source = lua.load(include_str!("request.lua")).set_name("=gateway");
    core.raw_set("request", source.call::<Table>((crate::ngx::table(lua)?, decode))?)
}
