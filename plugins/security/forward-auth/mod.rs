//! `forward-auth`: authorization by another service.

use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::{HeaderId, Headers, Method, is_authority};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::owned::texts;
use sigma_plugin::step::BodyRead;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::variables::{host_name, percent_encode_path};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, Slot, Step,
};
use sigma_schema::described::schema_of;
use sigma_schema::template::Template;

use crate::shared::inquiry::{self, Cache, Inquiry, Memory, Outcome, sets_cookie};
use crate::shared::user_digest::UserDigest;
use sigma_plugin_kit::decision_service::DecisionService;
use sigma_plugin_kit::decisions::{Bound, KeyOf};
use sigma_plugin_kit::fields::{frames, is_name};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::{Keepalive, warnings};

/// The plugin.
pub(crate) static FORWARD_AUTH: Descriptor = Descriptor {
    name: "forward-auth",
    priority: 2002,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    guards: true,
    warnings: Some(|_, conf| warnings(conf, &["uri"], "the service")),
    variables: &[
        VariableField::guard("extra_headers.*", VariableForm::Template),
        VariableField::guard("host", VariableForm::Template),
        VariableField::guard("cache.key.*", VariableForm::Template),
    ],
    upstreams: Some(|conf| upstream(conf).into_iter().collect()),
    attributes: Some(schema_of::<Bound>),
    identifies: true,
    owned_fields: Some(owned_fields),
    build: |build| Ok(Arc::new(ForwardAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The name of the service among the plugin's upstreams.
const SERVICE: &str = "service";

/// Most bytes of the service's response: a page for a person, or a sentence for a program.
const ANSWER_BYTES: usize = 1 << 20;

/// Authorizes requests by an HTTP service.
///
/// A response with a status below 300 permits the request; any other response is sent to the client. The service gets
/// the request in `X-Forwarded-Proto`, `X-Forwarded-Method`, `X-Forwarded-Host`, `X-Forwarded-Uri`,
/// `X-Forwarded-Normal-Path` and `X-Forwarded-For`. `X-Forwarded-Uri` is the target as the client sent it, or its
/// canonical form with `router.forward_path: canonical`: nodes get the same, unless a plugin rewrites it.
/// `X-Forwarded-Normal-Path` is the path for routing, percent-encoded. The service is an upstream of the plugin: its
/// name is resolved in advance, and connections are kept alive. A response of more than 1 MiB counts as no response.
///
/// With `cache` each worker stores responses of the service: at most 8192, or
/// `plugin_attr.forward-auth.worker_decisions`. Equal requests at the same time cause one call. Not stored are
/// responses of more than 8 KiB, refusals that set a cookie or have a status other than 401, 403, 404 and 429, and
/// failures.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The service's URL, with `http` or `https`.
    uri: Service,
    /// The method of the call; `POST` includes the client's body.
    #[schemars(extend("default" = "GET"))]
    request_method: CallMethod,
    /// Host of the call, a text with variables. Unset, or if the text is not a host name: the service's. Sigma's own.
    #[schemars(with = "Option<String>", length(min = 1))]
    host: Option<Template>,
    /// Fields of the client that the service gets; `*` for all but those that frame the message, and `Host`.
    #[schemars(extend("default" = []))]
    request_headers: Vec<FieldName>,
    /// Additional fields for the service; values may contain variables. An empty text removes the field.
    #[serde(default)]
    #[schemars(schema_with = "extra_fields_schema")]
    extra_headers: ExtraFields,
    /// Fields of the service's response for the node. It never gets these fields from the client.
    #[schemars(extend("default" = []))]
    upstream_headers: Vec<FieldName>,
    /// Fields of the service's response for a refused client; `*` for all but those that frame the message.
    #[schemars(extend("default" = []))]
    client_headers: Vec<FieldName>,
    /// Timeout of the call in milliseconds.
    #[schemars(range(min = 1, max = 60000), extend("default" = 3000))]
    timeout: u64,
    #[serde(flatten)]
    keepalive: Keepalive,
    /// Whether the service's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Whether requests are allowed if the service does not respond.
    #[schemars(extend("default" = false))]
    allow_degradation: bool,
    /// Status if the service does not respond.
    #[schemars(range(min = 200, max = 599), extend("default" = 403))]
    status_on_error: u16,
    /// Maximum bytes of a body in the call.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: usize,
    /// Cache of responses. Unset: the service is called for each request.
    #[serde(default)]
    #[schemars(extend("own_default" = true))]
    cache: Option<Cache>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.cache.is_some() && self.request_method == CallMethod::Post {
            let hint = "use request_method GET, or remove cache";
            return Err(format!(
                "cache: with POST, the service must decide about the body of each request; {hint}"
            ));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum CallMethod {
    Get,
    Post,
}

/// The name of a field that the gateway does not set itself.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct FieldName(String);

impl TryFrom<String> for FieldName {
    type Error = String;

    fn try_from(name: String) -> Result<FieldName, String> {
        if !is_name(&name) {
            return Err(format!("`{name}` is not the name of a header field"));
        }
        if is_reserved(&name) {
            return Err(format!("the gateway itself sets `{name}`: remove it"));
        }
        Ok(FieldName(name))
    }
}

/// Fields with templates, in the order in which they are written.
#[derive(Default, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
struct ExtraFields(Vec<(FieldName, Template)>);

impl TryFrom<Map<String, Value>> for ExtraFields {
    type Error = String;

    fn try_from(fields: Map<String, Value>) -> Result<ExtraFields, String> {
        let field = |(name, value): (String, Value)| {
            Ok((FieldName::try_from(name)?, Template::parse(value.as_str().unwrap_or_default())))
        };
        fields.into_iter().map(field).collect::<Result<_, _>>().map(ExtraFields)
    }
}

fn extra_fields_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "minProperties": 1, "patternProperties": {"^[^:]+$": {"type": "string"}}})
}

/// The word for all fields.
const ALL: &str = "*";

/// Whether a field belongs to one connection, so that it is not among all fields.
fn is_of_connection(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
    ];
    is_reserved(name) || NAMES.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether a field is not a matter of the service: it frames a message or says whom it is for.
fn is_reserved(name: &str) -> bool {
    frames(name) || HeaderId::of(name.as_bytes()) == HeaderId::Host
}

/// The fields that the service grants. One that the service is shown as well stays until it has responded.
fn owned_fields(conf: &Value) -> Vec<OwnedField> {
    let is_shown = |name: &str| {
        texts(conf, "request_headers").any(|shown| shown == ALL || shown.eq_ignore_ascii_case(name))
    };
    let owned = |name| if is_shown(name) { OwnedField::judged(name) } else { OwnedField::sole(name) };
    texts(conf, "upstream_headers").map(owned).collect()
}

/// The service as an upstream.
fn upstream(conf: &Value) -> Option<InlineUpstream> {
    let config = Config::deserialize(conf).ok()?;
    let upstream = config.keepalive.upstream(&config.uri, config.ssl_verify, config.timeout);
    Some(InlineUpstream { name: SERVICE.to_owned(), upstream })
}

struct ForwardAuth(Arc<Verifier>);

/// The queries to the service, and the handling of its responses.
struct Verifier {
    /// The key of the service's upstream.
    upstream: Box<str>,
    config: Config,
    memory: Option<Memory>,
}

impl ForwardAuth {
    fn new(build: &Build<'_>) -> Result<ForwardAuth, String> {
        let upstream = build.upstream_key(SERVICE).into();
        let mut config: Config = build.config()?;
        let memory = config.cache.take().map(|cache| Memory::new(build, cache)).transpose()?;
        Ok(ForwardAuth(Arc::new(Verifier { upstream, config, memory })))
    }
}

/// The service's decision.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// The request passes; the values of `upstream_headers` in their order.
    Pass(Vec<Option<Vec<u8>>>),
    /// The request gets a response.
    Refusal {
        status: u16,
        fields: Vec<(String, Vec<u8>)>,
        body: Vec<u8>,
        /// The service set a cookie, whether the client gets it or not.
        sets_cookie: bool,
    },
    /// The service did not respond, for this reason.
    None(String),
}

impl inquiry::Verdict for Verdict {
    fn outcome(&self) -> Outcome {
        match self {
            Verdict::Pass(_) => Outcome::Passes,
            Verdict::Refusal { status, sets_cookie: false, .. } => Outcome::Refused(*status),
            Verdict::Refusal { .. } | Verdict::None(_) => Outcome::Alone,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Verdict::Pass(values) => values.iter().flatten().map(Vec::len).sum(),
            Verdict::Refusal { fields, body, .. } => {
                body.len() + fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            }
            Verdict::None(_) => 0,
        }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Verdict::None(error) => Some(error),
            _ => None,
        }
    }
}

impl Verifier {
    /// The host of the call.
    fn host(&self, ctx: &Context) -> Box<str> {
        let host = self.config.host.as_ref().map(|host| host.rendered(ctx));
        let host = host.filter(|host| is_authority(host)).and_then(|host| String::from_utf8(host).ok());
        host.map_or_else(|| self.config.uri.host.clone(), String::into_boxed_str)
    }

    /// The fields of the call.
    fn fields(&self, ctx: &Context) -> Headers {
        let request = &ctx.request;
        let mut normal_path = Vec::with_capacity(ctx.uri.len());
        percent_encode_path(&ctx.uri, &mut normal_path);
        let mut fields: Vec<(&str, Vec<u8>)> = vec![
            ("X-Forwarded-Proto", if ctx.client.tls.is_some() { "https" } else { "http" }.into()),
            ("X-Forwarded-Method", request.method_token().to_vec()),
            ("X-Forwarded-Host", host_name(request.authority()).into_owned()),
            ("X-Forwarded-Uri", request.path_and_query().to_vec()),
            ("X-Forwarded-Normal-Path", normal_path),
            ("X-Forwarded-For", ctx.remote_addr().into_bytes()),
        ];
        if self.config.request_method == CallMethod::Post
            && let Some(coding) = request.headers.find(b"Content-Encoding")
        {
            fields.push(("Content-Encoding", coding.to_vec()));
        }
        let mut headers = Headers::default();
        for (FieldName(name), template) in &self.config.extra_headers.0 {
            fields.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            if *template != Template::parse("") {
                fields.push((name, template.rendered(ctx)));
            }
        }
        if self.config.request_headers.iter().any(|FieldName(name)| name == ALL) {
            let own = fields.len();
            for (name, value) in request.headers.iter() {
                let Ok(name) = str::from_utf8(name) else { continue };
                let is_set = fields[..own].iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
                if !is_set && !is_of_connection(name) {
                    fields.push((name, value.to_vec()));
                }
            }
        }
        let named = self.config.request_headers.iter().filter(|FieldName(name)| name != ALL);
        for FieldName(name) in named {
            let is_set = fields.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
            // All of them: the node may take another one than the first.
            let values =
                request.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
            fields.extend(values.filter(|_| !is_set).map(|(_, value)| (&**name, value.to_vec())));
        }
        for (name, value) in fields {
            headers.append(name, &value);
        }
        headers
    }
}

impl Inquiry for Verifier {
    type Body = Vec<u8>;
    type Verdict = Verdict;

    fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    fn key_parts(&self, ctx: &Context, _: &Env<'_>, told: &mut KeyOf) {
        let mut fields = self.fields(ctx);
        fields.append("Host", self.host(ctx).as_bytes());
        told.fields(&fields);
    }

    fn call(&self, ctx: &Context, _: &Env<'_>, body: Option<Vec<u8>>) -> Call {
        let (config, service) = (&self.config, &self.config.uri);
        Call {
            upstream: self.upstream.clone(),
            method: match config.request_method {
                CallMethod::Get => Method::Get,
                CallMethod::Post => Method::Post,
            },
            target: service.target.as_bytes().to_vec(),
            host: self.host(ctx),
            headers: self.fields(ctx),
            passes: ctx.passes(),
            body,
            timeout_ms: config.timeout,
            limit: ANSWER_BYTES,
        }
    }

    fn verdict(&self, answer: Result<ServiceResponse, CallError>) -> Verdict {
        match answer {
            Ok(answer) if answer.status >= 300 => {
                let mut fields = Vec::new();
                if self.config.client_headers.iter().any(|FieldName(name)| name == ALL) {
                    let all = answer
                        .headers
                        .iter()
                        .filter_map(|(name, value)| Some((str::from_utf8(name).ok()?, value)));
                    let all = all.filter(|(name, _)| !is_of_connection(name));
                    fields.extend(all.map(|(name, value)| (name.to_owned(), value.to_vec())));
                }
                let named = self.config.client_headers.iter().filter(|FieldName(name)| name != ALL);
                for FieldName(name) in named {
                    let of_name = answer.headers.iter();
                    let of_name = of_name.filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
                    fields.extend(of_name.map(|(_, value)| (name.clone(), value.to_vec())));
                }
                let names = answer.headers.iter().map(|(name, _)| str::from_utf8(name).unwrap_or_default());
                let sets_cookie = sets_cookie(names);
                Verdict::Refusal { status: answer.status, fields, body: answer.body, sets_cookie }
            }
            Ok(answer) => {
                let value = |FieldName(name): &FieldName| answer.headers.find(name.as_bytes());
                let values = self.config.upstream_headers.iter().map(value);
                Verdict::Pass(values.map(|value| value.map(<[u8]>::to_vec)).collect())
            }
            Err(error) => Verdict::None(error.to_string()),
        }
    }

    fn service(&self) -> DecisionService {
        DecisionService { plugin: "forward-auth", url: self.config.uri.url_of(&self.config.uri.target) }
    }

    fn throttle() -> &'static LogThrottle {
        static UNDECIDED: LogThrottle = LogThrottle::new();
        &UNDECIDED
    }

    fn follow(&self, verdict: &Verdict, _: Slot, ctx: &mut Context) -> Step {
        let values = match verdict {
            Verdict::Pass(values) => {
                let mut user_digest = UserDigest::of(ctx);
                user_digest.add_fields(&self.fields(ctx));
                values.iter().for_each(|value| user_digest.add(value.as_deref().unwrap_or_default()));
                user_digest.mark("forward-auth", ctx);
                &values[..]
            }
            Verdict::None(_) if self.config.allow_degradation => {
                // The node may know the person by a cookie.
                ctx.mark_personal("forward-auth", None);
                &[]
            }
            Verdict::None(_) => return Reply::new(self.config.status_on_error).text(Vec::new()).into(),
            Verdict::Refusal { status, fields, body, .. } => {
                let mut reply = Reply::new(*status);
                for (name, value) in fields {
                    reply = reply.header(name.clone(), value.clone());
                }
                return if body.is_empty() { reply } else { reply.text(body.clone()) }.into();
            }
        };
        let headers = &mut ctx.request.headers;
        for (number, FieldName(name)) in self.config.upstream_headers.iter().enumerate() {
            // The client's own field is not the service's.
            headers.remove_name(name.as_bytes());
            if let Some(value) = values.get(number).and_then(Option::as_ref) {
                headers.append(name, value);
            }
        }
        Step::Next
    }
}

impl Plugin for ForwardAuth {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (verifier, slot) = (Arc::clone(&self.0), Slot::from(self));
        if verifier.config.request_method == CallMethod::Get {
            return inquiry::ask(&verifier, slot, ctx, env, None);
        }
        Step::ReadBody {
            limit: verifier.config.max_req_body_size,
            then: Box::new(move |ctx, env, read| match read {
                BodyRead::TooLarge => Reply::new(413).text(Vec::new()).into(),
                BodyRead::Whole => {
                    let body = ctx.body.clone().unwrap_or_default();
                    inquiry::ask(&verifier, slot, ctx, env, Some(body))
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use sigma_schema::plugins::PluginScope;

    use serde_json::json;

    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    #[test]
    fn configurations() {
        let check = |conf: Value, expected: &str| {
            let refusal = refusal("forward-auth", &conf);
            assert!(
                if expected.is_empty() { refusal.is_empty() } else { refusal.contains(expected) },
                "{refusal}"
            );
        };
        check(json!({"uri": "http://auth/check"}), "");
        check(json!({}), "property \"uri\" is required");
        check(json!({"uri": "auth"}), "has no scheme");
        check(json!({"uri": "http://$http_host/"}), "is not a host name");
        check(json!({"uri": "http://a", "request_method": "PUT"}), "matches none of the enum values");
        check(json!({"uri": "http://a", "timeout": 0}), "expected 0 to be at least 1");
        check(json!({"uri": "http://a", "upstream_headers": ["Content-Length"]}), "the gateway itself sets");
        check(json!({"uri": "http://a", "extra_headers": {"host": "x"}}), "the gateway itself sets");
        check(json!({"uri": "http://a", "request_headers": ["a b"]}), "is not the name of a header field");
        check(json!({"uri": "http://a", "extra_headers": {"X": "$nonsense"}}), "nonsense");
        check(json!({"uri": "http://a", "cache": {"ttl": 10}}), "");
        check(json!({"uri": "http://a", "cache": {"ttl": 0}}), "expected 0 to be at least 1");
        check(json!({"uri": "http://a", "cache": {"ttl": 1, "key": ["$nonsense"]}}), "nonsense");
        check(
            json!({"uri": "http://a", "cache": {"ttl": 1, "key": []}}),
            "expect array to have at least 1 items",
        );
        check(json!({"uri": "http://a", "cache": {"ttl": 1, "size": 1}}), "additional properties forbidden");
        let post = json!({"uri": "http://a", "request_method": "POST", "cache": {"ttl": 1}});
        check(post, "use request_method GET, or remove cache");
    }

    #[test]
    fn the_service_is_an_upstream() {
        let conf = json!({"uri": "https://auth:444/x?y", "keepalive": false, "ssl_verify": false});
        let inline = crate::testing::roster().upstreams("forward-auth", PluginScope::Http, conf).remove(0);
        assert_eq!(inline.upstream["tls"]["verify"], false);
        assert_eq!(
            inline.upstream["keepalive_pool"],
            json!({"size": 5, "idle_timeout": 60.0, "requests": 1})
        );
        assert_eq!(inline.upstream["nodes"][0], json!({"host": "auth", "port": 444, "weight": 1}));
    }

    fn plugin(conf: Value) -> ForwardAuth {
        let mut whole = json!({"uri": "http://a/c", "request_method": "GET", "request_headers": [],
            "upstream_headers": ["X-User"], "client_headers": [], "timeout": 1, "keepalive": true,
            "keepalive_timeout": 1000, "keepalive_pool": 1, "ssl_verify": true, "allow_degradation": false,
            "status_on_error": 403, "max_req_body_size": 9});
        whole.as_object_mut().unwrap().extend(conf.as_object().unwrap().clone());
        let node = Arc::default();
        ForwardAuth::new(&Build::new("forward-auth", &whole, "r", &Value::Null, &node)).unwrap()
    }

    #[test]
    fn the_service_gets_the_request() {
        let conf = json!({"request_headers": ["Authorization", "X-Forwarded-For", "X-None"],
            "extra_headers": {"X-Forwarded-Host": "mine", "X-Arg": "$arg_a"}});
        let plugin = plugin(conf);
        let case =
            Case::new("PUT /a?b=1 HTTP/1.1\nHost: h.test:81\nAuthorization: x\nX-Forwarded-For: 9.9.9.9");
        let fields = plugin.0.fields(&case.ctx);
        let text: Vec<String> = fields
            .iter()
            .map(|(name, value)| {
                format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            })
            .collect();
        assert_eq!(
            text,
            [
                "X-Forwarded-Proto: http",
                "X-Forwarded-Method: PUT",
                "X-Forwarded-Uri: /a?b=1",
                "X-Forwarded-Normal-Path: /a",
                "X-Forwarded-For: 127.0.0.1",
                "X-Forwarded-Host: mine",
                "X-Arg: ",
                "Authorization: x"
            ]
        );
        let odd = Case::new("GET /admin%3fx//%61?y HTTP/1.1\nHost: h\nAuthorization: x\nAuthorization: y");
        let fields = plugin.0.fields(&odd.ctx);
        assert_eq!(fields.find(b"X-Forwarded-Uri"), Some(&b"/admin%3fx//%61?y"[..]));
        let values: Vec<&[u8]> = fields.get_all(HeaderId::Authorization).collect();
        assert_eq!(values, [b"x", b"y"], "the node gets both");
        let torn = Case::new("GET /?a=%0d%0aX-User:root HTTP/1.1\nHost: h");
        let fields = plugin.0.fields(&torn.ctx);
        assert_eq!(fields.find(b"X-User"), None);
    }

    #[test]
    fn a_star_selects_all_fields_of_the_client() {
        let plugin = plugin(json!({"request_headers": ["*"]}));
        let case = Case::new(
            "POST /a HTTP/1.1\nHost: h\nX-A: 1\nX-A: 2\nTE: trailers\nContent-Length: 0\nX-Forwarded-Uri: /b\nCookie: c",
        );
        let fields = plugin.0.fields(&case.ctx);
        let names: Vec<&str> =
            fields.iter().skip(6).map(|(name, _)| str::from_utf8(name).unwrap_or_default()).collect();
        assert_eq!(names, ["X-A", "X-A", "Cookie"]);
        assert_eq!(fields.find(b"X-Forwarded-Uri"), Some(&b"/a"[..]));
    }

    #[test]
    fn the_host_of_the_call_may_be_the_clients() {
        let plugin = plugin(json!({"host": "$http_host", "extra_headers": {"X-Forwarded-Normal-Path": ""}}));
        let case = Case::new("GET /a HTTP/1.1\nHost: h.test:81");
        assert_eq!(&*plugin.0.host(&case.ctx), "h.test:81");
        assert_eq!(plugin.0.fields(&case.ctx).find(b"X-Forwarded-Normal-Path"), None);
    }

    /// Without a service every request is denied, and claims of clients are removed.
    #[test]
    fn without_a_service() {
        let check = |more: Value, expected: &str| {
            let mut conf = json!({"uri": "http://a", "upstream_headers": ["X-User"]});
            conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let entry = entry("forward-auth", conf).unwrap();
            let mut case = Case::new("GET / HTTP/1.1\nHost: h\nX-User: root");
            assert_eq!(summary(case.run(&entry, Phase::Access).as_ref()), expected);
            assert_eq!(case.sent("X-User"), None);
        };
        check(json!({}), "403");
        check(json!({"status_on_error": 503}), "503");
        check(json!({"allow_degradation": true}), "passed");
    }

    #[test]
    fn answers_become_decisions() {
        let plugin = plugin(json!({"client_headers": ["Location"]}));
        let answer = |status, fields: &[(&str, &str)], body: &str| {
            let mut headers = Headers::default();
            fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
            ServiceResponse { status, headers, body: body.into(), ..ServiceResponse::default() }
        };
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nX-User: root");
        let settle = |answer, case: &mut Case| {
            plugin.0.follow(&plugin.0.verdict(answer), Slot::from(&plugin), &mut case.ctx)
        };
        let passed = settle(Ok(answer(204, &[("x-user", "jack")], "")), &mut case);
        assert!(matches!(passed, Step::Next));
        assert_eq!(case.sent("X-User").as_deref(), Some("jack"));
        assert!(matches!(settle(Ok(answer(200, &[], "")), &mut case), Step::Next));
        assert_eq!(case.sent("X-User"), None);
        let step = settle(Ok(answer(302, &[("location", "/login"), ("x", "y")], "")), &mut case);
        let Step::Reply(reply) = step else { panic!("a redirect is a refusal") };
        assert_eq!((reply.status, reply.headers.len(), reply.body), (302, 1, None));
    }

    #[test]
    fn a_refusal_with_a_cookie_is_for_one_client() {
        let plugin = plugin(json!({}));
        let check = |status, fields: &[(&str, &str)], expected| {
            let mut headers = Headers::default();
            fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
            let verdict =
                plugin.0.verdict(Ok(ServiceResponse { status, headers, ..ServiceResponse::default() }));
            assert_eq!(inquiry::Verdict::outcome(&verdict), expected, "{status} {fields:?}");
        };
        check(200, &[], Outcome::Passes);
        check(401, &[("X-A", "b")], Outcome::Refused(401));
        check(401, &[("set-cookie", "a=b")], Outcome::Alone);
        let away = plugin.0.verdict(Err(CallError("nobody there".to_owned())));
        assert_eq!(inquiry::Verdict::outcome(&away), Outcome::Alone);
        assert_eq!(inquiry::Verdict::failure(&away), Some("nobody there"));
    }

    #[test]
    fn the_key_has_all_data_for_the_service() {
        let plugin = plugin(json!({"request_headers": ["Authorization"]}));
        let told = |head: &str| {
            let case = Case::new(&format!("{head} HTTP/1.1\nHost: h"));
            inquiry::told_by(&*plugin.0, &case)
        };
        assert_eq!(told("GET /a"), told("GET /a"));
        assert_ne!(told("GET /a"), told("GET /b"));
        assert_ne!(told("GET /a"), told("PUT /a"));
    }
}
