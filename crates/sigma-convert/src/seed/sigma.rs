//! Sigma 0.1.0-alpha: `sigma.json` and its `options.json`.
//!
//! The file has one or two listeners, routers bound to them by id, routes tried in order, and proxy passes that name an
//! upstream and may rewrite the path. Each proxy pass becomes its own upstream, because each has its own round robin.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::keys::{Report, SourceValue, Unknown};
use super::pass::{Client, Pass, proxy_passes, upstreams};
use super::server::Listener;
use super::{is_id, router_plugin, server, vertx};
use sigma_schema::forms::METHODS;

/// The `Server` header of the original.
const SERVER_HEADER: &str = "SIGMA/0.1.0-alpha";

/// The access log of the original, relative to the working directory.
const ACCESS_LOG: &str = "log/access.log";

/// The application log of the original, relative to the working directory.
const ERROR_LOG: &str = "log/sigma.log";

/// The access log format of the original.
const ACCESS_FORMAT: &str = "$remote_addr:$remote_port - [$time_iso8601] \"$request\" $status \"${request_time_ms}ms\" $body_bytes_sent \"$http_user_agent\" \"$http_referer\" \"$http_x_forwarded_for\"";

/// Connections per node if `max-pool-size-per-server` is absent.
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

/// Translates the document; the result is only used if the report has no errors.
pub(super) fn translate(root: &SourceValue<'_>, report: &mut Report<'_>) -> Map<String, Value> {
    let known = ["proxy-server", "proxy-client", "router", "proxy-pass", "upstream", "plugins"];
    report.unknown(root, &known, Unknown::Refused);
    let client = proxy_client(root, report);
    let plugins = plugins(root, report);
    let listeners = server::listeners(root, plugins.redirects, report);
    let routers = routers(root, &listeners, report);
    let used: BTreeSet<&str> = routers.routes.iter().filter_map(Route::pass).collect();
    let nodes = upstreams(root, client.scheme, report);
    let passes = proxy_passes(root, &nodes, &used, report);
    let mut routes = Vec::new();
    let mut ids = BTreeSet::new();
    for listener in &listeners {
        if listener.redirects {
            routes.push(Value::Object(listener.redirect()));
            continue;
        }
        let own: Vec<&Route> = routers.routes.iter().filter(|route| route.listener == listener.id).collect();
        routes.extend(write_routes(&own, &passes, listener, &mut ids, report));
    }
    let upstreams: Vec<Value> = passes.values().flatten().map(|pass| pass.upstream(&client)).collect();

    let mut target = Map::new();
    target.insert("listeners".into(), listeners.iter().map(Listener::written).collect::<Vec<_>>().into());
    target.insert("router".into(), json!({"http": "radixtree_uri_with_parameter"}));
    if routers.trusts_forwarding {
        target.insert("trusted_addresses".into(), json!(["0.0.0.0/0", "::/0"]));
    }
    if plugins.logs {
        target.insert("access_log".into(), json!({"path": ACCESS_LOG, "format": ACCESS_FORMAT}));
    }
    target.insert("server_header".into(), SERVER_HEADER.into());
    target.insert("routes".into(), routes.into());
    target.insert("upstreams".into(), upstreams.into());
    target
}

/// Runs the gateway in the background: its log is the original's file, rolled by day and size.
pub(super) fn go_to_background(document: &mut Value) {
    document["process"] = json!({ "daemon": true });
    document["error_log"] = json!({ "path": ERROR_LOG, "level": "info" });
    let rotation =
        json!({ "interval": 86_400, "max_size": 10 << 20, "max_kept": 7, "enable_compression": true });
    document["plugin_attr"] = json!({ "log-rotate": rotation });
}

/// Reads `options.json`, settings of the Vert.x runtime, into `target`: the number of event loops becomes the number of
/// workers, unless the command line has one, and the resolver's servers and times become `dns`.
pub(super) fn options(root: &SourceValue<'_>, target: &mut Map<String, Value>, report: &mut Report<'_>) {
    let Some(members) = root.value.as_object() else {
        report.error("", "type", "the document of -options is not an object", "write {} or remove -options");
        return;
    };
    if let Some(loops) = report.number(root, "eventLoopPoolSize", 1..=u64::from(u16::MAX)) {
        target.entry("workers").or_insert_with(|| loops.into());
    }
    resolver(root, target, report);
    let (known, unknown): (Vec<&str>, Vec<&str>) = members
        .keys()
        .map(String::as_str)
        .filter(|key| !["eventLoopPoolSize", "addressResolverOptions"].contains(key))
        .partition(|key| OPTIONS.contains(key));
    if !known.is_empty() {
        let message = format!("-options: accepted, without effect: {}", known.join(", "));
        report.warn("", "without_effect", message, "-options may be omitted");
    }
    for key in unknown {
        let message = format!("-options: unknown field `{key}`, without effect");
        report.warn(&root.pointer_of(key), "unknown_key", message, "remove it");
    }
}

/// Reads the resolver's options.
fn resolver(root: &SourceValue<'_>, target: &mut Map<String, Value>, report: &mut Report<'_>) {
    const KNOWN: [&str; 4] = ["servers", "cacheMinTimeToLive", "cacheMaxTimeToLive", "queryTimeout"];
    let Some(resolver) = report.object(root, "addressResolverOptions") else { return };
    let mut dns = Map::new();
    let servers = report.texts(&resolver, "servers");
    let servers: Vec<Value> = servers.into_iter().map(|(server, _)| server.into()).collect();
    if !servers.is_empty() {
        dns.insert("servers".into(), servers.into());
    }
    // Sigma queries a name again after a second at the earliest, and after a week at the latest.
    for (key, name, least, most) in [
        ("cacheMinTimeToLive", "ttl_min_s", 1, 86_400),
        ("cacheMaxTimeToLive", "ttl_max_s", 1, 604_800),
        ("queryTimeout", "query_timeout_ms", 100, 60_000),
    ] {
        if let Some(time) = report.number(&resolver, key, 0..=u64::from(u32::MAX)) {
            dns.insert(name.into(), time.clamp(least, most).into());
        }
    }
    let others = resolver.value.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let others: Vec<&str> = others.filter(|key| !KNOWN.contains(key)).collect();
    if !others.is_empty() {
        let message =
            format!("-options: addressResolverOptions: accepted, without effect: {}", others.join(", "));
        report.warn(&root.pointer_of("addressResolverOptions"), "without_effect", message, "remove them");
    }
    if !dns.is_empty() {
        target.insert("dns".into(), dns.into());
    }
}

fn proxy_client(root: &SourceValue<'_>, report: &mut Report<'_>) -> Client {
    let Some(client) = report.object(root, "proxy-client") else {
        return Client { scheme: "http", pool_size: DEFAULT_POOL_SIZE, is_bounded: false };
    };
    report.unknown(&client, &["ssl", "max-pool-size-per-server"], Unknown::Ignored);
    let scheme = if report.flag(&client, "ssl", false) { "https" } else { "http" };
    let pool_size = report.number(&client, "max-pool-size-per-server", 1..=u64::from(u32::MAX));
    if pool_size.is_some() {
        let message = "`max-pool-size-per-server` limits the used connections to a node; each worker keeps idle connections in addition";
        let hint = "lower `keepalive_pool.size` of the upstream if a node limits them all";
        report.warn(&client.pointer_of("max-pool-size-per-server"), "approximate", message, hint);
    }
    Client { scheme, pool_size: pool_size.unwrap_or(DEFAULT_POOL_SIZE), is_bounded: pool_size.is_some() }
}

/// The settings of `plugins` for the whole process.
#[derive(Default)]
struct Plugins {
    /// Whether the listener `http` only redirects.
    redirects: bool,
    /// Whether an access log is written.
    logs: bool,
}

fn plugins(root: &SourceValue<'_>, report: &mut Report<'_>) -> Plugins {
    let Some(plugins) = report.object(root, "plugins") else { return Plugins::default() };
    report.unknown(&plugins, &["http-redirect-https", "log-config"], Unknown::Ignored);
    Plugins {
        redirects: report.flag(&plugins, "http-redirect-https", false),
        logs: report.flag(&plugins, "log-config", false),
    }
}

/// An enabled route, in the order of the document.
struct Route {
    pointer: String,
    /// The members that need no context.
    written: Map<String, Value>,
    matching: vertx::Entry,
    /// A host pattern as Vert.x reads it: `*` at any position matches any text.
    virtual_host: Option<String>,
    listener: Option<String>,
    /// Plugins of its router.
    plugins: Map<String, Value>,
    answer: ReplySource,
}

/// The source of a route's responses.
enum ReplySource {
    /// A proxy pass, and the pointer to its id.
    Pass(String, String),
    /// The route's plugins.
    Plugins,
}

impl Route {
    fn pass(&self) -> Option<&str> {
        match &self.answer {
            ReplySource::Pass(id, _) => Some(id),
            ReplySource::Plugins => None,
        }
    }
}

/// The routers of the listener, merged.
struct Routers {
    routes: Vec<Route>,
    trusts_forwarding: bool,
}

fn routers(root: &SourceValue<'_>, listeners: &[Listener], report: &mut Report<'_>) -> Routers {
    let mut routes = Vec::new();
    let mut forwarding: Vec<(String, &'static str)> = Vec::new();
    let mut served = BTreeSet::new();
    // A listener without an id serves all routers, so that only the missing id is an error.
    let all = listeners.iter().any(|listener| listener.id.is_none());
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
        let is_known = all || listeners.iter().any(|listener| listener.id.as_ref() == Some(&server_id));
        if enabled && !is_known {
            let message = format!(
                "the router serves `{server_id}`, but no enabled listener has this id: the router is ignored"
            );
            let hint = "give `proxy-server-id` the id of `proxy-server.http`, or disable the router";
            report.warn(&router.pointer_of("proxy-server-id"), "reference", message, hint);
        }
        let is_used = enabled && is_known;
        let mut plugins = Map::new();
        if is_used {
            forwarding.push((router.pointer_of("allow-forward"), allow_forward));
            if let Some(plugin) = report.object(&router, "plugin") {
                plugins = router_plugin::translate(&plugin, report);
            }
        }
        for route in report.objects(&router, "route") {
            let host = virtual_host.as_deref();
            routes.extend(read_route(&route, host, is_used, report).map(|route| Route {
                listener: Some(server_id.clone()),
                plugins: plugins.clone(),
                ..route
            }));
        }
        if is_used {
            served.insert(server_id);
        }
    }
    for (listener, key) in listeners.iter().zip(["http", "https"]) {
        let is_served = listener.redirects || listener.id.as_ref().is_none_or(|id| served.contains(id));
        if !is_served {
            let message = format!("no enabled router serves the listener `proxy-server.{key}`");
            let hint = "add a router whose `proxy-server-id` is the listener's `id`, with `enable` true";
            report.error("router", "reference", message, hint);
        }
    }
    routes.extend(listeners.iter().filter_map(static_route));
    Routers { routes, trusts_forwarding: trusts_forwarding(&forwarding, report) }
}

/// Returns the route for the files of a listener, which comes after all its routes.
fn static_route(listener: &Listener) -> Option<Route> {
    let (conf, pointer) = listener.static_files.as_ref()?;
    let mut written = Map::new();
    written.insert("name".into(), "static-resources".into());
    written.insert("methods".into(), json!(["GET", "HEAD"]));
    // Vert.x's own notation for a prefix.
    let path = vertx::Path::parse("/static/*").ok()?;
    Some(Route {
        pointer: pointer.clone(),
        written,
        matching: vertx::Entry { path, host: None, conditional: true },
        virtual_host: None,
        listener: listener.id.clone(),
        plugins: Map::from_iter([("static-files".to_owned(), conf.clone())]),
        answer: ReplySource::Plugins,
    })
}

fn allow_forward(router: &SourceValue<'_>, report: &mut Report<'_>) -> &'static str {
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

/// Returns whether forwarding headers are trusted, one setting for the process. If routers differ, the stricter value
/// wins.
fn trusts_forwarding(routers: &[(String, &'static str)], report: &mut Report<'_>) -> bool {
    let trusts = |word: &str| matches!(word, "X_FORWARD" | "ALL");
    for (pointer, word) in routers {
        if *word == "FORWARD" {
            let message = "Sigma trusts either all forwarding headers or none: with FORWARD, none";
            report.warn(pointer, "approximate", message, "write ALL to trust `Forwarded` and X-Forwarded-*");
        }
    }
    let trusting: Vec<&String> =
        routers.iter().filter(|(_, word)| trusts(word)).map(|(pointer, _)| pointer).collect();
    if let Some(pointer) = trusting.first().filter(|_| trusting.len() < routers.len()) {
        let message = "routers of one listener differ in `allow-forward`: no forwarding header is trusted";
        report.warn(pointer, "approximate", message, "give all routers the same `allow-forward`");
        return false;
    }
    !trusting.is_empty()
}

fn read_route(
    route: &SourceValue<'_>,
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
        // A subtype without type matches any type.
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
        listener: None,
        plugins: Map::new(),
        answer: ReplySource::Pass(pass?, route.pointer_of("proxy-pass-id")),
    })
}

fn allow_method(route: &SourceValue<'_>, report: &mut Report<'_>) -> Vec<String> {
    let mut methods = Vec::new();
    for (name, pointer) in report.texts(route, "allow-method") {
        let method = name.to_ascii_uppercase();
        if !METHODS.contains(&method.as_str()) {
            let message = format!("`{name}` is not a method of routes; it is dropped");
            report.warn(&pointer, "unknown_method", message, format!("one of {}", METHODS.join(", ")));
        } else if !methods.contains(&method) {
            methods.push(method);
        }
    }
    methods
}

/// Writes the routes of one listener. `ids` are the ids already in use.
fn write_routes(
    routes: &[&Route],
    passes: &BTreeMap<String, Option<Pass>>,
    listener: &Listener,
    ids: &mut BTreeSet<String>,
    report: &mut Report<'_>,
) -> Vec<Value> {
    let entries: Vec<&vertx::Entry> = routes.iter().map(|route| &route.matching).collect();
    let mut written = Vec::new();
    for (index, (route, placing)) in routes.iter().zip(vertx::arrange(&entries)).enumerate() {
        let pass = match &route.answer {
            ReplySource::Plugins => None,
            ReplySource::Pass(id, pointer) => match passes.get(id) {
                Some(Some(pass)) => Some(pass),
                Some(None) => continue,
                None => {
                    let message = format!("unknown proxy pass `{id}`");
                    report.error(pointer, "reference", message, "use an `id` of the list `proxy-pass`");
                    continue;
                }
            },
        };
        let (uris, path_regex) = match placing {
            vertx::Placing::Native(uris) => (uris, None),
            vertx::Placing::Under(uri, regex) => (vec![uri], Some(regex)),
            vertx::Placing::Unreachable(by) => {
                let message = format!(
                    "the route never matches: {} before it matches all its requests; it is ignored",
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
        // Vert.x tries routes in list order.
        target.insert("priority".into(), (routes.len() - index).into());
        place_route(&mut target, route, path_regex, listener);
        let preflight = preflight(&target, route);
        if let Some(pass) = pass {
            target.extend(pass.rewrite.clone().map(|rewrite| ("rewrite".to_owned(), rewrite)));
            target.insert("upstream_id".into(), pass.id.as_str().into());
            target.insert("enable_websocket".into(), true.into());
        }
        let mut plugins = route.plugins.clone();
        plugins.extend(listener.gzip.clone().map(|gzip| ("gzip".to_owned(), gzip)));
        if !plugins.is_empty() {
            target.insert("plugins".into(), plugins.into());
        }
        written.push(Value::Object(target));
        written.extend(preflight.map(Value::Object));
    }
    written
}

/// Sets host, path and listener of a route.
fn place_route(
    target: &mut Map<String, Value>,
    route: &Route,
    path_regex: Option<String>,
    listener: &Listener,
) {
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
    if let Some(id) = &listener.id {
        target.insert("listeners".into(), json!([id]));
    }
}

/// Returns a route for preflight requests. In the original, CORS came before the conditions of a route, so this route
/// answers the preflights that the route itself does not match.
fn preflight(target: &Map<String, Value>, route: &Route) -> Option<Map<String, Value>> {
    let cors = route.plugins.get("cors").filter(|_| route.matching.conditional)?;
    let mut preflight = target.clone();
    for condition in ["id", "desc", "consumes", "produces"] {
        preflight.remove(condition);
    }
    preflight.insert("name".into(), "preflight".into());
    preflight.insert("methods".into(), json!(["OPTIONS"]));
    preflight.insert("plugins".into(), json!({"cors": cors}));
    Some(preflight)
}

/// A host pattern in Sigma's format.
enum HostCondition {
    Pattern(String),
    Regex(String),
}

/// Translates a host pattern. Sigma's patterns allow a star at the beginning only.
fn host_condition(virtual_host: &str) -> HostCondition {
    if !virtual_host.strip_prefix('*').unwrap_or(virtual_host).contains('*') {
        return HostCondition::Pattern(virtual_host.to_owned());
    }
    HostCondition::Regex(format!("^{}$", regex::escape(virtual_host).replace(r"\*", ".*")))
}
