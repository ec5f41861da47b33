//! What a failed attempt leads to: another one (APISIX: `retries`, `retry_timeout`), and a report
//! on the node.

use sigma_http::{Fault, FaultKind, Method};
use sigma_upstream::health::state::Event;

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

/// What the fault says about the node, for passive health checks. A node that had not got the
/// whole request may have waited for the client, so its patience says nothing about it. Nothing
/// that the client or the gateway did wrong ever counts here.
pub(super) fn verdict(fault: Fault, request_sent: bool) -> Option<Event> {
    match fault.kind {
        FaultKind::ConnectRefused => Some(Event::TcpFailure),
        FaultKind::ConnectTimeout | FaultKind::UpstreamSendTimeout => Some(Event::Timeout),
        FaultKind::ConnectionTerminated | FaultKind::ResponseIncomplete if request_sent => {
            Some(Event::TcpFailure)
        }
        FaultKind::ResponseTimeout if request_sent => Some(Event::Timeout),
        _ => None,
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
    fn what_is_held_against_a_node() {
        let check = |kind, request_sent, expected| {
            assert_eq!(verdict(Fault::new(kind, ""), request_sent), expected, "{kind:?} {request_sent}");
        };
        check(FaultKind::ConnectRefused, false, Some(Event::TcpFailure));
        check(FaultKind::ConnectTimeout, false, Some(Event::Timeout));
        check(FaultKind::UpstreamSendTimeout, false, Some(Event::Timeout));
        check(FaultKind::ConnectionTerminated, true, Some(Event::TcpFailure));
        check(FaultKind::ConnectionTerminated, false, None);
        check(FaultKind::ResponseIncomplete, true, Some(Event::TcpFailure));
        check(FaultKind::ResponseTimeout, true, Some(Event::Timeout));
        check(FaultKind::ResponseTimeout, false, None);
        for kind in FaultKind::ALL.iter().filter(|kind| kind.side() != sigma_http::Side::Upstream) {
            check(*kind, true, None);
        }
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
