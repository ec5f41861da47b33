//! Items of a file that are set aside because they are invalid, so that the other items can serve.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::resources::kind::{Kind, ResourceKey};
use crate::resources::{Resources, SECTIONS};
use crate::{check, stored};
use sigma_schema::document::Document;
use sigma_schema::problem::Problem;

/// An invalid item that does not serve. If its place is known, it is closed, so that no other item gets its requests.
#[derive(Debug, Clone, PartialEq)]
pub struct QuarantinedItem {
    /// Its key; `routes/arr_3` for the third route, if it has no usable id.
    pub key: ResourceKey,
    /// Its problems.
    pub problems: Vec<Problem>,
    section: &'static str,
    index: usize,
}

impl QuarantinedItem {
    /// The items that `errors` lie in; see [`is_in_item`]. None of the errors is left.
    pub(crate) fn take(document: &Document, errors: &mut Vec<Problem>) -> Vec<QuarantinedItem> {
        let mut taken: BTreeMap<(&'static str, usize), Vec<Problem>> = BTreeMap::new();
        for problem in std::mem::take(errors) {
            let Some(place) = item_of(&problem.pointer) else { continue };
            taken.entry(place).or_default().push(problem);
        }
        let taken = taken.into_iter().map(|((section, index), problems)| {
            let key = key_of(section, index, item(document, section, index));
            QuarantinedItem { key, problems, section, index }
        });
        taken.collect()
    }

    /// Returns its section and its index there.
    pub(crate) fn place(&self) -> (&'static str, usize) {
        (self.section, self.index)
    }

    /// Closes its place, if the item's conditions can be read and the item gets requests by itself.
    pub(crate) fn close(&self, document: &Document, resources: &mut Resources) {
        let value = item(document, self.section, self.index);
        if let Some(outline) = stored::outline(&self.key, value) {
            resources.put(outline, 0);
            resources.close(self.key.clone());
        }
    }
}

/// Returns whether a problem is in an item of a section, not in a setting or the whole document.
pub(crate) fn is_in_item(problem: &Problem) -> bool {
    item_of(&problem.pointer).is_some()
}

/// Returns the section and the index of the item that a pointer leads into.
fn item_of(pointer: &str) -> Option<(&'static str, usize)> {
    let (section, rest) = pointer.split_once('[')?;
    let section = SECTIONS.into_iter().find(|known| *known == section)?;
    Some((section, rest.split_once(']')?.0.parse().ok()?))
}

fn item<'d>(document: &'d Document, section: &str, index: usize) -> &'d Value {
    document.value.get(section).and_then(|section| section.get(index)).unwrap_or(&Value::Null)
}

fn key_of(section: &str, index: usize, item: &Value) -> ResourceKey {
    let named = check::id_of(item).and_then(|id| ResourceKey::parse(&format!("{section}/{id}")));
    named.unwrap_or_else(|| {
        let kind = Kind::ALL.into_iter().find(|kind| kind.section() == section).unwrap_or(Kind::Route);
        ResourceKey::new(kind, format!("arr_{}", index + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checked, ParseOptions};

    fn read(text: &str) -> Result<Checked, Vec<Problem>> {
        crate::parse(text, &ParseOptions { skip_invalid: true, ..ParseOptions::default() })
    }

    #[test]
    fn an_invalid_item_keeps_its_place() {
        let text = "routes:\n  - { uri: /a, upstream: { nodes: { \"h:1\": 1 } } }\n  - { uri: /b, plugins: 7, timeot: 1 }\n  - { uri: 7 }\n  - nothing\nupstreams:\n  - { id: u, nodes: { \"h:1\": -1 } }\n";
        let checked = read(text).unwrap();
        let resources = &checked.config.resources;
        let got: Vec<_> = checked
            .quarantined
            .iter()
            .map(|item| (item.key.to_string(), item.problems.len(), resources.is_closed(&item.key)))
            .collect();
        let expected = [
            ("routes/arr_2", 2, true),
            ("routes/arr_3", 2, false),
            ("routes/arr_4", 1, false),
            ("upstreams/u", 1, true),
        ];
        assert_eq!(got, expected.map(|(key, problems, closed)| (key.to_owned(), problems, closed)));
        assert_eq!((resources.routes.len(), resources.upstreams.len()), (2, 1));
        assert!(!resources.is_closed(&ResourceKey::new(Kind::Route, "arr_1")));
    }

    #[test]
    fn two_items_with_one_id_are_both_closed() {
        let route = "  - { id: a, uri: /a, upstream: { nodes: { \"h:1\": 1 } } }\n";
        let checked = read(&format!("routes:\n{route}{route}")).unwrap();
        assert_eq!((checked.quarantined.len(), checked.config.resources.routes.len()), (1, 1));
        assert!(checked.config.resources.is_closed(&ResourceKey::new(Kind::Route, "a")));
    }

    #[test]
    fn problems_outside_items_stop_the_file() {
        for text in
            ["routes: 7", "workers: many", "limit: {}", "routes:\n  - a: [", "listeners: [ { address: x } ]"]
        {
            assert!(read(text).is_err(), "{text}");
        }
        let both = read("workers: many\nroutes: [ { uri: 7 } ]").unwrap_err();
        assert_eq!(both.len(), 3, "{both:?}");
    }
}
