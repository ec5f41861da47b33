//! The distribution of each policy, and its moves when a node leaves, in simulated traffic: the test decides when
//! requests come and end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// A request arrives each millisecond, and takes its node's latency.
struct Traffic {
    random: fastrand::Rng,
    now_ms: u64,
    /// The end, and the node.
    running: BinaryHeap<Reverse<(u64, usize, u64)>>,
}

impl Traffic {
    fn new() -> Traffic {
        Traffic { random: fastrand::Rng::with_seed(7), now_ms: 1_000, running: BinaryHeap::new() }
    }

    /// Returns the number of requests of each node, for `count` requests with `latency_ms` at each node.
    fn run(&mut self, balancer: &mut Balancer, count: usize, latency_ms: &[u64]) -> Vec<usize> {
        let mut counts = vec![0; latency_ms.len()];
        for _ in 0..count {
            self.now_ms += 1;
            while let Some(Reverse((end, node, took))) = self.running.peek().copied()
                && end <= self.now_ms
            {
                self.running.pop();
                balancer.end(id(node), Outcome { latency_ms: Some(took as f64), now_ms: end });
            }
            let tried = Tried::default();
            let key = self.random.u64(..).to_le_bytes();
            let random = self.random.u64(..);
            let context = PickContext {
                session: None,
                subset: None,
                key: Some(&key),
                tried: &tried,
                now_ms: self.now_ms,
                random,
            };
            let at = balancer.pick(&context).expect("a node");
            let node = balancer.endpoints().endpoints[at].id().index();
            counts[node] += 1;
            balancer.start(id(node));
            self.running.push(Reverse((self.now_ms + latency_ms[node], node, latency_ms[node])));
        }
        counts
    }
}

/// Each count is its weight's share of the sum, within `percent` of that share.
fn assert_shares(counts: &[usize], weights: &[u32], percent: f64) {
    let (sum, total) = (counts.iter().sum::<usize>() as f64, weights.iter().sum::<u32>());
    for (count, weight) in counts.iter().zip(weights) {
        let share = sum * f64::from(*weight) / f64::from(total);
        let off = (*count as f64 - share).abs();
        assert!(off <= share * percent / 100.0, "{counts:?} of weights {weights:?}");
    }
}

fn unit(weights: &[u32]) -> Vec<(u32, i32)> {
    weights.iter().map(|&weight| (weight, 0)).collect()
}

fn place(balancer: &mut Balancer, key: u32) -> usize {
    balancer.pick(&context(&Tried::default(), &key.to_le_bytes(), 0)).expect("a node")
}

#[test]
fn maglev_is_even_and_moves_little() {
    let weights = [1, 1, 2, 4, 1, 1, 2, 4, 0, 4];
    let (mut balancer, set) = balancer(Balance::Maglev, &unit(&weights));
    const KEYS: u32 = 40_000;
    let places =
        |balancer: &mut Balancer| -> Vec<usize> { (0..KEYS).map(|key| place(balancer, key)).collect() };
    let before = places(&mut balancer);
    let mut counts = vec![0; weights.len()];
    before.iter().for_each(|&at| counts[at] += 1);
    assert_shares(&counts, &weights, 8.0);
    // A failing node moves only its own keys, to all others.
    fell(&set, 3);
    let after = places(&mut balancer);
    let moved: Vec<(usize, usize)> =
        before.iter().zip(&after).filter(|(a, b)| a != b).map(|(a, b)| (*a, *b)).collect();
    assert!(moved.iter().all(|&(from, to)| from == 3 && to != 3));
    assert_eq!(moved.len(), counts[3]);
    assert!((0..10).filter(|at| weights[*at] > 0 && *at != 3).all(|at| moved.iter().any(|m| m.1 == at)));
    rose(&set, 3);
    assert_eq!(places(&mut balancer), before);
    // A removed node moves few keys of the others.
    balancer.follow(cell(&unit(&weights[..9])).0);
    let after = places(&mut balancer);
    let strangers = before.iter().zip(&after).filter(|(a, b)| **a != 9 && a != b).count();
    assert!(strangers < KEYS as usize / 12, "{strangers} of {KEYS} keys moved without need");
}

#[test]
fn maglev_ignores_the_order_of_nodes() {
    let (mut one, set) = balancer(Balance::Maglev, &unit(&[1, 2, 3, 4]));
    let mut endpoints = set.endpoints.clone();
    endpoints.reverse();
    let reversed = EndpointSet::new(endpoints, Arc::clone(&set.health_epoch));
    let mut other = Balancer::new(Balance::Maglev, Arc::new(UpstreamCell::new(Arc::new(reversed))), 3);
    assert!((0..2_000).all(|key| place(&mut one, key) == 3 - place(&mut other, key)));
}

#[test]
fn maglev_without_weights_and_without_nodes() {
    let (mut balancer, _) = balancer(Balance::Maglev, &unit(&[0, 0]));
    let used: std::collections::BTreeSet<usize> = (0..50).map(|key| place(&mut balancer, key)).collect();
    assert_eq!(used.len(), 2);
    assert_eq!(pick(&mut super::balancer(Balance::Maglev, &[]).0), None);
    // Nodes without weight serve when all others are down.
    let (mut balancer, set) = super::balancer(Balance::Maglev, &unit(&[0, 5]));
    assert!((0..50).all(|key| place(&mut balancer, key) == 1));
    fell(&set, 1);
    assert!((0..50).all(|key| place(&mut balancer, key) == 0));
}

#[test]
fn rendezvous_has_exact_shares_and_moves_no_other_key() {
    let weights = [1, 1, 2, 4, 1, 1, 2, 4, 0, 4];
    let (mut balancer, set) = balancer(Balance::Rendezvous, &unit(&weights));
    const KEYS: u32 = 40_000;
    let places =
        |balancer: &mut Balancer| -> Vec<usize> { (0..KEYS).map(|key| place(balancer, key)).collect() };
    let before = places(&mut balancer);
    let mut counts = vec![0; weights.len()];
    before.iter().for_each(|&at| counts[at] += 1);
    assert_shares(&counts, &weights, 8.0);
    let moved = |after: &[usize], gone: usize| {
        let moved = before.iter().zip(after).filter(|(a, b)| a != b);
        assert!(moved.clone().all(|(from, to)| *from == gone && *to != gone));
        moved.count()
    };
    // A failing node moves only its own keys, and so does one that is removed.
    fell(&set, 3);
    assert_eq!(moved(&places(&mut balancer), 3), counts[3]);
    rose(&set, 3);
    assert_eq!(places(&mut balancer), before);
    balancer.follow(cell(&unit(&weights[..9])).0);
    assert_eq!(moved(&places(&mut balancer), 9), counts[9]);
}

#[test]
fn rendezvous_ignores_the_order_of_nodes() {
    let (mut one, set) = balancer(Balance::Rendezvous, &unit(&[1, 2, 3, 4]));
    let mut endpoints = set.endpoints.clone();
    endpoints.reverse();
    let reversed = EndpointSet::new(endpoints, Arc::clone(&set.health_epoch));
    let mut other = Balancer::new(Balance::Rendezvous, Arc::new(UpstreamCell::new(Arc::new(reversed))), 3);
    assert!((0..2_000).all(|key| place(&mut one, key) == 3 - place(&mut other, key)));
}

#[test]
fn rendezvous_uses_nodes_without_weight_last() {
    let (mut balancer, set) = balancer(Balance::Rendezvous, &unit(&[0, 5]));
    assert!((0..50).all(|key| place(&mut balancer, key) == 1));
    fell(&set, 1);
    assert!((0..50).all(|key| place(&mut balancer, key) == 0));
    assert_eq!(pick(&mut super::balancer(Balance::Rendezvous, &[]).0), None);
}

#[test]
fn a_bounded_load_spreads_one_key_over_nodes_with_room() {
    for balance in [Balance::Chash, Balance::Maglev, Balance::Rendezvous] {
        let rules = |bounded_load| Rules { bounded_load, ..Rules::from(balance) };
        let weights = [1, 1, 1, 2, 5];
        let mut free = Balancer::new(rules(None), cell(&unit(&weights)).0, 0);
        let mut bounded = Balancer::new(rules(Some(125)), cell(&unit(&weights)).0, 0);
        // Without load, keys are where they are without bounds.
        assert!((0..500).all(|key| place(&mut free, key) == place(&mut bounded, key)), "{balance:?}");
        let mut running = Vec::new();
        for n in 1..=400u32 {
            let at = place(&mut bounded, 77);
            bounded.start(id(at));
            running.push(at);
            let active = running.iter().filter(|other| **other == at).count() as u32;
            let bound = (n * 125).div_ceil(100) * weights[at];
            assert!(active <= bound.div_ceil(10).max(1), "{balance:?}: {active} of {n} on {at}");
        }
        // The order in which nodes fill depends on the key alone; a finished request makes room again.
        for at in running {
            bounded.end(id(at), Outcome { latency_ms: None, now_ms: 0 });
        }
        assert_eq!(place(&mut bounded, 77), place(&mut free, 77));
    }
}

#[test]
fn a_bounded_load_finds_the_last_node() {
    let rules = Rules { bounded_load: Some(100), ..Rules::from(Balance::Maglev) };
    let (cell, set) = cell(&unit(&[1; 40]));
    let mut balancer = Balancer::new(rules, cell, 0);
    (0..39).for_each(|at| fell(&set, at));
    for _ in 0..100 {
        let at = place(&mut balancer, 5);
        assert_eq!(at, 39);
        balancer.start(id(at));
    }
}

#[test]
fn least_request_follows_weights_and_avoids_slow_nodes() {
    let weights = [1, 2, 3, 4, 2, 3];
    let (mut idle, _) = balancer(Balance::LeastRequest, &unit(&weights));
    // Each request has ended when the next one comes.
    assert_shares(&Traffic::new().run(&mut idle, 30_000, &[0; 6]), &weights, 8.0);
    // Under load the shares stay the same.
    let (mut busy, _) = balancer(Balance::LeastRequest, &unit(&weights));
    assert_shares(&Traffic::new().run(&mut busy, 30_000, &[60; 6]), &weights, 10.0);
    // A node with ten times the latency would have ten times the requests.
    let (mut slow, set) = balancer(Balance::LeastRequest, &unit(&[1; 4]));
    let mut traffic = Traffic::new();
    let counts = traffic.run(&mut slow, 20_000, &[100, 100, 100, 1_000]);
    assert!(counts[3] * 3 < counts[0], "{counts:?}");
    fell(&set, 0);
    let counts = traffic.run(&mut slow, 10_000, &[100; 4]);
    assert_eq!(counts[0], 0);
    assert_shares(&counts[1..], &[1; 3], 15.0);
}

#[test]
fn peak_ewma_avoids_slow_nodes_and_tries_them_again() {
    let (mut balancer, set) = balancer(Balance::PeakEwma, &unit(&[1; 5]));
    let mut traffic = Traffic::new();
    let counts = traffic.run(&mut balancer, 20_000, &[10, 10, 10, 10, 200]);
    assert!(counts[4] * 20 < counts[0], "{counts:?}");
    assert_shares(&counts[..4], &[1; 4], 15.0);
    // It has become as fast as the others: after some decay it is used like them.
    traffic.run(&mut balancer, 60_000, &[10; 5]);
    assert_shares(&traffic.run(&mut balancer, 20_000, &[10; 5]), &[1; 5], 25.0);
    fell(&set, 2);
    assert_eq!(traffic.run(&mut balancer, 5_000, &[10; 5])[2], 0);
}

#[test]
fn peak_ewma_has_weights() {
    let weights = [1, 2, 3, 2, 4];
    let (mut balancer, _) = balancer(Balance::PeakEwma, &unit(&weights));
    let mut traffic = Traffic::new();
    traffic.run(&mut balancer, 20_000, &[100; 5]);
    assert_shares(&traffic.run(&mut balancer, 40_000, &[100; 5]), &weights, 20.0);
}

#[test]
fn many_weights_are_exact_over_a_full_round() {
    let weights: Vec<u32> = (0..100).map(|n| [10, 20, 50, 1_000, 0, 370][n % 6]).collect();
    let (mut balancer, set) = balancer(Balance::Roundrobin, &unit(&weights));
    let mut spread = |picks: u32| {
        let mut counts = vec![0; weights.len()];
        (0..picks).for_each(|_| counts[pick(&mut balancer).expect("a node")] += 10);
        counts
    };
    let total: u32 = weights.iter().sum();
    assert_eq!(spread(total / 10), weights);
    assert_eq!(spread(total / 10), weights);
    // The others continue with their debts.
    fell(&set, 3);
    for (at, (count, weight)) in spread((total - weights[3]) / 10).into_iter().zip(&weights).enumerate() {
        let want = if at == 3 { 0 } else { *weight };
        assert!(count.abs_diff(want) <= 30, "{count} picks of node {at} with weight {weight}");
    }
}

#[test]
fn turns_continue_after_a_change() {
    let (mut balancer, set) = balancer(Balance::Roundrobin, &unit(&[1; 6]));
    let mut turns = |count| -> Vec<usize> { (0..count).filter_map(|_| pick(&mut balancer)).collect() };
    assert_eq!(turns(3), [0, 1, 2]);
    fell(&set, 1);
    assert_eq!(turns(2), [3, 4]);
    fell(&set, 5);
    assert_eq!(turns(2), [0, 2]);
    rose(&set, 1);
    assert_eq!(turns(5), [3, 4, 0, 1, 2]);
}
