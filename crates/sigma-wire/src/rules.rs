//! What a broken rule of the wire means to an exchange.

use sigma_http::h1::ParseError;
use sigma_http::{Fault, FaultKind};

/// Interim responses to one request; a server that sends more is broken or hostile.
pub(crate) const INTERIM_MAX: u8 = 32;

/// The fault of a node that sends no valid head.
pub(crate) fn of_response(error: ParseError) -> Fault {
    match error {
        ParseError::Invalid(reason) => Fault::new(FaultKind::BadResponse, reason),
        ParseError::LineTooLong | ParseError::HeadTooLarge => {
            Fault::new(FaultKind::ResponseHeadTooLarge, "the response head is over its limit")
        }
    }
}

/// The fault of a client that sends no valid head.
pub(crate) fn of_request(error: ParseError) -> Fault {
    match error {
        ParseError::Invalid(reason) => Fault::new(FaultKind::BadRequest, reason),
        ParseError::LineTooLong => Fault::new(FaultKind::UriTooLong, "the request line is over its limit"),
        ParseError::HeadTooLarge => {
            Fault::new(FaultKind::RequestHeadTooLarge, "the request head is over its limit")
        }
    }
}

/// The fault of a client that sends more than it may.
pub(crate) fn body_too_large() -> Fault {
    Fault::new(FaultKind::RequestBodyTooLarge, "the request body is over its limit")
}
