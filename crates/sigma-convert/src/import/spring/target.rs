//! Targets of routes: URIs, instances in the file, and registries.

use serde_json::{Map, Value, json};

use super::super::build;
use super::actions::HostField;
use super::settings::{Settings, find_in, relaxed};

/// Seconds to connect where the file has no timeout, as in Spring.
const CONNECT: f64 = 30.0;

/// Seconds between two reads where the file has no timeout: Spring waits forever.
const READ: f64 = 3600.0;

/// A URI of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Uri {
    /// Scheme of the node, host and port.
    Node { scheme: &'static str, host: String, port: u16 },
    /// A service of a registry.
    Service { scheme: &'static str, name: String },
    /// A handler of the application.
    Forward(String),
    /// Nothing: another filter responds.
    Nothing,
}

impl Uri {
    /// Reads a URI; its path has no meaning.
    pub(super) fn read(text: &str) -> Result<Uri, String> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("forward:") {
            return Ok(Uri::Forward(path.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("lb:") {
            let (kind, name) = match rest.strip_prefix("//") {
                Some(name) => ("http", name),
                None => rest.split_once("://").unwrap_or(("http", rest)),
            };
            let name = name.split(['/', '?']).next().unwrap_or_default();
            return Ok(Uri::Service { scheme: scheme(kind).unwrap_or("http"), name: name.to_owned() });
        }
        let (kind, rest) = text.split_once("://").ok_or_else(|| format!("`{text}` is not a URI."))?;
        if kind == "no" {
            return Ok(Uri::Nothing);
        }
        let scheme =
            scheme(kind).ok_or_else(|| format!("Sigma does not support nodes with the scheme `{kind}`."))?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let default = if scheme == "https" { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => {
                (host, port.parse().map_err(|_| format!("`{authority}` has no valid port."))?)
            }
            None => (authority, default),
        };
        if host.is_empty() || host.contains(['$', '{', ' ']) {
            return Err(format!("`{text}` has no host."));
        }
        Ok(Uri::Node { scheme, host: host.to_owned(), port })
    }

    /// Returns a short name for ids.
    pub(super) fn name(&self) -> String {
        match self {
            Uri::Node { host, port, .. } => build::id(&format!("{host}-{port}")),
            Uri::Service { name, .. } => build::id(name),
            Uri::Forward(_) | Uri::Nothing => "none".to_owned(),
        }
    }
}

fn scheme(kind: &str) -> Option<&'static str> {
    match kind.to_ascii_lowercase().as_str() {
        "http" | "ws" => Some("http"),
        "https" | "wss" => Some("https"),
        "grpc" => Some("grpc"),
        "grpcs" => Some("grpcs"),
        _ => None,
    }
}

/// Seconds to connect and between two reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timeouts {
    pub connect: Option<f64>,
    pub read: Option<f64>,
}

/// The upstream of a URI.
pub(super) struct ConvertedTarget {
    pub fields: Map<String, Value>,
    /// Why it has no nodes.
    pub missing: Option<String>,
}

/// Makes the fields of an upstream.
pub(super) fn upstream(
    uri: &Uri,
    host: &HostField,
    timeouts: Timeouts,
    settings: &Settings<'_>,
) -> ConvertedTarget {
    let mut fields = Map::new();
    let mut missing = None;
    let scheme = match uri {
        Uri::Node { scheme, host, port } => {
            fields.insert("nodes".to_owned(), json!([{"host": host, "port": port, "weight": 1}]));
            *scheme
        }
        Uri::Service { scheme, name } => {
            let found = service(name, scheme, settings, &mut fields);
            missing = found.1;
            found.0
        }
        Uri::Forward(_) | Uri::Nothing => {
            fields.insert("nodes".to_owned(), json!([]));
            "http"
        }
    };
    if scheme != "http" {
        fields.insert("scheme".to_owned(), scheme.into());
    }
    match host {
        HostField::Node => drop(fields.insert("pass_host".to_owned(), "node".into())),
        HostField::Client => {}
        HostField::Fixed(name) => {
            fields.insert("pass_host".to_owned(), "rewrite".into());
            fields.insert("upstream_host".to_owned(), name.clone().into());
        }
    }
    // Spring repeats nothing without the filter Retry.
    fields.insert("retries".to_owned(), 0.into());
    let client = |name: &str| {
        settings.first(&[
            &format!("spring.cloud.gateway.server.webflux.httpclient.{name}"),
            &format!("spring.cloud.gateway.httpclient.{name}"),
        ])
    };
    let time = |name: &str| {
        client(name).and_then(|node| settings.text(node)).and_then(|text| super::values::seconds(&text))
    };
    let connect =
        timeouts.connect.or_else(|| time("connect-timeout")).filter(|it| *it > 0.0).unwrap_or(CONNECT);
    let read = timeouts.read.or_else(|| time("response-timeout")).filter(|it| *it > 0.0).unwrap_or(READ);
    fields.insert("timeout".to_owned(), json!({"connect": connect, "send": read, "read": read}));
    if matches!(scheme, "https" | "grpcs") {
        let trusts_all = client("ssl.use-insecure-trust-manager").and_then(|node| settings.text(node));
        fields.insert("tls".to_owned(), json!({"verify": trusts_all.as_deref() != Some("true")}));
    }
    if let Some(most) = client("pool.max-connections").and_then(|node| settings.text(node))
        && let Ok(most) = most.parse::<u32>()
        && most > 0
    {
        fields.insert("limits".to_owned(), json!({"max_requests_per_node": most}));
    }
    ConvertedTarget { fields, missing }
}

/// The nodes of a service: instances in the file, or a registry.
fn service(
    name: &str,
    scheme: &'static str,
    settings: &Settings<'_>,
    fields: &mut Map<String, Value>,
) -> (&'static str, Option<String>) {
    if let Some((scheme, nodes)) = instances(name, settings) {
        fields.insert("nodes".to_owned(), nodes);
        return (scheme, None);
    }
    let Some((kind, service, args)) = registry(name, settings) else {
        fields.insert("nodes".to_owned(), json!([]));
        let text = format!(
            "The file has no instances and no registry for `{name}`: clients get 503 until the upstream has nodes."
        );
        return (scheme, Some(text));
    };
    fields.insert("service_name".to_owned(), service.into());
    fields.insert("discovery_type".to_owned(), kind.into());
    if !args.is_null() {
        fields.insert("discovery_args".to_owned(), args);
    }
    (scheme, None)
}

/// Services with instances in the file.
pub(super) fn known_services(settings: &Settings<'_>) -> Vec<String> {
    let node = settings.find("spring.cloud.discovery.client.simple.instances");
    node.map(|node| node.members().iter().map(|(name, _)| name.clone()).collect()).unwrap_or_default()
}

fn instances(name: &str, settings: &Settings<'_>) -> Option<(&'static str, Value)> {
    let node = settings.find("spring.cloud.discovery.client.simple.instances")?;
    let (_, list) = node.members().iter().find(|(key, _)| relaxed(key) == relaxed(name))?;
    let mut nodes = Vec::new();
    let mut kind = "http";
    for instance in list.elements() {
        let at = find_in(instance, "uri").and_then(|node| settings.text(node));
        let found = match at {
            Some(text) => Uri::read(&text).ok(),
            None => {
                let text = |name: &str| find_in(instance, name).and_then(|node| settings.text(node));
                let is_secure = text("secure").is_some_and(|text| text == "true");
                let scheme = if is_secure { "https" } else { "http" };
                let port = text("port").and_then(|text| text.parse().ok());
                text("host").map(|host| Uri::Node { scheme, host, port: port.unwrap_or(80) })
            }
        };
        if let Some(Uri::Node { scheme, host, port }) = found {
            kind = scheme;
            nodes.push(json!({"host": host, "port": port, "weight": 1}));
        }
    }
    (!nodes.is_empty()).then(|| (kind, Value::Array(nodes)))
}

/// The kind of the registry, the service's name there, and arguments.
fn registry(name: &str, settings: &Settings<'_>) -> Option<(&'static str, String, Value)> {
    if settings.find("eureka.client").is_some() || settings.find("eureka.instance").is_some() {
        return Some(("eureka", name.to_ascii_uppercase(), Value::Null));
    }
    if settings.find("spring.cloud.consul").is_some() {
        return Some(("consul", name.to_owned(), Value::Null));
    }
    if settings.find("spring.cloud.nacos").is_some() {
        let mut args = Map::new();
        for (ours, theirs) in [("namespace_id", "namespace"), ("group_name", "group")] {
            if let Some(text) = settings.text_at(&format!("spring.cloud.nacos.discovery.{theirs}")) {
                args.insert(ours.to_owned(), text.into());
            }
        }
        let args = if args.is_empty() { Value::Null } else { Value::Object(args) };
        return Some(("nacos", name.to_owned(), args));
    }
    if settings.find("spring.cloud.kubernetes").is_some() {
        let namespace = settings.text_at("spring.cloud.kubernetes.discovery.namespaces[0]");
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        return Some(("kubernetes", format!("{namespace}/{name}:http"), Value::Null));
    }
    None
}

/// The setting `discovery` for the registry of the file.
pub(super) fn discovery(settings: &Settings<'_>) -> Option<Value> {
    let list = |text: String| -> Vec<String> {
        text.split(',')
            .map(|part| part.trim().trim_end_matches('/').to_owned())
            .filter(|part| !part.is_empty())
            .collect()
    };
    if settings.find("eureka.client").is_some() || settings.find("eureka.instance").is_some() {
        let zones = settings.find("eureka.client.service-url");
        let zone = zones.and_then(|node| node.members().first()).and_then(|(_, node)| settings.text(node));
        let urls = list(zone.unwrap_or_else(|| "http://localhost:8761/eureka/".to_owned()));
        let prefix =
            urls.first().and_then(|url| url.split_once("://")).and_then(|(_, rest)| rest.split_once('/'));
        let prefix = prefix.map_or("/".to_owned(), |(_, path)| format!("/{path}/"));
        let hosts: Vec<String> = urls.iter().map(|url| origin(url)).collect();
        return Some(json!({"eureka": {"host": hosts, "prefix": prefix}}));
    }
    if settings.find("spring.cloud.consul").is_some() {
        let text = |name: &str| settings.text_at(&format!("spring.cloud.consul.{name}"));
        let host = text("host").unwrap_or_else(|| "localhost".to_owned());
        let port = text("port").unwrap_or_else(|| "8500".to_owned());
        let mut consul = json!({"servers": [format!("http://{host}:{port}")]});
        if let Some(token) = text("discovery.acl-token").or_else(|| text("config.acl-token")) {
            consul["token"] = token.into();
        }
        return Some(json!({"consul": consul}));
    }
    if settings.find("spring.cloud.nacos").is_some() {
        let text = |name: &str| {
            settings
                .text_at(&format!("spring.cloud.nacos.discovery.{name}"))
                .or_else(|| settings.text_at(&format!("spring.cloud.nacos.{name}")))
        };
        let servers = list(text("server-addr").unwrap_or_else(|| "localhost:8848".to_owned()));
        let login =
            text("username").zip(text("password")).map(|(user, password)| format!("{user}:{password}@"));
        let login = login.unwrap_or_default();
        let hosts: Vec<String> = servers
            .iter()
            .map(|server| {
                format!("http://{login}{}", server.split_once("://").map_or(server.as_str(), |it| it.1))
            })
            .collect();
        return Some(json!({"nacos": {"host": hosts}}));
    }
    None
}

/// Scheme and authority of a URL.
fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    format!("{scheme}://{}", rest.split('/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_nodes_or_services() {
        let node = |scheme, host: &str, port| Ok(Uri::Node { scheme, host: host.to_owned(), port });
        assert_eq!(Uri::read("http://127.0.0.1:80/ignored"), node("http", "127.0.0.1", 80));
        assert_eq!(Uri::read("wss://a.example"), node("https", "a.example", 443));
        assert_eq!(Uri::read("http://[::1]:8080"), node("http", "[::1]", 8080));
        let service = |scheme, name: &str| Ok(Uri::Service { scheme, name: name.to_owned() });
        assert_eq!(Uri::read("lb://users/x"), service("http", "users"));
        assert_eq!(Uri::read("lb:ws://chat"), service("http", "chat"));
        assert_eq!(Uri::read("no://op"), Ok(Uri::Nothing));
        assert_eq!(Uri::read("forward:/x"), Ok(Uri::Forward("/x".to_owned())));
        assert!(Uri::read("http://${HOST}").is_err());
        assert!(Uri::read("ftp://a").is_err());
    }
}
