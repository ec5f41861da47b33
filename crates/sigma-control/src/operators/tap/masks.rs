//! Masks for credentials in exchanges.
//!
//! A name is secret if it is commonly used so, if it contains a telling word, or if a plugin that
//! authenticates reads a key under it. Doubtful values are masked.

use std::borrow::Cow;
use std::collections::HashSet;

use percent_encoding::percent_decode_str;
use serde_json::Value;
use sigma_schema::confidential::MASK;

/// Words that mark a name anywhere in it, without characters that are not letters or digits.
const TELLING: [&str; 14] = [
    "authoriz",
    "cookie",
    "token",
    "secret",
    "passw",
    "passphrase",
    "apikey",
    "signature",
    "credential",
    "session",
    "jwt",
    "assertion",
    "samlresponse",
    "private",
];
/// Words of a name that say it.
const WORDS: [&str; 11] =
    ["auth", "code", "csrf", "key", "otp", "pass", "pin", "pwd", "sid", "sig", "ticket"];
/// Prefixes of values that are credentials, in any field.
const SCHEMES: [&str; 5] = ["bearer ", "basic ", "digest ", "negotiate ", "eyj"];
/// Plugins that read credentials from configured places, in addition to plugins that recognise consumers.
const READERS: [&str; 5] = ["authz-keycloak", "csrf", "openid-connect", "authz-casdoor", "saml-auth"];
/// Deeper configurations are not looked into; none is.
const DEPTH: usize = 16;

/// The names that plugins read keys under.
#[derive(Debug, Default)]
pub(crate) struct Masks(HashSet<String>);

impl Masks {
    /// Adds the names in a configuration of a plugin; `authenticates` says it of each plugin in it.
    pub(super) fn add(&mut self, plugin: &str, conf: &Value, authenticates: &dyn Fn(&str) -> bool) {
        if authenticates(plugin) || READERS.contains(&plugin) {
            self.add_names(conf, DEPTH);
        }
    }

    /// A member that is called a header, a parameter or a cookie has the name of one.
    fn add_names(&mut self, conf: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match conf {
            Value::Object(members) => {
                for (key, value) in members {
                    let names = ["header", "query", "cookie", "param", "name"];
                    match value {
                        Value::String(name) if names.iter().any(|one| key.contains(one)) => {
                            self.0.insert(name.to_ascii_lowercase());
                        }
                        value => self.add_names(value, depth),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_names(item, depth)),
            _ => {}
        }
    }

    fn hides(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let bare: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
        self.0.contains(&name)
            || TELLING.iter().any(|telling| bare.contains(telling))
            || words.any(|word| WORDS.contains(&word))
    }

    /// The value of a header field as it is shown.
    pub(crate) fn field<'v>(&self, name: &str, value: &'v str) -> Cow<'v, str> {
        let begins = |scheme: &str| {
            value.trim_start().get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        if self.hides(name) || SCHEMES.into_iter().any(begins) {
            return MASK.into();
        }
        self.link(value)
    }

    /// A target, or a value that may be one: what its parameters say is masked where their names are secret, and so
    /// is a password before the host.
    pub(crate) fn link<'v>(&self, value: &'v str) -> Cow<'v, str> {
        let value = without_password(value);
        let Some(at) = value.find(['?', '#']) else { return value };
        let (mut shown, mut rest) = (value[..at].to_owned(), &value[at..]);
        // Each turn takes a separator, and the text until the next one.
        while let Some(separator) = rest.chars().next() {
            shown.push(separator);
            rest = &rest[separator.len_utf8()..];
            let end = rest.find(['&', ';', '?', '#']).unwrap_or(rest.len());
            let (pair, after) = rest.split_at(end);
            match pair.split_once('=') {
                Some((name, _)) if self.hides(&percent_decode_str(name).decode_utf8_lossy()) => {
                    shown.push_str(&format!("{name}={MASK}"));
                }
                _ => shown.push_str(pair),
            }
            rest = after;
        }
        shown.into()
    }
}

fn without_password(value: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = value.split_once("://") else { return value.into() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{MASK}{}", &rest[at..]).into(),
        None => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_masked_wherever_they_stand() {
        let mut masks = Masks::default();
        let authenticates = |name: &str| ["key-auth", "multi-auth"].contains(&name);
        masks.add("key-auth", &json!({"header": "X-Shop", "query": "shop"}), &authenticates);
        masks.add("multi-auth", &json!({"auth_plugins": [{"jwt-auth": {"cookie": "Door"}}]}), &authenticates);
        masks.add("limit-count", &json!({"header": "X-Tenant"}), &authenticates);
        let check = |name: &str, value: &str, expected: &str| {
            assert_eq!(masks.field(name, value), expected, "{name}: {value}");
        };
        for name in [
            "Authorization",
            "proxy-authorization",
            "Cookie",
            "Set-Cookie",
            "apikey",
            "X-API-Key",
            "X_Api_Key",
            "X-Auth-Token",
            "X-Amz-Security-Token",
            "x-rbac-token",
            "X-Session-Id",
            "X-Shop",
            "door",
            "X-Hub-Signature-256",
            "Password",
        ] {
            check(name, "abc", "***");
        }
        for name in ["Host", "X-Tenant", "Content-Type", "X-Request-Id", "Keep-Alive", "Monkey", "Author"] {
            check(name, "abc", "abc");
        }
        // Credentials under another name.
        for value in ["Bearer abc", "  bAsIc YTpi", "eyJhbGciOiJub25lIn0.e30."] {
            check("X-Whatever", value, "***");
        }
        check("Referer", "https://h/a?page=2&access_token=abc#x", "https://h/a?page=2&access_token=***#x");
        check("Location", "/done#id_token=abc&lang=en", "/done#id_token=***&lang=en");
        check("Origin", "https://jack:pass@h/a", "https://***@h/a");
        let check = |target: &str, expected: &str| assert_eq!(masks.link(target), expected);
        check("/a/b", "/a/b");
        check("/a?b=c&shop=abc&d", "/a?b=c&shop=***&d");
        check("/a?%73hop=abc;apikey=x=y&", "/a?%73hop=***;apikey=***&");
        check("/a?shop&key=&ä=ö", "/a?shop&key=***&ä=ö");
    }
}
