//! Actions of routes: responses, redirects, and requests to clusters.

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::decision::{Decision, Target};
use super::super::tree::Tree;
use super::Model;
use super::fields::{at, data, field, integer, is_true, items, number, seconds, text};
use super::matching;

/// Whether an upgrade is to WebSocket.
pub(super) fn is_websocket(upgrade: &Tree) -> bool {
    text(upgrade, "upgrade_type").is_some_and(|kind| kind.eq_ignore_ascii_case("websocket"))
}

/// Returns a response without a cluster.
pub(super) fn direct_response(model: &mut Model<'_>, direct: &Tree) -> Target {
    let status = integer(direct, "status").and_then(|status| u16::try_from(status).ok()).unwrap_or(200);
    let body = match field(direct, "body") {
        Some(source) => data(source, model.access).unwrap_or_else(|reason| {
            model.gap(direct.line, format!("The body is empty: {reason}."));
            String::new()
        }),
        None => String::new(),
    };
    let mut headers = Vec::new();
    if !body.is_empty() {
        headers.push(("Content-Type".to_owned(), "text/plain".to_owned()));
    }
    let body = (!body.is_empty()).then(|| body.replace('$', "\\$"));
    Target::Respond { status, body, headers }
}

/// Makes a decision a redirect.
pub(super) fn redirect(model: &mut Model<'_>, redirect: &Tree, route: &Tree, decision: &mut Decision) {
    let scheme = match (is_true(redirect, "https_redirect"), text(redirect, "scheme_redirect")) {
        (true, _) => "https",
        (false, Some(scheme)) => scheme,
        (false, None) => "$scheme",
    };
    let host = text(redirect, "host_redirect");
    let port = integer(redirect, "port_redirect").filter(|port| *port > 0);
    let authority = match (host, port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, Some(port)) => format!("$host:{port}"),
        (None, None) => "$http_host".to_owned(),
    };
    let strips = is_true(redirect, "strip_query");
    let whole = if strips { "$uri" } else { "$request_uri" };
    let source = if strips { "$uri" } else { "$real_request_uri" };
    let query = if strips { "" } else { "$is_args$args" };
    let path = if let Some(path) = text(redirect, "path_redirect") {
        let query = if path.contains('?') { "" } else { query };
        format!("{path}{query}")
    } else if let Some(prefix) = text(redirect, "prefix_rewrite") {
        let old = field(route, "match").and_then(|it| {
            text(it, "prefix").or_else(|| text(it, "path")).or_else(|| text(it, "path_separated_prefix"))
        });
        let pattern = format!("^{}(.*)$", regex::escape(old.unwrap_or("/")));
        model.variable(route.line, source, &pattern, &format!("{prefix}${{1}}"))
    } else if let Some(rewrite) = field(redirect, "regex_rewrite") {
        match regex_rewrite(rewrite) {
            Ok((pattern, to)) => format!("{}{query}", model.variable(route.line, "$uri", &pattern, &to)),
            Err(reason) => {
                model.gap(route.line, reason);
                whole.to_owned()
            }
        }
    } else {
        whole.to_owned()
    };
    let status = match text(redirect, "response_code") {
        Some("FOUND") => 302,
        Some("SEE_OTHER") => 303,
        Some("TEMPORARY_REDIRECT") => 307,
        Some("PERMANENT_REDIRECT") => 308,
        _ => 301,
    };
    decision.target = Target::Redirect { status, to: format!("{scheme}://{authority}{path}") };
}

/// The pattern and replacement of a `regex_rewrite`, with groups as `${1}`.
fn regex_rewrite(rewrite: &Tree) -> Result<(String, String), String> {
    let pattern = field(rewrite, "pattern")
        .and_then(|it| text(it, "regex"))
        .ok_or("a regex_rewrite needs a pattern")?;
    let pattern = matching::checked(pattern)?;
    let mut to = String::new();
    let mut chars = text(rewrite, "substitution").unwrap_or_default().chars();
    while let Some(char) = chars.next() {
        match (char, chars.clone().next()) {
            ('\\', Some(digit)) if digit.is_ascii_digit() => {
                chars.next();
                to.push_str(&format!("${{{digit}}}"));
            }
            ('\\', Some('\\')) => {
                chars.next();
                to.push('\\');
            }
            ('$', _) => to.push_str("$$"),
            (char, _) => to.push(char),
        }
    }
    Ok((pattern, to))
}

const ACTION: [&str; 32] = [
    "cluster",
    "weighted_clusters",
    "prefix_rewrite",
    "regex_rewrite",
    "host_rewrite_literal",
    "auto_host_rewrite",
    "timeout",
    "idle_timeout",
    "retry_policy",
    "request_mirror_policies",
    "hash_policy",
    "cors",
    "max_stream_duration",
    "upgrade_configs",
    "cluster_not_found_response_code",
    "priority",
    "rate_limits",
    "max_grpc_timeout",
    "grpc_timeout_offset",
    "include_vh_rate_limits",
    "metadata_match",
    "internal_redirect_policy",
    "append_x_forwarded_host",
    "hedge_policy",
    "host_rewrite_header",
    "host_rewrite_path_regex",
    "path_rewrite_policy",
    "cluster_header",
    "retry_policy_typed_config",
    "early_data_policy",
    "cluster_specifier_plugin",
    "path_rewrite",
];

/// Sends requests to clusters.
pub(super) fn forward(
    model: &mut Model<'_>,
    host: &Tree,
    route: &Tree,
    action: &Tree,
    chosen: Option<&str>,
    decision: &mut Decision,
) {
    model.unknown(action, &ACTION);
    for name in [
        "host_rewrite_path_regex",
        "path_rewrite_policy",
        "internal_redirect_policy",
        "hedge_policy",
        "metadata_match",
    ] {
        if field(action, name).is_some() {
            model
                .gap(action.line, format!("`{name}` is not converted; see proxy-rewrite and traffic-split."));
        }
    }
    if !items(action, "rate_limits").is_empty() || !items(host, "rate_limits").is_empty() {
        model.note(action.line, "Descriptors of rate limits need a rate limit service.");
    }
    decision.target = match cluster(model, action, chosen, decision) {
        Ok(id) => Target::Upstream(variant(model, host, action, &id)),
        Err(reason) => {
            model.gap(action.line, format!("The route answers 503: {reason}."));
            Target::Closed(reason)
        }
    };
    let mut rewrite = Map::new();
    if let Some(prefix) = text(action, "prefix_rewrite") {
        rewrite_prefix(route, prefix, &mut rewrite);
    }
    if let Some(conf) = field(action, "regex_rewrite") {
        match regex_rewrite(conf) {
            Ok((pattern, to)) => {
                rewrite.insert("regex_uri".to_owned(), json!([pattern, to]));
            }
            Err(reason) => model.gap(conf.line, reason),
        }
    }
    if let Some(host) = text(action, "host_rewrite_literal") {
        rewrite.insert("host".to_owned(), host.into());
    }
    if !rewrite.is_empty() {
        decision.plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
    }
    mirrors(model, action, decision);
    let timeout = seconds(action, "timeout").unwrap_or(15.0);
    let read = if timeout > 0.0 { timeout } else { 3600.0 };
    if timeout > 0.0 && (field(action, "retry_policy").is_some() || field(host, "retry_policy").is_some()) {
        // The time of a route includes its retries.
        decision.fields.insert("deadline".to_owned(), json!({"timeout": number(timeout)}));
    }
    decision
        .fields
        .insert("timeout".to_owned(), json!({"connect": 5, "send": number(read), "read": number(read)}));
}

/// Replaces the text that the route's path matched.
fn rewrite_prefix(route: &Tree, prefix: &str, rewrite: &mut Map<String, Value>) {
    let conditions = field(route, "match");
    let of = |name: &str| conditions.and_then(|it| text(it, name));
    let exact = of("path").map(|path| vec![format!("^{}$", regex::escape(path)), prefix.replace('$', "$$")]);
    let below = of("prefix").or_else(|| of("path_separated_prefix")).unwrap_or("/");
    let pairs = exact.unwrap_or_else(|| {
        vec![format!("^{}(.*)$", regex::escape(below)), format!("{}$1", prefix.replace('$', "$$"))]
    });
    rewrite.insert("regex_uri".to_owned(), json!(pairs));
    rewrite.insert("keep_escapes".to_owned(), true.into());
}

/// Returns the upstream of a route.
fn cluster(
    model: &mut Model<'_>,
    action: &Tree,
    chosen: Option<&str>,
    decision: &Decision,
) -> Result<String, String> {
    let known = |model: &Model<'_>, name: &str| match model.clusters.get(name) {
        Some(found) => found.clone(),
        None => Err(format!("there is no cluster `{name}`")),
    };
    if let Some(name) = chosen.or_else(|| text(action, "cluster")) {
        return known(model, name);
    }
    let weighted = field(action, "weighted_clusters").ok_or("its cluster depends on the request")?;
    let mut members = Vec::new();
    for part in items(weighted, "clusters") {
        let id = known(model, text(part, "name").unwrap_or_default())?;
        let weight = integer(part, "weight").unwrap_or(0);
        // A cluster may be listed several times; a member is listed once.
        match members.iter_mut().find(|member: &&mut Value| member["upstream_id"] == json!(id)) {
            Some(member) => member["weight"] = json!(member["weight"].as_i64().unwrap_or(0) + weight),
            None => members.push(json!({"upstream_id": id, "weight": weight})),
        }
    }
    let members = json!({"members": members});
    if let Some((known, _)) = model.upstreams.iter().find(|(_, other)| *other == members) {
        return Ok(known.clone());
    }
    let base = format!("{}-weighted-{}", decision.name, action.line);
    let mut id = build::id(&base);
    let mut number = 1;
    while model.upstreams.iter().any(|(known, _)| *known == id) {
        number += 1;
        id = build::id(&format!("{base}-{number}"));
    }
    model.upstreams.push((id.clone(), members));
    Ok(id)
}

/// The clusters of a route that need decisions of their own.
pub(super) enum Parts<'t> {
    /// One upstream serves all requests.
    One,
    /// Weighted clusters with fields of their own.
    Weighted(Vec<(&'t Tree, i64)>),
    /// The name of the cluster is in a field of the request.
    Named(&'t str),
}

/// Returns how the clusters of an action are chosen.
pub(super) fn parts(action: &Tree) -> Parts<'_> {
    if let Some(name) = text(action, "cluster_header") {
        return Parts::Named(name);
    }
    let Some(weighted) = field(action, "weighted_clusters") else { return Parts::One };
    let has_fields = |part: &&Tree| {
        let names = ["request", "response"]
            .iter()
            .flat_map(|it| [format!("{it}_headers_to_add"), format!("{it}_headers_to_remove")]);
        names.into_iter().any(|name| !items(part, &name).is_empty())
            || text(part, "host_rewrite_literal").is_some()
    };
    let clusters = items(weighted, "clusters");
    if !clusters.iter().any(|part| has_fields(&part)) {
        return Parts::One;
    }
    let weight = |part: &Tree| integer(part, "weight").unwrap_or(0).max(0);
    Parts::Weighted(clusters.iter().map(|part| (part, weight(part))).filter(|(_, it)| *it > 0).collect())
}

/// Returns the cluster's upstream with the retries, the hash and the host of this route.
fn variant(model: &mut Model<'_>, host: &Tree, action: &Tree, id: &str) -> String {
    let mut fields = Map::new();
    if let Some(policy) = field(action, "retry_policy").or_else(|| field(host, "retry_policy")) {
        retries(policy, &mut fields);
    }
    if is_true(action, "auto_host_rewrite") {
        // The name of the node, without a port.
        let hosts = model.upstreams.iter().find(|(known, _)| known == id).map(|(_, it)| hosts(it));
        match hosts.as_deref() {
            Some([host]) => {
                fields.insert("pass_host".to_owned(), "rewrite".into());
                fields.insert("upstream_host".to_owned(), host.as_str().into());
            }
            _ => _ = fields.insert("pass_host".to_owned(), "node".into()),
        }
    }
    if let Some(hash) = field(action, "hash_policy").and_then(|list| list.items().first()) {
        let key = if let Some(name) = at(hash, &["header", "header_name"]).and_then(Tree::text) {
            matching::variable(name).ok()
        } else if let Some(name) = at(hash, &["cookie", "name"]).and_then(Tree::text) {
            Some(format!("cookie_{name}"))
        } else if let Some(name) = at(hash, &["query_parameter", "name"]).and_then(Tree::text) {
            Some(format!("arg_{name}"))
        } else {
            Some("remote_addr".to_owned())
        };
        fields.extend(key.into_iter().flat_map(|key| {
            let is_plain = key == "remote_addr" || key.starts_with("arg_");
            let on = (!is_plain).then(|| ("hash_on".to_owned(), "vars_combinations".into()));
            let key = if is_plain { key } else { format!("${key}") };
            on.into_iter().chain([("key".to_owned(), key.into())])
        }));
    }
    let Some((_, Value::Object(known))) = model.upstreams.iter().find(|(known, _)| known == id).cloned()
    else {
        return id.to_owned();
    };
    if fields.is_empty() || known.contains_key("members") {
        return id.to_owned();
    }
    let mut upstream = known;
    upstream.extend(fields);
    let upstream = Value::Object(upstream);
    if let Some((known, _)) = model.upstreams.iter().find(|(_, other)| *other == upstream) {
        return known.clone();
    }
    let name = build::id(&format!("{id}-{}", action.line));
    model.upstreams.push((name.clone(), upstream));
    name
}

/// The different hosts of an upstream's nodes.
fn hosts(upstream: &Value) -> Vec<String> {
    let nodes = upstream["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut hosts: Vec<String> =
        nodes.iter().filter_map(|node| node["host"].as_str().map(str::to_owned)).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

fn retries(policy: &Tree, fields: &mut Map<String, Value>) {
    let mut conf = Map::new();
    let known = [
        "connect-failure",
        "reset",
        "reset-before-request",
        "refused-stream",
        "5xx",
        "gateway-error",
        "retriable-4xx",
        "cancelled",
        "deadline-exceeded",
        "internal",
        "resource-exhausted",
        "unavailable",
    ];
    let words = text(policy, "retry_on").unwrap_or_default();
    let words: Vec<&str> = words.split(',').map(str::trim).filter(|word| known.contains(word)).collect();
    if !words.is_empty() {
        conf.insert("retry_on".to_owned(), json!(words));
    }
    let codes: Vec<i64> = items(policy, "retriable_status_codes").iter().filter_map(Tree::integer).collect();
    if !codes.is_empty() {
        conf.insert("retriable_status_codes".to_owned(), json!(codes));
    }
    if let Some(time) = seconds(policy, "per_try_timeout").filter(|it| *it > 0.0) {
        conf.insert("per_try_timeout".to_owned(), number(time));
    }
    if let Some(back_off) = field(policy, "retry_back_off") {
        let mut value = Map::new();
        for name in ["base_interval", "max_interval"] {
            value.extend(seconds(back_off, name).map(|time| (name.to_owned(), number(time))));
        }
        conf.insert("back_off".to_owned(), Value::Object(value));
    }
    // Envoy repeats requests of all methods.
    conf.insert("methods".to_owned(), json!(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]));
    fields.insert("retries".to_owned(), integer(policy, "num_retries").unwrap_or(1).max(0).into());
    fields.insert("retry_policy".to_owned(), Value::Object(conf));
}

fn mirrors(model: &mut Model<'_>, action: &Tree, decision: &mut Decision) {
    for policy in items(action, "request_mirror_policies") {
        let name = text(policy, "cluster").unwrap_or_default();
        let id = model.clusters.get(name).cloned();
        let upstream =
            id.and_then(Result::ok).and_then(|id| model.upstreams.iter().find(|(known, _)| *known == id));
        let node = upstream.and_then(|(_, upstream)| upstream["nodes"].get(0).cloned());
        let Some(node) = node.filter(|node| node.get("port").is_some()) else {
            model.gap(policy.line, "The mirror's cluster has no address.");
            continue;
        };
        let host = format!("http://{}:{}", node["host"].as_str().unwrap_or_default(), node["port"]);
        let share =
            at(policy, &["runtime_fraction", "default_value"]).and_then(|it| integer(it, "numerator"));
        let ratio = share.map_or(1.0, |share| (share as f64 / 100.0).clamp(0.00001, 1.0));
        decision
            .plugins
            .insert("proxy-mirror".to_owned(), json!({"host": host, "sample_ratio": number(ratio)}));
    }
}
