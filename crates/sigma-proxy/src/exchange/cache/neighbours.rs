//! Other targets in a response to an unsafe request: they are purged as well (RFC 9111 §4.4).

use sigma_http::{HeaderId, is_target};
use sigma_plugin::Context;
use sigma_plugin::cache::CacheWish;

use crate::route::normalize::{UriOptions, canonical, normalized};

/// The response fields that name other changed targets.
const FIELDS: [&[u8]; 2] = [b"Location", b"Content-Location"];

/// Longer targets were never requested.
const TARGET_MAX: usize = 8 << 10;

/// Returns the keys of targets on the same origin that the response in `ctx` names. Targets on other origins must not
/// be affected (RFC 9111 §4.4). `authority` is the client's.
pub(super) fn keys(
    wish: &CacheWish,
    authority: &[u8],
    options: UriOptions,
    ctx: &mut Context,
) -> Vec<Vec<u8>> {
    let targets: Vec<Vec<u8>> = FIELDS.iter().filter_map(|field| target(field, authority, ctx)).collect();
    if targets.is_empty() {
        return Vec::new();
    }
    // Keys are made of the request as the client sent it.
    let sent = ctx.request.headers.get(HeaderId::Host).map(<[u8]>::to_vec);
    ctx.request.headers.set(HeaderId::Host, authority);
    let mut keys = Vec::new();
    for target in targets {
        let (path, query) = target.split_at(target.iter().position(|b| *b == b'?').unwrap_or(target.len()));
        // It names the targets of clients, in any spelling.
        let options = UriOptions { allows_ambiguous: true, ..options };
        let (Ok(normal), Ok(other)) = (normalized(path, options), canonical(path, options)) else { continue };
        let uri = normal.uri.into_owned();
        let other = other.map(|path| [&path, query].concat());
        for spelled in std::iter::once(&target).chain(&other) {
            keys.extend(wish.of_neighbour(ctx, uri.clone(), spelled));
        }
    }
    if let Some(sent) = sent {
        ctx.request.headers.set(HeaderId::Host, &sent);
    }
    keys
}

fn target(field: &[u8], authority: &[u8], ctx: &Context) -> Option<Vec<u8>> {
    let value = ctx.response.headers.find(field)?;
    Own { scheme: ctx.scheme(), authority, path: ctx.request.raw_path() }.resolve(value)
}

/// The base of a reference.
struct Own<'r> {
    scheme: &'static str,
    authority: &'r [u8],
    path: &'r [u8],
}

impl Own<'_> {
    /// Returns path and query of a reference (RFC 3986 §5.2), if it leads to the same origin.
    fn resolve(&self, reference: &[u8]) -> Option<Vec<u8>> {
        let reference = reference.split(|b| *b == b'#').next().unwrap_or_default().trim_ascii();
        let target = match (self.within_origin(reference)?, reference) {
            (Some([]), _) => b"/".to_vec(),
            (Some(rest), _) if rest.starts_with(b"?") => [b"/", rest].concat(),
            (Some(rest), _) => rest.to_vec(),
            // It is the requested target itself.
            (None, b"") => return None,
            (None, [b'/', ..]) => reference.to_vec(),
            (None, [b'?', ..]) => [self.path, reference].concat(),
            (None, _) => {
                let folder = self.path.iter().rposition(|b| *b == b'/')? + 1;
                [&self.path[..folder], reference].concat()
            }
        };
        (target.len() <= TARGET_MAX && is_target(&target)).then_some(target)
    }

    /// Returns the part after the authority of a reference with one; Some(None) for a reference without one. None if
    /// it leads to another origin.
    fn within_origin<'v>(&self, reference: &'v [u8]) -> Option<Option<&'v [u8]>> {
        let scheme = reference.iter().position(|b| matches!(b, b':' | b'/' | b'?'));
        let rest = match scheme.filter(|at| reference[*at] == b':') {
            Some(at) if !reference[..at].eq_ignore_ascii_case(self.scheme.as_bytes()) => return None,
            Some(at) => reference[at + 1..].strip_prefix(b"//")?,
            None => match reference.strip_prefix(b"//") {
                Some(rest) => rest,
                None => return Some(None),
            },
        };
        let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let is_own = self.without_port(authority).eq_ignore_ascii_case(self.without_port(self.authority));
        is_own.then_some(Some(rest))
    }

    /// Removes the scheme's default port from an authority.
    fn without_port<'a>(&self, authority: &'a [u8]) -> &'a [u8] {
        let port: &[u8] = if self.scheme == "https" { b":443" } else { b":80" };
        authority.strip_suffix(port).unwrap_or(authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_the_same_origin() {
        let own = Own { scheme: "http", authority: b"Shop.test:80", path: b"/a/b" };
        let check = |reference: &str, expected: Option<&str>| {
            let found = own.resolve(reference.as_bytes());
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{reference}");
        };
        check("/c?d=e#f", Some("/c?d=e"));
        check("c", Some("/a/c"));
        check("../c", Some("/a/../c"));
        check("?x", Some("/a/b?x"));
        check("http://shop.test/c", Some("/c"));
        check("HTTP://SHOP.TEST:80", Some("/"));
        check("http://shop.test?x", Some("/?x"));
        check("//shop.test/c", Some("/c"));
        for other in [
            "",
            "#f",
            "http://evil.test/c",
            "//evil.test/c",
            "http://shop.test:81/c",
            "https://shop.test/c",
            "http://shop.test@evil.test/c",
            "mailto:a@b",
            "http:/c",
            "http:c",
            "/c d",
            "/\u{1}",
            "/c\u{e4}",
        ] {
            check(other, None);
        }
        check(&format!("/{}", "x".repeat(TARGET_MAX)), None);
    }
}
