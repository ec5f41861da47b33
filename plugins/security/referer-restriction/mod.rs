//! `referer-restriction`: requests by the page that they come from.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sigma_http::HeaderId;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use crate::shared::refusal::{self, Refusal};

/// Allows or denies requests by the host in `Referer`.
pub(crate) static REFERER_RESTRICTION: Descriptor = Descriptor {
    name: "referer-restriction",
    priority: 2990,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(refusal::warnings),
    ..Descriptor::itself::<RefererRestriction>()
};

/// Allows or denies requests by the host in `Referer`.
///
/// Browsers set this field; a program can send any value in it. An entry is a host, `*` for any, or `*` and the end
/// of hosts: `*.shop.example` is every host below `shop.example`, and not that itself. Case is ignored, and text
/// before an `@` is not part of the host.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [{"required": ["whitelist"]}, {"required": ["blacklist"]}]))]
struct RefererRestriction {
    /// Whether requests without a `Referer`, or with one that is not a URL of a page, are allowed.
    #[schemars(extend("default" = false))]
    bypass_missing: bool,
    /// Permitted hosts; requests from other hosts are refused.
    #[schemars(length(min = 1), inner(regex(pattern = HOST)))]
    whitelist: Option<Vec<String>>,
    /// Refused hosts.
    #[schemars(length(min = 1), inner(regex(pattern = HOST)))]
    blacklist: Option<Vec<String>>,
    /// The message of a refusal.
    #[schemars(length(min = 1, max = 1024), extend("default" = "Your referer host is not allowed"))]
    message: String,
    #[serde(flatten)]
    refusal: Refusal,
}

/// `*`, a host, or the end of one behind a `*`.
const HOST: &str = r"^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$";

impl Configuration for RefererRestriction {}

impl RefererRestriction {
    fn admits(&self, referer: Option<&[u8]>) -> bool {
        let Some(host) = referer.and_then(host) else { return self.bypass_missing };
        let holds = |list: &[String]| list.iter().any(|entry| is_of(host, entry.as_bytes()));
        match (&self.whitelist, &self.blacklist) {
            (Some(list), _) => holds(list),
            (None, Some(list)) => !holds(list),
            // The schema requests one of them.
            (None, None) => false,
        }
    }
}

/// Whether an entry of a list matches this host.
fn is_of(host: &[u8], entry: &[u8]) -> bool {
    match entry.strip_prefix(b"*") {
        None => host.eq_ignore_ascii_case(entry),
        Some(end) => host.len().checked_sub(end.len()).is_some_and(|at| host[at..].eq_ignore_ascii_case(end)),
    }
}

/// The host of a page's address, IPv6 in brackets.
fn host(referer: &[u8]) -> Option<&[u8]> {
    let schemes: [&[u8]; 3] = [b"http://", b"https://", b"//"];
    let rest = schemes.iter().find_map(|scheme| referer.strip_prefix(*scheme))?;
    // Browsers take a backslash for a slash.
    let authority = rest.split(|byte| b"/\\?#".contains(byte)).next()?;
    let place = authority.rsplit(|byte| *byte == b'@').next()?;
    let end = match place.first() {
        Some(b'[') => place.iter().position(|byte| *byte == b']')? + 1,
        _ => place.iter().position(|byte| *byte == b':').unwrap_or(place.len()),
    };
    (end > 0).then(|| &place[..end])
}

impl Plugin for RefererRestriction {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let mut referers = ctx.request.headers.get_all(HeaderId::of(b"Referer"));
        let first = referers.next();
        // Of several no browser has sent more than one: each has to pass.
        let admitted = self.admits(first) && referers.all(|referer| self.admits(Some(referer)));
        if admitted {
            return Step::Next;
        }
        self.refusal.step(Reply::new(403).json(&json!({ "message": self.message })), env)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    fn check(conf: &Value, referers: &[&str], expected: bool) {
        let entry = entry("referer-restriction", conf.clone()).unwrap();
        let fields: String = referers.iter().map(|referer| format!("\nReferer: {referer}")).collect();
        let reply = Case::new(&format!("GET / HTTP/1.1\nHost: h{fields}")).run(&entry, Phase::Access);
        let said = if expected { "passed" } else { r#"403 {"message":"Your referer host is not allowed"}"# };
        assert_eq!(summary(reply.as_ref()), said, "{conf} {referers:?}");
    }

    #[test]
    fn pages_pass_or_do_not() {
        let white = json!({"whitelist": ["a.test", "*.b.test", "[::1]"]});
        for (referer, expected) in [
            ("http://a.test", true),
            ("https://a.test:8443/x?y", true),
            ("//a.test/x", true),
            ("https://A.Test/", true),
            ("https://x.b.test/", true),
            ("https://b.test/", false),
            ("https://xb.test/", false),
            ("http://[::1]:80/", true),
            ("a.test", false),
            ("HTTP://a.test/", false),
            ("ftp://a.test/", false),
            ("about:blank", false),
            ("http://", false),
            ("", false),
            // Texts that resemble the host and are not equal to it.
            ("http://a.test:x@evil.test/", false),
            ("http://a.test@evil.test/", false),
            ("http://evil.test/@a.test", false),
            ("http://evil.test#@a.test", false),
            ("http://evil.test\\@a.test", false),
            ("http://evil.test?a.test", false),
            ("http://a.test.evil.test/", false),
        ] {
            check(&white, &[referer], expected);
        }
        check(&white, &[], false);
        check(&white, &["http://a.test/", "http://evil.test/"], false);
        check(&json!({"whitelist": ["*"]}), &["http://any.test/"], true);
        check(&json!({"whitelist": ["*"]}), &["nonsense"], false);
        let black = json!({"blacklist": ["evil.test"], "bypass_missing": true});
        check(&black, &["http://EVIL.test/"], false);
        check(&black, &["http://u@evil.test/"], false);
        check(&black, &["http://good.test/"], true);
        check(&black, &[], true);
        check(&json!({"blacklist": ["evil.test"]}), &[], false);
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| {
            assert_eq!(refusal("referer-restriction", &conf), expected, "{conf}");
        };
        check(json!({}), "value should match only one schema, but matches none");
        check(
            json!({"whitelist": ["a"], "blacklist": ["b"]}),
            "value should match only one schema, but matches both schemas 1 and 2",
        );
        let refused = refusal("referer-restriction", &json!({"whitelist": ["a b"]}));
        assert!(refused.contains("failed to match pattern"), "{refused}");
    }
}
