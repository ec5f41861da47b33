//! Values that may be used once, such as the state of a login: remembered until they expire anyway. For the
//! whole gateway, not for others.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sigma_plugin::counter::Shared;
use sigma_plugin::system::System;
use sigma_plugin::{Inheritable, Node, inheritance};

use sigma_plugin_kit::decisions;

/// Most bytes of it: some 40,000 logins within their lifetime. Beyond that the first to end are forgotten.
const LIMIT_BYTES: usize = 8 << 20;

/// What was used.
pub(crate) struct Used(Shared<bool>);

impl Inheritable for Used {
    const NAME: &'static str = "used-once";

    fn leave(&self) -> Value {
        inheritance::entries(&self.0)
    }

    fn take_over(&self, left: &Value) {
        inheritance::enter(&self.0, left);
    }
}

impl Used {
    /// That of the gateway. For instances to keep.
    pub(crate) fn of(node: &Node) -> Arc<Used> {
        node.inherited(|| Used(Shared::with_limit(LIMIT_BYTES)))
    }

    /// Uses something; false if it was used before. `lives`: it would not be taken after that time anyway.
    pub(crate) fn take(&self, parts: &[&str], lives: Duration, machine: &dyn System) -> bool {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now_ms = ms(machine.uptime());
        let key = decisions::key(parts.iter().map(|part| part.as_bytes()));
        self.0.with(&key, now_ms, |slot| {
            let was_used = std::mem::replace(&mut slot.value, true);
            slot.expires_ms = now_ms.saturating_add(ms(lives));
            !was_used
        })
    }
}

#[cfg(test)]
mod tests {
    use sigma_plugin::system::Host;

    use super::*;

    #[test]
    fn once_is_once() {
        let used = Used::of(&Node::default());
        let hour = Duration::from_secs(3600);
        assert!(used.take(&["casdoor", "1"], hour, &Host));
        assert!(!used.take(&["casdoor", "1"], hour, &Host));
        assert!(used.take(&["casdoor", "2"], hour, &Host));
        assert!(used.take(&["casdoo", "r1"], hour, &Host));
    }
}
