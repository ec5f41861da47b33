//! The return URL of a browser after a login: always on this host.

use sigma_plugin::Context;
use sigma_plugin::variables::percent_encode_path;

/// The path of a request as a target of a redirect. It begins with one slash, so that it names no host.
pub(crate) fn path(ctx: &Context) -> String {
    let mut target = Vec::with_capacity(ctx.uri.len() + 1);
    target.push(b'/');
    let is_slash = |byte: &&u8| matches!(**byte, b'/' | b'\\');
    let slashes = ctx.uri.iter().take_while(is_slash).count();
    percent_encode_path(&ctx.uri[slashes..], &mut target);
    // The encoded text is ASCII.
    String::from_utf8_lossy(&target).into_owned()
}

/// The path and the query.
pub(crate) fn path_and_query(ctx: &Context) -> String {
    let mut target = path(ctx);
    if let Some(query) = ctx.request.query() {
        target.push('?');
        for &byte in query {
            match byte {
                b'\\' | b'"' | b'<' | b'>' | 0..=0x20 | 0x7f.. => target.push_str(&format!("%{byte:02X}")),
                byte => target.push(char::from(byte)),
            }
        }
    }
    target
}

/// The path and the query; the path alone, or `/`, where that is longer than a cookie has room for.
pub(crate) fn within(bytes: usize, ctx: &Context) -> String {
    let fits = |target: &String| target.len() <= bytes;
    let found = [path_and_query, path].iter().map(|target| target(ctx)).find(fits);
    found.unwrap_or_else(|| "/".to_owned())
}

/// Whether a target that came back is one of this host.
pub(crate) fn is_own(target: &[u8]) -> bool {
    target.first() == Some(&b'/')
        && !matches!(target.get(1), Some(b'/' | b'\\'))
        && target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    #[test]
    fn no_request_leads_elsewhere() {
        let check = |raw: &str, expected: &str| {
            let case =
                Case::new(&format!("GET {raw} HTTP/1.1\nHost: evil.test\nX-Forwarded-Host: evil.test"));
            assert_eq!(path_and_query(&case.ctx), expected, "{raw}");
            assert!(is_own(path_and_query(&case.ctx).as_bytes()), "{raw}");
            assert_eq!(path(&case.ctx), expected.split('?').next().unwrap(), "{raw}");
        };
        check("/a%20b/%C3%BC?c=d%20e&f=http://x", "/a%20b/%C3%BC?c=d%20e&f=http://x");
        check("//evil.test/a", "/evil.test/a");
        check("/%2Fevil.test", "/evil.test");
        check("/%5Cevil.test", "/evil.test");
        check("/%5C%2F%5Cevil.test", "/evil.test");
        check("/a%0d%0aSet-Cookie:x", "/a%0D%0ASet-Cookie:x");
        check("/a%3Fb?c\\d", "/a%3Fb?c%5Cd");
        check("/", "/");
    }

    #[test]
    fn a_way_back_has_room_in_a_cookie() {
        let case = Case::new("GET /orders?page=2 HTTP/1.1\nHost: h");
        for (bytes, expected) in [(14, "/orders?page=2"), (13, "/orders"), (6, "/")] {
            assert_eq!(within(bytes, &case.ctx), expected);
        }
    }

    #[test]
    fn return_urls_stay_on_this_host() {
        for own in ["/", "/a", "/a?b=//c", "/a//b"] {
            assert!(is_own(own.as_bytes()), "{own}");
        }
        for foreign in ["", "a", "//a", "/\\a", "/a\\b", "/a\r\nX: y", "https://a", "/ü", "/a b"] {
            assert!(!is_own(foreign.as_bytes()), "{foreign}");
        }
    }
}
