//! `ngx.shared`: dictionaries that all workers share.

use std::ffi::c_void;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mlua::{Function, LightUserData, Lua, Table, Value};

use super::codec::any_text;
use super::time::now;
use crate::engine::arguments::{Arguments, Results, failed, nothing, one, several, type_name};
use crate::engine::dictionaries::Dictionaries;
use crate::engine::dictionaries::dictionary::{Dictionary, Failure, Item, Store, StoreMode, Stored};
use crate::engine::host::Host;
use crate::engine::modules::Modules;

/// The longest key.
const KEY_BYTES: usize = 65535;

/// A call of a method, with the dictionary that it is for.
struct Call<'a> {
    host: &'a Host,
    arguments: &'a Arguments<'a>,
    dictionary: &'a Mutex<Dictionary>,
    now: Duration,
}

impl<'a> Call<'a> {
    fn lua(&self) -> &'a Lua {
        self.arguments.lua()
    }

    /// Uses the dictionary. Nothing of the state of Lua is touched meanwhile.
    fn with<R>(&self, run: impl FnOnce(&mut Dictionary) -> R) -> R {
        // After a panic under the lock the dictionary is as it was, or lacks entries.
        run(&mut self.dictionary.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    ngx: &Table,
    gateway: &Table,
    modules: &Modules,
    dictionaries: &Arc<Dictionaries>,
) -> mlua::Result<()> {
    let methods = lua.create_table()?;
    for (name, run) in METHODS {
        let dictionaries = Arc::clone(dictionaries);
        host.function(lua, &methods, name, move |host, arguments| {
            let dictionary = dictionary(&dictionaries, &arguments.value(1))?;
            run(&Call { host, arguments: &arguments, dictionary, now: now(host) })
        })?;
    }
    let refuse = host.raw(lua, "shared", |_, _| {
        Err("attempt to change a dictionary, which all scripts share; use its methods".to_owned())
    })?;
    let refuse: Function = gateway.get::<Function>("checked")?.call(refuse)?;
    let share: Function = gateway.get("share")?;
    let shared = lua.create_table()?;
    for (index, name) in dictionaries.0.keys().enumerate() {
        let metatable = lua.create_table()?;
        metatable.raw_set("__index", &methods)?;
        metatable.raw_set("__metatable", false)?;
        metatable.raw_set("__newindex", &refuse)?;
        let object = lua.create_table()?;
        // Numbers of dictionaries are no addresses that are ever read.
        let mark = std::ptr::without_provenance_mut::<c_void>(index + 1);
        object.raw_set(1, Value::LightUserData(LightUserData(mark)))?;
        object.set_metatable(Some(metatable))?;
        shared.raw_set(name.as_str(), share.call::<Table>(object)?)?;
    }
    ngx.raw_set("shared", modules.readonly(shared, "ngx.shared")?)
}

/// The dictionary of an object.
fn dictionary<'a>(dictionaries: &'a Dictionaries, object: &Value) -> Result<&'a Mutex<Dictionary>, String> {
    let mark = match object {
        Value::Table(object) => object.raw_get(1).unwrap_or(Value::Nil),
        _ => Value::Nil,
    };
    let index = match mark {
        Value::LightUserData(LightUserData(mark)) => mark.addr().checked_sub(1),
        _ => None,
    };
    let found = index.and_then(|index| dictionaries.0.values().nth(index));
    found.ok_or_else(|| "bad \"zone\" argument".to_owned())
}

type Method = fn(&Call<'_>) -> Results;

const METHODS: &[(&str, Method)] = &[
    ("get", |call| get(call, false)),
    ("get_stale", |call| get(call, true)),
    ("set", |call| store(call, StoreMode::Set, true)),
    ("safe_set", |call| store(call, StoreMode::Set, false)),
    ("add", |call| store(call, StoreMode::Add, true)),
    ("safe_add", |call| store(call, StoreMode::Add, false)),
    ("replace", |call| store(call, StoreMode::Replace, true)),
    ("delete", delete),
    ("incr", incr),
    ("lpush", |call| push(call, true)),
    ("rpush", |call| push(call, false)),
    ("lpop", |call| pop(call, true)),
    ("rpop", |call| pop(call, false)),
    ("llen", llen),
    ("ttl", ttl),
    ("expire", expire),
    ("flush_all", |call| {
        call.with(|dictionary| dictionary.flush_all());
        nothing()
    }),
    ("flush_expired", |call| {
        let most =
            usize::try_from(call.arguments.optional_integer(2)?.unwrap_or_default()).unwrap_or_default();
        let now = call.now;
        one(call.lua(), call.with(|dictionary| dictionary.flush_expired(now, most)))
    }),
    ("get_keys", get_keys),
    ("capacity", |call| one(call.lua(), call.with(|dictionary| dictionary.capacity()))),
    ("free_space", |call| one(call.lua(), call.with(|dictionary| dictionary.free_space()))),
];

/// The key, or the reason why it is invalid.
fn key(call: &Call<'_>) -> Result<Result<Vec<u8>, &'static str>, String> {
    if call.arguments.is_nil(2) {
        return Ok(Err("nil key"));
    }
    let key = any_text(call.lua(), &call.arguments.value(2))?;
    Ok(match key.len() {
        0 => Err("empty key"),
        1..=KEY_BYTES => Ok(key),
        _ => Err("key too long"),
    })
}

/// Takes the key of a call, or returns nil and the reason.
macro_rules! key {
    ($call:expr) => {
        match key($call)? {
            Ok(key) => key,
            Err(reason) => return failed($call.lua(), reason),
        }
    };
}

fn get(call: &Call<'_>, is_stale_right: bool) -> Results {
    let key = key!(call);
    let now = call.now;
    let found = match call.with(|dictionary| dictionary.get(&key, now, is_stale_right)) {
        Ok(Some(found)) => found,
        Ok(None) => return one(call.lua(), Value::Nil),
        Err(Failure(reason)) => return failed(call.lua(), reason),
    };
    let value = value_of(call.lua(), &found.item)?;
    let flags = if found.flags == 0 { Value::Nil } else { Value::Number(f64::from(found.flags)) };
    match (is_stale_right, &flags) {
        (true, _) => several(call.lua(), (value, flags, found.is_expired)),
        (false, Value::Nil) => one(call.lua(), value),
        (false, _) => several(call.lua(), (value, flags)),
    }
}

fn value_of(lua: &Lua, item: &Item) -> Result<Value, String> {
    match item {
        Item::Text(text) => lua.create_string(text).map(Value::String).map_err(|error| error.to_string()),
        Item::Number(number) => Ok(Value::Number(*number)),
        Item::Boolean(value) => Ok(Value::Boolean(*value)),
    }
}

/// The value at this place; None for nil.
fn item(call: &Call<'_>, place: usize) -> Result<Option<Item>, &'static str> {
    match call.arguments.value(place) {
        Value::Nil => Ok(None),
        Value::String(text) => Ok(Some(Item::Text(text.as_bytes().to_vec()))),
        // Numbers of Lua are doubles.
        Value::Integer(number) => Ok(Some(Item::Number(number as f64))),
        Value::Number(number) => Ok(Some(Item::Number(number))),
        Value::Boolean(value) => Ok(Some(Item::Boolean(value))),
        _ => Err("bad value type"),
    }
}

/// Seconds as a time to live; None for 0, which means forever.
fn lifetime(seconds: f64) -> Option<Duration> {
    // Milliseconds, as in nginx; longer times than a thousand years are that long.
    let milliseconds = (seconds * 1000.0).clamp(0.0, 3.2e13) as u64;
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds))
}

fn store(call: &Call<'_>, mode: StoreMode, may_evict: bool) -> Results {
    let seconds = match call.arguments.value(4) {
        Value::Boolean(false) => 0.0,
        _ => call.arguments.optional_number(4)?.unwrap_or_default(),
    };
    if seconds < 0.0 {
        return Err("bad \"exptime\" argument".to_owned());
    }
    let flags = match call.arguments.value(5) {
        Value::Boolean(false) => 0,
        _ => call.arguments.optional_integer(5)?.unwrap_or_default(),
    };
    let key = key!(call);
    let item = match item(call, 3) {
        Ok(item) => item,
        Err(reason) => return failed(call.lua(), reason),
    };
    let flags = i32::try_from(flags).unwrap_or_default();
    let what = Store { mode, may_evict, lifetime: lifetime(seconds), flags };
    let now = call.now;
    stored(call, |dictionary| dictionary.store(&key, item, &what, now))
}

/// The results of an operation that stores: true or false, an error, and whether others were evicted.
fn stored(call: &Call<'_>, run: impl FnOnce(&mut Dictionary) -> Stored) -> Results {
    let Stored { result, has_evicted } = call.with(run);
    match result {
        Ok(()) => several(call.lua(), (true, Value::Nil, has_evicted)),
        Err(Failure(reason)) => several(call.lua(), (false, reason, has_evicted)),
    }
}

fn delete(call: &Call<'_>) -> Results {
    let key = key!(call);
    let what = Store { mode: StoreMode::Set, may_evict: true, lifetime: None, flags: 0 };
    let now = call.now;
    stored(call, |dictionary| dictionary.store(&key, None, &what, now))
}

fn incr(call: &Call<'_>) -> Results {
    let key = key!(call);
    let number = |place: usize| {
        let value = call.arguments.value(place);
        call.lua().coerce_number(value).map_err(|error| error.to_string())
    };
    let Some(by) = number(3)? else { return Err("cannot convert 'nil' to 'double'".to_owned()) };
    let init = match call.arguments.value(4) {
        Value::Nil | Value::Boolean(false) => None,
        other => Some(
            number(4)?.ok_or_else(|| format!("bad init arg: number expected, got {}", type_name(&other)))?,
        ),
    };
    let lifetime = match call.arguments.value(5) {
        Value::Nil => None,
        other => {
            let seconds = number(5)?
                .ok_or_else(|| format!("bad init_ttl arg: number expected, got {}", type_name(&other)))?;
            if seconds < 0.0 {
                return Err("bad \"init_ttl\" argument".to_owned());
            }
            if init.is_none() {
                return Err("must provide \"init\" when providing \"init_ttl\"".to_owned());
            }
            lifetime(seconds)
        }
    };
    let now = call.now;
    match call.with(|dictionary| dictionary.incr(&key, by, init, lifetime, now)) {
        Err(Failure(reason)) => failed(call.lua(), reason),
        Ok((value, _)) if init.is_none() => one(call.lua(), value),
        Ok((value, has_evicted)) => several(call.lua(), (value, Value::Nil, has_evicted)),
    }
}

fn expect_arguments(call: &Call<'_>, count: usize) -> Result<(), String> {
    match call.arguments.count() {
        seen if seen == count => Ok(()),
        seen => Err(format!("expecting {count} arguments, but only seen {seen}")),
    }
}

fn push(call: &Call<'_>, is_left: bool) -> Results {
    expect_arguments(call, 3)?;
    let key = key!(call);
    let item = match item(call, 3) {
        Ok(Some(item @ (Item::Text(_) | Item::Number(_)))) => item,
        _ => return failed(call.lua(), "bad value type"),
    };
    let now = call.now;
    match call.with(|dictionary| dictionary.push(&key, item, is_left, now)) {
        Ok(length) => one(call.lua(), length),
        Err(Failure(reason)) => failed(call.lua(), reason),
    }
}

fn pop(call: &Call<'_>, is_left: bool) -> Results {
    expect_arguments(call, 2)?;
    let key = key!(call);
    let now = call.now;
    match call.with(|dictionary| dictionary.pop(&key, is_left, now)) {
        Ok(Some(item)) => one(call.lua(), value_of(call.lua(), &item)?),
        Ok(None) => one(call.lua(), Value::Nil),
        Err(Failure(reason)) => failed(call.lua(), reason),
    }
}

fn llen(call: &Call<'_>) -> Results {
    expect_arguments(call, 2)?;
    let key = key!(call);
    match call.with(|dictionary| dictionary.length(&key, call.now)) {
        Ok(length) => one(call.lua(), length),
        Err(Failure(reason)) => failed(call.lua(), reason),
    }
}

fn ttl(call: &Call<'_>) -> Results {
    let key = key!(call);
    match call.with(|dictionary| dictionary.time_left(&key, call.now)) {
        Some(milliseconds) => one(call.lua(), milliseconds as f64 / 1000.0),
        None => failed(call.lua(), "not found"),
    }
}

fn expire(call: &Call<'_>) -> Results {
    let Some(seconds) = call.arguments.optional_number(3)? else {
        return Err("bad \"exptime\" argument".to_owned());
    };
    let key = key!(call);
    let now = call.now;
    if call.with(|dictionary| dictionary.set_lifetime(&key, lifetime(seconds), now)) {
        one(call.lua(), true)
    } else {
        failed(call.lua(), "not found")
    }
}

fn get_keys(call: &Call<'_>) -> Results {
    const MOST: i64 = 1024;
    let most = call.arguments.optional_integer(2)?.unwrap_or(MOST);
    let most = if most == 0 { usize::MAX } else { usize::try_from(most).unwrap_or_default() };
    call.host.check_time()?;
    let keys = call.with(|dictionary| dictionary.keys(call.now, most));
    let texts: mlua::Result<Vec<_>> = keys.iter().map(|key| call.lua().create_string(key)).collect();
    let table = texts.and_then(|texts| call.lua().create_sequence_from(texts));
    one(call.lua(), table.map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests;
