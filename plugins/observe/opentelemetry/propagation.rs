//! Contexts that come with a request, and those that nodes get.

use sigma_http::{HeaderId, Headers};

use super::config::Propagator;
use crate::shared::b3::{self, B3Context, Incoming, SamplingRequest};
use crate::shared::w3c::{self, SpanContext};

/// Takes the parent from a request.
pub(super) fn extract(propagators: &[Propagator], headers: &Headers) -> Option<SpanContext> {
    propagators.iter().find_map(|propagator| match propagator {
        Propagator::TraceContext => SpanContext::of(headers),
        Propagator::Baggage => None,
        Propagator::B3 => of_b3(Incoming::of_single(headers.find(b3::SINGLE.as_bytes())?).ok()?),
        Propagator::B3Multi => of_b3(Incoming::of_fields(headers)),
    })
}

fn of_b3(incoming: Incoming) -> Option<SpanContext> {
    let B3Context { trace, span, .. } = incoming.context?;
    // A sender that leaves the decision to others has not sampled it itself.
    let is_sampled = incoming.wish.is_some_and(SamplingRequest::is_sampled);
    Some(SpanContext { trace: trace.id(), span: span?, is_sampled })
}

/// Sends a node its parent. Fields of the request that belong to another trace, or cannot be forwarded, are removed.
pub(super) fn inject(
    propagators: &[Propagator],
    headers: &mut Headers,
    own: &SpanContext,
    has_parent: bool,
    is_trusted: bool,
) {
    for propagator in propagators {
        match propagator {
            // It belongs to the parent that it came with.
            Propagator::TraceContext if !has_parent || !w3c::has_fit_state(headers) => {
                headers.remove(HeaderId::Tracestate);
            }
            Propagator::Baggage if !is_trusted || !w3c::has_fit_baggage(headers) => {
                headers.remove(HeaderId::Baggage);
            }
            Propagator::B3Multi => headers.remove_name(b3::FLAGS.as_bytes()),
            Propagator::TraceContext | Propagator::Baggage | Propagator::B3 => {}
        }
    }
    tell(propagators, headers, own);
}

/// Sets the span that is the parent of all later work for a request.
pub(super) fn tell(propagators: &[Propagator], headers: &mut Headers, own: &SpanContext) {
    for propagator in propagators {
        match propagator {
            Propagator::TraceContext => headers.set_sound(HeaderId::Traceparent, &own.write()),
            Propagator::Baggage => {}
            Propagator::B3 => {
                let wish = if own.is_sampled { SamplingRequest::Yes } else { SamplingRequest::No };
                headers.replace(b3::SINGLE, b3::single(own.trace.into(), own.span, wish).as_bytes());
            }
            Propagator::B3Multi => {
                let context = B3Context { trace: own.trace.into(), span: Some(own.span), parent: None };
                b3::set_fields(headers, &context, own.is_sampled);
            }
        }
    }
}
