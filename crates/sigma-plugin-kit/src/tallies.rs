//! Counters that plugins keep by the resource that configures them, for metrics. A plugin names its metric; `prometheus`
//! writes all that are known and names no plugin.
//!
//! Each worker has numbers of its own, which it alone writes. It takes a lock when it counts for a place the
//! first time. The numbers of a place outlive its configuration, as counters must.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sigma_plugin::{Env, Local, Node};

/// Places that are remembered: more than a gateway has, less than one with a churn of routes would fill.
const PLACES_MAX: usize = 10_000;

/// An event of several kinds that are counted apart.
pub trait Event: Copy + 'static {
    /// The name of the metric, without prefix.
    const METRIC: &'static str;
    /// The help text of the metric.
    const HELP: &'static str;
    /// The labels of each kind, in addition to the label of the place.
    const LABELS: &'static [&'static [(&'static str, &'static str)]];

    /// Returns the number of its kind.
    fn number(self) -> usize;
}

/// Names and values.
pub type Labels = Vec<(&'static str, Box<str>)>;

type Numbers = Arc<[AtomicU64]>;

/// One place where events happen.
#[derive(Debug)]
struct EventSource {
    id: u64,
    /// The numbers of each worker that has counted.
    workers: Mutex<Vec<Numbers>>,
}

/// A metric and all of its series.
pub trait Family: Send + Sync {
    /// Returns the help text.
    fn help(&self) -> &'static str;

    /// Returns the type of the metric, as Prometheus calls it.
    fn kind(&self) -> &'static str {
        "counter"
    }

    /// Returns all numbers, each with its labels. Families of events leave out numbers that are 0, and begin with the label
    /// of the resource.
    fn all(&self) -> Vec<(Labels, u64)>;
}

/// The metrics that plugins of this node count, by name; a part of the node.
#[derive(Default)]
pub struct Families(Mutex<BTreeMap<&'static str, Arc<dyn Family>>>);

impl Families {
    /// Returns all of them, in the order of their names.
    pub fn all(&self) -> Vec<(&'static str, Arc<dyn Family>)> {
        lock(&self.0).iter().map(|(name, family)| (*name, Arc::clone(family))).collect()
    }
}

/// Adds metrics with these names, unless they are known.
pub fn register(node: &Node, families: impl IntoIterator<Item = (&'static str, Arc<dyn Family>)>) {
    let known = node.part(Families::default);
    let mut known = lock(&known.0);
    for (name, family) in families {
        known.entry(name).or_insert(family);
    }
}

/// Returns the counter of an instance in `resource` for one kind of events.
pub fn counted<E: Event>(node: &Node, resource: &str) -> Counted<E> {
    let tallies = node.part(Tallies::<E>::default);
    let families = node.part(Families::default);
    lock(&families.0).entry(E::METRIC).or_insert_with(|| Arc::clone(&tallies) as Arc<dyn Family>);
    tallies.counted(resource)
}

/// All places of one kind of events; a part of the node.
#[derive(Debug)]
struct Tallies<E> {
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
    known: BTreeMap<Box<str>, Arc<EventSource>>,
}

/// The numbers of this worker, by place.
struct Own<E>(RefCell<HashMap<u64, Tally<E>>>);

impl<E> Default for Own<E> {
    fn default() -> Self {
        Own(RefCell::default())
    }
}

/// The counter of a plugin's instance.
#[derive(Debug)]
pub struct Counted<E>(Arc<EventSource>, PhantomData<fn(E)>);

/// The numbers of one place and worker, for that worker alone.
pub struct Tally<E>(Rc<Numbers>, PhantomData<fn(E)>);

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
    /// Returns the counter of an instance in `resource`.
    fn counted(&self, resource: &str) -> Counted<E> {
        let mut places = lock(&self.places);
        let Places { last, known } = &mut *places;
        if known.len() >= PLACES_MAX && !known.contains_key(resource) {
            // Forgets places of removed instances.
            known.retain(|_, place| Arc::strong_count(place) > 1);
        }
        *last += 1;
        let made = || Arc::new(EventSource { id: *last, workers: Mutex::default() });
        Counted(Arc::clone(known.entry(resource.into()).or_insert_with(made)), PhantomData)
    }
}

impl<E: Event> Family for Tallies<E> {
    fn help(&self) -> &'static str {
        E::HELP
    }

    fn all(&self) -> Vec<(Labels, u64)> {
        let places: Vec<(Box<str>, Arc<EventSource>)> =
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
    /// Returns the numbers of a worker, to count outside hooks.
    pub fn tally(&self, local: &Local) -> Tally<E> {
        let own = local.part(Own::<E>::default);
        let mut places = own.0.borrow_mut();
        if places.len() >= 2 * PLACES_MAX {
            // Most belong to removed places; the others add numbers again.
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
    pub fn count(&self, env: &Env<'_>, event: E) {
        self.tally(env.local).count(event);
    }
}

impl<E: Event> Tally<E> {
    /// Counts an event.
    pub fn count(&self, event: E) {
        self.add(event, 1);
    }

    /// Counts several events.
    pub fn add(&self, event: E, many: u64) {
        let number = &self.0[event.number()];
        // The owning worker only: two writers would lose counts.
        number.store(number.load(Ordering::Relaxed).wrapping_add(many), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use sigma_plugin::Consumers;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Decision {
        Allowed,
        Denied,
    }

    impl Event for Decision {
        const METRIC: &'static str = "decisions_total";
        const HELP: &'static str = "Decisions";
        const LABELS: &'static [&'static [(&'static str, &'static str)]] =
            &[&[("decision", "allowed")], &[("decision", "denied")]];

        fn number(self) -> usize {
            self as usize
        }
    }

    #[test]
    fn workers_count_by_themselves_and_add_up() {
        let (node, consumers) = (Arc::new(Node::default()), Consumers::default());
        let workers = [Rc::new(Local::new(0, 1)), Rc::new(Local::new(1, 2))];
        for _ in 0..2 {
            // A changed configuration counts on.
            let counted = counted::<Decision>(&node, "/apisix/routes/1");
            for local in &workers {
                let env = Env::new(&node, local, &consumers);
                counted.count(&env, Decision::Denied);
                counted.count(&env, Decision::Allowed);
            }
        }
        let _unused = counted::<Decision>(&node, "/apisix/routes/2");
        let labels =
            |decision: &str| vec![("resource", "/apisix/routes/1".into()), ("decision", decision.into())];
        let families = node.part(Families::default).all();
        let [(name, decisions)] = &families[..] else { panic!("{} families", families.len()) };
        assert_eq!((*name, decisions.help()), ("decisions_total", "Decisions"));
        assert_eq!(decisions.all(), vec![(labels("allowed"), 4), (labels("denied"), 4)]);
    }

    #[test]
    fn places_that_are_gone_make_room() {
        let decisions = Tallies::<Decision>::default();
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
