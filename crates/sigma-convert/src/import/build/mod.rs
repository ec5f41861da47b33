//! Sigma's document of a plan: the only place that knows the document's syntax.

mod conditions;
mod target;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::decision::{Certificate, Decision, Listener, Plan, Target};

/// Maximum length of a resource id.
const MOST_ID: usize = 64;

/// Maximum length of a route's description.
const MOST_DESC: usize = 256;

/// Returns a valid id for a name: characters that ids lack become hyphens.
#[must_use]
pub fn id(name: &str) -> String {
    let mut id = String::new();
    for char in name.chars() {
        let kept = if char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.') { char } else { '-' };
        if kept != '-' || !(id.is_empty() || id.ends_with('-')) {
            id.push(kept);
        }
    }
    let id: String = id.chars().take(MOST_ID).collect();
    let id = id.trim_end_matches('-');
    if id.is_empty() { "root".to_owned() } else { id.to_owned() }
}

/// Returns the condition of a host.
pub(super) fn host_condition(host: &super::decision::Host) -> Value {
    conditions::host_condition(host)
}

/// Returns the condition of a path.
pub(super) fn path_condition(path: &super::decision::Path) -> Value {
    conditions::path_condition(path)
}

/// Returns the texts of a target, which may have variables.
pub(super) fn target_texts(target: &mut Target) -> impl Iterator<Item = &mut String> {
    let (mut texts, mut files): (Vec<&mut String>, Option<&mut Map<String, Value>>) = (Vec::new(), None);
    match target {
        Target::Respond { body, headers, .. } => {
            texts.extend(body.as_mut());
            texts.extend(headers.iter_mut().map(|(_, value)| value));
        }
        Target::Redirect { to, .. } => texts.push(to),
        Target::Files(map) => files = Some(map),
        Target::Upstream(_) | Target::Drop | Target::Closed(_) => {}
    }
    for value in files.into_iter().flat_map(Map::values_mut) {
        strings(value, &mut texts);
    }
    texts.into_iter()
}

fn strings<'v>(value: &'v mut Value, texts: &mut Vec<&'v mut String>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(list) => list.iter_mut().for_each(|value| strings(value, texts)),
        Value::Object(map) => map.values_mut().for_each(|value| strings(value, texts)),
        _ => {}
    }
}

/// Returns all texts of a decision in one, to look for variables in.
pub(super) fn texts(decision: &Decision) -> String {
    let mut target = decision.target.clone();
    let mut all: Vec<String> = target_texts(&mut target).map(|text| text.clone()).collect();
    all.extend(decision.conditions.iter().map(Value::to_string));
    all.extend(decision.plugins.values().chain(decision.fields.values()).map(Value::to_string));
    all.join("\n")
}

impl Plan {
    /// Builds the document: settings first, then resources.
    #[must_use]
    pub fn build(self) -> Value {
        let mut document = Map::new();
        let names = listener_names(&self.listeners);
        if !self.listeners.is_empty() {
            document.insert("listeners".to_owned(), listeners(&self.listeners, &names));
        }
        document.extend(self.settings);
        if !self.decisions.is_empty() {
            let router = document.entry("router").or_insert_with(|| json!({}));
            router["http"] = "ordered".into();
        }
        let ssls: Vec<Value> =
            self.certificates.iter().enumerate().map(|(at, ssl)| certificate(at, ssl)).collect();
        let upstreams: Vec<Value> =
            self.upstreams.into_iter().map(|(id, fields)| with_id(id, fields)).collect();
        let routes = routes(&self.decisions, &names);
        let rules = match self.global_plugins.is_empty() {
            true => Vec::new(),
            false => vec![json!({"id": "all", "plugins": self.global_plugins})],
        };
        let metadata: Vec<Value> =
            self.plugin_metadata.into_iter().map(|(name, fields)| with_id(name, fields)).collect();
        for (key, list) in [
            ("ssls", ssls),
            ("consumers", self.consumers),
            ("global_rules", rules),
            ("plugin_metadata", metadata),
            ("upstreams", upstreams),
            ("routes", routes),
            ("stream_routes", self.streams),
        ] {
            if !list.is_empty() {
                document.insert(key.to_owned(), Value::Array(list));
            }
        }
        document.extend(self.resources);
        Value::Object(document)
    }
}

fn with_id(id: String, fields: Value) -> Value {
    let mut resource = Map::new();
    resource.insert("id".to_owned(), id.into());
    if let Value::Object(fields) = fields {
        resource.extend(fields);
    }
    Value::Object(resource)
}

/// The name of each listener: several addresses of one port share it.
fn listener_names(listeners: &[Listener]) -> Vec<(u16, String)> {
    listeners.iter().map(|listener| (listener.port, format!("port-{}", listener.port))).collect()
}

fn listeners(listeners: &[Listener], names: &[(u16, String)]) -> Value {
    let list = listeners.iter().zip(names).map(|(listener, (_, name))| {
        let mut value = Map::new();
        value.insert("address".to_owned(), listener.address.clone().into());
        // A name is for routes; sessions of streams name their port.
        if !listener.fields.contains_key("stream") {
            value.insert("name".to_owned(), name.clone().into());
        }
        value.extend(listener.fields.clone());
        Value::Object(value)
    });
    list.collect()
}

fn certificate(at: usize, certificate: &Certificate) -> Value {
    let mut ssl = Map::new();
    ssl.insert("id".to_owned(), format!("cert-{}", at + 1).into());
    ssl.insert("snis".to_owned(), json!(certificate.names));
    ssl.insert("cert_file".to_owned(), certificate.cert_file.clone().into());
    ssl.insert("key_file".to_owned(), certificate.key_file.clone().into());
    ssl.extend(certificate.fields.clone());
    Value::Object(ssl)
}

/// Numbers the decisions: the first one has the highest priority.
fn routes(decisions: &[Decision], names: &[(u16, String)]) -> Vec<Value> {
    let mut ids = Ids::default();
    let count = decisions.len();
    let numbered = decisions.iter().enumerate();
    numbered.map(|(at, decision)| route(decision, count - at, ids.unique(&decision.name), names)).collect()
}

/// Ids of routes, with the number that the next one of the same name gets.
#[derive(Default)]
struct Ids {
    taken: HashSet<String>,
    next: HashMap<String, usize>,
}

impl Ids {
    /// Returns an id that no route before has.
    fn unique(&mut self, name: &str) -> String {
        let first = id(name);
        let mut free = first.clone();
        while !self.taken.insert(free.clone()) {
            let number = self.next.entry(first.clone()).or_insert(2);
            let suffix = format!("-{number}");
            *number += 1;
            let start: String = first.chars().take(MOST_ID - suffix.len()).collect();
            free = format!("{start}{suffix}");
        }
        free
    }
}

fn route(decision: &Decision, priority: usize, id: String, names: &[(u16, String)]) -> Value {
    let mut route = Map::new();
    route.insert("id".to_owned(), id.into());
    if let Target::Closed(reason) = &decision.target {
        let desc: String = format!("closed: {reason}").chars().take(MOST_DESC).collect();
        route.insert("desc".to_owned(), desc.into());
    }
    route.insert("priority".to_owned(), priority.into());
    conditions::insert(&mut route, decision, names);
    route.extend(decision.fields.clone());
    let mut plugins = decision.plugins.clone();
    target::insert(&mut route, &mut plugins, &decision.target);
    if !plugins.is_empty() {
        route.insert("plugins".to_owned(), Value::Object(plugins));
    }
    Value::Object(route)
}

#[cfg(test)]
mod tests {
    use super::super::decision::{Host, Path};
    use super::super::source::SourceLine;
    use super::*;

    #[test]
    fn ids_are_valid_and_unique() {
        assert_eq!(id("/a b//c"), "a-b-c");
        assert_eq!(id("/"), "root");
        let mut ids = Ids::default();
        assert_eq!(ids.unique("/a"), "a");
        assert_eq!(ids.unique("a"), "a-2");
        assert_eq!(ids.unique("a-2"), "a-2-2");
        assert_eq!(ids.unique("a"), "a-3");
        let long = "x".repeat(100);
        assert_eq!(ids.unique(&long).len(), 64);
        assert_eq!(ids.unique(&long).len(), 64);
    }

    #[test]
    fn the_first_decision_has_the_highest_priority() {
        let mut first = Decision::new(SourceLine::default(), "a", Target::Upstream("u".to_owned()));
        first.hosts = vec![Host::Exact("a.test".to_owned()), Host::Suffix("b.test".to_owned())];
        first.paths = vec![Path::Exact("/x".to_owned()), Path::Segments("/y".to_owned())];
        first.ports = vec![80];
        let second = Decision::new(SourceLine::default(), "b", Target::Closed("it cannot".to_owned()));
        let listener = |port: u16| Listener { address: format!(":{port}"), port, ..Listener::default() };
        let plan = Plan {
            decisions: vec![first, second],
            listeners: vec![listener(80), listener(81)],
            upstreams: vec![("u".to_owned(), json!({"nodes": {"127.0.0.1:1": 1}}))],
            ..Plan::default()
        };
        let document = plan.build();
        assert_eq!(document["router"]["http"], "ordered");
        let (first, second) = (&document["routes"][0], &document["routes"][1]);
        assert_eq!(first["priority"], 2);
        assert_eq!(first["hosts"], json!(["a.test", "*.b.test"]));
        assert_eq!(first["uris"], json!(["/x", "/y", "/y/*"]));
        assert_eq!(first["listeners"], json!(["port-80"]));
        assert_eq!(first["upstream_id"], "u");
        assert_eq!(second["priority"], 1);
        assert_eq!(second["uri"], "/*");
        assert_eq!(second["desc"], "closed: it cannot");
    }
}
