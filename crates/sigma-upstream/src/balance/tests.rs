//! The balance policies compared with their specified sequences and shares.

mod policies;
mod rules;
mod scale;
mod stress;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::endpoint::{Address, Endpoint};
use crate::health::{Event, Health, HealthEpoch, Limits};
use crate::identity::Lease;

/// `(weight, priority)` of each node; node n has identity n and port n + 1.
fn cell(nodes: &[(u32, i32)]) -> (Arc<UpstreamCell>, Arc<EndpointSet>) {
    let epoch = Arc::new(HealthEpoch::default());
    let endpoint = |(at, &(weight, priority)): (usize, &(u32, i32))| Endpoint {
        lease: Lease::numbered(at),
        host: "10.0.0.1".to_owned(),
        port: at as u16 + 1,
        addr: Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, at as u16 + 1))),
        host_header: String::new(),
        weight,
        priority,
        metadata: None,
        health: Arc::new(Health::new(Arc::clone(&epoch))),
        by_address: false,
        quic_port: None,
    };
    let endpoints = nodes.iter().enumerate().map(endpoint).collect();
    let set = Arc::new(EndpointSet::new(endpoints, Arc::clone(&epoch)));
    (Arc::new(UpstreamCell::new(Arc::clone(&set))), set)
}

fn balancer(balance: Balance, nodes: &[(u32, i32)]) -> (Balancer, Arc<EndpointSet>) {
    let (cell, set) = cell(nodes);
    (Balancer::new(balance, cell, 0), set)
}

fn context<'a>(tried: &'a Tried, key: &'a [u8], random: u64) -> PickContext<'a> {
    PickContext { session: None, subset: None, key: Some(key), tried, now_ms: 1_000_000, random }
}

fn pick(balancer: &mut Balancer) -> Option<usize> {
    balancer.pick(&context(&Tried::default(), b"", 0))
}

fn fell(set: &EndpointSet, at: usize) {
    let limits = Limits { successes: 1, http_failures: 1, tcp_failures: 1, timeouts: 1 };
    set.endpoints[at].health.apply(Event::TcpFailure, limits);
}

fn rose(set: &EndpointSet, at: usize) {
    let limits = Limits { successes: 1, http_failures: 1, tcp_failures: 1, timeouts: 1 };
    set.endpoints[at].health.apply(Event::Success, limits);
}

fn id(at: usize) -> EndpointId {
    EndpointId::numbered(at)
}

/// Returns all nodes that a request with unlimited retries would try, in order.
fn walk(balancer: &mut Balancer, key: &[u8]) -> Vec<usize> {
    let mut tried = Tried::default();
    let mut order = Vec::new();
    while let Some(at) = balancer.pick(&context(&tried, key, 7)) {
        order.push(at);
        assert!(!tried.contains(id(at)), "{order:?}");
        tried.insert(id(at));
    }
    order
}

#[test]
fn round_robin_order() {
    let check = |nodes: &[(u32, i32)], want: &[usize]| {
        let (mut balancer, _) = balancer(Balance::Roundrobin, nodes);
        let got: Vec<usize> = want.iter().filter_map(|_| pick(&mut balancer)).collect();
        assert_eq!(got, want, "{nodes:?}");
    };
    check(&[(5, 0), (1, 0), (1, 0)], &[0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
    check(&[(3, 0), (3, 0)], &[0, 1, 0, 1]);
    check(&[(0, 0), (2, 0), (1, 0)], &[1, 2, 1, 1, 2, 1]);
    check(&[(0, 0), (0, 0)], &[0, 1, 0, 1]);
    check(&[(0, 0)], &[0, 0]);
    // Weight 0 but alone in its group.
    check(&[(0, 1), (1, 0)], &[0, 0]);
    check(&[], &[]);
    assert_eq!(pick(&mut balancer(Balance::Roundrobin, &[]).0), None);
}

proptest! {
    #[test]
    fn round_robin_shares_are_exact(weights in prop::collection::vec(0u32..40, 1..9), seed: u64) {
        let nodes: Vec<(u32, i32)> = weights.iter().map(|&w| (w, 0)).collect();
        let mut balancer = Balancer::new(Balance::Roundrobin, cell(&nodes).0, seed);
        let divisor = weights.iter().fold(0, |d, &w| gcd(d, w));
        let all_zero = divisor == 0;
        let share = |w: u32| if all_zero { 1 } else { w / divisor };
        let period: u32 = weights.iter().map(|&w| share(w)).sum();
        for _ in 0..3 {
            let mut counts = vec![0; weights.len()];
            for _ in 0..period {
                counts[pick(&mut balancer).expect("a node")] += 1;
            }
            let want: Vec<u32> = weights.iter().map(|&w| share(w)).collect();
            prop_assert_eq!(&counts, &want);
        }
    }

    #[test]
    fn every_node_is_tried_once_and_groups_in_order(
        nodes in prop::collection::vec((1u32..9, -2i32..3), 2..12),
        kind in 0usize..KINDS.len(),
    ) {
        let kind = KINDS[kind];
        let (mut balancer, _) = balancer(kind, &nodes);
        let order = walk(&mut balancer, b"key");
        prop_assert_eq!(order.len(), nodes.len());
        let priorities: Vec<i32> = order.iter().map(|&at| nodes[at].1).collect();
        prop_assert!(priorities.is_sorted_by(|a, b| a >= b), "{:?} {:?}", kind, priorities);
    }
}

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

#[test]
fn unhealthy_nodes_are_left_out_unless_all_are() {
    for kind in KINDS {
        let (mut balancer, set) = balancer(kind, &[(1, 1), (1, 1), (1, 0)]);
        fell(&set, 0);
        assert_eq!(walk(&mut balancer, b"k"), [1, 2], "{kind:?}");
        fell(&set, 1);
        assert_eq!(walk(&mut balancer, b"k"), [2], "{kind:?}");
        fell(&set, 2);
        assert_eq!(walk(&mut balancer, b"k").len(), 3, "{kind:?}");
        rose(&set, 0);
        assert_eq!(walk(&mut balancer, b"k"), [0], "{kind:?}");
    }
}

#[test]
fn a_single_node_is_always_used() {
    for kind in KINDS {
        let (mut balancer, set) = balancer(kind, &[(0, 0)]);
        fell(&set, 0);
        let mut tried = Tried::default();
        tried.insert(id(0));
        assert_eq!(balancer.pick(&context(&tried, b"", 0)), Some(0), "{kind:?}");
    }
}

#[test]
fn tried_holds_more_than_its_inline_places() {
    let mut tried = Tried::default();
    (0..20).for_each(|n| tried.insert(id(n * 3)));
    assert!((0..60).all(|n| tried.contains(id(n)) == (n % 3 == 0)));
}

/// Computes CRC-32 bit by bit, from the definition.
fn slow_crc(parts: &[&[u8]]) -> u32 {
    let mut state = !0u32;
    for byte in parts.iter().copied().flatten() {
        state ^= u32::from(*byte);
        for _ in 0..8 {
            state = (state >> 1) ^ (0xedb8_8320 & (state & 1).wrapping_neg());
        }
    }
    !state
}

/// Returns the node for `key` in APISIX's hash ring, computed without a ring: shares are weight / gcd.
fn slow_chash(shares: &[u32], key: &[u8]) -> usize {
    let mut points = Vec::new();
    for (at, share) in shares.iter().enumerate() {
        let id = format!("10.0.0.1\0{}", at + 1);
        let mut previous = [0u8; 4];
        for _ in 0..160 * share {
            let point = slow_crc(&[id.as_bytes(), &previous]);
            previous = point.to_le_bytes();
            points.push((point, at));
        }
    }
    let hash = slow_crc(&[key]);
    let distance = |point: u32| point.wrapping_sub(hash);
    points.iter().min_by_key(|(point, _)| distance(*point)).expect("points").1
}

#[test]
fn chash_places_keys_as_the_reference_does() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    let (mut balancer, set) = balancer(Balance::Chash, &[(2, 0), (4, 0), (0, 0), (6, 0)]);
    let key = |n: u32| format!("/item/{n}").into_bytes();
    let place = |balancer: &mut Balancer, n| balancer.pick(&context(&Tried::default(), &key(n), 0));
    let before: Vec<_> = (0..200).map(|n| place(&mut balancer, n)).collect();
    for (n, &got) in (0..).zip(&before) {
        assert_eq!(got, Some(slow_chash(&[1, 2, 0, 3], &key(n))), "key {n}");
    }
    // A failing node moves only its own keys.
    fell(&set, 1);
    for (n, &was) in (0..).zip(&before) {
        let now = place(&mut balancer, n);
        assert_ne!(now, Some(1));
        assert!(was == Some(1) || now == was, "key {n}");
    }
}

#[test]
fn chash_of_weights_0_picks_nothing() {
    assert_eq!(pick(&mut balancer(Balance::Chash, &[(0, 0), (0, 0)]).0), None);
}

#[test]
fn chash_rings_are_bounded() {
    let (mut balancer, _) = balancer(Balance::Chash, &[(u32::MAX, 0), (u32::MAX - 1, 0), (1, 0)]);
    assert!(pick(&mut balancer).is_some());
}

#[test]
fn least_conn_follows_load_and_survives_changes() {
    let done = Outcome { latency_ms: None, now_ms: 0 };
    let (mut balancer, _) = balancer(Balance::LeastConn, &[(2, 0), (1, 0), (0, 0)]);
    let mut counts = HashMap::new();
    for _ in 0..9 {
        let at = pick(&mut balancer).expect("a node");
        balancer.start(id(at));
        *counts.entry(at).or_insert(0) += 1;
    }
    assert_eq!(counts, HashMap::from([(0, 6), (1, 3)]));
    balancer.end(id(1), done);
    balancer.end(id(1), done);
    assert_eq!(pick(&mut balancer), Some(1));
    // Node 1 leaves and comes back; its one active request still counts.
    balancer.follow(cell(&[(1, 0)]).0);
    balancer.follow(cell(&[(1, 0), (1, 0)]).0);
    (0..6).for_each(|_| balancer.end(id(0), done));
    assert_eq!(pick(&mut balancer), Some(0));
    balancer.end(id(1), done);
    balancer.end(id(1), done);
    balancer.start(id(0));
    assert_eq!(pick(&mut balancer), Some(1));
}

#[test]
fn an_attempt_that_panics_leaves_its_node_free() {
    let (balancer, _) = balancer(Balance::LeastConn, &[(1, 0), (1, 0)]);
    let balancer = RefCell::new(balancer);
    let picked = || pick(&mut balancer.borrow_mut()).expect("a node");
    let first = picked();
    let given_up = InFlight::begin(&balancer, id(first), 0);
    assert_ne!(picked(), first);
    drop(given_up);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _in_flight = InFlight::begin(&balancer, id(first), 0);
        panic!("within an attempt");
    }));
    assert!(panicked.is_err());
    let other = InFlight::begin(&balancer, id(1 - first), 0);
    assert_eq!(picked(), first);
    other.end(Outcome { latency_ms: None, now_ms: 0 });
    // Both are free, and take turns.
    assert_eq!([picked(), picked(), picked()].map(|at| at == first), [false, true, false]);
}

#[test]
fn ewma_prefers_the_faster_of_two() {
    let (mut balancer, _) = balancer(Balance::Ewma, &[(1, 0), (1, 0)]);
    let end = |balancer: &mut Balancer, at, latency_ms, now_ms| {
        balancer.end(id(at), Outcome { latency_ms: Some(latency_ms), now_ms });
    };
    end(&mut balancer, 0, 50.0, 1_000_000);
    end(&mut balancer, 1, 10.0, 1_000_000);
    let at = |balancer: &mut Balancer, now_ms, random| {
        let tried = Tried::default();
        balancer.pick(&PickContext { session: None, subset: None, key: None, tried: &tried, now_ms, random })
    };
    for random in [0, u64::MAX, 1 << 63, 12345] {
        assert_eq!(at(&mut balancer, 1_000_000, random), Some(1));
    }
    // 50·e^-2 < 10: an old slow measurement is better than a recent one.
    end(&mut balancer, 1, 10.0, 1_020_000);
    assert_eq!(at(&mut balancer, 1_020_000, 0), Some(0));
}

#[test]
fn random_follows_weights() {
    let (mut balancer, _) = balancer(Balance::Random, &[(1, 0), (0, 0), (3, 0)]);
    let mut counts = [0; 3];
    for n in 0..400u64 {
        let random = n * (u64::MAX / 400) + u64::MAX / 800;
        let at = balancer.pick(&context(&Tried::default(), b"", random)).expect("a node");
        counts[at] += 1;
    }
    assert_eq!(counts, [100, 0, 300]);
}
