//! Paths with parameters: `/pets/{id}/photos/{name}.jpg`.

use crate::validation::percent_decoded;

/// A path template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub Vec<Segment>);

/// The part between two slashes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// A fixed text, percent-decoded.
    Literal(String),
    /// Texts and parameters; two parameters are never adjacent.
    Pieces(Vec<Piece>),
}

/// A part of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Piece {
    /// A fixed text, percent-decoded.
    Text(String),
    /// A parameter, which matches at least one character.
    Parameter(String),
}

impl Template {
    /// Parses a path template. A trailing slash is ignored, and several slashes count as one.
    ///
    /// # Errors
    /// Returns a sentence if the path is invalid or ambiguous.
    pub fn parse(path: &str) -> Result<Template, String> {
        let wrong = |reason: &str| format!("the path `{path}` {reason}");
        if !path.starts_with('/') {
            return Err(wrong("does not begin with `/`"));
        }
        if path.contains(['?', '#']) {
            return Err(wrong("has a query or a fragment: write a parameter"));
        }
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        let segments: Vec<Segment> = segments.map(Segment::parse).collect::<Result<_, _>>().map_err(wrong)?;
        let mut names: Vec<&str> = segments.iter().flat_map(Segment::parameters).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(wrong("has the same parameter twice"));
        }
        Ok(Template(segments))
    }

    /// Returns the names of its parameters, in order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(Segment::parameters)
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Segment, &'static str> {
        if !text.contains(['{', '}']) {
            return Ok(Segment::Literal(percent_decoded(text)));
        }
        let (mut pieces, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let (before, behind) = rest.split_once('{').unwrap_or((rest, ""));
            if before.contains('}') {
                return Err("has a `}` without a `{`");
            }
            if !before.is_empty() {
                pieces.push(Piece::Text(percent_decoded(before)));
            }
            if before.len() == rest.len() {
                break;
            }
            let (name, after) = behind.split_once('}').ok_or("lacks a `}`")?;
            if name.is_empty() || name.contains('{') {
                return Err("has a parameter without a name");
            }
            if matches!(pieces.last(), Some(Piece::Parameter(_))) {
                return Err("has two parameters side by side");
            }
            pieces.push(Piece::Parameter(name.to_owned()));
            rest = after;
        }
        Ok(Segment::Pieces(pieces))
    }

    /// Returns the names of its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        let pieces = match self {
            Segment::Literal(_) => &[][..],
            Segment::Pieces(pieces) => pieces,
        };
        pieces.iter().filter_map(|piece| match piece {
            Piece::Parameter(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// Returns the values of the parameters if a decoded segment matches. If several splits are possible, the values
    /// are as short as possible, from left to right.
    #[must_use]
    pub fn captures<'p>(&self, segment: &'p [u8]) -> Option<Vec<&'p [u8]>> {
        let pieces = match self {
            Segment::Literal(text) => return (text.as_bytes() == segment).then(Vec::new),
            Segment::Pieces(pieces) => &pieces[..],
        };
        let (mut found, mut rest, mut left) = (Vec::new(), segment, pieces);
        if let [Piece::Text(text), others @ ..] = left {
            (rest, left) = (rest.strip_prefix(text.as_bytes())?, others);
        }
        while let [Piece::Parameter(_), behind @ ..] = left {
            let (value, after, others) = match behind {
                [Piece::Text(text)] => (rest.strip_suffix(text.as_bytes())?, &[][..], &[][..]),
                [Piece::Text(text), others @ ..] => {
                    // The first character always belongs to the value.
                    let at = rest.get(1..)?.windows(text.len()).position(|part| part == text.as_bytes())? + 1;
                    (&rest[..at], &rest[at + text.len()..], others)
                }
                _ => (rest, &[][..], &[][..]),
            };
            if value.is_empty() {
                return None;
            }
            found.push(value);
            (rest, left) = (after, others);
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_divided() {
        let check = |segment: &str, text: &str, expected: Option<&[&str]>| {
            let segment = Segment::parse(segment).unwrap();
            let found = segment.captures(text.as_bytes());
            let found =
                found.map(|all| all.into_iter().map(|one| std::str::from_utf8(one).unwrap()).collect());
            assert_eq!(found, expected.map(<[&str]>::to_vec), "{segment:?} {text}");
        };
        check("caf%C3%A9", "café", Some(&[]));
        check("pets", "Pets", None);
        check("{id}", "7", Some(&["7"]));
        check("{id}", "", None);
        check("{id}.json", "a.json.json", Some(&["a.json"]));
        check("{id}.json", ".json", None);
        check("{id}.json", "a.xml", None);
        check("v{major}.{minor}", "v1.2.3", Some(&["1", "2.3"]));
        check("v{major}.{minor}", "v1.", None);
        check("v{major}.{minor}", "v..2", Some(&[".", "2"]));
        check("{a}-{b}-{c}x", "1-2-3x", Some(&["1", "2", "3"]));
        check("{a}-{b}", "-", None);
        check("({a})", "(x)", Some(&["x"]));
    }

    #[test]
    fn paths_that_are_refused() {
        let check = |path: &str, expected: &str| {
            assert_eq!(Template::parse(path).unwrap_err(), format!("the path `{path}` {expected}"));
        };
        check("pets", "does not begin with `/`");
        check("/pets?x={x}", "has a query or a fragment: write a parameter");
        check("/{a", "lacks a `}`");
        check("/a}", "has a `}` without a `{`");
        check("/{}", "has a parameter without a name");
        check("/{a}{b}", "has two parameters side by side");
        check("/{a}/{a}", "has the same parameter twice");
        assert_eq!(Template::parse("/a//b/").unwrap(), Template::parse("/a/b").unwrap());
        assert_eq!(Template::parse("/").unwrap(), Template(Vec::new()));
    }
}
