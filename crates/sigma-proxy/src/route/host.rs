//! Host patterns: as keys of the host tree (routing.md §3.2) and as conditions (§3.3).

use super::UriTree;
use super::tree::{Content, Direction, KeyKind, Tree};

/// One host pattern: exact, or a wildcard and the text that a host must end with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HostPattern {
    /// Lower case.
    text: Box<str>,
    kind: KeyKind,
}

impl HostPattern {
    /// Reads a pattern. The text before the last `*` is ignored, like the rest of a uri pattern.
    pub(super) fn parse(text: &str) -> HostPattern {
        let (text, kind) = match text.rsplit_once('*') {
            Some((_ignored, ending)) => (ending, KeyKind::Prefix),
            None => (text, KeyKind::Exact),
        };
        HostPattern { text: text.to_ascii_lowercase().into(), kind }
    }

    /// Returns the key of the pattern in a tree that reads backwards.
    pub(super) fn key(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Returns the kind of its key: a wildcard is at the end that is read last.
    pub(super) fn kind(&self) -> KeyKind {
        self.kind
    }

    /// Returns true if a request is for this host. A pattern with a `:` is compared with the Host header as it was
    /// sent, port included.
    pub(super) fn matches(&self, host: &[u8], raw_host: &[u8]) -> bool {
        let subject = if self.text.contains(':') { raw_host } else { host };
        let text = self.text.as_bytes();
        let Some(start) = subject.len().checked_sub(text.len()) else { return false };
        (start == 0 || self.kind == KeyKind::Prefix) && subject[start..].eq_ignore_ascii_case(text)
    }

    /// Returns true if the host tree leads a request for `host` to this pattern. The tree knows no ports.
    pub(super) fn is_met_by(&self, host: &[u8]) -> bool {
        self.matches(host, host)
    }
}

/// The uri trees of the host patterns of one key: of `foo.com` and of `*foo.com`.
#[derive(Debug, Clone)]
pub(super) struct HostUris {
    exact: UriTree,
    prefix: UriTree,
}

impl Default for HostUris {
    fn default() -> HostUris {
        HostUris { exact: Tree::new(Direction::Forward), prefix: Tree::new(Direction::Forward) }
    }
}

impl HostUris {
    /// Returns the tree of the pattern of this kind.
    #[inline]
    pub(super) fn of(&self, kind: KeyKind) -> &UriTree {
        match kind {
            KeyKind::Exact => &self.exact,
            KeyKind::Prefix => &self.prefix,
        }
    }

    /// Returns the tree of the pattern of this kind, to be edited.
    pub(super) fn of_mut(&mut self, kind: KeyKind) -> &mut UriTree {
        match kind {
            KeyKind::Exact => &mut self.exact,
            KeyKind::Prefix => &mut self.prefix,
        }
    }
}

/// A host has a tree as long as it has a route.
impl Content for HostUris {
    #[inline]
    fn has(&self, kind: KeyKind) -> bool {
        !self.of(kind).is_empty()
    }

    fn heap_bytes(&self) -> usize {
        self.exact.heap_bytes() + self.prefix.heap_bytes()
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
