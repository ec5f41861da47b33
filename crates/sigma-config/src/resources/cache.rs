//! The cache of a route.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answers of the route's nodes are kept in memory and used again, by the rules of a shared cache (RFC 9111). Its fields
/// stand for nginx's `proxy_cache_*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RouteCache {
    /// What tells one answer from another: texts, and variables with `$`. The fields that an answer names in `Vary` tell
    /// answers apart beside it.
    #[schemars(length(min = 1), inner(length(min = 1, max = 256)))]
    pub key: Vec<String>,
    /// The methods that use the cache.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub methods: Vec<CachedMethod>,
    /// Whether `PURGE` forgets what is kept for a URI: 200, or 404 if nothing was. Whoever may call the route with that
    /// method may then do so; without it the method is the node's.
    pub purge: bool,
    /// How long answers are fresh that do not say it themselves. Of several the first one counts that names the status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<CacheValid>,
    /// Whether answers that say nothing, and for which `valid` says nothing, are fresh for a tenth of the time since they
    /// were changed (`Last-Modified`), a day at most.
    pub heuristic: bool,
    /// Fields of answers that do not count. Without `Vary` one answer is given to all; without `Set-Cookie` the cookies
    /// of one client are given to all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("uniqueItems" = true))]
    pub ignore_headers: Vec<IgnoredHeader>,
    /// Texts and variables: if the result is neither empty nor `0`, the request bypasses the cache.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 256)))]
    pub bypass: Vec<String>,
    /// The same: the response is not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 256)))]
    pub no_store: Vec<String>,
    /// Whether each consumer has separate entries.
    pub consumer_isolation: bool,
    /// Whether `Cache-Control` and `Pragma` of requests count. They let any client have nodes asked.
    pub request_directives: bool,
    /// How often an answer must have been asked for before it is kept.
    #[schemars(range(min = 1, max = 1000))]
    pub min_uses: u32,
    /// Milliseconds that a request waits for the response to another request with its key (cache lock); 0: no lock.
    #[schemars(range(max = 600_000))]
    pub lock_timeout: u32,
    /// Seconds after which another request asks too, if no answer has begun to come; 0 for never.
    #[schemars(range(max = 3600))]
    pub lock_age: u32,
    /// How many requests wait for one; further ones ask for themselves.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_waiters: u32,
    /// Whether stale responses are revalidated at nodes with `If-None-Match` and `If-Modified-Since`.
    pub revalidate: bool,
    /// Whether what is stale and may be given meanwhile is asked for with no client waiting.
    pub background_update: bool,
    /// Seconds for which what is stale is given while it is asked for anew, beside what answers say themselves
    /// (RFC 5861).
    #[schemars(range(max = 31_536_000))]
    pub stale_while_revalidate: u32,
    /// Seconds for which what is stale is given where no node answers, or with one of `stale_statuses`, beside what
    /// answers say themselves (RFC 5861).
    #[schemars(range(max = 31_536_000))]
    pub stale_if_error: u32,
    /// Statuses that count as no answer.
    #[schemars(inner(range(min = 400, max = 599)), extend("uniqueItems" = true))]
    pub stale_statuses: Vec<u16>,
    /// The largest body that is kept, in bytes.
    #[schemars(range(min = 1))]
    pub max_body_bytes: u64,
    /// Bytes of a slice: what is not kept is asked of nodes, and kept, in slices of so many bytes, as requests want them.
    /// Without it answers are kept whole. No slice has more bytes than memory takes of one answer, and than
    /// `max_body_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 65_536, max = 16_777_216))]
    pub slice_bytes: Option<u64>,
    /// Whether answers have `Cache-Status` (RFC 9211), which says what the cache did.
    pub cache_status: bool,
    /// Whether clients see the fields by which nodes name what an answer is made of: `Surrogate-Key`, `Cache-Tag` and
    /// `xkey`.
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

/// How long answers with some statuses are fresh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheValid {
    /// The statuses; none for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 200, max = 599)), extend("uniqueItems" = true))]
    pub statuses: Vec<u16>,
    /// Seconds.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub seconds: u32,
}

/// A method that may be answered from what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum CachedMethod {
    /// GET
    Get,
    /// HEAD
    Head,
}

/// A field of answers that need not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IgnoredHeader {
    /// `Cache-Control`, and `CDN-Cache-Control`
    #[serde(rename = "Cache-Control")]
    CacheControl,
    /// `Expires`
    Expires,
    /// `Set-Cookie`, which forbids keeping an answer
    #[serde(rename = "Set-Cookie")]
    SetCookie,
    /// `Vary`
    Vary,
    /// nginx's `X-Accel-Expires`
    #[serde(rename = "X-Accel-Expires")]
    AccelExpires,
}
