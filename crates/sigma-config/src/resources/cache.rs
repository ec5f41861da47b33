//! The cache of a route.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Caches responses of the route's nodes by the rules of a shared cache (RFC 9111). The fields correspond to nginx's
/// `proxy_cache_*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RouteCache {
    /// The cache key: texts, and variables with `$`. The request fields that a response lists in `Vary` are added.
    #[schemars(length(min = 1), inner(length(min = 1, max = 256)))]
    pub key: Vec<String>,
    /// The methods whose responses are served from the cache.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub methods: Vec<CachedMethod>,
    /// Whether `PURGE` removes the cached responses of a URI: 200, or 404 if nothing was cached. Every client that may
    /// call the route with this method can then purge. If off, the method is forwarded to the node.
    pub purge: bool,
    /// Freshness lifetimes of responses without their own. The first entry with the response's status applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<CacheValid>,
    /// Whether responses without a lifetime, including one from `valid`, are fresh for a tenth of the time since their
    /// `Last-Modified`, at most a day.
    pub heuristic: bool,
    /// Response fields to ignore. Without `Vary` all clients get the same response; without `Set-Cookie` all clients
    /// get the cookies of one client.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("uniqueItems" = true))]
    pub ignore_headers: Vec<IgnoredHeader>,
    /// Texts and variables: if one is neither empty nor `0`, the cache is not read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 256)))]
    pub bypass: Vec<String>,
    /// Texts and variables: if one is neither empty nor `0`, the response is not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 256)))]
    pub no_store: Vec<String>,
    /// Whether each consumer has separate responses.
    pub consumer_isolation: bool,
    /// Whether `Cache-Control` and `Pragma` of requests apply. With them any client can force requests to nodes.
    pub request_directives: bool,
    /// Number of requests for a response before it is stored.
    #[schemars(range(min = 1, max = 1000))]
    pub min_uses: u32,
    /// Milliseconds that a request waits for another request with the same key; 0: every request goes to a node.
    #[schemars(range(max = 600_000))]
    pub lock_timeout: u32,
    /// Seconds after which another request is forwarded as well, if no response has begun; 0 for never.
    #[schemars(range(max = 3600))]
    pub lock_age: u32,
    /// Maximum number of requests that wait for one; further requests go to a node.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_waiters: u32,
    /// Whether stale responses are revalidated with `If-None-Match` and `If-Modified-Since`.
    pub revalidate: bool,
    /// Whether a stale response that may be served meanwhile is refreshed in the background.
    pub background_update: bool,
    /// Seconds during which a stale response is served while it is refreshed; a longer time in the response itself (RFC
    /// 5861) has precedence.
    #[schemars(range(max = 31_536_000))]
    pub stale_while_revalidate: u32,
    /// Seconds during which a stale response is served if no node responds, or one responds with one of
    /// `stale_statuses`; a longer time in the response itself (RFC 5861) has precedence.
    #[schemars(range(max = 31_536_000))]
    pub stale_if_error: u32,
    /// Statuses that count as no response.
    #[schemars(inner(range(min = 400, max = 599)), extend("uniqueItems" = true))]
    pub stale_statuses: Vec<u16>,
    /// Maximum size of a stored body in bytes.
    #[schemars(range(min = 1))]
    pub max_body_bytes: u64,
    /// Size of a slice in bytes. Missing parts of a response are requested from nodes and stored in slices of this
    /// size. Unset: responses are stored whole. A slice must not exceed the largest response in memory, nor
    /// `max_body_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 65_536, max = 16_777_216))]
    pub slice_bytes: Option<u64>,
    /// Whether responses have `Cache-Status` (RFC 9211) with the result of the cache.
    pub cache_status: bool,
    /// Whether clients see the cache tags of nodes: `Surrogate-Key`, `Cache-Tag` and `xkey`.
    pub show_tags: bool,
}

impl Default for RouteCache {
    fn default() -> RouteCache {
        RouteCache {
            key: ["$scheme", "$host", "$request_uri"].map(str::to_owned).to_vec(),
            methods: vec![CachedMethod::Get, CachedMethod::Head],
            purge: false,
            valid: Vec::new(),
            heuristic: false,
            ignore_headers: Vec::new(),
            bypass: Vec::new(),
            no_store: Vec::new(),
            consumer_isolation: true,
            request_directives: false,
            min_uses: 1,
            lock_timeout: 5_000,
            lock_age: 5,
            max_waiters: 10_000,
            revalidate: true,
            background_update: true,
            stale_while_revalidate: 0,
            stale_if_error: 0,
            stale_statuses: vec![500, 502, 503, 504],
            max_body_bytes: 64 << 20,
            slice_bytes: None,
            cache_status: true,
            show_tags: false,
        }
    }
}

/// Freshness lifetime of responses with certain statuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheValid {
    /// The statuses; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 200, max = 599)), extend("uniqueItems" = true))]
    pub statuses: Vec<u16>,
    /// Lifetime in seconds.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub seconds: u32,
}

/// A method that may be served from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum CachedMethod {
    /// GET
    Get,
    /// HEAD
    Head,
}

/// A response field that can be ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IgnoredHeader {
    /// `Cache-Control`, and `CDN-Cache-Control`
    #[serde(rename = "Cache-Control")]
    CacheControl,
    /// `Expires`
    Expires,
    /// `Set-Cookie`, which otherwise prevents caching
    #[serde(rename = "Set-Cookie")]
    SetCookie,
    /// `Vary`
    Vary,
    /// nginx's `X-Accel-Expires`
    #[serde(rename = "X-Accel-Expires")]
    AccelExpires,
}
