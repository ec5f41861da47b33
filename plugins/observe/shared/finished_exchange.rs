//! The course of an exchange as a tree of spans: the exchange, and in it the attempts on nodes and the hooks that
//! waited. Every format of traces is written from it.
//!
//! Names are resolved in parallel with the traffic, so no exchange waits for one: there is no span of DNS.

use std::time::{Duration, Instant};

use sigma_plugin::credentials::Masks;
use sigma_plugin::record::{Attempt, Record, Wait};
use sigma_plugin::{Context, Env};

/// Query arguments that are signatures, by the list of OpenTelemetry's conventions.
const SIGNATURES: [&[u8]; 4] = [b"AWSAccessKeyId", b"Signature", b"sig", b"X-Goog-Signature"];

/// Time since 1970, in nanoseconds.
pub(crate) type Nanos = u64;

/// An exchange that has ended.
pub(crate) struct FinishedExchange<'r> {
    record: &'r Record,
    pub(crate) began: Nanos,
    pub(crate) ended: Nanos,
}

/// The result of an attempt.
pub(crate) struct AttemptResult<'r> {
    pub(crate) attempt: &'r Attempt,
    /// 0 for the first one.
    pub(crate) number: usize,
    pub(crate) began: Nanos,
    pub(crate) ended: Nanos,
    /// The events, in order.
    pub(crate) events: Vec<(&'static str, Nanos)>,
    /// Why there is no response, in the words of RFC 9209 where they are known.
    pub(crate) failure: Option<&'static str>,
    /// Whether TLS came between the transport and the request.
    is_encrypted: bool,
}

/// The phases of an attempt, in milliseconds; None for phases that it did not have, did not reach, or shared
/// with others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Times {
    /// Until the transport of a new connection was ready.
    pub(crate) connect_ms: Option<f64>,
    /// For its handshake.
    pub(crate) tls_ms: Option<f64>,
    /// From there until the whole request had left.
    pub(crate) send_ms: Option<f64>,
    /// From there until the head of the response was there.
    pub(crate) wait_ms: Option<f64>,
}

impl AttemptResult<'_> {
    /// Returns its phases.
    pub(crate) fn times(&self) -> Times {
        let Attempt { linked_ms, connect_ms, sent_ms, reused, .. } = *self.attempt;
        let is_new = !reused;
        let from = |begun: Option<f64>, ended: Option<f64>| Some((ended? - begun?).max(0.0));
        let linked = if self.is_encrypted { linked_ms } else { linked_ms.or(connect_ms) };
        Times {
            connect_ms: linked.filter(|_| is_new),
            tls_ms: from(linked_ms, connect_ms).filter(|_| is_new && self.is_encrypted),
            send_ms: from(connect_ms, sent_ms),
            wait_ms: self.attempt.waited_ms().map(|ms| ms.max(0.0)),
        }
    }
}

/// A hook that waited.
pub(crate) struct Waited<'r> {
    wait: &'r Wait,
    pub(crate) began: Nanos,
    pub(crate) ended: Nanos,
}

impl Waited<'_> {
    /// Returns the name of its span.
    pub(crate) fn name(&self) -> String {
        format!("apisix.phase.{}.plugins.{}", self.wait.phase.as_str(), self.wait.plugin)
    }
}

impl<'r> FinishedExchange<'r> {
    /// Returns the course of an exchange whose log hooks run. None if its beginning was not recorded.
    pub(crate) fn of(ctx: &'r Context, env: &Env<'_>) -> Option<FinishedExchange<'r>> {
        let took = ctx.record.elapsed()?;
        let ended = nanos(env.unix_time());
        Some(FinishedExchange { record: &ctx.record, began: ended.saturating_sub(nanos(took)), ended })
    }

    /// The attempts, in order.
    pub(crate) fn tries(&self) -> impl Iterator<Item = AttemptResult<'_>> {
        let last = self.record.attempts.len().saturating_sub(1);
        self.record.attempts.iter().enumerate().map(move |(number, attempt)| {
            let began = attempt.began.map_or(self.began, |at| self.at(at));
            let after = |ms: f64| began.saturating_add((ms.max(0.0) * 1e6) as u64).min(self.ended);
            let ended = attempt.response_ms.map_or(self.ended, after);
            let fault = self.record.fault.filter(|_| number == last);
            let failure = match attempt.status {
                0 => Some(fault.map_or("_OTHER", |fault| fault.kind.error_type())),
                _ => None,
            };
            let is_encrypted = self.is_encrypted();
            AttemptResult {
                attempt,
                number,
                began,
                ended,
                events: self.events(attempt, after),
                failure,
                is_encrypted,
            }
        })
    }

    /// The hooks that waited, in order.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Waited<'_>> {
        self.record.waits.iter().map(|wait| Waited {
            wait,
            began: self.at(wait.began),
            ended: self.at(wait.ended).min(self.ended),
        })
    }

    fn is_encrypted(&self) -> bool {
        self.record.upstream_scheme.is_some_and(|scheme| scheme.ends_with('s'))
    }

    fn events(&self, attempt: &Attempt, after: impl Fn(f64) -> Nanos) -> Vec<(&'static str, Nanos)> {
        let secured = attempt.connect_ms.filter(|_| self.is_encrypted() && attempt.linked_ms.is_some());
        let connected = match secured {
            Some(_) => attempt.linked_ms,
            None => attempt.connect_ms.or(attempt.linked_ms),
        };
        let named = [
            ("connected", connected.filter(|_| !attempt.reused)),
            ("tls established", secured.filter(|_| !attempt.reused)),
            ("request sent", attempt.sent_ms),
            ("response head", attempt.header_ms),
        ];
        named.into_iter().filter_map(|(name, ms)| Some((name, after(ms?)))).collect()
    }

    /// When the machine had run for so long.
    pub(crate) fn at_uptime(&self, uptime: Duration, env: &Env<'_>) -> Nanos {
        let since = nanos(env.machine.uptime().saturating_sub(uptime));
        self.ended.saturating_sub(since).max(self.began)
    }

    /// An instant within the exchange.
    fn at(&self, at: Instant) -> Nanos {
        let since =
            self.record.started.map_or(Duration::ZERO, |started| at.saturating_duration_since(started));
        self.began.saturating_add(nanos(since)).min(self.ended)
    }
}

/// `$request_uri`, without the signatures in it.
pub(crate) fn target(ctx: &Context) -> Vec<u8> {
    let mut target = ctx.uri.clone();
    if let Some(query) = ctx.request.query() {
        target.push(b'?');
        target.extend_from_slice(&without_credentials(query, ctx));
    }
    target
}

/// The query of a request without credentials. A signed URL can be used by anyone who has it.
pub(crate) fn without_credentials(query: &[u8], ctx: &Context) -> Vec<u8> {
    without_signatures(&Masks::of(ctx).query(query))
}

fn without_signatures(query: &[u8]) -> Vec<u8> {
    let shown =
        query.split(|byte| *byte == b'&').map(|pair| match pair.iter().position(|byte| *byte == b'=') {
            Some(at) if SIGNATURES.contains(&&pair[..at]) => [&pair[..at], b"=REDACTED"].concat(),
            _ => pair.to_vec(),
        });
    shown.collect::<Vec<_>>().join(&b'&')
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use sigma_http::{Fault, FaultKind};
    use sigma_plugin::Phase;
    use sigma_plugin::address::NodeAddr;

    use super::*;
    use crate::testing::Case;

    fn attempt(began: Instant, status: u16) -> Attempt {
        Attempt {
            addr: NodeAddr::Tcp(([127, 0, 0, 1], 1980).into()),
            host: "node.test".to_owned(),
            began: Some(began),
            reused: false,
            version: None,
            linked_ms: Some(1.0),
            status,
            connect_ms: Some(3.0),
            sent_ms: Some(4.0),
            header_ms: (status != 0).then_some(5.0),
            carried: None,
            response_ms: Some(6.0),
        }
    }

    #[test]
    fn the_spans_of_an_exchange_are_ordered_and_within_its_time() {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        let started = Instant::now().checked_sub(Duration::from_millis(100)).unwrap();
        let later = |ms: u64| started + Duration::from_millis(ms);
        case.ctx.record.started = Some(started);
        case.ctx.record.upstream_scheme = Some("https");
        case.ctx.record.fault = Some(Fault::new(FaultKind::ConnectRefused, "no"));
        case.ctx.record.attempts = vec![attempt(later(10), 502), attempt(later(20), 0)];
        case.ctx.record.attempts[1].reused = true;
        let wait = Wait { plugin: "opa".into(), phase: Phase::Access, began: later(1), ended: later(9) };
        case.ctx.record.waits = vec![wait];
        let env = Env::new(&case.node, &case.local, &case.consumers);
        let course = FinishedExchange::of(&case.ctx, &env).unwrap();
        let ms = |at: Nanos| (at - course.began) / 1_000_000;
        let tries: Vec<AttemptResult<'_>> = course.tries().collect();
        assert_eq!((ms(tries[0].began), ms(tries[0].ended), tries[0].failure), (10, 16, None));
        let events: Vec<(&str, u64)> = tries[0].events.iter().map(|(name, at)| (*name, ms(*at))).collect();
        assert_eq!(
            events,
            [("connected", 11), ("tls established", 13), ("request sent", 14), ("response head", 15)]
        );
        let names: Vec<&str> = tries[1].events.iter().map(|(name, _)| *name).collect();
        assert_eq!((names, tries[1].failure), (vec!["request sent"], Some("connection_refused")));
        let times =
            Times { connect_ms: Some(1.0), tls_ms: Some(2.0), send_ms: Some(1.0), wait_ms: Some(1.0) };
        assert_eq!(tries[0].times(), times);
        // A kept connection cost nothing, and there was no response.
        assert_eq!(tries[1].times(), Times { send_ms: Some(1.0), ..Times::default() });
        let waits: Vec<Waited<'_>> = course.waits().collect();
        assert_eq!((ms(waits[0].began), ms(waits[0].ended)), (1, 9));
        assert_eq!(waits[0].name(), "apisix.phase.access.plugins.opa");
        assert!(course.ended - course.began >= 100_000_000);
    }

    #[test]
    fn without_tls_all_of_a_connection_is_its_transport() {
        let began = Instant::now();
        let times = |attempt: Attempt, is_encrypted: bool| {
            let (events, failure) = (Vec::new(), None);
            AttemptResult { attempt: &attempt, number: 0, began: 0, ended: 0, events, failure, is_encrypted }
                .times()
        };
        let clear = times(attempt(began, 200), false);
        assert_eq!((clear.connect_ms, clear.tls_ms), (Some(1.0), None));
        let unknown = times(Attempt { linked_ms: None, ..attempt(began, 200) }, false);
        assert_eq!((unknown.connect_ms, unknown.tls_ms), (Some(3.0), None));
        // One that was opened for several, or never ready.
        let shared = times(Attempt { linked_ms: None, ..attempt(began, 200) }, true);
        assert_eq!((shared.connect_ms, shared.tls_ms), (None, None));
        let refused = Attempt { linked_ms: None, connect_ms: None, sent_ms: None, ..attempt(began, 0) };
        assert_eq!(times(refused, true), Times::default());
    }

    #[test]
    fn an_untimed_exchange_has_no_course() {
        let case = Case::new("GET / HTTP/1.1\nHost: h");
        let env = Env::new(&case.node, &case.local, &case.consumers);
        assert!(FinishedExchange::of(&case.ctx, &env).is_none());
    }
}
