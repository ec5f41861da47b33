//! The keyword `format`. Formats that are not listed here are not checked.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::civil::Date;
use crate::forms::{self, FormRule};

/// A format with its check.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) holds: fn(&str) -> bool,
}

const FORMATS: [Format; 9] = [
    Format { name: "ipv4", holds: |text| text.parse::<Ipv4Addr>().is_ok() },
    Format { name: "ipv6", holds: |text| text.parse::<Ipv6Addr>().is_ok() },
    Format { name: "hostname", holds: hostname },
    Format { name: "email", holds: email },
    Format { name: "uri", holds: uri },
    Format { name: "date", holds: date },
    Format { name: "time", holds: time },
    Format { name: "date-time", holds: date_time },
    Format { name: "uuid", holds: uuid },
];

impl Format {
    /// Returns a format that JSON Schema defines.
    pub(super) fn of_standard(name: &str) -> Option<Format> {
        FORMATS.into_iter().find(|format| format.name == name)
    }

    pub(super) fn parse(name: &str) -> Option<Format> {
        let own = || match forms::of_format(name)?.said {
            FormRule::Format(name, holds) => Some(Format { name, holds }),
            FormRule::Pattern(_) => None,
        };
        Format::of_standard(name).or_else(own)
    }
}

/// RFC 1123 §2.1.
fn hostname(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// The usual addresses of RFC 5321 §4.1.2: a dot-atom before the `@`.
fn email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let atom = |atom: &str| {
        !atom.is_empty()
            && atom.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte))
    };
    let literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let domain_holds = match literal {
        Some(address) => match address.strip_prefix("IPv6:") {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => address.parse::<Ipv4Addr>().is_ok(),
        },
        None => hostname(domain),
    };
    local.len() <= 64 && local.split('.').all(atom) && domain_holds
}

/// RFC 3986: a scheme, then only characters that are allowed in a URI.
fn uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let scheme_holds = scheme.starts_with(|char: char| char.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let bytes = rest.as_bytes();
    let holds = |(index, byte): (usize, &u8)| match byte {
        b'%' => bytes.get(index + 1..index + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)),
        _ => byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(byte),
    };
    scheme_holds && bytes.iter().enumerate().all(holds)
}

/// `full-date` of RFC 3339 §5.6.
fn date(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return false;
    }
    let (Some(year), Some(month), Some(day)) =
        (decimal(&bytes[..4]), decimal(&bytes[5..7]), decimal(&bytes[8..]))
    else {
        return false;
    };
    Date::new(year.into(), month.into(), day.into()).is_some()
}

/// `full-time` of RFC 3339 §5.6.
fn time(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() < 9 || bytes[5] != b':' {
        return false;
    }
    let (Some(minutes), Some(second)) = (clock(&bytes[..5]), decimal(&bytes[6..8])) else { return false };
    let mut rest = &bytes[8..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return false;
        }
        rest = &fraction[digits..];
    }
    let behind = match rest {
        [b'z' | b'Z'] => Some(0),
        [b'-', offset @ ..] if offset.len() == 5 => clock(offset),
        [b'+', offset @ ..] if offset.len() == 5 => clock(offset).map(|ahead| DAY - ahead),
        _ => None,
    };
    // A leap second is the last one of a day in UTC.
    behind.is_some_and(|behind| second < 60 || second == 60 && (minutes + behind) % DAY == DAY - 1)
}

/// Minutes of a day.
const DAY: u32 = 24 * 60;

fn date_time(text: &str) -> bool {
    let Some(split) = text.find(['T', 't']) else { return false };
    date(&text[..split]) && time(&text[split + 1..])
}

/// Returns the minutes of `hh:mm`, of five bytes.
fn clock(bytes: &[u8]) -> Option<u32> {
    let (hour, minute) = (decimal(&bytes[..2])?, decimal(&bytes[3..])?);
    (bytes[2] == b':' && hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

fn decimal(bytes: &[u8]) -> Option<u32> {
    if !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(bytes.iter().fold(0, |value, byte| value * 10 + u32::from(byte - b'0')))
}

/// RFC 9562 §4.
fn uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let cases = [
            ("ipv4", "127.0.0.1", true),
            ("ipv4", "127.0.0.256", false),
            ("ipv6", "::1", true),
            ("ipv6", "12345::", false),
            ("hostname", "a-b.example.com", true),
            ("hostname", "-a.com", false),
            ("hostname", "a..b", false),
            ("hostname", "", false),
            ("email", "joe.bloggs@example.com", true),
            ("email", "joe@[127.0.0.1]", true),
            ("email", "joe@[IPv6:::1]", true),
            ("email", "2962", false),
            ("email", ".joe@example.com", false),
            ("uri", "http://a.b/c?d=%20#e", true),
            ("uri", "urn:x:y", true),
            ("uri", "//a.b", false),
            ("uri", "http://a b", false),
            ("uri", "http://a/%g0", false),
            ("date", "2024-02-29", true),
            ("date", "2023-02-29", false),
            ("date", "1900-02-29", false),
            ("date", "2024-1-01", false),
            ("date", "2024-\u{e9}1-0", false),
            ("time", "23:59:60Z", true),
            ("time", "15:59:60-08:00", true),
            ("time", "01:29:60+01:30", true),
            ("time", "22:59:60Z", false),
            ("time", "23:59:60+00:01", false),
            ("time", "23:59:61Z", false),
            ("time", "08:30:06.25+02:00", true),
            ("time", "08:30:06", false),
            ("time", "24:00:00Z", false),
            ("time", "08:30:06.Z", false),
            ("date-time", "2024-01-01T00:00:00Z", true),
            ("date-time", "2024-01-01 00:00:00Z", false),
            ("uuid", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", true),
            ("uuid", "f81d4fae7dec11d0a76500a0c91e6bf6", false),
        ];
        for (name, text, expected) in cases {
            let format = Format::parse(name).unwrap();
            assert_eq!((format.holds)(text), expected, "{name} {text:?}");
        }
        assert!(Format::parse("colour").is_none());
    }
}
