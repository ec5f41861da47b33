//! Points in time as messages have them (SAML Core §1.3.3): UTC, with a `Z` behind them.

/// Days from 1 March of year 0 to 1 January 1970.
const EPOCH_DAYS: u64 = 719_468;

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
    let is_sound = marks == *b"--T::"
        && year >= 1970
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let days = days(year, month, day);
    // 31 February is another day.
    let is_sound = is_sound && date(days).2 == day;
    is_sound.then_some(days * DAY_S + hour * 3600 + minute * 60 + second)
}

/// A second since 1970 as messages have it.
pub(super) fn text(seconds: u64) -> String {
    let (year, month, day) = date(seconds / DAY_S);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Days since 1970. Years begin in March here, so that the day that is not always there is the last one.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month > 2 { year } else { year.saturating_sub(1) };
    let month = (month + 9) % 12;
    let in_year = (153 * month + 2) / 5 + day.saturating_sub(1);
    (year * 365 + year / 4 - year / 100 + year / 400 + in_year).saturating_sub(EPOCH_DAYS)
}

/// Year, month and day of a day since 1970 (<https://howardhinnant.github.io/date_algorithms.html>).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH_DAYS;
    let (era, in_era) = (days / 146_097, days % 146_097);
    let of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * of_era + of_era / 4 - of_era / 100);
    let month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + of_era + u64::from(month <= 2), month, day)
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
