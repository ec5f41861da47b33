//! Which signature of a request counts, and whether it holds (RFC 9421 §3.2).

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::counter::Shared;
use sigma_plugin::{Context, Inheritable, inheritance};

use super::base::{Component, Subject, joined, signature_base};
use super::structured::{Bare, Dictionary, InnerList, Item, Member, param};
use sigma_plugin_kit::clock::process_ms;
use sigma_plugin_kit::key_pair::Verifier;

const SIGNATURE_INPUT: &str = "Signature-Input";
const SIGNATURE: &str = "Signature";

/// The requirements of a signature.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    /// Components that must be signed: field names in lower case, derived components with `@`, or either with its
    /// parameters as in RFC 9421, such as `"@query-param";name="id"`. A signed component also covers its parts:
    /// `@target-uri` covers scheme, authority, path and query.
    #[schemars(length(max = 64), extend("default" = ["@method", "@authority", "@path", "@query"]))]
    components: Vec<Component>,
    /// The label of the verified signature. Clients and proxies choose labels; `tag` is safer.
    #[schemars(length(min = 1, max = 256))]
    label: Option<String>,
    /// Required parameter `tag`: the application for which the signature is made.
    #[schemars(length(min = 1, max = 256))]
    tag: Option<String>,
    /// Whether a signature must have a `nonce`, which this gateway accepts once.
    #[schemars(extend("default" = false))]
    require_nonce: bool,
    /// Whether a signature in `Authorization` is accepted instead of `Signature-Input` and `Signature`.
    #[schemars(extend("default" = false))]
    pub(crate) accept_authorization: bool,
}

/// Most bytes of `Signature-Input` or `Signature`: some dozens of signatures.
const FIELD_BYTES: usize = 16 << 10;

/// Most bytes of a nonce.
const NONCE_BYTES: usize = 256;

/// A signature that a request claims to have.
#[derive(Debug)]
pub(crate) struct Claim {
    signed: InnerList,
    signature: Vec<u8>,
    pub(crate) key_id: String,
    created: i64,
    expires: Option<i64>,
    nonce: Option<String>,
}

/// Whether a request says that it is signed like this.
pub(crate) fn is_claimed(headers: &Headers) -> bool {
    [SIGNATURE_INPUT, SIGNATURE].iter().any(|name| headers.find(name.as_bytes()).is_some())
}

/// Takes the signatures out of a request.
pub(crate) fn hide(headers: &mut Headers) {
    [SIGNATURE_INPUT, SIGNATURE].iter().for_each(|name| headers.remove_name(name.as_bytes()));
}

/// A field as a dictionary. Its lines are one list.
fn dictionary(headers: &Headers, name: &str) -> Result<Dictionary, &'static str> {
    let joined = joined(headers, name).unwrap_or_default();
    if joined.len() > FIELD_BYTES {
        return Err("the fields of the signature are too long");
    }
    Dictionary::parse(&joined).ok_or("a field of the signature is no dictionary, or has a label twice")
}

impl Rules {
    /// Returns the signature that counts, before its owner is known.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if there is no signature, if there are several, or if
    /// it does not cover a required component.
    pub(crate) fn claim(&self, headers: &Headers) -> Result<Claim, &'static str> {
        let inputs = dictionary(headers, SIGNATURE_INPUT)?;
        let mut chosen = inputs.0.iter().filter(|(label, member)| self.is_meant(label, member));
        let (label, member) = chosen.next().ok_or("no signature with the expected label and tag")?;
        if chosen.next().is_some() {
            return Err("more than one signature: set a label or tag");
        }
        let Member::List(signed) = member else { return Err("Signature-Input has no list") };
        let signatures = dictionary(headers, SIGNATURE)?;
        let Some(Member::Item(Item { value: Bare::Bytes(signature), .. })) = signatures.get(label) else {
            return Err("no signature for the label in Signature-Input");
        };
        if !self.components.iter().all(|component| component.is_covered(&signed.items)) {
            return Err("an expected component is not signed");
        }
        let number = |key| match param(&signed.params, key) {
            None => Ok(None),
            Some(Bare::Integer(seconds)) => Ok(Some(*seconds)),
            Some(_) => Err("a time of the signature is no integer"),
        };
        let text = |key| match param(&signed.params, key) {
            None => Ok(None),
            Some(Bare::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err("a parameter of the signature is no string"),
        };
        let nonce = text("nonce")?.filter(|nonce| !nonce.is_empty());
        if self.require_nonce && nonce.as_ref().is_none_or(|nonce| nonce.len() > NONCE_BYTES) {
            return Err("the signature has no nonce, or a very long one");
        }
        Ok(Claim {
            signature: signature.clone(),
            key_id: text("keyid")?.ok_or("the signature has no keyid")?,
            created: number("created")?.ok_or("the signature has no creation time")?,
            expires: number("expires")?,
            nonce: nonce.filter(|_| self.require_nonce),
            signed: signed.clone(),
        })
    }

    fn is_meant(&self, label: &str, member: &Member) -> bool {
        let params = match member {
            Member::Item(item) => &item.params,
            Member::List(list) => &list.params,
        };
        let tag = match param(params, "tag") {
            Some(Bare::Text(tag)) => Some(tag),
            _ => None,
        };
        self.label.as_deref().is_none_or(|wanted| wanted == label)
            && (self.tag.is_none() || self.tag.as_ref() == tag)
    }
}

impl Claim {
    /// Whether the signature is the key's owner's, over this request, and of this time.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if it is not.
    pub(crate) fn verify(
        &self,
        ctx: &Context,
        verifier: &Verifier<'_>,
        now_s: u64,
        skew_s: u64,
    ) -> Result<(), &'static str> {
        // The message never chooses the algorithm; it may only say the right one.
        match param(&self.signed.params, "alg") {
            None => {}
            Some(Bare::Text(name)) if name == verifier.algorithm() => {}
            Some(_) => return Err("the algorithm of the signature does not match the key"),
        }
        let now = i64::try_from(now_s).unwrap_or(i64::MAX);
        if now.abs_diff(self.created) > skew_s {
            return Err("the signature was created too long ago, or in the future");
        }
        if self.expires.is_some_and(|expires| expires < now || expires < self.created) {
            return Err("the signature has expired");
        }
        let base = signature_base(&subject(ctx), &self.signed)?;
        match verifier.holds(&base, &self.signature) {
            true => Ok(()),
            false => Err("Invalid signature"),
        }
    }

    /// Whether `Content-Digest` is signed, all of it.
    pub(crate) fn binds_body(&self) -> bool {
        Component::named("content-digest").is_covered(&self.signed.items)
    }

    /// Whether the nonce, if one is needed, is used for the first time; it is used up then. `place` is where it is
    /// requested: a request may be looked at by several plugins.
    pub(crate) fn is_first(&self, nonces: &Nonces, place: &str, skew_s: u64) -> bool {
        let Some(nonce) = &self.nonce else { return true };
        let key = [place, &self.key_id, nonce].join("\n");
        // Until no clock takes the signature any more: it may come from the future, by as much.
        let lifetime_ms = skew_s.saturating_mul(2).saturating_add(1).saturating_mul(1000);
        let now_ms = process_ms();
        nonces.0.with(key.as_bytes(), now_ms, |slot| {
            if slot.value {
                return false;
            }
            slot.value = true;
            slot.expires_ms = now_ms.saturating_add(lifetime_ms);
            true
        })
    }
}

/// Nonces that were used, of the whole gateway. Only holders of keys add to it.
#[derive(Default)]
pub(crate) struct Nonces(Shared<bool>);

impl Inheritable for Nonces {
    const NAME: &'static str = "hmac-auth";

    fn leave(&self) -> Value {
        inheritance::entries(&self.0)
    }

    fn take_over(&self, left: &Value) {
        inheritance::enter(&self.0, left);
    }
}

/// The request as its sender signed it: whatever plugins make of it later.
fn subject(ctx: &Context) -> Subject<'_> {
    // The gateway has set it, unless a proxy before it is trusted to know better.
    let scheme = match ctx.request.headers.get(HeaderId::XForwardedProto) {
        Some(b"https") => "https",
        Some(b"http") => "http",
        _ => ctx.scheme(),
    };
    Subject {
        method: ctx.request.method_token(),
        scheme,
        authority: ctx.request.authority(),
        target: ctx.request.sent_path_and_query(),
        headers: &ctx.request.headers,
    }
}
