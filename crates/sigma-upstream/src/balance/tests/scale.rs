//! Ten thousand nodes in one upstream: the cost of a pick.

use super::*;
use crate::hashing::{LOOKS, WORK};
use crate::health::NodeState;

const MANY: usize = 10_000;

/// All types but `least_conn` and `rendezvous`, which scan all nodes.
const CONSTANT: [Balance; 7] = [
    Balance::Roundrobin,
    Balance::Chash,
    Balance::Maglev,
    Balance::Ewma,
    Balance::PeakEwma,
    Balance::LeastRequest,
    Balance::Random,
];

fn nodes(count: usize, weights: &[u32]) -> Vec<(u32, i32)> {
    (0..count).map(|n| (weights[n % weights.len()], 0)).collect()
}

/// Returns the average number of look-ups of a pick.
fn looks(balance: Balance, nodes: &[(u32, i32)]) -> f64 {
    const PICKS: u32 = 2_000;
    let mut balancer = Balancer::new(balance, cell(nodes).0, 0);
    let before = LOOKS.get();
    for n in 0..PICKS {
        let random = mix(u64::from(n), 0);
        let at = balancer.pick(&context(&Tried::default(), &random.to_le_bytes(), random)).expect("a node");
        balancer.start(id(at));
    }
    (LOOKS.get() - before) as f64 / f64::from(PICKS)
}

#[test]
fn a_pick_costs_as_much_among_ten_thousand_nodes_as_among_ten() {
    for balance in CONSTANT {
        for weights in [&[1][..], &[1, 3, 7, 20, 50]] {
            let (few, many) = (looks(balance, &nodes(10, weights)), looks(balance, &nodes(MANY, weights)));
            assert!(few >= 1.0, "{balance:?} is counted");
            assert!(many <= few * 1.1, "{balance:?} {weights:?}: {few} among ten, {many} among {MANY}");
        }
    }
}

/// Returns a set of some of ten thousand nodes.
fn set_of(numbers: impl Iterator<Item = usize>, epoch: &Arc<HealthEpoch>) -> EndpointSet {
    let endpoint = |at: usize| Endpoint {
        lease: Lease::numbered(at),
        host: format!("10.0.{}.{}", at / 250, at % 250),
        port: 80,
        addr: Address::Tcp(SocketAddr::from((Ipv4Addr::new(10, 0, (at / 250) as u8, (at % 250) as u8), 80))),
        host_header: String::new(),
        weight: 1,
        priority: 0,
        metadata: None,
        health: Arc::new(Health::new(Arc::clone(epoch))),
        by_address: false,
        quic_port: None,
    };
    EndpointSet::new(numbers.map(endpoint).collect(), Arc::clone(epoch))
}

/// Returns the cost of building tables meanwhile: hashes and writes.
fn work(within: impl FnOnce()) -> (usize, usize) {
    WORK.set((0, 0));
    within();
    WORK.take()
}

#[test]
fn a_change_of_one_node_of_ten_thousand_touches_little() {
    let epoch = Arc::new(HealthEpoch::default());
    let but = |gone: usize| set_of((0..=MANY).filter(move |at| *at != gone), &epoch);
    for (balance, hashed, written) in [(Balance::Chash, 320, 160_000), (Balance::Maglev, 1, 65_537)] {
        let first = Arc::new(made_ahead(but(MANY), balance, None));
        let cell = Arc::new(UpstreamCell::new(Arc::clone(&first)));
        let mut balancers = [0, 1].map(|seed| Balancer::new(balance, Arc::clone(&cell), seed));
        // One leaves and another comes: the control side builds the new tables from the old ones.
        let mut next = None;
        let cost = work(|| next = Some(Arc::new(made_ahead(but(5_000), balance, Some(&first)))));
        assert!(cost.0 <= hashed && cost.1 <= written && cost.1 > 0, "{balance:?}: {cost:?}");
        let next = next.expect("a set");
        cell.publish(Arc::clone(&next));
        // The workers take them, also after a change of health.
        let follow = |balancers: &mut [Balancer]| balancers.iter_mut().for_each(|it| it.refresh(0));
        assert_eq!(work(|| follow(&mut balancers)), (0, 0), "{balance:?}");
        fell(&next, 77);
        next.endpoints[78].health.want(NodeState::Drain);
        assert_eq!(work(|| follow(&mut balancers)), (0, 0), "{balance:?}");
        // Without them a worker updates its own table.
        cell.publish(Arc::new(but(MANY)));
        let cost = work(|| balancers[0].refresh(0));
        assert!(cost.0 <= hashed && cost.1 <= written && cost.1 > 0, "{balance:?}: {cost:?}");
    }
}
