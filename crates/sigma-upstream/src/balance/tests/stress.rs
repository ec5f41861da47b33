//! Stress tests: shares, failures, and the end of the lease.

use super::*;
use crate::health::StressShare;

const PERCENT: u32 = StressShare::WHOLE / 100;

fn press(set: &EndpointSet, nodes: &[usize], percent: u32) {
    nodes.iter().for_each(|at| set.endpoints[*at].health.press(percent * PERCENT));
}

fn picked(balancer: &mut Balancer, tried: &Tried, now_ms: u64, n: u64) -> Option<usize> {
    let key = n.to_le_bytes();
    let random = mix(n, 0);
    balancer.pick(&PickContext { session: None, subset: None, key: Some(&key), tried, now_ms, random })
}

/// Returns the percentages of many requests that nodes get.
fn shares(balancer: &mut Balancer, nodes: usize, now_ms: u64) -> Vec<u64> {
    const REQUESTS: u64 = 20_000;
    let mut counts = vec![0_u64; nodes];
    for n in 0..REQUESTS {
        counts[picked(balancer, &Tried::default(), now_ms, n).expect("a node")] += 1;
    }
    counts.iter().map(|count| (count * 100 + REQUESTS / 2) / REQUESTS).collect()
}

fn assert_near(shares: &[u64], want: &[u64], about: impl std::fmt::Debug) {
    let is_near = shares.iter().zip(want).all(|(share, want)| share.abs_diff(*want) <= 1);
    assert!(is_near, "{shares:?} instead of {want:?}: {about:?}");
}

#[test]
fn nodes_get_their_share_by_every_policy() {
    for kind in KINDS {
        let (mut balancer, set) = balancer(kind, &[(1, 0); 3]);
        press(&set, &[0], 60);
        let got = shares(&mut balancer, 3, 0);
        assert_near(&got[..1], &[60], kind);
        // The share is one sum for all nodes of the test.
        press(&set, &[0, 1], 50);
        let got = shares(&mut balancer, 3, 0);
        assert_near(&got, &[25, 25, 50], kind);
    }
}

#[test]
fn shares_go_back_to_normal() {
    let (mut balancer, set) = balancer(Balance::Roundrobin, &[(1, 0); 4]);
    for percent in [0, 1, 50, 100] {
        press(&set, &[2], percent);
        if percent > 0 {
            let rest = (100 - u64::from(percent)).div_ceil(3);
            assert_near(&shares(&mut balancer, 4, 0), &[rest, rest, percent.into(), rest], percent);
        }
    }
    press(&set, &[2], 0);
    assert_near(&shares(&mut balancer, 4, 0), &[25; 4], "the end");
}

#[test]
fn share_that_is_not_repeated_has_no_effect() {
    let (mut balancer, set) = balancer(Balance::Roundrobin, &[(1, 0), (1, 0)]);
    press(&set, &[0], 90);
    assert_near(&shares(&mut balancer, 2, 1_000), &[90, 10], "it was just set");
    press(&set, &[0], 90);
    assert_near(&shares(&mut balancer, 2, 5_000), &[90, 10], "it was repeated");
    assert_near(&shares(&mut balancer, 2, 10_000), &[90, 10], "five seconds later");
    assert_near(&shares(&mut balancer, 2, 10_001), &[50, 50], "too late");
    press(&set, &[0], 90);
    assert_near(&shares(&mut balancer, 2, 20_000), &[90, 10], "the control side is back");
}

#[test]
fn node_that_is_down_gets_nothing() {
    let (mut balancer, set) = balancer(Balance::Roundrobin, &[(1, 0); 3]);
    press(&set, &[0, 1], 80);
    fell(&set, 0);
    assert_near(&shares(&mut balancer, 3, 0), &[0, 80, 20], "one of two");
    fell(&set, 1);
    assert_near(&shares(&mut balancer, 3, 0), &[0, 0, 100], "both");
    rose(&set, 0);
    fell(&set, 2);
    assert_near(&shares(&mut balancer, 3, 0), &[100, 0, 0], "there is no other");
}

#[test]
fn retries_go_to_other_nodes_first() {
    let (mut balancer, set) = balancer(Balance::Roundrobin, &[(1, 0); 3]);
    press(&set, &[0], 100);
    for n in 0..100 {
        let mut tried = Tried::default();
        let order: Vec<usize> = std::iter::from_fn(|| {
            let at = picked(&mut balancer, &tried, 0, n)?;
            tried.insert(id(at));
            Some(at)
        })
        .collect();
        assert_eq!((order.len(), order[0]), (3, 0), "{order:?}");
        let mut tried = Tried::default();
        tried.insert(id(1));
        assert_eq!(picked(&mut balancer, &tried, 0, n), Some(2), "a further attempt is not drawn");
        tried.insert(id(2));
        assert_eq!(picked(&mut balancer, &tried, 0, n), Some(0), "no other is left");
    }
}
