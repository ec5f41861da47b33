//! What a start needs besides the parts that it puts together, and why it may fail.

use std::path::PathBuf;
use std::sync::Arc;

use sigma_config::Config;
use sigma_config::crypt::Keyring;
use sigma_config::settings::{Settings, Workers};
use sigma_observe::log_buffer::{LogError, LogTarget, LogWriter};
use sigma_proxy::BindError;

use crate::operators::OpenError;
use crate::serving::source::LoadError;
use crate::store::{Store, StoreError};

/// Full log buffers that may wait for the writer.
const LOG_QUEUE_BLOCKS: usize = 256;

/// Why the process cannot start, or a reload was refused.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A listener.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The access log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store of resources.
    #[error("the store cannot be used: {0}")]
    Store(#[from] StoreError),
    /// A listener for operators.
    #[error(transparent)]
    Operators(#[from] OpenError),
    /// What secrets are read with.
    #[error("{0}")]
    Secrets(String),
    /// A change of a node.
    #[error("{0}")]
    Edit(String),
    /// The pid file.
    #[error("cannot write the pid file {path}: {source}")]
    PidFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Signals.
    #[error("cannot receive signals: {0}")]
    Signals(std::io::Error),
}

pub(super) fn keyring(settings: &Settings) -> Result<Keyring, StartError> {
    Keyring::try_from(&settings.data_encryption).map_err(|error| StartError::Secrets(error.to_string()))
}

/// The store, if resources are kept in one.
pub(super) async fn open_store(config: &Config) -> Result<Option<Arc<dyn Store>>, StartError> {
    let settings = match (&config.settings.store, &config.settings.admin) {
        (Some(store), _) => store.clone(),
        (None, Some(_)) => sigma_config::store::Store::default(),
        (None, None) => return Ok(None),
    };
    Ok(Some(crate::store::open(&settings).await?))
}

/// Begins to write the access log, if there is to be one.
pub(super) fn access_log(settings: &Settings) -> Result<Option<LogWriter>, LogError> {
    let target = match settings.access_log.path.as_str() {
        "off" => return Ok(None),
        "stdout" => LogTarget::Stdout,
        path => LogTarget::File(path.into()),
    };
    LogWriter::start(target, LOG_QUEUE_BLOCKS).map(Some)
}

pub(super) fn worker_count(settings: &Settings, cpus: usize) -> usize {
    match settings.workers {
        Workers::Auto => cpus.max(1),
        Workers::Count(count) => usize::from(count.get()),
    }
}

pub(super) fn write_pid_file(settings: &Settings) -> Result<Option<PathBuf>, StartError> {
    let Some(path) = &settings.pid_file else { return Ok(None) };
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|source| StartError::PidFile { path: path.clone(), source })?;
    Ok(Some(path.clone()))
}

/// What a reload cannot change is said, not silently left.
pub(super) fn warn_of_restart(old: &Settings, new: &Settings) {
    let changed = [
        ("workers", old.workers != new.workers),
        ("pin_workers", old.pin_workers != new.pin_workers),
        ("io", old.io != new.io),
        ("io_uring", old.io_uring != new.io_uring),
        ("status", old.status != new.status),
        ("operators", old.operators != new.operators),
        ("niubix_admin", old.niubix_admin != new.niubix_admin),
        ("admin", old.admin != new.admin),
        ("control", old.control != new.control),
        ("store", old.store != new.store),
        ("plugins", old.plugins != new.plugins),
        ("compat.ignored_plugins", old.compat.ignored_plugins != new.compat.ignored_plugins),
        ("plugin_attr", old.plugin_attr != new.plugin_attr),
        ("secret_lookup", old.secret_lookup != new.secret_lookup),
        ("discovery", old.discovery != new.discovery),
        ("health_events", old.health_events != new.health_events),
        ("acme", old.acme != new.acme),
        ("health_file", old.health_file != new.health_file),
        ("health_sharing", old.health_sharing != new.health_sharing),
        ("tls.ticket_keys", old.tls.ticket_keys != new.tls.ticket_keys),
        ("tls.storage", old.tls.storage != new.tls.storage),
        ("dns.servers", old.dns.servers != new.dns.servers),
        ("dns.ipv6", old.dns.ipv6 != new.dns.ipv6),
        ("pid_file", old.pid_file != new.pid_file),
        ("error_log.path", old.error_log.path != new.error_log.path),
    ];
    for (name, _) in changed.iter().filter(|(_, changed)| *changed) {
        tracing::warn!("`{name}` has changed; that takes effect at the next start");
    }
}
