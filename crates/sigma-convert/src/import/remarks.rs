//! Remarks by line: the report of a conversion while it grows.

use std::collections::HashSet;

use super::report::{Report, Verdict};
use super::source::{SourceLine, Sources};
use super::tree::{Content, Tree};

/// Remarks with the lines that they are about.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    sources: Sources,
    lines: Vec<Vec<String>>,
    report: Report,
    marked: HashSet<SourceLine>,
}

impl Remarks {
    /// Adds a file and returns its index.
    pub(super) fn file(&mut self, name: &str, text: &str) -> Result<u16, String> {
        let index = self.sources.add(name, text)?;
        self.lines.push(text.lines().map(str::to_owned).collect());
        Ok(index)
    }

    /// Returns a source line.
    pub(super) fn line(&self, place: SourceLine) -> &str {
        let lines = self.lines.get(usize::from(place.file));
        let line = (place.line as usize).checked_sub(1);
        lines.zip(line).and_then(|(lines, line)| lines.get(line)).map_or("", String::as_str)
    }

    /// Adds a remark on a line.
    pub(super) fn add(&mut self, place: SourceLine, verdict: Verdict, text: impl Into<String>) {
        self.marked.insert(place);
        let line = self.line(place).to_owned();
        self.report.add(place, &line, verdict, text);
    }

    /// Says that a line has the same effect, unless it has another remark.
    pub(super) fn done(&mut self, place: SourceLine) {
        if !self.marked.contains(&place) {
            self.add(place, Verdict::Done, "");
        }
    }

    /// Says how the effect differs.
    pub(super) fn differs(&mut self, place: SourceLine, text: impl Into<String>) {
        self.add(place, Verdict::Differs, text);
    }

    /// Says why a line has no effect.
    pub(super) fn no_effect(&mut self, place: SourceLine, text: impl Into<String>) {
        self.add(place, Verdict::NoEffect, text);
    }

    /// Says that a line has no counterpart, and what to do.
    pub(super) fn gap(&mut self, place: SourceLine, text: impl Into<String>) {
        self.add(place, Verdict::NotPossible, text);
    }

    /// Says that a line that guards access has no counterpart: its routes are closed.
    pub(super) fn closed(&mut self, place: SourceLine, text: impl Into<String>) {
        self.marked.insert(place);
        let line = self.line(place).to_owned();
        self.report.add_guard(place, &line, Verdict::NotPossible, text);
    }

    /// Says of a line that guards access how the effect differs.
    pub(super) fn guard_differs(&mut self, place: SourceLine, text: impl Into<String>) {
        self.marked.insert(place);
        let line = self.line(place).to_owned();
        self.report.add_guard(place, &line, Verdict::Differs, text);
    }

    /// Says of all lines of a tree that have no remark that they have the same effect.
    pub(super) fn rest(&mut self, file: u16, tree: &Tree) {
        match &tree.content {
            Content::Null | Content::Scalar { .. } => self.done(SourceLine { file, line: tree.line }),
            Content::List(items) => items.iter().for_each(|item| self.rest(file, item)),
            Content::Map(members) => {
                for member in members {
                    if member.line > 0 {
                        self.done(SourceLine { file, line: member.line });
                    }
                    self.rest(file, &member.value);
                }
            }
        }
    }

    /// Returns the report.
    pub(super) fn finish(mut self) -> Report {
        self.report.finish(self.sources);
        self.report
    }
}
