//! `security-headers`: restrictions for browsers.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep};

/// The plugin.
pub(crate) static SECURITY_HEADERS: Descriptor = Descriptor {
    name: "security-headers",
    // Next to response-rewrite, which has the last word by its higher number only where it is first.
    priority: 905,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    ..Descriptor::itself::<SecurityHeaders>()
};

/// Sets security headers for browsers: HSTS, CSP (`Content-Security-Policy`) and `X-Frame-Options`.
///
/// Sigma's own. Sets `X-Frame-Options`, `Strict-Transport-Security` (only over TLS, RFC 6797 §7.2) and
/// `Content-Security-Policy`, and replaces the node's fields.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, extend("minProperties" = 1))]
struct SecurityHeaders {
    /// `X-Frame-Options`.
    frame: Option<Frame>,
    /// `Strict-Transport-Security`.
    hsts: Option<Hsts>,
    /// `Content-Security-Policy`.
    csp: Option<Csp>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Frame {
    Deny,
    SameOrigin,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Hsts {
    /// Seconds for which browsers use only https.
    #[schemars(extend("default" = 15_768_000))]
    max_age: u64,
    /// Whether subdomains are included.
    #[schemars(extend("default" = false))]
    include_subdomains: bool,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Csp {
    /// The directives, e.g. `default-src 'self'`.
    #[schemars(length(min = 1), regex(pattern = r"^[\x20-\x7e]+$"))]
    policy: String,
    /// Whether browsers only report violations, without blocking.
    #[schemars(extend("default" = false))]
    report_only: bool,
}

impl Configuration for SecurityHeaders {}

impl Plugin for SecurityHeaders {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        let is_https = ctx.client.tls.is_some();
        let headers = &mut ctx.response.headers;
        let mut set = |name: &str, value: &str| headers.replace(name, value.as_bytes());
        match self.frame {
            Some(Frame::Deny) => set("X-Frame-Options", "DENY"),
            Some(Frame::SameOrigin) => set("X-Frame-Options", "SAMEORIGIN"),
            None => {}
        }
        if let Some(hsts) = self.hsts.as_ref().filter(|_| is_https) {
            let subdomains = if hsts.include_subdomains { "; includeSubDomains" } else { "" };
            set("Strict-Transport-Security", &format!("max-age={}{subdomains}", hsts.max_age));
        }
        match &self.csp {
            Some(Csp { policy, report_only: true }) => set("Content-Security-Policy-Report-Only", policy),
            Some(Csp { policy, report_only: false }) => set("Content-Security-Policy", policy),
            None => {}
        }
        ResponseStep::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{Case, entry, refusal};

    #[test]
    fn fields_are_set_and_hsts_needs_tls() {
        let conf = json!({
            "frame": "DENY",
            "hsts": {"include_subdomains": true},
            "csp": {"policy": "default-src 'self'", "report_only": true}
        });
        let plugin = entry("security-headers", conf).unwrap();
        for (tls, hsts) in [(false, ""), (true, "max-age=15768000; includeSubDomains")] {
            let mut case = Case::new("GET / HTTP/1.1\nHost: x");
            case.ctx.client.tls = tls.then(Default::default);
            case.respond(200, "x-frame-options: ALLOW");
            case.header_filter(&plugin);
            assert_eq!(case.answered("X-Frame-Options"), "DENY");
            assert_eq!(case.answered("Strict-Transport-Security"), hsts);
            assert_eq!(case.answered("Content-Security-Policy-Report-Only"), "default-src 'self'");
            assert_eq!(case.answered("Content-Security-Policy"), "");
        }
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let check = |conf: serde_json::Value, expected: &str| {
            assert!(
                refusal("security-headers", &conf).contains(expected),
                "{conf}: {}",
                refusal("security-headers", &conf)
            );
        };
        check(json!({}), "at least 1");
        check(json!({"frame": "ALLOW"}), "matches none of the enum values");
        check(json!({"csp": {"policy": "a\r\nb"}}), "failed to match pattern");
    }
}
