//! `ext-authz`: a service that speaks Envoy's protocol of authorisation says who may pass.

mod messages;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::template::Template;
use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Answer, Call, CallError, Service};
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::step::BodyRead;
use sigma_plugin::variables::percent_encode_path;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Slot, Step,
};

use crate::log_throttle::LogThrottle;
use crate::service::warnings;
use messages::{
    Address, Attributes, CHECK, CheckRequest, HttpRequest, Peer, Request, SocketAddress, Timestamp,
    TlsSession,
};
use verdict::{Field, Verdict, framed};

/// The plugin.
pub(crate) static EXT_AUTHZ: Descriptor = Descriptor {
    name: "ext-authz",
    priority: 2003,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    warnings: Some(|_, conf| warnings(conf, &["uri"], "the authoriser")),
    variables: &[VariablePlace::guard("context_extensions.*", VariableForm::Template)],
    upstreams: Some(|conf| upstream(conf).into_iter().collect()),
    build: |build| Ok(Arc::new(ExtAuthz::new(build)?)),
    ..Descriptor::of::<Config>()
};

const EXAMPLE: &str = r#"Authorisers that were written for Envoy work as they are. Here none is there, and nobody passes; on
`/open` the operator has decided otherwise.

```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      ext-authz: { uri: http://127.0.0.1:9999, context_extensions: { route: $route_id }, status_on_error: 503 }
    upstream: http://127.0.0.1:9000
  - uri: /open/*
    plugins:
      ext-authz: { uri: http://127.0.0.1:9999, failure_mode_allow: true, upstream_headers: [X-User] }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 503 Service Unavailable
…
$ curl -s -H 'X-User: root' http://127.0.0.1:9080/open/orders | grep -c x-user
0
```
"#;

/// The name of the service among the plugin's upstreams.
const SERVICE: &str = "service";

/// Tells a node that a request passed without a decision; nothing that a client may say.
const ALLOWED: &str = "x-envoy-auth-failure-mode-allowed";

/// Most bytes of the authoriser's answer: a page for a person, or a list of fields.
const ANSWER_BYTES: usize = 1 << 20;

/// Asks an authoriser by Envoy's gRPC protocol (`envoy.service.auth.v3.Authorization/Check`) whether a
/// request may pass.
///
/// It passes where the status of the answer is 0, and what `ok_response` says is done to the request and
/// later to its answer; else `denied_response` is the answer, 403 if there is none. Metadata become
/// variables: `ext_authz_user` for the member `user`. The path that the authoriser is told is the one that
/// the route was found by, percent-encoded; fields of several values are joined by commas. It is an upstream of the
/// plugin's own: its name is resolved beforehand, and its connections are kept. An answer of more than 1 MiB, one
/// without a decision, and one that sets a field that cannot be set count as none.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The authoriser: `http://host:port` for gRPC in plain text, `https://…` over TLS.
    uri: Service,
    /// Milliseconds for the call.
    #[schemars(range(min = 1, max = 60000), extend("default" = 200))]
    timeout: u64,
    /// Whether the authoriser's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Whether requests pass where the authoriser gives no decision.
    #[schemars(extend("default" = false))]
    failure_mode_allow: bool,
    /// Whether the node is told by `x-envoy-auth-failure-mode-allowed: true` that a request passed so.
    #[schemars(extend("default" = false))]
    failure_mode_allow_header_add: bool,
    /// The answer where the authoriser gives no decision.
    #[schemars(range(min = 200, max = 599), extend("default" = 403))]
    status_on_error: u16,
    /// Has the authoriser see the request's body, which is read whole before it is asked.
    with_request_body: Option<BodyRules>,
    /// Values that the authoriser gets beside the request, with variables.
    context_extensions: Option<BTreeMap<String, Template>>,
    /// Fields that the authoriser alone sets. What the client sent under these names never reaches the node,
    /// nor the authoriser.
    #[schemars(extend("default" = []))]
    upstream_headers: Vec<String>,
    /// Whether the authoriser gets the client's certificate.
    #[schemars(extend("default" = false))]
    include_peer_certificate: bool,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
struct BodyRules {
    /// Most bytes of a body; a larger one is answered 413.
    #[schemars(range(min = 1, max = 67_108_864))]
    max_request_bytes: usize,
    /// Whether it goes as bytes and not as text, in which what is no UTF-8 is replaced.
    #[schemars(extend("default" = false))]
    #[serde(default)]
    pack_as_bytes: bool,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if &*self.uri.target != "/" {
            return Err(format!("uri: the method has its own path: leave `{}` out", self.uri.target));
        }
        let mut names = self.upstream_headers.iter();
        match names.find(|name| !crate::rewrite::fields::is_name(name) || verdict::is_reserved(name)) {
            Some(name) => Err(format!("upstream_headers: `{name}` is no field that an authoriser may set")),
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

struct ExtAuthz(Arc<Inquiry>);

/// What is asked, and what becomes of the answer.
struct Inquiry {
    /// The key of the authoriser's upstream.
    upstream: Box<str>,
    config: Config,
}

/// Fields for the client's answer, kept until it comes.
struct ForClient(Vec<Field>);

impl ExtAuthz {
    fn new(build: &Build<'_>) -> Result<ExtAuthz, String> {
        let upstream = build.upstream_key(SERVICE).into();
        Ok(ExtAuthz(Arc::new(Inquiry { upstream, config: build.config()? })))
    }
}

/// Text of the protocol, which is UTF-8.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Inquiry {
    fn ask(self: &Arc<Inquiry>, slot: Slot, ctx: &mut Context, env: &Env<'_>, body: Option<Vec<u8>>) -> Step {
        ctx.request.headers.remove_name(ALLOWED.as_bytes());
        for name in &self.config.upstream_headers {
            ctx.request.headers.remove_name(name.as_bytes());
        }
        let question = CheckRequest { attributes: Some(self.attributes(ctx, env, body)) };
        let mut headers = Headers::default();
        headers.append("Content-Type", b"application/grpc");
        headers.append("TE", b"trailers");
        headers.append("grpc-timeout", format!("{}m", self.config.timeout).as_bytes());
        let call = Call {
            upstream: self.upstream.clone(),
            method: Method::Post,
            target: CHECK.as_bytes().to_vec(),
            host: self.config.uri.host.clone(),
            headers,
            passes: ctx.passes(),
            body: Some(framed(&question)),
            timeout_ms: self.config.timeout,
            limit: ANSWER_BYTES,
        };
        let inquiry = Arc::clone(self);
        Step::wait(env.outbound.call(call), move |answer, ctx, _| inquiry.settle(slot, answer, ctx))
    }

    fn attributes(&self, ctx: &Context, env: &Env<'_>, body: Option<Vec<u8>>) -> Attributes {
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
        let now = env.unix_time();
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
            request: Some(Request {
                time: Some(Timestamp {
                    seconds: now.as_secs().cast_signed(),
                    nanos: now.subsec_nanos().cast_signed(),
                }),
                http: Some(self.http(ctx, body)),
            }),
            context_extensions: extensions
                .map(|(name, value)| (name.clone(), text(&value.rendered(ctx))))
                .collect(),
            tls_session: tls.and_then(|tls| Some(TlsSession { sni: tls.server_name.clone()? })),
        }
    }

    fn http(&self, ctx: &Context, body: Option<Vec<u8>>) -> HttpRequest {
        let request = &ctx.request;
        let mut path = Vec::with_capacity(ctx.uri.len());
        percent_encode_path(&ctx.uri, &mut path);
        if let Some(query) = request.query() {
            path.push(b'?');
            path.extend_from_slice(query);
        }
        let (method, host, path) = (text(request.method_token()), text(request.authority()), text(&path));
        let mut headers: HashMap<String, String> = HashMap::new();
        for (name, value) in request.headers.iter() {
            let (name, value) = (text(&name.to_ascii_lowercase()), text(value));
            headers.entry(name).and_modify(|all| *all = format!("{all},{value}")).or_insert(value);
        }
        let pseudo = [(":method", &method), (":authority", &host), (":path", &path)];
        headers.extend(pseudo.map(|(name, value)| (name.to_owned(), value.clone())));
        headers.insert(":scheme".to_owned(), ctx.scheme().to_owned());
        let length =
            request.headers.get(HeaderId::ContentLength).map(text).and_then(|length| length.parse().ok());
        let size = body.as_ref().map(|body| body.len() as i64).or(length).unwrap_or(-1);
        let as_bytes = self.config.with_request_body.is_some_and(|rules| rules.pack_as_bytes);
        let (body, raw_body) = match body {
            Some(body) if as_bytes => (String::new(), body),
            Some(body) => (text(&body), Vec::new()),
            None => Default::default(),
        };
        HttpRequest {
            id: ctx.request_id().to_owned(),
            method,
            headers,
            path,
            host,
            scheme: ctx.scheme().to_owned(),
            size,
            protocol: request.version.as_str().to_owned(),
            body,
            raw_body,
        }
    }

    /// What the authoriser's answer comes to.
    fn settle(&self, slot: Slot, answer: Result<Answer, CallError>, ctx: &mut Context) -> Step {
        match answer.map_err(|error| error.to_string()).and_then(|answer| verdict::of(&answer)) {
            Ok(Verdict::Refuse(reply)) => Step::Reply(reply),
            Ok(Verdict::Pass(changes)) => {
                changes.apply(ctx);
                if !changes.response.is_empty() {
                    ctx.keep(slot, ForClient(changes.response));
                }
                Step::Next
            }
            Err(error) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, error, "ext-authz: the authoriser gave no decision");
                }
                if !self.config.failure_mode_allow {
                    return Reply::new(self.config.status_on_error).text(Vec::new()).into();
                }
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
        let (inquiry, slot) = (Arc::clone(&self.0), Slot::from(self));
        let Some(rules) = inquiry.config.with_request_body else { return inquiry.ask(slot, ctx, env, None) };
        Step::ReadBody {
            limit: rules.max_request_bytes,
            then: Box::new(move |ctx, env, read| match read {
                BodyRead::TooLarge => Reply::new(413).text(Vec::new()).into(),
                BodyRead::Whole => {
                    let body = ctx.body.clone().unwrap_or_default();
                    inquiry.ask(slot, ctx, env, Some(body))
                }
            }),
        }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        if let Some(ForClient(fields)) = ctx.take_kept(self) {
            verdict::apply(&fields, &mut ctx.response.headers);
        }
        ResponseStep::Next
    }
}
