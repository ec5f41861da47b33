//! Functions of `http_handler` besides those about fields and bodies.
//!
//! They have no status: an error ends the call.

use sigma_plugin::Context;
use wasmtime::{Engine, Linker, Module};

use super::call::{Buffer, Call, MODULE, before_next, handled, put, refusal, response_open, run, with};
use super::state::SUPPORTED;
use super::{bodies, fields};
use crate::host::fields::{set_pseudo, set_status};
use crate::host::guest::Span;
use crate::host::{Guest, Outcome, system, wasi};
use crate::state::State;

/// The functions.
pub(crate) const FUNCTIONS: &[&str] = &[
    "enable_features",
    "get_config",
    "log_enabled",
    "log",
    "get_method",
    "set_method",
    "get_uri",
    "set_uri",
    "get_protocol_version",
    "get_header_names",
    "get_header_values",
    "set_header_value",
    "add_header_value",
    "remove_header",
    "read_body",
    "write_body",
    "get_status_code",
    "set_status_code",
    "get_source_addr",
];

/// Writes a value of the request.
fn put_of(guest: &mut Guest<'_>, buffer: Buffer, value: impl FnOnce(&Context) -> Vec<u8>) -> Outcome<u32> {
    let value = with(guest, |current| value(&current.ctx))?;
    put(guest, &value, buffer)
}

/// Sets the method or the target of the request.
fn set(guest: &mut Guest<'_>, name: &str, value: &[u8]) -> Outcome {
    before_next(guest)?;
    match with(guest, |current| set_pseudo(name, value, &mut current.ctx))? {
        Ok(true) => Ok(()),
        _ => Err(refusal("the method or the URI is invalid")),
    }
}

fn enable(state: &mut State, features: u32) -> u32 {
    let enabled = match &mut state.handling.exchange {
        Some(handled) => &mut handled.features,
        None => &mut state.handling.features,
    };
    *enabled |= features & SUPPORTED;
    *enabled
}

/// Converts a level to the one of proxy-wasm; None for no log.
fn level(level: i32) -> Option<u32> {
    match level {
        ..0 => Some(1),
        0..3 => Some(level.unsigned_abs() + 2),
        _ => None,
    }
}

fn source(ctx: &Context) -> Vec<u8> {
    match ctx.client.addr {
        Some(addr) => std::net::SocketAddr::new(addr, ctx.client.port).to_string().into_bytes(),
        None => ctx.remote_addr().into_bytes(),
    }
}

/// Returns true if the host has a function that a module imports.
pub(crate) fn provides(module: &str, name: &str) -> bool {
    match module {
        MODULE => FUNCTIONS.contains(&name),
        _ => wasi::MODULES.contains(&module),
    }
}

/// Returns the functions for a module.
///
/// # Errors
/// Returns an error if the module imports something that is not a function.
pub(crate) fn linker(engine: &Engine, module: &Module) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasi::register(&mut linker, module)?;
    register(&mut linker)?;
    Ok(linker)
}

fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "enable_features", |mut caller: Call<'_>, features: u32| {
        enable(caller.data_mut(), features)
    })?;
    linker.func_wrap(MODULE, "get_config", |caller: Call<'_>, at: u32, limit: u32| {
        run(caller, |guest| {
            let configuration = guest.state().vm.configuration.clone();
            put(guest, &configuration, Buffer { at, limit })
        })
    })?;
    linker.func_wrap(MODULE, "log_enabled", |_: Call<'_>, number: i32| {
        u32::from(level(number).is_some_and(|level| level >= system::log_level()))
    })?;
    linker.func_wrap(MODULE, "log", |caller: Call<'_>, number: i32, at: u32, length: u32| {
        run(caller, |guest| {
            let Some(level) = level(number) else { return Ok(()) };
            let length = length.min(system::LINE_BYTES as u32);
            let line = guest.read(Span { at, length })?;
            system::log(guest.state(), level, &line);
            Ok(())
        })
    })?;
    request(linker)?;
    fields::register(linker)?;
    bodies::register(linker)
}

/// Registers functions about the start line, the status and the client.
fn request(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "get_method", |caller: Call<'_>, at: u32, limit: u32| {
        run(caller, |guest| put_of(guest, Buffer { at, limit }, |ctx| ctx.request.method_token().to_vec()))
    })?;
    linker.func_wrap(MODULE, "set_method", |caller: Call<'_>, at: u32, length: u32| {
        run(caller, |guest| {
            let method = guest.read(Span { at, length })?;
            set(guest, ":method", &method)
        })
    })?;
    linker.func_wrap(MODULE, "get_uri", |caller: Call<'_>, at: u32, limit: u32| {
        run(caller, |guest| put_of(guest, Buffer { at, limit }, |ctx| ctx.outgoing_target().to_vec()))
    })?;
    linker.func_wrap(MODULE, "set_uri", |caller: Call<'_>, at: u32, length: u32| {
        run(caller, |guest| {
            let uri = guest.read(Span { at, length })?;
            set(guest, ":path", if uri.is_empty() { b"/" } else { &uri })
        })
    })?;
    linker.func_wrap(MODULE, "get_protocol_version", |caller: Call<'_>, at: u32, limit: u32| {
        run(caller, |guest| {
            put_of(guest, Buffer { at, limit }, |ctx| ctx.request.version.as_str().as_bytes().to_vec())
        })
    })?;
    linker.func_wrap(MODULE, "get_source_addr", |caller: Call<'_>, at: u32, limit: u32| {
        run(caller, |guest| put_of(guest, Buffer { at, limit }, source))
    })?;
    linker.func_wrap(MODULE, "get_status_code", |caller: Call<'_>| {
        run(caller, |guest| match handled(guest)? {
            handled if handled.is_after_next => with(guest, |current| u32::from(current.ctx.response.status)),
            handled => Ok(if handled.status == 0 { 200 } else { handled.status.into() }),
        })
    })?;
    linker.func_wrap(MODULE, "set_status_code", |caller: Call<'_>, status: u32| {
        run(caller, |guest| {
            let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status));
            let status = status.ok_or_else(|| refusal("the status is not between 200 and 599"))?;
            let handled = response_open(guest)?;
            if !handled.is_after_next {
                handled.status = status;
                return Ok(());
            }
            // A status with another kind of body is not set.
            with(guest, |current| set_status(status.to_string().as_bytes(), &mut current.ctx))??;
            Ok(())
        })
    })?;
    Ok(())
}
