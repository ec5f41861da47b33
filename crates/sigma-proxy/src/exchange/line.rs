//! The values of an exchange in its access line.

use sigma_http::fault::PLUGIN;
use sigma_http::{HeaderId, Headers, Version};
use sigma_observe::access::{Entry, ValueWriter};
use sigma_observe::field::Field;
use sigma_observe::line::{Line, Put, put_number, put_seconds};
use sigma_plugin::address::{IpText, NodeAddr, put_ip};
use sigma_plugin::credentials::{MASK, Masked, Masks};
use sigma_plugin::record::Attempt;
use sigma_plugin::variables::{basic_user, host_name};
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::Exchange;
use super::request::UNIX;
use crate::snapshot::Target;

// The fields are known at compile time, so a caller with many values has no run-time choices if these methods are
// inlined.
impl Entry for Exchange<'_, '_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write(&self, field: &Field, place: &mut ValueWriter<'_>) {
        if !self.scratch.ctx.credentials.is_empty() && self.write_masked(field, place) {
            return;
        }
        match field {
            Field::Request
            | Field::RequestMethod
            | Field::RequestUri
            | Field::Uri
            | Field::Args
            | Field::Host
            | Field::HttpHeader(_)
            | Field::RemoteUser
            | Field::ServerProtocol => self.write_request(field, place),
            Field::UpstreamAddr
            | Field::UpstreamStatus
            | Field::UpstreamResponseTime
            | Field::UpstreamConnectTime
            | Field::UpstreamHeaderTime
            | Field::UpstreamAttempts
            | Field::UpstreamHost
            | Field::UpstreamProtocol
            | Field::UpstreamScheme
            | Field::UpstreamUri
            | Field::UpstreamHeader(_) => self.write_upstream(field, place),
            Field::RouteId | Field::RouteName | Field::ServiceId => self.write_route(field, place),
            Field::RemoteAddr
            | Field::RemotePort
            | Field::ServerAddr
            | Field::ServerPort
            | Field::Scheme
            | Field::Https
            | Field::Tls(_)
            | Field::Connection
            | Field::ConnectionRequests => self.write_connection(field, place),
            Field::SentHttpHeader(name) => header(place, &self.scratch.ctx.response.headers, name),
            Field::ConsumerName => {
                let identity = self.scratch.ctx.identity.as_ref();
                text(place, identity.map(|identity| identity.consumer.name.as_bytes()));
            }
            Field::Status => place.number(self.scratch.ctx.record.status.into()),
            Field::RequestLength => place.number(self.scratch.ctx.record.bytes_received),
            Field::BodyBytesSent => place.number(self.scratch.ctx.record.body_bytes_sent),
            Field::BytesSent => place.number(self.scratch.ctx.record.bytes_sent),
            Field::RequestTime => {
                self.scratch.ctx.record.elapsed_ms().into_iter().for_each(|ms| place.seconds(ms))
            }
            Field::RequestTimeMs => {
                self.scratch.ctx.record.elapsed_ms().into_iter().for_each(|ms| place.milliseconds(ms));
            }
            Field::RequestId => place.text(self.scratch.ctx.request_id_bytes()),
            Field::TraceId => self.write_trace(["opentelemetry_trace_id", "zipkin_trace_id"], place),
            Field::SpanId => self.write_trace(["opentelemetry_span_id", "zipkin_span_id"], place),
            Field::Credential(field) => self.write_hidden(field, place),
            Field::Fault => {
                if let Some(fault) = self.scratch.ctx.record.fault {
                    place.word(fault.kind.error_type().as_bytes());
                } else if let Some(plugin) = self.refuser() {
                    place.pieces(|out| {
                        out.put(PLUGIN.word.as_bytes());
                        out.push(b':');
                        out.put(plugin.as_bytes());
                    });
                }
            }
            Field::Variable(name) => match self.scratch.ctx.get(&VarName::parse(name)) {
                Some(VarValue::Text(value)) => place.text(&value),
                Some(VarValue::Bool(truth)) => place.word(if truth { b"true" } else { b"false" }),
                Some(VarValue::List(items)) => place.text(&items.join(&b", "[..])),
                None => {}
            },
            // The line's own clock has them.
            Field::TimeLocal | Field::TimeIso8601 | Field::Msec => {}
        }
    }
}

impl Exchange<'_, '_> {
    /// Writes a value that may contain a credential of the route's plugins; returns false without one, or if it may
    /// be shown.
    #[cold]
    fn write_masked(&self, field: &Field, place: &mut ValueWriter<'_>) -> bool {
        let (ctx, masks) = (&self.scratch.ctx, Masks::of(&self.scratch.ctx));
        let head = &ctx.request;
        if self.view.snapshot.settings.access_log.log_credentials || head.method_token().is_empty() {
            return false;
        }
        match field {
            Field::Request => place.pieces(|out| {
                out.put(head.method_token());
                out.push(b' ');
                out.put(&masks.target(head.path_and_query()));
                out.push(b' ');
                out.put(head.version.as_str().as_bytes());
            }),
            Field::RequestUri => place.text(&masks.target(head.path_and_query())),
            Field::Args => text(place, head.query().map(|query| masks.query(query)).as_deref()),
            Field::UpstreamUri if !ctx.record.attempts.is_empty() => {
                place.text(&masks.target(ctx.outgoing_target()));
            }
            Field::HttpHeader(name) => {
                let value = head.headers.find(name.as_bytes());
                text(place, value.map(|value| masks.field(name.as_bytes(), value)).as_deref());
            }
            Field::SentHttpHeader(name) | Field::UpstreamHeader(name)
                if masks.hides_field(name.as_bytes()) =>
            {
                let value = ctx.response.headers.find(name.as_bytes());
                text(place, value.map(|_| MASK.as_bytes()));
            }
            Field::Variable(name) => match Masked(ctx).get(&VarName::parse(name)) {
                Some(VarValue::Text(value)) => place.text(&value),
                _ => return false,
            },
            _ => return false,
        }
        true
    }

    /// Writes the mask of a value that is a credential on all routes, if there is one.
    #[cold]
    fn write_hidden(&self, field: &Field, place: &mut ValueWriter<'_>) {
        let ctx = &self.scratch.ctx;
        let is_there = match field {
            Field::HttpHeader(name) => ctx.request.headers.find(name.as_bytes()).is_some(),
            Field::SentHttpHeader(name) | Field::UpstreamHeader(name) => {
                ctx.response.headers.find(name.as_bytes()).is_some()
            }
            Field::Variable(name) => ctx.get(&VarName::parse(name)).is_some(),
            _ => true,
        };
        text(place, is_there.then_some(MASK.as_bytes()));
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write_request(&self, field: &Field, place: &mut ValueWriter<'_>) {
        let head = &self.scratch.ctx.request;
        let method = head.method_token();
        if method.is_empty() {
            // An invalid head has no parts to show.
            return;
        }
        match field {
            Field::Request => place.pieces(|out| {
                out.put(method);
                out.push(b' ');
                out.put(head.path_and_query());
                out.push(b' ');
                out.put(head.version.as_str().as_bytes());
            }),
            // A token has no characters that are escaped (RFC 9110 §5.6.2).
            Field::RequestMethod => place.word(method),
            Field::RequestUri => place.text(head.path_and_query()),
            // An invalid path was not normalized.
            Field::Uri if self.scratch.ctx.uri.is_empty() => place.text(head.raw_path()),
            Field::Uri => place.text(&self.scratch.ctx.uri),
            Field::Args => text(place, head.query()),
            // A request over HTTP/1.0, or a rejected one, may lack a host.
            Field::Host if head.authority().is_empty() => {}
            Field::Host => place.text(&host_name(head.authority())),
            Field::HttpHeader(name) => header(place, &head.headers, name),
            Field::RemoteUser => {
                let user = head.headers.get(HeaderId::Authorization).and_then(basic_user);
                text(place, user.as_deref());
            }
            Field::ServerProtocol => place.word(head.version.as_str().as_bytes()),
            _ => {}
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write_upstream(&self, field: &Field, place: &mut ValueWriter<'_>) {
        let ctx = &self.scratch.ctx;
        let attempts = &ctx.record.attempts[..];
        if attempts.is_empty() {
            return;
        }
        match field {
            Field::UpstreamAddr
                if attempts.iter().all(|attempt| matches!(attempt.addr, NodeAddr::Tcp(_))) =>
            {
                place.words(|out| joined(attempts, out, |attempt, out| attempt.addr.put(out)));
            }
            Field::UpstreamAddr => {
                place.pieces(|out| joined(attempts, out, |attempt, out| attempt.addr.put(out)));
            }
            Field::UpstreamStatus => place.words(|out| joined(attempts, out, put_status)),
            Field::UpstreamResponseTime => times(place, attempts, |attempt| attempt.response_ms),
            Field::UpstreamConnectTime => times(place, attempts, |attempt| attempt.connect_ms),
            Field::UpstreamHeaderTime => times(place, attempts, |attempt| attempt.header_ms),
            Field::UpstreamAttempts => place.json(|out| {
                ctx.record.write_attempts(out);
            }),
            Field::UpstreamHost => header(place, &ctx.request.headers, "host"),
            Field::UpstreamProtocol => place.words(|out| {
                joined(attempts, out, |attempt, out| {
                    out.put(attempt.version.map_or("-", Version::as_str).as_bytes());
                });
            }),
            Field::UpstreamScheme => {
                if let Some(scheme) = self.upstream_scheme() {
                    place.word(scheme);
                }
            }
            Field::UpstreamUri if ctx.target.is_empty() => place.text(ctx.request.path_and_query()),
            Field::UpstreamUri => place.text(&ctx.target),
            Field::UpstreamHeader(name) => header(place, &ctx.response.headers, name),
            _ => {}
        }
    }

    fn upstream_scheme(&self) -> Option<&'static [u8]> {
        let route = self.stage.route(&self.view.snapshot)?;
        let Target::Upstream(number) = self.target(&self.view, route) else { return None };
        Some(self.view.snapshot.upstream(number)?.scheme_name().as_bytes())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write_route(&self, field: &Field, place: &mut ValueWriter<'_>) {
        let Some(route) = self.stage.route(&self.view.snapshot) else { return };
        let facts = &route.facts;
        let value = match field {
            Field::RouteId => Some(facts.id.as_bytes()),
            Field::RouteName => facts.name.as_ref().map(|name| name.as_bytes()),
            _ => facts.service_id.as_ref().map(|id| id.as_bytes()),
        };
        text(place, value);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write_connection(&self, field: &Field, place: &mut ValueWriter<'_>) {
        let origin = self.down.origin();
        match field {
            Field::RemoteAddr => match self.client_addr() {
                Some(addr) => place.words(|out| put_ip(addr, out)),
                None => place.word(UNIX),
            },
            Field::RemotePort => {
                let port = match self.scratch.told {
                    _ if self.stage.is_guided() => self.scratch.ctx.client.port,
                    Some(told) => told.port,
                    None => origin.peer.port().unwrap_or(0),
                };
                if port != 0 {
                    place.number(port.into());
                }
            }
            Field::ServerAddr => {
                if let Some(addr) = origin.local {
                    place.word(IpText::of(addr.ip().to_canonical()).as_bytes());
                }
            }
            Field::ServerPort => place.number(origin.local_port().into()),
            Field::Scheme if self.down.tls_session().is_some() => place.word(b"https"),
            Field::Scheme => place.word(b"http"),
            Field::Https if self.down.tls_session().is_some() => place.word(b"on"),
            Field::Tls(name) => {
                let fact = self.down.tls_session().and_then(|session| session.tls.fact(name));
                text(place, fact.as_ref().map(|fact| fact.as_bytes()));
            }
            Field::Connection => place.number(origin.connection),
            Field::ConnectionRequests => place.number(self.down.request_number().into()),
            _ => {}
        }
    }

    /// Writes the first of these variables that a plugin has set.
    fn write_trace(&self, names: [&str; 2], place: &mut ValueWriter<'_>) {
        if !self.scratch.ctx.has_variables() {
            return;
        }
        let found = names.into_iter().find_map(|name| self.scratch.ctx.set_by_plugin(name));
        text(place, found.as_deref());
    }
}

fn text(place: &mut ValueWriter<'_>, value: Option<&[u8]>) {
    if let Some(value) = value {
        place.text(value);
    }
}

fn header(place: &mut ValueWriter<'_>, headers: &Headers, name: &str) {
    let value = match HeaderId::of(name.as_bytes()) {
        HeaderId::Other => headers.find(name.as_bytes()),
        known => headers.get(known),
    };
    text(place, value);
}

/// Appends a value of each attempt.
#[inline]
fn joined(attempts: &[Attempt], line: &mut Line, put: impl Fn(&Attempt, &mut Line)) {
    for (n, attempt) in attempts.iter().enumerate() {
        if n > 0 {
            line.put(b", ");
        }
        put(attempt, line);
    }
}

fn put_status(attempt: &Attempt, line: &mut Line) {
    match attempt.status {
        0 => line.push(b'-'),
        status => put_number(status.into(), line),
    }
}

/// Writes a time of each attempt; `-` for a missing one.
#[inline]
fn times(place: &mut ValueWriter<'_>, attempts: &[Attempt], time: impl Fn(&Attempt) -> Option<f64>) {
    place.words(|line| {
        joined(attempts, line, |attempt, line| match time(attempt) {
            Some(ms) => put_seconds(ms, line),
            None => line.push(b'-'),
        });
    });
}
