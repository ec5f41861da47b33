//! The rules besides the type: their distribution, and their moves when a node leaves.

use serde_json::{Value, json};
use sigma_config::resources::{AffinityCookie, OnGone, SessionAffinity, SlowStart, Upstream};

use super::*;
use crate::health::NodeState;

/// Returns the rules of an upstream with this configuration.
fn rules(config: Upstream) -> Rules {
    Rules::new(&config, Some("here"))
}

/// Returns the shares in percent of `picks` picks at this time.
fn shares(balancer: &mut Balancer, now_ms: u64, picks: u32) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(now_ms);
    balancer.refresh(now_ms);
    let mut counts = vec![0u32; balancer.endpoints().endpoints.len()];
    for _ in 0..picks {
        let (key, tried) = (random.u64(..).to_le_bytes(), Tried::default());
        let context = PickContext {
            session: None,
            subset: None,
            key: Some(&key),
            tried: &tried,
            now_ms,
            random: random.u64(..),
        };
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
        // At the start all have equal shares.
        check(1_000, &[20, 40, 40]);
        fell(&set, 2);
        check(2_000, &[33, 67, 0]);
        rose(&set, 2);
        check(3_000, &[31, 63, 6]);
        check(8_000, &[25, 50, 25]);
        check(13_000, &[20, 40, 40]);
        if balance == Balance::PeakEwma {
            // A new node counts as slower than one that was idle for long.
            continue;
        }
        // A new node starts in the same way.
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
fn a_key_stays_on_its_level_within_its_share() {
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
        assert_eq!(balancer.is_refusing(), want == [0; 4], "{config:?}");
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
fn a_single_node_is_judged_under_a_panic_threshold() {
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

fn sticky(balance: Balance, secret: &str, on_gone: OnGone) -> Rules {
    let cookie: AffinityCookie = AffinityCookie {
        name: "node".into(),
        path: "/".into(),
        domain: None,
        max_age: None,
        http_only: true,
        secure: false,
        same_site: None,
    };
    let session_affinity = Some(Box::new(SessionAffinity { cookie, secret: secret.into(), on_gone }));
    rules(Upstream { balance, session_affinity, ..Upstream::default() })
}

/// Returns the node of a session's request, and its token.
fn session(balancer: &mut Balancer, session: Option<Token>, tried: &Tried) -> Option<(usize, Token)> {
    let context =
        PickContext { key: None, session, subset: None, tried, now_ms: 1_000, random: fastrand::u64(..) };
    let at = balancer.pick(&context)?;
    let id = balancer.endpoints().endpoints[at].id();
    Some((at, balancer.token_of(id).expect("sessions keep to nodes")))
}

#[test]
fn a_session_stays_on_its_node() {
    let none = Tried::default();
    for balance in KINDS {
        let nodes = [(1, 1), (1, 1), (1, 1), (1, 0)];
        let (shared, set) = cell(&nodes);
        let mut balancer = Balancer::new(sticky(balance, "a secret of ours", OnGone::Rebalance), shared, 0);
        let (at, token) = session(&mut balancer, None, &none).expect("a node");
        let stays = |balancer: &mut Balancer| {
            (0..50).all(|_| session(balancer, Some(token), &none) == Some((at, token)))
        };
        assert!(stays(&mut balancer), "{balance:?}");
        // Others fail, come back, and leave.
        fell(&set, (at + 1) % 3);
        assert!(stays(&mut balancer));
        // Another gateway with the same secret knows the token, one with another secret does not.
        let mut other = Balancer::new(sticky(balance, "a secret of ours", OnGone::Reject), cell(&nodes).0, 9);
        assert!(stays(&mut other));
        let mut foreign =
            Balancer::new(sticky(balance, "a secret of theirs", OnGone::Reject), cell(&nodes).0, 9);
        assert_eq!(session(&mut foreign, Some(token), &none), None);
        // A retry goes elsewhere.
        let mut tried = Tried::default();
        tried.insert(id(at));
        let retried = session(&mut balancer, Some(token), &tried).expect("another node");
        assert!(retried.0 != at && retried.1 != token);
        // It is gone: the session gets another node, and keeps it.
        fell(&set, at);
        let (next, next_token) = session(&mut balancer, Some(token), &none).expect("another node");
        assert!(next != at && next_token != token, "{balance:?}");
        assert_eq!(session(&mut balancer, Some(next_token), &none), Some((next, next_token)));
        // A draining node keeps its sessions, one in maintenance does not.
        set.endpoints[next].health.want(NodeState::Drain);
        assert_eq!(session(&mut balancer, Some(next_token), &none), Some((next, next_token)));
        assert!((0..50).all(|_| session(&mut balancer, None, &none).expect("a node").0 != next));
        set.endpoints[next].health.want(NodeState::Maintenance);
        assert_ne!(session(&mut balancer, Some(next_token), &none).expect("a node").0, next);
    }
}

#[test]
fn a_session_without_its_node_may_be_rejected() {
    let none = Tried::default();
    let (shared, set) = cell(&[(1, 0); 3]);
    let mut balancer =
        Balancer::new(sticky(Balance::Random, "a secret of ours", OnGone::Reject), Arc::clone(&shared), 0);
    let (at, token) = session(&mut balancer, None, &none).expect("a node");
    fell(&set, at);
    assert_eq!(session(&mut balancer, Some(token), &none), None);
    assert!(balancer.keeps_to(Some(token)) && !balancer.keeps_to(None));
    assert!(session(&mut balancer, None, &none).is_some());
    rose(&set, at);
    assert_eq!(session(&mut balancer, Some(token), &none), Some((at, token)));
    // Nodes leave the set and others come; positions change, sessions do not.
    let mut endpoints = set.endpoints.clone();
    endpoints.rotate_left(1);
    shared.publish(Arc::new(EndpointSet::new(endpoints.clone(), Arc::clone(&set.health_epoch))));
    assert_eq!(session(&mut balancer, Some(token), &none), Some(((at + 2) % 3, token)));
    endpoints.retain(|endpoint| endpoint.id() != id(at));
    shared.publish(Arc::new(EndpointSet::new(endpoints, Arc::clone(&set.health_epoch))));
    assert_eq!(session(&mut balancer, Some(token), &none), None);
    // An invented token has no effect.
    assert_eq!(session(&mut balancer, Some(7), &none), None);
}

#[test]
fn a_node_without_weight_keeps_its_sessions_and_gets_no_others() {
    let none = Tried::default();
    let rules = sticky(Balance::LeastRequest, "a secret of ours", OnGone::Rebalance);
    let (mut balancer, token) = {
        let mut balancer = Balancer::new(rules.clone(), cell(&[(1, 0), (0, 0)]).0, 0);
        let (at, token) = session(&mut balancer, None, &none).expect("a node");
        assert_eq!(at, 0);
        (Balancer::new(rules, cell(&[(0, 0), (1, 0)]).0, 0), token)
    };
    assert_eq!(session(&mut balancer, Some(token), &none).map(|found| found.0), Some(0));
    assert!((0..50).all(|_| session(&mut balancer, None, &none).expect("a node").0 == 1));
}

/// A simulation of sessions named by nodes: each is used once in each round.
struct Named {
    table: StickTable,
    balancer: Balancer,
    now_s: u64,
}

impl Named {
    /// Returns the node of each session; the table learns it from the responses.
    fn round(&mut self) -> Vec<usize> {
        self.now_s += 10;
        let mut serve = |session: u32| {
            let (name, none) = (self.table.hash(&session.to_le_bytes()), Tried::default());
            let known = self.table.find(name, self.now_s);
            let (at, token) = self::session(&mut self.balancer, known, &none)?;
            if known != Some(token) {
                self.table.store(name, token, self.now_s);
            }
            Some(self.balancer.endpoints().endpoints[at].id().index())
        };
        (0..1_000).map(|session| serve(session).unwrap_or(usize::MAX)).collect()
    }
}

#[test]
fn sessions_named_by_nodes_move_only_without_their_node() {
    for balance in KINDS {
        let config =
            |on_gone: &str| json!({ "type": balance, "stick_table": { "cookie": "a", "on_gone": on_gone } });
        let rules = |on_gone: &str| rules(configured(config(on_gone)));
        let (shared, set) = cell(&[(1, 0), (1, 0), (2, 0), (1, 0)]);
        let balancer = Balancer::new(rules("rebalance"), Arc::clone(&shared), 0);
        let mut world = Named { table: StickTable::new(10_000, 60), balancer, now_s: 0 };
        let first = world.round();
        if balance == Balance::Roundrobin {
            let count = |at| first.iter().filter(|node| **node == at).count();
            assert_eq!([0, 1, 2, 3].map(count), [200, 200, 400, 200]);
        }
        assert_eq!(world.round(), first, "{balance:?}");
        fell(&set, 3);
        let moved = world.round();
        let stay = |a: &[usize], b: &[usize], gone: usize| {
            a.iter().zip(b).all(|(a, b)| if *a == gone { *b != gone } else { a == b })
        };
        assert!(stay(&first, &moved, 3), "{balance:?}");
        rose(&set, 3);
        assert_eq!(world.round(), moved);
        // A node leaves the upstream, positions change.
        shared
            .publish(Arc::new(EndpointSet::new(set.endpoints[1..].to_vec(), Arc::clone(&set.health_epoch))));
        let left = world.round();
        assert!(stay(&moved, &left, 0));
        set.endpoints[1].health.want(NodeState::Drain);
        assert_eq!(world.round(), left);
        set.endpoints[1].health.want(NodeState::Ready);
        // Another worker, or another compilation of the upstream, finds the same.
        world.balancer = Balancer::new(rules("reject"), Arc::clone(&shared), 5);
        assert_eq!(world.round(), left);
        fell(&set, 2);
        let refused = world.round();
        assert!(left.iter().zip(&refused).all(|(a, b)| *b == if *a == 2 { usize::MAX } else { *a }));
        // A session that was not used for long is new again.
        rose(&set, 2);
        world.now_s += 61;
        assert!(world.round().iter().all(|node| *node != usize::MAX));
    }
}

/// Returns the cell of nodes of weight 1 with this metadata.
fn described(nodes: &[Value]) -> (Arc<UpstreamCell>, Arc<EndpointSet>) {
    let (_, set) = cell(&vec![(1, 0); nodes.len()]);
    let mut endpoints = set.endpoints.clone();
    for (endpoint, node) in endpoints.iter_mut().zip(nodes) {
        endpoint.metadata = node.as_object().cloned().map(Arc::new);
    }
    let set = Arc::new(EndpointSet::new(endpoints, Arc::clone(&set.health_epoch)));
    (Arc::new(UpstreamCell::new(Arc::clone(&set))), set)
}

/// Returns the upstream with these fields.
fn configured(fields: Value) -> Upstream {
    serde_json::from_value(fields).expect("an upstream")
}

#[test]
fn requests_stay_in_the_zone_within_its_capacity() {
    for balance in ["roundrobin", "random", "least_request", "peak_ewma", "ewma"] {
        let rules = rules(configured(json!({ "type": balance, "zone_aware": { "min_cluster_size": 4 } })));
        let zones = ["here", "here", "here", "there", "there", "there"];
        let nodes: Vec<Value> = zones.iter().map(|zone| json!({ "zone": zone })).collect();
        let (cell, set) = described(&nodes);
        let mut balancer = Balancer::new(rules, cell, 0);
        let mut local = |want: u32| {
            let got: u32 = shares(&mut balancer, 1_000, 3_000)[..3].iter().sum();
            assert!(got.abs_diff(want) <= 4, "{balance}: {got} % are local, wanted {want}");
        };
        local(100);
        // 2 of 5 nodes for half of the gateways: 4/5 stay.
        fell(&set, 0);
        local(80);
        fell(&set, 1);
        local(50);
        // Too few nodes for the rule: all are equal.
        fell(&set, 5);
        local(33);
        (0..6).for_each(|at| rose(&set, at));
        local(100);
        (0..3).for_each(|at| fell(&set, at));
        // The last local node is gone.
        local(0);
    }
}

#[test]
fn a_retry_leaves_the_zone() {
    let rules = rules(configured(json!({ "zone_aware": { "min_cluster_size": 1 } })));
    let (cell, _) = described(&[json!({ "zone": "there" }), json!({ "zone": "here" }), json!({})]);
    let mut balancer = Balancer::new(rules, cell, 0);
    let order = walk(&mut balancer, b"");
    assert_eq!((order.len(), order[0]), (3, 1));
}

/// Returns the nodes for requests with these pairs.
fn found(balancer: &mut Balancer, pairs: &[(&str, &str)]) -> Vec<usize> {
    let (mut wanted, tried) = (Vec::new(), Tried::default());
    pairs.iter().for_each(|(key, value)| ask_for(&mut wanted, key, value.as_bytes()));
    let mut nodes: Vec<usize> = (0..60u64)
        .filter_map(|n| {
            let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let context = PickContext {
                key: Some(&n.to_le_bytes()),
                session: None,
                subset: Some(&wanted),
                tried: &tried,
                now_ms: 0,
                random,
            };
            balancer.pick(&context)
        })
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[test]
fn requests_get_their_subset() {
    let nodes = [
        json!({ "version": "1", "stage": "prod" }),
        json!({ "version": "1", "stage": "canary" }),
        json!({ "version": "2", "stage": "canary" }),
        json!({ "version": "2" }),
        json!({ "version": 2 }),
    ];
    for balance in ["roundrobin", "chash", "least_request", "peak_ewma", "ewma", "random"] {
        let config = |fallback: &str, default: Value| {
            let mut subsets = json!({
                "selectors": [{ "keys": ["version"] }, { "keys": ["version", "stage"] }],
                "criteria": {}, "fallback": fallback,
            });
            if fallback == "default" {
                subsets["default"] = default;
            }
            rules(configured(json!({ "type": balance, "key": "uri", "subsets": subsets })))
        };
        let (cell, set) = described(&nodes);
        let mut none = Balancer::new(config("none", json!({})), Arc::clone(&cell), 0);
        assert_eq!(found(&mut none, &[("version", "1")]), [0, 1], "{balance}");
        assert_eq!(found(&mut none, &[("version", "2")]), [2, 3]);
        assert_eq!(found(&mut none, &[("stage", "canary"), ("version", "1")]), [1]);
        // No selector, no such value, no criterion at all.
        assert_eq!(found(&mut none, &[("stage", "canary")]), [0usize; 0]);
        assert_eq!(found(&mut none, &[("version", "3")]), [0usize; 0]);
        assert_eq!(found(&mut none, &[]), [0usize; 0]);
        assert!(none.is_refusing());
        let mut any = Balancer::new(config("any", json!({})), Arc::clone(&cell), 0);
        assert_eq!(found(&mut any, &[("version", "3")]), [0, 1, 2, 3, 4]);
        let mut default = Balancer::new(config("default", json!({ "stage": "prod" })), cell, 0);
        assert_eq!(found(&mut default, &[]), [0]);
        // A value cannot imitate another key.
        assert_eq!(found(&mut default, &[("version", "2\0\0\0\0\0\0\0")]), [0]);
        // A node of the subset fails; the other serves, and with all down all serve, as without subsets.
        fell(&set, 2);
        assert_eq!(found(&mut none, &[("version", "2")]), [3]);
        fell(&set, 3);
        assert_eq!(found(&mut none, &[("version", "2")]), [2, 3]);
        rose(&set, 2);
        rose(&set, 3);
    }
}

#[test]
fn a_selector_has_its_own_fallback() {
    let nodes = [
        json!({ "version": "1", "stage": "prod", "shard": "a" }),
        json!({ "version": "1", "stage": "canary", "shard": "b" }),
        json!({ "version": "2", "stage": "prod" }),
    ];
    let config = |fallback: &str| {
        rules(configured(json!({ "subsets": {
            "selectors": [
                { "keys": ["version", "stage"], "fallback": "keys_subset", "fallback_keys_subset": ["version"] },
                { "keys": ["version"], "fallback": "default" },
                { "keys": ["stage"], "fallback": "none" },
                { "keys": ["shard", "stage", "version"], "fallback": "keys_subset",
                  "fallback_keys_subset": ["version", "stage"] },
                { "keys": ["shard"] },
            ],
            "criteria": {}, "fallback": fallback, "default": { "stage": "prod" },
        } })))
    };
    let (cell, set) = described(&nodes);
    for (fallback, others) in [("any", &[0, 1, 2][..]), ("none", &[])] {
        let mut balancer = Balancer::new(config(fallback), Arc::clone(&cell), 0);
        let mut check = |pairs: &[(&str, &str)], want: &[usize]| {
            assert_eq!(found(&mut balancer, pairs), want, "{fallback} {pairs:?}");
        };
        check(&[("stage", "canary"), ("version", "1")], &[1]);
        // No such canary: by the version alone; no such version either: the default.
        check(&[("stage", "canary"), ("version", "2")], &[2]);
        check(&[("stage", "canary"), ("version", "3")], &[0, 2]);
        check(&[("shard", "b"), ("stage", "prod"), ("version", "1")], &[0]);
        check(&[("shard", "a"), ("stage", "test"), ("version", "1")], &[0, 1]);
        check(&[("version", "3")], &[0, 2]);
        check(&[("stage", "test")], &[]);
        // Selectors without a policy, keys without a selector, and no keys: the rule's fallback.
        check(&[("shard", "c")], others);
        check(&[("shard", "c"), ("stage", "prod")], others);
        check(&[], others);
        // The nodes of a subset fail: its other nodes are used before the fallback.
        fell(&set, 0);
        assert_eq!(found(&mut balancer, &[("version", "1")]), [1]);
        rose(&set, 0);
    }
}

#[test]
fn subsets_are_bounded() {
    let nodes: Vec<Value> = (0..3_000).map(|n| json!({ "shard": n.to_string() })).collect();
    let rules = rules(configured(json!({ "subsets": {
        "selectors": [{ "keys": ["shard"] }], "criteria": {}, "fallback": "none",
    } })));
    let mut balancer = Balancer::new(rules, described(&nodes).0, 0);
    assert_eq!(found(&mut balancer, &[("shard", "1000")]), [1_000]);
    assert_eq!(found(&mut balancer, &[("shard", "2000")]), [0usize; 0]);
}
