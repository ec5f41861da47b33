//! `login-guard`: refuses clients whose logins fail too often.

mod counts;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::HeaderId;
use sigma_plugin::address::network_of;
use sigma_plugin::record::Source;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Step,
};
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use crate::shared::policy::authorization;
use counts::{Counts, Key, Limit, key};
use sigma_plugin_kit::clock::process_ms;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::tallies::{Counted, Event, counted};

/// The plugin.
pub(crate) static LOGIN_GUARD: Descriptor = Descriptor {
    name: "login-guard",
    priority: 2910,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    guards: true,
    variables: &[
        VariableField::guard("account", VariableForm::Template),
        VariableField::guard("credentials.*", VariableForm::Name),
    ],
    build: |build| Ok(Arc::new(LoginGuard::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Refuses clients whose logins fail too often, before a login plugin sees the request.
///
/// It counts failed logins by client address (an IPv6 /64 is one address) and by account. An address that reaches
/// `max_failures` within `time_window` is blocked for `block_time`: its requests get `rejected_code` with
/// `Retry-After`. An account that reaches `account_max_failures` is blocked too, except for addresses from which it
/// has logged in within `known_for`. So failed logins of others do not lock its user out. Behind a proxy, set the
/// client's address with the setting `client_address` or the plugin `real-ip`: otherwise all clients have the address
/// of the proxy.
///
/// A failed login is a request with a credential to which a plugin that identifies users replies with one of
/// `statuses`. Such plugins are `basic-auth`, `multi-auth`, `openid-connect`, `forward-auth` and others. The status of
/// the login plugin counts, even if another plugin changes the response. A request that becomes the anonymous consumer
/// because its credential is wrong is a failed login too. Not counted are requests without a credential, such as the
/// first one of a browser, replies of other plugins, and credentials that could not be checked because a directory or
/// an issuer is down.
///
/// Credentials are `Authorization`, `Proxy-Authorization`, the fields and query arguments that the login plugin
/// declares, and `credentials`. Without `account` the account is the user name of Basic credentials, in lower case and
/// without white space. A request whose account is unknown counts for its address alone.
///
/// Counts are local to this gateway and shared by its workers. They survive reloads and upgrades, and begin again if the
/// configuration of the plugin changes. In a service, all routes of the service share them; in a global rule, all routes.
/// The tables have 64 MiB for failed logins, 32 MiB for blocks and 32 MiB for known addresses: some 600,000, 300,000 and
/// 300,000 entries. A full table forgets the oldest failed logins and the oldest known addresses, and no block. Accounts
/// are only stored as hashes. A client that times its attempts can fail nearly twice `max_failures` times within one
/// `time_window`, and logins that are under way when a block begins are finished. The error log names blocked addresses,
/// at most one a second, and the metric `login_guard_events_total` counts failed logins, blocks and refusals.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Failed logins of an address within `time_window` that block it.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = 10))]
    max_failures: u64,
    /// Failed logins of an account within `time_window` that block it; 0 blocks no account. Ten times `max_failures`
    /// unless set.
    #[schemars(range(max = 10_000_000))]
    account_max_failures: Option<u64>,
    /// Seconds within which failed logins are counted together.
    #[schemars(range(min = 1, max = 86_400), extend("default" = 60))]
    time_window: u64,
    /// Seconds for which an address or account is blocked.
    #[schemars(range(min = 1, max = 2_592_000), extend("default" = 300))]
    block_time: u64,
    /// Seconds for which an address counts as known to an account after a successful login.
    #[schemars(range(min = 1, max = 31_536_000), extend("default" = 86_400))]
    known_for: u64,
    /// Statuses of failed logins.
    #[schemars(length(min = 1), inner(range(min = 400, max = 599)))]
    #[schemars(extend("uniqueItems" = true, "default" = [401]))]
    statuses: Vec<u16>,
    /// The account of a request, a text with variables. Take it from the field that the login plugin reads.
    #[schemars(length(min = 1, max = 1024))]
    account: Option<Template>,
    /// Variables that count as credentials if they have a value, such as `cookie_session` or `http_x_token`. With
    /// `request_method`, which always has one, each reply with one of `statuses` counts.
    #[schemars(inner(length(min = 1)), extend("default" = []))]
    credentials: Vec<String>,
    /// Whether responses of nodes with one of `statuses` are failed logins too. A successful login at a node does not
    /// make an address known.
    #[schemars(extend("default" = false))]
    count_upstream: bool,
    /// Status of refused requests.
    #[schemars(range(min = 400, max = 599), extend("default" = 429))]
    rejected_code: u16,
    /// Text of the member `error_msg` in the body of refusals. Default: the status.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match self.account.as_ref().and_then(Template::literal) {
            Some(text) => {
                Err(format!("account: `{text}` has no variable, so that all users share one account"))
            }
            None => Ok(()),
        }
    }
}

/// Something that is counted for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardEvent {
    Failure,
    AddressBlock,
    AccountBlock,
    AddressRefusal,
    AccountRefusal,
}

impl Event for GuardEvent {
    const METRIC: &'static str = "login_guard_events_total";
    const HELP: &'static str = "Failed logins, and blocks and refusals of login-guard";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("event", "failed_login")],
        &[("event", "address_blocked")],
        &[("event", "account_blocked")],
        &[("event", "address_refused")],
        &[("event", "account_refused")],
    ];

    fn number(self) -> usize {
        self as usize
    }
}

/// A request that may be a login, as it came.
struct Attempt {
    address: Key,
    account: Option<Account>,
    /// It has a credential, whatever login plugins declare.
    has_credential: bool,
}

/// The account of a request.
struct Account {
    key: Key,
    /// The account and the address together.
    pair: Key,
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Failed,
    Succeeded,
    /// It is no login, or nothing is known of its result.
    Open,
}

struct LoginGuard {
    config: Config,
    credentials: Vec<VarName>,
    address_limit: Limit,
    account_limit: Option<Limit>,
    /// Resource and configuration: keys begin with it.
    place: String,
    counts: Arc<Counts>,
    secret: hmac::Key,
    events: Counted<GuardEvent>,
    resource: Box<str>,
}

impl LoginGuard {
    fn new(build: &Build<'_>) -> Result<LoginGuard, String> {
        let config: Config = build.config()?;
        let (counts, secret) = Counts::of(build.node)?;
        let limit =
            |most| Limit { most, window_ms: config.time_window * 1000, block_ms: config.block_time * 1000 };
        let account_most = config.account_max_failures.unwrap_or(config.max_failures * 10);
        Ok(LoginGuard {
            credentials: config
                .credentials
                .iter()
                .map(|name| VarName::parse(name.strip_prefix('$').unwrap_or(name)))
                .collect(),
            address_limit: limit(config.max_failures),
            account_limit: (account_most > 0).then(|| limit(account_most)),
            place: format!("{}:{:x}", build.resource, build.conf_hash()),
            counts,
            secret,
            events: counted(build.node, build.resource),
            resource: build.resource.into(),
            config,
        })
    }

    fn key(&self, kind: &str, parts: [&[u8]; 2]) -> Key {
        key(&self.secret, &[self.place.as_bytes(), kind.as_bytes(), parts[0], parts[1]])
    }

    fn attempt(&self, ctx: &Context) -> Attempt {
        let address = address_bytes(ctx.client.addr);
        let account = self.account_limit.and_then(|_| self.account_of(ctx)).map(|name| Account {
            key: self.key("account", [&name, b""]),
            pair: self.key("pair", [&name, &address]),
        });
        let has = |id| ctx.request.headers.has(id);
        let has_credential = has(HeaderId::Authorization)
            || has(HeaderId::ProxyAuthorization)
            || self.credentials.iter().any(|name| ctx.get(name).is_some_and(|value| !is_empty(&value)));
        Attempt { address: self.key("address", [&address, b""]), account, has_credential }
    }

    /// The account of a request, the same for all spellings that a login plugin may take for one.
    fn account_of(&self, ctx: &Context) -> Option<Vec<u8>> {
        let name = match &self.config.account {
            None => user_name(authorization(ctx)?)?,
            Some(template) => {
                let mut name = Vec::new();
                (template.render(ctx, &mut name) > 0).then_some(name)?
            }
        };
        let name = String::from_utf8_lossy(&name);
        let name: String = name.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect();
        (!name.is_empty()).then(|| name.into_bytes())
    }

    /// The time in milliseconds when the block of a request ends, and the event of its refusal; None if it is not blocked.
    fn refused_until(&self, attempt: &Attempt, now_ms: u64) -> Option<(u64, GuardEvent)> {
        let until = |key, limit| self.counts.blocked_until(key, limit, now_ms);
        if let Some(until_ms) = until(&attempt.address, self.address_limit) {
            return Some((until_ms, GuardEvent::AddressRefusal));
        }
        let (account, limit) = (attempt.account.as_ref()?, self.account_limit?);
        let until_ms = until(&account.key, limit)?;
        (!self.counts.knows(&account.pair, now_ms)).then_some((until_ms, GuardEvent::AccountRefusal))
    }

    fn refuse(&self, wait_ms: u64) -> Step {
        let seconds = wait_ms.div_ceil(1000).max(1);
        let reply = Reply::new(self.config.rejected_code).header("Retry-After", seconds.to_string());
        match &self.config.rejected_msg {
            Some(message) => reply.json(&json!({"error_msg": message})).into(),
            None => reply.into(),
        }
    }

    fn outcome(&self, attempt: &Attempt, ctx: &Context) -> Outcome {
        let fails = |status| self.config.statuses.contains(&status);
        match ctx.login.responder() {
            Some((entry, status)) if entry.identifies() && status >= 400 => {
                let is_login = attempt.has_credential || entry.credentials.were_sent(&ctx.request);
                return match is_login && fails(status) && !ctx.login.is_unjudged() {
                    true => Outcome::Failed,
                    false => Outcome::Open,
                };
            }
            None if self.config.count_upstream
                && attempt.has_credential
                && ctx.record.source == Source::Upstream
                && ctx.record.upstream_statuses.last().is_some_and(|status| fails(*status)) =>
            {
                return Outcome::Failed;
            }
            _ => {}
        }
        match &ctx.identity {
            Some(identity) if identity.is_anonymous() => match ctx.login.has_wrong() {
                true => Outcome::Failed,
                false => Outcome::Open,
            },
            Some(_) => Outcome::Succeeded,
            None if ctx.personal.is_marked() => Outcome::Succeeded,
            None => Outcome::Open,
        }
    }

    fn fail(&self, attempt: &Attempt, ctx: &Context, env: &Env<'_>, now_ms: u64) {
        self.events.count(env, GuardEvent::Failure);
        if self.counts.fail(&attempt.address, self.address_limit, now_ms) {
            static BLOCKED: LogThrottle = LogThrottle::new();
            self.events.count(env, GuardEvent::AddressBlock);
            if let Some(left_out) = BLOCKED.due() {
                let address = ctx.client.addr.map_or("unix:".to_owned(), |addr| network_of(addr).to_string());
                let (resource, seconds) = (&self.resource, self.config.block_time);
                tracing::warn!(%resource, address, seconds, left_out, "login-guard: an address is blocked, too many of its logins failed");
            }
        }
        let (Some(account), Some(limit)) = (&attempt.account, self.account_limit) else { return };
        if self.counts.fail(&account.key, limit, now_ms) {
            static BLOCKED: LogThrottle = LogThrottle::new();
            self.events.count(env, GuardEvent::AccountBlock);
            if let Some(left_out) = BLOCKED.due() {
                let (resource, seconds) = (&self.resource, self.config.block_time);
                tracing::warn!(%resource, seconds, left_out, "login-guard: an account is blocked for unknown addresses, too many of its logins failed");
            }
        }
    }
}

/// The address that a client is counted by; empty for a client on a Unix socket.
fn address_bytes(addr: Option<IpAddr>) -> Vec<u8> {
    match addr.map(network_of) {
        Some(IpAddr::V4(addr)) => addr.octets().to_vec(),
        Some(IpAddr::V6(addr)) => addr.octets().to_vec(),
        None => Vec::new(),
    }
}

fn is_empty(value: &VarValue<'_>) -> bool {
    match value {
        VarValue::Text(text) => text.is_empty(),
        VarValue::List(items) => items.is_empty(),
        VarValue::Bool(truth) => !truth,
    }
}

/// The user name of a value of `Authorization` with name and password. Login plugins look for the scheme anywhere in it,
/// and so does this: a name that the guard misses is a name that can be guessed at without end.
fn user_name(value: &[u8]) -> Option<Vec<u8>> {
    let decoded = |at: usize, scheme| {
        let encoded = after_scheme(&value[at..], scheme)?;
        let mut name = STANDARD.decode(encoded.trim_ascii()).ok()?;
        name.truncate(name.iter().position(|byte| *byte == b':')?);
        Some(name)
    };
    (0..value.len()).find_map(|at| decoded(at, "basic").or_else(|| decoded(at, "ldap")))
}

/// The rest of a text that begins with the name of a scheme and white space.
fn after_scheme<'v>(value: &'v [u8], scheme: &str) -> Option<&'v [u8]> {
    let (name, rest) = value.split_at_checked(scheme.len())?;
    (name.eq_ignore_ascii_case(scheme.as_bytes()) && rest.first()?.is_ascii_whitespace()).then_some(rest)
}

impl Plugin for LoginGuard {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (attempt, now_ms) = (self.attempt(ctx), process_ms());
        if let Some((until_ms, event)) = self.refused_until(&attempt, now_ms) {
            self.events.count(env, event);
            return self.refuse(until_ms.saturating_sub(now_ms));
        }
        ctx.keep(self, attempt);
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        // Taken: where another node is queried, its response is not a second login.
        let Some(attempt) = ctx.take_kept::<_, Attempt>(self) else { return ResponseStep::Next };
        match (self.outcome(&attempt, ctx), &attempt.account) {
            (Outcome::Failed, _) => self.fail(&attempt, ctx, env, process_ms()),
            (Outcome::Succeeded, Some(account)) => {
                self.counts.remember(&account.pair, self.config.known_for * 1000, process_ms());
            }
            _ => {}
        }
        ResponseStep::Next
    }

    fn foresee(&self, ctx: &mut Context) -> Option<Value> {
        let now_ms = process_ms();
        let mut shown =
            json!({"max_failures": self.config.max_failures, "time_window": self.config.time_window});
        if let Some((until_ms, event)) = self.refused_until(&self.attempt(ctx), now_ms) {
            shown["refused"] =
                (if event == GuardEvent::AddressRefusal { "address" } else { "account" }).into();
            shown["seconds_left"] = until_ms.saturating_sub(now_ms).div_ceil(1000).into();
        }
        Some(shown)
    }
}
