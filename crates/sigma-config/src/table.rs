//! Resources of one kind, found by identity and walked in order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// What a [`Table`] holds.
pub trait Resource {
    /// The identity within its kind; see [`crate::kind::ResourceKey`].
    fn id(&self) -> &str;
}

/// Resources of one kind. Each has an order: its position in a file, or the store's revision in
/// which it was created. Among routes that are otherwise equal the smaller order is tried first.
#[derive(Debug, Clone)]
pub struct Table<T> {
    items: BTreeMap<u64, Arc<T>>,
    orders: HashMap<Box<str>, u64>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { items: BTreeMap::new(), orders: HashMap::new() }
    }
}

impl<T: Resource> Table<T> {
    /// The resource with this identity.
    pub fn get(&self, id: &str) -> Option<&Arc<T>> {
        self.items.get(self.orders.get(id)?)
    }

    /// The order of the resource with this identity.
    pub fn order(&self, id: &str) -> Option<u64> {
        self.orders.get(id).copied()
    }

    /// Puts a resource in, in place of the one with its identity; returns that one. An order that
    /// another resource has already is raised to the next free one.
    pub fn put(&mut self, order: u64, item: Arc<T>) -> Option<Arc<T>> {
        let before = self.remove(item.id());
        let mut order = order;
        while self.items.contains_key(&order) {
            order += 1;
        }
        self.orders.insert(item.id().into(), order);
        self.items.insert(order, item);
        before
    }

    /// Appends a resource after all others, or replaces the one with its identity in its place.
    pub fn push(&mut self, item: T) {
        let last = self.items.last_key_value().map_or(0, |(order, _)| order + 1);
        let order = self.order(item.id()).unwrap_or(last);
        self.put(order, Arc::new(item));
    }

    /// Takes a resource out.
    pub fn remove(&mut self, id: &str) -> Option<Arc<T>> {
        let order = self.orders.remove(id)?;
        self.items.remove(&order)
    }

    /// The resources in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<T>> {
        self.items.values()
    }

    /// The resources with their orders, in order.
    pub fn ordered(&self) -> impl ExactSizeIterator<Item = (u64, &Arc<T>)> {
        self.items.iter().map(|(order, item)| (*order, item))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<T: Resource> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut table = Table::default();
        items.into_iter().for_each(|item| table.push(item));
        table
    }
}

/// Equal are tables of the same resources in the same succession; the numbers do not matter.
impl<T: PartialEq> PartialEq for Table<T> {
    fn eq(&self, other: &Self) -> bool {
        self.items.len() == other.items.len() && self.items.values().eq(other.items.values())
    }
}

impl<T: Serialize> Serialize for Table<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.items.values().map(Arc::as_ref))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Item(&'static str, u8);

    impl Resource for Item {
        fn id(&self) -> &str {
            self.0
        }
    }

    fn listed(table: &Table<Item>) -> Vec<(&'static str, u8)> {
        table.iter().map(|item| (item.0, item.1)).collect()
    }

    #[test]
    fn order_and_identity_hold() {
        let mut table: Table<Item> = [Item("b", 1), Item("a", 2), Item("b", 3)].into_iter().collect();
        assert_eq!(listed(&table), [("b", 3), ("a", 2)]);
        assert_eq!(table.put(0, Arc::new(Item("c", 4))), None);
        assert_eq!(listed(&table), [("b", 3), ("a", 2), ("c", 4)], "a taken order is not stolen");
        assert_eq!(table.put(9, Arc::new(Item("b", 5))).as_deref(), Some(&Item("b", 3)));
        assert_eq!(listed(&table), [("a", 2), ("c", 4), ("b", 5)]);
        assert_eq!(table.remove("a").as_deref(), Some(&Item("a", 2)));
        assert_eq!((table.len(), table.get("a"), table.order("b")), (2, None, Some(9)));
    }
}
