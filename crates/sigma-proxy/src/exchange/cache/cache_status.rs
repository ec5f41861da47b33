//! The cache status for clients and logs.

use sigma_cache::Freshness;
use sigma_plugin::Context;
use sigma_plugin::cache::{CacheRule, Tells};
use sigma_plugin::record::Source;

/// The variable with the cache status, by nginx's name.
const STATUS_VARIABLE: &str = "upstream_cache_status";

/// The cache status of a request, in nginx's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Miss,
    Bypass,
    Expired,
    Stale,
    Updating,
    Revalidated,
    Hit,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }
}

/// The reason for contacting a node, in the words of RFC 9211 §2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forward {
    Bypass,
    Method,
    UriMiss,
    VaryMiss,
    Request,
    Stale,
    /// A part of the wanted data is missing
    Partial,
}

impl Forward {
    fn as_str(self) -> &'static str {
        match self {
            Forward::Bypass => "bypass",
            Forward::Method => "method",
            Forward::UriMiss => "uri-miss",
            Forward::VaryMiss => "vary-miss",
            Forward::Request => "request",
            Forward::Stale => "stale",
            Forward::Partial => "partial",
        }
    }
}

/// The report about a node's response.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeReport {
    pub(super) status: Status,
    pub(super) why: Forward,
    /// The status of its response, if another one replaces it.
    pub(super) answered: Option<u16>,
    /// It is stored.
    pub(super) is_stored: bool,
    /// Another request has fetched it.
    pub(super) is_collapsed: bool,
}

/// Reports that a node was contacted.
pub(super) fn tell_asked(rule: &CacheRule, asked: NodeReport, ctx: &mut Context) {
    tell(rule, asked.status, ctx, || {
        let answered = asked.answered.map_or(String::new(), |status| format!("; fwd-status={status}"));
        let stored = if asked.is_stored { "; stored" } else { "" };
        let collapsed = if asked.is_collapsed { "; collapsed" } else { "" };
        format!("Sigma; fwd={}{answered}{stored}{collapsed}", asked.why.as_str())
    });
}

/// Reports a cache hit.
pub(super) fn tell_hit(rule: &CacheRule, status: Status, freshness: &Freshness, now: u64, ctx: &mut Context) {
    tell_reused(freshness, now, ctx);
    tell(rule, status, ctx, || {
        let left = i64::from(freshness.lifetime).saturating_sub_unsigned(freshness.age(now));
        format!("Sigma; hit; ttl={left}")
    });
}

/// Reports the age of the stored response.
pub(super) fn tell_reused(freshness: &Freshness, now: u64, ctx: &mut Context) {
    ctx.response.headers.replace("Age", itoa::Buffer::new().format(freshness.age(now)).as_bytes());
    ctx.record.source = Source::Gateway;
}

fn tell(rule: &CacheRule, status: Status, ctx: &mut Context, member: impl FnOnce() -> String) {
    ctx.set_variable(STATUS_VARIABLE, status.as_str());
    match rule.tells {
        Tells::Nothing => {}
        Tells::Word => ctx.response.headers.replace("Apisix-Cache-Status", status.as_str().as_bytes()),
        // After the members of caches nearer to the origin (RFC 9211 §2).
        Tells::Field => ctx.response.headers.append("Cache-Status", member().as_bytes()),
    }
}
