//! The client side of the apps of `niubix.json`: listeners, routes and stream routes.
//!
//! NiubiX 0.0.1 serves `http`; `https` and `tcp` are on its roadmap and supported here. Certificate keys have nginx's
//! names, like the balancing methods.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::is_id;
use super::keys::{Report, SourceValue};
use sigma_schema::problem::member;

/// Methods that NiubiX forwards; others get 405.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "HEAD"];

/// Pending connections per worker.
const BACKLOG: u32 = 128;

/// One virtual service.
pub(super) struct App {
    pub(super) pointer: String,
    pub(super) name: String,
    pub(super) listen: Vec<SocketAddr>,
    pub(super) protocol: Protocol,
    /// Lower-cased; `default` for all hosts without an app. Empty for a stream app, which has no host.
    pub(super) http_host: String,
    pub(super) request_head_ms: u64,
    pub(super) keepalive_ms: u64,
    /// The plugin that omits header fields about the client.
    pub(super) untold: Option<Value>,
    pub(super) upstream: Value,
}

impl App {
    /// Label of the app's listeners.
    pub(super) fn listener(&self) -> String {
        match self.listen.as_slice() {
            [address] => address.to_string(),
            // `[]:port` is the only notation for several addresses.
            addresses => format!("[]:{}", addresses.first().map_or(0, SocketAddr::port)),
        }
    }
}

/// The protocol between an app and its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    /// The files with certificate and key.
    Https {
        cert: String,
        key: String,
    },
    Tcp,
}

impl Protocol {
    fn name(&self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Https { .. } => "https",
            Protocol::Tcp => "tcp",
        }
    }
}

/// The protocol of an app, with what belongs to it alone.
pub(super) fn protocol(app: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Protocol> {
    const FILES: [&str; 2] = ["ssl_certificate", "ssl_certificate_key"];
    let word = report.required_text(app, "protocol")?;
    match word.as_str() {
        "https" => {
            let [cert, key] = FILES.map(|file| report.required_text(app, file));
            return Some(Protocol::Https { cert: cert?, key: key? });
        }
        "http" => {}
        "tcp" => {
            let of_requests =
                ["http_host", "frontend_a_complete_req_timeout", "x-forwarded-for", "x-real-ip"];
            report.inert(app, &of_requests);
        }
        _ => {
            let message = format!("`protocol` cannot be `{word}`");
            report.error(&app.pointer_of("protocol"), "type", message, "write http, https or tcp");
            return None;
        }
    }
    report.inert(app, &FILES);
    Some(if word == "tcp" { Protocol::Tcp } else { Protocol::Http })
}

/// The version of the PROXY protocol that sends the client's address to the backends of sessions.
pub(super) fn proxy_protocol(app: &SourceValue<'_>, report: &mut Report<'_>) -> Option<String> {
    let word = report.text(app, "proxy_protocol").filter(|word| !word.is_empty())?;
    if !["v1", "v2"].contains(&word.as_str()) {
        let message = format!("`proxy_protocol` cannot be `{word}`");
        report.error(&app.pointer_of("proxy_protocol"), "type", message, "write v1 or v2, or leave it out");
        return None;
    }
    Some(word)
}

/// Checks that all apps on one address have one protocol and one certificate. Sessions have no host, so only one app
/// may use their address.
pub(super) fn one_address_one_protocol(apps: &[App], report: &mut Report<'_>) {
    for (index, app) in apps.iter().enumerate() {
        let shares = |other: &&App| other.listen.iter().any(|address| app.listen.contains(address));
        let Some(first) = apps[..index].iter().find(shares) else { continue };
        let at = &first.pointer;
        let (key, message, hint) = match (&first.protocol, &app.protocol) {
            (Protocol::Tcp, Protocol::Tcp) => {
                let message = format!("the app at {at} already serves all sessions of this address");
                ("listen", message, "give the app its own address")
            }
            (one, other) if one.name() != other.name() => {
                let message = format!("the app at {at} uses {} on this address", one.name());
                ("protocol", message, "give the app its own address")
            }
            (one, other) if one != other => {
                let message = format!("the app at {at} has another certificate on this address");
                let hint = "use the same files, with a certificate for all hosts, or another address";
                ("ssl_certificate", message, hint)
            }
            _ => continue,
        };
        report.error(&member(&app.pointer, key), "conflict", message, hint);
    }
}

pub(super) fn listeners(apps: &[App]) -> Vec<Value> {
    let mut bound: Vec<SocketAddr> = Vec::new();
    let mut listeners = Vec::new();
    for app in apps {
        for address in &app.listen {
            if bound.contains(address) {
                continue;
            }
            bound.push(*address);
            let mut listener =
                json!({"address": address.to_string(), "backlog": BACKLOG, "name": address.to_string()});
            match &app.protocol {
                Protocol::Http => {}
                Protocol::Https { cert, key } => {
                    // NiubiX supports HTTP/1 only.
                    listener["tls"] =
                        json!({"alpn": ["http/1.1"], "certificates": [{"cert": cert, "key": key}]});
                }
                Protocol::Tcp => listener["stream"] = "tcp".into(),
            }
            listeners.push(listener);
        }
    }
    listeners
}

fn named(app: &App) -> Map<String, Value> {
    let mut route = Map::new();
    if is_id(&app.name) {
        route.insert("id".into(), app.name.as_str().into());
    }
    route.insert("name".into(), app.name.as_str().into());
    route
}

pub(super) fn routes(apps: &[App], report: &mut Report<'_>) -> Vec<Value> {
    let mut routes = Vec::new();
    for app in apps.iter().filter(|app| app.protocol != Protocol::Tcp) {
        let alone = apps.iter().filter(|other| other.listener() == app.listener()).count() == 1;
        let mut route = named(app);
        route.insert("uri".into(), "/*".into());
        route.insert("methods".into(), METHODS.into());
        // An app that is alone on its address serves all hosts.
        if !alone && app.http_host != "default" {
            route.insert("hosts".into(), json!([app.http_host]));
        } else if app.http_host != "default" {
            let message = format!(
                "`http_host` `{}` is accepted, without effect: the only app on an address serves all hosts",
                app.http_host
            );
            report.warn(&member(&app.pointer, "http_host"), "without_effect", message, "write `default`");
        }
        route.insert("method_not_allowed".into(), true.into());
        route.insert(
            "listeners".into(),
            app.listen.iter().map(SocketAddr::to_string).collect::<Vec<_>>().into(),
        );
        route.insert("upstream_id".into(), app.upstream["id"].clone());
        // Bytes are forwarded unchanged, including upgrades.
        route.insert("enable_websocket".into(), true.into());
        if let Some(untold) = &app.untold {
            route.insert("plugins".into(), json!({"forwarded-fields": untold}));
        }
        routes.push(Value::Object(route));
    }
    routes
}

/// Returns stream routes that match the local address. A single address comes before the wildcard address of a port.
pub(super) fn stream_routes(apps: &[App]) -> Vec<Value> {
    let mut routes = Vec::new();
    for app in apps.iter().filter(|app| app.protocol == Protocol::Tcp) {
        let Some(address) = app.listen.first() else { continue };
        let mut route = named(app);
        route.insert("server_port".into(), address.port().into());
        let is_one = !address.ip().is_unspecified();
        if is_one {
            route.insert("server_addr".into(), address.ip().to_string().into());
        }
        route.insert("upstream_id".into(), app.upstream["id"].clone());
        routes.push((is_one, Value::Object(route)));
    }
    routes.sort_by_key(|(is_one, _)| !is_one);
    routes.into_iter().map(|(_, route)| route).collect()
}
