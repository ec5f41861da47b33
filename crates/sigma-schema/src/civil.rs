//! Dates of the Gregorian calendar, also before its introduction, in UTC.

/// A date that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    year: i64,
    month: i64,
    day: i64,
}

/// Days of 400 years, after which the calendar repeats.
const ERA: i64 = 146_097;

/// Days from the first of March of the year 0 to 1970.
const BEFORE_1970: i64 = 719_468;

impl Date {
    /// Returns the date if it exists. The month and the day count from 1. Years are at most 9999.
    #[must_use]
    pub fn new(year: i64, month: i64, day: i64) -> Option<Date> {
        let length = match month {
            2 => 28 + i64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        let exists = (-9999..=9999).contains(&year) && (1..=length).contains(&day);
        exists.then_some(Date { year, month, day })
    }

    /// Returns the date of a second since 1970.
    #[must_use]
    pub fn of_unix(unix_s: u64) -> Date {
        // Eras begin in March, so that the leap day is the last of its year (Hinnant, `civil_from_days`). The days of all
        // seconds fit.
        let days = (unix_s / 86_400) as i64 + BEFORE_1970;
        let (era, of_era) = (days / ERA, days % ERA);
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march = (5 * of_year + 2) / 153;
        let month = if march < 10 { march + 3 } else { march - 9 };
        Date {
            year: era * 400 + year + i64::from(month <= 2),
            month,
            day: of_year - (153 * march + 2) / 5 + 1,
        }
    }

    /// Returns the days since 1970, negative before.
    #[must_use]
    pub fn days_since_1970(self) -> i64 {
        let (year, march) = match self.month {
            1 | 2 => (self.year - 1, self.month + 9),
            _ => (self.year, self.month - 3),
        };
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * march + 2) / 5 + self.day - 1;
        era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - BEFORE_1970
    }

    /// Returns the year.
    #[must_use]
    pub fn year(self) -> i64 {
        self.year
    }

    /// Returns the month, from 1.
    #[must_use]
    pub fn month(self) -> i64 {
        self.month
    }

    /// Returns the day of the month, from 1.
    #[must_use]
    pub fn day(self) -> i64 {
        self.day
    }
}

/// Returns true if the year has a 29th of February.
#[must_use]
pub fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_one_date() {
        for days in (0..1_000_000).step_by(17) {
            let date = Date::of_unix(days * 86_400 + 86_399);
            assert_eq!(date.days_since_1970(), days as i64);
            assert!(date.year > 9999 || Date::new(date.year, date.month, date.day) == Some(date));
        }
    }

    #[test]
    fn dates() {
        let check = |year, month, day, expected| {
            assert_eq!(
                Date::new(year, month, day).map(Date::days_since_1970),
                expected,
                "{year}-{month}-{day}"
            );
        };
        check(1970, 1, 1, Some(0));
        check(1969, 12, 31, Some(-1));
        check(0, 3, 1, Some(-719_468));
        check(2000, 2, 29, Some(11_016));
        check(1900, 2, 29, None);
        check(2023, 2, 29, None);
        check(2024, 4, 31, None);
        check(2024, 13, 1, None);
        check(2024, 0, 1, None);
        check(2024, 1, 0, None);
        check(i64::MAX, 1, 1, None);
    }
}
