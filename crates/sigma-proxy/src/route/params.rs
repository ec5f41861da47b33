//! The captures of a pattern's parameters (`uri_param_<name>`, routing.md §3.4).

use std::ops::Range;

/// Captures of the matched route: ranges of the path that was matched, with their names. The
/// names are copied from the pattern, so that they outlive the router that the route came from
/// and no counter is shared between workers. Reusable; it keeps its memory.
#[derive(Debug, Default, Clone)]
pub struct Params {
    captures: Vec<Capture>,
    /// The names of the pattern's parameters one after the other.
    names: String,
}

#[derive(Debug, Clone, Copy)]
struct Capture {
    name: Name,
    start: u32,
    end: u32,
}

/// A name: where it is among the names of its pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    at: u32,
    len: u32,
}

impl Name {
    /// Returns the name that is `name` once this is written after `names`.
    pub(super) fn write(name: &str, names: &mut String) -> Name {
        // A pattern is part of a configuration, which is far below 4 GiB.
        let written = Name { at: names.len() as u32, len: name.len() as u32 };
        names.push_str(name);
        written
    }

    fn read(self, names: &str) -> &str {
        &names[self.at as usize..(self.at + self.len) as usize]
    }
}

impl Params {
    /// No captures.
    pub const fn new() -> Params {
        Params { captures: Vec::new(), names: String::new() }
    }

    /// Forgets all captures.
    pub fn clear(&mut self) {
        self.captures.clear();
    }

    /// Number of captures.
    pub fn len(&self) -> usize {
        self.captures.len()
    }

    /// Returns true without captures.
    pub fn is_empty(&self) -> bool {
        self.captures.is_empty()
    }

    /// Returns the capture of a parameter, as a range of the path. `name` is the part after `uri_param_`.
    pub fn get(&self, name: &[u8]) -> Option<Range<usize>> {
        // Of equal names in one pattern the last one counts.
        self.iter().rev().find(|(known, _)| known.as_bytes() == name).map(|(_, range)| range)
    }

    /// Returns all captures in path order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, Range<usize>)> {
        self.captures
            .iter()
            .map(|capture| (capture.name.read(&self.names), capture.start as usize..capture.end as usize))
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.captures.truncate(len);
    }

    /// Adds a capture. Its name must be one of those passed to [`Params::set_names`] before the first read.
    #[inline]
    pub(super) fn push(&mut self, name: Name, range: Range<usize>) {
        // A path is shorter than 4 GiB: the request line is limited to far less.
        self.captures.push(Capture { name, start: range.start as u32, end: range.end as u32 });
    }

    /// Sets the names of the pattern of all captures.
    #[inline]
    pub(super) fn set_names(&mut self, names: &str) {
        self.names.clear();
        self.names.push_str(names);
    }

    /// Adds the capture of a pattern with a single one.
    #[inline]
    pub(super) fn push_only(&mut self, name: &str, range: Range<usize>) {
        self.set_names(name);
        self.push(Name { at: 0, len: name.len() as u32 }, range);
    }
}
