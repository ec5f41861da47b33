//! `cas-auth`: a browser logs in at a CAS server.
//!
//! | file | question |
//! |---|---|
//! | `config` | the configuration |
//! | `protocol` | the server's answers about a ticket, and the end of one |
//! | `sessions` | who has logged in |

mod config;
mod protocol;
mod sessions;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::json;
use sigma_http::Method;
use sigma_plugin::credentials::Credential;
use sigma_plugin::outbound::{CallError, ServiceResponse};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::described::schema_of;

use self::config::{Attributes, Config, SERVER, TIMEOUT_MS};
use self::sessions::Sessions;
use crate::shared::form::{Form, escaped};
use crate::shared::origin::{is_foreign, refuse_logout};
use crate::shared::policy::{only_argument, remove_cookie};
use crate::shared::seal::only_cookie;
use crate::shared::way_back;
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "cas-auth";

/// Lets browsers pass that have logged in at a CAS server.
pub(crate) static CAS_AUTH: Descriptor = Descriptor {
    name: NAME,
    priority: 2597,
    example: include_str!("example.md"),
    identifies: true,
    credentials: Some(|_| vec![Credential::argument("ticket")]),
    phases: PhaseSet::of(&[Phase::Access]),
    guards: true,
    attributes: Some(schema_of::<Attributes>),
    warnings: Some(|_, conf| config::warnings(conf)),
    upstreams: Some(|conf| config::upstream(conf).into_iter().collect()),
    build: |build| Ok(Arc::new(CasAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The cookie with the way back of a browser that is logging in.
const WAY_BACK: &str = "CAS_REQUEST_URI";

/// Most bytes of a way back with its query: browsers take cookies of 4,096 bytes.
const WAY_BACK_BYTES: usize = 2_500;

struct CasAuth(Arc<Party>);

/// A CAS server, and the service that the gateway is to it.
struct Party {
    config: Config,
    upstream: Box<str>,
    /// A fingerprint that separates the sessions of this configuration from others.
    fingerprint: String,
    session_cookie: String,
    key: hmac::Key,
    sessions: Arc<Sessions>,
}

impl CasAuth {
    fn new(build: &Build<'_>) -> Result<CasAuth, String> {
        let config: Config = build.config()?;
        let hash =
            digest(&SHA256, format!("{}|{}", config.idp_uri.text, config.cas_callback_uri.text).as_bytes());
        let fingerprint: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(CasAuth(Arc::new(Party {
            upstream: build.upstream_key(SERVER).into(),
            session_cookie: format!("CAS_SESSION_{fingerprint}"),
            fingerprint,
            key: hmac::Key::new(hmac::HMAC_SHA256, config.cookie.secret.reveal().as_bytes()),
            sessions: Sessions::of(build)?,
            config,
        })))
    }
}

fn refuse(status: u16, message: &'static str) -> Step {
    Reply::new(status).json(&json!({ "message": message })).because(message).into()
}

impl Party {
    /// The value of `Set-Cookie` for a cookie; without a value it is to be forgotten.
    fn cookie(&self, name: &str, value: Option<&str>) -> String {
        let cookie = &self.config.cookie;
        let secure = if cookie.secure { "; Secure" } else { "" };
        let value = value.unwrap_or("deleted; Max-Age=0");
        format!("{name}={value}; Path=/; HttpOnly{secure}; SameSite={}", cookie.samesite.as_str())
    }

    /// The URL that the server knows the gateway by.
    fn service(&self, ctx: &Context) -> String {
        let callback = &self.config.cas_callback_uri;
        if callback.is_absolute {
            return callback.text.clone();
        }
        let (host, port) = (ctx.host_name(), ctx.client.local.map_or(0, |local| local.port()));
        format!("{}://{}:{port}{}", ctx.scheme(), String::from_utf8_lossy(&host), callback.path)
    }

    fn session<'c>(&self, ctx: &'c Context) -> Option<&'c str> {
        only_cookie(&ctx.request.headers, &self.session_cookie).and_then(|value| str::from_utf8(value).ok())
    }

    /// Ends the session at the gateway, and sends the browser to where it ends at the server.
    fn log_out(&self, ctx: &Context) -> Step {
        let Some(ticket) = self.session(ctx) else {
            return Reply::new(401).text("").because("no session").into();
        };
        self.sessions.end(&self.fingerprint, ticket);
        let reply = Reply::new(302).header("Location", format!("{}/logout", self.config.idp_uri.base()));
        reply.header("Set-Cookie", self.cookie(&self.session_cookie, None)).text("").into()
    }

    /// Ends a session because the server says so.
    fn read_logout(self: Arc<Self>) -> Step {
        let limit = self.config.max_req_body_size;
        let then = move |ctx: &mut Context, _: &Env<'_>, read| {
            let body = ctx.body.as_deref().filter(|_| read == BodyRead::Whole).unwrap_or_default();
            match protocol::ended_session(body) {
                Some(ticket) => {
                    self.sessions.end(&self.fingerprint, &ticket);
                    Reply::new(200).text("").into()
                }
                None => refuse(400, "invalid logout request from IdP, no ticket"),
            }
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }

    /// Sends a browser to the server.
    fn log_in(&self, had_session: bool, ctx: &Context) -> Step {
        let back = way_back::within(WAY_BACK_BYTES, ctx);
        let service = escaped(self.service(ctx).as_bytes());
        let reply = Reply::new(302)
            .header("Location", format!("{}/login?service={service}", self.config.idp_uri.base()));
        let mut reply = reply.header("Set-Cookie", self.cookie(WAY_BACK, Some(&self.signed(&back))));
        if had_session {
            reply = reply.header("Set-Cookie", self.cookie(&self.session_cookie, None));
        }
        reply.text("").into()
    }

    fn signed(&self, back: &str) -> String {
        let tag = hmac::sign(&self.key, back.as_bytes());
        format!("{}.{}", STANDARD_NO_PAD.encode(back), STANDARD_NO_PAD.encode(tag))
    }

    /// The way back that the gateway has given the browser.
    fn way_back(&self, ctx: &Context) -> Option<String> {
        let value = str::from_utf8(only_cookie(&ctx.request.headers, WAY_BACK)?).ok()?;
        let (back, tag) = value.split_once('.')?;
        let (back, tag) = (STANDARD_NO_PAD.decode(back).ok()?, STANDARD_NO_PAD.decode(tag).ok()?);
        hmac::verify(&self.key, &back, &tag).ok()?;
        String::from_utf8(back).ok().filter(|back| way_back::is_own(back.as_bytes()))
    }

    /// Takes a browser in that comes back with a ticket.
    fn call_back(self: Arc<Self>, ticket: &[u8], ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(back) = self.way_back(ctx) else { return refuse(401, "invalid callback state") };
        let Some(ticket) = protocol::ticket(ticket) else { return refuse(401, "invalid ticket") };
        let query = Form::default().with("ticket", &ticket).with("service", self.service(ctx));
        let service = &self.config.idp_uri.service;
        let mut call = service.get(&self.upstream, ctx, TIMEOUT_MS);
        let path = service.target.trim_end_matches('/');
        call.target = format!("{path}/serviceValidate?{}", query.text()).into_bytes();
        Step::wait(env.outbound.call(call), move |answer, _, env| self.settle(ticket, &back, answer, env))
    }

    fn settle(
        &self,
        ticket: String,
        back: &str,
        answer: Result<ServiceResponse, CallError>,
        env: &Env<'_>,
    ) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let fault = match answer {
            Ok(ServiceResponse { status: 200, body, .. }) if protocol::user(&body).is_some() => {
                if self.sessions.begin(&self.fingerprint, &ticket, env) {
                    let reply = Reply::new(302).header("Location", back);
                    let reply = reply.header("Set-Cookie", self.cookie(&self.session_cookie, Some(&ticket)));
                    return reply.header("Set-Cookie", self.cookie(WAY_BACK, None)).text("").into();
                }
                "the ticket was used before".to_owned()
            }
            Ok(ServiceResponse { status, .. }) => {
                format!("the server responded with {status} and without a user")
            }
            Err(error) => error.to_string(),
        };
        if let Some(left_out) = COMPLAINT.due() {
            tracing::warn!(left_out, fault, "cas-auth: a login failed");
        }
        refuse(401, "invalid ticket")
    }
}

impl Plugin for CasAuth {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let party = &self.0;
        let (method, config) = (ctx.request.method, &party.config);
        if method == Method::Get && ctx.uri == config.logout_uri.0.as_bytes() {
            if is_foreign(ctx, None) {
                return refuse_logout();
            }
            return party.log_out(ctx);
        }
        let is_callback = ctx.uri == config.cas_callback_uri.path.as_bytes();
        if is_callback && method == Method::Post {
            return Arc::clone(party).read_logout();
        }
        if let Some(ticket) = party.session(ctx) {
            if !party.sessions.renew(&party.fingerprint, ticket, env) {
                return party.log_in(true, ctx);
            }
            let name = digest(&SHA256, [&party.fingerprint[..], ticket].concat().as_bytes());
            ctx.mark_personal("cas-auth", Some(name.as_ref()));
            // The node has no use for it, and could use it.
            remove_cookie(&mut ctx.request.headers, &party.session_cookie);
            return Step::Next;
        }
        match only_argument(ctx, "ticket").filter(|_| is_callback) {
            Some(ticket) => Arc::clone(party).call_back(&ticket, ctx, env),
            None => party.log_in(false, ctx),
        }
    }
}

#[cfg(test)]
mod tests;
