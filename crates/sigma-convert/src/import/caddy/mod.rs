//! Caddy: Caddyfiles.

mod actions;
mod cel;
mod existing;
mod files;
mod guards;
mod health;
mod lexer;
mod matcher;
mod options;
mod parse;
mod php;
mod proxy;
mod responses;
mod rewriting;
mod run;
mod sites;
mod state;
mod text;

use serde_json::{Map, Value, json};
use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::Plan;
use super::remarks::Remarks;
use super::source::{Input, SourceLine};
use parse::{Caddyfile, Line};
use run::Runner;

/// Converts a Caddyfile.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let mut remarks = Remarks::default();
    let mut parsed = Caddyfile::default();
    for file in input.files {
        if file.text.trim_start().starts_with('{') && file.name.ends_with(".json") {
            let text = "this is Caddy's JSON: import the Caddyfile from which it was made";
            return Err(vec![Problem::new(&file.name, "unsupported", text)]);
        }
        parsed
            .read(&mut remarks, input.access, &file.name, &file.text, 0)
            .map_err(|problem| vec![problem])?;
    }
    let name = input.files.first().map_or("", |file| file.name.as_str());
    let folder = name.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let mut plan = Plan::default();
    let mut probes = Vec::new();
    let mut settings = Map::new();
    // Paths are matched cleaned and sent as they came.
    settings.insert("router".to_owned(), json!({"ambiguous_paths": "allow"}));
    let forwarded = ["Proxy", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host"];
    settings.insert("untrusted_fields".to_owned(), json!(forwarded));
    let mut runner = Runner::new(&mut remarks, input.access, std::mem::take(&mut parsed.routes), folder);
    let options = options::read(&mut runner, &parsed.options, &mut settings);
    let mut known: Vec<sites::AddressedSite> =
        parsed.sites.iter().filter_map(|site| sites::known(&mut runner, site.clone(), &options)).collect();
    sites::sort(&mut known);
    let redirects = sites::listen(&mut runner, &known, &options, &mut plan);
    let mut decisions = redirects;
    for site in &known {
        decisions.extend(sites::decisions(&mut runner, site, &plan, &mut probes));
    }
    // Internal routes come first: they match no request of a client.
    let is_internal = |fields: &Map<String, Value>| fields.contains_key("internal");
    decisions.sort_by_key(|decision| !is_internal(&decision.fields));
    decisions.extend(sites::rest(&known));
    plan.decisions = decisions;
    plan.upstreams = std::mem::take(&mut runner.upstreams.list);
    let variables = read(std::mem::take(&mut runner.variables.own), &plan);
    plan.settings.extend(settings);
    if !variables.is_empty() {
        plan.settings.insert("variables".to_owned(), Value::Object(variables));
    }
    for site in &parsed.sites {
        site.addresses.iter().for_each(|token| remarks.done(token.place));
        done(&mut remarks, &site.lines);
    }
    done(&mut remarks, &parsed.options);
    Ok(Translated { plan, report: remarks.finish(), probes })
}

/// Returns the variables that a decision, an upstream or another of them reads.
fn read(mut variables: Map<String, Value>, plan: &Plan) -> Map<String, Value> {
    let mut texts: Vec<String> = plan.decisions.iter().map(super::build::texts).collect();
    texts.extend(plan.upstreams.iter().map(|(_, upstream)| upstream.to_string()));
    let mut kept = Map::new();
    while let Some(text) = texts.pop() {
        for name in super::words::variables(&text) {
            if let Some(value) = variables.remove(name) {
                texts.push(value.to_string());
                kept.insert(name.to_owned(), value);
            }
        }
    }
    kept
}

/// Says of all lines without a remark that they have the same effect.
fn done(remarks: &mut Remarks, lines: &[Line]) {
    for line in lines {
        if line.place() != SourceLine::default() {
            remarks.done(line.place());
        }
        done(remarks, line.lines());
    }
}

/// Parses a duration of Caddy in seconds: Go's, and days.
fn duration(text: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut rest = text;
    if let Ok(number) = text.parse::<f64>() {
        // A bare number is in nanoseconds.
        return Some(number / 1e9).filter(|seconds| seconds.is_finite());
    }
    while !rest.is_empty() {
        let end = rest.find(|char: char| !(char.is_ascii_digit() || char == '.'))?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let units = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
            ("d", 86400.0),
        ];
        let (unit, factor) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        sum += number * factor;
        rest = &rest[unit.len()..];
    }
    Some(sum)
}

#[cfg(test)]
mod tests;
