//! The targets of one upstream.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::ejection::unix_ms;
use super::findings::{Agreement, FoundNode, agreed};
use super::kept::{Earlier, KeptNode, NodeIdentity};
use super::state::NodeState;
use super::{Health, HealthEpoch, HealthEvents, RecordIdentity};
use crate::endpoint::{Address, node_name};
use crate::lock::lock;
use crate::overload::gate::Line;

/// The limit of nodes in another state than ready.
const STATES_MAX: usize = 10_000;

/// The states that operators set for nodes of all upstreams, present or future. Control side only.
#[derive(Debug, Default)]
pub struct NodeStates {
    /// States set in this process, by upstream and node.
    told: Mutex<HashMap<(String, String), NodeState>>,
    /// The number of changes.
    changes: AtomicU64,
    /// States from the configuration, by upstream.
    configured: Mutex<HashMap<String, Configured>>,
}

/// The states of the nodes of one upstream, by name or address.
pub type Configured = BTreeMap<Box<str>, NodeState>;

impl NodeStates {
    /// Sets the state of a node of an upstream, by its name or its address, in this process.
    ///
    /// # Errors
    /// Returns an error if too many nodes are in other states than ready.
    pub fn set(&self, upstream: &str, node: &str, wanted: NodeState) -> Result<(), &'static str> {
        let mut states = lock(&self.told);
        self.changes.fetch_add(1, Ordering::Relaxed);
        let key = (upstream.to_owned(), node.to_owned());
        if wanted == NodeState::Ready {
            states.remove(&key);
        } else if states.len() < STATES_MAX || states.contains_key(&key) {
            states.insert(key, wanted);
        } else {
            return Err(
                "10000 nodes are in drain or maintenance, the maximum; set some of them to ready first",
            );
        }
        Ok(())
    }

    /// Sets the configured states of an upstream. Returns true if they have changed.
    pub fn configure(&self, upstream: &str, states: Configured) -> bool {
        let mut configured = lock(&self.configured);
        if states.is_empty() {
            return configured.remove(upstream).is_some();
        }
        let is_news = configured.get(upstream) != Some(&states);
        if is_news {
            configured.insert(upstream.to_owned(), states);
        }
        is_news
    }

    /// Removes the configured states of removed upstreams.
    pub fn keep_configured(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.configured).retain(|upstream, _| is_there(upstream));
    }

    /// Returns the number of changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns the states set in this process, by upstream and node.
    pub fn all(&self) -> BTreeMap<String, BTreeMap<String, NodeState>> {
        let mut all: BTreeMap<String, BTreeMap<String, NodeState>> = BTreeMap::new();
        for ((upstream, node), state) in lock(&self.told).iter() {
            all.entry(upstream.clone()).or_default().insert(node.clone(), *state);
        }
        all
    }

    /// Returns true if a state was set in this process.
    pub fn are_told(&self) -> bool {
        !lock(&self.told).is_empty()
    }

    /// Returns the state of an endpoint. Of the set and the configured state, the more restrictive one counts; in
    /// either, a state for the address precedes one for the name.
    pub fn of(&self, upstream: &str, host: &str, port: u16, address: &Address) -> NodeState {
        let (told, configured) = (lock(&self.told), lock(&self.configured));
        let configured = configured.get(upstream);
        if told.is_empty() && configured.is_none() {
            return NodeState::Ready;
        }
        let (name, address) = (node_name(host, port, address), address.to_string());
        let by_told = |node: &str| told.get(&(upstream.to_owned(), node.to_owned())).copied();
        let by_configured = |node: &str| configured?.get(node).copied();
        let told = by_told(&address).or_else(|| by_told(&name));
        let configured = by_configured(&address).or_else(|| by_configured(&name));
        told.max(configured).unwrap_or_default()
    }
}

/// The health records of one upstream's endpoints. New nodes get a record, remaining ones keep theirs, and unused
/// ones are dropped. Control side only.
#[derive(Debug, Default)]
pub struct HealthRecords {
    /// Its key.
    upstream: Arc<str>,
    /// The notifications about changes of its nodes; None without notifications.
    told: Option<HealthEvents>,
    states: Arc<NodeStates>,
    epoch: Arc<HealthEpoch>,
    /// The line of requests that wait for any of the nodes.
    line: Arc<Line>,
    traffic: Arc<AtomicBool>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    records: HashMap<Target, Weak<Health>>,
    /// The number of records that starts a sweep for unused ones.
    sweep_at: usize,
    /// The number of workers that count for outlier detection; None without it.
    workers: Option<usize>,
    /// State of the endpoints from the previous process.
    earlier: Earlier,
}

/// The identity of a record's endpoint: names may share an address, and a name may have several.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Target {
    host: String,
    port: u16,
    address: Address,
}

impl Target {
    fn identity(&self) -> NodeIdentity {
        NodeIdentity { host: self.host.clone(), port: self.port, address: self.address.to_string() }
    }
}

/// Below this number of records there is no sweep.
const SWEEP_MIN: usize = 64;

impl HealthRecords {
    /// Returns the records of the upstream with this key, whose nodes are not checked. `states` has the states that
    /// operators want.
    pub fn unchecked(key: &str, states: &Arc<NodeStates>) -> HealthRecords {
        HealthRecords { upstream: key.into(), states: Arc::clone(states), ..HealthRecords::default() }
    }

    /// Returns the same for checked nodes with notifications.
    pub(super) fn checked(key: &str, states: &Arc<NodeStates>, events: &HealthEvents) -> HealthRecords {
        HealthRecords { told: Some(events.clone()), ..HealthRecords::unchecked(key, states) }
    }

    /// Returns the record of this endpoint: the existing one while it is in use, else a new, healthy one.
    pub fn of(&self, host: &str, port: u16, address: &Address) -> Arc<Health> {
        let target = Target { host: host.to_owned(), port, address: address.clone() };
        let mut known = lock(&self.known);
        if let Some(health) = known.records.get(&target).and_then(Weak::upgrade) {
            return health;
        }
        if known.records.len() >= known.sweep_at.max(SWEEP_MIN) {
            known.sweep();
        }
        let mut health = Health { line: Arc::clone(&self.line), ..Health::new(Arc::clone(&self.epoch)) };
        if let Some(events) = &self.told {
            health.place = Some(Box::new(RecordIdentity {
                upstream: Arc::clone(&self.upstream),
                host: target.host.clone(),
                port,
                address: target.address.clone(),
                events: events.clone(),
            }));
        }
        if let Some(workers) = known.workers {
            health.compare(workers);
        }
        let wanted = self.states.of(&self.upstream, &target.host, port, &target.address);
        health.want(wanted);
        let health = Arc::new(health);
        known.earlier.give(&target.identity(), &health, unix_ms());
        known.records.insert(target, Arc::downgrade(&health));
        health
    }

    /// Sets the state from the previous process for new endpoints.
    pub(super) fn begin_with(&self, earlier: Earlier) {
        lock(&self.known).earlier = earlier;
    }

    /// Marks the upstream as in force.
    pub(super) fn settle(&self) {
        let Known { records, earlier, .. } = &mut *lock(&self.known);
        let known: HashSet<_> = records.keys().map(Target::identity).collect();
        earlier.settle(|identity| known.contains(identity));
    }

    /// Returns the state of the endpoints for the next process.
    pub(super) fn kept(&self) -> Vec<KeptNode> {
        let known = lock(&self.known);
        let of =
            |(target, health): (&Target, &Weak<Health>)| KeptNode::of(target.identity(), &*health.upgrade()?);
        let mut kept: Vec<KeptNode> = known.records.iter().filter_map(of).collect();
        kept.sort_unstable_by(|a, b| (&a.host, a.port, &a.address).cmp(&(&b.host, b.port, &b.address)));
        kept
    }

    /// Returns the endpoints that are out because of requests of this gateway.
    pub(super) fn found(&self) -> BTreeSet<FoundNode> {
        let known = lock(&self.known);
        let is_found = |health: &Weak<Health>| health.upgrade().is_some_and(|health| health.is_found_out());
        let found = known.records.iter().filter(|(_, health)| is_found(health));
        found.map(|(target, _)| FoundNode::from(target.identity())).collect()
    }

    /// Takes out endpoints found by other gateways, as far as `agreement` allows, and takes the others back. Returns
    /// true if any is out by that.
    pub(super) fn heed(&self, others: &[&BTreeSet<FoundNode>], agreement: &Agreement) -> bool {
        let known = lock(&self.known);
        let live: Vec<(FoundNode, Arc<Health>)> = known
            .records
            .iter()
            .filter_map(|(target, health)| Some((target.identity().into(), health.upgrade()?)))
            .collect();
        let nodes = live.iter().map(|(node, _)| node).collect();
        let out = agreed(&nodes, others, agreement);
        for (node, health) in &live {
            health.find_elsewhere(out.contains(node));
        }
        !out.is_empty()
    }

    /// Starts outlier detection for the endpoints, with this number of counting workers.
    pub fn compare(&self, workers: usize) {
        let mut known = lock(&self.known);
        known.workers = Some(workers);
        known.records.values().filter_map(Weak::upgrade).for_each(|health| health.compare(workers));
    }

    /// Returns the number that changes when one of the endpoints becomes usable or unusable.
    pub fn epoch(&self) -> &Arc<HealthEpoch> {
        &self.epoch
    }

    /// Returns the flag that is set by each request to one of the endpoints, if probes depend on it.
    pub fn traffic(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.traffic)
    }

    /// Returns the number of records in use.
    pub fn live(&self) -> usize {
        let mut known = lock(&self.known);
        known.sweep();
        known.records.len()
    }
}

impl Known {
    fn sweep(&mut self) {
        self.records.retain(|_, health| health.strong_count() > 0);
        self.sweep_at = self.records.len() * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Event, Limits};
    use super::*;

    const LIMITS: Limits = Limits { successes: 1, http_failures: 2, tcp_failures: 1, timeouts: 1 };

    #[test]
    fn records_are_kept_while_they_are_used() {
        let records = HealthRecords::default();
        let at = |n: u16| Address::Tcp(([127, 0, 0, 1], n).into());
        let of = |n: u16| records.of("a", n, &at(n));
        let stays = of(1);
        stays.apply(Event::TcpFailure, LIMITS);
        (2..2000).for_each(|n| drop(of(n)));
        assert!(Arc::ptr_eq(&stays, &of(1)) && !stays.usable());
        assert!(lock(&records.known).records.len() <= SWEEP_MIN);
        assert!(!Arc::ptr_eq(&stays, &records.of("b", 1, &at(1))), "names may share an address");
        assert_eq!(records.live(), 1);
        drop(stays);
        assert!(of(1).usable() && records.live() == 0);
    }

    #[test]
    fn states_of_operators_apply_to_future_nodes() {
        let states = Arc::new(NodeStates::default());
        let records = HealthRecords::unchecked("upstreams/1", &states);
        let at = |last| Address::Tcp(([10, 0, 0, last], 80).into());
        let wanted = |last| records.of("a", 80, &at(last)).standing().wanted;
        states.set("upstreams/1", "a:80", NodeState::Drain).expect("room");
        states.set("upstreams/1", "10.0.0.2:80", NodeState::Maintenance).expect("room");
        states.set("upstreams/2", "b:80", NodeState::Maintenance).expect("room");
        assert_eq!((wanted(1), wanted(2)), (NodeState::Drain, NodeState::Maintenance));
        assert!(records.of("b", 80, &at(3)).usable());
        states.set("upstreams/1", "a:80", NodeState::Ready).expect("room");
        assert_eq!((wanted(1), wanted(2)), (NodeState::Ready, NodeState::Maintenance));
        // The configured state is more restrictive, or less.
        let configured = |state| BTreeMap::from([("a:80".into(), state)]);
        assert!(states.configure("upstreams/1", configured(NodeState::Drain)));
        assert_eq!((wanted(3), wanted(4)), (NodeState::Drain, NodeState::Drain));
        states.set("upstreams/1", "a:80", NodeState::Maintenance).expect("room");
        assert_eq!(wanted(5), NodeState::Maintenance);
        states.set("upstreams/1", "a:80", NodeState::Ready).expect("room");
        assert_eq!(wanted(6), NodeState::Drain);
        assert!(!states.configure("upstreams/1", configured(NodeState::Drain)), "no news");
        let nothing = || states.configure("upstreams/1", BTreeMap::new());
        assert!(nothing() && !nothing());
        assert_eq!(wanted(7), NodeState::Ready);
        for n in 0..STATES_MAX {
            let has_room = states.set("u", &n.to_string(), NodeState::Drain).is_ok();
            assert_eq!(has_room, n < STATES_MAX - 2, "two are there already");
        }
        assert!(states.set("u", "one more", NodeState::Drain).is_err());
        assert!(states.set("u", "0", NodeState::Maintenance).is_ok(), "one that is there may change");
    }
}
