//! Ids of other resources within configurations of plugins.

use serde_json::Value;

use super::plugin_holders;
use crate::plugins::is_disabled;
use crate::resources::Resources;
use sigma_schema::id::text_of_id;
use sigma_schema::problem::{Problem, element, member};

/// Ids in plugins that no resource of the file has: requests that need the resource are refused.
pub(super) fn within_plugins(resources: &Resources, found: &mut Vec<Problem>) {
    for (section, id, plugins) in plugin_holders(resources) {
        for (name, conf) in plugins.iter().filter(|(_, conf)| !is_disabled(conf)) {
            let place = member(&format!("{section}/{id}.plugins"), name);
            let named = match &**name {
                "grpc-transcode" => proto(conf, resources),
                "traffic-split" => upstreams(conf, resources),
                _ => continue,
            };
            found.extend(named.into_iter().map(|(pointer, message)| {
                let hint = "add it, or correct the id";
                Problem::new(format!("{place}.{pointer}"), "unknown_name", message).hint(hint)
            }));
        }
    }
}

fn proto(conf: &Value, resources: &Resources) -> Vec<(String, String)> {
    let id = conf.get("proto_id").and_then(text_of_id).filter(|id| resources.protos.get(id).is_none());
    id.into_iter().map(|id| ("proto_id".to_owned(), format!("there is no proto `{id}`"))).collect()
}

fn upstreams(conf: &Value, resources: &Resources) -> Vec<(String, String)> {
    let list = |value: &Value, field: &str| {
        let items = value.get(field).and_then(Value::as_array).into_iter().flatten().enumerate();
        items.map(|(at, item)| (element(field, at), item.clone())).collect::<Vec<_>>()
    };
    let weighted = list(conf, "rules").into_iter().flat_map(|(rule, value)| {
        let entries = list(&value, "weighted_upstreams").into_iter();
        entries.map(move |(entry, value)| (format!("{rule}.{entry}.upstream_id"), value))
    });
    let named = weighted.filter_map(|(place, value)| Some((place, text_of_id(value.get("upstream_id")?)?)));
    let missing = named.filter(|(_, id)| resources.upstreams.get(id).is_none());
    missing.map(|(place, id)| (place, format!("there is no upstream `{id}`"))).collect()
}
