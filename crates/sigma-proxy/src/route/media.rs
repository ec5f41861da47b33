//! Media types of a route: `consumes` against Content-Type, `produces` against Accept.

/// A media type that a route names: `application/json`, `text/*`, `*/*`; `json` is `*/json`.
/// Parameters are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MediaType {
    /// Lower case, `*` for any.
    kind: Box<str>,
    subtype: Box<str>,
}

impl MediaType {
    pub(super) fn parse(text: &str) -> MediaType {
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let (kind, subtype) = essence.split_once('/').unwrap_or(("*", &essence));
        MediaType { kind: kind.into(), subtype: subtype.into() }
    }

    /// Returns true if a body of this Content-Type is of this type.
    fn covers(&self, content_type: &[u8]) -> bool {
        let (kind, subtype) = essence(content_type);
        fits(self.kind.as_bytes(), kind) && fits(self.subtype.as_bytes(), subtype)
    }

    /// Returns how closely one range of an Accept field describes this type: 0 not at all, 3 exactly.
    fn closeness(&self, range: &[u8]) -> u8 {
        let (kind, subtype) = essence(range);
        let is_met = |own: &str, asked: &[u8]| asked == b"*" || fits(own.as_bytes(), asked);
        match is_met(&self.kind, kind) && is_met(&self.subtype, subtype) {
            false => 0,
            true => 1 + u8::from(kind != b"*") + u8::from(subtype != b"*"),
        }
    }

    /// Returns true if an Accept field accepts this type: the closest range decides (RFC 9110 §12.5.1).
    fn is_accepted(&self, accept: &[u8]) -> bool {
        let mut best = (0, false);
        for range in accept.split(|&byte| byte == b',') {
            let closeness = self.closeness(range);
            // Equally close ranges: one that takes the type is enough.
            best = best.max((closeness, closeness > 0 && !has_zero_weight(range)));
        }
        best.1
    }
}

/// Returns true if a route that consumes `types` accepts a body of this Content-Type. No types: any body; a request
/// that does not say what its body is does not fit a type.
pub(super) fn consumes(types: &[MediaType], content_type: Option<&[u8]>) -> bool {
    types.is_empty()
        || content_type.is_some_and(|content_type| types.iter().any(|own| own.covers(content_type)))
}

/// Returns true if a route that produces `types` suits this Accept field. No field or an empty one: any type will do.
pub(super) fn produces(types: &[MediaType], accept: Option<&[u8]>) -> bool {
    let accept = accept.unwrap_or_default().trim_ascii();
    types.is_empty() || accept.is_empty() || types.iter().any(|own| own.is_accepted(accept))
}

fn fits(own: &[u8], other: &[u8]) -> bool {
    own == b"*" || own.eq_ignore_ascii_case(other)
}

/// Returns the type and subtype of a field value, without parameters.
fn essence(value: &[u8]) -> (&[u8], &[u8]) {
    let essence = value.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    match essence.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&essence[..slash], &essence[slash + 1..]),
        None => (essence, b""),
    }
}

/// Returns true if a range of an Accept field has the weight 0: "not acceptable".
fn has_zero_weight(range: &[u8]) -> bool {
    range.split(|&byte| byte == b';').skip(1).any(|parameter| {
        let parameter = parameter.trim_ascii();
        let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="));
        value.is_some_and(|value| !value.is_empty() && value.iter().all(|byte| matches!(byte, b'0' | b'.')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(list: &[&str]) -> Vec<MediaType> {
        list.iter().map(|text| MediaType::parse(text)).collect()
    }

    #[test]
    fn content_type_meets_consumes() {
        for (list, content_type, expected) in [
            (&[][..], None, true),
            (&["application/json"], None, false),
            (&["application/json"], Some("application/json"), true),
            (&["application/json"], Some("Application/JSON; charset=utf-8"), true),
            (&["application/json;charset=utf-8"], Some("application/json"), true),
            (&["application/json"], Some("text/plain"), false),
            (&["text/*", "application/json"], Some("text/csv"), true),
            (&["*/*"], Some("a/b"), true),
            (&["json"], Some("application/json"), true),
            (&["application/json"], Some("garbage"), false),
        ] {
            assert_eq!(
                consumes(&types(list), content_type.map(str::as_bytes)),
                expected,
                "{list:?} {content_type:?}"
            );
        }
    }

    #[test]
    fn accept_meets_produces() {
        for (list, accept, expected) in [
            (&[][..], Some("text/html"), true),
            (&["text/html"], None, true),
            (&["text/html"], Some(" "), true),
            (&["text/html"], Some("*/*"), true),
            (&["text/html"], Some("text/*;q=0.5"), true),
            (&["text/html"], Some("application/json"), false),
            (&["text/html"], Some("application/json, TEXT/html;q=0.1"), true),
            (&["text/html"], Some("*/*, text/html;q=0"), false),
            (&["text/html", "text/csv"], Some("*/*, text/html;q=0.000"), true),
            (&["text/html"], Some("text/*;q=0, */*"), false),
            (&["text/*"], Some("text/csv"), true),
        ] {
            assert_eq!(produces(&types(list), accept.map(str::as_bytes)), expected, "{list:?} {accept:?}");
        }
    }
}
