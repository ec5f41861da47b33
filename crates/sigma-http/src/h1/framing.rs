//! The end of a message (RFC 9112 §6) and the persistence of the connection (§9.3).

use crate::header::Several;
use crate::{BodyLength, HeaderId, Headers, Method, RequestHead, ResponseHead, Version};

/// Returns the length of a request body.
///
/// # Errors
/// Returns the broken rule. Ambiguous framing is rejected: a length together with a coding, more than one length, a
/// coding other than exactly `chunked`.
pub fn request_body(head: &RequestHead) -> Result<BodyLength, &'static str> {
    let headers = &head.headers;
    if headers.has(HeaderId::TransferEncoding) {
        if head.version == Version::Http10 {
            return Err("Transfer-Encoding in an HTTP/1.0 request");
        }
        return transfer_coding(headers);
    }
    content_length(headers).map(|length| length.map_or(BodyLength::None, BodyLength::Known))
}

/// Returns the length of a response body for a request of `method`.
///
/// # Errors
/// Returns an error in the same cases as [`request_body`]; but old servers may say `identity`, and may use chunks in
/// HTTP/1.0.
pub fn response_body(head: &ResponseHead, method: Method) -> Result<BodyLength, &'static str> {
    let headers = &head.headers;
    // It is checked even without a body: a response with both is not trustworthy.
    let declared = if is_coded(headers) {
        transfer_coding(headers)?
    } else {
        content_length(headers)?.map_or(BodyLength::UntilClose, BodyLength::Known)
    };
    let bodiless = method == Method::Head || head.is_interim() || matches!(head.status, 204 | 304);
    Ok(if bodiless { BodyLength::None } else { declared })
}

/// Replaces the framing fields of a request with ones for `length`, so that the head declares exactly the body that
/// follows.
pub fn frame_request(headers: &mut Headers, length: BodyLength) {
    headers.remove_connection_fields();
    match length {
        BodyLength::Known(n) => declare(headers, n),
        BodyLength::None | BodyLength::Streamed | BodyLength::UntilClose => {
            headers.remove(HeaderId::ContentLength);
        }
    }
}

/// As [`frame_request`], for the response to a request; `to_head` is set for HEAD. Returns the length of the body
/// that may follow: some responses have no body, whatever length they declare (RFC 9112 §6.3).
pub fn frame_response(head: &mut ResponseHead, length: BodyLength, to_head: bool) -> BodyLength {
    let headers = &mut head.headers;
    headers.remove_connection_fields();
    if head.status == 204 || (100..200).contains(&head.status) {
        // RFC 9110 §8.6: a length here would be ambiguous.
        headers.remove(HeaderId::ContentLength);
        return BodyLength::None;
    }
    if to_head || head.status == 304 {
        // It states the length that the body would have. An ambiguous field is removed.
        match length {
            BodyLength::Known(n) => declare(headers, n),
            _ if content_length(headers).is_err() => headers.remove(HeaderId::ContentLength),
            _ => {}
        }
        return BodyLength::None;
    }
    match length {
        BodyLength::None => declare(headers, 0),
        BodyLength::Known(n) => declare(headers, n),
        BodyLength::Streamed | BodyLength::UntilClose => headers.remove(HeaderId::ContentLength),
    }
    length
}

/// A correct field keeps its position.
fn declare(headers: &mut Headers, length: u64) {
    if content_length(headers) != Ok(Some(length)) {
        headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(length).as_bytes());
    }
}

/// Returns true if a node keeps the connection open after its response. A coding in an HTTP/1.0 response is decoded,
/// but nothing after it is trusted (RFC 9112 §6.1).
pub fn response_persists(head: &ResponseHead) -> bool {
    let is_suspect = head.version == Version::Http10 && head.headers.has(HeaderId::TransferEncoding);
    !is_suspect && connection_persists(head.version, &head.headers)
}

/// Returns true if the sender of a head keeps the connection open after the message (RFC 9112 §9.3).
pub fn connection_persists(version: Version, headers: &Headers) -> bool {
    if !headers.has(HeaderId::Connection) {
        return version != Version::Http10;
    }
    if headers.has_token(HeaderId::Connection, b"close") {
        return false;
    }
    version != Version::Http10 || headers.has_token(HeaderId::Connection, b"keep-alive")
}

/// Returns true if a response has a transfer coding. RFC 2616 §3.6 had the name `identity` for none, which old servers
/// still send; without a coding, length or close end the body as usual.
fn is_coded(headers: &Headers) -> bool {
    match headers.only(HeaderId::TransferEncoding) {
        Ok(coding) => coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity")),
        Err(Several) => true,
    }
}

fn transfer_coding(headers: &Headers) -> Result<BodyLength, &'static str> {
    if headers.has(HeaderId::ContentLength) {
        return Err("both Transfer-Encoding and Content-Length");
    }
    let mut codings = headers.get_all(HeaderId::TransferEncoding);
    match (codings.next(), codings.next()) {
        (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(BodyLength::Streamed),
        _ => Err("a Transfer-Encoding other than exactly chunked"),
    }
}

fn content_length(headers: &Headers) -> Result<Option<u64>, &'static str> {
    match headers.only(HeaderId::ContentLength) {
        Ok(None) => Ok(None),
        Err(Several) => Err("more than one Content-Length"),
        Ok(Some(text)) => decimal(text).map(Some).ok_or("Content-Length is not a plain decimal number"),
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    /// The number of digits that never overflows.
    const SAFE_DIGITS: usize = 19;
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    if text.is_empty() {
        return None;
    }
    if text.len() <= SAFE_DIGITS {
        return text.iter().try_fold(0u64, |n, byte| Some(n * 10 + digit(byte)?));
    }
    text.iter().try_fold(0u64, |n, byte| n.checked_mul(10)?.checked_add(digit(byte)?))
}
