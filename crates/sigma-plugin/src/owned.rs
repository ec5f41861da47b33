//! Request fields that plugins set for nodes. A client must not be able to send them, in any spelling or place.

use std::sync::Arc;

use serde_json::Value;
use sigma_http::Headers;
use sigma_http::header::{hyphenated, is_same_variable};

use crate::Context;

/// The handling of a client's field with the exact name. Other spellings, and trailers, are always removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ownership {
    /// The plugin changes the field, adds to it or removes it, and may use the client's value: it stays.
    Shared,
    /// The plugin, or a service that it calls, reads the client's value and replaces it: it is removed at the plugin's
    /// turn, even if `_meta.filter` skips the plugin.
    Judged,
    /// The plugin is the only source, for example of a user's name: it is removed before the first plugin runs.
    Sole,
}

/// A request field that a plugin sets for nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedField {
    name: Box<str>,
    ownership: Ownership,
}

impl OwnedField {
    /// Returns a field whose only source is the plugin.
    pub fn sole(name: impl Into<Box<str>>) -> OwnedField {
        OwnedField { name: name.into(), ownership: Ownership::Sole }
    }

    /// Returns a field that the plugin reads and then replaces.
    pub fn judged(name: impl Into<Box<str>>) -> OwnedField {
        OwnedField { name: name.into(), ownership: Ownership::Judged }
    }

    /// Returns a field that the plugin changes.
    pub fn shared(name: impl Into<Box<str>>) -> OwnedField {
        OwnedField { name: name.into(), ownership: Ownership::Shared }
    }
}

/// The fields of one or more plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnedFields {
    fields: Box<[OwnedField]>,
    /// A bit for each length of a name. Most fields of a request differ in length, and so need no comparison.
    lengths: u64,
    has_judged: bool,
}

impl OwnedFields {
    /// Returns a set of fields; of several with one name the strictest ownership counts.
    pub fn new(fields: impl IntoIterator<Item = OwnedField>) -> OwnedFields {
        let mut all: Vec<OwnedField> = fields.into_iter().collect();
        all.sort_by(|one, other| {
            let names = one.name.to_ascii_lowercase().cmp(&other.name.to_ascii_lowercase());
            names.then(other.ownership.cmp(&one.ownership))
        });
        all.dedup_by(|later, first| later.name.eq_ignore_ascii_case(&first.name));
        let lengths = all.iter().fold(0, |bits, field| bits | length_bit(field.name.len()));
        let has_judged = all.iter().any(|field| field.ownership == Ownership::Judged);
        OwnedFields { fields: all.into(), lengths, has_judged }
    }

    /// Returns true if there is no field.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns an iterator over the fields.
    pub fn iter(&self) -> impl Iterator<Item = &OwnedField> {
        self.fields.iter()
    }

    /// Returns true if a field of this name, in any spelling, is in the set.
    pub fn covers(&self, name: &[u8]) -> bool {
        self.lengths & length_bit(name.len()) != 0
            && self.fields.iter().any(|field| is_same_variable(field.name.as_bytes(), name))
    }

    /// Returns true if a plugin checks a field of this name, in any spelling, or is its only source.
    fn reserves(&self, name: &[u8]) -> bool {
        self.lengths & length_bit(name.len()) != 0
            && self.fields.iter().any(|field| {
                field.ownership >= Ownership::Judged && is_same_variable(field.name.as_bytes(), name)
            })
    }

    /// Removes fields that the client may not set: other spellings of all fields, and the fields whose only source is
    /// the plugin.
    pub fn clear(&self, headers: &mut Headers) {
        self.clear_from(headers, Ownership::Sole);
    }

    /// Also removes the fields that plugins have judged, or were skipped before they could; see
    /// [`Ownership::Judged`].
    pub fn clear_judged(&self, headers: &mut Headers) {
        if self.has_judged {
            self.clear_from(headers, Ownership::Judged);
        }
    }

    fn clear_from(&self, headers: &mut Headers, least: Ownership) {
        if self.fields.is_empty() {
            return;
        }
        headers.remove_received(|_, sent| {
            self.lengths & length_bit(sent.len()) != 0
                && self.fields.iter().any(|field| {
                    let name = field.name.as_bytes();
                    let is_exact = name.eq_ignore_ascii_case(sent);
                    if is_exact { field.ownership >= least } else { is_twin(name, sent) }
                })
        });
    }

    /// Removes the fields, in any spelling, from a request's trailers: a node that merges trailers into the head
    /// would trust them.
    pub fn clear_trailers(&self, trailers: &mut Headers) {
        if !self.fields.is_empty() {
            trailers.remove_where(|_, sent| self.covers(sent));
        }
    }
}

/// Returns true if `sent` is another spelling of `name`. `X-User` does not count as one of `X_User`: it is the usual
/// spelling, which the client may have sent for another reader.
fn is_twin(name: &[u8], sent: &[u8]) -> bool {
    is_same_variable(name, sent) && !hyphenated(sent).eq_ignore_ascii_case(sent)
}

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}

impl Context {
    /// Claims a request field for a plugin that could not declare it (see [`crate::Kind::owned_fields`]). The
    /// client's fields of that name are removed from the head, and from later trailers.
    pub fn claim(&mut self, field: OwnedField) {
        let owned = OwnedFields::new([field]);
        owned.clear(&mut self.request.headers);
        self.owned.push(Arc::new(owned));
    }

    /// Returns true if a plugin of the exchange checks this request field, in any spelling, or is its only source, for
    /// example for the name of a user. Code from users must not set it: a node would believe it.
    pub fn is_reserved(&self, name: &[u8]) -> bool {
        self.owned.iter().any(|owned| owned.reserves(name))
    }
}

/// Returns the texts of a member of a configuration that is a text or a list of texts.
pub fn texts<'c>(conf: &'c Value, member: &str) -> impl Iterator<Item = &'c str> {
    let value = conf.get(member);
    let list = value.and_then(Value::as_array).into_iter().flatten();
    list.chain(value).filter_map(Value::as_str)
}

/// Returns the names of the members of an object in a configuration.
pub fn members<'c>(conf: &'c Value, member: &str) -> impl Iterator<Item = &'c str> {
    let object = conf.get(member).and_then(Value::as_object);
    object.into_iter().flat_map(serde_json::Map::keys).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(names: &[&str]) -> Headers {
        let mut headers = Headers::default();
        names.iter().for_each(|name| headers.append(name, b"1"));
        headers.mark_received();
        headers
    }

    fn names(headers: &Headers) -> Vec<String> {
        headers.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    #[test]
    fn twins_are_removed_and_exact_names_by_their_ownership() {
        let all = ["X-User", "x_user", "X.USER", "X_User-Id", "X-Users"];
        let check = |field: OwnedField, cleared: &[&str], judged: &[&str]| {
            let owned = OwnedFields::new([field]);
            let mut headers = sent(&all);
            owned.clear(&mut headers);
            assert_eq!(names(&headers), cleared);
            owned.clear_judged(&mut headers);
            assert_eq!(names(&headers), judged);
        };
        let others = ["X_User-Id", "X-Users"];
        let with_exact = ["X-User", "X_User-Id", "X-Users"];
        check(OwnedField::sole("X-User"), &others, &others);
        check(OwnedField::judged("x-user"), &with_exact, &others);
        check(OwnedField::shared("X-USER"), &with_exact, &with_exact);
    }

    #[test]
    fn mixed_spellings_are_twins() {
        let owned = OwnedFields::new([OwnedField::shared("X-Access-Token")]);
        let mut headers = sent(&[
            "X_Access_Token",
            "X-Access_Token",
            "x.access-token",
            "X.Access_Token",
            "X~Access~Token",
            "x!access-token",
            "X-Access'Token",
        ]);
        owned.clear(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn fields_of_the_gateway_stay() {
        let owned = OwnedFields::new([OwnedField::sole("X-User")]);
        let mut headers = sent(&["X-User"]);
        headers.append("X-User", b"jack");
        owned.clear(&mut headers);
        assert_eq!(headers.find(b"x-user"), Some(&b"jack"[..]));
        assert_eq!(headers.len(), 1);
        assert!(headers.was_received(b"X-USER") && !headers.was_received(b"X-Other"));
    }

    #[test]
    fn strictest_ownership_counts() {
        let fields = || [OwnedField::shared("X-User"), OwnedField::sole("x-user")];
        for fields in [fields().to_vec(), fields().into_iter().rev().collect()] {
            let mut headers = sent(&["X-User"]);
            OwnedFields::new(fields).clear(&mut headers);
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn fields_that_plugins_check_are_reserved() {
        let check = |field: OwnedField, expected: bool| {
            let mut ctx = Context::default();
            ctx.claim(field);
            for name in ["X-User", "x_user", "X.USER"] {
                assert_eq!(ctx.is_reserved(name.as_bytes()), expected, "{name}");
            }
            assert!(!ctx.is_reserved(b"X-Users") && !ctx.is_reserved(b"User"));
            ctx.begin();
            assert!(!ctx.is_reserved(b"X-User"));
        };
        check(OwnedField::sole("X-User"), true);
        check(OwnedField::judged("X-User"), true);
        check(OwnedField::shared("X-User"), false);
    }

    #[test]
    fn trailers_have_no_owned_field() {
        let mut trailers = Headers::default();
        for name in ["X-User", "x_user", "X.User", "X-Checksum"] {
            trailers.append(name, b"1");
        }
        OwnedFields::new([OwnedField::shared("X-User")]).clear_trailers(&mut trailers);
        assert_eq!(names(&trailers), ["X-Checksum"]);
    }
}
