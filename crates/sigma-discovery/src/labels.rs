//! Labels of containers and tags of services, by which a node describes itself: `sigma.weight`, `sigma.metadata.KEY`
//! and others.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The start of all names.
const PREFIX: &str = "sigma.";

/// The start of names of metadata, after the prefix.
const METADATA: &str = "metadata.";

/// The labels of one node with our prefix, by the name after it.
#[derive(Debug, Default)]
pub(crate) struct Labels<'t>(BTreeMap<&'t str, &'t str>);

impl<'t> Labels<'t> {
    /// Returns those among the given ones.
    pub(crate) fn new(all: impl IntoIterator<Item = (&'t str, &'t str)>) -> Labels<'t> {
        Labels(
            all.into_iter()
                .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.trim())))
                .collect(),
        )
    }

    /// Returns the label `sigma.NAME`, unless it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&'t str> {
        self.0.get(name).copied().filter(|value| !value.is_empty())
    }

    /// Returns the number in a label, if there is the label.
    ///
    /// # Errors
    /// Returns an error if it is not a number in the range of `N`.
    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, String> {
        let wrong = |text: &str| format!("`{text}` at the label `{PREFIX}{name}` is not a valid number");
        self.get(name).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }

    /// Returns the metadata of the node.
    pub(crate) fn metadata(&self) -> Option<Box<Map<String, Value>>> {
        let members: Map<String, Value> = self
            .0
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(METADATA)?.to_owned(), Value::from(*value))))
            .filter(|(key, _)| !key.is_empty())
            .collect();
        (!members.is_empty()).then(|| Box::new(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_with_the_prefix_count() {
        let labels = Labels::new([
            ("sigma.weight", " 7 "),
            ("sigma.port", "x"),
            ("sigma.network", ""),
            ("sigma.metadata.zone", "a"),
            ("sigma.metadata.", "b"),
            ("weight", "9"),
            ("traefik.enable", "true"),
        ]);
        assert_eq!(labels.number::<u32>("weight"), Ok(Some(7)));
        assert_eq!(labels.number::<u16>("network"), Ok(None));
        let error = labels.number::<u16>("port").expect_err("a text");
        assert_eq!(error, "`x` at the label `sigma.port` is not a valid number");
        assert_eq!(
            labels.metadata().map(|map| Value::Object(*map)),
            Some(serde_json::json!({ "zone": "a" }))
        );
        assert_eq!(Labels::new([]).metadata(), None);
    }
}
