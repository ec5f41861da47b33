//! The valid part of an invalid file, so that later steps can find more problems in it.
//!
//! Compilation finds problems that the check of a document cannot see. It needs types, which an invalid document does
//! not have; without its invalid parts it has them.

use std::collections::HashSet;

use serde_json::Value;

use crate::resources::SECTIONS;
use crate::{Config, ParseOptions, check, prepared, typed};
use sigma_schema::Problem;
use sigma_schema::document::Document;
use sigma_schema::problem::element;

/// The valid parts of a file. Only for finding more problems, never for serving.
#[derive(Debug, Default)]
pub struct ValidPart {
    /// The remaining settings and items.
    pub config: Config,
    document: Document,
}

impl ValidPart {
    /// Reads `text` without the parts that contain `problems`, which [`parse`](crate::parse) found in it.
    #[must_use]
    pub fn read(text: &str, options: &ParseOptions<'_>, problems: &[Problem]) -> ValidPart {
        let mut found = check::Findings::default();
        let Ok(document) = prepared(text, options, &mut found) else { return ValidPart::default() };
        // Positions in a translated document refer to another one.
        if document.positions.is_empty() && !problems.is_empty() {
            return ValidPart::default();
        }
        let mut left = document.clone();
        for pointer in problems.iter().map(|problem| problem.pointer.as_str()) {
            remove_setting(&mut left, pointer);
        }
        for section in SECTIONS {
            remove_items(&mut left, section, problems);
        }
        let config = typed(&left, &[], &mut found);
        ValidPart { config, document }
    }

    /// Replaces the item id in a problem's pointer (`upstreams/1.scheme`) by the place in the file.
    #[must_use]
    pub fn located(&self, problem: Problem) -> Problem {
        located(&self.document, problem)
    }
}

/// See [`ValidPart::located`].
pub(crate) fn located(document: &Document, problem: Problem) -> Problem {
    let Some((section, rest)) = problem.pointer.split_once('/') else {
        let line = document.line(&problem.pointer);
        return Problem { line: problem.line.or(line), ..problem };
    };
    let items = document.value.get(section).and_then(Value::as_array).into_iter().flatten();
    // An id may contain dots, so the longest match is used.
    let named = items.enumerate().filter_map(|(index, item)| {
        let member = rest.strip_prefix(check::id_of(item)?.as_str())?;
        (member.is_empty() || member.starts_with('.')).then_some((index, member))
    });
    let Some((index, member)) = named.min_by_key(|(_, member)| member.len()) else { return problem };
    let pointer = element(section, index) + member;
    Problem { line: document.line(&pointer), pointer, ..problem }
}

/// Removes the setting that contains `pointer`; a problem of the whole document removes everything.
fn remove_setting(document: &mut Document, pointer: &str) {
    let Some(root) = document.value.as_object_mut() else { return };
    let name = pointer.split(['.', '[']).next().unwrap_or_default();
    if name.is_empty() {
        root.clear();
    } else if !SECTIONS.contains(&name) || pointer == name {
        root.remove(name);
    }
}

fn remove_items(document: &mut Document, section: &str, problems: &[Problem]) {
    let Some(Value::Array(items)) = document.value.get_mut(section) else { return };
    let index = |problem: &Problem| {
        let rest = problem.pointer.strip_prefix(section)?.strip_prefix('[')?;
        rest.split_once(']')?.0.parse::<usize>().ok()
    };
    let invalid: HashSet<usize> = problems.iter().filter_map(index).collect();
    let mut at = 0;
    items.retain(|_| {
        at += 1;
        !invalid.contains(&(at - 1))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parts_are_left_out() {
        let check = |text: &str, expected: [usize; 3]| {
            let options = ParseOptions::default();
            let problems = crate::parse(text, &options).expect_err(text);
            let resources = ValidPart::read(text, &options, &problems).config.resources;
            let got = [resources.routes.len(), resources.services.len(), resources.upstreams.len()];
            assert_eq!(got, expected, "{text}");
        };
        let up = "upstreams:\n  - { id: a, nodes: { h: 1 } }\n  - { id: b, nodes: { h: 1 }, retries: x }\n";
        check(up, [0, 0, 1]);
        check(&format!("{up}routes:\n  - {{ uri: /a, upstream_id: a }}\n  - {{ uri: a }}\n"), [1, 0, 1]);
        check(&format!("workers: many\nlimit: {{}}\n{up}"), [0, 0, 1]);
        check("routes: 1\nservices:\n  - { id: s }\n", [0, 1, 0]);
        check("- 1\n", [0, 0, 0]);
        check("a: [\n", [0, 0, 0]);
    }

    #[test]
    fn problems_of_items_get_their_place() {
        let text = "upstreams:\n  - id: a\n    nodes: { h: 1 }\n  - id: a.b\n    nodes: { h: 1 }\n    scheme: grpc\n";
        let valid = ValidPart::read(text, &ParseOptions::default(), &[]);
        let check = |pointer: &str, expected: &str| {
            let located = valid.located(Problem::new(pointer, "code", "message"));
            assert_eq!(located.to_string(), format!("{expected}: message"), "{pointer}");
        };
        check("upstreams/a.b.scheme", "line 6: upstreams[1].scheme");
        check("upstreams/a.scheme", "line 2: upstreams[0].scheme");
        check("upstreams/a.b", "line 4: upstreams[1]");
        check("upstreams/c.scheme", "upstreams/c.scheme");
    }
}
