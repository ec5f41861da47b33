//! What all authenticating plugins do once a credential was read: let its owner in, take the one
//! who stands for everybody, or refuse with a challenge (RFC 9110 §11.6.1).

use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_http::{HeaderId, Headers};
use sigma_plugin::{Build, Context, Env, Identity, Reply, Step};

/// The fields of a configuration that all authenticating plugins have.
#[derive(Deserialize)]
struct Fields {
    hide_credentials: bool,
    realm: String,
    anonymous_consumer: Option<Box<str>>,
}

/// The way in of one plugin with one configuration.
pub(super) struct Door {
    plugin: &'static str,
    /// Whether the node must not see the credential.
    pub(super) hides: bool,
    challenge: String,
    anonymous: Option<Box<str>>,
}

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What the client is told.
    pub(super) message: &'static str,
    /// What the log is told. Never holds anything that the client sent.
    pub(super) detail: &'static str,
}

impl Refusal {
    /// One about which the client is told everything.
    pub(super) const fn plain(message: &'static str) -> Refusal {
        Refusal { message, detail: message }
    }
}

impl Door {
    /// That of a configuration; `scheme` begins the challenge.
    pub(super) fn new(plugin: &'static str, scheme: &str, build: &Build<'_>) -> Result<Door, String> {
        let fields: Fields = build.config()?;
        Ok(Door {
            plugin,
            hides: fields.hide_credentials,
            challenge: format!("{scheme} realm=\"{}\"", fields.realm),
            anonymous: fields.anonymous_consumer,
        })
    }

    /// Who is recognised by `key`; the text for the log if nobody is.
    pub(super) fn find<'e>(
        &self,
        env: &Env<'e>,
        key: &[u8],
        unknown: &'static str,
    ) -> Result<&'e Arc<Identity>, &'static str> {
        // Keys are text: bytes that are not belong to nobody.
        let key = std::str::from_utf8(key).ok();
        match key.and_then(|key| env.consumers.find(self.plugin, key)) {
            Some(identity) => Ok(identity),
            None if env.consumers.has_any(self.plugin) => Err(unknown),
            None => Err("Missing related consumer"),
        }
    }

    /// Lets the owner of the credential in.
    pub(super) fn admit(&self, cx: &mut Context, identity: &Arc<Identity>) -> Step {
        cx.attach(identity);
        Step::Next
    }

    /// Whether somebody stands for those who are not recognised.
    pub(super) fn takes_anonymous(&self) -> bool {
        self.anonymous.is_some()
    }

    /// Nobody was recognised.
    pub(super) fn refuse(&self, cx: &mut Context, env: &Env<'_>, refusal: Refusal) -> Step {
        tracing::info!(plugin = self.plugin, reason = refusal.detail, "a request is not authenticated");
        let Some(name) = &self.anonymous else { return self.challenge(refusal.message) };
        let Some(consumer) = env.consumers.get(name) else {
            tracing::warn!(plugin = self.plugin, consumer = &**name, "the anonymous consumer does not exist");
            return self.challenge("Invalid user authorization");
        };
        cx.attach_anonymous(consumer);
        Step::Next
    }

    fn challenge(&self, message: &str) -> Step {
        let challenge = self.challenge.as_bytes();
        Reply::new(401).header("WWW-Authenticate", challenge).json(&json!({ "message": message })).into()
    }
}

/// The schema of a configuration: the plugin's own `fields` and those of every door.
pub(super) fn schema(realm: &str, fields: Value) -> Value {
    let mut properties = Map::new();
    if let Value::Object(fields) = fields {
        properties.extend(fields);
    }
    let shared = json!({
        "hide_credentials": {
            "type": "boolean",
            "default": false,
            "description": "Whether the credential is taken out of the request before the node sees it."
        },
        "realm": {
            "type": "string",
            "default": realm,
            "minLength": 1,
            "maxLength": 128,
            "pattern": r"^[ !#-\[\]-~]+$",
            "description": "The realm of the challenge in `WWW-Authenticate`."
        },
        "anonymous_consumer": {
            "type": "string",
            "minLength": 1,
            "description": "The consumer that stands for everybody who is not authenticated."
        }
    });
    if let Value::Object(shared) = shared {
        properties.extend(shared);
    }
    json!({ "type": "object", "properties": properties })
}

/// Whether two secrets are equal, in a time that says nothing about where they differ.
pub(super) fn same_secret(a: &[u8], b: &[u8]) -> bool {
    verify_slices_are_equal(a, b).is_ok()
}

/// The value of `Authorization`; the first one.
pub(super) fn authorization(cx: &Context) -> Option<&[u8]> {
    cx.request.headers.get(HeaderId::Authorization)
}

/// Takes a cookie out of the request. The others stay as they are, in one field.
pub(super) fn remove_cookie(headers: &mut Headers, name: &str) {
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
