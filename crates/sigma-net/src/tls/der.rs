//! A DER reader for certificates, revocation lists and OCSP responses.
//!
//! The bytes may come from an attacker: everything is checked, and invalid input gives `None`.

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// Splits the first element off DER; returns its tag, its content and the rest.
pub(super) fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, len], rest) = der.split_first_chunk::<2>()?;
    let (len, rest) = match len {
        0..=0x7f => (usize::from(len), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(len & 0x7f))?;
            let len = digits.iter().fold(0u64, |len, digit| (len << 8) | u64::from(*digit));
            // There is only one valid form of a length.
            if len < 0x80 || digits.first() == Some(&0) {
                return None;
            }
            (usize::try_from(len).ok()?, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// As [`element`], for an expected tag; returns content and rest.
pub(super) fn element_of(der: &[u8], expected: u8) -> Option<(&[u8], &[u8])> {
    element(der).and_then(|(tag, content, rest)| (tag == expected).then_some((content, rest)))
}

/// Returns the rest after the first element, if it has this tag; else everything.
pub(super) fn after_optional(der: &[u8], tag: u8) -> &[u8] {
    element_of(der, tag).map_or(der, |(_, rest)| rest)
}

/// Encodes an element of these parts.
pub(super) fn encode(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let digits = len.to_be_bytes();
    let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
    let mut der = vec![tag];
    match (len, u8::try_from(digits.len())) {
        (0..=0x7f, _) => der.extend(digits.first().or(Some(&0))),
        // There are at most eight of them.
        (_, count) => {
            der.push(0x80 | count.unwrap_or(8));
            der.extend(digits);
        }
    }
    parts.iter().for_each(|part| der.extend_from_slice(part));
    der
}

/// Parses a UTCTime or GeneralizedTime in the only forms that RFC 5280 §4.1.2.5 allows; returns Unix seconds and the
/// rest.
pub(super) fn time(der: &[u8]) -> Option<(i64, &[u8])> {
    let (tag, text, rest) = element(der)?;
    let (digits, b"Z") = text.split_at_checked(text.len().checked_sub(1)?)? else { return None };
    let (year, others) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2])?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4])?, &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| number(&others[2 * at..2 * at + 2]);
    let (month, day, hour, minute, second) = (part(0)?, part(1)?, part(2)?, part(3)?, part(4)?);
    let is_date = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some((seconds, rest))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Returns days of the Gregorian calendar; years start in March, so that the leap day is the last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_one_form() {
        let check = |der: &[u8], expected: Option<usize>| {
            assert_eq!(element(der).map(|(_, content, _)| content.len()), expected, "{der:?}");
        };
        let long = |head: &[u8], len: usize| [head, &vec![7; len][..]].concat();
        check(&[4, 0], Some(0));
        check(&long(&[4, 0x7f], 0x7f), Some(0x7f));
        check(&long(&[4, 0x81, 0x80], 0x80), Some(0x80));
        check(&long(&[4, 0x82, 1, 0], 0x100), Some(0x100));
        check(&long(&[4, 0x83, 1, 0, 0], 0x1_0000), Some(0x1_0000));
        for bad in [&[][..], &[4], &[4, 1], &[4, 0x80], &[4, 0x81, 0x7f], &[4, 0x82, 0, 0x80], &[4, 0x85, 1]]
        {
            check(&long(bad, 0), None);
        }
        check(&[4, 0x84, 0xff, 0xff, 0xff, 0xff, 1], None);
    }

    #[test]
    fn encoded_elements_are_read_back() {
        for len in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x1_0001] {
            let content = vec![9; len];
            let der = encode(OCTET_STRING, &[&content[..len / 2], &content[len / 2..]]);
            assert_eq!(element(&der), Some((OCTET_STRING, &content[..], &[][..])), "{len}");
        }
    }

    #[test]
    fn times_match_the_calendar() {
        let check = |tag: u8, text: &str, expected: Option<i64>| {
            let der = [&[tag, text.len() as u8], text.as_bytes(), &[9]].concat();
            assert_eq!(time(&der), expected.map(|seconds| (seconds, &[9u8][..])), "{text}");
        };
        check(UTC_TIME, "700101000000Z", Some(0));
        check(UTC_TIME, "491231235959Z", Some(2_524_607_999));
        check(UTC_TIME, "500101000000Z", Some(-631_152_000));
        check(UTC_TIME, "000229120000Z", Some(951_825_600));
        check(GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000));
        check(GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799));
        check(GENERALIZED_TIME, "00000301000000Z", Some(-62_162_035_200));
        for bad in
            ["20230229000000Z", "20231301000000Z", "20230001000000Z", "20230100000000Z", "20230101240000Z"]
        {
            check(GENERALIZED_TIME, bad, None);
        }
        for bad in ["20230101000000", "20230101000000+0000", "2023010100000 Z", "202301010000Z", "Z", ""] {
            check(GENERALIZED_TIME, bad, None);
        }
        check(UTC_TIME, "20230101000000Z", None);
        check(GENERALIZED_TIME, "230101000000Z", None);
        check(INTEGER, "230101000000Z", None);
    }
}
