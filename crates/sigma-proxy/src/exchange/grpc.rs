//! gRPC's demands on a proxy beyond HTTP: errors in its own format.

use sigma_http::{HeaderId, Headers, RequestHead};
use sigma_plugin::{Context, Reply};

/// The bytes of a body that become the message of an error.
const MESSAGE_BYTES: usize = 512;

/// Returns true for a gRPC call: `application/grpc`, alone or with a suffix or parameters.
pub(super) fn is_call(head: &RequestHead) -> bool {
    let Some(kind) = head.headers.get(HeaderId::ContentType) else { return false };
    let grpc = b"application/grpc";
    kind.get(..grpc.len()).is_some_and(|start| start.eq_ignore_ascii_case(grpc))
        && matches!(kind.get(grpc.len()), None | Some(b'+' | b';' | b' '))
}

/// Returns true if the client speaks gRPC, not a plugin for it.
pub(super) fn is_from_caller(ctx: &Context) -> bool {
    is_call(&ctx.request) && !ctx.is_translated
}

/// The status code of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(u8);

impl Code {
    const DEADLINE_EXCEEDED: Code = Code(4);
    const UNIMPLEMENTED: Code = Code(12);

    /// Returns the HTTP status for judging the node (Envoy's mapping); None if it says nothing about the node. A
    /// short time limit of the client is not the node's fault: `is_short` returns true if the client's time limit
    /// ended the call. Nor is a missing method: with Envoy's 501 a client could take nodes out by calling one often.
    pub(super) fn verdict(self, is_short: impl FnOnce() -> bool) -> Option<u16> {
        if self == Code::UNIMPLEMENTED || self == Code::DEADLINE_EXCEEDED && is_short() {
            return None;
        }
        Some(match self.0 {
            0 => 200,
            1 => 499,
            3 | 9 | 11 => 400,
            4 => 504,
            5 => 404,
            6 | 10 => 409,
            7 => 403,
            8 => 429,
            14 => 503,
            16 => 401,
            _ => 500,
        })
    }
}

/// Returns the code in the trailers of a response, or in a head that is the whole response. An invalid number means
/// "unknown", as in clients.
pub(super) fn ended_with(fields: &Headers) -> Option<Code> {
    let text = fields.find(b"grpc-status")?;
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    Some(Code(number.unwrap_or(2)))
}

/// Returns the code that a client derives from a status (gRPC's `doc/http-grpc-status-mapping.md`, and the codes of
/// its own servers for limits and deadlines).
fn code(status: u16) -> u8 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 | 405 | 415 => 12,
        408 | 504 => 4,
        413 | 429 | 431 => 8,
        499 => 1,
        500 => 13,
        502 | 503 => 14,
        _ => 2,
    }
}

/// Returns the trailers of a call that clients may repeat elsewhere.
pub(super) fn unavailable(message: &str) -> Headers {
    let mut trailers = Headers::default();
    trailers.append("grpc-status", code(503).to_string().as_bytes());
    trailers.append("grpc-message", &encoded(message.as_bytes()));
    trailers
}

/// Converts a reply of the gateway to gRPC: a head with the code and no body. Fields that were set for the client
/// stay.
pub(super) fn refusal(reply: Reply) -> Reply {
    let phrase = sigma_http::head::reason_phrase(reply.status).as_bytes();
    let message = reply.body.as_deref().unwrap_or(phrase).trim_ascii();
    let message = encoded(&message[..message.len().min(MESSAGE_BYTES)]);
    let mut refusal = Reply::new(200)
        .header(HeaderId::ContentType.name(), "application/grpc")
        .header("grpc-status", code(reply.status).to_string())
        .header("grpc-message", message);
    let own = |name: &str| {
        matches!(HeaderId::of(name.as_bytes()), HeaderId::ContentType | HeaderId::ContentLength)
            || name.len() > 5 && name.as_bytes()[..5].eq_ignore_ascii_case(b"grpc-")
    };
    refusal.headers.extend(reply.headers.into_iter().filter(|(name, _)| !own(name)));
    refusal.text(Vec::new())
}

/// Percent-encodes a message (gRPC over HTTP/2, "Responses").
fn encoded(text: &[u8]) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(content_type: &str) -> RequestHead {
        let mut head = RequestHead::default();
        head.headers.append("Content-Type", content_type.as_bytes());
        head
    }

    #[test]
    fn calls_are_recognized_by_their_type() {
        for (kind, call) in [
            ("application/grpc", true),
            ("Application/gRPC+proto", true),
            ("application/grpc; x=y", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_call(&head(kind)), call, "{kind}");
        }
        assert!(!is_call(&RequestHead::default()));
    }

    #[test]
    fn codes_count_as_statuses() {
        let check = |text: &str, is_short: bool, want: Option<u16>| {
            let mut fields = Headers::default();
            fields.append("grpc-status", text.as_bytes());
            let code = ended_with(&fields).expect("a code");
            assert_eq!(code.verdict(|| is_short), want, "{text} {is_short}");
        };
        let statuses = [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 0, 500, 503, 500, 401];
        for (number, status) in statuses.into_iter().enumerate() {
            // A missing method says nothing about the node.
            let status = (number != 12).then_some(status);
            check(&number.to_string(), false, status);
            check(&number.to_string(), true, status.filter(|_| number != 4));
        }
        for nonsense in ["17", "255", "256", "-1", "", "ok", "99999999999999999999"] {
            check(nonsense, true, Some(500));
        }
        assert_eq!(ended_with(&Headers::default()), None);
    }

    #[test]
    fn a_refusal_keeps_the_fields_for_the_client() {
        let reply = Reply::new(429).header("X-RateLimit-Limit", "5").text("100% used\n\u{fc}\n");
        let refusal = refusal(reply);
        let get = |name: &str| {
            let found = refusal.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        assert_eq!(refusal.status, 200);
        assert_eq!(get("grpc-status").as_deref(), Some("8"));
        assert_eq!(get("grpc-message").as_deref(), Some("100%25 used%0A%C3%BC"));
        assert_eq!(get("x-ratelimit-limit").as_deref(), Some("5"));
        assert_eq!(refusal.body.as_deref(), Some(&[][..]));
    }
}
