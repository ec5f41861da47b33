//! The retry policy of a route or an upstream: which requests are repeated, after which pause, and how often. Nothing
//! here reads a clock or uses randomness.

use std::cell::Cell;

use sigma_config::resources::{self, RetryOn};
use sigma_http::{Method, ResponseHead};

/// A retry policy, compiled.
#[derive(Debug)]
pub(crate) struct RetryPolicy {
    conditions: Conditions,
    /// The statuses in addition to the conditions.
    statuses: Box<[u16]>,
    headers: Box<[Box<[u8]>]>,
    /// None for the idempotent ones.
    methods: Option<Box<[Method]>>,
    /// The time of one attempt.
    pub(crate) per_try_ms: Option<u64>,
    base_ms: u64,
    longest_ms: u64,
    retry_after_ms: u64,
    pub(crate) budget: Option<Budget>,
    pub(crate) hedging: Option<Hedging>,
}

/// The time at which a second node is queried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hedging {
    delay_ms: u64,
    percentile: Option<f64>,
}

impl Hedging {
    /// Returns the delay in milliseconds.
    pub(crate) fn delay_ms(self, recent: &Recent) -> u64 {
        let measured = self.percentile.and(recent.percentile_ms);
        measured.map_or(self.delay_ms, |measured| u64::from(measured).max(self.delay_ms))
    }

    /// Returns the percentile of response times to look for.
    pub(crate) fn percentile(self) -> Option<f64> {
        self.percentile
    }
}

/// The times of the last responses of an upstream, as one worker has seen them.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// In milliseconds; the oldest is at `next` when there are as many as are kept.
    times: Vec<u32>,
    next: usize,
    /// How many came since the percentile was looked for.
    fresh: usize,
    percentile_ms: Option<u32>,
}

impl Recent {
    const KEPT: usize = 128;
    /// The least number of times for a percentile.
    const LEAST: usize = 32;

    /// After so many more the percentile is looked for again.
    const FRESH: usize = 16;

    pub(crate) fn note(&mut self, ms: u64, percentile: f64) {
        let ms = u32::try_from(ms).unwrap_or(u32::MAX);
        if self.times.len() < Recent::KEPT {
            self.times.push(ms);
        } else {
            self.times[self.next] = ms;
            self.next = (self.next + 1) % Recent::KEPT;
        }
        self.fresh += 1;
        if self.times.len() >= Recent::LEAST && self.fresh >= Recent::FRESH {
            self.fresh = 0;
            let mut times = self.times.clone();
            let at = ((times.len() - 1) as f64 * percentile / 100.0).round() as usize;
            self.percentile_ms = Some(*times.select_nth_unstable(at).1);
        }
    }
}

/// The longest `Retry-After` that is waited for if nothing is said.
const RETRY_AFTER_MS: u64 = 1_000;

/// The response of a node to a request in early data. Only the client can send it again after its handshake (RFC 8470
/// §5.2).
const TOO_EARLY: u16 = 425;

/// A set of conditions, by their place in [`RetryOn`].
#[derive(Debug, Clone, Copy, Default)]
struct Conditions(u16);

impl Conditions {
    fn has(self, condition: RetryOn) -> bool {
        self.0 & 1 << condition as u16 != 0
    }

    fn has_any(self, conditions: &[RetryOn]) -> bool {
        conditions.iter().any(|condition| self.has(*condition))
    }
}

/// Most requests that may be in a further attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    percent: f64,
    min_concurrency: u32,
}

impl Budget {
    /// Returns the limit while `active` requests are open.
    fn limit(self, active: u32) -> u32 {
        ((f64::from(active) * self.percent / 100.0) as u32).max(self.min_concurrency)
    }
}

/// The first thing that an attempt failed to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A connection.
    Connection,
    /// A response, or a valid one.
    Response {
        /// No byte of the request had left.
        unsent: bool,
    },
}

/// The decision on a node's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// The response is the client's.
    Deliver,
    /// Make another attempt; after so many milliseconds, if the node requests a pause.
    Again(Option<u64>),
}

fn ms(seconds: f64) -> u64 {
    (seconds * 1000.0).ceil() as u64
}

impl From<&resources::RetryPolicy> for RetryPolicy {
    fn from(config: &resources::RetryPolicy) -> RetryPolicy {
        let back_off = config.back_off.unwrap_or_default();
        let (base_ms, longest) = (ms(back_off.base_interval), back_off.max_interval);
        RetryPolicy {
            conditions: Conditions(config.retry_on.iter().fold(0, |set, on| set | 1 << *on as u16)),
            statuses: config.retriable_status_codes.clone().into(),
            headers: config.retriable_headers.iter().map(|name| name.as_bytes().into()).collect(),
            methods: config
                .methods
                .as_ref()
                .map(|names| names.iter().map(|name| Method::parse(name.as_bytes())).collect()),
            per_try_ms: config.per_try_timeout.map(ms),
            base_ms,
            longest_ms: longest.map_or(base_ms.saturating_mul(10), ms),
            retry_after_ms: config.max_retry_after.map_or(RETRY_AFTER_MS, ms),
            budget: config
                .budget
                .map(|budget| Budget { percent: budget.percent, min_concurrency: budget.min_concurrency }),
            hedging: config
                .hedging
                .map(|hedging| Hedging { delay_ms: ms(hedging.delay), percentile: hedging.percentile }),
        }
    }
}

impl RetryPolicy {
    /// Returns true if an attempt that lacks this is followed by another one.
    pub(crate) fn wants(&self, missing: Missing) -> bool {
        let unseen = [RetryOn::ResetBeforeRequest, RetryOn::RefusedStream];
        match missing {
            Missing::Connection => self.conditions.has_any(&[RetryOn::ConnectFailure, RetryOn::ServerError]),
            Missing::Response { unsent } => {
                self.conditions.has_any(&[RetryOn::Reset, RetryOn::ServerError])
                    || unsent && self.conditions.has_any(&unseen)
            }
        }
    }

    /// Returns true if a request of this method may be repeated although a node has seen it.
    pub(crate) fn may_repeat(&self, method: Method) -> bool {
        self.methods.as_ref().map_or(method.is_idempotent(), |methods| methods.contains(&method))
    }

    /// Whether a response is the client's.
    pub(crate) fn judge(&self, head: &ResponseHead, method: Method) -> RetryDecision {
        if head.status == TOO_EARLY {
            return RetryDecision::Deliver;
        }
        // All calls of gRPC are POSTs: who names one of its codes means them.
        let wanted = self.wants_code(head)
            || self.may_repeat(method) && (self.wants_status(head.status) || self.wants_field(head));
        if !wanted {
            return RetryDecision::Deliver;
        }
        match asked_pause(head) {
            RequestedDelay::Nothing => RetryDecision::Again(None),
            RequestedDelay::Pause(ms) if ms <= self.retry_after_ms => RetryDecision::Again(Some(ms)),
            RequestedDelay::Pause(_) | RequestedDelay::NoRetry => RetryDecision::Deliver,
        }
    }

    fn wants_status(&self, status: u16) -> bool {
        match status {
            500..=599 if self.conditions.has(RetryOn::ServerError) => true,
            502..=504 if self.conditions.has(RetryOn::GatewayError) => true,
            409 if self.conditions.has(RetryOn::RetriableClientError) => true,
            status => self.statuses.contains(&status),
        }
    }

    fn wants_field(&self, head: &ResponseHead) -> bool {
        self.headers.iter().any(|name| head.headers.find(name).is_some())
    }

    fn wants_code(&self, head: &ResponseHead) -> bool {
        const CODES: [(RetryOn, &[u8]); 5] = [
            (RetryOn::Cancelled, b"1"),
            (RetryOn::DeadlineExceeded, b"4"),
            (RetryOn::ResourceExhausted, b"8"),
            (RetryOn::Internal, b"13"),
            (RetryOn::Unavailable, b"14"),
        ];
        let named = |code: &[u8]| CODES.iter().any(|(on, known)| *known == code && self.conditions.has(*on));
        self.conditions.has_any(&CODES.map(|(on, _)| on))
            && head.headers.find(b"grpc-status").is_some_and(named)
    }

    /// Returns the pause in milliseconds before attempt `retries` + 1: the pause that the node requested and up to
    /// half as much again, or the back-off with full jitter.
    pub(crate) fn pause_ms(&self, retries: u32, asked_ms: Option<u64>, random: u64) -> u64 {
        let up_to = |bound: u64| ((u128::from(random) * u128::from(bound + 1)) >> 64) as u64;
        match asked_ms {
            Some(asked) => asked + up_to(asked / 2),
            None => {
                let factor = (1u64 << retries.min(32)) - 1;
                up_to(self.base_ms.saturating_mul(factor).min(self.longest_ms))
            }
        }
    }
}

/// The node's request for a pause.
enum RequestedDelay {
    Nothing,
    Pause(u64),
    NoRetry,
}

/// Reads `grpc-retry-pushback-ms` (gRPC's A6: anything but a number from 0 on means "not at all"), or `Retry-After`
/// in seconds (RFC 9110 §10.2.3). A date is always too far away.
fn asked_pause(head: &ResponseHead) -> RequestedDelay {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok();
    if let Some(pushback) = head.headers.find(b"grpc-retry-pushback-ms") {
        return number(pushback).map_or(RequestedDelay::NoRetry, RequestedDelay::Pause);
    }
    match head.headers.find(b"retry-after") {
        None => RequestedDelay::Nothing,
        Some(text) => {
            number(text).map_or(RequestedDelay::NoRetry, |s| RequestedDelay::Pause(s.saturating_mul(1000)))
        }
    }
}

/// The open requests of one worker to one upstream.
#[derive(Debug, Default)]
pub(crate) struct Load {
    active: Cell<u32>,
    retrying: Cell<u32>,
}

impl Load {
    /// A request begins.
    pub(crate) fn begin(&self) {
        self.active.set(self.active.get() + 1);
    }

    /// The second attempt of a request begins.
    pub(crate) fn begin_retry(&self) {
        self.retrying.set(self.retrying.get() + 1);
    }

    /// A request ends, which was `retrying` or in its first attempt.
    pub(crate) fn end(&self, retrying: bool) {
        self.active.set(self.active.get() - 1);
        self.retrying.set(self.retrying.get() - u32::from(retrying));
    }

    /// Returns true if another request may begin a second attempt.
    pub(crate) fn may_retry(&self, budget: Budget) -> bool {
        self.retrying.get() < budget.limit(self.active.get())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(config: Value) -> RetryPolicy {
        let config: resources::RetryPolicy = serde_json::from_value(config).expect("a policy");
        RetryPolicy::from(&config)
    }

    fn on(words: &[&str]) -> RetryPolicy {
        policy(json!({ "retry_on": words }))
    }

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        let mut head = ResponseHead::default();
        head.status = status;
        fields.iter().for_each(|(name, value)| head.headers.append(name, value.as_bytes()));
        head
    }

    #[test]
    fn attempts_without_an_answer() {
        let check = |words: &[&str], connection, unsent, sent| {
            let answer = |unsent| Missing::Response { unsent };
            let got =
                [Missing::Connection, answer(true), answer(false)].map(|missing| on(words).wants(missing));
            assert_eq!(got, [connection, unsent, sent], "{words:?}");
        };
        check(&["connect-failure"], true, false, false);
        check(&["reset"], false, true, true);
        check(&["5xx"], true, true, true);
        check(&["reset-before-request"], false, true, false);
        check(&["refused-stream"], false, true, false);
        check(&["gateway-error", "retriable-4xx", "unavailable"], false, false, false);
    }

    #[test]
    fn answers() {
        let check = |policy: &RetryPolicy, head: ResponseHead, method, want: RetryDecision| {
            assert_eq!(policy.judge(&head, method), want, "{head:?}");
        };
        let again = RetryDecision::Again(None);
        let gateway = on(&["gateway-error"]);
        check(&gateway, head(503, &[]), Method::Get, again);
        check(&gateway, head(503, &[]), Method::Post, RetryDecision::Deliver);
        check(&gateway, head(500, &[]), Method::Get, RetryDecision::Deliver);
        check(&on(&["5xx"]), head(500, &[]), Method::Get, again);
        check(&on(&["retriable-4xx"]), head(409, &[]), Method::Put, again);
        let listed = policy(json!({ "retriable_status_codes": [429], "retriable_headers": ["X-Again"] }));
        check(&listed, head(429, &[]), Method::Get, again);
        check(&listed, head(200, &[("x-again", "")]), Method::Get, again);
        check(&listed, head(200, &[]), Method::Get, RetryDecision::Deliver);
        let call = on(&["unavailable"]);
        check(&call, head(200, &[("grpc-status", "14")]), Method::Post, again);
        check(&call, head(200, &[("grpc-status", "1")]), Method::Post, RetryDecision::Deliver);
    }

    #[test]
    fn nodes_may_say_when() {
        let policy = policy(json!({ "retry_on": ["5xx", "unavailable"], "max_retry_after": 2 }));
        let check = |fields: &[(&str, &str)], want: RetryDecision| {
            assert_eq!(policy.judge(&head(503, fields), Method::Get), want, "{fields:?}");
        };
        check(&[("retry-after", "2")], RetryDecision::Again(Some(2000)));
        check(&[("retry-after", "3")], RetryDecision::Deliver);
        check(&[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")], RetryDecision::Deliver);
        check(&[("retry-after", "99999999999999999999")], RetryDecision::Deliver);
        check(&[("grpc-retry-pushback-ms", "150")], RetryDecision::Again(Some(150)));
        check(&[("grpc-retry-pushback-ms", "-1")], RetryDecision::Deliver);
        assert_eq!(policy.pause_ms(1, Some(1000), 0), 1000);
        assert_eq!(policy.pause_ms(1, Some(1000), u64::MAX), 1500);
    }

    #[test]
    fn pauses_grow_to_a_limit_with_full_jitter() {
        let default = on(&["reset"]);
        let longest = |retries| default.pause_ms(retries, None, u64::MAX);
        assert_eq!([1, 2, 3, 4, 5].map(longest), [25, 75, 175, 250, 250]);
        assert_eq!(longest(u32::MAX), 250);
        assert_eq!(default.pause_ms(3, None, 0), 0);
        assert_eq!(default.pause_ms(3, None, u64::MAX / 2), 87);
        let own = policy(
            json!({ "retry_on": ["reset"], "back_off": { "base_interval": 0.1, "max_interval": 0.2 } }),
        );
        assert_eq!([1, 2, 3].map(|retries| own.pause_ms(retries, None, u64::MAX)), [100, 200, 200]);
    }

    #[test]
    fn a_second_node_is_asked_after_a_percentile() {
        let hedging = Hedging { delay_ms: 20, percentile: Some(90.0) };
        let mut recent = Recent::default();
        (0..31).for_each(|_| recent.note(500, 90.0));
        assert_eq!(hedging.delay_ms(&recent), 20, "too few answers");
        (0..129).for_each(|ms| recent.note(ms, 90.0));
        assert_eq!(hedging.delay_ms(&recent), 115, "of 1 to 128");
        assert_eq!(Hedging { delay_ms: 200, ..hedging }.delay_ms(&recent), 200);
        assert_eq!(Hedging { percentile: None, ..hedging }.delay_ms(&recent), 20);
        // The last ones count.
        (0..128).for_each(|_| recent.note(u64::MAX, 90.0));
        assert_eq!(hedging.delay_ms(&recent), u64::from(u32::MAX));
    }

    #[test]
    fn a_budget_is_a_share_with_a_minimum() {
        let (load, budget) = (Load::default(), Budget { percent: 20.0, min_concurrency: 3 });
        (0..30).for_each(|_| load.begin());
        for _ in 0..6 {
            assert!(load.may_retry(budget));
            load.begin_retry();
        }
        assert!(!load.may_retry(budget));
        // Finished ones give their share back; the minimum stays.
        load.end(true);
        assert!(!load.may_retry(budget), "5 of 29");
        (0..26).for_each(|_| load.end(false));
        (0..2).for_each(|_| load.end(true));
        assert!(!load.may_retry(budget), "3 of 1");
        load.end(true);
        assert!(load.may_retry(budget));
    }
}
