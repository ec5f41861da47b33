//! `redirect`: the answer is another place.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use sigma_config::described::schema_of;
use sigma_config::template::Template;
use sigma_http::{HeaderId, Method};
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

use super::substitute::Substitution;

/// The plugin.
pub(crate) static REDIRECT: Descriptor = Descriptor {
    name: "redirect",
    priority: 900,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    build: |build| {
        let told = Option::<Attributes>::deserialize(build.node.attribute("redirect"));
        let https_port = told.map_err(|error| error.to_string())?.and_then(|told| told.https_port);
        Ok(Arc::new(Redirect { https_port, ..build.config()? }))
    },
    variables: &[VariablePlace::shown("uri", VariableForm::Template)],
    attributes: Some(schema_of::<Attributes>),
    ..Descriptor::of::<Redirect>()
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

/// Answers with a redirect: to HTTPS, to a template, or to what a pattern makes of the path.
///
/// Only the operator names another host: whatever path or arguments hold, a target whose text begins with a
/// slash, or with `$uri`, stays on this one, unless the text itself begins with `//`. Backslashes, which
/// browsers read as slashes, are encoded. A text that begins with another variable of the client's
/// (`$arg_to`) redirects anywhere.
///
/// The port for HTTPS is `plugin_attr.redirect.https_port`, else the smallest of the listeners with TLS; 443
/// is not named.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [
    {"required": ["uri"]},
    {"required": ["regex_uri"]},
    {"required": ["http_to_https"]}
]))]
struct Redirect {
    /// The status with `uri` and `regex_uri`.
    #[schemars(range(min = 200, max = 999), extend("default" = 302))]
    ret_code: u16,
    /// Where to; may hold variables such as `$uri`.
    #[schemars(with = "Option<String>", length(min = 2))]
    uri: Option<Written<Template>>,
    /// A pattern and what its first match in the path becomes, with `$1` for its groups; paths without a
    /// match pass.
    #[schemars(with = "Option<[String; 2]>")]
    regex_uri: Option<Written<Substitution>>,
    /// To the same place under https: 301 for GET and HEAD, 308 for others.
    http_to_https: Option<bool>,
    /// The path of the target is percent-encoded.
    #[schemars(extend("default" = false))]
    encode_uri: bool,
    /// The client's query is appended.
    #[schemars(extend("default" = false))]
    append_query_string: bool,
    /// What `plugin_attr` names for targets with https.
    #[serde(skip)]
    https_port: Option<u16>,
}

#[derive(Deserialize, JsonSchema)]
struct Attributes {
    /// The port that targets with https name.
    #[schemars(range(min = 1))]
    https_port: Option<u16>,
}

impl Configuration for Redirect {
    fn check(&self) -> Result<(), String> {
        if self.http_to_https.is_some() && self.append_query_string {
            return Err("only one of `http_to_https` and `append_query_string` can be configured.".into());
        }
        Ok(())
    }
}

/// What makes a target, and what the operator's text for it means to say.
struct Written<T> {
    made_by: T,
    /// The text itself begins with a host, so that what follows may.
    names_host: bool,
    /// The text holds a backslash, which is to stay one.
    keeps_backslash: bool,
}

impl<T> Written<T> {
    fn new(made_by: T, text: &str) -> Written<T> {
        Written { made_by, names_host: text.starts_with("//"), keeps_backslash: text.contains('\\') }
    }
}

impl<'de> Deserialize<'de> for Written<Template> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // `\$` stays as it is, backslash and all.
        Ok(Written::new(Template::parse(&text.replace("\\$", "\\\\$")), &text))
    }
}

impl<'de> Deserialize<'de> for Written<Substitution> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let [pattern, replacement] = <[String; 2]>::deserialize(deserializer)?;
        let made_by = Substitution::new(&pattern, &replacement, "jo").map_err(|reason| {
            D::Error::custom(format!("invalid regex_uri ({pattern}, {replacement}), err:{reason}"))
        })?;
        Ok(Written::new(made_by, &replacement))
    }
}

impl Redirect {
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
    fn finish<T>(&self, ctx: &Context, mut target: Vec<u8>, written: &Written<T>) -> Step {
        // Two slashes at the beginning would name a host (RFC 3986 §4.2), and browsers take
        // backslashes for slashes.
        let slashes = target.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
        if slashes > 1 && !written.names_host {
            target.splice(..slashes, [b'/']);
        }
        let split = target.iter().position(|b| *b == b'?').unwrap_or(target.len());
        let (path, query) = target.split_at(split);
        let mut target = if self.encode_uri { encoded(path) } else { path.to_vec() };
        target.extend_from_slice(query);
        if self.append_query_string
            && let Some(args) = ctx.request.query()
        {
            target.push(if query.is_empty() { b'?' } else { b'&' });
            target.extend_from_slice(args);
        }
        let target = percent_encoded(&target, |byte| {
            // Control characters of a decoded path must not get into a field.
            byte < 0x20 || byte == 0x7f || (byte == b'\\' && !written.keeps_backslash)
        });
        Reply::new(self.ret_code).header("Location", target).into()
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
        if let Some(written) = &self.uri {
            return self.finish(ctx, written.made_by.rendered(ctx), written);
        }
        if let Some(written) = &self.regex_uri {
            let replaced = written.made_by.first(&ctx.uri);
            return replaced.map_or(Step::Next, |(target, _)| self.finish(ctx, target, written));
        }
        if self.http_to_https == Some(true) { self.to_https(ctx, env) } else { Step::Next }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
        case.ctx.client.tls = Some(Default::default());
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
