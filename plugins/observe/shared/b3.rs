//! B3, the propagation of Zipkin: fields of their own for each value (`X-B3-TraceId` …), or one for all (`b3`).

use sigma_http::Headers;
use sigma_plugin::OwnedField;

use super::ids::{SpanId, TraceId};

pub(crate) const SINGLE: &str = "b3";
pub(crate) const TRACE: &str = "X-B3-TraceId";
pub(crate) const SPAN: &str = "X-B3-SpanId";
pub(crate) const PARENT: &str = "X-B3-ParentSpanId";
pub(crate) const SAMPLED: &str = "X-B3-Sampled";
pub(crate) const FLAGS: &str = "X-B3-Flags";

/// The request fields of traces.
pub(crate) fn owned_fields() -> Vec<OwnedField> {
    [SINGLE, TRACE, SPAN, PARENT, SAMPLED, FLAGS].map(OwnedField::shared).into()
}

/// The id of a trace, which has 8 bytes or 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct B3Trace {
    id: TraceId,
    /// It came with 16 digits, and leaves with as many.
    is_short: bool,
}

impl From<TraceId> for B3Trace {
    fn from(id: TraceId) -> B3Trace {
        B3Trace { id, is_short: false }
    }
}

impl B3Trace {
    fn parse(digits: &[u8]) -> Option<B3Trace> {
        let is_short = digits.len() == 16;
        let id = match is_short {
            false => TraceId::parse(digits)?,
            true => {
                let mut long = [b'0'; 32];
                long[16..].copy_from_slice(digits);
                TraceId::parse(&long)?
            }
        };
        Some(B3Trace { id, is_short })
    }

    /// With leading zeros if it is short.
    pub(crate) fn id(self) -> TraceId {
        self.id
    }

    /// Its digits.
    pub(crate) fn hex(self) -> String {
        let digits = self.id.hex();
        super::ids::text(if self.is_short { &digits[16..] } else { &digits })
    }
}

/// The span of a request's sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct B3Context {
    pub(crate) trace: B3Trace,
    /// Some senders leave it out.
    pub(crate) span: Option<SpanId>,
    pub(crate) parent: Option<SpanId>,
}

/// Whether a sender wants its request to be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SamplingRequest {
    No,
    Yes,
    /// Independent of any sampling rate.
    Debug,
}

/// The content of a request's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Incoming {
    pub(crate) context: Option<B3Context>,
    /// There are ids, and one of them is invalid.
    pub(crate) is_invalid: bool,
    pub(crate) wish: Option<SamplingRequest>,
}

/// A `b3` that is neither ids nor a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoB3;

impl Incoming {
    /// From the value of a `b3`.
    ///
    /// # Errors
    /// Returns an error if there is one part only and it is no wish.
    pub(crate) fn of_single(value: &[u8]) -> Result<Incoming, NoB3> {
        let mut parts = value.splitn(4, |byte| *byte == b'-');
        let first = parts.next().unwrap_or_default();
        let Some(span) = parts.next() else {
            let wish = Some(wish(first).ok_or(NoB3)?);
            return Ok(Incoming { wish, ..Incoming::default() });
        };
        let (sampled, parent) = (parts.next(), parts.next());
        let wish = sampled.and_then(wish);
        Ok(Incoming { wish, ..Incoming::of_ids(Some(first), Some(span), parent) })
    }

    /// From the fields that have a value each.
    pub(crate) fn of_fields(headers: &Headers) -> Incoming {
        let field = |name: &str| headers.find(name.as_bytes());
        let debug = field(FLAGS).filter(|flags| **flags == *b"1").map(|_| SamplingRequest::Debug);
        let told = field(SAMPLED).and_then(wish);
        Incoming { wish: told.or(debug), ..Incoming::of_ids(field(TRACE), field(SPAN), field(PARENT)) }
    }

    fn of_ids(trace: Option<&[u8]>, span: Option<&[u8]>, parent: Option<&[u8]>) -> Incoming {
        let span_of = |digits: Option<&[u8]>| match digits {
            None => Some(None),
            Some(digits) => SpanId::parse(digits).map(Some),
        };
        let Some(trace) = trace else { return Incoming::default() };
        match (B3Trace::parse(trace), span_of(span), span_of(parent)) {
            (Some(trace), Some(span), Some(parent)) => {
                Incoming { context: Some(B3Context { trace, span, parent }), ..Incoming::default() }
            }
            _ => Incoming { is_invalid: true, ..Incoming::default() },
        }
    }
}

fn wish(text: &[u8]) -> Option<SamplingRequest> {
    match text {
        b"0" | b"false" => Some(SamplingRequest::No),
        b"1" | b"true" => Some(SamplingRequest::Yes),
        b"d" => Some(SamplingRequest::Debug),
        _ => None,
    }
}

impl SamplingRequest {
    /// Whether the request is to be sampled.
    pub(crate) fn is_sampled(self) -> bool {
        self != SamplingRequest::No
    }
}

/// The value of a `b3` for a span.
pub(crate) fn single(trace: B3Trace, span: SpanId, wish: SamplingRequest) -> String {
    let wish = match wish {
        SamplingRequest::No => '0',
        SamplingRequest::Yes => '1',
        SamplingRequest::Debug => 'd',
    };
    format!("{}-{}-{wish}", trace.hex(), super::ids::text(&span.hex()))
}

/// Tells a node the span that it is asked from, a value a field.
pub(crate) fn set_fields(headers: &mut Headers, context: &B3Context, is_sampled: bool) {
    headers.replace(TRACE, context.trace.hex().as_bytes());
    match context.span {
        Some(span) => headers.replace(SPAN, &span.hex()),
        None => headers.remove_name(SPAN.as_bytes()),
    }
    match context.parent {
        Some(parent) => headers.replace(PARENT, &parent.hex()),
        None => headers.remove_name(PARENT.as_bytes()),
    }
    headers.replace(SAMPLED, if is_sampled { b"1" } else { b"0" });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG: &str = "80f198ee56343ba864fe8b2a57d3eff7";
    const SHORT: &str = "64fe8b2a57d3eff7";
    const OWN: &str = "e457b5a2e4d86bd1";
    const PARENTS: &str = "05e3ac9a4f6e3b90";

    fn context(trace: &str, span: &str, parent: Option<&str>) -> Option<B3Context> {
        Some(B3Context {
            trace: B3Trace::parse(trace.as_bytes()).unwrap(),
            span: SpanId::parse(span.as_bytes()),
            parent: parent.and_then(|digits| SpanId::parse(digits.as_bytes())),
        })
    }

    #[test]
    fn one_field_for_all() {
        let check = |value: &str, expected: Result<(Option<B3Context>, Option<SamplingRequest>), NoB3>| {
            let found = Incoming::of_single(value.as_bytes());
            assert_eq!(found.map(|found| (found.context, found.wish)), expected, "{value}");
        };
        check(
            &format!("{LONG}-{OWN}-1-{PARENTS}"),
            Ok((context(LONG, OWN, Some(PARENTS)), Some(SamplingRequest::Yes))),
        );
        check(&format!("{SHORT}-{OWN}-d"), Ok((context(SHORT, OWN, None), Some(SamplingRequest::Debug))));
        check(&format!("{LONG}-{OWN}"), Ok((context(LONG, OWN, None), None)));
        check("0", Ok((None, Some(SamplingRequest::No))));
        check("1", Ok((None, Some(SamplingRequest::Yes))));
        check("d", Ok((None, Some(SamplingRequest::Debug))));
        check("", Err(NoB3));
        check(LONG, Err(NoB3));
        check("x-y-0", Ok((None, Some(SamplingRequest::No))));
        check(&format!("{LONG}-{OWN}-1-x"), Ok((None, Some(SamplingRequest::Yes))));
        assert!(Incoming::of_single(b"x-y").unwrap().is_invalid);
    }

    #[test]
    fn a_field_for_each() {
        let check = |fields: &[(&str, &str)], expected: Incoming| {
            let mut headers = Headers::default();
            fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
            assert_eq!(Incoming::of_fields(&headers), expected, "{fields:?}");
        };
        let found = |context, wish| Incoming { context, wish, is_invalid: false };
        check(&[], Incoming::default());
        check(
            &[(TRACE, LONG), (SPAN, OWN), (SAMPLED, "1")],
            found(context(LONG, OWN, None), Some(SamplingRequest::Yes)),
        );
        check(&[(TRACE, LONG), (SPAN, "1")], Incoming { is_invalid: true, ..Incoming::default() });
        check(&[(SPAN, OWN), (SAMPLED, "false")], found(None, Some(SamplingRequest::No)));
        check(&[(FLAGS, "1")], found(None, Some(SamplingRequest::Debug)));
        check(&[(FLAGS, "1"), (SAMPLED, "0")], found(None, Some(SamplingRequest::No)));
        check(&[(FLAGS, "0"), (SAMPLED, "maybe")], Incoming::default());
    }

    proptest! {
        #[test]
        fn both_forms_are_read_as_they_are_written(long: [u8; 16], span: [u8; 8], is_short: bool, wish in 0..3_usize) {
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let trace = B3Trace::parse(hex(if is_short { &long[..8] } else { &long }).as_bytes());
            let span = SpanId::parse(hex(&span).as_bytes());
            prop_assume!(trace.is_some() && span.is_some());
            let (trace, wish) = (trace.unwrap(), [SamplingRequest::No, SamplingRequest::Yes, SamplingRequest::Debug][wish]);
            let context = B3Context { trace, span, parent: None };
            let read = Incoming::of_single(single(trace, span.unwrap(), wish).as_bytes()).unwrap();
            prop_assert_eq!(read, Incoming { context: Some(context), wish: Some(wish), is_invalid: false });
            let mut headers = Headers::default();
            set_fields(&mut headers, &context, wish.is_sampled());
            let read = Incoming::of_fields(&headers);
            prop_assert_eq!((read.context, read.wish.map(SamplingRequest::is_sampled)), (Some(context), Some(wish.is_sampled())));
        }
    }
}
