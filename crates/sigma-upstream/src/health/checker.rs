//! The probe loops, and their state across reloads.
//!
//! [`Checkers`] is keyed by the upstream. Each round probes the current endpoints of the upstream's cell: new nodes
//! are probed, removed ones are not, without a compilation. While an upstream keeps its `checks`, its loops continue
//! through any number of reloads and only read another cell. If `checks` change, the loops start again, but remaining
//! targets always keep their state.
//!
//! Probing begins with the configuration instead of the first request, so that the first request does not reach a
//! node that is down.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::findings::{Agreement, Findings};
use super::kept::{Earlier, KeptNode, StoredHealth};
use super::plan::{Active, Plan};
use super::probe::probe;
use super::state::{Standing, State};
use super::{HealthEvents, HealthRecords, NodeStates, agent, ejection, targets};
use crate::endpoint::{Address, Endpoint, UpstreamCell};
use crate::lock::lock;

/// A checker to run.
#[derive(Debug, Clone)]
pub struct CheckerSpec {
    /// The upstream, such as `/upstreams/1`; unique.
    pub key: String,
    /// Its checks.
    pub plan: Arc<Plan>,
    /// Its endpoints, with health records from [`Checkers::records`] of the same key.
    pub cell: Arc<UpstreamCell>,
}

/// One target in status output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetStatus {
    /// Address: IP or socket path.
    pub ip: String,
    /// Port that is probed; 0 for unix sockets.
    pub port: u16,
    /// The state and counters.
    pub hostname: String,
    /// State and counters.
    pub standing: Standing,
    /// The time of its return, in Unix milliseconds; None if outlier detection has not ejected it.
    pub ejected_until_ms: Option<u64>,
}

/// All checkers of the process. It lives on the control side.
#[derive(Debug, Default)]
pub struct Checkers {
    upstreams: HashMap<String, Checked>,
    states: Arc<NodeStates>,
    events: HealthEvents,
    /// State from the previous process, by upstream. Each part is used when the upstream comes into force.
    earlier: BTreeMap<String, Vec<KeptNode>>,
}

#[derive(Debug, Default)]
struct Checked {
    records: Arc<HealthRecords>,
    running: Option<Running>,
    /// Some nodes are out because of other gateways' findings.
    heeds: bool,
}

#[derive(Debug)]
struct Running {
    plan: Arc<Plan>,
    cell: Arc<Mutex<Arc<UpstreamCell>>>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Checkers {
    /// Returns the health records of an upstream's present and future endpoints.
    pub fn records(&mut self, key: &str) -> Arc<HealthRecords> {
        let new = || Checked {
            records: Arc::new(HealthRecords::checked(key, &self.states, &self.events)),
            running: None,
            heeds: false,
        };
        Arc::clone(&self.upstreams.entry(key.to_owned()).or_insert_with(new).records)
    }

    /// Returns an empty set whose changes go to `events`.
    pub fn telling(events: HealthEvents) -> Checkers {
        Checkers { events, ..Checkers::default() }
    }

    /// Sets the state from the previous process.
    pub fn begin_with(&mut self, kept: StoredHealth) {
        self.earlier = kept.nodes;
        for (upstream, nodes) in &kept.states {
            for (node, state) in nodes {
                if let Err(error) = self.states.set(upstream, node, *state) {
                    tracing::warn!(
                        upstream,
                        node,
                        error,
                        "the saved health state of a node is unreadable and was ignored"
                    );
                    return;
                }
            }
        }
    }

    /// Drops the state from the previous process: it is too old for nodes that have not come yet.
    pub fn forget_earlier(&mut self) {
        self.earlier.clear();
        self.upstreams.values().for_each(|checked| checked.records.begin_with(Earlier::default()));
    }

    /// Returns the state for the next process.
    pub fn kept(&self) -> StoredHealth {
        let nodes = self.upstreams.iter().map(|(key, checked)| (key.clone(), checked.records.kept()));
        // For upstreams that are not in force yet, the state of the previous process.
        let earlier = self.earlier.iter().map(|(key, nodes)| (key.clone(), nodes.clone()));
        let nodes = earlier.chain(nodes).filter(|(_, nodes)| !nodes.is_empty()).collect();
        StoredHealth { nodes, states: self.states.all() }
    }

    /// Returns the nodes that are out because of requests of this gateway.
    pub fn findings(&self) -> Findings {
        let found = |(key, checked): (&String, &Checked)| (key.clone(), checked.records.found());
        Findings::of(self.upstreams.iter().map(found))
    }

    /// Takes out nodes found by other gateways, as far as `agreement` allows, and takes back those that are no longer
    /// found.
    pub fn heed(&mut self, others: &[Arc<Findings>], agreement: &Agreement) {
        for (key, checked) in &mut self.upstreams {
            let of_upstream: Vec<_> =
                others.iter().filter_map(|findings| findings.of_upstream(key)).collect();
            if !of_upstream.is_empty() || checked.heeds {
                checked.heeds = checked.records.heed(&of_upstream, agreement);
            }
        }
    }

    /// Returns a number that changes when a checked node becomes usable or unusable, or an operator sets a state.
    pub fn changes(&self) -> u64 {
        let epochs = self.upstreams.values().map(|checked| checked.records.epoch().get());
        epochs.fold(self.states.changes(), u64::wrapping_add)
    }

    /// Judges the upstream with this key by `plan` from now on: state from the previous process applies as far as the
    /// plan can revert it. Call it within a runtime.
    pub fn plan(&mut self, key: &str, plan: &Arc<Plan>) {
        if let Some(earlier) = self.earlier.get(key) {
            let earlier = Earlier::new(earlier, plan);
            self.records(key).begin_with(earlier);
        }
    }

    /// Returns the states that operators have set for nodes, checked or not.
    pub fn states(&self) -> &Arc<NodeStates> {
        &self.states
    }

    /// Runs exactly `specs`: unchanged ones continue, others start, the rest stops. Call it within the control
    /// runtime, after a snapshot is committed; records from [`Checkers::records`] for a snapshot that was not
    /// committed are dropped here.
    pub fn commit(&mut self, specs: Vec<CheckerSpec>) {
        let mut old = std::mem::take(&mut self.upstreams);
        for CheckerSpec { key, plan, cell } in specs {
            let mut checked = old.remove(&key).unwrap_or_default();
            match &checked.running {
                Some(running) if running.plan == plan && !running.task.is_finished() => {
                    *lock(&running.cell) = cell;
                }
                _ => checked.running = Some(Running::start(plan, cell)),
            }
            if self.earlier.remove(&key).is_some() {
                checked.records.settle();
            }
            self.upstreams.insert(key, checked);
        }
    }

    /// Returns the targets of the upstream with this key; None without a checker.
    pub fn status(&self, key: &str) -> Option<Vec<TargetStatus>> {
        self.upstreams.get(key)?.running.as_ref().map(Running::status)
    }

    /// Returns the keys of all upstreams with a checker, in order.
    pub fn keys(&self) -> Vec<&str> {
        let running = self.upstreams.iter().filter(|(_, checked)| checked.running.is_some());
        let mut keys: Vec<&str> = running.map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        keys
    }
}

impl Running {
    fn start(plan: Arc<Plan>, cell: Arc<UpstreamCell>) -> Running {
        let cell = Arc::new(Mutex::new(cell));
        let task = tokio::spawn(run(Arc::clone(&plan), Arc::clone(&cell)));
        Running { plan, cell, task }
    }

    fn status(&self) -> Vec<TargetStatus> {
        let set = lock(&self.cell).load();
        let active = self.plan.active.as_ref();
        let status = |endpoint: Endpoint| {
            let (ip, port) = match &endpoint.addr {
                Address::Tcp(addr) => {
                    (addr.ip().to_string(), active.and_then(|active| active.port).unwrap_or(addr.port()))
                }
                Address::Unix(path) => (path.display().to_string(), 0),
            };
            let hostname = active.and_then(|active| active.host.clone());
            TargetStatus {
                ip,
                port,
                hostname: hostname.unwrap_or_else(|| endpoint.host.clone()),
                standing: endpoint.health.standing(),
                ejected_until_ms: endpoint.health.ejected_until_ms(),
            }
        };
        targets(&set.endpoints, |_| true).into_iter().map(status).collect()
    }
}

/// Probes the endpoints in `cell` by `plan` until dropped, with two independent loops, for usable and unusable
/// targets; each first waits one interval. A third loop compares the results of requests, a fourth asks agents.
pub async fn run(plan: Arc<Plan>, cell: Arc<Mutex<Arc<UpstreamCell>>>) {
    let probing = async {
        if let Some(active) = &plan.active {
            tokio::join!(
                Probing::new(&plan, active, true).run(&cell),
                Probing::new(&plan, active, false).run(&cell),
            );
        }
    };
    let comparing = async {
        let Some(rules) = &plan.outliers else { return };
        let mut ticks = ticks(Duration::from_millis(rules.interval_ms));
        loop {
            ticks.tick().await;
            let set = lock(&cell).load();
            ejection::sweep(rules, &set.endpoints);
        }
    };
    let asking = async {
        let Some(agent) = &plan.agent else {
            // The wish of an agent that is not asked any more does not count.
            let set = lock(&cell).load();
            set.endpoints.iter().for_each(|endpoint| endpoint.health.forget_agent());
            return;
        };
        let mut ticks = ticks(agent.interval);
        loop {
            ticks.tick().await;
            let set = lock(&cell).load();
            agent::ask_all(agent, targets(&set.endpoints, |_| true)).await;
        }
    };
    tokio::join!(probing, comparing, asking);
}

/// The first tick is after one interval. A round that takes longer delays the next instead of piling up.
fn ticks(interval: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Probes due within this time are sent together, so that many targets cost only an occasional scan.
const TOGETHER: Duration = Duration::from_millis(10);

/// The probes of the usable targets, or of the unusable ones.
struct Probing<'p> {
    plan: &'p Arc<Plan>,
    active: &'p Active,
    usable: bool,
    /// The time of each target's next probe, by the address of its record.
    due: HashMap<usize, Instant>,
    running: JoinSet<Probed>,
    /// Targets with a running probe.
    busy: HashSet<usize>,
    /// The time of the last request.
    traffic: Option<Instant>,
}

/// A finished probe.
struct Probed {
    record: usize,
    began: Instant,
    standing: Standing,
}

impl<'p> Probing<'p> {
    fn new(plan: &'p Arc<Plan>, active: &'p Active, usable: bool) -> Probing<'p> {
        let (due, running, busy) = (HashMap::new(), JoinSet::new(), HashSet::new());
        Probing { plan, active, usable, due, running, busy, traffic: None }
    }

    async fn run(mut self, cell: &Mutex<Arc<UpstreamCell>>) {
        let state = if self.usable { State::Healthy } else { State::Unhealthy };
        let Some(interval) = self.active.intervals.pause(state, false, 0) else { return };
        // All targets are scanned at least this often: a change of state may change the time of a probe.
        let longest = self.active.intervals.fast.map_or(interval, |fast| fast.min(interval));
        loop {
            let now = Instant::now();
            let next = self.begin_due(&lock(cell).load().endpoints, now);
            let wake = next.unwrap_or(now + longest).min(now + longest).max(now + TOGETHER);
            tokio::select! {
                () = tokio::time::sleep_until(wake) => {}
                Some(probed) = self.running.join_next() => self.note(probed),
            }
        }
    }

    /// Starts the due probes, as many as allowed; returns the time of the next one.
    fn begin_due(&mut self, endpoints: &[Endpoint], now: Instant) -> Option<Instant> {
        let is_idle = self.is_idle(now);
        let mut due = HashMap::with_capacity(self.due.len());
        let mut next: Option<Instant> = None;
        for endpoint in targets(endpoints, |health| health.standing().state.usable() == self.usable) {
            let record = Arc::as_ptr(&endpoint.health).addr();
            let state = endpoint.health.standing().state;
            let Some(pause) = self.active.intervals.pause(state, is_idle, fastrand::u64(..)) else {
                continue;
            };
            // A change of state may make it earlier, jitter alone does not.
            let longest = self.active.intervals.pause(state, is_idle, u64::MAX).unwrap_or(pause);
            let at = self.due.get(&record).map_or(now + pause, |at| (*at).min(now + longest));
            due.insert(record, at);
            if self.busy.contains(&record) {
                continue;
            }
            if at <= now && self.running.len() < self.active.concurrency {
                due.insert(record, now + pause);
                self.begin(record, endpoint, now);
            } else if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        // Removed targets are dropped.
        self.due = due;
        next
    }

    fn begin(&mut self, record: usize, endpoint: Endpoint, began: Instant) {
        self.busy.insert(record);
        let plan = Arc::clone(self.plan);
        self.running.spawn(async move {
            if let Some(active) = &plan.active
                && let Some(event) = probe(active, &endpoint).await
            {
                let (before, after) = endpoint.health.probed(event, active.limits);
                ejection::after_check(&endpoint.health, &plan, active.limits, before, after);
            }
            Probed { record, began, standing: endpoint.health.standing() }
        });
    }

    fn note(&mut self, probed: Result<Probed, JoinError>) {
        let Ok(Probed { record, began, standing }) = probed else {
            // The probe that panicked is unknown; running ones are repeated at worst.
            self.busy.clear();
            return;
        };
        self.busy.remove(&record);
        let pause = self.active.intervals.pause(standing.state, self.is_idle(began), fastrand::u64(..));
        if let Some(pause) = pause.filter(|_| self.due.contains_key(&record)) {
            self.due.insert(record, began + pause);
        }
    }

    /// Returns true after so long without requests that probes may be rare.
    fn is_idle(&mut self, now: Instant) -> bool {
        let (Some(traffic), Some(pause)) = (&self.plan.traffic, self.active.intervals.no_traffic) else {
            return false;
        };
        if self.usable && traffic.take() {
            self.traffic = Some(now);
        }
        self.traffic.is_none_or(|last| now.saturating_duration_since(last) > pause)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicU16, Ordering};

    use sigma_config::checks::{self, ActiveHealthy, ActiveUnhealthy, CheckType, Checks};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::endpoint::EndpointSet;

    const SILENT: u16 = 1;

    /// Sends the current status on each connection, or nothing; records the last request.
    async fn node(status: Arc<AtomicU16>, seen: Arc<Mutex<String>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 2048];
                let len = stream.read(&mut request).await.unwrap_or(0);
                *lock(&seen) = String::from_utf8_lossy(&request[..len]).into_owned();
                match status.load(Ordering::SeqCst) {
                    SILENT => held.push(stream),
                    status => {
                        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                }
            }
        });
        addr
    }

    fn plan(kind: CheckType) -> Plan {
        let active = checks::Active {
            kind,
            http_path: "/ping".to_owned(),
            req_headers: vec!["X-Probe: yes".to_owned()],
            healthy: Some(ActiveHealthy::default()),
            unhealthy: Some(ActiveUnhealthy::default()),
            ..checks::Active::default()
        };
        let checks = Checks { active: Some(active), ..Checks::default() };
        let mut plan = Plan::compile(&checks, None, None).expect("valid");
        let active = plan.active.as_mut().expect("active checks");
        active.timeout = Duration::from_millis(200);
        active.intervals.healthy = Some(Duration::from_millis(10));
        active.intervals.unhealthy = Some(Duration::from_millis(10));
        plan
    }

    fn set(checkers: &mut Checkers, addrs: &[SocketAddr]) -> Arc<EndpointSet> {
        let records = checkers.records("u");
        let endpoint = |addr: &SocketAddr| Endpoint {
            lease: crate::identity::Lease::numbered(0),
            host: "node.test".to_owned(),
            port: addr.port(),
            addr: Address::Tcp(*addr),
            host_header: String::new(),
            weight: 1,
            priority: 0,
            metadata: None,
            by_address: false,
            quic_port: None,
            health: records.of("node.test", addr.port(), &Address::Tcp(*addr)),
        };
        let endpoints = addrs.iter().map(endpoint).collect();
        Arc::new(EndpointSet::new(endpoints, Arc::clone(records.epoch())))
    }

    fn cell(checkers: &mut Checkers, addr: SocketAddr) -> Arc<UpstreamCell> {
        Arc::new(UpstreamCell::new(set(checkers, &[addr])))
    }

    fn spec(plan: &Arc<Plan>, cell: &Arc<UpstreamCell>) -> Vec<CheckerSpec> {
        vec![CheckerSpec { key: "u".to_owned(), plan: Arc::clone(plan), cell: Arc::clone(cell) }]
    }

    async fn wait_for(checkers: &Checkers, want: State) {
        wait_for_node(checkers, 0, want).await;
    }

    async fn wait_for_node(checkers: &Checkers, at: usize, want: State) {
        let state = || checkers.status("u").expect("a checker")[at].standing.state;
        let reached = async {
            while state() != want {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(20), reached).await;
        assert!(reached.is_ok(), "want {want:?}, is {:?}", state());
    }

    #[tokio::test]
    async fn probes_turn_the_state_and_reloads_keep_it() {
        let status = Arc::new(AtomicU16::new(200));
        let seen = Arc::new(Mutex::new(String::new()));
        let addr = node(Arc::clone(&status), Arc::clone(&seen)).await;
        let mut checkers = Checkers::default();
        let first = cell(&mut checkers, addr);
        let http = Arc::new(plan(CheckType::Http));
        checkers.commit(spec(&http, &first));
        status.store(503, Ordering::SeqCst);
        wait_for(&checkers, State::Unhealthy).await;
        let want = "GET /ping HTTP/1.1\r\nConnection: close\r\nHost: node.test\r\nX-Probe: yes\r\n\r\n";
        assert_eq!(*lock(&seen), want);
        status.store(200, Ordering::SeqCst);
        wait_for(&checkers, State::Healthy).await;
        status.store(SILENT, Ordering::SeqCst);
        wait_for(&checkers, State::Unhealthy).await;

        // The same checks: the loops continue and read the new cell. Other checks: they start again.
        let task = |c: &Checkers| c.upstreams["u"].running.as_ref().expect("running").task.id();
        let before = task(&checkers);
        let second = cell(&mut checkers, addr);
        assert_eq!(second.load().endpoints[0].health.standing().state, State::Unhealthy);
        drop(first);
        checkers.commit(spec(&http, &second));
        assert_eq!(task(&checkers), before);
        checkers.commit(spec(&Arc::new(plan(CheckType::Tcp)), &second));
        assert_ne!(task(&checkers), before);
        wait_for(&checkers, State::Healthy).await;
        checkers.commit(Vec::new());
        assert!(checkers.keys().is_empty() && checkers.status("u").is_none());
    }

    #[tokio::test]
    async fn state_of_the_previous_process_applies_to_late_nodes_for_a_time() {
        let node = |port: u16| KeptNode {
            host: "node.test".to_owned(),
            port,
            address: format!("127.0.0.1:{port}"),
            down: Some("timeout".to_owned()),
            ejections: None,
        };
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut probed = plan(CheckType::Tcp);
        // No probe finds out within the test.
        if let Some(active) = &mut probed.active {
            active.intervals.healthy = None;
            active.intervals.unhealthy = Some(Duration::from_secs(3600));
        }
        let (probed, mut checkers) = (Arc::new(probed), Checkers::default());
        let nodes = [("u".to_owned(), vec![node(1), node(2), node(3)]), ("gone".to_owned(), vec![node(4)])];
        let kept = StoredHealth { nodes: nodes.into(), ..StoredHealth::default() };
        checkers.begin_with(kept.clone());
        assert_eq!(checkers.kept(), kept, "an upstream may come later");
        checkers.plan("u", &probed);
        let cell = cell(&mut checkers, at(1));
        checkers.commit(spec(&probed, &cell));
        let usable = |checkers: &Checkers| -> Vec<bool> {
            let all = checkers.status("u").expect("a checker");
            all.iter().map(|target| target.standing.usable()).collect()
        };
        assert_eq!(usable(&checkers), [false]);
        cell.publish(set(&mut checkers, &[at(1), at(2), at(9)]));
        assert_eq!(usable(&checkers), [false, false, true]);
        assert_eq!(checkers.kept().nodes["u"], [node(1), node(2)]);
        checkers.forget_earlier();
        cell.publish(set(&mut checkers, &[at(1), at(3)]));
        assert_eq!(usable(&checkers), [false, true]);
        assert!(!checkers.kept().nodes.contains_key("gone"));
    }

    #[tokio::test]
    async fn nodes_that_come_and_go_need_no_compilation() {
        let (fails, seen) = (Arc::new(AtomicU16::new(503)), Arc::new(Mutex::new(String::new())));
        let first = node(Arc::new(AtomicU16::new(200)), Arc::default()).await;
        let second = node(Arc::clone(&fails), Arc::clone(&seen)).await;
        let third = node(Arc::clone(&fails), Arc::default()).await;
        let mut checkers = Checkers::default();
        let cell = cell(&mut checkers, first);
        checkers.commit(spec(&Arc::new(plan(CheckType::Http)), &cell));
        cell.publish(set(&mut checkers, &[first, second]));
        wait_for_node(&checkers, 1, State::Unhealthy).await;
        // It stays, at another position, with its state.
        cell.publish(set(&mut checkers, &[second, third]));
        let standing = checkers.status("u").expect("a checker")[0].standing.state;
        assert_eq!(standing, State::Unhealthy);
        wait_for_node(&checkers, 1, State::Unhealthy).await;
        let records = checkers.records("u");
        // The first one is dropped after its last probe.
        let forgotten = async {
            while records.live() != 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), forgotten).await.expect("two records");
        fails.store(200, Ordering::SeqCst);
        wait_for_node(&checkers, 0, State::Healthy).await;
    }

    #[tokio::test]
    async fn a_closed_port_is_a_tcp_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        drop(listener);
        let mut checkers = Checkers::default();
        let cell = cell(&mut checkers, addr);
        checkers.commit(spec(&Arc::new(plan(CheckType::Tcp)), &cell));
        wait_for(&checkers, State::Unhealthy).await;
        assert_eq!(checkers.status("u").expect("a checker")[0].standing.tcp_failures, 2);
    }
}
