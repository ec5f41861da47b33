//! The life of the process: start, reload, stop.
//!
//! A reload is check → compile → prepare → commit; whatever fails before the commit leaves the
//! running configuration as it is.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::settings::{Settings, Workers};
use sigma_config::{Config, Problem};
use sigma_observe::log_buffer::{LogError, LogTarget, LogWriter};
use sigma_proxy::gateway::BindError;
use sigma_proxy::{Gateway, Snapshot};
use sigma_upstream::health::{REPORT_QUEUE, passive_channel};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::fleet::Fleet;
use crate::source::{LoadError, Source};
use crate::{niubix, status};

/// How often `--watch` looks at the file.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Full log buffers that may wait for the writer.
const LOG_QUEUE_BLOCKS: usize = 256;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file.
    pub source: Source,
    /// Reload when the file changes.
    pub watch: bool,
}

/// The error log, as far as it changes while the process runs; the binary owns it.
pub trait LogControl {
    /// Puts another filter into force.
    ///
    /// # Errors
    /// The filter is not understood.
    fn set_level(&self, filter: &str) -> Result<(), String>;
    /// Opens the file anew, after it was renamed.
    fn reopen(&self);
}

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
    /// The pid file.
    #[error("cannot write the pid file {path}: {source}")]
    PidFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Signals cannot be received, or the status listener not be bound.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// What other parts of the control thread ask of the supervisor.
#[derive(Debug)]
pub(crate) enum Request {
    Reload,
    Shutdown,
    /// Change nodes of the running configuration; memory only.
    Edit {
        edit: niubix::Edit,
        reply: oneshot::Sender<Result<(), String>>,
    },
    Health {
        reply: oneshot::Sender<serde_json::Value>,
    },
}

/// The running process.
pub struct Supervisor {
    options: Options,
    fleet: Fleet,
    gateway: Gateway,
    current: Arc<Snapshot>,
    log: Box<dyn LogControl>,
    shared: Arc<status::Shared>,
    requests: mpsc::Receiver<Request>,
    pid_file: Option<PathBuf>,
    /// Taken by [`Supervisor::run`].
    signals: Option<Signals>,
}

/// Signals that operators send.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
}

impl Signals {
    fn receive() -> std::io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: signal(SignalKind::user_defined1())?,
        })
    }
}

impl Supervisor {
    /// Starts everything. Must be called within a runtime.
    ///
    /// # Errors
    /// Any [`StartError`]; nothing keeps running then.
    pub async fn start(
        options: Options,
        config: Config,
        log: Box<dyn LogControl>,
    ) -> Result<Supervisor, StartError> {
        // Before anything listens: whoever sees the gateway accept may signal it.
        let signals = Signals::receive()
            .map_err(|source| StartError::System { what: "cannot receive signals".into(), source })?;
        let mut fleet = Fleet::default();
        let current = compile(&options.source, config, None, &mut fleet)?;
        let settings = &current.settings;
        let (reporter, inbox) = passive_channel(REPORT_QUEUE);
        tokio::spawn(inbox.run());
        let writer = access_log(settings)?;
        let cpus = sigma_net::limits::usable_cpus();
        let workers = worker_count(settings, cpus.len());
        let pinned: &[usize] = if settings.pin_workers { &cpus } else { &[] };
        let gateway = Gateway::start(Arc::clone(&current), workers, pinned, writer, &reporter)?;
        fleet.commit(&current);
        let (ask, requests) = mpsc::channel(16);
        let shared = Arc::new(status::Shared::new(gateway.counters(), ask));
        serve_operators(settings, &shared).await?;
        let pid_file = write_pid_file(settings)?;
        Ok(Supervisor {
            options,
            fleet,
            gateway,
            current,
            log,
            shared,
            requests,
            pid_file,
            signals: Some(signals),
        })
    }

    /// Runs until told to stop, then drains.
    pub async fn run(mut self) {
        let Some(Signals { mut hangup, mut terminate, mut interrupt, mut reopen }) = self.signals.take()
        else {
            return;
        };
        let mut stamp = self.options.source.stamp();
        let mut watch = tokio::time::interval(WATCH_PERIOD);
        loop {
            tokio::select! {
                _ = hangup.recv() => self.reload(),
                _ = reopen.recv() => {
                    self.gateway.reopen_log();
                    self.log.reopen();
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = watch.tick() => {
                    self.shared.set_ready(!self.gateway.has_lost_a_worker());
                    let now = self.options.source.stamp();
                    if self.options.watch && now.is_some() && now != stamp {
                        stamp = now;
                        self.reload();
                    }
                }
                Some(request) = self.requests.recv() => match request {
                    Request::Shutdown => break,
                    Request::Reload => self.reload(),
                    Request::Edit { edit, reply } => {
                        // Nobody waits for the reply if its connection has gone.
                        let _ = reply.send(self.edit(&edit));
                    }
                    Request::Health { reply } => {
                        let _ = reply.send(status::health(&self.fleet));
                    }
                },
            }
        }
        self.stop();
    }

    fn stop(self) {
        self.shared.set_ready(false);
        tracing::info!("stopping: no new connections, open exchanges may finish");
        self.gateway.drain();
        if let Some(path) = &self.pid_file {
            // Gone already is as good as removed.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Loads the file again. On a problem everything stays as it is, and the error log says why.
    fn reload(&mut self) {
        let result = self.options.source.load().map_err(StartError::from).and_then(|checked| {
            for warning in &checked.warnings {
                tracing::warn!("{}: {warning}", self.options.source.path.display());
            }
            self.apply(checked.config)
        });
        self.shared.reloaded(result.as_ref().err().map(ToString::to_string));
        match result {
            Ok(()) => tracing::info!("configuration reloaded"),
            Err(error) => {
                tracing::error!("the configuration was not reloaded, the old one stays in force:\n{error}")
            }
        }
    }

    fn apply(&mut self, config: Config) -> Result<(), StartError> {
        let snapshot = match compile(&self.options.source, config, Some(&self.current), &mut self.fleet) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.fleet.discard();
                return Err(error.into());
            }
        };
        let prepared = access_log(&snapshot.settings)
            .map_err(StartError::from)
            .and_then(|log| Ok(self.gateway.prepare(&snapshot, log)?));
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.fleet.discard();
                return Err(error);
            }
        };
        self.gateway.commit(prepared);
        self.fleet.commit(&snapshot);
        warn_of_restart(&self.current.settings, &snapshot.settings);
        if let Err(error) = self.log.set_level(&snapshot.settings.error_log.level) {
            tracing::error!(%error, "the level of the error log stays as it was");
        }
        self.current = snapshot;
        Ok(())
    }

    fn edit(&mut self, edit: &niubix::Edit) -> Result<(), String> {
        let mut config = self.current.config().clone();
        edit.apply(&mut config)?;
        self.apply(config).map_err(|error| error.to_string())
    }
}

/// Compiles a checked configuration; names are resolved when this returns.
fn compile(
    source: &Source,
    config: Config,
    previous: Option<&Snapshot>,
    fleet: &mut Fleet,
) -> Result<Arc<Snapshot>, LoadError> {
    let problems = |problems: Vec<Problem>| source.invalid(problems);
    let snapshot = Snapshot::compile(config, previous, fleet).map_err(problems)?;
    fleet.settle();
    Ok(Arc::new(snapshot))
}

fn access_log(settings: &Settings) -> Result<Option<LogWriter>, LogError> {
    let target = match settings.access_log.path.as_str() {
        "off" => return Ok(None),
        "stdout" => LogTarget::Stdout,
        path => LogTarget::File(path.into()),
    };
    LogWriter::start(target, LOG_QUEUE_BLOCKS).map(Some)
}

fn worker_count(settings: &Settings, cpus: usize) -> usize {
    match settings.workers {
        Workers::Auto => cpus.max(1),
        Workers::Count(count) => usize::from(count.get()),
    }
}

async fn serve_operators(settings: &Settings, shared: &Arc<status::Shared>) -> Result<(), StartError> {
    if let Some(status) = &settings.status {
        serve(status.address, status::router(Arc::clone(shared))).await?;
    }
    if let Some(admin) = &settings.niubix_admin {
        serve(admin.address, niubix::router(Arc::clone(shared), admin)).await?;
    }
    Ok(())
}

async fn serve(address: SocketAddr, router: axum::Router) -> Result<(), StartError> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(|source| StartError::System { what: format!("cannot listen on {address}"), source })?;
    tokio::spawn(async move {
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        if let Err(error) = axum::serve(listener, service).await {
            tracing::error!(%address, %error, "an operator's listener has ended");
        }
    });
    Ok(())
}

fn write_pid_file(settings: &Settings) -> Result<Option<PathBuf>, StartError> {
    let Some(path) = &settings.pid_file else { return Ok(None) };
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|source| StartError::PidFile { path: path.clone(), source })?;
    Ok(Some(path.clone()))
}

/// What a reload cannot change is said, not silently left.
fn warn_of_restart(old: &Settings, new: &Settings) {
    let changed = [
        ("workers", old.workers != new.workers),
        ("pin_workers", old.pin_workers != new.pin_workers),
        ("status", old.status != new.status),
        ("niubix_admin", old.niubix_admin != new.niubix_admin),
        ("pid_file", old.pid_file != new.pid_file),
        ("error_log.path", old.error_log.path != new.error_log.path),
    ];
    for (name, _) in changed.iter().filter(|(_, changed)| *changed) {
        tracing::warn!("`{name}` has changed; that takes effect at the next start");
    }
}
