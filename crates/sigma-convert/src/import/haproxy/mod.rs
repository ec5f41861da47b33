//! HAProxy: `haproxy.cfg`.
//!
//! Rules of a frontend run in the order of the file, then the rules of its backend. Rules that end a request become
//! decisions; rules that change it become plugins of all decisions after them ([`effects`]). Conditions become `vars`,
//! or Lua where these cannot say them ([`expr`]). A guard that cannot be said closes everything after it.

mod acl;
mod action;
mod bind;
mod chain;
mod convert;
mod counters;
mod effects;
mod expr;
mod format;
mod limits;
mod lua;
mod map;
mod parser;
mod paths;
mod process;
mod proxy;
mod rules;
mod sample;
mod server;
mod stream;
#[cfg(test)]
mod tests;
mod users;
mod value;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::{Path, Plan, Target};
use super::probe::{Probe, borders};
use super::report::{Report, Verdict};
use super::source::{Input, SourceLine, Sources};
use expr::Expr;
use parser::{Line, Section};
use proxy::{Kind, Proxy};

/// The remark on how paths are compared.
const PATHS: &str = "Sigma matches the decoded path, normalised without doubled slashes and dot segments; HAProxy \
                     matches the raw path, so that `//a` and `/%61` pass a rule for `/a`.";

/// Maximum number of probes.
const MOST_PROBES: usize = 2000;

/// The verdict on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Differs,
    Nothing,
    Missing,
    /// It guards access and is not possible.
    Guard,
}

/// Converts a haproxy.cfg.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let mut sources = Sources::default();
    let sections = parser::read(input, &mut sources)?;
    let mut translation = Translation::new(input, &sections);
    translation.process();
    translation.all();
    translation.rest();
    let Translation { plan, mut report, probes, .. } = translation;
    report.finish(sources);
    Ok(Translated { plan, report, probes })
}

/// The state of a conversion.
struct Translation<'t, 's> {
    input: &'t Input<'s>,
    sections: &'t [Section],
    plan: Plan,
    report: Report,
    probes: Vec<Probe>,
    /// Lines with a remark.
    remarked: HashSet<SourceLine>,
    proxies: Vec<Proxy>,
    backends: BackendNames,
    /// Shares of requests: a condition, a backend, its share and the whole.
    shares: Vec<(Expr, String, u64, u64)>,
    /// Lists of users.
    users: HashMap<String, Section>,
    /// Periods of the rates of stick tables.
    rates: HashMap<String, HashMap<String, u64>>,
    global: GlobalDefaults,
    /// Why a whole frontend is closed.
    closed: Option<String>,
}

/// The relations of backends, by their names.
#[derive(Default)]
struct BackendNames {
    /// Ids of upstreams by backend.
    upstreams: HashMap<String, String>,
    /// Backends that a route uses.
    used: HashSet<String>,
    /// Backends that take over, by the backend that they replace.
    failover: HashMap<String, String>,
}

/// The defaults for TLS in sections `global`.
#[derive(Default)]
struct GlobalDefaults {
    /// Words of `ssl-default-bind-options`.
    bind_options: Vec<String>,
    crt_base: Option<String>,
}

impl GlobalDefaults {
    fn of(sections: &[Section]) -> GlobalDefaults {
        let mut defaults = GlobalDefaults::default();
        for line in sections.iter().filter(|it| it.kind == "global").flat_map(|it| &it.lines) {
            match line.word(0) {
                "ssl-default-bind-options" => defaults.bind_options.extend(line.from(1).to_vec()),
                "crt-base" => defaults.crt_base = Some(line.word(1).to_owned()),
                _ => {}
            }
        }
        defaults
    }
}

impl<'t, 's> Translation<'t, 's> {
    fn new(input: &'t Input<'s>, sections: &'t [Section]) -> Self {
        let users = sections.iter().filter(|it| it.kind == "userlist");
        let proxies = proxy::gather(sections);
        let mut rates = HashMap::new();
        for proxy in &proxies {
            for line in proxy.all(&["stick-table"]) {
                rates.insert(proxy.name.clone(), limits::rates(line));
            }
        }
        Translation {
            input,
            sections,
            plan: Plan::default(),
            report: Report::default(),
            probes: Vec::new(),
            remarked: HashSet::new(),
            users: users.map(|section| (section.name.clone(), section.clone())).collect(),
            proxies,
            backends: BackendNames::default(),
            shares: Vec::new(),
            rates,
            global: GlobalDefaults::of(sections),
            closed: None,
        }
    }

    /// Adds a remark on a line.
    fn tell(&mut self, line: &Line, outcome: Outcome, text: impl Into<String>) {
        self.remarked.insert(line.place);
        let verdict = match outcome {
            Outcome::Done => Verdict::Done,
            Outcome::Differs => Verdict::Differs,
            Outcome::Nothing => Verdict::NoEffect,
            Outcome::Missing => Verdict::NotPossible,
            Outcome::Guard => {
                return self.report.add_guard(line.place, &line.raw, Verdict::NotPossible, text);
            }
        };
        self.report.add(line.place, &line.raw, verdict, text);
    }

    /// Converts all proxies.
    fn all(&mut self) {
        // Backends that take over are known before the first route.
        let proxies = self.proxies.clone();
        for proxy in &proxies {
            if proxy.kind == Kind::Backend {
                continue;
            }
            self.shares.clear();
            if proxy.is_tcp() && !proxy.lines.iter().any(|line| line.is(&["stats", "enable"])) {
                self.stream(proxy);
                continue;
            }
            let ports = self.binds(proxy, None);
            if let Some(line) = proxy.lines.iter().find(|line| line.word(0) == "stats").cloned() {
                self.stats(proxy, &line, &ports);
            }
            let before = self.plan.decisions.len();
            self.frontend(proxy, ports);
            if let Some(reason) = self.closed.take() {
                for decision in &mut self.plan.decisions[before..] {
                    decision.target = Target::Closed(reason.clone());
                }
            }
            self.tell(&proxy.head, Outcome::Done, "");
        }
        self.differences();
        self.make_probes();
    }

    /// The remark on paths, at the first line that compares one.
    fn differences(&mut self) {
        let line =
            self.proxies.iter().flat_map(|proxy| &proxy.lines).find(|line| {
                line.words.iter().any(|word| word.starts_with("path") || word.starts_with("url"))
            });
        let line = line.or_else(|| self.proxies.first().map(|proxy| &proxy.head)).cloned();
        if let Some(line) = line {
            self.tell(&line, Outcome::Differs, PATHS);
        }
    }

    /// The page of statistics: Sigma has its own, at its own address.
    fn stats(&mut self, proxy: &Proxy, line: &Line, ports: &[u16]) {
        let text = "Sigma's own state is at the address of `status`; this path returns 404.";
        self.tell(line, Outcome::Differs, text);
        let path = proxy.last(&["stats", "uri"]).map_or("/haproxy?stats", |line| line.word(2));
        let path = path.split(['?', ';']).next().unwrap_or("/").to_owned();
        let mut decision = super::decision::Decision::new(
            line.place,
            format!("{}-stats", proxy.name),
            Target::Respond { status: 404, body: None, headers: Vec::new() },
        );
        decision.ports = ports.to_vec();
        decision.paths = vec![Path::Prefix(path)];
        self.plan.decisions.push(decision);
    }

    /// The cache of a section.
    fn cache(&self, name: &str) -> Value {
        let section = self.sections.iter().find(|it| it.kind == "cache" && it.name == name);
        let age = section
            .and_then(|section| section.lines.iter().find(|line| line.word(0) == "max-age"))
            .and_then(|line| line.word(1).parse::<u64>().ok())
            .unwrap_or(60);
        json!({"methods": ["GET"], "valid": [{"statuses": [200], "seconds": age.max(1)}]})
    }

    /// Pages for errors of the gateway: `errorfile` and `errorfiles`.
    fn error_pages(&mut self, proxy: &Proxy) -> Vec<Value> {
        let mut pages = Vec::new();
        for line in proxy.lines.iter().filter(|line| line.word(0) == "errorfile") {
            let Ok(status) = line.word(1).parse::<u16>() else { continue };
            match self.input.access.read(line.word(2)) {
                Ok(text) => {
                    // A server that cannot be reached is 503 there and 502 here.
                    let has_own =
                        proxy.lines.iter().any(|it| it.word(0) == "errorfile" && it.word(1) == "502");
                    let statuses = if status == 503 && !has_own { vec![502, 503] } else { vec![status] };
                    pages.push(error_file(&text, &statuses, status));
                    self.tell(line, Outcome::Done, "");
                }
                Err(reason) => {
                    let text = format!(
                        "Cannot read {}: {reason}. Clients get the gateway's own page.",
                        line.word(2)
                    );
                    self.tell(line, Outcome::Differs, text);
                }
            }
        }
        pages
    }

    /// Requests for the paths and hosts of the decisions.
    fn make_probes(&mut self) {
        let mut probes = Vec::new();
        for decision in &self.plan.decisions {
            let port = decision.ports.first().copied().unwrap_or(0);
            let host = match decision.hosts.first() {
                Some(super::decision::Host::Exact(name)) => name.clone(),
                _ => String::new(),
            };
            let targets: Vec<String> = match decision.paths.first() {
                Some(Path::Exact(path) | Path::Prefix(path) | Path::Segments(path)) => {
                    let mut targets = vec![path.clone()];
                    targets.extend(borders(path));
                    targets
                }
                _ => vec!["/".to_owned()],
            };
            for target in targets {
                probes.push(Probe { port, ..Probe::get(decision.name.clone(), host.clone(), target) });
            }
        }
        probes.truncate(MOST_PROBES);
        self.probes = probes;
    }

    /// Remarks for the lines that nothing was said about.
    fn rest(&mut self) {
        let sections = self.sections;
        for section in sections {
            if !self.remarked.contains(&section.head.place) {
                self.section(section);
            }
            for line in &section.lines {
                if self.remarked.contains(&line.place) {
                    continue;
                }
                let (outcome, text) = process::verdict(section, line);
                self.tell(line, outcome, text);
            }
        }
    }

    /// The remark on the head of a section.
    fn section(&mut self, section: &Section) {
        match section.kind.as_str() {
            "backend" if !self.backends.used.contains(&section.name) => {
                self.tell(&section.head, Outcome::Nothing, "No route uses the backend.");
            }
            "peers" | "program" | "ring" | "log-forward" | "traces" | "mailers" => {
                self.tell(&section.head, Outcome::Nothing, "Sigma needs no such section.");
            }
            "fcgi-app" => {
                self.tell(
                    &section.head,
                    Outcome::Missing,
                    "Write `scheme: fcgi` and `fastcgi` for the upstream.",
                );
            }
            _ => self.tell(&section.head, Outcome::Done, ""),
        }
    }
}

/// The page of an error file: a whole response, whose status and fields count.
fn error_file(text: &str, statuses: &[u16], status: u16) -> Value {
    let text = text.replace("\r\n", "\n");
    let (head, body) = text.split_once("\n\n").unwrap_or(("", text.as_str()));
    let mut lines = head.lines();
    let first = lines.next().unwrap_or_default();
    let own = first.split(' ').nth(1).and_then(|word| word.parse::<u16>().ok()).unwrap_or(status);
    let mut headers = Map::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if !matches!(
            name.to_ascii_lowercase().as_str(),
            "connection" | "content-length" | "transfer-encoding"
        ) {
            headers.insert(name.trim().to_owned(), value.trim().replace('$', "\\$").into());
        }
    }
    let mut page = json!({"status": statuses, "html": body.replace('$', "\\$"), "keep_fields": []});
    if statuses != [own] {
        page["response_status"] = own.into();
    }
    if !headers.is_empty() {
        page["headers"] = Value::Object(headers);
    }
    page
}
