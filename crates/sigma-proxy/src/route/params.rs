//! What the parameters of a pattern captured (`uri_param_<name>`, routing.md §3.4).

use std::collections::HashMap;
use std::ops::Range;

/// Captures of the matched route: ranges of the path that was matched. Reusable; it keeps its memory.
#[derive(Debug, Default, Clone)]
pub struct Params {
    captures: Vec<Capture>,
}

#[derive(Debug, Clone, Copy)]
struct Capture {
    name: u32,
    start: u32,
    end: u32,
}

impl Params {
    /// No captures.
    pub const fn new() -> Params {
        Params { captures: Vec::new() }
    }

    /// Forgets all captures.
    pub fn clear(&mut self) {
        self.captures.clear();
    }

    /// Number of captures.
    pub fn len(&self) -> usize {
        self.captures.len()
    }

    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.captures.is_empty()
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.captures.truncate(len);
    }

    pub(super) fn push(&mut self, name: u32, range: Range<usize>) {
        // A path is shorter than 4 GiB: the request line is limited to far less.
        self.captures.push(Capture { name, start: range.start as u32, end: range.end as u32 });
    }

    /// The captures in path order, by number of their name.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, Range<usize>)> {
        self.captures.iter().map(|capture| (capture.name, capture.start as usize..capture.end as usize))
    }
}

/// Names of parameters while a router is compiled; equal names share a number.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    numbers: HashMap<Box<str>, u32>,
    names: Vec<Box<str>>,
}

impl NameTable {
    pub(super) fn intern(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.numbers.insert(name.into(), number);
        self.names.push(name.into());
        number
    }

    /// The names by number.
    pub(super) fn into_names(self) -> Box<[Box<str>]> {
        self.names.into_boxed_slice()
    }
}
