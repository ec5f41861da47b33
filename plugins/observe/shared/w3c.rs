//! Trace Context and Baggage of the W3C: `traceparent`, `tracestate`, `baggage`.

use sigma_http::{HeaderId, Headers};

use super::ids::{SpanId, TraceId};

/// Members of a `tracestate` (Trace Context §3.3.1.1).
const STATE_MEMBERS: usize = 32;

/// Bytes of a `tracestate`, all its fields together. The rules for its members alone would allow twice as many.
const STATE_BYTES: usize = 8192;

/// Members and bytes of a `baggage` that has to be forwarded (Baggage §3.3.2).
const BAGGAGE_MEMBERS: usize = 64;
const BAGGAGE_BYTES: usize = 8192;

/// A span as others know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanContext {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    pub(crate) is_sampled: bool,
}

impl SpanContext {
    /// A span that collectors get, by its ids.
    pub(crate) fn sampled(trace: [u8; 16], span: [u8; 8]) -> SpanContext {
        SpanContext { trace: TraceId::of(trace), span: SpanId::of(span), is_sampled: true }
    }

    /// From the value of a `traceparent`. Later versions may have more behind what version 00 has.
    pub(crate) fn parse(value: &[u8]) -> Option<SpanContext> {
        let mut parts = value.split(|byte| *byte == b'-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_digits = |part: &[u8]| part.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
        let is_valid = version.len() == 2
            && flags.len() == 2
            && [version, trace, span, flags].into_iter().all(is_digits)
            && version != b"ff"
            && (version != b"00" || parts.next().is_none());
        // The lowest bit of the flags has it, with any meaning of the others in a later version.
        let is_sampled = (*flags.get(1)? as char).to_digit(16)? & 1 == 1;
        let (trace, span) = (TraceId::parse(trace)?, SpanId::parse(span)?);
        is_valid.then_some(SpanContext { trace, span, is_sampled })
    }

    /// The value of a `traceparent`.
    pub(crate) fn write(&self) -> [u8; 55] {
        let mut out = *b"00-00000000000000000000000000000000-0000000000000000-00";
        out[3..35].copy_from_slice(&self.trace.hex());
        out[36..52].copy_from_slice(&self.span.hex());
        out[54] = if self.is_sampled { b'1' } else { b'0' };
        out
    }

    /// Returns the context of a request. None if the field occurs twice.
    pub(crate) fn of(headers: &Headers) -> Option<SpanContext> {
        let mut values = headers.get_all(HeaderId::Traceparent);
        let value = values.next()?;
        SpanContext::parse(value).filter(|_| values.next().is_none())
    }
}

/// Whether the `tracestate` of a request, all its fields together, may be forwarded. One that is invalid or too large
/// goes away as a whole.
pub(crate) fn has_fit_state(headers: &Headers) -> bool {
    let limits = ListLimits { members: STATE_MEMBERS, bytes: STATE_BYTES };
    is_fit(headers, HeaderId::Tracestate, limits, is_state_member)
}

/// The same for its `baggage`.
pub(crate) fn has_fit_baggage(headers: &Headers) -> bool {
    let limits = ListLimits { members: BAGGAGE_MEMBERS, bytes: BAGGAGE_BYTES };
    is_fit(headers, HeaderId::Baggage, limits, is_baggage_member)
}

/// The limits of a list in fields.
#[derive(Clone, Copy)]
struct ListLimits {
    members: usize,
    /// The bytes of all its fields together.
    bytes: usize,
}

fn is_fit(headers: &Headers, id: HeaderId, limits: ListLimits, is_member: fn(&[u8]) -> bool) -> bool {
    let (mut members, mut bytes) = (0, 0);
    for value in headers.get_all(id) {
        bytes += value.len();
        if bytes > limits.bytes {
            return false;
        }
        for member in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if member.is_empty() {
                continue;
            }
            members += 1;
            if members > limits.members || !is_member(member) {
                return false;
            }
        }
    }
    true
}

/// `key=value` of a `tracestate` (§3.3.1.3).
fn is_state_member(member: &[u8]) -> bool {
    let Some(at) = member.iter().position(|byte| *byte == b'=') else { return false };
    let (key, value) = (&member[..at], &member[at + 1..]);
    let is_part = |part: &[u8], most: usize| {
        let mut letters = part.iter();
        let first = letters.next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let is_letter =
            |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'*' | b'/');
        first && part.len() <= most && letters.all(is_letter)
    };
    let is_key = match key.iter().position(|byte| *byte == b'@') {
        // `tenant@system`
        Some(at) => is_part(&key[..at], 241) && is_part(&key[at + 1..], 14),
        None => is_part(key, 256),
    };
    is_key && value.len() <= 256 && value.iter().all(|b| matches!(b, 0x20..=0x7e) && *b != b'=')
}

/// `key=value` of a `baggage`, with properties behind it.
fn is_baggage_member(member: &[u8]) -> bool {
    let Some(at) = member.iter().position(|byte| *byte == b'=') else { return false };
    let key = member[..at].trim_ascii();
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !key.is_empty() && key.iter().all(is_token) && member.iter().all(|b| matches!(b, b'\t' | 0x20..=0x7e))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    proptest! {
        #[test]
        fn a_context_is_read_as_it_is_written(trace: [u8; 16], span: [u8; 8], is_sampled: bool) {
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let ids = (TraceId::parse(hex(&trace).as_bytes()), SpanId::parse(hex(&span).as_bytes()));
            prop_assume!(ids.0.is_some() && ids.1.is_some());
            let context = SpanContext { trace: ids.0.unwrap(), span: ids.1.unwrap(), is_sampled };
            prop_assert_eq!(SpanContext::parse(&context.write()), Some(context));
        }
    }

    #[test]
    fn valid_traceparents() {
        let check = |value: &str, expected: Option<bool>| {
            let found = SpanContext::parse(value.as_bytes());
            assert_eq!(found.map(|context| context.is_sampled), expected, "{value}");
        };
        check(&format!("00-{TRACE}-{SPAN}-01"), Some(true));
        check(&format!("00-{TRACE}-{SPAN}-00"), Some(false));
        // With the random flag of level 2, and with unknown flags.
        check(&format!("00-{TRACE}-{SPAN}-03"), Some(true));
        check(&format!("00-{TRACE}-{SPAN}-fe"), Some(false));
        check(&format!("cc-{TRACE}-{SPAN}-01-what-comes-later"), Some(true));
        for wrong in [
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            String::new(),
            "-".repeat(9000),
        ] {
            check(&wrong, None);
        }
    }

    #[test]
    fn two_parents_are_ignored() {
        let mut headers = Headers::default();
        headers.add(HeaderId::Traceparent, format!("00-{TRACE}-{SPAN}-01").as_bytes());
        assert!(SpanContext::of(&headers).is_some());
        headers.append("Traceparent", format!("00-{TRACE}-{SPAN}-01").as_bytes());
        assert_eq!(SpanContext::of(&headers), None);
    }

    fn with(id: HeaderId, values: &[&str]) -> Headers {
        let mut headers = Headers::default();
        values.iter().for_each(|value| headers.add(id, value.as_bytes()));
        headers
    }

    #[test]
    fn states_are_passed_on_within_bounds() {
        let check = |values: &[&str], expected: bool| {
            assert_eq!(has_fit_state(&with(HeaderId::Tracestate, values)), expected, "{values:?}");
        };
        let many = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        check(&[], true);
        check(&["rojo=00f067aa0ba902b7, congo=t61rcWkgMzE", "tenant@system=1"], true);
        check(&["a=1,,b=2,"], true);
        check(&[&many(32)], true);
        check(&[&many(33)], false);
        check(&[&many(32), "k=v"], false);
        check(&["A=1"], false);
        check(&["a"], false);
        check(&["=1"], false);
        check(&["a=1=2"], false);
        check(&[&format!("a={}", "v".repeat(256))], true);
        check(&[&format!("a={}", "v".repeat(257))], false);
        check(&[&format!("{}=v", "k".repeat(257))], false);
        check(&["tenant@toolongsystemname=1"], false);
        let large = (0..32).map(|n| format!("k{n}={}", "v".repeat(255))).collect::<Vec<_>>().join(",");
        check(&[&large], false);
    }

    #[test]
    fn baggage_is_passed_on_within_bounds() {
        let check = |value: &str, expected: bool| {
            assert_eq!(has_fit_baggage(&with(HeaderId::Baggage, &[value])), expected, "{value}");
        };
        check("user=jack;p=1;q , region=eu%20west", true);
        check("no value", false);
        check("a b=1", false);
        check(&(0..64).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(","), true);
        check(&(0..65).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(","), false);
        check(&format!("a={}", "v".repeat(8190)), true);
        check(&format!("a={}", "v".repeat(8191)), false);
    }
}
