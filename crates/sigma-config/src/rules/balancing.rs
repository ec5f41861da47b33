//! The rules of an upstream by which a node is chosen: which of them go together.

use super::{Object, hashes, problem, word};
use crate::problem::Problem;

/// What has no effect beside the type.
pub(super) fn rules(upstream: &Object) -> Vec<Problem> {
    let balance = word(upstream, "type").unwrap_or("roundrobin");
    let mut found = Vec::new();
    if upstream.contains_key("bounded_load") && !hashes(balance) {
        let message = format!("`bounded_load` bounds what hashes to a node, and `{balance}` hashes nothing");
        found.push(problem("bounded_load", "conflict", message, "write type: chash or maglev, or remove it"));
    }
    found
}
