//! Where a message ends (RFC 9112 §6) and whether the connection lives on (§9.3).

use crate::header::Several;
use crate::{BodyLength, HeaderId, Headers, Method, RequestHead, ResponseHead, Version};

/// The length of a request's body.
///
/// # Errors
/// Returns the broken rule. Everything that two recipients could read differently is refused: a length
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
/// Returns an error if [`request_body`] would.
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

/// Makes the framing fields of a request say what its body's `length` is, whatever they said
/// before: a head never declares a body that does not follow it.
pub fn frame_request(headers: &mut Headers, length: BodyLength) {
    headers.remove_connection_fields();
    match length {
        BodyLength::Known(n) => declare(headers, n),
        BodyLength::None | BodyLength::Streamed | BodyLength::UntilClose => {
            headers.remove(HeaderId::ContentLength);
        }
    }
}

/// As [`frame_request`], for the answer to a request whose method was HEAD or not. Returns the
/// length of what may follow: some answers have no body whatever their length is said to be
/// (RFC 9112 §6.3).
pub fn frame_response(head: &mut ResponseHead, length: BodyLength, to_head: bool) -> BodyLength {
    let headers = &mut head.headers;
    headers.remove_connection_fields();
    if head.status == 204 || (100..200).contains(&head.status) {
        // RFC 9110 §8.6: a length here could only be misread.
        headers.remove(HeaderId::ContentLength);
        return BodyLength::None;
    }
    if to_head || head.status == 304 {
        // It tells the length that the body would have. A field that could be read in two ways is removed.
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

/// A field that says so already keeps its place.
fn declare(headers: &mut Headers, length: u64) {
    if content_length(headers) != Ok(Some(length)) {
        headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(length).as_bytes());
    }
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
    match headers.only(HeaderId::ContentLength) {
        Ok(None) => Ok(None),
        Err(Several) => Err("more than one Content-Length"),
        Ok(Some(text)) => decimal(text).map(Some).ok_or("Content-Length is not a plain decimal number"),
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    /// Digits that no number of them is too large for.
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
