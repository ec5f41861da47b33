//! The parts of all functions of `http_handler`.

use wasmtime::Caller;

use super::state::{BUFFER_RESPONSE, Handled};
use crate::current::{self, Current};
use crate::host::{Failure, Guest, Outcome, Status};
use crate::state::State;

/// The module of the functions.
pub(crate) const MODULE: &str = "http_handler";

/// The caller of a function.
pub(super) type Call<'c> = Caller<'c, State>;

/// A place in the module's memory, and its size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    pub(super) at: u32,
    pub(super) limit: u32,
}

/// Returns an error that ends the call.
pub(super) fn refusal(text: &'static str) -> Failure {
    Failure::Trap(wasmtime::Error::msg(text))
}

/// Runs a function; an error ends the call.
pub(super) fn run<R>(
    caller: Call<'_>,
    body: impl FnOnce(&mut Guest<'_>) -> Outcome<R>,
) -> wasmtime::Result<R> {
    body(&mut Guest::new(caller)).map_err(|failure| match failure {
        Failure::Trap(error) => error,
        Failure::Status(Status::InvalidMemoryAccess) => wasmtime::Error::msg("a pointer is out of bounds"),
        Failure::Status(_) => wasmtime::Error::msg("an argument is invalid"),
    })
}

/// Returns the exchange of the instance.
pub(super) fn handled<'s>(guest: &'s mut Guest<'_>) -> Outcome<&'s mut Handled> {
    guest.state().handling.exchange.as_mut().ok_or_else(|| refusal("there is no exchange"))
}

/// Uses the exchange of the callback.
pub(super) fn with<R>(guest: &mut Guest<'_>, run: impl FnOnce(&mut Current) -> R) -> Outcome<R> {
    current::with(guest.state().effective, run).ok_or_else(|| refusal("there is no exchange"))
}

/// Checks that the request has not gone on.
pub(super) fn before_next<'s>(guest: &'s mut Guest<'_>) -> Outcome<&'s mut Handled> {
    let handled = handled(guest)?;
    match handled.is_after_next {
        true => Err(refusal("the request was already forwarded and cannot be changed")),
        false => Ok(handled),
    }
}

/// Checks that the response can be changed.
pub(super) fn response_open<'s>(guest: &'s mut Guest<'_>) -> Outcome<&'s mut Handled> {
    let handled = handled(guest)?;
    match handled.is_after_next && !handled.has(BUFFER_RESPONSE) {
        true => {
            Err(refusal("the response was already sent: enable the feature buffer_response to change it"))
        }
        false => Ok(handled),
    }
}

/// Writes a value unless it is too long; returns its length.
pub(super) fn put(guest: &mut Guest<'_>, value: &[u8], buffer: Buffer) -> Outcome<u32> {
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    if length <= buffer.limit && length > 0 {
        guest.write(buffer.at, value)?;
    }
    Ok(length)
}
