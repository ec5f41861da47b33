//! `proxy-rewrite`: the node gets another request than the client sent.

mod query_rules;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::{HeaderId, is_authority};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::variables::{percent_decoded, percent_encode_path};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use query_rules::QueryRules;
use sigma_plugin_kit::fields::{Added, FieldRules, Notation, changed_fields};
use sigma_plugin_kit::percent::{encode_component, percent_encoded};
use sigma_plugin_kit::substitute::{NewTarget, Substitution, TargetWriting, verbatim};
use sigma_plugin_kit::uri_template::{BeforeQuery, QueryTemplate, split_outside_braces};

/// The plugin.
pub(crate) static PROXY_REWRITE: Descriptor = Descriptor {
    name: "proxy-rewrite",
    priority: 1008,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    owned_fields: Some(|conf| changed_fields(conf.get("headers"))),
    variables: &[
        VariableField::shown("uri", VariableForm::Template),
        VariableField::shown("headers.*", VariableForm::Template),
        VariableField::shown("headers.*.*", VariableForm::Template),
        VariableField::shown("headers.*.*.*", VariableForm::Template),
        VariableField::shown("args.*.*", VariableForm::Template),
    ],
    ..Descriptor::itself::<ProxyRewrite>()
};

/// The methods that a request may be given.
const METHODS: [&str; 14] = [
    "GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "MKCOL", "COPY", "MOVE", "PROPFIND", "LOCK", "UNLOCK",
    "PATCH", "TRACE",
];

/// Changes path, query, host, method and fields of the request that the node gets.
///
/// A path that neither `uri` nor a pattern of `regex_uri` rewrites stays unchanged. A new one is made of the normalised
/// path and encoded; `$request_uri` in `uri` is the path as the client sent it, and the client's query follows once.
/// The variable `uri` keeps the client's path; `upstream_uri` is the new target. Fields that frame the message cannot
/// be changed.
///
/// Values of clients cannot add arguments. In the query of `uri` and `regex_uri`, groups and decoded variables
/// (`arg_*`, `uri_param_*`, `post_arg_*`, `uri`) are encoded. So are characters of other variables after a `=` that
/// would begin another argument. A new path with a dot segment gets 400. `use_real_request_uri_unsafe` switches both
/// off.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, extend("minProperties" = 1))]
struct ProxyRewrite {
    /// The new path, and with `?` the beginning of the query; may contain variables such as `$arg_a`.
    #[schemars(with = "Option<String>", length(min = 1, max = 4096), regex(pattern = r"^\/.*"))]
    uri: Option<NewUri>,
    /// The new method.
    #[schemars(extend("enum" = METHODS))]
    method: Option<String>,
    /// Patterns for the path, each followed by the replacement of its first match. The first matching pattern applies.
    /// Ignored with `uri`.
    #[schemars(with = "Option<Vec<String>>", length(min = 2))]
    regex_uri: Option<Substitutions>,
    /// The new Host, if the upstream's `pass_host` is `pass`.
    #[schemars(regex(pattern = r"^[0-9a-zA-Z-.]+(:\d{1,5})?$"))]
    host: Option<String>,
    /// Rules for fields: `add`, `set` and `remove`, or just fields to set. Values may contain variables, and `$1` for
    /// the groups of `regex_uri`.
    #[serde(default, deserialize_with = "Headers::rules")]
    #[schemars(with = "Headers", transform = only_one)]
    headers: FieldRules,
    /// Whether rewriting begins with the target as the client sent it and encodes nothing.
    #[schemars(extend("default" = false))]
    use_real_request_uri_unsafe: bool,
    /// Whether the last group of a pattern of `regex_uri` stays as the client sent it, such as `%2F`, where it ends both
    /// the path and the new path. Sigma's own.
    #[serde(default)]
    #[schemars(extend("default" = false, "own_default" = true))]
    keep_escapes: bool,
    /// Changes of query arguments, of the client's and of the ones in `uri`. Sigma's own.
    args: Option<QueryRules>,
}

type Headers = Notation<Added, true>;

fn only_one(schema: &mut Schema) {
    if let Some(branches) = schema.remove("anyOf") {
        schema.insert("oneOf".to_owned(), branches);
    }
}

impl Configuration for ProxyRewrite {}

/// The variables for the client's query at the end of a template, as in nginx.
const CLIENT_QUERY: [&str; 4] =
    ["$is_args$args", "${is_args}${args}", "$is_args$query_string", "${is_args}${query_string}"];

#[derive(Deserialize)]
#[serde(from = "String")]
struct NewUri {
    path: Template,
    query: Option<QueryTemplate>,
}

impl From<String> for NewUri {
    fn from(uri: String) -> NewUri {
        // The client's query follows in any case.
        let uri = CLIENT_QUERY.iter().find_map(|end| uri.strip_suffix(end)).unwrap_or(&uri);
        let (path, query) = split_outside_braces(uri, b'?');
        NewUri { path: Template::parse(path), query: query.map(QueryTemplate::parse) }
    }
}

#[derive(Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Substitutions(Vec<Substitution>);

impl TryFrom<Vec<String>> for Substitutions {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Substitutions, String> {
        let (pairs, []) = texts.as_chunks() else {
            return Err("The length of regex_uri should be an even number".into());
        };
        let substitution = |[pattern, replacement]: &[String; 2]| {
            Substitution::new(pattern, replacement, "jo")
                .map_err(|reason| format!("invalid regex_uri({pattern}, {replacement}): {reason}"))
        };
        pairs.iter().map(substitution).collect::<Result<_, _>>().map(Substitutions)
    }
}

impl NewUri {
    /// The path, encoded.
    fn path(&self, ctx: &Context) -> Result<Vec<u8>, DotSegment> {
        let mut path = Vec::new();
        let variables = BeforeQuery { ctx, values: ctx, leading: None, query_follows: true };
        self.path.render_with(&variables, &percent_encode_path, &mut path);
        if self.path.variables().next().is_some() {
            refuse_dot_segments(&percent_decoded(&path))?;
        }
        // A variable must not begin a query or a fragment.
        Ok(percent_encoded(&path, |byte| matches!(byte, b'?' | b'#' | b'\\')))
    }
}

/// Variables where nothing is encoded but what would begin the query, which follows in any case.
struct RawPath<'a>(&'a Context);

impl Variables for RawPath<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        if matches!(name, VarName::RequestUri | VarName::RealRequestUri) {
            return Some(VarValue::Text(Cow::Borrowed(self.0.request.raw_path())));
        }
        match self.0.get(name)? {
            VarValue::Text(text) => Some(VarValue::Text(percent_encoded(&text, |byte| byte == b'?').into())),
            other => Some(other),
        }
    }
}

/// The matches of a pattern's groups.
type Groups = Vec<Vec<u8>>;

impl ProxyRewrite {
    /// The new target, and the groups of the pattern that matched. No target where the path stays as it came.
    ///
    /// # Errors
    /// Returns an error if the client made the path lead elsewhere.
    fn target(&self, ctx: &Context) -> Result<(Option<Vec<u8>>, Groups), DotSegment> {
        if self.use_real_request_uri_unsafe {
            let (target, captures) = self.raw_target(ctx);
            return Ok((Some(target), captures));
        }
        let (path, query, captures) = match (&self.uri, &self.regex_uri) {
            (Some(uri), _) => {
                (uri.path(ctx)?, uri.query.as_ref().map(|query| query.rendered(ctx)), Vec::new())
            }
            (None, None) => return Ok((None, Vec::new())),
            (None, Some(Substitutions(all))) => {
                // A question mark of the client's, sent as `%3f`, does not begin a query; one of the
                // replacement does not either then, as with APISIX.
                let one_text = ctx.uri.contains(&b'?');
                let how =
                    TargetWriting { literal: &verbatim, in_path: &verbatim, in_query: &encode_component };
                let replace = |substitution: &Substitution| match one_text {
                    true => substitution.first(&ctx.uri).map(|(path, groups)| NewTarget {
                        path,
                        query: None,
                        groups,
                    }),
                    false => substitution.target(&ctx.uri, &how),
                };
                let Some(NewTarget { path, query, groups }) = all.iter().find_map(replace) else {
                    return Ok((None, Vec::new()));
                };
                refuse_dot_segments(&path)?;
                let mut encoded = Vec::with_capacity(path.len() + 16);
                let kept = groups.last().filter(|_| self.keep_escapes).and_then(|rest| sent_end(ctx, rest));
                let kept = kept.zip(groups.last().and_then(|rest| path.strip_suffix(rest.as_slice())));
                match kept {
                    Some((rest, lead)) => {
                        percent_encode_path(lead, &mut encoded);
                        encoded.extend_from_slice(rest);
                    }
                    None => percent_encode_path(&path, &mut encoded),
                }
                (encoded, query, groups)
            }
        };
        let mut target = path;
        append_queries(&mut target, [query.as_deref(), ctx.outgoing_query()]);
        Ok((Some(target), captures))
    }

    /// The same with `use_real_request_uri_unsafe`: nothing is encoded but what begins a query.
    fn raw_target(&self, ctx: &Context) -> (Vec<u8>, Vec<Vec<u8>>) {
        let asked = || match ctx.outgoing_query() {
            Some(query) => [ctx.request.raw_path(), query].join(&b'?'),
            None => ctx.request.raw_path().to_vec(),
        };
        match (&self.uri, &self.regex_uri) {
            (None, None) => (asked(), Vec::new()),
            (None, Some(Substitutions(all))) => {
                let base = asked();
                let replaced = all.iter().find_map(|substitution| substitution.first(&base));
                replaced.unwrap_or_else(|| (base, Vec::new()))
            }
            (Some(NewUri { path, query }), _) => {
                // A value of a variable must not begin the query.
                let mut target = Vec::new();
                path.render(&RawPath(ctx), &mut target);
                let query = query.as_ref().map(|query| query.whole.rendered(ctx));
                append_queries(&mut target, [query.as_deref(), ctx.outgoing_query()]);
                (target, Vec::new())
            }
        }
    }
}

/// Returns the end of the path as the client sent it, for an end of the normalised path; None if they differ by more than
/// escapes, so that no dot segment or doubled slash comes back.
fn sent_end<'c>(ctx: &'c Context, end: &[u8]) -> Option<&'c [u8]> {
    let sent = ctx.request.raw_path();
    if end.is_empty() || !ctx.uri.ends_with(end) || percent_decoded(sent) != ctx.uri {
        return None;
    }
    let (mut at, mut skipped) = (0, 0);
    while skipped < ctx.uri.len() - end.len() {
        at += if sent.get(at) == Some(&b'%') { 3 } else { 1 };
        skipped += 1;
    }
    sent.get(at..)
}

fn append_queries(target: &mut Vec<u8>, queries: [Option<&[u8]>; 2]) {
    for query in queries.into_iter().flatten() {
        target.push(if target.contains(&b'?') { b'&' } else { b'?' });
        target.extend_from_slice(query);
    }
}

/// A variable or a group has put `.` or `..` between two slashes: the node would look elsewhere.
struct DotSegment;

fn refuse_dot_segments(path: &[u8]) -> Result<(), DotSegment> {
    let is_dots = |segment: &[u8]| matches!(segment, b"." | b"..");
    if path.split(|byte| *byte == b'/').any(is_dots) { Err(DotSegment) } else { Ok(()) }
}

impl ProxyRewrite {
    fn apply(&self, ctx: &mut Context) -> Step {
        if let Some(rules) = &self.args {
            rules.reduce(ctx);
        }
        let Ok((target, captures)) = self.target(ctx) else {
            return Step::json(400, &json!({"error_msg": "the rewritten path has a dot segment"}));
        };
        let target = match &self.args {
            Some(rules) => Some(rules.applied(target.as_deref().unwrap_or(ctx.outgoing_target()), ctx)),
            None => target,
        };
        if let Some(target) = target {
            // Bytes that could end the request line are always encoded.
            ctx.target = percent_encoded(&target, |byte| byte <= b' ' || byte == 0x7f);
            if ctx.target.first() != Some(&b'/') && ctx.request.path_and_query() != b"*" {
                ctx.target.insert(0, b'/');
            }
        }
        self.headers.apply(ctx, &captures, |ctx| &mut ctx.request.headers);
        if let Some(host) = &self.host {
            ctx.host = Some(host.clone().into_bytes());
        }
        if self.headers.sets("host") {
            let host = ctx.request.headers.get(HeaderId::Host);
            // A variable of the client's may have made it.
            if host.is_some_and(|host| !is_authority(host)) {
                return Step::json(400, &json!({"error_msg": "the rewritten host is not a valid host name"}));
            }
            ctx.host = host.map(<[u8]>::to_vec);
        }
        if let Some(method) = &self.method {
            ctx.request.set_method(method);
        }
        Step::Next
    }
}

impl Plugin for ProxyRewrite {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        self.apply(ctx)
    }

    fn foresee(&self, ctx: &mut Context) -> Option<Value> {
        let before = fields_of(ctx);
        let Step::Next = self.apply(ctx) else {
            return Some(json!({"problem": "a rewritten path or host is invalid; the client gets 400"}));
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let after = fields_of(ctx);
        let set: Vec<_> = after.iter().filter(|field| !before.contains(field)).collect();
        let is_gone = |name: &&String| !after.iter().any(|(left, _)| left.eq_ignore_ascii_case(name));
        let removed: Vec<_> = before.iter().map(|(name, _)| name).filter(is_gone).collect();
        Some(json!({
            "uri": text(ctx.outgoing_target()),
            "method": self.method,
            "host": ctx.host.as_deref().map(text),
            "headers": { "set": set, "remove": removed },
        }))
    }
}

/// Names and values of the request's fields.
fn fields_of(ctx: &Context) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ctx.request.headers.iter().map(|(name, value)| (text(name), text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

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
        // No value becomes its own argument.
        check(
            json!({"uri": "/n?u=$arg_a"}),
            "/?a=1%26x=%232%25%2B",
            "/n?u=1%26x%3D%232%25%2B&a=1%26x=%232%25%2B",
        );
        check(json!({"uri": "/n?$arg_a&b"}), "/?a=x%26y=z", "/n?x%26y%3Dz&b&a=x%26y=z");
        check(json!({"uri": "/n?u=$uri&v"}), "/a%26b=c", "/n?u=/a%26b%3Dc&v");
        check(json!({"uri": "/n?to=$request_uri"}), "/a?b=%26&c", "/n?to=/a?b=%26%26c&b=%26&c");
        check(json!({"uri": "/n?$args"}), "/?b=%26&c", "/n?b=%26&c&b=%26&c");
        check(json!({"uri": "/n?a=${none ?? b&c=d}"}), "/", "/n?a=b&c=d");
        check(json!({"regex_uri": ["^/(.*)/(.*)$", "/$2/${1}"]}), "/a/b?q", "/b/a?q");
        check(json!({"regex_uri": ["^/x", "/y", "^/a", "/z", "^/a", "/never"]}), "/a/b", "/z/b");
        // A path that is not rewritten passes as it came.
        check(json!({"regex_uri": ["^/x", "/y"]}), "/a%c3%a9?q", "/a%c3%a9?q");
        check(json!({"headers": {"X-A": "1"}}), "/p/g%2Fn/f?q=%20", "/p/g%2Fn/f?q=%20");
        let kept = json!({"regex_uri": ["^/p/(.*)$", "/n/$1"], "keep_escapes": true});
        check(kept.clone(), "/p/g%2Fn/a%7eb?q=%20", "/n/g%2Fn/a%7eb?q=%20");
        check(kept.clone(), "/%70/g%2Fn", "/n/g%2Fn");
        check(kept, "/p//g%2Fn", "/n//g%2Fn");
        check(json!({"regex_uri": ["^/p/(.*)$", "/n/$1/e"], "keep_escapes": true}), "/p/g%2Fn", "/n/g/n/e");
        check(json!({"host": "other"}), "/p//a/./b", "/p//a/./b");
        check(json!({"args": {"set": {"x": "1"}}}), "/g%2Fn?q", "/g%2Fn?q&x=1");
        // The target of the client brings its path, and its query once.
        check(json!({"uri": "/api$request_uri"}), "/uuid?id=1", "/api/uuid?id=1");
        check(json!({"uri": "/api$request_uri"}), "/uuid", "/api/uuid");
        check(json!({"uri": "/api$request_uri"}), "/a%2Fb%3fc//d?x", "/api/a%2Fb%3fc//d?x");
        check(json!({"uri": "/api$request_uri?k=v"}), "/a?x", "/api/a?k=v&x");
        check(json!({"uri": "/api${real_request_uri}"}), "/a%20b?x", "/api/a%20b?x");
        check(json!({"uri": "/api$uri$is_args$args"}), "/a?x=1&y", "/api/a?x=1&y");
        check(json!({"uri": "/api${uri}${is_args}${args}"}), "/a", "/api/a");
        check(json!({"uri": "/%41 b$uri"}), "/c", "/%2541%20b/c");
        check(json!({"regex_uri": ["^/(.*)", "/p?a=$1"]}), "/x?q", "/p?a=x&q");
        check(json!({"regex_uri": ["^/(.*)", "/p?a=$1"]}), "/x%26b=c%23", "/p?a=x%26b%3Dc%23");
        check(json!({"regex_uri": ["^/a", "/p?a="]}), "/a/x%26b", "/p?a=/x%26b");
        check(json!({"regex_uri": ["^/(.*)", "/p?a=$1"]}), "/x%3fy", "/p%3Fa=x%3Fy");
        check(json!({"uri": "/u", "regex_uri": ["^/", "/never"]}), "/", "/u");
        check(json!({"method": "GET"}), "/a%2db?q", "/a%2db?q");
        let raw = |mut conf: Value| {
            conf["use_real_request_uri_unsafe"] = true.into();
            conf
        };
        check(raw(json!({})), "/a%2db/../?q", "/a%2db/../?q");
        check(raw(json!({"uri": "/n?x"})), "/?q", "/n?x&q");
        check(raw(json!({"uri": "/n$uri"})), "/a%0d%20?q", "/n/a%0D%20?q");
        check(raw(json!({"uri": "/n$request_uri"})), "/a%2db?q", "/n/a%2db?q");
        check(raw(json!({"regex_uri": ["^/(.*)", "/r/$1"]})), "/%2d?q", "/r/%2d?q");
    }

    #[test]
    fn explain_shows_the_changes() {
        let conf = json!({"regex_uri": ["^/a/(.*)", "/$1"], "method": "PUT", "host": "n",
            "headers": {"set": {"X-From": "$1"}, "remove": ["X-Old"]}});
        let plugin = entry("proxy-rewrite", conf).unwrap();
        let mut case = Case::new("GET /a/b?c HTTP/1.1\nHost: h\nX-Old: 1\nX-Kept: 2");
        let told = case.foresee(&plugin).unwrap();
        assert_eq!(
            (&told["uri"], &told["method"], &told["host"]),
            (&json!("/b?c"), &json!("PUT"), &json!("n"))
        );
        assert_eq!(told["headers"], json!({"set": [["X-From", "b"]], "remove": ["X-Old"]}));
        assert_eq!(case.target(), "/b?c");
        let plugin = entry("proxy-rewrite", json!({"uri": "/n/$arg_a"})).unwrap();
        let told = Case::new("GET /?a=.. HTTP/1.1\nHost: h").foresee(&plugin).unwrap();
        assert!(told["problem"].is_string(), "{told}");
    }

    #[test]
    fn no_value_leads_to_another_folder() {
        let check = |conf: Value, target: &str, expected: &str| {
            let plugin = entry("proxy-rewrite", conf.clone()).unwrap();
            let mut case = Case::new(&format!("GET {target} HTTP/1.1\nHost: h"));
            let reply = case.run(&plugin, Phase::Rewrite);
            assert_eq!(summary(reply.as_ref()), expected, "{conf} {target}");
        };
        let refused = "400 {\"error_msg\":\"the rewritten path has a dot segment\"}";
        check(json!({"uri": "/api/$arg_a"}), "/?a=../admin", refused);
        check(json!({"uri": "/api/$arg_a/x"}), "/?a=..", refused);
        check(json!({"uri": "/api/$arg_a/x"}), "/?a=%2e", refused);
        check(json!({"uri": "/api/$arg_a/x"}), "/?a=...", "passed");
        check(json!({"uri": "/api/../x"}), "/?a=..", "passed");
        check(json!({"uri": "/api$request_uri"}), "/%2e%2e/x", refused);
        check(json!({"uri": "/api$request_uri"}), "/a/../x", refused);
        check(json!({"regex_uri": ["^/(.*)-(.*)", "/$1$2/x"]}), "/.-./", refused);
        check(json!({"uri": "/api/$arg_a", "use_real_request_uri_unsafe": true}), "/?a=../admin", "passed");
    }

    #[test]
    fn no_value_makes_an_invalid_host() {
        let plugin = entry("proxy-rewrite", json!({"headers": {"set": {"Host": "$arg_h"}}})).unwrap();
        let check = |target: &str, expected: &str, host: Option<&str>| {
            let mut case = Case::new(&format!("GET {target} HTTP/1.1\nHost: h"));
            let reply = case.run(&plugin, Phase::Rewrite);
            assert_eq!(summary(reply.as_ref()), expected, "{target}");
            assert_eq!(case.ctx.host.as_deref(), host.map(str::as_bytes), "{target}");
        };
        let refused = "400 {\"error_msg\":\"the rewritten host is not a valid host name\"}";
        check("/?h=n.test:81", "passed", Some("n.test:81"));
        check("/", "passed", None);
        check("/?h=a/b", refused, None);
        check("/?h=a%20b", refused, None);
        check("/?h=user@a", refused, None);
    }

    #[test]
    fn method_host_and_fields() {
        let conf = json!({
            "regex_uri": ["^/(.*)/(.*)$", "/"], "method": "MKCOL", "host": "other.example:81",
            "headers": {
                "add": {"X-Many": ["1", 2], "X-One": "$1x$2-${arg_q}-$9"},
                "set": {"X-Set": "s", "X-Had": ["n", "m"], "X-Num": 5, "X-Empty": "$none", "X-Old": ""},
                "remove": ["X-Gone", "Content-Length"]
            }
        });
        let case = run(
            &conf,
            "POST /a/b?q=7 HTTP/1.1\nHost: h\nX-Had: o\nX-Gone: g\nX-Empty: e\nX-Old: o\nX-Many: 0\nContent-Length: 3",
        );
        let mut fields = Vec::new();
        case.ctx.request.headers.write_to(&mut fields);
        let expected = "Host: h\r\nX-Many: 0\r\nContent-Length: 3\r\nX-Many: 1\r\nX-Many: 2\r\nX-One: axb-7-\r\n\
            X-Set: s\r\nX-Had: n\r\nX-Had: m\r\nX-Num: 5\r\n";
        assert_eq!(String::from_utf8(fields).unwrap(), expected);
        assert_eq!(case.ctx.request.method_token(), b"MKCOL");
        assert_eq!(case.ctx.host.as_deref(), Some(&b"other.example:81"[..]));
        let case = run(&json!({"headers": {"Host": "$arg_h", "set": "x"}}), "GET /?h=n HTTP/1.1\nHost: h");
        assert_eq!(case.ctx.host.as_deref(), Some(&b"n"[..]));
        assert_eq!(case.sent("set").as_deref(), Some("x"));
        let case = run(
            &json!({"headers": {"set": {"X-A": "$none"}, "keep_empty": true}}),
            "GET / HTTP/1.1\nHost: h",
        );
        assert_eq!(case.sent("X-A").as_deref(), Some(""));
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
        assert_eq!(refusal("proxy-rewrite", &json!({"use_real_request_uri_unsafe": false})), "");
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
