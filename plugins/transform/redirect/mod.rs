//! `redirect`: the response is another place.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use sigma_http::{HeaderId, Method};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::described::schema_of;

use sigma_plugin_kit::percent::{encode_component, percent_encoded};
use sigma_plugin_kit::substitute::{NewTarget, Substitution, TargetWriting, verbatim};
use sigma_plugin_kit::uri_template::{
    UriTemplate, encode_path, escape_illegal, stay_on_host, without_controls,
};

/// The plugin.
pub(crate) static REDIRECT: Descriptor = Descriptor {
    name: "redirect",
    priority: 900,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    build: |build| {
        let told = Option::<Attributes>::deserialize(build.node.attribute("redirect"));
        let https_port = told.map_err(|error| error.to_string())?.and_then(|told| told.https_port);
        Ok(Arc::new(Redirect { https_port, ..build.config()? }))
    },
    variables: &[VariableField::shown("uri", VariableForm::Template)],
    attributes: Some(schema_of::<Attributes>),
    ..Descriptor::of::<Redirect>()
};

/// Redirects clients: to HTTPS, to a template, or to the result of a pattern on the path.
///
/// Only the configuration can name another host. A target that begins with a slash or with `$uri` stays on this host
/// for all paths and arguments, unless the configured text begins with `//`. Backslashes, which browsers read as
/// slashes, are encoded. A text that begins with another variable of the client's (`$arg_to`) redirects anywhere.
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
    /// Redirect target; may contain variables such as `$uri`. `$request_uri` is the target as the client sent it, with
    /// its query.
    #[schemars(with = "Option<String>", length(min = 2))]
    uri: Option<Written<UriTemplate>>,
    /// A pattern and the replacement of its first match in the path, with `$1` for its groups. Paths without a match
    /// are not redirected.
    #[schemars(with = "Option<[String; 2]>")]
    regex_uri: Option<Written<Substitution>>,
    /// Whether to redirect to the same URL with https: 301 for GET and HEAD, 308 for other methods.
    http_to_https: Option<bool>,
    /// Whether the text of `uri`, or of the replacement, is percent-encoded up to its `?`. Values of variables and
    /// groups are always encoded.
    #[schemars(extend("default" = false))]
    encode_uri: bool,
    /// Whether the client's query is appended.
    #[schemars(extend("default" = false))]
    append_query_string: bool,
    /// The port in `plugin_attr` for targets with https.
    #[serde(skip)]
    https_port: Option<u16>,
}

#[derive(Deserialize, JsonSchema)]
struct Attributes {
    /// The port in redirect targets with https.
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

/// A template of a target, and facts about the operator's text.
struct Written<T> {
    made_by: T,
    /// The text itself begins with a host, so that the rest may.
    names_host: bool,
    /// The text holds a backslash, which is to stay one.
    keeps_backslash: bool,
}

impl<T> Written<T> {
    fn new(made_by: T, text: &str) -> Written<T> {
        Written { made_by, names_host: text.starts_with("//"), keeps_backslash: text.contains('\\') }
    }
}

impl<'de> Deserialize<'de> for Written<UriTemplate> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // `\$` stays as it is, backslash and all.
        Ok(Written::new(UriTemplate::parse(&text.replace("\\$", "\\\\$")), &text))
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
        // A trusted proxy's scheme of its client counts; the gateway wrote any other.
        let is_https = match ctx.request.headers.get(HeaderId::XForwardedProto) {
            Some(scheme) => scheme == b"https",
            None => ctx.scheme() == "https",
        };
        if is_https {
            return Step::Next;
        }
        let mut target = b"https://".to_vec();
        target.extend_from_slice(&ctx.host_name());
        // The scheme's own port, and an invalid one, are not named.
        if let Some(port) = self.https_port.or(env.https_port).filter(|port| !matches!(port, 0 | 443)) {
            target.extend_from_slice(format!(":{port}").as_bytes());
        }
        escape_illegal(ctx.request.path_and_query(), &mut target);
        let status = if matches!(ctx.request.method, Method::Get | Method::Head) { 301 } else { 308 };
        Reply::new(status).header("Location", target).into()
    }

    /// Writes the operator's own text before a query.
    fn literal(&self) -> fn(&[u8], &mut Vec<u8>) {
        if self.encode_uri { encode_literal } else { verbatim }
    }

    /// Completes the target of the configuration.
    fn finish<T>(&self, ctx: &Context, mut target: Vec<u8>, written: &Written<T>) -> Step {
        stay_on_host(&mut target, written.names_host);
        if self.append_query_string
            && let Some(args) = ctx.request.query()
        {
            target.push(if target.contains(&b'?') { b'&' } else { b'?' });
            target.extend_from_slice(args);
        }
        let target = without_controls(&target, written.keeps_backslash);
        Reply::new(self.ret_code).header("Location", target).into()
    }
}

/// Percent-encodes what nginx's `escape_uri` does for a URI, so that an absolute one stays one.
fn encoded(uri: &[u8]) -> Vec<u8> {
    percent_encoded(uri, |byte| matches!(byte, b' ' | b'#' | b'%' | b'?' | 0..=0x1f | 0x7f..))
}

fn encode_literal(text: &[u8], out: &mut Vec<u8>) {
    out.extend(encoded(text));
}

impl Plugin for Redirect {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if let Some(written) = &self.uri {
            return self.finish(ctx, written.made_by.rendered(ctx, &self.literal()), written);
        }
        if let Some(written) = &self.regex_uri {
            let how = TargetWriting {
                literal: &self.literal(),
                in_path: &encode_path,
                in_query: &encode_component,
            };
            let Some(NewTarget { path, query, .. }) = written.made_by.target(&ctx.uri, &how) else {
                return Step::Next;
            };
            let target = [Some(path), query].into_iter().flatten().collect::<Vec<_>>().join(&b'?');
            return self.finish(ctx, target, written);
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
            "301 /new/o%20ld?x=1",
        );
        check(json!({"uri": "/a\\$uri$"}), "/x", "302 /a\\$uri$");
        check(json!({"uri": "https://$host$request_uri"}), "/x?y", "302 https://example.com/x?y");
        check(json!({"uri": "$uri", "encode_uri": true}), "/a%20%25%c3%a9?q", "302 /a%20%25%C3%A9");
        check(json!({"uri": "$uri"}), "/a%0d%0aSet-Cookie:%20a", "302 /a%0D%0ASet-Cookie:%20a");
        for open in ["/%5cevil.example", "/%5c%5cevil.example", "/%2fevil.example", "/%5c%2fevil.example"] {
            check(json!({"uri": "$uri/"}), open, "302 /evil.example/");
            check(json!({"regex_uri": ["^/old(.*)", "$1/"]}), &format!("/old{open}"), "302 /evil.example/");
        }
        check(json!({"uri": "/a$uri"}), "/b%5cc", "302 /a/b%5Cc");
        check(json!({"uri": "/$arg_to"}), "/?to=/evil.example", "302 /evil.example");
        check(json!({"uri": "/$arg_to"}), "/?to=%09/evil.example", "302 /%09/evil.example");
        check(json!({"uri": "//$arg_to"}), "/?to=good.example", "302 //good.example");
        // The value of a variable or a group is percent-encoded.
        let whole = json!({"uri": "https://x$request_uri"});
        check(whole.clone(), "/a%20b", "302 https://x/a%20b");
        check(whole.clone(), "/a%3fb%23c", "302 https://x/a%3fb%23c");
        check(whole.clone(), "/%E4%BD%A0?q=%20&r", "302 https://x/%E4%BD%A0?q=%20&r");
        check(whole.clone(), "/a%2Fb//c", "302 https://x/a%2Fb//c");
        check(whole, "/a%0d%0ab", "302 https://x/a%0d%0ab");
        check(json!({"uri": "https://x$uri"}), "/a%3fb%23c%25", "302 https://x/a%3Fb%23c%25");
        check(json!({"uri": "https://x$uri"}), "/%e4%bd%a0", "302 https://x/%E4%BD%A0");
        check(json!({"uri": "/p/$arg_a"}), "/?a=b%3fc%20d", "302 /p/b%3Fc%20d");
        check(json!({"uri": "/p?to=$uri&b"}), "/a%26c=d", "302 /p?to=/a%26c%3Dd&b");
        check(json!({"uri": "/p?$args"}), "/?a=%20&b", "302 /p?a=%20&b");
        check(json!({"uri": "$arg_to"}), "/?to=https://y/a%3fb=%20c", "302 https://y/a?b=%20c");
        check(json!({"uri": "/p/$http_x_a"}), "/", "302 /p/v");
        check(json!({"uri": "$request_uri?more"}), "/a?b", "302 /a?b&more");
        check(json!({"uri": "$request_uri"}), "//evil.example", "302 /evil.example");
        let regex = |encode: bool| json!({"regex_uri": ["^/old/(.*)", "/n ew/$1"], "encode_uri": encode});
        check(regex(true), "/old/a%3Fb", "302 /n%20ew/a%3Fb");
        check(regex(true), "/old/a%20%23%25%c3%a9", "302 /n%20ew/a%20%23%25%C3%A9");
        check(regex(false), "/old/a%3Fb", "302 /n ew/a%3Fb");
        check(json!({"regex_uri": ["^/(.*)", "/p?a=$1"]}), "/x%26b", "302 /p?a=x%26b");
        check(json!({"regex_uri": ["^/(.*)", "$1"]}), "/https://y/%20", "302 https://y/%20");
        check(json!({"regex_uri": ["b", "c"]}), "/%3fab%3f", "302 /%3Fac%3F");
        check(json!({"uri": "/n", "append_query_string": true}), "/?a=b", "302 /n?a=b");
        check(json!({"uri": "/n?c", "append_query_string": true}), "/?a=b", "302 /n?c&a=b");
        check(json!({"uri": "/n", "append_query_string": true}), "/", "302 /n");
        check(json!({"regex_uri": ["^/(a+)/(.*)", "/$2/${1}"]}), "/aa/b?q", "302 /b/aa");
        check(json!({"regex_uri": ["^/z", "/"]}), "/a", "passed");
        check(json!({"http_to_https": false}), "/", "passed");
        check(json!({"http_to_https": true, "ret_code": 302}), "/a%20b?q", "301 https://example.com/a%20b?q");
    }

    #[test]
    fn only_cleartext_is_redirected_to_https() {
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
