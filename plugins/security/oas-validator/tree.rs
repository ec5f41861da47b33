//! Which operation a request is of: by its method and the segments of its path.

use std::collections::HashMap;

use sigma_schema::openapi::template::{Piece, Segment, Template};

/// Most segments of a path in a document, which is how deep the search goes.
const MOST_SEGMENTS: usize = 128;

/// Most paths, each counted once for each server and method.
const MOST_PATHS: usize = 50_000;

/// The paths of a document.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    paths: usize,
}

/// The paths with the same beginning.
#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Box<[u8]>, usize>,
    /// Segments of texts and parameters, those with the longest text first.
    mixed: Vec<(Segment, usize)>,
    any: Option<usize>,
    /// The operations that end here, by their methods.
    ends: Vec<(Box<str>, usize)>,
}

/// The operation of a request, and what its path has for the parameters, in their order.
pub(super) type MatchedPath<'p> = (usize, Vec<&'p [u8]>);

impl Default for Tree {
    fn default() -> Tree {
        Tree { nodes: vec![Node::default()], paths: 0 }
    }
}

impl Tree {
    /// Adds an operation by its number.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if a path is too long, there are too many, or one is there already.
    pub(super) fn add(&mut self, method: &str, template: &Template, operation: usize) -> Result<(), String> {
        self.paths += 1;
        if template.0.len() > MOST_SEGMENTS {
            return Err(format!("a path has more than {MOST_SEGMENTS} segments"));
        }
        if self.paths > MOST_PATHS {
            return Err(format!("the document has more than {MOST_PATHS} paths"));
        }
        let mut at = 0;
        for segment in &template.0 {
            at = self.child(at, segment);
        }
        let ends = &mut self.nodes[at].ends;
        match ends.iter().find(|(known, _)| **known == *method) {
            // Servers may differ in more than their paths.
            Some((_, known)) if *known == operation => Ok(()),
            Some(_) => Err("two paths differ only in the names of their parameters".to_owned()),
            None => {
                ends.push((method.into(), operation));
                Ok(())
            }
        }
    }

    fn child(&mut self, at: usize, segment: &Segment) -> usize {
        let new = self.nodes.len();
        let node = &mut self.nodes[at];
        let child = match segment {
            Segment::Literal(text) => *node.literals.entry(text.as_bytes().into()).or_insert(new),
            Segment::Pieces(pieces) if pieces.len() == 1 => *node.any.get_or_insert(new),
            Segment::Pieces(_) => {
                let unnamed = unnamed(segment);
                match node.mixed.iter().find(|(known, _)| *known == unnamed) {
                    Some((_, child)) => *child,
                    None => {
                        node.mixed.push((unnamed, new));
                        node.mixed.sort_by_key(|(segment, _)| std::cmp::Reverse(text_of(segment)));
                        new
                    }
                }
            }
        };
        if child == new {
            self.nodes.push(Node::default());
        }
        child
    }

    /// The operation of a method and a path that was normalised. From left to right a literal segment is
    /// preferred to one with a parameter, as long as the rest has the method. No node is looked at twice.
    pub(super) fn find<'p>(&self, method: &[u8], path: &'p [u8]) -> Option<MatchedPath<'p>> {
        let segments = path.split(|b| *b == b'/').filter(|segment| !segment.is_empty());
        // One more than any path has is as good as all.
        let segments: Vec<&[u8]> = segments.take(MOST_SEGMENTS + 1).collect();
        let mut captures = Vec::new();
        let operation = self.search(0, method, &segments, &mut captures)?;
        Some((operation, captures))
    }

    fn search<'p>(
        &self,
        at: usize,
        method: &[u8],
        segments: &[&'p [u8]],
        captures: &mut Vec<&'p [u8]>,
    ) -> Option<usize> {
        let node = &self.nodes[at];
        let Some((&segment, rest)) = segments.split_first() else {
            let end = node.ends.iter().find(|(known, _)| known.as_bytes() == method);
            return end.map(|(_, operation)| *operation);
        };
        if let Some(child) = node.literals.get(segment)
            && let Some(found) = self.search(*child, method, rest, captures)
        {
            return Some(found);
        }
        let own = captures.len();
        for (mixed, child) in &node.mixed {
            let Some(values) = mixed.captures(segment) else { continue };
            captures.extend(values);
            if let Some(found) = self.search(*child, method, rest, captures) {
                return Some(found);
            }
            captures.truncate(own);
        }
        captures.push(segment);
        if let Some(found) = node.any.and_then(|child| self.search(child, method, rest, captures)) {
            return Some(found);
        }
        captures.truncate(own);
        None
    }
}

/// A segment whose parameters have no names.
fn unnamed(segment: &Segment) -> Segment {
    let Segment::Pieces(pieces) = segment else { return segment.clone() };
    let pieces = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => Piece::Text(text.clone()),
        Piece::Parameter(_) => Piece::Parameter(String::new()),
    });
    Segment::Pieces(pieces.collect())
}

/// The length of a segment's texts.
fn text_of(segment: &Segment) -> usize {
    let Segment::Pieces(pieces) = segment else { return 0 };
    pieces.iter().map(|piece| if let Piece::Text(text) = piece { text.len() } else { 0 }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for (at, path) in paths.iter().enumerate() {
            let (method, path) = path.split_once(' ').unwrap();
            tree.add(method, &Template::parse(path).unwrap(), at).unwrap();
        }
        tree
    }

    #[test]
    fn requests_have_one_operation() {
        let paths = [
            "GET /pets",
            "GET /pets/{id}",
            "GET /pets/mine",
            "DELETE /pets/{id}",
            "GET /pets/{id}.json",
            "GET /pets/{id}.tar.json",
            "GET /{kind}/{id}/photos",
            "GET /pets/{id}/photos/{n}",
            "GET /",
            "GET /a/{b}/c",
            "GET /{a}/b/c",
        ];
        let tree = tree(&paths);
        let check = |method: &str, path: &str, expected: Option<(&str, &[&str])>| {
            let found = tree.find(method.as_bytes(), path.as_bytes());
            let found = found.map(|(at, values)| {
                (paths[at], values.into_iter().map(|value| std::str::from_utf8(value).unwrap()).collect())
            });
            assert_eq!(found, expected.map(|(path, values)| (path, values.to_vec())), "{method} {path}");
        };
        check("GET", "/pets", Some(("GET /pets", &[])));
        check("GET", "/pets/", Some(("GET /pets", &[])));
        check("GET", "/pets/7", Some(("GET /pets/{id}", &["7"])));
        check("GET", "/pets/mine", Some(("GET /pets/mine", &[])));
        check("DELETE", "/pets/mine", Some(("DELETE /pets/{id}", &["mine"])));
        check("GET", "/pets/7.json", Some(("GET /pets/{id}.json", &["7"])));
        check("GET", "/pets/7.tar.json", Some(("GET /pets/{id}.tar.json", &["7"])));
        check("GET", "/pets/7/photos", Some(("GET /{kind}/{id}/photos", &["pets", "7"])));
        check("GET", "/pets/7/photos/1", Some(("GET /pets/{id}/photos/{n}", &["7", "1"])));
        check("GET", "/a/b/c", Some(("GET /a/{b}/c", &["b"])));
        check("GET", "/x/b/c", Some(("GET /{a}/b/c", &["x"])));
        check("GET", "/", Some(("GET /", &[])));
        check("get", "/pets", None);
        check("POST", "/pets", None);
        check("GET", "/Pets", None);
        check("GET", "/pets/7/photos/1/2", None);
        check("GET", &"/a".repeat(10_000), None);
    }

    #[test]
    fn paths_that_are_refused() {
        let mut tree = tree(&["GET /a/{b}"]);
        let mut add = |method: &str, path: &str| tree.add(method, &Template::parse(path).unwrap(), 7);
        let same = "two paths differ only in the names of their parameters";
        assert_eq!(add("GET", "/a/{c}").unwrap_err(), same);
        assert_eq!(add("GET", &"/a".repeat(129)).unwrap_err(), "a path has more than 128 segments");
        assert_eq!(add("POST", "/a/{c}"), Ok(()));
        // Another server with the same path.
        assert_eq!(add("POST", "/a/{c}"), Ok(()));
    }
}
