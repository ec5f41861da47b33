//! `ngx.sleep`.

use std::rc::Rc;
use std::time::Duration;

use mlua::{Lua, Table};

use crate::engine::host::{Host, Wait};

/// The longest sleep: a request that waits for longer has no client any more.
const MOST: Duration = Duration::from_secs(24 * 3600);

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table) -> mlua::Result<()> {
    host.waiting_function(lua, ngx, "sleep", |_, arguments| {
        if arguments.count() != 1 {
            return Err(format!("attempt to pass {} arguments, but accepted 1", arguments.count()));
        }
        let ms = arguments.number(1)? * 1000.0;
        if ms <= -1.0 {
            return Err(format!("invalid sleep duration \"{}\"", ms as i64));
        }
        Ok(Wait::for_end(async move { tokio::time::sleep(duration_of(ms)).await }))
    })
}

/// A time of a script, in whole milliseconds and at most a day.
pub(super) fn duration_of(ms: f64) -> Duration {
    // Texts that are no number and negative ones become 0.
    Duration::from_millis(ms as u64).min(MOST)
}
