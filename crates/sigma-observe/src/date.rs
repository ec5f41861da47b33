//! Dates in the three formats of a gateway, formatted at most once per second.
//!
//! All times are UTC. A local offset would need the time zone database and a call that is unsafe next to threads that
//! change the environment; log shippers convert better.

use std::time::{SystemTime, UNIX_EPOCH};

const WEEKDAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// 9999-12-31T23:59:59Z, the last second with a four-digit year
const LAST_SECOND: u64 = 253_402_300_799;

/// One worker's copy of the wall clock: set by its event loop, read for every date it writes.
///
/// The time is an argument, so that a test or a replay can choose it.
#[derive(Debug, Clone)]
pub struct Clock {
    unix_ms: u64,
    /// The second of the three texts below.
    formatted: u64,
    http: [u8; 29],
    local: [u8; 26],
    iso: [u8; 25],
}

impl Clock {
    /// Returns a clock at `unix_ms` milliseconds since 1970-01-01T00:00:00Z.
    pub fn new(unix_ms: u64) -> Clock {
        let mut clock = Clock {
            unix_ms,
            formatted: 0,
            http: *b"Thu, 01 Jan 1970 00:00:00 GMT",
            local: *b"01/Jan/1970:00:00:00 +0000",
            iso: *b"1970-01-01T00:00:00+00:00",
        };
        clock.set(unix_ms);
        clock
    }

    /// Sets the clock, forwards or backwards; texts are formatted again only in a new second.
    pub fn set(&mut self, unix_ms: u64) {
        self.unix_ms = unix_ms;
        let second = (unix_ms / 1000).min(LAST_SECOND);
        if second != self.formatted {
            self.formatted = second;
            let civil = Civil::from_unix(second);
            civil.write_http(&mut self.http);
            civil.write_local(&mut self.local);
            civil.write_iso(&mut self.iso);
        }
    }

    /// Sets the clock to a system time; times before 1970 count as 1970.
    pub fn set_system(&mut self, now: SystemTime) {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.set(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    }

    /// Returns milliseconds since 1970-01-01T00:00:00Z.
    pub fn unix_ms(&self) -> u64 {
        self.unix_ms
    }

    /// Returns the form of the `Date` header (RFC 9110 §5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub fn http_date(&self) -> &[u8; 29] {
        &self.http
    }

    /// Returns nginx's `$time_local`, in UTC: `10/Oct/2000:13:55:36 +0000`.
    pub fn time_local(&self) -> &[u8; 26] {
        &self.local
    }

    /// Returns nginx's `$time_iso8601`, in UTC: `2000-10-10T13:55:36+00:00`.
    pub fn time_iso8601(&self) -> &[u8; 25] {
        &self.iso
    }
}

/// A second of the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Civil {
    year: u64,
    /// 0 for January.
    month: usize,
    /// 1 to 31.
    day: u64,
    /// 0 for Thursday, the first day of Unix time.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Civil {
    /// Howard Hinnant's `civil_from_days`: years begin in March, so that the leap day is their last.
    fn from_unix(unix: u64) -> Civil {
        let (days, rest) = (unix / 86_400, unix % 86_400);
        // 719,468 days lie between 0000-03-01 and 1970-01-01; an era is 400 years.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let january_follows = march_month >= 10;
        Civil {
            year: era * 400 + year_of_era + u64::from(january_follows),
            month: (march_month as usize + 2) % 12,
            day: day_of_year - (153 * march_month + 2) / 5 + 1,
            weekday: (days % 7) as usize,
            hour: rest / 3_600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    fn write_http(&self, out: &mut [u8; 29]) {
        out[0..3].copy_from_slice(WEEKDAYS[self.weekday]);
        digits(&mut out[5..7], self.day);
        out[8..11].copy_from_slice(MONTHS[self.month]);
        digits(&mut out[12..16], self.year);
        self.write_time(&mut out[17..25]);
    }

    fn write_local(&self, out: &mut [u8; 26]) {
        digits(&mut out[0..2], self.day);
        out[3..6].copy_from_slice(MONTHS[self.month]);
        digits(&mut out[7..11], self.year);
        self.write_time(&mut out[12..20]);
    }

    fn write_iso(&self, out: &mut [u8; 25]) {
        digits(&mut out[0..4], self.year);
        digits(&mut out[5..7], self.month as u64 + 1);
        digits(&mut out[8..10], self.day);
        self.write_time(&mut out[11..19]);
    }

    /// Writes the digits of `hh:mm:ss`; the colons are there already.
    fn write_time(&self, out: &mut [u8]) {
        digits(&mut out[0..2], self.hour);
        digits(&mut out[3..5], self.minute);
        digits(&mut out[6..8], self.second);
    }
}

/// Writes `value` right-aligned with leading zeros; `out` is as long as the largest number of digits.
fn digits(out: &mut [u8], mut value: u64) {
    for place in out.iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn check(clock: &Clock, http: &str, local: &str, iso: &str) {
        assert_eq!(std::str::from_utf8(clock.http_date()), Ok(http));
        assert_eq!(std::str::from_utf8(clock.time_local()), Ok(local));
        assert_eq!(std::str::from_utf8(clock.time_iso8601()), Ok(iso));
    }

    #[test]
    fn formats_known_seconds() {
        let cases = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT", "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00+00:00"),
            (
                784_111_777,
                "Sun, 06 Nov 1994 08:49:37 GMT",
                "06/Nov/1994:08:49:37 +0000",
                "1994-11-06T08:49:37+00:00",
            ),
            (
                951_782_400,
                "Tue, 29 Feb 2000 00:00:00 GMT",
                "29/Feb/2000:00:00:00 +0000",
                "2000-02-29T00:00:00+00:00",
            ),
            (
                4_107_542_399,
                "Sun, 28 Feb 2100 23:59:59 GMT",
                "28/Feb/2100:23:59:59 +0000",
                "2100-02-28T23:59:59+00:00",
            ),
            (
                4_107_542_400,
                "Mon, 01 Mar 2100 00:00:00 GMT",
                "01/Mar/2100:00:00:00 +0000",
                "2100-03-01T00:00:00+00:00",
            ),
            (
                1_735_689_599,
                "Tue, 31 Dec 2024 23:59:59 GMT",
                "31/Dec/2024:23:59:59 +0000",
                "2024-12-31T23:59:59+00:00",
            ),
        ];
        for (unix, http, local, iso) in cases {
            check(&Clock::new(unix * 1000 + 999), http, local, iso);
        }
    }

    #[test]
    fn years_past_four_digits_stay_at_the_last_second() {
        let clock = Clock::new(u64::MAX);
        check(
            &clock,
            "Fri, 31 Dec 9999 23:59:59 GMT",
            "31/Dec/9999:23:59:59 +0000",
            "9999-12-31T23:59:59+00:00",
        );
        assert_eq!(clock.unix_ms(), u64::MAX);
    }

    #[test]
    fn moves_both_ways() {
        let mut clock = Clock::new(784_111_777_000);
        clock.set(784_111_777_999);
        assert_eq!(clock.unix_ms(), 784_111_777_999);
        clock.set(0);
        assert_eq!(clock.http_date(), b"Thu, 01 Jan 1970 00:00:00 GMT");
        clock.set_system(UNIX_EPOCH + Duration::from_secs(784_111_777));
        assert_eq!(clock.http_date(), b"Sun, 06 Nov 1994 08:49:37 GMT");
        clock.set_system(UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(clock.unix_ms(), 0);
    }

    /// Every day of 800 years follows the one before.
    #[test]
    fn days_follow_one_another() {
        let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
        let (mut year, mut month, mut day) = (1970, 0, 1);
        for n in 0..292_194 {
            let civil = Civil::from_unix(n * 86_400 + 86_399);
            assert_eq!((civil.year, civil.month, civil.day), (year, month, day), "day {n}");
            let length =
                [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month];
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month == 12 {
                (month, year) = (0, year + 1);
            }
        }
    }
}
