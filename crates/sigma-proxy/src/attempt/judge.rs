//! Judges nodes by their attempts, for passive health checks and outlier detection.

use std::sync::Arc;

use sigma_http::{Fault, FaultKind, Side};
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::health::plan::Plan;
use sigma_upstream::health::state::Event;
use sigma_upstream::health::{NodeState, Standing, outlier};

use crate::snapshot::Upstream;
use crate::worker::Worker;

/// The judge of one upstream, which reports to its health checks.
pub(crate) struct Judge<'a> {
    worker: &'a Worker,
    upstream: &'a Upstream,
}

/// An attempt that failed, with the facts that matter for its node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedAttempt {
    pub(crate) fault: Fault,
    /// The node had everything that it could wait for: neither the client's slowness nor the end of the client's own
    /// time made the attempt fail.
    pub(crate) request_sent: bool,
    /// The status of the client's response. None if another attempt follows, or if the client has a response already.
    pub(crate) status: Option<u16>,
}

impl<'a> Judge<'a> {
    /// Returns the judge of an upstream's nodes.
    pub(crate) fn new(worker: &'a Worker, upstream: &'a Upstream) -> Judge<'a> {
        Judge { worker, upstream }
    }

    /// Counts the response of a node with this status. None if it says nothing about the node.
    pub(crate) fn answered(&self, node: &Endpoint, status: Option<u16>) {
        let Some(checks) = &self.upstream.checks else { return };
        if let Some(traffic) = &checks.traffic {
            traffic.note();
        }
        let Some(status) = status else { return };
        if let Some(event) = by_status(checks, status) {
            self.worker.health.report(&node.health, event, checks);
        }
        self.compare(node, checks, outlier::NodeOutcome::Answer(status));
    }

    /// Counts a failed attempt on a node. The event on the connection counts, and, as for any other response, the
    /// resulting status.
    pub(crate) fn failed(&self, node: &Endpoint, seen: FailedAttempt) {
        let Some(checks) = &self.upstream.checks else { return };
        let FailedAttempt { fault, request_sent, status } = seen;
        let happened = verdict(fault, request_sent);
        if let Some(event) = happened {
            self.worker.health.report(&node.health, event, checks);
        }
        if !is_to_blame(fault, request_sent) {
            return;
        }
        if let Some(event @ Event::HttpFailure) = status.and_then(|status| by_status(checks, status)) {
            self.worker.health.report(&node.health, event, checks);
        }
        // Bytes on an open connection were a response, though not one in HTTP.
        let seen =
            happened.map_or(outlier::NodeOutcome::Answer(502), |_| outlier::NodeOutcome::LocalOriginFailure);
        self.compare(node, checks, seen);
    }

    /// Counts for outlier detection.
    fn compare(&self, node: &Endpoint, checks: &Arc<Plan>, seen: outlier::NodeOutcome) {
        let Some(rules) = &checks.outliers else { return };
        let Judge { worker, upstream } = self;
        node.health.note(worker.local.worker(), seen, rules, |rule| {
            worker.health.found(&node.health, rule, checks, &upstream.cell);
        });
    }
}

/// Returns true if a fault is caused by the node. Faults of the client are not: its slowness, the end of its own
/// time. Nor is the withdrawal of a node: its reason is known already.
pub(crate) fn is_to_blame(fault: Fault, request_sent: bool) -> bool {
    fault.kind != FaultKind::NodeWithdrawn
        && fault.side() == Side::Upstream
        && (request_sent || verdict(fault, request_sent).is_some())
}

/// Returns why no node may be used although there are some and none was tried.
pub(crate) fn out_of_service(nodes: &[Endpoint]) -> &'static str {
    let standings = || nodes.iter().map(|node| node.health.standing());
    let is_in_maintenance =
        |standing: Standing| [standing.wanted, standing.agent.state].contains(&NodeState::Maintenance);
    if standings().all(is_in_maintenance) {
        "all nodes are in maintenance"
    } else if standings().all(|standing| !standing.is_in_service()) {
        "all nodes are draining or in maintenance"
    } else {
        "no node of the upstream is usable"
    }
}

/// Returns the verdict of passive checks on a status.
fn by_status(checks: &Plan, status: u16) -> Option<Event> {
    checks.passive.as_ref()?.judge(status)
}

/// Returns the verdict of the fault on the node. A node without the whole request may have waited for the client, so
/// its silence says nothing about it. Mistakes of the client or the gateway never count here.
fn verdict(fault: Fault, request_sent: bool) -> Option<Event> {
    match fault.kind {
        FaultKind::ConnectRefused
        | FaultKind::TlsProtocol
        | FaultKind::TlsCertificate
        | FaultKind::TlsAlert
        | FaultKind::ProtocolMismatch => Some(Event::TcpFailure),
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

    #[test]
    fn only_faults_of_the_node_count_against_it() {
        let check = |kind, request_sent, expected| {
            assert_eq!(verdict(Fault::new(kind, ""), request_sent), expected, "{kind:?} {request_sent}");
        };
        check(FaultKind::ConnectRefused, false, Some(Event::TcpFailure));
        check(FaultKind::TlsCertificate, false, Some(Event::TcpFailure));
        check(FaultKind::ProtocolMismatch, false, Some(Event::TcpFailure));
        check(FaultKind::ConnectTimeout, false, Some(Event::Timeout));
        check(FaultKind::DnsError, false, None);
        check(FaultKind::UpstreamSendTimeout, false, Some(Event::Timeout));
        check(FaultKind::ConnectionTerminated, true, Some(Event::TcpFailure));
        check(FaultKind::ConnectionTerminated, false, None);
        check(FaultKind::ResponseIncomplete, true, Some(Event::TcpFailure));
        check(FaultKind::ResponseTimeout, true, Some(Event::Timeout));
        check(FaultKind::ResponseTimeout, false, None);
        check(FaultKind::NodeWithdrawn, true, None);
        assert!(!is_to_blame(Fault::new(FaultKind::NodeWithdrawn, ""), true));
        for kind in FaultKind::ALL.iter().filter(|kind| kind.side() != Side::Upstream) {
            check(*kind, true, None);
        }
    }
}
