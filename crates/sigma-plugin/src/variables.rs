//! Variables of an exchange by name, for conditions and templates.
//!
//! The names come from nginx and APISIX; [`sigma_schema::expr::known`] has all of them. A variable without a value in
//! this exchange, or before its value is known, is absent.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Value;
use sigma_http::{CarriedBytes, HeaderId, Headers, Method, RequestHead, Version};
use sigma_observe::date::Clock;
use sigma_observe::line::put_seconds;
use sigma_schema::defined;
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::address::{IpText, NodeAddr, network_text};
use crate::body_fields;
pub use crate::form::{pairs, percent_decoded};
use crate::graphql::Chosen;
use crate::record::{Attempt, Source};
use crate::{Client, Context};

pub(crate) fn text(value: &[u8]) -> Option<VarValue<'_>> {
    Some(VarValue::Text(Cow::Borrowed(value)))
}

pub(crate) fn owned<'a>(value: impl Into<Vec<u8>>) -> Option<VarValue<'a>> {
    Some(VarValue::Text(Cow::Owned(value.into())))
}

/// Returns the address, or `unix:` for a peer without one, as nginx shows it.
pub(crate) fn address<'a>(addr: Option<IpAddr>) -> Option<VarValue<'a>> {
    match addr {
        Some(addr) => owned(IpText::of(addr).as_bytes()),
        None => text(b"unix:"),
    }
}

pub(crate) fn number<'a>(value: impl itoa::Integer) -> Option<VarValue<'a>> {
    owned(itoa::Buffer::new().format(value))
}

impl Variables for Context {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        match name {
            VarName::Method => text(self.request.method_token()),
            VarName::Uri => text(&self.uri),
            VarName::RequestUri => owned(self.request_uri()),
            VarName::RealRequestUri => match &self.internal {
                Some(internal) => text(&internal.asked_target),
                None => text(self.request.path_and_query()),
            },
            VarName::Args => self.request.query().and_then(text),
            VarName::IsArgs => self.request.query().and_then(|_| text(b"?")),
            VarName::Host => Some(VarValue::Text(self.host_name())),
            VarName::Arg(name) => argument(self.request.query()?, name),
            VarName::Cookie(name) => cookie(&self.request.headers, name).and_then(text),
            VarName::Http(name) => joined(&self.request.headers, name).map(VarValue::Text),
            VarName::UriParam(name) => self.params.get(name).and_then(text),
            VarName::RouteId
            | VarName::RouteName
            | VarName::ServiceId
            | VarName::ServiceName
            | VarName::ConsumerName => self.identity_variable(name),
            VarName::PostArg(field) => field.value(&structured(self)?),
            VarName::Other(name) => self.other(name),
            _ => self.connection_variable(name),
        }
    }

    fn each(&self, name: &VarName, visit: &mut dyn FnMut(&VarValue<'_>)) {
        if let VarName::Other(field) = name
            && let Some(field) = field.strip_prefix("post_arg_")
        {
            let is_form = self.request.headers.get(HeaderId::ContentType).is_some_and(body_fields::is_form);
            let body = self.known_request_body().filter(|_| is_form);
            each_argument(body.as_deref().unwrap_or_default(), field, visit);
        } else if !each_repeated(&self.request, name, visit)
            && let Some(value) = self.get(name)
        {
            visit(&value);
        }
    }
}

impl Context {
    /// Returns `$request_uri` as APISIX defines it: the normalized path and the arguments.
    pub fn request_uri(&self) -> Vec<u8> {
        let mut uri = self.uri.clone();
        if let Some(query) = self.request.query() {
            uri.push(b'?');
            uri.extend_from_slice(query);
        }
        uri
    }

    /// Returns `$host`: lower case, without port and trailing dot; `_` without a host.
    pub fn host_name(&self) -> Cow<'_, [u8]> {
        match host_name(self.request.authority()) {
            host if host.is_empty() => Cow::Borrowed(b"_"),
            host => host,
        }
    }

    /// Returns `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.client.tls.is_some() { "https" } else { "http" }
    }

    /// Returns the client's address as text; `unix:` for a peer without one, as nginx shows it.
    pub fn remote_addr(&self) -> String {
        self.client.addr.map_or_else(|| "unix:".to_owned(), |addr| IpText::of(addr).as_str().to_owned())
    }

    fn connection_variable(&self, name: &VarName) -> Option<VarValue<'_>> {
        let client = &self.client;
        match name {
            VarName::Scheme => text(self.scheme().as_bytes()),
            VarName::RemoteAddr => address(client.addr),
            VarName::RealipRemoteAddr => address(client.peer),
            VarName::RemotePort if client.port != 0 => number(client.port),
            VarName::ServerAddr => owned(client.local?.ip().to_canonical().to_string()),
            VarName::ServerPort => number(client.local.map_or(0, |addr| addr.port())),
            VarName::ServerProtocol => text(self.request.version.as_str().as_bytes()),
            VarName::RequestId => text(self.request_id().as_bytes()),
            VarName::Hostname => of_process("hostname"),
            _ => None,
        }
    }

    fn identity_variable(&self, name: &VarName) -> Option<VarValue<'_>> {
        let route = self.route.as_ref();
        let value = match name {
            VarName::RouteId => route.map(|route| &*route.id),
            VarName::RouteName => route.and_then(|route| route.name.as_deref()),
            VarName::ServiceId => route.and_then(|route| route.service_id.as_deref()),
            VarName::ServiceName => route.and_then(|route| route.service_name.as_deref()),
            _ => self.consumer().map(|consumer| &*consumer.name),
        };
        value.and_then(|value| text(value.as_bytes()))
    }

    /// Returns variables that are too rare for their own branch.
    fn other(&self, name: &str) -> Option<VarValue<'_>> {
        if let Some(value) = self.set_by_plugin(name) {
            return Some(VarValue::Text(value));
        }
        if let Some(name) = name.strip_prefix(defined::PREFIX) {
            return self.definitions.as_ref()?.value(name, self, &self.defined_reads);
        }
        // `$1`: a group of the path expression.
        if name.starts_with(|first: char| first.is_ascii_digit()) {
            return self.params.get(name).and_then(text);
        }
        if let Some(name) = name.strip_prefix("upstream_http_").or_else(|| name.strip_prefix("sent_http_")) {
            return joined(&self.response.headers, &name.replace('_', "-")).map(VarValue::Text);
        }
        if let Some(name) = name.strip_prefix("upstream_cookie_") {
            return set_cookie(&self.response.headers, name).and_then(text);
        }
        if let Some(name) = name.strip_prefix("upstream_") {
            return self.upstream_variable(name);
        }
        if let Some(name) = name.strip_prefix("ssl_") {
            return self.tls_variable(name);
        }
        if let Some(name) = name.strip_prefix("post_arg_") {
            return self.form_argument(name);
        }
        if let Some(name) = name.strip_prefix("geoip_") {
            return self.client.geography.as_ref()?.fact(self.client.addr?, name).map(VarValue::Text);
        }
        if name.starts_with("proxy_protocol_") {
            return proxied(&self.client, name);
        }
        if name.starts_with("graphql_") {
            return graphql(self)?.get(name).map(VarValue::into_owned);
        }
        let record = &self.record;
        match name {
            "status" if record.status != 0 => number(record.status),
            // The header filters have its head.
            "status" if self.response.status != 0 => number(self.response.status),
            "bytes_sent" => number(record.bytes_sent),
            "body_bytes_sent" => number(record.body_bytes_sent),
            "request_length" => number(record.bytes_received),
            "request_time" => owned(seconds(record.elapsed_ms()?)),
            "connection" => number(self.client.connection),
            "connection_time" => owned(seconds(open_ms(&self.client))),
            "realip_remote_port" if self.client.peer_port != 0 => number(self.client.peer_port),
            "http2" if self.request.version.as_str() == "HTTP/2.0" => text(b"h2"),
            "connection_requests" => number(record.connection_requests),
            "https" => self.client.tls.as_ref().and_then(|_| text(b"on")),
            "internal_name" => text(self.internal.as_ref()?.name.as_bytes()),
            "server_name" => Some(VarValue::Text(self.host_name())),
            "consumer_group_id" => self.consumer()?.group_id.as_deref().and_then(|id| text(id.as_bytes())),
            "response_source" => text(record.source.as_str().as_bytes()),
            "balancer_ip" | "balancer_port" => self.balancer(name),
            "remote_user" => owned(basic_user(self.request.headers.get(HeaderId::Authorization)?)?),
            "request" => owned(request_line(&self.request)),
            "binary_remote_addr" => match self.client.addr? {
                IpAddr::V4(ip) => owned(ip.octets()),
                IpAddr::V6(ip) => owned(ip.octets()),
            },
            "remote_network" => owned(network_text(self.client.addr?)),
            "document_uri" => text(&self.uri),
            "request_body" => owned(self.seen_request_body(SHOWN_BODY_BYTES)?),
            "proxy_add_x_forwarded_for" => {
                let mut chain = joined(&self.request.headers, "x-forwarded-for")
                    .map_or(Vec::new(), |chain| [&*chain, b", "].concat());
                chain.extend_from_slice(self.remote_addr().as_bytes());
                owned(chain)
            }
            "request_completion" if record.status != 0 && record.fault.is_none() => text(b"OK"),
            name => of_process(name),
        }
    }

    /// Returns `$post_arg_name`, from a form that was read, see [`crate::Step::ReadBody`], or copied.
    fn form_argument(&self, name: &str) -> Option<VarValue<'_>> {
        if !body_fields::is_form(self.request.headers.get(HeaderId::ContentType)?) {
            return None;
        }
        match self.known_request_body()? {
            Cow::Borrowed(body) => argument(body, name),
            Cow::Owned(copy) => argument(&copy, name).map(VarValue::into_owned),
        }
    }

    fn upstream_variable(&self, name: &str) -> Option<VarValue<'_>> {
        match name {
            "addr" => self.attempts(|attempt| attempt.addr.to_string()),
            // Attempts are kept only for log plugins.
            "attempts" => {
                let mut list = Vec::new();
                if self.record.write_attempts(&mut list) { owned(list) } else { None }
            }
            "status" if self.record.attempts.is_empty() && self.record.source == Source::Upstream => {
                number(self.response.status)
            }
            "status" => self.attempts(|attempt| match attempt.status {
                0 => "-".to_owned(),
                status => status.to_string(),
            }),
            "response_time" => self.attempts(|attempt| attempt.response_ms.map_or("-".into(), seconds)),
            "connect_time" => self.attempts(|attempt| attempt.connect_ms.map_or("-".into(), seconds)),
            "header_time" => self.attempts(|attempt| attempt.header_ms.map_or("-".into(), seconds)),
            "bytes_sent" => self.carried(|carried| carried.sent),
            "bytes_received" => self.carried(|carried| carried.received),
            "protocol" => self.attempts(|attempt| attempt.version.map_or("-", Version::as_str).to_owned()),
            "scheme" => self.record.upstream_scheme.and_then(|scheme| text(scheme.as_bytes())),
            "unresolved_host" => {
                self.record.attempts.last().and_then(|attempt| text(attempt.host.as_bytes()))
            }
            "host" => {
                self.host.as_deref().or_else(|| self.request.headers.get(HeaderId::Host)).and_then(text)
            }
            "uri" if self.target.is_empty() => text(self.request.path_and_query()),
            "uri" => text(&self.target),
            _ => None,
        }
    }

    fn tls_variable(&self, name: &str) -> Option<VarValue<'_>> {
        self.client.tls.as_ref()?.fact(name).and_then(|value| text(value.as_bytes()))
    }

    fn attempts(&self, value: impl Fn(&Attempt) -> String) -> Option<VarValue<'_>> {
        let all: Vec<String> = self.record.attempts.iter().map(value).collect();
        (!all.is_empty()).then(|| VarValue::Text(Cow::Owned(all.join(", ").into_bytes())))
    }

    /// Returns a number of bytes for each attempt, as a list.
    fn carried(&self, of: impl Fn(CarriedBytes) -> u64) -> Option<VarValue<'_>> {
        self.attempts(|attempt| attempt.carried.map_or("-".into(), |carried| of(carried).to_string()))
    }

    fn balancer(&self, name: &str) -> Option<VarValue<'_>> {
        let NodeAddr::Tcp(addr) = &self.record.attempts.last()?.addr else { return None };
        if name == "balancer_ip" { owned(IpText::of(addr.ip()).as_bytes()) } else { number(addr.port()) }
    }
}

/// Returns the request body as fields.
fn structured(ctx: &Context) -> Option<Value> {
    body_fields::read(ctx.request.headers.get(HeaderId::ContentType)?, &ctx.known_request_body()?)
}

/// Returns the GraphQL operation of the request, if its body is known.
fn graphql(ctx: &Context) -> Option<Chosen> {
    let body = match ctx.known_request_body() {
        None if ctx.request.method == Method::Get => Cow::Borrowed(&[][..]),
        body => body?,
    };
    Chosen::of(ctx.request.query().unwrap_or_default(), &ctx.request.headers, &body).ok()?
}

/// The limit of a request body in the variable; the default of loggers.
const SHOWN_BODY_BYTES: usize = 524_288;

/// The resolution of the accept time of a connection: the tick of workers' clocks.
pub const TICK_MS: u64 = 50;

/// Returns a time in ticks, a small form for connections; it wraps around after six years.
pub fn tick(unix_ms: u64) -> u32 {
    (unix_ms / TICK_MS) as u32
}

/// Returns milliseconds since the connection was accepted.
pub(crate) fn open_ms(client: &Client) -> f64 {
    let ticks = tick(now().unix_ms()).wrapping_sub(client.opened);
    // A clock that was set back can be before the start.
    (u64::from(ticks.cast_signed().max(0).cast_unsigned()) * TICK_MS) as f64
}

/// Returns `$proxy_protocol_…`: values from the PROXY header of the connection.
pub fn proxied<'a>(client: &Client, name: &str) -> Option<VarValue<'a>> {
    if !client.is_proxied {
        return None;
    }
    match name {
        "proxy_protocol_addr" => owned(IpText::of(client.peer?).as_bytes()),
        "proxy_protocol_port" => number(client.peer_port),
        "proxy_protocol_server_addr" => owned(IpText::of(client.local?.ip()).as_bytes()),
        "proxy_protocol_server_port" => number(client.local?.port()),
        _ => None,
    }
}

/// Returns the value of a cookie that a response sets.
fn set_cookie<'h>(headers: &'h Headers, name: &str) -> Option<&'h [u8]> {
    let fields = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"set-cookie"));
    let mut set = fields.filter_map(|(_, field)| {
        let pair = field.split(|b| *b == b';').next()?;
        let at = pair.iter().position(|b| *b == b'=')?;
        Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
    });
    set.find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value)
}

/// The name of this machine, constant for the life of the process.
static HOSTNAME: OnceLock<String> = OnceLock::new();

/// Sets the name of this machine. Only the first call counts.
pub(crate) fn set_hostname(name: &str) {
    let _ = HOSTNAME.set(name.to_owned());
}

/// Returns variables that do not depend on the exchange, except the time.
pub fn of_process(name: &str) -> Option<VarValue<'static>> {
    match name {
        "hostname" => HOSTNAME.get().and_then(|name| text(name.as_bytes())),
        "pid" => number(std::process::id()),
        "nginx_version" => text(env!("CARGO_PKG_VERSION").as_bytes()),
        "msec" => owned(seconds(now().unix_ms() as f64)),
        "time_iso8601" => owned(*now().time_iso8601()),
        "time_local" => owned(*now().time_local()),
        _ => None,
    }
}

fn now() -> Clock {
    let mut clock = Clock::new(0);
    clock.set_system(SystemTime::now());
    clock
}

/// Formats seconds with milliseconds, as nginx prints times.
pub(crate) fn seconds(ms: f64) -> String {
    let mut text = Vec::new();
    put_seconds(ms, &mut text);
    // The text has digits and a dot.
    String::from_utf8(text).unwrap_or_default()
}

fn request_line(head: &RequestHead) -> Vec<u8> {
    [head.method_token(), head.path_and_query(), head.version.as_str().as_bytes()].join(&b' ')
}

/// Returns nginx's `$host`: lower case, without port and trailing dot; empty without one.
pub fn host_name(authority: &[u8]) -> Cow<'_, [u8]> {
    let end = match authority.first() {
        Some(b'[') => authority.iter().position(|b| *b == b']').map_or(authority.len(), |at| at + 1),
        _ => authority.iter().position(|b| *b == b':').unwrap_or(authority.len()),
    };
    let host = match &authority[..end] {
        [host @ .., b'.'] => host,
        host => host,
    };
    // Without a branch for each byte.
    if host.iter().fold(false, |seen, b| seen | b.is_ascii_uppercase()) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

/// Returns the user of Basic credentials, verified or not.
pub fn basic_user(authorization: &[u8]) -> Option<Vec<u8>> {
    use base64::Engine;
    let encoded = authorization.get(..6).filter(|s| s.eq_ignore_ascii_case(b"basic "))?;
    let encoded = &authorization[encoded.len()..];
    let mut decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim_ascii()).ok()?;
    let at = decoded.iter().position(|b| *b == b':').filter(|at| *at > 0)?;
    decoded.truncate(at);
    Some(decoded)
}

/// Returns the cookie with this name, case-sensitive.
pub fn cookie<'h>(headers: &'h Headers, name: &str) -> Option<&'h [u8]> {
    cookies(headers).find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value)
}

/// Returns all cookies with their names, as they came.
pub fn cookies(headers: &Headers) -> impl Iterator<Item = (&[u8], &[u8])> {
    let cookies = headers.get_all(HeaderId::Cookie).flat_map(|line| line.split(|b| *b == b';'));
    cookies.map(<[u8]>::trim_ascii).filter_map(|pair| {
        let at = pair.iter().position(|b| *b == b'=')?;
        Some((&pair[..at], &pair[at + 1..]))
    })
}

/// Visits each value of a variable that can have several values in a request head; returns false for other variables.
pub fn each_repeated(head: &RequestHead, name: &VarName, visit: &mut dyn FnMut(&VarValue<'_>)) -> bool {
    match name {
        VarName::Http(name) => {
            let values = head.headers.find_variable(name.as_bytes());
            values.for_each(|value| visit(&VarValue::Text(Cow::Borrowed(value))));
        }
        VarName::Cookie(name) => {
            let named = cookies(&head.headers).filter(|(key, _)| *key == name.as_bytes());
            named.for_each(|(_, value)| visit(&VarValue::Text(Cow::Borrowed(value))));
        }
        VarName::Arg(name) => each_argument(head.query().unwrap_or_default(), name, visit),
        _ => return false,
    }
    true
}

/// Visits each value of an argument.
fn each_argument(query: &[u8], name: &str, visit: &mut dyn FnMut(&VarValue<'_>)) {
    for (_, value) in pairs(query).filter(|(key, _)| **key == *name.as_bytes()) {
        visit(&value.map_or(VarValue::Bool(true), VarValue::Text));
    }
}

/// Returns the first query argument of this name.
pub fn argument<'q>(query: &'q [u8], name: &str) -> Option<VarValue<'q>> {
    pairs(query).find(|(key, _)| **key == *name.as_bytes()).map(|(_, value)| match value {
        Some(value) => VarValue::Text(value),
        // `?a` without `=` is true.
        None => VarValue::Bool(true),
    })
}

/// Returns all values of a field, joined as a list (RFC 9110 §5.3).
pub fn joined<'h>(headers: &'h Headers, name: &str) -> Option<Cow<'h, [u8]>> {
    let mut values = headers.find_variable(name.as_bytes());
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(Cow::Borrowed(first)) };
    let mut joined = [first, b", ", second].concat();
    for value in values {
        joined.extend_from_slice(b", ");
        joined.extend_from_slice(value);
    }
    Some(Cow::Owned(joined))
}

/// Appends a path, with all characters escaped that a path must not contain (RFC 3986 §3.3).
pub fn percent_encode_path(path: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Instant;

    use sigma_schema::expr::known::{NAMES, PREFIXES};

    use super::*;
    use crate::client_chain::ClientChain;
    use crate::context::{RouteFacts, Tls};
    use crate::{Consumer, Identity};

    /// Returns an exchange with every value set.
    fn exchange() -> Context {
        set_hostname("node1");
        let mut ctx = Context::default();
        ctx.begin();
        let head = "GET /p?x=1&query={a} HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n\
            Content-Length: 3\r\nCookie: x=1\r\nAuthorization: Basic amFjazpw\r\nX: 1\r\n\r\n";
        let limits = sigma_http::h1::HeadLimits {
            line_bytes: 1024,
            head_bytes: 4096,
            fields: 32,
            tolerance: sigma_http::h1::Tolerance::NONE,
        };
        sigma_http::h1::parse_request(head.as_bytes(), &limits, &mut ctx.request).unwrap().unwrap();
        ctx.uri = b"/p".to_vec();
        ctx.body = Some(b"x=1".to_vec());
        ctx.params.push("x", b"1");
        let some = || Some("x".to_owned());
        ctx.client = crate::context::Client {
            addr: Some([127, 0, 0, 1].into()),
            port: 1,
            peer: Some([127, 0, 0, 1].into()),
            peer_port: 1,
            is_proxied: true,
            opened: tick(now().unix_ms()),
            local: Some(SocketAddr::from(([127, 0, 0, 1], 80))),
            connection: 1,
            tls: Some(Rc::new(Tls {
                server_name: some(),
                protocol: "TLSv1.3",
                key_exchange: "X25519",
                alpn: some(),
                ja4: some(),
                client_subject: some(),
                client_issuer: some(),
                client_serial: some(),
                client_fingerprint: some(),
                client_cert: some(),
                client_escaped_cert: some(),
                client_verify: "SUCCESS".to_owned(),
                client_chain: Some(Box::new(ClientChain {
                    uris: vec!["spiffe://example.org/x".to_owned()],
                    ..ClientChain::default()
                })),
                ..Tls::default()
            })),
            geography: Some(Rc::new(crate::geography::tests::geography())),
        };
        ctx.route = Some(Arc::new(RouteFacts {
            id: "1".into(),
            name: Some("r".into()),
            service_id: Some("1".into()),
            service_name: Some("s".into()),
            ..RouteFacts::default()
        }));
        let consumer = Consumer { group_id: Some("g".into()), ..Consumer::default() };
        ctx.attach(&Arc::new(Identity {
            consumer: Arc::new(consumer),
            credential: None,
            data: Arc::new(()),
        }));
        ctx.response.status = 200;
        ctx.response.headers.append("X", b"1");
        ctx.response.headers.append("Set-Cookie", b"y=2; x=3");
        ctx.response.headers.append("Set-Cookie", b" x = 1 ; Path=/");
        ctx.record.started = Some(Instant::now());
        ctx.record.status = 200;
        ctx.record.upstream_scheme = Some("https");
        ctx.record.attempts.push(Attempt {
            addr: NodeAddr::Tcp("[::1]:443".parse().unwrap()),
            host: "node.test".into(),
            began: None,
            reused: false,
            version: None,
            linked_ms: None,
            status: 200,
            sent_ms: None,
            connect_ms: Some(1.0),
            carried: Some(CarriedBytes { sent: 70, received: 700 }),
            header_ms: Some(1.0),
            response_ms: Some(1.0),
        });
        ctx
    }

    /// Variables that plugins set, or that only their own entries have.
    const OF_PLUGINS: [&str; 12] = [
        "ext_authz_x",
        "jwt_auth_payload",
        "opentelemetry_context_traceparent",
        "opentelemetry_span_id",
        "opentelemetry_trace_id",
        "rate_limiting_info",
        "upstream_cache_status",
        "resp_body",
        "var_x",
        "zipkin_context_traceparent",
        "zipkin_span_id",
        "zipkin_trace_id",
    ];

    /// Variables of requests over HTTP/2, and of calls to internal routes, alone.
    const OF_SOME_REQUESTS: [&str; 3] = ["http2", "internal_name", "other_route"];

    #[test]
    fn every_known_variable_exists() {
        let (ctx, mut without_body) = (exchange(), exchange());
        without_body.body = None;
        for name in ["Content-Length", "Content-Type"] {
            without_body.request.headers.remove_name(name.as_bytes());
        }
        let prefixed = PREFIXES.iter().map(|prefix| format!("{prefix}x"));
        for name in NAMES.iter().map(|name| (*name).to_owned()).chain(prefixed) {
            // A GET with a body has no GraphQL message that all servers read alike.
            let ctx = if name.starts_with("graphql_") { &without_body } else { &ctx };
            if !OF_PLUGINS.contains(&&*name) && !OF_SOME_REQUESTS.contains(&&*name) {
                assert!(ctx.get(&VarName::parse(&name)).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn values_of_some_variables() {
        let ctx = exchange();
        let check = |name: &str, expected: &str| {
            let value = ctx.get(&VarName::parse(name)).unwrap();
            assert_eq!(value, VarValue::text(expected), "{name}");
        };
        check("hostname", "node1");
        check("geoip_country_code", "DE");
        check("geoip_asn", "64500");
        check("balancer_ip", "::1");
        check("balancer_port", "443");
        check("upstream_unresolved_host", "node.test");
        check("upstream_scheme", "https");
        check("request_completion", "OK");
        check("upstream_cookie_x", "1");
        check("proxy_protocol_addr", "127.0.0.1");
        check("proxy_protocol_server_port", "80");
        check("realip_remote_port", "1");
        check("ssl_session_reused", ".");
        check("ssl_curve", "X25519");
        check("request_body", "x=1");
        check("post_arg_x", "1");
        check("post_arg.x", "1");
        check("upstream_bytes_sent", "70");
        check("upstream_bytes_received", "700");
        check(
            "upstream_attempts",
            r#"[{"node":"[::1]:443","status":200,"connect_time":0.001,"header_time":0.001,"response_time":0.001}]"#,
        );
        check("pid", &std::process::id().to_string());
        check("proxy_add_x_forwarded_for", "127.0.0.1");
        check("binary_remote_addr", "\x7f\0\0\x01");
        check("remote_network", "127.0.0.1");
    }
}
