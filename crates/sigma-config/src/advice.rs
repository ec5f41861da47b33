//! Warnings about a resource or a whole file: routes and conditions that can never match, and fields without effect.

mod names;
mod pairs;
mod readers;
mod redirects;
mod streams;
mod together;
mod uncertified;

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use crate::pem;
use crate::plugins::is_disabled;
use crate::resources::kind::Kind;
use crate::resources::{Plugins, Resources, Route};
use crate::rules::{self, Object};
use crate::settings::{RouterKind, Settings, StreamListener, UnknownFields};
use sigma_schema::expr::Expr;
use sigma_schema::expr::known::NAMES;
use sigma_schema::plugins::PluginSchemas;
use sigma_schema::problem::{Problem, element, member};

/// The context in which a resource is checked.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The enabled plugins.
    pub plugins: &'a dyn PluginSchemas,
    /// The treatment of unknown fields.
    pub unknown: UnknownFields,
    /// The router.
    pub router: RouterKind,
    /// The time in Unix seconds; 0 to ignore it.
    pub now: i64,
    /// Whether the setting `trusted_addresses` has entries.
    pub trusts_proxies: bool,
}

fn no_effect(place: String, message: impl Into<String>, hint: &str) -> Problem {
    Problem::new(place, "no_effect", message).hint(hint)
}

fn never(place: String, message: impl Into<String>, hint: &str) -> Problem {
    Problem::new(place, "never_matches", message).hint(hint)
}

/// Returns the warnings about one resource; pointers begin in it.
pub(crate) fn resource(kind: Kind, value: &Object, around: &Surroundings<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    match kind {
        Kind::Route => {
            paths(value, around.router, &mut found);
            hosts(value, around.router, &mut found);
            let condition = value.get("vars").and_then(|vars| Expr::parse(vars).ok());
            if let Some(reason) = condition.and_then(|condition| condition.unknown()) {
                found.push(Problem::new("vars", "variable", reason));
            }
            if value.contains_key("script_id") {
                let message = "`script_id` has no effect: Sigma has no scripts";
                found.push(no_effect("script_id".into(), message, "remove it"));
            }
            if value.contains_key("upstream") && value.contains_key("upstream_id") {
                let message = "`upstream` has no effect together with `upstream_id`";
                found.push(no_effect("upstream".into(), message, "keep one of the two"));
            }
        }
        Kind::Service => hosts(value, around.router, &mut found),
        Kind::Upstream => upstream("", value, &mut found),
        Kind::Ssl => certificates(value, around.now, &mut found),
        _ => {}
    }
    if let Some(inline) = value.get("upstream").and_then(Value::as_object) {
        upstream("upstream", inline, &mut found);
    }
    if matches!(kind, Kind::Consumer | Kind::ConsumerGroup) {
        readers::limits_by_address(value, &mut found);
    }
    // The plugins of a consumer are its credentials.
    if !matches!(kind, Kind::Consumer | Kind::Credential) {
        found.extend(pairs::harmful(value, around.plugins, &|one, _| one.is_some()));
    }
    found
}

/// Returns the texts of a field, or of its list form, with their pointers.
fn texts<'v>(value: &'v Object, one: &str, several: &str) -> Vec<(String, &'v str)> {
    let list = value.get(several).and_then(Value::as_array).into_iter().flatten().enumerate();
    let list = list.filter_map(|(index, item)| Some((element(several, index), item.as_str()?)));
    let one = value.get(one).and_then(Value::as_str).map(|text| (one.to_owned(), text));
    one.into_iter().chain(list).collect()
}

/// Warns about path patterns that match no path.
fn paths(route: &Object, router: RouterKind, found: &mut Vec<Problem>) {
    const PARAMETERS: &str =
        "with `router.http: radixtree_uri_with_parameter` a segment `:name` is a parameter";
    for (place, path) in texts(route, "uri", "uris") {
        if path.starts_with('~') {
            // A regular expression.
            continue;
        }
        if !path.starts_with(['/', '*']) {
            let message = format!("`{path}` never matches: a path begins with `/`");
            found.push(never(place, message, "for example /hello, /api/* or *"));
        } else if path.contains(['?', '#']) {
            let message =
                format!("`{path}` never matches: a path has no `?` or `#`, the query is not part of it");
            found.push(never(
                place,
                message,
                "match query arguments with `vars`: [[\"arg_x\", \"==\", \"1\"]]",
            ));
        } else if path.contains('{') && path.contains('}') {
            let message = format!("`{path}` is matched literally: braces are not parameters");
            found.push(never(place, message, PARAMETERS));
        } else if !router.has_parameters() && path.contains("/:") {
            let message = format!("`{path}` is matched literally: this router has no parameters");
            found.push(never(place, message, PARAMETERS));
        }
    }
}

/// Warns about host patterns that match no host.
fn hosts(value: &Object, router: RouterKind, found: &mut Vec<Problem>) {
    if !router.has_host_tree() {
        // This router compares a pattern with a port to the whole Host field.
        return;
    }
    for (place, host) in texts(value, "host", "hosts") {
        let port = host.rsplit_once(':').filter(|(name, _)| !name.contains(':') || name.ends_with(']'));
        if port.is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())) {
            let message = format!("`{host}` never matches: hosts are compared without their port");
            found.push(never(place, message, "leave the port out; `listeners` binds a route to one"));
        }
    }
}

/// Warns about an upstream at `place`.
fn upstream(place: &str, upstream: &Object, found: &mut Vec<Problem>) {
    let word = |key: &str| upstream.get(key).and_then(Value::as_str);
    let at = |field: &str| member(place, field);
    let scheme = word("scheme").unwrap_or("http");
    if upstream.contains_key("tls") && matches!(scheme, "http" | "grpc") {
        let message =
            format!("`tls` has no effect with `scheme: {scheme}`, unless a plugin changes the scheme");
        found.push(no_effect(at("tls"), message, &format!("write `scheme: {scheme}s`, or remove it")));
    }
    if !word("type").is_some_and(rules::hashes) {
        for field in ["key", "hash_on"].into_iter().filter(|field| upstream.contains_key(*field)) {
            // Tools write defaults out.
            if word(field) != Some("vars") {
                let message = format!("`{field}` has no effect without `type: chash`");
                found.push(no_effect(at(field), message, "write `type: chash`, or remove it"));
            }
        }
    } else if word("hash_on").unwrap_or("vars") == "vars" {
        let message = match word("key") {
            Some("hostname") => "`hostname` is the name of this machine: all requests go to one node",
            Some("mqtt_client_id") if !matches!(scheme, "tcp" | "tls") => {
                "`mqtt_client_id` is empty for HTTP: all requests go to one node"
            }
            _ => "",
        };
        if !message.is_empty() {
            found.push(no_effect(
                at("key"),
                message,
                "hash a value that differs between clients, such as remote_addr",
            ));
        }
    }
    if upstream.contains_key("upstream_host") && word("pass_host") != Some("rewrite") {
        let message = "`upstream_host` has no effect without `pass_host: rewrite`";
        found.push(no_effect(at("upstream_host"), message, "write `pass_host: rewrite`, or remove it"));
    }
    for node in rules::strangers(upstream) {
        let message = format!("`{node}` is not one of the nodes");
        let place = member(&at("node_states"), &node);
        found.push(no_effect(place, message, "name a node as written in `nodes`, or remove it"));
    }
    judging(upstream, &at, found);
    let active = upstream.get("checks").and_then(|checks| checks.get("active")?.as_object());
    if let Some(active) = active.filter(|active| active.get("type").and_then(Value::as_str) == Some("tcp")) {
        let place = member(&at("checks"), "active");
        let http = ["http_method", "http_path", "http_req_body", "req_headers", "host"];
        for field in http.into_iter().filter(|field| active.contains_key(*field)) {
            let message = format!("`{field}` has no effect with `type: tcp`");
            found.push(no_effect(member(&place, field), message, "write `type: http`, or remove it"));
        }
    }
}

/// Warns about health check rules that apply to no node.
fn judging(upstream: &Object, at: &dyn Fn(&str) -> String, found: &mut Vec<Problem>) {
    let checks = upstream.get("checks").and_then(Value::as_object);
    let section = |name: &str| checks.and_then(|checks| checks.get(name)?.as_object());
    if let Some(active) = section("active") {
        let kind = active.get("type").and_then(Value::as_str).unwrap_or("http");
        let others = [
            ("http_expected_body", kind == "http" || kind == "https"),
            ("grpc_service", kind == "grpc" || kind == "grpcs"),
        ];
        for (field, _) in others.into_iter().filter(|(field, has)| !has && active.contains_key(*field)) {
            let message = format!("`{field}` has no effect with `type: {kind}`");
            found.push(no_effect(member(&member(&at("checks"), "active"), field), message, "remove it"));
        }
        let probed = active.contains_key("healthy") || active.contains_key("unhealthy");
        // With APISIX an empty section is needed for passive checks.
        let passive_alone = active.is_empty() && section("passive").is_some();
        if !probed && !passive_alone {
            let message = "no node is probed: `healthy` and `unhealthy` are missing";
            let hint = "write `healthy: {}` and `unhealthy: {}`: both have an interval of 1 second";
            found.push(no_effect(member(&at("checks"), "active"), message, hint));
        }
        if probed && active.contains_key("no_traffic_interval") && !active.contains_key("healthy") {
            let message =
                "`no_traffic_interval` has no effect without `healthy`: healthy nodes are not probed";
            let place = member(&member(&at("checks"), "active"), "no_traffic_interval");
            found.push(no_effect(place, message, "add it"));
        }
    }
    if section("active").is_some_and(|active| active.contains_key("unhealthy"))
        && section("passive").is_some_and(|passive| passive.contains_key("fail_timeout"))
    {
        let message = "`fail_timeout` has no effect where probes find out that a node is healthy again";
        let place = member(&member(&at("checks"), "passive"), "fail_timeout");
        found.push(no_effect(place, message, "remove it, or `active.unhealthy`"));
    }
    let Some(outliers) = upstream.get("outlier_detection").and_then(Value::as_object) else { return };
    let place = |field: &str| member(&at("outlier_detection"), field);
    if outliers.get("split_external_local_origin_errors").and_then(Value::as_bool) != Some(true) {
        let local = [
            "consecutive_local_origin_failure",
            "enforcing_consecutive_local_origin_failure",
            "enforcing_local_origin_success_rate",
            "enforcing_failure_percentage_local_origin",
        ];
        for field in local.into_iter().filter(|field| outliers.contains_key(*field)) {
            let message =
                format!("`{field}` has no effect without `split_external_local_origin_errors: true`");
            found.push(no_effect(place(field), message, "set it, or remove the field"));
        }
    }
    let pairs = [
        ("consecutive_gateway_failure", "enforcing_consecutive_gateway_failure"),
        ("failure_percentage_threshold", "enforcing_failure_percentage"),
    ];
    for (field, enforcing) in pairs {
        if outliers.contains_key(field) && !outliers.contains_key(enforcing) {
            let message = format!("`{field}` has no effect without `{enforcing}`, which is 0");
            found.push(no_effect(place(field), message, "write a chance in percent, or remove it"));
        }
    }
}

/// Warns about expired certificates, and about TLS versions that are not offered.
fn certificates(ssl: &Object, now: i64, found: &mut Vec<Problem>) {
    let enabled = ssl.get("status").and_then(Value::as_i64) != Some(0);
    for (place, text) in texts(ssl, "cert", "certs").into_iter().filter(|_| enabled && now != 0) {
        let Some((from, to)) = pem::validity(text) else { continue };
        if now > to {
            let days = (now - to) / 86_400;
            let message = format!("the certificate expired {days} days ago: clients refuse it");
            found.push(Problem::new(place, "expired", message).hint("write a new one"));
        } else if now < from {
            let message = "the certificate is not valid yet: clients refuse it";
            found.push(Problem::new(place, "expired", message).hint("check the clock and the certificate"));
        }
    }
    for (index, version) in
        ssl.get("ssl_protocols").and_then(Value::as_array).into_iter().flatten().enumerate()
    {
        if version == "TLSv1.1" {
            let place = element("ssl_protocols", index);
            found.push(no_effect(place, "TLSv1.1 is not offered (RFC 8996)", "remove it"));
        }
    }
}

/// Returns the warning about the first variable `geoip_…` in a document without databases.
pub(crate) fn without_places(document: &Value) -> Option<Problem> {
    let (place, name) = find_place(document, String::new())?;
    let message = format!("`{name}` has no value: there is no database");
    Some(no_effect(place, message, "name databases in `geoip.databases`"))
}

/// Returns the first text in a value with such a variable: its pointer, and the name.
fn find_place(value: &Value, pointer: String) -> Option<(String, &'static str)> {
    match value {
        Value::String(text) if text.contains("geoip_") => {
            // The longest name matches: `geoip_asn` is the beginning of another one.
            let names = NAMES.iter().filter(|name| name.starts_with("geoip_") && text.contains(**name));
            names.max_by_key(|name| name.len()).map(|name| (pointer, *name))
        }
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| find_place(item, element(&pointer, at)))
        }
        Value::Object(members) => {
            members.iter().find_map(|(name, inner)| find_place(inner, member(&pointer, name)))
        }
        _ => None,
    }
}

/// Returns the warnings about a file with all resources.
pub(crate) fn whole(settings: &Settings, resources: &Resources, plugins: &dyn PluginSchemas) -> Vec<Problem> {
    let mut found = Vec::new();
    uncertified::listeners(settings, resources, &mut found);
    uncertified::hosts(settings, resources, &mut found);
    without_consumers(resources, &|name| plugins.unique_attribute(name).is_some(), &mut found);
    unknown_names(resources, &mut found);
    names::within_plugins(resources, &mut found);
    together::pairs(resources, plugins, &mut found);
    redirects::without_https(settings, resources, &mut found);
    without_sessions(settings, resources, &mut found);
    streams::without_certificates(settings, resources, &mut found);
    found.extend(readers::unread_metrics(settings, resources));
    // These routers may match an earlier pattern first, even if it is shorter.
    if !settings.router.http.has_parameters() {
        shadowed(resources, &mut found);
    }
    found
}

/// Warns about stream routes without a listener.
fn without_sessions(settings: &Settings, resources: &Resources, found: &mut Vec<Problem>) {
    let takes_sessions = settings.listeners.iter().any(|listener| listener.stream.is_some());
    if !takes_sessions && resources.stream_routes.iter().next().is_some() {
        let message = "no listener accepts sessions: stream routes get no connections";
        let hint = "give a listener `stream: tcp`, `stream: tls` or `stream: udp`";
        found.push(Problem::new("stream_routes", "no_effect", message).hint(hint));
        return;
    }
    if settings.listeners.iter().any(|listener| listener.stream == Some(StreamListener::Udp)) {
        return;
    }
    for route in resources.stream_routes.iter().filter(|route| route.udp.is_some()) {
        let place = format!("stream_routes/{}.udp", route.id);
        let message = "no listener accepts datagrams: `udp` has no effect";
        found.push(Problem::new(place, "no_effect", message).hint("give a listener `stream: udp`"));
    }
}

/// Returns the resources of routes with their plugins: section, id, plugins.
fn plugin_holders(resources: &Resources) -> impl Iterator<Item = (&'static str, &str, &Plugins)> {
    let routes = resources.routes.iter().map(|route| ("routes", route.id.as_str(), &route.plugins));
    let services =
        resources.services.iter().map(|service| ("services", service.id.as_str(), &service.plugins));
    let configs =
        resources.plugin_configs.iter().map(|item| ("plugin_configs", item.id.as_str(), &item.plugins));
    let rules = resources.global_rules.iter().map(|item| ("global_rules", item.id.as_str(), &item.plugins));
    routes.chain(services).chain(configs).chain(rules)
}

/// Warns about names in `consumer-restriction` that do not exist in the file.
fn unknown_names(resources: &Resources, found: &mut Vec<Problem>) {
    const NAME: &str = "consumer-restriction";
    for (section, id, plugins) in plugin_holders(resources) {
        let confs = plugins.iter().filter(|(name, conf)| &***name == NAME && !is_disabled(conf));
        for (_, conf) in confs {
            let (what, exists): (_, &dyn Fn(&str) -> bool) = match conf.get("type").and_then(Value::as_str) {
                None | Some("consumer_name") => ("consumer", &|name| resources.consumers.get(name).is_some()),
                Some("consumer_group_id") => {
                    ("consumer group", &|name| resources.consumer_groups.get(name).is_some())
                }
                Some("service_id") => ("service", &|name| resources.services.get(name).is_some()),
                Some("route_id") => ("route", &|name| resources.routes.get(name).is_some()),
                Some(_) => continue,
            };
            let place = member(&format!("{section}/{id}.plugins"), NAME);
            let list =
                |field: &str| conf.get(field).and_then(Value::as_array).into_iter().flatten().enumerate();
            let listed = ["whitelist", "blacklist"].into_iter().flat_map(|field| {
                list(field).filter_map(move |(at, name)| Some((element(field, at), name.as_str()?)))
            });
            let users = list("allowed_by_methods").filter_map(|(at, rule)| {
                Some((member(&element("allowed_by_methods", at), "user"), rule.get("user")?.as_str()?))
            });
            for (pointer, name) in listed.chain(users).filter(|(_, name)| !exists(name)) {
                let message = format!("there is no {what} `{name}`");
                let hint = "add it, or correct the name";
                found.push(Problem::new(format!("{place}.{pointer}"), "unknown_name", message).hint(hint));
            }
        }
    }
}

/// Warns about authentication plugins without a consumer.
fn without_consumers(resources: &Resources, identifies: &dyn Fn(&str) -> bool, found: &mut Vec<Problem>) {
    let of_consumers = resources.consumers.iter().map(|consumer| &consumer.plugins);
    let of_credentials = resources.credentials.iter().map(|credential| &credential.plugins);
    let known: BTreeSet<&str> =
        of_consumers.chain(of_credentials).flat_map(|plugins| plugins.keys()).map(|name| &**name).collect();
    for (section, id, plugins) in plugin_holders(resources) {
        for (name, conf) in plugins.iter().filter(|(name, _)| identifies(name) && !known.contains(&***name)) {
            // `users` and `auth_file` list users of the plugin itself.
            let has_own =
                ["anonymous_consumer", "users", "auth_file"].iter().any(|it| conf.get(it).is_some());
            if is_disabled(conf) || has_own {
                continue;
            }
            let place = member(&format!("{section}/{id}.plugins"), name);
            let message = format!("no consumer has {name}: every request is refused");
            found.push(
                Problem::new(place, "no_consumer", message).hint(format!("add a consumer with `{name}`")),
            );
        }
    }
}

/// Warns about routes that never match because an earlier route has the same hosts and paths, and no condition. Only
/// equal patterns are compared; of different ones the longer has precedence.
fn shadowed(resources: &Resources, found: &mut Vec<Problem>) {
    let mut taken: HashMap<(String, &str), Vec<&Route>> = HashMap::new();
    let mut routes: Vec<&Route> =
        resources.routes.iter().map(AsRef::as_ref).filter(|route| route.status.is_on()).collect();
    // The sort is stable: of equal routes the earlier one stays first, as in the router.
    routes.sort_by_key(|route| std::cmp::Reverse(route.priority));
    for route in routes {
        let hosts = hosts_of(route, resources);
        let paths: Vec<&str> =
            route.uri.as_deref().into_iter().chain(route.uris.iter().map(String::as_str)).collect();
        let keys: Vec<(String, &str)> =
            hosts.iter().flat_map(|host| paths.iter().map(move |path| (host.clone(), *path))).collect();
        let covers = |first: &&&Route| {
            first.methods.is_empty()
                || !route.methods.is_empty() && route.methods.iter().all(|m| first.methods.contains(m))
        };
        let by: Option<Vec<&&Route>> = keys.iter().map(|key| taken.get(key)?.iter().find(covers)).collect();
        if let Some(first) = by.as_ref().and_then(|by| by.first()) {
            let message = format!("the route `{}` takes all its requests", first.id.as_str());
            let hint = "give it a higher `priority`, or the other one a condition";
            found.push(Problem::new(format!("routes/{}", route.id.as_str()), "shadowed", message).hint(hint));
        }
        if is_unconditional(route) {
            keys.into_iter().for_each(|key| taken.entry(key).or_default().push(route));
        }
    }
}

/// Returns whether a route has no condition besides host, path and method.
fn is_unconditional(route: &Route) -> bool {
    let addressed = route.remote_addr.is_some() || !route.remote_addrs.is_unset();
    let media = !route.consumes.is_unset() || !route.produces.is_unset();
    !addressed
        && !media
        && route.vars.is_unset()
        && route.filter_func.is_unset()
        && route.listeners.is_unset()
}

/// Returns the host patterns of a route or its service; one empty text for any host.
fn hosts_of(route: &Route, resources: &Resources) -> Vec<String> {
    let own = route.host.as_deref().into_iter().chain(route.hosts.iter().map(String::as_str));
    let mut hosts: Vec<String> = own.map(str::to_ascii_lowercase).collect();
    let service = route.service_id.as_ref().and_then(|id| resources.services.get(id.as_str()));
    if let (true, Some(service)) = (hosts.is_empty(), service) {
        hosts = service.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
    }
    if hosts.is_empty() {
        hosts.push(String::new());
    }
    hosts
}

#[cfg(test)]
mod tests;
