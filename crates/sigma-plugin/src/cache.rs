//! What a plugin wants of the cache of answers, which is a stage of the exchange and not the plugin's own.

use std::sync::Arc;

use sigma_http::Method;

/// How answers are kept and used again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheRule {
    /// The name of the memory that they are kept in.
    pub zone: Box<str>,
    /// How much memory that is, in bytes.
    pub zone_bytes: u64,
    /// The methods that are answered from it. Answers to HEAD are not kept: those to GET serve it.
    pub methods: Vec<Method>,
    /// The statuses that are kept.
    pub statuses: Vec<u16>,
    /// How long they are fresh.
    pub lifetime: Lifetime,
    /// `Cache-Control` of requests counts.
    pub heeds_requests: bool,
    /// Answers that set cookies are kept.
    pub keeps_cookies: bool,
    /// The most bytes that a body may have.
    pub most_bytes: u64,
    /// Clients are not told how long answers are fresh.
    pub hides_lifetime: bool,
    /// For how many milliseconds a request waits for another one's answer; 0 if each asks for itself.
    pub wait_ms: u32,
    /// What is stale is asked for with its validators.
    pub revalidates: bool,
    /// Seconds for which what is stale stands in where a node fails, beside what it says itself.
    pub stale_if_error: u32,
    /// The field that tells clients what the cache did; empty for none.
    pub status_field: &'static str,
}

/// How it is known how long an answer is fresh.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Always so many seconds.
    Fixed(u32),
    /// As it states itself; what states nothing is not kept.
    #[default]
    Stated,
    /// As it states itself, nginx's `X-Accel-Expires` before all; so many seconds if it states nothing.
    StatedOr(u32),
}

/// What is wanted for one exchange.
#[derive(Debug, Clone)]
pub struct CacheWish {
    /// The rule.
    pub rule: Arc<CacheRule>,
    /// The key.
    pub key: Vec<u8>,
    /// The key tells whose answer it is.
    pub is_isolated: bool,
    /// Nothing that is kept is used.
    pub is_bypassed: bool,
    /// The answer is not kept.
    pub is_kept_out: bool,
}
