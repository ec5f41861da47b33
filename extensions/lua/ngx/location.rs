//! Calls that need locations of nginx: they raise an error that says so.

use std::rc::Rc;

use mlua::{Lua, Table};

use crate::engine::host::{Host, Stage};
use crate::engine::modules::Modules;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table, modules: &Modules) -> mlua::Result<()> {
    let location = lua.create_table()?;
    for name in ["capture", "capture_multi"] {
        host.note_refusal(&format!("ngx.location.{name}"), REASON);
        host.function(lua, &location, name, |host, _| Err(refusal(host)))?;
    }
    ngx.raw_set("location", modules.readonly(location, "ngx.location")?)?;
    host.note_refusal("ngx.exec", REASON);
    host.function(lua, ngx, "exec", |host, _| Err(refusal(host)))
}

const REASON: &str = "this gateway has no nginx locations: call a service with resty.http";

fn refusal(host: &Host) -> String {
    match host.stage() {
        Stage::Rewrite | Stage::Access => REASON.to_owned(),
        stage => stage.disabled(),
    }
}
