//! Time windows: `Mon-Fri 09:00-17:30 +01:00`, `2026-12-01..2026-12-24`.
//!
//! The current time is an argument. Zones are offsets from UTC: a named zone would need a time zone database.

use crate::civil::Date;

/// Milliseconds per day.
const DAY_MS: i64 = 86_400_000;

/// A list of windows; one of them must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Windows(Vec<Window>);

/// A window: days, times of the day and dates, all in one zone and all required.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Window {
    /// A bit for each day of the week, from Monday.
    weekdays: u8,
    /// Days since 1970, both included.
    dates: (i64, i64),
    /// Milliseconds of the day, the end excluded. A range that ends before it begins continues on the next day.
    time: (i64, i64),
    /// Milliseconds that the zone is ahead of UTC.
    offset_ms: i64,
}

impl Windows {
    /// Parses windows; one of them must match.
    ///
    /// # Errors
    /// Returns a sentence if one of them is invalid.
    pub(super) fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Windows, String> {
        let windows = texts.into_iter().map(Window::parse).collect::<Result<Vec<_>, _>>()?;
        if windows.is_empty() { Err("`within` needs a time".to_owned()) } else { Ok(Windows(windows)) }
    }

    /// Returns whether a moment, in milliseconds since 1970, is in one of the windows.
    pub(super) fn hold(&self, unix_ms: i64) -> bool {
        self.0.iter().any(|window| window.holds(unix_ms))
    }
}

impl Window {
    fn parse(text: &str) -> Result<Window, String> {
        let wrong = |part: &str| {
            format!(
                "`{part}` in the time `{text}` is neither days (Mon-Fri), a time of the day (09:00-17:30), dates \
                (2026-12-01..2026-12-24) nor a zone (UTC, +01:00)"
            )
        };
        let (mut weekdays, mut dates, mut time, mut offset_ms) = (None, None, None, None);
        for part in text.split_ascii_whitespace() {
            let is_first = if let Some(found) = zone(part) {
                offset_ms.replace(found).is_none()
            } else if let Some(found) = times(part) {
                time.replace(found).is_none()
            } else if let Some(found) = days(part) {
                weekdays.replace(found).is_none()
            } else if let Some(found) = between(part) {
                dates.replace(found).is_none()
            } else {
                return Err(wrong(part));
            };
            if !is_first {
                return Err(format!("`{part}` in the time `{text}` repeats a part of the same kind"));
            }
        }
        if weekdays.is_none() && dates.is_none() && time.is_none() {
            return Err(format!("the time `{text}` needs days, a time of the day, or dates"));
        }
        Ok(Window {
            weekdays: weekdays.unwrap_or(0x7f),
            dates: dates.unwrap_or((i64::MIN, i64::MAX)),
            time: time.unwrap_or((0, DAY_MS)),
            offset_ms: offset_ms.unwrap_or(0),
        })
    }

    fn holds(&self, unix_ms: i64) -> bool {
        let local_ms = unix_ms.saturating_add(self.offset_ms);
        let (day, time) = (local_ms.div_euclid(DAY_MS), local_ms.rem_euclid(DAY_MS));
        let (from, to) = self.time;
        if from < to {
            return (from..to).contains(&time) && self.has_day(day);
        }
        // The window belongs to the day on which it begins.
        time >= from && self.has_day(day) || time < to && self.has_day(day - 1)
    }

    fn has_day(&self, day: i64) -> bool {
        // 1970 began on a Thursday.
        let weekday = (day + 3).rem_euclid(7);
        (self.weekdays >> weekday) & 1 == 1 && self.dates.0 <= day && day <= self.dates.1
    }
}

/// Parses `UTC`, `Z`, or `+hh:mm`.
fn zone(part: &str) -> Option<i64> {
    if part == "UTC" || part == "Z" {
        return Some(0);
    }
    let sign = match part.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = part[1..].split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    // No zone has a larger offset (ISO 8601 itself has no bound).
    (hours <= 14 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60_000)
}

/// Parses `hh:mm-hh:mm`, each with optional seconds.
fn times(part: &str) -> Option<(i64, i64)> {
    let (from, to) = part.split_once('-')?;
    let (from, to) = (time_of_day(from)?, time_of_day(to)?);
    (from < DAY_MS && from != to).then_some((from, to))
}

/// Parses `hh:mm` or `hh:mm:ss`; `24:00` is the end of the day.
fn time_of_day(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let (hours, minutes) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let seconds = parts.next().map_or(Some(0), |seconds| digits(seconds, 2))?;
    let ms = ((hours * 60 + minutes) * 60 + seconds) * 1000;
    (parts.next().is_none() && minutes < 60 && seconds < 60 && ms <= DAY_MS).then_some(ms)
}

/// Parses `Mon`, `Mon-Fri`, `Sat,Sun`: English names in any case.
fn days(part: &str) -> Option<u8> {
    let day = |name: &str| {
        let known = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        known.iter().position(|known| name.eq_ignore_ascii_case(known))
    };
    part.split(',').try_fold(0, |all, span| {
        let (from, to) = span.split_once('-').unwrap_or((span, span));
        let (from, to) = (day(from)?, day(to)?);
        let length = (to + 7 - from) % 7;
        Some((0..=length).fold(all, |all, ahead| all | 1 << ((from + ahead) % 7)))
    })
}

/// Parses `yyyy-mm-dd`, or two dates with `..` between, of which one may be missing.
fn between(part: &str) -> Option<(i64, i64)> {
    let Some((from, to)) = part.split_once("..") else {
        let day = date(part)?;
        return Some((day, day));
    };
    if from.is_empty() && to.is_empty() {
        return None;
    }
    let from = if from.is_empty() { i64::MIN } else { date(from)? };
    let to = if to.is_empty() { i64::MAX } else { date(to)? };
    (from <= to).then_some((from, to))
}

/// Returns the number of a day since 1970 (proleptic Gregorian calendar).
fn date(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let (year, month) = (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?);
    let day = digits(parts.next()?, 2)?;
    if parts.next().is_some() {
        return None;
    }
    Date::new(year, month, day).map(Date::days_since_1970)
}

/// Parses an instant in UTC (RFC 3339 with `Z`) into Unix seconds; a fraction of a second is dropped.
pub fn unix_seconds(text: &str) -> Option<i64> {
    let (day, time) = text.strip_suffix('Z')?.split_once('T')?;
    let time = match time.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|byte| byte.is_ascii_digit()) => whole,
        Some(_) => return None,
        None => time,
    };
    let of_day = time_of_day(time).filter(|ms| *ms < DAY_MS)?;
    Some(date(day)? * (DAY_MS / 1000) + of_day / 1000)
}

fn digits(text: &str, length: usize) -> Option<i64> {
    let is_number = text.len() == length && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the moment of `yyyy-mm-dd hh:mm` in UTC.
    fn moment(text: &str) -> i64 {
        let (day, time) = text.split_once(' ').unwrap();
        date(day).unwrap() * DAY_MS + time_of_day(time).unwrap()
    }

    #[test]
    fn moments_within_times() {
        let check = |window: &str, within: &[&str], outside: &[&str]| {
            let windows = Windows::parse([window]).unwrap();
            for text in within {
                assert!(windows.hold(moment(text)), "{window}: {text}");
            }
            for text in outside {
                assert!(!windows.hold(moment(text)), "{window}: {text}");
            }
        };
        // 2026-11-26 is a Thursday.
        check(
            "Mon-Fri 09:00-17:30",
            &["2026-11-26 09:00", "2026-11-27 17:29:59"],
            &["2026-11-26 08:59:59", "2026-11-26 17:30", "2026-11-28 12:00"],
        );
        check("Mon-Fri 09:00-17:30 +01:00", &["2026-11-26 08:00"], &["2026-11-26 16:30", "2026-11-26 07:59"]);
        check(
            "-05:30 Fri",
            &["2026-11-27 05:30", "2026-11-28 05:29"],
            &["2026-11-27 05:29", "2026-11-28 05:30"],
        );
        check(
            "fri-mon,WED",
            &["2026-11-27 00:00", "2026-11-30 23:59", "2026-11-25 12:00"],
            &["2026-11-26 12:00", "2026-12-01 00:00"],
        );
        // After midnight the window still belongs to the day on which it began.
        check(
            "Fri 22:00-06:00 UTC",
            &["2026-11-27 22:00", "2026-11-28 05:59"],
            &["2026-11-27 05:59", "2026-11-28 06:00", "2026-11-28 22:00"],
        );
        check("2026-11-26 22:00-06:00", &["2026-11-27 05:00"], &["2026-11-26 05:00", "2026-11-27 23:00"]);
        check(
            "2026-12-01..2026-12-24 Z",
            &["2026-12-01 00:00", "2026-12-24 23:59:59"],
            &["2026-11-30 23:59", "2026-12-25 00:00"],
        );
        check("2026-12-01..", &["9999-01-01 00:00"], &["2026-11-30 23:59"]);
        check("..2026-12-01", &["1970-01-01 00:00", "2026-12-01 23:59"], &["2026-12-02 00:00"]);
        check("00:00-24:00", &["2026-11-26 00:00", "2026-11-26 23:59:59"], &[]);
        check("2024-02-29", &["2024-02-29 12:00"], &["2024-03-01 00:00", "2024-02-28 23:59"]);
    }

    #[test]
    fn instants_are_seconds() {
        let check = |text: &str, expected| assert_eq!(unix_seconds(text), expected, "{text}");
        check("1970-01-01T00:00:00Z", Some(0));
        check("2015-08-30T12:36:00Z", Some(1_440_938_160));
        check("2015-08-30T12:36:00.123456789Z", Some(1_440_938_160));
        for wrong in [
            "2015-08-30T24:00:00Z",
            "2015-08-30 12:36:00Z",
            "2015-08-30T12:36:00+01:00",
            "2015-08-30T12:36:00.xZ",
            "",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn days_are_numbered() {
        let check = |text: &str, expected| assert_eq!(date(text), expected, "{text}");
        check("1970-01-01", Some(0));
        check("2000-03-01", Some(11_017));
        check("2026-11-26", Some(20_783));
        check("0000-01-01", Some(-719_528));
        for wrong in
            ["2026-02-29", "2026-13-01", "2026-00-01", "2026-01-00", "26-01-01", "2026-1-01", "2026-01-01-01"]
        {
            check(wrong, None);
        }
    }

    #[test]
    fn invalid_times_are_refused() {
        let check = |text: &str, expected: &str| {
            let error = Windows::parse([text]).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "needs days");
        check("UTC", "needs days");
        for wrong in [
            "Mo",
            "9:00-17:00",
            "09:00",
            "25:00-26:00",
            "24:00-01:00",
            "09:00-09:00",
            "09:60-10:00",
            "..",
            "Mon 2026-12-24..2026-12-01",
            "Mon Europe/Berlin",
            "Mon +15:00",
            "Mon +1:00",
            "Mon-",
            "2026-02-30",
        ] {
            check(wrong, "is neither days (Mon-Fri)");
        }
        check("Mon Tue", "repeats a part of the same kind");
        assert_eq!(Windows::parse([]).unwrap_err(), "`within` needs a time");
    }
}
