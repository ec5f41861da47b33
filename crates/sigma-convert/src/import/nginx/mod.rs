//! `nginx.conf`: all of `http` and `stream`.

mod access;
mod addresses;
mod caching;
mod conditions;
mod content;
mod converter;
mod errors;
mod fastcgi;
mod files;
mod hashes;
mod headers;
mod level;
mod locations;
mod maps;
mod media;
mod missing;
mod parse;
mod pattern;
mod probes;
mod proxying;
mod referers;
mod rewriting;
mod searching;
mod servers;
mod settings;
mod state;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod texts;
mod upstreams;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::Plan;
use super::report::Report;
use super::source::Input;
use converter::{Converter, NamedBlocks};
use level::Level;
pub(super) use level::{milliseconds, size};
use parse::{Directive, Parsed};
use texts::Variables;

/// Directives of servers: a file of `conf.d` begins with them.
const OF_HTTP: &[&str] = &["server", "upstream", "map"];

/// Converts nginx.conf.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let Parsed { directives, sources } = parse::parse(input)?;
    let first = input.files.first().map_or("", |file| file.name.as_str());
    let base = first.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let mut converter = Converter {
        access: input.access,
        base,
        plan: Plan::default(),
        report: Report::default(),
        variables: Variables::default(),
        blocks: NamedBlocks::default(),
        upstream_ids: BTreeMap::new(),
        common_body_limit: None,
        is_too_large: false,
        is_part: false,
        internal_paths: Vec::new(),
        depth: 0,
    };
    let probes = converter.whole(&directives);
    if converter.is_too_large {
        let message = "its conditions need more than 50,000 routes";
        return Err(vec![Problem::new(first, "limit", message)]);
    }
    converter.remarks(&directives);
    let Converter { mut plan, mut report, variables, .. } = converter;
    tidy(&mut plan, variables);
    report.finish(sources);
    Ok(Translated { plan, report, probes })
}

impl<'a> Converter<'a> {
    fn whole(&mut self, directives: &'a [Directive]) -> Vec<super::probe::Probe> {
        self.collect_names(directives);
        let main = Level::of(directives, None, false);
        self.main_settings(&main);
        // A file of `conf.d` has no `http` around it.
        let is_part = directives.iter().any(|directive| OF_HTTP.contains(&directive.name.as_str()));
        self.is_part = is_part;
        let blocks: Vec<&'a [Directive]> = match is_part {
            true => vec![directives],
            false => main.own_all(&["http"]).into_iter().map(Directive::children).collect(),
        };
        for name in self.variables.read_globally.clone() {
            if self.variables.written.contains(&name) && !self.variables.defined.contains_key(&name) {
                // Routes that set it have precedence.
                self.variables.setting.insert(name, json!({"value": ""}));
            }
        }
        let mut probes = Vec::new();
        for block in blocks {
            let http = Level::of(block, None, false);
            for directive in http.directives {
                match directive.name.as_str() {
                    "limit_req_zone" | "limit_conn_zone" => self.zone(directive),
                    "upstream" => self.group(directive),
                    "map" => self.map(directive),
                    "geo" => self.geo(directive),
                    "split_clients" => self.split_clients(directive),
                    _ => {}
                }
            }
            self.spread_doubt(&http);
            self.http_settings(&http);
            self.servers(&http);
            probes.extend(probes::probes(&http));
        }
        for stream in main.own_all(&["stream"]) {
            self.stream(stream);
        }
        probes
    }
}

/// Whether a directive of these names is used anywhere.
fn mentions(directives: &[Directive], names: &[&str]) -> bool {
    directives.iter().any(|directive| {
        names.contains(&directive.name.as_str()) && directive.arg(0) != "off"
            || mentions(directive.children(), names)
    })
}

/// Writes texts in their short form, and keeps the variables that are read.
fn tidy(plan: &mut Plan, variables: Variables) {
    let mut setting = variables.setting;
    let mut texts = String::new();
    for decision in &mut plan.decisions {
        for value in decision.plugins.values_mut().chain(decision.fields.values_mut()) {
            texts::prettify(value);
        }
        decision.conditions.iter_mut().for_each(texts::prettify);
        super::build::target_texts(&mut decision.target).for_each(|text| *text = texts::pretty(text));
        texts.push('\n');
        texts.push_str(&super::build::texts(decision));
    }
    plan.upstreams.iter_mut().for_each(|(_, value)| {
        texts::prettify(value);
        texts.push_str(&value.to_string());
    });
    plan.settings.values().for_each(|value| texts.push_str(&value.to_string()));
    setting.values_mut().for_each(texts::prettify);
    // Variables are read by texts, and by variables that are read.
    let mut read = BTreeSet::new();
    let mut texts = vec![texts];
    while let Some(text) = texts.pop() {
        for name in super::words::variables(&text) {
            if let (Some(value), true) = (setting.get(name), read.insert(name.to_owned())) {
                texts.push(value.to_string());
            }
        }
    }
    setting.retain(|name, _| read.contains(name));
    if !setting.is_empty() {
        plan.settings.insert("variables".to_owned(), Value::Object(setting));
    }
}
