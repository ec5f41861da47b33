//! Where a browser thinks that it is.

use serde_json::json;
use sigma_http::HeaderId;
use sigma_plugin::{Context, Step};

/// Whether the browser speaks TLS, to the gateway or to a proxy before it that is trusted.
pub(crate) fn is_secure(ctx: &Context) -> bool {
    scheme(ctx) == "https"
}

fn scheme(ctx: &Context) -> &'static str {
    // The gateway has replaced values that did not come from a trusted proxy.
    match ctx.request.headers.get(HeaderId::XForwardedProto) {
        Some(value) if value.eq_ignore_ascii_case(b"https") => "https",
        Some(value) if value.eq_ignore_ascii_case(b"http") => "http",
        _ => ctx.scheme(),
    }
}

/// Scheme and host as the browser knows them; None if they are no text for a URL.
pub(crate) fn origin(ctx: &Context) -> Option<String> {
    let forwarded = ctx.request.headers.get(HeaderId::XForwardedHost);
    let host = forwarded.map(|value| value.split(|b| *b == b',').next().unwrap_or_default().trim_ascii());
    let host = host.filter(|host| !host.is_empty()).unwrap_or(ctx.request.authority());
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    let host = std::str::from_utf8(host)
        .ok()
        .filter(|host| !host.is_empty() && host.bytes().all(|b| is_plain(&b)))?;
    Some(format!("{}://{host}", scheme(ctx)))
}

/// Whether a browser sent the request for a page of another site. A page of the provider at this URL counts as own: it
/// ends sessions in the name of the user.
pub(crate) fn is_foreign(ctx: &Context, provider: Option<&str>) -> bool {
    let field = |name: &[u8]| ctx.request.headers.find(name).map(String::from_utf8_lossy);
    let is_provider = |page: &str| provider.is_some_and(|url| origin_of(page) == origin_of(url));
    if let Some(page) = field(b"Origin") {
        return !is_provider(&page) && origin(ctx).is_none_or(|own| !own.eq_ignore_ascii_case(&page));
    }
    let is_cross = field(b"Sec-Fetch-Site").is_some_and(|site| site.eq_ignore_ascii_case("cross-site"));
    is_cross && !field(b"Referer").is_some_and(|page| is_provider(&page))
}

/// The scheme and host of a URL; None if it does not have them.
fn origin_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next().filter(|host| !host.is_empty())?;
    Some(format!("{scheme}://{host}").to_ascii_lowercase())
}

/// The reply to a page of another site that would log the user out.
pub(crate) fn refuse_logout() -> Step {
    let message = "pages of another site may not log the user out";
    Step::json(403, &json!({ "message": message }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    #[test]
    fn pages_of_other_sites_are_foreign() {
        let check = |fields: &str, expected: bool| {
            let case = Case::new(&format!("GET /logout HTTP/1.1\nHost: app.test{fields}"));
            assert_eq!(is_foreign(&case.ctx, Some("https://id.test/realm")), expected, "{fields}");
        };
        check("", false);
        check("\nSec-Fetch-Site: none", false);
        check("\nSec-Fetch-Site: same-origin", false);
        check("\nSec-Fetch-Site: same-site", false);
        check("\nSec-Fetch-Site: cross-site", true);
        check("\nSec-Fetch-Site: Cross-Site\nReferer: https://evil.test/https://id.test/", true);
        check("\nSec-Fetch-Site: cross-site\nReferer: https://ID.test/x", false);
        check("\nOrigin: http://app.test", false);
        check("\nOrigin: https://id.test", false);
        check("\nOrigin: https://evil.test", true);
        check("\nOrigin: null", true);
    }
}
