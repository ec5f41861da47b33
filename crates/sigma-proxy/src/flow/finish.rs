//! The end of a session: its status, counters, plugins that log, and the access line.

use std::time::{Duration, Instant};

use sigma_http::{Fault, FaultKind, Side};
use sigma_observe::access::{Entry, ValueWriter};
use sigma_observe::counters::Counter;
use sigma_observe::field::Field;
use sigma_observe::throttle::{Allowance, Throttles};
use sigma_plugin::Session;
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::{End, Flow, ms_since};
use crate::exchange::PeerText;

/// Lines of one reason, in each worker.
const LINES: Allowance = Allowance { burst: 5, pause: Duration::from_secs(10) };

/// Returns the status of a session that a fault has ended, with the numbers of
/// `reference/plugins/stream-plugins.md`.
fn status_of(fault: Fault) -> u16 {
    match fault.side() {
        Side::Downstream => 400,
        Side::Upstream => 502,
        Side::Gateway => 503,
    }
}

/// Returns true if the error log has a line about a session that this fault has ended: clients cause none, and a
/// session without a route has its own.
fn is_reported(fault: Fault) -> bool {
    fault.side() != Side::Downstream && fault.kind != FaultKind::NoRoute
}

impl Flow<'_> {
    /// Writes the line about a session that the gateway or its nodes have ended, if the reason has had less than its
    /// share of lines.
    #[cold]
    fn report(&self, fault: Fault) {
        thread_local! {
            static THROTTLES: Throttles = const { Throttles::new() };
        }
        let route = &self.session.route;
        if !is_reported(fault) {
            tracing::debug!(route = &*route.id, peer = ?self.origin.peer, reason = fault.reason, "a session ended early");
            return;
        }
        let left_out = THROTTLES.with(|all| all.pass(fault.kind as usize, LINES, Instant::now()));
        let Some(left_out) = left_out else { return };
        let client = PeerText::of(self.session.client.addr);
        tracing::warn!(
            reason = fault.kind.error_type(),
            client = %String::from_utf8_lossy(client.as_bytes()),
            listener = self.origin.local.as_ref().map(tracing::field::display),
            route = &*route.id,
            node = self.session.course.nodes.last().map(|node| tracing::field::display(&node.addr)),
            left_out,
            "a session failed: {}",
            fault.reason
        );
    }

    pub(super) fn finish(mut self, outcome: Result<(), End>) {
        let counters = &self.worker.counters;
        let status = match outcome {
            Err(End::Nothing) => return,
            Ok(()) => 200,
            Err(End::Closed(status)) => {
                counters.add(Counter::StreamSessionsRefused, 1);
                status
            }
            Err(End::Fault(fault)) => {
                counters.add_fault(fault.kind as usize);
                self.report(fault);
                status_of(fault)
            }
        };
        self.session.course.status = status;
        self.session.course.elapsed_ms = ms_since(self.began);
        // The current configuration has the logging plugins.
        let view = self.worker.view();
        let env = self.worker.env(&view);
        for entry in &self.plugins {
            entry.plugin.log(&self.session, &env);
        }
        let log = &view.snapshot.settings.access_log;
        if let Some(format) = &view.snapshot.stream_format
            && log.stream_if.as_ref().is_none_or(|condition| condition.eval(&self.session))
            && log.samples(status >= 500, || self.worker.local.random())
            && let Some(sink) = self.worker.log.borrow_mut().as_mut()
        {
            let clock = self.worker.clock.borrow();
            sink.line(|out| format.render(&Shown(&self.session), &clock, out));
        }
    }
}

/// A session, as the access log reads it.
struct Shown<'s>(&'s Session);

impl Entry for Shown<'_> {
    fn write(&self, field: &Field, place: &mut ValueWriter<'_>) {
        // A format of sessions has no other fields.
        let Field::Variable(name) = field else { return };
        match self.0.get(&VarName::parse(name)) {
            Some(VarValue::Text(text)) => place.text(&text),
            Some(VarValue::Bool(truth)) => place.text(truth.to_string().as_bytes()),
            Some(VarValue::List(items)) => place.text(&items.join(&b", "[..])),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_nodes_and_of_the_gateway_are_reported() {
        let check = |kind, expected| assert_eq!(is_reported(Fault::new(kind, "")), expected, "{kind:?}");
        check(FaultKind::ConnectRefused, true);
        check(FaultKind::NoNode, true);
        check(FaultKind::OutOfSockets, true);
        check(FaultKind::ClientGone, false);
        check(FaultKind::NoRoute, false);
    }
}
