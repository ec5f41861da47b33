//! Functions of WASI, as far as the libraries of languages need them to start. There are no files, no arguments and no
//! sockets.

use sigma_plugin::system::{Host, System};
use wasmtime::{Caller, ExternType, Linker, Module, Val, ValType};

use super::guest::Span;
use super::{Failure, Guest, Outcome, Status, system};
use crate::state::State;

/// The names of WASI as a module.
pub(crate) const MODULES: [&str; 2] = ["wasi_snapshot_preview1", "wasi_unstable"];

/// Error numbers of WASI.
const BADF: u32 = 8;
const FAULT: u32 = 21;
const INVAL: u32 = 28;
const NOSYS: u32 = 52;

/// The most random bytes of one call.
const RANDOM_BYTES: u32 = 64 << 10;

/// The most pieces of one write.
const PIECES_MAX: u32 = 1024;

/// The most events of one wait, and the sizes of a subscription and an event.
const EVENTS_MAX: u32 = 64;
const SUBSCRIPTION_BYTES: u32 = 48;
const EVENT_BYTES: u32 = 32;

/// Functions about descriptors: only the outputs exist. A library that looks for folders stops at `BADF`.
const OF_DESCRIPTORS: &[&str] =
    &["fd_prestat_get", "fd_prestat_dir_name", "fd_close", "fd_seek", "fd_read", "fd_filestat_get"];

/// Functions with an effect.
const KNOWN: &[&str] = &[
    "fd_write",
    "fd_fdstat_get",
    "clock_time_get",
    "clock_res_get",
    "random_get",
    "environ_sizes_get",
    "environ_get",
    "args_sizes_get",
    "args_get",
    "proc_exit",
    "sched_yield",
    "poll_oneoff",
];

/// Registers the functions that a module imports.
pub(crate) fn register(linker: &mut Linker<State>, module: &Module) -> wasmtime::Result<()> {
    for from in MODULES {
        known(linker, from)?;
    }
    // A module may import a function twice.
    linker.allow_shadowing(true);
    for import in module.imports() {
        let is_wasi = MODULES.contains(&import.module());
        let ExternType::Func(kind) = import.ty() else { continue };
        if !is_wasi || KNOWN.contains(&import.name()) {
            continue;
        }
        let error = if OF_DESCRIPTORS.contains(&import.name()) { BADF } else { NOSYS };
        let types: Vec<ValType> = kind.results().collect();
        let stub = move |_: Caller<'_, State>, _: &[Val], results: &mut [Val]| {
            for (result, kind) in results.iter_mut().zip(&types) {
                *result = match kind {
                    ValType::I64 => Val::I64(error.into()),
                    ValType::F32 => Val::F32(0),
                    ValType::F64 => Val::F64(0),
                    _ => Val::I32(error.cast_signed()),
                };
            }
            Ok(())
        };
        linker.func_new(import.module(), import.name(), kind, stub)?;
    }
    Ok(())
}

/// Runs a function; a status becomes an error number. Unlike functions of the gateway, these may be called while the
/// module allocates memory: the collector of Go runs then, waits, and reads the time.
fn run(caller: Caller<'_, State>, body: impl FnOnce(&mut Guest<'_>) -> Outcome) -> wasmtime::Result<u32> {
    match body(&mut Guest::new(caller)) {
        Ok(()) => Ok(0),
        Err(Failure::Status(Status::InvalidMemoryAccess)) => Ok(FAULT),
        Err(Failure::Status(_)) => Ok(INVAL),
        Err(Failure::Trap(error)) => Err(error),
    }
}

/// The caller of a function.
type Call<'c> = Caller<'c, State>;

/// Registers the functions about outputs, time and random bytes, and all others with an effect.
fn known(linker: &mut Linker<State>, from: &str) -> wasmtime::Result<()> {
    linker.func_wrap(from, "fd_write", |caller: Call<'_>, fd: u32, at: u32, count: u32, out: u32| {
        // 1 and 2 are the outputs.
        if !matches!(fd, 1 | 2) {
            return Ok(BADF);
        }
        run(caller, |guest| write(guest, fd, at, count, out))
    })?;
    linker.func_wrap(from, "fd_fdstat_get", |caller: Call<'_>, fd: u32, out: u32| {
        if fd > 2 {
            return Ok(BADF);
        }
        // A character device that may be written to.
        let mut about = [0; 24];
        about[0] = 2;
        about[8] = 0x40;
        run(caller, |guest| guest.write(out, &about))
    })?;
    linker.func_wrap(from, "clock_time_get", |caller: Call<'_>, clock: u32, _precision: u64, out: u32| {
        run(caller, |guest| {
            let nanoseconds = match clock {
                0 => super::properties::now(),
                1 => Host.uptime().as_nanos(),
                _ => return Err(Status::BadArgument.into()),
            };
            guest.write_u64(out, u64::try_from(nanoseconds).unwrap_or_default())
        })
    })?;
    linker.func_wrap(from, "clock_res_get", |caller: Call<'_>, _clock: u32, out: u32| {
        run(caller, |guest| guest.write_u64(out, 1))
    })?;
    linker.func_wrap(from, "random_get", |caller: Call<'_>, at: u32, length: u32| {
        run(caller, |guest| {
            if length > RANDOM_BYTES {
                return Err(Status::BadArgument.into());
            }
            let mut bytes = vec![0; length as usize];
            Host.fill_random(&mut bytes).map_err(|_| Status::InternalFailure)?;
            guest.write(at, &bytes)
        })
    })?;
    linker.func_wrap(from, "poll_oneoff", |caller: Call<'_>, from: u32, to: u32, count: u32, out: u32| {
        run(caller, |guest| poll(guest, from, to, count, out))
    })?;
    surroundings(linker, from)
}

/// Ends a wait at once: a callback does not sleep. The runtime of Go waits in its collector, and ends the module if it
/// cannot.
fn poll(guest: &mut Guest<'_>, from: u32, to: u32, count: u32, out: u32) -> Outcome {
    if count == 0 || count > EVENTS_MAX {
        return Err(Status::BadArgument.into());
    }
    let subscriptions = guest.read(Span { at: from, length: count * SUBSCRIPTION_BYTES })?;
    let mut events = Vec::new();
    for subscription in subscriptions.chunks_exact(SUBSCRIPTION_BYTES as usize) {
        let mut event = [0; EVENT_BYTES as usize];
        // The number of the caller, and the kind: 0 is a clock, others are descriptors.
        event[..8].copy_from_slice(&subscription[..8]);
        event[10] = subscription[8];
        event[8] = if subscription[8] == 0 { 0 } else { BADF.to_le_bytes()[0] };
        events.extend_from_slice(&event);
    }
    guest.write(to, &events)?;
    guest.write_u32(out, count)
}

/// Registers the functions about arguments, the environment and the process.
fn surroundings(linker: &mut Linker<State>, from: &str) -> wasmtime::Result<()> {
    linker.func_wrap(from, "environ_sizes_get", |caller: Call<'_>, count: u32, bytes: u32| {
        run(caller, |guest| {
            let all = environment(guest);
            let length: usize = all.iter().map(Vec::len).sum();
            guest.write_u32(count, u32::try_from(all.len()).unwrap_or_default())?;
            guest.write_u32(bytes, u32::try_from(length).unwrap_or_default())
        })
    })?;
    linker.func_wrap(from, "environ_get", |caller: Call<'_>, pointers: u32, mut at: u32| {
        run(caller, |guest| {
            for (number, variable) in environment(guest).iter().enumerate() {
                let pointer = u32::try_from(number * 4).unwrap_or_default();
                guest.write_u32(pointers.saturating_add(pointer), at)?;
                guest.write(at, variable)?;
                at = at.saturating_add(u32::try_from(variable.len()).unwrap_or_default());
            }
            Ok(())
        })
    })?;
    linker.func_wrap(from, "args_sizes_get", |caller: Call<'_>, count: u32, bytes: u32| {
        run(caller, |guest| {
            guest.write_u32(count, 0)?;
            guest.write_u32(bytes, 0)
        })
    })?;
    linker.func_wrap(from, "args_get", |_: Call<'_>, _: u32, _: u32| 0u32)?;
    linker.func_wrap(from, "sched_yield", |_: Call<'_>| 0u32)?;
    linker.func_wrap(from, "proc_exit", |_: Call<'_>, code: u32| -> wasmtime::Result<()> {
        Err(wasmtime::Error::msg(format!("the module exits with the code {code}")))
    })?;
    Ok(())
}

/// The environment of the module: `NAME=value` and a NUL.
fn environment(guest: &mut Guest<'_>) -> Vec<Vec<u8>> {
    let env = &guest.state().vm.env;
    env.iter().map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect()
}

/// Logs the whole lines of an output.
fn write(guest: &mut Guest<'_>, fd: u32, at: u32, count: u32, out: u32) -> Outcome {
    if count > PIECES_MAX {
        return Err(Status::BadArgument.into());
    }
    let pieces = guest.read(Span { at, length: count * 8 })?;
    let mut written = 0u32;
    for piece in pieces.chunks_exact(8) {
        let number = |at: usize| piece[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let span = Span { at: number(0), length: number(4) };
        let length = span.length.min(system::LINE_BYTES as u32);
        let bytes = guest.read(Span { length, ..span })?;
        written = written.saturating_add(span.length);
        let state = guest.state();
        let room = system::LINE_BYTES.saturating_sub(state.output.len());
        state.output.extend_from_slice(&bytes[..bytes.len().min(room)]);
        while let Some(end) = state.output.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = state.output.drain(..=end).collect();
            system::log(state, if fd == 1 { 2 } else { 4 }, &line);
        }
        if state.output.len() >= system::LINE_BYTES {
            let line = std::mem::take(&mut state.output);
            system::log(state, if fd == 1 { 2 } else { 4 }, &line);
        }
    }
    guest.write_u32(out, written)
}
