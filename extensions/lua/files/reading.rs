//! `io.open` for plugins in files: reading in folders that the node's configuration names.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{Lua, Table, Value};

use crate::engine::arguments::{Results, failed, one};
use crate::engine::host::{Stage, Wait};
use crate::engine::{Engine, message_of};

/// The largest file that a script may read.
const MOST_BYTES: u64 = 8 << 20;

/// Registers `io`. `environment` has the globals of its functions.
pub(super) fn register(
    engine: &Engine,
    environment: Table,
    additions: &Table,
    folders: &[PathBuf],
) -> mlua::Result<()> {
    let (lua, host) = (engine.lua(), engine.host());
    let parts = lua.create_table()?;
    let folders: Rc<[PathBuf]> = folders.into();
    host.waiting_function(lua, &parts, "read", move |host, arguments| {
        let path = PathBuf::from(arguments.text(1)?.to_string_lossy());
        let folders: Vec<PathBuf> = folders.to_vec();
        if host.stage() == Stage::Load {
            // The module or `init` is loaded once for each worker.
            return Ok(Wait::Ready(contents(arguments.lua(), &read(&path, &folders))?));
        }
        // Disks may be slow: the worker goes on meanwhile.
        let reading = async move { tokio::task::spawn_blocking(move || read(&path, &folders)).await };
        Ok(Wait::until(reading, |lua, result| {
            contents(lua, &result.unwrap_or_else(|_| Err("the process is ending".to_owned())))
        }))
    })?;
    let text = lua.load(include_str!("reading.lua")).set_name("=io").set_environment(environment);
    let io: Table = text.call(parts.raw_get::<Value>("read")?)?;
    additions.raw_set("io", io)
}

fn contents(lua: &Lua, result: &Result<Vec<u8>, String>) -> Results {
    match result {
        Ok(bytes) => one(lua, lua.create_string(bytes).map_err(|error| message_of(&error))?),
        Err(reason) => failed(lua, reason),
    }
}

/// Reads a file in one of the folders. Links out of them are refused.
fn read(path: &Path, folders: &[PathBuf]) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let real = std::fs::canonicalize(path).map_err(failed)?;
    let is_within = folders
        .iter()
        .filter_map(|folder| std::fs::canonicalize(folder).ok())
        .any(|folder| real.starts_with(folder));
    if !is_within {
        return Err(format!("{}: its folder is not in `lua.readable_folders`", path.display()));
    }
    let file = std::fs::File::open(&real).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(format!("{}: not a file", path.display()));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("{}: larger than {} MiB", path.display(), MOST_BYTES >> 20));
    }
    Ok(bytes)
}
