//! `key-auth`: a secret in a header or query argument.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::credentials::Credential;
use sigma_plugin::owned::texts;
use sigma_plugin::{Auth, Configuration, Context, Descriptor, Env, Identity, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::policy::{
    AuthPolicy, FieldName, Refusal, Scheme, only_argument, only_cookie, remove_cookie,
};

/// Recognises a consumer by an API key.
pub(crate) static KEY_AUTH: Descriptor = Descriptor {
    name: "key-auth",
    priority: 2500,
    example: include_str!("example.md"),
    credentials: Some(credentials),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth::of::<Consumer>("key")),
    warnings: Some(warnings),
    ..Descriptor::itself::<KeyAuth>()
};

/// Authenticates consumers by an API key in a header or in the query.
///
/// The plugin reads the header first, and the query only without the header. A query argument that is repeated or has
/// no value never matches; an empty key does not match either. `headers`, `queries` and `cookies` name several places,
/// which are read in this order; the first one that the request has counts.
#[derive(Deserialize, JsonSchema)]
struct KeyAuth {
    /// The header with the key.
    #[schemars(extend("default" = "apikey"))]
    header: FieldName,
    /// The query argument with the key, if the header is absent.
    #[schemars(extend("default" = "apikey"))]
    query: String,
    /// Several headers instead of `header`; with an empty list no header is read.
    #[schemars(length(max = 16))]
    headers: Option<Vec<FieldName>>,
    /// Several query arguments instead of `query`; with an empty list no argument is read.
    #[schemars(length(max = 16))]
    queries: Option<Vec<String>>,
    /// Cookies with the key, if headers and arguments are absent.
    #[schemars(length(max = 16))]
    cookies: Option<Vec<String>>,
    #[serde(flatten)]
    policy: AuthPolicy<Self>,
}

impl Configuration for KeyAuth {
    fn check(&self) -> Result<(), String> {
        let is_empty = |list: usize| list == 0;
        match is_empty(self.header_names().len())
            && is_empty(self.argument_names().len())
            && is_empty(self.cookie_names().len())
        {
            true => {
                Err("the plugin reads no key: list a name in `headers`, `queries` or `cookies`".to_owned())
            }
            false => Ok(()),
        }
    }
}

/// The places of keys, which logs mask.
fn credentials(conf: &Value) -> Vec<Credential> {
    let place = |list: &'static str, single: &'static str| match conf.get(list) {
        Some(_) => list,
        None => single,
    };
    let fields = texts(conf, place("headers", "header")).map(Credential::field);
    let arguments = texts(conf, place("queries", "query")).map(Credential::argument);
    let cookies = texts(conf, "cookies").take(1).map(|_| Credential::field("cookie"));
    fields.chain(arguments).chain(cookies).collect()
}

/// The warning that keys in the query reach nodes and their logs.
fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    let hides = conf.get("hide_credentials") == Some(&Value::Bool(true));
    let named = |field: &&str| {
        conf.get(*field).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty()))
    };
    let Some(field) = ["queries", "query"].into_iter().find(named) else { return Vec::new() };
    if scope != PluginScope::Http || hides {
        return Vec::new();
    }
    let message = "keys in the query string reach the nodes, their logs and the pages that they link to";
    vec![Problem::new(field, "shown_key", message).hint("set `hide_credentials` to true, or use `header`")]
}

impl Scheme for KeyAuth {
    const PLUGIN: &str = "key-auth";
    const NAME: &str = "apikey";
    const REALM: &str = "key";
}

#[derive(Deserialize, JsonSchema)]
struct Consumer {
    /// The key; it must be unique among consumers.
    #[serde(rename = "key")]
    _key: Confidential,
}

impl Configuration for Consumer {}

impl KeyAuth {
    fn header_names(&self) -> &[FieldName] {
        self.headers.as_deref().unwrap_or(std::slice::from_ref(&self.header))
    }

    fn argument_names(&self) -> &[String] {
        self.queries.as_deref().unwrap_or(std::slice::from_ref(&self.query))
    }

    fn cookie_names(&self) -> &[String] {
        self.cookies.as_deref().unwrap_or_default()
    }

    /// The key of the first place that the request has.
    fn key<'c>(&self, ctx: &'c Context) -> Option<Cow<'c, [u8]>> {
        let headers = &ctx.request.headers;
        let in_header = self.header_names().iter().find_map(|name| name.find(headers));
        in_header
            .map(Cow::Borrowed)
            .or_else(|| {
                self.argument_names().iter().find_map(|name| only_argument(ctx, name)).map(Cow::Owned)
            })
            .or_else(|| {
                self.cookie_names().iter().find_map(|name| only_cookie(headers, name)).map(Cow::Borrowed)
            })
    }

    fn hide(&self, ctx: &mut Context) {
        self.header_names().iter().for_each(|name| name.remove(&mut ctx.request.headers));
        self.argument_names().iter().for_each(|name| ctx.hide_argument(name));
        self.cookie_names().iter().for_each(|name| remove_cookie(&mut ctx.request.headers, name));
    }

    fn authenticate<'e>(&self, ctx: &Context, env: &Env<'e>) -> Result<&'e Arc<Identity>, Refusal> {
        let key = self.key(ctx).ok_or(Refusal::absent("Missing API key in request"))?;
        self.policy
            .find(env, &key, "failed to find consumer: invalid api key")
            .map_err(|detail| Refusal::new("Invalid API key in request", detail))
    }
}

impl Plugin for KeyAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let found = self.authenticate(ctx, env);
        if self.policy.hide_credentials {
            self.hide(ctx);
        }
        self.policy.conclude(ctx, env, found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, entry, refusal, warned};

    #[test]
    fn keys_in_the_query_are_warned_of() {
        let check = |conf: Value, expected: &[&str]| {
            assert_eq!(warned("key-auth", PluginScope::Http, &conf), expected, "{conf}");
        };
        check(json!({}), &[]);
        check(json!({"query": "key"}), &["query"]);
        check(json!({"query": "key", "hide_credentials": true}), &[]);
        check(json!({"queries": ["key"]}), &["queries"]);
        check(json!({"queries": []}), &[]);
    }

    #[test]
    fn several_places_are_read_in_order() {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        for (name, key) in [("jack", "jacks"), ("jill", "jills")] {
            case.consumer(name, "key-auth", &json!({ "key": key }));
        }
        let conf = json!({"headers": ["X-A", "X-B"], "queries": ["a", "b"], "cookies": ["k"], "hide_credentials": true});
        let entry = entry("key-auth", conf).unwrap();
        let mut check = |head: &str, expected: Option<&str>| {
            case.request(head);
            case.run(&entry, Phase::Rewrite);
            let name = case.sent("X-Consumer-Username");
            assert_eq!(name.as_deref(), expected, "{head}");
            assert!(
                expected.is_none() || (case.sent("X-A").is_none() && case.sent("Cookie").is_none()),
                "{head}"
            );
        };
        check("GET / HTTP/1.1\nHost: h\nX-A: jacks", Some("jack"));
        check("GET / HTTP/1.1\nHost: h\nX-B: jacks", Some("jack"));
        check("GET /?b=jills HTTP/1.1\nHost: h\nX-A: jacks", Some("jack"));
        check("GET /?b=jills HTTP/1.1\nHost: h", Some("jill"));
        check("GET / HTTP/1.1\nHost: h\nCookie: k=jills", Some("jill"));
        // The first place counts, although a later one has a key that is known.
        check("GET /?a=no HTTP/1.1\nHost: h\nCookie: k=jills", None);
        check("GET / HTTP/1.1\nHost: h\nCookie: k=jills; k=jills", None);
        check("GET / HTTP/1.1\nHost: h\nApikey: jacks", None);
        check("GET /?apikey=jacks HTTP/1.1\nHost: h", None);
    }

    #[test]
    fn a_place_is_needed() {
        let error = refusal("key-auth", &json!({"headers": [], "queries": []}));
        assert!(error.contains("the plugin reads no key"), "{error}");
    }
}
