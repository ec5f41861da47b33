//! Fields of a quota for the client and the access log.

use sigma_http::Headers;

use super::config::{Metadata, ResetForm};
use super::window::{Quota, Verdict};
use crate::shared::quota::whole_seconds;

/// The names of the header fields of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldNames {
    limit: String,
    remaining: String,
    reset: String,
    /// The name of the policy in the fields of the draft: a token.
    policy: String,
}

impl FieldNames {
    /// Names by the plugin's metadata. A prefix comes before `RateLimit-`.
    pub(super) fn new(metadata: &Metadata, prefix: Option<&str>) -> FieldNames {
        let name = |name: &str| match (prefix, name.find("RateLimit-")) {
            (Some(prefix), Some(at)) => format!("{}{prefix}-{}", &name[..at], &name[at..]),
            _ => name.to_owned(),
        };
        FieldNames {
            limit: name(&metadata.limit_header),
            remaining: name(&metadata.remaining_header),
            reset: name(&metadata.reset_header),
            policy: prefix.unwrap_or("default").to_owned(),
        }
    }

    /// Adds the policy and the remaining quota to the fields of draft-ietf-httpapi-ratelimit-headers-10,
    /// which are lists: other limits, and nodes, have policies of their own.
    pub(super) fn append_standard(&self, headers: &mut Headers, quota: Quota, verdict: Verdict) {
        let Quota { limit, window_s } = quota;
        let (policy, left, reset_s) = (&self.policy, verdict.remaining.unwrap_or(0), verdict.reset_s.ceil());
        headers.append("RateLimit-Policy", format!("\"{policy}\";q={limit};w={window_s}").as_bytes());
        headers.append("RateLimit", format!("\"{policy}\";r={left};t={reset_s}").as_bytes());
    }

    /// Writes the quota to a response, and replaces fields of the same names.
    pub(super) fn set(&self, headers: &mut Headers, quota: Quota, verdict: Verdict, form: ResetForm) {
        let mut digits = itoa::Buffer::new();
        let mut set = |name: &str, value: &str| {
            headers.remove_name(name.as_bytes());
            headers.append(name, value.as_bytes());
        };
        set(&self.limit, digits.format(quota.limit));
        set(&self.remaining, digits.format(verdict.remaining.unwrap_or(0)));
        if form == ResetForm::Seconds {
            return set(&self.reset, digits.format(whole_seconds(verdict.reset_s)));
        }
        // Made of hundredths, see `Verdict::new`: text of floats takes longer than all the rest.
        let hundredths = (verdict.reset_s * 100.0).round() as u64;
        let whole = digits.format(hundredths / 100);
        let [tenths, rest] = [hundredths / 10 % 10, hundredths % 10].map(|digit| b'0' + digit as u8);
        let fraction = [b'.', tenths, rest];
        let shown = match (tenths, rest) {
            (b'0', b'0') => 0,
            (_, b'0') => 2,
            _ => 3,
        };
        headers.remove_name(self.reset.as_bytes());
        headers.append_parts(self.reset.as_bytes(), &[whole.as_bytes(), &fraction[..shown]]);
    }
}

/// The variable `rate_limiting_info`: made for each request, so it is written and not built.
pub(super) fn info(key: &[u8], quota: Quota, verdict: Verdict) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 128);
    out.extend_from_slice(br#"{"rate_limiting_key":"#);
    // Writing to memory cannot fail, and text is always JSON.
    let _ = serde_json::to_writer(&mut out, &String::from_utf8_lossy(key));
    let numbers = [
        (&br#","rate_limiting_limit":"#[..], quota.limit),
        (br#","rate_limiting_remaining":"#, verdict.remaining.unwrap_or(0)),
        (br#","rate_limiting_reset":"#, verdict.reset_s as u64),
    ];
    for (name, number) in numbers {
        out.extend_from_slice(name);
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn prefixes_stand_before_the_word() {
        let check = |metadata: Value, prefix: Option<&str>, expected: [&str; 3]| {
            let names = FieldNames::new(&Metadata::deserialize(&metadata).unwrap(), prefix);
            assert_eq!([&*names.limit, &*names.remaining, &*names.reset], expected, "{metadata} {prefix:?}");
        };
        check(json!({}), None, ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]);
        check(
            json!({}),
            Some("a"),
            ["X-a-RateLimit-Limit", "X-a-RateLimit-Remaining", "X-a-RateLimit-Reset"],
        );
        let own = json!({"limit_header": "L", "remaining_header": "RateLimit-R", "reset_header": "X"});
        check(own, Some("1"), ["L", "1-RateLimit-R", "X"]);
    }

    #[test]
    fn a_reset_is_in_whole_seconds_unless_hundredths_are_wanted() {
        let names = FieldNames::new(&Metadata::default(), None);
        let check = |reset_s: f64, expected: [&str; 2]| {
            for (form, expected) in [ResetForm::Seconds, ResetForm::Hundredths].into_iter().zip(expected) {
                let mut headers = Headers::default();
                let quota = Quota { limit: 2, window_s: 600 };
                names.set(&mut headers, quota, Verdict::new(None, reset_s), form);
                let found = headers.iter().find(|(name, _)| *name == b"X-RateLimit-Reset");
                assert_eq!(found.unwrap().1, expected.as_bytes(), "{reset_s} {form:?}");
            }
        };
        check(600.0, ["600", "600"]);
        check(59.98, ["60", "59.98"]);
        check(59.01, ["60", "59.01"]);
        check(0.5, ["1", "0.5"]);
        check(0.0, ["0", "0"]);
    }
}
