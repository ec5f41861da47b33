//! Sigma 0.1.0-alpha: `sigma.json` and the `options.json` beside it.
//!
//! One listener, routers bound to it by id, routes tried in their order, proxy passes that name
//! an upstream and may rewrite the path. Each proxy pass becomes an upstream of its own, since
//! each counts its round robin for itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::keys::{Place, Report, Unknown};
use super::pass::{Pass, proxy_passes, upstreams};
use super::{is_id, vertx};
use crate::forms::METHODS;

/// `Server` of the original.
const SERVER_HEADER: &str = "SIGMA/0.1.0-alpha";

/// Where the original wrote access lines, relative to the working directory.
const ACCESS_LOG: &str = "log/access.log";

/// The original's access line.
const ACCESS_FORMAT: &str = "$remote_addr:$remote_port - [$time_iso8601] \"$request\" $status \"${request_time_ms}ms\" $body_bytes_sent \"$http_user_agent\" \"$http_referer\" \"$http_x_forwarded_for\"";

/// Connections per node unless `max-pool-size-per-server` says otherwise.
const DEFAULT_POOL_SIZE: u64 = 20;

/// Keys of `VertxOptions`.
const OPTIONS: [&str; 25] = [
    "addressResolverOptions",
    "blockedThreadCheckInterval",
    "blockedThreadCheckIntervalUnit",
    "disableTCCL",
    "eventBusOptions",
    "eventLoopPoolSize",
    "fileSystemOptions",
    "haEnabled",
    "haGroup",
    "quorumSize",
    "internalBlockingPoolSize",
    "workerPoolSize",
    "maxEventLoopExecuteTime",
    "maxEventLoopExecuteTimeUnit",
    "maxWorkerExecuteTime",
    "maxWorkerExecuteTimeUnit",
    "warningExceptionTime",
    "warningExceptionTimeUnit",
    "metricsOptions",
    "tracingOptions",
    "preferNativeTransport",
    "useDaemonThread",
    "clusterManager",
    "clustered",
    "clusterHost",
];

/// Translates the document; what comes back is only used if the report has no errors.
pub(super) fn translate(root: &Place<'_>, report: &mut Report<'_>) -> Map<String, Value> {
    let known = ["proxy-server", "proxy-client", "router", "proxy-pass", "upstream", "plugins"];
    report.unknown(root, &known, Unknown::Refused);
    let server = proxy_server(root, report);
    let pool_size = proxy_client(root, report);
    let log_config = plugins(root, report);
    let routers = routers(root, server.id.as_deref(), report);
    let used: BTreeSet<&str> = routers.routes.iter().map(|route| route.pass.as_str()).collect();
    let nodes = upstreams(root, report);
    let passes = proxy_passes(root, &nodes, &used, report);
    let routes = write_routes(&routers.routes, &passes, server.id.as_deref(), report);
    let upstreams: Vec<Value> = passes.values().flatten().map(|pass| pass.upstream(pool_size)).collect();

    let mut target = Map::new();
    let mut listener = json!({"address": format!("0.0.0.0:{}", server.port.unwrap_or_default())});
    if let Some(id) = &server.id {
        listener["name"] = id.as_str().into();
    }
    target.insert("listeners".into(), json!([listener]));
    target.insert("router".into(), json!({"http": "radixtree_uri_with_parameter"}));
    if routers.trusts_forwarding {
        target.insert("trusted_addresses".into(), json!(["0.0.0.0/0", "::/0"]));
    }
    if log_config {
        target.insert("access_log".into(), json!({"path": ACCESS_LOG, "format": ACCESS_FORMAT}));
    }
    target.insert("server_header".into(), SERVER_HEADER.into());
    target.insert("routes".into(), routes.into());
    target.insert("upstreams".into(), upstreams.into());
    target
}

/// Reads `options.json`: settings of the Vert.x runtime, none of which has a counterpart.
pub(super) fn options(root: &Place<'_>, report: &mut Report<'_>) {
    let Some(members) = root.value.as_object() else {
        report.error(
            "",
            "type",
            "the document of -options is not an object",
            "write {} or leave -options out",
        );
        return;
    };
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        members.keys().map(String::as_str).partition(|key| OPTIONS.contains(key));
    if !known.is_empty() {
        let message = format!("-options: accepted, without effect: {}", known.join(", "));
        report.warn("", "without_effect", message, "-options may be left out");
    }
    for key in unknown {
        let message = format!("-options: unknown key `{key}`, without effect");
        report.warn(&root.pointer_of(key), "unknown_key", message, "remove it");
    }
}

/// What is left of `proxy-server`.
struct Server {
    id: Option<String>,
    port: Option<u64>,
}

fn proxy_server(root: &Place<'_>, report: &mut Report<'_>) -> Server {
    let none = Server { id: None, port: None };
    let Some(server) = report.object(root, "proxy-server") else { return none };
    report.unknown(&server, &["http", "https"], Unknown::Refused);
    https(&server, report);
    let Some(http) = report.object(&server, "http") else {
        if server.get("http").is_none() {
            report.missing(&server, "http");
        }
        return none;
    };
    report.unknown(&http, &["id", "server-id", "desc", "port", "plugin"], Unknown::Refused);
    report.inert(&http, &["server-id", "desc"]);
    if http.get("port").is_none() {
        report.missing(&http, "port");
    }
    if let Some(plugin) = report.object(&http, "plugin") {
        server_plugin(&plugin, report);
    }
    Server { id: report.required_text(&http, "id"), port: report.number(&http, "port", 0..=65535) }
}

fn https(server: &Place<'_>, report: &mut Report<'_>) {
    let Some(https) = report.object(server, "https") else { return };
    let known = ["enable", "port", "id", "server-id", "desc", "ssl", "plugin"];
    report.unknown(&https, &known, Unknown::Ignored);
    if report.flag(&https, "enable", false) {
        // Left out, its clients would find a closed port or, worse, cleartext.
        report.error(
            &https.pointer_of("enable"),
            "unsupported",
            "`proxy-server.https` is enabled: a TLS listener is not supported in this version yet",
            "set `enable` to false, or terminate TLS in front of this gateway",
        );
    }
}

fn server_plugin(plugin: &Place<'_>, report: &mut Report<'_>) {
    report.unknown(plugin, &["gzip", "static-resources"], Unknown::Ignored);
    absent_plugin(plugin, "gzip", "responses are not compressed", report);
    absent_plugin(plugin, "static-resources", "no files are served under /static/", report);
}

/// Warns if the plugin `key` is enabled; `consequence` says what does not happen.
fn absent_plugin(plugins: &Place<'_>, key: &str, consequence: &str, report: &mut Report<'_>) {
    let Some(plugin) = report.object(plugins, key) else { return };
    if report.flag(&plugin, "enable", false) {
        let message = format!("`{key}` is not supported in this version yet: {consequence}");
        report.warn(
            &plugin.pointer,
            "unsupported",
            message,
            "set `enable` to false once you have made up for it elsewhere",
        );
    }
}

/// The pool size per node.
fn proxy_client(root: &Place<'_>, report: &mut Report<'_>) -> u64 {
    let Some(client) = report.object(root, "proxy-client") else { return DEFAULT_POOL_SIZE };
    report.unknown(&client, &["ssl", "max-pool-size-per-server"], Unknown::Ignored);
    if report.flag(&client, "ssl", false) {
        // Left out, what was encrypted would go out in cleartext.
        report.error(
            &client.pointer_of("ssl"),
            "unsupported",
            "`proxy-client.ssl` is on: TLS to upstream nodes is not supported in this version yet",
            "set it to false if the nodes answer cleartext HTTP on a trusted network",
        );
    }
    report.number(&client, "max-pool-size-per-server", 1..=u64::from(u32::MAX)).unwrap_or(DEFAULT_POOL_SIZE)
}

/// Whether access lines are written.
fn plugins(root: &Place<'_>, report: &mut Report<'_>) -> bool {
    let Some(plugins) = report.object(root, "plugins") else { return false };
    report.unknown(&plugins, &["http-redirect-https", "log-config"], Unknown::Ignored);
    if report.flag(&plugins, "http-redirect-https", false) {
        // Left out, requests meant to be redirected would be served in cleartext.
        report.error(
            &plugins.pointer_of("http-redirect-https"),
            "unsupported",
            "`http-redirect-https` is on: redirecting to HTTPS is not supported in this version yet",
            "set it to false if serving cleartext HTTP is meant",
        );
    }
    report.flag(&plugins, "log-config", false)
}

/// A route that is in force, in the order of the document.
struct Route {
    pointer: String,
    /// The members that stand on their own.
    written: Map<String, Value>,
    matching: vertx::Entry,
    /// A host pattern as Vert.x reads it: `*` anywhere stands for any text.
    virtual_host: Option<String>,
    pass: String,
    pass_pointer: String,
}

/// What the routers of the listener say together.
struct Routers {
    routes: Vec<Route>,
    trusts_forwarding: bool,
}

fn routers(root: &Place<'_>, listener: Option<&str>, report: &mut Report<'_>) -> Routers {
    let mut routes = Vec::new();
    let mut forwarding: Vec<(String, &'static str)> = Vec::new();
    let mut in_force = 0;
    for router in report.objects(root, "router") {
        let known = [
            "id",
            "desc",
            "enable",
            "proxy-server-id",
            "route",
            "plugin",
            "virtual-host",
            "allow-forward",
            "sub-router",
        ];
        report.unknown(&router, &known, Unknown::Refused);
        report.inert(&router, &["desc", "sub-router"]);
        let allow_forward = allow_forward(&router, report);
        let virtual_host = report.text(&router, "virtual-host").filter(|host| !host.is_empty());
        let server_id = report.text(&router, "proxy-server-id").unwrap_or_default();
        let enabled = report.flag(&router, "enable", false);
        if enabled && listener.is_some_and(|listener| listener != server_id) {
            let message = format!(
                "the router serves `{server_id}`, which no listener in force is called: it is left out"
            );
            let hint = "give `proxy-server-id` the id of `proxy-server.http`, or disable the router";
            report.warn(&router.pointer_of("proxy-server-id"), "reference", message, hint);
        }
        let is_used = enabled && listener.is_none_or(|listener| listener == server_id);
        if is_used {
            in_force += 1;
            forwarding.push((router.pointer_of("allow-forward"), allow_forward));
            if let Some(plugin) = report.object(&router, "plugin") {
                router_plugin(&plugin, report);
            }
        }
        for route in report.objects(&router, "route") {
            routes.extend(read_route(&route, virtual_host.as_deref(), is_used, report));
        }
    }
    if in_force == 0 {
        let message = "no enabled router serves the listener `proxy-server.http`";
        report.error(
            "router",
            "reference",
            message,
            "add a router whose `proxy-server-id` is the listener's `id`, with `enable` true",
        );
    }
    Routers { routes, trusts_forwarding: trusts_forwarding(&forwarding, report) }
}

fn allow_forward(router: &Place<'_>, report: &mut Report<'_>) -> &'static str {
    let known = ["NONE", "FORWARD", "X_FORWARD", "ALL"];
    let Some(word) = report.text(router, "allow-forward") else { return "NONE" };
    match known.into_iter().find(|known| *known == word) {
        Some(known) => known,
        None => {
            let message = format!("`allow-forward` cannot be `{word}`");
            report.error(
                &router.pointer_of("allow-forward"),
                "type",
                message,
                "write NONE, FORWARD, X_FORWARD or ALL",
            );
            "NONE"
        }
    }
}

/// Trust is one setting of the process: where routers differ, the one that believes less wins.
fn trusts_forwarding(routers: &[(String, &'static str)], report: &mut Report<'_>) -> bool {
    let trusts = |word: &str| matches!(word, "X_FORWARD" | "ALL");
    for (pointer, word) in routers {
        if *word == "FORWARD" {
            let message = "forwarding headers are believed all or not at all: with FORWARD, none is believed";
            report.warn(
                pointer,
                "approximate",
                message,
                "write ALL to believe `Forwarded` and X-Forwarded-*",
            );
        }
    }
    let trusting: Vec<&String> =
        routers.iter().filter(|(_, word)| trusts(word)).map(|(pointer, _)| pointer).collect();
    if let Some(pointer) = trusting.first().filter(|_| trusting.len() < routers.len()) {
        let message = "routers of one listener differ in `allow-forward`: no forwarding header is believed";
        report.warn(pointer, "approximate", message, "give all routers the same `allow-forward`");
        return false;
    }
    !trusting.is_empty()
}

fn router_plugin(plugin: &Place<'_>, report: &mut Report<'_>) {
    report.unknown(
        plugin,
        &["x-frame", "cors", "hsts", "csp", "metadata", "sub-router", "log-config"],
        Unknown::Ignored,
    );
    report.inert(plugin, &["metadata", "sub-router", "log-config"]);
    absent_plugin(plugin, "cors", "origins are not checked and preflights go to the upstream", report);
    absent_plugin(plugin, "hsts", "Strict-Transport-Security is not sent", report);
    absent_plugin(plugin, "csp", "Content-Security-Policy is not sent", report);
    let pointer = plugin.pointer_of("x-frame");
    match report.text(plugin, "x-frame").map(|word| word.to_ascii_uppercase()).as_deref() {
        None | Some("NONE") => {}
        Some("SAMEORIGIN" | "DENY") => {
            let message = "`x-frame` is not supported in this version yet: X-Frame-Options is not sent";
            report.warn(&pointer, "unsupported", message, "let the upstream send it, and write NONE here");
        }
        Some(word) => {
            let message = format!("`x-frame` cannot be `{word}`: no header is sent");
            report.warn(&pointer, "type", message, "write NONE, SAMEORIGIN or DENY");
        }
    }
}

fn read_route(
    route: &Place<'_>,
    virtual_host: Option<&str>,
    is_used: bool,
    report: &mut Report<'_>,
) -> Option<Route> {
    let known = ["id", "desc", "enable", "path", "allow-method", "consumes", "produces", "proxy-pass-id"];
    report.unknown(route, &known, Unknown::Refused);
    if !report.flag(route, "enable", false) || !is_used {
        return None;
    }
    let mut written = Map::new();
    if let Some(id) = report.text(route, "id").filter(|id| !id.is_empty()) {
        written.insert(if is_id(&id) { "id" } else { "name" }.into(), id.into());
    }
    if let Some(desc) = report.text(route, "desc").filter(|desc| (1..=256).contains(&desc.chars().count())) {
        written.insert("desc".into(), desc.into());
    }
    let methods = allow_method(route, report);
    let media = |key, report: &mut Report<'_>| -> Vec<String> {
        let types = report.texts(route, key).into_iter().map(|(text, _)| text.trim().to_ascii_lowercase());
        // A subtype alone stands for any type with it.
        types.map(|text| if text.contains('/') { text } else { format!("*/{text}") }).collect()
    };
    let (consumes, produces) = (media("consumes", report), media("produces", report));
    let conditional = !(methods.is_empty() && consumes.is_empty() && produces.is_empty());
    for (key, values) in [("methods", methods), ("consumes", consumes), ("produces", produces)] {
        if !values.is_empty() {
            written.insert(key.into(), values.into());
        }
    }
    let pass = report.required_text(route, "proxy-pass-id");
    let text = report.required_text(route, "path")?;
    let path = match vertx::Path::parse(&text) {
        Ok(path) => path,
        Err(error) => {
            report.error(
                &route.pointer_of("path"),
                "path",
                error,
                "write a path such as /test, /test/* or /users/:id",
            );
            return None;
        }
    };
    let virtual_host = virtual_host.filter(|host| *host != "*").map(str::to_ascii_lowercase);
    Some(Route {
        pointer: route.pointer.clone(),
        written,
        matching: vertx::Entry { path, host: virtual_host.clone(), conditional },
        virtual_host,
        pass: pass?,
        pass_pointer: route.pointer_of("proxy-pass-id"),
    })
}

fn allow_method(route: &Place<'_>, report: &mut Report<'_>) -> Vec<String> {
    let mut methods = Vec::new();
    for (name, pointer) in report.texts(route, "allow-method") {
        let method = name.to_ascii_uppercase();
        if !METHODS.contains(&method.as_str()) {
            let message = format!("`{name}` is no method that a route can name; it is dropped");
            report.warn(&pointer, "unknown_method", message, format!("one of {}", METHODS.join(", ")));
        } else if !methods.contains(&method) {
            methods.push(method);
        }
    }
    methods
}

fn write_routes(
    routes: &[Route],
    passes: &BTreeMap<String, Option<Pass>>,
    listener: Option<&str>,
    report: &mut Report<'_>,
) -> Vec<Value> {
    let entries: Vec<&vertx::Entry> = routes.iter().map(|route| &route.matching).collect();
    let mut ids = BTreeSet::new();
    let mut written = Vec::new();
    for (index, (route, placing)) in routes.iter().zip(vertx::arrange(&entries)).enumerate() {
        let Some(pass) = passes.get(&route.pass) else {
            let message = format!("there is no proxy pass `{}`", route.pass);
            report.error(&route.pass_pointer, "reference", message, "name an `id` of the list `proxy-pass`");
            continue;
        };
        let Some(pass) = pass else { continue };
        let (uris, path_regex) = match placing {
            vertx::Placing::Native(uris) => (uris, None),
            vertx::Placing::Under(uri, regex) => (vec![uri], Some(regex)),
            vertx::Placing::Unreachable(by) => {
                let message = format!(
                    "the route is never chosen: {} before it takes all its requests; it is left out",
                    routes[by].pointer
                );
                report.warn(&route.pointer, "shadowed", message, "move it before the other, or remove it");
                continue;
            }
        };
        let mut target = route.written.clone();
        if let Some(id) = target.get("id").and_then(Value::as_str).map(str::to_owned)
            && !ids.insert(id.clone())
        {
            target.remove("id");
            target.insert("name".into(), id.into());
        }
        match <[String; 1]>::try_from(uris) {
            Ok([uri]) => target.insert("uri".into(), uri.into()),
            Err(uris) => target.insert("uris".into(), uris.into()),
        };
        // Vert.x tries routes in the order of the list.
        target.insert("priority".into(), (routes.len() - index).into());
        let mut vars: Vec<Value> = path_regex.into_iter().map(|regex| json!(["uri", "~~", regex])).collect();
        match route.virtual_host.as_deref().map(host_condition) {
            None => {}
            Some(HostCondition::Pattern(host)) => drop(target.insert("hosts".into(), json!([host]))),
            Some(HostCondition::Regex(regex)) => vars.push(json!(["host", "~~", regex])),
        }
        if !vars.is_empty() {
            target.insert("vars".into(), vars.into());
        }
        target.insert("method_not_allowed".into(), true.into());
        if let Some(listener) = listener {
            target.insert("listeners".into(), json!([listener]));
        }
        if let Some(rewrite) = &pass.rewrite {
            target.insert("rewrite".into(), rewrite.clone());
        }
        target.insert("upstream_id".into(), pass.id.as_str().into());
        target.insert("enable_websocket".into(), true.into());
        written.push(Value::Object(target));
    }
    written
}

/// How a host pattern is said in Sigma's format.
enum HostCondition {
    Pattern(String),
    Regex(String),
}

/// Sigma's host patterns have a star at the beginning only.
fn host_condition(virtual_host: &str) -> HostCondition {
    if !virtual_host.strip_prefix('*').unwrap_or(virtual_host).contains('*') {
        return HostCondition::Pattern(virtual_host.to_owned());
    }
    HostCondition::Regex(format!("^{}$", regex::escape(virtual_host).replace(r"\*", ".*")))
}
