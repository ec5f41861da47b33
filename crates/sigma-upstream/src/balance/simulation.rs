//! A simulation of a balancer from a seed: nodes come, go and change weight, health changes, attempts begin and end
//! in any order.
//!
//! Invariants:
//! - An unusable node is not picked while a usable one exists; a lower priority group is not used while a higher one
//!   has an untried node; a tried node is not picked again.
//! - At the end, shares follow the weights, and no node counts as busy.

use std::net::{Ipv4Addr, SocketAddr};

use super::*;
use crate::endpoint::{Address, Endpoint};
use crate::health::{Event, Health, HealthEpoch, Limits};
use crate::identity::{EndpointId, Lease};

const KINDS: [Balance; 9] = [
    Balance::Roundrobin,
    Balance::Chash,
    Balance::Maglev,
    Balance::Rendezvous,
    Balance::Ewma,
    Balance::PeakEwma,
    Balance::LeastConn,
    Balance::LeastRequest,
    Balance::Random,
];

/// The number of nodes.
const NODES: usize = 8;

const AT_ONCE: Limits = Limits { successes: 1, http_failures: 1, tcp_failures: 1, timeouts: 1 };

#[test]
fn balancing() {
    sigma_testkit::for_seeds("cargo test -p sigma-upstream --lib simulation::balancing", simulate);
}

/// A node with its true state.
#[derive(Debug, Clone)]
struct Node {
    at: usize,
    weight: u32,
    priority: i32,
    health: Arc<Health>,
}

impl Node {
    fn id(&self) -> EndpointId {
        EndpointId::numbered(self.at)
    }
}

struct World {
    random: fastrand::Rng,
    epoch: Arc<HealthEpoch>,
    kind: Balance,
    /// All nodes; the first of them are in use.
    nodes: Vec<Node>,
    /// Running attempts, by node.
    running: [u64; NODES],
    used: usize,
    cell: Arc<UpstreamCell>,
}

fn simulate(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let epoch = Arc::new(HealthEpoch::default());
    let kind = KINDS[random.usize(..KINDS.len())];
    let node = |at| Node {
        at,
        weight: [0, 1, 1, 1, 2, 5, 100][random.usize(..7)],
        priority: [0, 0, 0, 1, -1][random.usize(..5)],
        health: Arc::new(Health::new(Arc::clone(&epoch))),
    };
    let nodes: Vec<Node> = (0..NODES).map(node).collect();
    let used = random.usize(1..=nodes.len());
    let cell = Arc::new(UpstreamCell::new(set(&nodes[..used], &epoch)));
    let balancer = RefCell::new(Balancer::new(kind, Arc::clone(&cell), seed));
    let mut world = World { random, epoch, kind, nodes, running: [0; NODES], used, cell };
    let mut running = Vec::new();
    for _ in 0..world.random.usize(10..200) {
        match world.random.u32(..10) {
            0 => world.turn_health(),
            1 => world.change_nodes(),
            2 => balancer.borrow_mut().follow(Arc::clone(&world.cell)),
            3..=6 => world.request(&balancer, &mut running)?,
            _ if running.is_empty() => {}
            _ => {
                let (id, ended) = running.swap_remove(world.random.usize(..running.len()));
                world.running[id.index()] -= 1;
                world.end(ended);
            }
        }
    }
    for (_, attempt) in running {
        world.end(attempt);
    }
    world.settle();
    world.check_shares(&balancer)
}

fn set(nodes: &[Node], epoch: &Arc<HealthEpoch>) -> Arc<EndpointSet> {
    let endpoint = |node: &Node| Endpoint {
        lease: Lease::numbered(node.at),
        host: "10.0.0.1".to_owned(),
        port: node.at as u16 + 1,
        addr: Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, node.at as u16 + 1))),
        host_header: String::new(),
        weight: node.weight,
        priority: node.priority,
        metadata: None,
        health: Arc::clone(&node.health),
        by_address: false,
        quic_port: None,
    };
    Arc::new(EndpointSet::new(nodes.iter().map(endpoint).collect(), Arc::clone(epoch)))
}

impl World {
    fn publish(&self) {
        self.cell.publish(set(&self.nodes[..self.used], &self.epoch));
    }

    fn turn_health(&mut self) {
        let node = &self.nodes[self.random.usize(..self.nodes.len())];
        let event = if self.random.bool() { Event::Success } else { Event::TcpFailure };
        node.health.apply(event, AT_ONCE);
    }

    fn change_nodes(&mut self) {
        self.random.shuffle(&mut self.nodes);
        self.used = self.random.usize(1..=self.nodes.len());
        let at = self.random.usize(..self.nodes.len());
        self.nodes[at].weight = self.random.u32(..6);
        self.publish();
    }

    /// Sends a request with up to four attempts, the last of which keeps running.
    fn request<'b>(
        &mut self,
        balancer: &'b RefCell<Balancer>,
        running: &mut Vec<(EndpointId, InFlight<&'b RefCell<Balancer>>)>,
    ) -> Result<(), String> {
        let mut tried = Tried::default();
        for _ in 0..self.random.usize(1..5) {
            let key = [self.random.u8(..)];
            let context = PickContext {
                session: None,
                subset: None,
                key: Some(&key),
                tried: &tried,
                now_ms: 1_000,
                random: self.random.u64(..),
            };
            let picked = balancer.borrow_mut().pick(&context);
            self.judge(picked, &tried)?;
            let Some(at) = picked else { return Ok(()) };
            let id = self.nodes[at].id();
            tried.insert(id);
            let attempt = InFlight::begin(balancer, id, 1_000);
            if self.random.bool() {
                self.running[id.index()] += 1;
                running.push((id, attempt));
                return Ok(());
            }
            self.end(attempt);
        }
        Ok(())
    }

    /// Ends normally or is cancelled.
    fn end(&mut self, attempt: InFlight<&RefCell<Balancer>>) {
        if self.random.bool() {
            let latency_ms = self.random.bool().then(|| f64::from(self.random.u16(..)));
            attempt.end(Outcome { latency_ms, now_ms: 2_000 });
        }
    }

    fn judge(&self, picked: Option<usize>, tried: &Tried) -> Result<(), String> {
        let nodes = &self.nodes[..self.used];
        let wrong =
            |what: &str| Err(format!("{:?} {what}: {picked:?} of {nodes:?} after {tried:?}", self.kind));
        if nodes.len() == 1 {
            return if picked == Some(0) { Ok(()) } else { wrong("leaves the only node") };
        }
        let any = nodes.iter().any(|node| node.health.usable());
        let may = |node: &&Node| (!any || node.health.usable()) && !tried.contains(node.id());
        let best = nodes.iter().filter(may).map(|node| node.priority).max();
        let Some(at) = picked else {
            // Weight 0 takes no part in these policies while another node has weight.
            let weighty = nodes.iter().filter(may).any(|node| node.weight > 0);
            return if best.is_some() && weighty { wrong("finds no node") } else { Ok(()) };
        };
        let Some(node) = nodes.get(at) else { return wrong("names no node") };
        if !may(&node) {
            return wrong("takes what may not be used");
        }
        let by_weight = !matches!(self.kind, Balance::Ewma);
        let weighty = |node: &&Node| may(node) && Some(node.priority) == best && node.weight > 0;
        if Some(node.priority) < best && nodes.iter().any(|node| weighty(&node)) {
            return wrong("leaves a higher group");
        }
        if by_weight
            && node.weight == 0
            && nodes.iter().any(|other| other.priority == node.priority && weighty(&other))
        {
            return wrong("takes a node without weight");
        }
        let load = |node: &Node| (self.running[node.at] + 1, u64::from(node.weight));
        let (own, own_weight) = load(node);
        let rivals = nodes.iter().filter(|other| other.priority == node.priority && may(other)).map(load);
        let mut lighter = rivals.filter(|(other, weight)| other * own_weight < own * weight);
        if self.kind == Balance::LeastConn && lighter.next().is_some() {
            return wrong("takes a node that is busier than another");
        }
        Ok(())
    }

    /// Makes a set of usable nodes of one priority.
    fn settle(&mut self) {
        self.used = self.random.usize(2..=self.nodes.len());
        for node in &mut self.nodes {
            (node.weight, node.priority) = (self.random.u32(1..5), 0);
            node.health.apply(Event::Success, AT_ONCE);
        }
        self.publish();
    }

    /// Pending requests follow the weights only if no node is busy before.
    fn check_shares(&mut self, balancer: &RefCell<Balancer>) -> Result<(), String> {
        let nodes = &self.nodes[..self.used];
        let total: u32 = nodes.iter().map(|node| node.weight).sum();
        let rounds = 40;
        let mut counts = vec![0u32; nodes.len()];
        let mut held = Vec::new();
        for _ in 0..total * rounds {
            let key = self.random.u64(..).to_le_bytes();
            let tried = Tried::default();
            let context = PickContext {
                session: None,
                subset: None,
                key: Some(&key),
                tried: &tried,
                now_ms: 3_000,
                random: self.random.u64(..),
            };
            let Some(at) = balancer.borrow_mut().pick(&context) else { return Err("no node".into()) };
            counts[at] += 1;
            held.push(InFlight::begin(balancer, nodes[at].id(), 3_000));
        }
        let far = |(count, node): (&u32, &Node)| {
            let share = node.weight * rounds;
            let off = f64::from(count.abs_diff(share));
            let allowed = match self.kind {
                Balance::LeastConn => 0.0,
                // It continues with earlier debts.
                Balance::Roundrobin => 2.0,
                // Six standard deviations; the choice of the less busy of two evens that out.
                Balance::Random | Balance::LeastRequest | Balance::Maglev | Balance::Rendezvous => {
                    6.0 * f64::from(share).sqrt()
                }
                // The ring adds the randomness of its points.
                Balance::Chash => 6.0 * f64::from(share).sqrt() + 0.5 * f64::from(share),
                // It depends on latency alone.
                _ => f64::from(total * rounds),
            };
            off > allowed
        };
        if counts.iter().zip(nodes).any(far) {
            return Err(format!("{:?}: {counts:?} for {rounds} times {nodes:?}", self.kind));
        }
        Ok(())
    }
}
