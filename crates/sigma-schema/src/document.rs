//! Parses a text to a JSON value and records the position of each part.
//!
//! A document is JSON (with comments) when it begins with `{` and a quoted key, else YAML.
//! Both readers share the limits, because the text may come from a network client.

mod flow;
mod json;
mod strict;
mod yaml;

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::problem::Problem;

pub use strict::{JsonError, strict_json};

/// Maximum nesting of lists and objects. Code after the reader may recurse.
pub const MAX_DEPTH: usize = 64;

/// Maximum number of values that YAML aliases may add to a document by copying.
const MAX_COPIED_VALUES: usize = 100_000;

/// Maximum number of problems that one parse reports.
const MAX_PROBLEMS: usize = 200;

/// A position in the text of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPosition {
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
}

impl TextPosition {
    /// The first character.
    const START: TextPosition = TextPosition { line: 1, column: 1 };
}

/// A parsed document.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// The content.
    pub value: Value,
    /// Pointer (`routes[0].uri`) → position in the text.
    pub positions: HashMap<String, TextPosition>,
    /// Pointers of unquoted texts with variables (`${{NAME}}`). Always empty for JSON.
    pub plain: HashSet<String>,
}

impl Document {
    /// Parses `text` of at most `max_bytes` bytes as JSON or YAML, whichever it is.
    pub fn parse(text: &str, max_bytes: usize) -> Result<Document, Vec<Problem>> {
        if text.len() > max_bytes {
            let message = format!("the document has {} bytes; the maximum is {max_bytes}", text.len());
            return Err(vec![Problem::new("", "too_large", message)]);
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match is_json(text) {
            true => json::read(text),
            false => yaml::read(text),
        }
    }

    /// Returns the line of the value at `pointer`, or of its nearest ancestor in the text.
    #[must_use]
    pub fn line(&self, pointer: &str) -> Option<u32> {
        let mut pointer = pointer;
        loop {
            if let Some(position) = self.positions.get(pointer) {
                return Some(position.line);
            }
            if pointer.is_empty() {
                return None;
            }
            pointer = parent(pointer);
        }
    }

    /// Returns a problem at `pointer`, with its line.
    #[must_use]
    pub fn problem(&self, pointer: &str, code: &'static str, message: impl Into<String>) -> Problem {
        Problem::new(pointer, code, message).at(self.line(pointer))
    }

    /// Adds the line of its pointer to the problem.
    #[must_use]
    pub fn located(&self, problem: Problem) -> Problem {
        let line = self.line(&problem.pointer);
        problem.at(line)
    }
}

/// Returns the value of a plain YAML scalar by the core schema, or None for a number that JSON cannot hold.
#[must_use]
pub fn yaml_scalar(text: &str) -> Option<Value> {
    yaml::plain(text)
}

/// Returns the pointer of the parent: all but the last member or element.
fn parent(pointer: &str) -> &str {
    let cut = match pointer.strip_suffix("\"]") {
        Some(quoted) => quoted.rfind("[\""),
        None => pointer.rfind(['.', '[']),
    };
    &pointer[..cut.unwrap_or(0)]
}

/// Returns whether the text begins, after spaces and comments, with `{"` or `{}`. A text with a bare word there, as in
/// `{uri: /a}`, is a YAML flow mapping.
fn is_json(text: &str) -> bool {
    let Some(inner) = without_comments(text).strip_prefix('{') else { return false };
    let inner = without_comments(inner);
    inner.is_empty() || inner.starts_with(['"', '}'])
}

/// Returns the text after its leading spaces and comments.
fn without_comments(text: &str) -> &str {
    let mut rest = text.trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("//").or_else(|| rest.strip_prefix('#')) {
            rest = comment.split_once('\n').map_or("", |(_, after)| after).trim_start();
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after).trim_start();
        } else {
            return rest;
        }
    }
}

/// Turns a float without fraction into an integer, so that `1.0` is accepted wherever `1` is.
fn number(float: f64) -> Option<Value> {
    // 2^53: below it every integer has one float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if float.fract() == 0.0 && float.abs() < EXACT {
        return Some(Value::from(float as i64));
    }
    serde_json::Number::from_f64(float).map(Value::Number)
}

/// Returns whether `value` has more than `levels` levels of lists and objects, as [`MAX_DEPTH`] counts them. The search
/// stops at that depth.
#[must_use]
pub fn is_deeper(value: &Value, levels: usize) -> bool {
    let (Value::Array(_) | Value::Object(_)) = value else { return false };
    let Some(left) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, left)),
        Value::Object(map) => map.values().any(|item| is_deeper(item, left)),
        _ => false,
    }
}

fn too_deep(pointer: &str, line: u32) -> Problem {
    Problem::new(pointer, "too_deep", format!("nested deeper than {MAX_DEPTH} levels")).at(Some(line))
}

fn duplicate_key(pointer: &str, line: u32, first: Option<u32>) -> Problem {
    let problem = Problem::new(pointer, "duplicate_key", "this key exists twice").at(Some(line));
    match first {
        Some(first) => problem.hint(format!("the first one is in line {first}; remove one of them")),
        None => problem.hint("remove one"),
    }
}

#[cfg(test)]
mod tests;
