//! The process's use of its limits, for workers that refuse requests under pressure.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use sigma_config::settings::LoadShedding;
use sigma_net::{limits, memory};
use sigma_plugin::Node;
use sigma_proxy::Pressure;

/// Measures the process's use, and publishes it to workers.
pub(super) struct Usage {
    told: Arc<Pressure>,
    /// Bytes that its cgroup may have.
    memory_limit: Option<u64>,
}

impl Usage {
    /// Returns the meter for `workers` workers, which learn at once how much of the memory each may hold for
    /// clients.
    pub(super) fn of(node: &Node, workers: usize) -> Usage {
        let told = node.part(Pressure::default);
        let memory_limit = memory::cgroup_limit();
        if let Some(available) = memory_limit.into_iter().chain(memory::machine_bytes()).min() {
            told.set_held_limit(held_limit(available, workers));
        }
        Usage { told, memory_limit }
    }

    /// Looks at it, and tells the workers.
    pub(super) fn tell(&self, rules: &LoadShedding) {
        let (memory, descriptors) = if rules.enabled { self.look(rules) } else { (0, 0) };
        self.told.set(memory, descriptors);
    }

    /// Memory and descriptors in percent.
    fn look(&self, rules: &LoadShedding) -> (u32, u32) {
        let mut status = match File::open("/proc/self/status") {
            Ok(status) => status,
            Err(error) => return (0, if limits::is_own_lack(&error) { 100 } else { 0 }),
        };
        let limit = rules.memory_bytes.or(self.memory_limit);
        let used = memory::own_bytes(&mut status).unwrap_or(0);
        let memory = limit.map_or(0, |limit| used.saturating_mul(100) / limit.max(1));
        (u32::try_from(memory).unwrap_or(u32::MAX), limits::descriptors_in_use(status.as_fd()))
    }
}

/// Bytes that each of `workers` workers may hold for clients where the settings do not say, of this much memory.
fn held_limit(available: u64, workers: usize) -> u64 {
    (available / 4 / (workers as u64).max(1)).max(HELD_LEAST_BYTES)
}

/// Least bytes that a worker may hold for clients where the settings do not say.
const HELD_LEAST_BYTES: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_a_quarter_of_the_memory() {
        assert_eq!(held_limit(16 << 30, 8), 512 << 20);
        assert_eq!(held_limit(1 << 30, 1), 256 << 20);
        assert_eq!(held_limit(256 << 20, 4), HELD_LEAST_BYTES);
        assert_eq!(held_limit(1 << 30, 0), 256 << 20);
    }
}
