//! Where a message ends (RFC 9112 §6) and whether the connection lives on (§9.3).

use crate::{BodyLength, HeaderId, Headers, Method, RequestHead, ResponseHead, Version};

/// The length of a request's body.
///
/// # Errors
/// The broken rule. Everything that two recipients could read differently is refused: a length
/// besides a coding, more than one length, a coding other than exactly `chunked`.
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

/// The length of a response's body to a request of `method`.
///
/// # Errors
/// As [`request_body`].
pub fn response_body(head: &ResponseHead, method: Method) -> Result<BodyLength, &'static str> {
    let headers = &head.headers;
    // Checked even where no body follows: an answer with both is not to be trusted at all.
    let declared = if headers.has(HeaderId::TransferEncoding) {
        if head.version == Version::Http10 {
            return Err("Transfer-Encoding in an HTTP/1.0 response");
        }
        transfer_coding(headers)?
    } else {
        content_length(headers)?.map_or(BodyLength::UntilClose, BodyLength::Known)
    };
    let bodiless = method == Method::Head || head.is_interim() || matches!(head.status, 204 | 304);
    Ok(if bodiless { BodyLength::None } else { declared })
}

/// Whether the sender of a head keeps the connection open after the message (RFC 9112 §9.3).
pub fn connection_persists(version: Version, headers: &Headers) -> bool {
    if !headers.has(HeaderId::Connection) {
        return version != Version::Http10;
    }
    if headers.has_token(HeaderId::Connection, b"close") {
        return false;
    }
    version != Version::Http10 || headers.has_token(HeaderId::Connection, b"keep-alive")
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
    let mut lengths = headers.get_all(HeaderId::ContentLength);
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err("more than one Content-Length"),
        (Some(text), None) => decimal(text).map(Some).ok_or("Content-Length is not a plain decimal number"),
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |n, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}
