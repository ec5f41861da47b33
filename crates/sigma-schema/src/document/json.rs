//! The JSON reader: RFC 8259 with `//` and `/* */` comments.

use std::collections::HashMap;

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::{Map, Value};

use super::{Document, MAX_DEPTH, MAX_PROBLEMS, TextPosition, duplicate_key, number, too_deep};
use crate::problem::{Problem, element, member};

pub(super) fn read(text: &str) -> Result<Document, Vec<Problem>> {
    let options = ParseOptions {
        allow_comments: true,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = match parse_to_ast(text, &CollectOptions::default(), &options) {
        Ok(parsed) => parsed,
        Err(error) => {
            let line = u32::try_from(error.line_display()).ok();
            let message = format!("not JSON: {} (column {})", error.kind(), error.column_display());
            return Err(vec![Problem::new("", "syntax", message).at(line)]);
        }
    };
    let mut reader = Reader { lines: line_starts(text), positions: HashMap::new(), problems: Vec::new() };
    let value = parsed.value.map_or(Value::Null, |value| reader.value(value, "", 0));
    match reader.problems.is_empty() {
        true => Ok(Document { value, positions: reader.positions, ..Document::default() }),
        false => Err(reader.problems),
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

struct Reader {
    lines: Vec<usize>,
    positions: HashMap<String, TextPosition>,
    problems: Vec<Problem>,
}

impl Reader {
    /// Returns the position of an offset, its column in bytes.
    fn position(&self, offset: usize) -> TextPosition {
        let line = self.lines.partition_point(|start| *start <= offset);
        let column = offset - self.lines[line - 1] + 1;
        TextPosition { line: line as u32, column: column as u32 }
    }

    fn report(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn value(&mut self, value: ast::Value<'_>, pointer: &str, depth: usize) -> Value {
        let position = self.position(value.range().start);
        self.positions.entry(pointer.to_owned()).or_insert(position);
        if depth > MAX_DEPTH {
            self.report(too_deep(pointer, position.line));
            return Value::Null;
        }
        match value {
            ast::Value::StringLit(text) => Value::String(text.value.into_owned()),
            ast::Value::BooleanLit(literal) => Value::Bool(literal.value),
            ast::Value::NullKeyword(_) => Value::Null,
            ast::Value::NumberLit(literal) => match parse_number(literal.value) {
                Some(number) => number,
                None => {
                    let message = format!("`{}` is a number out of range", literal.value);
                    self.report(Problem::new(pointer, "number", message).at(Some(position.line)));
                    Value::Null
                }
            },
            ast::Value::Array(array) => {
                let items = array.elements.into_iter().enumerate();
                Value::Array(
                    items.map(|(i, item)| self.value(item, &element(pointer, i), depth + 1)).collect(),
                )
            }
            ast::Value::Object(object) => self.object(object, pointer, depth),
        }
    }

    fn object(&mut self, object: ast::Object<'_>, pointer: &str, depth: usize) -> Value {
        let mut map = Map::new();
        for property in object.properties {
            let position = self.position(property.range.start);
            let key = property.name.into_string();
            let place = member(pointer, &key);
            if map.contains_key(&key) {
                let first = self.positions.get(&place).map(|position| position.line);
                self.report(duplicate_key(&place, position.line, first));
                continue;
            }
            self.positions.insert(place.clone(), position);
            let value = self.value(property.value, &place, depth + 1);
            map.insert(key, value);
        }
        Value::Object(map)
    }
}

fn parse_number(text: &str) -> Option<Value> {
    if let Ok(integer) = text.parse::<i64>() {
        return Some(integer.into());
    }
    if let Ok(integer) = text.parse::<u64>() {
        return Some(integer.into());
    }
    number(text.parse().ok()?)
}
