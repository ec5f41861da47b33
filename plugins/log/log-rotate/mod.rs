//! `log-rotate`: gives the gateway's own log files other names, by time and by size.
//!
//! A file is renamed, then the process reopens its logs. Until then each writer continues with its open file,
//! so no line is lost; a file is compressed only when it has no writers any more.

mod archive;
mod files;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::resident::OwnLogs;
use sigma_plugin::{Build, Configuration, Descriptor, Node, Plugin, Resident};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::plugins::PluginScope;

use files::{Rotated, rotate};

const NAME: &str = "log-rotate";

/// How often it is looked whether something is to be done.
const LOOK: Duration = Duration::from_secs(1);

/// `log-rotate`.
pub(crate) static LOG_ROTATE: Descriptor = Descriptor {
    name: NAME,
    priority: 100,
    example: include_str!("example.md"),
    attributes: Some(schema_of::<Settings>),
    warnings: Some(warnings),
    build: |_| Ok(Arc::new(Nothing)),
    resident: Some(|build| Ok(Arc::new(Rotation::new(build)?))),
    ..Descriptor::of::<Config>()
};

/// Rotates the files of the access log and the error log, by time and by size.
///
/// It needs no route: it works where `plugins` names it, or `plugin_attr` has settings for it. A file `access.log` is
/// renamed to `2026-11-23_18-00-00__access.log` (UTC) in its folder. The logs are then reopened as with the signal
/// `USR1`, also the logs of the parent of a supervised gateway. No line is lost by that, and no worker waits for it.
/// With `enable_compression` a file becomes an archive when no process writes to it any more. Files of `file-logger`
/// are not rotated.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, extend("properties" = {}))]
struct Config {}

impl Configuration for Config {}

/// A route may have it; it does nothing there.
struct Nothing;

impl Plugin for Nothing {}

/// The times of rotation, and the number of rotated files.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
struct Settings {
    /// Seconds between rotations, which are at multiples of this time since 1970.
    #[schemars(range(min = 1))]
    interval: u64,
    /// Maximum rotated files of each log.
    #[schemars(range(min = 1))]
    max_kept: usize,
    /// Size in bytes from which a file is rotated early; 0 or less: no limit.
    max_size: i64,
    /// Makes a `.tar.gz` of each rotated file.
    enable_compression: bool,
    /// Timeout of the compression in milliseconds; a file that takes longer stays uncompressed.
    #[schemars(range(min = 1))]
    timeout: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { interval: 3600, max_kept: 168, max_size: -1, enable_compression: false, timeout: 10_000 }
    }
}

fn warnings(_: PluginScope, _: &Value) -> Vec<Problem> {
    let message = "it has no effect here: the plugin rotates the logs of the whole process";
    vec![Problem::new("", "without_effect", message).hint("set `plugin_attr.log-rotate`, and remove it here")]
}

/// The rotation by the settings.
struct Rotation(Settings);

impl Rotation {
    fn new(build: &Build<'_>) -> Result<Rotation, String> {
        let settings = Option::<Settings>::deserialize(build.node.attribute(NAME));
        let settings = settings.map_err(|error| format!("plugin_attr.{NAME}: {error}"))?;
        Ok(Rotation(settings.unwrap_or_default()))
    }
}

impl Resident for Rotation {
    fn begin(&self, node: &Arc<Node>) {
        let is_wanted = !node.attribute(NAME).is_null() || node.own_logs().rotated;
        if !is_wanted {
            return;
        }
        if files_of(&node.own_logs()).is_empty() {
            tracing::warn!(
                "{NAME}: `access_log.path` and `error_log.path` are not files: nothing is rotated"
            );
        }
        let rotor = Rotor::new(self.0.clone(), unix_s());
        node.spawn(run(rotor, Arc::clone(node)));
    }
}

async fn run(mut rotor: Rotor, node: Arc<Node>) {
    let mut clock = tokio::time::interval(LOOK);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let logs = node.own_logs();
        // Disks may stand still: not on the control thread.
        let look = tokio::task::spawn_blocking(move || {
            let has_rotated = rotor.look(&files_of(&logs), unix_s());
            (rotor, has_rotated)
        });
        // It ends early only with the process.
        let Ok((back, has_rotated)) = look.await else { return };
        rotor = back;
        if has_rotated {
            node.reopen_own_logs();
        }
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The files that are logs, each once.
fn files_of(logs: &OwnLogs) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = logs.error.iter().chain(&logs.access).cloned().collect();
    files.dedup();
    files
}

/// The rotated files, and the times.
struct Rotor {
    settings: Settings,
    /// When all files are rotated the next time, in seconds since 1970.
    next_s: u64,
    /// Files that wait for compression until they have no writers.
    written: Vec<Rotated>,
}

impl Rotor {
    fn new(settings: Settings, now_s: u64) -> Rotor {
        let next_s = after(now_s, settings.interval);
        Rotor { settings, next_s, written: Vec::new() }
    }

    /// Does all due work. Returns whether a file was rotated, so that the logs have to be reopened.
    fn look(&mut self, files: &[PathBuf], now_s: u64) -> bool {
        // Files of an earlier pass: their writers have had time to close them.
        self.compress();
        let is_time = now_s >= self.next_s;
        if is_time {
            self.next_s = after(now_s, self.settings.interval);
        }
        let due: Vec<&PathBuf> = files.iter().filter(|path| is_time || self.is_full(path)).collect();
        let mut has_rotated = false;
        for path in due {
            match rotate(path, now_s) {
                Ok(Some(rotated)) => {
                    has_rotated = true;
                    rotated.prune(self.settings.max_kept);
                    self.written.extend(self.settings.enable_compression.then_some(rotated));
                }
                Ok(None) => {}
                // The other one is rotated all the same.
                Err(error) => tracing::error!("{NAME}: cannot rotate {}: {error}", path.display()),
            }
        }
        has_rotated
    }

    fn is_full(&self, path: &std::path::Path) -> bool {
        let most = u64::try_from(self.settings.max_size).ok().filter(|most| *most > 0);
        most.is_some_and(|most| std::fs::metadata(path).is_ok_and(|file| file.len() >= most))
    }

    fn compress(&mut self) {
        let (timeout, max_kept) = (Duration::from_millis(self.settings.timeout), self.settings.max_kept);
        self.written.retain(|rotated| {
            if rotated.is_written() {
                return true;
            }
            if let Err(error) = rotated.compress(timeout) {
                tracing::error!("{NAME}: cannot compress {}: {error}", rotated.path().display());
            }
            rotated.prune(max_kept);
            false
        });
    }
}

/// The first multiple of `interval` behind a moment.
fn after(now_s: u64, interval: u64) -> u64 {
    (now_s - now_s % interval).saturating_add(interval)
}
