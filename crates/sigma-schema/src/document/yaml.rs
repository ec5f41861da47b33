//! The YAML reader: YAML 1.2, core schema, one document, keys that are scalars.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};
use serde_json::{Map, Value};

use super::flow::Indented;
use super::{
    Document, MAX_COPIED_VALUES, MAX_DEPTH, MAX_PROBLEMS, TextPosition, duplicate_key, number, too_deep,
};
use crate::problem::{Problem, element, member};

pub(super) fn read(text: &str) -> Result<Document, Vec<Problem>> {
    let mut indented = Indented::new(text);
    loop {
        let (builder, outdented) = attempt(&indented);
        if let Some(Outdented { line, flow }) = outdented
            && indented.indent(line, flow)
        {
            continue;
        }
        return match builder.problems.is_empty() {
            true => Ok(Document {
                value: builder.root.unwrap_or(Value::Null),
                positions: builder.positions,
                plain: builder.plain,
            }),
            false => Err(builder.problems),
        };
    }
}

/// A line that is not indented enough.
struct Outdented {
    line: usize,
    /// The position of the outermost open flow list or mapping.
    flow: Option<TextPosition>,
}

/// Parses the text once. If a line is not indented enough, also returns that line.
fn attempt(indented: &Indented<'_>) -> (Builder, Option<Outdented>) {
    let mut builder = Builder::default();
    let position = |marker: &Marker| TextPosition {
        line: marker.line() as u32,
        column: indented.column(marker) as u32 + 1,
    };
    for event in Parser::new_from_str(indented.text()) {
        match event {
            Ok((event, span)) => {
                if let Err(fatal) = builder.event(event, position(&span.start)) {
                    builder.problems.push(fatal);
                    break;
                }
            }
            Err(error) => {
                let TextPosition { line, column } = position(error.marker());
                let message = format!("not YAML: {} (column {column})", error.info());
                let mut problem = Problem::new("", "syntax", message).at(Some(line));
                problem.hint = remedy(error.info()).map(str::to_owned);
                builder.problems.push(problem);
                let in_brackets = builder.stack.iter().map(|frame| frame.position);
                let flow = in_brackets.into_iter().find(|position| indented.is_bracket(*position));
                let is_outdented = error.info().contains("indentation");
                let outdented = is_outdented.then_some(Outdented { line: line as usize, flow });
                return (builder, outdented);
            }
        }
    }
    (builder, None)
}

/// Returns the remedy for a YAML syntax error.
fn remedy(info: &str) -> Option<&'static str> {
    let known = [
        ("tabs disallowed", "indent with spaces"),
        (
            "mapping values are not allowed",
            "compare the indentation with the line above; put texts with `: ` into quotes",
        ),
        ("did not find expected key", "compare the indentation with the line above"),
        ("anchor or alias", "put texts that begin with `*` or `&` into quotes"),
        ("unexpected character", "put the text into quotes"),
        ("in quoted scalar", "the quotes are not closed"),
        ("in flow construct", "a bracket is not closed, or the line is not indented"),
    ];
    known.into_iter().find(|(text, _)| info.contains(text)).map(|(_, remedy)| remedy)
}

/// An open list or mapping.
struct Frame {
    pointer: String,
    /// Position of its first character.
    position: TextPosition,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Value>),
    /// Holds the key of the next value. The value of a duplicate key is dropped.
    Mapping {
        map: Map<String, Value>,
        key: Option<Key>,
    },
}

struct Key {
    text: String,
    position: TextPosition,
    duplicate: bool,
}

/// An anchored value with the cost of copying it.
struct Anchored {
    value: Value,
    pointer: String,
    size: usize,
    depth: usize,
}

#[derive(Default)]
struct Builder {
    root: Option<Value>,
    documents: usize,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Anchored>,
    copied: usize,
    positions: HashMap<String, TextPosition>,
    plain: HashSet<String>,
    problems: Vec<Problem>,
}

impl Builder {
    /// Handles one event. An error ends the parse.
    fn event(&mut self, event: Event<'_>, position: TextPosition) -> Result<(), Problem> {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "a second YAML document starts here";
                    return Err(Problem::new("", "syntax", message)
                        .at(Some(position.line))
                        .hint("write one document only"));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                if self.expects_key() {
                    if style == ScalarStyle::Plain && text == "<<" {
                        return Err(merge_key(&self.enclosing(), position.line));
                    }
                    self.key(text.into_owned(), position);
                    return Ok(());
                }
                let typed = style == ScalarStyle::Plain && tag.is_none_or(|tag| tag.suffix != "str");
                let value = if typed { plain(&text) } else { Some(Value::String(text.to_string())) };
                let pointer = self.next_pointer();
                if typed && text.contains("${{") {
                    self.plain.insert(pointer.clone());
                }
                let value = value.unwrap_or_else(|| {
                    let message = format!("`{text}` is a number out of range");
                    self.report(Problem::new(&pointer, "number", message).at(Some(position.line)));
                    Value::Null
                });
                self.finish(value, anchor, pointer, position)
            }
            Event::SequenceStart(anchor, _) => self.open(anchor, Content::List(Vec::new()), position),
            Event::MappingStart(anchor, _) => {
                self.open(anchor, Content::Mapping { map: Map::new(), key: None }, position)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor, position),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn report(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn expects_key(&self) -> bool {
        matches!(self.stack.last(), Some(Frame { content: Content::Mapping { key: None, .. }, .. }))
    }

    fn key(&mut self, text: String, position: TextPosition) {
        let Some(Frame { pointer, content: Content::Mapping { map, key }, .. }) = self.stack.last_mut()
        else {
            return;
        };
        let duplicate = map.contains_key(&text);
        let place = duplicate.then(|| member(pointer, &text));
        *key = Some(Key { text, position, duplicate });
        if let Some(place) = place {
            let first = self.positions.get(&place).map(|position| position.line);
            self.report(duplicate_key(&place, position.line, first));
        }
    }

    /// Returns the pointer of the innermost open list or mapping.
    fn enclosing(&self) -> String {
        self.stack.last().map_or_else(String::new, |frame| frame.pointer.clone())
    }

    /// Returns the pointer of the next value.
    fn next_pointer(&self) -> String {
        match self.stack.last() {
            None => String::new(),
            Some(Frame { pointer, content: Content::List(items), .. }) => element(pointer, items.len()),
            Some(Frame { pointer, content: Content::Mapping { key, .. }, .. }) => {
                member(pointer, key.as_ref().map_or("", |key| key.text.as_str()))
            }
        }
    }

    fn open(&mut self, anchor: usize, content: Content, position: TextPosition) -> Result<(), Problem> {
        let pointer = self.next_pointer();
        if self.expects_key() {
            let message = "a key must be a string, not a list or a mapping";
            return Err(Problem::new(pointer, "syntax", message).at(Some(position.line)));
        }
        if self.stack.len() >= MAX_DEPTH {
            return Err(too_deep(&pointer, position.line));
        }
        self.locate(&pointer, position);
        self.stack.push(Frame { pointer, position, anchor, content });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Problem> {
        let Some(Frame { pointer, anchor, content, .. }) = self.stack.pop() else {
            return Ok(());
        };
        let value = match content {
            Content::List(items) => Value::Array(items),
            Content::Mapping { map, .. } => Value::Object(map),
        };
        let position = self.positions.get(&pointer).copied().unwrap_or(TextPosition::START);
        self.finish(value, anchor, pointer, position)
    }

    fn alias(&mut self, anchor: usize, position: TextPosition) -> Result<(), Problem> {
        let pointer = self.next_pointer();
        if self.expects_key() {
            return Err(Problem::new(pointer, "syntax", "a key must not be an alias").at(Some(position.line)));
        }
        let Some(anchored) = self.anchors.get(&anchor) else {
            let message = "this alias is inside the value that it refers to";
            return Err(Problem::new(pointer, "syntax", message).at(Some(position.line)));
        };
        if self.stack.len() + anchored.depth > MAX_DEPTH {
            return Err(too_deep(&pointer, position.line));
        }
        self.copied += anchored.size;
        if self.copied > MAX_COPIED_VALUES {
            return Err(too_many_copies(&pointer, position.line));
        }
        let value = anchored.value.clone();
        let below = |text: &String| Some(format!("{pointer}{}", text.strip_prefix(&anchored.pointer)?));
        let plain: Vec<String> = match has_variables(&value) {
            true => self.plain.iter().filter_map(below).collect(),
            false => Vec::new(),
        };
        self.plain.extend(plain);
        self.finish(value, 0, pointer, position)
    }

    /// Records the position of a mapping's member at its key, where the reader of a message looks.
    fn locate(&mut self, pointer: &str, position: TextPosition) {
        let position = match self.stack.last() {
            Some(Frame { content: Content::Mapping { key: Some(key), .. }, .. }) => key.position,
            _ => position,
        };
        self.positions.entry(pointer.to_owned()).or_insert(position);
    }

    fn finish(
        &mut self,
        value: Value,
        anchor: usize,
        pointer: String,
        position: TextPosition,
    ) -> Result<(), Problem> {
        self.locate(&pointer, position);
        if anchor > 0 {
            let (size, depth) = extent(&value);
            self.copied += size;
            if self.copied > MAX_COPIED_VALUES {
                return Err(too_many_copies(&pointer, position.line));
            }
            let copied = Anchored { value: value.clone(), pointer: pointer.clone(), size, depth };
            self.anchors.insert(anchor, copied);
        }
        match self.stack.last_mut() {
            None => self.root = Some(value),
            Some(Frame { content: Content::List(items), .. }) => items.push(value),
            Some(Frame { content: Content::Mapping { map, key }, .. }) => {
                if let Some(Key { text, duplicate: false, .. }) = key.take() {
                    map.insert(text, value);
                }
            }
        }
        Ok(())
    }
}

fn too_many_copies(pointer: &str, line: u32) -> Problem {
    let message = format!("anchors and aliases copy more than {MAX_COPIED_VALUES} values");
    Problem::new(pointer, "too_large", message).at(Some(line)).hint("write fewer aliases")
}

/// Merge keys belong to YAML 1.1. The core schema of 1.2 does not have them, and parsers disagree on precedence.
fn merge_key(pointer: &str, line: u32) -> Problem {
    Problem::new(pointer, "merge_key", "`<<` does not merge mappings here")
        .at(Some(line))
        .hint("write the members here, or use an alias for the whole value")
}

/// Returns the number of values, and the number of list and mapping levels.
fn extent(value: &Value) -> (usize, usize) {
    let join =
        |(size, depth): (usize, usize), (more, deeper): (usize, usize)| (size + more, depth.max(deeper + 1));
    match value {
        Value::Array(items) => items.iter().map(extent).fold((1, 1), join),
        Value::Object(map) => map.values().map(extent).fold((1, 1), join),
        _ => (1, 0),
    }
}

/// Returns whether a text of the value has variables.
fn has_variables(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("${{"),
        Value::Array(items) => items.iter().any(has_variables),
        Value::Object(map) => map.values().any(has_variables),
        _ => false,
    }
}

/// Returns a plain scalar by the core schema, or `None` for a number that JSON cannot hold.
pub(super) fn plain(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => return scalar_number(text).unwrap_or_else(|| Some(Value::String(text.to_owned()))),
    })
}

/// Parses the number that `text` spells. The inner `None` means a number that JSON cannot hold.
fn scalar_number(text: &str) -> Option<Option<Value>> {
    let radix = |digits: &str, radix: u32| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| char::from(b).is_digit(radix));
        plain.then(|| u64::from_str_radix(digits, radix).ok().map(Value::from))
    };
    if let Some(hex) = text.strip_prefix("0x") {
        return radix(hex, 16);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return radix(octal, 8);
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(digits, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Some(None);
    }
    let mut first = digits.bytes();
    let starts = match first.next()? {
        b'.' => first.next().is_some_and(|b| b.is_ascii_digit()),
        b => b.is_ascii_digit(),
    };
    let allowed = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
    if !starts || !digits.bytes().all(allowed) {
        return None;
    }
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if let Ok(integer) = unsigned.parse::<i64>() {
        return Some(Some(integer.into()));
    }
    if let Ok(integer) = unsigned.parse::<u64>() {
        return Some(Some(integer.into()));
    }
    unsigned.parse().ok().map(number)
}
