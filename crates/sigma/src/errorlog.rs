//! The error log: where it goes, and changing its level while the process runs.
//!
//! No thread but the log's own touches its descriptor, whose reader may be stuck. Lines that peers can cause
//! are limited: every place in the code has an allowance on every thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sigma_config::settings::ErrorLog;
use sigma_control::{LIFE, LogControl};
use sigma_observe::error_lines::Lines;
use sigma_observe::throttle::{Allowance, Throttle};
use sigma_observe::{LogTarget, LogWriter};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context as LayerContext, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::outcome::Outcome;

/// Lines that may wait for the writer; the longest are 8 KiB.
const QUEUED_LINES: usize = 1_024;

/// How long the last lines may take to leave when the process ends.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The same when another program replaces this one, while operators wait.
const FLUSHED_LINES: Duration = Duration::from_millis(200);

/// The target of lines about the log itself; no allowance holds for them.
const OWN_TARGET: &str = "sigma::log";

/// The lines that one place in the code may write on a worker: enough for diagnosis, too few to fill a disk.
const WORKER_ALLOWANCE: Allowance = Allowance { burst: 20, pause: Duration::from_millis(500) };

/// The same on the control thread, which reports every invalid object of a store.
const CONTROL_ALLOWANCE: Allowance = Allowance { burst: 1_000, pause: Duration::from_millis(100) };

thread_local! {
    static THROTTLES: RefCell<HashMap<Identifier, Throttle>> = RefCell::default();
}

/// Keeps lines back that one place in the code says too often. A line at `debug` or `trace` passes: these
/// levels are for diagnosis.
struct Allowances {
    control: std::thread::ThreadId,
}

impl<S: Subscriber> Layer<S> for Allowances {
    fn event_enabled(&self, event: &Event<'_>, _: LayerContext<'_, S>) -> bool {
        let place = event.metadata();
        if *place.level() > Level::INFO || place.target() == OWN_TARGET {
            return true;
        }
        let is_control = std::thread::current().id() == self.control;
        let allowance = if is_control { CONTROL_ALLOWANCE } else { WORKER_ALLOWANCE };
        let now = Instant::now();
        // A thread that ends says the last it has to say.
        let passed = THROTTLES.try_with(|throttles| {
            let mut throttles = throttles.borrow_mut();
            throttles
                .entry(place.callsite())
                .or_insert_with(|| Throttle::new(allowance, now))
                .pass(allowance, now)
        });
        match passed {
            Ok(Some(0)) | Err(_) => true,
            Ok(None) => false,
            Ok(Some(lines)) => {
                tell_of(lines, *place.level());
                true
            }
        }
    }
}

/// At the level of the lines themselves, so that it is seen where they are.
fn tell_of(lines: u64, level: Level) {
    const TEXT: &str = "similar lines were dropped";
    if level == Level::ERROR {
        tracing::error!(target: OWN_TARGET, lines, "{TEXT}");
    } else if level == Level::WARN {
        tracing::warn!(target: OWN_TARGET, lines, "{TEXT}");
    } else {
        tracing::info!(target: OWN_TARGET, lines, "{TEXT}");
    }
}

/// Returns the filter of `error_log.level`. At `warn` it also passes the few lines about the start of the
/// process and the results of reloads, for readers of warnings only.
fn filter(level: &str) -> Result<EnvFilter, String> {
    let mut directives = if level == "warn" { format!("warn,{LIFE}=info") } else { level.to_owned() };
    if !matches!(level, "debug" | "trace") {
        // Its warnings are about single packets, which any client can send.
        directives.push_str(",quinn_proto=error");
    }
    EnvFilter::try_new(directives).map_err(|error| error.to_string())
}

/// Tells the log how severe each line is.
struct ByLevel(Lines);

impl<'w> MakeWriter<'w> for ByLevel {
    type Writer = Lines;

    fn make_writer(&'w self) -> Lines {
        self.0.clone()
    }

    fn make_writer_for(&'w self, of: &Metadata<'_>) -> Lines {
        self.0.at(*of.level())
    }
}

/// The running error log.
pub(crate) struct Control {
    writer: Arc<Mutex<Option<LogWriter>>>,
    filter: reload::Handle<EnvFilter, Registry>,
    outcome: Option<Outcome>,
}

/// Lets the last lines leave when it is dropped.
pub(crate) struct Ending(Arc<Mutex<Option<LogWriter>>>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(writer) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A stuck reader loses them.
            writer.close(LAST_LINES);
        }
    }
}

/// Starts the error log of this process.
pub(crate) fn start(config: &ErrorLog) -> Result<(Control, Ending)> {
    start_with(config, Outcome::new())
}

/// The same in a process that continues as another program, which has left `outcome`.
pub(crate) fn go_on(config: &ErrorLog, outcome: Option<OwnedFd>) -> Result<(Control, Ending)> {
    start_with(config, outcome.map(Outcome::over).or_else(Outcome::new))
}

fn start_with(config: &ErrorLog, outcome: Option<Outcome>) -> Result<(Control, Ending)> {
    let target = match config.path.as_str() {
        "stderr" => LogTarget::Stderr,
        path => LogTarget::File(PathBuf::from(path)),
    };
    let writer = LogWriter::start(target, QUEUED_LINES).context("cannot write the error log")?;
    let lines: Lines = writer.lines();
    let filter = filter(&config.level)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("error_log.level `{}`", config.level))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_ansi(false).with_target(false).with_writer(ByLevel(lines));
    let allowances = Allowances { control: std::thread::current().id() };
    tracing_subscriber::registry().with(filter).with(allowances).with(lines).try_init()?;
    // The standard hook writes to stderr, on the thread that panicked.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        tracing::error!(thread, "{panic}");
    }));
    let writer = Arc::new(Mutex::new(Some(writer)));
    Ok((Control { writer: Arc::clone(&writer), filter: handle, outcome }, Ending(writer)))
}

impl LogControl for Control {
    fn set_level(&self, level: &str) -> Result<(), String> {
        self.filter.reload(filter(level)?).map_err(|error| error.to_string())
    }

    fn reopen(&self) {
        if let Some(writer) = &*self.writer.lock().unwrap_or_else(PoisonError::into_inner) {
            writer.reopen();
        }
    }

    fn carried_out(&mut self, result: Result<&str, &str>) {
        if let Some(outcome) = &mut self.outcome {
            outcome.tell(result);
        }
    }

    fn outcome(&self) -> Option<BorrowedFd<'_>> {
        self.outcome.as_ref().map(AsFd::as_fd)
    }

    fn flush(&self) {
        if let Some(writer) = &*self.writer.lock().unwrap_or_else(PoisonError::into_inner) {
            // A stuck reader loses them.
            writer.flush(FLUSHED_LINES);
        }
    }
}
