//! `cors`: which pages of other origins may read the responses (Fetch Standard §3.2).

use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::Method;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Step,
};
use sigma_plugin_kit::cross_origin::CrossOrigin;
use sigma_plugin_kit::response_fields::add_vary;
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::validation::pcre::Pattern;

/// Lets pages of other origins read answers.
pub(crate) static CORS: Descriptor = Descriptor {
    name: "cors",
    priority: 4000,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    metadata_schema: Some(schema_of::<Metadata>),
    warnings: Some(|_, conf| open_ends(conf)),
    build: |build| Ok(Arc::new(Cors::new(build)?)),
    ..Descriptor::of::<Config>()
};

const ORIGINS: &str = r"^(\*|\*\*|null|\w+://[^,]+(,\w+://[^,]+)*)$";

/// CORS: allows web pages of other origins to read responses.
///
/// Every `OPTIONS` request gets 200 from the gateway. If the origin is allowed, all responses get the CORS headers,
/// also responses of other plugins. Headers of the node are replaced. `Vary: Origin` is added if the response depends
/// on the origin.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Allowed origins, separated by commas: `*` for all, `**` for all with the origin in the response.
    #[schemars(regex(pattern = ORIGINS), extend("default" = "*"))]
    allow_origins: String,
    /// Methods that pages may use, separated by commas: `*` for all, `**` for all by name.
    #[schemars(extend("default" = "*"))]
    allow_methods: String,
    /// Request headers that pages may set, separated by commas: `*` for all, `**` for the requested ones.
    #[schemars(extend("default" = "*"))]
    allow_headers: String,
    /// Response headers that pages may read.
    expose_headers: Option<String>,
    /// Seconds for which browsers may cache the preflight result; -1: not at all.
    #[schemars(extend("default" = 5))]
    max_age: i64,
    /// Whether pages may send cookies. Other fields must not contain `*` then; a `*` in a list of the metadata has no
    /// effect.
    #[schemars(extend("default" = false))]
    allow_credential: bool,
    /// Regular expressions of origins, instead of `allow_origins`. They match anywhere: begin with `^` and end with
    /// `$`, because `a.com` also allows `https://a.com.example`.
    #[schemars(length(min = 1), inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    allow_origins_by_regex: Option<Vec<Pattern>>,
    /// Names of lists in the plugin metadata, checked first.
    #[schemars(length(min = 1), inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    allow_origins_by_metadata: Option<Vec<String>>,
    /// Origins whose pages may read timings, in the form of `allow_origins`.
    #[schemars(regex(pattern = ORIGINS))]
    timing_allow_origins: Option<String>,
    /// Regular expressions, instead of `timing_allow_origins`.
    #[schemars(length(min = 1), inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    timing_allow_origins_by_regex: Option<Vec<Pattern>>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let fields = [
            Some(&self.allow_origins),
            Some(&self.allow_methods),
            Some(&self.allow_headers),
            self.expose_headers.as_ref(),
            self.timing_allow_origins.as_ref(),
        ];
        if self.allow_credential && fields.into_iter().flatten().any(|field| field == "*") {
            return Err("you can not set '*' for other option when 'allow_credential' is true".to_owned());
        }
        Ok(())
    }
}

/// Expressions that let origins in which merely begin as they should.
fn open_ends(conf: &Value) -> Vec<Problem> {
    let fields = ["allow_origins_by_regex", "timing_allow_origins_by_regex"];
    let sources = fields.into_iter().flat_map(|field| {
        let sources = conf.get(field).and_then(Value::as_array).into_iter().flatten().enumerate();
        sources.filter_map(move |(at, source)| Some((field, at, source.as_str()?)))
    });
    let open = sources.filter(|(.., source)| !source.ends_with('$'));
    let open = open.map(|(field, at, source)| {
        let message = format!("`{source}` also matches longer origins that begin with it");
        Problem::new(format!("{field}[{at}]"), "open_pattern", message).hint("end it with `$`")
    });
    let lists = ["allow_origins", "timing_allow_origins"].into_iter();
    open.chain(every_origin(conf)).chain(lists.flat_map(|field| no_origins(conf, field))).collect()
}

/// Origins that no browser sends: an origin has a scheme, a host in lower case and maybe a port, and nothing else
/// (RFC 6454 §6.2).
fn no_origins(conf: &Value, field: &'static str) -> Vec<Problem> {
    let list = conf.get(field).and_then(Value::as_str).unwrap_or_default();
    let listed = list.split(',').map(str::trim).filter(|origin| origin.contains("://"));
    let found = listed.filter_map(|origin| {
        let sent = as_sent(origin);
        (sent != origin).then(|| {
            let message = format!("`{origin}` never matches: browsers send `{sent}`");
            Problem::new(field, "never_matches", message).hint(format!("write {sent}"))
        })
    });
    found.collect()
}

/// The origin of a URL as browsers send it.
fn as_sent(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let own = match scheme.as_str() {
        "https" => ":443",
        "http" => ":80",
        _ => return format!("{scheme}://{host}"),
    };
    format!("{scheme}://{}", host.strip_suffix(own).unwrap_or(&host))
}

/// The warning that every page may read answers to the logins of its visitors.
fn every_origin(conf: &Value) -> Option<Problem> {
    let is_open = conf.get("allow_credential") == Some(&Value::Bool(true))
        && conf.get("allow_origins").and_then(Value::as_str) == Some("**");
    let message = "a page of any site can read responses with the cookies of its visitors";
    let hint = "list the origins in `allow_origins`, or remove `allow_credential`";
    is_open.then(|| Problem::new("allow_origins", "every_origin", message).hint(hint))
}

#[derive(Default, Deserialize, JsonSchema)]
struct Metadata {
    /// Named lists of origins, for `allow_origins_by_metadata`.
    #[schemars(extend("additionalProperties" = {"type": "string", "pattern": ORIGINS}))]
    allow_origins: Option<HashMap<String, String>>,
}

/// Origins that are allowed.
enum Origins {
    /// `*`
    Any,
    /// `**`: all of them, each by its name.
    Each,
    Listed(Vec<String>),
    Matching(Vec<Pattern>),
}

impl Origins {
    fn parse(text: &str) -> Origins {
        match text {
            "*" => Origins::Any,
            "**" => Origins::Each,
            list => Origins::Listed(list.split(',').map(str::to_owned).collect()),
        }
    }

    /// Returns the list, or the expressions instead.
    fn of(list: Option<&str>, expressions: Option<Vec<Pattern>>) -> Option<Origins> {
        expressions.map(Origins::Matching).or_else(|| list.map(Origins::parse))
    }

    /// Whether an origin is allowed.
    fn admits(&self, origin: &str) -> bool {
        match self {
            Origins::Any | Origins::Each => true,
            Origins::Listed(list) => list.iter().any(|listed| listed == origin),
            Origins::Matching(patterns) => patterns.iter().any(|pattern| pattern.is_match(origin)),
        }
    }

    /// Returns the allowed origin for a page of `origin`.
    fn allowed_origin<'o>(&self, origin: Option<&'o str>) -> Option<&'o str> {
        match (self, origin) {
            (Origins::Any, _) | (Origins::Each, None) => Some("*"),
            (_, origin) => origin.filter(|origin| self.admits(origin)),
        }
    }

    /// Whether the response differs from origin to origin.
    fn varies(&self) -> bool {
        !matches!(self, Origins::Any)
    }
}

struct Cors {
    config: Config,
    /// The lists of the metadata that are named, in order.
    named: Vec<Origins>,
    /// None if only named lists count.
    own: Option<Origins>,
    timing: Option<Origins>,
}

impl Cors {
    fn new(build: &Build<'_>) -> Result<Cors, String> {
        let mut config: Config = build.config()?;
        let lists = build.metadata_as::<Metadata>()?.allow_origins.unwrap_or_default();
        let names = config.allow_origins_by_metadata.as_deref().unwrap_or_default();
        let named = names.iter().filter_map(|name| lists.get(name)).map(|text| Origins::parse(text));
        // A `*` there would send the cookies of everybody's pages, which the check forbids elsewhere;
        // `**` says that it is meant.
        let named: Vec<Origins> =
            named.filter(|list| !(config.allow_credential && matches!(list, Origins::Any))).collect();
        // The default would let everybody in whom the named lists keep out.
        let only_named = !names.is_empty() && config.allow_origins == "*";
        let expressions = config.allow_origins_by_regex.take();
        let own = Origins::of(Some(&config.allow_origins), expressions).filter(|_| !only_named);
        let timing =
            Origins::of(config.timing_allow_origins.as_deref(), config.timing_allow_origins_by_regex.take());
        Ok(Cors { config, named, own, timing })
    }

    fn allowed<'o>(&self, origin: Option<&'o str>) -> Option<&'o str> {
        let by_name = origin.filter(|origin| self.named.iter().any(|origins| origins.admits(origin)));
        by_name.or_else(|| self.own.as_ref()?.allowed_origin(origin))
    }

    fn allow(&self, ctx: &mut Context, origin: &str, asked: &CrossOrigin) {
        let config = &self.config;
        set(ctx, "Access-Control-Allow-Origin", origin.as_bytes());
        let methods = match config.allow_methods.as_str() {
            "**" => "GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE",
            methods => methods,
        };
        set(ctx, "Access-Control-Allow-Methods", methods.as_bytes());
        set(ctx, "Access-Control-Max-Age", itoa::Buffer::new().format(config.max_age).as_bytes());
        if let Some(names) = config.expose_headers.as_deref().filter(|names| !names.is_empty()) {
            set(ctx, "Access-Control-Expose-Headers", names.as_bytes());
        }
        match (config.allow_headers.as_str(), &asked.headers) {
            ("**", Some(headers)) => set(ctx, "Access-Control-Allow-Headers", headers),
            ("**", None) => ctx.response.headers.remove_name(b"access-control-allow-headers"),
            (headers, _) => set(ctx, "Access-Control-Allow-Headers", headers.as_bytes()),
        }
        if config.allow_credential {
            set(ctx, "Access-Control-Allow-Credentials", b"true");
        }
    }
}

fn set(ctx: &mut Context, name: &str, value: &[u8]) {
    ctx.response.headers.replace(name, value);
}

impl Plugin for Cors {
    fn rewrite(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let asked = CrossOrigin::of(ctx);
        ctx.keep(self, asked);
        if ctx.request.method == Method::Options { Reply::new(200).into() } else { Step::Next }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        let asked = ctx.kept::<_, CrossOrigin>(self).cloned().unwrap_or_else(|| {
            // Another plugin has ended the exchange before.
            let asked = CrossOrigin::of(ctx);
            ctx.keep(self, asked.clone());
            asked
        });
        let origin = asked.origin.as_deref();
        let own_varies = self.own.as_ref().is_none_or(Origins::varies);
        if own_varies || self.timing.as_ref().is_some_and(Origins::varies) {
            add_vary(&mut ctx.response.headers, "Origin");
        }
        if let Some(allowed) = self.allowed(origin) {
            self.allow(ctx, allowed, &asked);
        }
        if let Some(allowed) = self.timing.as_ref().and_then(|origins| origins.allowed_origin(origin)) {
            set(ctx, "Timing-Allow-Origin", allowed.as_bytes());
        }
        ResponseStep::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_schema::plugins::{PluginSchemas, PluginScope};

    use super::*;
    use crate::testing::{Case, entry, entry_with, refusal, roster, summary, warned};

    #[test]
    fn origins_that_no_browser_sends() {
        let check = |origins: &str, expected: &[&str]| {
            for field in ["allow_origins", "timing_allow_origins"] {
                let conf = json!({ field: origins });
                assert_eq!(
                    warned("cors", PluginScope::Http, &conf),
                    vec![field; expected.len()],
                    "{origins}"
                );
                let told: Vec<String> = roster()
                    .warnings("cors", PluginScope::Http, &conf)
                    .into_iter()
                    .map(|p| p.to_string())
                    .collect();
                assert!(told.iter().zip(expected).all(|(told, sent)| told.contains(sent)), "{told:?}");
            }
        };
        for good in
            ["*", "null", "https://a.test", "https://a.test,http://b.test:8080", "app://x", "http://[::1]:1"]
        {
            check(good, &[]);
        }
        check("https://a.test/", &["browsers send `https://a.test`"]);
        check("https://a.test/shop", &["browsers send `https://a.test`"]);
        check("https://a.test?x", &["browsers send `https://a.test`"]);
        check("https://a.test#x", &["browsers send `https://a.test`"]);
        check("https://A.test", &["browsers send `https://a.test`"]);
        check("HTTPS://a.test", &["browsers send `https://a.test`"]);
        check("https://a.test:443", &["browsers send `https://a.test`"]);
        check("http://a.test:80", &["browsers send `http://a.test`"]);
        check("http://a.test:443/", &["browsers send `http://a.test:443`"]);
        check("https://a.test,https://b.test/,https://C.test", &["https://b.test`", "https://c.test`"]);
    }

    /// Returns the fields of a response after the filter: origin, methods, headers, age, credentials, vary.
    fn answer(conf: &Value, metadata: Option<Value>, fields: &str) -> String {
        let entry = entry_with("cors", conf.clone(), metadata).unwrap();
        let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
        assert_eq!(summary(case.run(&entry, Phase::Rewrite).as_ref()), "passed");
        case.ctx.request.headers.remove_name(b"origin");
        case.ctx.response.start(200);
        case.ctx.response.headers.append("access-control-allow-origin", b"node");
        case.header_filter(&entry);
        let short = [
            "Allow-Origin",
            "Allow-Methods",
            "Allow-Headers",
            "Max-Age",
            "Allow-Credentials",
            "Expose-Headers",
        ];
        let mut parts: Vec<String> =
            short.iter().map(|name| case.answered(&format!("Access-Control-{name}"))).collect();
        parts.push(case.answered("Vary"));
        parts.push(case.answered("Timing-Allow-Origin"));
        parts.join("|")
    }

    #[test]
    fn answers_say_who_may_read_them() {
        let check = |conf: Value, fields: &str, expected: &str| {
            assert_eq!(answer(&conf, None, fields), expected, "{conf} {fields}");
        };
        let a = "Origin: http://a.com";
        check(json!({}), "", "*|*|*|5||||");
        check(json!({}), a, "*|*|*|5||||");
        check(json!({"allow_origins": "**"}), "", "*|*|*|5|||Origin|");
        check(json!({"allow_origins": "**"}), a, "http://a.com|*|*|5|||Origin|");
        let list =
            || json!({"allow_origins": "http://a.com,http://b.com", "max_age": -1, "expose_headers": "x"});
        check(list(), a, "http://a.com|*|*|-1||x|Origin|");
        check(list(), "Origin: http://A.com", "node||||||Origin|");
        check(list(), "", "node||||||Origin|");
        check(json!({"allow_origins": "null"}), "Origin: null", "null|*|*|5|||Origin|");
        let all = json!({"allow_origins": "**", "allow_methods": "**", "allow_headers": "**", "allow_credential": true});
        const METHODS: &str = "GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE";
        check(all.clone(), a, &format!("http://a.com|{METHODS}||5|true||Origin|"));
        let asks = "Origin: http://a.com\nAccess-Control-Request-Headers: x-a, x-b";
        check(all, asks, &format!("http://a.com|{METHODS}|x-a, x-b|5|true||Origin|"));
        let regex = || json!({"allow_origins_by_regex": [".*\\.a\\.com$", "^http://c"]});
        check(regex(), "Origin: http://x.a.com", "http://x.a.com|*|*|5|||Origin|");
        check(regex(), "Origin: http://c.org", "http://c.org|*|*|5|||Origin|");
        check(regex(), "Origin: http://x.a.com.evil", "node||||||Origin|");
        check(json!({"timing_allow_origins": "http://a.com"}), a, "*|*|*|5|||Origin|http://a.com");
        check(json!({"timing_allow_origins_by_regex": ["a"]}), "Origin: http://b", "*|*|*|5|||Origin|");
    }

    #[test]
    fn lists_of_the_metadata_come_first() {
        let metadata = || json!({"allow_origins": {"k1": "http://a.com", "k2": "http://b.com,http://c.com"}});
        let check = |conf: Value, origin: &str, expected: &str| {
            let said = answer(&conf, Some(metadata()), &format!("Origin: {origin}"));
            assert_eq!(said.split('|').next(), Some(expected), "{conf} {origin}");
        };
        let named = || json!({"allow_origins_by_metadata": ["k1", "k2", "missing"]});
        check(named(), "http://a.com", "http://a.com");
        check(named(), "http://c.com", "http://c.com");
        check(named(), "http://d.com", "node");
        let metadata = json!({"allow_origins": {"any": "*", "each": "**"}});
        let with_cookies = |list: &str| {
            let conf = json!({"allow_origins_by_metadata": [list], "allow_credential": true,
                "allow_origins": "http://d.com", "allow_methods": "GET", "allow_headers": "x"});
            answer(&conf, Some(metadata.clone()), "Origin: http://evil")
        };
        assert_eq!(with_cookies("any"), "node||||||Origin|");
        assert_eq!(with_cookies("each"), "http://evil|GET|x|5|true||Origin|");
        let both = json!({"allow_origins_by_metadata": ["k1"], "allow_origins": "http://d.com"});
        check(both.clone(), "http://d.com", "http://d.com");
        check(both, "http://b.com", "node");
    }

    #[test]
    fn every_options_is_answered() {
        let entry = entry("cors", json!({"allow_origins": "http://a.com"})).unwrap();
        let mut case = Case::new("OPTIONS / HTTP/1.1\nHost: h");
        assert_eq!(summary(case.run(&entry, Phase::Rewrite).as_ref()), "200");
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| assert_eq!(refusal("cors", &conf), expected, "{conf}");
        const STARRED: &str = "you can not set '*' for other option when 'allow_credential' is true";
        check(json!({"allow_credential": true}), STARRED);
        check(
            json!({"allow_credential": true, "allow_origins": "http://a.com", "allow_methods": "GET"}),
            STARRED,
        );
        check(
            json!({"allow_origins": "a.com"}),
            &format!(
                "property \"allow_origins\" validation failed: failed to match pattern {ORIGINS:?} with \"a.com\""
            ),
        );
        check(
            json!({"allow_origins_by_regex": ["("]}),
            "pattern `(` is not a valid expression: unclosed group",
        );
        check(
            json!({"max_age": "1"}),
            "property \"max_age\" validation failed: wrong type: expected integer, got string",
        );
        assert_ne!(refusal("cors", &json!({"allow_origins_by_regex": []})), "");
    }
}
