//! Resources of one kind, found by id and iterated in order.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The members of a [`Table`].
pub trait Resource {
    /// Returns the id within its kind; see [`crate::resources::kind::ResourceKey`].
    fn id(&self) -> &str;
}

/// The order of a resource within its kind: by its creation, and then by its id. So every gateway of a cluster has the
/// same order, however it received the resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order(u64);

impl Order {
    const TIE_BITS: u32 = 24;

    fn new(created: u64, id: &str) -> Order {
        // FNV-1a: the same in every process and version.
        let hash =
            id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        // A store would need 34 years with a thousand writes per second to exceed this.
        let created = created.min(u64::MAX >> Order::TIE_BITS);
        Order(created << Order::TIE_BITS | u64::from(hash >> (u32::BITS - Order::TIE_BITS)))
    }

    /// Returns the position in a file, or the store's revision of the creation.
    pub fn created(self) -> u64 {
        self.0 >> Order::TIE_BITS
    }

    /// Returns the order as one number.
    pub fn rank(self) -> u64 {
        self.0
    }
}

/// Resources of one kind. Each has an [`Order`]. Of otherwise equal routes the one with the smaller order is tried
/// first.
#[derive(Debug)]
pub struct Table<T> {
    in_order: BTreeSet<InOrder<T>>,
    by_id: HashSet<ById<T>>,
}

/// A resource by its order, and by its id within the same order. Ids are stored only in the resources, because there
/// may be hundreds of thousands of them.
#[derive(Debug)]
struct InOrder<T>(Order, Arc<T>);

/// A resource by its id.
#[derive(Debug)]
struct ById<T>(Order, Arc<T>);

impl<T> Clone for InOrder<T> {
    fn clone(&self) -> Self {
        InOrder(self.0, Arc::clone(&self.1))
    }
}

impl<T: Resource> InOrder<T> {
    fn rank(&self) -> (Order, &str) {
        (self.0, self.1.id())
    }
}

impl<T: Resource> PartialEq for InOrder<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<T: Resource> Eq for InOrder<T> {}

impl<T: Resource> PartialOrd for InOrder<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Resource> Ord for InOrder<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl<T> Clone for ById<T> {
    fn clone(&self) -> Self {
        ById(self.0, Arc::clone(&self.1))
    }
}

impl<T: Resource> Borrow<str> for ById<T> {
    fn borrow(&self) -> &str {
        self.1.id()
    }
}

impl<T: Resource> PartialEq for ById<T> {
    fn eq(&self, other: &Self) -> bool {
        self.1.id() == other.1.id()
    }
}

impl<T: Resource> Eq for ById<T> {}

impl<T: Resource> Hash for ById<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.id().hash(state);
    }
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        Table { in_order: self.in_order.clone(), by_id: self.by_id.clone() }
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { in_order: BTreeSet::new(), by_id: HashSet::new() }
    }
}

impl<T: Resource> Table<T> {
    /// Returns the resource with this id.
    pub fn get(&self, id: &str) -> Option<&Arc<T>> {
        self.by_id.get(id).map(|ById(_, item)| item)
    }

    /// Returns the order of the resource with this id.
    pub fn order(&self, id: &str) -> Option<Order> {
        self.by_id.get(id).map(|ById(order, _)| *order)
    }

    /// Puts a resource in and returns the one with the same id.
    pub fn put(&mut self, created: u64, item: Arc<T>) -> Option<Arc<T>> {
        let before = self.remove(item.id());
        let order = Order::new(created, item.id());
        self.by_id.insert(ById(order, Arc::clone(&item)));
        self.in_order.insert(InOrder(order, item));
        before
    }

    /// Appends a resource after all others, or replaces the one with its id at its position.
    pub fn push(&mut self, item: T) {
        let last = self.in_order.last().map_or(0, |InOrder(order, _)| order.created() + 1);
        let created = self.order(item.id()).map_or(last, Order::created);
        self.put(created, Arc::new(item));
    }

    /// Removes a resource.
    pub fn remove(&mut self, id: &str) -> Option<Arc<T>> {
        let ById(order, item) = self.by_id.take(id)?;
        self.in_order.remove(&InOrder(order, Arc::clone(&item)));
        Some(item)
    }

    /// Returns the resources in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<T>> {
        self.in_order.iter().map(|InOrder(_, item)| item)
    }

    /// Returns the resources with their orders, in order.
    pub fn ordered(&self) -> impl ExactSizeIterator<Item = (Order, &Arc<T>)> {
        self.in_order.iter().map(|InOrder(order, item)| (*order, item))
    }

    /// Returns the number of resources.
    pub fn len(&self) -> usize {
        self.in_order.len()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }
}

impl<T: Resource> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut table = Table::default();
        items.into_iter().for_each(|item| table.push(item));
        table
    }
}

/// Tables are equal if they have equal resources in the same order; the order numbers do not matter.
impl<T: PartialEq> PartialEq for Table<T> {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.in_order.iter().zip(&other.in_order);
        self.in_order.len() == other.in_order.len()
            && pairs.all(|(InOrder(_, one), InOrder(_, other))| one == other)
    }
}

impl<T: Serialize> Serialize for Table<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.in_order.iter().map(|InOrder(_, item)| &**item))
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
        assert_eq!(table.put(9, Arc::new(Item("b", 5))).as_deref(), Some(&Item("b", 3)));
        assert_eq!(listed(&table), [("a", 2), ("b", 5)]);
        assert_eq!(table.order("b").map(Order::created), Some(9));
        assert_eq!(table.remove("a").as_deref(), Some(&Item("a", 2)));
        assert_eq!((table.len(), table.get("a"), table.order("a")), (1, None, None));
    }

    #[test]
    fn resources_created_together_have_a_fixed_order() {
        let names = ["a", "b", "c", "d"];
        let filled = |names: &mut dyn Iterator<Item = &&'static str>| {
            let mut table = Table::default();
            names.for_each(|name| drop(table.put(7, Arc::new(Item(name, 0)))));
            table.put(8, Arc::new(Item("later", 0)));
            listed(&table)
        };
        let all = filled(&mut names.iter());
        assert_eq!((all.len(), all[4]), (5, ("later", 0)));
        assert_eq!(all, filled(&mut names.iter().rev()));
    }
}
