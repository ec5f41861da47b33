//! The rules for a peer in every version, and the faults of peers that break them.

use sigma_http::h1::frame_response;
use sigma_http::head::INTERIM_MAX;
use sigma_http::{BodyLength, Fault, FaultKind, HeaderId, Headers, Method, ResponseHead};

/// Adds `Alt-Svc` to a response without one (RFC 7838 §3): a node may have announced something itself.
pub(crate) fn announce(alternative: Option<&str>, head: &mut ResponseHead) {
    if let Some(value) = alternative
        && head.headers.find(b"alt-svc").is_none()
    {
        head.headers.append("Alt-Svc", value.as_bytes());
    }
}

/// The properties of a request that decide the form of its response.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ResponseForm {
    /// The response has no body, whatever its head declares.
    pub(crate) bodiless: bool,
    /// The request is a CONNECT.
    pub(crate) connects: bool,
}

impl ResponseForm {
    pub(crate) fn of(method: Method) -> ResponseForm {
        ResponseForm { bodiless: method == Method::Head, connects: method == Method::Connect }
    }
}

/// Frames a final response, as [`frame_response`] does. The response to a CONNECT is the gateway's own, and may
/// request credentials of a proxy; a node's demand is never the client's.
pub(crate) fn frame_final(head: &mut ResponseHead, length: BodyLength, form: ResponseForm) -> BodyLength {
    let demands = head.headers.get_all(HeaderId::ProxyAuthenticate).filter(|_| form.connects);
    let demands: Vec<Vec<u8>> = demands.map(<[u8]>::to_vec).collect();
    let follows = frame_response(head, length, form.bodiless);
    demands.iter().for_each(|demand| head.headers.append("Proxy-Authenticate", demand));
    follows
}

/// Returns the fault of a node that breaks a rule.
pub(crate) fn bad_response(reason: &'static str) -> Fault {
    Fault::new(FaultKind::BadResponse, reason)
}

/// Returns the fault of a client that has left, or cancelled its stream.
pub(crate) fn client_gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client closed the stream")
}

/// Returns the bytes of all names and values.
pub(crate) fn field_bytes(headers: &Headers) -> u64 {
    headers.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum()
}

/// Counts another interim response.
///
/// # Errors
/// Returns an error if it exceeds the limit.
pub(crate) fn count_interim(interims: &mut u8) -> Result<(), Fault> {
    *interims += 1;
    if *interims > INTERIM_MAX {
        return Err(bad_response("too many interim responses"));
    }
    Ok(())
}

/// Returns the lower of two limits of a body, where 0 is no limit.
pub(crate) fn lower(limit: u64, other: u64) -> u64 {
    if limit == 0 || (other > 0 && other < limit) { other } else { limit }
}

/// The fault of a request without room in the worker's budget.
pub(crate) const NO_ROOM: Fault =
    Fault::new(FaultKind::MemoryLimit, "the memory for clients is used up (limits.held_bytes_per_worker)");

/// Checks a request body against its limit; 0 is no limit.
///
/// # Errors
/// Returns an error if this number of bytes exceeds it.
#[inline]
pub(crate) fn check_body(bytes: u64, limit: u64) -> Result<(), Fault> {
    if limit > 0 && bytes > limit {
        return Err(Fault::new(FaultKind::RequestBodyTooLarge, "the request body exceeds its limit"));
    }
    Ok(())
}

/// Returns the fault of a node that ends a stream.
pub(crate) fn terminated() -> Fault {
    Fault::new(FaultKind::ConnectionTerminated, "the node ended the stream before its response")
}

/// Returns the target with certain raw bytes encoded: clients send them raw, HTTP/1 forwards them, and many servers
/// of HTTP/2 and HTTP/3 reject them (RFC 3986 §2.2 reserves none of them).
pub(crate) fn sendable(target: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    let raw = |byte: &u8| matches!(byte, b'<' | b'>' | b'`');
    if !target.iter().any(raw) {
        return target.into();
    }
    let mut out = Vec::with_capacity(target.len() + 8);
    for byte in target {
        match byte {
            b'<' => out.extend_from_slice(b"%3C"),
            b'>' => out.extend_from_slice(b"%3E"),
            b'`' => out.extend_from_slice(b"%60"),
            byte => out.push(*byte),
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_encoded_for_sending() {
        assert_eq!(&*sendable(b"/a|b?c"), b"/a|b?c");
        assert_eq!(&*sendable(b"/a|<b>?`c"), b"/a|%3Cb%3E?%60c");
    }
}
