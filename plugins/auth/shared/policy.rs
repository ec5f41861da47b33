//! The last steps of all authenticating plugins after a credential was read: accept its owner, use the
//! anonymous consumer, or refuse with a challenge (RFC 9110 §11.6.1).

use std::marker::PhantomData;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::variables::{cookies, pairs};
use sigma_plugin::{Context, Env, Identity, Reply, Step};

use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::networks::Networks;

/// An authentication scheme (RFC 9110 §11.1).
pub(crate) trait Scheme {
    /// The plugin that offers it, under whose name consumers are found.
    const PLUGIN: &'static str;
    /// Begins the challenge.
    const NAME: &'static str;
    /// The realm, unless the configuration names another one.
    const REALM: &'static str;
}

/// The fields that all authentication plugins have, for any credential.
#[derive(Deserialize, JsonSchema)]
#[serde(bound = "S: Scheme")]
#[schemars(bound = "S: Scheme")]
pub(crate) struct AuthPolicy<S> {
    /// Whether the credential is removed before the node gets the request, at every place that the plugin reads.
    #[schemars(extend("default" = false))]
    pub(crate) hide_credentials: bool,
    /// The realm of the challenge in `WWW-Authenticate`.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[ !#-\[\]-~]+$"), extend("default" = S::REALM))]
    pub(crate) realm: String,
    /// The consumer for unauthenticated requests.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<Box<str>>,
    /// Addresses and networks of clients that need no credentials: each request has an allowed address or valid
    /// credentials. Such a request has no consumer.
    #[schemars(length(min = 1))]
    #[schemars(extend("items" = {"type": "string", "description": "An address or a network."}))]
    exempt_addresses: Option<Networks>,
    #[serde(skip)]
    scheme: PhantomData<fn() -> S>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The message for the client.
    pub(crate) message: &'static str,
    /// The message for the log. Never holds anything that the client sent.
    pub(crate) detail: &'static str,
    /// The cause in terms of the credential.
    pub(crate) cause: Cause,
}

/// Why a credential does not authenticate a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The request has no credential of the plugin's kind.
    Absent,
    /// The credential is wrong.
    Wrong,
    /// The credential was not judged: a directory does not respond, or a nonce is stale.
    Unjudged,
}

impl Refusal {
    /// A wrong credential.
    pub(crate) const fn new(message: &'static str, detail: &'static str) -> Refusal {
        Refusal { message, detail, cause: Cause::Wrong }
    }

    /// A wrong credential, with the same text for client and log.
    pub(crate) const fn plain(message: &'static str) -> Refusal {
        Refusal::new(message, message)
    }

    /// No credential, with the same text for client and log.
    pub(crate) const fn absent(message: &'static str) -> Refusal {
        Refusal::plain(message).with(Cause::Absent)
    }

    /// The same refusal for another cause.
    pub(crate) const fn with(self, cause: Cause) -> Refusal {
        Refusal { cause, ..self }
    }
}

impl<S: Scheme> AuthPolicy<S> {
    /// Returns the consumer with this `key`; the text for the log if it does not exist. An empty key matches
    /// no consumer, whatever its configuration.
    pub(crate) fn find<'e>(
        &self,
        env: &Env<'e>,
        key: &[u8],
        unknown: &'static str,
    ) -> Result<&'e Arc<Identity>, &'static str> {
        // Keys are text: other bytes match no consumer.
        let key = std::str::from_utf8(key).ok().filter(|key| !key.is_empty());
        match key.and_then(|key| env.consumers.find(S::PLUGIN, key)) {
            Some(identity) => Ok(identity),
            None if env.consumers.has_any(S::PLUGIN) => Err(unknown),
            None => Err("Missing related consumer"),
        }
    }

    /// Lets the owner of the credential in, or refuses.
    pub(crate) fn conclude(
        &self,
        ctx: &mut Context,
        env: &Env<'_>,
        found: Result<&Arc<Identity>, Refusal>,
    ) -> Step {
        match found {
            Ok(identity) => {
                ctx.attach(identity);
                Step::Next
            }
            Err(refusal) => self.refuse(ctx, env, refusal),
        }
    }

    fn refuse(&self, ctx: &mut Context, env: &Env<'_>, refusal: Refusal) -> Step {
        static REFUSED: LogThrottle = LogThrottle::new();
        static ABSENT: LogThrottle = LogThrottle::new();
        match refusal.cause {
            Cause::Absent => {}
            Cause::Wrong => ctx.mark_wrong_credential(),
            Cause::Unjudged => ctx.mark_unjudged_credential(),
        }
        let (plugin, reason) = (S::PLUGIN, refusal.detail);
        if let Some(left_out) = REFUSED.due() {
            tracing::info!(plugin, reason, left_out, "the request is not authenticated");
        }
        let Some(name) = &self.anonymous_consumer else {
            if self.is_exempt(ctx) {
                ctx.mark_unknown();
                return Step::Next;
            }
            return self.challenge(refusal);
        };
        let Some(consumer) = env.consumers.get(name) else {
            if let Some(left_out) = ABSENT.due() {
                let consumer = &**name;
                tracing::warn!(plugin, consumer, left_out, "the anonymous consumer does not exist");
            }
            let detail = "the anonymous consumer does not exist";
            return self.challenge(Refusal { message: "Invalid user authorization", detail, ..refusal });
        };
        ctx.attach_anonymous(consumer);
        Step::Next
    }

    /// Returns true if the client's address needs no credentials. A client without an address, on a Unix socket, does.
    fn is_exempt(&self, ctx: &Context) -> bool {
        let exempt = self.exempt_addresses.as_ref();
        exempt.zip(ctx.client.addr).is_some_and(|(exempt, addr)| exempt.contains(addr))
    }

    fn challenge(&self, Refusal { message, detail, .. }: Refusal) -> Step {
        let challenge = format!("{} realm=\"{}\"", S::NAME, self.realm);
        let reply = Reply::new(401).header("WWW-Authenticate", challenge.as_bytes());
        reply.json(&json!({ "message": message })).because(detail).into()
    }
}

/// A request field that a configuration names. As in APISIX an underscore in the name also matches a hyphen; a field
/// with exactly this name has precedence.
#[derive(Deserialize, JsonSchema)]
#[serde(from = "String")]
pub(crate) struct FieldName {
    name: String,
    hyphenated: String,
}

impl From<String> for FieldName {
    fn from(name: String) -> FieldName {
        FieldName { hyphenated: name.replace('_', "-"), name }
    }
}

impl FieldName {
    /// The first value of the field.
    pub(crate) fn find<'h>(&self, headers: &'h Headers) -> Option<&'h [u8]> {
        headers.find(self.name.as_bytes()).or_else(|| headers.find(self.hyphenated.as_bytes()))
    }

    /// Takes all such fields out of the request.
    pub(crate) fn remove(&self, headers: &mut Headers) {
        headers.remove_name(self.name.as_bytes());
        headers.remove_name(self.hyphenated.as_bytes());
    }
}

/// Returns the only argument of this name in the query; empty if it is repeated or has no value, so that it
/// is found and matches no consumer.
pub(crate) fn only_argument(ctx: &Context, name: &str) -> Option<Vec<u8>> {
    let mut values = pairs(ctx.outgoing_query()?).filter(|(key, _)| **key == *name.as_bytes());
    Some(match (values.next()?, values.next()) {
        ((_, Some(value)), None) => value.into_owned(),
        _ => Vec::new(),
    })
}

/// Returns the only cookie of this name; empty if it is repeated, so that it is found and matches no consumer.
pub(crate) fn only_cookie<'h>(headers: &'h Headers, name: &str) -> Option<&'h [u8]> {
    let mut values = cookies(headers).filter(|(key, _)| *key == name.as_bytes());
    Some(match (values.next()?, values.next()) {
        ((_, value), None) => value,
        _ => &[],
    })
}

/// Whether two secrets are equal, in a time that says nothing about where they differ.
pub(crate) fn same_secret(a: &[u8], b: &[u8]) -> bool {
    verify_slices_are_equal(a, b).is_ok()
}

/// The value of `Authorization`; the first one.
pub(crate) fn authorization(ctx: &Context) -> Option<&[u8]> {
    ctx.request.headers.get(HeaderId::Authorization)
}

/// Takes a cookie out of the request. The others stay as they are, in one field.
pub(crate) fn remove_cookie(headers: &mut Headers, name: &str) {
    let is_named = |pair: &&[u8]| {
        let key = pair.split(|b| *b == b'=').next().unwrap_or_default();
        key.trim_ascii() == name.as_bytes()
    };
    let pairs = || headers.get_all(HeaderId::Cookie).flat_map(|line| line.split(|b| *b == b';'));
    if !pairs().any(|pair| is_named(&pair)) {
        return;
    }
    let kept: Vec<&[u8]> = pairs()
        .filter(|pair| !is_named(pair))
        .map(<[u8]>::trim_ascii)
        .filter(|pair| !pair.is_empty())
        .collect();
    match kept.join(&b"; "[..]) {
        kept if kept.is_empty() => headers.remove(HeaderId::Cookie),
        kept => headers.set(HeaderId::Cookie, &kept),
    }
}
