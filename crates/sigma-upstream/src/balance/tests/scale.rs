//! Ten thousand nodes in one upstream: what a pick looks at.

use super::*;

const MANY: usize = 10_000;

/// All types but `least_conn`, which goes through all nodes.
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

/// The places that a pick looks at, on average.
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
fn a_pick_looks_at_as_much_among_ten_thousand_nodes_as_among_ten() {
    for balance in CONSTANT {
        for weights in [&[1][..], &[1, 3, 7, 20, 50]] {
            let (few, many) = (looks(balance, &nodes(10, weights)), looks(balance, &nodes(MANY, weights)));
            assert!(few >= 1.0, "{balance:?} is counted");
            assert!(many <= few * 1.1, "{balance:?} {weights:?}: {few} among ten, {many} among {MANY}");
        }
    }
}
