//! Fields of the response: `ngx.header`, `ngx.resp` and `ngx.redirect`.

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};
use sigma_http::{HeaderId, Headers};

use super::fields::{
    MOST_FIELDS, add, check_room, count_of, is_framing, name_of, table_of, text_of, truncated, value_of,
    values_of,
};
use super::request::unsafe_byte;
use crate::engine::arguments::{Arguments, Results, nothing, one};
use crate::engine::host::{Host, ScriptNeed, Stage, Wait};
use crate::engine::modules::Modules;

/// Fields with one value: of several the last one counts.
const SINGLE: [&str; 12] = [
    "accept-ranges",
    "content-encoding",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
    "location",
    "refresh",
    "server",
    "www-authenticate",
];

/// The statuses of `ngx.redirect`.
const REDIRECTS: [i64; 5] = [301, 302, 303, 307, 308];

/// Registers the functions.
pub(super) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    ngx: &Table,
    gateway: &Table,
    modules: &Modules,
) -> mlua::Result<()> {
    let get = host.raw(lua, "header", |host, arguments| {
        let name = text_of(arguments.lua(), &arguments.value(1))?;
        let name = hyphens(&name);
        with_fields(host, |headers| {
            value_of(arguments.lua(), named(headers, &name)).map_err(|error| error.to_string())
        })
        .and_then(|value| one(arguments.lua(), value))
    })?;
    let set = host.raw(lua, "header", |host, arguments| change(host, &arguments, true))?;
    let proxy: Function = gateway.get("proxy")?;
    ngx.raw_set("header", proxy.call::<Value>((get, set))?)?;
    let resp = lua.create_table()?;
    host.function(lua, &resp, "get_headers", get_headers)?;
    host.function(lua, &resp, "add_header", |host, arguments| change(host, &arguments, false))?;
    modules.add("ngx.resp", resp.clone())?;
    let readonly: Function = gateway.get("readonly")?;
    ngx.raw_set("resp", readonly.call::<Table>((resp, "ngx.resp"))?)?;
    host.waiting_function(lua, ngx, "redirect", redirect)
}

/// Uses the fields of the response; before the response, the ones that scripts have set for it.
fn with_fields<R>(host: &Host, run: impl FnOnce(&mut Headers) -> Result<R, String>) -> Result<R, String> {
    let has_response = matches!(host.stage(), Stage::HeaderFilter | Stage::BodyFilter | Stage::Log);
    host.with(|seat| match has_response {
        true => run(&mut seat.ctx.response.headers),
        false => run(&mut seat.exchange.fields.borrow_mut()),
    })
}

/// A name as `ngx.header` reads it.
fn hyphens(name: &[u8]) -> Vec<u8> {
    name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect()
}

fn named<'h>(headers: &'h Headers, name: &'h [u8]) -> impl Iterator<Item = &'h [u8]> {
    headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Sets a field, or adds one.
fn change(host: &Host, arguments: &Arguments<'_>, replaces: bool) -> Results {
    let name = hyphens(&text_of(arguments.lua(), &arguments.value(1))?);
    if arguments.is_nil(2) && !replaces {
        return Err("invalid header value".to_owned());
    }
    let values = values_of(arguments.lua(), &arguments.value(2))?;
    let stage = host.stage();
    let is_sent = host
        .with(|seat| Ok(matches!(stage, Stage::BodyFilter | Stage::Log) || seat.exchange.is_head_sent()))?;
    if is_sent && stage != Stage::HeaderFilter {
        super::log::write(4, b"attempt to set ngx.header.HEADER after sending out response headers");
        return nothing();
    }
    if stage == Stage::HeaderFilter && HeaderId::of(&name) == HeaderId::ContentLength {
        host.with(|seat| {
            seat.exchange.drops_length.set(values.is_empty());
            Ok(())
        })?;
    }
    // The gateway frames the response itself.
    if name.is_empty() || is_framing(&name) {
        return nothing();
    }
    with_fields(host, |headers| store(headers, &name, values, replaces))?;
    if stage == Stage::HeaderFilter {
        host.with(|seat| {
            let mut names = seat.exchange.set_in_filter.borrow_mut();
            if names.len() < MOST_FIELDS {
                names.insert(name.to_ascii_lowercase());
            }
            Ok(())
        })?;
    }
    nothing()
}

fn store(headers: &mut Headers, name: &[u8], mut values: Vec<Vec<u8>>, replaces: bool) -> Result<(), String> {
    let is_single = SINGLE.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name));
    if is_single && values.len() > 1 {
        values.drain(..values.len() - 1);
    }
    if replaces || is_single {
        headers.remove_name(name);
    }
    values.retain(|value| !value.is_empty());
    check_room(headers, values.iter().map(Vec::as_slice))?;
    let name = name_of(name)?;
    for value in values {
        headers.append(&name, &value);
    }
    Ok(())
}

/// `ngx.resp.get_headers`.
fn get_headers(host: &Host, arguments: Arguments<'_>) -> Results {
    let lua = arguments.lua();
    let (most, raw) = (count_of(arguments.optional_integer(1)?), arguments.is_true(2));
    with_fields(host, |headers| {
        // As in nginx, the media type does not count.
        let of_type = |(id, ..): &(HeaderId, &[u8], &[u8])| *id == HeaderId::ContentType;
        let others = headers.fields().filter(|field| !of_type(field)).map(|(_, name, value)| (name, value));
        let results = table_of(lua, others, most, raw)?;
        let Some(Value::Table(table)) = results.front() else { return Ok(results) };
        let made = || {
            for (_, name, value) in headers.fields().filter(of_type) {
                let name = if raw { name.to_vec() } else { name.to_ascii_lowercase() };
                let name = lua.create_string(name)?;
                let value = Value::String(lua.create_string(value)?);
                table.raw_set(&name, add(lua, table.raw_get(&name)?, value)?)?;
            }
            Ok((table.clone(), results.len() > 1))
        };
        truncated(lua, made())
    })
}

/// `ngx.redirect`.
fn redirect(host: &Host, arguments: Arguments<'_>) -> Result<Wait, String> {
    if !(1..=2).contains(&arguments.count()) {
        return Err("expecting one or two arguments".to_owned());
    }
    let target = arguments.text(1)?.as_bytes().to_vec();
    let status = arguments.optional_integer(2)?.unwrap_or(302);
    if !REDIRECTS.contains(&status) {
        return Err("only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, \
             ngx.HTTP_PERMANENT_REDIRECT, ngx.HTTP_SEE_OTHER, and ngx.HTTP_TEMPORARY_REDIRECT are allowed"
            .to_owned());
    }
    host.within(&[Stage::Rewrite, Stage::Access], |seat| {
        if seat.exchange.is_head_sent() {
            return Err("attempt to call ngx.redirect after sending out the headers".to_owned());
        }
        if let Some((byte, shown)) = unsafe_byte(&target) {
            return Err(format!("unsafe byte \"0x{byte:02x}\" in redirect uri \"{shown}\""));
        }
        store(&mut seat.exchange.fields.borrow_mut(), b"Location", vec![target], true)
    })?;
    Ok(Wait::For(ScriptNeed::Exit(status)))
}
