//! Conditions of requests to nodes, where what is kept is asked for anew.

use sigma_cache::Stored;
use sigma_http::Headers;

/// Whether anything tells one version of it from another.
pub(super) fn has_validators(stored: &Stored) -> bool {
    stored.headers.find(b"ETag").is_some() || stored.headers.find(b"Last-Modified").is_some()
}

/// Takes a client's own conditions out of a request.
pub(super) fn ask_without_condition(request: &mut Headers) {
    for name in ["If-None-Match", "If-Modified-Since", "If-Range"] {
        request.remove_name(name.as_bytes());
    }
}

/// Makes a request one for what is newer than what is kept (RFC 9111 §4.3.1). Conditions of the client's own would have
/// the node compare with what the client has.
pub(super) fn ask_whether_good(request: &mut Headers, stale: &Stored) {
    ask_without_condition(request);
    if let Some(tag) = stale.headers.find(b"ETag") {
        request.append("If-None-Match", tag);
    }
    if let Some(modified) = stale.headers.find(b"Last-Modified") {
        request.append("If-Modified-Since", modified);
    }
}
