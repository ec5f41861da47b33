//! What is known about the health of endpoints, and how it becomes known.
//!
//! - [`state`]: the state machine of one target.
//! - [`plan`]: checks as configured, compiled.
//! - [`probe`]: one active probe.
//! - [`checker`]: the loops that probe, and their life across reloads.
//!
//! A [`Health`] is written by the control side only and read by every worker. What workers learn
//! from traffic travels through a bounded channel ([`HealthReporter`]).

pub mod checker;
pub mod plan;
pub mod probe;
pub mod state;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::mpsc;

use crate::endpoint::{Address, lock};

pub use checker::{CheckerSpec, Checkers, TargetStatus};
pub use plan::{Passive, Plan, PlanError};
pub use state::{Event, Limits, Standing, State};

/// Counts how often a target of one upstream became usable or unusable.
///
/// A worker compares it with the number of its last look, which spares reading every target for
/// every request.
#[derive(Debug, Default)]
pub struct HealthEpoch(AtomicU64);

impl HealthEpoch {
    /// The current number.
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
}

impl Health {
    /// A new target, healthy.
    pub fn new(epoch: Arc<HealthEpoch>) -> Health {
        Health { standing: AtomicU64::new(Standing::default().pack()), epoch }
    }

    /// The health of an endpoint that nobody checks: healthy.
    pub fn unchecked() -> Health {
        Health::new(Arc::default())
    }

    /// State and counters, as one consistent value.
    #[inline]
    pub fn standing(&self) -> Standing {
        Standing::unpack(self.standing.load(Ordering::Relaxed))
    }

    /// Whether requests may be sent to it.
    #[inline]
    pub fn usable(&self) -> bool {
        self.standing().state.usable()
    }

    /// Takes in what was seen (control side); returns the state before and after.
    pub fn apply(&self, event: Event, limits: Limits) -> (State, State) {
        let step = |word| {
            let next = Standing::unpack(word).after(event, limits).pack();
            // An event that changes nothing must not take the cache line from the readers.
            (next != word).then_some(next)
        };
        let before = match self.standing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) {
            Ok(word) | Err(word) => Standing::unpack(word),
        };
        let after = before.after(event, limits).state;
        if before.state.usable() != after.usable() {
            // Release: who sees the new number also sees the state that caused it.
            self.epoch.0.fetch_add(1, Ordering::Release);
        }
        (before.state, after)
    }
}

/// What is known about the endpoints of one upstream. Nodes that come get a record, those that stay
/// keep theirs, and one that nobody uses any more is forgotten. Control side only.
#[derive(Debug, Default)]
pub struct HealthRecords {
    epoch: Arc<HealthEpoch>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    records: HashMap<Target, Weak<Health>>,
    /// How many records there may be until those without a user are looked for.
    sweep_at: usize,
}

/// Which endpoint a record is of: names may share an address, and a name may have several.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Target {
    host: String,
    port: u16,
    address: Address,
}

/// Below this many records nobody looks for those without a user.
const SWEEP_MIN: usize = 64;

impl HealthRecords {
    /// The record of this endpoint: the existing one while anybody uses it, else a new one, which is
    /// healthy.
    pub fn of(&self, host: &str, port: u16, address: &Address) -> Arc<Health> {
        let target = Target { host: host.to_owned(), port, address: address.clone() };
        let mut known = lock(&self.known);
        if let Some(health) = known.records.get(&target).and_then(Weak::upgrade) {
            return health;
        }
        if known.records.len() >= known.sweep_at.max(SWEEP_MIN) {
            known.sweep();
        }
        let health = Arc::new(Health::new(Arc::clone(&self.epoch)));
        known.records.insert(target, Arc::downgrade(&health));
        health
    }

    /// What moves when one of the endpoints becomes usable or unusable.
    pub fn epoch(&self) -> &Arc<HealthEpoch> {
        &self.epoch
    }

    /// How many records are in use.
    pub fn live(&self) -> usize {
        let mut known = lock(&self.known);
        known.sweep();
        known.records.len()
    }
}

impl Known {
    fn sweep(&mut self) {
        self.records.retain(|_, health| health.strong_count() > 0);
        self.sweep_at = self.records.len() * 2;
    }
}

/// What a worker has seen of a target.
#[derive(Debug)]
struct Report {
    target: Arc<Health>,
    event: Event,
    limits: Limits,
}

/// Reports that may wait for the control side; more are dropped and counted. A report is three
/// words, and losing one only delays a verdict.
pub const REPORT_QUEUE: usize = 4096;

/// The workers' end of passive health checking; clone one per worker.
#[derive(Debug, Clone)]
pub struct HealthReporter {
    queue: mpsc::Sender<Report>,
    dropped: Arc<AtomicU64>,
}

impl HealthReporter {
    /// Reports `event` without waiting. Costs one load if it could not change anything.
    #[inline]
    pub fn report(&self, target: &Arc<Health>, event: Event, limits: Limits) {
        if state::ignored(target.standing().state, event) {
            return;
        }
        let report = Report { target: Arc::clone(target), event, limits };
        if self.queue.try_send(report).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports dropped since the start because the control side did not keep up.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The control side's end of passive health checking.
#[derive(Debug)]
pub struct HealthInbox {
    queue: mpsc::Receiver<Report>,
}

impl HealthInbox {
    /// Applies reports until every [`HealthReporter`] is gone.
    pub async fn run(mut self) {
        while let Some(Report { target, event, limits }) = self.queue.recv().await {
            let (before, after) = target.apply(event, limits);
            if before.usable() != after.usable() {
                tracing::warn!(from = before.name(), to = after.name(), ?event, "passive health check");
            }
        }
    }
}

/// Both ends of passive health checking, with room for `capacity` reports ([`REPORT_QUEUE`]).
pub fn passive_channel(capacity: usize) -> (HealthReporter, HealthInbox) {
    let (sender, receiver) = mpsc::channel(capacity);
    (HealthReporter { queue: sender, dropped: Arc::default() }, HealthInbox { queue: receiver })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { successes: 1, http_failures: 2, tcp_failures: 1, timeouts: 1 };

    #[test]
    fn the_epoch_moves_when_usability_does() {
        let epoch = Arc::new(HealthEpoch::default());
        let health = Health::new(Arc::clone(&epoch));
        let check = |event, state: State, seen: u64| {
            assert_eq!(health.apply(event, LIMITS).1, state);
            assert_eq!((health.standing().state, epoch.get()), (state, seen), "{event:?}");
        };
        check(Event::Success, State::Healthy, 0);
        check(Event::HttpFailure, State::MostlyHealthy, 0);
        check(Event::HttpFailure, State::Unhealthy, 1);
        check(Event::TcpFailure, State::Unhealthy, 1);
        check(Event::Success, State::Healthy, 2);
    }

    #[test]
    fn records_are_kept_while_they_are_used() {
        let records = HealthRecords::default();
        let at = |n: u16| Address::Tcp(([127, 0, 0, 1], n).into());
        let of = |n: u16| records.of("a", n, &at(n));
        let stays = of(1);
        stays.apply(Event::TcpFailure, LIMITS);
        (2..2000).for_each(|n| drop(of(n)));
        assert!(Arc::ptr_eq(&stays, &of(1)) && !stays.usable());
        assert!(lock(&records.known).records.len() <= SWEEP_MIN);
        assert!(!Arc::ptr_eq(&stays, &records.of("b", 1, &at(1))), "names may share an address");
        assert_eq!(records.live(), 1);
        drop(stays);
        assert!(of(1).usable() && records.live() == 0);
    }

    #[tokio::test]
    async fn reports_arrive_and_surplus_is_counted() {
        let (reporter, inbox) = passive_channel(1);
        let target = Arc::new(Health::unchecked());
        // Says nothing new, so it takes no room.
        reporter.report(&target, Event::Success, LIMITS);
        reporter.report(&target, Event::Timeout, LIMITS);
        reporter.report(&target, Event::TcpFailure, LIMITS);
        assert_eq!(reporter.dropped(), 1);
        drop(reporter);
        inbox.run().await;
        let want = Standing { state: State::Unhealthy, timeouts: 1, ..Standing::default() };
        assert_eq!(target.standing(), want);
    }
}
