//! Moments as text, in UTC.

/// Year, month, day, hour, minute and second of a second since 1970.
fn parts(unix_s: u64) -> [u64; 6] {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Civil dates by eras of 400 years that begin in March (Hinnant, `civil_from_days`).
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    [year, month, day, second / 3_600, second / 60 % 60, second % 60]
}

/// As `X-Amz-Date` has it: `20150830T123600Z`.
pub(crate) fn compact(unix_s: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(unix_s);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// By RFC 3339, with milliseconds: `2015-08-30T12:36:00.123Z`.
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(unix_ms / 1000);
    let milli = unix_ms % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let check = |unix_ms: u64, long: &str, short: &str| {
            assert_eq!((&*rfc3339(unix_ms), &*compact(unix_ms / 1000)), (long, short));
        };
        check(0, "1970-01-01T00:00:00.000Z", "19700101T000000Z");
        check(1_440_938_160_123, "2015-08-30T12:36:00.123Z", "20150830T123600Z");
        check(951_827_696_789, "2000-02-29T12:34:56.789Z", "20000229T123456Z");
        check(951_782_399_001, "2000-02-28T23:59:59.001Z", "20000228T235959Z");
        check(951_782_400_010, "2000-02-29T00:00:00.010Z", "20000229T000000Z");
        check(1_709_251_199_100, "2024-02-29T23:59:59.100Z", "20240229T235959Z");
        check(4_102_444_799_999, "2099-12-31T23:59:59.999Z", "20991231T235959Z");
        check(4_107_542_400_000, "2100-03-01T00:00:00.000Z", "21000301T000000Z");
    }
}
