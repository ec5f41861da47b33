//! What the client and the access log are told of a quota.

use serde_json::{Value, json};
use sigma_http::Headers;

use super::window::{Quota, Verdict};

/// The names of the header fields of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldNames {
    limit: String,
    remaining: String,
    reset: String,
}

impl FieldNames {
    /// Names by the plugin's metadata. A prefix stands before `RateLimit-`.
    pub(super) fn new(metadata: &Value, prefix: Option<&str>) -> FieldNames {
        let name = |field: &str, default: &str| {
            let name = metadata.get(field).and_then(Value::as_str).unwrap_or(default);
            match (prefix, name.find("RateLimit-")) {
                (Some(prefix), Some(at)) => format!("{}{prefix}-{}", &name[..at], &name[at..]),
                _ => name.to_owned(),
            }
        };
        FieldNames {
            limit: name("limit_header", "X-RateLimit-Limit"),
            remaining: name("remaining_header", "X-RateLimit-Remaining"),
            reset: name("reset_header", "X-RateLimit-Reset"),
        }
    }
}

/// Header fields for a response.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(super) fn tell(&mut self, names: &FieldNames, quota: Quota, verdict: Verdict) {
        self.0.push((names.limit.clone(), quota.limit.to_string()));
        self.0.push((names.remaining.clone(), verdict.remaining.unwrap_or(0).to_string()));
        self.0.push((names.reset.clone(), verdict.reset_s.to_string()));
    }

    /// Puts them into a response, in the place of fields of the same names.
    pub(super) fn set(self, headers: &mut Headers) {
        for (name, value) in self.0 {
            headers.remove_name(name.as_bytes());
            headers.append(&name, value.as_bytes());
        }
    }
}

/// The variable `rate_limiting_info`.
pub(super) fn info(key: &[u8], quota: Quota, verdict: Verdict) -> String {
    json!({
        "rate_limiting_key": String::from_utf8_lossy(key),
        "rate_limiting_limit": quota.limit,
        "rate_limiting_remaining": verdict.remaining.unwrap_or(0),
        "rate_limiting_reset": verdict.reset_s as u64
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_stand_before_the_word() {
        let check = |metadata: Value, prefix: Option<&str>, expected: [&str; 3]| {
            let names = FieldNames::new(&metadata, prefix);
            assert_eq!([&*names.limit, &*names.remaining, &*names.reset], expected, "{metadata} {prefix:?}");
        };
        check(Value::Null, None, ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]);
        check(
            Value::Null,
            Some("a"),
            ["X-a-RateLimit-Limit", "X-a-RateLimit-Remaining", "X-a-RateLimit-Reset"],
        );
        let own = json!({"limit_header": "L", "remaining_header": "RateLimit-R", "reset_header": "X"});
        check(own, Some("1"), ["L", "1-RateLimit-R", "X"]);
    }
}
