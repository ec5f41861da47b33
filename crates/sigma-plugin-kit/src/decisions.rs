//! Recent decisions of other services, for plugins that ask them. Each worker remembers its own, and asks once for
//! several waiting requests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use aws_lc_rs::digest::{Context as Digest, SHA256};
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::Headers;
use sigma_plugin::Build;
use tokio::sync::watch;

/// The key of a decision: a digest, so that the credentials of clients are not kept.
pub type Key = [u8; 32];

/// Returns the key of these parts, which cannot run into each other.
pub fn key<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Key {
    let mut key = KeyOf::default();
    parts.into_iter().for_each(|part| key.part(part));
    key.finish()
}

/// Makes a key of parts, one after the other.
pub struct KeyOf(Digest);

impl Default for KeyOf {
    fn default() -> KeyOf {
        KeyOf(Digest::new(&SHA256))
    }
}

impl KeyOf {
    /// Adds a part, which cannot run into the next.
    pub fn part(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds fields of a head; the fields of several heads do not run into each other either.
    pub fn fields(&mut self, fields: &Headers) {
        self.part(&fields.iter().count().to_le_bytes());
        for (name, value) in fields.iter() {
            self.part(name);
            self.part(value);
        }
    }

    /// Returns the key.
    pub fn finish(self) -> Key {
        let mut key = Key::default();
        // A digest by SHA-256 is as long as a key.
        self.0.finish().as_ref().iter().zip(&mut key).for_each(|(from, to)| *to = *from);
        key
    }
}

/// The `plugin_attr` of a plugin that caches decisions.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Bound {
    /// Maximum cached decisions of one worker, over all instances of the plugin.
    #[schemars(range(min = 2, max = 10_000_000))]
    worker_decisions: usize,
}

impl Default for Bound {
    fn default() -> Bound {
        Bound { worker_decisions: 8_192 }
    }
}

impl Bound {
    /// So many at most; at least two.
    pub const fn new(worker_decisions: usize) -> Bound {
        Bound { worker_decisions }
    }

    /// Reads the bound of the plugin that is being built.
    ///
    /// # Errors
    /// Returns an error if a value is not a number.
    pub fn of(build: &Build<'_>) -> Result<Bound, String> {
        let told = Option::<Bound>::deserialize(build.node.attribute(build.plugin));
        let wrong = |_| format!("plugin_attr.{}.worker_decisions is not a number", build.plugin);
        Ok(told.map_err(wrong)?.unwrap_or_default())
    }
}

/// The decisions of one worker.
pub struct Decisions<V> {
    /// The older table is dropped when the younger one is full: no search for old decisions is necessary.
    tables: RefCell<[HashMap<Key, Decided<V>>; 2]>,
    asked: RefCell<HashMap<Key, watch::Receiver<Option<Rc<V>>>>>,
}

struct Decided<V> {
    value: Rc<V>,
    until_ms: u64,
}

/// The state of a question.
pub enum DecisionState<V> {
    /// The decision.
    Decided(Rc<V>),
    /// Another request asks already; see [`Pending::wait`].
    Asked(Pending<V>),
    /// No decision is known: the caller must ask.
    Nothing(Asking<V>),
}

/// A response that another request waits for as well.
pub struct Pending<V>(watch::Receiver<Option<Rc<V>>>);

/// A question that is being asked. If it is dropped without a response, another request may ask.
pub struct Asking<V> {
    decisions: Rc<Decisions<V>>,
    key: Key,
    tell: watch::Sender<Option<Rc<V>>>,
}

impl<V> Default for Decisions<V> {
    fn default() -> Self {
        Decisions { tables: RefCell::default(), asked: RefCell::default() }
    }
}

impl<V> Decisions<V> {
    /// Returns the state at `now_ms`, by the worker's clock.
    pub fn look(self: &Rc<Self>, key: Key, now_ms: u64) -> DecisionState<V> {
        if let Some(value) = self.decided(&key, now_ms) {
            return DecisionState::Decided(value);
        }
        let mut asked = self.asked.borrow_mut();
        if let Some(pending) = asked.get(&key) {
            return DecisionState::Asked(Pending(pending.clone()));
        }
        let (tell, pending) = watch::channel(None);
        asked.insert(key, pending);
        DecisionState::Nothing(Asking { decisions: Rc::clone(self), key, tell })
    }

    fn decided(&self, key: &Key, now_ms: u64) -> Option<Rc<V>> {
        let [young, old] = &*self.tables.borrow();
        let decided = young.get(key).or_else(|| old.get(key))?;
        (now_ms < decided.until_ms).then(|| Rc::clone(&decided.value))
    }
}

impl<V> Decisions<V> {
    /// Forgets a decision before its time.
    pub fn forget(&self, key: &Key) {
        self.tables.borrow_mut().iter_mut().for_each(|table| drop(table.remove(key)));
    }
}

impl<V> Asking<V> {
    /// Sets the response, which all waiting requests get. It is remembered until `until_ms` if that is given.
    pub fn answer(self, value: &Rc<V>, until_ms: Option<u64>, bound: Bound) {
        if let Some(until_ms) = until_ms {
            let [young, old] = &mut *self.decisions.tables.borrow_mut();
            if young.len() >= bound.worker_decisions / 2 {
                *old = std::mem::take(young);
            }
            young.insert(self.key, Decided { value: Rc::clone(value), until_ms });
        }
        self.tell.send_replace(Some(Rc::clone(value)));
    }
}

impl<V> Drop for Asking<V> {
    fn drop(&mut self) {
        self.decisions.asked.borrow_mut().remove(&self.key);
    }
}

impl<V> Pending<V> {
    /// Waits for the response. None if the asking request has given up.
    pub async fn wait(mut self) -> Option<Rc<V>> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { worker_decisions: 8 };

    fn asking(decisions: &Rc<Decisions<u32>>, key: Key, now_ms: u64) -> Asking<u32> {
        match decisions.look(key, now_ms) {
            DecisionState::Nothing(asking) => asking,
            _ => panic!("something is known"),
        }
    }

    fn decided(decisions: &Rc<Decisions<u32>>, key: Key, now_ms: u64) -> Option<u32> {
        match decisions.look(key, now_ms) {
            DecisionState::Decided(value) => Some(*value),
            _ => None,
        }
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let of = |parts: &[&str]| key(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        for other in [&["a", "bc"][..], &["abc"], &["abc", ""], &["", "ab", "c"]] {
            assert_ne!(of(&["ab", "c"]), of(other), "{other:?}");
        }
    }

    #[test]
    fn a_decision_holds_for_its_time() {
        let decisions = Rc::new(Decisions::default());
        asking(&decisions, [1; 32], 0).answer(&Rc::new(7), Some(1_000), BOUND);
        assert_eq!(decided(&decisions, [1; 32], 999), Some(7));
        assert_eq!(decided(&decisions, [1; 32], 1_000), None);
        assert_eq!(decided(&decisions, [2; 32], 0), None);
        asking(&decisions, [1; 32], 1_000).answer(&Rc::new(8), Some(2_000), BOUND);
        assert_eq!(decided(&decisions, [1; 32], 1_000), Some(8));
        // A response that is not kept reaches only the waiting requests.
        asking(&decisions, [3; 32], 0).answer(&Rc::new(9), None, BOUND);
        assert_eq!(decided(&decisions, [3; 32], 0), None);
    }

    #[test]
    fn a_decision_is_forgotten_before_its_time() {
        let decisions = Rc::new(Decisions::default());
        asking(&decisions, [1; 32], 0).answer(&Rc::new(7), Some(1_000), BOUND);
        decisions.forget(&[1; 32]);
        decisions.forget(&[2; 32]);
        asking(&decisions, [1; 32], 0).answer(&Rc::new(8), Some(1_000), BOUND);
        assert_eq!(decided(&decisions, [1; 32], 0), Some(8));
    }

    #[test]
    fn there_is_a_bound() {
        let decisions = Rc::new(Decisions::default());
        for number in 0..100 {
            asking(&decisions, [number; 32], 0).answer(&Rc::new(0), Some(1), BOUND);
            assert_eq!(decided(&decisions, [number; 32], 0), Some(0), "the last one is kept");
        }
        let held: usize = decisions.tables.borrow().iter().map(HashMap::len).sum();
        assert!(held <= 8 && decisions.asked.borrow().is_empty(), "{held}");
    }

    #[tokio::test]
    async fn one_request_asks_for_all_waiting_ones() {
        let decisions = Rc::new(Decisions::default());
        let pending = |decisions: &Rc<Decisions<u32>>| match decisions.look([1; 32], 0) {
            DecisionState::Asked(pending) => pending,
            _ => panic!("nobody asks"),
        };
        let first = asking(&decisions, [1; 32], 0);
        let (second, third) = (pending(&decisions), pending(&decisions));
        first.answer(&Rc::new(7), None, BOUND);
        assert_eq!(second.wait().await.as_deref(), Some(&7));
        // The client of the asking request has left.
        let first = asking(&decisions, [1; 32], 0);
        let second = pending(&decisions);
        drop(first);
        assert_eq!(second.wait().await, None);
        assert_eq!(third.wait().await.as_deref(), Some(&7));
        drop(asking(&decisions, [1; 32], 0));
    }
}
