//! The rules of storing a response, and of its use for a request (RFC 9111 §3, §5.2.1).

use sigma_http::{HeaderId, Headers, ResponseHead};
use sigma_plugin::cache::CacheRule;

use crate::directives::Directives;
use crate::freshness::{ExchangeTimes, Freshness, FreshnessDirectives};

/// A response of a node, with facts about its request.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// Its head.
    pub head: &'a ResponseHead,
    /// The fields of the request.
    pub request: &'a Headers,
    /// The key identifies the user.
    pub is_isolated: bool,
    /// The request is from a user without a name.
    pub is_unnamed: bool,
    /// The times of request and response.
    pub times: ExchangeTimes,
}

/// Returns the freshness of a response; None if it must not be stored.
pub fn may_keep(rule: &CacheRule, answered: Answered<'_>) -> Option<Freshness> {
    let Answered { head, request, is_isolated, is_unnamed, times } = answered;
    let said = FreshnessDirectives::of(rule, head);
    if said.must_understand && !is_understood(head.status) {
        return None;
    }
    // It is for caches that do not know the status (RFC 9111 §5.2.2.3).
    let no_store = said.no_store && !said.must_understand;
    if no_store || said.private || rule.statuses.as_ref().is_some_and(|kept| !kept.contains(&head.status)) {
        return None;
    }
    if matches!(head.status, 206 | 304) {
        return None;
    }
    if rule.heeds_requests && Directives::of(request).no_store {
        return None;
    }
    // A private response is not for others, unless it allows that (RFC 9111 §3.5).
    let is_for_all = said.public || said.s_maxage.is_some() || said.must_revalidate;
    if request.has(HeaderId::Authorization) && !is_isolated && !is_for_all {
        return None;
    }
    // The same without that field: a cookie has the session, and a plugin has admitted it.
    if is_unnamed && !said.public && said.s_maxage.is_none() {
        return None;
    }
    if head.headers.find(b"Set-Cookie").is_some() && !rule.keeps_cookies {
        return None;
    }
    let freshness = Freshness::of(head, &said, rule, times)?;
    // A response that is stale on arrival is worth storing if it can be revalidated.
    let has = |name: &[u8]| head.headers.find(name).is_some();
    let may_be_good = rule.revalidates && (has(b"ETag") || has(b"Last-Modified"));
    (freshness.is_fresh(times.received) || may_be_good).then_some(freshness)
}

/// Returns true if the meaning of the status, and so of its storing, is known: statuses of RFC 9110 §15, and 451.
fn is_understood(status: u16) -> bool {
    matches!(status, 200..=206 | 300..=305 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 451 | 500..=505)
}

/// The allowed use of a stored response for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayUse {
    /// It may be used.
    Yes,
    /// It must be revalidated first.
    Stale,
}

/// Returns the allowed use of a stored response for a request. A request whose directives count may require a fresher
/// response, or accept a staler one.
pub fn may_use(rule: &CacheRule, freshness: &Freshness, wishes: &Directives, now: u64) -> MayUse {
    let is_fresh = freshness.is_fresh(now);
    if !rule.heeds_requests {
        return if is_fresh { MayUse::Yes } else { MayUse::Stale };
    }
    let (age, lifetime) = (freshness.age(now), u64::from(freshness.lifetime));
    let is_too_old = wishes.max_age.is_some_and(|most| age > u64::from(most));
    let ends_too_soon = wishes.min_fresh.is_some_and(|least| lifetime.saturating_sub(age) < u64::from(least));
    let may_be_stale = !freshness.never_stale
        && wishes.max_stale.is_some_and(|most| freshness.staleness(now) <= u64::from(most));
    let is_good = is_fresh || may_be_stale;
    if is_good && !is_too_old && !ends_too_soon { MayUse::Yes } else { MayUse::Stale }
}

#[cfg(test)]
mod tests {
    use sigma_plugin::cache::Lifetime;

    use super::*;
    use crate::stored::tests::headers;

    fn kept(rule: &CacheRule, request: &[(&str, &str)], answer: &[(&str, &str)], status: u16) -> bool {
        let mut head = ResponseHead::default();
        head.start(status);
        head.headers = headers(answer);
        let request = headers(request);
        let is_isolated = request.find(b"isolated").is_some();
        let is_unnamed = request.find(b"unnamed").is_some();
        let times = ExchangeTimes { requested: 1000, received: 1000 };
        let answered = Answered { head: &head, request: &request, is_isolated, is_unnamed, times };
        may_keep(rule, answered).is_some()
    }

    #[test]
    fn storable_responses() {
        let rule = CacheRule {
            statuses: Some(vec![200, 404, 206, 304]),
            lifetime: Lifetime::Fixed(60),
            ..CacheRule::default()
        };
        assert!(kept(&rule, &[], &[], 200) && kept(&rule, &[], &[], 404));
        assert!(!kept(&rule, &[], &[], 500) && !kept(&rule, &[], &[], 206) && !kept(&rule, &[], &[], 304));
        for forbidden in ["no-store", "private", "no-cache", "Private=\"x\", max-age=5"] {
            assert!(!kept(&rule, &[], &[("Cache-Control", forbidden)], 200), "{forbidden}");
        }
        // The status must be known; `no-store` is for caches that do not know it.
        let understood = [("Cache-Control", "no-store, must-understand")];
        let any = CacheRule { statuses: None, ..rule.clone() };
        assert!(kept(&any, &[], &understood, 200) && kept(&any, &[], &understood, 404));
        assert!(
            !kept(&any, &[], &understood, 599)
                && !kept(&any, &[], &[("Cache-Control", "must-understand")], 299)
        );
        assert!(!kept(&any, &[], &[("Cache-Control", "private, must-understand")], 200));
        assert!(kept(&any, &[], &[], 599));
        assert!(!kept(&rule, &[], &[("Set-Cookie", "a=b")], 200));
        let cookies = CacheRule { keeps_cookies: true, ..rule.clone() };
        assert!(kept(&cookies, &[], &[("Set-Cookie", "a=b")], 200));
        // A private response.
        let own = [("Authorization", "Basic x")];
        assert!(!kept(&rule, &own, &[("Cache-Control", "max-age=60")], 200));
        for shared in ["public", "s-maxage=5", "must-revalidate"] {
            assert!(kept(&rule, &own, &[("Cache-Control", shared)], 200), "{shared}");
        }
        assert!(kept(&rule, &[own[0], ("isolated", "")], &[], 200));
        let unnamed = [("unnamed", "")];
        for (control, is_kept) in
            [("max-age=60", false), ("must-revalidate", false), ("public", true), ("s-maxage=5", true)]
        {
            assert_eq!(kept(&rule, &unnamed, &[("Cache-Control", control)], 200), is_kept, "{control}");
        }
        assert!(!kept(&rule, &unnamed, &[], 200));
        // Directives of a client count if the operator enables that.
        let no_store = [("Cache-Control", "no-store")];
        assert!(kept(&rule, &no_store, &[], 200));
        assert!(!kept(&CacheRule { heeds_requests: true, ..rule }, &no_store, &[], 200));
    }

    #[test]
    fn usable_responses() {
        let freshness =
            Freshness { born: 1000, lifetime: 60, while_revalidating: 0, if_error: 0, never_stale: false };
        let check = |heeds_requests: bool, wishes: &str, now: u64, expected: MayUse| {
            let rule = CacheRule { heeds_requests, ..CacheRule::default() };
            let wishes = Directives::of(&headers(&[("Cache-Control", wishes)]));
            assert_eq!(
                may_use(&rule, &freshness, &wishes, now),
                expected,
                "{heeds_requests} {wishes:?} {now}"
            );
        };
        check(false, "max-age=0", 1059, MayUse::Yes);
        check(false, "max-stale", 1060, MayUse::Stale);
        check(true, "", 1059, MayUse::Yes);
        check(true, "max-age=10", 1010, MayUse::Yes);
        check(true, "max-age=10", 1011, MayUse::Stale);
        check(true, "min-fresh=10", 1050, MayUse::Yes);
        check(true, "min-fresh=10", 1051, MayUse::Stale);
        check(true, "max-stale=10", 1070, MayUse::Yes);
        check(true, "max-stale=10", 1071, MayUse::Stale);
        check(true, "max-stale", 9999, MayUse::Yes);
    }
}
