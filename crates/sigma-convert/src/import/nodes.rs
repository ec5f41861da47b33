//! Trees of values with the lines they come from, read from YAML and JSON.

use serde_json::Value;
use sigma_schema::document::Document;
use sigma_schema::problem::{Problem, element, member};

use super::source::{FILE_BYTES, Input, SourceLine};

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// The line of the value's first character; for a member, the line of its key.
    pub place: SourceLine,
    /// The value.
    pub data: Data,
}

/// The kinds of values.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Data {
    /// Nothing.
    Null,
    /// A text, number or boolean.
    Scalar(Value),
    /// A list.
    List(Vec<Node>),
    /// Members in the order of the text.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Creates a node without a value.
    #[must_use]
    pub(super) fn null(place: SourceLine) -> Node {
        Node { place, data: Data::Null }
    }

    /// Returns the member of this name.
    #[must_use]
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.members().iter().find(|(key, _)| key == name).map(|(_, node)| node)
    }

    /// Returns the members of an object; none for other values.
    #[must_use]
    pub(super) fn members(&self) -> &[(String, Node)] {
        match &self.data {
            Data::Map(members) => members,
            _ => &[],
        }
    }

    /// Returns the elements of a list, or the value itself as the only element. Nothing for null.
    #[must_use]
    pub(super) fn elements(&self) -> Vec<&Node> {
        match &self.data {
            Data::Null => Vec::new(),
            Data::List(list) => list.iter().collect(),
            _ => vec![self],
        }
    }

    /// Returns a text, a number or a boolean as text.
    #[must_use]
    pub(super) fn text(&self) -> Option<String> {
        match &self.data {
            Data::Scalar(Value::String(text)) => Some(text.clone()),
            Data::Scalar(value) => Some(value.to_string()),
            _ => None,
        }
    }

    /// Returns a boolean, also one in quotes.
    #[must_use]
    pub(super) fn boolean(&self) -> Option<bool> {
        match self.text()?.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    /// Returns a number, also one in quotes.
    #[must_use]
    pub(super) fn number(&self) -> Option<f64> {
        self.text()?.trim().parse().ok()
    }

    /// Returns the member's text.
    #[must_use]
    pub(super) fn text_of(&self, name: &str) -> Option<String> {
        self.get(name)?.text()
    }

    /// Returns the texts of a member that is a list or one text.
    #[must_use]
    pub(super) fn texts_of(&self, name: &str) -> Vec<String> {
        self.get(name).map(Node::texts).unwrap_or_default()
    }

    /// Returns the texts of a list, or the text itself.
    #[must_use]
    pub(super) fn texts(&self) -> Vec<String> {
        self.elements().into_iter().filter_map(Node::text).collect()
    }

    /// Calls `visit` for the node and all nodes in it.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(&Node)) {
        visit(self);
        match &self.data {
            Data::List(list) => list.iter().for_each(|node| node.visit(visit)),
            Data::Map(members) => members.iter().for_each(|(_, node)| node.visit(visit)),
            Data::Null | Data::Scalar(_) => {}
        }
    }

    /// Returns the value without places.
    #[must_use]
    pub(super) fn value(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Scalar(value) => value.clone(),
            Data::List(list) => list.iter().map(Node::value).collect(),
            Data::Map(members) => {
                Value::Object(members.iter().map(|(name, node)| (name.clone(), node.value())).collect())
            }
        }
    }
}

/// Reads a text of YAML, which may have several documents, or of JSON.
///
/// # Errors
/// Returns the syntax errors, with lines of the whole text.
pub(super) fn read(text: &str, file: u16) -> Result<Vec<Node>, Vec<Problem>> {
    let mut nodes = Vec::new();
    for (offset, part) in documents(text) {
        let document = Document::parse(&part, FILE_BYTES).map_err(|problems| {
            let moved = |problem: Problem| {
                let line = problem.line.map(|line| line + offset);
                problem.at(line)
            };
            problems.into_iter().map(moved).collect::<Vec<_>>()
        })?;
        let reader = Reader { document: &document, file, offset };
        nodes.push(reader.node(&document.value, ""));
    }
    Ok(nodes)
}

/// The documents of a YAML text, each with the number of lines before it.
fn documents(text: &str) -> Vec<(u32, String)> {
    let mut parts = vec![(0, String::new())];
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let bare = line.trim_end();
        let line = &quoted_merge_key(line);
        match bare {
            "---" => parts.push((number, String::new())),
            "..." => {}
            _ => {
                if let Some((_, part)) = parts.last_mut() {
                    part.push_str(line);
                }
            }
        }
    }
    parts.retain(|(_, part)| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    parts
}

/// Puts merge keys (`<<`) into quotes, because the reader of YAML 1.2 refuses them.
fn quoted_merge_key(line: &str) -> String {
    let Some(at) = line.find("<<:") else { return line.to_owned() };
    let before = line[..at].trim_end();
    match before.is_empty() || before.ends_with(['-', '{', ',']) {
        true => format!("{}\"<<\":{}", &line[..at], &line[at + 3..]),
        false => line.to_owned(),
    }
}

struct Reader<'d> {
    document: &'d Document,
    file: u16,
    offset: u32,
}

impl Reader<'_> {
    fn node(&self, value: &Value, pointer: &str) -> Node {
        let line = self.document.line(pointer).unwrap_or(1) + self.offset;
        let place = SourceLine { file: self.file, line };
        let data = match value {
            Value::Null => Data::Null,
            Value::Array(list) => {
                let nodes = list.iter().enumerate();
                Data::List(nodes.map(|(at, value)| self.node(value, &element(pointer, at))).collect())
            }
            Value::Object(map) => {
                let nodes =
                    map.iter().map(|(key, value)| (key.clone(), self.node(value, &member(pointer, key))));
                Data::Map(merged(nodes.collect()))
            }
            scalar => Data::Scalar(scalar.clone()),
        };
        Node { place, data }
    }
}

/// Replaces merge keys (`<<`) by the members that they name; the mapping's own members win.
fn merged(members: Vec<(String, Node)>) -> Vec<(String, Node)> {
    if !members.iter().any(|(key, _)| key == "<<") {
        return members;
    }
    let (merges, mut own): (Vec<_>, Vec<_>) = members.into_iter().partition(|(key, _)| key == "<<");
    for (_, node) in &merges {
        for source in node.elements() {
            for (key, value) in source.members() {
                if !own.iter().any(|(known, _)| known == key) {
                    own.push((key.clone(), value.clone()));
                }
            }
        }
    }
    own
}

/// The lines of the files of a conversion.
pub(super) struct Lines<'t>(Vec<Vec<&'t str>>);

impl<'t> Lines<'t> {
    /// Splits the files into lines.
    pub(super) fn of(input: &Input<'t>) -> Lines<'t> {
        Lines(input.files.iter().map(|file| file.text.lines().collect()).collect())
    }

    /// Returns the line at a place, trimmed.
    pub(super) fn at(&self, place: SourceLine) -> &'t str {
        let lines = self.0.get(usize::from(place.file));
        lines.and_then(|lines| lines.get(place.line.checked_sub(1)? as usize)).map_or("", |line| line.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_the_lines_of_the_whole_text() {
        let text = "a: 1\n---\n# second\nb:\n  - x: ${A:b}\n    y: true\n";
        let nodes = read(text, 3).expect("YAML");
        assert_eq!(nodes.len(), 2);
        assert_eq!(nodes[0].text_of("a").as_deref(), Some("1"));
        let item = nodes[1].get("b").expect("a list").elements()[0];
        assert_eq!(item.get("y").and_then(Node::boolean), Some(true));
        assert_eq!(item.get("y").map(|node| node.place), Some(SourceLine { file: 3, line: 6 }));
        assert_eq!(item.text_of("x").as_deref(), Some("${A:b}"));
    }

    #[test]
    fn merge_keys_add_members() {
        let nodes =
            read("base: &b { a: 1, c: 2 }\nuse: { <<: *b, a: 3 }\n", 0).expect("YAML with merge keys");
        let used = nodes[0].get("use").expect("a mapping");
        assert_eq!(used.text_of("a").as_deref(), Some("3"));
        assert_eq!(used.text_of("c").as_deref(), Some("2"));
    }

    #[test]
    fn syntax_errors_have_the_line_of_the_text() {
        let problems = read("a: 1\n---\nb: [1\n", 0).expect_err("a bracket is open");
        assert!(problems[0].line.is_some_and(|line| line >= 3), "{problems:?}");
    }
}
