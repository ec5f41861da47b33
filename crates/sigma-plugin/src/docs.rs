//! The reference of a plugin, made from its descriptor: for `sigma plugins NAME` and the files of
//! `docs/plugins/`.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value;
use sigma_schema::described::take_confidential;
use sigma_schema::docs::{cell, type_in_words};
use sigma_schema::plugins::PluginScope;

use crate::{Kind, Phase, RunPolicy};

/// Returns the reference as Markdown.
pub fn reference(plugin: &dyn Kind) -> String {
    let mut out = format!("# {}\n\n{}\n\n", plugin.name(), plugin.documentation().trim());
    let mut phases: Vec<&str> =
        Phase::ALL.into_iter().filter(|phase| plugin.phases().contains(*phase)).map(Phase::as_str).collect();
    let of_streams = plugin.schema(PluginScope::Stream);
    if of_streams.is_some() {
        phases.push("preread and log of stream routes");
    }
    let phases = if phases.is_empty() { "none".to_owned() } else { phases.join(", ") };
    // Writing to a String cannot fail, here and below.
    let _ = write!(out, "Priority {}; phases: {phases}.", plugin.priority());
    if plugin.run_policy() == RunPolicy::PreferRoute {
        out.push_str(" In a global rule it yields to the same plugin on the route.");
    }
    out.push('\n');
    example(&mut out, plugin.example());
    table(&mut out, "Configuration", plugin.schema(PluginScope::Http));
    match plugin.schema(PluginScope::Http) {
        Some(same) if of_streams.as_ref() == Some(&same) => {
            out.push_str("\nThe fields are the same on stream routes.\n");
        }
        _ => table(&mut out, "Configuration on stream routes", of_streams),
    }
    if let Some(field) = plugin.identifying_field() {
        table(&mut out, "Configuration of a consumer or credential", plugin.schema(PluginScope::Consumer));
        let _ = writeln!(out, "\nA consumer is found by `{field}`.");
    }
    table(&mut out, "Plugin metadata", plugin.schema(PluginScope::Metadata));
    table(&mut out, &format!("The setting `plugin_attr.{}`", plugin.name()), plugin.attributes());
    secrets(&mut out, plugin);
    if !plugin.endpoints().is_empty() {
        out.push_str("\n## Paths of its own\n\n");
        for endpoint in plugin.endpoints() {
            let _ = writeln!(out, "- `{} {}`", endpoint.method.as_str(), endpoint.path);
        }
    }
    out
}

/// The nodes of examples. `sigma run --with-demo-origin` serves them.
const DEMO_ORIGINS: [&str; 2] = ["127.0.0.1:9000", "127.0.0.1:9001"];

/// Appends the example, and the command that starts it.
fn example(out: &mut String, example: &str) {
    if example.is_empty() {
        return;
    }
    let nodes: Vec<&str> = DEMO_ORIGINS.into_iter().filter(|node| example.contains(node)).collect();
    let option = if nodes.is_empty() { "" } else { " --with-demo-origin " };
    let _ = write!(
        out,
        "\n## Example\n\nSave this as `sigma.yaml` and start it with `sigma run{option}{}`:\n\n{example}",
        nodes.join(",")
    );
}

/// Returns a list of plugins: name, priority and first line of each, in the given order.
pub fn index(plugins: &[Arc<dyn Kind>]) -> String {
    let mut out = String::from(
        "# Plugins\n\nEach page has an example to start from and every field. `sigma plugins NAME` prints the same page. \
         Every plugin also takes `_meta` (`disable`, `priority`, `filter`, `error_response`).\n\n\
         | plugin | priority | what it does |\n|---|---|---|\n",
    );
    for plugin in plugins {
        let (name, priority, summary) = (plugin.name(), plugin.priority(), cell(&summary(&**plugin)));
        let _ = writeln!(out, "| [{name}]({name}.md) | {priority} | {summary} |");
    }
    out
}

/// Returns the first line of a plugin's description.
pub fn summary(plugin: &dyn Kind) -> String {
    plugin.documentation().trim().lines().next().unwrap_or_default().to_owned()
}

fn secrets(out: &mut String, plugin: &dyn Kind) {
    let scopes = [PluginScope::Http, PluginScope::Consumer];
    let marked = scopes.into_iter().filter_map(|scope| plugin.schema(scope));
    let fields = marked.flat_map(|mut schema| take_confidential(&mut schema));
    let fields: Vec<String> = fields.map(|field| format!("`{field}`")).collect();
    if !fields.is_empty() {
        let _ = writeln!(out, "\nEncrypted in the store, if encryption is on: {}.", fields.join(", "));
    }
}

fn table(out: &mut String, title: &str, schema: Option<Value>) {
    let Some(schema) = schema else { return };
    let _ = write!(out, "\n## {title}\n\n");
    let mut rows = Vec::new();
    collect("", &schema, &mut rows);
    if rows.is_empty() {
        out.push_str("No fields.\n");
        return;
    }
    out.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
    for row in rows {
        out.push_str(&row);
    }
}

/// Adds rows for an object's fields and nested fields: `redis.host`, `rules[].count`.
fn collect(prefix: &str, schema: &Value, rows: &mut Vec<String>) {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    let branches =
        ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{prefix}{name}");
        let default = match property.get("default") {
            _ if is_required(name) => "required".to_owned(),
            None | Some(Value::Null) => "–".to_owned(),
            Some(value) => format!("`{}`", cell(&value.to_string())),
        };
        // A field without a description is one of a resource inside the configuration, whose
        // reference is elsewhere.
        let Some(meaning) = property.get("description").and_then(Value::as_str) else { continue };
        let kind = cell(&type_in_words(property));
        rows.push(format!("| `{path}` | {kind} | {default} | {} |\n", cell(meaning)));
        collect(&format!("{path}."), property, rows);
        if let Some(items) = property.get("items") {
            collect(&format!("{path}[]."), items, rows);
        }
    }
    // Branches mostly repeat fields; only new ones get a row.
    for branch in branches {
        let mut more = Vec::new();
        collect(prefix, branch, &mut more);
        let field = |row: &str| row.split('|').nth(1).map(str::to_owned);
        more.retain(|row| !rows.iter().any(|known| field(known) == field(row)));
        rows.extend(more);
    }
    conditional(prefix, schema, rows);
}

/// Adds rows for fields that depend on the value of another field (`if`, `then`, `else`), each with that value.
fn conditional(prefix: &str, schema: &Value, rows: &mut Vec<String>) {
    let (Some(test), Some(then)) = (schema.get("if"), schema.get("then")) else { return };
    let mut more = Vec::new();
    collect(prefix, then, &mut more);
    let with = condition(test);
    // The meaning is in the last cell.
    rows.extend(more.into_iter().map(|row| match row.trim_end_matches(" |\n").rsplit_once("| ") {
        Some((cells, meaning)) => format!("{cells}| With {with}. {meaning} |\n"),
        None => row,
    }));
    if let Some(otherwise) = schema.get("else") {
        conditional(prefix, otherwise, rows);
    }
}

/// Formats ``the field `policy` is `redis` `` as configuration text: `` `policy: redis` ``.
fn condition(test: &Value) -> String {
    let properties = test.get("properties").and_then(Value::as_object);
    let each = properties.into_iter().flatten().map(|(name, property)| {
        let values = property.get("enum").and_then(Value::as_array).cloned();
        let values = values.unwrap_or_else(|| property.get("const").cloned().into_iter().collect());
        let texts =
            values.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        format!("`{name}: {}`", cell(&texts.collect::<Vec<_>>().join(" or ")))
    });
    each.collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Descriptor, PhaseSet};
    use serde_json::json;

    static PLUGIN: Descriptor = Descriptor {
        name: "sample",
        priority: 7,
        doc: "Does a thing.\n\nAnd more | of it.",
        example: "```yaml\nupstream: http://127.0.0.1:9000\n```\n",
        phases: PhaseSet::of(&[Phase::Access, Phase::Log]),
        schema: || {
            json!({"type": "object", "required": ["a"], "properties": {
                "a": {"type": "string", "confidential": true, "description": "x|y"},
                "b": {"type": "array", "items": {"type": "object", "properties": {
                    "c": {"type": "integer", "minimum": 1, "default": 3, "description": "inner"}
                }}, "description": "list"}
            }, "if": {"properties": {"a": {"enum": ["far"]}}, "required": ["a"]},
               "then": {"properties": {"host": {"type": "string", "description": "Where."}}, "required": ["host"]},
               "else": {"if": {"properties": {"a": {"const": "near"}}}, "then": {"properties": {
                   "hops": {"type": "integer", "default": 1, "description": "How near."}}}}})
        },
        ..Descriptor::BASE
    };

    #[test]
    fn a_reference_lists_every_field() {
        let text = reference(&PLUGIN);
        for line in [
            "# sample",
            "Priority 7; phases: access, log.",
            "Save this as `sigma.yaml` and start it with `sigma run --with-demo-origin 127.0.0.1:9000`:",
            "| `a` | string | required | x\\|y |",
            "| `b` | list of objects | – | list |",
            "| `b[].c` | integer from 1 | `3` | inner |",
            "| `host` | string | required | With `a: far`. Where. |",
            "| `hops` | integer | `1` | With `a: near`. How near. |",
            "Encrypted in the store, if encryption is on: `a`.",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}\n{text}");
        }
        assert!(index(&[Arc::new(PLUGIN)]).contains("| [sample](sample.md) | 7 | Does a thing. |"));
    }
}
