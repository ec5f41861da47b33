//! The report of a conversion: a remark for each source line that says something.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::source::{SourceLine, Sources};

/// Maximum length in characters of a source line in the report.
const SOURCE_LENGTH: usize = 160;

/// The result of a source line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It has the same effect.
    Done,
    /// It has a similar effect; the remark says what differs.
    Differs,
    /// Tuning without a counterpart; nothing is lost.
    NoEffect,
    /// It has no counterpart; the remark says what to do.
    NotPossible,
}

impl Verdict {
    /// Returns the word of reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Done => "done",
            Verdict::Differs => "done with a difference",
            Verdict::NoEffect => "without effect here",
            Verdict::NotPossible => "not possible",
        }
    }
}

/// A source line with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Its place.
    pub place: SourceLine,
    /// The line, trimmed.
    pub source: String,
    /// Its result.
    pub verdict: Verdict,
    /// One sentence; empty for `Done`.
    pub text: String,
    /// Whether the line guards access.
    pub guards: bool,
}

/// The remarks of a conversion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The files read; places refer to this list.
    pub files: Vec<String>,
    /// The remarks, in order of their places after [`Report::sort`].
    pub remarks: Vec<Remark>,
}

impl Report {
    /// Adds a remark.
    pub fn add(&mut self, place: SourceLine, source: &str, verdict: Verdict, text: impl Into<String>) {
        let remark = Remark { place, source: shortened(source), verdict, text: text.into(), guards: false };
        self.remarks.push(remark);
    }

    /// Adds a remark on a line that guards access.
    pub fn add_guard(&mut self, place: SourceLine, source: &str, verdict: Verdict, text: impl Into<String>) {
        let remark = Remark { place, source: shortened(source), verdict, text: text.into(), guards: true };
        self.remarks.push(remark);
    }

    /// Takes over the names of the files, and sorts the remarks by place. Of two equal remarks one remains, and a
    /// `Done` gives way to another remark on the same line and text.
    pub fn finish(&mut self, sources: Sources) {
        self.files = sources.into_names();
        self.remarks.sort_by(|a, b| {
            let key = |remark: &Remark| (remark.place, std::cmp::Reverse(remark.verdict));
            key(a).cmp(&key(b)).then_with(|| a.source.cmp(&b.source)).then_with(|| a.text.cmp(&b.text))
        });
        self.remarks.dedup();
        let mut kept: Vec<Remark> = Vec::with_capacity(self.remarks.len());
        for remark in self.remarks.drain(..) {
            let is_known = kept
                .iter()
                .rev()
                .take_while(|other| other.place == remark.place)
                .any(|other| other.source == remark.source);
            if remark.verdict != Verdict::Done || !is_known {
                kept.push(remark);
            }
        }
        self.remarks = kept;
    }

    /// Returns whether something that guards access could not be converted.
    #[must_use]
    pub fn has_open_guards(&self) -> bool {
        self.remarks.iter().any(|remark| remark.guards && remark.verdict == Verdict::NotPossible)
    }

    /// Returns the number of remarks with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.remarks.iter().filter(|remark| remark.verdict == verdict).count()
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let remarks: Vec<Value> = self
            .remarks
            .iter()
            .map(|remark| {
                json!({
                    "file": self.file(remark.place), "line": remark.place.line, "source": remark.source,
                    "verdict": remark.verdict.word(), "text": remark.text, "guards": remark.guards,
                })
            })
            .collect();
        json!({"files": self.files, "summary": self.summary(), "remarks": remarks})
    }

    fn summary(&self) -> Value {
        json!({
            "done": self.count(Verdict::Done),
            "done with a difference": self.count(Verdict::Differs),
            "without effect here": self.count(Verdict::NoEffect),
            "not possible": self.count(Verdict::NotPossible),
            "closed guards": self.remarks.iter().filter(|it| it.guards && it.verdict == Verdict::NotPossible).count(),
        })
    }

    /// Returns the report as text: differences and gaps line by line, the rest as numbers.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for verdict in [Verdict::NotPossible, Verdict::Differs] {
            for remark in self.remarks.iter().filter(|remark| remark.verdict == verdict) {
                let guard =
                    if remark.guards && verdict == Verdict::NotPossible { " (guards access)" } else { "" };
                let place = format!("{}:{}", self.file(remark.place), remark.place.line);
                let _ = writeln!(
                    text,
                    "{place}: {}{guard}: `{}`: {}",
                    verdict.word(),
                    remark.source,
                    remark.text
                );
            }
        }
        let _ = writeln!(
            text,
            "{} lines done, {} with a difference, {} without effect here, {} not possible",
            self.count(Verdict::Done),
            self.count(Verdict::Differs),
            self.count(Verdict::NoEffect),
            self.count(Verdict::NotPossible),
        );
        text
    }

    fn file(&self, place: SourceLine) -> &str {
        self.files.get(usize::from(place.file)).map_or("", String::as_str)
    }
}

/// A line of a bounded length, without control characters.
fn shortened(source: &str) -> String {
    let mut line: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
    line.retain(|char| !char.is_control());
    if line.chars().count() > SOURCE_LENGTH {
        line = line.chars().take(SOURCE_LENGTH).chain("…".chars()).collect();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_have_one_remark_for_a_line() {
        let place = |line| SourceLine { file: 0, line };
        let mut sources = Sources::default();
        sources.add("a.conf", "").expect("a small file");
        let mut report = Report::default();
        report.add(place(2), "b  c;", Verdict::Done, "");
        report.add(place(2), "b c;", Verdict::Differs, "It differs.");
        report.add(place(1), "a;", Verdict::Done, "");
        report.add(place(1), "a;", Verdict::Done, "");
        report.add_guard(place(3), "deny all;", Verdict::NotPossible, "The route is closed.");
        report.finish(sources);
        let lines: Vec<(u32, Verdict)> =
            report.remarks.iter().map(|it| (it.place.line, it.verdict)).collect();
        assert_eq!(lines, [(1, Verdict::Done), (2, Verdict::Differs), (3, Verdict::NotPossible)]);
        assert!(report.has_open_guards());
        assert!(
            report
                .text()
                .contains("a.conf:3: not possible (guards access): `deny all;`: The route is closed.")
        );
        assert_eq!(report.json()["summary"]["done"], 1);
    }
}
