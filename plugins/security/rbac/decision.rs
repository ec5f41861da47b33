//! Decisions of policies, as metrics count them.

use sigma_plugin_kit::tallies::Event;

/// Whether a decision was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Force {
    /// It was.
    Enforced,
    /// It was only counted and logged.
    Shadow,
}

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The request passes.
    Allowed,
    /// The request is refused.
    Denied,
}

/// A decision, and whether it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ruling {
    pub(super) force: Force,
    pub(super) decision: Decision,
}

impl Event for Ruling {
    const METRIC: &'static str = "rbac_decisions_total";
    const HELP: &'static str = "Decisions of rbac, including decisions of shadow rules";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("rules", "enforced"), ("decision", "allowed")],
        &[("rules", "enforced"), ("decision", "denied")],
        &[("rules", "shadow"), ("decision", "allowed")],
        &[("rules", "shadow"), ("decision", "denied")],
    ];

    fn number(self) -> usize {
        self.force as usize * 2 + self.decision as usize
    }
}
