//! Whether a failed attempt is followed by another (APISIX: `retries`, `retry_timeout`).

use sigma_http::{Fault, FaultKind, Method};

/// How far an attempt had got when it failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Not a byte of the request had left.
    pub(super) unsent: bool,
    /// The connection had served before, and no byte of this answer had come: most likely the
    /// node closed it while it idled.
    pub(super) stale: bool,
    /// All of the body that was sent can be sent again.
    pub(super) replayable: bool,
    /// A byte of the answer went downstream.
    pub(super) answered: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// A fresh connection to the same node; does not count as an attempt.
    SameNode,
    /// The next node, if the attempts allow.
    NextNode,
    /// The fault is the answer.
    GiveUp,
}

pub(super) fn decide(fault: Fault, method: Method, progress: Progress) -> Decision {
    if progress.answered || !progress.replayable {
        return Decision::GiveUp;
    }
    let repeatable = progress.unsent || method.is_idempotent();
    match fault.kind {
        // Nothing was sent.
        FaultKind::ConnectRefused | FaultKind::ConnectTimeout => Decision::NextNode,
        FaultKind::ConnectionTerminated if progress.stale && repeatable => Decision::SameNode,
        FaultKind::ConnectionTerminated | FaultKind::ResponseTimeout | FaultKind::UpstreamSendTimeout
            if repeatable =>
        {
            Decision::NextNode
        }
        _ => Decision::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: FaultKind, method: Method, flags: &str, expected: Decision) {
        let has = |flag| flags.contains(flag);
        let progress =
            Progress { unsent: has('u'), stale: has('s'), replayable: !has('b'), answered: has('a') };
        assert_eq!(decide(Fault::new(kind, ""), method, progress), expected, "{kind:?} {method:?} {flags}");
    }

    #[test]
    fn what_is_repeated() {
        use Decision::{GiveUp, NextNode, SameNode};
        check(FaultKind::ConnectRefused, Method::Post, "u", NextNode);
        check(FaultKind::ConnectTimeout, Method::Get, "u", NextNode);
        check(FaultKind::ConnectionTerminated, Method::Get, "s", SameNode);
        check(FaultKind::ConnectionTerminated, Method::Get, "", NextNode);
        check(FaultKind::ConnectionTerminated, Method::Post, "s", GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Post, "su", SameNode);
        check(FaultKind::ConnectionTerminated, Method::Put, "b", GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Get, "a", GiveUp);
        check(FaultKind::ResponseTimeout, Method::Get, "", NextNode);
        check(FaultKind::ResponseTimeout, Method::Post, "", GiveUp);
        check(FaultKind::BadResponse, Method::Get, "s", GiveUp);
        check(FaultKind::ClientGone, Method::Get, "", GiveUp);
    }
}
