//! Listeners: addresses, filter chains, TLS, connection managers, TCP proxies.

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::decision::{Certificate, Listener, Plan};
use super::super::logic::group;
use super::super::tree::Tree;
use super::Model;
use super::fields::{at, data, field, integer, is_true, items, kind, number, seconds, text};
use super::filters;
use super::routes::{self, Scope};

/// Converts all listeners.
pub(super) fn convert(model: &mut Model<'_>, resources: &Tree, plan: &mut Plan) {
    for listener in items(resources, "listeners") {
        if let Err(reason) = one(model, listener, plan) {
            model.gap(listener.line, format!("The listener was not converted: {reason}."));
        }
    }
}

const KNOWN: [&str; 22] = [
    "name",
    "address",
    "additional_addresses",
    "filter_chains",
    "default_filter_chain",
    "listener_filters",
    "listener_filters_timeout",
    "per_connection_buffer_limit_bytes",
    "traffic_direction",
    "access_log",
    "tcp_backlog_size",
    "socket_options",
    "tcp_fast_open_queue_length",
    "enable_reuse_port",
    "reuse_port",
    "bind_to_port",
    "use_original_dst",
    "transparent",
    "freebind",
    "stat_prefix",
    "connection_balance_config",
    "metadata",
];

fn one(model: &mut Model<'_>, listener: &Tree, plan: &mut Plan) -> Result<(), String> {
    model.unknown(listener, &KNOWN);
    let address = field(listener, "address").ok_or("it has no address")?;
    let (address, port) = match at(address, &["pipe", "path"]).and_then(Tree::text) {
        Some(path) => (format!("unix:{path}"), 0),
        None => socket(address)?,
    };
    if at(listener, &["address", "socket_address", "protocol"]).and_then(Tree::text) == Some("UDP") {
        return Err("UDP listeners (QUIC and udp_proxy) are not converted: use a stream listener".to_owned());
    }
    let mut fields = Map::new();
    listener_filters(model, listener, &mut fields);
    let mut chains: Vec<&Tree> = items(listener, "filter_chains").iter().collect();
    chains.extend(field(listener, "default_filter_chain"));
    // The most specific server name is first; chains without one take the rest.
    chains.sort_by_key(|chain| {
        let names = at(chain, &["filter_chain_match", "server_names"]).map(Tree::texts).unwrap_or_default();
        (
            names.is_empty(),
            names.iter().any(|name| name.starts_with('*')),
            std::cmp::Reverse(names.iter().map(String::len).max()),
        )
    });
    for chain in chains {
        filter_chain(model, chain, port, &mut fields, plan)?;
    }
    plan.listeners.push(Listener { address, port, fields });
    Ok(())
}

fn socket(address: &Tree) -> Result<(String, u16), String> {
    let socket = field(address, "socket_address").ok_or("listeners need a socket address or a pipe")?;
    let port =
        integer(socket, "port_value").and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let port = port.ok_or("it has no port")?;
    let host = text(socket, "address").unwrap_or("0.0.0.0");
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Ok((format!("{host}:{port}"), port))
}

fn listener_filters(model: &mut Model<'_>, listener: &Tree, fields: &mut Map<String, Value>) {
    for filter in items(listener, "listener_filters") {
        let name = field(filter, "typed_config").map(kind).unwrap_or_default();
        match name {
            "ProxyProtocol" => {
                fields.insert("proxy_protocol".to_owned(), json!({"trusted": ["0.0.0.0/0", "::/0"]}));
            }
            "TlsInspector" | "HttpInspector" | "" => {}
            _ => model.gap(filter.line, "This listener filter is not converted."),
        }
    }
}

/// The conditions of a filter chain; its certificate has the same server names.
fn chain_conditions(model: &mut Model<'_>, chain: &Tree) -> (Vec<Value>, Vec<String>) {
    let Some(conditions) = field(chain, "filter_chain_match") else { return (Vec::new(), Vec::new()) };
    let names = field(conditions, "server_names").map(Tree::texts).unwrap_or_default();
    let mut out = Vec::new();
    if !names.is_empty() {
        let one = |name: &String| match name.strip_prefix("*.") {
            Some(rest) => json!(["ssl_server_name", "~~", format!("\\.{}$", regex::escape(rest))]),
            None => json!(["ssl_server_name", "==", name]),
        };
        out.push(group("OR", names.iter().map(one).collect()));
    }
    let ranges = items(conditions, "source_prefix_ranges");
    let range = |it: &Tree| {
        Some(format!("{}/{}", text(it, "address_prefix")?, integer(it, "prefix_len").unwrap_or(32)))
    };
    let ranges: Vec<String> = ranges.iter().filter_map(range).collect();
    if !ranges.is_empty() {
        out.push(json!(["realip_remote_addr", "ipmatch", ranges]));
    }
    model.unknown(
        conditions,
        &["server_names", "source_prefix_ranges", "transport_protocol", "application_protocols"],
    );
    (out, names)
}

fn filter_chain(
    model: &mut Model<'_>,
    chain: &Tree,
    port: u16,
    fields: &mut Map<String, Value>,
    plan: &mut Plan,
) -> Result<(), String> {
    let (conditions, names) = chain_conditions(model, chain);
    let context = field(chain, "transport_socket").and_then(|socket| field(socket, "typed_config"));
    let is_tls = context.is_some_and(|context| kind(context) == "DownstreamTlsContext");
    let mut closed = None;
    if let Some(context) = context.filter(|_| is_tls)
        && let Err(reason) = downstream_tls(model, context, &names, fields, plan)
    {
        model.closed(chain.line, format!("Its routes are closed: {reason}."));
        closed = Some(reason);
    }
    for filter in items(chain, "filters") {
        let Some(conf) = field(filter, "typed_config") else {
            return Err("a network filter has no typed_config".to_owned());
        };
        match kind(conf) {
            "HttpConnectionManager" => {
                let scope = connections(model, conf, port, is_tls, conditions.clone(), closed.take(), plan);
                match field(conf, "route_config") {
                    Some(routes) => {
                        let mut decisions = std::mem::take(&mut plan.decisions);
                        routes::convert(model, routes, &scope, &mut decisions);
                        plan.decisions = decisions;
                    }
                    None => model
                        .gap(conf.line, "Routes come from a control plane (RDS): convert a dump of them."),
                }
                return Ok(());
            }
            "TcpProxy" => {
                if closed.is_some() {
                    return Ok(());
                }
                return tcp_proxy(model, conf, port, is_tls, &names, fields, plan);
            }
            "RBAC" => {
                let reason = "rules of network filters are not converted".to_owned();
                model.closed(filter.line, format!("Its routes are closed: {reason}."));
                closed = Some(reason);
            }
            "LocalRateLimit" | "ConnectionLimit" | "ExtAuthz" => {
                let reason = format!("the network filter `{}` is not converted", kind(conf));
                model.closed(filter.line, format!("Its routes are closed: {reason}."));
                closed = Some(reason);
            }
            other => return Err(format!("the network filter `{other}` is not converted")),
        }
    }
    Ok(())
}

const MANAGER: [&str; 46] = [
    "stat_prefix",
    "codec_type",
    "route_config",
    "http_filters",
    "access_log",
    "use_remote_address",
    "xff_num_trusted_hops",
    "normalize_path",
    "merge_slashes",
    "path_with_escaped_slashes_action",
    "server_name",
    "server_header_transformation",
    "upgrade_configs",
    "stream_idle_timeout",
    "request_timeout",
    "request_headers_timeout",
    "common_http_protocol_options",
    "http_protocol_options",
    "http2_protocol_options",
    "strip_matching_host_port",
    "strip_any_host_port",
    "generate_request_id",
    "preserve_external_request_id",
    "tracing",
    "via",
    "add_user_agent",
    "skip_xff_append",
    "drain_timeout",
    "delayed_close_timeout",
    "max_request_headers_kb",
    "represent_ipv4_remote_address_as_ipv4_mapped_ipv6",
    "forward_client_cert_details",
    "set_current_client_cert_details",
    "proxy_100_continue",
    "local_reply_config",
    "scheme_header_transformation",
    "internal_address_config",
    "always_set_request_id_in_response",
    "append_x_forwarded_port",
    "strip_trailing_host_dot",
    "request_id_extension",
    "proxy_status_config",
    "access_log_options",
    "original_ip_detection_extensions",
    "early_header_mutation_extensions",
    "stream_error_on_invalid_http_message",
];

fn connections(
    model: &mut Model<'_>,
    conf: &Tree,
    port: u16,
    is_tls: bool,
    conditions: Vec<Value>,
    closed: Option<String>,
    plan: &mut Plan,
) -> Scope {
    model.unknown(conf, &MANAGER);
    let mut filters = filters::convert(model, conf);
    if closed.is_some() {
        filters.closed = closed;
    }
    let (normal, merged) = (is_true(conf, "normalize_path"), is_true(conf, "merge_slashes"));
    if normal && merged {
        plan.settings.insert(
            "router".to_owned(),
            json!({"forward_path": "canonical", "match_uri_encoded_slash": true}),
        );
    } else {
        let text = "Sigma matches the normalised path (decoded, without doubled slashes and dot segments), Envoy the raw path.";
        model.note(conf.line, text);
    }
    if let Some(hops) = integer(conf, "xff_num_trusted_hops").filter(|hops| *hops > 0) {
        plan.settings.insert("trusted_addresses".to_owned(), json!(["0.0.0.0/0", "::/0"]));
        plan.settings.insert("client_address".to_owned(), json!({"field": "X-Forwarded-For", "hops": hops}));
        model.guard_note(
            conf.line,
            "As in Envoy, all peers may set the client address: list the proxies in `trusted_addresses`.",
        );
    }
    if let Some(kind) = text(conf, "forward_client_cert_details") {
        let kind = kind.to_ascii_lowercase();
        let details =
            field(conf, "set_current_client_cert_details").map(Tree::to_json).unwrap_or_else(|| json!({}));
        let plugin = json!({"forward_client_cert_details": kind, "set_current_client_cert_details": details});
        filters.plugins.insert("forward-client-cert".to_owned(), plugin);
    }
    if field(conf, "generate_request_id").and_then(Tree::boolean) != Some(false) {
        let in_response = is_true(conf, "always_set_request_id_in_response");
        plan.global_plugins.insert("request-id".to_owned(), json!({"include_in_response": in_response}));
    }
    timeouts(model, conf, plan);
    for (name, text) in [
        ("local_reply_config", "Use the plugin error-page."),
        ("tracing", "Use the plugin opentelemetry."),
        ("original_ip_detection_extensions", "Use `trusted_addresses` and `client_address`."),
    ] {
        if let Some(found) = field(conf, name) {
            model.gap(found.line, text);
        }
    }
    if let Some(log) = field(conf, "access_log") {
        plan.settings.insert("access_log".to_owned(), json!({"path": "stdout"}));
        model.note(log.line, "Log lines have Sigma's own fields: see `access_log.format`.");
    }
    if let Some(server) = text(conf, "server_name") {
        plan.settings.entry("server_header").or_insert_with(|| server.into());
    }
    let websocket = items(conf, "upgrade_configs").iter().any(super::actions::is_websocket);
    Scope {
        port,
        is_tls,
        conditions,
        filters,
        strips_port: is_true(conf, "strip_matching_host_port") || is_true(conf, "strip_any_host_port"),
        websocket,
    }
}

fn timeouts(model: &mut Model<'_>, conf: &Tree, plan: &mut Plan) {
    let mut values = Map::new();
    for (name, key) in [("request_headers_timeout", "request_head_ms"), ("drain_timeout", "drain_ms")] {
        if let Some(time) = seconds(conf, name).filter(|it| *it > 0.0) {
            values.insert(key.to_owned(), number(time * 1000.0));
        }
    }
    let options = field(conf, "common_http_protocol_options");
    if let Some(idle) = options.and_then(|it| seconds(it, "idle_timeout")).filter(|it| *it > 0.0) {
        values.insert("keepalive_ms".to_owned(), number(idle * 1000.0));
    }
    if !values.is_empty() {
        model.note(conf.line, "Timeouts apply to all listeners.");
        let known = plan.settings.entry("timeouts").or_insert_with(|| json!({}));
        if let Value::Object(known) = known {
            known.extend(values);
        }
    }
}

/// Certificates of a filter chain.
fn downstream_tls(
    model: &mut Model<'_>,
    context: &Tree,
    names: &[String],
    fields: &mut Map<String, Value>,
    plan: &mut Plan,
) -> Result<(), String> {
    let common = field(context, "common_tls_context").ok_or("the TLS context has no common_tls_context")?;
    let mut pairs = Vec::new();
    for pair in items(common, "tls_certificates") {
        let file =
            |name: &str| field(pair, name).and_then(|source| text(source, "filename")).map(str::to_owned);
        match (file("certificate_chain"), file("private_key")) {
            (Some(cert), Some(key)) => pairs.push((cert, key)),
            _ => return Err("a certificate is not in files".to_owned()),
        }
    }
    if pairs.is_empty() {
        return Err("its certificates come from a control plane (SDS)".to_owned());
    }
    let mut ssl = Map::new();
    let validation = field(common, "validation_context")
        .or_else(|| at(common, &["combined_validation_context", "default_validation_context"]));
    let is_required = is_true(context, "require_client_certificate");
    match validation.and_then(|it| field(it, "trusted_ca")) {
        Some(authority) => {
            let authority = data(authority, model.access)?;
            ssl.insert("client".to_owned(), json!({"ca": authority}));
            if !is_required {
                model.guard_note(
                    context.line,
                    "Sigma requires the certificate; Envoy verifies it only if the client sends one.",
                );
            }
            if validation.is_some_and(|it| field(it, "match_typed_subject_alt_names").is_some()) {
                return Err("names in client certificates are not compared: use `vars` with ssl_client_s_dn"
                    .to_owned());
            }
        }
        None if is_required => {
            return Err("client certificates are required, but no authority is set".to_owned());
        }
        None => {}
    }
    if at(common, &["tls_params", "tls_minimum_protocol_version"]).and_then(Tree::text) == Some("TLSv1_3") {
        ssl.insert("ssl_protocols".to_owned(), json!(["TLSv1.3"]));
    }
    let mut tls = match fields.remove("tls") {
        Some(Value::Object(tls)) => tls,
        _ => Map::new(),
    };
    let alpn: Vec<String> = field(common, "alpn_protocols").map(Tree::texts).unwrap_or_default();
    let alpn: Vec<String> = alpn.into_iter().filter(|name| name == "h2" || name == "http/1.1").collect();
    tls.insert("alpn".to_owned(), if alpn.is_empty() { json!(["http/1.1"]) } else { json!(alpn) });
    if names.is_empty() && ssl.is_empty() {
        let files: Vec<Value> = pairs.iter().map(|(cert, key)| json!({"cert": cert, "key": key})).collect();
        tls.insert("certificates".to_owned(), Value::Array(files));
    } else {
        let names = if names.is_empty() { vec!["*".to_owned()] } else { names.to_vec() };
        for (cert_file, key_file) in pairs {
            plan.certificates.push(Certificate {
                names: names.clone(),
                cert_file,
                key_file,
                fields: ssl.clone(),
            });
        }
    }
    fields.insert("tls".to_owned(), Value::Object(tls));
    Ok(())
}

/// A TCP proxy as stream routes.
fn tcp_proxy(
    model: &mut Model<'_>,
    conf: &Tree,
    port: u16,
    is_tls: bool,
    names: &[String],
    fields: &mut Map<String, Value>,
    plan: &mut Plan,
) -> Result<(), String> {
    model.unknown(
        conf,
        &[
            "stat_prefix",
            "cluster",
            "weighted_clusters",
            "idle_timeout",
            "access_log",
            "max_connect_attempts",
            "downstream_idle_timeout",
            "upstream_idle_timeout",
            "hash_policy",
            "access_log_options",
        ],
    );
    let uses_tls = is_tls || !names.is_empty();
    fields.insert("stream".to_owned(), if uses_tls { "tls" } else { "tcp" }.into());
    let mut upstream = stream_upstream(model, conf)?;
    if let Some(attempts) = integer(conf, "max_connect_attempts") {
        upstream["retries"] = (attempts - 1).max(0).into();
    }
    if let Some(idle) = seconds(conf, "idle_timeout").filter(|it| *it > 0.0) {
        upstream["timeout"] =
            json!({"connect": upstream["timeout"]["connect"], "send": number(idle), "read": number(idle)});
    } else if let Value::Object(upstream) = &mut upstream {
        upstream.remove("timeout");
    }
    let names: Vec<Option<&String>> =
        if names.is_empty() { vec![None] } else { names.iter().map(Some).collect() };
    for name in names {
        let mut route = Map::new();
        route.insert("id".to_owned(), build::id(&format!("tcp-{port}-{}", plan.streams.len() + 1)).into());
        route.insert("server_port".to_owned(), port.into());
        if let Some(name) = name {
            route.insert("sni".to_owned(), name.clone().into());
        }
        if uses_tls {
            route.insert("tls".to_owned(), if is_tls { "terminate" } else { "passthrough" }.into());
        }
        route.insert("upstream".to_owned(), upstream.clone());
        plan.streams.push(Value::Object(route));
    }
    Ok(())
}

/// The upstream of a TCP proxy; weighted clusters become one upstream.
fn stream_upstream(model: &mut Model<'_>, conf: &Tree) -> Result<Value, String> {
    let of = |model: &Model<'_>, name: &str| -> Result<Value, String> {
        let id = model.clusters.get(name).ok_or_else(|| format!("there is no cluster `{name}`"))?.clone()?;
        let found =
            model.upstreams.iter().find(|(known, _)| *known == id).map(|(_, upstream)| upstream.clone());
        found.ok_or_else(|| format!("there is no cluster `{name}`"))
    };
    if let Some(name) = text(conf, "cluster") {
        return of(model, name);
    }
    let weighted = at(conf, &["weighted_clusters", "clusters"]).ok_or("it has no cluster")?;
    let mut joined: Option<Value> = None;
    for part in weighted.items() {
        let upstream = of(model, text(part, "name").unwrap_or_default())?;
        let weight = integer(part, "weight").unwrap_or(1);
        let nodes = upstream["nodes"].as_array().cloned().unwrap_or_default();
        let nodes: Vec<Value> = nodes
            .into_iter()
            .map(|mut node| {
                node["weight"] = (node["weight"].as_i64().unwrap_or(1) * weight).into();
                node
            })
            .collect();
        match joined.as_mut().and_then(|joined| joined["nodes"].as_array_mut()) {
            Some(list) => list.extend(nodes),
            None => {
                let mut first = upstream;
                first["nodes"] = Value::Array(nodes);
                joined = Some(first);
            }
        }
    }
    joined.ok_or_else(|| "it has no cluster".to_owned())
}
