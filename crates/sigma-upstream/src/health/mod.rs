//! The health of endpoints, and its sources.
//!
//! - [`state`]: the state machine of one target.
//! - [`outlier`]: the rules of outlier detection; [`tally`]: what workers count for them.
//! - [`plan`]: checks as configured, compiled.
//! - [`probe`]: one active probe; [`grpc`]: the probe of gRPC.
//! - [`report`]: reports of workers on their way to the control side.
//! - [`runs`]: which of these came in a row.
//! - [`event`]: notifications about targets that go out and come back.
//! - [`ejection`]: ejections of targets, and their return.
//! - [`agent`]: messages of agents on nodes.
//! - [`checker`]: the loops that probe and compare, and their life across reloads.
//! - [`records`]: the targets of one upstream.
//! - [`kept`]: the state for the next process.
//! - [`findings`]: findings shared by gateways.
//! - [`stress`]: shares of stress tests.
//!
//! A [`Health`] is written by the control side only and read by every worker. Reports of workers from traffic go
//! through a bounded channel ([`HealthReporter`]), except their counts.

mod agent;
pub mod checker;
mod ejection;
mod event;
mod findings;
mod grpc;
mod kept;
pub mod outlier;
pub mod plan;
pub mod probe;
mod records;
mod report;
mod runs;
#[cfg(test)]
mod simulation;
pub mod state;
mod stress;
mod tally;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::endpoint::{Address, Endpoint, node_name};
use crate::lock::lock;
use crate::overload::gate::{Gate, Line};

pub use checker::{CheckerSpec, Checkers, TargetStatus};
pub use event::{HealthEvent, HealthEvents};
pub use findings::{Agreement, Findings, FoundNode};
pub use kept::{KeptEjections, KeptNode, StoredHealth};
use outlier::{NodeEjections, NodeOutcome, Rule, Rules};
pub use plan::{Passive, Plan, PlanError};
pub use records::{Configured, HealthRecords, NodeStates};
pub use report::{HealthInbox, HealthReporter, REPORT_QUEUE, passive_channel};
use runs::Runs;
use state::{AgentWish, Source};
pub use state::{Event, Limits, NodeState, Standing, State};
use stress::StressCell;
pub use stress::StressShare;
use tally::Tally;

/// Counts how often a target of one upstream became usable or unusable.
///
/// A worker compares it with its last number, which saves reading every target for every request.
#[derive(Debug, Default)]
pub struct HealthEpoch(AtomicU64);

impl HealthEpoch {
    /// Returns the current number.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The health of one target.
#[derive(Debug)]
pub struct Health {
    standing: AtomicU64,
    epoch: Arc<HealthEpoch>,
    /// The identity of the target; None without notifications.
    place: Option<Box<RecordIdentity>>,
    /// How often checks made it unusable. Control side only.
    turns: AtomicU32,
    /// The runs of events for passive checks.
    runs: Runs,
    /// The share of requests by a stress test.
    stress: StressCell,
    /// The request limit that its agent wants; 0 without one.
    maxconn: AtomicU32,
    /// Its agent's limit has no effect, and the log says so. Control side only.
    has_idle_maxconn: AtomicBool,
    /// Set with outlier detection.
    compared: OnceLock<Box<Compared>>,
    /// Counts its requests; made if they are limited.
    gate: OnceLock<Arc<Gate>>,
    /// The requests that wait for it or another node of the upstream.
    line: Arc<Line>,
}

/// The identity of a record's target.
#[derive(Debug)]
pub(crate) struct RecordIdentity {
    /// The upstream, such as `upstreams/1`.
    upstream: Arc<str>,
    host: String,
    port: u16,
    address: Address,
    events: HealthEvents,
}

/// State of outlier detection for a target.
#[derive(Debug)]
struct Compared {
    tally: Tally,
    /// How often each rule has found it without an ejection, because of its `enforcing_…`. Control side only.
    spared: [AtomicU32; Rule::ALL.len()],
    /// Control side only.
    course: Mutex<NodeEjections>,
}

impl Health {
    /// Returns a new target, healthy.
    pub fn new(epoch: Arc<HealthEpoch>) -> Health {
        Health {
            standing: AtomicU64::new(Standing::default().pack()),
            epoch,
            place: None,
            turns: AtomicU32::new(0),
            runs: Runs::default(),
            stress: StressCell::default(),
            maxconn: AtomicU32::new(0),
            has_idle_maxconn: AtomicBool::new(false),
            compared: OnceLock::new(),
            gate: OnceLock::new(),
            line: Arc::default(),
        }
    }

    /// Returns the gate that counts the process's requests, if a node has its own limit.
    #[inline]
    pub fn gate(&self) -> &Arc<Gate> {
        self.gate.get_or_init(|| Arc::new(Gate::behind(&self.line)))
    }

    /// Returns the line of requests that wait for it or another node of the upstream.
    pub fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// Returns the health of an unchecked endpoint: healthy.
    pub fn unchecked() -> Health {
        Health::new(Arc::default())
    }

    /// Returns state and counters, as one consistent value.
    #[inline]
    pub fn standing(&self) -> Standing {
        Standing::unpack(self.standing.load(Ordering::Relaxed))
    }

    /// Returns true if it may get requests.
    #[inline]
    pub fn usable(&self) -> bool {
        self.standing().usable()
    }

    /// Returns true if it may get requests that are bound to it, for example by a session.
    #[inline]
    pub fn keeps_bound(&self) -> bool {
        self.standing().keeps_bound()
    }

    /// Returns true if it may get requests when no other node is healthy.
    #[inline]
    pub fn is_in_service(&self) -> bool {
        self.standing().is_in_service()
    }

    /// Sets the state that an operator wants (control side).
    pub fn want(&self, wanted: NodeState) {
        self.change(|standing| Standing { wanted, ..standing });
    }

    /// Sets or repeats the share of requests that it and others in a stress test get together, of
    /// [`StressShare::WHOLE`]; 0 ends the test (control side).
    pub fn press(&self, share: u32) {
        if self.stress.set(share) {
            // Release, as for its state.
            self.epoch.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns its share of a stress test.
    #[inline]
    pub fn stress(&self) -> StressShare {
        self.stress.get()
    }

    /// Returns the effective part of a configured weight.
    #[inline]
    pub fn weighed(&self, weight: u32) -> u32 {
        self.standing().weighed(weight)
    }

    /// Handles a message of its agent (control side).
    fn hear(&self, said: agent::AgentReport) {
        if let Some(wanted) = said.maxconn() {
            self.maxconn.store(wanted, Ordering::Relaxed);
        }
        self.change(|standing| Standing { agent: said.after(standing.agent), ..standing });
    }

    /// Returns true if it is out because of requests of this gateway.
    fn is_found_out(&self) -> bool {
        let standing = self.standing();
        let by_requests = standing.blame.is_some_and(|blame| blame.by == Source::Passive);
        standing.ejected.is_some() || (!standing.state.usable() && by_requests)
    }

    /// Sets whether other gateways' findings take it out (control side).
    fn find_elsewhere(&self, is_out_elsewhere: bool) {
        self.change(|standing| Standing { is_out_elsewhere, ..standing });
    }

    /// Drops the agent's wishes: its agent is not asked any more (control side).
    fn forget_agent(&self) {
        self.maxconn.store(0, Ordering::Relaxed);
        self.change(|standing| Standing { agent: AgentWish::default(), ..standing });
    }

    /// Records a limit of its agent without effect; returns true if it is the first (control side).
    fn is_first_idle_maxconn(&self) -> bool {
        !self.has_idle_maxconn.swap(true, Ordering::Relaxed)
    }

    /// Returns its request limit, given the configured one.
    #[inline]
    pub fn bounded(&self, configured: u32) -> u32 {
        match self.maxconn.load(Ordering::Relaxed) {
            0 => configured,
            wanted => wanted,
        }
    }

    /// Applies a result of requests (control side); returns the standing before and after.
    pub fn apply(&self, event: Event, limits: Limits) -> (Standing, Standing) {
        self.change(|standing| standing.seen(Source::Passive, event, limits))
    }

    /// Applies a probe result (control side); returns the standing before and after.
    pub(crate) fn probed(&self, event: Event, limits: Limits) -> (Standing, Standing) {
        self.change(|standing| standing.seen(Source::Active, event, limits))
    }

    /// Records an observation of the worker with this number, with outlier detection. `found` gets the rules that the
    /// target violates by it.
    #[inline]
    pub fn note(&self, worker: usize, seen: NodeOutcome, rules: &Rules, found: impl FnMut(Rule)) {
        if let Some(compared) = self.compared.get() {
            compared.tally.note(worker, seen, rules, found);
        }
    }

    /// Returns the time of its return, in Unix milliseconds; None if outlier detection has not ejected it.
    pub fn ejected_until_ms(&self) -> Option<u64> {
        lock(&self.compared.get()?.course).until_ms
    }

    /// Returns how often each rule has found it without an ejection, because of its `enforcing_…`; only rules that
    /// have.
    pub fn spared(&self) -> Vec<(&'static str, u32)> {
        let Some(compared) = self.compared.get() else { return Vec::new() };
        let counts = compared.spared.iter().map(|count| count.load(Ordering::Relaxed));
        let named = Rule::ALL.iter().map(|rule| rule.name()).zip(counts);
        named.filter(|(_, count)| *count > 0).collect()
    }

    /// Starts counting for outlier detection, for this number of workers.
    fn compare(&self, workers: usize) {
        let new = || {
            Box::new(Compared {
                tally: Tally::new(workers),
                spared: Default::default(),
                course: Mutex::default(),
            })
        };
        self.compared.get_or_init(new);
    }

    /// Changes the standing (control side); returns it before and after.
    fn change(&self, step: impl Fn(Standing) -> Standing) -> (Standing, Standing) {
        let stepped = |word| {
            let next = step(Standing::unpack(word)).pack();
            // An unchanged word must not take the cache line from the readers.
            (next != word).then_some(next)
        };
        let before = match self.standing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, stepped) {
            Ok(word) | Err(word) => Standing::unpack(word),
        };
        let after = step(before);
        if before.state.usable() && !after.state.usable() {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
        if before.uses() != after.uses() {
            // Release: a reader of the new number also sees the state that caused it.
            self.epoch.0.fetch_add(1, Ordering::Release);
        }
        if before.usable() != after.usable() {
            self.tell(before, after);
        }
        (before, after)
    }

    fn tell(&self, before: Standing, after: Standing) {
        let Some(place) = &self.place else { return };
        let RecordIdentity { upstream, host, port, address, events } = &**place;
        let (node, reason) = (node_name(host, *port, address), after.reason());
        let (from, to) = (before.state.name(), after.state.name());
        let said = reason.as_deref().unwrap_or_default();
        match reason {
            Some(_) => {
                tracing::warn!(%upstream, node, %address, from, to, reason = said, "health check: the node is unhealthy");
            }
            None => tracing::warn!(%upstream, node, %address, from, to, "health check: the node is healthy"),
        }
        let (upstream, address) = (Arc::clone(upstream), address.to_string());
        events.tell(|| HealthEvent { upstream, node, address, reason });
    }
}

/// Returns endpoints by distinct health record: a node in two priority groups is one target.
fn targets(endpoints: &[Endpoint], wanted: impl Fn(&Health) -> bool) -> Vec<Endpoint> {
    let mut seen = HashSet::with_capacity(endpoints.len());
    let mut first = |e: &&Endpoint| seen.insert(Arc::as_ptr(&e.health));
    endpoints.iter().filter(|e| wanted(&e.health)).filter(|e| first(e)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { successes: 1, http_failures: 2, tcp_failures: 1, timeouts: 1 };

    #[test]
    fn the_epoch_moves_when_a_bound_request_is_admitted_or_not() {
        let epoch = Arc::new(HealthEpoch::default());
        let health = Health::new(Arc::clone(&epoch));
        for (wanted, seen) in [
            (NodeState::Ready, 0),
            (NodeState::Drain, 1),
            (NodeState::Maintenance, 2),
            (NodeState::Maintenance, 2),
            (NodeState::Ready, 3),
        ] {
            health.want(wanted);
            assert_eq!((health.standing().wanted, epoch.get()), (wanted, seen));
        }
    }

    #[test]
    fn the_epoch_moves_when_usability_does() {
        let epoch = Arc::new(HealthEpoch::default());
        let health = Health::new(Arc::clone(&epoch));
        let check = |event, state: State, seen: u64| {
            assert_eq!(health.apply(event, LIMITS).1.state, state);
            assert_eq!((health.standing().state, epoch.get()), (state, seen), "{event:?}");
        };
        check(Event::Success, State::Healthy, 0);
        check(Event::HttpFailure, State::MostlyHealthy, 0);
        check(Event::HttpFailure, State::Unhealthy, 1);
        check(Event::TcpFailure, State::Unhealthy, 1);
        check(Event::Success, State::Healthy, 2);
    }
}
