//! Whole configurations, and their snapshots as text.
//!
//! A difference shows the effect of a change on every user with such a configuration: review it, then accept it with
//! `SIGMA_BLESS=1`.

use std::fmt::{self, Write};
use std::path::Path;

use sigma_config::{ParseOptions, parse};
use sigma_convert::seed::Seeds;
use sigma_plugin::Entry;
use sigma_upstream::endpoint::{Location, plan_nodes};

use super::*;
use crate::snapshot::{Route, Upstream};

#[test]
fn snapshots_match_the_golden_files() {
    let mut differing = Vec::new();
    // Every kind of resource; the formats of the gateways that Sigma replaces; APISIX's own file.
    for (source, standalone_mode) in [
        ("src/compile/tests/golden/every-kind.yaml", false),
        ("src/compile/tests/golden/apisix.yaml", true),
        ("../sigma-convert/src/seed/golden/niubix-every-key.json", false),
        ("../../examples/sigma.json", false),
    ] {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = dump(&compiled(&std::fs::read_to_string(own.join(source)).unwrap(), standalone_mode));
        let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
        let golden = own.join(format!("src/compile/tests/golden/{name}.snapshot"));
        if std::fs::read_to_string(&golden).unwrap_or_default() == text {
            continue;
        }
        if std::env::var("SIGMA_BLESS").is_ok_and(|bless| bless == "1") {
            std::fs::write(&golden, text).unwrap();
            continue;
        }
        differing.push(format!("{} is not what {source} comes to now:\n{text}", golden.display()));
    }
    let remedy =
        "if that is meant: SIGMA_BLESS=1 cargo test -p sigma-proxy --lib golden, and read the difference";
    assert!(differing.is_empty(), "{}\n{remedy}", differing.join("\n"));
}

/// Returns the snapshot of a configuration, with the built-in plugins.
fn compiled(text: &str, standalone_mode: bool) -> (Config, Arc<Snapshot>) {
    let pair = rcgen::generate_simple_self_signed(["a.example.org".to_owned()]).unwrap();
    let in_json = |pem: String| pem.replace('\n', "\\n");
    let text = text
        .replace("{cert}", &in_json(pair.cert.pem()))
        .replace("{key}", &in_json(pair.signing_key.serialize_pem()));
    let roster = Arc::new(Roster::new(sigma_plugins::kinds(), None));
    let options = ParseOptions {
        formats: &Seeds::default(),
        plugins: &*roster,
        standalone_mode,
        ..ParseOptions::default()
    };
    let config = parse(&text, &options).unwrap_or_else(|problems| panic!("{problems:#?}")).config;
    let compiler = Compiler::new(roster, Arc::default());
    let compiled = alone(|sources| compiler.compile(&config, 0, sources));
    let snapshot = compiled.unwrap_or_else(|failures| panic!("{failures:#?}")).1;
    (config, snapshot)
}

fn dump((config, snapshot): &(Config, Arc<Snapshot>)) -> String {
    let mut out = String::new();
    write_all(config, snapshot, &mut out).unwrap();
    out
}

fn write_all(config: &Config, snapshot: &Snapshot, out: &mut String) -> fmt::Result {
    for listener in &snapshot.settings.listeners {
        let options = snapshot.listener(&listener.place());
        let tls = options.is_some_and(|options| options.tls.is_some());
        writeln!(out, "listener {}{}", listener.place(), if tls { ", TLS" } else { "" })?;
    }
    for (_, route) in snapshot.routes.iter() {
        write_route(snapshot, route, out)?;
    }
    for route in snapshot.flows.routes() {
        let names: Vec<&str> = route.chain.entries().iter().map(|entry| entry.name()).collect();
        let to = match route.target {
            Target::Upstream(number) => snapshot.upstream(number).map_or("nothing", |upstream| &upstream.key),
            _ => "nothing",
        };
        writeln!(out, "\nstream route {}\n  to {to}, plugins {names:?}", route.facts.id)?;
    }
    writeln!(out, "\nglobal rules")?;
    write_chain(&snapshot.global, out)?;
    let mut upstreams: Vec<_> = snapshot.upstreams().collect();
    upstreams.sort_by_key(|upstream| &upstream.key);
    for upstream in upstreams {
        write_upstream(upstream, out)?;
    }
    for consumer in config.resources.consumers.iter() {
        let Some(found) = snapshot.consumers.get(&consumer.username) else { continue };
        writeln!(out, "\nconsumer {} of group {:?}", found.name, found.group_id)?;
        write_chain(&Chain::new(found.entries.iter().cloned()), out)?;
        for plugin in ["basic-auth", "hmac-auth", "jwt-auth", "key-auth"] {
            let own = snapshot.consumers.all(plugin).filter(|identity| identity.consumer.name == found.name);
            writeln!(out, "  recognised by {plugin}: {}", own.count())?;
        }
    }
    for name in config.resources.ssls.iter().flat_map(|ssl| ssl.names()) {
        let shown = snapshot.certificates.by_name.find(name);
        let asks = shown.is_some_and(|identity| identity.client_auth().is_some());
        writeln!(out, "\nTLS {name}: {:?}, asks clients: {asks}", shown.map(|identity| identity.versions()))?;
    }
    Ok(())
}

fn write_route(snapshot: &Snapshot, route: &Route, out: &mut String) -> fmt::Result {
    let facts = &route.facts;
    writeln!(out, "\nroute {} {:?}", facts.id, facts.name)?;
    writeln!(out, "  paths {:?} hosts {:?} service {:?}", facts.uris, facts.hosts, facts.service_id)?;
    match route.target {
        Target::Upstream(number) => {
            writeln!(out, "  to {}", snapshot.upstream(number).map_or("nothing", |upstream| &upstream.key))?;
        }
        nowhere => writeln!(out, "  to {nowhere:?}")?,
    }
    if let Some(timeouts) = route.timeouts() {
        writeln!(out, "  {timeouts:?}")?;
    }
    if route.websocket || !route.upgrades().is_empty() {
        writeln!(out, "  WebSocket: {}, upgrades: {:?}", route.websocket, route.upgrades())?;
    }
    if let Some(rewrite) = route.rewrite() {
        writeln!(out, "  {} becomes {}", rewrite.regex, String::from_utf8_lossy(&rewrite.replacement))?;
    }
    write_chain(&route.chain, out)?;
    if let Some(global) = &route.global {
        writeln!(out, "  global rules that do not stand back")?;
        write_chain(global, out)?;
    }
    Ok(())
}

/// Writes each phase with its plugins in their order, then each plugin with its inputs.
fn write_chain(chain: &Chain, out: &mut String) -> fmt::Result {
    for phase in Phase::ALL {
        let names: Vec<&str> = chain.phase(phase).iter().map(|entry| entry.name()).collect();
        if !names.is_empty() {
            writeln!(out, "  {}: {}", phase.as_str(), names.join(", "))?;
        }
    }
    chain.entries().iter().try_for_each(|entry| write_entry(entry, "    ", out))
}

fn write_entry(entry: &Entry, indent: &str, out: &mut String) -> fmt::Result {
    write!(out, "{indent}{} {}", entry.name(), entry.conf)?;
    match &entry.metadata {
        Some(metadata) => writeln!(out, " with {metadata}")?,
        None => writeln!(out)?,
    }
    entry.children.iter().try_for_each(|child| write_entry(child, &format!("{indent}  "), out))
}

fn write_upstream(upstream: &Upstream, out: &mut String) -> fmt::Result {
    writeln!(out, "\nupstream {}: {:?}, {}", upstream.key, upstream.config.balance, upstream.scheme_name())?;
    if let Some(key) = &upstream.selection.hash_key {
        writeln!(out, "  by {key:?}")?;
    }
    writeln!(out, "  {:?}", upstream.transport.timeouts)?;
    writeln!(out, "  {:?}", upstream.transport.pool)?;
    writeln!(out, "  retries {:?} for {} ms", upstream.retry.retries, upstream.retry.timeout_ms)?;
    let host = &upstream.host.rewritten;
    writeln!(out, "  host {:?}{}{host}", upstream.host.pass, if host.is_empty() { "" } else { " " })?;
    for node in plan_nodes(upstream.config.scheme, &upstream.config.nodes) {
        let place = match &node.location {
            Location::Fixed(address) => address.to_string(),
            Location::Name(name) => format!("{name}, resolved, port {}", node.port),
        };
        writeln!(out, "  node {place}, weight {}, priority {}", node.weight, node.priority)?;
    }
    if let Some(checks) = &upstream.config.checks {
        writeln!(out, "  checks {}", serde_json::to_string(checks).map_err(|_| fmt::Error)?)?;
    }
    if let Some(on_unhealthy) = upstream.config.on_unhealthy {
        writeln!(out, "  on unhealthy {on_unhealthy:?}")?;
    }
    if let Some(outliers) = &upstream.config.outlier_detection {
        writeln!(out, "  outlier detection {}", serde_json::to_string(outliers).map_err(|_| fmt::Error)?)?;
    }
    Ok(())
}
