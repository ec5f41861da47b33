//! HTTP message signatures for nodes (RFC 9421).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::{Context, Env};
use sigma_schema::Confidential;

use crate::shared::message_signatures::base::{Component, Subject, signature_base};
use crate::shared::message_signatures::digest;
use crate::shared::message_signatures::structured::{Bare, Dictionary, InnerList, Item, Member};
use crate::shared::message_signatures::verify;
use sigma_plugin_kit::key_pair::{PairAlgorithm, Signer};

/// The signed components, and the key.
#[derive(Deserialize, JsonSchema)]
pub(super) struct MessageSignature {
    /// The name of the key (`keyid`).
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[ -~]+$"))]
    key_id: String,
    /// The secret that the node shares, for `hmac-sha256`.
    #[schemars(length(min = 1))]
    secret_key: Option<Confidential>,
    /// The private key, PEM (PKCS #8), instead of `secret_key`.
    #[schemars(length(min = 1))]
    private_key: Option<Confidential>,
    /// The algorithm of the private key.
    algorithm: Option<PairAlgorithm>,
    /// Signed components, as in `hmac-auth`. Fields that a request does not have are omitted.
    #[schemars(length(min = 1, max = 64), extend("default" = ["@method", "@authority", "@path", "@query"]))]
    components: Vec<Component>,
    /// The label of the signature.
    #[schemars(regex(pattern = r"^[a-z*][a-z0-9_.*-]{0,63}$"), extend("default" = "sig1"))]
    label: String,
    /// Parameter `tag`: the application for which the signature is made.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[ -~]+$"))]
    tag: Option<String>,
    /// Lifetime of the signature in seconds. Default: no `expires`.
    #[schemars(range(min = 1, max = 86_400))]
    expires: Option<u32>,
    /// Whether the signature covers the body, by a signed `Content-Digest`. If so, the body is read before the request
    /// is sent.
    #[schemars(extend("default" = false))]
    content_digest: bool,
    /// Largest signed body in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: usize,
}

/// Signs requests by the configuration.
pub(super) struct RequestSigner {
    settings: MessageSignature,
    signer: Signer,
}

const CONTENT_DIGEST: &str = "content-digest";

/// Bytes of a nonce.
const NONCE_BYTES: usize = 16;

impl MessageSignature {
    /// # Errors
    /// Returns an error, which is a sentence, if there is not one key.
    pub(super) fn check(&self) -> Result<(), String> {
        match (&self.secret_key, &self.private_key, self.algorithm) {
            (Some(_), None, None) | (None, Some(_), Some(_)) => Ok(()),
            _ => Err("message_signature: write secret_key, or private_key and its algorithm".to_owned()),
        }
    }

    fn signer(&self) -> Result<Signer, String> {
        match (&self.secret_key, &self.private_key, self.algorithm) {
            (Some(secret), None, None) if !secret.reveal().is_empty() => {
                Ok(Signer::secret(secret.reveal().as_bytes()))
            }
            (None, Some(pem), Some(algorithm)) => {
                Signer::parse(pem.reveal(), algorithm).map_err(|error| format!("message_signature.{error}"))
            }
            _ => Err("message_signature: the key is empty".to_owned()),
        }
    }
}

impl RequestSigner {
    /// # Errors
    /// Returns an error, which is a sentence, if the key cannot be used.
    pub(super) fn new(settings: MessageSignature) -> Result<RequestSigner, String> {
        let signer = settings.signer()?;
        Ok(RequestSigner { settings, signer })
    }

    /// How much of a body has to be read; None if it is not bound.
    pub(super) fn body_limit(&self) -> Option<usize> {
        self.settings.content_digest.then_some(self.settings.max_req_body_size)
    }

    /// Signs the request in its present form. The client's signature was for the gateway, and is removed.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if that cannot be.
    pub(super) fn sign(&self, ctx: &mut Context, env: &Env<'_>) -> Result<(), &'static str> {
        let settings = &self.settings;
        verify::hide(&mut ctx.request.headers);
        if settings.content_digest {
            let digest = digest::of(ctx.body.as_deref().unwrap_or_default());
            ctx.request.headers.replace("Content-Digest", digest.as_bytes());
        }
        let subject = subject(ctx);
        let is_there = |component: &&Component| component.is_in(&subject);
        let mut items: Vec<Item> =
            settings.components.iter().filter(is_there).map(|component| component.item().clone()).collect();
        if settings.content_digest && !items.iter().any(|item| *item == Item::text(CONTENT_DIGEST)) {
            items.push(Item::text(CONTENT_DIGEST));
        }
        let list = InnerList { items, params: self.params(env)? };
        let base = signature_base(&subject, &list)?;
        let signature = self.signer.sign(&base).ok_or("cannot get random bytes")?;
        let signature = Item { value: Bare::Bytes(signature), params: Vec::new() };
        let field = |member| Dictionary(vec![(settings.label.clone(), member)]).write();
        let (input, signature) = (field(Member::List(list)), field(Member::Item(signature)));
        ctx.request.headers.append("Signature-Input", input.as_bytes());
        ctx.request.headers.append("Signature", signature.as_bytes());
        Ok(())
    }

    fn params(&self, env: &Env<'_>) -> Result<Vec<(String, Bare)>, &'static str> {
        let settings = &self.settings;
        let now = i64::try_from(env.unix_time().as_secs()).map_err(|_| "the system clock is wrong")?;
        let mut nonce = [0; NONCE_BYTES];
        env.machine.fill_random(&mut nonce).map_err(|_| "cannot get random bytes")?;
        let text = |text: &str| Bare::Text(text.to_owned());
        let mut params = vec![("created", Bare::Integer(now))];
        params.extend(settings.expires.map(|seconds| ("expires", Bare::Integer(now + i64::from(seconds)))));
        params.push(("nonce", Bare::Text(URL_SAFE_NO_PAD.encode(nonce))));
        params.push(("keyid", text(&settings.key_id)));
        params.push(("alg", text(self.signer.algorithm())));
        params.extend(settings.tag.as_deref().map(|tag| ("tag", text(tag))));
        Ok(params.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

/// The request as the node gets it.
fn subject(ctx: &Context) -> Subject<'_> {
    let scheme = match ctx.record.upstream_scheme {
        Some("https" | "grpcs") => "https",
        _ => "http",
    };
    Subject {
        method: ctx.request.method_token(),
        scheme,
        authority: ctx.request.headers.get(HeaderId::Host).unwrap_or_default(),
        target: ctx.outgoing_target(),
        headers: &ctx.request.headers,
    }
}
