//! TCP and UDP routers as stream routes.

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::decision::Plan;
use super::super::tree::Tree;
use super::super::words::network;
use super::entries::EntryPoint;
use super::fields::{field, is_true, text, texts};
use super::model::{Model, Named};
use super::rule::Rule;

/// Sessions that a TCP rule selects.
#[derive(Debug, Default, Clone)]
struct Selection {
    names: Vec<String>,
    addresses: Vec<String>,
    alpn: Vec<String>,
}

/// Converts TCP and UDP routers. Entry points with one become listeners of streams.
pub(super) fn convert(model: &mut Model<'_>, points: &mut [EntryPoint], plan: &mut Plan) {
    let mut ranked: Vec<(i64, Vec<Value>)> = Vec::new();
    for router in model.tcp.routers.clone() {
        let priority = field(&router.tree, "priority").and_then(Tree::integer).filter(|it| *it != 0);
        let rule = text(&router.tree, "rule").unwrap_or_default();
        let routes = tcp(model, &router, points).unwrap_or_else(|reason| {
            model.remarks.closed(router.place, format!("{reason} It serves no session."));
            Vec::new()
        });
        // A rule with * matches all names, after the others.
        let length = if rule.contains("`*`") { 0 } else { rule.len() as i64 };
        ranked.push((priority.unwrap_or(length), routes));
    }
    ranked.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    plan.streams.extend(ranked.into_iter().flat_map(|(_, routes)| routes));
    for router in model.udp.routers.clone() {
        match udp(model, &router, points) {
            Ok(routes) => plan.streams.extend(routes),
            Err(reason) => model.remarks.gap(router.place, reason),
        }
    }
}

fn points_of(router: &Named, points: &[EntryPoint], is_udp: bool) -> Result<Vec<usize>, String> {
    let names = texts(&router.tree, "entrypoints");
    let fits =
        |point: &EntryPoint| point.is_udp == is_udp && (names.is_empty() || names.contains(&point.name));
    let found: Vec<usize> = (0..points.len()).filter(|index| fits(&points[*index])).collect();
    match found.is_empty() {
        true => Err("It has no entry point.".to_owned()),
        false => Ok(found),
    }
}

fn tcp(model: &mut Model<'_>, router: &Named, points: &mut [EntryPoint]) -> Result<Vec<Value>, String> {
    let known = ["entrypoints", "middlewares", "service", "rule", "rulesyntax", "priority", "tls"];
    model.unknown(router.place.file, &router.tree, &known);
    let rule = Rule::parse(text(&router.tree, "rule").unwrap_or_default())?;
    let mut selections = Vec::new();
    select(&rule, &mut selections)?;
    let plugins = middlewares(model, router)?;
    let upstream = upstream(model, router, &model.tcp.services.clone())?;
    let tls = field(&router.tree, "tls");
    let passthrough = tls.is_some_and(|tls| is_true(tls, "passthrough"));
    let kind = if tls.is_some() { "tls" } else { "tcp" };
    let mut routes = Vec::new();
    for index in points_of(router, points, false)? {
        let point = &mut points[index];
        let known = point.fields.get("stream").and_then(Value::as_str).unwrap_or(kind).to_owned();
        point.fields.insert("stream".to_owned(), if known == "tls" { "tls".into() } else { kind.into() });
        for selection in &selections {
            routes.extend(stream_routes(router, selection, point.port, tls.map(|_| passthrough), &upstream));
        }
    }
    for route in routes.iter_mut().filter(|_| !plugins.is_empty()) {
        route["plugins"] = Value::Object(plugins.clone());
    }
    Ok(routes)
}

/// The stream plugins of a router's middlewares.
fn middlewares(model: &mut Model<'_>, router: &Named) -> Result<Map<String, Value>, String> {
    let mut plugins = Map::new();
    for name in texts(&router.tree, "middlewares") {
        let found = Model::find(&model.tcp.middlewares, &name, router.provider).cloned();
        let middleware = found.ok_or_else(|| format!("The middleware `{name}` is not in the files."))?;
        let list = ["ipallowlist", "ipwhitelist"].iter().find_map(|kind| field(&middleware.tree, kind));
        let Some(list) = list else {
            return Err(format!("The TCP middleware `{name}` is not converted: use stream plugins."));
        };
        let ranges: Option<Vec<String>> =
            texts(list, "sourcerange").iter().map(|range| network(range)).collect();
        let ranges = ranges.filter(|ranges| !ranges.is_empty());
        let ranges = ranges.ok_or_else(|| format!("The middleware `{name}` has no valid addresses."))?;
        if plugins.insert("ip-restriction".to_owned(), json!({"whitelist": ranges})).is_some() {
            return Err("A TCP router has two lists of addresses.".to_owned());
        }
    }
    Ok(plugins)
}

fn stream_routes(
    router: &Named,
    selection: &Selection,
    port: u16,
    passthrough: Option<bool>,
    upstream: &Value,
) -> Vec<Value> {
    let mut routes = Vec::new();
    let names: Vec<Option<&String>> =
        match selection.names.iter().any(|name| name == "*") || selection.names.is_empty() {
            true => vec![None],
            false => selection.names.iter().map(Some).collect(),
        };
    let addresses: Vec<Option<&String>> = match selection.addresses.is_empty() {
        true => vec![None],
        false => selection.addresses.iter().map(Some).collect(),
    };
    for name in names {
        for address in &addresses {
            let mut route = Map::new();
            let id = build::id(&format!("{}-{port}-{}", router.name, routes.len() + 1));
            route.insert("id".to_owned(), id.into());
            route.insert("server_port".to_owned(), port.into());
            if let Some(name) = name {
                route.insert("sni".to_owned(), name.to_ascii_lowercase().into());
            }
            if let Some(address) = address {
                route.insert("remote_addr".to_owned(), (*address).clone().into());
            }
            if !selection.alpn.is_empty() {
                route.insert("alpn".to_owned(), json!(selection.alpn));
            }
            if let Some(passthrough) = passthrough {
                route.insert("tls".to_owned(), if passthrough { "passthrough" } else { "terminate" }.into());
            }
            route.insert("upstream".to_owned(), upstream.clone());
            routes.push(Value::Object(route));
        }
    }
    routes
}

/// Reads a rule: alternatives of names, addresses and protocols.
fn select(rule: &Rule, selections: &mut Vec<Selection>) -> Result<(), String> {
    match rule {
        Rule::Or(rules) => rules.iter().try_for_each(|rule| select(rule, selections)),
        Rule::And(rules) => {
            let mut joined = Selection::default();
            for rule in rules {
                let mut one = Vec::new();
                select(rule, &mut one)?;
                let [one] = one.as_slice() else {
                    return Err(
                        "Alternatives inside a conjunction are not converted: write them as routers."
                            .to_owned(),
                    );
                };
                joined.names.extend(one.names.iter().cloned());
                joined.addresses.extend(one.addresses.iter().cloned());
                joined.alpn.extend(one.alpn.iter().cloned());
            }
            selections.push(joined);
            Ok(())
        }
        Rule::Matcher { not: true, .. } => {
            Err("A negated matcher of TCP routers is not converted.".to_owned())
        }
        Rule::Matcher { name, arguments, .. } => {
            let mut selection = Selection::default();
            match name.as_str() {
                "hostsni" => selection.names.clone_from(arguments),
                "clientip" => selection.addresses.clone_from(arguments),
                "alpn" => selection.alpn.clone_from(arguments),
                other => return Err(format!("The matcher `{other}` of TCP routers is not converted.")),
            }
            selections.push(selection);
            Ok(())
        }
    }
}

fn udp(model: &mut Model<'_>, router: &Named, points: &mut [EntryPoint]) -> Result<Vec<Value>, String> {
    let upstream = upstream(model, router, &model.udp.services.clone())?;
    let mut upstream = upstream;
    upstream["scheme"] = "udp".into();
    let mut routes = Vec::new();
    for index in points_of(router, points, true)? {
        let point = &mut points[index];
        point.fields.insert("stream".to_owned(), "udp".into());
        let id = build::id(&format!("{}-{}", router.name, point.port));
        routes.push(json!({"id": id, "server_port": point.port, "upstream": upstream}));
    }
    Ok(routes)
}

/// Returns the upstream of a TCP or UDP service; weighted services become one upstream.
fn upstream(model: &mut Model<'_>, router: &Named, services: &[Named]) -> Result<Value, String> {
    let name = text(&router.tree, "service").ok_or("It has no service.")?;
    let mut upstream = json!({"nodes": []});
    nodes(model, services, name, router.provider, 1, &mut upstream, 0)?;
    Ok(upstream)
}

fn nodes(
    model: &mut Model<'_>,
    services: &[Named],
    name: &str,
    provider: &str,
    weight: i64,
    upstream: &mut Value,
    depth: usize,
) -> Result<(), String> {
    let service = Model::find(services, name, provider).cloned();
    let service =
        service.filter(|_| depth < 8).ok_or_else(|| format!("The service `{name}` is not in the files."))?;
    if let Some(weighted) = field(&service.tree, "weighted") {
        for item in field(weighted, "services").map(Tree::items).unwrap_or_default() {
            let part = text(item, "name").unwrap_or_default();
            let share = field(item, "weight").and_then(Tree::integer).unwrap_or(1).max(0);
            nodes(model, services, part, service.provider, weight * share, upstream, depth + 1)?;
        }
        return Ok(());
    }
    let conf = field(&service.tree, "loadbalancer")
        .ok_or_else(|| format!("The service `{name}` has no servers."))?;
    for server in field(conf, "servers").map(Tree::items).unwrap_or_default() {
        let address = text(server, "address").unwrap_or_default();
        let (host, port) =
            address.rsplit_once(':').ok_or_else(|| format!("`{address}` is not an address with a port."))?;
        let port: u16 = port.parse().map_err(|_| format!("`{address}` has no valid port."))?;
        if is_true(server, "tls") {
            upstream["scheme"] = "tls".into();
        }
        if let Value::Array(list) = &mut upstream["nodes"] {
            list.push(json!({"host": host, "port": port, "weight": weight}));
        }
    }
    if let Some(proxy) = field(conf, "proxyprotocol") {
        let version = field(proxy, "version").and_then(Tree::integer).unwrap_or(2);
        upstream["proxy_protocol"] = format!("v{version}").into();
    }
    for name in ["serverstransport", "healthcheck", "terminationdelay"] {
        if field(conf, name).is_some() {
            let text = "Set `checks`, `tls` and timeouts of the upstream by hand.";
            model.remarks.gap(service.field(conf, name), text);
        }
    }
    Ok(())
}
