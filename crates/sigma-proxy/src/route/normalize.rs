//! The path that routes are matched against: nginx's `$uri` and the uri options (routing.md §2, §7).

use std::borrow::Cow;

use sigma_config::settings::{self, AmbiguousPaths, ForwardPath};
use sigma_plugin::variables::percent_encode_path;

use super::ambiguous;
pub use super::decode::BadPath;
use super::decode::next_byte;

/// The rules for normalising and rejecting paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UriOptions {
    /// Remove one `/` at the end.
    pub delete_tail_slash: bool,
    /// Cut `;parameters` from segments.
    pub like_servlet: bool,
    /// Show encoded slashes as `%2F` to the router.
    pub match_encoded_slash: bool,
    /// Nodes get the normalised path.
    pub is_canonical: bool,
    /// Nodes get the path as it was sent, with `//` as `/`.
    pub merges_slashes: bool,
    /// Paths that a node may read with other segments pass.
    pub allows_ambiguous: bool,
}

impl From<&settings::Router> for UriOptions {
    fn from(router: &settings::Router) -> UriOptions {
        UriOptions {
            delete_tail_slash: router.delete_uri_tail_slash,
            like_servlet: router.normalize_uri_like_servlet,
            match_encoded_slash: router.match_uri_encoded_slash,
            is_canonical: router.forward_path == ForwardPath::Canonical,
            merges_slashes: router.forward_path == ForwardPath::Merged,
            allows_ambiguous: router.ambiguous_paths == AmbiguousPaths::Allow,
        }
    }
}

/// A normalised path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NormalPath<'a> {
    /// The variable `uri`.
    pub uri: Cow<'a, [u8]>,
    /// The path that routes are matched against, if that is not `uri` (encoded slashes).
    pub shown: Option<Vec<u8>>,
}

impl NormalPath<'_> {
    /// Returns the path that routes are matched against.
    pub fn matched(&self) -> &[u8] {
        self.shown.as_deref().unwrap_or(&self.uri)
    }
}

/// Normalises a path as it was sent, without the query. A path that is normal already is borrowed.
///
/// # Errors
/// Returns an error if no route may see the path.
pub fn normalized(raw: &[u8], options: UriOptions) -> Result<NormalPath<'_>, BadPath> {
    if is_ordinary(raw) {
        return Ok(NormalPath { uri: Cow::Borrowed(without_tail(raw, options)), shown: None });
    }
    if !options.allows_ambiguous {
        ambiguous::check(raw, options.is_canonical)?;
    }
    let mut uri = if is_normal(raw) {
        Cow::Borrowed(raw)
    } else {
        let mut out = Vec::with_capacity(raw.len());
        normalize_path(raw, &mut out)?;
        Cow::Owned(out)
    };
    let mut shown = if options.match_encoded_slash { with_encoded_slashes(raw, &uri)? } else { None };
    if options.like_servlet {
        shown = match shown {
            Some(shown) => Some(without_parameters(&shown)?.unwrap_or(shown)),
            None => None,
        };
        if let Some(cut) = without_parameters(&uri)? {
            uri = Cow::Owned(cut);
        }
    }
    let uri = match uri {
        Cow::Borrowed(path) => Cow::Borrowed(without_tail(path, options)),
        Cow::Owned(path) => Cow::Owned(cut_tail(path, options)),
    };
    Ok(NormalPath { uri, shown: shown.map(|shown| cut_tail(shown, options)) })
}

/// Returns the path to send instead of `raw`, which has no query: the normalised path, percent-encoded. None if that
/// is the original path. It is its own canonical form.
///
/// # Errors
/// Returns an error if no route may see the path.
pub fn canonical(raw: &[u8], options: UriOptions) -> Result<Option<Vec<u8>>, BadPath> {
    if is_ordinary(raw) && without_tail(raw, options).len() == raw.len() {
        return Ok(None);
    }
    let path = normalized(raw, options)?;
    let mut out = Vec::with_capacity(raw.len() + 8);
    match path.shown {
        None => percent_encode_path(&path.uri, &mut out),
        // Only the original path distinguishes an encoded slash from an encoded `%2F`.
        Some(_) => out = cut_tail(encoded_again(raw, options)?, options),
    }
    if out.is_empty() {
        out.push(b'/');
    }
    Ok((out != raw).then_some(out))
}

/// Returns the path with each run of slashes as one. None if that is the original path.
pub fn merged(raw: &[u8]) -> Option<Vec<u8>> {
    if !raw.windows(2).any(|pair| pair == b"//") {
        return None;
    }
    let mut out = Vec::with_capacity(raw.len());
    for byte in raw {
        if *byte != b'/' || out.last() != Some(&b'/') {
            out.push(*byte);
        }
    }
    Some(out)
}

/// Returns the path decoded and encoded again, with encoded slashes unchanged.
fn encoded_again(raw: &[u8], options: UriOptions) -> Result<Vec<u8>, BadPath> {
    let mut out = Vec::with_capacity(raw.len() + 8);
    let (mut rest, mut is_cut) = (raw, false);
    while let Some((byte, tail)) = next_byte(rest)? {
        let is_encoded = rest[0] == b'%';
        rest = tail;
        match byte {
            b'/' if !is_encoded => is_cut = false,
            b';' if options.like_servlet => is_cut = true,
            _ => {}
        }
        match byte {
            _ if is_cut => {}
            b'/' if is_encoded => out.extend_from_slice(b"%2F"),
            byte => percent_encode_path(&[byte], &mut out),
        }
    }
    Ok(out)
}

fn without_tail(path: &[u8], options: UriOptions) -> &[u8] {
    match path {
        [path @ .., b'/'] if options.delete_tail_slash => path,
        path => path,
    }
}

fn cut_tail(mut path: Vec<u8>, options: UriOptions) -> Vec<u8> {
    path.truncate(without_tail(&path, options).len());
    path
}

/// Writes the normal form of `raw` to `out`, which is emptied first: percent-escapes decoded, runs of slashes made
/// one, `.` and `..` resolved; the part from a `?` or `#` on is omitted. Decoded slashes and dots count as slashes and
/// dots, as in nginx.
pub fn normalize_path(raw: &[u8], out: &mut Vec<u8>) -> Result<(), BadPath> {
    out.clear();
    if raw.first() != Some(&b'/') {
        return Err(BadPath::NotAbsolute);
    }
    out.push(b'/');
    let mut rest = &raw[1..];
    while let Some((byte, tail)) = next_byte(rest)? {
        rest = tail;
        if byte != b'/' {
            out.push(byte);
        } else if close_segment(out)? {
            out.push(b'/');
        }
    }
    // A dot segment at the end leaves the slash before it.
    close_segment(out).map(drop)
}

/// Resolves the segment at the end of `out` if it is a dot segment. Returns true if a slash belongs after it.
fn close_segment(out: &mut Vec<u8>) -> Result<bool, BadPath> {
    // `out` always begins with a slash.
    let start = memchr::memrchr(b'/', out).map_or(0, |slash| slash + 1);
    match &out[start..] {
        b"" => Ok(false),
        b"." => {
            out.truncate(start);
            Ok(false)
        }
        b".." => {
            let above = start.checked_sub(1).and_then(|slash| memchr::memrchr(b'/', &out[..slash]));
            out.truncate(above.ok_or(BadPath::AboveRoot)? + 1);
            Ok(false)
        }
        _ => Ok(true),
    }
}

/// Bytes that may stand anywhere in a path that every reader takes for the same: they are neither escapes nor
/// separators, and `percent_encode_path` leaves them alone.
const PLAIN: [bool; 256] = {
    let (mut plain, mut at) = ([false; 256], 0);
    let others = b"-_~!$&'()*+,=:@";
    while at < others.len() {
        plain[others[at] as usize] = true;
        at += 1;
    }
    at = 0;
    while at < 256 {
        plain[at] |= (at as u8).is_ascii_alphanumeric();
        at += 1;
    }
    plain
};

/// Returns true if a path is normal, canonical and read alike by all: most are, and one pass over the bytes finds
/// out. `/.name` is left to the others; it is rare.
fn is_ordinary(raw: &[u8]) -> bool {
    let mut after_slash = false;
    for &byte in raw {
        if PLAIN[usize::from(byte)] {
            after_slash = false;
        } else if (byte == b'/' || byte == b'.') && !after_slash {
            after_slash = byte == b'/';
        } else {
            return false;
        }
    }
    raw.first() == Some(&b'/')
}

/// Returns true if normalising would change nothing. `/.name` counts as a change; it is rare.
fn is_normal(raw: &[u8]) -> bool {
    let mut after_slash = false;
    for &byte in raw {
        match byte {
            b'%' | b'?' | b'#' => return false,
            b'/' | b'.' if after_slash => return false,
            _ => after_slash = byte == b'/',
        }
    }
    raw.first() == Some(&b'/')
}

/// Returns the path decoded except for slashes, which are shown as `%2F`: only if `raw` has encoded slashes and
/// normalising did nothing but decode.
fn with_encoded_slashes(raw: &[u8], uri: &[u8]) -> Result<Option<Vec<u8>>, BadPath> {
    if !raw.windows(3).any(|escape| escape.eq_ignore_ascii_case(b"%2F")) {
        return Ok(None);
    }
    let mut shown = Vec::with_capacity(raw.len());
    let mut rest = raw;
    let mut decoded = uri.iter();
    while let Some((byte, tail)) = next_byte(rest)? {
        if decoded.next() != Some(&byte) {
            return Ok(None);
        }
        if byte == b'/' && rest[0] == b'%' {
            shown.extend_from_slice(b"%2F");
        } else {
            shown.push(byte);
        }
        rest = tail;
    }
    Ok(decoded.next().is_none().then_some(shown))
}

/// Returns the path with `;…` cut from every segment, as servlet containers read it. `None` without any.
fn without_parameters(uri: &[u8]) -> Result<Option<Vec<u8>>, BadPath> {
    if memchr::memchr(b';', uri).is_none() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(uri.len());
    let mut segments = uri.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match memchr::memchr(b';', segment) {
            None => out.extend_from_slice(segment),
            Some(at) => {
                let name = &segment[..at];
                // A container behind the gateway would resolve these, after access was decided.
                let hides = match name {
                    b"" => !is_last,
                    b"." | b".." => true,
                    _ => name.eq_ignore_ascii_case(b"%2e") || name.eq_ignore_ascii_case(b"%2e%2e"),
                };
                if hides {
                    return Err(BadPath::HiddenSegment);
                }
                out.extend_from_slice(name);
            }
        }
        if !is_last {
            out.push(b'/');
        }
    }
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options of nginx; `ambiguous` rejects more.
    const LENIENT: UriOptions = UriOptions {
        delete_tail_slash: false,
        like_servlet: false,
        match_encoded_slash: false,
        is_canonical: false,
        merges_slashes: false,
        allows_ambiguous: true,
    };

    fn check(options: UriOptions, raw: &str, expected: Result<&str, BadPath>) {
        let found = normalized(raw.as_bytes(), options);
        let found = found
            .as_ref()
            .map(|path| String::from_utf8_lossy(path.matched()).into_owned())
            .map_err(|bad| *bad);
        assert_eq!(found, expected.map(str::to_owned), "{raw} {options:?}");
    }

    #[test]
    fn merged_paths_keep_everything_but_double_slashes() {
        assert_eq!(merged(b"/a/b%2f%2F../c"), None);
        assert_eq!(merged(b"//a///b/..//%2F/").as_deref(), Some(&b"/a/b/../%2F/"[..]));
    }

    #[test]
    fn reads_paths_as_nginx_does() {
        for (raw, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a//b///c", "/a/b/c"),
            ("//", "/"),
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/b/../", "/a/"),
            ("/a/..", "/"),
            ("/.", "/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
            ("/a./b", "/a./b"),
            ("/a..", "/a.."),
            ("/a%20b", "/a b"),
            ("/%61", "/a"),
            ("/a%2Fb", "/a/b"),
            ("/a%2f/b", "/a/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e", "/"),
            ("/a%2f..%2fb", "/b"),
            ("/a%3Fb", "/a?b"),
            ("/a%23b", "/a#b"),
            ("/a%25b", "/a%b"),
            ("/a%252e", "/a%2e"),
            ("/a?b=/../", "/a"),
            ("/a#b", "/a"),
            ("/a+b", "/a+b"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/..;/a", "/..;/a"),
        ] {
            check(LENIENT, raw, Ok(expected));
        }
        for (raw, bad) in [
            ("", BadPath::NotAbsolute),
            ("*", BadPath::NotAbsolute),
            ("a/b", BadPath::NotAbsolute),
            ("/%", BadPath::BadEscape),
            ("/%4", BadPath::BadEscape),
            ("/%zz", BadPath::BadEscape),
            ("/a%00b", BadPath::ZeroByte),
            ("/..", BadPath::AboveRoot),
            ("/../a", BadPath::AboveRoot),
            ("/a/../../b", BadPath::AboveRoot),
            ("/a/%2e%2e/%2e%2e/b", BadPath::AboveRoot),
        ] {
            check(LENIENT, raw, Err(bad));
        }
    }

    const CANONICAL: UriOptions = UriOptions { is_canonical: true, allows_ambiguous: false, ..LENIENT };

    #[test]
    fn nodes_get_the_normalised_path_in_canonical_mode() {
        let check = |options: UriOptions, raw: &str, expected: &str| {
            let found = canonical(raw.as_bytes(), options).expect(raw);
            let found = found.as_deref().unwrap_or(raw.as_bytes());
            assert_eq!(found, expected.as_bytes(), "{raw} {options:?}");
            let again = canonical(found, options).expect(raw);
            assert_eq!(again, None, "{raw} {options:?}");
        };
        for (raw, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a//b/", "/a/b/"),
            ("/a/%2e%2E/b/./c", "/b/c"),
            ("/%61%2fb", "/a/b"),
            ("/a%3fb%23c%25d", "/a%3Fb%23c%25d"),
            ("/a%c3%a4", "/a%C3%A4"),
            ("/a|b\"", "/a%7Cb%22"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/.well-known/x", "/.well-known/x"),
            ("/domain%5cuser", "/domain%5Cuser"),
        ] {
            check(CANONICAL, raw, expected);
        }
        let options = UriOptions { match_encoded_slash: true, ..CANONICAL };
        for (raw, expected) in [
            ("/group%2fname", "/group%2Fname"),
            ("/a%252Fb%2Fc%20d", "/a%252Fb%2Fc%20d"),
            ("/a%2F../b", "/b"),
        ] {
            check(options, raw, expected);
        }
        let options = UriOptions { like_servlet: true, delete_tail_slash: true, ..options };
        for (raw, expected) in
            [("/a;v=1/b;x/", "/a/b"), ("/a%3Bv/b%2Fc;d%2Fe/f", "/a/b%2Fc/f"), ("/", "/"), ("/a//", "/a")]
        {
            check(options, raw, expected);
        }
    }

    #[test]
    fn normal_paths_are_borrowed() {
        let path = normalized(b"/a/b.html", LENIENT);
        assert!(matches!(path, Ok(NormalPath { uri: Cow::Borrowed(_), shown: None })));
    }

    #[test]
    fn deletes_one_slash_at_the_end() {
        let options = UriOptions { delete_tail_slash: true, ..LENIENT };
        for (raw, expected) in [("/a/", "/a"), ("/a", "/a"), ("/", ""), ("/a//", "/a"), ("/a/%2e/", "/a")] {
            check(options, raw, Ok(expected));
        }
    }

    #[test]
    fn cuts_servlet_parameters() {
        let options = UriOptions { like_servlet: true, ..LENIENT };
        for (raw, expected) in
            [("/a;v=1/b;x", "/a/b"), ("/a/b", "/a/b"), ("/a/;x", "/a/"), ("/a%3Bx/", "/a/")]
        {
            check(options, raw, Ok(expected));
        }
        for raw in ["/a/..;/b", "/a/.;x/b", "/a/;x/b", "/;x/b", "/a/%252e;/b", "/a/%252E%252e;x/b", "/a/..;"]
        {
            check(options, raw, Err(BadPath::HiddenSegment));
        }
        check(UriOptions { delete_tail_slash: true, ..options }, "/a/;x", Ok("/a"));
    }

    #[test]
    fn shows_encoded_slashes_to_the_router_only() {
        let options = UriOptions { match_encoded_slash: true, ..LENIENT };
        for (raw, expected) in [
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2fb%20c", "/a%2Fb c"),
            ("/a/b", "/a/b"),
            ("/a%2F/b", "/a/b"),
            ("/a%2Fb/../c", "/a/c"),
            ("/a%252Fb", "/a%2Fb"),
        ] {
            check(options, raw, Ok(expected));
        }
        let path = normalized(b"/a%2Fb", options).expect("a good path");
        assert_eq!(path.uri, b"/a/b".as_slice());
    }
}
