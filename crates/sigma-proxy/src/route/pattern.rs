//! Uri patterns: the key under which one is found, and what remains to be checked (routing.md §3.1, §3.4).

use std::borrow::Cow;

use sigma_config::settings::RouterKind;
use sigma_schema::path_regex::{PathRegex, Written};

use super::params::{Name, Params};
use super::tree::KeyKind;

/// The name of the capture of a wildcard without a name.
pub(super) const UNNAMED: &str = ":ext";

/// A pattern as written, cut into its key and the part that the key does not decide.
#[derive(Debug)]
pub(super) struct Pattern<'a> {
    /// The literal text before the first parameter or wildcard; the whole pattern without any. The literal beginning of
    /// a regular expression.
    pub(super) key: Cow<'a, [u8]>,
    /// How the key is compared.
    pub(super) kind: KeyKind,
    /// The check after the key.
    pub(super) rest: Rest<'a>,
}

/// The part of a pattern that its key does not decide.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest<'a> {
    /// Nothing: the key decides (`/a`, `/a*`).
    Free,
    /// Anything, captured as [`UNNAMED`] (`/a/*`).
    Unnamed,
    /// Anything, captured under this name (`/a/*name`).
    Named(String),
    /// The whole path must fit.
    Whole(Template),
    /// The path must match this expression.
    Regex(Written<'a>),
}

/// A compiled path expression, and the names of its captures.
#[derive(Debug)]
pub(super) struct Expression {
    regex: PathRegex,
    captures: Vec<Name>,
    /// All names one after the other.
    names: String,
}

impl Expression {
    /// Compiles a path expression. None for an invalid one, which the check of routes refuses.
    pub(super) fn compile(written: Written<'_>) -> Option<Expression> {
        let regex = written.compile().ok()?;
        let mut names = String::new();
        let captures = regex.names().map(|name| Name::write(name, &mut names)).collect();
        Some(Expression { regex, captures, names })
    }

    /// Returns true if `path` fits; captures go to `params`, which are left as they were if not.
    pub(super) fn matches(&self, path: &[u8], params: &mut Params) -> bool {
        if !self.regex.is_match(path) {
            return false;
        }
        self.regex.captures(path, |at, range| params.push(self.captures[at], range));
        params.set_names(&self.names);
        true
    }
}

/// A pattern with parameters or wildcards inside: stretches of pieces with a wildcard between
/// each two. Parameters lie between slashes, so a stretch that begins at a given byte can end at
/// one byte only; that is what keeps matching free of backtracking.
#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Template {
    first: Vec<Piece>,
    /// Each wildcard (its name, or none for a text that is ignored) and the stretch after it.
    wildcards: Vec<(Option<Name>, Vec<Piece>)>,
    /// All names one after the other.
    names: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// This text.
    Literal(Box<[u8]>),
    /// This text, where `.` matches any byte but a newline.
    Dotted(Box<[u8]>),
    /// One segment of at least one byte.
    Parameter(Name),
}

impl<'a> Pattern<'a> {
    /// Reads `text` as a router of `kind` does.
    pub(super) fn parse(kind: RouterKind, text: &'a str) -> Pattern<'a> {
        if let Some(written) = Written::of(text) {
            return Pattern { key: written.prefix(), kind: KeyKind::Prefix, rest: Rest::Regex(written) };
        }
        let parameters = kind.has_parameters();
        let Some(key_len) = text.find(|c| c == '*' || (parameters && c == ':')) else {
            return Pattern { key: text.as_bytes().into(), kind: KeyKind::Exact, rest: Rest::Free };
        };
        let key = &text[..key_len];
        let rest = Template::parse(text).reduce(key);
        Pattern { key: key.as_bytes().into(), kind: KeyKind::Prefix, rest }
    }
}

impl Template {
    fn parse(text: &str) -> Template {
        let mut template = Template::default();
        let mut literal = String::new();
        for (index, segment) in text.split('/').enumerate() {
            if index > 0 {
                literal.push('/');
            }
            if let Some(name) = segment.strip_prefix(':') {
                template.push_literal(&mut literal);
                let name = Name::write(name, &mut template.names);
                template.last().push(Piece::Parameter(name));
            } else if let Some(name) = segment.strip_prefix('*') {
                template.push_literal(&mut literal);
                let name = if name.is_empty() { UNNAMED } else { name };
                let name = Name::write(name, &mut template.names);
                template.wildcards.push((Some(name), Vec::new()));
            } else if let Some((before, _ignored)) = segment.split_once('*') {
                literal.push_str(before);
                template.push_literal(&mut literal);
                template.wildcards.push((None, Vec::new()));
                return template.with_dots();
            } else {
                literal.push_str(segment);
            }
        }
        template.push_literal(&mut literal);
        template.with_dots()
    }

    fn last(&mut self) -> &mut Vec<Piece> {
        match self.wildcards.last_mut() {
            Some((_, stretch)) => stretch,
            None => &mut self.first,
        }
    }

    fn push_literal(&mut self, literal: &mut String) {
        if !literal.is_empty() {
            self.last().push(Piece::Literal(std::mem::take(literal).into_bytes().into()));
        }
    }

    /// In a pattern that captures something, literal text is regular expression text to APISIX;
    /// `.` is the part of that which paths really contain.
    fn with_dots(mut self) -> Template {
        let is_parameter = |piece: &Piece| matches!(piece, Piece::Parameter(_));
        let captures = self.first.iter().any(is_parameter)
            || self
                .wildcards
                .iter()
                .any(|(name, stretch)| name.is_some() || stretch.iter().any(is_parameter));
        if captures {
            let stretches =
                std::iter::once(&mut self.first).chain(self.wildcards.iter_mut().map(|(_, stretch)| stretch));
            for piece in stretches.flatten() {
                if let Piece::Literal(text) = piece
                    && text.contains(&b'.')
                {
                    *piece = Piece::Dotted(std::mem::take(text));
                }
            }
        }
        self
    }

    /// Leaves out the checks that every path with the prefix `key` passes.
    fn reduce(self, key: &str) -> Rest<'static> {
        let key_is_first = match self.first.as_slice() {
            [] => key.is_empty(),
            [Piece::Literal(text) | Piece::Dotted(text)] => **text == *key.as_bytes(),
            _ => false,
        };
        match self.wildcards.as_slice() {
            [(None, after)] if key_is_first && after.is_empty() => Rest::Free,
            [(Some(_), after)] if key_is_first && after.is_empty() => match self.names.as_str() {
                UNNAMED => Rest::Unnamed,
                _ => Rest::Named(self.names),
            },
            _ => Rest::Whole(self),
        }
    }

    /// Returns true if the whole of `path` fits; captures go to `params`, which are left as they were if not.
    pub(super) fn matches(&self, path: &[u8], params: &mut Params) -> bool {
        let mark = params.len();
        let fits = self.place(self.wildcards.len(), path, path.len(), params).is_some();
        match fits {
            true => params.set_names(&self.names),
            false => params.truncate(mark),
        }
        fits
    }

    /// Finds a place for the first stretch and those after the first `count` wildcards, all
    /// before `bound`; records their captures and returns where the last of them ends. Wildcards
    /// are greedy from left to right, which is the same as placing the stretches from the last to
    /// the first as far right as possible: that never takes room from the ones before. So the
    /// first place that fits is the only one to try. Recursion is as deep as the pattern has wildcards.
    fn place(&self, count: usize, path: &[u8], bound: usize, params: &mut Params) -> Option<usize> {
        // The last stretch reaches the end of the path.
        let ends_well =
            |end: &usize| if count == self.wildcards.len() { *end == bound } else { *end <= bound };
        let Some(index) = count.checked_sub(1) else {
            return end_of(&self.first, path, 0, Some(params)).filter(ends_well);
        };
        let (name, stretch) = &self.wildcards[index];
        let start = (0..=bound).rev().find(|&start| {
            // A stretch is empty or begins with the slash after the wildcard's segment.
            (stretch.is_empty() || path.get(start) == Some(&b'/'))
                && end_of(stretch, path, start, None).filter(ends_well).is_some()
        })?;
        let from = self.place(index, path, start, params)?;
        if let Some(name) = name {
            params.push(*name, from..start);
        }
        end_of(stretch, path, start, Some(params))
    }
}

/// Returns where `stretch` ends if it begins at `at`. Captures are recorded if `params` are given.
fn end_of(stretch: &[Piece], path: &[u8], mut at: usize, mut params: Option<&mut Params>) -> Option<usize> {
    for piece in stretch {
        let rest = &path[at..];
        let len = match piece {
            Piece::Literal(text) if rest.starts_with(text) => text.len(),
            Piece::Dotted(text) if starts_with_dotted(rest, text) => text.len(),
            Piece::Parameter(name) => {
                let len = memchr::memchr(b'/', rest).unwrap_or(rest.len());
                if len == 0 {
                    return None;
                }
                if let Some(params) = params.as_deref_mut() {
                    params.push(*name, at..at + len);
                }
                len
            }
            Piece::Literal(_) | Piece::Dotted(_) => return None,
        };
        at += len;
    }
    Some(at)
}

fn starts_with_dotted(text: &[u8], dotted: &[u8]) -> bool {
    text.len() >= dotted.len()
        && text.iter().zip(dotted).all(|(have, want)| have == want || (*want == b'.' && *have != b'\n'))
}
