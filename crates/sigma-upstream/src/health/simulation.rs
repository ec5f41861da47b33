//! Outlier detection under random traffic, with simulated time and randomness.

use std::sync::Arc;

use sigma_config::resources::OutlierDetection;

use super::outlier::{NodeOutcome, Rule, Rules};
use super::{Health, HealthEpoch, ejection};
use crate::endpoint::{Address, Endpoint};
use crate::identity::Lease;

const WORKERS: usize = 3;

struct World {
    random: fastrand::Rng,
    rules: Rules,
    config: OutlierDetection,
    nodes: Vec<Endpoint>,
    /// The failure probability of each node, in percent.
    fails: Vec<u32>,
    /// Nodes that have failed at least once.
    has_failed: Vec<bool>,
    /// The time of return of each ejected node.
    until: Vec<Option<u64>>,
    ejections: usize,
    now_ms: u64,
}

fn config(random: &mut fastrand::Rng) -> OutlierDetection {
    OutlierDetection {
        consecutive_5xx: random.u32(1..6),
        consecutive_gateway_failure: random.u32(1..6),
        enforcing_consecutive_gateway_failure: [0, 100][random.usize(..2)],
        split_external_local_origin_errors: random.bool(),
        interval: [0.5, 10.0][random.usize(..2)],
        base_ejection_time: [0.1, 5.0][random.usize(..2)],
        max_ejection_time: Some(20.0),
        max_ejection_time_jitter: [0.0, 1.0][random.usize(..2)],
        max_ejection_percent: [0, 10, 50, 100][random.usize(..4)],
        success_rate_minimum_hosts: 2,
        success_rate_request_volume: 5,
        enforcing_failure_percentage: [0, 100][random.usize(..2)],
        failure_percentage_minimum_hosts: 1,
        failure_percentage_request_volume: 5,
        ..OutlierDetection::default()
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = config(&mut random);
        let epoch = Arc::new(HealthEpoch::default());
        let node = |at: usize| {
            let health = Health::new(Arc::clone(&epoch));
            health.compare(WORKERS);
            let port = u16::try_from(at).expect("few nodes") + 1;
            Endpoint {
                lease: Lease::numbered(at),
                host: "127.0.0.1".to_owned(),
                port,
                addr: Address::Tcp(([127, 0, 0, 1], port).into()),
                host_header: String::new(),
                weight: 1,
                priority: 0,
                metadata: None,
                by_address: false,
                quic_port: None,
                health: Arc::new(health),
            }
        };
        let nodes: Vec<Endpoint> = (0..random.usize(1..20)).map(node).collect();
        let count = nodes.len();
        let rules = Rules::compile(&config);
        World {
            random,
            rules,
            config,
            nodes,
            fails: vec![0; count],
            has_failed: vec![false; count],
            until: vec![None; count],
            ejections: 0,
            now_ms: 1_000,
        }
    }

    /// Takes back exactly the nodes whose time has ended.
    fn return_due(&mut self) {
        for (node, until) in self.nodes.iter().zip(&mut self.until) {
            if until.is_some_and(|until| until <= self.now_ms) {
                ejection::come_back(&node.health);
                *until = None;
            }
            assert_eq!(node.health.ejected_until_ms(), *until);
            assert_eq!(node.health.usable(), until.is_none());
        }
    }

    fn request(&mut self) {
        let usable: Vec<usize> = (0..self.nodes.len()).filter(|at| self.until[*at].is_none()).collect();
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let from = if usable.is_empty() { &all } else { &usable };
        let at = from[self.random.usize(..from.len())];
        let seen = match self.random.u32(..100) < self.fails[at] {
            false => NodeOutcome::Answer([200, 404][self.random.usize(..2)]),
            true => [NodeOutcome::Answer(500), NodeOutcome::Answer(503), NodeOutcome::LocalOriginFailure]
                [self.random.usize(..3)],
        };
        self.has_failed[at] |= !matches!(seen, NodeOutcome::Answer(200 | 404));
        let mut found = Vec::new();
        self.nodes[at].health.note(self.random.usize(..WORKERS), seen, &self.rules, |rule| found.push(rule));
        found.into_iter().for_each(|rule| self.eject(at, rule));
    }

    fn eject(&mut self, at: usize, rule: Rule) {
        assert!(self.has_failed[at], "node {at} has never failed, and is found by {rule:?}");
        let (out, all) = (self.until.iter().flatten().count(), self.nodes.len());
        let was_out = self.until[at].is_some();
        let random = &mut self.random;
        let target = &self.nodes[at].health;
        let until = ejection::decide(&self.rules, target, rule, &self.nodes, self.now_ms, || random.u64(..));
        let allowed = self.config.max_ejection_percent as usize;
        let may = allowed > 0 && (out == 0 || out * 100 < all * allowed);
        // Every active rule here is always enforced; the others only count.
        let expected = may && !was_out && self.rules.enforces(rule, 0);
        assert_eq!(until.is_some(), expected, "{rule:?}: {out} of {all} are out");
        if let Some(until) = until {
            let longest = 20_000 + (self.config.max_ejection_time_jitter * 1000.0) as u64;
            assert!(until > self.now_ms && until <= self.now_ms + longest, "{} ms", until - self.now_ms);
            self.until[at] = Some(until);
            self.ejections += 1;
        }
    }

    fn sweep(&mut self) {
        for (at, rule) in ejection::compare(&self.rules, &self.nodes) {
            let is_counted_only = !self.rules.enforces(rule, 0);
            assert!(self.until[at].is_none() || is_counted_only, "node {at} is out already");
            self.eject(at, rule);
        }
    }

    /// Runs it and returns the number of ejected nodes.
    fn run(mut self) -> usize {
        let mut next_sweep = self.now_ms + self.rules.interval_ms;
        for _ in 0..2_000 {
            self.now_ms += self.random.u64(..40);
            if self.random.u32(..50) == 0 {
                let at = self.random.usize(..self.fails.len());
                self.fails[at] = [0, 0, 5, 50, 100][self.random.usize(..5)];
            }
            self.return_due();
            if self.now_ms >= next_sweep {
                next_sweep += self.rules.interval_ms;
                self.sweep();
            }
            self.request();
        }
        // In the end all come back.
        self.now_ms += 21_000;
        self.return_due();
        assert!(self.nodes.iter().all(|node| node.health.usable()));
        self.ejections
    }
}

#[test]
fn nodes_go_out_for_a_reason_within_limits_and_come_back() {
    let mut ejections = 0;
    for seed in 0..300 {
        let ended = std::panic::catch_unwind(|| World::new(seed).run());
        assert!(ended.is_ok(), "seed {seed}");
        ejections += ended.unwrap_or_default();
    }
    assert!(ejections > 1_000, "only {ejections} ejections");
}
