//! Purge orders by properties of responses, for all zones or one.

use std::collections::HashSet;

use crate::label::Label;

/// The responses to purge: a match of any criterion counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Purge {
    /// Only in the zone of this name.
    pub zone: Option<Box<str>>,
    /// All responses.
    pub all: bool,
    /// Responses to requests for one of these: the host in lower case without a port, then path and query.
    pub resources: HashSet<Box<[u8]>>,
    /// Responses to requests for targets with these prefixes.
    pub prefixes: Vec<Box<[u8]>>,
    /// Responses with one of these tags.
    pub tags: HashSet<Box<[u8]>>,
    /// Responses under keys with these ends.
    pub keys: Vec<Box<[u8]>>,
}

impl Purge {
    /// Returns an order for all responses.
    pub fn everything() -> Purge {
        Purge { all: true, ..Purge::default() }
    }

    /// Returns true if the response with this label under this key matches.
    pub(crate) fn means(&self, key: &[u8], label: &Label) -> bool {
        self.all
            || self.resources.contains(&label.resource)
            || self.prefixes.iter().any(|prefix| label.resource.starts_with(prefix))
            || label.tags.iter().any(|tag| self.tags.contains(tag))
            || self.keys.iter().any(|end| key.ends_with(end))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Zones;
    use crate::stored::tests::stored;

    fn zones() -> Zones {
        let zones = Zones::default();
        let answers = [
            ("one", "shop.test/a?x=1", "red,small"),
            ("one", "shop.test/ab", "blue"),
            ("two", "shop.test/a?x=1", "red"),
            ("two", "shop.test.evil/a", ""),
        ];
        for (name, resource, tags) in answers {
            let mut one = stored(&[("Cache-Tag", tags)], &[]).unwrap();
            let label = Arc::get_mut(&mut one.label).unwrap();
            label.resource = resource.as_bytes().into();
            let zone = zones.zone(name, 1 << 20, None);
            zone.insert(resource.as_bytes(), one, zone.epoch(resource.as_bytes()), 0);
        }
        zones
    }

    fn bytes(text: &str) -> Box<[u8]> {
        text.as_bytes().into()
    }

    #[test]
    fn orders_match_their_criteria() {
        let check = |purge: Purge, expected: usize| {
            let zones = zones();
            assert_eq!(zones.purge(&purge).0, expected, "{purge:?}");
            assert_eq!(zones.purge(&purge).0, 0, "{purge:?}");
            let left: usize = zones.all().iter().map(|(_, zone)| zone.len()).sum();
            assert_eq!(left, 4 - expected);
        };
        check(Purge::default(), 0);
        check(Purge::everything(), 4);
        check(Purge { zone: Some("two".into()), ..Purge::everything() }, 2);
        check(Purge { zone: Some("three".into()), ..Purge::everything() }, 0);
        check(Purge { resources: [bytes("shop.test/a?x=1")].into(), ..Purge::default() }, 2);
        check(Purge { resources: [bytes("shop.test/a")].into(), ..Purge::default() }, 0);
        check(Purge { prefixes: vec![bytes("shop.test/")], ..Purge::default() }, 3);
        check(Purge { tags: [bytes("red")].into(), ..Purge::default() }, 2);
        check(Purge { tags: [bytes("small"), bytes("blue")].into(), ..Purge::default() }, 2);
        check(Purge { keys: vec![bytes("/ab")], ..Purge::default() }, 1);
    }
}
