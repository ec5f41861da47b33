//! `proxy-cache`: answers of nodes are kept, and used again.
//!
//! The plugin chooses the responses to store and their keys; storage itself is a stage of the exchange.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::Method;
use sigma_plugin::cache::{CacheDisks, CacheOrder, CacheRule, Lifetime, Tells};
use sigma_plugin::variables::joined;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;

use crate::shared::zones::{Attributes, Strategy};

const NAME: &str = "proxy-cache";

/// The plugin.
pub(crate) static PROXY_CACHE: Descriptor = Descriptor {
    name: NAME,
    version: "0.2",
    priority: 1085,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    attributes: Some(schema_of::<Attributes>),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(Arc::new(ProxyCache::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Caches responses of nodes.
///
/// `plugin_attr` has the zones: names and sizes of memory. All workers share them. Popular responses stay longest. A
/// zone has one part for each 8 MiB; a response larger than half of a part is not stored.
///
/// The method `PURGE`, if the route has it, purges a URI: 200, or 404 if nothing was stored. After a node has accepted
/// them, other unsafe methods invalidate the URI too. They also invalidate URIs of the same origin in the response's
/// `Location` and `Content-Location` (RFC 9111 §4.4). The variable `$upstream_cache_status` has the value of
/// `Apisix-Cache-Status` for logs.
///
/// The cache stores the node's response before plugins change it. All plugins process a stored response as they
/// process a node's: limits count cache hits. Conditional requests and range requests are answered from the cache.
///
/// A response to a request with `Authorization` is stored only if it is `public`, or has `s-maxage` or
/// `must-revalidate` (RFC 9111 §3.5). It is also stored if the key contains the user: the consumer, or the whole field
/// `$http_authorization`. `$remote_user` is not verified: it separates responses and proves nothing.
///
/// Every client that may call the route with `PURGE` can purge: leave the method out of the route, or protect it. One
/// key has at most 64 variants (`Vary`). A response that cannot be stored disables the cache lock of its key for two
/// minutes, regardless of `lock_timeout`.
///
/// With the strategy `disk`, responses are on a disk as well as in memory, and survive a restart. Large bodies are
/// sent from the disk without being held in memory. See [caching](../caching.md).
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Storage and rules of freshness: `memory` uses `cache_ttl`, `disk` the rules of nginx (`X-Accel-Expires`,
    /// `Cache-Control`, `Expires`, else the attribute `cache_ttl`).
    #[schemars(extend("default" = "disk"))]
    cache_strategy: Strategy,
    /// The zone; its strategy must be the same.
    #[schemars(length(min = 1, max = 100), extend("default" = "disk_cache_one"))]
    cache_zone: String,
    /// Parts of the key: texts and variables. The target, the Host and the forwarded host and scheme for the node are
    /// always part of it, and so are method and body of a POST.
    #[schemars(length(min = 1), inner(regex(pattern = r"(^[^$].+$|^\$[0-9a-zA-Z_]+$)")),
        extend("default" = ["$host", "$request_uri"]))]
    cache_key: Vec<String>,
    /// The methods that use the cache. HEAD uses the entry of GET. A POST with a body of more than 64 KiB bypasses
    /// the cache.
    #[schemars(length(min = 1), extend("uniqueItems" = true, "default" = ["GET", "HEAD"]))]
    cache_method: Vec<CachedMethod>,
    /// The stored statuses.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)),
        extend("uniqueItems" = true, "default" = [200, 301, 404]))]
    cache_http_status: Vec<u16>,
    /// Texts and variables: if the result is neither empty nor `0`, the request bypasses the cache.
    #[schemars(length(min = 1), inner(regex(pattern = r"(^[^$].+$|^\$[0-9a-zA-Z_]+$)")))]
    cache_bypass: Option<Vec<String>>,
    /// Texts and variables: if the result is neither empty nor `0`, the response is not stored.
    #[schemars(length(min = 1), inner(regex(pattern = r"(^[^$].+$|^\$[0-9a-zA-Z_]+$)")))]
    no_cache: Option<Vec<String>>,
    /// Whether `Expires` and `Cache-Control` are removed from responses.
    #[schemars(extend("default" = false))]
    hide_cache_headers: bool,
    /// With `memory`: whether `Cache-Control` of requests applies, and responses have their own lifetime instead of
    /// `cache_ttl`.
    #[schemars(extend("default" = false))]
    cache_control: bool,
    /// With `memory`: lifetime of a response in seconds.
    #[schemars(range(min = 1, max = 2_147_483_647), extend("default" = 300))]
    cache_ttl: u32,
    /// Whether each consumer has separate entries.
    #[schemars(extend("default" = true))]
    consumer_isolation: bool,
    /// With `memory`: whether responses with `Set-Cookie` are stored.
    #[schemars(extend("default" = false))]
    cache_set_cookie: bool,
    /// With `memory`: the largest stored body, in bytes.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_resp_body_size: u64,
    /// Milliseconds that a request waits for the response to another request with its key (cache lock); 0: no lock.
    #[schemars(range(max = 600_000), extend("default" = 0, "own_default" = true))]
    lock_timeout: u32,
    /// Whether stale responses are revalidated at nodes with `If-None-Match` and `If-Modified-Since`.
    #[schemars(extend("default" = false, "own_default" = true))]
    revalidate: bool,
    /// Seconds for which a stale response replaces an error of a node, in addition to its own `stale-if-error`.
    #[schemars(range(max = 2_147_483_647), extend("default" = 0, "own_default" = true))]
    stale_if_error: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum CachedMethod {
    Get,
    Post,
    Head,
}

impl Configuration for Config {}

/// Fields that only the strategy `memory` has.
const OF_MEMORY: [&str; 4] = ["cache_control", "cache_ttl", "cache_set_cookie", "max_resp_body_size"];

fn warnings(conf: &Value) -> Vec<Problem> {
    if conf.get("cache_strategy").and_then(Value::as_str).unwrap_or("disk") != "disk" {
        return Vec::new();
    }
    let idle = OF_MEMORY.iter().filter(|field| conf.get(**field).is_some()).map(|field| {
        Problem::new(*field, "no-effect", "the strategy `disk` does not use this field").hint("leave it out")
    });
    idle.collect()
}

/// The longest body of a POST whose response is kept, in bytes: it is read before a node is queried.
const BODY_MAX: usize = 64 << 10;

struct ProxyCache(CacheOrder);

impl ProxyCache {
    fn new(build: &Build<'_>) -> Result<ProxyCache, String> {
        let config: Config = build.config()?;
        let attributes = Attributes::of(build.node.attribute(NAME))?;
        let (zone_bytes, disk) = config.cache_strategy.zone(&attributes, &config.cache_zone)?;
        let lifetime = match (config.cache_strategy, config.cache_control) {
            (Strategy::Disk, _) => Lifetime::StatedOr(attributes.cache_ttl_s()?),
            (Strategy::Memory, true) => Lifetime::Stated,
            (Strategy::Memory, false) => Lifetime::Fixed(config.cache_ttl),
        };
        let is_memory = config.cache_strategy == Strategy::Memory;
        let rule = CacheRule {
            zone: config.cache_zone.as_str().into(),
            zone_bytes,
            disk,
            methods: config.cache_method.iter().map(|method| Method::from(*method)).collect(),
            statuses: Some(config.cache_http_status),
            lifetime,
            heeds_requests: is_memory && config.cache_control,
            keeps_cookies: is_memory && config.cache_set_cookie,
            most_bytes: if is_memory { config.max_resp_body_size } else { u64::MAX },
            hides_lifetime: config.hide_cache_headers,
            wait_ms: config.lock_timeout,
            revalidates: config.revalidate,
            stale_if_error: config.stale_if_error,
            failures: vec![500, 502, 503, 504],
            purges: true,
            tells: Tells::Word,
            ..CacheRule::default()
        };
        build.node.part(CacheDisks::default).want(&rule);
        let order = CacheOrder::new(rule, &config.cache_key, config.consumer_isolation)
            .bypassed_by(&config.cache_bypass.unwrap_or_default())
            .kept_out_by(&config.no_cache.unwrap_or_default());
        Ok(ProxyCache(order))
    }
}

impl From<CachedMethod> for Method {
    fn from(method: CachedMethod) -> Method {
        match method {
            CachedMethod::Get => Method::Get,
            CachedMethod::Post => Method::Post,
            CachedMethod::Head => Method::Head,
        }
    }
}

impl Plugin for ProxyCache {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let mut wish = Box::new(self.0.wish(ctx));
        if ctx.request.method != Method::Post || !wish.rule.methods.contains(&Method::Post) {
            ctx.cache = Some(wish);
            return Step::Next;
        }
        Step::ReadStart {
            limit: BODY_MAX,
            then: Box::new(move |ctx, _, start| {
                // A longer body passes the cache.
                if start.is_whole {
                    wish.content = Some(content(ctx, &start.bytes));
                    ctx.cache = Some(wish);
                }
                Step::Next
            }),
        }
    }
}

/// Returns the part of the key for a POST with this body.
fn content(ctx: &Context, body: &[u8]) -> Vec<u8> {
    let mut content = b"POST".to_vec();
    // They say how a server reads the body.
    for name in ["content-type", "content-encoding"] {
        let field = joined(&ctx.request.headers, name).unwrap_or_default();
        content.extend_from_slice(&(field.len() as u64).to_le_bytes());
        content.extend_from_slice(&field);
    }
    content.extend_from_slice(digest(&SHA256, body).as_ref());
    content
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_without_effect_have_warnings() {
        let places = |conf: Value| -> Vec<String> {
            warnings(&conf).iter().map(|problem| problem.pointer.clone()).collect()
        };
        assert!(places(json!({"cache_strategy": "memory", "cache_ttl": 5})).is_empty());
        assert_eq!(places(json!({"cache_ttl": 5})), ["cache_ttl"]);
    }
}
