//! Functions about fields and trailers.

use sigma_http::{HeaderId, Headers};
use wasmtime::Linker;

use super::call::{Buffer, Call, MODULE, before_next, handled, put, refusal, response_open, run, with};
use super::state::TRAILERS;
use crate::host::fields::{Change, Map, apply, change, is_sound, may_change, trailers};
use crate::host::guest::Span;
use crate::host::{Guest, Outcome};
use crate::state::State;

/// A list of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    Response,
    RequestTrailers,
    ResponseTrailers,
}

impl Kind {
    fn of(number: u32) -> Outcome<Kind> {
        Ok(match number {
            0 => Kind::Request,
            1 => Kind::Response,
            2 => Kind::RequestTrailers,
            3 => Kind::ResponseTrailers,
            _ => return Err(refusal("the kind of the fields is not between 0 and 3")),
        })
    }
}

/// Names and values of a list, names in lower case.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn listed(headers: &Headers) -> Fields {
    headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect()
}

/// Returns the fields of a list.
fn all(guest: &mut Guest<'_>, kind: Kind) -> Outcome<Fields> {
    let handled = handled(guest)?;
    match kind {
        Kind::Request => with(guest, |current| {
            let ctx = &current.ctx;
            let host = ctx.host.as_deref().unwrap_or(ctx.request.authority());
            let others = ctx.request.headers.fields().filter(|(id, _, _)| *id != HeaderId::Host);
            let mut fields: Fields =
                others.map(|(_, name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect();
            if !host.is_empty() {
                fields.push((b"host".to_vec(), host.to_vec()));
            }
            fields
        }),
        Kind::Response if handled.is_after_next => {
            with(guest, |current| listed(&current.ctx.response.headers))
        }
        Kind::Response => Ok(listed(&handled.fields)),
        // The bodies of requests have no trailers when they are read in advance.
        Kind::RequestTrailers => Ok(Fields::new()),
        Kind::ResponseTrailers => {
            with(guest, |current| current.trailers.as_deref().map(listed).unwrap_or_default())
        }
    }
}

/// Writes texts, each with a NUL, unless they are too long. Returns their number and their length.
fn put_all<'t>(guest: &mut Guest<'_>, texts: impl Iterator<Item = &'t [u8]>, buffer: Buffer) -> Outcome<u64> {
    let (mut count, mut bytes) = (0u64, Vec::new());
    for text in texts {
        count += 1;
        bytes.extend_from_slice(text);
        bytes.push(0);
    }
    Ok(count << 32 | u64::from(put(guest, &bytes, buffer)?))
}

/// Reads the name of a field.
fn name_at(guest: &mut Guest<'_>, name: Span) -> Outcome<Vec<u8>> {
    match name.length {
        0 => Err(refusal("the name of a field is empty")),
        _ => guest.read(name),
    }
}

/// Changes a field. A field of the framing or of the connection stays as it is.
fn edit(guest: &mut Guest<'_>, kind: Kind, name: &[u8], edit: &Change<'_>) -> Outcome {
    match kind {
        Kind::Request => {
            before_next(guest)?;
            Ok(change(Map::Request, name, edit, guest.state())?)
        }
        Kind::Response => {
            let handled = response_open(guest)?;
            if handled.is_after_next {
                return Ok(change(Map::Response, name, edit, guest.state())?);
            }
            let name = sound(name, edit)?;
            if may_change(&name) {
                apply(&name, edit, &mut handled.fields)?;
            }
            Ok(())
        }
        Kind::RequestTrailers => Err(refusal("modules cannot access request trailers")),
        Kind::ResponseTrailers => {
            if !response_open(guest)?.has(TRAILERS) {
                return Err(refusal("the feature trailers is not enabled"));
            }
            let name = sound(name, edit)?;
            with(guest, |current| trailers(&name, edit, current))?.map_err(|_| {
                refusal("trailers can be changed only in a response that the feature buffer_response buffers")
            })?;
            Ok(())
        }
    }
}

/// Returns the name of a field in lower case, if name and value are valid.
fn sound(name: &[u8], change: &Change<'_>) -> Outcome<String> {
    let value = match change {
        Change::Add(value) | Change::Replace(value) => value,
        Change::Remove => &[][..],
    };
    let name = String::from_utf8(name.to_ascii_lowercase()).ok();
    let name = name.filter(|name| is_sound(name, value));
    name.ok_or_else(|| refusal("the name or the value of a field is invalid"))
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "get_header_names", |caller: Call<'_>, kind: u32, at: u32, limit: u32| {
        run(caller, |guest| {
            let fields = all(guest, Kind::of(kind)?)?;
            let is_first = |at: usize| fields[..at].iter().all(|(name, _)| *name != fields[at].0);
            let names = (0..fields.len()).filter(|at| is_first(*at)).map(|at| &fields[at].0[..]);
            put_all(guest, names, Buffer { at, limit })
        })
    })?;
    linker.func_wrap(
        MODULE,
        "get_header_values",
        |caller: Call<'_>, kind: u32, name: u32, n: u32, at: u32, limit: u32| {
            run(caller, |guest| {
                let name = name_at(guest, Span { at: name, length: n })?;
                let fields = all(guest, Kind::of(kind)?)?;
                let of_name = fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(&name));
                put_all(guest, of_name.map(|(_, value)| &value[..]), Buffer { at, limit })
            })
        },
    )?;
    for (function, adds) in [("set_header_value", false), ("add_header_value", true)] {
        linker.func_wrap(
            MODULE,
            function,
            move |caller: Call<'_>, kind: u32, name: u32, n: u32, value: u32, v: u32| {
                run(caller, |guest| {
                    let name = name_at(guest, Span { at: name, length: n })?;
                    let value = guest.read(Span { at: value, length: v })?;
                    let change = if adds { Change::Add(&value) } else { Change::Replace(&value) };
                    edit(guest, Kind::of(kind)?, &name, &change)
                })
            },
        )?;
    }
    linker.func_wrap(MODULE, "remove_header", |caller: Call<'_>, kind: u32, name: u32, n: u32| {
        run(caller, |guest| {
            let name = name_at(guest, Span { at: name, length: n })?;
            edit(guest, Kind::of(kind)?, &name, &Change::Remove)
        })
    })?;
    Ok(())
}
