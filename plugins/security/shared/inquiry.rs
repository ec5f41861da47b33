//! Queries to an authorization service, and the cache of its decisions for equal requests.

use std::sync::Arc;

use aws_lc_rs::rand;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::Headers;
use sigma_plugin::outbound::{Call, CallError, ServiceResponse};
use sigma_plugin::{Build, Context, Env, Reply, Slot, Step};
use sigma_schema::template::Template;

use sigma_plugin_kit::asked_once::CachedCall;
use sigma_plugin_kit::decision_service::DecisionService;
use sigma_plugin_kit::decisions::{Bound, Key, KeyOf};
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Most bytes of a decision that is remembered.
const REMEMBERED_BYTES: usize = 8 << 10;

/// The cache of the service's decisions. `no-store`, `no-cache`, `private` and `max-age` in the response's
/// `Cache-Control` shorten its times.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Cache {
    /// Lifetime of a positive decision in seconds. A revoked permission still works for this time.
    #[schemars(range(min = 1, max = 86_400))]
    ttl: u64,
    /// Lifetime of a refusal in seconds; 0: each refused request is sent to the service again.
    #[schemars(range(max = 86_400), extend("default" = 0))]
    refusal_ttl: u64,
    /// Cache key: texts with variables such as `$http_authorization` and `$request_method`. Default: the whole input of
    /// the service. Requests with the same key share a decision, even if they differ otherwise.
    #[serde(default)]
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = 16))]
    key: Option<Vec<Template>>,
}

/// The key of one instance's cached decisions.
pub(crate) struct Memory {
    cache: Cache,
    /// Unique over all instances, past ones included: their decisions are not for this one.
    number: [u8; 16],
    bound: Bound,
}

/// The kind of a decision, as far as caching depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Outcome {
    /// The request passes.
    Passes,
    /// It is responded with this status.
    Refused(u16),
    /// It is for this request alone: the service has not decided, or sets a cookie, which is for one client.
    Alone,
}

impl Outcome {
    /// That of a reply to the client.
    pub(crate) fn of(reply: &Reply) -> Outcome {
        let names = reply.headers.iter().map(|(name, _)| &**name);
        if sets_cookie(names) { Outcome::Alone } else { Outcome::Refused(reply.status) }
    }
}

/// The decision of a service.
pub(crate) trait Verdict: 'static {
    /// Returns its kind.
    fn outcome(&self) -> Outcome;

    /// About how many bytes it takes to remember it.
    fn bytes(&self) -> usize;

    /// Returns why the service gave no decision; None if it gave one.
    fn failure(&self) -> Option<&str>;
}

/// A plugin's way to ask its service.
pub(crate) trait Inquiry: Sized + 'static {
    /// The part of the request's body that the service gets.
    type Body: 'static;
    /// The service's decision.
    type Verdict: Verdict;

    /// What remembers decisions; None if each request is queried about.
    fn memory(&self) -> Option<&Memory>;

    /// Writes all data of a request that the service gets and that its decision may depend on. It is called
    /// for each request, also for cached decisions.
    fn key_parts(&self, ctx: &Context, env: &Env<'_>, told: &mut KeyOf);

    /// The call, with the request's body if the service is to see that.
    fn call(&self, ctx: &Context, env: &Env<'_>, body: Option<Self::Body>) -> Call;

    /// The verdict in a response.
    fn verdict(&self, answer: Result<ServiceResponse, CallError>) -> Self::Verdict;

    /// Returns the service, for the error log.
    fn service(&self) -> DecisionService;

    /// Returns the throttle of the plugin's lines about its service.
    fn throttle() -> &'static LogThrottle;

    /// Applies a decision to a request. `slot` is the plugin's, to keep something until the response.
    fn follow(&self, verdict: &Self::Verdict, slot: Slot, ctx: &mut Context) -> Step;
}

/// Queries the service about a request, or uses the cached decision of an equal one. Equal requests at the
/// same time cause one query.
pub(crate) fn ask<I: Inquiry + Send + Sync>(
    inquiry: &Arc<I>,
    slot: Slot,
    ctx: &mut Context,
    env: &Env<'_>,
    body: Option<I::Body>,
) -> Step {
    let following = Arc::clone(inquiry);
    let Some(memory) = inquiry.memory() else {
        let calling = env.outbound.call(inquiry.call(ctx, env, body));
        return Step::wait(calling, move |answer, ctx, _| {
            settle(&*following, &following.verdict(answer), slot, ctx)
        });
    };
    let (asking, reading) = (Arc::clone(inquiry), Arc::clone(inquiry));
    let question = CachedCall {
        key: memory.key(ctx, |told| inquiry.key_parts(ctx, env, told)),
        call: move |ctx: &Context, env: &Env<'_>| asking.call(ctx, env, body),
        read: Box::new(move |answer: Result<ServiceResponse, CallError>| {
            let allowed_s = answer.as_ref().map_or(0, |answer| allowed_s(&answer.headers));
            let verdict = reading.verdict(answer);
            let kept_s = reading.memory().map_or(0, |memory| memory.kept_s(&verdict)).min(allowed_s);
            (verdict, (kept_s > 0).then(|| kept_s.saturating_mul(1_000)))
        }),
    };
    question
        .ask_within(memory.bound, ctx, env, move |verdict, ctx, _| settle(&*following, verdict, slot, ctx))
}

/// Applies a decision to a request. A missing one is logged with the request.
fn settle<I: Inquiry>(inquiry: &I, verdict: &I::Verdict, slot: Slot, ctx: &mut Context) -> Step {
    if let Some(error) = verdict.failure() {
        inquiry.service().report(error, ctx, I::throttle());
    }
    inquiry.follow(verdict, slot, ctx)
}

impl Memory {
    /// That of a new instance.
    ///
    /// # Errors
    /// Returns an error if `plugin_attr` tells the plugin what cannot be, or the machine has no random numbers.
    pub(crate) fn new(build: &Build<'_>, cache: Cache) -> Result<Memory, String> {
        let mut number = [0; 16];
        rand::fill(&mut number).map_err(|_| "cannot get random numbers")?;
        Ok(Memory { cache, number, bound: Bound::of(build)? })
    }

    /// Returns the cache key of a request: the operator's values, or else all data for the service.
    pub(crate) fn key(&self, ctx: &Context, told: impl FnOnce(&mut KeyOf)) -> Key {
        let mut key = KeyOf::default();
        key.part(&self.number);
        match &self.cache.key {
            Some(templates) => templates.iter().for_each(|template| key.part(&template.rendered(ctx))),
            None => told(&mut key),
        }
        key.finish()
    }

    /// Seconds for which a decision is remembered.
    pub(crate) fn kept_s(&self, verdict: &impl Verdict) -> u64 {
        let ttl = match verdict.outcome() {
            Outcome::Passes => self.cache.ttl,
            Outcome::Refused(401 | 403 | 404 | 429) => self.cache.refusal_ttl,
            Outcome::Refused(_) | Outcome::Alone => 0,
        };
        if verdict.bytes() > REMEMBERED_BYTES { 0 } else { ttl }
    }
}

/// Returns the cache key of a request if all data for the service counts.
#[cfg(test)]
pub(crate) fn told_by(inquiry: &impl Inquiry, case: &crate::testing::Case) -> Key {
    let mut key = KeyOf::default();
    inquiry.key_parts(&case.ctx, &Env::new(&case.node, &case.local, &case.consumers), &mut key);
    key.finish()
}

/// About how many bytes a reply takes.
pub(crate) fn bytes_of(reply: &Reply) -> usize {
    let fields = reply.headers.iter().map(|(name, value)| name.len() + value.len());
    fields.sum::<usize>() + reply.body.as_ref().map_or(0, Vec::len)
}

/// Whether there is a cookie among the names of fields.
pub(crate) fn sets_cookie<'f>(names: impl IntoIterator<Item = &'f str>) -> bool {
    names.into_iter().any(|name| name.eq_ignore_ascii_case("Set-Cookie"))
}

/// The most seconds for which a response allows itself to be remembered by `Cache-Control`.
pub(crate) fn allowed_s(fields: &Headers) -> u64 {
    let fields = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Cache-Control"));
    let directives = fields.flat_map(|(_, value)| value.split(|byte| *byte == b','));
    directives.fold(u64::MAX, |allowed_s, directive| {
        // Bytes that are not text name no known directive.
        let directive = str::from_utf8(directive).unwrap_or_default().trim().to_ascii_lowercase();
        match directive.split_once('=').map_or((&*directive, ""), |(name, value)| (name.trim(), value.trim()))
        {
            ("no-store" | "no-cache" | "private", _) => 0,
            // An age that cannot be parsed counts as missing.
            ("max-age", age) => allowed_s.min(age.trim_matches('"').parse().unwrap_or(0)),
            _ => allowed_s,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_plugin::Node;

    use super::*;
    use crate::testing::Case;

    struct FixedVerdict(Outcome, usize);

    impl Verdict for FixedVerdict {
        fn outcome(&self) -> Outcome {
            self.0
        }

        fn bytes(&self) -> usize {
            self.1
        }

        fn failure(&self) -> Option<&str> {
            None
        }
    }

    fn memory(conf: Value) -> Memory {
        let node = Arc::new(Node::default());
        let cache = Cache::deserialize(conf).unwrap();
        Memory::new(&Build::new("opa", &Value::Null, "r", &Value::Null, &node), cache).unwrap()
    }

    #[test]
    fn decisions_are_cached() {
        let memory = memory(json!({"ttl": 60, "refusal_ttl": 5}));
        let check = |outcome, bytes, expected| {
            assert_eq!(memory.kept_s(&FixedVerdict(outcome, bytes)), expected, "{outcome:?} {bytes}");
        };
        check(Outcome::Passes, 0, 60);
        check(Outcome::Passes, REMEMBERED_BYTES, 60);
        check(Outcome::Passes, REMEMBERED_BYTES + 1, 0);
        check(Outcome::Alone, 0, 0);
        for (status, expected) in [(401, 5), (403, 5), (404, 5), (429, 5), (302, 0), (500, 0), (503, 0)] {
            check(Outcome::Refused(status), 0, expected);
        }
    }

    #[test]
    fn the_service_may_shorten_it() {
        let check = |fields: &[&str], expected| {
            let mut headers = Headers::default();
            fields.iter().for_each(|value| headers.append("cache-CONTROL", value.as_bytes()));
            assert_eq!(allowed_s(&headers), expected, "{fields:?}");
        };
        check(&[], u64::MAX);
        check(&["public"], u64::MAX);
        check(&["max-age=10, public"], 10);
        check(&["MAX-AGE = 90"], 90);
        check(&["max-age=10", "max-age=3"], 3);
        for private in ["no-store", "No-Cache=\"x\"", "private", "max-age=x", "max-age=-1", "max-age=0"] {
            check(&[private], 0);
        }
    }

    #[test]
    fn requests_with_the_operators_key_share_a_decision() {
        let key = |memory: &Memory, head: &str| {
            let ctx = &Case::new(&format!("{head} HTTP/1.1\nHost: h")).ctx;
            memory.key(ctx, |told| told.part(head.as_bytes()))
        };
        let whole = memory(json!({"ttl": 60, "refusal_ttl": 0}));
        assert_eq!(key(&whole, "GET /a"), key(&whole, "GET /a"));
        assert_ne!(key(&whole, "GET /a"), key(&whole, "GET /b"));
        assert_ne!(key(&whole, "GET /a"), key(&whole, "PUT /a"));
        let by = memory(json!({"ttl": 60, "refusal_ttl": 0, "key": ["$arg_a", "$arg_b"]}));
        assert_eq!(key(&by, "GET /a?a=1"), key(&by, "PUT /b?a=1&c=2"));
        assert_ne!(key(&by, "GET /?a=1"), key(&by, "GET /?b=1"));
        let other = memory(json!({"ttl": 60, "refusal_ttl": 0}));
        assert_ne!(key(&whole, "GET /a"), key(&other, "GET /a"), "instances share nothing");
    }
}
