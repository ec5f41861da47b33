//! Reads a source document key by key. Every access records the problems of its value, so that one pass finds all
//! problems.

use std::ops::RangeInclusive;

use serde_json::Value;

use sigma_schema::document::Document;
use sigma_schema::problem::{Problem, element, member};

/// A value of the source document with its position.
#[derive(Debug, Clone)]
pub(super) struct SourceValue<'d> {
    pub(super) value: &'d Value,
    pub(super) pointer: String,
}

impl<'d> SourceValue<'d> {
    pub(super) fn root(document: &'d Document) -> Self {
        SourceValue { value: &document.value, pointer: String::new() }
    }

    /// The member `key`; a null counts as absent, as it did in both programs.
    pub(super) fn get(&self, key: &str) -> Option<SourceValue<'d>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(SourceValue { value, pointer: self.pointer_of(key) })
    }

    /// Returns the pointer of the member `key`, present or not.
    pub(super) fn pointer_of(&self, key: &str) -> String {
        member(&self.pointer, key)
    }
}

/// How the original program treated an unknown key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// The program refused to start.
    Refused,
    /// The program ignored the key.
    Ignored,
}

/// Keys without effect that share a name, reported as one.
struct Inert {
    key: String,
    pointer: String,
    times: usize,
}

/// The problems found in one document.
pub(super) struct Report<'d> {
    document: &'d Document,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    inert: Vec<Inert>,
}

impl<'d> Report<'d> {
    pub(super) fn new(document: &'d Document) -> Self {
        Report { document, errors: Vec::new(), warnings: Vec::new(), inert: Vec::new() }
    }

    /// Returns the errors and the warnings.
    pub(super) fn finish(mut self) -> (Vec<Problem>, Vec<Problem>) {
        for inert in std::mem::take(&mut self.inert) {
            let times = if inert.times > 1 { format!(" ({} times)", inert.times) } else { String::new() };
            let message = format!("`{}` is accepted, without effect{times}", inert.key);
            self.warn(&inert.pointer, "without_effect", message, "it may be removed");
        }
        (self.errors, self.warnings)
    }

    pub(super) fn error(
        &mut self,
        pointer: &str,
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let problem = self.problem(pointer, code, message.into(), hint.into());
        self.errors.push(problem);
    }

    pub(super) fn warn(
        &mut self,
        pointer: &str,
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let problem = self.problem(pointer, code, message.into(), hint.into());
        self.warnings.push(problem);
    }

    fn problem(&self, pointer: &str, code: &'static str, message: String, hint: String) -> Problem {
        self.document.problem(pointer, code, message).hint(hint)
    }

    /// Notes the members of `at` among `keys` as accepted, without effect.
    pub(super) fn inert(&mut self, at: &SourceValue<'_>, keys: &[&str]) {
        for key in keys.iter().filter(|key| at.get(key).is_some()) {
            self.note_inert(at.pointer_of(key));
        }
    }

    fn note_inert(&mut self, pointer: String) {
        // `router[0].desc` and `router[1].desc` are one key.
        let mut key = String::new();
        let mut in_index = false;
        for char in pointer.chars() {
            match char {
                '[' => in_index = true,
                ']' if in_index => in_index = false,
                char if !in_index => key.push(char),
                _ => {}
            }
        }
        match self.inert.iter_mut().find(|inert| inert.key == key) {
            Some(inert) => inert.times += 1,
            None => self.inert.push(Inert { key, pointer, times: 1 }),
        }
    }

    /// Reports the members of `at` that are not among `known`.
    pub(super) fn unknown(&mut self, at: &SourceValue<'_>, known: &[&str], unknown: Unknown) {
        let Some(members) = at.value.as_object() else { return };
        for key in members.keys().filter(|key| !known.contains(&key.as_str())) {
            let pointer = at.pointer_of(key);
            if unknown == Unknown::Ignored {
                self.note_inert(pointer);
                continue;
            }
            let near = known.iter().map(|name| (strsim::levenshtein(name, key), *name)).min();
            let hint = match near {
                Some((distance, name)) if distance <= 3 => format!("did you mean `{name}`?"),
                _ => format!("remove it; known here: {}", known.join(", ")),
            };
            self.error(&pointer, "unknown_key", format!("unknown field `{key}`"), hint);
        }
    }

    fn wrong_type(&mut self, at: &SourceValue<'_>, expected: &str) {
        let mut found = at.value.to_string();
        if found.chars().count() > 40 {
            found = found.chars().take(40).chain(['…']).collect();
        }
        let message = format!("expected {expected}, found {found}");
        self.error(&at.pointer, "type", message, format!("write {expected}"));
    }

    /// The string `key`; numbers and booleans are taken as their text, as Jackson does.
    pub(super) fn text(&mut self, at: &SourceValue<'_>, key: &str) -> Option<String> {
        let member = at.get(key)?;
        self.as_text(&member)
    }

    fn as_text(&mut self, at: &SourceValue<'_>) -> Option<String> {
        match at.value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => {
                self.wrong_type(at, "a string");
                None
            }
        }
    }

    /// The non-empty string `key`, which must be there.
    pub(super) fn required_text(&mut self, at: &SourceValue<'_>, key: &str) -> Option<String> {
        match at.get(key) {
            Some(member) => {
                let text = self.as_text(&member)?;
                if text.is_empty() {
                    self.error(&member.pointer, "missing", format!("`{key}` is empty"), "give it a value");
                    return None;
                }
                Some(text)
            }
            None => {
                self.missing(at, key);
                None
            }
        }
    }

    pub(super) fn missing(&mut self, at: &SourceValue<'_>, key: &str) {
        self.error(&at.pointer_of(key), "missing", format!("`{key}` is missing"), format!("add `{key}`"));
    }

    /// The whole number `key` within `range`; a string of digits counts, as with Jackson.
    pub(super) fn number(
        &mut self,
        at: &SourceValue<'_>,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let member = at.get(key)?;
        let number = match member.value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.wrong_type(&member, &format!("a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }

    /// The boolean `key`, or `default` if it is absent or wrong.
    pub(super) fn flag(&mut self, at: &SourceValue<'_>, key: &str, default: bool) -> bool {
        let Some(member) = at.get(key) else { return default };
        match member.value {
            Value::Bool(flag) => *flag,
            Value::String(text) if text == "true" => true,
            Value::String(text) if text == "false" => false,
            _ => {
                self.wrong_type(&member, "true or false");
                default
            }
        }
    }

    /// The object `key`.
    pub(super) fn object<'v>(&mut self, at: &SourceValue<'v>, key: &str) -> Option<SourceValue<'v>> {
        let member = at.get(key)?;
        self.is_object(&member).then_some(member)
    }

    fn is_object(&mut self, at: &SourceValue<'_>) -> bool {
        if !at.value.is_object() {
            self.wrong_type(at, "an object");
        }
        at.value.is_object()
    }

    fn elements<'v>(&mut self, at: &SourceValue<'v>, key: &str) -> Vec<SourceValue<'v>> {
        let Some(member) = at.get(key) else { return Vec::new() };
        let Value::Array(items) = member.value else {
            self.wrong_type(&member, "a list");
            return Vec::new();
        };
        let place = |(index, value)| SourceValue { value, pointer: element(&member.pointer, index) };
        items.iter().enumerate().map(place).collect()
    }

    /// The objects in the list `key`.
    pub(super) fn objects<'v>(&mut self, at: &SourceValue<'v>, key: &str) -> Vec<SourceValue<'v>> {
        let mut elements = self.elements(at, key);
        elements.retain(|element| self.is_object(element));
        elements
    }

    /// The strings in the list `key`, with their pointers.
    pub(super) fn texts(&mut self, at: &SourceValue<'_>, key: &str) -> Vec<(String, String)> {
        let elements = self.elements(at, key);
        elements.into_iter().filter_map(|element| Some((self.as_text(&element)?, element.pointer))).collect()
    }
}
