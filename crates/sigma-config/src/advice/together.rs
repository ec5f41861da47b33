//! Pairs that are harmful together in different resources of a file: a route gets the plugins of its service, its
//! plugin config and the global rules. Only this view shows the missing plugins of a route.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::pairs;
use crate::plugins::is_disabled;
use crate::resources::{Plugins, Resources, Route};
use crate::rules::Object;
use sigma_schema::plugins::PluginSchemas;
use sigma_schema::problem::Problem;

/// Adds the warnings about pairs whose halves a route gets from different resources.
pub(super) fn pairs(resources: &Resources, plugins: &dyn PluginSchemas, found: &mut Vec<Problem>) {
    // A mistake of a service or a global rule is reported once, not for each route.
    let mut told = HashSet::new();
    for route in resources.routes.iter().filter(|route| route.status.is_on()) {
        let whole = Whole::of(route, resources);
        let own = format!("routes/{}", route.id.as_str());
        let owner = |place: &str| whole.owner(place).unwrap_or(&own).to_owned();
        // An absent part is judged here alone.
        let are_apart = |one: Option<&str>, other: &str| one.is_none_or(|one| owner(one) != owner(other));
        for mut problem in pairs::harmful(&whole.value, plugins, &are_apart) {
            let resource = owner(&problem.pointer);
            problem.message = match resource == own {
                true => problem.message,
                false => format!("with the route `{}`: {}", route.id.as_str(), problem.message),
            };
            if resource.starts_with("upstreams/") {
                problem.pointer = problem.pointer.strip_prefix("upstream.").unwrap_or_default().to_owned();
            }
            let problem = problem.within(&resource);
            if told.insert((problem.pointer.clone(), problem.code)) {
                found.push(problem);
            }
        }
    }
}

/// A route merged with the fields and plugins that it gets from other resources.
struct Whole {
    value: Object,
    /// The resource of a place outside the route, by the prefix of its pointer.
    owners: HashMap<String, String>,
}

impl Whole {
    fn of(route: &Route, resources: &Resources) -> Whole {
        let mut whole = Whole { value: Map::new(), owners: HashMap::new() };
        let own = serde_json::to_value(route).unwrap_or_default();
        let service = route.service_id.as_ref().and_then(|id| resources.services.get(id.as_str()));
        for rule in resources.global_rules.iter() {
            whole.plugins(&format!("global_rules/{}", rule.id.as_str()), &rule.plugins);
        }
        if let Some(service) = service {
            let place = format!("services/{}", service.id.as_str());
            whole.plugins(&place, &service.plugins);
            let value = serde_json::to_value(&**service).unwrap_or_default();
            for field in ["cache", "upstream", "retry_policy"] {
                whole.field(field, &value, &place);
            }
            whole.upstream(&value, resources);
        }
        let config = route.plugin_config_id.as_ref().and_then(|id| resources.plugin_configs.get(id.as_str()));
        if let Some(config) = config {
            whole.plugins(&format!("plugin_configs/{}", config.id.as_str()), &config.plugins);
        }
        whole.plugins("", &route.plugins);
        let fields = ["cache", "upstream", "retry_policy", "methods", "remote_addr", "remote_addrs", "vars"];
        for field in fields {
            whole.field(field, &own, "");
        }
        whole.upstream(&own, resources);
        whole
    }

    /// Adds the plugins of a resource; they replace plugins of the same name.
    fn plugins(&mut self, owner: &str, plugins: &Plugins) {
        let all = self.value.entry("plugins").or_insert_with(|| Value::Object(Map::new()));
        let Some(all) = all.as_object_mut() else { return };
        for (name, conf) in plugins.iter().filter(|(_, conf)| !is_disabled(conf)) {
            all.insert(name.to_string(), Value::clone(conf));
            let place = sigma_schema::problem::member("plugins", name);
            match owner {
                "" => drop(self.owners.remove(&place)),
                owner => drop(self.owners.insert(place, owner.to_owned())),
            }
        }
    }

    fn field(&mut self, name: &str, from: &Value, owner: &str) {
        let Some(value) = from.get(name).filter(|value| !value.is_null()) else { return };
        self.value.insert(name.to_owned(), value.clone());
        match owner {
            "" => drop(self.owners.remove(name)),
            owner => drop(self.owners.insert(name.to_owned(), owner.to_owned())),
        }
    }

    /// Adds the upstream that a resource refers to.
    fn upstream(&mut self, from: &Value, resources: &Resources) {
        let id = from.get("upstream_id").and_then(sigma_schema::id::text_of_id);
        let Some(upstream) = id.and_then(|id| resources.upstreams.get(&id)) else { return };
        let value = serde_json::to_value(&**upstream).unwrap_or_default();
        self.value.insert("upstream".to_owned(), value);
        self.owners.insert("upstream".to_owned(), format!("upstreams/{}", upstream.id.as_str()));
    }

    /// Returns the resource of a place outside the route.
    fn owner(&self, place: &str) -> Option<&String> {
        let begins = |at: &str| {
            let rest = place.strip_prefix(at)?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then_some(())
        };
        self.owners.iter().find(|(at, _)| begins(at).is_some()).map(|(_, owner)| owner)
    }
}
