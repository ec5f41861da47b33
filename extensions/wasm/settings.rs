//! Settings of WebAssembly for the whole process.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::Node;

/// Settings of WebAssembly for the whole process, in `plugin_attr.wasm`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Settings {
    /// Folder for compiled modules, so that a start need not compile them again. Only the gateway's user may write to
    /// it: its files are machine code. Unset: modules are compiled at each start.
    pub(crate) disk_path: Option<PathBuf>,
    /// The most bytes of compiled modules on disk; older files are removed.
    #[schemars(range(min = 1_048_576))]
    pub(crate) disk_bytes: u64,
    /// Largest module in bytes.
    #[schemars(range(min = 1))]
    pub(crate) module_bytes: u64,
    /// The most memory of one instance, in MiB.
    #[schemars(range(min = 1, max = 4095))]
    pub(crate) memory_mib: usize,
    /// The most instances of the process. Each worker has one for each configuration of a module.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) instances: u32,
    /// The most exchanges that a module of http-wasm handles at the same time in one worker, for each configuration:
    /// each has its own instance. More exchanges wait.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) exchanges: usize,
    /// The longest run of a callback, in milliseconds of processor time. The callback is aborted then.
    #[schemars(range(min = 1, max = 60_000))]
    pub(crate) call_ms: u64,
    /// The longest start of an instance, in milliseconds of processor time. Workers do not wait for it, requests do.
    #[schemars(range(min = 1, max = 600_000))]
    pub(crate) start_ms: u64,
    /// The longest wait of a request for an instance that starts, in milliseconds. It fails then.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub(crate) start_wait_ms: u64,
    /// The longest pause of a request or a response, in milliseconds. It fails then.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub(crate) pause_ms: u64,
    /// Largest body in bytes that a paused callback holds, or writes.
    #[schemars(range(min = 1))]
    pub(crate) body_bytes: usize,
    /// The most calls of one context that wait for a response.
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) calls: usize,
    /// The longest call, in milliseconds. Calls with a longer timeout, or with 0, get this one.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub(crate) call_timeout_ms: u64,
    /// Largest response body of a call, in bytes.
    #[schemars(range(min = 1))]
    pub(crate) answer_bytes: usize,
    /// The shortest period of `proxy_on_tick`, in milliseconds. A shorter one becomes this one.
    #[schemars(range(min = 1, max = 60_000))]
    pub(crate) tick_ms: u64,
    /// The most bytes of shared data of one `vm_id`.
    pub(crate) shared_bytes: usize,
    /// The most shared queues of the process.
    pub(crate) queues: usize,
    /// The most items of one shared queue.
    #[schemars(range(min = 1))]
    pub(crate) queue_items: usize,
    /// The most bytes of the items of one shared queue.
    pub(crate) queue_bytes: usize,
    /// The most metrics that modules define.
    pub(crate) metrics: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            disk_path: None,
            disk_bytes: 1 << 30,
            module_bytes: 64 << 20,
            memory_mib: 128,
            instances: 256,
            exchanges: 64,
            call_ms: 100,
            start_ms: 10_000,
            start_wait_ms: 60_000,
            pause_ms: 60_000,
            body_bytes: 1 << 20,
            calls: 16,
            call_timeout_ms: 60_000,
            answer_bytes: 1 << 20,
            tick_ms: 10,
            shared_bytes: 16 << 20,
            queues: 64,
            queue_items: 1024,
            queue_bytes: 1 << 20,
            metrics: 256,
        }
    }
}

impl Settings {
    /// The settings of a gateway.
    ///
    /// # Errors
    /// Returns an error message if they are invalid.
    pub(crate) fn of(node: &Node) -> Result<Settings, String> {
        let written = Option::<Settings>::deserialize(node.attribute("wasm"));
        Ok(written.map_err(|error| format!("plugin_attr.wasm: {error}"))?.unwrap_or_default())
    }
}
