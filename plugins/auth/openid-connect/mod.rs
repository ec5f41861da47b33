//! `openid-connect`: users who log in at a provider, and programs that bring its tokens.
//!
//! | file | question |
//! |---|---|
//! | `config`, `client_config`, `session_config` | the configuration |
//! | `bearer` | requests that bring a token |
//! | `identity` | the required claims of a user, and the fields for the node |
//! | `client`, `clients` | who the gateway is to the provider |
//! | `dpop` | how it proves that it holds the key to which tokens are bound |
//! | `questions`, `put` | requests to the provider, and their transport |
//! | `random` | random values |
//! | `session` | the data and the lifetime of a login |
//! | `store` | where sessions are |
//! | `resume` | requests of those who have logged in |
//! | `login` | how a browser is sent to the provider |
//! | `callback` | how it comes back |
//! | `logout` | how a session ends |
//! | `backchannel` | how the provider ends it |

mod backchannel;
mod bearer;
mod callback;
mod client;
mod client_config;
mod clients;
mod config;
mod dpop;
mod identity;
mod login;
mod logout;
mod put;
mod questions;
mod random;
mod resume;
mod session;
mod session_config;
mod store;

use std::sync::Arc;

use aws_lc_rs::digest::{self, SHA256};
use sigma_plugin::{
    Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Slot, Step,
};
use sigma_schema::validation;

use self::bearer::{Brought, Introspected};
use self::callback::Returned;
use self::client::Client;
use self::config::Config;
use self::resume::{Renewals, Renewed};
use self::session::Sessions;
use self::store::Store;
use crate::shared::origin::{is_foreign, refuse_logout};
use crate::shared::tokens::{Address, Algorithm, KeyRing, Metadata, MetadataLookup, Provider};

/// Authenticates users and programs by OpenID Connect.
pub(crate) static OPENID_CONNECT: Descriptor = Descriptor {
    name: "openid-connect",
    version: "0.2",
    priority: 2599,
    example: include_str!("example.md"),
    credentials: Some(|_| identity::credentials()),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    guards: true,
    check: Some(clients::check),
    warnings: Some(|_, conf| config::warnings(conf)),
    identifies: true,
    owned_fields: Some(identity::owned_fields),
    build: |build| Ok(Arc::new(OpenidConnect::new(build)?)),
    ..Descriptor::of::<Config>()
};

struct OpenidConnect(Arc<Party>);

/// The gateway as a provider knows it (a relying party), by one configuration.
struct Party {
    config: Config,
    /// The key of `public_key`.
    ring: Option<Arc<KeyRing>>,
    /// The accepted signature algorithms of the provider's tokens.
    algorithms: Vec<Algorithm>,
    schema: Option<validation::Schema>,
    provider: Arc<Provider>,
    /// As who it asks about tokens.
    introspector: Client,
    /// As who it requests tokens.
    client: Client,
    /// As who it leaves questions before browsers are sent with them; None if it does not.
    pusher: Option<Client>,
    introspected: Arc<Introspected>,
    returned: Arc<Returned>,
    /// None where there are no logins.
    sessions: Option<Sessions>,
    store: Store,
    renewals: Arc<Renewals>,
    /// An identity of the configuration, for digests.
    context: Vec<u8>,
}

impl OpenidConnect {
    fn new(build: &Build<'_>) -> Result<OpenidConnect, String> {
        let config: Config = build.config()?;
        let settings = config.provider()?;
        let algorithms = config.algorithms();
        let ring = config.public_key.as_ref().map(|pem| KeyRing::of_pem(pem, &algorithms)).transpose()?;
        let schema = config.claim_schema.as_ref().map(validation::Schema::compile).transpose()?;
        let clients = config.clients()?;
        let sessions = config.session.as_ref().filter(|_| !config.bearer_only);
        let issuer = settings.issuer.clone();
        let discovery = config.discovery.as_ref().map_or("", Address::as_str).to_owned();
        let store = sessions.map_or(Store::Cookie, |session| Store::new(session, build.node));
        let sessions =
            sessions.map(|session| Sessions::new(session, &[&issuer, &discovery, &config.client_id]));
        let segment = config.cache_segment.as_deref().unwrap_or_default();
        let context = [&*discovery, &issuer, &config.client_id, segment].join("\n").into_bytes();
        Ok(OpenidConnect(Arc::new(Party {
            ring: ring.map(Arc::new),
            algorithms,
            schema,
            provider: Provider::of(settings, build.node),
            introspector: clients.introspector,
            client: clients.tokens,
            pusher: clients.pusher,
            introspected: build.node.part(Introspected::default),
            returned: build.node.inherited(Returned::default),
            sessions,
            store,
            renewals: build.node.part(Renewals::default),
            context,
            config,
        })))
    }
}

impl Party {
    /// Continues with the provider's metadata; without it, if it cannot be fetched.
    fn with_metadata(
        self: &Arc<Self>,
        is_last: bool,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(&Arc<Party>, Option<Arc<Metadata>>, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        match self.provider.look(env, is_last) {
            MetadataLookup::Metadata(metadata) => then(self, Some(metadata), ctx, env),
            MetadataLookup::Away => then(self, None, ctx, env),
            MetadataLookup::Waits(fetched) => {
                let party = Arc::clone(self);
                Step::wait(fetched, move |(), ctx, env| party.with_metadata(true, ctx, env, then))
            }
        }
    }

    /// Attaches the user to a request, or the token if its user has no name.
    fn mark(&self, sub: Option<&str>, token: &str, ctx: &mut Context) {
        let name = match sub.filter(|sub| !sub.is_empty()) {
            Some(sub) => self.digest("user", &[sub.as_bytes()]),
            None => self.digest("token", &[token.as_bytes()]),
        };
        ctx.mark_personal("openid-connect", Some(&name));
    }

    /// A digest of these parts, for this provider and client, and this purpose.
    fn digest(&self, purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
        let mut digest = digest::Context::new(&SHA256);
        for part in [&self.context[..], purpose.as_bytes()].iter().chain(parts) {
            digest.update(&part.len().to_be_bytes());
            digest.update(part);
        }
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.finish().as_ref());
        bytes
    }
}

impl Plugin for OpenidConnect {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let party = &self.0;
        let offered = identity::has_offered_token(&ctx.request.headers);
        let slot = Slot::from(self);
        if let Some(sessions) = &party.sessions
            && sessions.is_logout(&party.config, ctx)
        {
            if is_foreign(ctx, party.config.discovery.as_ref().map(Address::as_str)) {
                return refuse_logout();
            }
            return party.log_out(ctx, env);
        }
        if party.is_provider(ctx) {
            return party.end_by_provider();
        }
        if party.config.takes_tokens() {
            match bearer::brought(ctx) {
                Brought::Broken => return bearer::broken(),
                Brought::Token(token) => return party.admit(token, ctx, env),
                Brought::Nothing if offered => {
                    return identity::challenge(&party.config, Some("no token in Authorization"));
                }
                Brought::Nothing if party.config.bearer_only => {
                    return identity::challenge(&party.config, None);
                }
                Brought::Nothing => {}
            }
        }
        match &party.sessions {
            Some(_) => party.recognise(slot, ctx, env),
            // Logins are impossible: the check says that there are sessions unless only tokens are accepted.
            None => Reply::new(500).because("the plugin has no sessions (bearer_only)").into(),
        }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        if let Some(Renewed(cookies)) = ctx.take_kept(self) {
            cookies.iter().for_each(|cookie| ctx.response.headers.append("Set-Cookie", cookie.as_bytes()));
        }
        ResponseStep::Next
    }
}

#[cfg(test)]
mod tests;
