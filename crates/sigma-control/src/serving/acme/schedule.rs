//! When something is due. Time and chance are arguments.

use std::ops::RangeInclusive;

use sigma_config::acme::Acme;
use sigma_net::tls::certificate::Validity;

/// Of the life of a certificate, how much passes before it is renewed at the earliest, and at the latest.
const RENEWED_FROM: f64 = 2.0 / 3.0;
const RENEWED_BY: f64 = RENEWED_FROM + 0.05;

/// By how much pauses differ at random, so that gateways that failed together do not try together.
const JITTER: f64 = 0.2;

/// The longest pause that an authority may request, in seconds: it may know its limits, and must not end renewals
/// permanently.
const ASKED_MAX: i64 = 7 * DAY;

const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

/// Seconds until the next attempt after so many that failed in a row. `asked` is the authority's wish; chance
/// is between 0 and 1.
pub(super) fn pause(settings: &Acme, failures: u32, asked: Option<i64>, chance: f64) -> i64 {
    let doubled = i64::from(settings.retry_s) << failures.saturating_sub(1).min(20);
    let most = i64::from(settings.retry_max_s);
    let pause = doubled.min(most) as f64 * (1.0 + JITTER * chance);
    (pause as i64).max(asked.unwrap_or(0).min(ASKED_MAX)).max(1)
}

/// When a certificate is renewed that is valid in this time. `window` is what its authority suggests (RFC
/// 9773 §4.2): a moment in it is chosen by chance. A window that ends after the certificate, or before it
/// begins, is ignored.
pub(super) fn renewal(validity: Validity, window: Option<RangeInclusive<i64>>, chance: f64) -> i64 {
    let Validity { not_before, not_after } = validity;
    let within = |part: f64, start: i64, end: i64| {
        start + (end.saturating_sub(start).max(0) as f64 * part).round() as i64
    };
    match window {
        Some(window) if !window.is_empty() && *window.end() < not_after => {
            within(chance, *window.start(), *window.end())
        }
        _ => within(RENEWED_FROM + (RENEWED_BY - RENEWED_FROM) * chance, not_before, not_after),
    }
}

/// Returns seconds until an authority is queried again for its suggestion: its own number, within limits.
pub(super) fn asked_again(says: Option<i64>) -> i64 {
    says.unwrap_or(6 * HOUR).clamp(HOUR, DAY)
}

/// The moment of an attempt that was put off to `next` when the clock showed an earlier time. A clock that
/// was set back since does not put it off further than it can ever have been.
pub(super) fn attempt(settings: &Acme, next: i64, now: i64) -> i64 {
    let longest = (f64::from(settings.retry_max_s) * (1.0 + JITTER)) as i64;
    if next > now.saturating_add(longest.max(ASKED_MAX)) { now } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_pause() {
        let settings = Acme::default();
        let check = |failures, asked, chance, expected| {
            assert_eq!(pause(&settings, failures, asked, chance), expected, "{failures} {asked:?} {chance}");
        };
        check(0, None, 0.0, 300);
        check(1, None, 0.0, 300);
        check(1, None, 1.0, 360);
        check(2, None, 0.0, 600);
        check(5, None, 0.0, 4_800);
        check(9, None, 0.0, 76_800);
        check(10, None, 0.0, 86_400);
        check(u32::MAX, None, 0.0, 86_400);
        // The authority knows its limits, and is not believed without end.
        check(1, Some(10), 0.0, 300);
        check(1, Some(7_200), 0.0, 7_200);
        check(1, Some(i64::MAX), 0.0, 604_800);
        check(1, Some(-5), 0.0, 300);
        // Within an hour there are fewer failures than Let's Encrypt allows, whatever chance does.
        for chance in [0.0, 0.5, 0.99] {
            let (mut at, mut failures) = (0, 0);
            while at < HOUR {
                failures += 1;
                at += pause(&settings, failures, None, chance);
            }
            assert!(failures < 5, "{failures}");
        }
    }

    #[test]
    fn a_certificate_is_renewed_within_its_life() {
        let check = |(not_before, not_after), window: Option<(i64, i64)>, chance, expected| {
            let (validity, window) =
                (Validity { not_before, not_after }, window.map(|(start, end)| start..=end));
            let renewal = renewal(validity, window.clone(), chance);
            assert_eq!(renewal, expected, "{validity:?} {window:?} {chance}");
        };
        check((0, 90 * DAY), None, 0.0, 60 * DAY);
        check((0, 90 * DAY), None, 1.0, 64 * DAY + DAY / 2);
        check((0, 90 * DAY), Some((50 * DAY, 52 * DAY)), 0.0, 50 * DAY);
        check((0, 90 * DAY), Some((50 * DAY, 52 * DAY)), 0.5, 51 * DAY);
        // It is to be replaced at once.
        check((0, 90 * DAY), Some((-DAY, -DAY)), 0.5, -DAY);
        // An invalid window is ignored.
        check((0, 90 * DAY), Some((52 * DAY, 50 * DAY)), 0.0, 60 * DAY);
        check((0, 90 * DAY), Some((80 * DAY, 90 * DAY)), 0.0, 60 * DAY);
        check((0, 90 * DAY), Some((i64::MIN, i64::MAX)), 0.0, 60 * DAY);
        check((5, 5), None, 0.7, 5);
        for chance in [0.0, 0.3, 0.999] {
            assert!(renewal(Validity { not_before: 100, not_after: 200 }, None, chance) < 200);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_ends_no_renewals() {
        let settings = Acme::default();
        assert_eq!(attempt(&settings, 1_000, 500), 1_000);
        assert_eq!(attempt(&settings, 10 * DAY, 0), 0);
        assert_eq!(attempt(&settings, i64::MAX, 7), 7);
        assert_eq!(attempt(&settings, -5, 7), -5);
        assert_eq!(
            (asked_again(None), asked_again(Some(1)), asked_again(Some(i64::MAX))),
            (6 * HOUR, HOUR, DAY)
        );
    }
}
