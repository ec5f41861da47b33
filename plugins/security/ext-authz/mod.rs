//! `ext-authz`: authorization by a service with Envoy's protocol.

mod messages;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::owned::texts;
use sigma_plugin::step::{BodyRead, BodyStart};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, ResponseStep,
    Slot, Step,
};
use sigma_schema::described::schema_of;
use sigma_schema::template::Template;

use crate::shared::inquiry::{self, Cache, Inquiry, Memory};
use crate::shared::user_digest::UserDigest;
use messages::{
    Address, Attributes, CHECK, CheckRequest, HttpRequest, Peer, Request, SocketAddress, Timestamp,
    TlsSession,
};
use sigma_plugin_kit::decision_service::DecisionService;
use sigma_plugin_kit::decisions::{Bound, KeyOf};
use sigma_plugin_kit::envoy::{HeaderMap, HeaderValue};
use sigma_plugin_kit::field_names::Names;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::warnings;
use verdict::{Field, Verdict, framed};

/// The plugin.
pub(crate) static EXT_AUTHZ: Descriptor = Descriptor {
    name: "ext-authz",
    priority: 2003,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    guards: true,
    warnings: Some(|_, conf| warnings(conf, &["uri"], "the authoriser")),
    variables: &[
        VariableField::guard("context_extensions.*", VariableForm::Template),
        VariableField::guard("cache.key.*", VariableForm::Template),
    ],
    upstreams: Some(|conf| upstream(conf).into_iter().collect()),
    attributes: Some(schema_of::<Bound>),
    identifies: true,
    owned_fields: Some(|conf| {
        [ALLOWED].into_iter().chain(texts(conf, "upstream_headers")).map(OwnedField::sole).collect()
    }),
    build: |build| Ok(Arc::new(ExtAuthz::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The name of the service among the plugin's upstreams.
const SERVICE: &str = "service";

/// Tells a node that a request passed without a decision; nothing that a client may say.
const ALLOWED: &str = "x-envoy-auth-failure-mode-allowed";

/// Tells the authoriser whether it sees the beginning of the body alone; nothing that a client may say.
const PARTIAL: &str = "x-envoy-auth-partial-body";

/// Most bytes of the authoriser's response: a page for a person, or a list of fields.
const ANSWER_BYTES: usize = 1 << 20;

/// Authorizes requests by an external service, with Envoy's gRPC protocol
/// (`envoy.service.auth.v3.Authorization/Check`).
///
/// With status 0 in the response the request is permitted, and `ok_response` changes the request and later its
/// response. Otherwise the client gets `denied_response`, or 403 without one. Metadata become variables:
/// `ext_authz_user` for the member `user`. The path for the authoriser is the target as the client sent it, or its
/// canonical form with `router.forward_path: canonical`; repeated fields are joined with commas. The authoriser is an
/// upstream of the plugin: its name is resolved in advance, and connections are kept alive. A response of more than 1
/// MiB, without a decision, or with a forbidden field counts as no response.
///
/// With `cache` each worker stores decisions with their changes of a request: at most 8192, or
/// `plugin_attr.ext-authz.worker_decisions`. Equal requests at the same time cause one call. Without a `key` a
/// decision applies to requests with the same input for the authoriser, apart from times and ids. The input includes
/// the client's port, and so its connection. Not stored are decisions of more than 8 KiB, decisions that set a
/// cookie, refusals with a status other than 401, 403, 404 and 429, and failures.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The authoriser: `http://host:port` for gRPC in plain text, `https://…` over TLS.
    uri: Service,
    /// Timeout of the call in milliseconds.
    #[schemars(range(min = 1, max = 60000), extend("default" = 200))]
    timeout: u64,
    /// Whether the authoriser's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Whether requests are allowed if the authoriser returns no decision.
    #[schemars(extend("default" = false))]
    failure_mode_allow: bool,
    /// Whether the node gets `x-envoy-auth-failure-mode-allowed: true` with such a request.
    #[schemars(extend("default" = false))]
    failure_mode_allow_header_add: bool,
    /// Status without a decision of the authoriser.
    #[schemars(range(min = 200, max = 599), extend("default" = 403))]
    status_on_error: u16,
    /// Sends the request's body to the authoriser; it is read first.
    with_request_body: Option<BodyRules>,
    /// Additional values for the authoriser, with variables.
    context_extensions: Option<BTreeMap<String, Template>>,
    /// Fields that only the authoriser sets. Neither the node nor the authoriser ever gets these fields from the
    /// client.
    #[schemars(extend("default" = []))]
    upstream_headers: Vec<String>,
    /// Whether the authoriser gets the client's certificate.
    #[schemars(extend("default" = false))]
    include_peer_certificate: bool,
    /// The fields that the authoriser gets, including `:path` and similar ones. Default: all.
    allowed_headers: Option<Names>,
    /// Fields that the authoriser does not get, even if they are in `allowed_headers`.
    disallowed_headers: Option<Names>,
    /// Whether the authoriser gets the fields one by one and as bytes, in `header_map`, instead of texts in `headers`.
    #[schemars(extend("default" = false))]
    encode_raw_headers: bool,
    /// Cache of decisions. Unset: the authoriser is called for each request.
    cache: Option<Cache>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
struct BodyRules {
    /// Maximum bytes of a body for the authoriser; a larger one gets 413.
    #[schemars(range(min = 1, max = 67_108_864))]
    max_request_bytes: usize,
    /// Whether the authoriser gets the beginning of a larger body instead. `x-envoy-auth-partial-body` says whether the
    /// body is complete.
    #[schemars(extend("default" = false))]
    #[serde(default)]
    allow_partial_message: bool,
    /// Whether the body is sent as bytes instead of text. In text, bytes that are not UTF-8 are replaced.
    #[schemars(extend("default" = false))]
    #[serde(default)]
    pack_as_bytes: bool,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if &*self.uri.target != "/" {
            return Err(format!("uri: the gRPC method sets the path: remove `{}`", self.uri.target));
        }
        if self.cache.is_some() && self.with_request_body.is_some() {
            let hint = "remove with_request_body or cache";
            return Err(format!(
                "cache: with the body, the authorizer must decide about each request; {hint}"
            ));
        }
        let mut names = self.upstream_headers.iter();
        match names.find(|name| !sigma_plugin_kit::fields::is_name(name) || verdict::is_reserved(name)) {
            Some(name) => Err(format!("upstream_headers: an authorizer may not set `{name}`")),
            None => Ok(()),
        }
    }
}

/// The authoriser as an upstream.
fn upstream(conf: &Value) -> Option<InlineUpstream> {
    let config = Config::deserialize(conf).ok()?;
    let mut upstream = config.uri.upstream(config.ssl_verify, config.timeout);
    upstream["scheme"] = json!(if &*config.uri.scheme == "https" { "grpcs" } else { "grpc" });
    Some(InlineUpstream { name: SERVICE.to_owned(), upstream })
}

struct ExtAuthz(Arc<Authoriser>);

/// The queries to the authoriser, and the handling of its responses.
struct Authoriser {
    /// The key of the authoriser's upstream.
    upstream: Box<str>,
    config: Config,
    memory: Option<Memory>,
}

/// Fields for the client's response, kept until it comes.
struct ForClient(Vec<Field>);

impl ExtAuthz {
    fn new(build: &Build<'_>) -> Result<ExtAuthz, String> {
        let upstream = build.upstream_key(SERVICE).into();
        let mut config: Config = build.config()?;
        let memory = config.cache.take().map(|cache| Memory::new(build, cache)).transpose()?;
        Ok(ExtAuthz(Arc::new(Authoriser { upstream, config, memory })))
    }
}

/// Text of the protocol, which is UTF-8.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Authoriser {
    fn ask(
        self: &Arc<Authoriser>,
        slot: Slot,
        ctx: &mut Context,
        env: &Env<'_>,
        body: Option<BodyStart>,
    ) -> Step {
        inquiry::ask(self, slot, ctx, env, body)
    }

    /// Returns the data for the authoriser, without the time and the request's id.
    fn attributes(&self, ctx: &Context, body: Option<BodyStart>) -> Attributes {
        let client = &ctx.client;
        let address = |address: String, port: u16| {
            let port_value = Some(port.into());
            Some(Address { socket_address: Some(SocketAddress { address, port_value }) })
        };
        let tls = client.tls.as_deref();
        let verified = tls.filter(|tls| tls.client_verify == "SUCCESS");
        let certificate = verified.filter(|_| self.config.include_peer_certificate);
        let certificate = certificate.and_then(|tls| tls.client_cert.as_deref()).map(|pem| {
            let mut encoded = Vec::new();
            verdict::encode(pem, &mut encoded);
            text(&encoded)
        });
        let extensions = self.config.context_extensions.iter().flatten();
        Attributes {
            source: Some(Peer {
                address: address(ctx.remote_addr(), client.port),
                principal: verified.and_then(|tls| tls.client_subject.clone()).unwrap_or_default(),
                certificate: certificate.unwrap_or_default(),
            }),
            destination: client.local.map(|local| Peer {
                address: address(local.ip().to_canonical().to_string(), local.port()),
                ..Peer::default()
            }),
            request: Some(Request { time: None, http: Some(self.http(ctx, body)) }),
            context_extensions: extensions
                .map(|(name, value)| (name.clone(), text(&value.rendered(ctx))))
                .collect(),
            tls_session: tls.and_then(|tls| Some(TlsSession { sni: tls.server_name.clone()? })),
        }
    }

    fn http(&self, ctx: &Context, body: Option<BodyStart>) -> HttpRequest {
        let request = &ctx.request;
        let path = text(request.path_and_query());
        let (method, host) = (text(request.method_token()), text(request.authority()));
        let pseudo =
            [(":method", &*method), (":authority", &host), (":path", &path), (":scheme", ctx.scheme())];
        let mut shown = self.shown(pseudo, ctx);
        if let Some(body) = &body {
            let is_partial = if body.is_whole { "false" } else { "true" };
            shown.retain(|(name, _)| name != PARTIAL);
            shown.push((PARTIAL.to_owned(), is_partial.into()));
        }
        let (headers, header_map) = if self.config.encode_raw_headers {
            let raw = |(key, raw_value)| HeaderValue { key, raw_value, ..HeaderValue::default() };
            (BTreeMap::new(), Some(HeaderMap { headers: shown.into_iter().map(raw).collect() }))
        } else {
            (joined(shown), None)
        };
        let length =
            request.headers.get(HeaderId::ContentLength).map(text).and_then(|length| length.parse().ok());
        let whole = body.as_ref().filter(|body| body.is_whole).map(|body| body.bytes.len() as i64);
        let as_bytes = self.config.with_request_body.is_some_and(|rules| rules.pack_as_bytes);
        let (body, raw_body) = match body {
            Some(BodyStart { bytes, .. }) if as_bytes => (String::new(), bytes),
            Some(BodyStart { bytes, .. }) => (text(&bytes), Vec::new()),
            None => Default::default(),
        };
        HttpRequest {
            id: String::new(),
            method,
            headers,
            path,
            host,
            scheme: ctx.scheme().to_owned(),
            size: whole.or(length).unwrap_or(-1),
            protocol: request.version.as_str().to_owned(),
            body,
            raw_body,
            header_map,
        }
    }

    /// The fields that the authoriser may see, their names in lower case.
    fn shown(&self, pseudo: [(&str, &str); 4], ctx: &Context) -> Vec<(String, Vec<u8>)> {
        let pseudo = pseudo.into_iter().map(|(name, value)| (name.to_owned(), value.as_bytes()));
        let fields =
            ctx.request.headers.iter().map(|(name, value)| (text(&name.to_ascii_lowercase()), value));
        let Config { allowed_headers: allowed, disallowed_headers: disallowed, .. } = &self.config;
        let may_see = |name: &str| {
            allowed.as_ref().is_none_or(|names| names.contain(name))
                && !disallowed.as_ref().is_some_and(|names| names.contain(name))
        };
        pseudo
            .chain(fields)
            .filter(|(name, _)| may_see(name))
            .map(|(name, value)| (name, value.to_vec()))
            .collect()
    }
}

/// Returns fields as texts; values of one name are joined by commas.
fn joined(fields: Vec<(String, Vec<u8>)>) -> BTreeMap<String, String> {
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in fields {
        let value = text(&value);
        joined.entry(name).and_modify(|all| *all = format!("{all},{value}")).or_insert(value);
    }
    joined
}

impl Inquiry for Authoriser {
    type Body = BodyStart;
    type Verdict = Verdict;

    fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    fn key_parts(&self, ctx: &Context, _: &Env<'_>, told: &mut KeyOf) {
        told.part(&self.attributes(ctx, None).encode_to_vec());
    }

    fn call(&self, ctx: &Context, env: &Env<'_>, body: Option<BodyStart>) -> Call {
        let (mut attributes, now) = (self.attributes(ctx, body), env.unix_time());
        if let Some(request) = &mut attributes.request {
            let (seconds, nanos) = (now.as_secs().cast_signed(), now.subsec_nanos().cast_signed());
            request.time = Some(Timestamp { seconds, nanos });
            if let Some(http) = &mut request.http {
                ctx.request_id().clone_into(&mut http.id);
            }
        }
        let mut headers = Headers::default();
        headers.append("Content-Type", b"application/grpc");
        headers.append("TE", b"trailers");
        headers.append("grpc-timeout", format!("{}m", self.config.timeout).as_bytes());
        Call {
            upstream: self.upstream.clone(),
            method: Method::Post,
            target: CHECK.as_bytes().to_vec(),
            host: self.config.uri.host.clone(),
            headers,
            passes: ctx.passes(),
            body: Some(framed(&CheckRequest { attributes: Some(attributes) })),
            timeout_ms: self.config.timeout,
            limit: ANSWER_BYTES,
        }
    }

    fn verdict(&self, answer: Result<ServiceResponse, CallError>) -> Verdict {
        let read = answer.map_err(|error| error.to_string()).and_then(|answer| verdict::of(&answer));
        read.unwrap_or_else(Verdict::None)
    }

    fn service(&self) -> DecisionService {
        DecisionService { plugin: "ext-authz", url: self.config.uri.url_of(CHECK) }
    }

    fn throttle() -> &'static LogThrottle {
        static UNDECIDED: LogThrottle = LogThrottle::new();
        &UNDECIDED
    }

    fn follow(&self, verdict: &Verdict, slot: Slot, ctx: &mut Context) -> Step {
        match verdict {
            Verdict::Refuse(reply) => Step::Reply(reply.clone()),
            Verdict::Pass(changes) => {
                let mut user_digest = UserDigest::of(ctx);
                user_digest.add_request(ctx);
                changes.granted().for_each(|part| user_digest.add(part));
                user_digest.mark("ext-authz", ctx);
                changes.apply(ctx);
                if !changes.response.is_empty() {
                    ctx.keep(slot, ForClient(changes.response.clone()));
                }
                Step::Next
            }
            Verdict::None(_) if !self.config.failure_mode_allow => {
                Reply::new(self.config.status_on_error).text(Vec::new()).into()
            }
            Verdict::None(_) => {
                // The node may know the person by a cookie.
                ctx.mark_personal("ext-authz", None);
                if self.config.failure_mode_allow_header_add {
                    ctx.request.headers.append(ALLOWED, b"true");
                }
                Step::Next
            }
        }
    }
}

impl Plugin for ExtAuthz {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (authoriser, slot) = (Arc::clone(&self.0), Slot::from(self));
        let Some(rules) = authoriser.config.with_request_body else {
            return authoriser.ask(slot, ctx, env, None);
        };
        let limit = rules.max_request_bytes;
        if rules.allow_partial_message {
            let then = move |ctx: &mut Context, env: &Env<'_>, start: BodyStart| {
                authoriser.ask(slot, ctx, env, Some(start))
            };
            return Step::ReadStart { limit, then: Box::new(then) };
        }
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| match read {
            BodyRead::TooLarge => Reply::new(413).text(Vec::new()).into(),
            BodyRead::Whole => {
                let bytes = ctx.body.clone().unwrap_or_default();
                authoriser.ask(slot, ctx, env, Some(BodyStart { bytes, is_whole: true }))
            }
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        if let Some(ForClient(fields)) = ctx.take_kept(self) {
            verdict::apply(&fields, &mut ctx.response.headers);
        }
        ResponseStep::Next
    }
}
