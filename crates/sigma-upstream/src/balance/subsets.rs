//! Subsets: requests that ask for nodes with certain metadata get those only (Envoy).
//!
//! A selector is a set of keys; the nodes that have all of them form a subset for each combination of
//! values. A request asks by a set of keys and values, and gets the subset of exactly these, or what the
//! fallback says.

use std::collections::{BTreeMap, HashMap};

use sigma_config::resources::{self, SubsetFallback};

use super::Member;
use crate::endpoint::{Endpoint, EndpointSet};

/// Most subsets of an upstream. Values may come from a registry.
const SUBSETS_MAX: usize = 1024;

/// The rule of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SubsetRule {
    /// Sorted keys.
    selectors: Vec<Vec<Box<str>>>,
    fallback: SubsetFallback,
    default: BTreeMap<Box<str>, Box<str>>,
}

impl From<&resources::Subsets> for SubsetRule {
    fn from(config: &resources::Subsets) -> SubsetRule {
        let sorted = |selector: &resources::SubsetSelector| {
            let mut keys = selector.keys.clone();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        SubsetRule {
            selectors: config.selectors.iter().map(sorted).collect(),
            fallback: config.fallback,
            default: config.default.clone(),
        }
    }
}

/// Adds a key and its value to what a request asks for. Keys are to come in ascending order.
pub fn ask_for(wanted: &mut Vec<u8>, key: &str, value: &[u8]) {
    // With their lengths, so that no value can say what another key says.
    for text in [key.as_bytes(), value] {
        wanted.extend_from_slice(&(text.len() as u64).to_le_bytes());
        wanted.extend_from_slice(text);
    }
}

/// The subsets of one set of nodes.
#[derive(Debug, Default)]
pub(super) struct Subsets {
    /// By what a request asks for.
    places: HashMap<Box<[u8]>, usize>,
    /// For requests that ask for none of them; None: there is no node for these.
    fallback: Option<usize>,
}

impl Subsets {
    /// Puts the members of each subset into `lists`, in their order.
    pub(super) fn new(
        rule: &SubsetRule,
        set: &EndpointSet,
        members: &[Member],
        lists: &mut Vec<Vec<Member>>,
    ) -> Subsets {
        let mut subsets = Subsets::default();
        for member in members {
            for selector in &rule.selectors {
                if let Some(name) = name(selector, &set.endpoints[member.index])
                    && let Some(place) = subsets.place(name, lists)
                {
                    lists[place].push(*member);
                }
            }
        }
        let fallback: Option<Vec<Member>> = match rule.fallback {
            SubsetFallback::None => None,
            SubsetFallback::Any => Some(members.to_vec()),
            SubsetFallback::Default => {
                let has = |m: &&Member| {
                    let text = |key: &str| set.endpoints[m.index].metadata_text(key);
                    rule.default.iter().all(|(key, value)| text(key) == Some(value))
                };
                Some(members.iter().filter(has).copied().collect())
            }
        };
        subsets.fallback = fallback.map(|members| {
            lists.push(members);
            lists.len() - 1
        });
        subsets
    }

    fn place(&mut self, name: Vec<u8>, lists: &mut Vec<Vec<Member>>) -> Option<usize> {
        if let Some(known) = self.places.get(&*name) {
            return Some(*known);
        }
        if self.places.len() == SUBSETS_MAX {
            tracing::warn!(used = SUBSETS_MAX, "the nodes of an upstream form too many subsets");
            return None;
        }
        lists.push(Vec::new());
        self.places.insert(name.into_boxed_slice(), lists.len() - 1);
        Some(lists.len() - 1)
    }

    /// The place of the subset that a request asks for, if there is one.
    #[inline]
    pub(super) fn find(&self, wanted: Option<&[u8]>) -> Option<usize> {
        wanted.and_then(|wanted| self.places.get(wanted).copied())
    }

    pub(super) fn fallback(&self) -> Option<usize> {
        self.fallback
    }
}

/// What a request asks for that wants this node by these keys; None if the node lacks one.
fn name(selector: &[Box<str>], endpoint: &Endpoint) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    for key in selector {
        ask_for(&mut name, key, endpoint.metadata_text(key)?.as_bytes());
    }
    Some(name)
}
