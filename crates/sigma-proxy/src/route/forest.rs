//! Compressed radix trees over byte strings, many of them in one set of flat arrays.
//!
//! A tree answers one question: which of its keys equal the text (exact keys), and which are a
//! beginning of it (prefix keys), the longest first. Every node links to the nearest ancestor
//! that ends a prefix key, so a walk allocates nothing and remembers a single node. There is no
//! hashing: a client that chooses paths cannot make a lookup slow.

use std::ops::Range;

/// No such node.
const NONE: u32 = u32::MAX;

/// One key; its position in the slice given to [`Forest::build`] is the item it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key<'a> {
    /// The tree that the key belongs to, counted from 0.
    pub(super) tree: u32,
    /// The text, in reading direction of the forest.
    pub(super) bytes: &'a [u8],
    /// `Exact` sorts before `Prefix`, as the node layout needs.
    pub(super) kind: KeyKind,
}

/// What a key matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum KeyKind {
    /// The whole text.
    Exact,
    /// A beginning of the text.
    Prefix,
}

/// From which end keys and texts are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the first byte: paths.
    Forward,
    /// From the last byte: host names. Keys are given to `build` already reversed.
    Backward,
}

/// A node; the bytes on the way to it end with its label.
#[derive(Debug, Clone, Copy)]
struct Node {
    label_at: u32,
    label_len: u32,
    /// Bytes from the root to the end of the label.
    depth: u32,
    /// Children are neighbours, ordered by the byte that leads to them.
    first_child: u32,
    child_count: u32,
    /// Exact items, followed directly by the prefix items.
    items_at: u32,
    exact_count: u32,
    prefix_count: u32,
    /// Nearest ancestor with prefix items.
    shorter: u32,
}

/// Trees 0 to n−1; the root of tree t is node t.
#[derive(Debug)]
pub(super) struct Forest {
    direction: Direction,
    nodes: Box<[Node]>,
    /// The first byte below the parent, per node.
    heads: Box<[u8]>,
    labels: Box<[u8]>,
}

/// A run of keys below one node that is still to be laid out.
struct Span {
    node: u32,
    keys: Range<usize>,
    /// Bytes already consumed on the way to this node.
    depth: usize,
}

impl Forest {
    /// Builds `trees` trees from keys sorted by tree, bytes and kind. Keys may repeat: their
    /// items keep the order of the slice.
    pub(super) fn build(direction: Direction, trees: u32, keys: &[Key<'_>]) -> Forest {
        debug_assert!(keys.is_sorted(), "keys of a forest come sorted");
        let mut grown = Growth { direction, nodes: Vec::new(), heads: Vec::new(), labels: Vec::new() };
        let mut open = Vec::new();
        let mut at = 0;
        for tree in 0..trees {
            let end = at + keys[at..].partition_point(|key| key.tree <= tree);
            grown.add_node(0, NONE);
            open.push(Span { node: tree, keys: at..end, depth: 0 });
            at = end;
        }
        while let Some(span) = open.pop() {
            grown.lay_out(&span, keys, &mut open);
        }
        Forest {
            direction,
            nodes: grown.nodes.into_boxed_slice(),
            heads: grown.heads.into_boxed_slice(),
            labels: grown.labels.into_boxed_slice(),
        }
    }

    /// Memory of the trees in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.nodes) + self.heads.len() + self.labels.len()
    }

    /// Walks `text` down a tree. Time is linear in the length of `text`.
    pub(super) fn walk(&self, tree: u32, text: &[u8]) -> Trail<'_> {
        let mut trail = Trail { forest: self, exact: 0..0, exact_len: text.len(), nearest: NONE };
        let mut id = tree;
        let mut at = 0;
        loop {
            let node = &self.nodes[id as usize];
            let label = &self.labels[node.label_at as usize..(node.label_at + node.label_len) as usize];
            if !self.reads(text, at, label) {
                return trail;
            }
            at += label.len();
            if node.prefix_count > 0 {
                trail.nearest = id;
            }
            if at == text.len() {
                trail.exact = node.items_at as usize..(node.items_at + node.exact_count) as usize;
                return trail;
            }
            let head = match self.direction {
                Direction::Forward => text[at],
                Direction::Backward => text[text.len() - 1 - at],
            };
            let first = node.first_child as usize;
            let heads = &self.heads[first..first + node.child_count as usize];
            match memchr::memchr(head, heads) {
                Some(offset) => id = node.first_child + offset as u32,
                None => return trail,
            }
        }
    }

    /// Whether `label` follows the first `at` bytes of `text`.
    #[inline]
    fn reads(&self, text: &[u8], at: usize, label: &[u8]) -> bool {
        match self.direction {
            Direction::Forward => text[at..].starts_with(label),
            Direction::Backward => text[..text.len() - at].ends_with(label),
        }
    }
}

/// A forest while it is built.
struct Growth {
    direction: Direction,
    nodes: Vec<Node>,
    heads: Vec<u8>,
    labels: Vec<u8>,
}

impl Growth {
    fn add_node(&mut self, head: u8, shorter: u32) {
        self.heads.push(head);
        self.nodes.push(Node {
            label_at: 0,
            label_len: 0,
            depth: 0,
            first_child: 0,
            child_count: 0,
            items_at: 0,
            exact_count: 0,
            prefix_count: 0,
            shorter,
        });
    }

    /// Fills the node of `span` and opens a span for each of its children.
    fn lay_out(&mut self, span: &Span, keys: &[Key<'_>], open: &mut Vec<Span>) {
        let run = &keys[span.keys.clone()];
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
        // Sorted: what the first and the last key share, all share.
        let shared =
            first.bytes[span.depth..].iter().zip(&last.bytes[span.depth..]).take_while(|(a, b)| a == b);
        let depth = span.depth + shared.count();
        let label_at = self.labels.len() as u32;
        let label = &first.bytes[span.depth..depth];
        match self.direction {
            Direction::Forward => self.labels.extend_from_slice(label),
            Direction::Backward => self.labels.extend(label.iter().rev()),
        }
        let ending = run.partition_point(|key| key.bytes.len() == depth);
        let exact = run[..ending].partition_point(|key| key.kind == KeyKind::Exact);
        let first_child = self.nodes.len() as u32;
        let node = &mut self.nodes[span.node as usize];
        node.label_at = label_at;
        node.label_len = (depth - span.depth) as u32;
        node.depth = depth as u32;
        node.first_child = first_child;
        node.items_at = span.keys.start as u32;
        node.exact_count = exact as u32;
        node.prefix_count = (ending - exact) as u32;
        let shorter = if ending > exact { span.node } else { node.shorter };
        let mut at = ending;
        while at < run.len() {
            let head = run[at].bytes[depth];
            let end = at + run[at..].partition_point(|key| key.bytes[depth] == head);
            let child = self.nodes.len() as u32;
            self.add_node(head, shorter);
            open.push(Span { node: child, keys: span.keys.start + at..span.keys.start + end, depth });
            at = end;
        }
        self.nodes[span.node as usize].child_count = self.nodes.len() as u32 - first_child;
    }
}

/// The keys that a text met, most specific first.
#[derive(Debug)]
pub(super) struct Trail<'a> {
    forest: &'a Forest,
    exact: Range<usize>,
    exact_len: usize,
    nearest: u32,
}

/// Items of one key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Positions in the slice that the forest was built from.
    pub(super) items: Range<usize>,
    /// Length of the key in bytes.
    pub(super) key_len: usize,
}

impl Iterator for Trail<'_> {
    type Item = Group;

    #[inline]
    fn next(&mut self) -> Option<Group> {
        if !self.exact.is_empty() {
            let items = std::mem::take(&mut self.exact);
            return Some(Group { items, key_len: self.exact_len });
        }
        if self.nearest == NONE {
            return None;
        }
        let node = &self.forest.nodes[self.nearest as usize];
        self.nearest = node.shorter;
        let start = (node.items_at + node.exact_count) as usize;
        Some(Group { items: start..start + node.prefix_count as usize, key_len: node.depth as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds one tree from `keys` (a trailing `*` marks a prefix) and checks what `text` meets.
    fn check(direction: Direction, keys: &[&str], text: &str, expected: &[&str]) {
        let turned = |text: &str| match direction {
            Direction::Forward => text.as_bytes().to_vec(),
            Direction::Backward => text.bytes().rev().collect(),
        };
        let mut owned: Vec<(Vec<u8>, KeyKind, &str)> = keys
            .iter()
            .map(|key| match key.strip_suffix('*') {
                Some(prefix) => (turned(prefix), KeyKind::Prefix, *key),
                None => (turned(key), KeyKind::Exact, *key),
            })
            .collect();
        owned.sort();
        let sorted: Vec<Key<'_>> =
            owned.iter().map(|(bytes, kind, _)| Key { tree: 0, bytes, kind: *kind }).collect();
        let forest = Forest::build(direction, 1, &sorted);
        let met: Vec<&str> =
            forest.walk(0, text.as_bytes()).flat_map(|group| group.items).map(|item| owned[item].2).collect();
        assert_eq!(met, expected, "{keys:?} {text:?}");
    }

    #[test]
    fn meets_exact_then_longest_prefix() {
        let keys = ["/a", "/a*", "/ab", "/abc*", "/b", "*", "/", "/*"];
        let forward = |text, expected: &[&str]| check(Direction::Forward, &keys, text, expected);
        forward("/a", &["/a", "/a*", "/*", "*"]);
        forward("/ab", &["/ab", "/a*", "/*", "*"]);
        forward("/abcd", &["/abc*", "/a*", "/*", "*"]);
        forward("/b", &["/b", "/*", "*"]);
        forward("/", &["/", "/*", "*"]);
        forward("", &["*"]);
        forward("x", &["*"]);
        check(Direction::Forward, &[], "/a", &[]);
        check(Direction::Forward, &["/abc"], "/ab", &[]);
        check(Direction::Forward, &["/abc"], "/abcd", &[]);
        check(Direction::Forward, &["/a", "/a"], "/a", &["/a", "/a"]);
    }

    #[test]
    fn reads_hosts_from_the_end() {
        let keys = ["foo.com", ".foo.com*", "com*", "*"];
        let backward = |text, expected: &[&str]| check(Direction::Backward, &keys, text, expected);
        backward("foo.com", &["foo.com", "com*", "*"]);
        backward("a.foo.com", &[".foo.com*", "com*", "*"]);
        backward("xcom", &["com*", "*"]);
        backward("_", &["*"]);
    }
}
