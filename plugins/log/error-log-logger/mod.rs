//! `error-log-logger`: lines of the gateway's own error log, in batches to a server that collects them.
//!
//! The thread of the log shows each line to a [`Courier`], which never waits. All sending runs on its own thread, and
//! that thread's own lines are not shipped: a server that refuses lines would otherwise cause further ones, without
//! end.

mod target;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{io, thread};

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::Value;
use sigma_observe::error_lines;
use sigma_plugin::{Build, Configuration, Descriptor, Node, Plugin, Resident};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::plugins::PluginScope;

use sigma_plugin_kit::batch::{self, BatchSettings, Batches, Destination, Limits, Pace, Processor};
use target::{Target, Targets};

const NAME: &str = "error-log-logger";

/// Bytes of lines that may wait to be sent: APISIX keeps as many.
const WAITING_BYTES: usize = 10 << 20;

/// `error-log-logger`.
pub(crate) static ERROR_LOG_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 1091,
    example: include_str!("example.md"),
    metadata_schema: Some(schema_of::<Metadata>),
    warnings: Some(warnings),
    build: |_| Ok(Arc::new(Nothing)),
    resident: Some(|build| Ok(Arc::new(Shipping::new(build)?))),
    ..Descriptor::of::<Config>()
};

/// Sends the gateway's error log to a server over TCP, to SkyWalking, ClickHouse or Kafka.
///
/// It needs no route, only plugin metadata with the server. It sends the lines of the error log, filtered by
/// `error_log.level`. The serving gateway also sends the lines of the parent of a supervised gateway. Writers never
/// wait: beyond 8192 waiting lines or 10 MiB, lines are dropped. So are lines that the server does not accept after
/// `max_retry_count` more attempts. `sigma_access_lines_dropped_total` counts lost lines. Messages about the sending
/// itself are only in the error log.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, extend("properties" = {}))]
struct Config {}

impl Configuration for Config {}

/// A route may have it; it does nothing there.
struct Nothing;

impl Plugin for Nothing {}

/// The server, and the level of the lines that it gets.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME), transform = paced, transform = target::one_of)]
struct Metadata {
    #[serde(flatten)]
    targets: Targets,
    /// Minimum severity of the lines. `ERROR` is the highest level of Sigma; levels above it have the same effect.
    #[schemars(extend("default" = "WARN"))]
    level: Level,
    /// Timeout in seconds, for the connection and for an exchange.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    /// Idle timeout of a TCP connection in seconds.
    #[schemars(range(min = 1), extend("default" = 30))]
    keepalive: u64,
    #[serde(flatten)]
    batch: BatchSettings,
}

/// Gives the fields of a batch the defaults and bounds of this plugin.
fn paced(schema: &mut Schema) {
    if let Some(field) = schema.pointer_mut("/properties/inactive_timeout") {
        field["default"] = 3.into();
    }
    if let Some(field) = schema.pointer_mut("/properties/batch_max_size") {
        field["minimum"] = 0.into();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Level {
    Stderr,
    Emerg,
    Alert,
    Crit,
    Err,
    Error,
    Warn,
    Notice,
    Info,
    Debug,
}

impl From<Level> for tracing::Level {
    fn from(level: Level) -> tracing::Level {
        match level {
            Level::Stderr | Level::Emerg | Level::Alert | Level::Crit | Level::Err | Level::Error => {
                tracing::Level::ERROR
            }
            Level::Warn => tracing::Level::WARN,
            Level::Notice | Level::Info => tracing::Level::INFO,
            Level::Debug => tracing::Level::DEBUG,
        }
    }
}

fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    if scope == PluginScope::Metadata {
        return target::warnings(conf);
    }
    let message = "it has no effect here: the plugin works for the whole process, configured by its metadata";
    vec![Problem::new("", "without_effect", message).hint("set its plugin metadata, and remove it here")]
}

/// The plan of shipping in its metadata.
struct Shipping(Option<Plan>);

struct Plan {
    level: tracing::Level,
    key: u64,
    pace: Pace,
    target: Arc<Target>,
}

impl Shipping {
    fn new(build: &Build<'_>) -> Result<Shipping, String> {
        let Some(metadata) = build.metadata_as::<Option<Metadata>>()? else { return Ok(Shipping(None)) };
        let (timeout, keepalive) = (batch::seconds(metadata.timeout), batch::seconds(metadata.keepalive));
        let target = metadata.targets.chosen(timeout, keepalive, build.node.hostname())?;
        Ok(Shipping(Some(Plan {
            level: metadata.level.into(),
            key: batch::key_with_metadata(build),
            pace: Pace::from(&metadata.batch),
            target: Arc::new(target),
        })))
    }
}

impl Resident for Shipping {
    fn begin(&self, node: &Arc<Node>) {
        let courier = node.part(Courier::default);
        let Some(plan) = &self.0 else {
            error_lines::want(None);
            return courier.carry(None);
        };
        let beside = match courier.start(node) {
            Ok(beside) => beside,
            Err(error) => {
                return tracing::error!(%error, "{NAME}: cannot start its thread; no line is sent");
            }
        };
        let limits = Limits { bytes: WAITING_BYTES, ..Limits::default() };
        let make = || Arc::clone(&plan.target) as Arc<dyn Destination>;
        let processor = Batches::processor(&beside, NAME, plan.key, plan.pace.clone(), limits, make);
        courier.carry(Some(processor));
        error_lines::watch(move |_, line| courier.take(line));
        error_lines::want(Some(plan.level));
    }
}

/// Takes lines to where the metadata in force say.
#[derive(Default)]
struct Courier {
    /// Its thread, as a node whose background it is; begins with the first metadata.
    beside: OnceLock<Arc<Node>>,
    /// None while no line is to go anywhere.
    processor: Mutex<Option<Arc<Processor>>>,
}

impl Courier {
    /// The node of its thread. For the control thread alone.
    fn start(&self, node: &Arc<Node>) -> io::Result<Arc<Node>> {
        if let Some(beside) = self.beside.get() {
            return Ok(Arc::clone(beside));
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Including threads that resolve names.
        let runtime = runtime.enable_all().on_thread_start(error_lines::unwatch_thread).build()?;
        let handle = runtime.handle().clone();
        let run = move || {
            error_lines::unwatch_thread();
            runtime.block_on(std::future::pending::<()>());
        };
        thread::Builder::new().name("sigma-error-log".to_owned()).spawn(run)?;
        let beside = Arc::new(node.beside(move |work| drop(handle.spawn(work))));
        let last = Arc::clone(&beside);
        node.at_end(async move { last.end().await });
        Ok(Arc::clone(self.beside.get_or_init(|| beside)))
    }

    /// Lines that wait for the former target are still sent.
    fn carry(&self, processor: Option<Arc<Processor>>) {
        *self.processor.lock().unwrap_or_else(PoisonError::into_inner) = processor;
    }

    /// Takes a line, or drops and counts it.
    fn take(&self, line: &[u8]) {
        let processor = self.processor.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(processor), Some(beside)) = (&*processor, self.beside.get()) {
            processor.push_own(line.to_vec(), beside);
        }
    }
}
