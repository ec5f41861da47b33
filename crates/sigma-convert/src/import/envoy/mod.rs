//! Envoy: the static part of a bootstrap, in YAML or JSON.

mod actions;
mod clusters;
mod fields;
mod filters;
mod headers;
mod listeners;
mod matching;
mod rbac;
mod routes;

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::Plan;
use super::probe::Probe;
use super::remarks::Remarks;
use super::source::{Files, Input, SourceLine};
use super::tree::{self, Content, Tree};
use fields::{field, member};

/// The state of the conversion of a file.
struct Model<'a> {
    remarks: Remarks,
    access: &'a dyn Files,
    file: u16,
    /// Clusters: the id of their upstream, or the reason why they have no upstream.
    clusters: HashMap<String, Result<String, String>>,
    upstreams: Vec<(String, Value)>,
    variables: Map<String, Value>,
    probes: Vec<Probe>,
}

impl Model<'_> {
    fn place(&self, line: u32) -> SourceLine {
        SourceLine { file: self.file, line }
    }

    fn gap(&mut self, line: u32, text: impl Into<String>) {
        self.remarks.gap(self.place(line), text);
    }

    fn note(&mut self, line: u32, text: impl Into<String>) {
        self.remarks.differs(self.place(line), text);
    }

    fn no_effect(&mut self, line: u32, text: impl Into<String>) {
        self.remarks.no_effect(self.place(line), text);
    }

    fn closed(&mut self, line: u32, text: impl Into<String>) {
        self.remarks.closed(self.place(line), text);
    }

    fn guard_note(&mut self, line: u32, text: impl Into<String>) {
        self.remarks.guard_differs(self.place(line), text);
    }

    /// Adds a remark on each field whose name is not known.
    fn unknown(&mut self, tree: &Tree, known: &[&str]) {
        for member in tree.members() {
            let is_known = member.key == "@type" || known.iter().any(|name| fields::same(&member.key, name));
            if !is_known {
                self.gap(
                    member.line,
                    format!("The importer does not know `{}`; look it up by hand.", member.key),
                );
            }
        }
    }

    /// Defines a variable with the text that a pattern makes of a source.
    fn variable(&mut self, line: u32, source: &str, pattern: &str, value: &str) -> String {
        let map = json!({"map": source, "regex": [{"match": pattern, "value": value}], "default": source});
        format!("${}", self.defined("redirect", line, map))
    }

    /// Makes a variable with the value of a source, or of another one where the source is empty.
    fn variable_or(&mut self, line: u32, source: &str, other: &str) -> String {
        let map = json!({"map": source, "regex": [{"match": "^(.+)$", "value": "${1}"}], "default": other});
        format!("${}", self.defined("either", line, map))
    }

    /// Makes a variable that has one of some values, at random by their weights. Returns its name.
    fn share(&mut self, line: u32, weights: &[(String, i64)]) -> String {
        let total: i64 = weights.iter().map(|(_, weight)| weight).sum::<i64>().max(1);
        let last = weights.last().map_or("", |(name, _)| name.as_str());
        let percent = |weight: i64| (weight as f64 * 10_000.0 / total as f64).round() / 100.0;
        let shares: Vec<Value> = weights[..weights.len().saturating_sub(1)]
            .iter()
            .map(|(name, weight)| json!({"percent": percent(*weight), "value": name}))
            .collect();
        self.defined("share", line, json!({"map": "$request_id", "shares": shares, "default": last}))
    }

    /// Defines a variable of a line, and returns its name with the prefix.
    fn defined(&mut self, kind: &str, line: u32, meaning: Value) -> String {
        let base = format!("{kind}_{}_{line}", self.file);
        let mut name = base.clone();
        let mut number = 1;
        while self.variables.get(&name).is_some_and(|known| *known != meaning) {
            number += 1;
            name = format!("{base}_{number}");
        }
        self.variables.insert(name.clone(), meaning);
        format!("var_{name}")
    }
}

/// Converts a bootstrap.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let mut plan = Plan::default();
    let mut model = Model {
        remarks: Remarks::default(),
        access: input.access,
        file: 0,
        clusters: HashMap::new(),
        upstreams: Vec::new(),
        variables: Map::new(),
        probes: Vec::new(),
    };
    // With `normalize_path` and `merge_slashes` nodes get the normalised path instead.
    plan.settings.insert("router".to_owned(), json!({"ambiguous_paths": "allow"}));
    for file in input.files {
        let named =
            |problems: Vec<Problem>| problems.into_iter().map(|it| it.within(&file.name)).collect::<Vec<_>>();
        let index = model.remarks.file(&file.name, &file.text);
        model.file = index.map_err(|reason| vec![Problem::new(&file.name, "too_large", reason)])?;
        let is_json = file.text.trim_start().starts_with('{') && file.name.ends_with(".json");
        let documents = match is_json {
            true => tree::json(&file.text).map(|tree| vec![tree]),
            false => tree::yaml(&file.text),
        };
        for document in documents.map_err(named)? {
            let mut problems = Vec::new();
            refuse_old(&document, &mut problems);
            if !problems.is_empty() {
                return Err(named(problems));
            }
            bootstrap(&mut model, &document, &mut plan);
            let index = model.file;
            model.remarks.rest(index, &document);
        }
    }
    plan.upstreams = model.upstreams;
    if !model.variables.is_empty() {
        plan.settings.insert("variables".to_owned(), Value::Object(model.variables));
    }
    Ok(Translated { plan, report: model.remarks.finish(), probes: model.probes })
}

fn bootstrap(model: &mut Model<'_>, document: &Tree, plan: &mut Plan) {
    let known = [
        "static_resources",
        "admin",
        "node",
        "layered_runtime",
        "dynamic_resources",
        "overload_manager",
        "stats_config",
        "stats_sinks",
        "stats_flush_interval",
        "watchdog",
        "watchdogs",
        "runtime",
        "bootstrap_extensions",
        "default_socket_interface",
        "tracing",
        "cluster_manager",
        "hds_config",
        "flags_path",
        "use_tcp_for_dns_lookups",
    ];
    model.unknown(document, &known);
    for (name, text) in [
        ("admin", "See `status`, `control` and the plugin prometheus."),
        (
            "dynamic_resources",
            "Sigma does not support a control plane (xDS): convert a dump of its configuration.",
        ),
        ("overload_manager", "See `load_shedding` and `limits`."),
        ("stats_sinks", "Use the plugin statsd or prometheus."),
        ("tracing", "Use the plugin opentelemetry."),
        ("bootstrap_extensions", "Extensions of Envoy cannot run here."),
        ("hds_config", "Sigma does not support a control plane (xDS)."),
    ] {
        if let Some(member) = member(document, name) {
            model.gap(member.line, text);
        }
    }
    for name in [
        "node",
        "layered_runtime",
        "stats_config",
        "stats_flush_interval",
        "watchdog",
        "watchdogs",
        "runtime",
        "cluster_manager",
        "flags_path",
    ] {
        if let Some(member) = member(document, name) {
            model.no_effect(member.line, "It has no counterpart and needs none.");
        }
    }
    let Some(resources) = field(document, "static_resources") else { return };
    model.unknown(resources, &["listeners", "clusters", "secrets"]);
    if let Some(secrets) = field(resources, "secrets") {
        model.gap(secrets.line, "Set the files of certificates in the TLS contexts.");
    }
    clusters::convert(model, resources);
    listeners::convert(model, resources, plan);
}

/// Refuses messages of Envoy's API v2, which Envoy itself dropped in 2021.
fn refuse_old(tree: &Tree, problems: &mut Vec<Problem>) {
    match &tree.content {
        Content::Map(members) => {
            for member in members {
                let text = member.value.text().unwrap_or_default();
                let is_type = member.key == "@type" || member.key == "name";
                let is_old = is_type
                    && (text.contains("envoy.api.v2")
                        || text.contains(".v2.")
                        || text.contains("envoy.config.filter."))
                    && member.key == "@type";
                let is_plain = member.key == "config"
                    && tree.get("name").is_some()
                    && tree.get("typed_config").is_none()
                    && tree.get("name").and_then(Tree::text).is_some_and(|name| name.starts_with("envoy."));
                if (is_old || is_plain) && problems.len() < 20 {
                    let message = match is_old {
                        true => format!("`{text}` belongs to Envoy's API v2; update the file to v3 first"),
                        false => {
                            "`config` belongs to Envoy's API v2: use `typed_config` with `@type`".to_owned()
                        }
                    };
                    problems.push(Problem::new("", "old_version", message).at(Some(member.line)));
                }
                refuse_old(&member.value, problems);
            }
        }
        Content::List(items) => items.iter().for_each(|item| refuse_old(item, problems)),
        Content::Null | Content::Scalar { .. } => {}
    }
}

#[cfg(test)]
mod tests;
