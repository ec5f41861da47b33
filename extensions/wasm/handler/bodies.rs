//! Functions about bodies.

use wasmtime::Linker;

use super::call::{Buffer, Call, MODULE, before_next, handled, refusal, response_open, run, with};
use super::state::{BUFFER_RESPONSE, RequestBody};
use crate::host::guest::Span;
use crate::host::{Guest, Outcome};
use crate::state::State;

/// The bit of a result that says that the body has ended.
const END: u64 = 1 << 32;

/// Returns the next bytes of the body of the request, from `start`.
fn request_part(guest: &mut Guest<'_>, start: usize, limit: usize) -> Outcome<Vec<u8>> {
    let handled = handled(guest)?;
    match &handled.request_body {
        RequestBody::Present => {
            with(guest, |current| part(current.ctx.body.as_deref().unwrap_or_default(), start, limit))
        }
        RequestBody::Copied(body) => Ok(part(body, start, limit)),
        RequestBody::TooLarge => {
            handled.is_body_refused = true;
            Err(refusal("the body of the request exceeds plugin_attr.wasm.body_bytes"))
        }
        RequestBody::Gone => Err(refusal(
            "the body of the request was already forwarded: enable the feature buffer_request to read it",
        )),
    }
}

fn part(body: &[u8], start: usize, limit: usize) -> Vec<u8> {
    let start = start.min(body.len());
    let end = start.saturating_add(limit).min(body.len());
    body[start..end].to_vec()
}

/// Reads the next bytes of a body; returns their number and whether the body has ended.
fn read(guest: &mut Guest<'_>, kind: u32, buffer: Buffer) -> Outcome<u64> {
    if buffer.limit == 0 {
        return Err(refusal("a body is read with a buffer of no bytes"));
    }
    let limit = buffer.limit as usize;
    let bytes = match kind {
        0 => {
            let start = handled(guest)?.request_read;
            let bytes = request_part(guest, start, limit)?;
            handled(guest)?.request_read += bytes.len();
            bytes
        }
        1 => {
            let handled = handled(guest)?;
            if !handled.is_after_next || !handled.has(BUFFER_RESPONSE) {
                return Err(refusal(
                    "the body of the response is available after the request was forwarded, with the feature buffer_response",
                ));
            }
            let start = handled.response_read;
            let bytes = with(guest, |current| part(&current.body, start, limit))?;
            super::call::handled(guest)?.response_read += bytes.len();
            bytes
        }
        _ => return Err(refusal("the kind of the body is not 0 or 1")),
    };
    guest.write(buffer.at, &bytes)?;
    let end = if bytes.len() < limit { END } else { 0 };
    Ok(end | bytes.len() as u64)
}

/// Appends bytes to a new body.
fn write(guest: &mut Guest<'_>, kind: u32, data: Span) -> Outcome {
    let limit = guest.state().vm.settings.body_bytes;
    let bytes = guest.read(data)?;
    let body = match kind {
        0 => &mut before_next(guest)?.request_written,
        1 => &mut response_open(guest)?.response_written,
        _ => return Err(refusal("the kind of the body is not 0 or 1")),
    };
    let body = body.get_or_insert_default();
    if body.len() + bytes.len() > limit {
        return Err(refusal("the new body exceeds plugin_attr.wasm.body_bytes"));
    }
    body.extend_from_slice(&bytes);
    Ok(())
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "read_body", |caller: Call<'_>, kind: u32, at: u32, limit: u32| {
        run(caller, |guest| read(guest, kind, Buffer { at, limit }))
    })?;
    linker.func_wrap(MODULE, "write_body", |caller: Call<'_>, kind: u32, at: u32, length: u32| {
        run(caller, |guest| write(guest, kind, Span { at, length }))
    })?;
    Ok(())
}
