//! Frontends, backends and listen sections with the lines that they inherit from defaults.

use super::parser::{Line, Section};

/// A proxy: lines of its defaults first, then its own.
#[derive(Debug, Clone)]
pub(super) struct Proxy {
    pub name: String,
    pub kind: Kind,
    pub lines: Vec<Line>,
    pub head: Line,
}

/// The kinds of proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Frontend,
    Backend,
    Listen,
}

/// Gathers the proxies in order.
pub(super) fn gather(sections: &[Section]) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        let kind = match section.kind.as_str() {
            "frontend" => Kind::Frontend,
            "backend" => Kind::Backend,
            "listen" => Kind::Listen,
            _ => continue,
        };
        let mut lines = inherited(sections, at, section.from.as_deref(), 0);
        lines.extend(section.lines.iter().cloned());
        proxies.push(Proxy { name: section.name.clone(), kind, lines, head: section.head.clone() });
    }
    proxies
}

/// The lines of the defaults of the section at `at`: the named ones, else the nearest ones above.
fn inherited(sections: &[Section], at: usize, from: Option<&str>, depth: usize) -> Vec<Line> {
    let above = sections.get(..at).unwrap_or_default().iter().enumerate().rev();
    let mut defaults = above.filter(|(_, section)| section.kind == "defaults");
    let found = match from {
        Some(name) => defaults.find(|(_, section)| section.name == name),
        None => defaults.next(),
    };
    let Some((place, section)) = found else { return Vec::new() };
    let mut lines = match &section.from {
        Some(name) if depth < 16 => inherited(sections, place, Some(name), depth + 1),
        _ => Vec::new(),
    };
    lines.extend(section.lines.iter().cloned());
    lines
}

impl Proxy {
    /// Returns the proxy with one of its servers alone, which has the weight 1.
    pub(super) fn only(&self, server: &str) -> Option<Proxy> {
        let mut own = self.clone();
        own.lines.retain(|line| line.word(0) != "server" || line.word(1) == server);
        own.lines.retain(|line| !matches!(line.word(0), "server-template" | "cookie" | "stick"));
        let line = own.lines.iter_mut().find(|line| line.word(0) == "server")?;
        let weight = line.words.iter().position(|word| word == "weight");
        if let Some(value) = weight.and_then(|at| line.words.get_mut(at + 1)) {
            *value = "1".to_owned();
        }
        own.name = format!("{}-{server}", self.name);
        Some(own)
    }

    /// Returns the last line that begins with these words.
    pub(super) fn last(&self, words: &[&str]) -> Option<&Line> {
        self.lines.iter().rev().find(|line| line.is(words))
    }

    /// Returns all lines that begin with these words.
    pub(super) fn all<'p>(&'p self, words: &'p [&'p str]) -> impl Iterator<Item = &'p Line> {
        self.lines.iter().filter(move |line| line.is(words))
    }

    /// Returns the line that switches an option on, unless a later one switches it off.
    pub(super) fn option(&self, name: &str) -> Option<&Line> {
        self.lines
            .iter()
            .rev()
            .find(|line| line.is(&["option", name]) || line.is(&["no", "option", name]))
            .filter(|line| line.word(0) == "option")
    }

    /// Whether the proxy passes bytes, not requests.
    pub(super) fn is_tcp(&self) -> bool {
        self.last(&["mode"]).is_none_or(|line| line.word(1) == "tcp")
    }

    /// Returns a timeout in milliseconds.
    pub(super) fn timeout(&self, name: &str) -> Option<u64> {
        milliseconds(self.last(&["timeout", name])?.word(2))
    }
}

/// A time in milliseconds: `5s`, `1m`, `100ms`, `5000`.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let at = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..at].parse().ok()?;
    let factor = match &text[at..] {
        "" | "ms" => 1,
        "us" => return Some(number / 1000),
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(milliseconds("5000"), Some(5000));
        assert_eq!(milliseconds("30s"), Some(30_000));
        assert_eq!(milliseconds("1h"), Some(3_600_000));
        assert_eq!(milliseconds("x"), None);
    }
}
