//! Health state of nodes as a value for the next process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sigma_config::resources::NodeState;

use super::outlier::{NodeEjections, Rule};
use super::plan::Plan;
use super::state::{Blame, Event, Source, Standing, State};
use super::{Health, ejection};
use crate::lock::lock;

/// The health state of the nodes of all upstreams.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StoredHealth {
    /// Nodes that are out, or were ejected recently, by upstream.
    #[serde(default)]
    pub nodes: BTreeMap<String, Vec<KeptNode>>,
    /// The states that operators have set in this process, by upstream and node.
    #[serde(default)]
    pub states: BTreeMap<String, BTreeMap<String, NodeState>>,
}

/// The state of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptNode {
    /// Its configured host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its address.
    pub address: String,
    /// The probe result that made it unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<String>,
    /// Its recent ejections, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ejections: Option<KeptEjections>,
}

/// The ejections of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptEjections {
    /// The number that makes the next one longer.
    pub count: u32,
    /// The rule of the current ejection, and its end, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<(String, u64)>,
}

/// The identity of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NodeIdentity {
    /// Its configured host.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) address: String,
}

/// State of one upstream's nodes from the previous process.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    nodes: HashMap<NodeIdentity, KeptNode>,
    plan: Option<Arc<Plan>>,
    /// The upstream is in force: records taken from now on are in use.
    is_settled: bool,
}

impl Earlier {
    /// Returns the state for an upstream that is judged by `plan`.
    pub(super) fn new(nodes: &[KeptNode], plan: &Arc<Plan>) -> Earlier {
        let identity = |node: &KeptNode| NodeIdentity {
            host: node.host.clone(),
            port: node.port,
            address: node.address.clone(),
        };
        let nodes = nodes.iter().map(|node| (identity(node), node.clone())).collect();
        Earlier { nodes, plan: Some(Arc::clone(plan)), is_settled: false }
    }

    /// Marks the upstream as in force. Its known nodes have got their state.
    pub(super) fn settle(&mut self, is_known: impl Fn(&NodeIdentity) -> bool) {
        self.is_settled = true;
        self.nodes.retain(|identity, _| !is_known(identity));
    }

    /// Gives a new record the state of its node at `now_ms`. Each node gets it once; before the upstream is in force
    /// its nodes may be planned several times.
    pub(super) fn give(&mut self, identity: &NodeIdentity, health: &Arc<Health>, now_ms: u64) {
        let Some(plan) = &self.plan else { return };
        let kept = match self.is_settled {
            true => self.nodes.remove(identity),
            false => self.nodes.get(identity).cloned(),
        };
        if let Some(until_ms) = kept.and_then(|kept| kept.give(plan, health, now_ms)) {
            ejection::end_later(health, until_ms, now_ms);
        }
    }
}

impl KeptNode {
    /// Returns the part of a target's state that is worth keeping; None without one.
    pub(super) fn of(identity: NodeIdentity, health: &Health) -> Option<KeptNode> {
        let NodeIdentity { host, port, address } = identity;
        let standing = health.standing();
        let by_probe = standing.blame.filter(|blame| blame.by == Source::Active && !standing.state.usable());
        let course = health.compared.get().map(|compared| *lock(&compared.course)).unwrap_or_default();
        let present = standing.ejected.zip(course.until_ms).map(|(rule, until)| (rule.name().into(), until));
        let ejections = (course.ejections() > 0 || present.is_some())
            .then_some(KeptEjections { count: course.ejections(), present });
        let down = by_probe.map(|blame| blame.event.name().to_owned());
        (down.is_some() || ejections.is_some()).then_some(KeptNode { host, port, address, down, ejections })
    }

    /// Applies the state to a target that is judged by `plan`, as far as the plan can revert it. Returns the end of
    /// its ejection. An end beyond the longest ejection is moved closer: the clock may have been set.
    fn give(&self, plan: &Plan, health: &Health, now_ms: u64) -> Option<u64> {
        let event = self.down.as_deref().and_then(Event::named).filter(|event| *event != Event::Success);
        if let Some(event) = event.filter(|_| plan.probes_unusable()) {
            let blame = Some(Blame { by: Source::Active, event });
            health.change(|standing| Standing { state: State::Unhealthy, blame, ..standing });
        }
        let (rules, ejections) = (plan.outliers.as_ref()?, self.ejections.as_ref()?);
        let compared = health.compared.get()?;
        let present = ejections.present.as_ref().filter(|(_, until_ms)| *until_ms > now_ms);
        let present = present.and_then(|(rule, until_ms)| {
            Some((Rule::named(rule)?, (*until_ms).min(now_ms.saturating_add(rules.longest_ms()))))
        });
        *lock(&compared.course) =
            NodeEjections::after(ejections.count, present.map(|(_, until_ms)| until_ms));
        let (rule, until_ms) = present?;
        health.change(|standing| Standing { ejected: Some(rule), ..standing });
        Some(until_ms)
    }
}

#[cfg(test)]
mod tests {
    use sigma_config::checks::{Active, ActiveHealthy, ActiveUnhealthy, Checks};
    use sigma_config::resources::OutlierDetection;

    use super::super::Limits;
    use super::super::ejection::unix_ms;
    use super::super::outlier::Rules;
    use super::*;

    const LIMITS: Limits = Limits { successes: 1, http_failures: 1, tcp_failures: 1, timeouts: 1 };

    fn identity() -> NodeIdentity {
        NodeIdentity { host: "h".to_owned(), port: 80, address: "10.0.0.1:80".to_owned() }
    }

    /// Returns a plan of outlier detection with or without probes.
    fn plan(probes: bool) -> Plan {
        let active = Active {
            healthy: Some(ActiveHealthy::default()),
            unhealthy: Some(ActiveUnhealthy::default()),
            ..Active::default()
        };
        let checks = Checks { active: probes.then_some(active), ..Checks::default() };
        let rules = Rules::compile(&OutlierDetection::default());
        Plan { outliers: Some(rules), ..Plan::compile(&checks, None, None).expect("valid") }
    }

    fn compared() -> Health {
        let health = Health::unchecked();
        health.compare(1);
        health
    }

    #[test]
    fn state_survives_a_round_trip() {
        let (plan, before) = (plan(true), compared());
        assert_eq!(KeptNode::of(identity(), &before), None, "a node that is well");
        before.probed(Event::Timeout, LIMITS);
        let until_ms = {
            let compared = before.compared.get().expect("compared");
            let mut course = lock(&compared.course);
            let rules = plan.outliers.as_ref().expect("rules");
            course.eject(rules, 1_000, 0);
            course.eject(rules, 1_000, 0)
        };
        before.change(|standing| Standing { ejected: Some(Rule::SuccessRate), ..standing });
        let kept = KeptNode::of(identity(), &before).expect("something");
        let text = serde_json::to_string(&kept).expect("text");
        let kept: KeptNode = serde_json::from_str(&text).expect("what was written");
        let after = compared();
        assert_eq!(kept.give(&plan, &after, 2_000), Some(until_ms));
        assert_eq!(KeptNode::of(identity(), &after), Some(kept.clone()));
        assert_eq!(after.standing().reason(), before.standing().reason());
        // Its time has ended: its ejections count for the next one.
        let after = compared();
        assert_eq!(kept.give(&plan, &after, until_ms), None);
        let course = *lock(&after.compared.get().expect("compared").course);
        assert_eq!((course.ejections(), course.until_ms, after.standing().ejected), (2, None, None));
    }

    #[test]
    fn irreversible_state_is_ignored() {
        let node = |down: &str, rule: &str, until_ms| KeptNode {
            host: "h".to_owned(),
            port: 80,
            address: String::new(),
            down: Some(down.to_owned()),
            ejections: Some(KeptEjections { count: 1, present: Some((rule.to_owned(), until_ms)) }),
        };
        let check = |node: &KeptNode, plan: &Plan, health: &Health, until_ms, usable| {
            assert_eq!((node.give(plan, health, 1_000), health.usable()), (until_ms, usable), "{node:?}");
        };
        let (probed, unprobed) = (plan(true), plan(false));
        check(&node("timeout", "nonsense", 9_000), &unprobed, &compared(), None, true);
        check(&node("success", "", 0), &probed, &compared(), None, true);
        check(&node("timeout", "", 0), &probed, &compared(), None, false);
        check(&node("", "success_rate", 9_000), &probed, &Health::unchecked(), None, true);
        // At most the longest ejection, for any value in the file.
        check(&node("", "success_rate", u64::MAX), &probed, &compared(), Some(301_000), false);
    }

    #[tokio::test]
    async fn a_node_gets_it_once_and_comes_back() {
        let plan = Arc::new(plan(false));
        let until_ms = unix_ms() + 50;
        let kept = KeptNode {
            host: "h".to_owned(),
            port: 80,
            address: "10.0.0.1:80".to_owned(),
            down: None,
            ejections: Some(KeptEjections { count: 1, present: Some(("success_rate".to_owned(), until_ms)) }),
        };
        let mut earlier = Earlier::new(&[kept], &plan);
        // Before it is in force an upstream may be planned again.
        for _ in 0..2 {
            let planned = Arc::new(compared());
            earlier.give(&identity(), &planned, until_ms - 1);
            assert!(!planned.usable());
        }
        earlier.settle(|_| false);
        let late = Arc::new(compared());
        earlier.give(&identity(), &late, until_ms - 50);
        let again = Arc::new(compared());
        earlier.give(&identity(), &again, until_ms - 50);
        assert!(again.usable());
        let back = async {
            while !late.usable() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), back).await.expect("its time is over");
    }
}
