//! An exchange as spans of OTLP, with attributes by the semantic conventions of HTTP, and by the older ones that
//! APISIX shows.

use std::borrow::Cow;

use prost::Message as _;
use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::address::{IpText, NodeAddr};
use sigma_plugin::context::RouteFacts;
use sigma_plugin::credentials::{Masked, Masks};
use sigma_plugin::record::Source;
use sigma_plugin::{Context, Env};
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::shared::finished_exchange::{
    AttemptResult, FinishedExchange, Waited, target, without_credentials,
};
use crate::shared::ids::SpanId;
use crate::shared::matched::matched_uri;
use crate::shared::otlp::{
    Event, Kind, PARENT_KNOWN, PARENT_REMOTE, Span, SpanAttributes, Status, StatusCode,
};
use crate::shared::w3c::SpanContext;

/// Attributes that a configuration takes from fields of one request at most: a client chooses how many there are.
const FIELD_ATTRIBUTES: usize = 64;

/// A request that is sampled.
#[derive(Debug, Clone)]
pub(super) struct Sampled {
    pub(super) own: SpanContext,
    pub(super) parent: Option<SpanId>,
    /// The spans that nodes got, by the number of the attempt.
    pub(super) attempts: Vec<(usize, SpanId)>,
}

impl Sampled {
    /// Draws the span of an attempt, and replaces one that was drawn for it and not used.
    pub(super) fn draw_attempt(&mut self, number: usize, env: &Env<'_>) -> SpanId {
        let span = SpanId::draw(env);
        self.attempts.retain(|(known, _)| *known != number);
        self.attempts.push((number, span));
        span
    }

    fn attempt(&self, number: usize) -> Option<SpanId> {
        self.attempts.iter().find(|(known, _)| *known == number).map(|(_, span)| *span)
    }
}

/// Attributes that a configuration adds.
#[derive(Debug, Default)]
pub(super) struct Additional {
    variables: Vec<(String, VarName)>,
    fields: Vec<String>,
}

impl Additional {
    pub(super) fn new(variables: Vec<String>, fields: Vec<String>) -> Additional {
        let variables = variables.into_iter().map(|name| {
            let variable = VarName::parse(&name);
            (name, variable)
        });
        Additional { variables: variables.collect(), fields }
    }

    /// Adds the attributes of fields, then of variables whose names no field has.
    fn add(&self, ctx: &Context, out: &mut SpanAttributes) {
        self.add_fields(ctx, out);
        for (name, variable) in &self.variables {
            match Masked(ctx).get(variable) {
                Some(VarValue::Text(text)) => out.choose(name, text),
                Some(VarValue::Bool(truth)) => out.choose(name, if truth { "true" } else { "false" }),
                Some(VarValue::List(items)) => out.choose(name, &items.join(&b", "[..])[..]),
                None => {}
            }
        }
    }

    fn add_fields(&self, ctx: &Context, out: &mut SpanAttributes) {
        if self.fields.is_empty() {
            return;
        }
        let headers = &ctx.request.headers;
        let wanted = headers.iter().filter(|(name, _)| self.fields.iter().any(|field| is_named(name, field)));
        let mut done: Vec<&[u8]> = Vec::new();
        for (name, _) in wanted {
            if done.len() == FIELD_ATTRIBUTES {
                break;
            }
            if !done.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                let shown = values(headers, name);
                let shown = Masks::of(ctx).field(name, &shown).into_owned();
                out.choose(&String::from_utf8_lossy(name), &shown[..]);
                done.push(name);
            }
        }
    }
}

/// Whether `field` is this name, or the beginning of it with a `*` behind.
fn is_named(name: &[u8], field: &str) -> bool {
    match field.strip_suffix('*').filter(|prefix| !prefix.is_empty()) {
        Some(prefix) => {
            name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
        }
        None => name.eq_ignore_ascii_case(field.as_bytes()),
    }
}

fn values<'h>(headers: &'h Headers, name: &[u8]) -> Cow<'h, [u8]> {
    let mut all =
        headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    match (all.next(), all.next()) {
        (Some(only), None) => Cow::Borrowed(only),
        (first, second) => {
            let several: Vec<&[u8]> = first.into_iter().chain(second).chain(all).collect();
            Cow::Owned(several.join(&b", "[..]))
        }
    }
}

/// The spans of an exchange that has ended, each one encoded: the request's, then its children's.
pub(super) fn spans(
    ctx: &Context,
    env: &Env<'_>,
    sampled: &Sampled,
    additional: &Additional,
) -> Vec<Vec<u8>> {
    let Some(course) = FinishedExchange::of(ctx, env) else { return Vec::new() };
    let child = |name: String, kind: Kind, (began, ended): (u64, u64)| Span {
        trace_id: sampled.own.trace.bytes().to_vec(),
        span_id: SpanId::draw(env).bytes().to_vec(),
        parent_span_id: sampled.own.span.bytes().to_vec(),
        name,
        kind: kind.into(),
        start_time_unix_nano: began,
        end_time_unix_nano: ended,
        flags: 1 | PARENT_KNOWN,
        ..Span::default()
    };
    let own = Span {
        span_id: sampled.own.span.bytes().to_vec(),
        parent_span_id: sampled.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        trace_state: sampled.parent.map(|_| trace_state(&ctx.request.headers)).unwrap_or_default(),
        flags: 1 | PARENT_KNOWN | if sampled.parent.is_some() { PARENT_REMOTE } else { 0 },
        status: status_of(ctx),
        ..child(name(ctx), Kind::Server, (course.began, course.ended))
    };
    let own = of_request(ctx, additional).encode(&own);
    let waits = course
        .waits()
        .map(|wait: Waited<'_>| child(wait.name(), Kind::Internal, (wait.began, wait.ended)).encode_to_vec());
    let tries = course.tries().map(|one| {
        let mut span = child(method(ctx).to_owned(), Kind::Client, (one.began, one.ended));
        if let Some(told) = sampled.attempt(one.number) {
            span.span_id = told.bytes().to_vec();
        }
        of_try(ctx, &one, span)
    });
    std::iter::once(own).chain(waits).chain(tries).collect()
}

fn trace_state(headers: &Headers) -> String {
    String::from_utf8_lossy(&values(headers, HeaderId::Tracestate.name().as_bytes())).into_owned()
}

/// Returns the method, if routes know it: a made-up method must not name spans.
fn method(ctx: &Context) -> &'static str {
    match ctx.request.client_method() {
        Method::Other => "HTTP",
        method => method.as_str(),
    }
}

fn pattern(ctx: &Context) -> Option<&str> {
    let route: &RouteFacts = ctx.route.as_deref()?;
    Some(matched_uri(route, &ctx.uri)).filter(|pattern| !pattern.is_empty())
}

fn name(ctx: &Context) -> String {
    match pattern(ctx) {
        Some(pattern) => format!("{} {pattern}", method(ctx)),
        None => method(ctx).to_owned(),
    }
}

fn of_request(ctx: &Context, additional: &Additional) -> SpanAttributes {
    let (mut out, head, record) = (SpanAttributes::default(), &ctx.request, &ctx.record);
    additional.add(ctx, &mut out);
    let token = head.method_token();
    out.add("net.host.name", ctx.host_name());
    out.add("http.method", token);
    out.add("http.scheme", ctx.scheme());
    out.add("http.target", &target(ctx)[..]);
    out.add_some("http.user_agent", head.headers.get(HeaderId::UserAgent));
    add_method(ctx, &mut out);
    out.add("url.scheme", ctx.scheme());
    out.add("url.path", &ctx.uri[..]);
    out.add_some("url.query", head.query().map(|query| Cow::<[u8]>::Owned(without_credentials(query, ctx))));
    out.add_some("user_agent.original", head.headers.get(HeaderId::UserAgent));
    out.add("server.address", ctx.host_name());
    out.add_some("server.port", ctx.client.local.map(|local| i64::from(local.port())));
    out.add("network.protocol.name", "http");
    out.add("network.protocol.version", protocol_version(ctx));
    out.add_some(
        "client.address",
        ctx.client.addr.map(|addr| Cow::Owned(IpText::of(addr).as_bytes().to_vec())),
    );
    out.add_some(
        "network.peer.address",
        ctx.client.peer.map(|addr| Cow::Owned(IpText::of(addr).as_bytes().to_vec())),
    );
    if let Some(route) = ctx.route.as_deref() {
        out.add("apisix.route_id", &*route.id);
        out.add_some("apisix.route_name", route.name.as_deref());
        out.add_some("http.route", pattern(ctx));
        out.add_some("apisix.service_id", route.service_id.as_deref());
        out.add_some("apisix.service_name", route.service_name.as_deref());
    }
    out.add("apisix.response_source", record.source.as_str());
    if record.status != 0 {
        out.add("http.status_code", i64::from(record.status));
        out.add("http.response.status_code", i64::from(record.status));
    }
    match record.fault {
        Some(fault) => out.add("error.type", fault.kind.error_type()),
        None if record.status >= 500 => out.add("error.type", &*record.status.to_string()),
        None => {}
    }
    out
}

fn add_method(ctx: &Context, out: &mut SpanAttributes) {
    match ctx.request.client_method() {
        Method::Other => {
            out.add("http.request.method", "_OTHER");
            out.add("http.request.method_original", ctx.request.method_token());
        }
        method => out.add("http.request.method", method.as_str()),
    }
}

fn protocol_version(ctx: &Context) -> &'static str {
    let version = ctx.request.version.as_str().trim_start_matches("HTTP/");
    version.strip_suffix(".0").filter(|version| *version != "1").unwrap_or(version)
}

fn status_of(ctx: &Context) -> Option<Status> {
    let record = &ctx.record;
    let code = StatusCode::Error.into();
    if record.status >= 500 {
        return Some(Status {
            message: format!("{} error: {}", record.source.as_str(), record.status),
            code,
        });
    }
    // The client got no response, or half of one.
    let fault = record.fault.filter(|_| record.status == 0 || record.source == Source::Upstream)?;
    Some(Status { message: fault.kind.error_type().to_owned(), code })
}

/// An attempt on a node, encoded.
fn of_try(ctx: &Context, one: &AttemptResult<'_>, span: Span) -> Vec<u8> {
    let (mut out, attempt) = (SpanAttributes::default(), one.attempt);
    add_method(ctx, &mut out);
    out.add("server.address", &*attempt.host);
    match &attempt.addr {
        NodeAddr::Tcp(addr) => {
            out.add("server.port", i64::from(addr.port()));
            out.add("network.peer.address", IpText::of(addr.ip()).as_str());
            out.add("network.peer.port", i64::from(addr.port()));
        }
        NodeAddr::Unix(path) => {
            out.add("network.transport", "unix");
            out.add("network.peer.address", &*path.to_string_lossy());
        }
    }
    out.add_some("url.scheme", ctx.record.upstream_scheme);
    if one.number > 0 {
        out.add("http.request.resend_count", one.number as i64);
    }
    out.add("sigma.connection.reused", attempt.reused);
    let times = one.times();
    for (name, ms) in [
        ("sigma.connection.connect_ms", times.connect_ms),
        ("sigma.connection.tls_ms", times.tls_ms),
        ("sigma.request.send_ms", times.send_ms),
        ("sigma.response.wait_ms", times.wait_ms),
    ] {
        out.add_some(name, ms);
    }
    let error = |message: &str| Some(Status { message: message.to_owned(), code: StatusCode::Error.into() });
    let mut status = None;
    if let Some(failure) = one.failure {
        out.add("error.type", failure);
        status = error(failure);
    } else {
        out.add("http.response.status_code", i64::from(attempt.status));
        if attempt.status >= 400 {
            out.add("error.type", &*attempt.status.to_string());
            status = error("");
        }
    }
    let event = |(name, at): &(&str, u64)| Event { time_unix_nano: *at, name: (*name).to_owned() };
    out.encode(&Span { events: one.events.iter().map(event).collect(), status, ..span })
}
