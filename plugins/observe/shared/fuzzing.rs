//! Invariants of trace contexts, for any input of a client.

use sigma_http::Headers;

use super::b3::{self, B3Context, Incoming, SamplingRequest};
use super::sw8::{self, Reference};
use super::w3c::{self, SpanContext};

/// Values of fields, with line feeds between them: a parsed value reads the same after writing, and passed-on
/// values are within the bounds.
pub fn trace_headers(input: &[u8]) {
    let (mut headers, mut bytes) = (Headers::default(), 0);
    for value in input.split(|byte| *byte == b'\n') {
        bytes += value.len();
        if let Some(context) = SpanContext::parse(value) {
            assert_eq!(SpanContext::parse(&context.write()), Some(context));
        }
        if let Ok(Incoming { context: Some(B3Context { trace, span: Some(span), .. }), .. }) =
            Incoming::of_single(value)
        {
            let written = b3::single(trace, span, SamplingRequest::Yes);
            let again = Incoming::of_single(written.as_bytes()).map(|again| again.context);
            assert_eq!(again, Ok(Some(B3Context { trace, span: Some(span), parent: None })), "{written}");
        }
        if let Some(reference) = Reference::parse(value) {
            assert_eq!(Reference::parse(reference.write().as_bytes()), Some(reference));
        }
        if let Some(correlation) = sw8::correlation(value) {
            assert_eq!(sw8::correlation(correlation.as_bytes()).as_deref(), Some(&*correlation));
        }
        for name in ["tracestate", "baggage", b3::TRACE, b3::SPAN, b3::SAMPLED, b3::FLAGS] {
            headers.append(name, value);
        }
    }
    if w3c::has_fit_state(&headers) || w3c::has_fit_baggage(&headers) {
        assert!(bytes <= 8192, "more passes than may");
    }
    if let Incoming { context: Some(context), wish, .. } = Incoming::of_fields(&headers) {
        let mut written = Headers::default();
        b3::set_fields(&mut written, &context, wish.is_some_and(SamplingRequest::is_sampled));
        assert_eq!(Incoming::of_fields(&written).context, Some(context));
    }
}
