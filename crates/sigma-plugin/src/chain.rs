//! The plugins of a route in the order in which they run, one list per phase.

use std::sync::Arc;

use serde_json::Value;
use sigma_schema::id::Id;

use crate::credentials::Credentials;
use crate::meta::Meta;
use crate::record::Interest;
use crate::{Kind, OwnedFields, Phase, PhaseSet, Plugin, Resource, RunPolicy};

/// A plugin with one configuration, on a route or on a stream route.
pub struct Entry<P: ?Sized = dyn Plugin> {
    /// The plugin kind.
    pub kind: Arc<dyn Kind>,
    /// Its `_meta`.
    pub meta: Meta,
    /// The configuration as it was written.
    pub conf: Arc<Value>,
    /// The metadata of the plugin when the instance was created.
    pub metadata: Option<Arc<Value>>,
    /// The Protocol Buffers definitions when the instance was created; None for a missing one.
    pub protos: Vec<(Id, Option<Resource>)>,
    /// The instance.
    pub plugin: Arc<P>,
    /// The plugins nested in its configuration.
    pub children: Vec<Arc<Entry>>,
    /// The request fields that it and its children set for nodes.
    pub owned: OwnedFields,
    /// The credentials that it and its children read or set.
    pub credentials: Credentials,
}

impl<P: ?Sized> Entry<P> {
    /// The name of its plugin.
    pub fn name(&self) -> &str {
        self.kind.name()
    }

    fn priority(&self) -> i32 {
        self.meta.priority.unwrap_or(self.kind.priority())
    }
}

impl Entry {
    /// Returns true if it, or a nested plugin, authenticates users.
    pub fn identifies(&self) -> bool {
        self.kind.identifies() || self.children.iter().any(|child| child.identifies())
    }

    /// Returns the records that the plugin needs: it logs, or its configuration names a variable about the exchange.
    fn interest(&self) -> Interest {
        if tells_course(&self.conf) || self.metadata.as_deref().is_some_and(tells_course) {
            return Interest::ALWAYS;
        }
        match self.kind.phases().contains(Phase::Log) {
            true if self.plugin.samples() => Interest::SAMPLER,
            true => Interest::ALWAYS,
            false => Interest::default(),
        }
    }
}

impl<P: ?Sized> std::fmt::Debug for Entry<P> {
    /// Without the configuration, which may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Parts of the names of variables that need a record of the exchange; see [`crate::record::Record::attempts`].
const COURSE: [&str; 3] = ["upstream_", "balancer_", "request_time"];

/// Returns true if a text in a configuration may name such a variable. A false match only costs a clock reading.
fn tells_course(conf: &Value) -> bool {
    match conf {
        Value::String(text) => COURSE.iter().any(|name| text.contains(name)),
        Value::Array(items) => items.iter().any(tells_course),
        Value::Object(members) => members.values().any(tells_course),
        _ => false,
    }
}

/// Sorts plugins in running order. Of several with one name the last is kept; disabled ones are dropped.
pub(crate) fn in_order<P: ?Sized>(entries: impl IntoIterator<Item = Arc<Entry<P>>>) -> Vec<Arc<Entry<P>>> {
    let mut entries: Vec<Arc<Entry<P>>> = entries.into_iter().collect();
    // Both sorts are stable: the last of one name comes first and is kept.
    entries.reverse();
    entries.sort_by(|one, other| one.name().cmp(other.name()));
    entries.dedup_by(|later, first| later.name() == first.name());
    entries.retain(|entry| !entry.meta.disable);
    // Stable: plugins of equal priority run in the order of their names.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.priority()));
    entries
}

/// A list of plugins that run together. The lists per phase are made once, so that a phase without plugins costs one
/// length check.
#[derive(Debug, Default)]
pub struct Chain {
    entries: Box<[Arc<Entry>]>,
    phases: [Box<[Arc<Entry>]>; Phase::ALL.len()],
    hooks: PhaseSet,
    interest: Interest,
    owned: Option<Arc<OwnedFields>>,
    credentials: Option<Arc<Credentials>>,
}

impl Chain {
    /// Returns the chain of these plugins; of several with one name the last one counts. Disabled ones are omitted.
    pub fn new(entries: impl IntoIterator<Item = Arc<Entry>>) -> Chain {
        let entries = in_order(entries);
        let of = |phase: Phase| {
            entries.iter().filter(|entry| entry.kind.phases().contains(phase)).cloned().collect()
        };
        let mut phases: [Box<[Arc<Entry>]>; Phase::ALL.len()] = Phase::ALL.map(of);
        // Stable: the others keep their order.
        phases[Phase::BodyFilter as usize].sort_by_key(|entry| entry.kind.filters_last());
        let hooks = entries.iter().fold(PhaseSet::default(), |hooks, entry| hooks.and(entry.kind.phases()));
        let interest = entries.iter().fold(Interest::default(), |all, entry| all.and(entry.interest()));
        let owned = OwnedFields::new(entries.iter().flat_map(|entry| entry.owned.iter().cloned()));
        let owned = (!owned.is_empty()).then(|| Arc::new(owned));
        let credentials = Credentials::new(entries.iter().flat_map(|entry| entry.credentials.iter()));
        let credentials = (!credentials.is_empty()).then(|| Arc::new(credentials));
        Chain { entries: entries.into_boxed_slice(), phases, hooks, interest, owned, credentials }
    }

    /// The plugins that run in a phase, in order.
    #[inline]
    pub fn phase(&self, phase: Phase) -> &[Arc<Entry>] {
        &self.phases[phase as usize]
    }

    /// The phases in which a plugin runs.
    #[inline]
    pub fn hooks(&self) -> PhaseSet {
        self.hooks
    }

    /// Returns what its plugins want recorded of the exchange: the start time and the attempts. It is known in
    /// advance, so that other routes do not pay for it. The value of a variable also does not depend on whether a log
    /// plugin is there.
    #[inline]
    pub fn interest(&self) -> Interest {
        self.interest
    }

    /// The request fields that its plugins set for nodes, whether they run for a request or are skipped; None for
    /// none.
    #[inline]
    pub fn owned(&self) -> Option<&Arc<OwnedFields>> {
        self.owned.as_ref()
    }

    /// The credentials that its plugins read or set; None for none.
    #[inline]
    pub fn credentials(&self) -> Option<&Arc<Credentials>> {
        self.credentials.as_ref()
    }

    /// All plugins, in order.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Whether there is no plugin.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The plugin with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| entry.name() == name)
    }

    /// Returns this chain with `over` added; plugins of `over` replace those with the same names.
    #[must_use]
    pub fn overridden_by(&self, over: &[Arc<Entry>]) -> Chain {
        Chain::new(self.entries.iter().chain(over).cloned())
    }

    /// Returns true if a plugin of this global chain yields to the same plugin in `route`.
    pub fn stands_back_for(&self, route: &Chain) -> bool {
        self.entries.iter().any(|entry| stands_back(entry, route))
    }

    /// Returns this global chain without the plugins that yield to the route's plugins.
    #[must_use]
    pub fn standing_back_for(&self, route: &Chain) -> Chain {
        Chain::new(self.entries.iter().filter(|entry| !stands_back(entry, route)).cloned())
    }
}

fn stands_back(entry: &Entry, route: &Chain) -> bool {
    entry.kind.run_policy() == RunPolicy::PreferRoute && route.get(entry.name()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Descriptor;

    struct Nothing;

    impl Plugin for Nothing {}

    const fn descriptor(name: &'static str, priority: i32, run_policy: RunPolicy) -> Descriptor {
        let phases = PhaseSet::of(&[Phase::Access, Phase::Log]);
        Descriptor { name, priority, phases, run_policy, ..Descriptor::BASE }
    }

    static A: Descriptor = descriptor("a", 1, RunPolicy::Both);
    static B: Descriptor = descriptor("b", 2, RunPolicy::PreferRoute);
    static C: Descriptor = descriptor("c", 2, RunPolicy::Both);

    fn entry(descriptor: &'static Descriptor, meta: Value) -> Arc<Entry> {
        let conf = serde_json::json!({"_meta": meta});
        let meta = Meta::of(&conf).unwrap();
        Arc::new(Entry {
            kind: Arc::new(*descriptor),
            meta,
            conf: Arc::new(conf),
            metadata: None,
            protos: Vec::new(),
            plugin: Arc::new(Nothing),
            children: Vec::new(),
            owned: OwnedFields::default(),
            credentials: Credentials::default(),
        })
    }

    #[test]
    fn interest_depends_on_phases_and_variables() {
        static REWRITES: Descriptor =
            Descriptor { phases: PhaseSet::of(&[Phase::Rewrite]), ..descriptor("r", 1, RunPolicy::Both) };
        let check = |descriptor: &'static Descriptor, conf: Value, expected: bool| {
            let plugin: Arc<dyn Plugin> = Arc::new(Nothing);
            let meta = Meta::default();
            let text = conf.to_string();
            let entry = Entry {
                kind: Arc::new(*descriptor),
                meta,
                conf: Arc::new(conf),
                metadata: None,
                protos: Vec::new(),
                plugin,
                children: Vec::new(),
                owned: OwnedFields::default(),
                credentials: Credentials::default(),
            };
            let expected = if expected { Interest::ALWAYS } else { Interest::default() };
            assert_eq!(Chain::new([Arc::new(entry)]).interest(), expected, "{text}");
        };
        check(&A, serde_json::json!({}), true);
        check(&REWRITES, serde_json::json!({"headers": {"set": {"X": "$uri"}}}), false);
        check(&REWRITES, serde_json::json!({"headers": {"set": {"X": "${balancer_ip}:1"}}}), true);
        check(&REWRITES, serde_json::json!({"vars": [["request_time", ">", 1]]}), true);
        check(&REWRITES, serde_json::json!({"body": "$upstream_addr"}), true);
    }

    fn names(chain: &Chain) -> String {
        chain.phase(Phase::Access).iter().map(|entry| entry.name()).collect()
    }

    #[test]
    fn order_is_priority_then_name() {
        let none = || serde_json::json!({});
        let check = |entries: Vec<Arc<Entry>>, expected: &str| {
            assert_eq!(names(&Chain::new(entries)), expected);
        };
        check(vec![entry(&A, none()), entry(&C, none()), entry(&B, none())], "bca");
        check(vec![entry(&A, serde_json::json!({"priority": 9})), entry(&B, none())], "ab");
        check(vec![entry(&A, serde_json::json!({"disable": true})), entry(&B, none())], "b");
        let chain = Chain::new([entry(&A, none()), entry(&B, none())]);
        assert!(chain.phase(Phase::Rewrite).is_empty());
        assert_eq!(names(&chain.overridden_by(&[entry(&A, serde_json::json!({"priority": 5}))])), "ab");
        assert_eq!(names(&chain.standing_back_for(&Chain::new([entry(&B, none()), entry(&A, none())]))), "a");
    }
}
