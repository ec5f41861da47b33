//! The end of a session: its status, counters, plugins that log, and the access line.

use sigma_http::{Fault, Side};
use sigma_observe::access::{Entry, ValueWriter};
use sigma_observe::counters::Counter;
use sigma_observe::field::Field;
use sigma_plugin::Session;
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::{End, Flow, ms_since};

/// Returns the status of a session that a fault has ended, with the numbers of
/// `reference/plugins/stream-plugins.md`.
fn status_of(fault: Fault) -> u16 {
    match fault.side() {
        Side::Downstream => 400,
        Side::Upstream => 502,
        Side::Gateway => 503,
    }
}

impl Flow<'_> {
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
                let route = &self.session.route.id;
                tracing::debug!(%route, peer = ?self.origin.peer, reason = fault.reason, "a session ended early");
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
