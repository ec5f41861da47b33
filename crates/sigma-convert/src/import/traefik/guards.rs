//! Middlewares that guard access: logins, addresses, rates, sizes. A guard that cannot be converted closes its routers.

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::super::tree::Tree;
use super::branch::Branch;
use super::fields::{at, field, is_true, list, number, seconds, text, texts};
use super::matching::header;
use super::model::{Model, Named};

/// The kinds of hashes that basic-auth knows, by their beginnings.
const HASHES: [&str; 8] = ["$apr1$", "$1$", "$2a$", "$2b$", "$2y$", "$5$", "$6$", "{SHA}"];

/// Applies a guard.
pub(super) fn apply(
    model: &mut Model<'_>,
    middleware: &Named,
    kind: &str,
    conf: &Tree,
    branch: Branch,
) -> Vec<Branch> {
    let kept = branch.clone();
    let result = match kind {
        "basicauth" => basic_auth(model, middleware, conf, branch),
        "digestauth" => {
            Err("Sigma needs passwords, not their hashes: use digest-auth with consumers.".to_owned())
        }
        "forwardauth" => forward_auth(model, middleware, conf, branch),
        "ipallowlist" | "ipwhitelist" => addresses(model, middleware, conf, branch),
        "ratelimit" => rate_limit(model, middleware, conf, branch),
        "inflightreq" => in_flight(model, middleware, conf, branch),
        _ => buffering(model, middleware, conf, branch),
    };
    result.unwrap_or_else(|reason| {
        model.remarks.closed(middleware.place, format!("{reason} Its routers are closed until then."));
        vec![kept.close(format!("middleware {}: {reason}", middleware.name))]
    })
}

/// Adds a plugin, of which a route has one.
fn plugin(branch: &mut Branch, name: &str, conf: Value) -> Result<(), String> {
    match branch.decision.plugins.contains_key(name) {
        true => Err(format!("A route can have only one {name}, but two middlewares of this router need it.")),
        false => {
            branch.decision.plugins.insert(name.to_owned(), conf);
            Ok(())
        }
    }
}

fn basic_auth(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    mut branch: Branch,
) -> Result<Vec<Branch>, String> {
    if model.unknown(
        middleware.place.file,
        conf,
        &["users", "usersfile", "realm", "removeheader", "headerfield"],
    ) {
        return Err("A field of this login is unknown.".to_owned());
    }
    let users = texts(conf, "users");
    let known = |user: &String| {
        user.split_once(':').is_some_and(|(_, hash)| HASHES.iter().any(|start| hash.starts_with(start)))
    };
    if let Some(user) = users.iter().find(|user| !known(user)) {
        let name = user.split(':').next().unwrap_or_default();
        return Err(format!("The hash of the user `{name}` has an unknown format; make one with bcrypt."));
    }
    let mut plugin_conf = Map::new();
    if !users.is_empty() {
        plugin_conf.insert("users".to_owned(), json!(users));
    }
    if let Some(file) = text(conf, "usersfile") {
        plugin_conf.insert("auth_file".to_owned(), file.into());
    }
    if plugin_conf.is_empty() {
        return Err("It has no users.".to_owned());
    }
    plugin_conf.insert("realm".to_owned(), text(conf, "realm").unwrap_or("traefik").into());
    if is_true(conf, "removeheader") {
        plugin_conf.insert("hide_credentials".to_owned(), true.into());
    }
    if let Some(name) = text(conf, "headerfield") {
        plugin_conf.insert("user_field".to_owned(), name.into());
    }
    plugin(&mut branch, "basic-auth", Value::Object(plugin_conf))?;
    Ok(vec![branch])
}

fn forward_auth(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    mut branch: Branch,
) -> Result<Vec<Branch>, String> {
    let known = [
        "address",
        "tls",
        "trustforwardheader",
        "authresponseheaders",
        "authresponseheadersregex",
        "authrequestheaders",
        "maxresponsebodysize",
        "addauthcookiestoresponse",
        "headerfield",
        "forwardbody",
        "maxbodysize",
        "preservelocationheader",
        "preserverequestmethod",
        "authsigninurl",
    ];
    if model.unknown(middleware.place.file, conf, &known) {
        return Err("A field of this login is unknown.".to_owned());
    }
    let address = text(conf, "address").ok_or("It has no address.")?;
    for name in ["authresponseheadersregex", "headerfield", "addauthcookiestoresponse"] {
        if field(conf, name).is_some() {
            let text = "List the fields of the service's response in `upstream_headers`.";
            model.remarks.gap(middleware.field(conf, name), text);
        }
    }
    if is_true(conf, "trustforwardheader") {
        let text =
            "The service gets X-Forwarded fields of the client only from peers in `trusted_addresses`.";
        model.remarks.guard_differs(middleware.field(conf, "trustforwardheader"), text);
    }
    if is_true(conf, "preserverequestmethod") {
        let text = "The service is called with GET; it gets the client's method in X-Forwarded-Method.";
        model.remarks.guard_differs(middleware.field(conf, "preserverequestmethod"), text);
    }
    let asked = texts(conf, "authrequestheaders");
    let shown = if asked.is_empty() { vec!["*".to_owned()] } else { asked };
    let mut plugin_conf = json!({
        "uri": address, "request_headers": shown, "upstream_headers": texts(conf, "authresponseheaders"),
        "client_headers": ["*"], "timeout": 30000, "status_on_error": 500,
        "extra_headers": {"X-Forwarded-Host": "$http_host", "X-Forwarded-Port": "$server_port",
            "X-Real-Ip": "$remote_addr", "X-Forwarded-Normal-Path": ""},
    });
    if is_true(conf, "forwardbody") {
        plugin_conf["request_method"] = "POST".into();
        let text = "The service is called with POST; it gets the client's method in X-Forwarded-Method.";
        model.remarks.guard_differs(middleware.field(conf, "forwardbody"), text);
        if let Some(bytes) = field(conf, "maxbodysize").and_then(Tree::integer).filter(|bytes| *bytes > 0) {
            plugin_conf["max_req_body_size"] = bytes.into();
        }
    }
    service_tls(conf, &mut plugin_conf)?;
    plugin(&mut branch, "forward-auth", plugin_conf)?;
    Ok(vec![branch])
}

/// TLS of the connection to the service.
fn service_tls(conf: &Tree, plugin_conf: &mut Value) -> Result<(), String> {
    if let Some(tls) = field(conf, "tls") {
        if is_true(tls, "insecureskipverify") {
            plugin_conf["ssl_verify"] = false.into();
        }
        for name in ["ca", "cert", "key"] {
            if field(tls, name).is_some() {
                return Err(format!(
                    "Sigma verifies the service by `tls.trusted_certificates`, not by `{name}`."
                ));
            }
        }
    }
    Ok(())
}

fn addresses(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    mut branch: Branch,
) -> Result<Vec<Branch>, String> {
    if model.unknown(middleware.place.file, conf, &["sourcerange", "ipstrategy", "rejectstatuscode"]) {
        return Err("A field of this list is unknown.".to_owned());
    }
    strategy(conf)?;
    let ranges = texts(conf, "sourcerange");
    if ranges.is_empty() {
        return Err("It has no addresses.".to_owned());
    }
    let status = field(conf, "rejectstatuscode").and_then(Tree::integer).unwrap_or(403);
    let restriction = json!({"whitelist": ranges, "response_code": status, "message": "Forbidden"});
    if plugin(&mut branch, "ip-restriction", restriction).is_ok() {
        return Ok(vec![branch]);
    }
    let (known, other) = branch.split(json!(["remote_addr", "ipmatch", ranges]));
    let status = u16::try_from(status).unwrap_or(403);
    let refused = Target::Respond { status, body: Some("Forbidden".to_owned()), headers: Vec::new() };
    Ok(vec![known, other.finish(refused)])
}

/// Accepts only the peer's address as the client's.
fn strategy(conf: &Tree) -> Result<(), String> {
    let Some(strategy) = field(conf, "ipstrategy") else { return Ok(()) };
    let depth = field(strategy, "depth").and_then(Tree::integer).unwrap_or(0);
    if depth > 0 || !texts(strategy, "excludedips").is_empty() {
        return Err(
            "Set `trusted_addresses` and `client_address` for clients behind other proxies.".to_owned()
        );
    }
    Ok(())
}

/// Returns the key of a counter, and its type.
fn source(conf: &Tree, default: &str) -> Result<(String, &'static str), String> {
    let Some(source) = field(conf, "sourcecriterion") else { return Ok((default.to_owned(), "var")) };
    strategy(source)?;
    if let Some(name) = text(source, "requestheadername") {
        return Ok((header(name)?, "var"));
    }
    if is_true(source, "requesthost") {
        return Ok(("host".to_owned(), "var"));
    }
    match at(source, &["ipstrategy", "ipv6subnet"]) {
        Some(_) => Ok(("remote_network".to_owned(), "var")),
        None => Ok(("$remote_addr".to_owned(), "var_combination")),
    }
}

fn rate_limit(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    mut branch: Branch,
) -> Result<Vec<Branch>, String> {
    if model.unknown(middleware.place.file, conf, &["average", "period", "burst", "sourcecriterion", "redis"])
    {
        return Err("A field of this limit is unknown.".to_owned());
    }
    let average = field(conf, "average").and_then(Tree::number).unwrap_or(0.0);
    if average <= 0.0 {
        model.remarks.done(middleware.place);
        return Ok(vec![branch]);
    }
    let period = seconds(conf, "period").filter(|period| *period > 0.0).unwrap_or(1.0);
    let burst = field(conf, "burst").and_then(Tree::integer).unwrap_or(1).max(1);
    let (key, key_type) = source(conf, "$remote_addr")
        .map(|(key, kind)| (key.clone(), if key.starts_with('$') { "var_combination" } else { kind }))?;
    let mut limit = json!({
        "rate": number(average / period), "burst": burst - 1, "nodelay": true, "key": key, "key_type": key_type,
        "rejected_code": 429,
    });
    if let Some(redis) = field(conf, "redis") {
        redis_policy(redis, &mut limit)?;
    }
    let text =
        "Refused requests lack X-Retry-In, and requests that Traefik would delay for a moment are refused.";
    model.remarks.guard_differs(middleware.place, text);
    plugin(&mut branch, "limit-req", limit)?;
    Ok(vec![branch])
}

fn redis_policy(redis: &Tree, limit: &mut Value) -> Result<(), String> {
    let endpoints = texts(redis, "endpoints");
    let [endpoint] = endpoints.as_slice() else {
        return Err("Sigma needs one Redis server, or `policy: redis-cluster`.".to_owned());
    };
    let (host, port) = endpoint.rsplit_once(':').unwrap_or((endpoint, "6379"));
    limit["policy"] = "redis".into();
    limit["redis_host"] = host.into();
    limit["redis_port"] = port.parse::<u16>().map_err(|_| format!("`{endpoint}` is not an address."))?.into();
    for (name, field) in [("username", "redis_username"), ("password", "redis_password")] {
        if let Some(value) = text(redis, name) {
            limit[field] = value.into();
        }
    }
    if let Some(database) = field(redis, "db").and_then(Tree::integer) {
        limit["redis_database"] = database.into();
    }
    if let Some(tls) = field(redis, "tls") {
        limit["redis_ssl"] = true.into();
        limit["redis_ssl_verify"] = (!is_true(tls, "insecureskipverify")).into();
    }
    Ok(())
}

fn in_flight(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    mut branch: Branch,
) -> Result<Vec<Branch>, String> {
    if model.unknown(middleware.place.file, conf, &["amount", "sourcecriterion"]) {
        return Err("A field of this limit is unknown.".to_owned());
    }
    let amount = field(conf, "amount").and_then(Tree::integer).filter(|amount| *amount > 0);
    let amount = amount.ok_or("It has no amount.")?;
    let (key, key_type) = source(conf, "host")?;
    let limit = json!({
        "conn": amount, "burst": 0, "default_conn_delay": 0.1, "key": key, "key_type": key_type,
        "rejected_code": 429,
    });
    plugin(&mut branch, "limit-conn", limit)?;
    Ok(vec![branch])
}

fn buffering(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    mut branch: Branch,
) -> Result<Vec<Branch>, String> {
    for name in ["memrequestbodybytes", "memresponsebodybytes", "maxresponsebodybytes"] {
        if field(conf, name).is_some() {
            model
                .remarks
                .no_effect(middleware.field(conf, name), "Bodies are forwarded without a buffer on disk.");
        }
    }
    if text(conf, "retryexpression").is_some() {
        let text = "Use `retries` and `retry_policy` of the upstream.";
        model.remarks.gap(middleware.field(conf, "retryexpression"), text);
    }
    let bytes = field(conf, "maxrequestbodybytes").and_then(Tree::integer).unwrap_or(0);
    if bytes > 0 {
        plugin(&mut branch, "client-control", json!({"max_body_size": bytes}))?;
    }
    Ok(vec![branch])
}

/// Returns statuses of a list such as `500-599` or `404`.
pub(super) fn statuses(tree: &Tree) -> Vec<Value> {
    let mut found = Vec::new();
    for text in list(tree) {
        for part in text.split(',') {
            let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            let (Ok(from), Ok(to)) = (from.parse::<u16>(), to.parse::<u16>()) else { continue };
            match (from, to) {
                (400, 499) => found.push("4xx".into()),
                (500, 599) => found.push("5xx".into()),
                (from, to) if to < 600 => found.extend((from..=to).map(Value::from)),
                _ => {}
            }
        }
    }
    found
}
