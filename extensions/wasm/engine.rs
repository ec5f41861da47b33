//! The engine of the process: its limits and its clock.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sigma_plugin::Node;
use wasmtime::{
    Cache, CacheConfig, Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
};

use crate::settings::Settings;

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

/// The time between two looks at running callbacks, and the precision of their budget.
pub(crate) const CLOCK: Duration = Duration::from_millis(10);

/// The most stack of a callback: a worker's thread has 2 MiB.
const STACK_BYTES: usize = 512 << 10;

/// The most entries of the tables of one instance. Go modules need 20,000.
const TABLE_ELEMENTS: usize = 200_000;

/// The most bytes of an instance besides its memory: globals and references to functions.
const INSTANCE_BYTES: usize = 4 << 20;

/// Bytes of a freed instance that stay resident, so that the next one starts without page faults.
const RESIDENT_BYTES: usize = 64 << 10;

/// The WebAssembly of a process; a part of the node.
pub(crate) struct Runtime {
    pub(crate) engine: Engine,
    pub(crate) settings: Arc<Settings>,
}

/// The runtime, or the reason that it could not be made.
struct SharedRuntime(Result<Arc<Runtime>, String>);

impl Runtime {
    /// Returns the runtime of a gateway; the first configuration with a module makes it.
    ///
    /// # Errors
    /// Returns an error message if the settings are invalid, or the system cannot provide memory for the instances.
    pub(crate) fn of(node: &Node) -> Result<Arc<Runtime>, String> {
        node.part(|| SharedRuntime(Runtime::new(node))).0.clone()
    }

    fn new(node: &Node) -> Result<Arc<Runtime>, String> {
        let settings = Settings::of(node)?;
        let config = config(&settings)?;
        let engine = Engine::new(&config)
            .map_err(|error| format!("cannot start the WebAssembly engine: {error:#}"))?;
        start_clock(&engine)
            .map_err(|error| format!("cannot start the clock of the WebAssembly engine: {error}"))?;
        Ok(Arc::new(Runtime { engine, settings: Arc::new(settings) }))
    }
}

/// Values that live as long as one of their users, by digests.
pub(crate) struct Uses<T>(Mutex<HashMap<Digest, Weak<T>>>);

impl<T> Default for Uses<T> {
    fn default() -> Self {
        Uses(Mutex::default())
    }
}

impl<T> Uses<T> {
    /// Returns the value with this digest, which `make` provides if it is new.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub(crate) fn get(
        &self,
        digest: Digest,
        make: impl FnOnce() -> Result<Arc<T>, String>,
    ) -> Result<Arc<T>, String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&digest).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let made = make()?;
        all.retain(|_, known| known.strong_count() > 0);
        all.insert(digest, Arc::downgrade(&made));
        Ok(made)
    }
}

fn config(settings: &Settings) -> Result<Config, String> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_memories(settings.instances)
        .total_tables(settings.instances)
        .total_core_instances(settings.instances)
        .max_memory_size(settings.memory_mib << 20)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .table_elements(TABLE_ELEMENTS)
        .max_core_instance_size(INSTANCE_BYTES)
        .linear_memory_keep_resident(RESIDENT_BYTES)
        .table_keep_resident(RESIDENT_BYTES);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .epoch_interruption(true)
        .max_wasm_stack(STACK_BYTES)
        .cranelift_opt_level(OptLevel::Speed)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false);
    if let Some(path) = &settings.disk_path {
        config.cache(Some(cache(path, settings.disk_bytes)?));
    }
    Ok(config)
}

/// Opens the folder of compiled modules.
fn cache(path: &Path, bytes: u64) -> Result<Cache, String> {
    let place = || format!("plugin_attr.wasm.disk_path: {}", path.display());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| format!("{}: {error}", place()))?;
    let about = fs::metadata(path).map_err(|error| format!("{}: {error}", place()))?;
    // The files are machine code: a user who writes there runs code in the gateway.
    if about.mode() & 0o022 != 0 {
        return Err(format!("{}: other users may write to it; run `chmod go-w` on it", place()));
    }
    let path = path.canonicalize().map_err(|error| format!("{}: {error}", place()))?;
    let mut config = CacheConfig::new();
    config.with_directory(path).with_files_total_size_soft_limit(bytes);
    Cache::new(config).map_err(|error| format!("{}: {error:#}", place()))
}

/// Starts the thread that looks at running callbacks. It ends with the engine.
fn start_clock(engine: &Engine) -> std::io::Result<()> {
    let engine = engine.weak();
    let run = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::park_timeout(CLOCK);
        }
    };
    std::thread::Builder::new().name("wasm-clock".to_owned()).spawn(run).map(drop)
}
