//! Route configurations: virtual hosts and their routes as decisions.

use serde_json::{Value, json};

use super::super::decision::{Decision, Host, Target};
use super::super::logic::group;
use super::super::probe::{Probe, borders};
use super::super::tree::Tree;
use super::Model;
use super::actions::{self, Parts};
use super::fields::{field, is_true, items, text};
use super::filters::{self, Cors, Filters};
use super::headers::Changes;
use super::matching;

/// The messages around a route, from the outside in.
#[derive(Clone, Copy)]
struct Levels<'t> {
    conf: &'t Tree,
    host: &'t Tree,
    route: &'t Tree,
}

/// The domains of a virtual host: domains of one kind, and domains that end in `:*`.
struct Domains<'d> {
    own: Vec<&'d Domain>,
    any_port: Vec<&'d Domain>,
}

/// Settings of a connection manager for all its routes.
pub(super) struct Scope {
    pub(super) port: u16,
    pub(super) is_tls: bool,
    /// Conditions of the filter chain.
    pub(super) conditions: Vec<Value>,
    pub(super) filters: Filters,
    /// Whether a port in Host is removed before the comparison.
    pub(super) strips_port: bool,
    pub(super) websocket: bool,
}

/// A domain of a virtual host, in the order of Envoy's search.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Domain {
    Exact(String),
    /// Longer ones first.
    Suffix(std::cmp::Reverse<usize>, String),
    Prefix(std::cmp::Reverse<usize>, String),
    Any,
}

fn domain(text: &str) -> Domain {
    let text = text.to_ascii_lowercase();
    let length = std::cmp::Reverse(text.len());
    if text == "*" {
        return Domain::Any;
    }
    match (text.strip_prefix('*'), text.strip_suffix('*')) {
        (Some(rest), _) => Domain::Suffix(length, rest.to_owned()),
        (None, Some(rest)) => Domain::Prefix(length, rest.to_owned()),
        (None, None) => Domain::Exact(text),
    }
}

/// Converts a route configuration.
pub(super) fn convert(model: &mut Model<'_>, conf: &Tree, scope: &Scope, out: &mut Vec<Decision>) {
    if !scope.filters.health.is_empty() && scope.filters.closed.is_none() {
        let target = Target::Respond { status: 200, body: Some(String::new()), headers: Vec::new() };
        let place = model.place(conf.line);
        let mut health = Decision::new(place, "health-check", target);
        health.ports = vec![scope.port];
        health.conditions.clone_from(&scope.filters.health);
        out.push(health);
    }
    let mut hosts: Vec<(Domain, &Tree)> = Vec::new();
    for host in items(conf, "virtual_hosts") {
        for name in items(host, "domains") {
            hosts.extend(name.text().map(|name| (domain(name), host)));
        }
    }
    hosts.sort_by(|one, two| one.0.cmp(&two.0));
    let mut at = 0;
    while at < hosts.len() {
        // Domains of one host and kind that follow each other share decisions.
        let same = |index: usize| {
            std::ptr::eq(hosts[index].1, hosts[at].1)
                && std::mem::discriminant(&hosts[index].0) == std::mem::discriminant(&hosts[at].0)
        };
        let end = (at..hosts.len()).take_while(|index| same(*index)).count() + at;
        let domains: Vec<&Domain> = hosts[at..end].iter().map(|(domain, _)| domain).collect();
        let ports =
            hosts.iter().filter(|(_, host)| std::ptr::eq(*host, hosts[at].1)).map(|(domain, _)| domain);
        let any_port: Vec<&Domain> =
            ports.filter(|domain| matches!(domain, Domain::Prefix(_, text) if text.ends_with(':'))).collect();
        virtual_host(model, conf, hosts[at].1, &Domains { own: domains, any_port }, scope, out);
        at = end;
    }
    model.unknown(
        conf,
        &[
            "name",
            "virtual_hosts",
            "request_headers_to_add",
            "request_headers_to_remove",
            "response_headers_to_add",
            "response_headers_to_remove",
            "internal_only_headers",
            "validate_clusters",
            "most_specific_header_mutations_wins",
            "max_direct_response_body_size_bytes",
            "typed_per_filter_config",
            "ignore_port_in_host_matching",
            "request_mirror_policies",
        ],
    );
}

/// Puts the hosts of domains into a decision.
fn insert_hosts(decision: &mut Decision, domains: &Domains<'_>, strips_port: bool) {
    let Domains { own: domains, any_port } = domains;
    let mut exact = Vec::new();
    for domain in domains {
        match domain {
            Domain::Any => return,
            Domain::Exact(name) => {
                let (host, port) = name
                    .rsplit_once(':')
                    .filter(|(_, port)| port.parse::<u16>().is_ok())
                    .unwrap_or((name, ""));
                decision.hosts.push(Host::Exact(host.to_owned()));
                let all = any_port
                    .iter()
                    .any(|other| matches!(other, Domain::Prefix(_, text) if *text == format!("{name}:")));
                if !all {
                    exact.push((name.clone(), port.is_empty()));
                }
            }
            Domain::Suffix(_, rest) => {
                decision.hosts.push(match rest.strip_prefix('.') {
                    Some(name) => Host::Suffix(name.to_owned()),
                    None => Host::Regex(format!("{}$", regex::escape(rest))),
                });
                exact.push((format!("*{rest}"), true));
            }
            Domain::Prefix(_, rest) if rest.ends_with(':') => {
                decision.hosts.push(Host::Exact(rest.trim_end_matches(':').to_owned()));
            }
            Domain::Prefix(_, rest) => decision.hosts.push(match rest.strip_suffix('.') {
                Some(name) => Host::Prefix(name.to_owned()),
                None => Host::Regex(format!("^{}", regex::escape(rest))),
            }),
        }
    }
    // A domain is compared with the whole Host, so a port does not fit, unless it is removed.
    let all_plain = exact.len() == domains.len() && exact.iter().all(|(_, plain)| *plain);
    if strips_port || exact.is_empty() {
        return;
    }
    match all_plain {
        true => decision.conditions.push(json!(["http_host", "!", "~~", ":[0-9]+$"])),
        false => {
            let names = exact
                .iter()
                .map(|(name, _)| json!(["http_host", "~*", format!("^{}$", regex::escape(name))]));
            if exact.len() == domains.len() {
                decision.conditions.push(group("OR", names.collect()));
            }
        }
    }
}

fn virtual_host(
    model: &mut Model<'_>,
    conf: &Tree,
    host: &Tree,
    domains: &Domains<'_>,
    scope: &Scope,
    out: &mut Vec<Decision>,
) {
    model.unknown(
        host,
        &[
            "name",
            "domains",
            "routes",
            "require_tls",
            "request_headers_to_add",
            "request_headers_to_remove",
            "response_headers_to_add",
            "response_headers_to_remove",
            "cors",
            "retry_policy",
            "rate_limits",
            "typed_per_filter_config",
            "include_request_attempt_count",
            "include_attempt_count_in_response",
            "hedge_policy",
            "request_mirror_policies",
            "virtual_clusters",
        ],
    );
    let name = text(host, "name").unwrap_or("host");
    let mut base = Decision::new(model.place(host.line), name, Target::Drop);
    base.ports = vec![scope.port];
    base.conditions = scope.conditions.clone();
    insert_hosts(&mut base, domains, scope.strips_port);
    if let Some(reason) = &scope.filters.closed {
        out.push(Decision { target: Target::Closed(reason.clone()), ..base });
        return;
    }
    if text(host, "require_tls").is_some_and(|kind| kind != "NONE") && !scope.is_tls {
        let to = "https://$http_host$request_uri".to_owned();
        out.push(Decision { target: Target::Redirect { status: 301, to }, ..base });
        return;
    }
    let mut ends = false;
    for route in items(host, "routes") {
        let before = out.len();
        one(model, Levels { conf, host, route }, &base, scope, out);
        // Nothing after a route for all requests is reached.
        ends |= out[before..].iter().any(|it| {
            it.paths.is_empty() && it.methods.is_empty() && it.conditions.len() == base.conditions.len()
        });
        probes(model, route, &domains.own, scope);
    }
    if !ends && !base.hosts.is_empty() {
        let target = Target::Respond { status: 404, body: None, headers: Vec::new() };
        out.push(Decision { target, name: format!("{name}-none"), ..base });
    }
}

/// Fields of a route.
const KNOWN: [&str; 16] = [
    "name",
    "match",
    "route",
    "redirect",
    "direct_response",
    "non_forwarding_action",
    "metadata",
    "decorator",
    "typed_per_filter_config",
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "tracing",
    "per_request_buffer_limit_bytes",
    "stat_prefix",
];

/// The decisions of one route.
fn one(model: &mut Model<'_>, levels: Levels<'_>, base: &Decision, scope: &Scope, out: &mut Vec<Decision>) {
    let Levels { conf, host, route } = levels;
    model.unknown(route, &KNOWN);
    let mut decision = base.clone();
    decision.place = model.place(route.line);
    if let Some(name) = text(route, "name") {
        decision.name = name.to_owned();
    }
    decision.plugins = scope.filters.plugins.clone();
    let empty = Tree::map(route.line);
    let matched = matching::insert(field(route, "match").unwrap_or(&empty), &mut decision);
    if let Err(reason) = matched {
        model.closed(route.line, format!("{reason}; its path is closed."));
        decision.target = Target::Closed(reason);
        out.push(decision);
        return;
    }
    per_filter(model, host, route, &mut decision);
    let mut request = scope.filters.request.clone();
    let mut response = scope.filters.response.clone();
    for level in [route, host, conf] {
        request.take(model, level, "request");
        response.take(model, level, "response");
    }
    let policy = match scope.filters.has_cors {
        true => filters::cors(route).and_then(|policy| match policy {
            Some(policy) => Ok(Some(policy)),
            None => filters::cors(host),
        }),
        false => Ok(None),
    };
    let policy = policy.unwrap_or_else(|reason| {
        model.gap(route.line, format!("The CORS policy was not converted: {reason}."));
        None
    });
    if let Some(redirect) = field(route, "redirect") {
        actions::redirect(model, redirect, route, &mut decision);
        finish(decision, &Changes::default(), &response, policy, out);
    } else if let Some(direct) = field(route, "direct_response") {
        decision.target = actions::direct_response(model, direct);
        if let (true, super::super::decision::Target::Respond { headers, .. }) =
            (response.sets("content-type"), &mut decision.target)
        {
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
            response.replaces("content-type");
        }
        finish(decision, &Changes::default(), &response, policy, out);
    } else if let Some(action) = field(route, "route") {
        let cluster = |chosen| Chosen { levels, action, chosen, part: None };
        match actions::parts(action) {
            Parts::Weighted(parts) if parts.is_empty() => {
                model.gap(action.line, "No cluster has a weight; its path returns 503.");
                decision.target = Target::Closed("no cluster has a weight".to_owned());
                out.push(decision);
            }
            Parts::One => {
                let changes = Fields { request, response };
                forwarded(model, cluster(None), decision, scope, changes, policy, out);
            }
            Parts::Weighted(parts) => {
                let weights: Vec<(String, i64)> =
                    parts.iter().enumerate().map(|(at, (_, weight))| (at.to_string(), *weight)).collect();
                let variable = model.share(action.line, &weights);
                for (at, &(part, _)) in parts.iter().enumerate() {
                    let mut own = decision.clone();
                    if at + 1 < parts.len() {
                        own.conditions.push(json!([variable, "==", at.to_string()]));
                    }
                    let chosen = Chosen { part: Some(part), ..cluster(text(part, "name")) };
                    let changes = Fields { request: request.clone(), response: response.clone() };
                    forwarded(model, chosen, own, scope, changes, policy.clone(), out);
                }
            }
            Parts::Named(field) => {
                let mut names: Vec<String> = model.clusters.keys().cloned().collect();
                names.sort_unstable();
                let variable = matching::variable(field);
                for name in names.iter().filter(|_| variable.is_ok()) {
                    let mut own = decision.clone();
                    own.conditions.push(json!([variable.clone().unwrap_or_default(), "==", name]));
                    let changes = Fields { request: request.clone(), response: response.clone() };
                    forwarded(model, cluster(Some(name.as_str())), own, scope, changes, policy.clone(), out);
                }
                let status = match text(action, "cluster_not_found_response_code") {
                    Some("NOT_FOUND") => 404,
                    Some("INTERNAL_SERVER_ERROR") => 500,
                    _ => 503,
                };
                decision.target = Target::Respond { status, body: None, headers: Vec::new() };
                finish(decision, &request, &response, policy, out);
            }
        }
    } else {
        model.gap(route.line, "This action is not converted; its path returns 503.");
        decision.target = Target::Closed("an unknown action".to_owned());
        out.push(decision);
    }
}

/// A cluster of a route.
struct Chosen<'t> {
    levels: Levels<'t>,
    action: &'t Tree,
    /// Its name; None: the one of the action.
    chosen: Option<&'t str>,
    /// Its entry among weighted clusters, with its own fields.
    part: Option<&'t Tree>,
}

/// Changes of the fields of a request and of its response.
struct Fields {
    request: Changes,
    response: Changes,
}

/// The decisions for the requests of one cluster.
fn forwarded(
    model: &mut Model<'_>,
    chosen: Chosen<'_>,
    mut decision: Decision,
    scope: &Scope,
    changes: Fields,
    policy: Option<Cors>,
    out: &mut Vec<Decision>,
) {
    let Chosen { levels: Levels { host, route, .. }, action, chosen, part } = chosen;
    let Fields { mut request, mut response } = changes;
    actions::forward(model, host, route, action, chosen, &mut decision);
    if let Some(part) = part {
        request.take(model, part, "request");
        response.take(model, part, "response");
        if let Some(name) = text(part, "host_rewrite_literal") {
            let plugin = decision.plugins.entry("proxy-rewrite").or_insert_with(|| json!({}));
            plugin["host"] = name.into();
        }
    }
    let upgrades = items(action, "upgrade_configs").iter();
    let websocket = upgrades.clone().any(actions::is_websocket);
    if (scope.websocket || websocket) && matches!(decision.target, Target::Upstream(_)) {
        decision.fields.insert("enable_websocket".to_owned(), true.into());
    }
    let has_own_host = decision.plugins.get("proxy-rewrite").is_some_and(|conf| conf.get("host").is_some());
    if scope.strips_port && !has_own_host && !request.sets("host") && !is_true(action, "auto_host_rewrite") {
        request.set("Host", "$host");
    }
    host_of_field(model, action, &mut request);
    finish(decision, &request, &response, policy, out);
}

/// `host_rewrite_header`: the host from a field of the request, if it has one.
fn host_of_field(model: &mut Model<'_>, action: &Tree, request: &mut Changes) {
    let Some(name) = text(action, "host_rewrite_header") else { return };
    match matching::variable(name) {
        Ok(variable) => {
            let host = model.variable_or(action.line, &format!("${variable}"), "$http_host");
            request.set("Host", &host);
        }
        Err(reason) => model.gap(action.line, format!("The host is not rewritten: {reason}.")),
    }
}

/// Settings of filters for one route or virtual host.
fn per_filter(model: &mut Model<'_>, host: &Tree, route: &Tree, decision: &mut Decision) {
    for level in [host, route] {
        for member in field(level, "typed_per_filter_config").map(Tree::members).unwrap_or_default() {
            let conf = field(&member.value, "config").unwrap_or(&member.value);
            let is_disabled = is_true(&member.value, "disabled") || is_true(conf, "disabled");
            let plugin = match member.key.rsplit('.').next().unwrap_or_default() {
                "cors" => continue,
                "local_ratelimit" => {
                    match filters::local_rate_limit(model, conf) {
                        Ok(Some(mut limit)) => {
                            // Routes count apart.
                            limit["key"] = "$server_port-$route_id".into();
                            decision.plugins.insert("limit-req".to_owned(), limit);
                        }
                        Ok(None) => {}
                        Err(reason) => {
                            model.closed(member.line, format!("The route is closed: {reason}."));
                            decision.plugins.insert(
                                "ip-restriction".to_owned(),
                                json!({"blacklist": ["0.0.0.0/0", "::/0"]}),
                            );
                        }
                    }
                    continue;
                }
                "ext_authz" => {
                    if decision.plugins.contains_key("ext-authz") {
                        "ext-authz"
                    } else {
                        "forward-auth"
                    }
                }
                "ext_proc" => "ext-proc",
                "rbac" => "rbac",
                "basic_auth" => "basic-auth",
                "buffer" => "client-control",
                "compressor" => "gzip",
                _ => "",
            };
            if is_disabled && !plugin.is_empty() {
                decision.plugins.remove(plugin);
            } else {
                model.note(member.line, "The settings of the filter apply here, not these settings.");
            }
        }
    }
}

/// Writes the changes of fields, and splits by the origin where there is a CORS policy.
fn finish(
    mut decision: Decision,
    request: &Changes,
    response: &Changes,
    cors: Option<Cors>,
    out: &mut Vec<Decision>,
) {
    if matches!(decision.target, Target::Upstream(_)) {
        let rules = request.rules(false);
        if let Some(headers) = rules {
            let plugin = decision.plugins.entry("proxy-rewrite".to_owned()).or_insert_with(|| json!({}));
            plugin["headers"] = headers;
        }
    }
    let write = |decision: &mut Decision, response: &Changes| {
        if let Some(headers) = response.rules(true) {
            decision.plugins.insert("response-rewrite".to_owned(), json!({"headers": headers}));
        }
    };
    if let Some(cors) = cors.filter(|cors| !cors.origins.is_empty()) {
        let mut allowed = decision.clone();
        allowed.conditions.push(group("OR", cors.origins));
        let mut preflight = allowed.clone();
        if preflight.methods.is_empty() || preflight.methods.iter().any(|method| method == "OPTIONS") {
            preflight.methods = vec!["OPTIONS".to_owned()];
            preflight.conditions.push(json!(["http_access_control_request_method", "~~", "."]));
            preflight.target = Target::Respond { status: 200, body: None, headers: cors.preflight };
            preflight.plugins.clear();
            preflight.fields.clear();
            out.push(preflight);
        }
        let mut with_origin = response.clone();
        cors.fields.iter().for_each(|(name, value)| with_origin.set(name, value));
        write(&mut allowed, &with_origin);
        out.push(allowed);
    }
    write(&mut decision, response);
    out.push(decision);
}

/// Requests that fit a route, and some that just miss it.
fn probes(model: &mut Model<'_>, route: &Tree, domains: &[&Domain], scope: &Scope) {
    let host = match domains.first() {
        Some(Domain::Exact(name)) => name.clone(),
        Some(Domain::Suffix(_, rest)) => format!("a{rest}"),
        Some(Domain::Prefix(_, rest)) => format!("{rest}test"),
        _ => "localhost".to_owned(),
    };
    let Some(conditions) = field(route, "match") else { return };
    let path = ["prefix", "path", "path_separated_prefix"]
        .iter()
        .find_map(|name| text(conditions, name))
        .unwrap_or("/");
    let mut targets = vec![path.to_owned(), format!("{path}?a=b")];
    targets.extend(borders(path));
    for target in targets {
        model.probes.push(Probe {
            port: scope.port,
            ..Probe::get(format!("{host}: {target}"), &host, target.clone())
        });
    }
    for other in [host.to_uppercase(), format!("not-{host}")] {
        model
            .probes
            .push(Probe { port: scope.port, ..Probe::get(format!("host {other}"), other.clone(), path) });
    }
}
