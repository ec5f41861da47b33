//! The contexts of SkyWalking (Cross Process Propagation Headers, version 3): `sw8` and `sw8-correlation`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub(crate) const SW8: &str = "sw8";
pub(crate) const CORRELATION: &str = "sw8-correlation";

/// Bytes of a `sw8` that is read.
const CONTEXT_BYTES: usize = 3072;

/// Bytes of a part that is written: an endpoint is a path, which a client chooses.
const PART_BYTES: usize = 256;

/// Pairs of a `sw8-correlation`, and bytes of a key or value.
const PAIRS: usize = 3;
const PAIR_BYTES: usize = 128;

/// Where a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) trace: String,
    pub(crate) segment: String,
    pub(crate) span: i32,
    pub(crate) service: String,
    pub(crate) instance: String,
    pub(crate) endpoint: String,
    /// The address that the sender knows the receiver by.
    pub(crate) address: String,
}

impl Reference {
    /// From the value of a `sw8`.
    pub(crate) fn parse(value: &[u8]) -> Option<Reference> {
        if value.len() > CONTEXT_BYTES {
            return None;
        }
        let parts: Vec<&str> = std::str::from_utf8(value).ok()?.split('-').collect();
        let [sampled, trace, segment, span, service, instance, endpoint, address] = parts[..] else {
            return None;
        };
        let (trace, segment) = (decoded(trace)?, decoded(segment)?);
        let is_valid = matches!(sampled, "0" | "1") && !trace.is_empty() && !segment.is_empty();
        is_valid.then_some(Reference {
            trace,
            segment,
            span: span.parse().ok().filter(|span| *span >= 0)?,
            service: decoded(service)?,
            instance: decoded(instance)?,
            endpoint: decoded(endpoint)?,
            address: decoded(address)?,
        })
    }

    /// The value of a `sw8`.
    pub(crate) fn write(&self) -> String {
        let part = |text: &str| STANDARD.encode(shortened(text));
        format!(
            "1-{}-{}-{}-{}-{}-{}-{}",
            part(&self.trace),
            part(&self.segment),
            self.span,
            part(&self.service),
            part(&self.instance),
            part(&self.endpoint),
            part(&self.address)
        )
    }
}

/// A `sw8-correlation` as it is forwarded; None if it has nothing, or is invalid or too large.
pub(crate) fn correlation(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= CONTEXT_BYTES)?;
    let mut pairs = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once(':')?;
        let (key, value) = (decoded(key)?, decoded(value)?);
        let is_fit = !key.is_empty() && key.len() <= PAIR_BYTES && value.len() <= PAIR_BYTES;
        if !is_fit || pairs.len() == PAIRS {
            return None;
        }
        pairs.push(format!("{}:{}", STANDARD.encode(key), STANDARD.encode(value)));
    }
    (!pairs.is_empty()).then(|| pairs.join(","))
}

fn decoded(part: &str) -> Option<String> {
    let text = String::from_utf8(STANDARD.decode(part).ok()?).ok()?;
    (text.len() <= PART_BYTES).then_some(text)
}

/// No more of a text than a part may be long.
pub(crate) fn shortened(text: &str) -> &str {
    let mut end = text.len().min(PART_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_reference_is_read_as_it_is_written(
            trace in "\\PC{1,30}", segment in "\\PC{1,30}", span in 0..i32::MAX, rest in "\\PC{0,30}",
        ) {
            let part = || rest.clone();
            let reference = Reference {
                trace, segment, span, service: part(), instance: part(), endpoint: part(), address: part(),
            };
            prop_assert_eq!(Reference::parse(reference.write().as_bytes()), Some(reference));
        }

        #[test]
        fn a_correlation_is_read_as_it_is_written(pairs in prop::collection::vec(("\\PC{1,20}", "\\PC{0,20}"), 1..3)) {
            let pairs = pairs.iter().map(|(key, value)| {
                format!("{}:{}", STANDARD.encode(key), STANDARD.encode(value))
            });
            let text = pairs.collect::<Vec<_>>().join(",");
            let read = correlation(text.as_bytes());
            prop_assert_eq!(read.as_deref(), Some(&*text));
        }
    }

    #[test]
    fn invalid_references_are_refused() {
        let b = |text: &str| STANDARD.encode(text);
        let good = format!("1-{}-{}-3-{}-{}-{}-{}", b("t"), b("s"), b("a"), b("b"), b("/c"), b("h:1"));
        assert_eq!(Reference::parse(good.as_bytes()).unwrap().endpoint, "/c");
        for wrong in [
            String::new(),
            format!("{good}-x"),
            good.replacen('1', "2", 1),
            good.replace("-3-", "--1-"),
            good.replace("-3-", "-x-"),
            good.replace(&b("t"), ""),
            good.replace(&b("t"), "%"),
            good.replace(&b("t"), &b(&"t".repeat(257))),
            "-".repeat(7),
        ] {
            assert_eq!(Reference::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn correlations_are_passed_on_within_bounds() {
        let pair = |key: &str, value: &str| format!("{}:{}", STANDARD.encode(key), STANDARD.encode(value));
        let check =
            |text: String, is_fit: bool| assert_eq!(correlation(text.as_bytes()).is_some(), is_fit, "{text}");
        check(pair("a", "1"), true);
        check([pair("a", "1"), pair("b", "2"), pair("c", "")].join(","), true);
        check([pair("a", "1"), pair("b", "2"), pair("c", "3"), pair("d", "4")].join(","), false);
        check(pair("a", &"v".repeat(128)), true);
        check(pair("a", &"v".repeat(129)), false);
        check("a".to_owned(), false);
        check(String::new(), false);
        check("%:%".to_owned(), false);
    }
}
