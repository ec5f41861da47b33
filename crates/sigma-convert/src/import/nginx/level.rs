//! Levels of blocks and the inheritance of directives between them.

use std::collections::HashMap;
use std::rc::Rc;

use super::parse::Directive;

/// A block with the levels around it.
#[derive(Clone)]
pub(super) struct Level<'a> {
    pub(super) directives: &'a [Directive],
    pub(super) parent: Option<Rc<Level<'a>>>,
    /// Whether the block is an `if` or `limit_except` of a location, which inherits its content handler.
    pub(super) is_nameless: bool,
    /// The directives by name, each with its number: a level `http` may have thousands.
    by_name: HashMap<&'a str, Vec<(usize, &'a Directive)>>,
}

impl<'a> Level<'a> {
    /// Creates the level of a block.
    pub(super) fn of(
        directives: &'a [Directive],
        parent: Option<&Rc<Level<'a>>>,
        is_nameless: bool,
    ) -> Rc<Level<'a>> {
        let mut by_name: HashMap<&str, Vec<(usize, &Directive)>> = HashMap::new();
        for (at, directive) in directives.iter().enumerate() {
            by_name.entry(&directive.name).or_default().push((at, directive));
        }
        Rc::new(Level { directives, parent: parent.cloned(), is_nameless, by_name })
    }

    /// Returns the last directive of this name in this block alone.
    pub(super) fn own(&self, name: &str) -> Option<&'a Directive> {
        self.by_name.get(name)?.last().map(|(_, directive)| *directive)
    }

    /// Returns all directives of these names in this block alone, in order.
    pub(super) fn own_all(&self, names: &[&str]) -> Vec<&'a Directive> {
        let mut found: Vec<(usize, &Directive)> =
            names.iter().filter_map(|name| self.by_name.get(name)).flatten().copied().collect();
        found.sort_unstable_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, directive)| directive).collect()
    }

    /// Returns the names of the directives in this block and around it, sorted.
    pub(super) fn all_names(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = self.by_name.keys().copied().collect();
        names.extend(self.parent.iter().flat_map(|parent| parent.all_names()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the directive of the nearest level that has one.
    pub(super) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.own(name).or_else(|| self.parent.as_ref().and_then(|parent| parent.last(name)))
    }

    /// Returns the directives of the nearest level that has any of these names: lists are inherited as a whole.
    pub(super) fn all(&self, names: &[&str]) -> Vec<&'a Directive> {
        let own = self.own_all(names);
        match (own.is_empty(), &self.parent) {
            (true, Some(parent)) => parent.all(names),
            _ => own,
        }
    }

    /// Returns the content handler of this block; nameless blocks inherit it.
    pub(super) fn handler(&self, names: &[&str]) -> Option<&'a Directive> {
        let own = self.own_all(names).last().copied();
        match (own, &self.parent) {
            (None, Some(parent)) if self.is_nameless => parent.handler(names),
            _ => own,
        }
    }

    /// Returns the first argument of the nearest directive.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.last(name).map(|directive| directive.arg(0))
    }

    /// Returns whether the nearest directive says `on`.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.text(name) == Some("on")
    }
}

/// Parses a size such as `8k`, `1m` or `512`.
pub(in crate::import) fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.as_bytes().last()?.to_ascii_lowercase() {
        b'k' => (&text[..text.len() - 1], 1 << 10),
        b'm' => (&text[..text.len() - 1], 1 << 20),
        b'g' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Parses a time such as `60`, `1m30s` or `500ms`, in milliseconds.
pub(in crate::import) fn milliseconds(text: &str) -> Option<u64> {
    let mut total = 0u64;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let factor = match &rest[..letters] {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(factor)?)?;
        rest = rest[letters..].trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        assert_eq!(
            [size("8k"), size("1M"), size("7"), size("x")],
            [Some(8192), Some(1 << 20), Some(7), None]
        );
        let times = ["60", "1m30s", "500ms", "1y", "", "x", "5q"].map(milliseconds);
        assert_eq!(times, [Some(60_000), Some(90_000), Some(500), Some(31_536_000_000), None, None, None]);
    }
}
