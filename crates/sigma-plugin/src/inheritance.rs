//! State that plugins hand over to the next process: local counters of limits, and one-time values.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::counter::Shared;
use crate::system::{Host, System};

/// The largest number of entries handed over from one table; the rest starts again.
const MOST_ENTRIES: usize = 100_000;

/// A part of the gateway, see [`crate::Node::part`], whose state is handed over to the next process.
pub trait Inheritable: Any + Send + Sync {
    /// Its name in the handover: the same in all compatible versions.
    const NAME: &'static str;

    /// Returns its state.
    fn leave(&self) -> Value;

    /// Takes over the state of another process. Unreadable state is ignored.
    fn take_over(&self, left: &Value);
}

/// Returns the state of a part.
type Leaver = Box<dyn Fn() -> Value + Send + Sync>;

/// The state for and from other processes.
#[derive(Default)]
pub(crate) struct InheritedState {
    /// State from the previous process that no part has taken yet.
    found: Mutex<BTreeMap<String, Value>>,
    leavers: Mutex<BTreeMap<&'static str, Leaver>>,
}

impl InheritedState {
    /// Sets the state from the previous process, by name. State that no part takes is handed over again.
    pub(crate) fn find(&self, left: BTreeMap<String, Value>) {
        *lock(&self.found) = left;
    }

    /// Gives a new part its state, and registers it for the next handover.
    pub(crate) fn pass<T: Inheritable>(&self, part: &Arc<T>) {
        if let Some(left) = lock(&self.found).remove(T::NAME) {
            part.take_over(&left);
        }
        let part = Arc::clone(part);
        lock(&self.leavers).insert(T::NAME, Box::new(move || part.leave()));
    }

    /// Returns the state for the next process.
    pub(crate) fn leave(&self) -> BTreeMap<String, Value> {
        let mut left = lock(&self.found).clone();
        left.extend(lock(&self.leavers).iter().map(|(name, leave)| ((*name).to_owned(), leave())));
        left
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // After a panic under the lock the map at worst lacks a part.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the live entries of a table: key, value, and expiry by the clock of [`Host::uptime`], which the successor
/// continues.
pub fn entries<V: Default + Serialize>(table: &Shared<V>) -> Value {
    let now_ms = now_ms();
    let mut entries = Vec::new();
    let mut left_out = 0;
    table.visit(|key, slot| {
        if slot.expires_ms <= now_ms {
            return;
        }
        match serde_json::to_value((BASE64.encode(key), &slot.value, slot.expires_ms)) {
            Ok(entry) if entries.len() < MOST_ENTRIES => entries.push(entry),
            _ => left_out += 1,
        }
    });
    if left_out > 0 {
        tracing::warn!(left_out, "too many counters to hand over: the successor starts some at zero");
    }
    Value::Array(entries)
}

/// Inserts entries of [`entries`] into a table.
pub fn enter<V: Default + DeserializeOwned>(table: &Shared<V>, left: &Value) {
    let now_ms = now_ms();
    for entry in left.as_array().into_iter().flatten() {
        let Ok((key, value, expires_ms)) = <(String, V, u64)>::deserialize(entry) else { continue };
        if let Ok(key) = BASE64.decode(key)
            && expires_ms > now_ms
        {
            table.with(&key, now_ms, |slot| (slot.value, slot.expires_ms) = (value, expires_ms));
        }
    }
}

fn now_ms() -> u64 {
    u64::try_from(Host.uptime().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[derive(Default)]
    struct Counts(Shared<u64>);

    impl Inheritable for Counts {
        const NAME: &'static str = "counts";

        fn leave(&self) -> Value {
            entries(&self.0)
        }

        fn take_over(&self, left: &Value) {
            enter(&self.0, left);
        }
    }

    fn count(counts: &Counts, key: &[u8]) -> u64 {
        counts.0.with(key, now_ms(), |slot| {
            slot.value += 1;
            slot.expires_ms = slot.expires_ms.min(now_ms() + 3_600_000);
            slot.value
        })
    }

    #[test]
    fn counts_go_on_in_the_next_process() {
        let before = Node::default();
        let counts = before.inherited(Counts::default);
        for _ in 0..3 {
            count(&counts, b"\0\xff");
        }
        counts.0.with(b"old", 0, |slot| slot.expires_ms = 0);
        let left = before.inheritance();
        // A process without the plugin hands the state over again.
        let between = Node::default();
        between.find_inherited(left);
        let after = Node::default();
        after.find_inherited(between.inheritance());
        let counts = after.inherited(Counts::default);
        assert_eq!(count(&counts, b"\0\xff"), 4);
        assert_eq!(counts.0.len(), 1);
        assert_eq!(count(&after.inherited(Counts::default), b"\0\xff"), 5, "it is taken over once");
    }

    #[test]
    fn garbage_is_ignored() {
        let node = Node::default();
        let odd = serde_json::json!([1, ["?", 1, u64::MAX], ["a2V5", "x", 5], ["a2V5", 7, u64::MAX], {}]);
        node.find_inherited(BTreeMap::from([("counts".to_owned(), odd)]));
        let counts = node.inherited(Counts::default);
        assert_eq!((counts.0.len(), count(&counts, b"key")), (1, 8));
    }
}
