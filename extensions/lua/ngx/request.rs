//! The request: `ngx.req`.

use std::rc::Rc;

use aws_lc_rs::digest::{self, SHA256};
use mlua::{Lua, Table, Value};
use sigma_http::{HeaderId, is_authority};
use sigma_plugin::variables::percent_encode_path;
use sigma_plugin::{Context, OwnedField};

use super::fields::{check_room, count_of, escaped, is_framing, name_of, table_of, text_of, values_of};
use crate::engine::arguments::{Arguments, Results, nothing, one};
use crate::engine::exchange::Exchange;
use crate::engine::host::{Host, Seat, Stage};

/// Methods by the numbers of their constants.
const METHODS: [(i64, &str); 15] = [
    (2, "GET"),
    (4, "HEAD"),
    (8, "POST"),
    (16, "PUT"),
    (32, "DELETE"),
    (64, "MKCOL"),
    (128, "COPY"),
    (256, "MOVE"),
    (512, "OPTIONS"),
    (1024, "PROPFIND"),
    (2048, "PROPPATCH"),
    (4096, "LOCK"),
    (8192, "UNLOCK"),
    (16384, "PATCH"),
    (32768, "TRACE"),
];

/// The longest target that a script may set, in bytes.
pub(super) const TARGET_BYTES: usize = 1 << 16;

/// Registers the functions.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, req: &Table) -> mlua::Result<()> {
    host.function(lua, req, "get_headers", |host, arguments| {
        let (most, raw) = (count_of(arguments.optional_integer(1)?), arguments.is_true(2));
        host.with(|seat| table_of(arguments.lua(), seat.ctx.request.headers.iter(), most, raw))
    })?;
    host.function(lua, req, "set_header", |host, arguments| set_header(host, &arguments, true))?;
    host.function(lua, req, "add_header", |host, arguments| set_header(host, &arguments, false))?;
    host.function(lua, req, "clear_header", |host, arguments| {
        let name = text_of(arguments.lua(), arguments.get(1))?;
        host.with(|seat| store(&mut seat.ctx, &name, &[], true))?;
        nothing()
    })?;
    host.function(lua, req, "get_method", |host, arguments| {
        let method = host.with(|seat| Ok(seat.ctx.request.method_token().to_vec()))?;
        one(arguments.lua(), arguments.lua().create_string(method).map_err(|error| error.to_string())?)
    })?;
    host.function(lua, req, "set_method", |host, arguments| {
        let number = match arguments.value(1) {
            Value::Integer(number) => number,
            Value::Number(number) => number as i64,
            _ => return Err("bad method number".to_owned()),
        };
        let method = METHODS.iter().find(|(known, _)| *known == number);
        let (_, method) = method.ok_or_else(|| format!("unsupported HTTP method: {number}"))?;
        host.with(|seat| {
            if seat.ctx.request.method_token() != method.as_bytes() {
                // A loop of replacements takes memory.
                check_room(&seat.ctx.request.headers, [method.as_bytes()].into_iter())?;
                seat.ctx.request.set_method(method);
            }
            Ok(())
        })?;
        nothing()
    })?;
    host.function(lua, req, "set_uri", set_uri)?;
    host.function(lua, req, "start_time", |host, arguments| {
        let seconds = host.with(|seat| {
            let elapsed = seat.ctx.record.elapsed_ms().unwrap_or_default();
            Ok(((seat.now.as_secs_f64() * 1000.0 - elapsed).max(0.0)).round() / 1000.0)
        })?;
        one(arguments.lua(), seconds)
    })?;
    host.function(lua, req, "is_internal", |host, arguments| {
        let is_internal = host.with(|seat| Ok(seat.ctx.within > 0))?;
        one(arguments.lua(), is_internal)
    })?;
    host.function(lua, req, "http_version", |host, arguments| {
        let version = host.with(|seat| Ok(seat.ctx.request.version))?;
        one(arguments.lua(), version.as_str().trim_start_matches("HTTP/").parse::<f64>().unwrap_or(1.1))
    })?;
    host.function(lua, req, "raw_header", |host, arguments| {
        let head = host.with(|seat| Ok(head(&seat.ctx, arguments.is_true(1))))?;
        one(arguments.lua(), arguments.lua().create_string(head).map_err(|error| error.to_string())?)
    })
}

fn field_name(arguments: &Arguments<'_>) -> Result<Vec<u8>, String> {
    if arguments.is_nil(1) {
        return Err("bad 'name' argument: string expected, got nil".to_owned());
    }
    text_of(arguments.lua(), arguments.get(1))
}

/// Sets a field, or adds one.
fn set_header(host: &Host, arguments: &Arguments<'_>, replaces: bool) -> Results {
    let name = field_name(arguments)?;
    let values = values_of(arguments.lua(), arguments.get(2))?;
    if values.is_empty() && !replaces {
        let (wanted, got) = match arguments.is_nil(2) {
            true => ("string or table", ", got nil"),
            false => ("non-empty table", ""),
        };
        return Err(format!("bad 'value' argument: {wanted} expected{got}"));
    }
    host.with(|seat| store(&mut seat.ctx, &name, &values, replaces))?;
    nothing()
}

/// Replaces the values of a field, or adds to them. Scripts set neither fields of the framing nor fields that another
/// plugin checks.
fn store(ctx: &mut Context, name: &[u8], values: &[Vec<u8>], replaces: bool) -> Result<(), String> {
    if name.is_empty() || is_framing(name) {
        return Ok(());
    }
    let mut values = values.iter().filter(|value| !value.is_empty());
    if HeaderId::of(name) == HeaderId::Host {
        return values.next_back().map_or(Ok(()), |host| set_host(ctx, host));
    }
    let name = name_of(name)?;
    if values.clone().next().is_some() && ctx.is_reserved(name.as_bytes()) {
        return Err(format!(
            "field {name} belongs to another plugin of the route; scripts may only remove it"
        ));
    }
    if HeaderId::of(name.as_bytes()) == HeaderId::Other
        && !ctx.owned.iter().any(|owned| owned.covers(name.as_bytes()))
    {
        // The client must not send it in another spelling, nor in trailers.
        ctx.claim(OwnedField::shared(name.as_str()));
    }
    note(ctx, &name, values.clone());
    if replaces {
        ctx.request.headers.remove_name(name.as_bytes());
    }
    check_room(&ctx.request.headers, values.clone().map(Vec::as_slice))?;
    for value in values {
        ctx.request.headers.append(&name, value);
    }
    Ok(())
}

/// A longer record of fields becomes a digest: caches keep it.
const RECORD_BYTES: usize = 1024;

/// The beginning of a record with a digest. No text is so long.
const DIGEST: [u8; 8] = [0xff; 8];

/// Adds a field to the record of all that scripts set in this exchange: caches separate responses by it.
fn note<'v>(ctx: &mut Context, name: &'v str, values: impl Iterator<Item = &'v Vec<u8>>) {
    let record = ctx.fields_record();
    for text in std::iter::once(name.as_bytes()).chain(values.map(Vec::as_slice)) {
        record.extend_from_slice(&(text.len() as u64).to_le_bytes());
        record.extend_from_slice(text);
    }
    if record.len() > RECORD_BYTES {
        let digest = digest::digest(&SHA256, record);
        record.clear();
        record.extend_from_slice(&DIGEST);
        record.extend_from_slice(digest.as_ref());
    }
}

/// Sets the host that the node gets if the upstream passes it on.
pub(super) fn set_host(ctx: &mut Context, host: &[u8]) -> Result<(), String> {
    if !is_authority(host) {
        return Err("the new host is not a name of a host".to_owned());
    }
    check_room(&ctx.request.headers, [host].into_iter())?;
    ctx.request.headers.set(HeaderId::Host, host);
    ctx.host = Some(host.to_vec());
    Ok(())
}

/// A byte that no target may have, and the target as errors show it.
pub(super) fn unsafe_byte(target: &[u8]) -> Option<(u8, String)> {
    let byte = *target.iter().find(|byte| **byte < b' ' || **byte == 0x7f)?;
    let mut shown = String::new();
    for &byte in target {
        match byte {
            b' '..=b'~' if byte != b'"' && byte != b'\\' => shown.push(char::from(byte)),
            _ => shown.push_str(&format!("\\x{byte:02X}")),
        }
    }
    Some((byte, shown))
}

/// `ngx.req.set_uri`.
fn set_uri(host: &Host, arguments: Arguments<'_>) -> Results {
    let uri = arguments.text(1)?.as_bytes().to_vec();
    if uri.is_empty() {
        return Err("attempt to use zero-length uri".to_owned());
    }
    if !arguments.is_true(3)
        && let Some((byte, shown)) = unsafe_byte(&uri)
    {
        return Err(format!(
            "unsafe byte \"0x{byte:02x}\" in uri \"{shown}\" (maybe you want to set the 'binary' argument?)"
        ));
    }
    if arguments.is_true(2) {
        return Err(match host.stage() {
            Stage::Rewrite => "the route is already chosen: `jump` cannot change it".to_owned(),
            stage => stage.disabled(),
        });
    }
    host.with(|seat| {
        let mut target = Vec::with_capacity(uri.len() + 16);
        if uri.first() != Some(&b'/') {
            target.push(b'/');
        }
        percent_encode_path(&uri, &mut target);
        if let Some(query) = seat.ctx.outgoing_query() {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        set_target(&mut seat.ctx, target)?;
        *seat.exchange.uri.borrow_mut() = Some(uri);
        Ok(())
    })?;
    nothing()
}

/// Sets path and query for the node.
pub(super) fn set_target(ctx: &mut Context, target: Vec<u8>) -> Result<(), String> {
    // Bytes that could end the request line are always encoded.
    let mut target = escaped(target, |byte| byte <= b' ' || byte == 0x7f);
    if !target.is_empty() && target.first() != Some(&b'/') && ctx.request.path_and_query() != b"*" {
        target.insert(0, b'/');
    }
    if target.len() > TARGET_BYTES {
        return Err(format!("a target may have {TARGET_BYTES} bytes at most"));
    }
    ctx.target = target;
    Ok(())
}

/// Replaces the query for the node.
pub(super) fn set_query(ctx: &mut Context, query: &[u8]) -> Result<(), String> {
    let path = ctx.outgoing_target().split(|byte| *byte == b'?').next().unwrap_or_default();
    let target = if query.is_empty() { path.to_vec() } else { [path, query].join(&b'?') };
    set_target(ctx, target)
}

/// The decoded path, `$uri`.
pub(super) fn uri(ctx: &Context, exchange: &Exchange) -> Vec<u8> {
    exchange.uri.borrow().clone().unwrap_or_else(|| ctx.uri.clone())
}

/// Whether the request body can be read: it was read for a script or another plugin, or the node has the request.
pub(super) fn has_body(seat: &Seat, stage: Stage) -> bool {
    seat.exchange.is_body_read.get()
        || seat.ctx.body.is_some()
        || matches!(stage, Stage::HeaderFilter | Stage::BodyFilter | Stage::Log)
}

/// The request line and the fields.
fn head(ctx: &Context, is_without_line: bool) -> Vec<u8> {
    let mut head = Vec::new();
    if !is_without_line {
        let version = ctx.request.version.as_str().as_bytes();
        head = [ctx.request.method_token(), ctx.request.path_and_query(), version].join(&b' ');
        head.extend_from_slice(b"\r\n");
    }
    ctx.request.headers.write_to(&mut head);
    head.extend_from_slice(b"\r\n");
    head
}
