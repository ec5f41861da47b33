//! Validators of a file, and the conditions of a request on them (RFC 9110 §8.8 and §13).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sigma_http::Headers;
use sigma_http::header::list_items;

/// What tells one version of a file from another.
pub(super) struct Validators {
    /// A strong entity tag.
    pub(super) tag: String,
    /// Whole seconds, as a date in a message has.
    modified: Option<SystemTime>,
}

/// What the conditions of a request come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Go,
    NotModified,
    Failed,
}

impl Validators {
    /// Of a file of this size and age; `coding` names the coding of its content, if it has one. Its
    /// tag is never that of the content itself.
    pub(super) fn new(size: u64, modified: Option<SystemTime>, coding: Option<&str>) -> Validators {
        let since = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let nanos = since.map_or(0, |since| since.as_nanos());
        let modified = since.map(|since| UNIX_EPOCH + Duration::from_secs(since.as_secs()));
        let (dash, coding) = coding.map_or(("", ""), |coding| ("-", coding));
        Validators { tag: format!("\"{nanos:x}-{size:x}{dash}{coding}\""), modified }
    }

    pub(super) fn last_modified(&self) -> Option<String> {
        self.modified.map(httpdate::fmt_http_date)
    }

    /// Evaluates the conditions in the order of RFC 9110 §13.2.2.
    pub(super) fn judge(&self, request: &Headers) -> Outcome {
        if let Some(listed) = self.matches(request, b"If-Match", |tag| tag == self.tag.as_bytes()) {
            if !listed {
                return Outcome::Failed;
            }
        } else if let Some(false) = self.unchanged_since(request, b"If-Unmodified-Since") {
            return Outcome::Failed;
        }
        let weakly = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag) == self.tag.as_bytes();
        match self.matches(request, b"If-None-Match", weakly) {
            Some(true) => Outcome::NotModified,
            Some(false) => Outcome::Go,
            None if self.unchanged_since(request, b"If-Modified-Since") == Some(true) => Outcome::NotModified,
            None => Outcome::Go,
        }
    }

    /// Whether `If-Range`, if there is one, lets a range be served (RFC 9110 §13.1.5).
    pub(super) fn allows_range(&self, request: &Headers) -> bool {
        match request.find(b"If-Range") {
            None => true,
            Some(tag) if tag.starts_with(b"\"") || tag.starts_with(b"W/") => tag == self.tag.as_bytes(),
            Some(date) => self.last_modified().is_some_and(|modified| modified.as_bytes() == date),
        }
    }

    /// Whether a list of tags names this file; None without such a field.
    fn matches(&self, request: &Headers, name: &[u8], is_it: impl Fn(&[u8]) -> bool) -> Option<bool> {
        let lines = request.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let mut lines = lines.map(|(_, value)| value).peekable();
        lines.peek()?;
        Some(lines.flat_map(list_items).any(|tag| tag == b"*" || is_it(tag)))
    }

    /// Whether the file has not changed after the date in a field; None without a readable date.
    fn unchanged_since(&self, request: &Headers, name: &[u8]) -> Option<bool> {
        let date = std::str::from_utf8(request.find(name)?).ok()?;
        Some(self.modified? <= httpdate::parse_http_date(date).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_in_their_order() {
        let modified = UNIX_EPOCH + Duration::from_millis(784_111_777_500);
        let validators = Validators::new(10, Some(modified), None);
        let (tag, date) = (validators.tag.clone(), "Sun, 06 Nov 1994 08:49:37 GMT");
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
    fn if_range_needs_the_very_version() {
        let validators = Validators::new(10, Some(UNIX_EPOCH + Duration::from_secs(784_111_777)), None);
        let tag = validators.tag.clone();
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
}
