//! Fields of messages: names and values of scripts, and the tables that scripts get.

use std::borrow::Cow;

use mlua::{Lua, MultiValue, Table, Value};
use sigma_http::{HeaderId, Headers};

use crate::engine::arguments::{Results, several};

/// The most fields of a message that scripts change.
pub(super) const MOST_FIELDS: usize = 1000;

/// The longest name of a field that scripts set, in bytes.
const NAME_BYTES: usize = 1024;

/// The most memory of the fields of a message that scripts change: replaced ones take memory until its end.
const MOST_BYTES: usize = 1 << 20;

/// The fields that `get_headers` returns if the script names no number, as in OpenResty.
const DEFAULT_COUNT: usize = 100;

/// Fields of the connection and of the framing, which the gateway itself sets.
const FRAMING: [HeaderId; 9] = [
    HeaderId::Connection,
    HeaderId::ContentLength,
    HeaderId::KeepAlive,
    HeaderId::ProxyConnection,
    HeaderId::Te,
    HeaderId::Trailer,
    HeaderId::TransferEncoding,
    HeaderId::Upgrade,
    HeaderId::ProxyAuthenticate,
];

/// The name of a table's metatable in the registry: keys of any case, and with `_` for `-`.
const FOLDING: &str = "sigma.folding";

/// Makes the metatable of tables with fields.
pub(super) fn register(lua: &Lua) -> mlua::Result<()> {
    let source = "local lower, gsub, rawget, type = string.lower, string.gsub, rawget, type
        return { __metatable = false, __index = function(fields, name)
          if type(name) ~= 'string' then return nil end
          return rawget(fields, (gsub(lower(name), '_', '-')))
        end }";
    let metatable: Table = lua.load(source).set_name("=gateway").eval()?;
    lua.set_named_registry_value(FOLDING, metatable)
}

/// Whether only the gateway sets this field.
pub(super) fn is_framing(name: &[u8]) -> bool {
    FRAMING.contains(&HeaderId::of(name))
}

/// Fails if a message with these further fields is larger than scripts may make it.
pub(super) fn check_room<'v>(headers: &Headers, added: impl Iterator<Item = &'v [u8]>) -> Result<(), String> {
    let (fields, bytes) = added.fold((0, 0), |(fields, bytes), value| (fields + 1, bytes + value.len()));
    if headers.len() + fields > MOST_FIELDS {
        return Err(format!("a message may have {MOST_FIELDS} fields at most"));
    }
    if headers.memory() + bytes > MOST_BYTES {
        return Err(format!("the fields of a message may take {MOST_BYTES} bytes at most"));
    }
    Ok(())
}

/// A value as `tostring` makes it a text.
pub(super) fn text_of(lua: &Lua, value: &Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => {
            let text = lua.coerce_string(value.clone()).map_err(|error| error.to_string())?;
            Ok(text.map(|text| text.as_bytes().to_vec()).unwrap_or_default())
        }
        other => other.to_string().map(String::into_bytes).map_err(|error| error.to_string()),
    }
}

/// The values of a field: one, or the items of an array. Control characters are escaped.
pub(super) fn values_of(lua: &Lua, value: &Value) -> Result<Vec<Vec<u8>>, String> {
    let texts = match value {
        Value::Nil => Vec::new(),
        Value::Table(table) => {
            let length = table.raw_len();
            if length > MOST_FIELDS {
                return Err(format!("a field may have {MOST_FIELDS} values at most"));
            }
            let (mut texts, mut bytes) = (Vec::with_capacity(length), 0);
            for place in 1..=length {
                let value = table.raw_get::<Value>(place).map_err(|error| error.to_string())?;
                let text = text_of(lua, &value)?;
                bytes += text.len();
                // A text may be in the table many times.
                if bytes > MOST_BYTES {
                    return Err(format!("the fields of a message may take {MOST_BYTES} bytes at most"));
                }
                texts.push(text);
            }
            texts
        }
        value => vec![text_of(lua, value)?],
    };
    Ok(texts.into_iter().map(|text| escaped(text, is_control)).collect())
}

/// The name of a field. Characters that no name has are escaped.
///
/// # Errors
/// Returns a message if it is longer than names may be.
pub(super) fn name_of(name: &[u8]) -> Result<String, String> {
    if name.len() > NAME_BYTES {
        return Err(format!("the name of a field may have {NAME_BYTES} bytes at most"));
    }
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let name = escaped(name, |byte| !is_token(byte));
    // Only ASCII is left.
    Ok(String::from_utf8_lossy(&name).into_owned())
}

fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// A text with `%XX` for these bytes.
pub(super) fn escaped<'t>(text: impl Into<Cow<'t, [u8]>>, is_escaped: impl Fn(u8) -> bool) -> Vec<u8> {
    let text = text.into();
    if !text.iter().any(|byte| is_escaped(*byte)) {
        return text.into_owned();
    }
    let mut out = Vec::with_capacity(text.len());
    for &byte in &*text {
        if is_escaped(byte) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
    out
}

/// nil, the one value, or a table of several.
pub(super) fn value_of<'h>(lua: &Lua, values: impl Iterator<Item = &'h [u8]>) -> mlua::Result<Value> {
    let mut found = Value::Nil;
    for value in values {
        let value = lua.create_string(value)?;
        found = add(lua, found, Value::String(value))?;
    }
    Ok(found)
}

/// A value besides the earlier ones of its name: from the second on they are a table.
pub(super) fn add(lua: &Lua, earlier: Value, value: Value) -> mlua::Result<Value> {
    match earlier {
        Value::Nil => Ok(value),
        Value::Table(all) => {
            all.raw_push(value)?;
            Ok(Value::Table(all))
        }
        first => Ok(Value::Table(lua.create_sequence_from([first, value])?)),
    }
}

/// How many entries a function returns: the script's number, 0 for all.
pub(super) fn count_of(most: Option<i64>) -> usize {
    match most {
        Some(0) => usize::MAX,
        Some(most) => usize::try_from(most).unwrap_or(DEFAULT_COUNT),
        None => DEFAULT_COUNT,
    }
}

/// A table of fields, and `truncated` if there are more than `most`. `raw` keeps the case of names.
pub(super) fn table_of<'h>(
    lua: &Lua,
    fields: impl Iterator<Item = (&'h [u8], &'h [u8])>,
    most: usize,
    raw: bool,
) -> Results {
    let made = || {
        let table = lua.create_table()?;
        let mut is_cut = false;
        for (number, (name, value)) in fields.enumerate() {
            if number >= most {
                is_cut = true;
                break;
            }
            let name = if raw { name.to_vec() } else { name.to_ascii_lowercase() };
            let name = lua.create_string(name)?;
            let value = Value::String(lua.create_string(value)?);
            let value = add(lua, table.raw_get(&name)?, value)?;
            table.raw_set(name, value)?;
        }
        if !raw {
            table.set_metatable(Some(lua.named_registry_value(FOLDING)?))?;
        }
        Ok((table, is_cut))
    };
    truncated(lua, made())
}

/// A table, and a second result if entries are missing.
pub(super) fn truncated(lua: &Lua, made: mlua::Result<(Table, bool)>) -> Results {
    let (table, is_cut) = made.map_err(|error| error.to_string())?;
    if is_cut { several(lua, (table, "truncated")) } else { Ok(MultiValue::from_iter([Value::Table(table)])) }
}
