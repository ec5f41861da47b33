//! Host patterns: as keys of the host tree (routing.md §3.2) and as conditions (§3.3).

use super::forest::{Direction, Forest, Key, KeyKind};

/// One host pattern: exact, or a wildcard and the text that a host must end with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HostPattern {
    /// Lower case.
    text: Box<str>,
    kind: KeyKind,
}

impl HostPattern {
    /// Reads a pattern. What stands before the last `*` is ignored, as the rest of a uri pattern is.
    pub(super) fn parse(text: &str) -> HostPattern {
        let (text, kind) = match text.rsplit_once('*') {
            Some((_ignored, ending)) => (ending, KeyKind::Prefix),
            None => (text, KeyKind::Exact),
        };
        HostPattern { text: text.to_ascii_lowercase().into(), kind }
    }

    /// Whether a request is for this host. A pattern with a `:` is about the Host header as it
    /// was sent, port included.
    pub(super) fn matches(&self, host: &[u8], raw_host: &[u8]) -> bool {
        let subject = if self.text.contains(':') { raw_host } else { host };
        let text = self.text.as_bytes();
        let Some(start) = subject.len().checked_sub(text.len()) else { return false };
        (start == 0 || self.kind == KeyKind::Prefix) && subject[start..].eq_ignore_ascii_case(text)
    }

    /// Whether the host tree leads a request for `host` to this pattern. The tree knows no ports.
    pub(super) fn is_met_by(&self, host: &[u8]) -> bool {
        self.matches(host, host)
    }
}

/// Distinct host patterns, most specific first for any host.
#[derive(Debug)]
pub(super) struct HostTree {
    forest: Forest,
    /// What each key of the forest stands for.
    uri_trees: Box<[u32]>,
}

impl HostTree {
    /// Builds the tree from distinct patterns and the number of the uri tree of each.
    pub(super) fn build<'a>(patterns: impl Iterator<Item = (&'a HostPattern, u32)>) -> HostTree {
        let mut turned: Vec<(Vec<u8>, KeyKind, u32)> = patterns
            .map(|(pattern, tree)| (pattern.text.bytes().rev().collect(), pattern.kind, tree))
            .collect();
        turned.sort_unstable();
        let keys: Vec<Key<'_>> =
            turned.iter().map(|(bytes, kind, _)| Key { tree: 0, bytes, kind: *kind }).collect();
        HostTree {
            forest: Forest::build(Direction::Backward, 1, &keys),
            uri_trees: turned.iter().map(|(_, _, tree)| *tree).collect(),
        }
    }

    /// Memory of the tree in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.forest.memory_bytes() + size_of_val(&*self.uri_trees)
    }

    /// Uri trees of the patterns that `host` fits: exact first, then the longest ending.
    #[inline]
    pub(super) fn uri_trees(&self, host: &[u8]) -> impl Iterator<Item = u32> {
        self.forest.walk(0, host).flat_map(|group| &self.uri_trees[group.items]).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_exactly_or_by_ending() {
        let check = |pattern: &str, host: &str, raw_host: &str, expected: bool| {
            let found = HostPattern::parse(pattern).matches(host.as_bytes(), raw_host.as_bytes());
            assert_eq!(found, expected, "{pattern} {host} {raw_host}");
        };
        for (pattern, host, expected) in [
            ("foo.com", "foo.com", true),
            ("FOO.com", "foo.com", true),
            ("foo.com", "a.foo.com", false),
            ("*.foo.com", "a.foo.com", true),
            ("*.foo.com", "a.b.foo.com", true),
            ("*.foo.com", "foo.com", false),
            ("*foo.com", "foo.com", true),
            ("*foo.com", "xfoo.com", true),
            ("*", "anything", true),
            ("*", "_", true),
            ("foo.com", "_", false),
        ] {
            check(pattern, host, host, expected);
        }
        check("foo.com:8080", "foo.com", "foo.com:8080", true);
        check("foo.com:8080", "foo.com", "Foo.com:8080", true);
        check("foo.com:8080", "foo.com", "foo.com", false);
        check("*.com:8080", "foo.com", "foo.com:8080", true);
    }
}
