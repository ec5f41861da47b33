//! The end of an exchange: counters and the access line.

use std::time::Instant;

use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_http::{HeaderId, Headers};
use sigma_net::Peer;
use sigma_observe::access::Entry;
use sigma_observe::counters::Counter;
use sigma_observe::field::Field;
use sigma_plugin::record::{Attempt, write_seconds};
use sigma_plugin::variables::{basic_user, host_name};

use super::{Exchange, client};
use crate::snapshot::Target;
use crate::tap::{Marks, Seen};

impl Exchange<'_, '_> {
    pub(super) fn finish(&mut self) {
        // Whoever waits for what it asked looks for himself.
        (self.scratch.turn, self.scratch.ctx.keeper) = (None, None);
        let record = &mut self.scratch.ctx.record;
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
        if self.worker.is_watched() {
            self.show();
        }
        self.log_phase();
        self.write_line();
        // Memory that waits for another exchange would keep databases that nobody asks any more.
        self.scratch.ctx.client.geography = None;
    }

    /// Shows it to operators who look.
    #[cold]
    fn show(&self) {
        let route = self.stage.route(&self.view.snapshot).map(|route| &route.facts);
        let (worker, ctx) = (self.worker, &self.scratch.ctx);
        if worker.live.is_watched() {
            worker.live.note(route, &ctx.record, self.view.snapshot.settings.live);
        }
        if !worker.taps.is_open() {
            return;
        }
        let client = match (ctx.client.addr, self.down.origin().peer) {
            // Of an exchange that was not guided it is left over from another one.
            (Some(client), _) if self.stage.is_guided() => Some(client),
            (_, Peer::Ip(client)) => Some(client.ip()),
            (_, Peer::Unix) => None,
        };
        let consumer = ctx.identity.as_ref().map(|identity| &*identity.consumer.name);
        let marks = Marks { route: route.map(|facts| &**facts), consumer, client, status: ctx.record.status };
        let (text, at_ms) = (self.client_text(), worker.clock.borrow().unix_ms());
        let about = || (at_ms, String::from_utf8_lossy(text.as_bytes()).into_owned());
        worker.taps.show(
            &marks,
            || worker.local.random(),
            |wish| Seen::of(ctx, route.cloned(), about(), wish),
        );
    }

    /// Its line in the access log, if it is to have one.
    fn write_line(&mut self) {
        let Some(format) = &self.view.snapshot.access_format else { return };
        let log = &self.view.snapshot.settings.access_log;
        if !self.stage.is_guided() && (format.asks_for_variables() || log.condition.is_some()) {
            // Left over from an exchange before, of somebody else.
            self.scratch.ctx.client = client(&self.down, &self.view);
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

    fn attempts(&self, out: &mut Vec<u8>, mut value: impl FnMut(&Attempt, &mut Vec<u8>)) -> bool {
        for (n, attempt) in self.scratch.ctx.record.attempts.iter().enumerate() {
            if n > 0 {
                out.extend_from_slice(b", ");
            }
            value(attempt, out);
        }
        !self.scratch.ctx.record.attempts.is_empty()
    }
}

/// An exchange as the access log shows it, for its condition.
struct Shown<'e, 'x, 'c>(&'e Exchange<'x, 'c>);

impl Variables for Shown<'_, '_, '_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let ctx = &self.0.scratch.ctx;
        match Field::from_name(&name.to_string()) {
            // The log takes them from a clock.
            None | Some(Field::TimeLocal | Field::TimeIso8601 | Field::Msec) => ctx.get(name),
            Some(Field::RequestTimeMs) => {
                let ms = ctx.record.elapsed_ms()? as u64;
                Some(VarValue::Text(ms.to_string().into_bytes().into()))
            }
            Some(field) => {
                let mut text = Vec::new();
                self.0.write(&field, &mut text).then(|| VarValue::Text(text.into()))
            }
        }
    }
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) -> bool {
    out.extend_from_slice(value);
    true
}

fn number(out: &mut Vec<u8>, value: u64) -> bool {
    bytes(out, itoa::Buffer::new().format(value).as_bytes())
}

/// Seconds with milliseconds, as nginx prints times.
fn seconds(out: &mut Vec<u8>, ms: Option<f64>) -> bool {
    match ms {
        Some(ms) => write_seconds(ms, out),
        None => out.push(b'-'),
    }
    true
}

fn header(out: &mut Vec<u8>, headers: &Headers, name: &str) -> bool {
    let value = match HeaderId::of(name.as_bytes()) {
        HeaderId::Other => headers.find(name.as_bytes()),
        known => headers.get(known),
    };
    value.is_some_and(|value| bytes(out, value))
}

impl Entry for Exchange<'_, '_> {
    fn write(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        match field {
            Field::Request
            | Field::RequestMethod
            | Field::RequestUri
            | Field::Uri
            | Field::Args
            | Field::Host
            | Field::HttpHeader(_)
            | Field::RemoteUser
            | Field::ServerProtocol
            | Field::RequestLength => self.write_request(field, out),
            Field::UpstreamAddr
            | Field::UpstreamStatus
            | Field::UpstreamResponseTime
            | Field::UpstreamConnectTime
            | Field::UpstreamHeaderTime
            | Field::UpstreamAttempts
            | Field::UpstreamHost
            | Field::UpstreamScheme
            | Field::UpstreamUri
            | Field::UpstreamHeader(_) => self.write_upstream(field, out),
            Field::Variable(name) => match self.scratch.ctx.get(&VarName::parse(name)) {
                Some(VarValue::Text(text)) => bytes(out, &text),
                Some(VarValue::Bool(truth)) => bytes(out, if truth { b"true" } else { b"false" }),
                Some(VarValue::List(items)) => bytes(out, &items.join(&b", "[..])),
                None => false,
            },
            _ => self.write_rest(field, out),
        }
    }
}

impl Exchange<'_, '_> {
    fn write_request(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        let head = &self.scratch.ctx.request;
        let known = !head.method_token().is_empty();
        match field {
            Field::RequestLength => number(out, self.down.bytes_received()),
            // A head that was not understood has no parts to show.
            _ if !known => false,
            Field::Request => {
                out.extend_from_slice(head.method_token());
                out.push(b' ');
                out.extend_from_slice(head.path_and_query());
                out.push(b' ');
                bytes(out, head.version.as_str().as_bytes())
            }
            Field::RequestMethod => bytes(out, head.method_token()),
            Field::RequestUri => bytes(out, head.path_and_query()),
            // A path that is not one was never normalised.
            Field::Uri if self.scratch.ctx.uri.is_empty() => bytes(out, head.raw_path()),
            Field::Uri => bytes(out, &self.scratch.ctx.uri),
            Field::Args => head.query().is_some_and(|query| bytes(out, query)),
            Field::Host => bytes(out, &host_name(head.authority())),
            Field::HttpHeader(name) => header(out, &head.headers, name),
            Field::RemoteUser => {
                let user = head.headers.get(HeaderId::Authorization).and_then(basic_user);
                user.is_some_and(|user| bytes(out, &user))
            }
            Field::ServerProtocol => bytes(out, head.version.as_str().as_bytes()),
            _ => false,
        }
    }

    fn write_upstream(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        if self.scratch.ctx.record.attempts.is_empty() {
            return false;
        }
        let head = &self.scratch.ctx.request;
        match field {
            Field::UpstreamAddr => self.attempts(out, |a, out| a.addr.write(out)),
            Field::UpstreamStatus => self.attempts(out, |a, out| {
                if a.status == 0 {
                    out.push(b'-');
                } else {
                    number(out, a.status.into());
                }
            }),
            Field::UpstreamResponseTime => self.attempts(out, |a, out| {
                seconds(out, a.response_ms);
            }),
            Field::UpstreamConnectTime => self.attempts(out, |a, out| {
                seconds(out, a.connect_ms);
            }),
            Field::UpstreamHeaderTime => self.attempts(out, |a, out| {
                seconds(out, a.header_ms);
            }),
            Field::UpstreamAttempts => self.scratch.ctx.record.write_attempts(out),
            Field::UpstreamHost => header(out, &head.headers, "host"),
            Field::UpstreamScheme => self.upstream_scheme().is_some_and(|scheme| bytes(out, scheme)),
            Field::UpstreamUri => {
                let rewritten = &self.scratch.ctx.target;
                bytes(out, if rewritten.is_empty() { head.path_and_query() } else { rewritten })
            }
            Field::UpstreamHeader(name) => header(out, &self.scratch.ctx.response.headers, name),
            _ => false,
        }
    }

    fn upstream_scheme(&self) -> Option<&'static [u8]> {
        let route = self.stage.route(&self.view.snapshot)?;
        let Target::Upstream(number) = self.target(&self.view, route) else { return None };
        Some(self.view.snapshot.upstream(number)?.scheme_name().as_bytes())
    }

    fn write_rest(&self, field: &Field, out: &mut Vec<u8>) -> bool {
        let origin = self.down.origin();
        let snapshot = &self.view.snapshot;
        let route = self.stage.route(snapshot);
        match field {
            Field::RemoteAddr => bytes(out, self.client_text().as_bytes()),
            Field::RemotePort if self.stage.is_guided() => {
                let port = self.scratch.ctx.client.port;
                port != 0 && number(out, port.into())
            }
            Field::RemotePort => match origin.peer {
                Peer::Ip(addr) => number(out, addr.port().into()),
                Peer::Unix => false,
            },
            Field::SentHttpHeader(name) => header(out, &self.scratch.ctx.response.headers, name),
            Field::Status => number(out, self.scratch.ctx.record.status.into()),
            Field::BodyBytesSent => number(out, self.down.bytes_sent().1),
            Field::BytesSent => number(out, self.down.bytes_sent().0),
            Field::RequestTime => seconds(
                out,
                self.scratch.ctx.record.started.map(|at: Instant| at.elapsed().as_secs_f64() * 1000.0),
            ),
            Field::ServerAddr => {
                origin.local.is_some_and(|a| bytes(out, a.ip().to_canonical().to_string().as_bytes()))
            }
            Field::ServerPort => number(out, origin.local_port().into()),
            Field::Scheme if self.down.tls_session().is_some() => bytes(out, b"https"),
            Field::Scheme => bytes(out, b"http"),
            Field::Https => self.down.tls_session().is_some() && bytes(out, b"on"),
            Field::Tls(name) => {
                let fact = self.down.tls_session().and_then(|session| session.tls.fact(name));
                fact.is_some_and(|fact| bytes(out, fact.as_bytes()))
            }
            Field::Connection => number(out, origin.connection),
            Field::ConnectionRequests => number(out, self.down.request_number().into()),
            Field::RouteId => route.is_some_and(|r| bytes(out, r.facts.id.as_bytes())),
            Field::RouteName => {
                route.and_then(|r| r.facts.name.as_ref()).is_some_and(|n| bytes(out, n.as_bytes()))
            }
            Field::ServiceId => {
                route.and_then(|r| r.facts.service_id.as_ref()).is_some_and(|id| bytes(out, id.as_bytes()))
            }
            Field::TraceId => self.trace(["opentelemetry_trace_id", "zipkin_trace_id"], out),
            Field::SpanId => self.trace(["opentelemetry_span_id", "zipkin_span_id"], out),
            Field::Fault => {
                self.scratch.ctx.record.fault.is_some_and(|f| bytes(out, f.kind.error_type().as_bytes()))
            }
            _ => false,
        }
    }

    /// The first of these variables that a plugin has set.
    fn trace(&self, names: [&str; 2], out: &mut Vec<u8>) -> bool {
        let found = names.into_iter().find_map(|name| self.scratch.ctx.set_by_plugin(name));
        found.is_some_and(|value| bytes(out, &value))
    }
}
