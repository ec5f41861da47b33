//! Spring Cloud Gateway: `application.yml` and `application.properties` of versions 3 to 5.
//!
//! Properties of all documents and profiles are merged first ([`settings`]). Each route becomes a decision: its
//! predicates are conditions, its filters plugins. Code of the application cannot be read: a route that uses it is
//! closed.

mod actions;
mod code;
mod definition;
mod filters;
mod limits;
mod model;
mod pattern;
mod predicates;
mod probes;
mod properties;
mod rewriting;
mod route;
mod server;
mod settings;
mod target;
#[cfg(test)]
mod tests;
mod values;
mod versions;

use std::collections::{HashMap, HashSet};

use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::Plan;
use super::nodes::{Lines, Node};
use super::report::{Report, Verdict};
use super::source::{Input, SourceLine, Sources};
use settings::Settings;

/// Prefixes of the gateway's properties, by version; the longest first.
const PREFIXES: [&str; 4] = [
    "spring.cloud.gateway.server.webflux",
    "spring.cloud.gateway.server.webmvc",
    "spring.cloud.gateway.mvc",
    "spring.cloud.gateway",
];

/// Converts an application's properties.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let mut sources = Sources::default();
    let settings = Settings::read(input, &mut sources)?;
    let mut translation = Translation::new(input, &settings);
    translation.settings();
    translation.routes();
    translation.rest();
    let Translation { plan, mut report, probes, .. } = translation;
    report.finish(sources);
    Ok(Translated { plan, report, probes })
}

/// The state of a conversion.
struct Translation<'t, 's> {
    input: &'t Input<'s>,
    lines: Lines<'s>,
    settings: &'t Settings<'s>,
    plan: Plan,
    report: Report,
    probes: Vec<super::probe::Probe>,
    /// Lines with a remark.
    told: HashSet<SourceLine>,
    common: server::Common,
    /// Ids of upstreams by their fields.
    upstreams: HashMap<String, String>,
}

impl<'t, 's> Translation<'t, 's> {
    fn new(input: &'t Input<'s>, settings: &'t Settings<'s>) -> Self {
        let mut plan = Plan::default();
        let common = server::read(settings, &mut plan);
        Translation {
            input,
            lines: Lines::of(input),
            settings,
            plan,
            report: Report::default(),
            probes: Vec::new(),
            told: HashSet::new(),
            common,
            upstreams: HashMap::new(),
        }
    }

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

    /// Settings of the gateway as a whole.
    fn settings(&mut self) {
        let router = serde_json::json!({
            "match_uri_encoded_slash": true, "forward_path": "merged", "ambiguous_paths": "allow",
        });
        self.plan.settings.insert("router".to_owned(), router);
        if let Some(discovery) = target::discovery(self.settings) {
            self.plan.settings.insert("discovery".to_owned(), discovery);
        }
        for note in std::mem::take(&mut self.common.notes) {
            match note.guards {
                true => self.tell_guard(note.place, note.text),
                false => self.tell(note.place, Verdict::Differs, note.text),
            }
        }
        for (place, profile) in &self.settings.inactive {
            let text =
                format!("The profile `{profile}` is not active: set SPRING_PROFILES_ACTIVE to convert it.");
            let source = self.source(*place);
            self.told.insert(*place);
            self.report.add(*place, &source, Verdict::NoEffect, text);
        }
    }

    /// Remarks for the lines that nothing was said about.
    fn rest(&mut self) {
        let mut leaves: Vec<(SourceLine, String)> = Vec::new();
        collect(self.settings.root(), "", &mut leaves);
        for (place, name) in leaves {
            if self.told.contains(&place) {
                continue;
            }
            let (verdict, text) = verdict(&name);
            self.tell(place, verdict, text);
        }
        // Lines with a key only.
        for (file, source) in (0u16..).zip(self.input.files) {
            for (line, text) in (1u32..).zip(source.text.lines()) {
                let place = SourceLine { file, line };
                let text = text.trim();
                let says_nothing =
                    text.is_empty() || text.starts_with(['#', '!']) || matches!(text, "---" | "...");
                if !says_nothing && self.told.insert(place) {
                    self.report.add(place, text, Verdict::Done, "");
                }
            }
        }
    }
}

/// Collects the places of values with their dotted names.
fn collect(node: &Node, name: &str, leaves: &mut Vec<(SourceLine, String)>) {
    use super::nodes::Data;
    match &node.data {
        Data::Map(members) => {
            for (key, child) in members {
                let joined = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                collect(child, &joined, leaves);
            }
        }
        Data::List(list) => list.iter().for_each(|child| collect(child, name, leaves)),
        Data::Scalar(_) | Data::Null => leaves.push((node.place, name.to_owned())),
    }
}

/// The verdict on a property without a remark of a route.
fn verdict(name: &str) -> (Verdict, &'static str) {
    let relaxed = settings::relaxed(name);
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| relaxed.starts_with(prefix));
    if starts(&["springcloudgateway", "spring.cloud.gateway"]) {
        return gateway_verdict(&relaxed);
    }
    if starts(&[
        "server.port",
        "server.address",
        "server.ssl",
        "eureka.client.serviceurl",
        "spring.cloud.discovery",
        "spring.cloud.consul.host",
        "spring.cloud.consul.port",
        "spring.cloud.nacos",
        "spring.data.redis",
        "spring.redis",
        "resilience4j",
        "spring.security",
        "spring.config.activate",
        "spring.profiles",
        "spring.ssl",
        "server.maxhttp",
    ]) {
        return (Verdict::Done, "");
    }
    if starts(&["management"]) {
        return (
            Verdict::NoEffect,
            "Sigma's own status and metrics are at `status` and the plugin prometheus.",
        );
    }
    if starts(&["logging"]) {
        return (Verdict::NoEffect, "Sigma's logs are at `access_log` and `error_log`.");
    }
    (Verdict::NoEffect, "It is a setting of the application, not of the gateway.")
}

fn gateway_verdict(relaxed: &str) -> (Verdict, &'static str) {
    let has = |words: &[&str]| words.iter().any(|word| relaxed.contains(word));
    if has(&[
        ".routes",
        "defaultfilters",
        "globalcors",
        "discovery.locator",
        "httpclient.connecttimeout",
        "httpclient.responsetimeout",
        "ssl.useinsecuretrustmanager",
        "pool.maxconnections",
        "secureheaders",
    ]) {
        return (Verdict::Done, "");
    }
    if has(&["gateway.enabled", "trustedproxies", "xforwarded", "forwarded.enabled"]) {
        return (
            Verdict::Differs,
            "Sigma always sends X-Forwarded-For, -Proto, -Host and -Port; `trusted_addresses` lists proxies in front.",
        );
    }
    if has(&["httpclient.ssl"]) {
        return (
            Verdict::Differs,
            "Certificates of nodes are verified with the system's authorities: set `tls.ca` of the upstream.",
        );
    }
    (Verdict::NoEffect, "This tuning option has no counterpart.")
}
