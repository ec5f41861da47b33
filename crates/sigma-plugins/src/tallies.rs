//! Numbers that plugins count by the place of their configuration, for metrics.
//!
//! Each worker has numbers of its own, which it alone writes. It takes a lock when it counts for a place the
//! first time. The numbers of a place outlive its configuration, as counters must.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sigma_plugin::{Env, Local};

/// Places that are remembered: more than a gateway has, less than one with a churn of routes would fill.
const PLACES_MAX: usize = 10_000;

/// Something that happens, of several that are counted apart.
pub(crate) trait Event: Copy + 'static {
    /// The labels of each, beside that of the place.
    const LABELS: &'static [&'static [(&'static str, &'static str)]];

    /// Which of them it is.
    fn number(self) -> usize;
}

/// Whether a decision of a policy was carried out.
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

impl Event for (Force, Decision) {
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("rules", "enforced"), ("decision", "allowed")],
        &[("rules", "enforced"), ("decision", "denied")],
        &[("rules", "shadow"), ("decision", "allowed")],
        &[("rules", "shadow"), ("decision", "denied")],
    ];

    fn number(self) -> usize {
        self.0 as usize * 2 + self.1 as usize
    }
}

/// Names and values.
type Labels = Vec<(&'static str, Box<str>)>;

type Numbers = Arc<[AtomicU64]>;

/// One place where events happen.
#[derive(Debug)]
struct Place {
    id: u64,
    /// Those of each worker that has counted.
    workers: Mutex<Vec<Numbers>>,
}

/// All places of one kind of events; a part of the node.
#[derive(Debug)]
pub(crate) struct Tallies<E> {
    places: Mutex<Places>,
    kind: PhantomData<fn(E)>,
}

impl<E> Default for Tallies<E> {
    fn default() -> Self {
        Tallies { places: Mutex::default(), kind: PhantomData }
    }
}

#[derive(Debug, Default)]
struct Places {
    /// The id of the place that came last.
    last: u64,
    known: BTreeMap<Box<str>, Arc<Place>>,
}

/// The numbers of this worker, by place.
struct Own<E>(RefCell<HashMap<u64, Tally<E>>>);

impl<E> Default for Own<E> {
    fn default() -> Self {
        Own(RefCell::default())
    }
}

/// Where a plugin's instance counts.
#[derive(Debug)]
pub(crate) struct Counted<E>(Arc<Place>, PhantomData<fn(E)>);

/// The numbers of one place and worker, for that worker alone.
pub(crate) struct Tally<E>(Rc<Numbers>, PhantomData<fn(E)>);

impl<E> Clone for Tally<E> {
    fn clone(&self) -> Self {
        Tally(Rc::clone(&self.0), PhantomData)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Event> Tallies<E> {
    /// Where an instance in `resource` counts.
    pub(crate) fn counted(&self, resource: &str) -> Counted<E> {
        let mut places = lock(&self.places);
        let Places { last, known } = &mut *places;
        if known.len() >= PLACES_MAX && !known.contains_key(resource) {
            // Those of instances that are gone.
            known.retain(|_, place| Arc::strong_count(place) > 1);
        }
        *last += 1;
        let made = || Arc::new(Place { id: *last, workers: Mutex::default() });
        Counted(Arc::clone(known.entry(resource.into()).or_insert_with(made)), PhantomData)
    }

    /// All numbers that are not 0, each with its labels, the first of which is the resource.
    pub(crate) fn all(&self) -> Vec<(Labels, u64)> {
        let places: Vec<(Box<str>, Arc<Place>)> =
            lock(&self.places).known.iter().map(|(name, place)| (name.clone(), Arc::clone(place))).collect();
        let mut all = Vec::new();
        for (resource, place) in places {
            let workers = lock(&place.workers).clone();
            for (at, labels) in E::LABELS.iter().enumerate() {
                let sum: u64 = workers.iter().map(|numbers| numbers[at].load(Ordering::Relaxed)).sum();
                if sum > 0 {
                    let labels = labels.iter().map(|(name, value)| (*name, Box::from(*value)));
                    let labels = std::iter::once(("resource", resource.clone())).chain(labels);
                    all.push((labels.collect(), sum));
                }
            }
        }
        all
    }
}

impl<E: Event> Counted<E> {
    /// The numbers of a worker, to count where no hook runs.
    pub(crate) fn tally(&self, local: &Local) -> Tally<E> {
        let own = local.part(Own::<E>::default);
        let mut places = own.0.borrow_mut();
        if places.len() >= 2 * PLACES_MAX {
            // Most are of places that are gone; those that are not add numbers anew.
            places.clear();
        }
        let tally = places.entry(self.0.id).or_insert_with(|| {
            let made: Numbers = E::LABELS.iter().map(|_| AtomicU64::new(0)).collect();
            lock(&self.0.workers).push(Arc::clone(&made));
            Tally(Rc::new(made), PhantomData)
        });
        tally.clone()
    }

    /// Counts an event of this worker.
    pub(crate) fn count(&self, env: &Env<'_>, event: E) {
        self.tally(env.local).count(event);
    }
}

impl<E: Event> Tally<E> {
    /// Counts an event.
    pub(crate) fn count(&self, event: E) {
        self.add(event, 1);
    }

    /// Counts as many.
    pub(crate) fn add(&self, event: E, many: u64) {
        let number = &self.0[event.number()];
        // The owning worker only: two writers would lose counts.
        number.store(number.load(Ordering::Relaxed).wrapping_add(many), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use sigma_plugin::{Consumers, Node};

    use super::*;

    #[test]
    fn workers_count_by_themselves_and_add_up() {
        let (node, consumers) = (Arc::new(Node::default()), Consumers::default());
        let decisions = node.part(Tallies::<(Force, Decision)>::default);
        let workers = [Rc::new(Local::new(0, 1)), Rc::new(Local::new(1, 2))];
        for _ in 0..2 {
            // A changed configuration counts on.
            let counted = decisions.counted("/apisix/routes/1");
            for local in &workers {
                let env = Env::new(&node, local, &consumers);
                counted.count(&env, (Force::Enforced, Decision::Denied));
                counted.count(&env, (Force::Shadow, Decision::Allowed));
            }
        }
        let _unused = decisions.counted("/apisix/routes/2");
        let labels = |rules: &str, decision: &str| {
            let resource = ("resource", "/apisix/routes/1".into());
            vec![resource, ("rules", rules.into()), ("decision", decision.into())]
        };
        assert_eq!(
            decisions.all(),
            vec![(labels("enforced", "denied"), 4), (labels("shadow", "allowed"), 4)]
        );
    }

    #[test]
    fn places_that_are_gone_make_room() {
        let decisions = Tallies::<(Force, Decision)>::default();
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
