//! A short description of each plugin, for lists.

use serde_json::{Map, Value, json};
use sigma_plugin::docs::summary;
use sigma_plugin::{Kind, Phase, Roster};
use sigma_schema::plugins::PluginScope;

/// The places where a plugin may be configured, with their names in responses.
const SCOPES: [(PluginScope, &str); 4] = [
    (PluginScope::Http, "route"),
    (PluginScope::Stream, "stream_route"),
    (PluginScope::Consumer, "consumer"),
    (PluginScope::Metadata, "metadata"),
];

/// The enabled plugins of this build by name.
pub(super) fn summaries(roster: &Roster) -> Value {
    let built = roster.kinds().filter(|kind| kind.left_out().is_none());
    Value::Object(built.map(|kind| (kind.name().to_owned(), summarized(&**kind))).collect::<Map<_, _>>())
}

fn summarized(kind: &dyn Kind) -> Value {
    let phases = Phase::ALL.into_iter().filter(|phase| kind.phases().contains(*phase)).map(Phase::as_str);
    let scopes = SCOPES.into_iter().filter(|(scope, _)| kind.schema(*scope).is_some()).map(|(_, name)| name);
    json!({
        "description": summary(kind),
        "group": kind.group(),
        "priority": kind.priority(),
        "phases": phases.collect::<Vec<_>>(),
        "scopes": scopes.collect::<Vec<_>>(),
    })
}
