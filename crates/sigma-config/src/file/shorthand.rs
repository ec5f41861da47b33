//! Expands short forms, so that all later steps see only the long form.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::bundled;
use crate::check::Findings;
use crate::file::env::{self, Holds};
use crate::resources::SECTIONS;
use crate::rules::hosts;
use sigma_schema::document::Document;
use sigma_schema::plugins::PluginSchemas;
use sigma_schema::problem::{Problem, element, member};

/// Protocols that the short form of an upstream may start with.
const SCHEMES: [&str; 4] = ["http", "https", "grpc", "grpcs"];

const EXAMPLE: &str = "the shortest configuration is: upstream: \"http://127.0.0.1:8888\"";

/// Rewrites the short forms of `document` in place.
pub(crate) fn expand(document: &mut Document, found: &mut Findings) {
    let mut root = match std::mem::take(&mut document.value) {
        Value::Object(root) => root,
        Value::Null => {
            found.errors.push(document.problem("", "empty", "the document is empty").hint(EXAMPLE));
            Map::new()
        }
        _ => {
            found.errors.push(document.problem("", "type", "the document must be an object").hint(EXAMPLE));
            Map::new()
        }
    };
    drop_empty(&mut root);
    expand_plugins(&mut root);
    catch_all(&mut root, document, found);
    for (key, inner) in [("access_log", "path"), ("error_log", "level"), ("status", "address")] {
        if let Some(text @ Value::String(_)) = root.get_mut(key) {
            *text = json!({ inner: text.take() });
        }
    }
    // The check of the path knows switches.
    if let Some(switch @ Value::Bool(_)) = root.get_mut("access_log") {
        *switch = json!({ "path": switch.to_string() });
    }
    if let Some(listeners) = root.get_mut("listeners") {
        found.written_listeners = expand_listeners(listeners);
    }
    for section in SECTIONS {
        expand_items(&mut root, section, document, found);
    }
    for host in hosts::derive(&mut root) {
        let message = format!("`tls: auto` orders no certificate for `{host}`");
        let hint = "add an ssl with a certificate for it, if clients are to reach it over TLS";
        found.warnings.push(document.problem("listeners", "acme", message).hint(hint));
    }
    document.value = Value::Object(root);
}

/// The resources of a document, as a running gateway accepts them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resources {
    /// The sections with expanded short forms, and all fields that are neither section nor setting.
    pub sections: Map<String, Value>,
    /// The names of the process settings that were next to them.
    pub settings: Vec<String>,
}

/// Extracts the resources from the document of a whole gateway, as the gateway itself would read them.
///
/// # Errors
/// Returns a problem for each unset variable and each invalid short form.
pub fn resources(
    mut document: Document,
    plugins: &dyn PluginSchemas,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Resources, Vec<Problem>> {
    let known = bundled::of_settings().get("properties").and_then(Value::as_object);
    let is_setting = |name: &str| {
        // The list of enabled plugins is both a setting and a resource.
        !SECTIONS.contains(&name) && name != "plugins" && known.is_some_and(|k| k.contains_key(name))
    };
    let mut settings = Vec::new();
    if let Some(root) = document.value.as_object_mut() {
        settings.extend(root.keys().filter(|name| is_setting(name)).cloned());
        // Their variables may be set for the gateway only.
        root.retain(|name, _| !is_setting(name));
    }
    let errors = env::substitute(&mut document, Holds::File(plugins), env);
    let mut found = Findings { errors, ..Findings::default() };
    expand(&mut document, &mut found);
    match document.value {
        Value::Object(sections) if found.errors.is_empty() => Ok(Resources { sections, settings }),
        _ => Err(found.errors),
    }
}

/// Returns the value of a document with one resource, read in the same way.
///
/// # Errors
/// Returns the errors of [`resources`].
pub fn resource(
    mut document: Document,
    plugins: &dyn PluginSchemas,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Value, Vec<Problem>> {
    let errors = env::substitute(&mut document, Holds::Resource(plugins), env);
    let mut found = Findings { errors, ..Findings::default() };
    let mut value = std::mem::take(&mut document.value);
    if let Some(item) = value.as_object_mut() {
        expand_upstreams(item, "", &document, &mut found);
    }
    if found.errors.is_empty() { Ok(value) } else { Err(found.errors) }
}

/// Removes empty sections: `consumers:` in YAML or `{}` is not a list.
fn drop_empty(root: &mut Map<String, Value>) {
    for section in SECTIONS.into_iter().chain(["plugins"]) {
        let empty = match root.get(section) {
            Some(Value::Null) => true,
            Some(Value::Object(map)) => map.is_empty(),
            _ => false,
        };
        if empty {
            root.shift_remove(section);
        }
    }
}

/// Expands the list of enabled plugins: a text is a name.
fn expand_plugins(root: &mut Map<String, Value>) {
    let Some(plugins) = root.get_mut("plugins").and_then(Value::as_array_mut) else { return };
    for plugin in plugins.iter_mut().filter(|plugin| plugin.is_string()) {
        *plugin = json!({ "name": plugin.take() });
    }
}

/// Expands `upstream` at the top level to one route for all requests.
fn catch_all(root: &mut Map<String, Value>, document: &Document, found: &mut Findings) {
    let Some(upstream) = root.remove("upstream") else { return };
    if root.contains_key("routes") {
        let message = "`upstream` at the top level is one route for all requests, and excludes `routes`";
        found.errors.push(document.problem("upstream", "conflict", message).hint("move it into a route"));
        return;
    }
    let upstream = match upstream {
        Value::String(url) => upstream_of(&url, "upstream", document, found),
        other => other,
    };
    root.insert("routes".into(), json!([{ "uri": "/*", "upstream": upstream }]));
}

/// Expands listeners: a text is an address, and `:port` becomes one listener per address family. Returns the number of
/// listeners before.
fn expand_listeners(listeners: &mut Value) -> usize {
    if listeners.is_string() {
        *listeners = Value::Array(vec![listeners.take()]);
    }
    let Some(items) = listeners.as_array_mut() else { return 0 };
    let mut second_family = Vec::new();
    for item in items.iter_mut() {
        if item.is_string() {
            *item = json!({ "address": item.take() });
        }
        match item.get("tls") {
            Some(Value::Bool(true)) => item["tls"] = json!({}),
            Some(Value::String(word)) if word == "auto" => item["tls"] = json!({ "auto": true }),
            Some(Value::Bool(false)) => drop(item.as_object_mut().and_then(|item| item.shift_remove("tls"))),
            _ => {}
        }
        match item.get("http3") {
            Some(Value::Bool(true)) => item["http3"] = json!({}),
            Some(Value::Bool(false)) => {
                drop(item.as_object_mut().and_then(|item| item.shift_remove("http3")))
            }
            _ => {}
        }
        let Some(address) = item.get("address").and_then(Value::as_str) else { continue };
        let Some(port) = address.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) else {
            continue;
        };
        let mut other = item.clone();
        other["address"] = Value::String(format!("[::]:{port}"));
        item["address"] = Value::String(format!("0.0.0.0:{port}"));
        // Appended, so that the positions of the written ones do not change.
        second_family.push(other);
    }
    let written = items.len();
    items.append(&mut second_family);
    written
}

fn expand_items(root: &mut Map<String, Value>, section: &str, document: &Document, found: &mut Findings) {
    let Some(items) = root.get_mut(section).and_then(Value::as_array_mut) else { return };
    for (index, item) in items.iter_mut().enumerate() {
        let Some(item) = item.as_object_mut() else { continue };
        // Consumers and similar kinds have names; other items get an id from their position.
        let named = ["consumers", "plugin_metadata", "secrets"].contains(&section);
        if !item.contains_key("id") && !named {
            item.insert("id".into(), Value::String(format!("arr_{}", index + 1)));
        }
        expand_upstreams(item, &element(section, index), document, found);
        let plugins = item.get_mut("plugins").and_then(Value::as_object_mut);
        // `key-auth:` without a value is a YAML plugin without fields, `[]` is Lua's form.
        let is_nothing = |conf: &Value| conf.is_null() || conf.as_array().is_some_and(Vec::is_empty);
        let empty = plugins.into_iter().flatten().filter(|(_, conf)| is_nothing(conf));
        empty.for_each(|(_, conf)| *conf = json!({}));
    }
}

/// Expands the upstream of a resource, and the upstreams of its `traffic-split`.
fn expand_upstreams(item: &mut Map<String, Value>, pointer: &str, document: &Document, found: &mut Findings) {
    let mut expand = |holder: &mut Value, pointer: &str| {
        if let Some(Value::String(url)) = holder.get("upstream") {
            holder["upstream"] = upstream_of(url, &member(pointer, "upstream"), document, found);
        }
    };
    let pointer_of_rules = member(&member(&member(pointer, "plugins"), "traffic-split"), "rules");
    let rules =
        item.get_mut("plugins").and_then(|plugins| plugins.get_mut("traffic-split")?.get_mut("rules"));
    for (index, rule) in rules.and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
        let pointer = member(&element(&pointer_of_rules, index), "weighted_upstreams");
        let choices = rule.get_mut("weighted_upstreams").and_then(Value::as_array_mut);
        for (index, choice) in choices.into_iter().flatten().enumerate() {
            expand(choice, &element(&pointer, index));
        }
    }
    if item.get("upstream").is_some_and(Value::is_string) {
        let mut holder = Value::Object(std::mem::take(item));
        expand(&mut holder, pointer);
        if let Value::Object(held) = holder {
            *item = held;
        }
    }
}

/// Returns the upstream that `scheme://host[:port]` means.
fn upstream_of(url: &str, pointer: &str, document: &Document, found: &mut Findings) -> Value {
    match parse_url(url) {
        Ok((scheme, host, port)) => {
            let mut node = json!({ "host": host, "weight": 1 });
            if let Some(port) = port {
                node["port"] = port.into();
            }
            json!({ "scheme": scheme, "nodes": [node] })
        }
        Err(reason) => {
            // An unset variable leaves an empty text, which is not a second mistake.
            if found.errors.iter().any(|problem| problem.pointer == pointer) {
                return json!({ "nodes": [] });
            }
            let problem = document.problem(pointer, "upstream", reason);
            let hint = match pointer.starts_with("stream_routes") {
                true => "for example upstream: { scheme: tcp, nodes: { \"127.0.0.1:6379\": 1 } }",
                false => "write it like http://127.0.0.1:8888",
            };
            found.errors.push(problem.hint(hint));
            // An upstream without nodes, so that the text is not also reported as not an object.
            json!({ "nodes": [] })
        }
    }
}

fn parse_url(url: &str) -> Result<(&str, Cow<'_, str>, Option<u16>), String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(format!("`{url}` has no scheme"));
    };
    if !SCHEMES.contains(&scheme) {
        return Err(format!("`{scheme}` is not one of {}", SCHEMES.join(", ")));
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#', '@']) {
        return Err(format!("`{url}` may only have a scheme, a host and a port"));
    }
    let (host, port) = sigma_schema::node_address::split_address(authority)?;
    Ok((scheme, host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sigma_schema::plugins::NoPlugins;

    fn read(text: &str) -> Result<Resources, Vec<Problem>> {
        let env = |name: &str| (name == "NODE").then(|| "http://a:1".to_owned());
        resources(Document::parse(text, text.len()).expect("a document"), &NoPlugins, &env)
    }

    #[test]
    fn resources_are_separated_from_settings() {
        let found = read(
            "workers: 2\nlisteners: [\":80\"]\nstatus: \"127.0.0.1:1\"\nrouts: []\nplugins: [cors]\nroutes:\n- uri: /a\n  upstream: http://a:1\n",
        );
        let found = found.expect("resources");
        assert_eq!(found.settings, ["workers", "listeners", "status"]);
        let upstream = json!({"scheme": "http", "nodes": [{"host": "a", "port": 1, "weight": 1}]});
        let expected = json!({
            "routs": [], "plugins": [{"name": "cors"}],
            "routes": [{"uri": "/a", "upstream": upstream, "id": "arr_1"}],
        });
        assert_eq!(Value::Object(found.sections), expected);
        let shortest = read("upstream: http://a:1").expect("resources").sections;
        assert_eq!(shortest["routes"][0]["upstream"], upstream);
        assert!(read("routes:\n- upstream: a:1\n").is_err());
        let variable = read("workers: ${{OWN}}\nupstream: ${{NODE}}\n").expect("resources").sections;
        assert_eq!(variable["routes"][0]["upstream"], upstream);
        assert!(read("upstream: ${{OWN}}\n").is_err(), "it is not set");
        assert!(read("[]").is_err());
    }

    #[test]
    fn upstreams_of_a_resource_are_expanded() {
        let read = |value: &Value| {
            let document = Document { value: value.clone(), ..Document::default() };
            resource(document, &NoPlugins, &|_| None)
        };
        let value = read(&json!({
            "upstream": "http://a:1",
            "plugins": {"traffic-split": {"rules": [{"weighted_upstreams": [
                {"upstream": "https://b", "weight": 1}, {"weight": 2}, {"upstream_id": "c"}]}]}},
        }));
        let value = value.expect("a resource");
        assert_eq!(value["upstream"]["nodes"][0]["host"], "a");
        let choices = &value["plugins"]["traffic-split"]["rules"][0]["weighted_upstreams"];
        assert_eq!(choices[0]["upstream"], json!({"scheme": "https", "nodes": [{"host": "b", "weight": 1}]}));
        assert_eq!((&choices[1], &choices[2]), (&json!({"weight": 2}), &json!({"upstream_id": "c"})));
        let choice = json!({"weighted_upstreams": [{"upstream": "x"}]});
        let wrong =
            read(&json!({"plugins": {"traffic-split": {"rules": [choice]}}})).expect_err("no address");
        assert!(wrong[0].to_string().contains("`x` has no scheme"), "{}", wrong[0]);
        let odd = json!({"plugins": {"traffic-split": {"rules": 1}}});
        for other in [json!(1), json!({"upstream": {}}), odd] {
            assert_eq!(read(&other), Ok(other));
        }
    }
}
