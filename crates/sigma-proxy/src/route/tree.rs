//! Compressed radix trees over byte strings that share their nodes with the trees they came from.
//!
//! A tree answers one question: which of its keys equal the text (exact keys), and which are a
//! beginning of it (prefix keys), the longest first. There is no hashing: a client that chooses
//! paths cannot make a lookup slow.
//!
//! Nodes are immutable once shared. A clone of a tree is one pointer; an edit copies the nodes on
//! the way to its key and nothing else, and in place those that no other tree holds. So building
//! a tree is a series of edits too. As nodes are shared, none can know the nodes above it: a walk
//! keeps the few nearest ones that end prefix keys, and goes again for more.
//!
//! The user of the tree defines the content of a key: see [`Content`].

use std::sync::Arc;

use super::text::Text;

/// The kind of match of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum KeyKind {
    /// The whole text.
    Exact,
    /// A beginning of the text.
    Prefix,
}

/// The content at the end of a key, for both kinds of keys.
pub(super) trait Content: Clone + Default {
    /// Returns true if there is content for keys of this kind.
    fn has(&self, kind: KeyKind) -> bool;

    /// Returns the memory outside the content itself in bytes.
    fn heap_bytes(&self) -> usize;
}

/// From which end keys and texts are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the first byte: paths.
    Forward,
    /// From the last byte: host names.
    Backward,
}

impl Direction {
    /// Returns the rest of `text` after `at` bytes.
    #[inline]
    fn after(self, text: &[u8], at: usize) -> &[u8] {
        match self {
            Direction::Forward => &text[at..],
            Direction::Backward => &text[..text.len() - at],
        }
    }

    /// The byte of `text` that is read first.
    #[inline]
    fn head(self, text: &[u8]) -> Option<u8> {
        match self {
            Direction::Forward => text.first().copied(),
            Direction::Backward => text.last().copied(),
        }
    }

    /// Whether `text` begins with `label`.
    #[inline]
    fn begins(self, text: &[u8], label: &[u8]) -> bool {
        match self {
            Direction::Forward => text.starts_with(label),
            Direction::Backward => text.ends_with(label),
        }
    }

    /// How many bytes two texts have in common at their beginning.
    fn shared(self, a: &[u8], b: &[u8]) -> usize {
        let same = |(a, b): &(&u8, &u8)| a == b;
        match self {
            Direction::Forward => a.iter().zip(b).take_while(same).count(),
            Direction::Backward => a.iter().rev().zip(b.iter().rev()).take_while(same).count(),
        }
    }

    /// The first `at` bytes of `text`, and the rest.
    fn cut(self, text: &[u8], at: usize) -> (&[u8], &[u8]) {
        match self {
            Direction::Forward => text.split_at(at),
            Direction::Backward => {
                let (rest, first) = text.split_at(text.len() - at);
                (first, rest)
            }
        }
    }

    /// The opposite of `cut`.
    fn join(self, first: &[u8], rest: &[u8]) -> Vec<u8> {
        match self {
            Direction::Forward => [first, rest].concat(),
            Direction::Backward => [rest, first].concat(),
        }
    }
}

/// A tree. Every node has content or at least two children.
#[derive(Debug, Clone)]
pub(super) struct Tree<C> {
    direction: Direction,
    root: Option<Arc<Node<C>>>,
}

/// A node; the bytes on the way to it end with its label. With this layout a walk reads one cache line of every node,
/// together with the counters of the `Arc`.
#[derive(Debug, Clone)]
#[repr(C)]
struct Node<C> {
    /// The label as it is written, and behind it for each child the byte that leads there.
    text: Text,
    label_len: u32,
    /// Bytes from the root to the end of the label.
    depth: u32,
    children: Box<[Arc<Node<C>>]>,
    content: C,
}

/// Frees the nodes below without recursion: the configured keys decide the depth of a tree.
impl<C> Drop for Node<C> {
    fn drop(&mut self) {
        let mut open = std::mem::take(&mut self.children).into_vec();
        while let Some(child) = open.pop() {
            if let Some(mut last_owner) = Arc::into_inner(child) {
                open.append(&mut std::mem::take(&mut last_owner.children).into_vec());
            }
        }
    }
}

impl<C> Node<C> {
    #[inline]
    fn label(&self) -> &[u8] {
        &self.text[..self.label_len as usize]
    }

    #[inline]
    fn heads(&self) -> &[u8] {
        &self.text[self.label_len as usize..]
    }

    #[inline]
    fn child_at(&self, head: u8) -> Option<usize> {
        let heads = self.heads();
        // Most nodes have few children: too few to be worth a call.
        match heads.len() {
            0..=16 => heads.iter().position(|&byte| byte == head),
            _ => memchr::memchr(head, heads),
        }
    }
}

impl<C: Content> Node<C> {
    /// A node without children at the end of a key of `depth` bytes.
    fn leaf(label: &[u8], depth: usize) -> Node<C> {
        Node {
            text: Text::of(label, &[]),
            // A key is part of a configuration, which is far below 4 GiB.
            label_len: label.len() as u32,
            depth: depth as u32,
            children: Box::default(),
            content: C::default(),
        }
    }

    fn has_content(&self) -> bool {
        self.content.has(KeyKind::Exact) || self.content.has(KeyKind::Prefix)
    }

    /// Adds a child and returns its position.
    fn add_child(&mut self, head: u8, child: Node<C>) -> usize {
        self.text = Text::of(&self.text, &[head]);
        let mut children = std::mem::take(&mut self.children).into_vec();
        children.reserve_exact(1);
        children.push(Arc::new(child));
        self.children = children.into_boxed_slice();
        self.children.len() - 1
    }

    fn remove_child(&mut self, index: usize) {
        let (before, after) = self.text.split_at(self.label_len as usize + index);
        self.text = Text::of(before, &after[1..]);
        let mut children = std::mem::take(&mut self.children).into_vec();
        children.remove(index);
        self.children = children.into_boxed_slice();
    }

    /// Ends this node after `at` bytes of its label; the rest becomes its only child.
    fn split(&mut self, direction: Direction, at: usize) {
        let (first, rest) = direction.cut(self.label(), at);
        let Some(head) = direction.head(rest) else { return };
        let mut upper = Node::leaf(first, self.depth as usize - rest.len());
        let mut lower = Node::leaf(rest, self.depth as usize);
        lower.text = Text::of(rest, self.heads());
        lower.children = std::mem::take(&mut self.children);
        lower.content = std::mem::take(&mut self.content);
        upper.add_child(head, lower);
        *self = upper;
    }

    /// Joins a node without content with its only child.
    fn merge(&mut self, direction: Direction) {
        if self.has_content() || self.children.len() != 1 {
            return;
        }
        let Some(child) = std::mem::take(&mut self.children).into_vec().pop() else { return };
        let mut child = Arc::unwrap_or_clone(child);
        let label = direction.join(self.label(), child.label());
        child.text = Text::of(&label, child.heads());
        child.label_len = label.len() as u32;
        *self = child;
    }
}

impl<C: Content> Tree<C> {
    /// A tree without keys.
    pub(super) const fn new(direction: Direction) -> Tree<C> {
        Tree { direction, root: None }
    }

    /// Returns true if it has no keys.
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns the content of `key`, for the caller to add to.
    pub(super) fn at(&mut self, key: &[u8]) -> &mut C {
        let direction = self.direction;
        let root = self.root.get_or_insert_with(|| Arc::new(Node::leaf(key, key.len())));
        let mut node = Arc::make_mut(root);
        let mut rest = key;
        loop {
            let shared = direction.shared(rest, node.label());
            if shared < node.label().len() {
                node.split(direction, shared);
            }
            rest = direction.after(rest, shared);
            let Some(head) = direction.head(rest) else { return &mut node.content };
            let index = match node.child_at(head) {
                Some(index) => index,
                None => node.add_child(head, Node::leaf(rest, key.len())),
            };
            node = Arc::make_mut(&mut node.children[index]);
        }
    }

    /// Edits the content of `key`, if it has any, to remove some. A key without content is removed.
    pub(super) fn reduce(&mut self, key: &[u8], edit: impl FnOnce(&mut C)) {
        let Some(way) = self.way_to(key) else { return };
        let Some(root) = &mut self.root else { return };
        let root = Arc::make_mut(root);
        let Some((&last, above)) = way.split_last() else {
            edit(&mut root.content);
            root.merge(self.direction);
            if !root.has_content() && root.children.is_empty() {
                self.root = None;
            }
            return;
        };
        let parent = above.iter().fold(root, |node, &index| Arc::make_mut(&mut node.children[index]));
        let node = Arc::make_mut(&mut parent.children[last]);
        edit(&mut node.content);
        node.merge(self.direction);
        if !node.has_content() && node.children.is_empty() {
            parent.remove_child(last);
            parent.merge(self.direction);
        }
    }

    /// The positions of the children that lead from the root to the node at the end of `key`.
    fn way_to(&self, key: &[u8]) -> Option<Vec<usize>> {
        let mut node = self.root.as_deref()?;
        let mut rest = key;
        let mut way = Vec::new();
        loop {
            if !self.direction.begins(rest, node.label()) {
                return None;
            }
            rest = self.direction.after(rest, node.label().len());
            let Some(head) = self.direction.head(rest) else { return Some(way) };
            let index = node.child_at(head)?;
            way.push(index);
            node = &node.children[index];
        }
    }

    /// The keys that `text` meets. Time is linear in the length of `text`; every [`KEPT`] prefix keys that are
    /// requested take as long again.
    #[inline]
    pub(super) fn walk<'a>(&'a self, text: &'a [u8]) -> Trail<'a, C> {
        Trail { tree: self, text, seen: self.descend(text, usize::MAX) }
    }

    /// Goes from the root to the `most`th node with a prefix key, or as far as the text leads.
    #[inline]
    fn descend(&self, text: &[u8], most: usize) -> VisitedNodes<'_, C> {
        let mut seen = VisitedNodes { exact: None, nearest: [None; KEPT], count: 0 };
        let Some(mut node) = self.root.as_deref() else { return seen };
        let mut rest = text;
        loop {
            if !self.direction.begins(rest, node.label()) {
                return seen;
            }
            rest = self.direction.after(rest, node.label().len());
            if node.content.has(KeyKind::Prefix) {
                seen.add(node);
                if seen.count == most {
                    return seen;
                }
            }
            let Some(head) = self.direction.head(rest) else {
                seen.exact = node.content.has(KeyKind::Exact).then_some(node);
                return seen;
            };
            match node.child_at(head) {
                Some(index) => node = &node.children[index],
                None => return seen,
            }
        }
    }

    /// Memory of the nodes and their content in bytes, the counters of their owners included.
    /// Takes time linear in the number of nodes.
    pub(super) fn heap_bytes(&self) -> usize {
        let mut open: Vec<&Arc<Node<C>>> = self.root.iter().collect();
        let mut bytes = 0;
        while let Some(node) = open.pop() {
            bytes += ARC_BYTES + size_of::<Node<C>>() + size_of_val(&*node.children);
            bytes += node.text.heap_bytes() + node.content.heap_bytes();
            open.extend(&node.children);
        }
        bytes
    }
}

/// The bytes that an `Arc` adds: two counters.
pub(super) const ARC_BYTES: usize = 2 * size_of::<usize>();

/// Nodes that a walk remembers. Few texts meet more prefix keys: each one has to be a beginning
/// of the next.
const KEPT: usize = 4;

/// The nodes that a walk has passed.
#[derive(Debug)]
struct VisitedNodes<'a, C> {
    exact: Option<&'a Node<C>>,
    /// The nearest nodes with prefix keys, the longest key first.
    nearest: [Option<&'a Node<C>>; KEPT],
    /// How many nodes with prefix keys there are on the way, those in `nearest` included.
    count: usize,
}

impl<'a, C> VisitedNodes<'a, C> {
    // Both move all entries: that keeps them in registers, where a ring would be in memory.

    #[inline]
    fn add(&mut self, node: &'a Node<C>) {
        let [first, second, third, _forgotten] = self.nearest;
        self.nearest = [Some(node), first, second, third];
        self.count += 1;
    }

    /// The longest, if it is remembered.
    #[inline]
    fn take(&mut self) -> Option<&'a Node<C>> {
        let [first, second, third, fourth] = self.nearest;
        self.nearest = [second, third, fourth, None];
        self.count -= usize::from(first.is_some());
        first
    }
}

/// The keys that a text met, most specific first.
#[derive(Debug)]
pub(super) struct Trail<'a, C> {
    tree: &'a Tree<C>,
    text: &'a [u8],
    seen: VisitedNodes<'a, C>,
}

/// A key that a text met.
#[derive(Debug)]
pub(super) struct Met<'a, C> {
    pub(super) kind: KeyKind,
    /// Length of the key in bytes.
    pub(super) key_len: usize,
    pub(super) content: &'a C,
}

impl<'a, C: Content> Trail<'a, C> {
    /// Walks once more, for prefix keys on the way that are not remembered.
    #[cold]
    fn again(&mut self) -> Option<&'a Node<C>> {
        self.seen = self.tree.descend(self.text, self.seen.count);
        self.seen.take()
    }
}

impl<'a, C: Content> Iterator for Trail<'a, C> {
    type Item = Met<'a, C>;

    #[inline]
    fn next(&mut self) -> Option<Met<'a, C>> {
        if let Some(node) = self.seen.exact.take() {
            return Some(Met { kind: KeyKind::Exact, key_len: self.text.len(), content: &node.content });
        }
        let node = match self.seen.take() {
            None if self.seen.count > 0 => self.again()?,
            node => node?,
        };
        Some(Met { kind: KeyKind::Prefix, key_len: node.depth as usize, content: &node.content })
    }
}

#[cfg(test)]
mod tests;
