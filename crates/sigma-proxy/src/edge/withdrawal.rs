//! Sessions that end with their node: open requests, responses and tunnels whose node is taken out by checks, by
//! outlier detection, or by maintenance (Envoy's `close_connections_on_host_health_failure`, HAProxy's
//! `on-marked-down shutdown-sessions`).

use std::cell::Cell;
use std::sync::Arc;
use std::task::{self, Poll};

use sigma_http::{Fault, FaultKind};
use sigma_net::Deadline;
use sigma_upstream::health::Health;

/// How often the node is checked.
const LOOK_MS: u64 = 500;

/// The node of a session that is to end with it.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    node: Arc<Health>,
    was_well: Cell<bool>,
    look: Deadline,
}

impl Withdrawal {
    /// Begins to watch the node of a session.
    pub(crate) fn watch(node: &Arc<Health>) -> Withdrawal {
        let look = Deadline::new();
        look.set(LOOK_MS);
        Withdrawal { node: Arc::clone(node), was_well: Cell::new(node.keeps_bound()), look }
    }

    /// Ready when the node was taken out.
    pub(crate) fn poll(&self, task: &mut task::Context<'_>) -> Poll<Result<(), Fault>> {
        while self.look.poll_expired(task).is_ready() {
            if self.has_ended(self.node.keeps_bound()) {
                let reason = "the node was removed, and its open sessions are closed";
                return Poll::Ready(Err(Fault::new(FaultKind::NodeWithdrawn, reason)));
            }
            self.look.set(LOOK_MS);
        }
        Poll::Pending
    }

    /// Evaluates a check that found the node well or not. A session that began while its node was out, since there was
    /// no other one, continues.
    fn has_ended(&self, is_well: bool) -> bool {
        self.was_well.replace(self.was_well.get() || is_well) && !is_well
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_when_its_node_is_taken_out() {
        let check = |was_well: bool, looks: &[bool], ends_at: Option<usize>| {
            let withdrawal = Withdrawal::watch(&Arc::new(Health::unchecked()));
            withdrawal.was_well.set(was_well);
            let ended = looks.iter().position(|is_well| withdrawal.has_ended(*is_well));
            assert_eq!(ended, ends_at, "{was_well} {looks:?}");
        };
        check(true, &[true, true], None);
        check(true, &[true, false], Some(1));
        check(false, &[false, false], None);
        check(false, &[false, true, true, false], Some(3));
    }
}
