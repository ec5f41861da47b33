//! The tree against a map of keys, and the trees before an edit.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

/// The numbers of an exact and of a prefix key.
#[derive(Debug, Clone, Default)]
struct Marks([Option<usize>; 2]);

impl Content for Marks {
    fn has(&self, kind: KeyKind) -> bool {
        self.0[kind as usize].is_some()
    }
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A trailing `*` marks a prefix, one in front if the tree reads backwards.
fn parse(direction: Direction, key: &str) -> (&[u8], KeyKind) {
    let prefix = match direction {
        Direction::Forward => key.strip_suffix('*'),
        Direction::Backward => key.strip_prefix('*'),
    };
    let kind = if prefix.is_some() { KeyKind::Prefix } else { KeyKind::Exact };
    (prefix.unwrap_or(key).as_bytes(), kind)
}

fn put(tree: &mut Tree<Marks>, key: &str, mark: usize) {
    let (bytes, kind) = parse(tree.direction, key);
    tree.at(bytes).0[kind as usize] = Some(mark);
}

fn remove(tree: &mut Tree<Marks>, key: &str) {
    let (bytes, kind) = parse(tree.direction, key);
    tree.reduce(bytes, |marks| marks.0[kind as usize] = None);
}

fn tree(direction: Direction, keys: &[&str]) -> Tree<Marks> {
    let mut tree = Tree::new(direction);
    for (mark, key) in keys.iter().enumerate() {
        put(&mut tree, key, mark);
    }
    tree
}

/// Marks of the keys that `text` meets.
fn met(tree: &Tree<Marks>, text: &str) -> Vec<usize> {
    tree.walk(text.as_bytes()).map(|met| met.content.0[met.kind as usize].expect("a key")).collect()
}

/// Checks which of `keys` a text meets.
fn check(direction: Direction, keys: &[&str], text: &str, expected: &[&str]) {
    let found: Vec<&str> = met(&tree(direction, keys), text).into_iter().map(|mark| keys[mark]).collect();
    assert_eq!(found, expected, "{keys:?} {text:?}");
}

/// The nodes of a tree. Checks that each has a reason to exist.
fn nodes(tree: &Tree<Marks>) -> HashSet<*const Node<Marks>> {
    let mut open: Vec<&Arc<Node<Marks>>> = tree.root.iter().collect();
    let mut found = HashSet::new();
    while let Some(node) = open.pop() {
        assert!(node.has_content() || node.children.len() > 1, "{node:?}");
        assert_eq!(node.heads().len(), node.children.len());
        for (head, child) in node.heads().iter().zip(&node.children) {
            assert_eq!(tree.direction.head(child.label()), Some(*head));
            assert_eq!(child.depth as usize, node.depth as usize + child.label().len());
        }
        found.insert(Arc::as_ptr(node));
        open.extend(&node.children);
    }
    found
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
}

#[test]
fn reads_hosts_from_the_end() {
    let keys = ["foo.com", "*.foo.com", "*com", "*"];
    let backward = |text, expected: &[&str]| check(Direction::Backward, &keys, text, expected);
    backward("foo.com", &["foo.com", "*com", "*"]);
    backward("a.foo.com", &["*.foo.com", "*com", "*"]);
    backward("xcom", &["*com", "*"]);
    backward("_", &["*"]);
}

#[test]
fn meets_more_prefixes_than_it_remembers() {
    for count in 1..4 * KEPT {
        let keys: Vec<String> = (0..count).map(|len| "a".repeat(len) + "*").collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let longest_first: Vec<&str> = keys.iter().rev().copied().collect();
        check(Direction::Forward, &keys, &"a".repeat(count), &longest_first);
    }
}

#[test]
fn an_edit_copies_the_way_to_its_key() {
    let keys: Vec<String> = (0..10_000).map(|n| format!("/api/v1/svc{n:05}/*")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let before = tree(Direction::Forward, &keys);
    let old = nodes(&before);
    let mut after = before.clone();
    put(&mut after, keys[777], 1);
    // One node for each of the four digits that keys differ in, and that above them.
    assert_eq!(nodes(&after).difference(&old).count(), 5);
    put(&mut after, keys[778], 1);
    assert_eq!(nodes(&after).difference(&old).count(), 6);
    remove(&mut after, keys[779]);
    assert_eq!(nodes(&after).difference(&old).count(), 6);
    remove(&mut after, "/api/v1/none");
    assert_eq!(nodes(&before), old);
    assert_eq!(met(&before, "/api/v1/svc00779/x"), [779]);
    assert_eq!(met(&after, "/api/v1/svc00779/x"), [0; 0]);
}

#[test]
fn a_deep_tree_needs_no_deep_stack() {
    let build = || {
        let keys: Vec<String> = (0..3_000).map(|len| "a".repeat(len)).collect();
        let mut deep = tree(Direction::Forward, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        let shared = deep.clone();
        put(&mut deep, &"a".repeat(4_000), 0);
        drop(shared);
        drop(deep);
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(build).expect("a thread");
    thread.join().expect("it does not overflow");
}

proptest! {
    #[test]
    fn follows_a_map_of_keys(
        backward in prop::bool::ANY,
        edits in prop::collection::vec(("\\*?[ab]{0,6}", prop::bool::weighted(0.6)), 0..60),
        texts in prop::collection::vec("[ab]{0,7}", 1..10),
    ) {
        let direction = if backward { Direction::Backward } else { Direction::Forward };
        let turned = |key: &str| -> String { key.chars().rev().collect() };
        let mut tree: Tree<Marks> = Tree::new(direction);
        let mut map = BTreeMap::new();
        let mut generations = Vec::new();
        for (mark, (key, stays)) in edits.iter().enumerate() {
            let key = if backward { key.clone() } else { turned(key) };
            if *stays {
                put(&mut tree, &key, mark);
                map.insert(key, mark);
            } else {
                remove(&mut tree, &key);
                map.remove(&key);
            }
            nodes(&tree);
            prop_assert_eq!(tree.is_empty(), map.is_empty());
            if mark % 8 == 0 {
                generations.push((tree.clone(), map.clone()));
            }
        }
        generations.push((tree, map));
        for ((tree, map), text) in generations.iter().flat_map(|pair| texts.iter().map(move |text| (pair, text))) {
            let fits = |key: &str| match parse(direction, key) {
                (bytes, KeyKind::Exact) => bytes == text.as_bytes(),
                (bytes, KeyKind::Prefix) => direction.begins(text.as_bytes(), bytes),
            };
            let mut expected: Vec<(&String, usize)> =
                map.iter().filter(|(key, _)| fits(key)).map(|(key, mark)| (key, *mark)).collect();
            expected.sort_by_key(|(key, _)| (key.contains('*'), std::cmp::Reverse(key.len())));
            let expected: Vec<usize> = expected.into_iter().map(|(_, mark)| mark).collect();
            prop_assert_eq!(met(tree, text), expected, "{:?} {:?}", map, text);
        }
    }
}
