//! The freshness of a response (RFC 9111 §4.2).

use std::time::{SystemTime, UNIX_EPOCH};

use sigma_http::header::list_items;
use sigma_http::{Headers, ResponseHead};
use sigma_plugin::cache::{CacheRule, Lifetime};

use crate::directives::{Directives, SECONDS_MAX, seconds};

/// The times of a request to a node and of its response, in seconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeTimes {
    /// When the request was sent.
    pub requested: u64,
    /// When the response arrived.
    pub received: u64,
}

/// The freshness of one response. Times are seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// The time at which its age was 0.
    pub born: u64,
    /// Its freshness lifetime in seconds.
    pub lifetime: u32,
    /// Seconds after that in which it may be used during revalidation.
    pub while_revalidating: u32,
    /// Seconds after that in which it may be used if revalidation fails.
    pub if_error: u32,
    /// A stale response must never be used.
    pub never_stale: bool,
}

/// The caching directives of a response that count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FreshnessDirectives {
    directives: Directives,
    /// `Expires` counts if no directive sets a lifetime.
    heeds_expires: bool,
}

impl std::ops::Deref for FreshnessDirectives {
    type Target = Directives;

    fn deref(&self) -> &Directives {
        &self.directives
    }
}

impl FreshnessDirectives {
    /// Parses a response head.
    pub(crate) fn of(rule: &CacheRule, head: &ResponseHead) -> FreshnessDirectives {
        let heeds_expires = !rule.ignores.expires;
        if rule.ignores.cache_control {
            return FreshnessDirectives { directives: Directives::default(), heeds_expires };
        }
        let targeted = match rule.lifetime {
            Lifetime::Known { .. } => Directives::targeted(&head.headers),
            _ => None,
        };
        match targeted {
            // All other directives are for other caches (RFC 9213 §2.2).
            Some(directives) => FreshnessDirectives { directives, heeds_expires: false },
            None => FreshnessDirectives { directives: Directives::of(&head.headers), heeds_expires },
        }
    }
}

impl Freshness {
    /// Returns the freshness of a response with these times. Returns None without a known lifetime.
    pub(crate) fn of(
        head: &ResponseHead,
        said: &FreshnessDirectives,
        rule: &CacheRule,
        times: ExchangeTimes,
    ) -> Option<Freshness> {
        let now = times.received;
        let headers = &head.headers;
        let stated = || stated(headers, said, now);
        let born = || now - age(headers, times).min(now);
        let accelerated = || accelerated(headers, now).filter(|_| !rule.ignores.accel_expires);
        let (lifetime, born) = match &rule.lifetime {
            // The node's directives are ignored: the age counts from here.
            Lifetime::Fixed(seconds) => (*seconds, now),
            Lifetime::Stated => (stated()?, born()),
            Lifetime::StatedOr(otherwise) => match accelerated() {
                Some(lifetime) => (lifetime, now),
                None => match stated() {
                    Some(lifetime) => (lifetime, born()),
                    None => (*otherwise, now),
                },
            },
            Lifetime::Known { otherwise, guesses } => match accelerated() {
                Some(lifetime) => (lifetime, now),
                None => {
                    let guess = || guessed(head, said, born()).filter(|_| *guesses);
                    let known = stated().or_else(|| by_status(otherwise, head.status)).or_else(guess);
                    // Without a lifetime it may be stored, but must be revalidated each time (RFC 9111 §3).
                    (known.or((said.no_cache || said.public).then_some(0))?, born())
                }
            },
        };
        let lifetime = if said.no_cache { 0 } else { lifetime };
        let while_revalidating = said.stale_while_revalidate.unwrap_or(0).max(rule.stale_while_revalidate);
        let if_error = said.stale_if_error.unwrap_or(0).max(rule.stale_if_error);
        let never_stale = said.must_revalidate || said.no_cache || said.s_maxage.is_some();
        Some(Freshness { born, lifetime, while_revalidating, if_error, never_stale })
    }

    /// Returns its age.
    pub fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.born)
    }

    /// Returns true if it may be used without revalidation.
    pub fn is_fresh(&self, now: u64) -> bool {
        self.age(now) < u64::from(self.lifetime)
    }

    /// Returns the seconds since it became stale; 0 while it is fresh.
    pub fn staleness(&self, now: u64) -> u64 {
        self.age(now).saturating_sub(u64::from(self.lifetime))
    }

    /// Returns true if it may be used during revalidation.
    pub fn may_wait(&self, now: u64) -> bool {
        !self.never_stale && self.staleness(now) < u64::from(self.while_revalidating)
    }

    /// Returns true if it may be used after a failed revalidation.
    pub fn may_stand_in(&self, now: u64) -> bool {
        let may_be_stale = !self.never_stale && self.staleness(now) < u64::from(self.if_error);
        self.is_fresh(now) || may_be_stale
    }
}

/// Returns the lifetime set by a response (RFC 9111 §4.2.1).
fn stated(headers: &Headers, said: &FreshnessDirectives, now: u64) -> Option<u32> {
    if let Some(seconds) = said.s_maxage.or(said.max_age) {
        return Some(seconds);
    }
    if !said.heeds_expires {
        return None;
    }
    let mut expires = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"expires"));
    let (_, value) = expires.next()?;
    // An invalid date, or several, means the past (RFC 9111 §5.3).
    let end = if expires.next().is_some() { None } else { date(value) };
    let begin = headers.find(b"Date").and_then(date).unwrap_or(now);
    let seconds = end.map_or(0, |end| end.saturating_sub(begin));
    Some(u32::try_from(seconds).unwrap_or(SECONDS_MAX).min(SECONDS_MAX))
}

fn by_status(otherwise: &[(Option<u16>, u32)], status: u16) -> Option<u32> {
    let fitting = otherwise.iter().find(|(of, _)| of.is_none_or(|of| of == status));
    fitting.map(|(_, seconds)| *seconds)
}

/// The longest heuristic lifetime.
const GUESSED_MAX_S: u64 = 24 * 60 * 60;

/// Statuses of responses that may be stored without directives (RFC 9110 §15.1).
const HEURISTIC: [u16; 12] = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501];

/// Returns the heuristic lifetime: a tenth of the time since the last change (RFC 9111 §4.2.2).
fn guessed(head: &ResponseHead, said: &Directives, born: u64) -> Option<u32> {
    if !said.public && !HEURISTIC.contains(&head.status) {
        return None;
    }
    let changed = head.headers.find(b"Last-Modified").and_then(date)?;
    let made = head.headers.find(b"Date").and_then(date).unwrap_or(born);
    u32::try_from((made.saturating_sub(changed) / 10).min(GUESSED_MAX_S)).ok()
}

/// Parses nginx's own field, which precedes all others: seconds, or `@` and the end time.
fn accelerated(headers: &Headers, now: u64) -> Option<u32> {
    let value = headers.find(b"X-Accel-Expires")?;
    match value.strip_prefix(b"@") {
        None => Some(seconds(value)),
        Some(end) => {
            let end: u64 = std::str::from_utf8(end).ok()?.trim().parse().ok()?;
            Some(u32::try_from(end.saturating_sub(now)).unwrap_or(SECONDS_MAX))
        }
    }
}

/// Returns the age of a response on arrival (RFC 9111 §4.2.3).
fn age(headers: &Headers, times: ExchangeTimes) -> u64 {
    let ExchangeTimes { requested, received } = times;
    let apparent = headers.find(b"Date").and_then(date).map_or(0, |date| received.saturating_sub(date));
    let first = headers.find(b"Age").and_then(|value| list_items(value).next());
    let said = first.filter(|age| age.iter().all(u8::is_ascii_digit)).map_or(0, seconds);
    apparent.max(u64::from(said) + received.saturating_sub(requested))
}

/// Parses a date field to seconds since 1970.
pub(crate) fn date(value: &[u8]) -> Option<u64> {
    let at: SystemTime = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    Some(at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 784_111_777;
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn freshness(fields: &[(&str, &str)], lifetime: Lifetime) -> Option<Freshness> {
        let mut head = ResponseHead::default();
        head.start(200);
        fields.iter().for_each(|(name, value)| head.headers.append(name, value.as_bytes()));
        let rule = CacheRule { lifetime, ..CacheRule::default() };
        let times = ExchangeTimes { requested: NOW, received: NOW };
        Freshness::of(&head, &FreshnessDirectives::of(&rule, &head), &rule, times)
    }

    fn left(fields: &[(&str, &str)], how: Lifetime) -> Option<u64> {
        let freshness = freshness(fields, how)?;
        freshness.is_fresh(NOW).then(|| u64::from(freshness.lifetime) - freshness.age(NOW))
    }

    #[test]
    fn directives_count_in_their_order() {
        let check = |fields: &[(&str, &str)], expected: Option<u64>| {
            assert_eq!(left(fields, Lifetime::Stated), expected, "{fields:?}");
        };
        check(&[], None);
        check(&[("Cache-Control", "max-age=10")], Some(10));
        check(&[("Cache-Control", "max-age=10, s-maxage=20")], Some(20));
        check(&[("Cache-Control", "max-age=10"), ("Expires", "0")], Some(10));
        check(&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT"), ("Date", DATE)], Some(60));
        check(&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT")], Some(60));
        check(&[("Expires", "0")], None);
        check(&[("Expires", "Sun, 06 Nov 1994 08:50:37 GMT"), ("Expires", DATE)], None);
        // It has an age already.
        check(&[("Cache-Control", "max-age=10"), ("Age", "4")], Some(6));
        check(&[("Cache-Control", "max-age=10"), ("Age", "4, 9")], Some(6));
        check(&[("Cache-Control", "max-age=10"), ("Age", "-4")], Some(10));
        check(&[("Cache-Control", "max-age=10"), ("Age", "10")], None);
        check(&[("Cache-Control", "max-age=100"), ("Date", "Sun, 06 Nov 1994 08:48:37 GMT")], Some(40));
        check(&[("Cache-Control", "max-age=0")], None);
    }

    #[test]
    fn rules_of_the_operator() {
        assert_eq!(left(&[("Cache-Control", "max-age=10"), ("Age", "9")], Lifetime::Fixed(300)), Some(300));
        let or = || Lifetime::StatedOr(10);
        assert_eq!(left(&[], or()), Some(10));
        assert_eq!(left(&[("Cache-Control", "max-age=3")], or()), Some(3));
        assert_eq!(left(&[("Cache-Control", "max-age=3"), ("X-Accel-Expires", "7")], or()), Some(7));
        assert_eq!(left(&[("X-Accel-Expires", "@784111782")], or()), Some(5));
        assert_eq!(left(&[("X-Accel-Expires", "0")], or()), None);
    }

    #[test]
    fn responses_without_directives() {
        let known = |otherwise: &[(Option<u16>, u32)], guesses: bool| Lifetime::Known {
            otherwise: otherwise.to_vec(),
            guesses,
        };
        let changed = [("Date", DATE), ("Last-Modified", "Sun, 06 Nov 1994 08:32:57 GMT")];
        assert_eq!(left(&changed, known(&[], false)), None);
        assert_eq!(left(&changed, known(&[], true)), Some(100));
        assert_eq!(left(&changed[..1], known(&[], true)), None);
        assert_eq!(
            left(&[("Last-Modified", "Wed, 06 Nov 1974 08:32:57 GMT")], known(&[], true)),
            Some(86_400)
        );
        assert_eq!(left(&changed, known(&[(Some(404), 5), (Some(200), 7), (None, 9)], true)), Some(7));
        assert_eq!(left(&changed, known(&[(Some(404), 5), (None, 9)], true)), Some(9));
        let stated = [("Cache-Control", "max-age=3"), changed[0], changed[1]];
        assert_eq!(left(&stated, known(&[(None, 9)], true)), Some(3));
        let no_cache = [("Cache-Control", "max-age=3, no-cache")];
        assert_eq!(left(&no_cache, known(&[(None, 9)], true)), None);
    }

    #[test]
    fn stale_responses_have_a_time_limit() {
        let freshness = freshness(
            &[("Cache-Control", "max-age=10, stale-while-revalidate=5, stale-if-error=20")],
            Lifetime::Stated,
        );
        let freshness = freshness.unwrap();
        assert!(freshness.is_fresh(NOW + 9) && !freshness.is_fresh(NOW + 10));
        assert!(freshness.may_wait(NOW + 14) && !freshness.may_wait(NOW + 15));
        assert!(freshness.may_stand_in(NOW + 29) && !freshness.may_stand_in(NOW + 30));
        for strict in ["must-revalidate", "proxy-revalidate", "s-maxage=10"] {
            let said = format!("max-age=10, stale-while-revalidate=5, stale-if-error=20, {strict}");
            let freshness = self::freshness(&[("Cache-Control", &said)], Lifetime::Stated).unwrap();
            assert!(!freshness.may_wait(NOW + 11) && !freshness.may_stand_in(NOW + 11), "{strict}");
        }
    }
}
