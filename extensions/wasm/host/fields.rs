//! Fields of messages.

use sigma_http::{HeaderId, Headers, is_authority};
use sigma_plugin::{Context, OwnedField};
use sigma_plugin_kit::fields::{frames, is_name};
use wasmtime::Linker;

use super::guest::{GuestPointers, Span};
use super::{Guest, Outcome, Status, function, pairs};
use crate::current::{self, Current, Hook};
use crate::outline::Abi;
use crate::state::{Pairs, State};

/// The most fields of a message that a module makes, and their bytes: more than any server accepts.
const FIELDS_MAX: usize = 1000;
const FIELDS_BYTES: usize = 256 << 10;

/// Fields of one connection, in addition to [`frames`].
const CONNECTION_FIELDS: [&str; 6] =
    ["keep-alive", "proxy-connection", "upgrade", "te", "expect", "http2-settings"];

/// A list of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Map {
    Request,
    RequestTrailers,
    Response,
    ResponseTrailers,
    GrpcInitial,
    GrpcTrailing,
    CallHeaders,
    CallTrailers,
}

impl Map {
    fn of(number: u32) -> Result<Map, Status> {
        Ok(match number {
            0 => Map::Request,
            1 => Map::RequestTrailers,
            2 => Map::Response,
            3 => Map::ResponseTrailers,
            4 => Map::GrpcInitial,
            5 => Map::GrpcTrailing,
            6 => Map::CallHeaders,
            7 => Map::CallTrailers,
            _ => return Err(Status::BadArgument),
        })
    }
}

/// A change of a field.
pub(crate) enum Change<'v> {
    Add(&'v [u8]),
    Replace(&'v [u8]),
    Remove,
}

/// Returns all fields of a list, names in lower case, pseudo-fields first.
fn all(map: Map, state: &State) -> Result<Pairs, Status> {
    let answered = |pick: fn(&crate::state::CallAnswer) -> &Pairs| {
        state.answer.as_ref().map(|answer| pick(answer).clone()).ok_or(Status::BadArgument)
    };
    match map {
        Map::GrpcInitial => state.metadata[0].clone().ok_or(Status::BadArgument),
        Map::GrpcTrailing => state.metadata[1].clone().ok_or(Status::BadArgument),
        Map::CallHeaders => answered(|answer| &answer.headers),
        Map::CallTrailers => answered(|answer| &answer.trailers),
        _ => current::with_http(state.effective, |current| of_message(map, current))
            .flatten()
            .ok_or(Status::BadArgument),
    }
}

fn of_message(map: Map, current: &Current) -> Option<Pairs> {
    let ctx = &current.ctx;
    match map {
        Map::Request => {
            let mut fields: Pairs = pseudo(ctx).map(|(name, value)| (name.into(), value.to_vec())).into();
            let headers = ctx.request.headers.fields().filter(|(id, _, _)| *id != HeaderId::Host);
            fields.extend(headers.map(|(_, name, value)| (name.to_ascii_lowercase(), value.to_vec())));
            Some(fields)
        }
        Map::Response if current.hook.has_response() => {
            let mut fields = vec![(b":status".to_vec(), ctx.response.status.to_string().into_bytes())];
            fields.extend(lowered(&ctx.response.headers));
            Some(fields)
        }
        Map::RequestTrailers if current.hook == Hook::RequestTrailers => {
            current.trailers.as_deref().map(|trailers| lowered(trailers).collect())
        }
        Map::ResponseTrailers if current.hook == Hook::ResponseTrailers => {
            current.trailers.as_deref().map(|trailers| lowered(trailers).collect())
        }
        _ => None,
    }
}

fn lowered(headers: &Headers) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
}

fn pseudo(ctx: &Context) -> [(&'static str, &[u8]); 4] {
    let host = ctx.host.as_deref().unwrap_or(ctx.request.authority());
    [
        (":authority", host),
        (":path", ctx.outgoing_target()),
        (":method", ctx.request.method_token()),
        (":scheme", ctx.scheme().as_bytes()),
    ]
}

/// Returns the value of a field, without a copy of the others.
fn value(map: Map, name: &[u8], state: &State) -> Result<Option<Vec<u8>>, Status> {
    let is_plain = !name.starts_with(b":") && !name.eq_ignore_ascii_case(b"host");
    if is_plain && matches!(map, Map::Request | Map::Response) {
        let found = current::with_http(state.effective, |current| match map {
            Map::Request => Some(current.ctx.request.headers.find(name).map(<[u8]>::to_vec)),
            _ if current.hook.has_response() => {
                Some(current.ctx.response.headers.find(name).map(<[u8]>::to_vec))
            }
            _ => None,
        });
        return found.flatten().ok_or(Status::BadArgument);
    }
    let fields = all(map, state)?;
    Ok(fields.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

/// Returns true if a module may send a field with this name and value.
pub(crate) fn is_sound(name: &str, value: &[u8]) -> bool {
    is_name(name) && !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

/// Changes a field. A change that is not permitted has no effect and is counted: SDKs abort at an error.
pub(crate) fn change(map: Map, name: &[u8], change: &Change<'_>, state: &mut State) -> Result<(), Status> {
    let name = String::from_utf8(name.to_ascii_lowercase()).map_err(|_| Status::BadArgument)?;
    let value = match change {
        Change::Add(value) | Change::Replace(value) => value,
        Change::Remove => &[][..],
    };
    if !is_sound(name.strip_prefix(':').unwrap_or(&name), value) {
        return Err(Status::BadArgument);
    }
    let effective = state.effective;
    let Some(stream) = state.streams.get_mut(&effective) else { return Err(Status::BadArgument) };
    let mut claims = std::mem::take(&mut stream.claims);
    let changed = current::with_http(effective, |current| match map {
        Map::Request => request(&name, change, current, &mut claims),
        Map::Response if current.hook.has_response() => response(&name, change, current),
        Map::RequestTrailers if current.hook == Hook::RequestTrailers => trailers(&name, change, current),
        Map::ResponseTrailers if current.hook == Hook::ResponseTrailers => trailers(&name, change, current),
        _ => Err(Status::BadArgument),
    });
    stream.claims = claims;
    if !changed.ok_or(Status::BadArgument)?? {
        stream.rejected += 1;
    }
    Ok(())
}

/// Returns true if a field is neither a part of the framing nor of the connection.
pub(crate) fn may_change(name: &str) -> bool {
    is_name(name) && !frames(name) && !CONNECTION_FIELDS.contains(&name)
}

fn request(
    name: &str,
    change: &Change<'_>,
    current: &mut Current,
    claims: &mut Vec<Box<str>>,
) -> Result<bool, Status> {
    let ctx = &mut current.ctx;
    if !current.is_head_open {
        // The node has the head.
        return Ok(false);
    }
    if name.starts_with(':') || name == "host" {
        return match change {
            Change::Remove => Ok(false),
            Change::Add(value) | Change::Replace(value) => set_pseudo(name, value, ctx),
        };
    }
    let is_own = claims.iter().any(|own| **own == *name);
    let is_others = !is_own && ctx.owned.iter().any(|fields| fields.covers(name.as_bytes()));
    if is_others || !may_change(name) {
        return Ok(false);
    }
    if !is_own {
        let field = match change {
            Change::Add(_) => OwnedField::shared(name),
            _ => OwnedField::sole(name),
        };
        claims.push(name.into());
        ctx.claim(field);
    }
    apply(name, change, &mut ctx.request.headers)?;
    Ok(true)
}

fn response(name: &str, change: &Change<'_>, current: &mut Current) -> Result<bool, Status> {
    if !current.is_head_open {
        // The client may have the head.
        return Ok(false);
    }
    if name.starts_with(':') {
        return match (name, change) {
            (":status", Change::Add(value) | Change::Replace(value)) => set_status(value, &mut current.ctx),
            _ => Ok(false),
        };
    }
    if !may_change(name) {
        return Ok(false);
    }
    apply(name, change, &mut current.ctx.response.headers)?;
    Ok(true)
}

pub(crate) fn trailers(name: &str, change: &Change<'_>, current: &mut Current) -> Result<bool, Status> {
    if !may_change(name) {
        return Ok(false);
    }
    let Some(trailers) = current.trailers.as_deref_mut() else { return Err(Status::BadArgument) };
    apply(name, change, trailers)?;
    Ok(true)
}

pub(crate) fn apply(name: &str, change: &Change<'_>, headers: &mut Headers) -> Result<(), Status> {
    if !matches!(change, Change::Remove) && (headers.len() >= FIELDS_MAX || headers.memory() >= FIELDS_BYTES)
    {
        return Err(Status::BadArgument);
    }
    match change {
        Change::Add(value) => headers.append(name, value),
        Change::Replace(value) => {
            headers.remove_name(name.as_bytes());
            headers.append(name, value);
        }
        Change::Remove => headers.remove_name(name.as_bytes()),
    }
    Ok(())
}

pub(crate) fn set_pseudo(name: &str, value: &[u8], ctx: &mut Context) -> Result<bool, Status> {
    match name {
        ":path" => {
            let is_target =
                value.starts_with(b"/") && value.iter().all(|b| b.is_ascii_graphic() && *b != b'#');
            let path = value.split(|b| *b == b'?').next().unwrap_or_default();
            let has_dots = path.split(|b| *b == b'/').any(|segment| matches!(segment, b"." | b".."));
            if !is_target || has_dots {
                return Err(Status::BadArgument);
            }
            ctx.target = value.to_vec();
            Ok(true)
        }
        ":method" => {
            let method = std::str::from_utf8(value).ok().filter(|method| is_name(method));
            let method = method.ok_or(Status::BadArgument)?;
            // It would turn the connection into a tunnel.
            if method != "CONNECT" {
                ctx.request.set_method(method);
            }
            Ok(method != "CONNECT")
        }
        ":authority" | "host" => {
            if !is_authority(value) {
                return Err(Status::BadArgument);
            }
            ctx.host = Some(value.to_vec());
            ctx.request.headers.set(HeaderId::Host, value);
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Sets the status. One with a body cannot become one without, nor the reverse.
pub(crate) fn set_status(value: &[u8], ctx: &mut Context) -> Result<bool, Status> {
    let status = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u16>().ok());
    let status = status.filter(|status| (200..=599).contains(status)).ok_or(Status::BadArgument)?;
    let is_empty = |status: u16| matches!(status, 204 | 205 | 304);
    if is_empty(status) != is_empty(ctx.response.status) {
        return Ok(false);
    }
    ctx.response.status = status;
    Ok(true)
}

/// Replaces all fields of a list. Fields that may not be changed stay.
fn replace_all(map: Map, fields: &Pairs, state: &mut State) -> Result<(), Status> {
    let mut known: Vec<Vec<u8>> = all(map, state)?.into_iter().map(|(name, _)| name).collect();
    known.dedup();
    for name in known.iter().filter(|name| !name.starts_with(b":")) {
        change(map, name, &Change::Remove, state)?;
    }
    for (name, value) in fields {
        let kind = if name.starts_with(b":") { Change::Replace(value) } else { Change::Add(value) };
        change(map, name, &kind, state)?;
    }
    Ok(())
}

fn give_value(guest: &mut Guest<'_>, map: u32, name: Span, place: GuestPointers, abi: Abi) -> Outcome {
    let map = Map::of(map)?;
    let name = guest.read(name)?;
    match value(map, &name, guest.state())? {
        Some(value) => guest.give(&value, place),
        None if abi == Abi::V010 => guest.give(b"", place),
        None => Err(Status::NotFound.into()),
    }
}

fn set_value(guest: &mut Guest<'_>, map: u32, name: Span, value: Span, adds: bool) -> Outcome {
    let map = Map::of(map)?;
    let (name, value) = (guest.read(name)?, guest.read(value)?);
    let kind = if adds { Change::Add(&value) } else { Change::Replace(&value) };
    Ok(change(map, &name, &kind, guest.state())?)
}

pub(super) fn register(linker: &mut Linker<State>, abi: Abi) -> wasmtime::Result<()> {
    function!(linker, "proxy_get_header_map_pairs", |guest, map: u32, data: u32, size: u32| {
        let fields = all(Map::of(map)?, guest.state())?;
        let bytes = pairs::encode(fields.iter().map(|(name, value)| (&name[..], &value[..])));
        guest.give(&bytes, GuestPointers { data, size })
    });
    function!(linker, "proxy_get_header_map_size", |guest, map: u32, size: u32| {
        let fields = all(Map::of(map)?, guest.state())?;
        let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        guest.write_u32(size, u32::try_from(bytes).unwrap_or(u32::MAX))
    });
    function!(linker, "proxy_set_header_map_pairs", |guest, map: u32, at: u32, length: u32| {
        let map = Map::of(map)?;
        let fields = guest.with(Span { at, length }, pairs::decode)?.ok_or(Status::BadArgument)?;
        Ok(replace_all(map, &fields, guest.state())?)
    });
    linker.func_wrap(
        "env",
        "proxy_get_header_map_value",
        move |caller: wasmtime::Caller<'_, State>, map: u32, name: u32, length: u32, data: u32, size: u32| {
            super::run(caller, |guest| {
                give_value(guest, map, Span { at: name, length }, GuestPointers { data, size }, abi)
            })
        },
    )?;
    function!(
        linker,
        "proxy_add_header_map_value",
        |guest, map: u32, name: u32, n: u32, value: u32, v: u32| set_value(
            guest,
            map,
            Span { at: name, length: n },
            Span { at: value, length: v },
            true
        )
    );
    function!(
        linker,
        "proxy_replace_header_map_value",
        |guest, map: u32, name: u32, n: u32, value: u32, v: u32| set_value(
            guest,
            map,
            Span { at: name, length: n },
            Span { at: value, length: v },
            false
        )
    );
    function!(linker, "proxy_remove_header_map_value", |guest, map: u32, name: u32, length: u32| {
        let map = Map::of(map)?;
        let name = guest.read(Span { at: name, length })?;
        Ok(change(map, &name, &Change::Remove, guest.state())?)
    });
    Ok(())
}
