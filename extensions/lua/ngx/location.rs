//! Calls that need locations of nginx: they raise an error that says so.

use std::rc::Rc;

use mlua::{Lua, Table};

use crate::engine::host::{Host, Stage};

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table) -> mlua::Result<()> {
    let location = lua.create_table()?;
    for name in ["capture", "capture_multi"] {
        host.function(lua, &location, name, |host, _| Err(refusal(host)))?;
    }
    ngx.raw_set("location", location)?;
    host.function(lua, ngx, "exec", |host, _| Err(refusal(host)))
}

fn refusal(host: &Host) -> String {
    match host.stage() {
        Stage::Rewrite | Stage::Access => {
            "this gateway has no locations of nginx: call a service by resty.http".to_owned()
        }
        stage => stage.disabled(),
    }
}
