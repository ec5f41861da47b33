//! HTTP filters as plugins. A filter that guards access and cannot be converted closes the listener's routes.

use serde_json::{Map, Value, json};

use super::super::tree::Tree;
use super::Model;
use super::fields::{at, data, field, integer, is_true, items, kind, number, seconds, text};
use super::headers::Changes;
use super::matching::string_condition;

/// The effects of the filters of a connection manager.
#[derive(Debug, Clone, Default)]
pub(super) struct Filters {
    pub(super) plugins: Map<String, Value>,
    pub(super) has_cors: bool,
    pub(super) closed: Option<String>,
    pub(super) request: Changes,
    pub(super) response: Changes,
    /// Conditions of requests to which the gateway itself responds that it is healthy.
    pub(super) health: Vec<Value>,
}

/// Converts the filters.
pub(super) fn convert(model: &mut Model<'_>, manager: &Tree) -> Filters {
    let mut filters = Filters::default();
    for filter in items(manager, "http_filters") {
        if is_true(filter, "disabled") {
            model.no_effect(filter.line, "The filter is disabled.");
            continue;
        }
        let Some(conf) = field(filter, "typed_config") else {
            let name = text(filter, "name").unwrap_or_default();
            if !name.ends_with("router") && !name.ends_with("cors") {
                let reason = format!("the filter `{name}` has no typed_config");
                model.closed(filter.line, format!("Its routes are closed: {reason}."));
                filters.closed = Some(reason);
            }
            filters.has_cors |= name.ends_with("cors");
            continue;
        };
        if let Err(reason) = one(model, filter, conf, &mut filters) {
            model.closed(filter.line, format!("Its routes are closed: {reason}."));
            filters.closed.get_or_insert(reason);
        }
    }
    filters
}

fn one(model: &mut Model<'_>, filter: &Tree, conf: &Tree, filters: &mut Filters) -> Result<(), String> {
    let mut add = |name: &str, conf: Value| filters.plugins.insert(name.to_owned(), conf);
    match kind(conf) {
        "Router" | "GrpcStats" | "OnDemand" | "SetMetadata" => {}
        "Cors" => filters.has_cors = true,
        "FilterConfig" | "GrpcWeb" if text(conf, "@type").is_some_and(|name| name.contains("grpc_web")) => {
            add("grpc-web", json!({}));
        }
        "HealthCheck" if is_true(conf, "pass_through_mode") => {
            model.no_effect(filter.line, "The cluster responds to health checks.");
        }
        "HealthCheck" => {
            for header in items(conf, "headers") {
                filters.health.push(super::matching::header_condition(header)?);
            }
        }
        "Compressor" => compressor(model, conf, filters),
        "Decompressor" | "Tap" | "AdmissionControl" | "AdaptiveConcurrency" | "BandwidthLimit" => {
            model.gap(filter.line, "This filter is not converted; see the plugins.");
        }
        "Buffer" => {
            let bytes = integer(conf, "max_request_bytes").ok_or("the filter needs max_request_bytes")?;
            add("client-control", json!({"max_body_size": bytes}));
        }
        "LocalRateLimit" => {
            if let Some(limit) = local_rate_limit(model, conf)? {
                filters.plugins.insert("limit-req".to_owned(), limit);
            }
        }
        "HTTPFault" => fault(model, conf, filters),
        "ExtAuthz" => ext_authz(model, conf, filters)?,
        "ExternalProcessor" => ext_proc(model, conf, filters)?,
        "RBAC" => {
            let plugin = super::rbac::plugin(conf)?;
            filters.plugins.insert("rbac".to_owned(), plugin);
        }
        "BasicAuth" => {
            let users = data(field(conf, "users").ok_or("basic_auth needs users")?, model.access)?;
            let users: Vec<&str> = users.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            add("basic-auth", json!({"users": users}));
        }
        "JwtAuthentication" => {
            return Err("jwt_authn needs a provider: use openid-connect with `bearer_only`".to_owned());
        }
        "HeaderMutation" => mutations(model, conf, filters),
        "Csrf" | "CsrfPolicy" => return Err("the check of `Origin` of csrf is not converted".to_owned()),
        other => return Err(format!("the filter `{other}` is not converted")),
    }
    Ok(())
}

fn compressor(model: &mut Model<'_>, conf: &Tree, filters: &mut Filters) {
    let library = at(conf, &["compressor_library", "typed_config"]).map(kind).unwrap_or_default();
    let plugin = match library {
        "Gzip" => "gzip",
        "Brotli" => "brotli",
        "Zstd" => "zstd",
        _ => {
            model.gap(conf.line, "This compressor is not converted.");
            return;
        }
    };
    let common = at(conf, &["response_direction_config", "common_config"]);
    let minimum = common.and_then(|it| integer(it, "min_content_length")).unwrap_or(30).max(1);
    let listed: Vec<String> =
        common.and_then(|it| field(it, "content_type")).map(Tree::texts).unwrap_or_default();
    let types = match listed.is_empty() {
        false => listed,
        true => [
            "application/javascript",
            "application/json",
            "application/xhtml+xml",
            "image/svg+xml",
            "text/css",
            "text/html",
            "text/plain",
            "text/xml",
        ]
        .map(str::to_owned)
        .to_vec(),
    };
    let conf = json!({"types": types, "min_length": minimum, "vary": true});
    filters.plugins.insert(plugin.to_owned(), conf);
}

/// A token bucket as limit-req.
pub(super) fn local_rate_limit(model: &mut Model<'_>, conf: &Tree) -> Result<Option<Value>, String> {
    let Some(bucket) = field(conf, "token_bucket") else { return Ok(None) };
    if !items(conf, "descriptors").is_empty() {
        return Err("descriptors of local_ratelimit need one limit each".to_owned());
    }
    let share = |name: &str| {
        let value = at(conf, &[name, "default_value"]);
        value.map(|value| {
            (
                integer(value, "numerator").unwrap_or(0),
                text(value, "denominator").unwrap_or("HUNDRED").to_owned(),
            )
        })
    };
    for name in ["filter_enabled", "filter_enforced"] {
        match share(name) {
            Some((100, denominator)) if denominator == "HUNDRED" => {}
            // Without a share nothing is limited.
            None | Some((0, _)) => {
                model.no_effect(conf.line, "The filter is not enabled and enforced for all requests.");
                return Ok(None);
            }
            Some(_) => return Err(format!("`{name}` for a part of the requests is not converted")),
        }
    }
    let tokens = integer(bucket, "max_tokens").unwrap_or(1).max(1);
    let fill = integer(bucket, "tokens_per_fill").unwrap_or(1).max(1);
    let interval =
        seconds(bucket, "fill_interval").filter(|it| *it > 0.0).ok_or("the bucket needs fill_interval")?;
    let status = at(conf, &["status", "code"]).and_then(Tree::integer).unwrap_or(429);
    model.guard_note(conf.line, "The bucket fills continuously, not at the end of each interval.");
    Ok(Some(json!({
        "rate": number(fill as f64 / interval), "burst": tokens - 1, "nodelay": true, "key": "$server_port",
        "key_type": "var_combination", "rejected_code": status,
    })))
}

fn fault(model: &mut Model<'_>, conf: &Tree, filters: &mut Filters) {
    let percent = |part: &Tree| {
        let share = field(part, "percentage").map_or(0, |it| integer(it, "numerator").unwrap_or(0));
        match field(part, "percentage").and_then(|it| text(it, "denominator")) {
            None | Some("HUNDRED") => share,
            Some("TEN_THOUSAND") => share / 100,
            Some(_) => share / 10_000,
        }
    };
    let mut plugin = Map::new();
    if let Some(abort) = field(conf, "abort")
        && let Some(status) = integer(abort, "http_status")
    {
        let body = "fault filter abort";
        plugin.insert(
            "abort".to_owned(),
            json!({"http_status": status, "percentage": percent(abort), "body": body}),
        );
    }
    if let Some(delay) = field(conf, "delay")
        && let Some(duration) = seconds(delay, "fixed_delay")
    {
        plugin
            .insert("delay".to_owned(), json!({"duration": number(duration), "percentage": percent(delay)}));
    }
    if field(conf, "headers").is_some() {
        model.gap(conf.line, "Set `vars` of fault-injection for these headers.");
    } else if !plugin.is_empty() {
        filters.plugins.insert("fault-injection".to_owned(), Value::Object(plugin));
    }
}

/// Returns `scheme://host:port` of a cluster.
fn origin(model: &Model<'_>, cluster: &str) -> Result<String, String> {
    let id = match model.clusters.get(cluster) {
        Some(Ok(id)) => id,
        Some(Err(reason)) => return Err(reason.clone()),
        None => return Err(format!("there is no cluster `{cluster}`")),
    };
    let upstream = model.upstreams.iter().find(|(known, _)| known == id).map(|(_, upstream)| upstream);
    let node = upstream.and_then(|upstream| upstream["nodes"].get(0)).ok_or("the cluster has no node")?;
    let is_tls = upstream.is_some_and(|it| it["scheme"] == "https" || it["scheme"] == "grpcs");
    let scheme = if is_tls { "https" } else { "http" };
    let (host, port) = (node["host"].as_str(), node["port"].as_u64());
    let (host, port) = host.zip(port).ok_or("the service needs a TCP address")?;
    Ok(format!("{scheme}://{host}:{port}"))
}

fn ext_authz(model: &mut Model<'_>, conf: &Tree, filters: &mut Filters) -> Result<(), String> {
    let allow = is_true(conf, "failure_mode_allow");
    let status = at(conf, &["status_on_error", "code"]).and_then(Tree::integer).unwrap_or(403);
    if let Some(service) = field(conf, "grpc_service") {
        let cluster = at(service, &["envoy_grpc", "cluster_name"]).and_then(Tree::text);
        let uri = origin(model, cluster.ok_or("only envoy_grpc is a service here")?)?;
        let timeout = seconds(service, "timeout").map_or(200, |it| (it * 1000.0).clamp(1.0, 60_000.0) as u64);
        let mut plugin =
            json!({"uri": uri, "timeout": timeout, "failure_mode_allow": allow, "status_on_error": status});
        if let Some(body) = field(conf, "with_request_body") {
            let bytes = integer(body, "max_request_bytes").unwrap_or(1024);
            let partial = is_true(body, "allow_partial_message");
            plugin["with_request_body"] =
                json!({"max_request_bytes": bytes, "allow_partial_message": partial});
        }
        filters.plugins.insert("ext-authz".to_owned(), plugin);
        return Ok(());
    }
    let service = field(conf, "http_service").ok_or("ext_authz needs a service")?;
    let server = field(service, "server_uri").ok_or("ext_authz needs server_uri")?;
    let uri = origin(model, text(server, "cluster").unwrap_or_default())?;
    let prefix = text(service, "path_prefix").unwrap_or_default();
    let timeout = seconds(server, "timeout").map_or(3000, |it| (it * 1000.0).clamp(1.0, 60_000.0) as u64);
    let exact = |path: &[&str]| -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        for pattern in at(service, path).map(Tree::items).unwrap_or_default() {
            match text(pattern, "exact") {
                Some(name) => names.push(name.to_owned()),
                None => return Err("only exact names of fields are converted".to_owned()),
            }
        }
        Ok(names)
    };
    let mut shown = exact(&["authorization_request", "allowed_headers", "patterns"])?;
    if let Some(allowed) = at(conf, &["allowed_headers", "patterns"]) {
        shown.extend(allowed.items().iter().filter_map(|it| text(it, "exact").map(str::to_owned)));
    }
    shown.push("Authorization".to_owned());
    shown.retain(|name| !name.eq_ignore_ascii_case("host"));
    let granted = exact(&["authorization_response", "allowed_upstream_headers", "patterns"])?;
    let mut returned = exact(&["authorization_response", "allowed_client_headers", "patterns"])?;
    for name in ["WWW-Authenticate", "Location", "Set-Cookie"] {
        returned.push(name.to_owned());
    }
    let text = "The service is called with GET at one path; it gets method and path in X-Forwarded-Method and X-Forwarded-Uri.";
    model.guard_note(conf.line, text);
    let slash = if prefix.starts_with('/') { "" } else { "/" };
    filters.plugins.insert("forward-auth".to_owned(), json!({
        "uri": format!("{uri}{slash}{prefix}"), "request_headers": shown, "upstream_headers": granted,
        "client_headers": returned, "timeout": timeout, "allow_degradation": allow, "status_on_error": status,
    }));
    Ok(())
}

fn ext_proc(model: &mut Model<'_>, conf: &Tree, filters: &mut Filters) -> Result<(), String> {
    let mut plugin = Map::new();
    if let Some(service) = field(conf, "grpc_service") {
        let cluster = at(service, &["envoy_grpc", "cluster_name"]).and_then(Tree::text);
        let uri = origin(model, cluster.ok_or("only envoy_grpc is a service here")?)?;
        plugin.insert("grpc_service".to_owned(), json!({"uri": uri}));
    } else {
        return Err("ext_proc needs grpc_service".to_owned());
    }
    for name in ["processing_mode", "mutation_rules", "forward_rules"] {
        if let Some(value) = field(conf, name) {
            plugin.insert(name.to_owned(), value.to_json());
        }
    }
    if is_true(conf, "failure_mode_allow") {
        plugin.insert("failure_mode_allow".to_owned(), true.into());
    }
    if let Some(timeout) = seconds(conf, "message_timeout") {
        plugin.insert("message_timeout".to_owned(), ((timeout * 1000.0).max(1.0) as u64).into());
    }
    filters.plugins.insert("ext-proc".to_owned(), Value::Object(plugin));
    Ok(())
}

fn mutations(model: &mut Model<'_>, conf: &Tree, filters: &mut Filters) {
    let Some(mutations) = field(conf, "mutations") else { return };
    for (name, changes) in
        [("request_mutations", &mut filters.request), ("response_mutations", &mut filters.response)]
    {
        for mutation in items(mutations, name) {
            if let Some(append) = field(mutation, "append") {
                changes.option(model, append);
            } else if let Some(name) = text(mutation, "remove") {
                changes.remove(name);
            }
        }
    }
}

/// A CORS policy: the conditions on the origin, the fields of all responses, and the fields of preflights.
#[derive(Clone)]
pub(super) struct Cors {
    pub(super) origins: Vec<Value>,
    pub(super) fields: Vec<(String, String)>,
    pub(super) preflight: Vec<(String, String)>,
}

/// Returns the CORS policy of a route or a virtual host.
pub(super) fn cors(from: &Tree) -> Result<Option<Cors>, String> {
    let typed = field(from, "typed_per_filter_config");
    let typed =
        typed.and_then(|it| it.members().iter().find(|it| it.key.ends_with("cors")).map(|it| &it.value));
    let Some(policy) = typed.or_else(|| field(from, "cors")) else { return Ok(None) };
    let origins = items(policy, "allow_origin_string_match").iter();
    let origins =
        origins.map(|matcher| string_condition("http_origin", matcher)).collect::<Result<Vec<_>, _>>()?;
    let any = items(policy, "allow_origin_string_match").iter().any(|it| text(it, "exact") == Some("*"));
    let origins = if any { vec![json!(["http_origin", "~~", "."])] } else { origins };
    let mut fields = vec![("Access-Control-Allow-Origin".to_owned(), "$http_origin".to_owned())];
    if is_true(policy, "allow_credentials") {
        fields.push(("Access-Control-Allow-Credentials".to_owned(), "true".to_owned()));
    }
    let mut preflight = fields.clone();
    for (name, header, list) in [
        ("allow_methods", "Access-Control-Allow-Methods", 1),
        ("allow_headers", "Access-Control-Allow-Headers", 1),
        ("max_age", "Access-Control-Max-Age", 1),
        ("expose_headers", "Access-Control-Expose-Headers", 0),
    ] {
        if let Some(value) = text(policy, name) {
            let target = if list == 1 { &mut preflight } else { &mut fields };
            target.push((header.to_owned(), value.to_owned()));
        }
    }
    Ok(Some(Cors { origins, fields, preflight }))
}
