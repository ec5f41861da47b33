//! Plugins that are disabled, and plugins whose filter never matches.

use std::sync::Arc;

use serde_json::Value;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::credentials::Credentials;
use crate::meta::Meta;
use crate::{Entry, FlowPlugin, Kind, OwnedFields, Phase, PhaseSet, Plugin};

/// Returns the warning for a filter that reads the response although the plugin runs before it.
pub(super) fn early_filter(kind: &dyn Kind, scope: PluginScope, conf: &Value) -> Option<Problem> {
    const LATE: PhaseSet = PhaseSet::of(&[Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]);
    let meta = Meta::of(conf).ok().filter(|_| scope == PluginScope::Http)?;
    let is_late = |phase: &Phase| LATE.contains(*phase) && kind.phases().contains(*phase);
    let is_early = meta.asks_response && !Phase::ALL.iter().any(is_late);
    let message =
        "the condition uses the response, but the plugin runs before it: the variable has no value yet";
    is_early
        .then(|| Problem::new("_meta.filter", "never_matches", message).hint("use a variable of the request"))
}

/// Returns true if a plugin is disabled by its own configuration.
pub(super) fn is_off(conf: &Value) -> bool {
    conf.pointer("/_meta/disable") == Some(&Value::Bool(true))
}

/// The instance of a disabled plugin, for requests and for sessions.
pub(super) struct Off;

impl Plugin for Off {}

impl FlowPlugin for Off {}

/// Returns the entry of a disabled plugin: it overrides entries of the same name from elsewhere and ignores the rest
/// of its configuration.
pub(super) fn switched_off<P: ?Sized>(
    kind: &Arc<dyn Kind>,
    conf: &Arc<Value>,
    metadata: Option<Arc<Value>>,
    plugin: Arc<P>,
) -> Entry<P> {
    Entry {
        kind: Arc::clone(kind),
        meta: Meta { disable: true, ..Meta::default() },
        conf: Arc::clone(conf),
        metadata,
        protos: Vec::new(),
        plugin,
        children: Vec::new(),
        owned: OwnedFields::default(),
        credentials: Credentials::default(),
    }
}
