//! Warnings about limits with an unexpected key, and about metrics that are not exported.

use serde_json::Value;

use super::plugin_holders;
use crate::plugins::is_disabled;
use crate::resources::Resources;
use crate::rules::Object;
use crate::settings::Settings;
use sigma_schema::problem::{Problem, member};

const LIMITS: [&str; 4] = ["limit-count", "limit-req", "limit-conn", "graphql-limit-count"];

/// Warns about limits of a consumer that count each of its addresses separately.
pub(super) fn limits_by_address(consumer: &Object, found: &mut Vec<Problem>) {
    let plugins = consumer.get("plugins").and_then(Value::as_object).into_iter().flatten();
    for (name, conf) in plugins.filter(|(name, conf)| LIMITS.contains(&name.as_str()) && !is_disabled(conf)) {
        let word = |field: &str| conf.get(field).and_then(Value::as_str);
        let counts_addresses = matches!(word("key_type"), None | Some("var"))
            && matches!(word("key"), None | Some("remote_addr"))
            && conf.get("rules").is_none();
        if counts_addresses {
            let place = member(&member("plugins", name), "key");
            let message = "each address of the consumer has its own limit";
            found.push(Problem::new(place, "counts_addresses", message).hint("write `key: consumer_name`"));
        }
    }
}

/// Returns the warning about `prometheus` without a metrics page.
pub(super) fn unread_metrics(settings: &Settings, resources: &Resources) -> Option<Problem> {
    const NAME: &str = "prometheus";
    let attributes = settings.plugin_attr.get(NAME);
    let says = |name: &str| attributes.and_then(|attributes| attributes.get(name));
    let is_exported = match says("enable_export_server").and_then(Value::as_bool) {
        Some(exported) => exported,
        None => says("export_addr").is_some(),
    };
    let has = |name: &'static str| {
        let of_streams = resources.stream_routes.iter();
        let of_streams = of_streams.map(|route| ("stream_routes", route.id.as_str(), &route.plugins));
        plugin_holders(resources).chain(of_streams).find(|(_, _, plugins)| {
            plugins.iter().any(|(other, conf)| &**other == name && !is_disabled(conf))
        })
    };
    let (section, id, _) = has(NAME)?;
    if is_exported || says("otlp").is_some() || has("public-api").is_some() {
        return None;
    }
    let place = member(&format!("{section}/{id}.plugins"), NAME);
    let message = "no listener exports the metrics";
    let hint = "write plugin_attr: { prometheus: { export_addr: { ip: 127.0.0.1, port: 9091 } } }";
    Some(Problem::new(place, "unread_metrics", message).hint(hint))
}
