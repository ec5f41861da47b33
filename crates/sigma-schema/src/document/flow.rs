//! YAML flow lists and mappings whose lines are indented less than YAML 1.2 requires.
//!
//! JSON pasted after a key ends in the column of the key. libyaml and most other parsers ignore the indentation inside
//! brackets; the parser here does not. So spaces, which have no meaning there, are added to the lines up to the closing
//! bracket.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::Marker;

use super::TextPosition;

/// Maximum number of bytes in all rereads, and maximum number of reads: a file with thousands of such lists would
/// otherwise take minutes.
const REREAD_BYTES: usize = 256 << 20;
const READINGS: usize = 1000;

/// A text, with the spaces added to its lines.
pub(super) struct Indented<'a> {
    text: Cow<'a, str>,
    /// Number of added spaces by line, from 1.
    added: HashMap<usize, usize>,
    readings: usize,
    bytes: usize,
}

impl<'a> Indented<'a> {
    pub(super) fn new(text: &'a str) -> Indented<'a> {
        Indented { text: Cow::Borrowed(text), added: HashMap::new(), readings: 0, bytes: 0 }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the column of a position in the original text, from 0.
    pub(super) fn column(&self, marker: &Marker) -> usize {
        marker.col().saturating_sub(self.added_to(marker.line()))
    }

    fn added_to(&self, line: usize) -> usize {
        self.added.get(&line).copied().unwrap_or_default()
    }

    /// Returns whether there is an opening bracket at a position.
    pub(super) fn is_bracket(&self, position: TextPosition) -> bool {
        self.offset(position).is_some_and(|at| self.text[at..].starts_with(['{', '[']))
    }

    fn offset(&self, position: TextPosition) -> Option<usize> {
        let line = position.line as usize;
        let start = self.line_start(line)?;
        let column = position.column as usize - 1 + self.added_to(line);
        let within = self.text[start..].char_indices().nth(column)?.0;
        Some(start + within)
    }

    fn line_start(&self, line: usize) -> Option<usize> {
        match line {
            0 => None,
            1 => Some(0),
            line => self.text.match_indices('\n').nth(line - 2).map(|(at, _)| at + 1),
        }
    }

    /// Indents the flow list or mapping that begins at `flow`, or at the end of the line before `line`. Returns whether
    /// the text should be read again.
    pub(super) fn indent(&mut self, line: usize, flow: Option<TextPosition>) -> bool {
        self.readings += 1;
        self.bytes += self.text.len();
        if self.readings > READINGS || self.bytes > REREAD_BYTES || self.added.contains_key(&line) {
            return false;
        }
        let found = match flow {
            Some(position) => self.offset(position),
            None => self.bracket_before(line),
        };
        let Some((start, length)) = found.and_then(|at| Some((at, extent(&self.text[at..])?))) else {
            return false;
        };
        let first = self.text[..start].matches('\n').count() + 1;
        let begin = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        // More than the column of any block around it.
        let width = self.text[begin..start].chars().count() + 1;
        let inside = self.text[start..start + length].split('\n').enumerate();
        let mut grown = String::with_capacity(self.text.len() + 1024);
        grown.push_str(&self.text[..start]);
        let mut covers = false;
        for (index, part) in inside {
            if index > 0 {
                covers |= first + index == line;
                *self.added.entry(first + index).or_default() += width;
                grown.push('\n');
                grown.extend(std::iter::repeat_n(' ', width));
            }
            grown.push_str(part);
        }
        grown.push_str(&self.text[start + length..]);
        self.text = Cow::Owned(grown);
        covers
    }

    /// Returns the bracket at the end of the last non-empty line before `line`.
    fn bracket_before(&self, line: usize) -> Option<usize> {
        let before = self.text[..self.line_start(line)?].trim_end();
        before.ends_with(['{', '[']).then(|| before.len() - 1)
    }
}

/// Returns the length of the list or mapping at the start of `text`, or None if it does not end.
fn extent(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quote = None;
    let mut escaped = false;
    // The quote that ended with the previous character: a doubled quote is a quote inside the text.
    let mut closed = None;
    let mut comment = false;
    // The last character that is not a space, and the one before it.
    let (mut last, mut before) = ('{', ' ');
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if comment => comment = c != '\n',
            _ if escaped => escaped = false,
            (Some('"'), '\\') => escaped = true,
            (Some(open), c) if c == open => {
                (quote, closed, before) = (None, Some(open), c);
                last = c;
                continue;
            }
            (Some(_), _) => {}
            (None, '\'') if closed == Some('\'') => quote = closed,
            (None, '#') if before.is_whitespace() => comment = true,
            // Inside a plain text quotes are ordinary characters.
            (None, '"' | '\'') if matches!(last, '{' | '[' | ',' | ':') => quote = Some(c),
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            (None, _) => {}
        }
        if !c.is_whitespace() && !comment {
            last = c;
        }
        (before, closed) = (c, None);
    }
    None
}
