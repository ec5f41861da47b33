//! What the process uses of what it may use, for workers that refuse requests before it is too much.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use sigma_config::settings::LoadShedding;
use sigma_net::{limits, memory};
use sigma_plugin::Node;
use sigma_proxy::Pressure;

/// What the process uses, and whom that is told.
pub(super) struct Usage {
    told: Arc<Pressure>,
    /// Bytes that its cgroup may have.
    memory_limit: Option<u64>,
}

impl Usage {
    pub(super) fn of(node: &Node) -> Usage {
        Usage { told: node.part(Pressure::default), memory_limit: memory::cgroup_limit() }
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
