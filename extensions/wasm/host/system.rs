//! Logs, time and ticks.

use std::time::Duration;

use wasmtime::{Caller, Linker};

use super::guest::Span;
use super::{Guest, Outcome, Status, function};
use crate::state::State;

/// The most lines that one callback logs, and the longest line: a module in a loop must not fill the log.
const LINES_MAX: usize = 100;
pub(crate) const LINE_BYTES: usize = 16 << 10;

/// Writes a line to the error log.
pub(crate) fn log(state: &mut State, level: u32, line: &[u8]) {
    state.lines += 1;
    if state.lines > LINES_MAX {
        if state.lines == LINES_MAX + 1 {
            tracing::warn!("wasm {}: further lines of this callback are not logged", state.vm.name);
        }
        return;
    }
    let line = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES)]);
    let (name, line) = (&state.vm.name, line.trim_end());
    match level {
        0 => tracing::trace!("wasm {name}: {line}"),
        1 => tracing::debug!("wasm {name}: {line}"),
        2 => tracing::info!("wasm {name}: {line}"),
        3 => tracing::warn!("wasm {name}: {line}"),
        _ => tracing::error!("wasm {name}: {line}"),
    }
}

/// The level of the error log, as the ABI numbers it.
pub(crate) fn log_level() -> u32 {
    use tracing::level_filters::LevelFilter;
    let level = LevelFilter::current();
    let levels = [LevelFilter::TRACE, LevelFilter::DEBUG, LevelFilter::INFO, LevelFilter::WARN];
    levels.iter().position(|known| level >= *known).map_or(4, |at| at as u32)
}

fn set_tick(guest: &mut Guest<'_>, milliseconds: u32) -> Outcome {
    let state = guest.state();
    let least = state.vm.settings.tick_ms;
    state.tick = match milliseconds {
        0 => Duration::ZERO,
        period => Duration::from_millis(u64::from(period).max(least)),
    };
    Ok(())
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    // The one function that may be called while the module allocates memory.
    linker.func_wrap("env", "proxy_log", |caller: Caller<'_, State>, level: u32, at: u32, length: u32| {
        let log = |guest: &mut Guest<'_>| {
            if level > 5 {
                return Err(Status::BadArgument.into());
            }
            let length = length.min(LINE_BYTES as u32);
            let line = guest.read(Span { at, length })?;
            log(guest.state(), level, &line);
            Ok(())
        };
        super::number(log(&mut Guest::new(caller)))
    })?;
    function!(linker, "proxy_get_log_level", |guest, out: u32| guest.write_u32(out, log_level()));
    function!(linker, "proxy_get_current_time_nanoseconds", |guest, out: u32| {
        guest.write_u64(out, u64::try_from(super::properties::now()).unwrap_or_default())
    });
    function!(linker, "proxy_set_tick_period_milliseconds", |guest, period: u32| set_tick(guest, period));
    Ok(())
}
