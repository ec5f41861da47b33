//! The coding of a response, if plugins offer several (RFC 9110 §12.5.3).
//!
//! A plugin makes an offer in its header filter. The choice is made after all header filters: the coding with the
//! client's highest weight; among equals the plugin that runs first. So no body is encoded twice, in any order of the
//! plugins.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::header::list_items;
use sigma_http::{HeaderId, Headers, Version};
use sigma_plugin::{Context, Plugin};

use crate::changed_body::weaken_not_modified;
use crate::response_fields::add_vary;

/// The responses that a compression plugin encodes: the options that all of these plugins have.
#[derive(Deserialize, JsonSchema)]
pub struct Which {
    /// Media types to compress, without regard to case; `*` for all, alone or in the list.
    #[schemars(extend("default" = ["text/html"]))]
    types: Types,
    /// Minimum length of compressed bodies in bytes; shorter ones are sent as they are, if their length is known.
    #[schemars(range(min = 1), extend("default" = 20))]
    min_length: u64,
    /// The lowest version of requests whose responses are compressed.
    #[schemars(with = "Value", extend("enum" = [1.1, 1.0], "default" = 1.1))]
    http_version: f64,
    /// Whether `Vary: Accept-Encoding` is added.
    vary: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum Types {
    Listed(#[schemars(length(min = 1), inner(length(min = 1)))] Vec<String>),
    All(#[schemars(with = "Value", extend("enum" = ["*"]))] Star),
}

#[derive(Deserialize)]
enum Star {
    #[serde(rename = "*")]
    Star,
}

impl Which {
    /// Returns true if the type and length of the response and the request's version match.
    pub fn takes(&self, ctx: &Context) -> bool {
        let headers = &ctx.response.headers;
        let Some(content_type) = headers.get(HeaderId::ContentType) else { return false };
        let media_type = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        // Media types have no case (RFC 9110 §8.3.1).
        let is_of = |listed: &String| listed == "*" || listed.as_bytes().eq_ignore_ascii_case(media_type);
        let is_listed = match &self.types {
            Types::Listed(types) => types.iter().any(is_of),
            Types::All(Star::Star) => true,
        };
        let is_long = known_length(headers).is_none_or(|length| length >= self.min_length);
        let is_new = ctx.request.version >= Version::Http11 || self.http_version < 1.1;
        is_listed && is_long && is_new
    }

    /// Prepares a 304 as the response to which it refers; returns true for a 304. Its type may be missing: then the
    /// response may have been one that depends on `Accept-Encoding`.
    pub fn is_not_modified(&self, ctx: &mut Context) -> bool {
        if !weaken_not_modified(ctx) {
            return false;
        }
        if !ctx.response.headers.has(HeaderId::ContentType) || self.takes(ctx) {
            self.add_vary(&mut ctx.response.headers);
        }
        true
    }

    /// Marks the response as dependent on `Accept-Encoding`, if that is wanted and not done yet.
    pub fn add_vary(&self, headers: &mut Headers) {
        if self.vary == Some(true) {
            add_vary(headers, "Accept-Encoding");
        }
    }
}

/// Returns the length of the whole content, also in a response with a part of it.
fn known_length(headers: &Headers) -> Option<u64> {
    if let Some(range) = headers.find(b"Content-Range") {
        let total = std::str::from_utf8(range).ok()?.rsplit('/').next()?;
        return total.parse().ok();
    }
    std::str::from_utf8(headers.get(HeaderId::ContentLength)?).ok()?.parse().ok()
}

/// Returns the client's weight of a coding, in thousandths: 0 if it rejects it, None if it does not name it. Of
/// several weights the first counts.
pub fn weight(request: &Headers, coding: &str) -> Option<u16> {
    request.get_all(HeaderId::AcceptEncoding).flat_map(list_items).find_map(|item| {
        let mut parts = item.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        if !parts.next()?.eq_ignore_ascii_case(coding.as_bytes()) {
            return None;
        }
        let weight = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
        Some(weight.map_or(1000, thousandths))
    })
}

/// Returns the [`weight`], or the client's weight of all codings that it does not name; 0 without either.
pub fn weight_or_any(request: &Headers, coding: &str) -> u16 {
    weight(request, coding).or_else(|| weight(request, "*")).unwrap_or(0)
}

/// Parses a weight (RFC 9110 §12.4.2); 0 for an invalid one.
pub fn thousandths(weight: &[u8]) -> u16 {
    let (whole, part) = match weight.iter().position(|b| *b == b'.') {
        Some(at) => (&weight[..at], &weight[at + 1..]),
        None => (weight, &[][..]),
    };
    if whole.is_empty() || !whole.iter().chain(part).all(u8::is_ascii_digit) {
        return 0;
    }
    if whole.iter().any(|b| *b != b'0') {
        return 1000;
    }
    (0..3).fold(0, |sum, at| sum * 10 + part.get(at).map_or(0, |b| u16::from(b - b'0')))
}

/// The offer of a plugin to encode a response.
pub struct Offer {
    /// The name of the coding.
    pub token: &'static str,
    /// The client's weight, in thousandths; not 0.
    pub weight: u16,
    /// Returns true if the final head allows it.
    pub may: fn(&Context) -> bool,
}

/// The offers for one response, each with the address of its plugin, in the order of the plugins.
#[derive(Default)]
struct Offers(Vec<(usize, Offer)>);

/// The owner of the offers: they belong to all plugins that offer.
struct Together {
    /// Values without a size may share an address.
    _byte: u8,
}

static TOGETHER: Together = Together { _byte: 0 };

impl Plugin for Together {}

/// Offers to encode the response; `plugin` is the plugin's `self`.
pub fn offer<P: Plugin>(plugin: &P, offer: Offer, ctx: &mut Context) {
    let mut offers: Offers = ctx.take_kept(&TOGETHER).unwrap_or_default();
    offers.0.push((std::ptr::from_ref(plugin).addr(), offer));
    ctx.keep(&TOGETHER, offers);
}

/// Returns the coding that this plugin gives the response. None if another plugin encodes it, or none does. Call it
/// after all header filters.
pub fn chosen<P: Plugin>(plugin: &P, ctx: &mut Context) -> Option<&'static str> {
    if is_encoded(ctx) {
        return None;
    }
    let offers: Offers = ctx.take_kept(&TOGETHER)?;
    let best = best(&offers, ctx);
    ctx.keep(&TOGETHER, offers);
    best.filter(|(by, _)| *by == std::ptr::from_ref(plugin).addr()).map(|(_, token)| token)
}

fn best(offers: &Offers, ctx: &Context) -> Option<(usize, &'static str)> {
    let allowed = || offers.0.iter().filter(|(_, offer)| (offer.may)(ctx));
    let (by, best) = allowed().min_by_key(|(_, offer)| Reverse(offer.weight))?;
    // A plugin alone has nothing to compare: as in APISIX, any weight is enough.
    let prefers_none = allowed().count() > 1
        && weight(&ctx.request.headers, "identity").is_some_and(|identity| identity > best.weight);
    (!prefers_none).then_some((*by, best.token))
}

/// Returns true if the response has a coding already.
pub fn is_encoded(ctx: &Context) -> bool {
    ctx.response.headers.find(b"Content-Encoding").is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read() {
        let check = |fields: &[&str], named: Option<u16>, any: u16| {
            let mut request = Headers::default();
            fields.iter().for_each(|value| request.append("Accept-Encoding", value.as_bytes()));
            assert_eq!((weight(&request, "br"), weight_or_any(&request, "br")), (named, any), "{fields:?}");
        };
        check(&[], None, 0);
        check(&[""], None, 0);
        check(&["gzip"], None, 0);
        check(&["gzip, BR"], Some(1000), 1000);
        check(&["gzip", "br;q=0.5"], Some(500), 500);
        check(&["br ; Q=0.125"], Some(125), 125);
        check(&["br;q=1.000"], Some(1000), 1000);
        check(&["br;q=7"], Some(1000), 1000);
        check(&["br;q=0.0009"], Some(0), 0);
        check(&["br;q=0, *"], Some(0), 0);
        check(&["br;q=0.0, br"], Some(0), 0);
        check(&["br;q="], Some(0), 0);
        check(&["br;q=x"], Some(0), 0);
        check(&["br;q=-1"], Some(0), 0);
        check(&["*"], None, 1000);
        check(&["*;q=0.3, gzip"], None, 300);
        check(&["*;q=0"], None, 0);
        check(&["brr"], None, 0);
    }
}
