//! Stress tests: a share of an upstream's live requests goes to some of its nodes, and grows by steps until a limit is
//! passed. Then the share is normal again, and the report stays.
//!
//! - [`plan`]: the order of an operator.
//! - [`progress`]: the steps, without clock and traffic.
//!
//! A task of the control thread runs a test. Workers read the share from the state of the nodes, as they do for node
//! states, and ignore a share that the task does not repeat: a test ends with its task. It ends too if a node of it is
//! not usable any more, if the upstream is changed, or if a worker is lost.

mod plan;
mod progress;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use sigma_config::resources::{Scheme, Upstream};
use sigma_upstream::endpoint::{Endpoint, UpstreamCell};
use sigma_upstream::health::StressShare;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use self::plan::StressPlan;
use self::progress::{End, Progress};
use crate::operators::live::{Live, Meter};
use crate::operators::refused_call::RefusedCall;
use crate::serving::clock::unix_seconds;

/// The most tests at once: each keeps the workers counting.
const RUNNING_MAX: usize = 8;

/// The most reports that are kept.
const REPORTS_MAX: usize = 100;

/// The time between two looks at a test; the share is repeated with each.
const TICK: Duration = Duration::from_secs(1);

/// A call of an operator.
#[derive(Debug, Clone, Copy)]
pub enum StressCall<'c> {
    /// All tests: the running ones, and the last one of each upstream
    List,
    /// The last test of this upstream
    Show(&'c str),
    /// Begins a test of this upstream, as the body says
    Start(&'c str, Option<&'c Value>),
    /// Ends the test of this upstream
    Stop(&'c str),
}

/// Returns the endpoints of an upstream in force, or why a test of it ends: it is gone, or the gateway has a problem.
pub(crate) trait InForceNow: Fn(&str) -> Result<Arc<UpstreamCell>, String> {}

impl<F: Fn(&str) -> Result<Arc<UpstreamCell>, String>> InForceNow for F {}

/// The reason of an end without the upstream.
pub(crate) const REMOVED: &str = "the upstream was removed";

/// Checks that the balancing of an upstream allows a test.
///
/// # Errors
/// Returns an error if requests are bound to nodes, or if it is not for requests.
pub(crate) fn check(upstream: &str, config: &Upstream) -> Result<(), String> {
    let bound = [
        ("session_affinity", config.session_affinity.is_some()),
        ("stick_table", config.stick_table.is_some()),
        ("subsets", config.subsets.is_some()),
    ];
    if let Some((field, _)) = bound.into_iter().find(|(_, is_set)| *is_set) {
        return Err(format!(
            "{upstream} has `{field}`, which binds requests to nodes; a stress test needs an upstream without it"
        ));
    }
    if !config.members.is_empty() {
        return Err(format!("{upstream} consists of other upstreams; test one of them"));
    }
    let is_for_requests = !matches!(config.scheme, Scheme::Tcp | Scheme::Tls | Scheme::Udp | Scheme::Kafka);
    if upstream.starts_with("stream_routes/") || !is_for_requests {
        return Err(format!("{upstream} is not for HTTP requests, whose latency a stress test measures"));
    }
    Ok(())
}

/// The nodes of a test, in the set of their upstream.
#[derive(Debug)]
pub(crate) struct Targets {
    cell: Arc<UpstreamCell>,
    endpoints: Vec<Endpoint>,
}

impl Targets {
    /// Finds the nodes of a plan in the endpoints of its upstream.
    ///
    /// # Errors
    /// Returns an error if one does not exist or is not usable, or if no other node is usable.
    pub(crate) fn find(
        upstream: &str,
        cell: Arc<UpstreamCell>,
        plan: &StressPlan,
    ) -> Result<Targets, String> {
        let set = cell.load();
        let is_named =
            |endpoint: &Endpoint, name: &str| endpoint.name() == name || endpoint.addr.to_string() == name;
        for name in &plan.nodes {
            if !set.endpoints.iter().any(|endpoint| is_named(endpoint, name)) {
                return Err(format!("{upstream} has no node {name}; `sigma ctl upstreams` lists its nodes"));
            }
        }
        let is_meant = |endpoint: &&Endpoint| plan.nodes.iter().any(|name| is_named(endpoint, name));
        let (endpoints, others): (Vec<&Endpoint>, Vec<&Endpoint>) = set.endpoints.iter().partition(is_meant);
        if !others.iter().any(|endpoint| endpoint.health.usable()) {
            return Err(format!(
                "{upstream} needs a usable node outside of the test, which gets the other requests"
            ));
        }
        let targets = Targets { endpoints: endpoints.into_iter().cloned().collect(), cell };
        match targets.unusable() {
            Some(reason) => Err(reason),
            None => Ok(targets),
        }
    }

    fn addresses(&self) -> HashSet<String> {
        self.endpoints.iter().map(|endpoint| endpoint.addr.to_string()).collect()
    }

    /// Returns why one of the nodes may not be tested any more.
    fn unusable(&self) -> Option<String> {
        let set = self.cell.load();
        self.endpoints.iter().find_map(|endpoint| {
            if !set.endpoints.iter().any(|other| Arc::ptr_eq(&other.health, &endpoint.health)) {
                return Some(format!("the node {} is gone", endpoint.name()));
            }
            let reason = endpoint.health.standing().reason()?;
            Some(format!("the node {} is not usable: {reason}", endpoint.name()))
        })
    }

    fn press(&self, percent: u32) {
        let share = percent * (StressShare::WHOLE / 100);
        self.endpoints.iter().for_each(|endpoint| endpoint.health.press(share));
    }
}

/// However a test ends, its nodes get their normal share.
impl Drop for Targets {
    fn drop(&mut self) {
        self.press(0);
    }
}

/// One test, running or ended.
#[derive(Debug)]
struct Run {
    upstream: String,
    nodes: Vec<String>,
    began: Instant,
    began_at: i64,
    ended_at: Mutex<Option<i64>>,
    progress: Mutex<Progress>,
    /// Notified when an operator ends it.
    stopped: Notify,
}

impl Run {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // It is valid between any two of its changes.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended_at(&self) -> MutexGuard<'_, Option<i64>> {
        self.ended_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_running(&self) -> bool {
        !self.progress().has_ended()
    }

    fn report(&self) -> Value {
        let mut report = json!({ "upstream": self.upstream, "nodes": self.nodes, "began": self.began_at });
        if let Some(ended_at) = *self.ended_at() {
            report["ended"] = ended_at.into();
        }
        let progress = self.progress().report(self.now_ms());
        if let (Some(report), Value::Object(progress)) = (report.as_object_mut(), progress) {
            report.extend(progress);
        }
        report
    }

    /// Runs it to its end.
    async fn drive(&self, targets: Targets, live: &Live, meter: &Meter, in_force: impl InForceNow) {
        let mut ticks = tokio::time::interval_at(self.began + TICK, TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        targets.press(self.progress().percent());
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.stopped.notified() => {}
            }
            let changed = match in_force(&self.upstream) {
                Err(reason) => Some(reason),
                Ok(cell) if !Arc::ptr_eq(&cell, &targets.cell) => Some("the upstream was changed".to_owned()),
                Ok(_) => targets.unusable(),
            };
            let (figures, now_ms) = (live.take(meter), self.now_ms());
            let mut progress = self.progress();
            let before = progress.percent();
            match changed {
                Some(reason) => progress.end(End::Changed(reason), now_ms),
                None => progress.tick(&figures, now_ms),
            }
            let percent = progress.percent();
            targets.press(percent);
            if progress.has_ended() {
                break;
            }
            if percent != before {
                tracing::info!(upstream = %self.upstream, percent, "the share of a stress test grows");
            }
        }
    }
}

/// Ends the progress of a test whose task has ended in any way.
struct Ending(Arc<Run>);

impl Drop for Ending {
    fn drop(&mut self) {
        let run = &self.0;
        run.progress().end(End::Changed("the task of the test has ended".to_owned()), run.now_ms());
        *run.ended_at() = Some(unix_seconds());
        let report = run.report();
        let reason = report.get("reason").and_then(Value::as_str).unwrap_or_default();
        tracing::warn!(upstream = %run.upstream, reason, "a stress test has ended; its nodes get their normal share");
    }
}

/// The stress tests of the process: the last one of each upstream.
#[derive(Debug, Default)]
pub(crate) struct StressRuns {
    runs: Mutex<BTreeMap<String, Arc<Run>>>,
}

impl StressRuns {
    fn runs(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Run>>> {
        // An insertion or removal is one step.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reports of all tests.
    pub(crate) fn list(&self) -> Value {
        self.runs().values().map(|run| run.report()).collect()
    }

    /// Returns the report of the last test of an upstream.
    ///
    /// # Errors
    /// Returns an error if no test was started.
    pub(crate) fn show(&self, upstream: &str) -> Result<Value, RefusedCall> {
        let runs = self.runs();
        let run = runs.get(upstream).ok_or_else(|| none(upstream, "no stress test"))?;
        Ok(run.report())
    }

    /// Ends the test of an upstream.
    ///
    /// # Errors
    /// Returns an error if none is running.
    pub(crate) fn stop(&self, upstream: &str) -> Result<Value, RefusedCall> {
        let runs = self.runs();
        let run = runs.get(upstream).filter(|run| run.is_running());
        let run = run.ok_or_else(|| none(upstream, "no running stress test"))?;
        run.progress().end(End::Stopped, run.now_ms());
        run.stopped.notify_one();
        Ok(run.report())
    }

    /// Begins a test. Within a runtime.
    ///
    /// # Errors
    /// Returns an error if a test of the upstream is running, or too many others are.
    pub(crate) fn start(
        &self,
        upstream: &str,
        plan: StressPlan,
        targets: Targets,
        live: &Arc<Live>,
        in_force: impl InForceNow + Send + Sync + 'static,
    ) -> Result<Value, RefusedCall> {
        let mut runs = self.runs();
        if runs.get(upstream).is_some_and(|run| run.is_running()) {
            let message = format!("a stress test of {upstream} is running; stop it first");
            return Err(RefusedCall::new(StatusCode::CONFLICT, message));
        }
        if runs.values().filter(|run| run.is_running()).count() >= RUNNING_MAX {
            let message = format!("{RUNNING_MAX} stress tests are running, the maximum; stop one first");
            return Err(RefusedCall::new(StatusCode::CONFLICT, message));
        }
        let (nodes, began) = (plan.nodes.clone(), Instant::now());
        let run = Arc::new(Run {
            upstream: upstream.to_owned(),
            nodes,
            began,
            began_at: unix_seconds(),
            ended_at: Mutex::default(),
            progress: Mutex::new(Progress::begin(plan, 0)),
            stopped: Notify::new(),
        });
        runs.insert(upstream.to_owned(), Arc::clone(&run));
        while runs.len() > REPORTS_MAX {
            let ended = runs.iter().filter(|(_, run)| !run.is_running());
            let oldest = ended.min_by_key(|(_, run)| run.began).map(|(upstream, _)| upstream.clone());
            let Some(oldest) = oldest else { break };
            runs.remove(&oldest);
        }
        tracing::warn!(upstream, nodes = ?run.nodes, "an operator has started a stress test");
        let report = run.report();
        let (live, meter) = (Arc::clone(live), live.meter(targets.addresses()));
        tokio::spawn(async move {
            let ending = Ending(Arc::clone(&run));
            ending.0.drive(targets, &live, &meter, in_force).await;
        });
        Ok(report)
    }
}

fn none(upstream: &str, what: &str) -> RefusedCall {
    RefusedCall::new(StatusCode::NOT_FOUND, format!("{upstream} has {what}"))
}

#[cfg(test)]
mod tests;
