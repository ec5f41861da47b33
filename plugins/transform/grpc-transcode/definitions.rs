//! Definitions that are compiled: once for all instances that name them.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use prost_reflect::DescriptorPool;
use sigma_config::resources::Proto;
use sigma_plugin::Node;

/// A definition as it was compiled, or why it cannot be.
pub(super) type Definition = Result<DescriptorPool, String>;

/// The definitions that instances hold.
#[derive(Default)]
struct Definitions(Mutex<Vec<(Weak<Proto>, Weak<Definition>)>>);

/// The messages and services of a definition.
pub(super) fn definition(node: &Node, proto: &Arc<Proto>) -> Arc<Definition> {
    let known = node.part(Definitions::default);
    // A panic while the lock was held leaves entries that are each whole.
    let mut known = known.0.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, definition)| definition.strong_count() > 0);
    let is_it = |other: &Weak<Proto>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(proto));
    if let Some(same) = known.iter().find(|(other, _)| is_it(other)).and_then(|(_, held)| held.upgrade()) {
        return same;
    }
    let compiled = Arc::new(sigma_schema::proto::pool(&proto.content));
    known.push((Arc::downgrade(proto), Arc::downgrade(&compiled)));
    compiled
}
