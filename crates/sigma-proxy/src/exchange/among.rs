//! An upstream made of other upstreams (Envoy's aggregate cluster, with weights): the choice of a member for a
//! request, and the fallback to the next one.

use sigma_http::{Fault, FaultKind};
use sigma_net::deadline;
use sigma_observe::counters::Counter;

use super::Exchange;
use crate::attempt::attempts::has_no_node_left;
use crate::snapshot::{Member, Route};
use crate::worker::View;

/// A member that was not tried yet.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    number: u32,
    weight: u32,
    priority: i32,
    /// It has a usable node.
    usable: bool,
}

/// Returns the position of the candidate to try next: by weight, among the highest priority with a usable one; among
/// all if none is usable.
fn choose(left: &[Candidate], random: u64) -> Option<usize> {
    let any_usable = left.iter().any(|candidate| candidate.usable);
    let fits = |candidate: &&Candidate| candidate.usable || !any_usable;
    let priority = left.iter().filter(fits).map(|candidate| candidate.priority).max()?;
    let level = || left.iter().enumerate().filter(|(_, it)| fits(it) && it.priority == priority);
    let total: u64 = level().map(|(_, it)| u64::from(it.weight)).sum();
    let mut at = ((u128::from(random) * u128::from(total)) >> 64) as u64;
    let mut takes = |it: &Candidate| {
        let takes = at < u64::from(it.weight);
        at = at.saturating_sub(it.weight.into());
        takes
    };
    level().find(|(_, it)| takes(it)).map(|(place, _)| place)
}

impl Exchange<'_, '_> {
    /// Serves the request by one of the members, and by the next one after a failure if the request may be sent
    /// again. The breaker's fallback of the last one is served if it `may_fall_back`.
    pub(super) async fn forward_among(
        &mut self,
        view: &View,
        route: &Route,
        members: &[Member],
        may_fall_back: bool,
    ) -> Result<(), Fault> {
        let mut left = self.candidates(view, members);
        // Each member rewrites the request: Host, the remaining time, the loop count.
        let request = self.scratch.ctx.request.clone();
        let began_ms = deadline::now_ms();
        while let Some(at) = choose(&left, self.worker.random()) {
            let number = left.swap_remove(at).number;
            let is_last = left.is_empty();
            let result = Box::pin(self.forward_guarded(view, route, number, may_fall_back && is_last)).await;
            match result {
                Err(fault) if !is_last && self.may_go_on(fault) => {
                    tracing::debug!(reason = fault.reason, "trying the next member of the upstream");
                    self.worker.counters.add(Counter::UpstreamRetries, 1);
                    self.scratch.ctx.request.clone_from(&request);
                    self.scratch.spent_ms = deadline::now_ms().saturating_sub(began_ms);
                }
                result => return result,
            }
        }
        Err(Fault::new(FaultKind::NoUpstream, "no member of the upstream exists"))
    }

    /// Returns the usable members. A nested one would be endless; the check has rejected it.
    fn candidates(&self, view: &View, members: &[Member]) -> Vec<Candidate> {
        let candidate = |member: &Member| {
            let number = view.snapshot.upstream_number(&member.key)?;
            let upstream = view.snapshot.upstream(number).filter(|upstream| upstream.members.is_empty())?;
            let upstream_state = self.worker.upstream_state(number, upstream);
            let usable = upstream_state.balancer.borrow_mut().can_serve(deadline::now_ms());
            Some(Candidate { number, weight: member.weight, priority: member.priority, usable })
        };
        members.iter().filter(|member| member.weight > 0).filter_map(candidate).collect()
    }

    /// Returns true if another member may serve the request after this fault.
    fn may_go_on(&self, fault: Fault) -> bool {
        let is_unanswered = self.scratch.ctx.record.status == 0;
        is_unanswered && (has_no_node_left(fault) || self.scratch.attempt.may_repeat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each candidate's share of a hundred requests.
    fn shares(candidates: &[(u32, i32, bool)]) -> Vec<u32> {
        let left: Vec<Candidate> = (0..)
            .zip(candidates)
            .map(|(number, &(weight, priority, usable))| Candidate { number, weight, priority, usable })
            .collect();
        let mut counts = vec![0; left.len()];
        for n in 0..100 {
            let random = n * (u64::MAX / 100) + u64::MAX / 200;
            if let Some(at) = choose(&left, random) {
                counts[at] += 1;
            }
        }
        counts
    }

    #[test]
    fn members_share_by_weight_and_fall_back_by_priority() {
        let check = |candidates: &[(u32, i32, bool)], want: &[u32]| {
            assert_eq!(shares(candidates), want, "{candidates:?}");
        };
        let (up, down) = (true, false);
        check(&[(90, 0, up), (10, 0, up)], &[90, 10]);
        check(&[(1, 0, up), (1, 0, up), (2, 0, up)], &[25, 25, 50]);
        // The remaining members share the part of a failed one.
        check(&[(90, 0, down), (5, 0, up), (5, 0, up)], &[0, 50, 50]);
        // The next priority serves when no member of a higher one can.
        check(&[(1, 1, up), (1, 1, up), (8, 0, up)], &[50, 50, 0]);
        check(&[(1, 1, down), (1, 1, up), (8, 0, up)], &[0, 100, 0]);
        check(&[(1, 1, down), (1, 1, down), (3, 0, up), (1, 0, up)], &[0, 0, 75, 25]);
        check(&[(1, 2, down), (1, 1, down), (1, 0, up)], &[0, 0, 100]);
        // None is usable: the highest is tried anyway.
        check(&[(1, 0, down), (3, 1, down), (1, 1, down)], &[0, 75, 25]);
        check(&[], &[]);
    }

    #[test]
    fn every_member_is_tried_once_the_highest_first() {
        let candidates = [(1, 0, true), (5, 1, false), (1, 1, true), (1, 1, true)];
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..100 {
            let mut left: Vec<Candidate> = (0..)
                .zip(candidates)
                .map(|(number, (weight, priority, usable))| Candidate { number, weight, priority, usable })
                .collect();
            let mut order = Vec::new();
            while let Some(at) = choose(&left, random.u64(..)) {
                order.push(left.swap_remove(at).number);
            }
            order[..2].sort_unstable();
            assert_eq!(order, [2, 3, 0, 1]);
        }
    }
}
