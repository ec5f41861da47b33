//! The end of an exchange: counters, taps of operators, and the access line.

use sigma_observe::access::{Entry, ValueWriter};
use sigma_observe::counters::Counter;
use sigma_observe::field::Field;
use sigma_observe::line::Line;
use sigma_schema::expr::{VarName, VarValue, Variables};

use sigma_plugin::{Chain, Phase};

use super::stage::{Stage, chains};
use super::{Exchange, PeerText, client};
use crate::observe::live::Parties;
use crate::observe::tap::{Marks, TappedExchange};

impl Exchange<'_, '_> {
    pub(super) fn finish(&mut self) {
        // Requests that wait for this one's result look for themselves.
        (self.scratch.turn, self.scratch.ctx.keeper) = (None, None);
        let record = &mut self.scratch.ctx.record;
        record.end();
        record.bytes_received = self.down.bytes_received();
        (record.bytes_sent, record.body_bytes_sent) = self.down.bytes_sent();
        let counters = &self.worker.counters;
        counters.add(Counter::ExchangesEnded, 1);
        if record.status != 0 {
            counters.add_response(record.status);
        }
        if let Some(fault) = record.fault {
            counters.add_fault(fault.kind as usize);
        }
        counters.add(Counter::BytesIn, record.bytes_received);
        counters.add(Counter::BytesOut, record.bytes_sent);
        if record.fault.is_some() || record.status >= 500 {
            self.report();
        }
        if self.worker.is_watched() {
            self.show();
        }
        self.gather_credentials();
        self.log_phase();
        self.write_line();
        // A plugin without a run hook, because another one did its work, releases its values.
        self.scratch.ctx.drop_kept();
        // The recycled memory must not keep old databases alive.
        self.scratch.ctx.client.geography = None;
    }

    /// Collects the credentials that logs and traces hide, if there are any.
    fn gather_credentials(&mut self) {
        let Stage::Guided { merged, .. } = &self.stage else { return };
        let is_logged = self.view.snapshot.access_format.is_some() || self.has_hooks(Phase::Log);
        if is_logged {
            let chains = chains(&self.view, self.stage.route_number(), merged.as_deref());
            let credentials = chains.filter_map(Chain::credentials).cloned();
            self.scratch.ctx.credentials.extend(credentials);
        }
    }

    /// Shows it to tapping operators.
    #[cold]
    fn show(&self) {
        let route = self.stage.route(&self.view.snapshot).map(|route| &route.facts);
        let (worker, ctx) = (self.worker, &self.scratch.ctx);
        let consumer = ctx.identity.as_ref().map(|identity| &*identity.consumer.name);
        if worker.live.is_watched() {
            let parties = Parties { route, consumer };
            worker.live.note(parties, &ctx.record, self.view.snapshot.settings.live);
        }
        if !worker.taps.is_open() {
            return;
        }
        let client = self.client_addr();
        let marks = Marks { route: route.map(|facts| &**facts), consumer, client, status: ctx.record.status };
        let (text, at_ms) = (PeerText::of(client), worker.clock.borrow().unix_ms());
        let client = || String::from_utf8_lossy(text.as_bytes()).into_owned();
        worker.taps.show(
            &marks,
            || worker.local.random(),
            |wish| TappedExchange::of(ctx, route.cloned(), at_ms, client(), wish),
        );
    }

    /// Writes its line to the access log, if it gets one.
    fn write_line(&mut self) {
        let Some(format) = &self.view.snapshot.access_format else { return };
        let log = &self.view.snapshot.settings.access_log;
        if !self.stage.is_guided() && (format.asks_for_variables() || log.condition.is_some()) {
            // It is left from an earlier exchange of another client.
            self.scratch.ctx.client = client(&self.down, &self.view, self.scratch.told);
        }
        let record = &self.scratch.ctx.record;
        let is_error = record.status >= 500 || record.fault.is_some();
        let wanted = log.condition.as_ref().is_none_or(|condition| condition.eval(&Shown(self)))
            && log.samples(is_error, || self.worker.local.random());
        if wanted && let Some(sink) = self.worker.log.borrow_mut().as_mut() {
            let clock = self.worker.clock.borrow();
            sink.line(|out| format.render(self, &clock, out));
        }
    }
}

/// An exchange in the form of the access log, for its condition.
struct Shown<'e, 'x, 'c>(&'e Exchange<'x, 'c>);

impl Variables for Shown<'_, '_, '_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let ctx = &self.0.scratch.ctx;
        match Field::from_name(&name.to_string()) {
            // The log takes them from a clock.
            None | Some(Field::TimeLocal | Field::TimeIso8601 | Field::Msec) => ctx.get(name),
            Some(field) => {
                let mut line = Line::default();
                let mut place = ValueWriter::raw(&mut line);
                self.0.write(&field, &mut place);
                place.is_filled().then(|| VarValue::Text(line.take().into()))
            }
        }
    }
}
