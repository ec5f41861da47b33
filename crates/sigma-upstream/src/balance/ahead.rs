//! Hash tables that are built before workers need them.

use std::sync::Arc;

use sigma_config::resources::Balance;

use crate::endpoint::{Endpoint, EndpointSet};
use crate::hashing::{self, HashNode, MadeAhead, Table};

/// The number of nodes from which on tables are built in advance. A worker builds smaller tables itself on first use:
/// that takes less than a millisecond, and unused upstreams need none.
const AHEAD_FROM: usize = 64;

/// Adds the tables of this type of balancing to a set, so that no worker must build them; parts of the `former` set's
/// tables are reused (control side).
pub fn made_ahead(mut set: EndpointSet, balance: Balance, former: Option<&EndpointSet>) -> EndpointSet {
    let none = MadeAhead::None;
    let former = former.map_or(&none, |former| &former.made_ahead);
    set.made_ahead = match balance {
        _ if set.endpoints.len() < AHEAD_FROM => MadeAhead::None,
        Balance::Chash => MadeAhead::Rings(levels(&set.endpoints, former)),
        Balance::Maglev => MadeAhead::Maglev(levels(&set.endpoints, former)),
        _ => MadeAhead::None,
    };
    set
}

/// Returns the tables of the nodes of each priority.
fn levels<T: Table>(endpoints: &[Endpoint], former: &MadeAhead) -> Vec<Arc<T>> {
    let mut order: Vec<&Endpoint> = endpoints.iter().collect();
    order.sort_by_key(|endpoint| endpoint.priority);
    let level = |level: &[&Endpoint]| {
        let node = |endpoint: &&Endpoint| endpoint.hash_node(endpoint.health.weighed(endpoint.weight));
        let nodes: Vec<HashNode> = level.iter().map(node).collect();
        hashing::table(nodes, &|at| level[at].hash_name(), T::made_ahead(former).iter()).0
    };
    order.chunk_by(|a, b| a.priority == b.priority).map(level).collect()
}
