//! Times as text, in UTC.

use sigma_schema::civil::{Date as CivilDate, is_leap};

/// Returns the year, month, day, hour, minute and second of a second since 1970.
fn parts(unix_s: u64) -> [u64; 6] {
    let (date, second) = (CivilDate::of_unix(unix_s), unix_s % 86_400);
    let [year, month, day] = [date.year(), date.month(), date.day()].map(i64::unsigned_abs);
    [year, month, day, second / 3_600, second / 60 % 60, second % 60]
}

/// Formats a second as in `X-Amz-Date`: `20150830T123600Z`.
pub fn compact(unix_s: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(unix_s);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Formats milliseconds by RFC 3339: `2015-08-30T12:36:00.123Z`.
pub fn rfc3339(unix_ms: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(unix_ms / 1000);
    let milli = unix_ms % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Formats a second for the beginning of file names: `2015-08-30_12-36-00`, always of [`FOR_FILES`] bytes.
pub fn for_files(unix_s: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(unix_s);
    format!("{year:04}-{month:02}-{day:02}_{hour:02}-{minute:02}-{second:02}")
}

/// The length of [`for_files`].
pub const FOR_FILES: usize = 19;

/// A format of strftime, in English and UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Literal(char),
    Conversion(char),
}

/// The conversions, without those that stand for several others.
const CONVERSIONS: &str = "%aAbBCdeGgHIjmMnpsStuVwyYzZ";

impl Format {
    /// # Errors
    /// Returns an error, which is a sentence, if there is a conversion that does not exist.
    pub fn parse(text: &str) -> Result<Format, String> {
        let (mut parts, mut rest) = (Vec::new(), text.chars());
        while let Some(next) = rest.next() {
            if next != '%' {
                parts.push(Part::Literal(next));
                continue;
            }
            match rest.next() {
                Some('F') => parts.extend(Format::parse("%Y-%m-%d")?.0),
                Some('T') => parts.extend(Format::parse("%H:%M:%S")?.0),
                Some('R') => parts.extend(Format::parse("%H:%M")?.0),
                Some('D') => parts.extend(Format::parse("%m/%d/%y")?.0),
                Some('h') => parts.push(Part::Conversion('b')),
                Some(name) if CONVERSIONS.contains(name) => parts.push(Part::Conversion(name)),
                Some(name) => return Err(format!("`%{name}` is not a conversion of strftime")),
                None => return Err("a `%` at the end is not a conversion of strftime; write `%%`".to_owned()),
            }
        }
        Ok(Format(parts))
    }

    /// Returns the text of a second since 1970.
    pub fn text(&self, unix_s: u64) -> String {
        let date = Date::of(unix_s);
        self.0
            .iter()
            .map(|part| match part {
                Part::Literal(letter) => letter.to_string(),
                Part::Conversion(name) => date.converted(*name),
            })
            .collect()
    }
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A second with its calendar values.
struct Date {
    unix_s: u64,
    parts: [u64; 6],
    /// From 0 for Sunday.
    weekday: u64,
    /// From 1.
    day_of_year: u64,
}

impl Date {
    fn of(unix_s: u64) -> Date {
        let parts = parts(unix_s);
        let [year, month, day, ..] = parts;
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let leap = u64::from(month > 2 && is_leap(year.cast_signed()));
        let day_of_year = before.get(month as usize - 1).unwrap_or(&0) + day + leap;
        Date { unix_s, parts, weekday: (unix_s / 86_400 + 4) % 7, day_of_year }
    }

    /// Returns the year and week by ISO 8601.
    fn week(&self) -> (u64, u64) {
        let year = self.parts[0];
        let weekday = if self.weekday == 0 { 7 } else { self.weekday };
        match (self.day_of_year + 10 - weekday) / 7 {
            0 => (year - 1, weeks_of(year - 1)),
            week if week > weeks_of(year) => (year + 1, 1),
            week => (year, week),
        }
    }

    fn converted(&self, name: char) -> String {
        let [year, month, day, hour, minute, second] = self.parts;
        let of = |names: &[&'static str], at: u64| *names.get(at as usize).unwrap_or(&"");
        let (day_name, month_name) = (of(&DAYS, self.weekday), of(&MONTHS, month - 1));
        let half = if hour % 12 == 0 { 12 } else { hour % 12 };
        match name {
            'a' => day_name.chars().take(3).collect(),
            'A' => day_name.to_owned(),
            'b' => month_name.chars().take(3).collect(),
            'B' => month_name.to_owned(),
            'C' => format!("{:02}", year / 100),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'g' => format!("{:02}", self.week().0 % 100),
            'G' => self.week().0.to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{half:02}"),
            'j' => format!("{:03}", self.day_of_year),
            'm' => format!("{month:02}"),
            'M' => format!("{minute:02}"),
            'n' => "\n".to_owned(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            's' => self.unix_s.to_string(),
            'S' => format!("{second:02}"),
            't' => "\t".to_owned(),
            'u' => if self.weekday == 0 { 7 } else { self.weekday }.to_string(),
            'V' => format!("{:02}", self.week().1),
            'w' => self.weekday.to_string(),
            'y' => format!("{:02}", year % 100),
            'Y' => year.to_string(),
            'z' => "+0000".to_owned(),
            'Z' => "UTC".to_owned(),
            other => other.to_string(),
        }
    }
}

/// Returns the weeks of a year: 53 if it begins on a Thursday, or on a Wednesday and is a leap year.
fn weeks_of(year: u64) -> u64 {
    let last_day = |year: u64| (year + year / 4 - year / 100 + year / 400) % 7;
    if last_day(year) == 4 || last_day(year - 1) == 3 { 53 } else { 52 }
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

    /// Checks the formats against `date -u -d @… +…` of GNU.
    #[test]
    fn formats() {
        let check = |unix_s: u64, format: &str, expected: &str| {
            assert_eq!(Format::parse(format).unwrap().text(unix_s), expected, "{unix_s} {format}");
        };
        check(0, "%a %A %b %B %h", "Thu Thursday Jan January Jan");
        check(
            951_827_696,
            "%Y.%m.%d-%H:%M:%S %F %T %R %D",
            "2000.02.29-12:34:56 2000-02-29 12:34:56 12:34 02/29/00",
        );
        check(
            951_827_696,
            "%C %y %e %j %I %p %u %w %s %z %Z %%",
            "20 00 29 060 12 PM 2 2 951827696 +0000 UTC %",
        );
        for (unix_s, expected) in [
            (1_104_537_600, "2004 04 53 001"),
            (1_230_768_000, "2009 09 01 001"),
            (1_230_508_800, "2009 09 01 364"),
            (1_451_520_000, "2015 15 53 365"),
            (1_735_603_200, "2025 25 01 366"),
        ] {
            check(unix_s, "%G %g %V %j", expected);
        }
        assert_eq!(Format::parse("%Q").unwrap_err(), "`%Q` is not a conversion of strftime");
        assert!(Format::parse("%Y%").is_err());
    }
}
