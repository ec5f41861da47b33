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

/// The lower one of two limits of a body, where 0 is none.
pub(crate) fn lower(limit: u64, other: u64) -> u64 {
    if limit == 0 || (other > 0 && other < limit) { other } else { limit }
}

/// The fault of a request for which the worker's budget has no room.
pub(crate) const NO_ROOM: Fault =
    Fault::new(FaultKind::MemoryLimit, "memory for clients is used up (limits.held_bytes_per_worker)");

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
