//! Warnings about a write that come from resources together, before the write is stored.

use std::time::Duration;

use sigma_config::kind::ResourceKey;
use sigma_config::stored::{self, AnyResource};
use sigma_schema::Problem;

use super::AdminState;
use crate::store::Write;

/// Pause between two looks whether the gateway knows what this process has written, and how many there are.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(5);
const CATCH_UP_LOOKS: usize = 40;

/// A change of resources that is not stored yet.
pub(crate) struct Proposal {
    /// New forms of resources.
    pub(crate) puts: Vec<AnyResource>,
    /// Resources that go.
    pub(crate) deletes: Vec<ResourceKey>,
    /// The writer sent all resources, also those that stay as they are.
    pub(crate) is_whole: bool,
}

impl Proposal {
    /// Reads the writes of a transaction. Other records of the store, and what cannot be read, are left out.
    pub(super) fn of(state: &AdminState, writes: &[Write]) -> Proposal {
        let mut proposal = Proposal { puts: Vec::new(), deletes: Vec::new(), is_whole: false };
        for write in writes {
            match write {
                Write::Put { key, value, .. } => {
                    proposal.puts.extend(ResourceKey::parse(key).and_then(|key| {
                        let mut value = serde_json::from_slice(value).ok()?;
                        state.open(key.kind, &mut value);
                        stored::of_checked(&key, &value)
                    }));
                }
                Write::Delete { key } => proposal.deletes.extend(ResourceKey::parse(key)),
            }
        }
        proposal
    }

    /// Marks the proposal as all resources of the writer.
    pub(super) fn whole(mut self) -> Proposal {
        self.is_whole = true;
        self
    }
}

/// Returns the warnings about a proposal; pointers begin with the key of a resource. The list is empty while the
/// gateway lacks a write of this process: warnings might be about resources that have changed.
pub(super) async fn warnings(state: &AdminState, proposal: Proposal) -> Vec<Problem> {
    let Some(foresee) = &state.gateway.foresee else { return Vec::new() };
    if !proposal.is_whole && proposal.puts.is_empty() && proposal.deletes.is_empty() {
        return Vec::new();
    }
    for _ in 0..CATCH_UP_LOOKS {
        if let Some(found) = foresee(&proposal, state.callers.credentials.newest_written()) {
            return found;
        }
        tokio::time::sleep(CATCH_UP_PAUSE).await;
    }
    Vec::new()
}

/// Returns a warning as the writer of one resource reads it: places within the resource do not name it.
pub(super) fn within(mut problem: Problem, key: &str) -> Problem {
    if let Some(rest) = problem.pointer.strip_prefix(key) {
        if rest.is_empty() {
            problem.pointer = String::new();
        } else if let Some(rest) = rest.strip_prefix('.') {
            problem.pointer = rest.to_owned();
        }
    }
    problem
}
