//! Variables that a configuration defines: texts and maps, read as `$var_NAME`.
//!
//! They are compiled once and evaluated when they are read, so an exchange that reads none pays nothing. A value may
//! read other variables; one read evaluates at most [`MAX_READS`] definitions, which ends every circle.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use regex::bytes::{Captures, Regex, RegexBuilder};

use crate::cidr::Cidr;
use crate::expr::{VarName, VarValue, Variables};
use crate::template::Template;
use crate::validation::pcre;

/// The prefix of their names.
pub const PREFIX: &str = "var_";

/// Most definitions that one read evaluates. A chain of maps has two or three.
pub const MAX_READS: u8 = 64;

/// Maximum compiled size of one expression in bytes, so that a short text cannot take much memory.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Definitions by name, and the ones around them.
#[derive(Debug, Default)]
pub struct Definitions {
    by_name: HashMap<Box<str>, Definition>,
    around: Option<Arc<Definitions>>,
}

/// One definition.
#[derive(Debug)]
pub enum Definition {
    /// A text with variables.
    Text(Template),
    /// A value that depends on another text.
    Map(Box<Map>),
}

/// A map from a text to a value. The first kind of entry that fits counts: exact texts, wildcards, networks, expressions
/// in their order, shares, the default.
#[derive(Debug)]
pub struct Map {
    source: Template,
    /// In lower case.
    exact: HashMap<Vec<u8>, Template>,
    /// `.example.com` for `*.example.com`, and the dotless name for the one itself.
    endings: HashMap<Vec<u8>, Template>,
    /// `www.example.` for `www.example.*`.
    beginnings: HashMap<Vec<u8>, Template>,
    /// By network.
    networks: HashMap<Cidr, Template>,
    /// The lengths of the networks, the longest first.
    lengths: Vec<u8>,
    expressions: Vec<(Regex, Template)>,
    /// Values by shares of all texts: the hash below which each begins to end.
    shares: Vec<(u32, Template)>,
    default: Template,
}

impl Definitions {
    /// Returns no definitions besides the ones around them.
    #[must_use]
    pub fn within(around: Option<Arc<Definitions>>) -> Definitions {
        Definitions { by_name: HashMap::new(), around }
    }

    /// Adds a definition.
    pub fn insert(&mut self, name: &str, definition: Definition) {
        self.by_name.insert(name.into(), definition);
    }

    /// Returns true if nothing is defined, here and around.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.around.as_ref().is_none_or(|around| around.is_empty())
    }

    /// Returns the definition of this name, without the prefix.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Definition> {
        self.by_name.get(name).or_else(|| self.around.as_ref()?.find(name))
    }

    /// Returns the value of `$var_NAME`, read from `variables`. `reads` counts the evaluations of the outermost read;
    /// it is 0 outside of one.
    pub fn value(
        &self,
        name: &str,
        variables: &dyn Variables,
        reads: &Cell<u8>,
    ) -> Option<VarValue<'static>> {
        let definition = self.find(name)?;
        let before = reads.get();
        if before >= MAX_READS {
            return None;
        }
        reads.set(before + 1);
        let value = definition.evaluated(variables);
        if before == 0 {
            reads.set(0);
        }
        Some(VarValue::Text(Cow::Owned(value)))
    }

    /// Returns the names in a circle of definitions, if there is one.
    #[must_use]
    pub fn circle(&self) -> Option<Vec<&str>> {
        let mut ended = HashSet::new();
        self.by_name.keys().find_map(|name| self.way_back(name, &mut Vec::new(), &mut ended))
    }

    fn way_back<'d>(
        &'d self,
        name: &'d str,
        way: &mut Vec<&'d str>,
        ended: &mut HashSet<&'d str>,
    ) -> Option<Vec<&'d str>> {
        if let Some(at) = way.iter().position(|known| *known == name) {
            return Some(way[at..].to_vec());
        }
        if ended.contains(name) {
            return None;
        }
        let definition = self.find(name)?;
        way.push(name);
        let found = definition.reads().into_iter().find_map(|read| self.way_back(read, way, ended));
        way.pop();
        ended.insert(name);
        found
    }
}

impl Definition {
    fn evaluated(&self, variables: &dyn Variables) -> Vec<u8> {
        match self {
            Definition::Text(text) => text.rendered(variables),
            Definition::Map(map) => map.evaluated(variables),
        }
    }

    /// Returns the definitions that it may read.
    fn reads(&self) -> Vec<&str> {
        let texts: Vec<&Template> = match self {
            Definition::Text(text) => vec![text],
            Definition::Map(map) => map.texts().collect(),
        };
        let names = texts.into_iter().flat_map(Template::variables);
        names
            .filter_map(|name| match name {
                VarName::Other(name) => name.strip_prefix(PREFIX),
                _ => None,
            })
            .collect()
    }
}

impl Map {
    /// Returns an empty map of this text.
    #[must_use]
    pub fn of(source: Template, default: Template) -> Map {
        Map {
            source,
            exact: HashMap::new(),
            endings: HashMap::new(),
            beginnings: HashMap::new(),
            networks: HashMap::new(),
            lengths: Vec::new(),
            expressions: Vec::new(),
            shares: Vec::new(),
            default,
        }
    }

    /// Adds a text, which is compared without case.
    pub fn add_exact(&mut self, text: &str, value: Template) {
        self.exact.insert(text.to_ascii_lowercase().into_bytes(), value);
    }

    /// Adds a wildcard for hosts: `*.example.com`, `.example.com` (with the name itself) or `www.example.*`.
    ///
    /// # Errors
    /// Returns an error for another text.
    pub fn add_host(&mut self, pattern: &str, value: Template) -> Result<(), String> {
        let pattern_lower = pattern.to_ascii_lowercase();
        let is_plain = |name: &str| name.len() > 1 && !name.contains('*');
        if let Some(ending) = pattern_lower.strip_prefix('*').filter(|ending| ending.starts_with('.'))
            && is_plain(ending)
        {
            self.endings.insert(ending.as_bytes().to_vec(), value);
        } else if let Some(name) =
            pattern_lower.strip_prefix('.').filter(|name| !name.is_empty() && is_plain(name))
        {
            self.endings.insert(pattern_lower.as_bytes().to_vec(), value.clone());
            self.exact.entry(name.as_bytes().to_vec()).or_insert(value);
        } else if let Some(beginning) = pattern_lower
            .strip_suffix('*')
            .filter(|beginning| beginning.ends_with('.') && is_plain(beginning))
        {
            self.beginnings.insert(beginning.as_bytes().to_vec(), value);
        } else {
            return Err(format!("`{pattern}` is not a wildcard such as `*.example.com` or `www.example.*`"));
        }
        Ok(())
    }

    /// Adds a network, such as `10.0.0.0/8`.
    ///
    /// # Errors
    /// Returns an error for another text.
    pub fn add_network(&mut self, network: &str, value: Template) -> Result<(), String> {
        let network: Cidr =
            network.parse().map_err(|_| format!("`{network}` is not a network such as `10.0.0.0/8`"))?;
        if let Err(at) = self.lengths.binary_search_by(|length| network.prefix().cmp(length)) {
            self.lengths.insert(at, network.prefix());
        }
        self.networks.insert(network, value);
        Ok(())
    }

    /// Adds a share of all texts after the others, in hundredths of a percent.
    pub fn add_share(&mut self, hundredths: u32, value: Template) {
        let part = u64::from(hundredths.min(10_000)) * u64::from(u32::MAX) / 10_000;
        let before = self.shares.last().map_or(0, |(end, _)| *end);
        let end = u32::try_from(u64::from(before) + part).unwrap_or(u32::MAX);
        self.shares.push((end, value));
    }

    /// Returns the value of the longest network of an address.
    fn by_network(&self, address: &[u8]) -> Option<&Template> {
        if self.lengths.is_empty() {
            return None;
        }
        let address: IpAddr = std::str::from_utf8(address).ok()?.parse().ok()?;
        self.lengths.iter().find_map(|length| {
            let network = Cidr::around(address, *length);
            self.networks.get(&network).filter(|_| network.prefix() == *length)
        })
    }

    /// Adds an expression after the others.
    ///
    /// # Errors
    /// Returns the reason if it is invalid.
    pub fn add_expression(
        &mut self,
        expression: &str,
        ignores_case: bool,
        value: Template,
    ) -> Result<(), String> {
        let translated = pcre::translate(expression).map_err(|reason| format!("the expression {reason}"))?;
        let regex = RegexBuilder::new(&translated)
            .unicode(false)
            .case_insensitive(ignores_case)
            .size_limit(MAX_REGEX_BYTES)
            .build();
        let regex = regex.or_else(|_| {
            RegexBuilder::new(&translated).case_insensitive(ignores_case).size_limit(MAX_REGEX_BYTES).build()
        });
        let regex = regex.map_err(|error| {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            format!("the expression is invalid: {}", last.trim_start_matches("error: "))
        })?;
        self.expressions.push((regex, value));
        Ok(())
    }

    fn texts(&self) -> impl Iterator<Item = &Template> {
        let tables = [&self.exact, &self.endings, &self.beginnings];
        let values = tables.into_iter().flat_map(HashMap::values).chain(self.networks.values());
        let values = values.chain(self.expressions.iter().map(|(_, value)| value));
        values.chain(self.shares.iter().map(|(_, value)| value)).chain([&self.source, &self.default])
    }

    fn evaluated(&self, variables: &dyn Variables) -> Vec<u8> {
        let source = self.source.rendered(variables);
        let lower = source.to_ascii_lowercase();
        let known = self.exact.get(&lower).or_else(|| self.by_wildcard(&lower));
        if let Some(value) = known.or_else(|| self.by_network(&source)) {
            return value.rendered(variables);
        }
        for (regex, value) in &self.expressions {
            if let Some(captures) = regex.captures(&source) {
                return value.rendered(&Captured { captures: &captures, around: variables });
            }
        }
        if !self.shares.is_empty() {
            let hash = murmur2(&source);
            if let Some((_, value)) = self.shares.iter().find(|(end, _)| hash < *end) {
                return value.rendered(variables);
            }
        }
        self.default.rendered(variables)
    }

    /// Returns the value of the longest ending, or of the longest beginning.
    fn by_wildcard(&self, host: &[u8]) -> Option<&Template> {
        let dots = || (0..host.len()).filter(|at| host[*at] == b'.');
        let by_ending = || dots().filter(|at| *at > 0).find_map(|at| self.endings.get(&host[at..]));
        let by_beginning =
            || dots().rev().filter(|at| at + 1 < host.len()).find_map(|at| self.beginnings.get(&host[..=at]));
        by_ending().or_else(by_beginning)
    }
}

/// MurmurHash2 with seed 0, as `split_clients` of nginx has it: the same text has the same share there and here.
fn murmur2(text: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let (words, rest) = text.as_chunks::<4>();
    for word in words {
        let mut part = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        part = (part ^ (part >> 24)).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ part;
    }
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(FACTOR);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(FACTOR);
    hash ^ (hash >> 15)
}

/// The groups of an expression as variables, before the others.
struct Captured<'a> {
    captures: &'a Captures<'a>,
    around: &'a dyn Variables,
}

impl Variables for Captured<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let group = match name {
            VarName::Other(name) => match name.parse::<usize>() {
                Ok(number) => self.captures.get(number),
                Err(_) => self.captures.name(name),
            },
            _ => None,
        };
        match group {
            Some(group) => Some(VarValue::Text(Cow::Borrowed(group.as_bytes()))),
            None => self.around.get(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Definitions, and `$host`.
    struct World {
        definitions: Definitions,
        host: String,
        reads: Cell<u8>,
    }

    impl Variables for World {
        fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
            match name {
                VarName::Host => Some(VarValue::text(&self.host)),
                VarName::Other(name) => self.definitions.value(name.strip_prefix(PREFIX)?, self, &self.reads),
                _ => None,
            }
        }
    }

    fn text(text: &str) -> Template {
        Template::parse(text)
    }

    fn read(definitions: Definitions, host: &str, template: &str) -> String {
        let world = World { definitions, host: host.to_owned(), reads: Cell::new(0) };
        let found = String::from_utf8(text(template).rendered(&world)).unwrap();
        assert_eq!(world.reads.get(), 0);
        found
    }

    fn hosts() -> Definitions {
        let mut map = Map::of(text("$host"), text("none"));
        map.add_exact("A.example", text("exact"));
        map.add_host("*.example", text("wide")).unwrap();
        map.add_host("*.b.example", text("narrow")).unwrap();
        map.add_host(".own.test", text("own")).unwrap();
        map.add_host("www.example.*", text("www")).unwrap();
        map.add_expression("^(?<first>[a-z]+)-([0-9]+)$", false, text("$2/$first")).unwrap();
        map.add_expression("^CASE", true, text("case of $host")).unwrap();
        let mut definitions = Definitions::default();
        definitions.insert("m", Definition::Map(Box::new(map)));
        definitions
    }

    #[test]
    fn maps_prefer_exact_then_wildcards_then_expressions() {
        for (host, expected) in [
            ("a.example", "exact"),
            ("A.EXAMPLE", "exact"),
            ("x.example", "wide"),
            ("x.b.example", "narrow"),
            ("b.example", "wide"),
            (".example", "none"),
            ("own.test", "own"),
            ("x.own.test", "own"),
            ("www.example.org", "www"),
            ("www.example.", "none"),
            ("abc-17", "17/abc"),
            ("ABC-17", "none"),
            ("Case", "case of Case"),
            ("", "none"),
        ] {
            assert_eq!(read(hosts(), host, "$var_m"), expected, "{host}");
        }
        let mut map = Map::of(text(""), text(""));
        for wrong in ["a.example", "*example", "*", ".", "a.*.b", "*."] {
            assert!(map.add_host(wrong, text("")).is_err(), "{wrong}");
        }
        assert!(map.add_expression("(", false, text("")).is_err());
    }

    #[test]
    fn the_longest_network_counts() {
        for (address, expected) in [
            ("10.1.2.3", "host"),
            ("10.1.2.4", "narrow"),
            ("10.2.0.1", "wide"),
            ("::ffff:10.2.0.1", "wide"),
            ("172.31.0.1", "odd"),
            ("172.32.0.1", "none"),
            ("2001:db8::1", "six"),
            ("2001:db9::1", "none"),
            ("a.example", "none"),
        ] {
            let mut map = Map::of(text("$host"), text("none"));
            for (network, value) in [
                ("10.0.0.0/8", "wide"),
                ("10.1.0.0/16", "narrow"),
                ("10.1.2.3", "host"),
                ("172.16.0.0/12", "odd"),
                ("2001:db8::/32", "six"),
            ] {
                map.add_network(network, text(value)).unwrap();
            }
            assert!(map.add_network("10.0.0/8", text("")).is_err());
            let mut definitions = Definitions::default();
            definitions.insert("m", Definition::Map(Box::new(map)));
            assert_eq!(read(definitions, address, "$var_m"), expected, "{address}");
        }
    }

    #[test]
    fn shares_of_all_texts() {
        let read = |host: &str| {
            let mut map = Map::of(text("$host"), text("rest"));
            map.add_share(2_500, text("first"));
            map.add_share(2_500, text("second"));
            let mut definitions = Definitions::default();
            definitions.insert("m", Definition::Map(Box::new(map)));
            read(definitions, host, "$var_m")
        };
        let counted = |value: &str| (0..1000).filter(|number| read(&format!("h{number}")) == value).count();
        for (value, about) in [("first", 250), ("second", 250), ("rest", 500)] {
            let found = counted(value);
            assert!(found.abs_diff(about) < 60, "{value}: {found}");
        }
        assert_eq!(read("h1"), read("h1"));
        for (key, hash) in [("", 0), ("a", 0x9268_5f5e), ("abcd", 0x2687_3021), ("abcde", 0x5f09_a8de)] {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn inner_definitions_replace_outer_ones() {
        let mut outer = Definitions::default();
        outer.insert("a", Definition::Text(text("outer")));
        outer.insert("b", Definition::Text(text("b of $var_a")));
        let mut inner = Definitions::within(Some(Arc::new(outer)));
        inner.insert("a", Definition::Text(text("inner")));
        assert_eq!(read(inner, "h", "$var_a, $var_b, ${var_c ?? none}"), "inner, b of inner, none");
    }

    #[test]
    fn circles_are_found_and_end() {
        let mut circle = Definitions::default();
        circle.insert("a", Definition::Text(text("$var_b")));
        circle.insert("b", Definition::Text(text("x$var_a$var_a")));
        circle.insert("c", Definition::Text(text("$var_a")));
        let mut names = circle.circle().unwrap();
        names.sort_unstable();
        assert_eq!(names, ["a", "b"]);
        assert!(read(circle, "h", "$var_c").len() <= usize::from(MAX_READS));
        assert_eq!(hosts().circle(), None);
    }
}
