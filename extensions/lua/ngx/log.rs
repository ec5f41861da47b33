//! `ngx.log`, `print` and `ngx.get_phase`.

use std::rc::Rc;

use mlua::{Lua, Table, Value};

use super::constants::is_null;
use crate::engine::arguments::{Arguments, nothing, one, type_name};
use crate::engine::host::Host;

/// The most bytes of one line, as in nginx.
const LINE_BYTES: usize = 2048;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table, base: &Table) -> mlua::Result<()> {
    host.function(lua, ngx, "log", |_, arguments| {
        if arguments.count() == 0 {
            return Err("expecting at least one argument".to_owned());
        }
        let level = arguments.integer(1)?;
        if !(0..=8).contains(&level) {
            return Err(arguments.bad(1, &format!("bad log level: {level}")));
        }
        write(level, &joined(&arguments, 2)?);
        nothing()
    })?;
    host.function(lua, ngx, "get_phase", |host, arguments| one(arguments.lua(), host.stage().as_str()))?;
    host.function(lua, base, "print", |_, arguments| {
        write(6, &joined(&arguments, 1)?);
        nothing()
    })
}

/// The texts of arguments, one after the other.
pub(crate) fn joined(arguments: &Arguments<'_>, from: usize) -> Result<Vec<u8>, String> {
    let mut line = Vec::new();
    for place in from..=arguments.count() {
        match arguments.value(place) {
            Value::Nil => line.extend_from_slice(b"nil"),
            Value::Boolean(value) => line.extend_from_slice(if value { b"true" } else { b"false" }),
            value if is_null(&value) => line.extend_from_slice(b"null"),
            // Whole numbers are integers, which have no sign of zero.
            Value::Number(0.0) => line.push(b'0'),
            Value::String(_) | Value::Integer(_) | Value::Number(_) => {
                line.extend_from_slice(&arguments.text(place)?.as_bytes());
            }
            Value::Table(table) if table.metatable().is_some_and(|meta| has_text(&meta)) => {
                line.extend_from_slice(
                    Value::Table(table).to_string().map_err(|error| error.to_string())?.as_bytes(),
                );
            }
            value => {
                let reason = format!("string, number, boolean, or nil expected, got {}", type_name(&value));
                return Err(arguments.bad(place, &reason));
            }
        }
        if line.len() >= LINE_BYTES {
            line.truncate(LINE_BYTES);
            break;
        }
    }
    Ok(line)
}

fn has_text(metatable: &Table) -> bool {
    metatable.raw_get::<Value>("__tostring").is_ok_and(|value| !value.is_nil())
}

/// Whether lines of this level are written.
pub(crate) fn is_written(level: i64) -> bool {
    match level {
        0..=4 => tracing::enabled!(tracing::Level::ERROR),
        5 => tracing::enabled!(tracing::Level::WARN),
        6 | 7 => tracing::enabled!(tracing::Level::INFO),
        _ => tracing::enabled!(tracing::Level::DEBUG),
    }
}

/// Writes a line with a level of nginx.
pub(crate) fn write(level: i64, line: &[u8]) {
    let line = String::from_utf8_lossy(line);
    match level {
        0..=4 => tracing::error!("[lua] {line}"),
        5 => tracing::warn!("[lua] {line}"),
        6 | 7 => tracing::info!("[lua] {line}"),
        _ => tracing::debug!("[lua] {line}"),
    }
}
