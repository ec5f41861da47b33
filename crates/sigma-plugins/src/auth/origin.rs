//! Where a browser thinks that it is.

use sigma_http::HeaderId;
use sigma_plugin::Context;

/// Whether the browser speaks TLS, to the gateway or to a proxy before it that is trusted.
pub(super) fn is_secure(ctx: &Context) -> bool {
    scheme(ctx) == "https"
}

fn scheme(ctx: &Context) -> &'static str {
    // The gateway has replaced what was not said by a trusted proxy.
    match ctx.request.headers.get(HeaderId::XForwardedProto) {
        Some(value) if value.eq_ignore_ascii_case(b"https") => "https",
        Some(value) if value.eq_ignore_ascii_case(b"http") => "http",
        _ => ctx.scheme(),
    }
}

/// Scheme and host as the browser knows them; None if they are no text for a URL.
pub(super) fn origin(ctx: &Context) -> Option<String> {
    let forwarded = ctx.request.headers.get(HeaderId::XForwardedHost);
    let host = forwarded.map(|value| value.split(|b| *b == b',').next().unwrap_or_default().trim_ascii());
    let host = host.filter(|host| !host.is_empty()).unwrap_or(ctx.request.authority());
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    let host = std::str::from_utf8(host)
        .ok()
        .filter(|host| !host.is_empty() && host.bytes().all(|b| is_plain(&b)))?;
    Some(format!("{}://{host}", scheme(ctx)))
}
