//! `upstream-auth`: how the gateway shows nodes who asks.

mod declared;
mod lifetime;
mod signature;
mod source;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::HeaderId;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::described::schema_of;

use self::lifetime::Lifetime;
use self::signature::{MessageSignature, RequestSigner};
use self::source::{Denied, Granted, Settings, Token, TokenLookup, TokenServer, TokenSource, is_token};
use crate::shared::tokens::{after_bearer, beside};
use sigma_plugin_kit::decisions::{Asking, Bound, DecisionState, Decisions};
use sigma_plugin_kit::fields::{frames, is_name};
use sigma_plugin_kit::service::cleartext;
use sigma_plugin_kit::sigv4::{self, Account, Paths, Request, UNSIGNED_PAYLOAD};

/// The plugin.
pub(crate) static UPSTREAM_AUTH: Descriptor = Descriptor {
    name: "upstream-auth",
    priority: -1900,
    example: include_str!("example.md"),
    credentials: Some(declared::credentials),
    phases: PhaseSet::of(&[Phase::Access, Phase::BeforeProxy]),
    warnings: Some(|_, conf| warnings(conf)),
    attributes: Some(schema_of::<Bound>),
    owned_fields: Some(declared::owned_fields),
    build: |build| Ok(Arc::new(UpstreamAuth(Arc::new(Shared::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// Authenticates requests at nodes, instead of the client's credentials.
///
/// Configure exactly one method. The node never gets the field that the plugin sets from a client. A request without
/// a token or signature is not sent: the client gets `status_on_error`, or 401 if its own token is missing or
/// refused. The plugin runs last before a request is sent, for each attempt and each hedged request, so that it signs
/// the final request. Filters of other plugins that change a body during sending break the signature.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// A field with a secret value.
    header: Option<Header>,
    /// Name and password of the gateway (RFC 7617).
    basic: Option<Basic>,
    /// A token of the gateway's own from an OAuth 2.0 server (client credentials, RFC 6749 §4.4). One request at a time
    /// fetches it. It is renewed in the background before it expires.
    client_credentials: Option<ClientCredentials>,
    /// A token that an OAuth 2.0 server issues for the client's token (RFC 8693). Each worker caches it until it
    /// expires.
    token_exchange: Option<TokenExchange>,
    /// The client's own token.
    token_relay: Option<TokenRelay>,
    /// A signature by AWS Signature Version 4.
    aws_sigv4: Option<AwsSigv4>,
    /// An HTTP message signature (RFC 9421).
    message_signature: Option<MessageSignature>,
    /// Status of requests without a token or signature.
    #[schemars(range(min = 400, max = 599), extend("default" = 503))]
    status_on_error: u16,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let ways = [
            self.header.is_some(),
            self.basic.is_some(),
            self.client_credentials.is_some(),
            self.token_exchange.is_some(),
            self.token_relay.is_some(),
            self.aws_sigv4.is_some(),
            self.message_signature.is_some(),
        ];
        match ways.iter().filter(|is_there| **is_there).count() {
            1 => self.message_signature.as_ref().map_or(Ok(()), MessageSignature::check),
            _ => Err("write exactly one of header, basic, client_credentials, token_exchange, token_relay, \
                      aws_sigv4 and message_signature"
                .to_owned()),
        }
    }
}

/// The name of a field that may carry a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct FieldName(String);

impl TryFrom<String> for FieldName {
    type Error = String;

    fn try_from(name: String) -> Result<FieldName, String> {
        match (is_name(&name), frames(&name) || HeaderId::of(name.as_bytes()) == HeaderId::Host) {
            (true, false) => Ok(FieldName(name)),
            (true, true) => Err(format!("the gateway itself sets `{name}`")),
            (false, _) => Err(format!("`{name}` is not the name of a header field")),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Header {
    /// Name of the field.
    #[schemars(extend("default" = "Authorization"))]
    name: FieldName,
    /// Value of the field.
    #[schemars(length(min = 1))]
    value: Confidential,
}

#[derive(Deserialize, JsonSchema)]
struct Basic {
    /// The name, without a colon.
    #[schemars(length(min = 1), regex(pattern = "^[^:]+$"))]
    username: String,
    /// The password.
    #[schemars(length(min = 1))]
    password: Confidential,
}

#[derive(Deserialize, JsonSchema)]
struct ClientCredentials {
    #[serde(flatten)]
    server: Settings,
    /// The field with the token, after `Bearer`.
    #[schemars(extend("default" = "Authorization"))]
    header: FieldName,
}

#[derive(Deserialize, JsonSchema)]
struct TokenExchange {
    #[serde(flatten)]
    server: Settings,
    /// The field with the client's token, after `Bearer` or alone.
    #[schemars(extend("default" = "Authorization"))]
    from: FieldName,
    /// Type of the client's token.
    #[schemars(extend("default" = "urn:ietf:params:oauth:token-type:access_token"))]
    subject_token_type: String,
    /// Requested token type. Default: the server decides.
    requested_token_type: Option<String>,
    /// The field with the token, after `Bearer`.
    #[schemars(extend("default" = "Authorization"))]
    header: FieldName,
}

#[derive(Deserialize, JsonSchema)]
struct TokenRelay {
    /// The field with the client's token, after `Bearer` or alone.
    #[schemars(extend("default" = "Authorization"))]
    from: FieldName,
    /// The field with the token, after `Bearer`.
    #[schemars(extend("default" = "Authorization"))]
    header: FieldName,
}

#[derive(Deserialize, JsonSchema)]
struct AwsSigv4 {
    /// The id of the access key.
    #[schemars(length(min = 1), regex(pattern = "^[!-~]+$"))]
    access_key_id: String,
    /// The secret of the access key.
    #[schemars(length(min = 1))]
    secret_access_key: Confidential,
    /// The token of temporary credentials.
    #[schemars(length(min = 1))]
    session_token: Option<Confidential>,
    /// The region of the service.
    #[schemars(length(min = 1), regex(pattern = "^[a-z0-9-]+$"))]
    region: String,
    /// The service name in signatures, such as `s3` or `execute-api`.
    #[schemars(length(min = 1), regex(pattern = "^[a-z0-9-]+$"))]
    service: String,
    /// Whether the body is signed. If so, it is read before the request is sent.
    #[schemars(extend("default" = "signed"))]
    payload: Payload,
    /// Largest body that is signed, in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Payload {
    Signed,
    Unsigned,
}

fn warnings(conf: &Value) -> Vec<Problem> {
    let mut found = Vec::new();
    for way in ["client_credentials", "token_exchange"] {
        let field = |name: &str| conf.get(way).and_then(|way| way.get(name));
        let message = "the client secret and tokens are sent in cleartext";
        let clear = conf.get(way).and_then(|way| cleartext(way, "token_endpoint", message));
        found.extend(clear.map(|problem| problem.within(way)));
        if field("ssl_verify") == Some(&Value::Bool(false)) {
            let message = "another server can impersonate the token server and get the client's secret";
            found.push(Problem::new(format!("{way}.ssl_verify"), "unverified", message).hint("remove it"));
        }
    }
    found
}

struct UpstreamAuth(Arc<Shared>);

struct Shared {
    way: CredentialMethod,
    status_on_error: u16,
}

/// How nodes are shown who asks.
enum CredentialMethod {
    /// A field, and its value.
    Fixed(FieldName, Confidential),
    Own(FieldName, Arc<TokenSource>),
    Exchanged(Arc<Exchange>),
    Relayed(TokenRelay),
    Aws(AwsSigv4),
    Signed(Box<RequestSigner>),
}

struct Exchange {
    server: TokenServer,
    from: FieldName,
    header: FieldName,
    subject_token_type: String,
    requested_token_type: Option<String>,
    rule: Lifetime,
    bound: Bound,
}

/// A server's response to a client's token.
enum Exchanged {
    Token(Token),
    Refused,
    Failed,
}

impl Shared {
    fn new(build: &Build<'_>) -> Result<Shared, String> {
        let config: Config = build.config()?;
        config.check()?;
        let authorization = || FieldName("Authorization".to_owned());
        let way = if let Some(Header { name, value }) = config.header {
            if !value.reveal().bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | 0x80..)) {
                return Err(
                    "header.value: it contains a character that a header field cannot carry".to_owned()
                );
            }
            CredentialMethod::Fixed(name, value)
        } else if let Some(Basic { username, password }) = config.basic {
            let pair = STANDARD.encode(format!("{username}:{}", password.reveal()));
            let value = Confidential::deserialize(Value::String(format!("Basic {pair}")));
            CredentialMethod::Fixed(authorization(), value.map_err(|error| error.to_string())?)
        } else if let Some(ClientCredentials { server, header }) = config.client_credentials {
            CredentialMethod::Own(header, TokenSource::of(server, build.node))
        } else if let Some(exchange) = config.token_exchange {
            let server = TokenServer::new(exchange.server);
            let (rule, bound) = (server.rule(), Bound::of(build)?);
            let TokenExchange { from, header, subject_token_type, requested_token_type, .. } = exchange;
            CredentialMethod::Exchanged(Arc::new(Exchange {
                server,
                from,
                header,
                subject_token_type,
                requested_token_type,
                rule,
                bound,
            }))
        } else if let Some(relay) = config.token_relay {
            CredentialMethod::Relayed(relay)
        } else if let Some(aws) = config.aws_sigv4 {
            CredentialMethod::Aws(aws)
        } else if let Some(signature) = config.message_signature {
            CredentialMethod::Signed(Box::new(RequestSigner::new(signature)?))
        } else {
            // The check above has found one.
            return Err("no credential is configured".to_owned());
        };
        Ok(Shared { way, status_on_error: config.status_on_error })
    }

    /// Status without a token.
    fn fail(&self) -> Step {
        let reply = Reply::new(self.status_on_error);
        reply
            .json(&json!({"message": "The gateway has no credential for the upstream"}))
            .because("no token")
            .into()
    }

    fn own(self: &Arc<Self>, ctx: &mut Context, env: &Env<'_>, is_last: bool) -> Step {
        let CredentialMethod::Own(header, source) = &self.way else { return self.fail() };
        match source.token(env, is_last) {
            TokenLookup::Token(token) => bear(ctx, header, &token),
            TokenLookup::Waits(fetch) => {
                let shared = Arc::clone(self);
                Step::wait(fetch, move |(), ctx, env| shared.own(ctx, env, true))
            }
            TokenLookup::None => self.fail(),
        }
    }

    fn exchanged(
        self: &Arc<Self>,
        exchange: &Arc<Exchange>,
        subject: String,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let decisions = env.local.part(Decisions::<Exchanged>::default);
        let types =
            [&*exchange.subject_token_type, exchange.requested_token_type.as_deref().unwrap_or_default()];
        let key = exchange.server.key(&[subject.as_bytes(), types[0].as_bytes(), types[1].as_bytes()]);
        let (shared, exchange) = (Arc::clone(self), Arc::clone(exchange));
        match decisions.look(key, env.now_ms) {
            DecisionState::Decided(exchanged) => shared.settle(&exchange, &exchanged, ctx),
            DecisionState::Asked(pending) => Step::wait(pending.wait(), move |exchanged, ctx, _| {
                let exchanged = exchanged.as_deref().unwrap_or(&Exchanged::Failed);
                shared.settle(&exchange, exchanged, ctx)
            }),
            DecisionState::Nothing(asking) => {
                let asked = Arc::clone(&exchange);
                let granted = beside(env.node, async move { asked.ask(&subject).await });
                Step::wait(granted, move |granted, ctx, env| {
                    let exchanged = exchange.remember(granted, asking, env);
                    shared.settle(&exchange, &exchanged, ctx)
                })
            }
        }
    }

    fn settle(&self, exchange: &Exchange, exchanged: &Exchanged, ctx: &mut Context) -> Step {
        match exchanged {
            Exchanged::Token(token) => {
                ctx.request.headers.remove_name(exchange.from.0.as_bytes());
                bear(ctx, &exchange.header, token)
            }
            Exchanged::Refused => challenge(", error=\"invalid_token\""),
            Exchanged::Failed => self.fail(),
        }
    }

    fn aws(self: &Arc<Self>, aws: &AwsSigv4, ctx: &mut Context, env: &Env<'_>) -> Step {
        if aws.payload == Payload::Unsigned {
            return self.signed_for_aws(ctx, env);
        }
        let shared = Arc::clone(self);
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| match read {
            BodyRead::Whole => shared.signed_for_aws(ctx, env),
            BodyRead::TooLarge => too_large(),
        };
        Step::ReadBody { limit: aws.max_req_body_size, then: Box::new(then) }
    }

    fn signed_for_aws(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let CredentialMethod::Aws(aws) = &self.way else { return self.fail() };
        let time = sigma_plugin_kit::utc::compact(env.unix_time().as_secs());
        let payload = match aws.payload {
            Payload::Signed => sigv4::sha256(ctx.body.as_deref().unwrap_or_default()),
            Payload::Unsigned => UNSIGNED_PAYLOAD.to_owned(),
        };
        let headers = &mut ctx.request.headers;
        headers.remove(HeaderId::Authorization);
        headers.remove_name(b"X-Amz-Security-Token");
        headers.replace("X-Amz-Date", time.as_bytes());
        headers.replace("X-Amz-Content-Sha256", payload.as_bytes());
        if let Some(token) = &aws.session_token {
            headers.append("X-Amz-Security-Token", token.reveal().as_bytes());
        }
        let is_signed = |name: &str| {
            name.starts_with("x-amz-") || matches!(name, "host" | "content-type" | "content-md5")
        };
        let fields = ctx
            .request
            .headers
            .iter()
            .map(|(name, value)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
        let request = Request {
            method: ctx.request.method_token(),
            target: ctx.outgoing_target(),
            paths: if aws.service == "s3" { Paths::AsTheyAre } else { Paths::Normal },
            fields: fields.filter(|(name, _)| is_signed(name)).collect(),
            payload: &payload,
        };
        let account = Account {
            access_key_id: &aws.access_key_id,
            secret_access_key: &aws.secret_access_key,
            region: &aws.region,
            service: &aws.service,
        };
        let value = account.authorization(&request, &time);
        ctx.request.headers.set(HeaderId::Authorization, value.as_bytes());
        Step::Next
    }

    fn message(self: &Arc<Self>, signer: &RequestSigner, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(limit) = signer.body_limit() else { return self.signed(ctx, env) };
        let shared = Arc::clone(self);
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| match read {
            BodyRead::Whole => shared.signed(ctx, env),
            BodyRead::TooLarge => too_large(),
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }

    fn signed(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let CredentialMethod::Signed(signer) = &self.way else { return self.fail() };
        match signer.sign(ctx, env) {
            Ok(()) => Step::Next,
            Err(reason) => {
                source::complain(reason);
                self.fail()
            }
        }
    }
}

impl Exchange {
    async fn ask(&self, subject: &str) -> Result<Granted, Denied> {
        let mut fields = vec![
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("subject_token", subject),
            ("subject_token_type", &*self.subject_token_type),
        ];
        fields.extend(self.requested_token_type.as_deref().map(|kind| ("requested_token_type", kind)));
        self.server.grant(&fields).await
    }

    /// Returns the result of a server's response, for all requests that wait for it. Only a token is remembered.
    fn remember(
        &self,
        granted: Option<Result<Granted, Denied>>,
        asking: Asking<Exchanged>,
        env: &Env<'_>,
    ) -> std::rc::Rc<Exchanged> {
        let (exchanged, until_ms) = match granted {
            Some(Ok(Granted { token, lifetime_ms })) => {
                (Exchanged::Token(token), Some(self.rule.times(env.now_ms, lifetime_ms).end_ms))
            }
            Some(Err(Denied::Subject)) => (Exchanged::Refused, None),
            Some(Err(Denied::Server(reason))) => {
                source::complain(&reason);
                (Exchanged::Failed, None)
            }
            None => (Exchanged::Failed, None),
        };
        let exchanged = std::rc::Rc::new(exchanged);
        asking.answer(&exchanged, until_ms, self.bound);
        exchanged
    }
}

impl Plugin for UpstreamAuth {
    /// A node that gets a token made of the client's responses its owner, and a cache has to know before.
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let from = match &self.0.way {
            CredentialMethod::Exchanged(exchange) => &exchange.from,
            CredentialMethod::Relayed(relay) => &relay.from,
            CredentialMethod::Fixed(..)
            | CredentialMethod::Own(..)
            | CredentialMethod::Aws(_)
            | CredentialMethod::Signed(_) => return Step::Next,
        };
        let name = self.subject(ctx, from).map(|token| digest(&SHA256, token.as_bytes()));
        ctx.mark_personal("upstream-auth", name.as_ref().map(AsRef::as_ref));
        Step::Next
    }

    fn before_proxy(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        match &self.0.way {
            CredentialMethod::Fixed(name, value) => {
                replace(ctx, name, value.reveal().as_bytes());
                Step::Next
            }
            CredentialMethod::Own(..) => self.0.own(ctx, env, false),
            CredentialMethod::Exchanged(exchange) => match self.subject(ctx, &exchange.from) {
                Some(subject) => self.0.exchanged(exchange, subject, ctx, env),
                None => challenge(""),
            },
            CredentialMethod::Relayed(TokenRelay { from, header }) => match self.subject(ctx, from) {
                Some(token) => {
                    ctx.request.headers.remove_name(from.0.as_bytes());
                    bear(ctx, header, &token)
                }
                None => challenge(""),
            },
            CredentialMethod::Aws(aws) => self.0.aws(aws, ctx, env),
            CredentialMethod::Signed(signer) => self.0.message(signer, ctx, env),
        }
    }
}

impl UpstreamAuth {
    /// The client's token. It is read once: with the second attempt the field may have another one.
    fn subject(&self, ctx: &mut Context, from: &FieldName) -> Option<String> {
        if let Some(Subject(known)) = ctx.kept::<_, Subject>(self) {
            return known.clone();
        }
        let found = subject_of(ctx, from);
        ctx.keep(self, Subject(found.clone()));
        found
    }
}

/// The client's token.
struct Subject(Option<String>);

/// Sends a token to the node.
fn bear(ctx: &mut Context, name: &FieldName, token: &str) -> Step {
    replace(ctx, name, format!("Bearer {token}").as_bytes());
    Step::Next
}

/// Sets a field, and replaces the client's value.
fn replace(ctx: &mut Context, FieldName(name): &FieldName, value: &[u8]) {
    ctx.request.headers.replace(name, value);
}

/// The only token that the client has in this field.
fn subject_of(ctx: &Context, FieldName(name): &FieldName) -> Option<String> {
    let headers = &ctx.request.headers;
    let mut values = headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
    let (Some((_, value)), None) = (values.next(), values.next()) else { return None };
    let token = after_bearer(value).unwrap_or(value).trim_ascii();
    // A text that is not a token may be a password; the scheme alone is not a token.
    (is_token(token) && !token.eq_ignore_ascii_case(b"Bearer"))
        .then(|| String::from_utf8_lossy(token).into_owned())
}

fn challenge(error: &str) -> Step {
    let reply =
        Reply::new(401).header("WWW-Authenticate", format!("Bearer realm=\"upstream\"{error}").as_bytes());
    reply.json(&json!({"message": "A token is required"})).because("the client has no token").into()
}

fn too_large() -> Step {
    Reply::new(413).json(&json!({"message": "The body is too large to be signed"})).into()
}

#[cfg(test)]
mod tests;
