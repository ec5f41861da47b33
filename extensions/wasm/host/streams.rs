//! Exchanges: going on, closing, responding; and the context that functions are about.

use wasmtime::Linker;

use super::guest::Span;
use super::{Guest, Outcome, Status, function, is_sound, pairs};
use crate::current;
use crate::state::{LocalReply, ROOT, State, Stream};

/// The length that means no status of gRPC.
const NO_GRPC_STATUS: u32 = u32::MAX;

fn stream<'s>(guest: &'s mut Guest<'_>) -> Result<&'s mut Stream, Status> {
    let state = guest.state();
    let effective = state.effective;
    state.streams.get_mut(&effective).ok_or(Status::BadArgument)
}

/// Ends the pause of a request or a response.
fn resume(guest: &mut Guest<'_>, kind: u32) -> Outcome {
    let stream = stream(guest)?;
    match kind {
        // 2 and 3 are the directions of a session over TCP.
        0 | 2 => stream.is_request_resumed = true,
        1 | 3 => stream.is_response_resumed = true,
        _ => return Err(Status::BadArgument.into()),
    }
    stream.wake();
    Ok(())
}

/// Sets the response by the module. The first one counts.
fn respond(guest: &mut Guest<'_>, status: u32, body: Span, headers: Span, grpc_status: u32) -> Outcome {
    let limit = guest.state().vm.settings.body_bytes;
    if body.length as usize > limit {
        return Err(Status::BadArgument.into());
    }
    let body = guest.read(body)?;
    let headers = guest.with(headers, pairs::decode)?.ok_or(Status::BadArgument)?;
    let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status));
    let status = status.ok_or(Status::BadArgument)?;
    let has_sound_fields = headers.iter().all(|(name, value)| {
        std::str::from_utf8(name).is_ok_and(|name| name.starts_with(':') || is_sound(name, value))
    });
    if !has_sound_fields {
        return Err(Status::BadArgument.into());
    }
    let effective = guest.state().effective;
    // From another callback, the exchange waits: its head has not left.
    let is_open = current::with(effective, |current| current.may_respond).unwrap_or(true);
    let stream = stream(guest)?;
    if !is_open {
        return Err(Status::BadArgument.into());
    }
    let grpc_status = Some(grpc_status).filter(|status| *status != NO_GRPC_STATUS);
    stream.reply.get_or_insert(LocalReply { status, headers, body, grpc_status });
    stream.wake();
    Ok(())
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(linker, "proxy_continue_stream", |guest, kind: u32| resume(guest, kind));
    function!(linker, "proxy_continue_request", |guest| resume(guest, 0));
    function!(linker, "proxy_continue_response", |guest| resume(guest, 1));
    function!(linker, "proxy_close_stream", |guest, kind: u32| {
        if kind > 3 {
            return Err(Status::BadArgument.into());
        }
        let stream = stream(guest)?;
        stream.is_closed = true;
        stream.wake();
        Ok(())
    });
    function!(linker, "proxy_clear_route_cache", |_guest| Err(Status::Unimplemented.into()));
    function!(
        linker,
        "proxy_send_local_response",
        |guest, status: u32, _details: u32, _d: u32, body: u32, b: u32, headers: u32, h: u32, grpc: u32| {
            respond(guest, status, Span { at: body, length: b }, Span { at: headers, length: h }, grpc)
        }
    );
    function!(linker, "proxy_set_effective_context", |guest, id: u32| {
        let state = guest.state();
        if id != ROOT && !state.streams.contains_key(&id) {
            return Err(Status::BadArgument.into());
        }
        state.effective = id;
        Ok(())
    });
    function!(linker, "proxy_done", |guest| {
        let state = guest.state();
        let effective = state.effective;
        if state.end(effective) { Ok(()) } else { Err(Status::NotFound.into()) }
    });
    Ok(())
}
