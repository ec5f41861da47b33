//! Plugins that are disabled, and those whose filter can never hold.

use std::sync::Arc;

use serde_json::Value;
use sigma_config::Problem;
use sigma_config::plugins::PluginScope;

use crate::credentials::Credentials;
use crate::meta::Meta;
use crate::{Entry, FlowPlugin, Kind, OwnedFields, Phase, PhaseSet, Plugin};

/// The warning that a filter asks about the response of a plugin that has run by then.
pub(super) fn early_filter(kind: &dyn Kind, scope: PluginScope, conf: &Value) -> Option<Problem> {
    const LATE: PhaseSet = PhaseSet::of(&[Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]);
    let meta = Meta::of(conf).ok().filter(|_| scope == PluginScope::Http)?;
    let is_late = |phase: &Phase| LATE.contains(*phase) && kind.phases().contains(*phase);
    let is_early = meta.asks_response && !Phase::ALL.iter().any(is_late);
    let message = "the condition is about the response, and the plugin runs before there is one: the variable has no value then";
    is_early.then(|| Problem::new("_meta.filter", "never_matches", message).hint("ask about the request"))
}

/// Whether a plugin is disabled by its own configuration.
pub(super) fn is_off(conf: &Value) -> bool {
    conf.pointer("/_meta/disable") == Some(&Value::Bool(true))
}

/// The instance of a plugin that is disabled, for requests and for sessions.
pub(super) struct Off;

impl Plugin for Off {}

impl FlowPlugin for Off {}

/// The entry of a plugin that is disabled: it stands before those of the same name from elsewhere, whatever else its
/// configuration says.
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
