//! What clients and logs are told of what the cache did.

use sigma_cache::Life;
use sigma_plugin::Context;
use sigma_plugin::cache::{CacheRule, Tells};
use sigma_plugin::record::Source;

/// The variable that says what the cache did, as nginx names it.
const STATUS_VARIABLE: &str = "upstream_cache_status";

/// What the cache did for a request, in nginx's words.
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

/// Why a node was asked, in the words of RFC 9211 §2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forward {
    Bypass,
    Method,
    UriMiss,
    VaryMiss,
    Request,
    Stale,
    /// Not all of what is wanted is kept.
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

/// What is told of a node's answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) status: Status,
    pub(super) why: Forward,
    /// The status of its answer, where another one is given in its place.
    pub(super) answered: Option<u16>,
    /// It is kept.
    pub(super) is_stored: bool,
    /// Another request has asked for it.
    pub(super) is_collapsed: bool,
}

/// Tells that a node was asked.
pub(super) fn tell_asked(rule: &CacheRule, asked: Asked, ctx: &mut Context) {
    tell(rule, asked.status, ctx, || {
        let answered = asked.answered.map_or(String::new(), |status| format!("; fwd-status={status}"));
        let stored = if asked.is_stored { "; stored" } else { "" };
        let collapsed = if asked.is_collapsed { "; collapsed" } else { "" };
        format!("Sigma; fwd={}{answered}{stored}{collapsed}", asked.why.as_str())
    });
}

/// Tells that what is kept is used, and nobody was asked.
pub(super) fn tell_hit(rule: &CacheRule, status: Status, (life, now): (&Life, u64), ctx: &mut Context) {
    tell_reused(life, now, ctx);
    tell(rule, status, ctx, || {
        let left = i64::from(life.lifetime).saturating_sub_unsigned(life.age(now));
        format!("Sigma; hit; ttl={left}")
    });
}

/// Tells how old the answer in its place is.
pub(super) fn tell_reused(life: &Life, now: u64, ctx: &mut Context) {
    ctx.response.headers.replace("Age", itoa::Buffer::new().format(life.age(now)).as_bytes());
    ctx.record.source = Source::Gateway;
}

fn tell(rule: &CacheRule, status: Status, ctx: &mut Context, member: impl FnOnce() -> String) {
    ctx.set_variable(STATUS_VARIABLE, status.as_str());
    match rule.tells {
        Tells::Nothing => {}
        Tells::Word => ctx.response.headers.replace("Apisix-Cache-Status", status.as_str().as_bytes()),
        // Behind those of the caches that are nearer to the origin (RFC 9211 §2).
        Tells::Field => ctx.response.headers.append("Cache-Status", member().as_bytes()),
    }
}
