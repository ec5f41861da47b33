//! Paths that a node may read with other segments than the routes: spellings of dot segments, separators and
//! parameters that one reader resolves and another takes literally.
//!
//! A path passes if each of these readings has the segments that routes are matched against: the segments are
//! decoded before or after they are split, a backslash is a slash, `;parameters` are cut, escapes are decoded twice,
//! blanks behind dots are dropped. Excepted are spellings that honest clients send: runs of slashes, and an encoded
//! slash or backslash within a name.

use super::decode::{BadPath, next_byte};

/// A sign of a path, as the most lenient node reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Separator(Separator),
    /// `.`; disguised if one decoding does not show it.
    Dot {
        disguised: bool,
    },
    /// `;`, in any spelling.
    Semicolon,
    /// White space or a control character: some nodes drop it behind dots.
    Blank,
    Other,
}

/// The sign between two segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Separator {
    Slash,
    EncodedSlash,
    /// `%5C`
    Backslash,
    /// A slash or backslash that one decoding does not show.
    Disguised,
}

/// The name of a segment, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Empty,
    Dot,
    DotDot,
    Other,
}

/// A segment that is being read.
struct Segment {
    opened_by: Separator,
    name: Name,
    /// A dot in it is disguised, or a blank follows its dots.
    disguised: bool,
    has_parameters: bool,
}

impl Segment {
    fn opened_by(separator: Separator) -> Segment {
        Segment { opened_by: separator, name: Name::Empty, disguised: false, has_parameters: false }
    }

    fn push(&mut self, sign: Sign) {
        if self.has_parameters {
            return;
        }
        self.name = match (sign, self.name) {
            (Sign::Semicolon, name) => {
                self.has_parameters = true;
                name
            }
            (Sign::Blank, name @ (Name::Dot | Name::DotDot)) => {
                self.disguised = true;
                name
            }
            (Sign::Dot { disguised }, name @ (Name::Empty | Name::Dot)) => {
                self.disguised |= disguised;
                if name == Name::Empty { Name::Dot } else { Name::DotDot }
            }
            _ => Name::Other,
        };
    }

    /// Checks the segment at its end. `closed_by` is None at the end of the path.
    fn check(&self, closed_by: Option<Separator>, resolves_dots: bool) -> Result<(), BadPath> {
        let is_bounded_by = |bound| self.opened_by == bound || closed_by == Some(bound);
        match self.name {
            Name::Dot | Name::DotDot => {
                if self.has_parameters {
                    return Err(BadPath::HiddenSegment);
                }
                let is_hidden = self.disguised
                    || is_bounded_by(Separator::Backslash)
                    || is_bounded_by(Separator::Disguised);
                if is_hidden { Err(BadPath::DisguisedDots) } else { resolved(resolves_dots) }
            }
            Name::Empty if self.has_parameters && closed_by.is_some() => Err(BadPath::HiddenSegment),
            Name::Empty if is_bounded_by(Separator::Backslash) => Err(BadPath::Backslash),
            Name::Empty | Name::Other => Ok(()),
        }
    }
}

fn resolved(resolves_dots: bool) -> Result<(), BadPath> {
    if resolves_dots { Ok(()) } else { Err(BadPath::DotSegment) }
}

/// Checks a path as it was sent. `is_canonical` says that the node gets the normalised path: then dot segments that
/// normalising resolves, and slashes that it decodes, are the same for both.
///
/// # Errors
/// Returns an error if a node may read the path with other segments than the routes.
pub(super) fn check(raw: &[u8], is_canonical: bool) -> Result<(), BadPath> {
    let Some(mut rest) = raw.strip_prefix(b"/") else { return Err(BadPath::NotAbsolute) };
    let mut segment = Segment::opened_by(Separator::Slash);
    // For nodes that cut parameters before they decode, these end at a slash and at no other separator.
    let mut in_parameters = false;
    while let Some((sign, tail)) = next_sign(rest)? {
        rest = tail;
        let Sign::Separator(separator) = sign else {
            in_parameters |= sign == Sign::Semicolon;
            segment.push(sign);
            continue;
        };
        if separator == Separator::EncodedSlash && in_parameters && !is_canonical {
            return Err(BadPath::EncodedSlash);
        }
        in_parameters &= separator != Separator::Slash;
        segment.check(Some(separator), is_canonical)?;
        segment = Segment::opened_by(separator);
    }
    segment.check(None, is_canonical)
}

/// Returns the next sign of a path, and the rest. None at the end of the path.
fn next_sign(text: &[u8]) -> Result<Option<(Sign, &[u8])>, BadPath> {
    let Some((byte, tail)) = next_byte(text)? else { return Ok(None) };
    let is_encoded = text[0] == b'%';
    let sign = match byte {
        b'/' if is_encoded => Sign::Separator(Separator::EncodedSlash),
        b'/' => Sign::Separator(Separator::Slash),
        b'\\' if is_encoded => Sign::Separator(Separator::Backslash),
        b'\\' => return Err(BadPath::Backslash),
        b'.' => Sign::Dot { disguised: false },
        b';' => Sign::Semicolon,
        b'%' | 0xc0 | 0xc1 => return Ok(Some(disguised(byte, tail)?.unwrap_or((Sign::Other, tail)))),
        0x01..=b' ' | 0x7f => Sign::Blank,
        _ => Sign::Other,
    };
    Ok(Some((sign, tail)))
}

/// Returns the sign that an escape within an escape, or an overlong form of UTF-8, decodes to.
fn disguised(byte: u8, tail: &[u8]) -> Result<Option<(Sign, &[u8])>, BadPath> {
    let Some((second, tail)) = next_byte(tail)? else { return Ok(None) };
    let (meant, tail) = match (byte, second) {
        (b'%', high) => {
            let Some((low, tail)) = next_byte(tail)? else { return Ok(None) };
            match (high, low | 0x20) {
                (b'2', b'e') => (b'.', tail),
                (b'2', b'f') => (b'/', tail),
                (b'3', b'b') => (b';', tail),
                (b'5', b'c') => (b'\\', tail),
                _ => return Ok(None),
            }
        }
        (0xc0, 0xae) => (b'.', tail),
        (0xc0, 0xaf) => (b'/', tail),
        (0xc1, 0x9c) => (b'\\', tail),
        _ => return Ok(None),
    };
    let sign = match meant {
        b'.' => Sign::Dot { disguised: true },
        b';' => Sign::Semicolon,
        _ => Sign::Separator(Separator::Disguised),
    };
    Ok(Some((sign, tail)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::normalize::{UriOptions, canonical, normalized};
    use super::*;

    const RAW: UriOptions = UriOptions {
        delete_tail_slash: false,
        like_servlet: false,
        match_encoded_slash: false,
        is_canonical: false,
        merges_slashes: false,
        allows_ambiguous: false,
    };

    fn verdict(raw: &str, is_canonical: bool) -> Option<BadPath> {
        normalized(raw.as_bytes(), UriOptions { is_canonical, ..RAW }).err()
    }

    #[test]
    fn paths_that_nodes_read_in_another_way_are_refused() {
        for (bad, paths) in [
            (
                BadPath::HiddenSegment,
                &[
                    "/public/..;/admin/x",
                    "/public/%2e%2e;/admin/x",
                    "/public/..%3b/admin/x",
                    "/public/..%253b/admin/x",
                    "/public/.%2E;v=1/admin",
                    "/a/..;",
                    "/.;/admin/x",
                    "/;/admin/x",
                    "/a/;x/admin",
                    "/a%2f;x/admin",
                ][..],
            ),
            (
                BadPath::Backslash,
                &[
                    "/public/..\\admin/x",
                    "/\\admin/x",
                    "/a\\b",
                    "/a;x=\\b",
                    "/%5cadmin",
                    "/a%5C",
                    "/a/%5Cb",
                    "/a%5C/b",
                    "/a%5C%5Cb",
                ],
            ),
            (
                BadPath::DisguisedDots,
                &[
                    "/public/..%5cadmin/x",
                    "/public%5c..%5cadmin",
                    "/a%5c..",
                    "/public/%252e%252e/admin",
                    "/public/.%252E/admin",
                    "/public/..%252fadmin",
                    "/public/..%255cadmin",
                    "/public/%c0%ae%c0%ae/admin",
                    "/public/..%c0%afadmin",
                    "/public/..%C1%9Cadmin",
                    "/public/..%20/admin",
                    "/public/..%09/admin",
                ],
            ),
        ] {
            for path in paths {
                for is_canonical in [false, true] {
                    assert_eq!(verdict(path, is_canonical), Some(bad), "{path} {is_canonical}");
                }
            }
        }
        for path in
            ["/a/../b", "/a/./b", "/a/..", "/a/.", "/a/%2e%2E/b", "/a/.%2e/b", "/a/%2e", "/a%2f..%2fb"]
        {
            assert_eq!(verdict(path, false), Some(BadPath::DotSegment), "{path}");
            assert_eq!(verdict(path, true), None, "{path}");
        }
        for path in ["/a;x=%2fadmin/b", "/a%3bx%2f..;b"] {
            assert_eq!(verdict(path, false), Some(BadPath::EncodedSlash), "{path}");
        }
    }

    #[test]
    fn paths_of_honest_clients_pass() {
        for path in [
            "/",
            "/a%20b",
            "/a//b",
            "//",
            "/group%2Fname",
            "/%2Fa",
            "/a%2F",
            "/domain%5Cuser",
            "/a;v=1/b;w=2",
            "/a;v=1",
            "/;jsessionid=1",
            "/a/;jsessionid=1",
            "/.well-known/x",
            "/...",
            "/a..b/..c/d..",
            "/a.%20b",
            "/%E4%BD%A0%C3%80",
            "/100%25",
            "/a%252Fb",
            "/a%3Fb%23c",
            "/a/.gitignore",
            "/a:b@c,d=e+f$g&h'(i)*!~",
        ] {
            for is_canonical in [false, true] {
                assert_eq!(verdict(path, is_canonical), None, "{path} {is_canonical}");
            }
        }
    }

    /// Returns paths of pieces that an attack on a route would use.
    fn any_path() -> impl Strategy<Value = String> {
        let pieces = [
            "/", "/", "%2F", "%2f", "%252f", "\\", "%5c", "%255C", ".", "..", "%2e", "%2E%2e", "%252e", ";",
            ";v=1", "%3b", "%20", "a", "admin", "%61", "%25", "%3F", "%c0%ae", "%c0%af", "|",
        ];
        let piece = prop::sample::select(pieces.to_vec());
        prop::collection::vec(piece, 0..8).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    fn decoded(text: &[u8]) -> Vec<u8> {
        sigma_plugin::variables::percent_decoded(text).into_owned()
    }

    /// The segments of a path for a node that takes `separators` for slashes, cuts parameters if it does, and resolves dot
    /// segments.
    fn segments(path: &[u8], separators: &[u8], cuts: bool) -> Vec<Vec<u8>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        for segment in path.split(|byte| separators.contains(byte)) {
            let end = segment.iter().position(|byte| *byte == b';').filter(|_| cuts).unwrap_or(segment.len());
            match &segment[..end] {
                b"" | b"." => {}
                b".." => drop(found.pop()),
                name => found.push(name.to_vec()),
            }
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

        /// A node that gets the original path resolves no dot segment that the routes do not see, in any order of
        /// decoding, splitting and cutting.
        #[test]
        fn accepted_paths_have_the_same_segments_for_nodes(raw in any_path()) {
            let raw = raw.as_bytes();
            let Ok(path) = normalized(raw, RAW) else { return Ok(()) };
            let once = decoded(raw);
            // Decoded before it is split.
            let judged = segments(&path.uri, b"/", false);
            prop_assert_eq!(&segments(&once, b"/", false), &judged);
            // Split before it is decoded: the same names, of which some hold a slash.
            let apart = segments(raw, b"/", false).iter().flat_map(|name| segments(&decoded(name), b"/", false)).collect::<Vec<_>>();
            prop_assert_eq!(&apart, &judged);
            // A backslash within a name parts it, and changes nothing else.
            let parted: Vec<Vec<u8>> = judged.iter().flat_map(|name| segments(name, b"\\", false)).collect();
            prop_assert_eq!(&segments(&once, b"/\\", false), &parted);
            // Parameters are cut.
            let cut: Vec<Vec<u8>> = judged.iter().map(|name| segments(name, b"", true).concat()).collect();
            let cut: Vec<Vec<u8>> = cut.into_iter().filter(|name| !name.is_empty()).collect();
            prop_assert_eq!(&segments(&once, b"/", true), &cut);
            let before = segments(raw, b"/", true).iter().flat_map(|name| segments(&decoded(name), b"/", true)).collect::<Vec<_>>();
            prop_assert_eq!(&before, &cut);
            // Decoded twice: no dot segment appears.
            let twice = decoded(&once);
            prop_assert!(!twice.split(|byte| b"/\\".contains(byte)).any(|name| name == b"." || name == b".."));
        }

        /// The path of the decision is the decoded path at the node, and canonical paths are their own canonical form.
        #[test]
        fn canonical_paths_are_judged_as_they_are_sent(raw in any_path(), allows in any::<bool>(), slash in any::<bool>(), servlet in any::<bool>(), tail in any::<bool>()) {
            let options = UriOptions {
                is_canonical: true,
                merges_slashes: false,
                allows_ambiguous: allows,
                match_encoded_slash: slash,
                like_servlet: servlet,
                delete_tail_slash: tail,
            };
            let raw = raw.as_bytes();
            let Ok(sent) = canonical(raw, options) else {
                prop_assert!(normalized(raw, options).is_err());
                return Ok(());
            };
            let judged = normalized(raw, options).expect("it has a canonical form");
            let sent = sent.unwrap_or_else(|| raw.to_vec());
            let of_sent = normalized(&sent, options).expect("a canonical path is accepted");
            prop_assert_eq!(of_sent.matched(), judged.matched());
            prop_assert_eq!(canonical(&sent, options), Ok(None));
            let at_node = decoded(&sent);
            // Plugins see `uri` without an encoded slash at its end.
            prop_assert!(of_sent.shown.is_some() || at_node == *of_sent.uri || (of_sent.uri.is_empty() && at_node == b"/"));
        }
    }
}
