//! PolicyCounts of plugins that guard, counted for metrics.
//!
//! Each worker has numbers of its own, which it alone writes. It takes a lock when it counts for a place the
//! first time. The numbers of a place outlive its configuration, as counters must.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sigma_plugin::Env;

/// Places that are remembered: more than a gateway has, less than one with a churn of routes would fill.
const PLACES_MAX: usize = 10_000;

/// Whether a decision was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Force {
    /// It was.
    Enforced,
    /// It was only noted.
    Shadow,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The request passes.
    Allowed,
    /// It does not.
    Denied,
}

/// The labels of a number, by its place in [`Numbers`].
const LABELS: [(&str, &str); 4] =
    [("enforced", "allowed"), ("enforced", "denied"), ("shadow", "allowed"), ("shadow", "denied")];

type Numbers = [AtomicU64; LABELS.len()];

/// One place where decisions are made.
#[derive(Debug, Default)]
struct Place {
    id: u64,
    /// Those of each worker that has counted.
    workers: Mutex<Vec<Arc<Numbers>>>,
}

/// All places; a part of the node.
#[derive(Debug, Default)]
pub(crate) struct PolicyCounts {
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// The id of the place that came last.
    last: u64,
    known: BTreeMap<Box<str>, Arc<Place>>,
}

/// The numbers of this worker, by place.
#[derive(Default)]
struct Own(RefCell<HashMap<u64, Arc<Numbers>>>);

/// Where a plugin's instance counts.
pub(crate) struct Counted(Arc<Place>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PolicyCounts {
    /// Where an instance in `resource` counts.
    pub(crate) fn counted(&self, resource: &str) -> Counted {
        let mut places = lock(&self.places);
        let Places { last, known } = &mut *places;
        if known.len() >= PLACES_MAX && !known.contains_key(resource) {
            // Those of instances that are gone.
            known.retain(|_, place| Arc::strong_count(place) > 1);
        }
        *last += 1;
        let made = || Arc::new(Place { id: *last, workers: Mutex::default() });
        Counted(Arc::clone(known.entry(resource.into()).or_insert_with(made)))
    }

    /// All numbers: the resource, `enforced` or `shadow`, `allowed` or `denied`, how many.
    pub(crate) fn all(&self) -> Vec<([Box<str>; 3], u64)> {
        let places: Vec<(Box<str>, Arc<Place>)> =
            lock(&self.places).known.iter().map(|(name, place)| (name.clone(), Arc::clone(place))).collect();
        let mut all = Vec::new();
        for (resource, place) in places {
            let workers = lock(&place.workers).clone();
            for (at, (force, decision)) in LABELS.into_iter().enumerate() {
                let sum: u64 = workers.iter().map(|numbers| numbers[at].load(Ordering::Relaxed)).sum();
                if sum > 0 {
                    all.push(([resource.clone(), force.into(), decision.into()], sum));
                }
            }
        }
        all
    }
}

impl Counted {
    /// Counts a decision of this worker.
    pub(crate) fn count(&self, env: &Env<'_>, force: Force, decision: Decision) {
        let own = env.local.part(Own::default);
        let mut places = own.0.borrow_mut();
        if places.len() >= 2 * PLACES_MAX {
            // Most are of places that are gone; those that are not add numbers anew.
            places.clear();
        }
        let numbers = places.entry(self.0.id).or_insert_with(|| {
            let made = Arc::<Numbers>::default();
            lock(&self.0.workers).push(Arc::clone(&made));
            made
        });
        let number = &numbers[force as usize * 2 + decision as usize];
        // The owning worker only: two writers would lose counts.
        number.store(number.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use sigma_plugin::{Consumers, Local, Node};

    use super::*;

    #[test]
    fn workers_count_by_themselves_and_add_up() {
        let (node, consumers) = (Arc::new(Node::default()), Consumers::default());
        let decisions = node.part(PolicyCounts::default);
        let workers = [Rc::new(Local::new(0, 1)), Rc::new(Local::new(1, 2))];
        for _ in 0..2 {
            // A changed configuration counts on.
            let counted = decisions.counted("/apisix/routes/1");
            for local in &workers {
                let env = Env::new(&node, local, &consumers);
                counted.count(&env, Force::Enforced, Decision::Denied);
                counted.count(&env, Force::Shadow, Decision::Allowed);
            }
        }
        let _unused = decisions.counted("/apisix/routes/2");
        let label = |force: &str, decision: &str| ["/apisix/routes/1".into(), force.into(), decision.into()];
        let expected = vec![(label("enforced", "denied"), 4), (label("shadow", "allowed"), 4)];
        assert_eq!(decisions.all(), expected);
    }

    #[test]
    fn places_that_are_gone_make_room() {
        let decisions = PolicyCounts::default();
        let kept = decisions.counted("kept");
        for n in 0..PLACES_MAX + 5 {
            drop(decisions.counted(&format!("gone {n}")));
        }
        let places = lock(&decisions.places);
        assert!(
            places.known.len() <= PLACES_MAX && places.known.contains_key("kept"),
            "{}",
            places.known.len()
        );
        drop(kept);
    }
}
