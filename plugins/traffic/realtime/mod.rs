//! `realtime` and `realtime-publish`: WebSockets and streams of events that end at the gateway, for a service that speaks
//! HTTP alone.

mod conversation;
mod events;
mod service;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::{BodyLength, HeaderId, Headers, Method};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{CallError, Service, ServiceResponse};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, Step,
    StreamBody,
};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::plugins::PluginScope;

use crate::shared::hub::Hub;
use crate::shared::room::{Bounds, Medium, Seat, Share};
use conversation::{Conversation, Endings};
use events::Events;
use service::{Caller, is_for_gateway, is_held};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::{self as services, Keepalive};
use sigma_plugin_kit::websocket::handshake;

/// The plugin on the side of clients.
pub(crate) static REALTIME: Descriptor = Descriptor {
    name: "realtime",
    priority: 507,
    doc: include_str!("doc.md"),
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    attributes: Some(schema_of::<Attributes>),
    owned_fields: Some(|_| vec![OwnedField::shared("Connection-Id")]),
    warnings: Some(warnings),
    upstreams: Some(|conf| upstream(conf).into_iter().collect()),
    build: |build| Ok(Arc::new(Realtime::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The name of the service among the plugin's upstreams.
const SERVICE: &str = "service";

/// The configuration.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// The service's URL, with `http` or `https`.
    uri: Service,
    /// Timeout of a call in milliseconds.
    #[schemars(range(min = 1, max = 60000), extend("default" = 3000))]
    timeout: u64,
    #[serde(flatten)]
    keepalive: Keepalive,
    /// Whether the service's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Origins that may open WebSockets, such as `https://shop.example`; `*` for all. Default: the origin of the
    /// requested host.
    allowed_origins: Option<Vec<Origin>>,
    /// Maximum bytes of a message of a client, and of a response of the service.
    #[schemars(range(min = 1, max = 16_777_216), extend("default" = 65536))]
    max_message_bytes: usize,
    /// Maximum bytes of the pushes that wait for a client. Each push counts 100 additional bytes.
    #[schemars(range(min = 1000, max = 16_777_216), extend("default" = 262_144))]
    max_queue_bytes: usize,
    /// Maximum channels of a connection.
    #[schemars(range(min = 0, max = 1000), extend("default" = 32))]
    max_channels: usize,
    /// Keep-alive interval in seconds: a ping, to which the client must respond within the same time, or a comment in an
    /// event stream.
    #[schemars(range(min = 1, max = 3600), extend("default" = 30))]
    ping_interval: u64,
}

/// An origin (RFC 6454), or `*`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct Origin(#[schemars(with = "String")] Box<str>);

impl TryFrom<String> for Origin {
    type Error = String;

    fn try_from(text: String) -> Result<Origin, String> {
        let host = text.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
        let is_whole = host.is_some_and(|(_, host)| !host.is_empty() && !host.contains(['/', '?', '#', '@']));
        if text != "*" && !is_whole {
            return Err(format!(
                "allowed_origins: `{text}` is not an origin such as https://shop.example, or `*`"
            ));
        }
        Ok(Origin(text.into()))
    }
}

impl Configuration for Config {}

impl Config {
    fn ping_ms(&self) -> u64 {
        self.ping_interval * 1000
    }

    fn share(&self) -> Share {
        Share { channels: self.max_channels, queue_bytes: self.max_queue_bytes }
    }
}

/// The limits of connections for each worker, over all configurations.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Attributes {
    /// Maximum concurrent connections.
    #[schemars(range(min = 1))]
    worker_connections: usize,
    /// Maximum bytes of pushes that wait for clients.
    #[schemars(range(min = 1))]
    worker_bytes: usize,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { worker_connections: 10_000, worker_bytes: 64 << 20 }
    }
}

fn upstream(conf: &Value) -> Option<InlineUpstream> {
    let config = Config::deserialize(conf).ok()?;
    let upstream = config.keepalive.upstream(&config.uri, config.ssl_verify, config.timeout);
    Some(InlineUpstream { name: SERVICE.to_owned(), upstream })
}

fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    let mut found = services::warnings(conf, &["uri"], "the service");
    let origins = conf.get("allowed_origins").and_then(Value::as_array);
    if origins.is_some_and(|origins| origins.iter().any(|origin| origin == "*")) {
        let message = "any page may open WebSockets in the name of its visitors";
        found.push(
            Problem::new("allowed_origins", "any_origin", message).hint("list the origins of your pages"),
        );
    }
    found
}

/// An instance.
struct Realtime {
    config: Arc<Config>,
    /// The key of the service's upstream.
    upstream: Arc<str>,
    hub: Arc<Hub>,
    bounds: Bounds,
}

impl Realtime {
    fn new(build: &Build<'_>) -> Result<Realtime, String> {
        let told = Option::<Attributes>::deserialize(build.node.attribute(build.plugin));
        let told = told.map_err(|error| format!("plugin_attr.{}: {error}", build.plugin))?;
        let Attributes { worker_connections, worker_bytes } = told.unwrap_or_default();
        Ok(Realtime {
            config: Arc::new(build.config()?),
            upstream: build.upstream_key(SERVICE).into(),
            hub: build.node.part(Hub::default),
            bounds: Bounds { connections: worker_connections, bytes: worker_bytes },
        })
    }

    /// A place for a connection, and how the service is queried about it.
    fn seat(&self, medium: Medium, ctx: &Context, env: &Env<'_>) -> Result<(Seat, Caller), Step> {
        let mut bytes = [0; 16];
        if env.machine.fill_random(&mut bytes).is_err() {
            return Err(Step::status(500));
        }
        let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self.hub.room(env, self.bounds).enter(&id, medium, self.config.share()) {
            Some(seat) => Ok((seat, Caller::new(&self.config, &self.upstream, &id, ctx, env))),
            None => {
                let full = json!({ "message": "too many connections" });
                Err(Reply::new(503).json(&full).because("too many connections").into())
            }
        }
    }

    fn open(&self, ctx: &Context, env: &Env<'_>) -> Step {
        let reply = match handshake(&ctx.request) {
            Ok(reply) => reply,
            Err(refusal) => return refusal.into(),
        };
        if !is_allowed(self.config.allowed_origins.as_deref(), &ctx.request.headers, ctx.request.authority())
        {
            let told = json!({ "message": "this origin may not open WebSockets here" });
            return Reply::new(403).json(&told).because("the origin is not allowed").into();
        }
        let (seat, mut caller) = match self.seat(Medium::WebSocket, ctx, env) {
            Ok(taken) => taken,
            Err(step) => return step,
        };
        Step::wait(caller.connect(ctx), move |answer, ctx, env| match answer {
            Ok(answer) if (200..300).contains(&answer.status) => {
                let Some(reply) = agreed(reply, &answer.headers, &ctx.request.headers) else {
                    return unanswered("the service chose a subprotocol that the client does not offer");
                };
                caller.learn(&answer, &seat);
                let endings = env.local.part(Endings::default);
                let mut conversation = Conversation::new(seat, caller, endings);
                conversation.begin_with(&answer);
                Step::Takeover(Box::new(reply), Box::new(conversation))
            }
            answer => passed_on(answer),
        })
    }

    fn hold(&self, ctx: &Context, env: &Env<'_>) -> Step {
        let (seat, mut caller) = match self.seat(Medium::Events, ctx, env) {
            Ok(taken) => taken,
            Err(step) => return step,
        };
        Step::wait(caller.get(ctx), move |answer, _, _| match answer {
            Ok(answer) if answer.status == 200 && is_held(&answer.headers) => {
                caller.learn(&answer, &seat);
                let mut reply = with_fields(Reply::new(200), &answer.headers);
                for (name, value) in [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache")] {
                    if answer.headers.find(name.to_ascii_lowercase().as_bytes()).is_none() {
                        reply = reply.header(name, value);
                    }
                }
                let source = Box::new(Events::new(seat, answer.body, caller.config.ping_ms()));
                Step::Stream(Box::new(reply), StreamBody { length: BodyLength::Streamed, source })
            }
            answer => passed_on(answer),
        })
    }
}

impl Plugin for Realtime {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if ctx.request.headers.has(HeaderId::Upgrade) {
            return self.open(ctx, env);
        }
        if ctx.request.method != Method::Get {
            return Step::Next;
        }
        self.hold(ctx, env)
    }
}

/// Returns the client's response for a response of the service that opens no connection.
fn passed_on(answer: Result<ServiceResponse, CallError>) -> Step {
    match answer {
        // A success that was not requested would be no response to an upgrade.
        Ok(answer) if answer.status >= 200 => {
            with_fields(Reply::new(answer.status), &answer.headers).text(answer.body).into()
        }
        Ok(_) => unanswered("the service sent an interim response"),
        Err(error) => unanswered(&error.0),
    }
}

fn unanswered(reason: &str) -> Step {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(left_out, "realtime: the service did not respond: {reason}");
    }
    Reply::new(502).because("the service did not respond").into()
}

/// A reply with the fields of a response that are for the client.
fn with_fields(reply: Reply, fields: &Headers) -> Reply {
    let framing = [HeaderId::ContentLength, HeaderId::TransferEncoding, HeaderId::Connection];
    fields.fields().fold(reply, |reply, (id, name, value)| {
        if framing.contains(&id) || is_for_gateway(name) {
            return reply;
        }
        reply.header(String::from_utf8_lossy(name).into_owned(), value)
    })
}

/// Returns the response that opens a WebSocket, with the fields of the service's response; None if it agrees to a
/// subprotocol that the client does not offer (RFC 6455 §4.1).
fn agreed(reply: Reply, answer: &Headers, request: &Headers) -> Option<Reply> {
    const PROTOCOL: &[u8] = b"sec-websocket-protocol";
    let mut reply = answer
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"set-cookie"))
        .fold(reply, |reply, (_, value)| reply.header("Set-Cookie", value));
    if let Some(chosen) = answer.find(PROTOCOL) {
        let offers = request.iter().filter(|(name, _)| name.eq_ignore_ascii_case(PROTOCOL));
        let mut offers = offers.flat_map(|(_, value)| value.split(|byte| *byte == b','));
        if !offers.any(|offer| offer.trim_ascii() == chosen) {
            return None;
        }
        reply = reply.header("Sec-WebSocket-Protocol", chosen);
    }
    Some(reply)
}

/// Whether a page may open a WebSocket. A client without an origin is not a page.
fn is_allowed(allowed: Option<&[Origin]>, fields: &Headers, authority: &[u8]) -> bool {
    let mut origins = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"origin"));
    let (Some((_, origin)), None) = (origins.next(), origins.next()) else {
        return fields.find(b"origin").is_none();
    };
    match allowed {
        Some(allowed) => allowed
            .iter()
            .any(|Origin(known)| &**known == "*" || known.as_bytes().eq_ignore_ascii_case(origin)),
        None => {
            let secure = origin.strip_prefix(b"https://");
            let host = secure.or_else(|| origin.strip_prefix(b"http://"));
            let port: &[u8] = if secure.is_some() { b":443" } else { b":80" };
            let bare = |host: &[u8]| host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase();
            host.is_some_and(|host| bare(host) == bare(authority))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_refusal;

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| assert_refusal("realtime", &conf, expected);
        check(json!({"uri": "http://a/b"}), "");
        check(json!({}), "property \"uri\" is required");
        for origin in ["shop.example", "https://", "https://a/b", "ftp://a", "https://u@a", ""] {
            let told =
                format!("allowed_origins: `{origin}` is not an origin such as https://shop.example, or `*`");
            check(json!({"uri": "http://a", "allowed_origins": [origin]}), &told);
        }
        check(json!({"uri": "http://a", "allowed_origins": ["https://a:1", "*"]}), "");
        check(
            json!({"uri": "http://a", "ping_interval": 0}),
            "property \"ping_interval\" validation failed: expected 0 to be at least 1",
        );
    }

    #[test]
    fn origins() {
        let check = |allowed: Option<&[&str]>, origins: &[&str], expected: bool| {
            let allowed: Option<Vec<Origin>> = allowed.map(|all| {
                all.iter().map(|origin| Origin::try_from((*origin).to_owned()).unwrap()).collect()
            });
            let mut fields = Headers::default();
            origins.iter().for_each(|origin| fields.append("Origin", origin.as_bytes()));
            let got = is_allowed(allowed.as_deref(), &fields, b"Shop.example:443");
            assert_eq!(got, expected, "{allowed:?} {origins:?}");
        };
        check(None, &[], true);
        check(None, &["https://shop.example"], true);
        check(None, &["https://SHOP.example:443"], true);
        check(None, &["http://shop.example:443"], true);
        check(None, &["http://shop.example"], false);
        check(None, &["https://shop.example.evil"], false);
        check(None, &["https://evil", "https://shop.example"], false);
        check(None, &["null"], false);
        let own = Some(&["https://a.example"][..]);
        check(own, &["https://A.example"], true);
        check(own, &["https://shop.example"], false);
        check(own, &["null"], false);
        check(own, &[], true);
        check(Some(&["*"]), &["null"], true);
        check(Some(&[]), &["https://shop.example"], false);
    }

    #[test]
    fn subprotocols_are_those_that_were_offered() {
        let head = |fields: &[(&str, &str)]| {
            let mut headers = Headers::default();
            fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
            headers
        };
        let offered = head(&[("Sec-WebSocket-Protocol", "chat, v2"), ("Sec-WebSocket-Protocol", "v3")]);
        let check = |chosen: &str, expected: Option<usize>| {
            let answer = head(&[("Sec-WebSocket-Protocol", chosen), ("Set-Cookie", "a=b"), ("X-Other", "c")]);
            let reply = agreed(Reply::new(101), &answer, &offered);
            assert_eq!(reply.map(|reply| reply.headers.len()), expected, "{chosen}");
        };
        check("v2", Some(2));
        check("v3", Some(2));
        check("v4", None);
        check("chat, v2", None);
        assert_eq!(agreed(Reply::new(101), &head(&[]), &offered).unwrap().headers.len(), 0);
    }
}
