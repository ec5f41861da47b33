//! The request body: reading and replacing it.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use sigma_http::HeaderId;

use super::request::has_body;
use crate::engine::arguments::{Arguments, Results, failed, nothing, one, several};
use crate::engine::host::{Host, ScriptNeed, Seat, Stage, Wait};
use crate::engine::settings::Settings;

/// The functions that read before they do their work.
const SOCKET: &str = include_str!("body.lua");

pub(super) fn register(lua: &Lua, host: &Rc<Host>, req: &Table, settings: &Settings) -> mlua::Result<()> {
    let limit = settings.body_bytes;
    host.waiting_function(lua, req, "read_body", move |host, _| {
        let stage = host.stage();
        if !matches!(stage, Stage::Rewrite | Stage::Access) {
            return Err(stage.disabled());
        }
        let is_read = host.with(|seat| Ok(seat.exchange.is_body_read.get() && seat.ctx.body.is_some()))?;
        if is_read { nothing().map(Wait::Ready) } else { Ok(Wait::For(ScriptNeed::Body { limit })) }
    })?;
    host.function(lua, req, "get_body_data", |host, arguments| {
        let most = arguments.optional_integer(1)?.and_then(|most| usize::try_from(most).ok());
        let stage = host.stage();
        let body = host.with(|seat| match &seat.ctx.body {
            Some(body) if has_body(seat, stage) && !body.is_empty() => {
                let end = most.map_or(body.len(), |most| body.len().min(most));
                arguments.lua().create_string(&body[..end]).map(Some).map_err(|error| error.to_string())
            }
            _ => Ok(None),
        })?;
        one(arguments.lua(), body)
    })?;
    // Bodies are in memory.
    host.function(lua, req, "get_body_file", |host, arguments| {
        host.with(|_| Ok(()))?;
        one(arguments.lua(), Value::Nil)
    })?;
    host.function(lua, req, "set_body_data", move |host, arguments| {
        let text = arguments.text(1)?.as_bytes().to_vec();
        change(host, |seat| set(seat, text, limit))
    })?;
    host.function(lua, req, "init_body", |host, _| {
        change(host, |seat| {
            *seat.exchange.draft.borrow_mut() = Some(Vec::new());
            Ok(())
        })
    })?;
    host.function(lua, req, "append_body", move |host, arguments| {
        let text = arguments.text(1)?;
        host.with(|seat| {
            let mut draft = seat.exchange.draft.borrow_mut();
            let draft = draft.as_mut().ok_or("request_body not initialized")?;
            check(draft.len() + text.as_bytes().len(), limit)?;
            draft.extend_from_slice(&text.as_bytes());
            Ok(())
        })?;
        nothing()
    })?;
    host.function(lua, req, "finish_body", move |host, _| {
        host.with(|seat| {
            let draft = seat.exchange.draft.borrow_mut().take().ok_or("request_body not initialized")?;
            set(seat, draft, limit)
        })?;
        nothing()
    })?;
    register_reading(lua, host, req)
}

/// Registers `discard_body` and `socket`: they read the body, and then use it.
fn register_reading(lua: &Lua, host: &Rc<Host>, req: &Table) -> mlua::Result<()> {
    let parts = lua.create_table()?;
    host.function(lua, &parts, "drop", |host, _| {
        host.with(|seat| {
            seat.ctx.body = Some(Vec::new());
            seat.ctx.request.headers.remove(HeaderId::ContentLength);
            Ok(())
        })?;
        nothing()
    })?;
    host.function(lua, &parts, "check", |host, arguments| {
        let length = host.within(&[Stage::Rewrite, Stage::Access], |seat| {
            let headers = &seat.ctx.request.headers;
            Ok(headers.has(HeaderId::ContentLength) || headers.has(HeaderId::TransferEncoding))
        })?;
        if length { one(arguments.lua(), true) } else { failed(arguments.lua(), "no body") }
    })?;
    host.function(lua, &parts, "slice", slice)?;
    let read: Value = req.raw_get("read_body")?;
    let made: Table = lua.load(SOCKET).set_name("=gateway").call((read, parts))?;
    for name in ["discard_body", "socket"] {
        req.raw_set(name, made.raw_get::<Function>(name)?)?;
    }
    Ok(())
}

/// Bytes of the body from a place on: so many, a line (`*l`), or all (`*a`). The last result is the place after them.
fn slice(host: &Host, arguments: Arguments<'_>) -> Results {
    let lua = arguments.lua();
    let from = usize::try_from(arguments.integer(1)?).unwrap_or_default();
    let text = |bytes: &[u8]| lua.create_string(bytes).map(Value::String).map_err(|error| error.to_string());
    host.with(|seat| {
        let body = seat.ctx.body.as_deref().unwrap_or_default();
        let rest = &body[from.min(body.len())..];
        let short = |rest: &[u8]| several(lua, (Value::Nil, "closed", text(rest)?, body.len()));
        let whole = |bytes: &[u8], end: usize| several(lua, (text(bytes)?, Value::Nil, Value::Nil, end));
        let Ok(pattern) = arguments.optional_text(2) else { return Err(arguments.bad(2, "bad pattern")) };
        let pattern = pattern.map_or_else(|| "*l".to_owned(), |pattern| pattern.to_string_lossy());
        match pattern.as_str() {
            "*a" => whole(rest, body.len()),
            "*l" => match rest.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    let line: Vec<u8> = rest[..end].iter().copied().filter(|byte| *byte != b'\r').collect();
                    whole(&line, from + end + 1)
                }
                None => short(rest),
            },
            number => match number.parse::<f64>() {
                Ok(count) if count >= 0.0 && count <= rest.len() as f64 => {
                    whole(&rest[..count as usize], from + count as usize)
                }
                Ok(_) => short(rest),
                Err(_) => Err(arguments.bad(2, &format!("bad pattern argument: {number}"))),
            },
        }
    })
}

/// Changes the body, which was read before.
fn change(host: &Host, run: impl FnOnce(&mut Seat) -> Result<(), String>) -> Result<MultiValue, String> {
    let stage = host.stage();
    host.with(|seat| match has_body(seat, stage) {
        true => run(seat),
        false => Err("request body not read yet".to_owned()),
    })?;
    nothing()
}

fn check(bytes: usize, limit: usize) -> Result<(), String> {
    if bytes > limit {
        Err(format!("a request body of scripts may have {limit} bytes at most"))
    } else {
        Ok(())
    }
}

/// Replaces the body, and the length that scripts read.
fn set(seat: &mut Seat, body: Vec<u8>, limit: usize) -> Result<(), String> {
    check(body.len(), limit)?;
    super::fields::check_room(&seat.ctx.request.headers, std::iter::empty())?;
    seat.ctx.request.headers.set(HeaderId::ContentLength, body.len().to_string().as_bytes());
    seat.ctx.body = Some(body);
    Ok(())
}
