//! NiubiX 0.0.1: `niubix.json`.
//!
//! An app becomes a route with its own upstream, or a stream route if its protocol is `tcp`. Apps with the same listen
//! address share a listener, and the Host header selects the app.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Map, Value, json};

use super::is_id;
use super::keys::{Report, SourceValue, Unknown};
use super::niubix_edge::{self, App, Protocol};
use sigma_schema::problem::{element, member};

/// Maximum size of a request head: line and headers.
const REQUEST_HEAD_BYTES: u32 = 8192;

/// Maximum length of a request line: a target of 2048 bytes between `DELETE ` and ` HTTP/1.1`.
const REQUEST_LINE_BYTES: u32 = 7 + 2048 + 9;

/// Minimum number of open files of a process.
const FILES_MIN: u64 = 64;

/// Maximum accepted number of milliseconds.
const MAX_MS: u64 = u32::MAX as u64;

/// Translates the document; the result is only used if the report has no errors.
pub(super) fn translate(root: &SourceValue<'_>, report: &mut Report<'_>) -> Map<String, Value> {
    let known = [
        "version",
        "pid_file",
        "master_log",
        "max_fds",
        "worker_num",
        "io_buf_size",
        "log_dir",
        "log_level",
        "admin_listen",
        "admin_ip_white_list",
        "apps",
    ];
    report.unknown(root, &known, Unknown::Ignored);
    let mut target = process(root, report);
    let apps = apps(root, report);
    target.extend(timeouts(&apps, report));
    target.insert("listeners".into(), niubix_edge::listeners(&apps).into());
    target.insert("routes".into(), niubix_edge::routes(&apps, report).into());
    let streams = niubix_edge::stream_routes(&apps);
    if !streams.is_empty() {
        target.insert("stream_routes".into(), streams.into());
    }
    target.insert("upstreams".into(), apps.iter().map(|app| app.upstream.clone()).collect::<Vec<_>>().into());
    target
}

/// Settings of the master and its workers.
fn process(root: &SourceValue<'_>, report: &mut Report<'_>) -> Map<String, Value> {
    let mut target = Map::new();
    let workers = report.number(root, "worker_num", 0..=u64::from(u16::MAX)).unwrap_or(0);
    target.insert("workers".into(), if workers == 0 { "auto".into() } else { workers.into() });
    target.insert("pin_workers".into(), true.into());
    // NiubiX is a master in the background with a worker process below it.
    let mut process = json!({ "mode": "supervised", "daemon": true });
    if let Some(files) = report.number(root, "max_fds", 0..=u64::MAX).filter(|files| *files > 0) {
        if files < FILES_MIN {
            let message = format!("`max_fds` is {FILES_MIN}, not {files}: a gateway cannot start with fewer");
            report.warn(&root.pointer_of("max_fds"), "approximate", message, "write more, or 0");
        }
        process["max_fds"] = files.max(FILES_MIN).into();
    }
    target.insert("process".into(), process);
    let master_log = report.required_text(root, "master_log");
    if let Some(path) = report.required_text(root, "pid_file") {
        target.insert("pid_file".into(), path.into());
    }
    let directory = report.required_text(root, "log_dir");
    let level = log_level(root, report);
    if let (Some(directory), Some(level)) = (directory, level) {
        let path = format!("{}/niubix.log", directory.trim_end_matches('/'));
        let message = format!("log lines go to one file, `{path}`, not to one file per day");
        let hint = "rotate it with the plugin log-rotate (`plugin_attr.log-rotate` in the file that `sigma check --print` shows), or with logrotate";
        report.warn(&root.pointer_of("log_dir"), "approximate", message, hint);
        if master_log.is_some() {
            let message = format!("the master's log lines go to `{path}` too");
            let hint = "Sigma does not write this file";
            report.warn(&root.pointer_of("master_log"), "approximate", message, hint);
        }
        target.insert("error_log".into(), json!({"path": path, "level": level}));
    }
    let mut limits =
        json!({"request_line_bytes": REQUEST_LINE_BYTES, "request_head_bytes": REQUEST_HEAD_BYTES});
    let buffer = report.number(root, "io_buf_size", 1..=u64::from(u32::MAX)).unwrap_or(32768);
    limits["exchange_buffer_bytes"] = buffer.into();
    target.insert("limits".into(), limits);
    if let Some(admin) = admin(root, report) {
        target.insert("niubix_admin".into(), admin);
    }
    target
}

/// The most talkative level of the list: levels are ordered here, not a set.
fn log_level(root: &SourceValue<'_>, report: &mut Report<'_>) -> Option<&'static str> {
    let text = report.required_text(root, "log_level")?;
    let rank = |word: &str| match word.trim() {
        "shutdown" => Some((0, "off")),
        "error" => Some((1, "error")),
        "warn" => Some((2, "warn")),
        "info" => Some((3, "info")),
        "debug" | "all" => Some((4, "debug")),
        _ => None,
    };
    let ranks: Option<Vec<_>> = text.split('|').map(rank).collect();
    let level = ranks.and_then(|ranks| ranks.into_iter().max());
    if level.is_none() {
        let hint = "write one or more of debug, info, warn, error, all, shutdown, joined by `|`";
        report.error(
            &root.pointer_of("log_level"),
            "type",
            format!("`{text}` is not a list of log levels"),
            hint,
        );
    }
    level.map(|(_, name)| name)
}

fn admin(root: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Value> {
    let version = report.text(root, "version").unwrap_or_default();
    if version.len() >= 255 {
        report.error(
            &root.pointer_of("version"),
            "range",
            "`version` is longer than 254 bytes",
            "shorten it",
        );
    }
    let allowed = report.text(root, "admin_ip_white_list").unwrap_or_default();
    let mut allow = Vec::new();
    for word in allowed.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word.parse::<IpAddr>() {
            Ok(ip) => allow.push(ip.to_string()),
            Err(_) => {
                let pointer = root.pointer_of("admin_ip_white_list");
                report.error(
                    &pointer,
                    "address",
                    format!("`{word}` is not an IP address"),
                    "write addresses such as 127.0.0.1, joined by `,`",
                );
            }
        }
    }
    let listen = report.text(root, "admin_listen").filter(|listen| !listen.is_empty())?;
    let addresses = parse_listen(&listen);
    let Some(address) = addresses.first() else {
        report.error(
            &root.pointer_of("admin_listen"),
            "address",
            format!("`{listen}` is not an `ip:port`"),
            "write it as 127.0.0.1:9527",
        );
        return None;
    };
    Some(json!({"address": address.to_string(), "allow": allow, "version": version}))
}

/// Returns the addresses of `:8080`, `1.2.3.4:8080`, `[]:8080` (both families) and `[v6]:8080`; empty if invalid.
fn parse_listen(text: &str) -> Vec<SocketAddr> {
    let Some((host, port)) = text.rsplit_once(':') else { return Vec::new() };
    let Some(port) = port.parse::<u16>().ok().filter(|port| *port > 0) else { return Vec::new() };
    let (any4, any6) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let hosts = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some("") => vec![any4, any6],
        Some(v6) => v6.parse::<Ipv6Addr>().map(IpAddr::V6).into_iter().collect(),
        None if host.is_empty() => vec![any4],
        None => host.parse::<Ipv4Addr>().map(IpAddr::V4).into_iter().collect(),
    };
    hosts.into_iter().map(|host| SocketAddr::new(host, port)).collect()
}

fn apps(root: &SourceValue<'_>, report: &mut Report<'_>) -> Vec<App> {
    let places = report.objects(root, "apps");
    if places.is_empty() && root.value["apps"] == json!([]) {
        report.error("apps", "missing", "`apps` is empty", "add an app");
    }
    let apps: Vec<App> =
        places.iter().enumerate().filter_map(|(index, place)| read_app(place, index, report)).collect();
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut hosts: BTreeMap<(String, &str), &str> = BTreeMap::new();
    for app in &apps {
        if let Some(first) = names.insert(&app.name, &app.pointer) {
            let message = format!("the app at {first} has the same name `{}`", app.name);
            report.error(&member(&app.pointer, "name"), "duplicate", message, "give each app its own name");
        }
        if app.protocol != Protocol::Tcp
            && let Some(first) = hosts.insert((app.listener(), &app.http_host), &app.pointer)
        {
            let message =
                format!("the app at {first} serves the host `{}` on this address too", app.http_host);
            report.error(
                &member(&app.pointer, "http_host"),
                "duplicate",
                message,
                "change its `http_host` or `listen`",
            );
        }
    }
    niubix_edge::one_address_one_protocol(&apps, report);
    apps
}

fn read_app(app: &SourceValue<'_>, index: usize, report: &mut Report<'_>) -> Option<App> {
    let known = [
        "name",
        "listen",
        "protocol",
        "http_host",
        "balance_policy",
        "connect_backend_timeout",
        "frontend_a_complete_req_timeout",
        "frontend_idle_timeout",
        "x-forwarded-for",
        "x-real-ip",
        "backend_protocol",
        "backends",
        "ssl_certificate",
        "ssl_certificate_key",
        "proxy_protocol",
    ];
    report.unknown(app, &known, Unknown::Ignored);
    let name = report.required_text(app, "name");
    let listen = listen(app, report);
    let protocol = niubix_edge::protocol(app, report);
    let is_stream = protocol == Some(Protocol::Tcp);
    let http_host = if is_stream { Some(String::new()) } else { report.required_text(app, "http_host") };
    let untold = if is_stream { None } else { forwarding_headers(app, report) };
    let ms = |key, default, report: &mut Report<'_>| report.number(app, key, 1..=MAX_MS).unwrap_or(default);
    let connect_ms = ms("connect_backend_timeout", 2000, report);
    let request_head_ms = ms("frontend_a_complete_req_timeout", 5000, report);
    let keepalive_ms = ms("frontend_idle_timeout", 10_000, report);
    let mut upstream = Map::new();
    let balance = balance(app, &mut upstream, report);
    let checks = backend_protocol(app, is_stream, report);
    let backends = backends(app, balance, checks, report);
    upstream.insert(
        "nodes".into(),
        backends.iter().map(|backend| backend.node.clone()).collect::<Vec<_>>().into(),
    );
    upstream.insert("retries".into(), 0.into());
    // NiubiX has only a connect timeout; the other two are Sigma's defaults.
    let mut timeout = json!({"connect": seconds(connect_ms), "send": 60, "read": 60});
    if is_stream {
        upstream.insert("scheme".into(), "tcp".into());
        // A session has the idle timeout of a client.
        timeout["read"] = seconds(keepalive_ms);
        if let Some(version) = niubix_edge::proxy_protocol(app, report) {
            upstream.insert("proxy_protocol".into(), version.into());
        }
    } else {
        report.inert(app, &["proxy_protocol"]);
    }
    upstream.insert("timeout".into(), timeout);
    if let Some(active) = active_check(app, &backends, checks, report) {
        upstream.insert("checks".into(), json!({"active": active}));
    }
    let name = name?;
    if is_id(&name) {
        upstream.insert("id".into(), name.as_str().into());
    } else {
        upstream.insert("id".into(), format!("app.{}", index + 1).into());
        upstream.insert("name".into(), name.as_str().into());
    }
    Some(App {
        pointer: app.pointer.clone(),
        name,
        listen: listen?,
        protocol: protocol?,
        http_host: http_host?.to_ascii_lowercase(),
        request_head_ms,
        keepalive_ms,
        untold,
        upstream: upstream.into(),
    })
}

/// The configuration of the plugin that leaves fields alone; None if the node gets both.
fn forwarding_headers(app: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Value> {
    let told = [("x-forwarded-for", "x_forwarded_for"), ("x-real-ip", "x_real_ip")];
    let off = told.into_iter().filter(|(key, _)| !report.flag(app, key, true));
    let conf: Map<String, Value> = off.map(|(_, field)| (field.to_owned(), false.into())).collect();
    (!conf.is_empty()).then(|| conf.into())
}

fn listen(app: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Vec<SocketAddr>> {
    let text = report.required_text(app, "listen")?;
    let addresses = parse_listen(&text);
    if addresses.is_empty() {
        let hint = "write :8080, 1.2.3.4:8080, []:8080 or [v6]:8080";
        report.error(
            &app.pointer_of("listen"),
            "address",
            format!("`{text}` is not an address to listen on"),
            hint,
        );
        return None;
    }
    Some(addresses)
}

/// The type of health check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checks {
    Http,
    /// By a connection, the only check for sessions.
    Connection,
    /// No check: NiubiX checks HTTP backends only.
    None,
}

fn backend_protocol(app: &SourceValue<'_>, is_stream: bool, report: &mut Report<'_>) -> Checks {
    match report.required_text(app, "backend_protocol").as_deref() {
        Some("http") => Checks::Http,
        Some("tcp") if is_stream => Checks::Connection,
        None | Some("tcp") => Checks::None,
        Some(word) => {
            let message = format!("`backend_protocol` cannot be `{word}`");
            report.error(&app.pointer_of("backend_protocol"), "type", message, "write http or tcp");
            Checks::None
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    Read,
    /// NiubiX uses weights with `roundrobin` only.
    Equal,
}

fn balance(app: &SourceValue<'_>, upstream: &mut Map<String, Value>, report: &mut Report<'_>) -> Weights {
    let members = match report.required_text(app, "balance_policy").as_deref() {
        Some("random") => json!({"type": "random"}),
        Some("iphash") => json!({"type": "chash", "hash_on": "vars", "key": "remote_addr"}),
        None => json!({}),
        Some("roundrobin") => json!({"type": "roundrobin"}),
        Some(word) => {
            let message = format!("`balance_policy` cannot be `{word}`");
            report.error(
                &app.pointer_of("balance_policy"),
                "type",
                message,
                "write roundrobin, random or iphash",
            );
            json!({})
        }
    };
    let weights = if members["type"] == "roundrobin" { Weights::Read } else { Weights::Equal };
    if let Value::Object(members) = members {
        upstream.extend(members);
    }
    weights
}

/// A backend's health check; all times in milliseconds.
#[derive(Clone, PartialEq, Eq)]
struct Check {
    period: u64,
    timeout: u64,
    /// Empty for a check by connection.
    uri: String,
}

struct Backend {
    node: Value,
    check: Option<Check>,
}

fn backends(
    app: &SourceValue<'_>,
    weights: Weights,
    checks: Checks,
    report: &mut Report<'_>,
) -> Vec<Backend> {
    let places = report.objects(app, "backends");
    if places.is_empty() && app.get("backends").is_none_or(|backends| *backends.value == json!([])) {
        report.error(
            &app.pointer_of("backends"),
            "missing",
            "the app has no backends",
            "add a backend to `backends`",
        );
    }
    let mut sum = 0;
    let mut backends = Vec::new();
    for place in &places {
        let known =
            ["host", "weight", "down", "health_check_period", "health_check_timeout", "health_check_uri"];
        report.unknown(place, &known, Unknown::Ignored);
        let mut weight = report.number(place, "weight", 0..=i32::MAX as u64).unwrap_or(1);
        if weights == Weights::Equal && weight != 1 {
            let message = "`weight` is accepted, without effect: it counts with `roundrobin` only";
            report.warn(&place.pointer_of("weight"), "without_effect", message, "write 1, or use roundrobin");
            weight = 1;
        }
        sum += weight;
        let down = report.flag(place, "down", false);
        let check = check(place, checks, report);
        let Some(host) = report.required_text(place, "host") else { continue };
        let Ok(SocketAddr::V4(address)) = host.parse::<SocketAddr>() else {
            let message = format!("`{host}` is not an IPv4 address with a port");
            report.error(&place.pointer_of("host"), "address", message, "write it as 127.0.0.1:8080");
            continue;
        };
        let mut node = json!({
            "host": address.ip().to_string(),
            "port": address.port(),
            "weight": if down { 0 } else { weight },
        });
        if down {
            // The weight after the backend is enabled again.
            node["metadata"] = json!({"down": true, "weight": weight});
        }
        backends.push(Backend { node, check });
    }
    if !places.is_empty() && sum == 0 {
        let message = "all backends have the weight 0";
        report.error(&app.pointer_of("backends"), "range", message, "give one of them a `weight` above 0");
    }
    backends
}

fn check(backend: &SourceValue<'_>, checks: Checks, report: &mut Report<'_>) -> Option<Check> {
    let period = report.number(backend, "health_check_period", 0..=MAX_MS).unwrap_or(0);
    let timeout = report.number(backend, "health_check_timeout", 1..=MAX_MS).unwrap_or(2000);
    let uri = report.text(backend, "health_check_uri");
    if period == 0 {
        return None;
    }
    if checks == Checks::Connection {
        report.inert(backend, &["health_check_uri"]);
        return Some(Check { period, timeout, uri: String::new() });
    }
    let Some(uri) = uri.filter(|uri| uri.starts_with('/') && uri.len() <= 512) else {
        let message =
            "a health check needs `health_check_uri`: a path that begins with `/`, of at most 512 bytes";
        report.error(
            &backend.pointer_of("health_check_uri"),
            "type",
            message,
            "write it as /health, or set `health_check_period` to 0",
        );
        return None;
    };
    Some(Check { period, timeout, uri })
}

/// Returns the check of an upstream. All nodes of an upstream have the same check in Sigma, so the first backend's
/// counts.
fn active_check(
    app: &SourceValue<'_>,
    backends: &[Backend],
    checks: Checks,
    report: &mut Report<'_>,
) -> Option<Value> {
    let (index, check) =
        backends.iter().enumerate().find_map(|(index, backend)| Some((index, backend.check.as_ref()?)))?;
    if checks == Checks::None {
        let message = "health checks are accepted, without effect: they need `backend_protocol` http";
        let hint = "write http, or remove the checks";
        report.warn(&app.pointer_of("backend_protocol"), "without_effect", message, hint);
        return None;
    }
    if backends.iter().any(|backend| backend.check.as_ref() != Some(check)) {
        let message = format!(
            "all backends of an app get the same health check: {} every {} ms, as of backend {index}",
            if checks == Checks::Http { format!("GET {}", check.uri) } else { "a connection".to_owned() },
            check.period
        );
        report.warn(
            &app.pointer_of("backends"),
            "approximate",
            message,
            "give all backends the same health check",
        );
    }
    let interval = check.period.div_ceil(1000);
    if interval * 1000 != check.period {
        let message = format!("health checks run every {interval} s, not every {} ms", check.period);
        let pointer = member(&element(&app.pointer_of("backends"), index), "health_check_period");
        report.warn(&pointer, "approximate", message, "write whole seconds");
    }
    if checks == Checks::Connection {
        return Some(json!({
            "type": "tcp",
            "timeout": seconds(check.timeout),
            "healthy": {"interval": interval, "successes": 3},
            "unhealthy": {"interval": interval, "tcp_failures": 1, "timeouts": 1},
        }));
    }
    // Any response in time counts as healthy, whatever its status.
    Some(json!({
        "type": "http",
        "http_path": check.uri,
        "timeout": seconds(check.timeout),
        "healthy": {"interval": interval, "successes": 3, "http_statuses": answer_statuses()},
        "unhealthy": {"interval": interval, "http_statuses": [599], "http_failures": 1, "tcp_failures": 1, "timeouts": 1},
    }))
}

/// Returns the final status codes in use (IANA's registry, and nginx's 499).
fn answer_statuses() -> Vec<u16> {
    let ranges =
        [200..=208, 226..=226, 300..=308, 400..=418, 421..=426, 428..=429, 431..=431, 451..=451, 499..=511];
    ranges.into_iter().flatten().collect()
}

fn seconds(ms: u64) -> Value {
    if ms.is_multiple_of(1000) { (ms / 1000).into() } else { json!(ms as f64 / 1000.0) }
}

/// Timeouts are settings of the process: the largest value of all apps.
fn timeouts(apps: &[App], report: &mut Report<'_>) -> Map<String, Value> {
    // The timeouts of sessions are in their upstream.
    let of_requests = || apps.iter().filter(|app| app.protocol != Protocol::Tcp);
    let mut largest = |key: &str, of: fn(&App) -> u64| {
        let max = of_requests().map(of).max();
        if let Some(app) = of_requests().find(|app| Some(of(app)) != max) {
            let message = format!(
                "`{key}` is one setting of the process: the largest, {} ms, applies to all apps",
                max.unwrap_or(0)
            );
            report.warn(&member(&app.pointer, key), "approximate", message, "give all apps the same value");
        }
        max
    };
    let head = largest("frontend_a_complete_req_timeout", |app| app.request_head_ms);
    let idle = largest("frontend_idle_timeout", |app| app.keepalive_ms);
    let mut target = Map::new();
    if let (Some(head), Some(idle)) = (head, idle) {
        target.insert("timeouts".into(), json!({"request_head_ms": head, "keepalive_ms": idle}));
    }
    target
}
