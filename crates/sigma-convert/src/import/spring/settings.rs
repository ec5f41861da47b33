//! The properties of an application: documents and profiles merged, relaxed names, and placeholders.

use serde_json::Value;
use sigma_schema::problem::Problem;

use super::super::nodes::{self, Data, Node};
use super::super::source::{Files, Input, SourceLine, Sources};
use super::properties;

/// Maximum depth of names, and of placeholders within placeholders.
const DEPTH: usize = 32;

/// Maximum bytes that the placeholders of one text add: a value may name another one many times.
const EXPANDED_BYTES: usize = 64 * 1024;

/// Maximum index of a list in a properties file.
const MOST_INDEX: usize = 10_000;

/// The merged properties.
pub(super) struct Settings<'a> {
    root: Node,
    access: &'a dyn Files,
    /// Places and names of documents whose profile is not active.
    pub inactive: Vec<(SourceLine, String)>,
}

/// A part of a property's name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Name(String),
    Index(usize),
}

/// A property: its name, its value and its place.
type Flat = (Vec<Segment>, Value, SourceLine);

impl<'a> Settings<'a> {
    /// Reads and merges the files: later files and documents win, lists replace lists.
    pub(super) fn read(input: &Input<'a>, sources: &mut Sources) -> Result<Settings<'a>, Vec<Problem>> {
        let mut documents = Vec::new();
        for file in input.files {
            let problem = |message: String| vec![Problem::new(file.name.clone(), "too_large", message)];
            let index = sources.add(&file.name, &file.text).map_err(problem)?;
            documents.extend(flat_documents(&file.name, &file.text, index)?);
        }
        let active = active_profiles(&documents, input.access);
        let mut root = Node::null(SourceLine::default());
        let mut inactive = Vec::new();
        for document in documents {
            if let Some(profile) = profile_of(&document)
                && !holds(&profile, &active)
            {
                inactive.extend(document.iter().map(|(_, _, place)| (*place, profile.clone())));
                continue;
            }
            let replaced = lists(&document);
            for path in &replaced {
                clear(&mut root, path);
            }
            for (path, value, place) in document {
                insert(&mut root, &path, value, place);
            }
        }
        Ok(Settings { root, access: input.access, inactive })
    }

    /// Returns the node of a dotted name, in any of Spring's spellings.
    pub(super) fn find(&self, name: &str) -> Option<&Node> {
        find_in(&self.root, name)
    }

    /// Returns the first of these names that is there.
    pub(super) fn first(&self, names: &[&str]) -> Option<&Node> {
        names.iter().find_map(|name| self.find(name))
    }

    /// Returns all nodes at the top.
    pub(super) fn root(&self) -> &Node {
        &self.root
    }

    /// Returns the text of a node with its placeholders replaced.
    pub(super) fn text(&self, node: &Node) -> Option<String> {
        node.text().map(|text| self.resolved(&text, 0, &mut { EXPANDED_BYTES }))
    }

    /// Returns the text of a property.
    pub(super) fn text_at(&self, name: &str) -> Option<String> {
        self.text(self.find(name)?)
    }

    /// Returns the texts of a list, or of a text with commas.
    pub(super) fn texts(&self, node: &Node) -> Vec<String> {
        match &node.data {
            Data::List(list) => list.iter().filter_map(|node| self.text(node)).collect(),
            _ => self
                .text(node)
                .map(|text| text.split(',').map(|part| part.trim().to_owned()).collect())
                .unwrap_or_default(),
        }
    }

    /// Replaces `${name}` and `${name:default}`. One without a value stays, and so does one too deep, or with more than
    /// `left` bytes.
    fn resolved(&self, text: &str, depth: usize, left: &mut usize) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let Some(end) = closing(&rest[start + 2..]) else { break };
            let inner = &rest[start + 2..start + 2 + end];
            out.push_str(&rest[..start]);
            match self.value_of(inner, depth, left) {
                Some(value) => out.push_str(&value),
                None => out.push_str(&rest[start..start + 3 + end]),
            }
            rest = &rest[start + 3 + end..];
        }
        out.push_str(rest);
        out
    }

    fn value_of(&self, inner: &str, depth: usize, left: &mut usize) -> Option<String> {
        if depth >= DEPTH {
            return None;
        }
        let (name, default) = match split_default(inner) {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        let spelled = name.replace(['.', '['], "_").replace(['-', ']'], "").to_ascii_uppercase();
        let variable = self.access.variable(name).or_else(|| self.access.variable(&spelled));
        let text = match &variable {
            Some(value) => value.clone(),
            None => {
                let property = self.find(name).and_then(Node::text);
                property.or_else(|| default.map(str::to_owned))?
            }
        };
        *left = left.checked_sub(text.len() + 1)?;
        Some(if variable.is_some() { text } else { self.resolved(&text, depth + 1, left) })
    }
}

/// The length of the text up to the brace that closes a placeholder.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Splits `name:default` at the first colon outside of braces.
fn split_default(inner: &str) -> Option<(&str, &str)> {
    let at = inner.find(':')?;
    Some((&inner[..at], &inner[at + 1..]))
}

/// The node of a dotted name below another.
pub(super) fn find_in<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let mut found = node;
    for part in segments(name) {
        found = match (&part, &found.data) {
            (Segment::Name(name), Data::Map(members)) => {
                let wanted = relaxed(name);
                &members.iter().find(|(key, _)| relaxed(key) == wanted)?.1
            }
            (Segment::Index(at), Data::List(list)) => list.get(*at)?,
            _ => return None,
        };
    }
    Some(found)
}

/// A name in the spelling that all spellings share.
pub(super) fn relaxed(name: &str) -> String {
    name.chars().filter(|char| !matches!(char, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// The parts of a name: `a.b[0].c`, and `a[x/y.z]` for a key with other characters.
fn segments(name: &str) -> Vec<Segment> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() && parts.len() < DEPTH {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = inner.find(']').unwrap_or(inner.len());
            let word = &inner[..end];
            let index = word.parse().ok().filter(|index| *index <= MOST_INDEX);
            parts.push(index.map_or_else(|| Segment::Name(word.to_owned()), Segment::Index));
            rest = inner.get(end + 1..).unwrap_or_default();
        } else {
            let word = rest.strip_prefix('.').unwrap_or(rest);
            let end = word.find(['.', '[']).unwrap_or(word.len());
            if end > 0 {
                parts.push(Segment::Name(word[..end].to_owned()));
            }
            rest = &word[end..];
        }
    }
    parts
}

/// The documents of a file as flat properties.
fn flat_documents(name: &str, text: &str, file: u16) -> Result<Vec<Vec<Flat>>, Vec<Problem>> {
    if name.ends_with(".properties") {
        let flat = |property: properties::Property| {
            let place = SourceLine { file, line: property.line };
            (segments(&property.key), Value::String(property.value), place)
        };
        let documents = properties::read(text);
        return Ok(documents.into_iter().map(|list| list.into_iter().map(flat).collect()).collect());
    }
    let located = |problem: Problem| Problem { pointer: name.to_owned(), ..problem };
    let nodes = nodes::read(&quoted_tokens(text), file)
        .map_err(|problems| problems.into_iter().map(located).collect::<Vec<_>>())?;
    let flat = |node: &Node| {
        let mut list = Vec::new();
        flatten(node, &mut Vec::new(), &mut list);
        list
    };
    Ok(nodes.iter().map(flat).collect())
}

/// Puts tokens that Maven replaces (`@project.version@`) into quotes: no YAML text begins with `@`.
fn quoted_tokens(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end();
        match bare.split_once(": @") {
            Some((key, token)) if token.ends_with('@') && !token[..token.len() - 1].contains('@') => {
                out.push_str(&format!("{key}: \"@{token}\"\n"));
            }
            _ => out.push_str(line),
        }
    }
    out
}

fn flatten(node: &Node, path: &mut Vec<Segment>, list: &mut Vec<Flat>) {
    if path.len() > DEPTH * 2 {
        return;
    }
    match &node.data {
        Data::Map(members) => {
            for (key, child) in members {
                let length = path.len();
                path.extend(segments(key));
                flatten(child, path, list);
                path.truncate(length);
            }
        }
        Data::List(items) => {
            for (at, child) in items.iter().enumerate() {
                path.push(Segment::Index(at));
                flatten(child, path, list);
                path.pop();
            }
        }
        Data::Scalar(value) => list.push((path.clone(), value.clone(), node.place)),
        Data::Null => list.push((path.clone(), Value::Null, node.place)),
    }
}

/// The names of lists that a document has.
fn lists(document: &[Flat]) -> Vec<Vec<Segment>> {
    let mut found: Vec<Vec<Segment>> = Vec::new();
    for (path, _, _) in document {
        if let Some(at) = path.iter().position(|part| matches!(part, Segment::Index(_)))
            && found.last().is_none_or(|last| last[..] != path[..at])
        {
            found.push(path[..at].to_vec());
        }
    }
    found
}

/// Empties the list of this name.
fn clear(root: &mut Node, path: &[Segment]) {
    let mut node = root;
    for part in path {
        let Segment::Name(name) = part else { return };
        let Data::Map(members) = &mut node.data else { return };
        let wanted = relaxed(name);
        let Some((_, child)) = members.iter_mut().find(|(key, _)| relaxed(key) == wanted) else { return };
        node = child;
    }
    node.data = Data::Null;
}

fn insert(root: &mut Node, path: &[Segment], value: Value, place: SourceLine) {
    let mut node = root;
    for part in path {
        node = match part {
            Segment::Name(name) => member(node, name, place),
            Segment::Index(at) => item(node, *at, place),
        };
    }
    node.place = place;
    node.data = if value.is_null() { Data::Null } else { Data::Scalar(value) };
}

fn member<'n>(node: &'n mut Node, name: &str, place: SourceLine) -> &'n mut Node {
    if !matches!(node.data, Data::Map(_)) {
        node.data = Data::Map(Vec::new());
    }
    let Data::Map(members) = &mut node.data else { unreachable!("it was made a map") };
    let wanted = relaxed(name);
    // New members are mostly at the end.
    let known = members.iter().rposition(|(key, _)| relaxed(key) == wanted);
    let at = known.unwrap_or_else(|| {
        members.push((name.to_owned(), Node::null(place)));
        members.len() - 1
    });
    &mut members[at].1
}

fn item(node: &mut Node, at: usize, place: SourceLine) -> &mut Node {
    if !matches!(node.data, Data::List(_)) {
        node.data = Data::List(Vec::new());
        node.place = place;
    }
    let Data::List(list) = &mut node.data else { unreachable!("it was made a list") };
    while list.len() <= at {
        list.push(Node::null(place));
    }
    &mut list[at]
}

/// The value of a property in a flat document.
fn flat_text(document: &[Flat], name: &str) -> Vec<String> {
    let wanted = segments(name);
    let same = |path: &[Segment]| {
        let names: Vec<String> = path
            .iter()
            .filter_map(|part| match part {
                Segment::Name(name) => Some(relaxed(name)),
                Segment::Index(_) => None,
            })
            .collect();
        names.len() == wanted.len()
            && names.iter().zip(&wanted).all(|(name, wanted)| match wanted {
                Segment::Name(wanted) => *name == relaxed(wanted),
                Segment::Index(_) => false,
            })
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    document.iter().filter(|(path, _, _)| same(path)).map(|(_, value, _)| text(value)).collect()
}

/// The profile expression of a document.
fn profile_of(document: &[Flat]) -> Option<String> {
    let mut expressions = flat_text(document, "spring.config.activate.on-profile");
    if expressions.is_empty() {
        expressions = flat_text(document, "spring.profiles");
    }
    (!expressions.is_empty()).then(|| expressions.join(","))
}

fn active_profiles(documents: &[Vec<Flat>], access: &dyn Files) -> Vec<String> {
    let given = access.variable("SPRING_PROFILES_ACTIVE");
    let in_files = documents.iter().find_map(|document| {
        let texts = flat_text(document, "spring.profiles.active");
        (!texts.is_empty()).then(|| texts.join(","))
    });
    let text = given.or(in_files).unwrap_or_default();
    let names: Vec<String> =
        text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    if names.is_empty() { vec!["default".to_owned()] } else { names }
}

/// Whether a profile expression holds: `a`, `!a`, `a & b`, `a | b`, `a, b`.
fn holds(expression: &str, active: &[String]) -> bool {
    let one = |word: &str| {
        let word = word.trim().trim_matches(['(', ')', ' ']);
        match word.strip_prefix('!') {
            Some(word) => !active.iter().any(|name| name == word.trim()),
            None => active.iter().any(|name| name == word),
        }
    };
    expression.split([',', '|']).any(|part| part.split('&').all(one))
}
