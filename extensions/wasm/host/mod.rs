//! The functions that the host gives to modules. The functions of the handler ABI are in `handler`.
//!
//! | module | functions |
//! |---|---|
//! | `guest` | the memory of the module |
//! | `fields` | `proxy_…_header_map_…` |
//! | `buffers` | `proxy_…_buffer_…`, the configurations |
//! | `streams` | continuing, closing, responding, contexts |
//! | `calls` | `proxy_http_call`, `proxy_grpc_…` |
//! | `foreign` | functions of Envoy by name |
//! | `shared` | shared data and queues |
//! | `metrics` | metrics |
//! | `properties` | properties |
//! | `system` | logs, time, ticks |
//! | `wasi` | functions of WASI |

mod buffers;
mod calls;
pub(crate) mod fields;
mod foreign;
pub(crate) mod guest;
mod metrics;
mod pairs;
mod properties;
mod shared;
mod streams;
pub(crate) mod system;
pub(crate) mod wasi;

use wasmtime::{Caller, Engine, Linker, Module};

use crate::outline::Abi;
use crate::shared_data::Refusal;
use crate::state::State;
pub(crate) use fields::is_sound;
pub(crate) use guest::Guest;
#[cfg(test)]
#[cfg(feature = "tests")]
pub(crate) use pairs::encode;

/// The result of a function of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    NotFound = 1,
    BadArgument = 2,
    SerializationFailure = 3,
    InvalidMemoryAccess = 6,
    Empty = 7,
    CasMismatch = 8,
    InternalFailure = 10,
    Unimplemented = 12,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Status(match refusal {
            Refusal::NotFound => Status::NotFound,
            Refusal::Empty => Status::Empty,
            Refusal::Changed => Status::CasMismatch,
            Refusal::Full => Status::InternalFailure,
        })
    }
}

/// A failure of a function of the host.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The module gets this status.
    Status(Status),
    /// The module is aborted.
    Trap(wasmtime::Error),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Status(status)
    }
}

/// The result of a function that has written its values to the module.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Converts a result to the number that the module gets.
fn number(outcome: Outcome) -> wasmtime::Result<u32> {
    match outcome {
        Ok(()) => Ok(0),
        Err(Failure::Status(status)) => Ok(status as u32),
        Err(Failure::Trap(error)) => Err(error),
    }
}

/// Runs a function of the host. A module that allocates memory for a value may not call one.
fn run(caller: Caller<'_, State>, body: impl FnOnce(&mut Guest<'_>) -> Outcome) -> wasmtime::Result<u32> {
    if caller.data().is_allocating {
        return Err(wasmtime::Error::msg("the module calls the host while it allocates memory for it"));
    }
    number(body(&mut Guest::new(caller)))
}

/// Registers a function with the arguments that follow its name.
macro_rules! function {
    ($linker:expr, $name:literal, |$guest:ident $(, $argument:ident: $type:ty)* $(,)?| $body:expr) => {
        $linker.func_wrap(
            "env",
            $name,
            |caller: wasmtime::Caller<'_, $crate::state::State> $(, $argument: $type)*| -> wasmtime::Result<u32> {
                $crate::host::run(caller, |$guest| $body)
            },
        )?;
    };
}
use function;

/// Functions of `env`. All versions of the ABI have all of them, as modules import their own ones.
const FUNCTIONS: &[&str] = &[
    "proxy_get_configuration",
    "proxy_continue_request",
    "proxy_continue_response",
    "proxy_clear_route_cache",
    "proxy_get_log_level",
    "proxy_log",
    "proxy_get_current_time_nanoseconds",
    "proxy_set_tick_period_milliseconds",
    "proxy_get_buffer_bytes",
    "proxy_get_buffer_status",
    "proxy_set_buffer_bytes",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_get_header_map_size",
    "proxy_set_header_map_pairs",
    "proxy_add_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_remove_header_map_value",
    "proxy_continue_stream",
    "proxy_close_stream",
    "proxy_send_local_response",
    "proxy_set_effective_context",
    "proxy_done",
    "proxy_http_call",
    "proxy_grpc_call",
    "proxy_grpc_stream",
    "proxy_grpc_send",
    "proxy_grpc_cancel",
    "proxy_grpc_close",
    "proxy_get_status",
    "proxy_get_shared_data",
    "proxy_set_shared_data",
    "proxy_register_shared_queue",
    "proxy_resolve_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_dequeue_shared_queue",
    "proxy_define_metric",
    "proxy_record_metric",
    "proxy_increment_metric",
    "proxy_get_metric",
    "proxy_get_property",
    "proxy_set_property",
    "proxy_call_foreign_function",
];

/// Returns true if the host has a function that a module imports.
pub(crate) fn provides(module: &str, name: &str) -> bool {
    match module {
        "env" => FUNCTIONS.contains(&name),
        // Functions without an effect are stubs.
        _ => wasi::MODULES.contains(&module),
    }
}

/// Returns the functions for a module.
///
/// # Errors
/// Returns an error if the module imports something that is not a function.
pub(crate) fn linker(engine: &Engine, module: &Module, abi: Abi) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasi::register(&mut linker, module)?;
    system::register(&mut linker)?;
    fields::register(&mut linker, abi)?;
    buffers::register(&mut linker)?;
    streams::register(&mut linker)?;
    calls::register(&mut linker)?;
    foreign::register(&mut linker)?;
    shared::register(&mut linker)?;
    metrics::register(&mut linker)?;
    properties::register(&mut linker)?;
    Ok(linker)
}
