//! Clusters as upstreams.

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::tree::Tree;
use super::Model;
use super::fields::{at, data, field, integer, is_true, items, kind, number, seconds, text};

/// Converts all clusters; those that cannot be converted close the routes to them.
pub(super) fn convert(model: &mut Model<'_>, resources: &Tree) {
    for cluster in items(resources, "clusters") {
        let Some(name) = text(cluster, "name") else { continue };
        match upstream(model, cluster) {
            Ok(upstream) => {
                let id = build::id(name);
                model.clusters.insert(name.to_owned(), Ok(id.clone()));
                model.upstreams.push((id, upstream));
            }
            Err(reason) => {
                model.gap(cluster.line, format!("Routes to this cluster return 503: {reason}."));
                model.clusters.insert(name.to_owned(), Err(reason));
            }
        }
    }
}

const KNOWN: [&str; 34] = [
    "name",
    "type",
    "connect_timeout",
    "lb_policy",
    "load_assignment",
    "dns_lookup_family",
    "http2_protocol_options",
    "typed_extension_protocol_options",
    "transport_socket",
    "health_checks",
    "circuit_breakers",
    "outlier_detection",
    "per_connection_buffer_limit_bytes",
    "common_lb_config",
    "ring_hash_lb_config",
    "maglev_lb_config",
    "least_request_lb_config",
    "round_robin_lb_config",
    "upstream_connection_options",
    "dns_refresh_rate",
    "respect_dns_ttl",
    "dns_resolvers",
    "typed_dns_resolver_config",
    "alt_stat_name",
    "max_requests_per_connection",
    "common_http_protocol_options",
    "upstream_bind_config",
    "dns_failure_refresh_rate",
    "use_tcp_for_dns_lookups",
    "protocol_selection",
    "close_connections_on_host_health_failure",
    "ignore_health_on_host_removal",
    "metadata",
    "http_protocol_options",
];

fn upstream(model: &mut Model<'_>, cluster: &Tree) -> Result<Value, String> {
    model.unknown(cluster, &KNOWN);
    match text(cluster, "type").unwrap_or("STATIC") {
        "STATIC" | "STRICT_DNS" | "LOGICAL_DNS" => {}
        other => return Err(format!("its nodes come from `{other}`, which needs discovery here")),
    }
    let mut nodes = Vec::new();
    for locality in at(cluster, &["load_assignment", "endpoints"]).map(Tree::items).unwrap_or_default() {
        let priority = integer(locality, "priority").unwrap_or(0);
        for endpoint in items(locality, "lb_endpoints") {
            nodes.push(node(endpoint, priority)?);
        }
    }
    if !items(cluster, "hosts").is_empty() {
        return Err("`hosts` belongs to Envoy's API v2: use `load_assignment`".to_owned());
    }
    let connect = seconds(cluster, "connect_timeout").filter(|it| *it > 0.0).unwrap_or(5.0);
    let mut upstream = json!({"nodes": nodes, "retries": 0,
        "timeout": {"connect": number(connect), "send": 15, "read": 15}});
    balance(model, cluster, &mut upstream);
    let options = field(cluster, "typed_extension_protocol_options");
    let options =
        options.and_then(|it| it.members().iter().find(|it| it.key.ends_with("HttpProtocolOptions")));
    let explicit = options.and_then(|it| {
        at(&it.value, &["explicit_http_config", "http2_protocol_options"]).or_else(|| {
            field(&it.value, "explicit_http_config")?
                .members()
                .iter()
                .find(|it| super::fields::same(&it.key, "http2_protocol_options"))
                .map(|it| &it.value)
        })
    });
    let is_http2 = explicit.is_some() || super::fields::member(cluster, "http2_protocol_options").is_some();
    if is_http2 {
        upstream["scheme"] = "grpc".into();
    }
    if let Some(socket) = field(cluster, "transport_socket") {
        tls(model, socket, is_http2, &mut upstream)?;
    }
    if let Some(checks) = field(cluster, "health_checks").and_then(|list| list.items().first()) {
        upstream["checks"] = json!({"active": active(model, checks)});
    }
    limits(model, cluster, &mut upstream);
    if let Some(outliers) = field(cluster, "outlier_detection") {
        upstream["outlier_detection"] = outlier_detection(model, outliers);
    }
    if let Some(requests) = integer(cluster, "max_requests_per_connection").filter(|it| *it > 0) {
        upstream["keepalive_pool"] = json!({"requests": requests});
    }
    if text(cluster, "type") == Some("LOGICAL_DNS") {
        model.note(cluster.line, "All addresses of the name are used, not only the first one.");
    }
    Ok(upstream)
}

fn node(endpoint: &Tree, priority: i64) -> Result<Value, String> {
    let inner = field(endpoint, "endpoint").ok_or("an endpoint has no address")?;
    let address = field(inner, "address").ok_or("an endpoint has no address")?;
    let weight = integer(endpoint, "load_balancing_weight").unwrap_or(1).max(0);
    let mut node = json!({"weight": weight});
    if let Some(path) = at(address, &["pipe", "path"]).and_then(Tree::text) {
        node["host"] = format!("unix:{path}").into();
    } else {
        let socket = field(address, "socket_address").ok_or("an endpoint has no socket address")?;
        node["host"] = text(socket, "address").ok_or("an endpoint has no address")?.into();
        let port = integer(socket, "port_value").filter(|port| (1..65536).contains(port));
        node["port"] = port.ok_or("an endpoint has no port")?.into();
    }
    if priority > 0 {
        // Envoy uses the lowest number first, Sigma the highest.
        node["priority"] = (-priority).into();
    }
    Ok(node)
}

fn balance(model: &mut Model<'_>, cluster: &Tree, upstream: &mut Value) {
    let kind = match text(cluster, "lb_policy").unwrap_or("ROUND_ROBIN") {
        "ROUND_ROBIN" => return,
        "LEAST_REQUEST" => "least_request",
        "RANDOM" => "random",
        "RING_HASH" => "chash",
        "MAGLEV" => "maglev",
        other => {
            model.gap(
                cluster.line,
                format!("The policy `{other}` is not converted: the upstream uses round robin."),
            );
            return;
        }
    };
    upstream["type"] = kind.into();
    if matches!(kind, "chash" | "maglev") {
        // The route names the key by its hash policy.
        upstream["key"] = "remote_addr".into();
    }
}

fn tls(model: &mut Model<'_>, socket: &Tree, is_http2: bool, upstream: &mut Value) -> Result<(), String> {
    let conf = field(socket, "typed_config").ok_or("its transport socket has no typed_config")?;
    match kind(conf) {
        "UpstreamTlsContext" => {}
        "RawBuffer" => return Ok(()),
        "ProxyProtocolUpstreamTransport" => {
            let version = at(conf, &["config", "version"]).and_then(Tree::text).unwrap_or("V1");
            upstream["proxy_protocol"] = version.to_ascii_lowercase().into();
            return match field(conf, "transport_socket") {
                Some(inner) => tls(model, inner, is_http2, upstream),
                None => Ok(()),
            };
        }
        other => return Err(format!("the transport socket `{other}` is not converted")),
    }
    upstream["scheme"] = if is_http2 { "grpcs" } else { "https" }.into();
    let mut tls = Map::new();
    let common = field(conf, "common_tls_context");
    let validation = common.and_then(|it| field(it, "validation_context"));
    let combined =
        common.and_then(|it| at(it, &["combined_validation_context", "default_validation_context"]));
    match validation.or(combined).and_then(|it| field(it, "trusted_ca")) {
        Some(authority) => {
            tls.insert("verify".to_owned(), true.into());
            tls.insert("ca".to_owned(), data(authority, model.access)?.into());
            if validation.is_some_and(|it| field(it, "match_typed_subject_alt_names").is_some()) {
                model.guard_note(conf.line, "The certificate must be for the name of the node.");
            }
        }
        None => {
            tls.insert("verify".to_owned(), false.into());
            model.note(
                conf.line,
                "Envoy does not verify the certificate here, so Sigma does not either: set `verify: true`.",
            );
        }
    }
    if let Some(pair) = common.and_then(|it| items(it, "tls_certificates").first()) {
        let part =
            |name: &str| field(pair, name).ok_or_else(|| format!("a client certificate lacks `{name}`"));
        tls.insert("client_cert".to_owned(), data(part("certificate_chain")?, model.access)?.into());
        tls.insert("client_key".to_owned(), data(part("private_key")?, model.access)?.into());
    }
    if let Some(name) = text(conf, "sni") {
        let is_node =
            upstream["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node["host"] == name));
        if !is_node {
            model.note(
                conf.line,
                "Nodes get the host of the request as server name: use the name in `nodes`.",
            );
        }
    }
    upstream["tls"] = Value::Object(tls);
    Ok(())
}

fn active(model: &mut Model<'_>, check: &Tree) -> Value {
    let whole = |name: &str, default: f64| seconds(check, name).unwrap_or(default).ceil().max(1.0) as u64;
    let interval = whole("interval", 5.0);
    let unhealthy_interval =
        seconds(check, "unhealthy_interval").map_or(interval, |it| it.ceil().max(1.0) as u64);
    let count = |name: &str| integer(check, name).unwrap_or(1).clamp(1, 254);
    let mut active = json!({"timeout": number(seconds(check, "timeout").unwrap_or(1.0)), "type": "tcp"});
    let mut statuses: Vec<u16> = vec![200];
    if let Some(http) = field(check, "http_health_check") {
        active["type"] = "http".into();
        active["http_path"] = text(http, "path").unwrap_or("/").into();
        if let Some(host) = text(http, "host") {
            active["host"] = host.into();
        }
        let ranges = items(http, "expected_statuses");
        if !ranges.is_empty() {
            let range = |it: &Tree| {
                (integer(it, "start").unwrap_or(200) as u16)..(integer(it, "end").unwrap_or(201) as u16)
            };
            statuses = ranges.iter().flat_map(range).collect();
        }
    } else if let Some(grpc) = field(check, "grpc_health_check") {
        active["type"] = "grpc".into();
        if let Some(service) = text(grpc, "service_name") {
            active["grpc_service"] = service.into();
        }
    } else if at(check, &["tcp_health_check", "send"]).is_some() {
        model.note(check.line, "Probes open a connection and send no data.");
    }
    let failed: Vec<u16> = (200..600).filter(|status| !statuses.contains(status)).collect();
    let fails = count("unhealthy_threshold");
    active["healthy"] =
        json!({"interval": interval, "successes": count("healthy_threshold"), "http_statuses": statuses});
    active["unhealthy"] = json!({"interval": unhealthy_interval, "http_failures": fails, "tcp_failures": fails,
        "timeouts": fails, "http_statuses": failed});
    active
}

fn limits(model: &mut Model<'_>, cluster: &Tree, upstream: &mut Value) {
    let Some(breakers) = field(cluster, "circuit_breakers") else { return };
    let thresholds = items(breakers, "thresholds");
    let Some(threshold) = thresholds.iter().find(|it| text(it, "priority") != Some("HIGH")) else { return };
    let mut limits = Map::new();
    if let Some(requests) = integer(threshold, "max_requests").filter(|it| *it > 0) {
        limits.insert("max_requests".to_owned(), requests.into());
    }
    if let Some(connections) = integer(threshold, "max_connections").filter(|it| *it > 0) {
        limits.entry("max_requests").or_insert_with(|| connections.into());
    }
    if let Some(pending) = integer(threshold, "max_pending_requests").filter(|it| *it > 0) {
        limits.insert("queue".to_owned(), json!({"length": pending}));
    }
    if !limits.is_empty() {
        upstream["limits"] = Value::Object(limits);
    }
    model.note(
        breakers.line,
        "The limit counts requests, not connections; further requests wait in the queue or get 503.",
    );
}

fn outlier_detection(model: &mut Model<'_>, conf: &Tree) -> Value {
    let mut out = Map::new();
    let known = [
        "consecutive_5xx",
        "enforcing_consecutive_5xx",
        "consecutive_gateway_failure",
        "enforcing_consecutive_gateway_failure",
        "split_external_local_origin_errors",
        "consecutive_local_origin_failure",
        "enforcing_consecutive_local_origin_failure",
        "max_ejection_percent",
        "success_rate_minimum_hosts",
        "success_rate_request_volume",
        "success_rate_stdev_factor",
        "enforcing_success_rate",
        "enforcing_local_origin_success_rate",
        "failure_percentage_threshold",
        "failure_percentage_minimum_hosts",
        "failure_percentage_request_volume",
        "enforcing_failure_percentage",
        "enforcing_failure_percentage_local_origin",
    ];
    for name in known {
        if name == "split_external_local_origin_errors" {
            if is_true(conf, name) {
                out.insert(name.to_owned(), true.into());
            }
        } else if let Some(value) = integer(conf, name) {
            out.insert(name.to_owned(), value.into());
        }
    }
    for name in ["interval", "base_ejection_time", "max_ejection_time", "max_ejection_time_jitter"] {
        if let Some(value) = seconds(conf, name) {
            out.insert(name.to_owned(), number(value));
        }
    }
    let all: Vec<&str> = known
        .iter()
        .copied()
        .chain(["interval", "base_ejection_time", "max_ejection_time", "max_ejection_time_jitter"])
        .collect();
    model.unknown(conf, &all);
    Value::Object(out)
}
