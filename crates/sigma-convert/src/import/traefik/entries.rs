//! Static settings: entry points as listeners, and the settings of the process.

use serde_json::{Map, Value, json};

use super::super::decision::Listener;
use super::super::source::SourceLine;
use super::super::tree::Tree;
use super::fields::{at, field, is_true, member, number, seconds, text, texts};
use super::model::{Located, Model};

/// An entry point.
#[derive(Debug, Clone)]
pub(super) struct EntryPoint {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) is_udp: bool,
    pub(super) is_default: bool,
    /// Whether HTTP routers without `tls` have TLS here.
    pub(super) has_tls: bool,
    pub(super) tls_options: Option<String>,
    pub(super) middlewares: Vec<String>,
    pub(super) redirection: Option<Redirection>,
    pub(super) fields: Map<String, Value>,
}

/// The redirect of all requests of an entry point.
#[derive(Debug, Clone)]
pub(super) struct Redirection {
    pub(super) place: SourceLine,
    pub(super) to: String,
    pub(super) scheme: String,
    pub(super) permanent: bool,
    pub(super) priority: i64,
}

impl EntryPoint {
    pub(super) fn listener(&self) -> Listener {
        Listener { address: self.address.clone(), port: self.port, fields: self.fields.clone() }
    }
}

/// Returns the entry points; Traefik's default is port 80.
pub(super) fn entry_points(model: &mut Model<'_>, settings: &mut Map<String, Value>) -> Vec<EntryPoint> {
    let mut points: Vec<EntryPoint> = Vec::new();
    for Located { file, tree } in model.statics.clone() {
        for member in field(&tree, "entrypoints").map(Tree::members).unwrap_or_default() {
            let place = SourceLine { file, line: member.line };
            match entry_point(model, place, &member.key, &member.value, settings) {
                Ok(point) if points.iter().any(|known| known.name == point.name) => {
                    model.remarks.differs(place, "This entry point exists twice; the first one is used.");
                }
                Ok(point) => points.push(point),
                Err(reason) => model.remarks.gap(place, reason),
            }
        }
    }
    if points.is_empty() {
        points.push(EntryPoint::new("http", ":80", 80));
    }
    points
}

impl EntryPoint {
    fn new(name: &str, address: &str, port: u16) -> EntryPoint {
        EntryPoint {
            name: name.to_owned(),
            address: address.to_owned(),
            port,
            is_udp: false,
            is_default: false,
            has_tls: false,
            tls_options: None,
            middlewares: Vec::new(),
            redirection: None,
            fields: Map::new(),
        }
    }
}

fn entry_point(
    model: &mut Model<'_>,
    place: SourceLine,
    name: &str,
    conf: &Tree,
    settings: &mut Map<String, Value>,
) -> Result<EntryPoint, String> {
    let known = [
        "address",
        "allowacmebypass",
        "reuseport",
        "asdefault",
        "transport",
        "proxyprotocol",
        "forwardedheaders",
        "http",
        "http2",
        "http3",
        "udp",
        "observability",
    ];
    model.unknown(place.file, conf, &known);
    let address = text(conf, "address").ok_or("An entry point needs an address.")?;
    let (address, kind) = address.split_once('/').unwrap_or((address, "tcp"));
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port: u16 = port.ok_or_else(|| format!("`{address}` has no port."))?;
    let mut point = EntryPoint::new(name, address, port);
    point.is_udp = kind.eq_ignore_ascii_case("udp");
    point.is_default = is_true(conf, "asdefault");
    if is_true(conf, "reuseport") {
        point.fields.insert("shared".to_owned(), true.into());
    }
    let at_line = |tree: &Tree| SourceLine { file: place.file, line: tree.line };
    if let Some(http) = field(conf, "http") {
        http_part(model, place, http, &mut point);
    }
    if let Some(proxy) = field(conf, "proxyprotocol") {
        let trusted = match is_true(proxy, "insecure") {
            true => vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
            false => texts(proxy, "trustedips"),
        };
        point.fields.insert("proxy_protocol".to_owned(), json!({"trusted": trusted}));
        let text = "Connections of these peers must begin with a PROXY header; other connections must not.";
        model.remarks.guard_differs(at_line(proxy), text);
    }
    if let Some(forwarded) = field(conf, "forwardedheaders") {
        forwarded_headers(model, place, forwarded, settings);
    }
    if let Some(member) = member(conf, "http3") {
        model.remarks.gap(
            SourceLine { file: place.file, line: member.line },
            "HTTP/3 is not converted: set `http3: true` at the listener.",
        );
    }
    if let Some(transport) = field(conf, "transport") {
        transport_part(model, place, transport, settings);
    }
    if let Some(idle) = at(conf, &["udp", "timeout"]).and_then(Tree::text).and_then(super::fields::duration) {
        timeouts(settings).insert("stream_udp_idle_ms".to_owned(), number((idle * 1000.0).max(1.0)));
    }
    for name in ["http2", "observability", "allowacmebypass"] {
        if let Some(member) = member(conf, name) {
            model
                .remarks
                .no_effect(SourceLine { file: place.file, line: member.line }, "Sigma's own defaults apply.");
        }
    }
    Ok(point)
}

fn http_part(model: &mut Model<'_>, place: SourceLine, http: &Tree, point: &mut EntryPoint) {
    let known = [
        "redirections",
        "middlewares",
        "tls",
        "encodedcharacters",
        "encodequerysemicolons",
        "sanitizepath",
        "maxheaderbytes",
        "aliasheadersstrategy",
        "underscoreheadersstrategy",
    ];
    model.unknown(place.file, http, &known);
    point.middlewares = texts(http, "middlewares");
    if let Some(tls) = field(http, "tls") {
        point.has_tls = tls.boolean() != Some(false);
        point.tls_options = text(tls, "options").map(str::to_owned);
    }
    if let Some(redirect) = at(http, &["redirections", "entrypoint"]) {
        point.redirection = Some(Redirection {
            place: SourceLine { file: place.file, line: redirect.line },
            to: text(redirect, "to").unwrap_or_default().to_owned(),
            scheme: text(redirect, "scheme").unwrap_or("https").to_owned(),
            permanent: field(redirect, "permanent").and_then(Tree::boolean).unwrap_or(true),
            priority: field(redirect, "priority").and_then(Tree::integer).unwrap_or(i64::MAX - 1),
        });
    }
    if let Some(member) = member(http, "sanitizepath")
        && member.value.boolean() == Some(false)
    {
        let text =
            "Sigma matches the path without dot segments and doubled slashes, so guards cannot be evaded.";
        model.remarks.differs(SourceLine { file: place.file, line: member.line }, text);
    }
    for name in
        ["encodedcharacters", "encodequerysemicolons", "aliasheadersstrategy", "underscoreheadersstrategy"]
    {
        if let Some(member) = member(http, name) {
            let text = "Sigma has one setting for all characters: see `router.ambiguous_paths` and `underscores_in_headers`.";
            model.remarks.differs(SourceLine { file: place.file, line: member.line }, text);
        }
    }
}

fn forwarded_headers(
    model: &mut Model<'_>,
    place: SourceLine,
    conf: &Tree,
    settings: &mut Map<String, Value>,
) {
    let mut trusted = texts(conf, "trustedips");
    if is_true(conf, "insecure") {
        trusted = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    }
    if let Some(member) = member(conf, "connection") {
        model.remarks.gap(
            SourceLine { file: place.file, line: member.line },
            "Sigma removes fields that Connection names.",
        );
    }
    let list = settings.entry("trusted_addresses").or_insert_with(|| json!([]));
    if let Value::Array(list) = list {
        list.extend(trusted.into_iter().map(Value::from));
        list.dedup();
    }
    let text = "Peers are trusted on all listeners, not on this entry point alone.";
    model.remarks.guard_differs(SourceLine { file: place.file, line: conf.line }, text);
}

fn timeouts(settings: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let value = settings.entry("timeouts").or_insert_with(|| json!({}));
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was made an object"),
    }
}

fn transport_part(model: &mut Model<'_>, place: SourceLine, conf: &Tree, settings: &mut Map<String, Value>) {
    let at_line = |tree: &Tree| SourceLine { file: place.file, line: tree.line };
    for (path, key) in [
        (["respondingtimeouts", "readtimeout"], "request_body_ms"),
        (["respondingtimeouts", "idletimeout"], "keepalive_ms"),
        (["lifecycle", "gracetimeout"], "drain_ms"),
    ] {
        if let Some(found) = at(conf, &path)
            && let Some(value) = found.text().and_then(super::fields::duration)
        {
            timeouts(settings).insert(key.to_owned(), number((value * 1000.0).round()));
            model.remarks.differs(at_line(found), "It applies to all listeners.");
        }
    }
    for path in [["respondingtimeouts", "writetimeout"], ["lifecycle", "requestacceptgracetimeout"]] {
        if let Some(found) = at(conf, &path) {
            model
                .remarks
                .no_effect(at_line(found), "Sigma limits the wait for a client, not the whole response.");
        }
    }
    if let Some(requests) = field(conf, "keepalivemaxrequests").and_then(Tree::integer).filter(|it| *it > 0) {
        settings.insert("limits".to_owned(), json!({"keepalive_requests": requests}));
    }
}

/// Settings of the process besides the entry points.
pub(super) fn process(model: &mut Model<'_>, settings: &mut Map<String, Value>) {
    for Located { file, tree } in model.statics.clone() {
        let known = [
            "global",
            "serverstransport",
            "tcpserverstransport",
            "entrypoints",
            "providers",
            "api",
            "metrics",
            "ping",
            "log",
            "accesslog",
            "tracing",
            "hostresolver",
            "certificatesresolvers",
            "experimental",
            "core",
            "spiffe",
            "ocsp",
            "http",
            "tcp",
            "udp",
            "tls",
            "pilot",
        ];
        model.unknown(file, &tree, &known);
        if let Some(level) = at(&tree, &["log", "level"]).and_then(Tree::text) {
            let level = match level.to_ascii_lowercase().as_str() {
                "fatal" | "panic" => "error".to_owned(),
                other => other.to_owned(),
            };
            if ["error", "warn", "info", "debug", "trace"].contains(&level.as_str()) {
                settings.insert("error_log".to_owned(), json!({"level": level}));
            }
        }
        access_log(model, file, &tree, settings);
        for (name, text) in [
            ("api", "See the dashboard and the Control API: `admin` and `control`."),
            ("metrics", "Use the plugin prometheus and `plugin_attr.prometheus.export_addr`."),
            ("tracing", "Use the plugin opentelemetry in a global rule."),
            ("ping", "Use `status: { address: … }`; its path is /status/ready."),
            ("experimental", "Plugins of Traefik cannot run here."),
            ("spiffe", "Name certificates in `ssls`."),
            ("hostresolver", "Hosts are compared as clients send them."),
        ] {
            if let Some(member) = member(&tree, name) {
                model.remarks.gap(SourceLine { file, line: member.line }, text);
            }
        }
        for name in ["global", "ocsp"] {
            if let Some(member) = member(&tree, name) {
                model.remarks.no_effect(
                    SourceLine { file, line: member.line },
                    "It has no counterpart and needs none.",
                );
            }
        }
        providers(model, file, &tree);
    }
}

fn access_log(model: &mut Model<'_>, file: u16, tree: &Tree, settings: &mut Map<String, Value>) {
    let Some(log) = member(tree, "accesslog") else { return };
    if log.value.boolean() == Some(false) {
        return;
    }
    let path = text(&log.value, "filepath").unwrap_or("stdout");
    let mut value = json!({"path": path});
    if text(&log.value, "format") == Some("json") {
        value["format"] = "json".into();
    }
    settings.insert("access_log".to_owned(), value);
    model.remarks.differs(
        SourceLine { file, line: log.line },
        "Log lines have Sigma's own fields: see `access_log.format`.",
    );
    let _ = seconds(&log.value, "bufferingsize");
}

fn providers(model: &mut Model<'_>, file: u16, tree: &Tree) {
    for member in field(tree, "providers").map(Tree::members).unwrap_or_default() {
        let place = SourceLine { file, line: member.line };
        match member.key.to_ascii_lowercase().as_str() {
            "file" => {}
            "docker" | "swarm" => {
                let text =
                    "Labels of these compose files are converted once; Sigma does not watch containers.";
                model.remarks.differs(place, text);
            }
            "providersthrottleduration" | "precedence" => {
                model.remarks.no_effect(place, "It has no counterpart and needs none.");
            }
            _ => model.remarks.gap(place, "Routes of this provider are not in the files: add them by hand."),
        }
    }
}
