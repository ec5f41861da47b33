//! The reference of the calls that scripts have, made from the tables of a state: a call that is not there is not listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use mlua::{Table, Value};

use crate::engine::modules::known_modules;
use crate::engine::{Engine, message_of};
use crate::state::with_checker;

/// Libraries of Lua that scripts have as globals.
const LIBRARIES: [&str; 8] = ["bit", "coroutine", "debug", "math", "os", "string", "table", "_G"];

/// Members of one table.
#[derive(Default)]
struct Members {
    calls: BTreeSet<String>,
    values: BTreeSet<String>,
}

/// Returns the page of the reference, in Markdown.
pub fn reference_markdown() -> String {
    let made = with_checker(|engine| page(engine).map_err(|error| message_of(&error)));
    made.unwrap_or_else(|error| format!("Cannot create the reference: {error}\n"))
}

fn page(engine: &Engine) -> mlua::Result<String> {
    let refusals = engine.host().refusals();
    let mut out = "# Calls of Lua scripts\n\nThis page is made from the code: it lists the functions that [scripts](lua.md) have in this version. Rules by phase and results are as in OpenResty and APISIX, unless [the differences](lua.md#differences-from-openresty) say otherwise. Objects, such as sockets and clients, have their usual methods.\n".to_owned();
    out.push_str("\n## The table `ngx`\n\n| table | functions | values |\n|---|---|---|\n");
    let ngx = shown(&crate::ngx::table(engine.lua())?)?;
    row(&mut out, "ngx", &ngx, &refusals)?;
    for (name, inner) in inner_tables(&ngx)? {
        row(&mut out, &format!("ngx.{name}"), &shown(&inner)?, &refusals)?;
    }
    out.push_str("\n## Modules\n\n| module | functions | values |\n|---|---|---|\n");
    for (name, module) in known_modules(engine.lua()) {
        match module {
            // Members of `apisix.core` are modules of their own.
            Value::Table(table) if name != "apisix.core" && !LIBRARIES.contains(&&*name) => {
                row(&mut out, &name, &shown(&table)?, &refusals)?;
            }
            Value::Function(_) => {
                let _ = writeln!(out, "| `{name}` | the module is a function | |");
            }
            _ => {}
        }
    }
    out.push_str("\n## Libraries of Lua\n\n| library | functions | values |\n|---|---|---|\n");
    let environment = engine.new_environment()?;
    for name in LIBRARIES {
        let table = match name {
            "_G" => environment.metatable().map(|meta| meta.raw_get::<Table>("__index")).transpose()?,
            name => environment.get::<Option<Table>>(name)?,
        };
        if let Some(table) = table {
            row(&mut out, name, &shown(&table)?, &refusals)?;
        }
    }
    out.push_str("\n## Calls that raise an error\n\n| call | reason |\n|---|---|\n");
    for (path, reason) in &refusals {
        let _ = writeln!(out, "| `{path}` | {reason} |");
    }
    Ok(out)
}

/// The table behind one that scripts can only read.
fn shown(table: &Table) -> mlua::Result<Table> {
    let behind = table.metatable().map(|meta| meta.raw_get::<Value>("__index")).transpose()?;
    Ok(match behind {
        Some(Value::Table(behind)) => behind,
        _ => table.clone(),
    })
}

fn inner_tables(table: &Table) -> mlua::Result<BTreeMap<String, Table>> {
    let mut found = BTreeMap::new();
    for pair in table.pairs::<Value, Value>() {
        if let (Value::String(name), Value::Table(inner)) = pair? {
            found.insert(name.to_string_lossy(), inner);
        }
    }
    Ok(found)
}

fn row(
    out: &mut String,
    name: &str,
    table: &Table,
    refusals: &BTreeMap<String, &'static str>,
) -> mlua::Result<()> {
    let path = name.replacen("apisix.core.", "core.", 1);
    let mut members = Members::default();
    for pair in table.pairs::<Value, Value>() {
        let (Value::String(member), value) = pair? else { continue };
        let member = member.to_string_lossy();
        match value {
            Value::Function(_) if refusals.contains_key(&format!("{path}.{member}")) => {}
            Value::Function(_) if name == "_G" && refusals.contains_key(&member) => {}
            Value::Function(_) => drop(members.calls.insert(member)),
            Value::Table(_) => {}
            _ => drop(members.values.insert(member)),
        }
    }
    let list = |names: &BTreeSet<String>| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    if !members.calls.is_empty() || !members.values.is_empty() {
        let _ = writeln!(out, "| `{name}` | {} | {} |", list(&members.calls), list(&members.values));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sandbox::check_own;

    #[test]
    fn the_page_lists_calls_and_refusals() {
        let page = reference_markdown();
        for expected in [
            "| `ngx.req` | `add_header`, ",
            "| `resty.http` | `new`",
            "| `apisix.core.response` | ",
            "`say`",
            "| `core.etcd.get` | scripts may not reach the store",
            "| `os.execute` | scripts of a configuration may not reach the machine |",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }

    /// A table that all scripts share must not have a member that a script can write to.
    #[test]
    fn tables_within_shared_tables_are_shared_too() {
        let found = with_checker(|engine| {
            let mut found = Vec::new();
            let ngx = crate::ngx::table(engine.lua()).map_err(|error| message_of(&error))?;
            let tables =
                known_modules(engine.lua()).into_iter().chain([("ngx".to_owned(), Value::Table(ngx))]);
            for (name, value) in tables {
                let Value::Table(table) = value else { continue };
                let is_writable = |table: &Table| check_own(engine.lua(), table).is_ok();
                if is_writable(&table) {
                    found.push(name.clone());
                }
                let inner = shown(&table).and_then(|table| inner_tables(&table));
                for (member, inner) in inner.map_err(|error| message_of(&error))? {
                    if is_writable(&inner) {
                        found.push(format!("{name}.{member}"));
                    }
                }
            }
            Ok(found)
        });
        assert_eq!(found.unwrap(), Vec::<String>::new());
    }
}
