//! Media types (RFC 9110 §8.3.1), and which of them are meant.

use sigma_http::{HeaderId, Headers};

/// Which media types are meant.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Range {
    /// In small letters.
    Exactly(String),
    /// With this beginning: `text/`.
    Of(String),
    Any,
}

/// Whether a media type is JSON.
pub(super) fn is_json(media_type: &str) -> bool {
    let media_type = essence(media_type);
    media_type == "application/json" || media_type.ends_with("+json")
}

/// A media type without its parameters, in small letters.
pub(super) fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns the `Content-Type` of a message; empty if it is missing.
///
/// # Errors
/// Returns an error, which is a sentence, if there are several, or if the body is something else to who reads it.
pub(super) fn content_type(headers: &Headers) -> Result<&str, String> {
    let mut types = headers.get_all(HeaderId::ContentType);
    let first = types.next().unwrap_or_default();
    if types.next().is_some() {
        return Err("it has more than one Content-Type".to_owned());
    }
    if !crate::shared::charset::is_utf8(first) {
        return Err("its Content-Type names a charset other than UTF-8".to_owned());
    }
    let first = std::str::from_utf8(first).map_err(|_| "its Content-Type is not UTF-8".to_owned())?;
    match first.split(';').next().unwrap_or_default().contains(',') {
        true => Err("its Content-Type is a list".to_owned()),
        false => Ok(first),
    }
}

impl Range {
    /// That of a media type as documents write it, with `*` for any.
    pub(super) fn of(media_type: &str) -> Range {
        let media_type = essence(media_type);
        match media_type.strip_suffix('*') {
            Some("*/" | "") => Range::Any,
            Some(beginning) if beginning.ends_with('/') => Range::Of(beginning.to_owned()),
            _ => Range::Exactly(media_type),
        }
    }

    /// Whether one of these is JSON.
    pub(super) fn may_be_json(&self) -> bool {
        match self {
            Range::Exactly(one) => is_json(one),
            // There is `image/x+json` as well as `application/json`.
            Range::Of(_) | Range::Any => true,
        }
    }

    /// Whether a media type without parameters, in small letters, is one of these.
    pub(super) fn includes(&self, essence: &str) -> bool {
        match self {
            Range::Exactly(one) => one == essence,
            Range::Of(beginning) => essence.starts_with(beginning.as_str()),
            Range::Any => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (range, media_type, expected) in [
            ("application/json; charset=utf-8", "Application/JSON ; a=b", true),
            ("application/json", "application/jsonp", false),
            ("text/*", "text/plain", true),
            ("text/*", "textual/plain", false),
            ("*/*", "a/b", true),
            ("application/*+json", "application/a+json", false),
        ] {
            assert_eq!(Range::of(range).includes(&essence(media_type)), expected, "{range} {media_type}");
        }
        assert!(is_json("application/problem+json; x=y") && !is_json("application/json-seq"));
    }
}
