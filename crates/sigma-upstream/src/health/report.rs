//! Reports of workers about targets, on their way to the control side.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::outlier::Rule;
use super::plan::Plan;
use super::state::{self, Event};
use super::{Health, ejection};
use crate::endpoint::UpstreamCell;

/// An observation of a worker about a target.
#[derive(Debug)]
struct Report {
    target: Arc<Health>,
    plan: Arc<Plan>,
    sign: Sign,
}

#[derive(Debug)]
enum Sign {
    /// Passive checks have seen this event, in the run with this number.
    Seen(Event, u32),
    /// A rule of outlier detection has found it among these nodes.
    Found(Rule, Arc<UpstreamCell>),
}

/// The limit of reports that wait for the control side; others are dropped and counted. A report is a few words, and
/// a lost one only delays a verdict.
pub const REPORT_QUEUE: usize = 4096;

/// The workers' end of passive health checks; clone one per worker.
#[derive(Debug, Clone)]
pub struct HealthReporter {
    queue: mpsc::Sender<Report>,
    dropped: Arc<AtomicU64>,
}

impl HealthReporter {
    /// Reports an event of passive checks by `plan`, without waiting. It costs two loads if it cannot change
    /// anything.
    #[inline]
    pub fn report(&self, target: &Arc<Health>, event: Event, plan: &Arc<Plan>) {
        if plan.passive.is_none() {
            return;
        }
        let (run, turned) = target.runs.note(event);
        if turned || !state::ignored(target.standing().state, event) {
            self.send(target, plan, Sign::Seen(event, run));
        }
    }

    /// Reports that a rule of outlier detection in `plan` has found the target among the nodes in `cell`.
    pub fn found(&self, target: &Arc<Health>, rule: Rule, plan: &Arc<Plan>, cell: &Arc<UpstreamCell>) {
        if target.standing().ejected.is_none() {
            self.send(target, plan, Sign::Found(rule, Arc::clone(cell)));
        }
    }

    fn send(&self, target: &Arc<Health>, plan: &Arc<Plan>, sign: Sign) {
        let report = Report { target: Arc::clone(target), plan: Arc::clone(plan), sign };
        if self.queue.try_send(report).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the reports dropped since the start because the control side was behind.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The control side's end of passive health checks.
#[derive(Debug)]
pub struct HealthInbox {
    queue: mpsc::Receiver<Report>,
}

impl HealthInbox {
    /// Applies reports until every [`HealthReporter`] is gone.
    pub async fn run(mut self) {
        while let Some(Report { target, plan, sign }) = self.queue.recv().await {
            match sign {
                Sign::Seen(event, run) => {
                    let Some(limits) = plan.passive.map(|passive| passive.limits) else { continue };
                    for event in target.runs.in_order(event, run, limits) {
                        let (before, after) = target.apply(event, limits);
                        ejection::after_check(&target, &plan, limits, before, after);
                    }
                }
                Sign::Found(rule, cell) => {
                    if let Some(rules) = &plan.outliers {
                        ejection::eject(rules, &target, rule, &cell.load().endpoints);
                    }
                }
            }
        }
    }
}

/// Returns both ends of passive health checks, with room for `capacity` reports ([`REPORT_QUEUE`]).
pub fn passive_channel(capacity: usize) -> (HealthReporter, HealthInbox) {
    let (sender, receiver) = mpsc::channel(capacity);
    (HealthReporter { queue: sender, dropped: Arc::default() }, HealthInbox { queue: receiver })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sigma_config::checks::{Checks, Passive};

    use super::super::State;
    use super::*;

    fn plan(change: impl FnOnce(&mut Passive)) -> Arc<Plan> {
        let mut passive = Passive::default();
        change(&mut passive);
        let checks = Checks { passive: Some(passive), ..Checks::default() };
        Arc::new(Plan::compile(&checks, None, None).expect("valid"))
    }

    #[tokio::test]
    async fn reports_arrive_and_surplus_is_counted() {
        let (reporter, inbox) = passive_channel(1);
        let (target, plan) = (Arc::new(Health::unchecked()), plan(|p| p.unhealthy.timeouts = 1));
        // It is redundant, so it takes no room.
        reporter.report(&target, Event::Success, &plan);
        reporter.report(&target, Event::Timeout, &plan);
        reporter.report(&target, Event::TcpFailure, &plan);
        assert_eq!(reporter.dropped(), 1);
        drop(reporter);
        inbox.run().await;
        let standing = target.standing();
        assert_eq!((standing.state, standing.timeouts, standing.tcp_failures), (State::Unhealthy, 1, 0));
    }

    #[tokio::test]
    async fn without_probes_a_node_comes_back_by_itself() {
        let (reporter, inbox) = passive_channel(8);
        tokio::spawn(inbox.run());
        let plan = plan(|p| (p.unhealthy.tcp_failures, p.fail_timeout) = (3, Some(0.05)));
        let target = Arc::new(Health::unchecked());
        let turns = async |want: bool| {
            let turned = async {
                while target.usable() != want {
                    tokio::task::yield_now().await;
                }
            };
            let turned = tokio::time::timeout(Duration::from_secs(20), turned).await;
            assert!(turned.is_ok(), "{:?}", target.standing());
        };
        (0..3).for_each(|_| reporter.report(&target, Event::TcpFailure, &plan));
        for _ in 0..3 {
            turns(false).await;
            turns(true).await;
            assert_eq!(target.standing().state, State::MostlyHealthy);
            // It is on probation: one failure is enough.
            reporter.report(&target, Event::TcpFailure, &plan);
        }
    }
}
