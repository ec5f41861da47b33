//! The YAML reader: several documents, aliases, merge keys.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use sigma_schema::problem::Problem;

use super::reindent::reindent;
use super::{Content, MAX_DEPTH, MAX_VALUES, Member, Tree, bounded, syntax};

/// Reads the documents of a YAML text.
pub fn yaml(text: &str) -> Result<Vec<Tree>, Vec<Problem>> {
    bounded(text)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match read(text) {
        Ok(documents) => Ok(documents),
        Err(problem) => read(&reindent(text)).map_err(|_| vec![problem]),
    }
}

fn read(text: &str) -> Result<Vec<Tree>, Problem> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.event(event, span.start.line() as u32)?,
            Err(error) => {
                let line = error.marker().line() as u32;
                return Err(syntax(line, format!("not YAML: {}", error.info())));
            }
        }
    }
    Ok(builder.documents)
}

struct Frame {
    tree: Tree,
    /// Key of the next value, with its line.
    key: Option<(String, u32)>,
    anchor: usize,
}

#[derive(Default)]
struct Builder {
    documents: Vec<Tree>,
    stack: Vec<Frame>,
    anchors: HashMap<usize, (Tree, usize)>,
    values: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, line: u32) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                if self.expects_key() {
                    self.key(text.into_owned(), line);
                    return Ok(());
                }
                let quoted = style != ScalarStyle::Plain;
                let content = match text.as_ref() {
                    "" | "~" | "null" | "Null" | "NULL" if !quoted => Content::Null,
                    text => Content::Scalar { text: text.to_owned(), quoted },
                };
                self.finish(Tree { line, content }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.open(Content::List(Vec::new()), line, anchor),
            Event::MappingStart(anchor, _) => self.open(Content::Map(Vec::new()), line, anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(frame) => self.finish(frame.tree, frame.anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let Some((tree, size)) = self.anchors.get(&anchor).cloned() else {
                    return Err(syntax(line, "this alias is inside the value that it refers to"));
                };
                self.count(size, line)?;
                self.finish(Tree { line, ..tree }, 0)
            }
            Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd => Ok(()),
        }
    }

    fn count(&mut self, values: usize, line: u32) -> Result<(), Problem> {
        self.values += values;
        match self.values > MAX_VALUES {
            true => Err(syntax(line, format!("the file has more than {MAX_VALUES} values"))),
            false => Ok(()),
        }
    }

    fn expects_key(&self) -> bool {
        matches!(
            self.stack.last(),
            Some(Frame { tree: Tree { content: Content::Map(_), .. }, key: None, .. })
        )
    }

    fn key(&mut self, text: String, line: u32) {
        if let Some(frame) = self.stack.last_mut() {
            frame.key = Some((text, line));
        }
    }

    fn open(&mut self, content: Content, line: u32, anchor: usize) -> Result<(), Problem> {
        if self.expects_key() {
            return Err(syntax(line, "a key must be a text, not a list or a mapping"));
        }
        if self.stack.len() >= MAX_DEPTH {
            return Err(syntax(line, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.stack.push(Frame { tree: Tree { line, content }, key: None, anchor });
        Ok(())
    }

    fn finish(&mut self, tree: Tree, anchor: usize) -> Result<(), Problem> {
        self.count(1, tree.line)?;
        if anchor > 0 {
            let size = size(&tree);
            self.count(size, tree.line)?;
            self.anchors.insert(anchor, (tree.clone(), size));
        }
        let Some(frame) = self.stack.last_mut() else {
            self.documents.push(tree);
            return Ok(());
        };
        match &mut frame.tree.content {
            Content::List(items) => items.push(tree),
            Content::Map(members) => {
                let Some((key, line)) = frame.key.take() else { return Ok(()) };
                return add(members, key, line, tree);
            }
            Content::Null | Content::Scalar { .. } => {}
        }
        Ok(())
    }
}

/// Adds a member; `<<` adds the members of its mappings that are missing.
fn add(members: &mut Vec<Member>, key: String, line: u32, value: Tree) -> Result<(), Problem> {
    if key == "<<" {
        for source in value.items() {
            for member in source.members() {
                if !members.iter().any(|own| own.key == member.key) {
                    members.push(Member { line: 0, ..member.clone() });
                }
            }
        }
        return Ok(());
    }
    // A member that a merge key brought has line 0 until the mapping's own replaces it.
    let twice = members.iter().position(|own| own.key == key);
    match twice {
        Some(index) if members[index].line == 0 => members[index] = Member { key, line, value },
        Some(index) => {
            let first = members[index].line;
            return Err(syntax(line, format!("`{key}` exists twice; the first one is in line {first}")));
        }
        None => members.push(Member { key, line, value }),
    }
    Ok(())
}

fn size(tree: &Tree) -> usize {
    match &tree.content {
        Content::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Content::Map(members) => 1 + members.iter().map(|member| size(&member.value)).sum::<usize>(),
        _ => 1,
    }
}
