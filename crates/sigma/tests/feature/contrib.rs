//! The files in `contrib` for Prometheus and Grafana query only exported metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{Address, Origin, Peer, free_port, until};

use crate::PATIENCE;
use crate::managed::{EMBEDDED, admin, start};
use crate::tls::Authority;

/// Labels that Prometheus adds to scraped metrics.
const OF_SCRAPES: [&str; 2] = ["instance", "job"];

fn contrib(file: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib")).join(file)
}

/// The labels of each metric on a page.
fn exported(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = match line.split_once('{') {
            Some((name, rest)) => (name, rest.rsplit_once('}').unwrap().0),
            None => (line.split(' ').next().unwrap(), ""),
        };
        // Values have been written by this test, and hold no quotes.
        let names =
            labels.split("\",").filter_map(|pair| pair.split_once("=\"")).map(|(name, _)| name.to_owned());
        all.entry(name.to_owned()).or_default().extend(names);
    }
    all
}

/// Words of a query, each with the text after it.
fn words(query: &str) -> Vec<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let (mut rest, mut quoted) = (query, false);
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if first == '"' {
            quoted = !quoted;
        }
        if end > 0 && !quoted {
            found.push((&rest[..end], &rest[end..]));
        }
        rest = &rest[end.max(first.len_utf8())..];
    }
    found
}

/// Checks the metrics and the labels of a query; returns how many metrics it requests.
fn check(query: &str, exported: &BTreeMap<String, BTreeSet<String>>) -> usize {
    let words = words(query);
    let metrics: Vec<&str> =
        words.iter().map(|(word, _)| *word).filter(|word| word.starts_with("apisix_")).collect();
    let mut known: BTreeSet<&str> = OF_SCRAPES.into();
    for metric in &metrics {
        let labels = exported.get(*metric).unwrap_or_else(|| panic!("nothing exports {metric}: {query}"));
        known.extend(labels.iter().map(String::as_str));
    }
    // Names before an operator of a matcher, and names of groups.
    let mut asked: BTreeSet<&str> = words
        .iter()
        .filter(|(_, rest)| ["=\"", "!=\"", "=~\"", "!~\""].iter().any(|operator| rest.starts_with(operator)))
        .map(|(word, _)| *word)
        .collect();
    for group in query.split("by (").skip(1) {
        asked.extend(group.split(')').next().unwrap().split(',').map(str::trim));
    }
    for label in asked {
        assert!(known.contains(label), "no metric of the query has the label {label}: {query}");
    }
    metrics.len()
}

/// A page of a gateway that has something of everything.
fn page() -> String {
    let (origin, port) = (Origin::echo("a").unwrap(), free_port());
    let settings = format!(
        "{EMBEDDED}\nplugin_attr: {{ prometheus: {{ export_addr: {{ ip: 127.0.0.1, port: {port} }} }} }}"
    );
    let gateway = start(&settings);
    let operator = admin(&gateway);
    let dead = free_port();
    let ssl = Authority::new("Root").issue("a.test").ssl(json!({ "sni": "a.test" }));
    let logger = json!({ "uri": format!("http://127.0.0.1:{dead}/"), "batch_max_size": 1000 });
    let upstream = json!({
        "nodes": { format!("127.0.0.1:{}", origin.port()): 1, format!("127.0.0.1:{dead}"): 0 },
        "checks": { "active": { "type": "tcp" } },
    });
    for (resource, value) in [
        ("ssls/1", ssl),
        ("global_rules/1", json!({ "plugins": { "prometheus": {} } })),
        ("routes/1", json!({ "uri": "/*", "upstream": upstream, "plugins": { "http-logger": logger } })),
    ] {
        operator.put(resource, &value).unwrap();
    }
    assert!(until(PATIENCE, || gateway.connect().unwrap().get("/").unwrap().status() == 200));
    let scrape = || {
        let mut peer = Peer::connect(&Address::loopback(port)).unwrap();
        peer.get("/apisix/prometheus/metrics").unwrap().text()
    };
    let is_whole = |page: &str| {
        ["http_latency_bucket", "upstream_status", "batch_process_entries", "ssl_certificate_expires"]
            .iter()
            .all(|name| page.contains(&format!("\napisix_{name}")))
    };
    assert!(until(PATIENCE, || is_whole(&scrape())), "{}", scrape());
    scrape()
}

/// All values of the member `name` in a document.
fn members<'v>(value: &'v Value, name: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(name).and_then(Value::as_str));
            object.values().for_each(|value| members(value, name, found));
        }
        Value::Array(items) => items.iter().for_each(|item| members(item, name, found)),
        _ => {}
    }
}

#[test]
fn every_query_uses_exported_metrics() {
    let exported = exported(&page());
    let dashboard = std::fs::read_to_string(contrib("grafana/dashboards/sigma.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut queries = Vec::new();
    members(&dashboard["panels"], "expr", &mut queries);
    members(&dashboard["templating"], "definition", &mut queries);
    assert!(queries.len() > 20, "{queries:?}");
    for query in queries {
        assert!(check(query, &exported) > 0, "{query}");
    }
    // Labels after the metric of `label_values` are no matchers.
    for (query, label) in [("apisix_node_info", "instance"), ("apisix_http_status", "route")] {
        assert!(exported[query].contains(label) || OF_SCRAPES.contains(&label));
    }
    let rules = std::fs::read_to_string(contrib("prometheus/sigma.rules.yml")).unwrap();
    let rules: Vec<&str> = rules.split("- alert:").skip(1).collect();
    let asked: usize = rules.iter().map(|rule| check(expression(rule), &exported)).sum();
    assert!(rules.len() >= 10 && asked >= rules.len(), "{rules:?}");
}

/// The expression of a rule: behind `expr`, up to the member that follows.
fn expression(rule: &str) -> &str {
    let begun = rule.split_once("expr:").unwrap().1;
    let end = ["\n        for:", "\n        labels:"].iter().filter_map(|next| begun.find(next)).min();
    &begun[..end.unwrap()]
}

#[test]
fn a_query_for_something_else_is_seen() {
    let exported = exported("# TYPE apisix_a counter\napisix_a{route=\"1\",code=\"200\"} 1\napisix_b 2\n");
    assert_eq!(check("sum by (route) (rate(apisix_a{code=~\"5..\"}[5m])) / apisix_b", &exported), 2);
    for wrong in ["apisix_c", "apisix_a{node=\"x\"}", "sum by (name) (apisix_a)", "apisix_b{code=\"1\"}"] {
        let query = wrong.to_owned();
        let exported = exported.clone();
        assert!(std::thread::spawn(move || check(&query, &exported)).join().is_err(), "{wrong}");
    }
}

#[test]
fn the_alerts_fire_when_they_should() {
    for arguments in [
        ["check", "rules", "sigma.rules.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "sigma.test.yml"],
    ] {
        let output =
            Command::new("promtool").args(arguments).current_dir(contrib("prometheus")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    // Each has its test.
    let read = |file: &str| std::fs::read_to_string(contrib(file)).unwrap();
    let (rules, tests) = (read("prometheus/sigma.rules.yml"), read("prometheus/sigma.test.yml"));
    for rule in rules.split("- alert:").skip(1) {
        let name = rule.lines().next().unwrap().trim();
        let named = format!("alertname: {name}\n");
        assert!(
            tests.split(&named).skip(1).any(|test| test.trim_start().starts_with("exp_alerts:\n")),
            "{name}"
        );
    }
}
