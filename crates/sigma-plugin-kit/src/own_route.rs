//! Responses from another route of this gateway, for error pages and fallbacks.

use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::outbound::{Call, GATEWAY, GATEWAY_INTERNAL, ServiceResponse, named_internal};
use sigma_plugin::record::Source;
use sigma_plugin::{Context, Reply};

use crate::fields::frames;

/// Largest response body in bytes, which is in memory until it is sent. Pages are far smaller.
pub const MOST_BODY_BYTES: usize = 1 << 20;

/// Largest request body in bytes that another route gets.
pub const MOST_REQUEST_BYTES: usize = 1 << 20;

/// Time until the other route must have responded, in milliseconds; the default of timeouts of nodes.
const TIMEOUT_MS: u64 = 60_000;

/// The request fields of conditions and ranges, which are about the first resource.
const CONDITIONS: [&str; 6] =
    ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range"];

/// Returns a GET for a page that replaces the response to the request, with the fields of the request.
pub fn page(ctx: &Context, target: Vec<u8>) -> Call {
    let mut headers = fields(ctx);
    for name in CONDITIONS {
        headers.remove_name(name.as_bytes());
    }
    headers.remove_where(|_, name| name.len() >= 8 && name[..8].eq_ignore_ascii_case(b"content-"));
    call(ctx, target, Method::Get, headers, None)
}

/// Returns the same request with its own target for the internal routes with a name; None if its body is gone, unless
/// `drops_body` is set.
pub fn named(ctx: &Context, name: &str, drops_body: bool) -> Option<Call> {
    if ctx.has_request_body && ctx.body.is_none() && !drops_body {
        return None;
    }
    let mut headers = fields(ctx);
    for name in CONDITIONS {
        headers.remove_name(name.as_bytes());
    }
    let target = ctx.request.path_and_query().to_vec();
    let call = call(ctx, target, ctx.request.method, headers, ctx.body.clone());
    Some(Call { upstream: named_internal(name), ..call })
}

/// Returns the same request with another target.
pub fn request(ctx: &Context, target: Vec<u8>) -> Call {
    call(ctx, target, ctx.request.method, fields(ctx), ctx.body.clone())
}

fn call(ctx: &Context, target: Vec<u8>, method: Method, headers: Headers, body: Option<Vec<u8>>) -> Call {
    // A value of the client's in the target must not lead out of the folder in front of it to an internal route.
    let upstream = if has_dot_segment(&target) { GATEWAY } else { GATEWAY_INTERNAL };
    Call {
        upstream: upstream.into(),
        method,
        target,
        host: String::from_utf8_lossy(ctx.request.authority()).into(),
        headers,
        passes: ctx.passes(),
        body,
        timeout_ms: TIMEOUT_MS,
        limit: MOST_BODY_BYTES,
    }
}

/// Returns true if a path leads to another folder than its text says.
fn has_dot_segment(target: &[u8]) -> bool {
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    path.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| {
        let plain = segment.to_ascii_lowercase();
        let plain = String::from_utf8_lossy(&plain).replace("%2e", ".");
        matches!(plain.split(';').next(), Some("." | ".."))
    })
}

/// The fields of the request, without those that frame it. The response is not encoded, as its plugins come later.
fn fields(ctx: &Context) -> Headers {
    let mut fields = ctx.request.headers.clone();
    fields.remove_hop_by_hop();
    fields.remove_where(|id, _| {
        matches!(
            id,
            HeaderId::Host
                | HeaderId::AcceptEncoding
                | HeaderId::Expect
                | HeaderId::CdnLoop
                | HeaderId::ContentLength
        )
    });
    if ctx.record.source != Source::Gateway {
        remove_last_hop(&mut fields, &ctx.remote_addr());
    }
    fields.remove(HeaderId::XRealIp);
    if let Some(addr) = ctx.client.addr {
        fields.set(HeaderId::XRealIp, addr.to_canonical().to_string().as_bytes());
    }
    fields
}

/// Removes the client's address that was appended for a node: the other route appends it again.
fn remove_last_hop(fields: &mut Headers, client: &str) {
    let Some(chain) = fields.get(HeaderId::XForwardedFor) else { return };
    let (before, last) = match chain.iter().rposition(|byte| *byte == b',') {
        Some(at) => (chain[..at].trim_ascii().to_vec(), &chain[at + 1..]),
        None => (Vec::new(), chain),
    };
    if last.trim_ascii() != client.as_bytes() {
        return;
    }
    match before.is_empty() {
        true => fields.remove(HeaderId::XForwardedFor),
        false => fields.set(HeaderId::XForwardedFor, &before),
    }
}

/// Returns the response with this status.
pub fn reply(answer: ServiceResponse, status: u16) -> Reply {
    let ServiceResponse { headers, body, .. } = answer;
    // The response to HEAD names the length of a body that it does not have.
    let length = headers.get(HeaderId::ContentLength).filter(|_| body.is_empty());
    let unsent_length = length.and_then(|length| std::str::from_utf8(length).ok()?.parse().ok());
    let mut reply = Reply { is_passed_on: true, unsent_length, ..Reply::new(status) }.text(body);
    for (name, value) in headers.iter() {
        let name = String::from_utf8_lossy(name).into_owned();
        if !frames(&name) && !matches!(HeaderId::of(name.as_bytes()), HeaderId::Server | HeaderId::Date) {
            reply = reply.header(name, value);
        }
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_for_a_node_is_not_appended_twice() {
        let mut fields = Headers::default();
        fields.append("X-Forwarded-For", b"203.0.113.9, 127.0.0.1");
        remove_last_hop(&mut fields, "127.0.0.2");
        remove_last_hop(&mut fields, "127.0.0.1");
        assert_eq!(fields.find(b"X-Forwarded-For"), Some(&b"203.0.113.9"[..]));
        remove_last_hop(&mut fields, "203.0.113.9");
        assert_eq!(fields.find(b"X-Forwarded-For"), None);
    }

    #[test]
    fn internal_routes_are_out_of_reach_of_dot_segments() {
        for target in
            ["/a/../b", "/a/%2e%2E/b", "/a/.%2e/b", "/a/./b", "/a/..;x/b", "/a/..", "/a\\..\\b", "/.."]
        {
            let call = page(&Context::default(), target.as_bytes().to_vec());
            assert_eq!(&*call.upstream, GATEWAY, "{target}");
        }
        for target in ["/a/b", "/a/..b", "/a?x=/../b", "/", "/a/b.../c"] {
            let call = request(&Context::default(), target.as_bytes().to_vec());
            assert_eq!(&*call.upstream, GATEWAY_INTERNAL, "{target}");
        }
    }
}
