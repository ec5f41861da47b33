//! `proxy-rewrite`: the node is asked for something else than the client asked for.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::template::Template;
use sigma_http::HeaderId;
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::variables::percent_encode_path;
use sigma_plugin::{Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

use super::fields::{FieldRules, refuse_idle};
use super::redirect::percent_encoded;
use super::substitute::Substitution;

/// The plugin.
pub(crate) static PROXY_REWRITE: Descriptor = Descriptor {
    name: "proxy-rewrite",
    priority: 1008,
    doc: "Changes path, query, host, method and fields of the request that the node gets.\n\n\
        The path is normalised and encoded anew even if only something else is changed. The variable `uri` \
        keeps what the client asked for; `upstream_uri` is the new target. Fields that frame the message \
        cannot be changed.",
    phases: PhaseSet::of(&[Phase::Rewrite]),
    schema,
    check: Some(|conf| {
        refuse_idle(conf, &json!({"use_real_request_uri_unsafe": false}))?;
        ProxyRewrite::new(conf).map(|_| ())
    }),
    build: |build| Ok(Arc::new(ProxyRewrite::new(build.conf)?)),
    variables: &[
        VariablePlace::shown("uri", VariableForm::Template),
        VariablePlace::shown("headers.*", VariableForm::Template),
        VariablePlace::shown("headers.*.*", VariableForm::Template),
        VariablePlace::shown("headers.*.*.*", VariableForm::Template),
    ],
    ..Descriptor::BASE
};

fn schema() -> Value {
    let one_value = json!({"oneOf": [{"type": "string"}, {"type": "number"}]});
    let values = json!({"oneOf": [
        {"type": "string"},
        {"type": "number"},
        {"type": "array", "minItems": 1, "items": one_value}
    ]});
    let fields = |about: &str, value: &Value| {
        json!({
            "type": "object",
            "minProperties": 1,
            "patternProperties": {"^[^:]+$": value},
            "description": about
        })
    };
    let rules = json!({
        "type": "object",
        "minProperties": 1,
        "additionalProperties": false,
        "properties": {
            "add": fields("Fields to add, one for each value.", &values),
            "set": fields("Fields that replace those of the same name.", &values),
            "remove": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "string", "pattern": "^[^:]+$"},
                "description": "Names of fields to remove."
            }
        }
    });
    json!({
        "type": "object",
        "minProperties": 1,
        "additionalProperties": false,
        "properties": {
            "uri": {
                "type": "string",
                "minLength": 1,
                "maxLength": 4096,
                "pattern": "^\\/.*",
                "description": "The new path, and with `?` the beginning of the query; may hold variables such as `$arg_a`."
            },
            "method": {
                "type": "string",
                "enum": ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "MKCOL", "COPY", "MOVE",
                    "PROPFIND", "LOCK", "UNLOCK", "PATCH", "TRACE"],
                "description": "The new method."
            },
            "regex_uri": {
                "type": "array",
                "minItems": 2,
                "items": {"type": "string"},
                "description": "Patterns for the path, each followed by what its first match becomes; the first pattern that matches counts. Not looked at beside `uri`."
            },
            "host": {
                "type": "string",
                "pattern": "^[0-9a-zA-Z-.]+(:\\d{1,5})?$",
                "description": "The new Host, if the upstream's `pass_host` is `pass`."
            },
            "headers": {
                "oneOf": [rules, fields("Fields that replace those of the same name.", &one_value)],
                "description": "Rules for fields: `add`, `set` and `remove`, or just fields to set. Values may hold variables, and `$1` for the groups of `regex_uri`."
            },
            "use_real_request_uri_unsafe": {
                "type": "boolean",
                "default": false,
                "description": "Begins with the target as the client wrote it, and encodes nothing."
            }
        }
    })
}

#[derive(Debug, Deserialize)]
struct Conf {
    uri: Option<String>,
    method: Option<String>,
    regex_uri: Option<Vec<String>>,
    host: Option<String>,
    headers: Option<Value>,
    use_real_request_uri_unsafe: bool,
}

struct ProxyRewrite {
    path: NewPath,
    method: Option<String>,
    host: Option<String>,
    headers: FieldRules,
    raw: bool,
}

enum NewPath {
    AsAsked,
    /// The path, and the query if there is a `?`.
    Templates(Template, Option<Template>),
    Substitutions(Vec<Substitution>),
}

impl ProxyRewrite {
    fn new(conf: &Value) -> Result<ProxyRewrite, String> {
        FieldRules::check(conf.get("headers"))?;
        let conf = Conf::deserialize(conf).map_err(|error| error.to_string())?;
        let mut substitutions = Vec::new();
        if let Some(pairs) = &conf.regex_uri {
            if pairs.len() % 2 != 0 {
                return Err("The length of regex_uri should be an even number".into());
            }
            for pair in pairs.chunks(2) {
                let (pattern, replacement) = (&pair[0], &pair[1]);
                let made = Substitution::new(pattern, replacement, "jo");
                substitutions.push(
                    made.map_err(|reason| format!("invalid regex_uri({pattern}, {replacement}): {reason}"))?,
                );
            }
        }
        let path = match &conf.uri {
            Some(uri) => {
                let (path, query) = split_template(uri);
                NewPath::Templates(Template::parse(path), query.map(Template::parse))
            }
            None if substitutions.is_empty() => NewPath::AsAsked,
            None => NewPath::Substitutions(substitutions),
        };
        Ok(ProxyRewrite {
            path,
            method: conf.method,
            host: conf.host,
            headers: conf.headers.as_ref().map(FieldRules::of).unwrap_or_default(),
            raw: conf.use_real_request_uri_unsafe,
        })
    }

    /// The new target, and the groups of the pattern that matched.
    fn target(&self, cx: &Context) -> (Vec<u8>, Vec<Vec<u8>>) {
        let raw_target = || match cx.outgoing_query() {
            Some(query) => [cx.request.raw_path(), query].join(&b'?'),
            None => cx.request.raw_path().to_vec(),
        };
        let (path, query, captures) = match &self.path {
            NewPath::Templates(path, query) => {
                let query = query.as_ref().map(|query| rendered(query, cx));
                (rendered(path, cx), query, Vec::new())
            }
            NewPath::AsAsked if self.raw => return (raw_target(), Vec::new()),
            NewPath::AsAsked => (cx.uri.clone(), None, Vec::new()),
            NewPath::Substitutions(all) => {
                let base = if self.raw { raw_target() } else { cx.uri.clone() };
                let replaced = all.iter().find_map(|substitution| substitution.first(&base));
                let (text, captures) = replaced.unwrap_or_else(|| (base.clone(), Vec::new()));
                if self.raw {
                    return (text, captures);
                }
                // A question mark of the client's, sent as `%3f`, does not begin a query.
                let at = text.iter().position(|b| *b == b'?').filter(|_| !base.contains(&b'?'));
                match at {
                    Some(at) => (text[..at].to_vec(), Some(text[at + 1..].to_vec()), captures),
                    None => (text, None, captures),
                }
            }
        };
        let mut target = Vec::with_capacity(path.len() + 16);
        if self.raw {
            // A value of a variable must not begin the query.
            target.extend(percent_encoded(&path, |byte| byte == b'?'));
        } else {
            percent_encode_path(&path, &mut target);
        }
        for query in [query.as_deref(), cx.outgoing_query()].into_iter().flatten() {
            target.push(if target.contains(&b'?') { b'&' } else { b'?' });
            target.extend_from_slice(query);
        }
        (target, captures)
    }
}

fn rendered(template: &Template, cx: &Context) -> Vec<u8> {
    let mut out = Vec::new();
    template.render(cx, &mut out);
    out
}

/// Path and query of a template: its first `?` that is not inside `${…}` parts them.
fn split_template(uri: &str) -> (&str, Option<&str>) {
    let mut in_braces = false;
    for (at, byte) in uri.bytes().enumerate() {
        match byte {
            b'{' if uri[..at].ends_with('$') => in_braces = true,
            b'}' => in_braces = false,
            b'?' if !in_braces => return (&uri[..at], Some(&uri[at + 1..])),
            _ => {}
        }
    }
    (uri, None)
}

impl Plugin for ProxyRewrite {
    fn rewrite(&self, cx: &mut Context, _env: &Env<'_>) -> Step {
        let (target, captures) = self.target(cx);
        // What could end the request line is encoded in any case.
        cx.target = percent_encoded(&target, |byte| byte <= b' ' || byte == 0x7f);
        if cx.target.first() != Some(&b'/') && cx.request.path_and_query() != b"*" {
            cx.target.insert(0, b'/');
        }
        self.headers.apply(cx, &captures, |cx| &mut cx.request.headers);
        if let Some(host) = &self.host {
            cx.host = Some(host.clone().into_bytes());
        }
        if self.headers.sets("host") {
            cx.host = cx.request.headers.get(HeaderId::Host).map(<[u8]>::to_vec);
        }
        if let Some(method) = &self.method {
            cx.request.set_method(method);
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal};

    fn run(conf: &Value, head: &str) -> Case {
        let plugin = entry("proxy-rewrite", conf.clone()).unwrap();
        let mut case = Case::new(head);
        assert!(case.run(&plugin, Phase::Rewrite).is_none());
        case
    }

    #[test]
    fn targets_are_made() {
        let check = |conf: Value, target: &str, expected: &str| {
            let case = run(&conf, &format!("GET {target} HTTP/1.1\nHost: h\nX-A: a?b"));
            assert_eq!(case.target(), expected, "{conf} {target}");
        };
        check(json!({"uri": "/new"}), "/old", "/new");
        check(json!({"uri": "/new"}), "/old?a=1", "/new?a=1");
        check(json!({"uri": "/new?x=1"}), "/old?a=1", "/new?x=1&a=1");
        check(json!({"uri": "/n/$arg_a/${none ?? d?}"}), "/old?a=1", "/n/1/d%3F?a=1");
        check(json!({"uri": "/n/$http_x_a"}), "/", "/n/a%3Fb");
        check(json!({"uri": "/n/$uri"}), "/a%0d%0ab%20%25", "/n//a%0D%0Ab%20%25");
        check(json!({"uri": "/n?u=$uri"}), "/a%0d%0ab", "/n?u=/a%0D%0Ab");
        check(json!({"regex_uri": ["^/(.*)/(.*)$", "/$2/${1}"]}), "/a/b?q", "/b/a?q");
        check(json!({"regex_uri": ["^/x", "/y", "^/a", "/z", "^/a", "/never"]}), "/a/b", "/z/b");
        check(json!({"regex_uri": ["^/x", "/y"]}), "/a%c3%a9?q", "/a%C3%A9?q");
        check(json!({"regex_uri": ["^/(.*)", "/p?a=$1"]}), "/x?q", "/p?a=x&q");
        check(json!({"regex_uri": ["^/(.*)", "/p?a=$1"]}), "/x%3fy", "/p%3Fa=x%3Fy");
        check(json!({"uri": "/u", "regex_uri": ["^/", "/never"]}), "/", "/u");
        check(json!({"method": "GET"}), "/a%2db?q", "/a-b?q");
        let raw = |mut conf: Value| {
            conf["use_real_request_uri_unsafe"] = true.into();
            conf
        };
        check(raw(json!({})), "/a%2db/../?q", "/a%2db/../?q");
        check(raw(json!({"uri": "/n?x"})), "/?q", "/n?x&q");
        check(raw(json!({"uri": "/n$uri"})), "/a%0d%20?q", "/n/a%0D%20?q");
        check(raw(json!({"regex_uri": ["^/(.*)", "/r/$1"]})), "/%2d?q", "/r/%2d?q");
    }

    #[test]
    fn method_host_and_fields() {
        let conf = json!({
            "regex_uri": ["^/(.*)/(.*)$", "/"], "method": "MKCOL", "host": "other.example:81",
            "headers": {
                "add": {"X-Many": ["1", 2], "X-One": "$1x$2-${arg_q}-$9"},
                "set": {"X-Set": "s", "X-Had": ["n", "m"], "X-Num": 5, "X-Empty": "$none"},
                "remove": ["X-Gone", "Content-Length"]
            }
        });
        let case =
            run(&conf, "POST /a/b?q=7 HTTP/1.1\nHost: h\nX-Had: o\nX-Gone: g\nX-Many: 0\nContent-Length: 3");
        let mut fields = Vec::new();
        case.cx.request.headers.write_to(&mut fields);
        let expected = "Host: h\r\nX-Many: 0\r\nContent-Length: 3\r\nX-Many: 1\r\nX-Many: 2\r\nX-One: axb-7-\r\n\
            X-Set: s\r\nX-Had: n\r\nX-Had: m\r\nX-Num: 5\r\nX-Empty: \r\n";
        assert_eq!(String::from_utf8(fields).unwrap(), expected);
        assert_eq!(case.cx.request.method_token(), b"MKCOL");
        assert_eq!(case.cx.host.as_deref(), Some(&b"other.example:81"[..]));
        let case = run(&json!({"headers": {"Host": "$arg_h", "set": "x"}}), "GET /?h=n HTTP/1.1\nHost: h");
        assert_eq!(case.cx.host.as_deref(), Some(&b"n"[..]));
        assert_eq!(case.sent("set").as_deref(), Some("x"));
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let check = |conf: Value, expected: &str| {
            let refusal = refusal("proxy-rewrite", &conf);
            assert!(refusal.starts_with(expected) && !refusal.is_empty(), "{conf}: {refusal}");
        };
        check(
            json!({"uri": "a"}),
            "property \"uri\" validation failed: failed to match pattern \"^\\\\/.*\" with \"a\"",
        );
        check(json!({}), "expect object to have at least 1 properties");
        check(json!({"_meta": {"priority": 1}}), "expect object to have at least 1 properties");
        check(json!({"regex_uri": ["a", "b", "c"]}), "The length of regex_uri should be an even number");
        check(json!({"regex_uri": ["(", "b"]}), "invalid regex_uri((, b): ");
        check(
            json!({"method": "CONNECT"}),
            "property \"method\" validation failed: matches none of the enum values",
        );
        check(json!({"headers": {"a b": "1"}}), "invalid field character in header");
        check(json!({"headers": {"set": {"a b": "1"}}}), "invalid field character in header");
        check(json!({"headers": {"a": "é"}}), "invalid value character in header");
        check(
            json!({"headers": {}}),
            "property \"headers\" validation failed: value should match only one schema",
        );
        check(json!({"host": "a b"}), "property \"host\" validation failed: failed to match pattern");
        check(json!({"other": 1}), "additional properties forbidden, found other");
    }
}
