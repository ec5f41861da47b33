//! What a broken rule of the wire means to an exchange.

use sigma_http::h1::ParseError;
use sigma_http::{Fault, FaultKind};

/// Interim responses to one request; a server that sends more is broken or hostile.
pub(crate) const INTERIM_MAX: u8 = 32;

/// The fault of a node whose head is none.
pub(crate) fn of_response(error: ParseError) -> Fault {
    match error {
        ParseError::Invalid(reason) => Fault::new(FaultKind::BadResponse, reason),
        ParseError::LineTooLong | ParseError::HeadTooLarge => {
            Fault::new(FaultKind::ResponseHeadTooLarge, "the response head is over its limit")
        }
    }
}
