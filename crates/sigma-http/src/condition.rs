//! Validators of a representation, and the conditions of a request on them (RFC 9110 §8.8 and §13).

use std::time::SystemTime;

use crate::Headers;
use crate::header::list_items;

/// The validators of a representation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    /// The entity tag as it is written; one that begins with `W/` is weak.
    pub tag: Option<Box<[u8]>>,
    /// The time of the last change, in whole seconds.
    pub modified: Option<SystemTime>,
}

/// The result of the conditions of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request proceeds.
    Go,
    /// 304: the client has the current version.
    NotModified,
    /// 412
    Failed,
}

impl Validators {
    /// Returns the validators in a response. An invalid date is ignored.
    pub fn of(response: &Headers) -> Validators {
        let date = response.find(b"Last-Modified").and_then(|date| std::str::from_utf8(date).ok());
        Validators {
            tag: response.find(b"ETag").map(Box::from),
            modified: date.and_then(|date| httpdate::parse_http_date(date).ok()),
        }
    }

    /// Returns the value of `Last-Modified`.
    pub fn last_modified(&self) -> Option<String> {
        self.modified.map(httpdate::fmt_http_date)
    }

    /// Evaluates the conditions in the order of RFC 9110 §13.2.2.
    pub fn judge(&self, request: &Headers) -> Outcome {
        if let Some(listed) = matches(request, b"If-Match", |tag| self.is_exactly(tag)) {
            if !listed {
                return Outcome::Failed;
            }
        } else if let Some(false) = self.unchanged_since(request, b"If-Unmodified-Since") {
            return Outcome::Failed;
        }
        let weakly = |tag: &[u8]| self.tag.as_deref().is_some_and(|own| opaque(own) == opaque(tag));
        match matches(request, b"If-None-Match", weakly) {
            Some(true) => Outcome::NotModified,
            Some(false) => Outcome::Go,
            None if self.unchanged_since(request, b"If-Modified-Since") == Some(true) => Outcome::NotModified,
            None => Outcome::Go,
        }
    }

    /// Returns true if `If-Range` allows a range, or is missing (RFC 9110 §13.1.5).
    pub fn allows_range(&self, request: &Headers) -> bool {
        match request.find(b"If-Range") {
            None => true,
            Some(tag) if tag.starts_with(b"\"") || tag.starts_with(b"W/") => self.is_exactly(tag),
            Some(date) => self.last_modified().is_some_and(|modified| modified.as_bytes() == date),
        }
    }

    /// Compares tags strongly.
    fn is_exactly(&self, tag: &[u8]) -> bool {
        self.tag.as_deref().is_some_and(|own| own == tag && !own.starts_with(b"W/"))
    }

    /// Returns true if the representation has not changed after the date in a field; None without a valid date.
    fn unchanged_since(&self, request: &Headers, name: &[u8]) -> Option<bool> {
        let date = std::str::from_utf8(request.find(name)?).ok()?;
        Some(self.modified? <= httpdate::parse_http_date(date).ok()?)
    }
}

/// Removes the weakness mark of a tag.
fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns true if a list of tags contains the representation's tag; None without the field.
fn matches(request: &Headers, name: &[u8], is_it: impl Fn(&[u8]) -> bool) -> Option<bool> {
    let lines = request.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    let mut lines = lines.map(|(_, value)| value).peekable();
    lines.peek()?;
    Some(lines.flat_map(list_items).any(|tag| tag == b"*" || is_it(tag)))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn validators() -> (Validators, String) {
        let tag = "\"1-a\"".to_owned();
        let modified = Some(UNIX_EPOCH + Duration::from_secs(784_111_777));
        (Validators { tag: Some(tag.as_bytes().into()), modified }, tag)
    }

    #[test]
    fn conditions_in_their_order() {
        let ((validators, tag), date) = (validators(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(validators.last_modified().as_deref(), Some(date));
        let (before, after) = ("Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:49:38 GMT");
        let check = |fields: &[(&str, &str)], expected: Outcome| {
            let mut headers = Headers::default();
            fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
            assert_eq!(validators.judge(&headers), expected, "{fields:?}");
        };
        check(&[], Outcome::Go);
        check(&[("If-None-Match", &tag)], Outcome::NotModified);
        check(&[("If-None-Match", &format!("\"a\", W/{tag}"))], Outcome::NotModified);
        check(&[("If-None-Match", "*")], Outcome::NotModified);
        check(&[("If-None-Match", "\"a\""), ("If-Modified-Since", date)], Outcome::Go);
        check(&[("If-Modified-Since", date)], Outcome::NotModified);
        check(&[("If-Modified-Since", after)], Outcome::NotModified);
        check(&[("If-Modified-Since", before)], Outcome::Go);
        check(&[("If-Modified-Since", "yesterday")], Outcome::Go);
        check(&[("If-Match", &tag)], Outcome::Go);
        check(&[("If-Match", &format!("W/{tag}"))], Outcome::Failed);
        check(&[("If-Match", "\"a\"")], Outcome::Failed);
        check(&[("If-Match", "*"), ("If-Unmodified-Since", before)], Outcome::Go);
        check(&[("If-Unmodified-Since", before)], Outcome::Failed);
        check(&[("If-Unmodified-Since", date)], Outcome::Go);
    }

    #[test]
    fn if_range_needs_the_exact_version() {
        let (validators, tag) = validators();
        let check = |value: &str, expected: bool| {
            let mut headers = Headers::default();
            headers.append("If-Range", value.as_bytes());
            assert_eq!(validators.allows_range(&headers), expected, "{value}");
        };
        check(&tag, true);
        check(&format!("W/{tag}"), false);
        check("\"a\"", false);
        check("Sun, 06 Nov 1994 08:49:37 GMT", true);
        check("Sun, 06 Nov 1994 08:49:38 GMT", false);
        assert!(validators.allows_range(&Headers::default()));
    }

    #[test]
    fn a_weak_tag_suffices_only_for_a_304() {
        let weak = Validators { tag: Some(b"W/\"a\""[..].into()), modified: None };
        let asked = |name: &str, value: &str| {
            let mut headers = Headers::default();
            headers.append(name, value.as_bytes());
            headers
        };
        assert_eq!(weak.judge(&asked("If-None-Match", "\"a\"")), Outcome::NotModified);
        assert_eq!(weak.judge(&asked("If-Match", "W/\"a\"")), Outcome::Failed);
        assert!(!weak.allows_range(&asked("If-Range", "W/\"a\"")));
    }
}
