//! WebAssembly modules of users as plugins, with the ABI of proxy-wasm or of http-wasm. Without the feature `engine`, the crate only
//! describes the plugin: the engine takes minutes to compile.
//!
//! | module | subject |
//! |---|---|
//! | `descriptor`, `config`, `settings` | the plugin `wasm` and its settings |
//! | `apisix` | the plugins of APISIX's section `wasm` |
//! | `plugin`, `usage` | the instances of these plugins |
//! | `engine` | the engine of the process |
//! | `code`, `outline` | reading, checking and compiling modules |
//! | `vm`, `vm_data` | a module with a configuration, and the start of its instances |
//! | `instances`, `instance` | the instances of a worker |
//! | `calling` | calls to services under way |
//! | `stream`, `current` | an exchange in its instance |
//! | `tcp` | the bytes of sessions on their way through a module |
//! | `request`, `response`, `filter` | heads and bodies on their way through a module |
//! | `state`, `host` | functions of the host, and the data that they use |
//! | `shared_data`, `metrics` | data, queues and metrics of all workers |
//! | `handler` | modules with the ABI of http-wasm |
//! | `events` | counted events |

#![cfg_attr(not(feature = "engine"), allow(dead_code, reason = "the engine reads the settings"))]

mod config;
mod descriptor;
mod settings;

#[cfg(feature = "engine")]
mod apisix;
#[cfg(feature = "engine")]
mod calling;
#[cfg(feature = "engine")]
mod code;
#[cfg(feature = "engine")]
mod current;
#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod events;
#[cfg(feature = "engine")]
mod filter;
#[cfg(feature = "engine")]
mod handler;
#[cfg(feature = "engine")]
mod host;
#[cfg(feature = "engine")]
mod instance;
#[cfg(feature = "engine")]
mod instances;
#[cfg(feature = "engine")]
mod metrics;
#[cfg(feature = "engine")]
mod outline;
#[cfg(feature = "engine")]
mod plugin;
#[cfg(feature = "engine")]
mod request;
#[cfg(feature = "engine")]
mod response;
#[cfg(test)]
#[cfg(feature = "tests")]
mod scenarios;
#[cfg(feature = "engine")]
mod shared_data;
#[cfg(feature = "engine")]
mod state;
#[cfg(feature = "engine")]
mod stream;
#[cfg(feature = "engine")]
mod tcp;
#[cfg(test)]
#[cfg(feature = "tests")]
#[path = "../../plugins/testing.rs"]
mod testing;
#[cfg(feature = "engine")]
mod usage;
#[cfg(feature = "engine")]
mod vm;
#[cfg(feature = "engine")]
mod vm_data;

#[cfg(feature = "engine")]
pub use apisix::kinds;
use sigma_plugin::Descriptor;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[&descriptor::WASM];
