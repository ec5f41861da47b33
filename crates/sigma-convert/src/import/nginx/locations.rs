//! The search for a location, as an ordered list in which the first match is nginx's choice.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use super::super::decision::Path;
use super::level::Level;
use super::parse::Directive;
use super::pattern::Pattern;

/// A place in the list of locations.
#[derive(Clone)]
pub(super) struct Entry<'a> {
    pub(super) level: Rc<Level<'a>>,
    pub(super) directive: &'a Directive,
    pub(super) kind: Kind,
    /// Prefixes within which it is searched.
    pub(super) within: Vec<String>,
    /// Regular expressions around it.
    pub(super) also: Vec<Pattern>,
}

/// How a location matches.
#[derive(Clone)]
pub(super) enum Kind {
    Exact(String),
    Prefix(String),
    Regex(Pattern),
    /// A regular expression that cannot be translated: a superset of its matches.
    Unknown(String, Option<Pattern>),
}

impl Entry<'_> {
    /// Returns the path of a route.
    pub(super) fn path(&self) -> Path {
        match &self.kind {
            Kind::Exact(text) => Path::Exact(text.clone()),
            Kind::Prefix(text) => Path::Prefix(text.clone()),
            Kind::Regex(pattern) | Kind::Unknown(_, Some(pattern)) => {
                Path::Regex { pattern: pattern.text.clone(), ignore_case: pattern.ignore_case }
            }
            Kind::Unknown(_, None) => Path::Prefix("/".to_owned()),
        }
    }

    /// Returns conditions on the variable with the path for the prefixes around the entry.
    pub(super) fn conditions(&self, variable: &str) -> Vec<Value> {
        let longest = self.within.iter().max_by_key(|prefix| prefix.len());
        let own = match &self.kind {
            Kind::Exact(text) | Kind::Prefix(text) => Some(text),
            _ => None,
        };
        let prefix = longest
            .filter(|prefix| {
                prefix.as_str() != "/" && !own.is_some_and(|own| own.starts_with(prefix.as_str()))
            })
            .map(|prefix| json!([variable, "~~", format!("^{}", regex::escape(prefix))]));
        let patterns = self.also.iter().map(|pattern| pattern.condition(variable));
        prefix.into_iter().chain(patterns).collect()
    }
}

/// One location block with its nested ones.
struct Location<'a> {
    level: Rc<Level<'a>>,
    directive: &'a Directive,
    kind: Kind,
    stops_search: bool,
    children: Vec<Location<'a>>,
}

/// Returns the list of a server's locations, and its named ones.
pub(super) fn list<'a>(server: &Rc<Level<'a>>) -> (Vec<Entry<'a>>, BTreeMap<String, Rc<Level<'a>>>) {
    let mut named = BTreeMap::new();
    let locations = read(server, &mut named);
    let mut entries = Vec::new();
    search(&locations, &[], &mut Vec::new(), &mut entries);
    (entries, named)
}

fn read<'a>(level: &Rc<Level<'a>>, named: &mut BTreeMap<String, Rc<Level<'a>>>) -> Vec<Location<'a>> {
    let mut locations = Vec::new();
    for directive in level.directives.iter().filter(|directive| directive.name == "location") {
        let own = Level::of(directive.children(), Some(level), false);
        let (modifier, text) = parts(directive);
        if text.starts_with('@') {
            named.insert(text.to_owned(), own);
            continue;
        }
        let (kind, stops_search) = match modifier {
            "=" => (Kind::Exact(text.to_owned()), false),
            "~" | "~*" => (regex(text, modifier == "~*"), false),
            modifier => (Kind::Prefix(text.to_owned()), modifier == "^~"),
        };
        let children = read(&own, named);
        locations.push(Location { level: own, directive, kind, stops_search, children });
    }
    locations
}

fn regex(text: &str, ignore_case: bool) -> Kind {
    match Pattern::new(text, ignore_case) {
        Ok(pattern) => Kind::Regex(pattern),
        Err(reason) => Kind::Unknown(reason, superset(text, ignore_case)),
    }
}

/// An expression without look-around matches at least the same.
pub(super) fn superset(text: &str, ignore_case: bool) -> Option<Pattern> {
    let mut kept = text.to_owned();
    for start in ["(?!", "(?<!", "(?=", "(?<="] {
        while let Some(at) = kept.find(start) {
            let end = at + kept[at..].find(')')?;
            if kept[at + start.len()..end].contains('(') {
                return None;
            }
            kept.replace_range(at..=end, "");
        }
    }
    Pattern::new(&kept, ignore_case).ok()
}

/// The modifier of a location and its text: `~ ^/a`, but also `~^/a` and `=/a`.
pub(super) fn parts(directive: &Directive) -> (&str, &str) {
    if directive.args.len() > 1 {
        return (directive.arg(0), directive.arg(1));
    }
    let text = directive.arg(0);
    for modifier in ["^~", "~*", "~", "="] {
        if let Some(rest) = text.strip_prefix(modifier) {
            return (modifier, rest);
        }
    }
    ("", text)
}

/// Lists one level: exact locations; prefixes that regular expressions do not simply precede; the regular expressions
/// of this level, then of the levels around it; the other prefixes, the longest first.
fn search<'a>(
    locations: &[Location<'a>],
    outer: &[&Location<'a>],
    within: &mut Vec<String>,
    entries: &mut Vec<Entry<'a>>,
) {
    for location in locations.iter().filter(|location| matches!(location.kind, Kind::Exact(_))) {
        push(location, within, entries);
    }
    let own: Vec<&Location<'a>> =
        locations.iter().filter(|it| matches!(it.kind, Kind::Regex(_) | Kind::Unknown(..))).collect();
    let mut prefixes: Vec<(&str, &Location<'a>)> = locations
        .iter()
        .filter_map(|it| if let Kind::Prefix(text) = &it.kind { Some((text.as_str(), it)) } else { None })
        .collect();
    prefixes.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    let has_regexes = !own.is_empty() || !outer.is_empty();
    let is_special =
        |location: &Location<'_>| has_regexes && (location.stops_search || !location.children.is_empty());
    let special: Vec<&str> =
        prefixes.iter().filter(|(_, location)| is_special(location)).map(|(text, _)| *text).collect();
    let is_early = |text: &str, location: &Location<'_>| {
        is_special(location) || special.iter().any(|prefix| text.starts_with(prefix))
    };
    for (text, location) in prefixes.iter().filter(|(text, location)| is_early(text, location)) {
        prefix(text, location, Around { own: &own, outer }, within, entries);
    }
    for location in own.iter().chain(outer) {
        regular(location, within, entries);
    }
    for (text, location) in prefixes.iter().filter(|(text, location)| !is_early(text, location)) {
        prefix(text, location, Around { own: &[], outer: &[] }, within, entries);
    }
}

/// The regular expressions that compete with a prefix.
struct Around<'s, 'a> {
    own: &'s [&'s Location<'a>],
    outer: &'s [&'s Location<'a>],
}

/// Lists a prefix: its nested locations, the regular expressions that precede it, then itself.
fn prefix<'a>(
    text: &str,
    location: &Location<'a>,
    around: Around<'_, 'a>,
    within: &mut Vec<String>,
    entries: &mut Vec<Entry<'a>>,
) {
    let own: &[&Location<'a>] = if location.stops_search { &[] } else { around.own };
    let tail: Vec<&Location<'a>> = own.iter().chain(around.outer).copied().collect();
    if !location.children.is_empty() || !tail.is_empty() {
        within.push(text.to_owned());
        search(&location.children, &tail, within, entries);
        within.pop();
    }
    push(location, within, entries);
}

/// Lists a regular expression with its nested locations.
fn regular<'a>(location: &Location<'a>, within: &mut Vec<String>, entries: &mut Vec<Entry<'a>>) {
    let start = entries.len();
    if let (Kind::Regex(pattern), false) = (&location.kind, location.children.is_empty()) {
        search(&location.children, &[], within, entries);
        entries[start..].iter_mut().for_each(|entry| entry.also.push(pattern.clone()));
    }
    push(location, within, entries);
}

fn push<'a>(location: &Location<'a>, within: &[String], entries: &mut Vec<Entry<'a>>) {
    if let Kind::Regex(pattern) = &location.kind {
        // An expression with another beginning never matches there.
        let literal = pattern.anchored().map(|(literal, _)| literal).unwrap_or_default();
        let meets = |prefix: &String| prefix.starts_with(&literal) || literal.starts_with(prefix.as_str());
        if !within.iter().all(meets) {
            return;
        }
    }
    entries.push(Entry {
        level: Rc::clone(&location.level),
        directive: location.directive,
        kind: location.kind.clone(),
        within: within.to_vec(),
        also: Vec::new(),
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::source::{Input, MemoryFiles, SourceFile};
    use super::super::parse::parse;
    use super::*;

    /// The list in short: `=/a`, `/a`, `~re`, each with the prefixes around it.
    fn listed(text: &str) -> String {
        let files = [SourceFile { name: "a".to_owned(), text: text.to_owned() }];
        let parsed =
            parse(&Input { files: &files, access: &MemoryFiles::default() }).expect("a configuration");
        let level = Level::of(&parsed.directives, None, false);
        let (entries, _) = list(&level);
        let shown = entries.iter().map(|entry| {
            let text = match &entry.kind {
                Kind::Exact(text) => format!("={text}"),
                Kind::Prefix(text) => text.clone(),
                Kind::Regex(pattern) => format!("~{}", pattern.text),
                Kind::Unknown(..) => "?".to_owned(),
            };
            if entry.within.is_empty() { text } else { format!("{text}[{}]", entry.within.join(",")) }
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_list_is_in_the_order_of_the_search() {
        for (text, expected) in [
            ("location / {} location /a {} location = /a {}", "=/a /a /"),
            ("location / {} location ~ x {} location /a {}", "~x /a /"),
            (
                "location / {} location ~ x {} location ^~ /s/ {} location /s/d/ {}",
                "~x[/s/d/] /s/d/ /s/ ~x /",
            ),
            (
                "location /o/ { location ~ t {} location /o/i/ {} } location ~ x {} location / {}",
                "~t[/o/] ~x[/o/] /o/i/[/o/] /o/ ~x /",
            ),
            ("location ^~ /o/ { location ~ t {} } location ~ x {}", "~t[/o/] /o/ ~x"),
            ("location ~* (?=a)b {}", "?"),
        ] {
            assert_eq!(listed(text), expected, "{text}");
        }
    }
}
