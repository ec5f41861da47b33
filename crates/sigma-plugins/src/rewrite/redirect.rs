//! `redirect`: the answer is another place.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sigma_config::template::Template;
use sigma_http::{HeaderId, Method};
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use super::substitute::Substitution;

/// The plugin.
pub(crate) static REDIRECT: Descriptor = Descriptor {
    name: "redirect",
    priority: 900,
    doc: "Answers with a redirect: to HTTPS, to a template, or to what a pattern makes of the path.\n\n\
        Only the operator names another host: whatever path or arguments hold, a target whose text begins \
        with a slash, or with `$uri`, stays on this one, unless the text itself begins with `//`. Backslashes, \
        which browsers read as slashes, are encoded. A text that begins with another variable of the client's \
        (`$arg_to`) redirects anywhere.\n\n\
        The port for HTTPS is `plugin_attr.redirect.https_port`, else the smallest of the listeners with \
        TLS; 443 is not named.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    schema: || {
        json!({
            "type": "object",
            "properties": {
                "ret_code": {
                    "type": "integer",
                    "minimum": 200,
                    "maximum": 999,
                    "default": 302,
                    "description": "The status with `uri` and `regex_uri`."
                },
                "uri": {
                    "type": "string",
                    "minLength": 2,
                    "description": "Where to; may hold variables such as `$uri`."
                },
                "regex_uri": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": {"type": "string"},
                    "description": "A pattern and what its first match in the path becomes, with `$1` for its groups; paths without a match pass."
                },
                "http_to_https": {
                    "type": "boolean",
                    "description": "To the same place under https: 301 for GET and HEAD, 308 for others."
                },
                "encode_uri": {
                    "type": "boolean",
                    "default": false,
                    "description": "The path of the target is percent-encoded."
                },
                "append_query_string": {
                    "type": "boolean",
                    "default": false,
                    "description": "The client's query is appended."
                }
            },
            "oneOf": [
                {"required": ["uri"]},
                {"required": ["regex_uri"]},
                {"required": ["http_to_https"]}
            ]
        })
    },
    check: Some(|conf| Redirect::from_conf(conf).map(|_| ())),
    build: |build| Ok(Arc::new(Redirect::new(build)?)),
    variables: &[VariablePlace::shown("uri", VariableForm::Template)],
    attributes: Some(|| {
        json!({"type": "object", "properties": {
            "https_port": {
                "type": "integer", "minimum": 1, "maximum": 65535,
                "description": "The port that targets with https name."
            }
        }})
    }),
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /old/*
    plugins:
      redirect: { regex_uri: ["^/old/(.*)", "/new/$1"], ret_code: 301, append_query_string: true }
```

```console
$ curl -i http://127.0.0.1:9080/old/orders?page=2
HTTP/1.1 301 Moved Permanently
Location: /new/orders?page=2
…
```
"#;

#[derive(Debug, Deserialize)]
struct Conf {
    ret_code: u16,
    uri: Option<String>,
    regex_uri: Option<[String; 2]>,
    http_to_https: Option<bool>,
    encode_uri: bool,
    append_query_string: bool,
}

struct Redirect {
    to: Target,
    status: u16,
    encode: bool,
    append_query: bool,
    /// The configured text itself begins with a host, so that what follows may.
    names_host: bool,
    /// The configured text holds a backslash, which is to stay one.
    keeps_backslash: bool,
    /// What `plugin_attr` names for targets with https.
    https_port: Option<u16>,
}

enum Target {
    /// The same place under https.
    Https,
    /// `http_to_https` is false: nowhere.
    Nowhere,
    Template(Template),
    Substitution(Substitution),
}

impl Redirect {
    fn new(build: &Build<'_>) -> Result<Redirect, String> {
        let mut redirect = Redirect::from_conf(build.conf)?;
        let port = build.node.attribute("redirect").get("https_port").and_then(serde_json::Value::as_u64);
        redirect.https_port = port.map(|port| u16::try_from(port).unwrap_or(0));
        Ok(redirect)
    }

    fn from_conf(conf: &serde_json::Value) -> Result<Redirect, String> {
        let conf = Conf::deserialize(conf).map_err(|error| error.to_string())?;
        let to = match (conf.http_to_https, &conf.uri, &conf.regex_uri) {
            (Some(_), ..) if conf.append_query_string => {
                return Err("only one of `http_to_https` and `append_query_string` can be configured.".into());
            }
            (Some(true), ..) => Target::Https,
            (Some(false), ..) => Target::Nowhere,
            // `\$` stays as it is, backslash and all.
            (None, Some(uri), _) => Target::Template(Template::parse(&uri.replace("\\$", "\\\\$"))),
            (None, None, Some([pattern, replacement])) => {
                Target::Substitution(Substitution::new(pattern, replacement, "jo").map_err(|reason| {
                    format!("invalid regex_uri ({pattern}, {replacement}), err:{reason}")
                })?)
            }
            (None, None, None) => return Err("nothing to redirect to".into()),
        };
        let written = conf.uri.as_ref().or(conf.regex_uri.as_ref().map(|[_, replacement]| replacement));
        Ok(Redirect {
            to,
            status: conf.ret_code,
            encode: conf.encode_uri,
            append_query: conf.append_query_string,
            names_host: written.is_some_and(|text| text.starts_with("//")),
            keeps_backslash: written.is_some_and(|text| text.contains('\\')),
            https_port: None,
        })
    }

    fn to_https(&self, ctx: &Context, env: &Env<'_>) -> Step {
        // What a trusted proxy says of its client's scheme counts; the gateway wrote the rest.
        let is_https = match ctx.request.headers.get(HeaderId::XForwardedProto) {
            Some(scheme) => scheme == b"https",
            None => ctx.scheme() == "https",
        };
        if is_https {
            return Step::Next;
        }
        let mut target = b"https://".to_vec();
        target.extend_from_slice(&ctx.host_name());
        // The scheme's own port, and what is none, is not named.
        if let Some(port) = self.https_port.or(env.https_port).filter(|port| !matches!(port, 0 | 443)) {
            target.extend_from_slice(format!(":{port}").as_bytes());
        }
        target.extend_from_slice(&encoded(&ctx.uri));
        if let Some(query) = ctx.request.query() {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        let status = if matches!(ctx.request.method, Method::Get | Method::Head) { 301 } else { 308 };
        Reply::new(status).header("Location", target).into()
    }

    /// Encodes and completes what the configuration made.
    fn finish(&self, ctx: &Context, mut target: Vec<u8>) -> Step {
        // Two slashes at the beginning would name a host (RFC 3986 §4.2), and browsers take
        // backslashes for slashes.
        let slashes = target.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
        if slashes > 1 && !self.names_host {
            target.splice(..slashes, [b'/']);
        }
        let split = target.iter().position(|b| *b == b'?').unwrap_or(target.len());
        let (path, query) = target.split_at(split);
        let mut target = if self.encode { encoded(path) } else { path.to_vec() };
        target.extend_from_slice(query);
        if self.append_query
            && let Some(args) = ctx.request.query()
        {
            target.push(if query.is_empty() { b'?' } else { b'&' });
            target.extend_from_slice(args);
        }
        let target = percent_encoded(&target, |byte| {
            // Control characters of a decoded path must not get into a field.
            byte < 0x20 || byte == 0x7f || (byte == b'\\' && !self.keeps_backslash)
        });
        Reply::new(self.status).header("Location", target).into()
    }
}

/// Percent-encodes what nginx's `escape_uri` does for a URI, so that an absolute one stays one.
fn encoded(uri: &[u8]) -> Vec<u8> {
    percent_encoded(uri, |byte| matches!(byte, b' ' | b'#' | b'%' | b'?' | 0..=0x1f | 0x7f..))
}

/// Writes the bytes that `is_escaped` names as `%XX`.
pub(super) fn percent_encoded(text: &[u8], is_escaped: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        if is_escaped(byte) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
    out
}

impl Plugin for Redirect {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        match &self.to {
            Target::Https => self.to_https(ctx, env),
            Target::Nowhere => Step::Next,
            Target::Template(template) => {
                let mut target = Vec::new();
                template.render(ctx, &mut target);
                self.finish(ctx, target)
            }
            Target::Substitution(substitution) => match substitution.first(&ctx.uri) {
                Some((target, _)) => self.finish(ctx, target),
                None => Step::Next,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{Case, entry, field, refusal};

    fn answer(conf: &Value, head: &str) -> String {
        let plugin = entry("redirect", conf.clone()).unwrap();
        match Case::new(head).run(&plugin, Phase::Rewrite) {
            Some(reply) => format!("{} {}", reply.status, field(&reply, "Location").unwrap()),
            None => "passed".into(),
        }
    }

    #[test]
    fn targets_are_made() {
        let check = |conf: Value, target: &str, expected: &str| {
            let head = format!("GET {target} HTTP/1.1\nHost: Example.com:81\nX-A: v");
            assert_eq!(answer(&conf, &head), expected, "{conf} {target}");
        };
        check(json!({"uri": "/new"}), "/old?a=1", "302 /new");
        check(
            json!({"uri": "/new$uri?x=${arg_a}$none", "ret_code": 301}),
            "/o%20ld?a=1",
            "301 /new/o ld?x=1",
        );
        check(json!({"uri": "/a\\$uri$"}), "/x", "302 /a\\$uri$");
        check(json!({"uri": "https://$host$request_uri"}), "/x?y", "302 https://example.com/x?y");
        check(json!({"uri": "$uri", "encode_uri": true}), "/a%20%25%c3%a9?q", "302 /a%20%25%C3%A9");
        check(json!({"uri": "$uri"}), "/a%0d%0aSet-Cookie:%20a", "302 /a%0D%0ASet-Cookie: a");
        for open in ["/%5cevil.example", "/%5c%5cevil.example", "/%2fevil.example", "/%5c%2fevil.example"] {
            check(json!({"uri": "$uri/"}), open, "302 /evil.example/");
            check(json!({"regex_uri": ["^/old(.*)", "$1/"]}), &format!("/old{open}"), "302 /evil.example/");
        }
        check(json!({"uri": "/a$uri"}), "/b%5cc", "302 /a/b%5Cc");
        check(json!({"uri": "/$arg_to"}), "/?to=/evil.example", "302 /evil.example");
        check(json!({"uri": "/$arg_to"}), "/?to=%09/evil.example", "302 /%09/evil.example");
        check(json!({"uri": "//$arg_to"}), "/?to=good.example", "302 //good.example");
        check(json!({"uri": "/n", "append_query_string": true}), "/?a=b", "302 /n?a=b");
        check(json!({"uri": "/n?c", "append_query_string": true}), "/?a=b", "302 /n?c&a=b");
        check(json!({"uri": "/n", "append_query_string": true}), "/", "302 /n");
        check(json!({"regex_uri": ["^/(a+)/(.*)", "/$2/${1}"]}), "/aa/b?q", "302 /b/aa");
        check(json!({"regex_uri": ["^/z", "/"]}), "/a", "passed");
        check(json!({"http_to_https": false}), "/", "passed");
        check(json!({"http_to_https": true, "ret_code": 302}), "/a%20b?q", "301 https://example.com/a%20b?q");
    }

    #[test]
    fn only_what_is_not_https_goes_there() {
        let conf = json!({"http_to_https": true});
        assert_eq!(answer(&conf, "POST /p HTTP/1.1\nHost: h"), "308 https://h/p");
        assert_eq!(answer(&conf, "HEAD / HTTP/1.1\nHost: h"), "301 https://h/");
        assert_eq!(answer(&conf, "GET / HTTP/1.1\nHost: h\nX-Forwarded-Proto: https"), "passed");
        let plugin = entry("redirect", conf).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.cx.client.tls = Some(Default::default());
        assert!(case.run(&plugin, Phase::Rewrite).is_none());
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let check = |conf: Value, expected: &str| {
            let refusal = refusal("redirect", &conf);
            assert!(refusal.starts_with(expected) && !refusal.is_empty(), "{conf}: {refusal}");
        };
        check(json!({}), "value should match only one schema, but matches none");
        check(
            json!({"uri": "/a", "http_to_https": true}),
            "value should match only one schema, but matches both",
        );
        check(
            json!({"http_to_https": true, "append_query_string": true}),
            "only one of `http_to_https` and `append_query_string` can be configured.",
        );
        check(json!({"regex_uri": ["(", "/"]}), "invalid regex_uri ((, /), err:");
        check(
            json!({"uri": "/a", "ret_code": 199}),
            "property \"ret_code\" validation failed: expected 199 to be at least 200",
        );
    }
}
