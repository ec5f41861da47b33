//! Ejection of targets, and their return. Control side only, within a runtime.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::outlier::{Rule, Rules, Sample, Totals};
use super::plan::Plan;
use super::state::{Limits, Standing};
use super::{Health, targets};
use crate::endpoint::Endpoint;
use crate::lock::lock;

/// Handles a change of a target by a check. An unusable target that is not probed comes back after `fail_timeout`.
pub(super) fn after_check(
    target: &Arc<Health>,
    plan: &Plan,
    limits: Limits,
    before: Standing,
    after: Standing,
) {
    if !before.state.usable() || after.state.usable() || plan.probes_unusable() {
        return;
    }
    let (turn, target) = (target.turns.load(Ordering::Relaxed), Arc::downgrade(target));
    let timeout = plan.fail_timeout;
    tokio::spawn(async move {
        tokio::time::sleep(timeout).await;
        let Some(target) = target.upgrade() else { return };
        // It may have come back and gone out again meanwhile: then it has another time.
        if target.turns.load(Ordering::Relaxed) == turn {
            target.change(|standing| standing.on_probation(limits));
        }
    });
}

/// Ejects a target that `rule` has found among `nodes`, if the rules allow it now.
pub(super) fn eject(rules: &Rules, target: &Arc<Health>, rule: Rule, nodes: &[Endpoint]) {
    let now_ms = unix_ms();
    if let Some(until_ms) = decide(rules, target, rule, nodes, now_ms, || fastrand::u64(..)) {
        end_later(target, until_ms, now_ms);
    }
}

/// Ends the ejection of a target at `until_ms`.
pub(super) fn end_later(target: &Arc<Health>, until_ms: u64, now_ms: u64) {
    let (target, time) = (Arc::downgrade(target), Duration::from_millis(until_ms.saturating_sub(now_ms)));
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        let Some(target) = target.upgrade() else { return };
        if target.ejected_until_ms() == Some(until_ms) {
            come_back(&target);
        }
    });
}

/// Takes the target out if the rules allow it at `now_ms`; returns the time of its return.
pub(super) fn decide(
    rules: &Rules,
    target: &Health,
    rule: Rule,
    nodes: &[Endpoint],
    now_ms: u64,
    mut random: impl FnMut() -> u64,
) -> Option<u64> {
    let compared = target.compared.get()?;
    if target.standing().ejected.is_some() {
        return None;
    }
    let is_enforced = rules.enforces(rule, random());
    let distinct = targets(nodes, |_| true);
    let out = distinct.iter().filter(|node| !node.health.usable()).count();
    if !rules.allows(out, distinct.len()) {
        tracing::debug!(
            rule = rule.name(),
            out,
            of = distinct.len(),
            "the node was not ejected: `max_ejection_percent` is reached"
        );
        return None;
    }
    if !is_enforced {
        compared.spared[rule as usize].fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let until_ms = lock(&compared.course).eject(rules, now_ms, random());
    target.change(|standing| Standing { ejected: Some(rule), ..standing });
    Some(until_ms)
}

/// Ends an ejection.
pub(super) fn come_back(target: &Health) {
    let Some(compared) = target.compared.get() else { return };
    compared.tally.begin_anew();
    lock(&compared.course).come_back(compared.tally.totals());
    target.change(|standing| Standing { ejected: None, ..standing });
}

/// Compares the nodes by their requests since the last sweep, and ejects the outliers.
pub(super) fn sweep(rules: &Rules, nodes: &[Endpoint]) {
    let distinct = targets(nodes, |_| true);
    for (at, rule) in compare(rules, &distinct) {
        eject(rules, &distinct[at].health, rule, &distinct);
    }
}

/// Returns the outliers by their requests since the last sweep, each with its rule.
pub(super) fn compare(rules: &Rules, distinct: &[Endpoint]) -> Vec<(usize, Rule)> {
    let sample = |node: &Endpoint| {
        let nothing = Sample { seen: Totals::default(), is_in_use: false };
        node.health.compared.get().map_or(nothing, |compared| {
            lock(&compared.course).sweep(compared.tally.totals(), node.health.usable())
        })
    };
    let samples = distinct.iter().map(sample).collect::<Vec<_>>();
    let counted = rules.would_be_outliers(&samples);
    rules.outliers(&samples).into_iter().chain(counted).collect()
}

/// Returns the wall clock time, which the ends of ejections use.
pub(super) fn unix_ms() -> u64 {
    let since = sigma_net::wall_clock::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
