//! Variables by name: `ngx.var`.

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};
use sigma_http::HeaderId;
use sigma_plugin::Context;
use sigma_schema::expr::known::NAMES;
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::fields::text_of;
use super::request::{set_host, set_query, set_target, uri};
use crate::engine::arguments::{Arguments, Results, nothing, one};
use crate::engine::host::{Host, Seat, Stage};

/// Variables that scripts may set and that keep their value alone: Sigma does not read them.
const PLAIN: [&str; 13] = [
    "limit_rate",
    "upstream_cache_bypass",
    "upstream_cache_key",
    "upstream_cache_zone",
    "upstream_cache_zone_info",
    "upstream_connection",
    "upstream_hdr_cache_control",
    "upstream_hdr_expires",
    "upstream_mirror_host",
    "upstream_mirror_uri",
    "upstream_no_cache",
    "upstream_scheme",
    "upstream_upgrade",
];

/// Variables that scripts may set and that change the request.
const CHANGING: [&str; 4] = ["args", "query_string", "upstream_host", "upstream_uri"];

/// The longest value that a script may set, in bytes.
const VALUE_BYTES: usize = 1 << 16;

/// Registers `ngx.var`.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table, gateway: &Table) -> mlua::Result<()> {
    let get = host.raw(lua, "var", |host, arguments| {
        let Some(name) = name_of(&arguments)? else { return one(arguments.lua(), Value::Nil) };
        let stage = host.stage();
        let value = host.with(|seat| Ok(read(seat, &name, stage)))?;
        let value = value.map(|value| arguments.lua().create_string(value)).transpose();
        one(arguments.lua(), value.map_err(|error| error.to_string())?)
    })?;
    let set = host.raw(lua, "var", |host, arguments| {
        let name = name_of(&arguments)?.ok_or("bad variable name")?;
        let value = match arguments.get(2) {
            Value::Nil => None,
            value => Some(text_of(arguments.lua(), value)?),
        };
        host.with(|seat| write(seat, &name, value))?;
        nothing()
    })?;
    let proxy: Function = gateway.get("proxy")?;
    ngx.raw_set("var", proxy.call::<Value>((get, set))?)
}

/// The name of a variable, in lower case as nginx has them; None for a group of a pattern.
fn name_of(arguments: &Arguments<'_>) -> Result<Option<String>, String> {
    match arguments.get(1) {
        Value::Integer(_) | Value::Number(_) => Ok(None),
        Value::String(name) if !name.as_bytes().is_empty() => {
            let mut name = name.to_string_lossy();
            name.make_ascii_lowercase();
            Ok(Some(name))
        }
        _ => Err("bad variable name".to_owned()),
    }
}

/// Whether a script may set the variable, so that the gateway or other scripts see it.
pub(crate) fn is_settable(name: &str) -> bool {
    PLAIN.contains(&name) || CHANGING.contains(&name)
}

/// Sets a variable; None removes it.
pub(crate) fn write(seat: &mut Seat, name: &str, value: Option<Vec<u8>>) -> Result<(), String> {
    if value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES) {
        return Err(format!("a variable may have {VALUE_BYTES} bytes at most"));
    }
    match name {
        "args" | "query_string" => set_query(&mut seat.ctx, &value.unwrap_or_default()),
        "upstream_uri" => set_target(&mut seat.ctx, value.unwrap_or_default()),
        "upstream_host" => match value.filter(|value| !value.is_empty()) {
            Some(host) => set_host(&mut seat.ctx, &host),
            None => {
                seat.ctx.host = None;
                Ok(())
            }
        },
        name if PLAIN.contains(&name) => {
            seat.ctx.set_variable(name, value.clone().unwrap_or_default());
            seat.exchange.variables.borrow_mut().insert(name.to_owned(), value);
            Ok(())
        }
        name if NAMES.contains(&name) => Err(format!("variable \"{name}\" not changeable")),
        name => Err(format!(
            "variable \"{name}\" not found for writing; maybe it is a built-in variable that is not changeable or you \
             forgot to use \"set ${name} '';\" in the config file to define it first"
        )),
    }
}

/// The value of a variable, its name in lower case. None if it is unknown or has no value.
pub(crate) fn read(seat: &Seat, name: &str, stage: Stage) -> Option<Vec<u8>> {
    if let Some(value) = seat.exchange.variables.borrow().get(name) {
        return value.clone();
    }
    let ctx = &seat.ctx;
    let is_before = matches!(stage, Stage::Match | Stage::Rewrite | Stage::Access);
    match name {
        "uri" | "document_uri" => Some(uri(ctx, &seat.exchange)),
        "request_uri" => Some(ctx.request.path_and_query().to_vec()),
        "args" | "query_string" => ctx.outgoing_query().map(<[u8]>::to_vec),
        "is_args" => {
            let has_args = ctx.outgoing_query().is_some_and(|query| !query.is_empty());
            Some(if has_args { b"?".to_vec() } else { Vec::new() })
        }
        "status" if is_before => {
            Some(format!("{:03}", seat.exchange.status.get().unwrap_or_default()).into_bytes())
        }
        "upstream_uri" => Some(ctx.target.clone()),
        "upstream_scheme" if is_before => Some(b"http".to_vec()),
        "http_cookie" => joined_cookies(ctx),
        "https" => Some(if ctx.client.tls.is_some() { b"on".to_vec() } else { Vec::new() }),
        name => prefixed(seat, name, is_before).unwrap_or_else(|| match name.contains('-') {
            true => None,
            false => text(ctx.get(&VarName::parse(name))),
        }),
    }
    .or_else(|| (PLAIN.contains(&name) || name == "request_completion").then(Vec::new))
}

/// The value of a variable whose name has the name of a field, an argument or a cookie in it; None for other names.
fn prefixed(seat: &Seat, name: &str, is_before: bool) -> Option<Option<Vec<u8>>> {
    if let Some(argument) = name.strip_prefix("arg_") {
        return Some(raw_argument(&seat.ctx, argument.as_bytes()));
    }
    if let Some(cookie) = name.strip_prefix("cookie_") {
        return Some(cookie_of(&seat.ctx, cookie.as_bytes()));
    }
    let field = name.strip_prefix("sent_http_").filter(|_| is_before)?;
    let fields = seat.exchange.fields.borrow();
    let value = fields.find_variable(field.as_bytes()).next().map(<[u8]>::to_vec);
    Some(value)
}

/// An argument as it was sent, without regard to case.
fn raw_argument(ctx: &Context, name: &[u8]) -> Option<Vec<u8>> {
    let mut pairs = ctx.outgoing_query()?.split(|byte| *byte == b'&');
    pairs.find_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        pair[..at].eq_ignore_ascii_case(name).then(|| pair[at + 1..].to_vec())
    })
}

/// All fields with cookies, as one.
fn joined_cookies(ctx: &Context) -> Option<Vec<u8>> {
    let fields: Vec<&[u8]> = ctx.request.headers.get_all(HeaderId::Cookie).collect();
    if fields.is_empty() { None } else { Some(fields.join(&b"; "[..])) }
}

/// A cookie, without regard to case.
fn cookie_of(ctx: &Context, name: &[u8]) -> Option<Vec<u8>> {
    let fields = ctx.request.headers.get_all(HeaderId::Cookie);
    let mut pairs = fields.flat_map(|field| field.split(|byte| *byte == b';'));
    pairs.find_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let is_same = pair[..at].trim_ascii().eq_ignore_ascii_case(name);
        is_same.then(|| pair[at + 1..].trim_ascii().to_vec())
    })
}

fn text(value: Option<VarValue<'_>>) -> Option<Vec<u8>> {
    match value? {
        VarValue::Text(text) => Some(text.into_owned()),
        VarValue::Bool(truth) => Some(truth.to_string().into_bytes()),
        VarValue::List(items) => Some(items.join(&b", "[..])),
    }
}

/// A variable as `ctx.var` has it: arguments decoded, lists as tables.
pub(crate) fn of_ctx(host: &Host, lua: &Lua, name: &str) -> Results {
    let stage = host.stage();
    host.with(|seat| {
        if let Some(argument) = name.strip_prefix("arg_") {
            let query = seat.ctx.outgoing_query().unwrap_or_default();
            let value = sigma_plugin::variables::argument(query, argument);
            return one(lua, value_of(lua, value)?);
        }
        let is_structured = ["post_arg", "graphql_"].iter().any(|prefix| name.starts_with(prefix));
        if is_structured {
            return one(lua, value_of(lua, seat.ctx.get(&VarName::parse(name)))?);
        }
        let lower = match name.starts_with("uri_param_") {
            true => name.to_owned(),
            // As in APISIX, `-` is `_` here.
            false => name.to_ascii_lowercase().replace('-', "_"),
        };
        let value = read(seat, &lower, stage).map(|value| lua.create_string(value)).transpose();
        one(lua, value.map_err(|error| error.to_string())?)
    })
}

fn value_of(lua: &Lua, value: Option<VarValue<'_>>) -> Result<Value, String> {
    let made = || {
        Ok(match value {
            None => Value::Nil,
            Some(VarValue::Text(text)) => Value::String(lua.create_string(text)?),
            Some(VarValue::Bool(truth)) => Value::Boolean(truth),
            Some(VarValue::List(items)) => {
                let items = items.iter().map(|item| lua.create_string(item));
                Value::Table(lua.create_sequence_from(items.collect::<mlua::Result<Vec<_>>>()?)?)
            }
        })
    };
    made().map_err(|error: mlua::Error| error.to_string())
}
