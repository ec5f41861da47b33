//! `basic-auth`: name and password (RFC 7617).

mod stored_password;
#[cfg(test)]
mod tests;
mod users;

use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::owned::texts;
use sigma_plugin::{
    Auth, Build, Configuration, Context, Descriptor, Env, FileAccess, FileMember, Identity, OwnedField,
    Phase, PhaseSet, Plugin, Step,
};
use sigma_plugin_kit::decisions::{Bound, DecisionState, Decisions, Key};
use sigma_schema::Confidential;

use self::users::{Comparison, Users};
use crate::shared::policy::{AuthPolicy, Cause, Refusal, Scheme, authorization, same_secret};

/// Recognises a consumer by name and password.
pub(crate) static BASIC_AUTH: Descriptor = Descriptor {
    name: "basic-auth",
    priority: 2520,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("username")),
    owned_fields: Some(|conf| texts(conf, "user_field").map(OwnedField::sole).collect()),
    build: |build| Ok(Arc::new(BasicAuth::new(build)?)),
    files: &[FileMember { name: "auth_file", access: FileAccess::ReadFile }],
    ..Descriptor::of::<Config>()
};

/// Authenticates consumers by name and password: HTTP Basic authentication.
///
/// If the credentials do not match, they are compared again without white space, so that a line end encoded by
/// mistake does no harm.
///
/// With `users` or `auth_file` only listed users are admitted, and consumers are not searched. Passwords are stored as
/// hashes: bcrypt, `$apr1$`, `$1$`, `$5$`, `$6$`, `{SHA}` and `{SSHA}`. Slow hashes are compared on other threads, and
/// each worker remembers the results for a minute. A hash that cannot be read closes the route.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Users without consumers, as lines `NAME:HASH` of `htpasswd`.
    #[schemars(length(min = 1, max = 4096))]
    users: Option<Vec<Confidential>>,
    /// A file with such lines, which each gateway reads when the configuration is loaded.
    #[schemars(length(min = 1, max = 4096))]
    auth_file: Option<String>,
    /// The field that tells the node the name of a user of `users` or `auth_file`. Clients cannot send it.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    user_field: Option<String>,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if let Some(users) = &self.users {
            // A reference to a secret is read when the configuration is loaded.
            let texts = users.iter().map(Confidential::reveal);
            let lines: Vec<&str> = texts.filter(|text| !is_reference(text)).collect();
            if !lines.is_empty() {
                Users::read(lines.into_iter(), None)?;
            }
        }
        let is_listed = self.users.is_some() || self.auth_file.is_some();
        match self.user_field.is_some() && !is_listed {
            true => Err("user_field: it needs `users` or `auth_file`".to_owned()),
            false => Ok(()),
        }
    }
}

fn is_reference(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.starts_with("$env://") || text.starts_with("$secret://")
}

impl Scheme for Config {
    const PLUGIN: &str = "basic-auth";
    const NAME: &str = "Basic";
    const REALM: &str = "basic";
}

#[derive(Deserialize, JsonSchema)]
#[schemars(title = "work with consumer object")]
struct Consumer {
    /// The name; it must be unique among consumers.
    username: String,
    /// The password.
    password: Confidential,
}

impl Configuration for Consumer {
    fn check(&self) -> Result<(), String> {
        // The schema, which is APISIX's, allows it; but everybody can say it.
        match self.username.is_empty() {
            true => {
                Err("property \"username\" validation failed: string too short, expected at least 1, got 0"
                    .into())
            }
            false => Ok(()),
        }
    }
}

/// The credentials of a client.
#[derive(Debug, PartialEq)]
struct Credentials {
    user: Vec<u8>,
    password: Vec<u8>,
}

impl Credentials {
    const OTHER_SCHEME: Refusal =
        Credentials::invalid("Invalid authorization header format").with(Cause::Absent);
    const UNSPLIT: Refusal = Credentials::invalid("Split authorization err: invalid decoded data");

    const fn invalid(detail: &'static str) -> Refusal {
        Refusal::new("Invalid authorization in request", detail)
    }

    /// Reads a value of `Authorization`. APISIX looks for the scheme anywhere in it, and so do the
    /// clients that were written against it.
    fn parse(value: &[u8]) -> Result<Credentials, Refusal> {
        const SCHEME: &[u8] = b"basic";
        let mut windows = value.windows(SCHEME.len() + 1);
        let is_scheme = |w: &[u8]| {
            w[..SCHEME.len()].eq_ignore_ascii_case(SCHEME) && w[SCHEME.len()].is_ascii_whitespace()
        };
        let at = windows.position(is_scheme).ok_or(Self::OTHER_SCHEME)?;
        let encoded = &value[at + SCHEME.len() + 1..];
        let undecoded = |_| Self::invalid("Failed to decode authentication header");
        // More than one space may follow the scheme (RFC 9110 §11.4).
        let decoded = STANDARD.decode(encoded.trim_ascii_start()).map_err(undecoded)?;
        let colon = decoded.iter().position(|b| *b == b':').ok_or(Self::UNSPLIT)?;
        let (user, password) = (decoded[..colon].to_vec(), decoded[colon + 1..].to_vec());
        if password.iter().all(|b| *b == b':') {
            return Err(Self::UNSPLIT);
        }
        Ok(Credentials { user, password })
    }

    /// Without any white space, as APISIX compares them.
    fn squeezed(mut self) -> Credentials {
        self.user.retain(|b| !b.is_ascii_whitespace());
        self.password.retain(|b| !b.is_ascii_whitespace());
        self
    }
}

struct BasicAuth {
    shared: Arc<Shared>,
}

/// The configuration, which comparisons on other threads outlive.
struct Shared {
    config: Config,
    users: Option<Users>,
}

/// Whether name and password fit, as a worker remembers it.
struct Fits(bool);

/// How long a worker remembers a comparison.
const REMEMBERED_MS: u64 = 60_000;

/// The message for wrong names and passwords.
const INVALID: &str = "Invalid user authorization";

impl BasicAuth {
    fn new(build: &Build<'_>) -> Result<BasicAuth, String> {
        let config: Config = build.config()?;
        let users = match (&config.users, &config.auth_file) {
            (None, None) => None,
            (lines, file) => {
                let lines = lines.iter().flatten().map(Confidential::reveal);
                Some(Users::read(lines, file.as_deref())?)
            }
        };
        Ok(BasicAuth { shared: Arc::new(Shared { config, users }) })
    }
}

impl Shared {
    fn authenticate<'e>(&self, ctx: &Context, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let credentials = credentials(ctx)?;
        self.matching(env, &credentials)
            .or_else(|_| self.matching(env, &credentials.squeezed()))
            .map_err(|detail| Refusal::new(INVALID, detail))
    }

    fn matching<'e>(
        &self,
        env: &Env<'e>,
        credentials: &Credentials,
    ) -> Result<&'e Arc<Identity>, &'static str> {
        let identity =
            self.config.policy.find(env, &credentials.user, "failed to find user: invalid user")?;
        let known = identity
            .data::<Consumer>()
            .is_some_and(|known| same_secret(known.password.reveal().as_bytes(), &credentials.password));
        known.then_some(identity).ok_or("the password is wrong")
    }

    fn hide(&self, ctx: &mut Context) {
        if self.config.policy.hide_credentials {
            ctx.request.headers.remove(HeaderId::Authorization);
        }
    }

    /// Ends the hook for a listed user.
    fn end(&self, user: &[u8], fits: bool, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.hide(ctx);
        if !fits {
            let refusal = Refusal::new(INVALID, "the user is not listed, or the password is wrong");
            return self.config.policy.conclude(ctx, env, Err(refusal));
        }
        ctx.mark_personal(Config::PLUGIN, Some(user));
        if let Some(field) = &self.config.user_field {
            ctx.request.headers.remove_name(field.as_bytes());
            ctx.request.headers.append(field, user);
        }
        Step::Next
    }
}

fn credentials(ctx: &Context) -> Result<Credentials, Refusal> {
    let value = authorization(ctx).ok_or(Refusal::absent("Missing authorization in request"))?;
    Credentials::parse(value)
}

impl BasicAuth {
    /// The hook where the users are listed.
    fn listed(&self, users: &Users, ctx: &mut Context, env: &Env<'_>) -> Step {
        let shared = &self.shared;
        let Credentials { user, password } = match credentials(ctx) {
            Ok(credentials) => credentials,
            Err(refusal) => {
                shared.hide(ctx);
                return shared.config.policy.conclude(ctx, env, Err(refusal));
            }
        };
        match users.comparison(&user, &password) {
            None => shared.end(&user, false, ctx, env),
            Some(comparison) if comparison.is_slow() => {
                let key = comparison.key(&user);
                Pending { shared: Arc::clone(shared), user, key, comparison }.step(ctx, env)
            }
            Some(comparison) => {
                let fits = comparison.run();
                shared.end(&user, fits, ctx, env)
            }
        }
    }
}

/// A slow comparison, which another request of the worker may have begun.
struct Pending {
    shared: Arc<Shared>,
    user: Vec<u8>,
    key: Key,
    comparison: Comparison,
}

impl Pending {
    fn step(self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let decisions = env.local.part(Decisions::<Fits>::default);
        match decisions.look(self.key, env.now_ms) {
            DecisionState::Decided(fits) => self.shared.end(&self.user, fits.0, ctx, env),
            DecisionState::Asked(pending) => Step::wait(pending.wait(), move |fits, ctx, env| match fits {
                Some(fits) => self.shared.end(&self.user, fits.0, ctx, env),
                // The client of the request that began it has left.
                None => self.step(ctx, env),
            }),
            DecisionState::Nothing(asking) => {
                let Pending { shared, user, comparison, .. } = self;
                Step::wait(comparison.run_beside(), move |fits, ctx, env| {
                    let Some(fits) = fits else {
                        shared.hide(ctx);
                        let refusal = Refusal::new(INVALID, "too many password checks are pending");
                        return shared.config.policy.conclude(ctx, env, Err(refusal.with(Cause::Unjudged)));
                    };
                    let until_ms = env.now_ms.saturating_add(REMEMBERED_MS);
                    asking.answer(&Rc::new(Fits(fits)), Some(until_ms), Bound::default());
                    shared.end(&user, fits, ctx, env)
                })
            }
        }
    }
}

impl Plugin for BasicAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let shared = &self.shared;
        if let Some(users) = &shared.users {
            return self.listed(users, ctx, env);
        }
        let found = shared.authenticate(ctx, env);
        shared.hide(ctx);
        shared.config.policy.conclude(ctx, env, found)
    }
}
