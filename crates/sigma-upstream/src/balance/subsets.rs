//! Subsets: requests for nodes with certain metadata get only such nodes (Envoy).
//!
//! A selector is a set of keys; nodes with all of them form a subset for each combination of values. A request has a
//! set of keys and values, and gets the subset with exactly these, or the fallback.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use sigma_config::resources::{self, SelectorFallback, SubsetFallback};

use super::Member;
use crate::endpoint::{Endpoint, EndpointSet};

/// The limit of subsets of an upstream. Values may come from a registry.
const SUBSETS_MAX: usize = 1024;

/// The rule of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SubsetRule {
    selectors: Vec<Selector>,
    fallback: Fallback,
    default: BTreeMap<Box<str>, Box<str>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Selector {
    /// Sorted.
    keys: Vec<Box<str>>,
    /// None: the rule's fallback.
    fallback: Option<Fallback>,
}

/// The nodes if no subset is found.
#[derive(Debug, Clone, PartialEq)]
enum Fallback {
    None,
    Any,
    Default,
    /// The subset by these keys, which are fewer.
    Keys(Vec<Box<str>>),
}

fn sorted(keys: &[Box<str>]) -> Vec<Box<str>> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    keys
}

impl From<&resources::SubsetSelector> for Selector {
    fn from(config: &resources::SubsetSelector) -> Selector {
        let fallback = config.fallback.map(|policy| match policy {
            SelectorFallback::None => Fallback::None,
            SelectorFallback::Any => Fallback::Any,
            SelectorFallback::Default => Fallback::Default,
            SelectorFallback::KeysSubset => Fallback::Keys(sorted(&config.fallback_keys_subset)),
        });
        Selector { keys: sorted(&config.keys), fallback }
    }
}

impl From<&resources::Subsets> for SubsetRule {
    fn from(config: &resources::Subsets) -> SubsetRule {
        SubsetRule {
            selectors: config.selectors.iter().map(Selector::from).collect(),
            fallback: match config.fallback {
                SubsetFallback::None => Fallback::None,
                SubsetFallback::Any => Fallback::Any,
                SubsetFallback::Default => Fallback::Default,
            },
            default: config.default.clone(),
        }
    }
}

impl SubsetRule {
    /// Returns the fallback for a request without a matching subset: the policy of the selector with its keys, or the
    /// rule's.
    fn fallback(&self, wanted: &[u8]) -> &Fallback {
        let asks_by = |selector: &&Selector| {
            selector.fallback.is_some()
                && selector.keys.iter().map(|key| key.as_bytes()).eq(pairs(wanted).map(|(key, _)| key))
        };
        self.selectors.iter().find(asks_by).and_then(|it| it.fallback.as_ref()).unwrap_or(&self.fallback)
    }

    fn falls_back_to(&self, policy: &Fallback) -> bool {
        let policies = self.selectors.iter().filter_map(|selector| selector.fallback.as_ref());
        policies.chain([&self.fallback]).any(|it| it == policy)
    }
}

/// Adds a key and its value to the metadata that a request needs. Call it with keys in ascending order.
pub fn ask_for(wanted: &mut Vec<u8>, key: &str, value: &[u8]) {
    // With their lengths, so that no value can imitate another key.
    for text in [key.as_bytes(), value] {
        wanted.extend_from_slice(&(text.len() as u64).to_le_bytes());
        wanted.extend_from_slice(text);
    }
}

/// Returns the keys and values that a request needs.
fn pairs(mut wanted: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut text = move || {
        let (length, rest) = wanted.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        wanted = rest;
        Some(text)
    };
    std::iter::from_fn(move || Some((text()?, text()?)))
}

/// Returns the part of the needed metadata with these keys.
fn part(wanted: &[u8], keys: &[Box<str>]) -> Vec<u8> {
    let mut part = Vec::with_capacity(wanted.len());
    for (key, value) in pairs(wanted) {
        if let Some(key) = keys.iter().find(|own| own.as_bytes() == key) {
            ask_for(&mut part, key, value);
        }
    }
    part
}

/// The subsets of one set of nodes.
#[derive(Debug, Default)]
pub(super) struct Subsets {
    /// Subsets by the needed metadata.
    places: HashMap<Box<[u8]>, usize>,
    /// All nodes, if requests may get them.
    any: Option<usize>,
    /// Nodes with the metadata of the rule's `default`, if requests may get them.
    default: Option<usize>,
}

impl Subsets {
    /// Adds the members of each subset to `lists`, in their order.
    pub(super) fn new(
        rule: &SubsetRule,
        set: &EndpointSet,
        members: &[Member],
        lists: &mut Vec<Vec<Member>>,
    ) -> Subsets {
        let mut subsets = Subsets::default();
        for member in members {
            for selector in &rule.selectors {
                if let Some(name) = name(&selector.keys, &set.endpoints[member.index])
                    && let Some(place) = subsets.place(name, lists)
                {
                    lists[place].push(*member);
                }
            }
        }
        let mut list = |members: Vec<Member>| {
            lists.push(members);
            lists.len() - 1
        };
        let has_default = |m: &&Member| {
            let text = |key: &str| set.endpoints[m.index].metadata_text(key);
            rule.default.iter().all(|(key, value)| text(key) == Some(value))
        };
        subsets.any = rule.falls_back_to(&Fallback::Any).then(|| list(members.to_vec()));
        subsets.default = rule
            .falls_back_to(&Fallback::Default)
            .then(|| list(members.iter().filter(has_default).copied().collect()));
        subsets
    }

    fn place(&mut self, name: Vec<u8>, lists: &mut Vec<Vec<Member>>) -> Option<usize> {
        if let Some(known) = self.places.get(&*name) {
            return Some(*known);
        }
        if self.places.len() == SUBSETS_MAX {
            tracing::warn!(
                used = SUBSETS_MAX,
                "the nodes of an upstream form too many subsets; the rest is ignored"
            );
            return None;
        }
        lists.push(Vec::new());
        self.places.insert(name.into_boxed_slice(), lists.len() - 1);
        Some(lists.len() - 1)
    }

    /// Returns the result of `of` for the list of a request's subset; without a subset or a result, for the rule's
    /// fallback.
    #[inline]
    pub(super) fn pick<T>(
        &self,
        rule: &SubsetRule,
        wanted: Option<&[u8]>,
        mut of: impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let mut wanted = Cow::Borrowed(wanted.unwrap_or_default());
        loop {
            if let Some(place) = self.places.get(&*wanted)
                && let Some(found) = of(*place)
            {
                return Some(found);
            }
            // Each time with fewer keys.
            wanted = match rule.fallback(&wanted) {
                Fallback::None => return None,
                Fallback::Any => return self.any.and_then(of),
                Fallback::Default => return self.default.and_then(of),
                Fallback::Keys(keys) => Cow::Owned(part(&wanted, keys)),
            };
        }
    }
}

/// Returns the needed metadata that selects this node by these keys; None if the node lacks one.
fn name(selector: &[Box<str>], endpoint: &Endpoint) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    for key in selector {
        ask_for(&mut name, key, endpoint.metadata_text(key)?.as_bytes());
    }
    Some(name)
}
