//! The rules that a peer is held to in every version, and the faults of those who break them.

use sigma_http::head::INTERIM_MAX;
use sigma_http::{Fault, FaultKind};

/// The fault of a node that breaks a rule.
pub(crate) fn bad_response(reason: &'static str) -> Fault {
    Fault::new(FaultKind::BadResponse, reason)
}

/// Counts another interim response.
///
/// # Errors
/// Returns an error if it is one too many.
pub(crate) fn count_interim(interims: &mut u8) -> Result<(), Fault> {
    *interims += 1;
    if *interims > INTERIM_MAX {
        return Err(bad_response("too many interim responses"));
    }
    Ok(())
}

/// Holds a request's body to its limit; 0 is none.
///
/// # Errors
/// Returns an error if so many bytes are over it.
#[inline]
pub(crate) fn check_body(bytes: u64, limit: u64) -> Result<(), Fault> {
    if limit > 0 && bytes > limit {
        return Err(Fault::new(FaultKind::RequestBodyTooLarge, "the request body is over its limit"));
    }
    Ok(())
}
