//! Conditions of requests that revalidate a stored response.

use sigma_cache::Stored;
use sigma_http::Headers;

/// Returns true if it has a validator.
pub(super) fn has_validators(stored: &Stored) -> bool {
    stored.headers.find(b"ETag").is_some() || stored.headers.find(b"Last-Modified").is_some()
}

/// Removes a client's own conditions from a request.
pub(super) fn ask_without_condition(request: &mut Headers) {
    for name in ["If-None-Match", "If-Modified-Since", "If-Range"] {
        request.remove_name(name.as_bytes());
    }
}

/// Makes a request conditional on a newer version than the stored one (RFC 9111 §4.3.1). The client's own conditions
/// would make the node compare with the client's version.
pub(super) fn ask_whether_good(request: &mut Headers, stale: &Stored) {
    ask_without_condition(request);
    if let Some(tag) = stale.headers.find(b"ETag") {
        request.append("If-None-Match", tag);
    }
    if let Some(modified) = stale.headers.find(b"Last-Modified") {
        request.append("If-Modified-Since", modified);
    }
}
