//! The rules beside the type: what they promise of distribution, and of moves when a node leaves.

use sigma_config::resources::{SlowStart, Upstream};

use super::*;

/// The rules of an upstream that is configured so.
fn rules(config: Upstream) -> Rules {
    Rules::from(&config)
}

/// Shares in percent that `picks` picks at this time give to each node.
fn shares(balancer: &mut Balancer, now_ms: u64, picks: u32) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(now_ms);
    balancer.refresh(now_ms);
    let mut counts = vec![0u32; balancer.endpoints().endpoints.len()];
    for _ in 0..picks {
        let (key, tried) = (random.u64(..).to_le_bytes(), Tried::default());
        let context = PickContext { key: Some(&key), tried: &tried, now_ms, random: random.u64(..) };
        if let Some(at) = balancer.pick(&context) {
            counts[at] += 1;
        }
    }
    counts.iter().map(|count| (count * 100 + picks / 2) / picks).collect()
}

fn assert_near(got: &[u32], want: &[u32], points: u32) {
    let near = |(got, want): (&u32, &u32)| got.abs_diff(*want) <= points;
    assert!(got.len() == want.len() && got.iter().zip(want).all(near), "{got:?}, wanted {want:?}");
}

#[test]
fn a_node_that_comes_back_starts_slowly() {
    for balance in [Balance::Roundrobin, Balance::Random, Balance::LeastRequest, Balance::PeakEwma] {
        let slow_start = Some(Box::new(SlowStart { window: 10.0, aggression: 1.0, min_weight_percent: 10 }));
        let rules = rules(Upstream { balance, slow_start, ..Upstream::default() });
        let (cell, set) = cell(&[(1, 0), (2, 0), (2, 0)]);
        let mut balancer = Balancer::new(rules, Arc::clone(&cell), 0);
        let mut check = |now_ms, want: &[u32]| {
            let got = shares(&mut balancer, now_ms, 4_000);
            assert_near(&got, want, 3);
        };
        // At the start nobody is held back.
        check(1_000, &[20, 40, 40]);
        fell(&set, 2);
        check(2_000, &[33, 67, 0]);
        rose(&set, 2);
        check(3_000, &[31, 63, 6]);
        check(8_000, &[25, 50, 25]);
        check(13_000, &[20, 40, 40]);
        if balance == Balance::PeakEwma {
            // What is new counts as slower than what was idle for long.
            continue;
        }
        // A node that is new starts in the same way.
        let mut endpoints = set.endpoints.clone();
        let mut new = set.endpoints[0].clone();
        (new.lease, new.port) = (Lease::numbered(9), 9);
        endpoints.push(new);
        cell.publish(Arc::new(EndpointSet::new(endpoints, Arc::clone(&set.health_epoch))));
        check(20_000, &[20, 39, 39, 2]);
        check(25_000, &[18, 36, 36, 9]);
        check(40_000, &[17, 33, 33, 17]);
    }
}

#[test]
fn nodes_that_come_back_together_are_equals() {
    let slow_start = Some(Box::new(SlowStart { window: 10.0, aggression: 1.0, min_weight_percent: 10 }));
    let rules = rules(Upstream { slow_start, ..Upstream::default() });
    let (cell, set) = cell(&[(1, 0), (3, 0)]);
    let mut balancer = Balancer::new(rules, cell, 0);
    (0..2).for_each(|at| fell(&set, at));
    assert_near(&shares(&mut balancer, 1_000, 1_000), &[25, 75], 1);
    rose(&set, 0);
    rose(&set, 1);
    assert_near(&shares(&mut balancer, 2_000, 1_000), &[25, 75], 1);
}

#[test]
fn levels_share_the_load_by_their_health() {
    for balance in [Balance::Roundrobin, Balance::Maglev, Balance::LeastRequest] {
        let rules = rules(Upstream { balance, overprovisioning_factor: Some(140), ..Upstream::default() });
        let nodes: Vec<(u32, i32)> = [(1, 1); 4].into_iter().chain([(1, 0); 4]).collect();
        let (cell, set) = cell(&nodes);
        let mut balancer = Balancer::new(rules, cell, 0);
        let mut check = |want: &[u32]| assert_near(&shares(&mut balancer, 1_000, 4_000), want, 3);
        check(&[25, 25, 25, 25, 0, 0, 0, 0]);
        fell(&set, 0);
        check(&[0, 33, 33, 33, 0, 0, 0, 0]);
        fell(&set, 1);
        check(&[0, 0, 35, 35, 7, 7, 7, 7]);
        (4..7).for_each(|at| fell(&set, at));
        // 70 and 35 of 105.
        check(&[0, 0, 35, 35, 0, 0, 0, 30]);
        rose(&set, 0);
        check(&[33, 0, 33, 33, 0, 0, 0, 0]);
    }
}

#[test]
fn a_key_stays_on_its_level_while_that_has_its_share() {
    let rules = rules(Upstream {
        balance: Balance::Chash,
        overprovisioning_factor: Some(100),
        ..Upstream::default()
    });
    let (cell, set) = cell(&[(1, 1), (1, 1), (1, 0), (1, 0)]);
    let mut balancer = Balancer::new(rules, cell, 0);
    let mut places = || -> Vec<usize> {
        let key = |n: u32| n.to_le_bytes();
        (0..1_000)
            .map(|n| balancer.pick(&context(&Tried::default(), &key(n), u64::from(n))).expect("a node"))
            .collect()
    };
    let before = places();
    fell(&set, 0);
    let after = places();
    assert_eq!(after, places());
    let stayed = after.iter().filter(|at| **at < 2).count();
    assert!(stayed.abs_diff(500) < 50, "{stayed}");
    assert!(before.iter().zip(&after).filter(|(was, _)| **was == 1).any(|(_, is)| *is == 1));
}

#[test]
fn below_the_threshold_all_nodes_are_used_or_none() {
    let config = |threshold, fails| Upstream {
        panic_threshold: Some(threshold),
        fail_traffic_on_panic: fails,
        ..Upstream::default()
    };
    let check = |config: Upstream, down: &[usize], want: &[u32]| {
        let (cell, set) = cell(&[(1, 0); 4]);
        let mut balancer = Balancer::new(rules(config.clone()), cell, 0);
        down.iter().for_each(|&at| fell(&set, at));
        assert_near(&shares(&mut balancer, 1_000, 1_000), want, 1);
        assert_eq!(balancer.is_refusing(), want == [0; 4] && config.fail_traffic_on_panic, "{config:?}");
        down.iter().for_each(|&at| rose(&set, at));
        assert_near(&shares(&mut balancer, 1_000, 1_000), &[25; 4], 1);
    };
    check(config(50, false), &[0, 1], &[0, 0, 50, 50]);
    check(config(50, false), &[0, 1, 2], &[25; 4]);
    check(config(50, true), &[0, 1], &[0, 0, 50, 50]);
    check(config(50, true), &[0, 1, 2], &[0; 4]);
    check(config(0, false), &[0, 1, 2], &[0, 0, 0, 100]);
    check(config(0, false), &[0, 1, 2, 3], &[0; 4]);
    check(config(1, false), &[0, 1, 2, 3], &[25; 4]);
}

#[test]
fn a_single_node_is_judged_if_the_rules_speak_of_panic() {
    let config = |threshold| Upstream { panic_threshold: Some(threshold), ..Upstream::default() };
    for (threshold, want) in [(0, None), (10, Some(0))] {
        let (cell, set) = cell(&[(1, 0)]);
        let mut balancer = Balancer::new(rules(config(threshold)), cell, 0);
        fell(&set, 0);
        assert_eq!(pick(&mut balancer), want);
    }
}

#[test]
fn retries_go_down_the_levels() {
    let rules = rules(Upstream { overprovisioning_factor: Some(140), ..Upstream::default() });
    let (cell, _) = cell(&[(1, 2), (1, 2), (1, 1), (1, 0)]);
    let mut balancer = Balancer::new(rules, cell, 0);
    let order = walk(&mut balancer, b"");
    assert_eq!(order.len(), 4);
    assert_eq!(order[2..], [2, 3]);
}
