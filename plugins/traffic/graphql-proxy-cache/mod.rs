//! `graphql-proxy-cache`: answers to queries of GraphQL are kept, and used again.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::Method;
use sigma_plugin::cache::{CacheDisks, CacheOrder, CacheRule, Lifetime, Tells, key_end};
use sigma_plugin::graphql::{self, Definition, Message, NoMessage, Operation};
use sigma_plugin::hex;
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Slot, Step,
};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;

use crate::shared::zones::{Attributes as ZoneAttributes, Strategy};

const NAME: &str = "graphql-proxy-cache";

/// The plugin.
pub(crate) static GRAPHQL_PROXY_CACHE: Descriptor = Descriptor {
    name: NAME,
    priority: 1009,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    attributes: Some(schema_of::<Attributes>),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(Arc::new(GraphqlProxyCache::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Caches responses to GraphQL queries, by GET or POST.
///
/// The zones and the rules for stored responses are the same as for [proxy-cache](proxy-cache.md); only responses with
/// status 200 are stored. A document with a mutation passes the cache. A request that is not GraphQL gets 400, and
/// other methods get 405: nodes get only parsed requests.
///
/// A key contains the exact text: the query string, and for POST also the body. A POST with GraphQL arguments in its
/// query string gets 400, and so does a GET with a body, because a server might read either. Host, path, route,
/// service, the configuration and the user are in the key as well. Responses have it in `APISIX-Cache-Key`; operators
/// purge by it: `sigma ctl purge --cache-key '["…"]'`.
///
/// A mutation purges nothing, because its affected queries are unknown.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Storage and lifetime of responses: `memory` uses `cache_ttl`, `disk` the response's own lifetime
    /// (`X-Accel-Expires`, `Cache-Control`, `Expires`), else the attribute `cache_ttl` of `proxy-cache`.
    #[schemars(extend("default" = "disk"))]
    cache_strategy: Strategy,
    /// The zone; its strategy must be the same.
    #[schemars(length(min = 1, max = 100), extend("default" = "disk_cache_one"))]
    cache_zone: String,
    /// With `memory`: lifetime of a response in seconds.
    #[schemars(range(min = 1, max = 2_147_483_647), extend("default" = 300))]
    cache_ttl: u32,
    /// Whether each consumer has separate entries.
    #[schemars(extend("default" = true))]
    consumer_isolation: bool,
    /// With `memory`: whether responses with `Set-Cookie` are stored.
    #[schemars(extend("default" = false))]
    cache_set_cookie: bool,
}

impl Configuration for Config {}

/// The attributes of the plugin in `plugin_attr`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Attributes {
    /// Maximum bytes of a query string or body; a body is held in memory. A larger one gets 400.
    #[schemars(range(min = 1), extend("default" = 1_048_576))]
    max_size: usize,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { max_size: 1 << 20 }
    }
}

/// Fields that only the strategy `memory` has.
const OF_MEMORY: [&str; 2] = ["cache_ttl", "cache_set_cookie"];

fn warnings(conf: &Value) -> Vec<Problem> {
    if conf.get("cache_strategy").and_then(Value::as_str).unwrap_or("disk") != "disk" {
        return Vec::new();
    }
    let idle = OF_MEMORY.iter().filter(|field| conf.get(**field).is_some()).map(|field| {
        Problem::new(*field, "no-effect", "the strategy `disk` does not use this field").hint("leave it out")
    });
    idle.collect()
}

struct GraphqlProxyCache(Arc<Inner>);

struct Inner {
    order: CacheOrder,
    /// Keys of other configurations are others.
    space: Vec<u8>,
    max_size: usize,
}

/// The key of an exchange, for its client.
struct ReportedKey(String);

impl GraphqlProxyCache {
    fn new(build: &Build<'_>) -> Result<GraphqlProxyCache, String> {
        let config: Config = build.config()?;
        let zones = ZoneAttributes::of(build.node.attribute("proxy-cache"))?;
        let attribute = build.node.attribute(NAME);
        let attributes =
            if attribute.is_null() { Ok(Attributes::default()) } else { Attributes::deserialize(attribute) };
        let attributes = attributes.map_err(|error| format!("plugin_attr.{NAME}: {error}"))?;
        let is_memory = config.cache_strategy == Strategy::Memory;
        let (zone_bytes, disk) = config.cache_strategy.zone(&zones, &config.cache_zone)?;
        let rule = CacheRule {
            zone: config.cache_zone.as_str().into(),
            zone_bytes,
            disk,
            methods: vec![Method::Get, Method::Post],
            statuses: Some(vec![200]),
            lifetime: match config.cache_strategy {
                Strategy::Disk => Lifetime::StatedOr(zones.cache_ttl_s()?),
                Strategy::Memory => Lifetime::Fixed(config.cache_ttl),
            },
            keeps_cookies: is_memory && config.cache_set_cookie,
            most_bytes: u64::MAX,
            tells: Tells::Word,
            ..CacheRule::default()
        };
        build.node.part(CacheDisks::default).want(&rule);
        let key = ["$host", "$uri", "$route_id", "$service_id"].map(str::to_owned);
        let order = CacheOrder::new(rule, &key, config.consumer_isolation);
        let space = key_end(&[build.resource.to_owned(), build.conf.to_string()]);
        Ok(GraphqlProxyCache(Arc::new(Inner { order, space, max_size: attributes.max_size })))
    }
}

impl Plugin for GraphqlProxyCache {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let (inner, slot) = (Arc::clone(&self.0), Slot::from(self));
        if !matches!(ctx.request.method, Method::Get | Method::Post) {
            return Step::status(405);
        }
        let limit = inner.max_size;
        let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| {
            if read == BodyRead::TooLarge {
                return no_request();
            }
            // It is not changed, and still there for the node.
            let body = ctx.body.take().unwrap_or_default();
            let step = inner.judge(slot, ctx, &body);
            ctx.body = Some(body);
            step
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        if let Some(ReportedKey(key)) = ctx.take_kept(self) {
            ctx.response.headers.replace("APISIX-Cache-Key", key.as_bytes());
        }
        ResponseStep::Next
    }
}

impl Inner {
    /// Wants the cache for a request whose body is known.
    fn judge(&self, slot: Slot, ctx: &mut Context, body: &[u8]) -> Step {
        let query = ctx.outgoing_query().unwrap_or_default().to_vec();
        let text = if ctx.request.method == Method::Get { &query } else { body };
        if text.len() > self.max_size {
            return no_request();
        }
        let message = match Message::required(ctx.request.method, &query, &ctx.request.headers, body) {
            Ok(message) => message,
            Err(NoMessage::Empty) => return no_request(),
            Err(NoMessage::Absent(reason) | NoMessage::Ambiguous(reason)) => {
                return refused(&format!("invalid graphql request, {reason}"));
            }
        };
        let definitions = graphql::definitions(&message.document);
        let definitions = match definitions {
            Ok(definitions) => definitions,
            Err(_) if message.document.trim().is_empty() => Vec::new(),
            Err(_) => return refused("Invalid graphql request: failed to parse graphql query"),
        };
        let operations = definitions.iter().filter_map(|definition| match definition {
            Definition::Operation(operation, _) => Some(*operation),
            Definition::Fragment => None,
        });
        let operations: Vec<Operation> = operations.collect();
        if operations.is_empty() {
            return refused("Invalid graphql request: empty graphql query");
        }
        let mut wish = self.order.wish(ctx);
        if operations.contains(&Operation::Mutation) {
            (wish.is_bypassed, wish.is_kept_out) = (true, true);
        } else {
            // How a body is read depends on its type.
            let kind = ctx.request.headers.find(b"Content-Type").unwrap_or_default();
            let method = ctx.request.method.as_str().as_bytes();
            // A server may look at any argument, by POST too.
            let mut whole = [&wish.key[..], &self.space].concat();
            for part in [kind, method, &query] {
                whole.extend(length(part));
                whole.extend(part);
            }
            whole.extend(text);
            let key = hex::text(digest(&SHA256, &whole).as_ref());
            wish.key = key_end(std::slice::from_ref(&key));
            // The text is in the key, whether it comes in the query string or in the body.
            wish.content = Some(method.to_vec());
            ctx.keep(slot, ReportedKey(key));
        }
        ctx.cache = Some(Box::new(wish));
        Step::Next
    }
}

fn length(part: &[u8]) -> [u8; 8] {
    (part.len() as u64).to_le_bytes()
}

fn no_request() -> Step {
    refused("Invalid graphql request: can't get graphql request body")
}

fn refused(message: &str) -> Step {
    Reply::new(400).json(&json!({ "message": message })).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, summary};

    const MEMORY: &str = r#"{"cache_strategy": "memory", "cache_zone": "memory_cache"}"#;

    fn conf() -> Value {
        serde_json::from_str(MEMORY).unwrap()
    }

    /// Returns the result of a request: its key, `bypass`, or its reply.
    fn outcome(head: &str, body: &str) -> String {
        let mut case = Case::new(head);
        case.body = body.into();
        let reply = case.run(&entry(NAME, conf()).unwrap(), Phase::Access);
        match case.ctx.cache.take() {
            Some(wish) if wish.is_bypassed && wish.is_kept_out => "bypass".to_owned(),
            Some(wish) => {
                assert!(case.ctx.body.is_none() || case.ctx.body.as_deref() == Some(body.as_bytes()));
                format!("{:x?}", wish.key)
            }
            None => summary(reply.as_ref()),
        }
    }

    fn post(content_type: &str, body: &str) -> String {
        outcome(&format!("POST /graphql HTTP/1.1\nHost: h\nContent-Type: {content_type}"), body)
    }

    #[test]
    fn texts_have_keys_of_their_own() {
        let get = |query: &str| outcome(&format!("GET /graphql?{query} HTTP/1.1\nHost: h"), "");
        let texts = [
            post("application/graphql", "{a}"),
            post("application/graphql", "{a }"),
            post("application/graphql; charset=utf-8", "{a}"),
            post("application/json", r#"{"query":"{a}"}"#),
            post("application/json", r#"{"query":"{a}","variables":{"x":1}}"#),
            get("query=%7Ba%7D"),
            get("query={a}"),
            get("query={a}&operationName=x"),
            outcome("POST /other HTTP/1.1\nHost: h\nContent-Type: application/graphql", "{a}"),
            outcome("POST /graphql HTTP/1.1\nHost: i\nContent-Type: application/graphql", "{a}"),
            post("application/graphql", "subscription {a}"),
            outcome("POST /graphql?tenant=1 HTTP/1.1\nHost: h\nContent-Type: application/graphql", "{a}"),
            outcome("POST /graphql?tenant=2 HTTP/1.1\nHost: h\nContent-Type: application/graphql", "{a}"),
        ];
        let keys: std::collections::HashSet<_> = texts.iter().collect();
        assert_eq!(keys.len(), texts.len(), "{texts:?}");
        assert!(texts.iter().all(|key| key.starts_with('[')), "{texts:?}");
        assert_eq!(post("application/graphql", "{a}"), texts[0]);
    }

    #[test]
    fn mutations_pass() {
        for body in ["mutation {a}", "query A {a} mutation B {b}", "fragment F on T {a} mutation {...F}"] {
            assert_eq!(post("application/graphql", body), "bypass", "{body}");
        }
        assert_eq!(post("application/json", r#"{"query":"mutation {a}"}"#), "bypass");
        assert_eq!(outcome("GET /?query=mutation{a} HTTP/1.1\nHost: h", ""), "bypass");
        // A field is no operation.
        assert!(post("application/graphql", "{mutation}").starts_with('['));
    }

    #[test]
    fn invalid_requests_are_refused() {
        let check = |seen: String, expected: &str| {
            assert!(seen.starts_with("400") && seen.contains(expected), "{seen} is not {expected}");
        };
        let body = "can't get graphql request body";
        check(post("application/graphql", ""), body);
        check(post("application/graphql", &"a".repeat((1 << 20) + 1)), body);
        check(outcome("GET /graphql HTTP/1.1\nHost: h", ""), body);
        check(outcome("GET /graphql?a=b HTTP/1.1\nHost: h", ""), "args[query] is nil");
        check(post("application/json", "[]"), "json body[query] is nil");
        check(post("application/json", r#"[{"query":"{a}"}]"#), "json body[query] is nil");
        check(post("application/json", "{"), "invalid graphql request, EOF");
        check(post("text/plain", "{a}"), "invalid graphql request, error content-type: text/plain");
        check(post("application/graphql", "{a"), "failed to parse graphql query");
        check(post("application/graphql", "fragment F on T {a}"), "empty graphql query");
        check(post("application/json", r#"{"query": ""}"#), "empty graphql query");
        for (argument, name) in
            [("query={b}", "query"), ("x=1&%71uery", "query"), ("operationName=B", "operationName")]
        {
            let head =
                format!("POST /graphql?{argument} HTTP/1.1\nHost: h\nContent-Type: application/graphql");
            check(outcome(&head, "{a}"), &format!("args[{name}] in a request with a body"));
        }
        check(outcome("GET /graphql?query={a} HTTP/1.1\nHost: h", "{b}"), "a GET has no body");
        assert_eq!(outcome("HEAD /graphql?query={a} HTTP/1.1\nHost: h", ""), "405");
        assert_eq!(outcome("PUT /graphql HTTP/1.1\nHost: h", ""), "405");
    }

    #[test]
    fn zones_are_shared_with_proxy_cache() {
        let check = |conf: Value, expected: &str| {
            let error = entry(NAME, conf).err().map(|error| error.to_string());
            assert!(error.as_deref().is_some_and(|error| error.contains(expected)), "{error:?}");
        };
        check(json!({"cache_zone": "none"}), "cache_zone none not found");
        let other = json!({"cache_strategy": "memory"});
        check(other, "invalid or empty cache_zone for cache_strategy: memory");
        let places = |conf: Value| -> Vec<String> {
            warnings(&conf).iter().map(|problem| problem.pointer.clone()).collect()
        };
        assert_eq!(places(json!({"cache_ttl": 5})), ["cache_ttl"]);
        assert!(places(conf()).is_empty());
    }
}
