//! Points in time as messages have them (SAML Core §1.3.3): UTC, with a `Z` behind them.

use sigma_schema::civil::Date;

const DAY_S: u64 = 86_400;

/// The seconds since 1970 of a text such as `2026-11-23T12:00:00.123Z`; None if it is another, in another zone, or
/// before 1970.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() != 19 || fraction.len() > 9 || !is_number(fraction) {
        return None;
    }
    let marks: Vec<u8> = [4, 7, 10, 13, 16].iter().map(|at| whole.as_bytes()[*at]).collect();
    let number = |from: usize, to: usize| {
        whole.get(from..to).filter(|text| is_number(text)).and_then(|text| text.parse::<u64>().ok())
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let is_sound = marks == *b"--T::" && hour < 24 && minute < 60 && second <= 60;
    let date = Date::new(year.cast_signed(), month.cast_signed(), day.cast_signed()).filter(|_| is_sound)?;
    let days = u64::try_from(date.days_since_1970()).ok()?;
    Some(days * DAY_S + hour * 3600 + minute * 60 + second)
}

/// A second since 1970 as messages have it.
pub(super) fn text(seconds: u64) -> String {
    let date = Date::of_unix(seconds);
    let (year, month, day) = (date.year(), date.month(), date.day());
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_utc() {
        for (written, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:34:56Z", Some(951_827_696)),
            ("2026-11-23T12:00:00.123Z", Some(1_795_435_200)),
            ("2026-12-31T23:59:60Z", Some(1_798_761_600)),
            ("9999-12-31T23:59:59Z", Some(253_402_300_799)),
            ("2026-11-23T12:00:00", None),
            ("2026-11-23T12:00:00+01:00", None),
            ("2026-11-23 12:00:00Z", None),
            ("2026-02-29T12:00:00Z", None),
            ("2026-02-29T23:59:60Z", None),
            ("2026-13-01T12:00:00Z", None),
            ("2026-00-01T12:00:00Z", None),
            ("2026-11-00T12:00:00Z", None),
            ("2026-11-23T24:00:00Z", None),
            ("1969-12-31T23:59:59Z", None),
            ("2026-11-23T12:00:00.Z", None),
            ("2026-11-23T12:00:0é", None),
            ("+026-11-23T12:00:00Z", None),
            ("Z", None),
            ("", None),
        ] {
            assert_eq!(seconds(written), expected, "{written}");
        }
        for at in (0..253_402_300_799).step_by(86_399 * 1013) {
            assert_eq!(seconds(&text(at)), Some(at));
        }
    }
}
