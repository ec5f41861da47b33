//! `core.string`.

use std::rc::Rc;

use mlua::{Lua, Table, Value};

use crate::engine::arguments::{Arguments, one, several, type_name};
use crate::engine::host::Host;
use crate::engine::modules::Modules;

pub(super) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    core: &Table,
    modules: &Modules,
    libraries: &Table,
) -> mlua::Result<()> {
    let string = lua.create_table()?;
    host.function(lua, &string, "find", |_, arguments| {
        let (text, wanted) = (arguments.text(1)?, arguments.text(2)?);
        let from = arguments.optional_integer(3)?.unwrap_or(1);
        match found(&text.as_bytes(), &wanted.as_bytes(), from) {
            Some((first, last)) => several(arguments.lua(), (first as i64, last as i64)),
            None => one(arguments.lua(), Value::Nil),
        }
    })?;
    host.function(lua, &string, "has_prefix", |_, arguments| {
        let (text, prefix) = texts(&arguments, "prefix")?;
        one(arguments.lua(), has_prefix(&text, &prefix))
    })?;
    host.function(lua, &string, "has_suffix", |_, arguments| {
        let (text, suffix) = texts(&arguments, "suffix")?;
        one(arguments.lua(), text.ends_with(&suffix))
    })?;
    host.function(lua, &string, "rfind_char", |_, arguments| {
        let (text, wanted) = (arguments.text(1)?, arguments.text(2)?);
        let wanted = wanted.as_bytes().first().copied();
        let text = text.as_bytes();
        let last = arguments.optional_integer(3)?.unwrap_or(text.len() as i64);
        let last = usize::try_from(last).unwrap_or_default().min(text.len());
        let at = wanted.and_then(|wanted| text[..last].iter().rposition(|byte| *byte == wanted));
        one(arguments.lua(), at.map(|at| at as i64 + 1))
    })?;
    host.function(lua, &string, "decode_args", |_, arguments| {
        let text = arguments.text(1)?;
        let table = decoded(arguments.lua(), &text.as_bytes()).map_err(|error| error.to_string())?;
        one(arguments.lua(), table)
    })?;
    host.function(lua, &string, "encode_args", |_, arguments| {
        let text = encoded(&arguments.table(1)?)?;
        one(arguments.lua(), arguments.lua().create_string(text).map_err(|error| error.to_string())?)
    })?;
    host.function(lua, &string, "compress_script", |_, arguments| {
        let text = arguments.text(1)?;
        let text = compressed(&text.as_bytes());
        one(arguments.lua(), arguments.lua().create_string(text).map_err(|error| error.to_string())?)
    })?;
    // The library of scripts serves all other members: its patterns have a limit of steps.
    let metatable = lua.create_table()?;
    metatable.raw_set("__index", libraries.raw_get::<Table>("string")?)?;
    string.set_metatable(Some(metatable))?;
    host.refuse(lua, &string, "core.string.dump".to_owned(), "scripts may not make bytecode")?;
    core.raw_set("string", modules.shared("apisix.core.string", string)?)
}

/// Two texts. Other types raise, numbers too.
fn texts(arguments: &Arguments<'_>, name: &str) -> Result<(Vec<u8>, Vec<u8>), String> {
    match (arguments.value(1), arguments.value(2)) {
        (Value::String(text), Value::String(part)) => {
            Ok((text.as_bytes().to_vec(), part.as_bytes().to_vec()))
        }
        (text, part) => Err(format!("unexpected type: s:{}, {name}:{}", type_name(&text), type_name(&part))),
    }
}

/// Whether a text begins with another.
pub(super) fn has_prefix(text: &[u8], prefix: &[u8]) -> bool {
    text.starts_with(prefix)
}

/// The first and last index of a part, from 1, at or after `from`.
fn found(text: &[u8], wanted: &[u8], from: i64) -> Option<(usize, usize)> {
    let length = text.len() as i64;
    let start = match from {
        0 => 1,
        from if from < 0 => (length + from + 1).max(1),
        from => from,
    };
    let start = usize::try_from(start - 1).ok()?;
    let rest = text.get(start..)?;
    let at = match wanted {
        [] => 0,
        wanted => memchr::memmem::find(rest, wanted)?,
    };
    Some((start + at + 1, start + at + wanted.len()))
}

/// A query, decoded: a name that is repeated has a table of values, one without `=` is true.
fn decoded(lua: &Lua, query: &[u8]) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for part in query.split(|byte| *byte == b'&') {
        let mut sides = part.splitn(2, |byte| *byte == b'=');
        let name = unescaped(sides.next().unwrap_or_default());
        if name.is_empty() {
            continue;
        }
        let name = lua.create_string(name)?;
        let value = match sides.next() {
            Some(value) => Value::String(lua.create_string(unescaped(value))?),
            None => Value::Boolean(true),
        };
        match table.raw_get::<Value>(&name)? {
            Value::Nil => table.raw_set(name, value)?,
            Value::Table(values) => values.raw_push(value)?,
            first => table.raw_set(name, lua.create_sequence_from([first, value])?)?,
        }
    }
    Ok(table)
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let digit = |place: usize| text.get(place).and_then(|byte| (*byte as char).to_digit(16));
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 2;
            }
            (b'+', ..) => bytes.push(b' '),
            (byte, ..) => bytes.push(*byte),
        }
        at += 1;
    }
    bytes
}

/// The text of a query. Names have the order of the table.
fn encoded(table: &Table) -> Result<Vec<u8>, String> {
    let mut query = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair.map_err(|error| error.to_string())?;
        let Value::String(name) = name else {
            return Err("attempt to use a non-string key in the \"args\" arg table".to_owned());
        };
        match &value {
            Value::Table(values) => {
                for value in values.sequence_values::<Value>() {
                    let value = value.map_err(|error| error.to_string())?;
                    put(&mut query, &name.as_bytes(), &value)?;
                }
            }
            value => put(&mut query, &name.as_bytes(), value)?,
        }
    }
    Ok(query)
}

fn put(query: &mut Vec<u8>, name: &[u8], value: &Value) -> Result<(), String> {
    let text = match value {
        Value::Boolean(false) => return Ok(()),
        Value::Boolean(true) => None,
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => {
            Some(value.to_string().map_err(|error| error.to_string())?.into_bytes())
        }
        other => return Err(format!("attempt to use {} as query arg value", type_name(other))),
    };
    if !query.is_empty() {
        query.push(b'&');
    }
    escape(query, name);
    if let Some(text) = text {
        query.push(b'=');
        escape(query, &text);
    }
    Ok(())
}

fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~!'()*".contains(byte) {
            out.push(*byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

/// A script of Redis without indentation.
fn compressed(text: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(text.len());
    let mut skips = true;
    for byte in text {
        if skips && byte.is_ascii_whitespace() {
            continue;
        }
        out.push(*byte);
        skips = matches!(byte, b'\n' | b',');
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    #[test]
    fn texts_are_searched_plainly() {
        for (value, expected) in [
            ("s.find('a.b', '.')", "22"),
            ("s.find('abab', 'b', 3)", "44"),
            ("s.find('ab', 'c')", "nil"),
            ("s.find('abc', 'c', -1)", "33"),
            ("s.find('a', '', 9)", "nil"),
            ("s.has_prefix('abc', 'ab'), s.has_prefix('a', 'ab')", "truefalse"),
            ("s.has_suffix('abc', 'bc'), s.has_suffix('abc', 'b')", "truefalse"),
            ("select(2, pcall(s.has_prefix, 1, 'a'))", "unexpected type: s:number, prefix:string"),
            ("s.rfind_char('a/b/c', '/'), s.rfind_char('a/b/c', '/', 3), s.rfind_char('a', '/')", "42nil"),
            ("s.upper('a'), s.format('%d', 3)", "A3"),
            (
                "require('apisix.core').json.canonical_encode(s.decode_args('a=1&b=x%20y+z&a=2&c&=d'))",
                r#"{"a":["1","2"],"b":"x y z","c":true}"#,
            ),
            ("s.encode_args({a = {1, true, 'b c'}})", "a=1&a&a=b%20c"),
            ("s.encode_args({a = false})", ""),
            (
                "select(2, pcall(s.encode_args, {1}))",
                "attempt to use a non-string key in the \"args\" arg table",
            ),
            ("s.compress_script('  a,  b\\n   c')", "a,b\nc"),
            ("pcall(s.dump, print)", "falsecore.string.dump: scripts may not make bytecode"),
        ] {
            let body = format!("local s = require('apisix.core').string ngx.print({value})");
            assert_eq!(output_of(&body), expected, "{value}");
        }
    }
}
