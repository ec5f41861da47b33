//! `security-headers`: what browsers are told to forbid.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sigma_plugin::{Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep};

/// The plugin.
pub(crate) static SECURITY_HEADERS: Descriptor = Descriptor {
    name: "security-headers",
    // Beside response-rewrite, which has the last word by its higher number only where it is first.
    priority: 905,
    doc: "Tells browsers what to forbid: frames, unencrypted visits, foreign content.\n\n\
        Sigma's own. Sets `X-Frame-Options`, `Strict-Transport-Security` (only over TLS, RFC 6797 §7.2) and \
        `Content-Security-Policy` in place of what the node said.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    schema: || {
        json!({
            "type": "object",
            "minProperties": 1,
            "additionalProperties": false,
            "properties": {
                "frame": {
                    "type": "string",
                    "enum": ["DENY", "SAMEORIGIN"],
                    "description": "`X-Frame-Options`."
                },
                "hsts": {
                    "type": "object",
                    "additionalProperties": false,
                    "properties": {
                        "max_age": {
                            "type": "integer",
                            "minimum": 0,
                            "default": 15_768_000,
                            "description": "Seconds for which only https may be used."
                        },
                        "include_subdomains": {
                            "type": "boolean",
                            "default": false,
                            "description": "It holds for names below this one too."
                        }
                    },
                    "description": "`Strict-Transport-Security`."
                },
                "csp": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["policy"],
                    "properties": {
                        "policy": {
                            "type": "string",
                            "minLength": 1,
                            "pattern": "^[\\x20-\\x7e]+$",
                            "description": "The directives, e.g. `default-src 'self'`."
                        },
                        "report_only": {
                            "type": "boolean",
                            "default": false,
                            "description": "Browsers only report what they would forbid."
                        }
                    },
                    "description": "`Content-Security-Policy`."
                }
            }
        })
    },
    build: |build| Ok(Arc::new(build.config::<SecurityHeaders>()?)),
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      security-headers:
        frame: DENY
        hsts: { max_age: 31536000 }          # sent over TLS only
        csp: { policy: "default-src 'self'" }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 200 OK
…
X-Frame-Options: DENY
Content-Security-Policy: default-src 'self'
…
```
"#;

#[derive(Debug, Deserialize)]
struct SecurityHeaders {
    frame: Option<String>,
    hsts: Option<Hsts>,
    csp: Option<Csp>,
}

#[derive(Debug, Deserialize)]
struct Hsts {
    max_age: u64,
    include_subdomains: bool,
}

#[derive(Debug, Deserialize)]
struct Csp {
    policy: String,
    report_only: bool,
}

impl Plugin for SecurityHeaders {
    fn header_filter(&self, cx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        let is_https = cx.client.tls.is_some();
        let headers = &mut cx.response.headers;
        let mut set = |name: &str, value: &str| {
            headers.remove_name(name.as_bytes());
            headers.append(name, value.as_bytes());
        };
        if let Some(frame) = &self.frame {
            set("X-Frame-Options", frame);
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
    use super::*;
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
            case.cx.client.tls = tls.then(Default::default);
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
