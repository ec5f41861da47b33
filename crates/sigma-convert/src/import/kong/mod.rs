//! Kong's declarative configuration (decK), format versions 1.1 to 3.0.
//!
//! Routes are ordered as Kong's traditional router orders them: by the kinds of their conditions, plain hosts first,
//! regular expressions by `regex_priority`, then the longest prefix. Each path of a route is its own decision.

mod plugins;
mod route;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::{Certificate, Listener, Plan};
use super::nodes::{self, Data, Lines, Node};
use super::report::{Report, Verdict};
use super::source::{Input, SourceLine, Sources};

/// Converts a declarative configuration.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let mut sources = Sources::default();
    let mut roots = Vec::new();
    for file in input.files {
        let problem = |message: String| vec![Problem::new(file.name.clone(), "too_large", message)];
        let index = sources.add(&file.name, &file.text).map_err(problem)?;
        let located = |problem: Problem| Problem { pointer: file.name.clone(), ..problem };
        let read = nodes::read(&environment(&file.text, input), index);
        roots.extend(read.map_err(|problems| problems.into_iter().map(located).collect::<Vec<_>>())?);
    }
    let mut translation = Translation {
        input,
        lines: Lines::of(input),
        plan: Plan::default(),
        report: Report::default(),
        probes: Vec::new(),
        told: HashSet::new(),
    };
    translation.all(&roots);
    let Translation { plan, mut report, probes, .. } = translation;
    report.finish(sources);
    Ok(Translated { plan, report, probes })
}

/// Replaces `${{ env "DECK_X" }}` by the value of the variable.
fn environment(text: &str, input: &Input<'_>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${{") {
        let Some(end) = rest[at..].find("}}") else { break };
        let inner = rest[at + 3..at + end].trim();
        let name = inner.strip_prefix("env").map(|name| name.trim().trim_matches(['"', '\'', '\\']));
        let value = name.and_then(|name| input.access.variable(name));
        out.push_str(&rest[..at]);
        out.push_str(value.as_deref().unwrap_or("unset"));
        rest = &rest[at + end + 2..];
    }
    out.push_str(rest);
    out
}

/// The state of a conversion.
struct Translation<'t, 's> {
    input: &'t Input<'s>,
    lines: Lines<'s>,
    plan: Plan,
    report: Report,
    probes: Vec<super::probe::Probe>,
    told: HashSet<SourceLine>,
}

impl Translation<'_, '_> {
    /// Adds a remark on a line.
    fn tell(&mut self, place: SourceLine, verdict: Verdict, text: impl Into<String>) {
        let source = self.source(place);
        self.told.insert(place);
        self.report.add(place, &source, verdict, text);
    }

    /// Adds a remark on a line that guards access.
    fn tell_guard(&mut self, place: SourceLine, text: impl Into<String>) {
        let source = self.source(place);
        self.told.insert(place);
        self.report.add_guard(place, &source, Verdict::NotPossible, text);
    }

    fn source(&self, place: SourceLine) -> String {
        self.lines.at(place).to_owned()
    }

    fn all(&mut self, roots: &[Node]) {
        self.plan.settings.insert("router".to_owned(), json!({"ambiguous_paths": "refuse"}));
        self.plan.listeners.push(Listener { address: ":8000".to_owned(), port: 8000, ..Listener::default() });
        let certificates = list(roots, "certificates");
        if !certificates.is_empty() {
            self.plan.listeners.push(Listener {
                address: ":8443".to_owned(),
                port: 8443,
                fields: [("tls".to_owned(), Value::from(true))].into_iter().collect(),
            });
        }
        for node in certificates {
            self.certificate(node);
        }
        let plugins = list(roots, "plugins");
        for node in list(roots, "consumers") {
            self.consumer(node, &plugins);
        }
        self.groups(roots, &plugins);
        let global = self.plugins_of(
            &list(roots, "plugins")
                .into_iter()
                .filter(|node| {
                    ["service", "route", "consumer", "consumer_group"]
                        .iter()
                        .all(|name| node.get(name).is_none())
                })
                .collect::<Vec<_>>(),
        );
        self.services(roots, &global);
        for node in list(roots, "vaults").into_iter().chain(list(roots, "keys")) {
            self.tell(node.place, Verdict::NotPossible, "Configure the secret manager in `secrets`.");
        }
        self.rest(roots);
    }

    fn certificate(&mut self, node: &Node) {
        let names: Vec<String> = node
            .get("snis")
            .map(|snis| {
                snis.elements()
                    .into_iter()
                    .filter_map(|it| it.text().or_else(|| it.text_of("name")))
                    .collect()
            })
            .unwrap_or_default();
        let number = self.plan.certificates.len() + 1;
        let text = format!("Put certificate and key into the files kong-{number}.crt and kong-{number}.key.");
        self.tell(node.place, Verdict::Differs, text);
        self.plan.certificates.push(Certificate {
            names: if names.is_empty() { vec!["*".to_owned()] } else { names },
            cert_file: format!("kong-{number}.crt"),
            key_file: format!("kong-{number}.key"),
            fields: Map::new(),
        });
    }

    /// A consumer with its credentials, by the plugins that read them.
    fn consumer(&mut self, node: &Node, plugins: &[&Node]) {
        let name = node.text_of("username").or_else(|| node.text_of("custom_id")).unwrap_or_default();
        let id = super::build::id(&name).replace(['-', '.'], "_");
        self.plan.consumers.push(json!({"username": id, "desc": name}));
        self.tell(node.place, Verdict::Done, "");
        let kinds = [
            ("keyauth_credentials", "key-auth"),
            ("basicauth_credentials", "basic-auth"),
            ("jwt_secrets", "jwt-auth"),
            ("hmacauth_credentials", "hmac-auth"),
            ("acls", ""),
            ("oauth2_credentials", ""),
            ("mtls_auth_credentials", ""),
        ];
        let mut groups = Vec::new();
        for (key, plugin) in kinds {
            for (at, it) in node.get(key).map(Node::elements).unwrap_or_default().into_iter().enumerate() {
                let text = |name: &str| it.text_of(name).unwrap_or_default();
                let fields = match key {
                    "keyauth_credentials" => json!({"key": text("key")}),
                    "basicauth_credentials" => {
                        json!({"username": text("username"), "password": text("password")})
                    }
                    "jwt_secrets" => jwt(it),
                    "acls" => {
                        groups.push(text("group"));
                        self.tell(it.place, Verdict::Done, "");
                        continue;
                    }
                    "hmacauth_credentials" => {
                        json!({"key_id": text("username"), "secret_key": text("secret")})
                    }
                    _ => {
                        self.tell_guard(
                            it.place,
                            "The credential has no counterpart; its plugin closes the routes.",
                        );
                        continue;
                    }
                };
                self.tell(it.place, Verdict::Done, "");
                let credential =
                    json!({"id": format!("{id}/credentials/{plugin}-{at}"), "plugins": {plugin: fields}});
                self.plan.consumers.push(credential);
            }
        }
        if !groups.is_empty()
            && let Some(consumer) = self.plan.consumers.iter_mut().find(|it| it["username"] == id.as_str())
        {
            // The plugin acl reads this label.
            consumer["labels"] = json!({"group": groups.join(",")});
        }
        self.plugins_of_consumer(node, &name, &id, plugins);
    }

    /// The plugins of a consumer, its own and those at the top. A guard without a counterpart closes the consumer.
    fn plugins_of_consumer(&mut self, node: &Node, name: &str, id: &str, plugins: &[&Node]) {
        let own = node.get("plugins").map(Node::elements).unwrap_or_default();
        let of_top = plugins.iter().copied().filter(|it| {
            route::reference(it, "consumer").as_deref() == Some(name)
                && ["service", "route", "consumer_group"].iter().all(|key| !is_set(it.get(key)))
        });
        let made = self.plugins_of(&own.into_iter().chain(of_top).collect::<Vec<_>>());
        let fields = match made.closed {
            Some(_) => json!({"respond": {"status": 503}}),
            None if made.fields.is_empty() => return,
            None => Value::Object(made.fields),
        };
        if let Some(consumer) = self.plan.consumers.iter_mut().find(|it| it["username"] == id) {
            consumer["plugins"] = fields;
        }
    }

    /// Groups of consumers with plugins, which guard in most files.
    fn groups(&mut self, roots: &[Node], plugins: &[&Node]) {
        let groups = list(roots, "consumer_groups").into_iter();
        let own = groups.flat_map(|group| group.get("plugins").map(Node::elements).unwrap_or_default());
        let of_top = plugins.iter().copied().filter(|it| {
            is_set(it.get("consumer_group")) && ["service", "route"].iter().all(|key| !is_set(it.get(key)))
        });
        for plugin in own.chain(of_top).collect::<Vec<_>>() {
            let text = "Plugins of groups are not converted: write `consumer_groups` by hand, and `group_id` of their consumers.";
            self.tell_guard(plugin.place, text);
        }
    }

    /// Remarks for the lines that nothing was said about.
    fn rest(&mut self, roots: &[Node]) {
        let mut known: Vec<(SourceLine, String)> = Vec::new();
        for root in roots {
            for (key, node) in root.members() {
                node.visit(&mut |inner| known.push((inner.place, key.clone())));
            }
        }
        for (place, key) in known {
            if self.told.contains(&place) {
                continue;
            }
            match key.as_str() {
                "_format_version" | "_transform" | "services" | "routes" | "upstreams" | "consumers"
                | "plugins" | "certificates" => self.tell(place, Verdict::Done, ""),
                _ => self.tell(place, Verdict::NoEffect, "It has no counterpart and no effect on requests."),
            }
        }
        for (file, source) in (0u16..).zip(self.input.files) {
            for (line, text) in (1u32..).zip(source.text.lines()) {
                let place = SourceLine { file, line };
                let text = text.trim();
                if !text.is_empty() && !text.starts_with('#') && text != "---" && self.told.insert(place) {
                    self.report.add(place, text, Verdict::Done, "");
                }
            }
        }
    }
}

/// The secret or key of tokens.
fn jwt(node: &Node) -> Value {
    let algorithm = node.text_of("algorithm").unwrap_or_else(|| "HS256".to_owned());
    let mut fields = json!({"key": node.text_of("key").unwrap_or_default(), "algorithm": algorithm});
    match node.text_of("rsa_public_key") {
        Some(key) => fields["public_key"] = key.into(),
        None => fields["secret"] = node.text_of("secret").unwrap_or_default().into(),
    }
    fields
}

/// The elements of a list at the top of all files.
fn list<'n>(roots: &'n [Node], name: &str) -> Vec<&'n Node> {
    roots.iter().filter_map(|root| root.get(name)).flat_map(Node::elements).collect()
}

/// A number of a node, or a default.
fn number(node: &Node, name: &str, default: f64) -> f64 {
    node.get(name).and_then(Node::number).unwrap_or(default)
}

/// Whether a node has a value.
fn is_set(node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.data != Data::Null)
}
