//! A configuration in several files: the other files are joined to the first one before anything is checked.
//!
//! Lines are counted through all files, so each value of the joined document has its own line. At the end each problem
//! gets the name of its file, and the line and pointer in that file.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::resources::SECTIONS;
use sigma_schema::Problem;
use sigma_schema::document::{Document, TextPosition};
use sigma_schema::problem::{element, member};

/// A file that `include` names.
#[derive(Debug, Clone, Copy)]
pub struct Included<'a> {
    /// Its path, for messages.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// The position of each file in the joined document.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Part>);

#[derive(Debug)]
struct Part {
    name: Arc<str>,
    /// The number of lines before it.
    lines_before: u32,
    /// The number of items before its own, by section.
    items_before: HashMap<&'static str, usize>,
}

/// Returns the patterns of `include` in a text; none if the text cannot be read.
#[must_use]
pub fn patterns(text: &str, max_bytes: usize) -> Vec<String> {
    // Most files include no other, and are read once.
    if !text.contains("include") {
        return Vec::new();
    }
    let Ok(document) = Document::parse(text, max_bytes) else { return Vec::new() };
    let list = document.value.get("include").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|pattern| pattern.as_str().map(str::to_owned)).collect()
}

/// The joining of further texts to a document.
pub(crate) struct Joining {
    parts: Parts,
    problems: Vec<Problem>,
    lines: u32,
    bytes: usize,
    max_bytes: usize,
}

impl Joining {
    /// Begins with the text of the document.
    pub(crate) fn new(text: &str, max_bytes: usize) -> Joining {
        let (lines, bytes) = (lines_of(text), text.len());
        Joining { parts: Parts::default(), problems: Vec::new(), lines, bytes, max_bytes }
    }

    /// Joins texts to the document. `restrict` returns the problems of a text that can be seen in it alone.
    pub(crate) fn add_all(
        &mut self,
        document: &mut Document,
        texts: &[Included<'_>],
        restrict: fn(&Document) -> Vec<Problem>,
    ) {
        for text in texts {
            self.add(document, text, restrict);
        }
    }

    fn add(&mut self, document: &mut Document, one: &Included<'_>, restrict: fn(&Document) -> Vec<Problem>) {
        let Included { name, text } = one;
        self.bytes += text.len();
        if self.bytes > self.max_bytes {
            // Once, for the first text that is too much.
            if self.bytes - text.len() <= self.max_bytes {
                let (bytes, max) = (self.bytes, self.max_bytes);
                let message = format!("the files have {bytes} bytes together; the maximum is {max}");
                self.problems.push(Problem::new("include", "too_large", message));
            }
            return;
        }
        let mut part = Part { name: (*name).into(), lines_before: self.lines, items_before: HashMap::new() };
        self.lines += lines_of(text);
        let found = match Document::parse(text, self.max_bytes) {
            Ok(other) => {
                let found = restrict(&other);
                match found.is_empty() {
                    true => add(document, other, &mut part),
                    false => found.into_iter().map(|problem| part.shifted(problem)).collect(),
                }
            }
            Err(found) => found.into_iter().map(|problem| part.shifted(problem)).collect(),
        };
        self.problems.extend(found);
        self.parts.0.push(part);
    }

    /// Returns the position of each text.
    ///
    /// # Errors
    /// Returns all problems of the joined texts.
    pub(crate) fn finish(self) -> Result<Parts, Vec<Problem>> {
        let Joining { parts, problems, .. } = self;
        match problems.is_empty() {
            true => Ok(parts),
            false => Err(problems.into_iter().map(|problem| parts.located(problem)).collect()),
        }
    }
}

/// Adds the content of a file: the items of sections after those that are there, and settings that are not there.
fn add(document: &mut Document, other: Document, part: &mut Part) -> Vec<Problem> {
    let mut problems = Vec::new();
    let Document { value, positions, plain } = other;
    let Value::Object(members) = value else {
        // An empty file is a null.
        if !value.is_null() {
            problems
                .push(Problem::new("", "type", "the file is not a mapping").at(Some(part.lines_before + 1)));
        }
        return problems;
    };
    if !document.value.is_object() {
        document.value = Value::Object(serde_json::Map::new());
    }
    let Some(root) = document.value.as_object_mut() else { return problems };
    for (key, value) in members {
        let line = positions.get(&member("", &key)).map(|position| position.line + part.lines_before);
        let section = SECTIONS.into_iter().find(|section| *section == key);
        match (section, root.get_mut(&key), value) {
            (Some(section), Some(Value::Array(items)), Value::Array(more)) => {
                part.items_before.insert(section, items.len());
                items.extend(more);
            }
            (_, Some(_), _) if key == "include" => {
                let message = "an included file cannot include others";
                let problem = Problem::new("include", "conflict", message).at(line);
                problems.push(problem.hint("name them in the first file"));
            }
            (_, None, value) if key != "include" => drop(root.insert(key, value)),
            (_, None, _) => {}
            (_, Some(_), _) => {
                let message = format!("`{key}` is already set in an earlier file");
                let problem = Problem::new(member("", &key), "duplicate_key", message).at(line);
                problems.push(problem.hint("write it in one file"));
            }
        }
    }
    let moved = |pointer: &str| part.moved(pointer, |index, before| index + before);
    let below = |position: &TextPosition| TextPosition {
        line: position.line + part.lines_before,
        column: position.column,
    };
    document.positions.extend(
        positions
            .iter()
            .map(|(pointer, position)| (moved(pointer), below(position)))
            // The root stays the first file's.
            .filter(|(pointer, _)| !pointer.is_empty()),
    );
    document.plain.extend(plain.iter().map(|pointer| moved(pointer)));
    problems
}

fn lines_of(text: &str) -> u32 {
    u32::try_from(text.lines().count()).unwrap_or(u32::MAX / 2)
}

impl Part {
    fn shifted(&self, problem: Problem) -> Problem {
        let line = problem.line.map(|line| line + self.lines_before);
        problem.at(line)
    }

    /// Returns a pointer whose index in a section was changed by `change` with the number of items before.
    fn moved(&self, pointer: &str, change: impl Fn(usize, usize) -> usize) -> String {
        let parts =
            pointer.split_once('[').and_then(|(section, rest)| Some((section, rest.split_once(']')?)));
        let Some((section, (index, rest))) = parts else { return pointer.to_owned() };
        let before = self.items_before.get(section).zip(index.parse::<usize>().ok());
        match before {
            Some((before, index)) => format!("{}{rest}", element(section, change(index, *before))),
            None => pointer.to_owned(),
        }
    }
}

impl Parts {
    /// Returns a problem of the joined document as one of its file.
    pub(crate) fn located(&self, mut problem: Problem) -> Problem {
        let Some(line) = problem.line else { return problem };
        let Some(part) = self.0.iter().rev().find(|part| line > part.lines_before) else { return problem };
        problem.pointer = part.moved(&problem.pointer, |index, before| index.saturating_sub(before));
        problem.file = Some(Arc::clone(&part.name));
        problem.at(Some(line - part.lines_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParseOptions, parse};

    const MAIN: &str = "include: [conf.d/*.yaml]\nroutes:\n- uri: /a\n  upstream: http://127.0.0.1:1\n";

    fn parsed(files: &[(&str, &str)]) -> Result<crate::Checked, Vec<String>> {
        let included: Vec<Included<'_>> = files.iter().map(|(name, text)| Included { name, text }).collect();
        let options = ParseOptions { included: Some(&included), ..ParseOptions::default() };
        parse(MAIN, &options).map_err(|problems| problems.iter().map(Problem::to_string).collect())
    }

    #[test]
    fn items_are_joined_and_settings_are_added() {
        let one =
            ("a.yaml", "router: { http: ordered }\nroutes:\n- uri: /b\n  upstream: http://127.0.0.1:2\n");
        let two = (
            "b.yaml",
            "routes:\n- uri: /c\n  upstream: http://127.0.0.1:3\nupstreams:\n- id: u\n  nodes: { \"127.0.0.1:1\": 1 }\n",
        );
        let checked = parsed(&[one, two, ("empty.yaml", "")]).unwrap();
        let uris: Vec<&str> =
            checked.config.resources.routes.iter().filter_map(|route| route.uri.as_deref()).collect();
        assert_eq!(uris, ["/a", "/b", "/c"]);
        assert_eq!(checked.config.settings.router.http, crate::settings::RouterKind::Ordered);
        assert_eq!(checked.config.resources.upstreams.iter().count(), 1);
    }

    #[test]
    fn problems_have_file_line_and_place() {
        let good = ("a.yaml", "routes:\n- uri: /b\n  upstream: http://127.0.0.1:2\n");
        let check = |files: &[(&str, &str)], expected: &[&str]| {
            let found = parsed(files).unwrap_err();
            assert_eq!(found.len(), expected.len(), "{found:#?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{found}");
            }
        };
        let bad = (
            "conf.d/b.yaml",
            "# comment\nroutes:\n- uri: /c\n  upstream: http://127.0.0.1:3\n- uri: ~(\n  upstream: http://127.0.0.1:3\n",
        );
        check(&[good, bad], &["conf.d/b.yaml: line 5: routes[1].uri: the expression"]);
        check(&[good, ("c.yaml", "a: [\n")], &["c.yaml: line "]);
        check(&[good, ("c.yaml", "\ninclude: [x]\n")], &["c.yaml: line 2: include: an included file"]);
        check(
            &[("c.yaml", "workers: 1\n"), ("d.yaml", "\n\nworkers: 2\n")],
            &["d.yaml: line 3: workers: `workers` is already set in an"],
        );
        check(&[("c.yaml", "- a\n")], &["c.yaml: line 1: the file is not a mapping"]);
    }

    #[test]
    fn a_text_without_its_files_is_refused() {
        let found = parse(MAIN, &ParseOptions::default()).unwrap_err();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].pointer, "include");
        assert_eq!(patterns(MAIN, 1000), ["conf.d/*.yaml"]);
        assert_eq!(patterns("routes: []\n", 1000), [""; 0]);
    }
}
