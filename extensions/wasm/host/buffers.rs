//! Buffers: bodies, bytes of sessions, responses to calls, configurations.

use wasmtime::Linker;

use super::guest::{GuestPointers, Span};
use super::{Guest, Outcome, Status, function};
use crate::current::{self, Hook};
use crate::state::State;

/// A buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffer {
    RequestBody,
    ResponseBody,
    Downstream,
    Upstream,
    CallBody,
    GrpcMessage,
    VmConfiguration,
    PluginConfiguration,
}

impl Buffer {
    fn of(number: u32) -> Result<Buffer, Status> {
        Ok(match number {
            0 => Buffer::RequestBody,
            1 => Buffer::ResponseBody,
            2 => Buffer::Downstream,
            3 => Buffer::Upstream,
            4 => Buffer::CallBody,
            5 => Buffer::GrpcMessage,
            6 => Buffer::VmConfiguration,
            7 => Buffer::PluginConfiguration,
            // Arguments of foreign functions of modules, which the host does not call.
            _ => return Err(Status::NotFound),
        })
    }
}

/// Uses the bytes of a buffer.
fn with<R>(buffer: Buffer, state: &State, run: impl FnOnce(&[u8]) -> R) -> Result<R, Status> {
    match buffer {
        Buffer::RequestBody | Buffer::ResponseBody | Buffer::Downstream | Buffer::Upstream => {
            let used = current::with(state.effective, |current| {
                is_current(buffer, current.hook).then(|| run(&current.body))
            });
            used.flatten().ok_or(Status::NotFound)
        }
        Buffer::CallBody => Ok(run(&state.answer.as_ref().ok_or(Status::NotFound)?.body)),
        Buffer::GrpcMessage => Ok(run(state.message.as_ref().ok_or(Status::NotFound)?)),
        Buffer::VmConfiguration => Ok(run(&state.vm.vm_configuration)),
        Buffer::PluginConfiguration => Ok(run(&state.vm.configuration)),
    }
}

/// Returns true if a callback has this body.
fn is_current(buffer: Buffer, hook: Hook) -> bool {
    matches!(
        (buffer, hook),
        (Buffer::RequestBody, Hook::RequestBody)
            | (Buffer::ResponseBody, Hook::ResponseBody)
            | (Buffer::Downstream, Hook::DownstreamData)
            | (Buffer::Upstream, Hook::UpstreamData)
    )
}

fn give(guest: &mut Guest<'_>, buffer: u32, part: Span, place: GuestPointers) -> Outcome {
    let buffer = Buffer::of(buffer)?;
    let bytes = with(buffer, guest.state(), |bytes| {
        let start = (part.at as usize).min(bytes.len());
        let end = start.saturating_add(part.length as usize).min(bytes.len());
        bytes[start..end].to_vec()
    })?;
    let is_missing = buffer == Buffer::PluginConfiguration && guest.state().vm.configuration.is_empty();
    match is_missing {
        // As in Envoy.
        true => Err(Status::NotFound.into()),
        false => guest.give(&bytes, place),
    }
}

/// Replaces a part of a body, puts bytes before it, or behind it.
fn set(guest: &mut Guest<'_>, buffer: u32, part: Span, data: Span) -> Outcome {
    let buffer = Buffer::of(buffer)?;
    use Buffer::{Downstream, RequestBody, ResponseBody, Upstream};
    if !matches!(buffer, RequestBody | ResponseBody | Downstream | Upstream) {
        return Err(Status::BadArgument.into());
    }
    let data = guest.read(data)?;
    let state = guest.state();
    let limit = state.vm.settings.body_bytes;
    let is_set = current::with(state.effective, |current| {
        if !is_current(buffer, current.hook) {
            return None;
        }
        let body = &mut current.body;
        let start = (part.at as usize).min(body.len());
        let end = start.saturating_add(part.length as usize).min(body.len());
        let fits = body.len() - (end - start) + data.len() <= limit.max(body.len());
        if fits {
            body.splice(start..end, data);
        }
        Some(fits)
    });
    match is_set.flatten() {
        Some(true) => Ok(()),
        Some(false) => Err(Status::BadArgument.into()),
        None => Err(Status::NotFound.into()),
    }
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(linker, "proxy_get_buffer_bytes", |guest,
                                                 buffer: u32,
                                                 at: u32,
                                                 length: u32,
                                                 data: u32,
                                                 size: u32| {
        give(guest, buffer, Span { at, length }, GuestPointers { data, size })
    });
    function!(linker, "proxy_get_buffer_status", |guest, buffer: u32, size: u32, flags: u32| {
        let length = with(Buffer::of(buffer)?, guest.state(), <[u8]>::len)?;
        guest.write_u32(size, u32::try_from(length).unwrap_or(u32::MAX))?;
        guest.write_u32(flags, 0)
    });
    function!(linker, "proxy_set_buffer_bytes", |guest,
                                                 buffer: u32,
                                                 at: u32,
                                                 length: u32,
                                                 data: u32,
                                                 n: u32| {
        set(guest, buffer, Span { at, length }, Span { at: data, length: n })
    });
    function!(linker, "proxy_get_configuration", |guest, data: u32, size: u32| {
        let configuration = guest.state().vm.configuration.to_vec();
        guest.give(&configuration, GuestPointers { data, size })
    });
    Ok(())
}
