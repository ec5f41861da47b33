//! Short forms become long ones, so that everything behind here knows one form only.

use serde_json::{Map, Value, json};

use crate::check::Findings;
use crate::document::Document;
use crate::problem::{element, member};
use crate::resources::SECTIONS;

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
    if let Some(listeners) = root.get_mut("listeners") {
        expand_listeners(listeners);
    }
    for section in SECTIONS {
        expand_items(&mut root, section, document, found);
    }
    document.value = Value::Object(root);
}

/// A section without anything in it, as `consumers:` in YAML or `{}`, is no list but none at all.
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

/// The list of enabled plugins: a text is a name.
fn expand_plugins(root: &mut Map<String, Value>) {
    let Some(plugins) = root.get_mut("plugins").and_then(Value::as_array_mut) else { return };
    for plugin in plugins.iter_mut().filter(|plugin| plugin.is_string()) {
        *plugin = json!({ "name": plugin.take() });
    }
}

/// `upstream` at the top level: one route for everything.
fn catch_all(root: &mut Map<String, Value>, document: &Document, found: &mut Findings) {
    let Some(upstream) = root.remove("upstream") else { return };
    if root.contains_key("routes") {
        let message = "`upstream` at the top level stands for one route for everything, beside `routes` it has no place";
        found.errors.push(document.problem("upstream", "conflict", message).hint("move it into a route"));
        return;
    }
    let upstream = match upstream {
        Value::String(url) => upstream_of(&url, "upstream", document, found),
        other => other,
    };
    root.insert("routes".into(), json!([{ "uri": "/*", "upstream": upstream }]));
}

/// A text is an address; `:port` is that port on all addresses, one listener per family.
fn expand_listeners(listeners: &mut Value) {
    if listeners.is_string() {
        *listeners = Value::Array(vec![listeners.take()]);
    }
    let Some(items) = listeners.as_array_mut() else { return };
    let mut second_family = Vec::new();
    for item in items.iter_mut() {
        if item.is_string() {
            *item = json!({ "address": item.take() });
        }
        match item.get("tls") {
            Some(Value::Bool(true)) => item["tls"] = json!({}),
            Some(Value::Bool(false)) => drop(item.as_object_mut().and_then(|item| item.shift_remove("tls"))),
            _ => {}
        }
        let Some(address) = item.get("address").and_then(Value::as_str) else { continue };
        let Some(port) = address.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) else {
            continue;
        };
        let mut other = item.clone();
        other["address"] = Value::String(format!("[::]:{port}"));
        item["address"] = Value::String(format!("0.0.0.0:{port}"));
        // At the end, so that the places of the written ones stay what they are.
        second_family.push(other);
    }
    items.append(&mut second_family);
}

fn expand_items(root: &mut Map<String, Value>, section: &str, document: &Document, found: &mut Findings) {
    let Some(items) = root.get_mut(section).and_then(Value::as_array_mut) else { return };
    for (index, item) in items.iter_mut().enumerate() {
        let Some(item) = item.as_object_mut() else { continue };
        // Consumers have names; the others cannot do without an identity that means something.
        let named = ["consumers", "plugin_metadata", "secrets"].contains(&section);
        if !item.contains_key("id") && !named {
            item.insert("id".into(), Value::String(format!("arr_{}", index + 1)));
        }
        if let Some(Value::String(url)) = item.get("upstream") {
            let pointer = member(&element(section, index), "upstream");
            let upstream = upstream_of(url, &pointer, document, found);
            item.insert("upstream".into(), upstream);
        }
    }
}

/// The upstream that `scheme://host[:port]` stands for.
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
            let problem = document.problem(pointer, "upstream", reason);
            found.errors.push(problem.hint("write it like http://127.0.0.1:8888"));
            // An upstream without nodes, so that the same text is not refused again as no object.
            json!({ "nodes": [] })
        }
    }
}

fn parse_url(url: &str) -> Result<(&str, &str, Option<u16>), String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(format!("`{url}` has no scheme"));
    };
    if !SCHEMES.contains(&scheme) {
        return Err(format!("`{scheme}` is not one of {}", SCHEMES.join(", ")));
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#', '@']) {
        return Err(format!("`{url}` has more than a scheme, a host and a port"));
    }
    let (host, port) = crate::nodes::split_address(authority)?;
    Ok((scheme, host, port))
}
