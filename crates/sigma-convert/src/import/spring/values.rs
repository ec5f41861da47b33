//! Values of properties with units, and results of filters.

use serde_json::Value;

/// The result of a filter.
pub(super) enum Outcome {
    Done,
    NoEffect(&'static str),
    Differs(String),
    /// It cannot be converted; the route is closed.
    Closed(String),
    /// It may guard access and cannot be converted; the route is closed.
    Guard(String),
}

/// A status by number or by Spring's name.
pub(super) fn status(text: &str) -> Option<u16> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return (100..=999).contains(&number).then_some(number);
    }
    let names: &[(&str, u16)] = &[
        ("OK", 200),
        ("CREATED", 201),
        ("ACCEPTED", 202),
        ("NO_CONTENT", 204),
        ("MOVED_PERMANENTLY", 301),
        ("FOUND", 302),
        ("SEE_OTHER", 303),
        ("NOT_MODIFIED", 304),
        ("TEMPORARY_REDIRECT", 307),
        ("PERMANENT_REDIRECT", 308),
        ("BAD_REQUEST", 400),
        ("UNAUTHORIZED", 401),
        ("PAYMENT_REQUIRED", 402),
        ("FORBIDDEN", 403),
        ("NOT_FOUND", 404),
        ("METHOD_NOT_ALLOWED", 405),
        ("NOT_ACCEPTABLE", 406),
        ("REQUEST_TIMEOUT", 408),
        ("CONFLICT", 409),
        ("GONE", 410),
        ("LENGTH_REQUIRED", 411),
        ("PRECONDITION_FAILED", 412),
        ("PAYLOAD_TOO_LARGE", 413),
        ("CONTENT_TOO_LARGE", 413),
        ("UNSUPPORTED_MEDIA_TYPE", 415),
        ("I_AM_A_TEAPOT", 418),
        ("UNPROCESSABLE_ENTITY", 422),
        ("UNPROCESSABLE_CONTENT", 422),
        ("LOCKED", 423),
        ("TOO_EARLY", 425),
        ("UPGRADE_REQUIRED", 426),
        ("TOO_MANY_REQUESTS", 429),
        ("INTERNAL_SERVER_ERROR", 500),
        ("NOT_IMPLEMENTED", 501),
        ("BAD_GATEWAY", 502),
        ("SERVICE_UNAVAILABLE", 503),
        ("GATEWAY_TIMEOUT", 504),
    ];
    names.iter().find(|(name, _)| *name == text).map(|(_, number)| *number)
}

/// A duration in seconds: `10s`, `500ms`, `PT1M`, or a number of milliseconds.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(milliseconds) = text.parse::<f64>() {
        return Some(milliseconds / 1000.0);
    }
    if let Some(iso) = text.to_ascii_uppercase().strip_prefix("PT") {
        let (mut total, mut digits) = (0.0, String::new());
        for char in iso.chars() {
            let factor = match char {
                'H' => 3600.0,
                'M' => 60.0,
                'S' => 1.0,
                other => {
                    digits.push(other);
                    continue;
                }
            };
            total += std::mem::take(&mut digits).parse::<f64>().ok()? * factor;
        }
        return digits.is_empty().then_some(total);
    }
    let at = text.find(|char: char| char.is_ascii_alphabetic())?;
    let factor = match text[at..].to_ascii_lowercase().as_str() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Some(text[..at].trim().parse::<f64>().ok()? * factor)
}

/// A size in bytes: `5MB`, `10KB`, or a number of bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_uppercase();
    let at = text.find(|char: char| char.is_ascii_alphabetic()).unwrap_or(text.len());
    let factor = match text[at..].trim() {
        "" | "B" => 1,
        "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return None,
    };
    text[..at].trim().parse::<u64>().ok()?.checked_mul(factor)
}

/// Fields of a JSON value that are not null.
pub(super) fn object(pairs: Vec<(&str, Value)>) -> Value {
    Value::Object(
        pairs
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        assert_eq!(seconds("500ms"), Some(0.5));
        assert_eq!(seconds("PT1M30S"), Some(90.0));
        assert_eq!(seconds("2000"), Some(2.0));
        assert_eq!(seconds("soon"), None);
        assert_eq!(bytes("5MB"), Some(5 << 20));
        assert_eq!(bytes("100"), Some(100));
        assert_eq!(status("SERVICE_UNAVAILABLE"), Some(503));
        assert_eq!(status("401"), Some(401));
    }
}
