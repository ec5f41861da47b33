//! Makes a configuration of an OpenAPI document: a route for each operation, and an upstream for its server.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use sigma_schema::node_address::split_address;
use sigma_schema::openapi::server::base_path;
use sigma_schema::openapi::template::{Piece, Segment, Template};
use sigma_schema::openapi::{OpenApi, Operation};

/// Options of the import.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImportOptions<'w> {
    /// The URL of the node; unset: the first server of the document.
    pub upstream: Option<&'w str>,
    /// The text of the document, if requests are to be validated against it.
    pub validate: Option<&'w str>,
}

/// A configuration, with notes on the parts of the document that it lacks.
#[derive(Debug)]
pub struct Imported {
    /// The configuration as in a file.
    pub configuration: Value,
    /// Sentences for the operator.
    pub notes: Vec<String>,
}

/// The node for a document without servers.
const SOMEWHERE: &str = "http://127.0.0.1:9000";

/// Maximum length of a resource id.
const MOST_ID: usize = 64;

/// The id of the shared upstream and plugin config.
const SHARED: &str = "openapi";

/// Makes a configuration of a document.
///
/// # Errors
/// Returns an error, which is a sentence, if something in the document has no place in one.
pub fn configuration(document: &OpenApi, wish: ImportOptions<'_>) -> Result<Imported, String> {
    let operations = document.operations()?;
    if operations.is_empty() {
        return Err("the document has no operation".to_owned());
    }
    let mut notes = Vec::new();
    let (mut ids, mut routes) = (HashSet::new(), Vec::new());
    let mut is_with_parameters = false;
    for operation in &operations {
        let route = route(operation, &mut ids, &mut is_with_parameters, wish)?;
        routes.push(route);
    }
    let mut made = Map::new();
    made.insert("listeners".to_owned(), json!([{"address": ":9080"}]));
    if is_with_parameters {
        made.insert("router".to_owned(), json!({"http": "radixtree_uri_with_parameter"}));
    }
    made.insert("routes".to_owned(), Value::Array(routes));
    if let Some(text) = wish.validate {
        // `${{` would begin an environment variable.
        let spec = text.replace("${{", "$\\u007b{");
        let plugins = json!({"oas-validator": {"spec": spec}});
        made.insert("plugin_configs".to_owned(), json!([{"id": SHARED, "plugins": plugins}]));
    }
    made.insert("upstreams".to_owned(), json!([upstream(&operations, wish, &mut notes)?]));
    notes.extend(left_out(document));
    Ok(Imported { configuration: Value::Object(made), notes })
}

fn route(
    operation: &Operation<'_>,
    ids: &mut HashSet<String>,
    is_with_parameters: &mut bool,
    wish: ImportOptions<'_>,
) -> Result<Value, String> {
    let template = Template::parse(operation.path)?;
    let id = id_of(operation, ids);
    let mut route = Map::new();
    route.insert("id".to_owned(), id.into());
    if let Some(summary) = operation.operation.text("summary") {
        route.insert("desc".to_owned(), summary.chars().take(256).collect::<String>().into());
    }
    let mut bases: Vec<&str> = operation.servers.iter().map(|url| base_path(url)).collect();
    bases.sort_unstable();
    bases.dedup();
    let uri = Uri::of(&template).ok_or_else(|| {
        format!(
            "the path `{}` has a `*` or begins a segment with `:`, which is special in a route",
            operation.path
        )
    })?;
    *is_with_parameters |= uri.has_parameters;
    let uris: Vec<String> =
        bases.iter().flat_map(|base| uri.texts.iter().map(move |uri| format!("{base}{uri}"))).collect();
    route.insert("uris".to_owned(), json!(uris));
    route.insert("methods".to_owned(), json!([operation.method]));
    let hosts = hosts(operation);
    if !hosts.is_empty() {
        route.insert("hosts".to_owned(), json!(hosts));
    }
    if let Some(pattern) = uri.pattern {
        // Has precedence over routes that accept any text there.
        route.insert("priority".to_owned(), 1.into());
        let bases: Vec<String> = bases.iter().map(|base| regex::escape(base)).collect();
        route.insert("vars".to_owned(), json!([["uri", "~~", format!("^(?:{}){pattern}", bases.join("|"))]]));
    }
    if wish.validate.is_some() {
        route.insert("plugin_config_id".to_owned(), SHARED.into());
    }
    route.insert("upstream_id".to_owned(), SHARED.into());
    Ok(Value::Object(route))
}

/// A path template in the syntax of routes.
struct Uri {
    texts: Vec<String>,
    has_parameters: bool,
    /// An additional pattern for the path, if a segment is more than a parameter.
    pattern: Option<String>,
}

impl Uri {
    fn of(template: &Template) -> Option<Uri> {
        let is_mixed = |segment: &Segment| matches!(segment, Segment::Pieces(pieces) if pieces.len() > 1);
        let (mut text, mut pattern) = (String::new(), String::new());
        // A template with a mixed segment is cut before it; the pattern checks the rest.
        let mut is_cut = false;
        let mut has_parameters = false;
        for (at, segment) in template.0.iter().enumerate() {
            pattern.push('/');
            match segment {
                Segment::Literal(literal) => {
                    if literal.contains('*') || literal.starts_with(':') {
                        return None;
                    }
                    pattern.push_str(&regex::escape(literal));
                    if !is_cut {
                        text.push_str(&format!("/{literal}"));
                    }
                }
                Segment::Pieces(pieces) => {
                    is_cut |= is_mixed(segment);
                    for piece in pieces {
                        match piece {
                            Piece::Text(text) => pattern.push_str(&regex::escape(text)),
                            Piece::Parameter(_) => pattern.push_str("[^/]+"),
                        }
                    }
                    if let ([Piece::Parameter(name)], false) = (&pieces[..], is_cut) {
                        text.push_str(&format!("/:{}", parameter(name, at)));
                        has_parameters = true;
                    }
                }
            }
        }
        if is_cut {
            return Some(Uri {
                texts: vec![format!("{text}/*")],
                has_parameters,
                pattern: Some(format!("{pattern}/?$")),
            });
        }
        // Clients may add a slash at the end.
        let texts =
            if text.is_empty() { vec!["/".to_owned()] } else { vec![text.clone(), format!("{text}/")] };
        Some(Uri { texts, has_parameters, pattern: None })
    }
}

/// Returns the name of a parameter in a route: letters, digits and `_`.
fn parameter(name: &str, at: usize) -> String {
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if is_plain { name.to_owned() } else { format!("parameter_{}", at + 1) }
}

/// Returns a unique id for an operation's route.
fn id_of(operation: &Operation<'_>, ids: &mut HashSet<String>) -> String {
    let own = operation.operation.text("operationId").map(str::to_owned);
    let own = own.unwrap_or_else(|| format!("{} {}", operation.method.to_ascii_lowercase(), operation.path));
    let mut id = String::new();
    for char in own.chars() {
        match char {
            _ if char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.') => id.push(char),
            _ if id.is_empty() || id.ends_with('-') => {}
            _ => id.push('-'),
        }
    }
    let id = id.trim_end_matches('-');
    let id = &id[..id.len().min(MOST_ID)];
    let mut unique = if id.is_empty() { "operation".to_owned() } else { id.to_owned() };
    let mut number = 1;
    while !ids.insert(unique.clone()) {
        number += 1;
        let suffix = format!("-{number}");
        unique = format!("{}{suffix}", &id[..id.len().min(MOST_ID - suffix.len())]);
    }
    unique
}

/// Returns the authority of a URL with a scheme, and whether it uses TLS.
fn authority(url: &str) -> Option<(&str, bool)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match scheme {
        "http" => Some((&rest[..end], false)),
        "https" => Some((&rest[..end], true)),
        _ => None,
    }
}

/// Returns the host names of an operation; empty if every host is accepted.
fn hosts(operation: &Operation<'_>) -> Vec<String> {
    let mut names = Vec::new();
    for url in &operation.servers {
        let Some((authority, _)) = authority(url) else { return Vec::new() };
        let Ok((host, _)) = split_address(authority) else { return Vec::new() };
        let host = host.to_ascii_lowercase();
        if !names.contains(&host) {
            names.push(host);
        }
    }
    names
}

/// Returns the upstream: the URL of the options, or the first server.
fn upstream(
    operations: &[Operation<'_>],
    wish: ImportOptions<'_>,
    notes: &mut Vec<String>,
) -> Result<Value, String> {
    let mut servers: Vec<&str> =
        operations.iter().flat_map(|operation| &operation.servers).map(String::as_str).collect();
    servers.retain(|url| authority(url).is_some());
    let mut others = servers.clone();
    others.sort_unstable();
    others.dedup();
    let url = match (wish.upstream, servers.first()) {
        (Some(url), _) => url,
        (None, Some(first)) => {
            if others.len() > 1 {
                notes.push(format!("the document lists {} servers; the upstream is {first}", others.len()));
            }
            first
        }
        (None, None) => {
            notes.push(format!("the document lists no server; the upstream is {SOMEWHERE}: change it"));
            SOMEWHERE
        }
    };
    let (address, is_encrypted) = authority(url)
        .ok_or_else(|| format!("`{url}` is not the URL of a node, such as http://127.0.0.1:9000"))?;
    let (host, port) = split_address(address).map_err(|error| format!("`{url}`: {error}"))?;
    if host.is_empty() {
        return Err(format!("`{url}` has no host"));
    }
    let port = port.unwrap_or(if is_encrypted { 443 } else { 80 });
    let mut upstream = json!({
        "id": SHARED,
        "scheme": if is_encrypted { "https" } else { "http" },
        "nodes": [{"host": host, "port": port, "weight": 1}],
    });
    // A node with a host name needs it in the Host header.
    if !host.starts_with('[') && host.parse::<std::net::IpAddr>().is_err() {
        upstream["pass_host"] = "node".into();
    }
    Ok(upstream)
}

/// Returns notes on the parts that affect requests but are not in any route.
fn left_out(document: &OpenApi) -> Vec<String> {
    let root = document.root();
    let mut notes = Vec::new();
    let schemes = root.member("components").and_then(|all| all.member("securitySchemes"));
    let names: Vec<&str> = schemes.iter().flat_map(|all| all.members()).map(|(name, _)| name).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        notes.push(format!("routes have no authentication: add a plugin for the security schemes {names}"));
    }
    if root.value.get("webhooks").is_some() {
        notes.push("webhooks are requests to other servers and have no route".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(paths: Value, servers: Value) -> OpenApi {
        OpenApi::of(json!({"openapi": "3.0.3", "servers": servers, "paths": paths})).unwrap()
    }

    fn made(paths: Value, servers: Value) -> Value {
        configuration(&document(paths, servers), ImportOptions::default()).unwrap().configuration
    }

    #[test]
    fn ids() {
        let get = |id: &str| json!({"get": {"operationId": id}});
        let long = "x".repeat(80);
        let paths = json!({
            "/a": get("list pets!"), "/b": get("list-pets"), "/c/{d}.e": {"post": {}}, "/f": get("é"),
            "/g": get(&long), "/h": get(&long),
        });
        let made = made(paths, json!([]));
        let ids: Vec<&str> =
            made["routes"].as_array().unwrap().iter().map(|route| route["id"].as_str().unwrap()).collect();
        let (cut, again) = ("x".repeat(64), format!("{}-2", "x".repeat(62)));
        assert_eq!(ids, ["list-pets", "list-pets-2", "post-c-d-.e", "operation", &cut, &again]);
    }

    #[test]
    fn paths() {
        let check = |path: &str, expected: Value| {
            let made = made(
                json!({path: {"get": {}}}),
                json!([{"url": "/v1/"}, {"url": "http://a/v1"}, {"url": "/"}]),
            );
            let route = &made["routes"][0];
            let found = json!([route["uris"], route["vars"], made["router"]["http"]]);
            assert_eq!(found, expected, "{path}");
        };
        let parameters = "radixtree_uri_with_parameter";
        check("/", json!([["/", "/v1/"], null, null]));
        check("/pets", json!([["/pets", "/pets/", "/v1/pets", "/v1/pets/"], null, null]));
        check(
            "/a/{b}/{c-d}",
            json!([
                [
                    "/a/:b/:parameter_3",
                    "/a/:b/:parameter_3/",
                    "/v1/a/:b/:parameter_3",
                    "/v1/a/:b/:parameter_3/"
                ],
                null,
                parameters
            ]),
        );
        check(
            "/a/{b}.json",
            json!([["/a/*", "/v1/a/*"], [["uri", "~~", "^(?:|/v1)/a/[^/]+\\.json/?$"]], null]),
        );
    }

    #[test]
    fn servers() {
        let check = |servers: Value, hosts: Value, expected: Value| {
            let made = made(json!({"/a": {"get": {}}}), servers);
            assert_eq!(made["routes"][0]["hosts"], hosts);
            let upstream = &made["upstreams"][0];
            let node = &upstream["nodes"][0];
            let found = json!([upstream["scheme"], node["host"], node["port"], upstream["pass_host"]]);
            assert_eq!(found, expected);
        };
        check(json!([]), Value::Null, json!(["http", "127.0.0.1", 9000, null]));
        check(
            json!([{"url": "https://API.example.com/v1"}, {"url": "http://b:8080"}]),
            json!(["api.example.com", "b"]),
            json!(["https", "API.example.com", 443, "node"]),
        );
        check(
            json!([{"url": "http://127.0.0.1:81"}, {"url": "/"}]),
            Value::Null,
            json!(["http", "127.0.0.1", 81, null]),
        );
    }

    #[test]
    fn notes_and_refusals() {
        let root = json!({"openapi": "3.1.0", "paths": {"/a": {"get": {}}}, "webhooks": {},
            "components": {"securitySchemes": {"key": {}, "login": {}}}});
        let imported = configuration(
            &OpenApi::of(root).unwrap(),
            ImportOptions { upstream: None, validate: Some("{}${{A}}") },
        )
        .unwrap();
        assert_eq!(
            imported.notes,
            [
                "the document lists no server; the upstream is http://127.0.0.1:9000: change it",
                "routes have no authentication: add a plugin for the security schemes key, login",
                "webhooks are requests to other servers and have no route",
            ]
        );
        let plugins = &imported.configuration["plugin_configs"][0]["plugins"];
        assert_eq!(plugins["oas-validator"]["spec"], "{}$\\u007b{A}}");
        let refused = |paths: Value, upstream: Option<&str>, expected: &str| {
            let wish = ImportOptions { upstream, validate: None };
            assert_eq!(configuration(&document(paths, json!([])), wish).unwrap_err(), expected);
        };
        refused(json!({}), None, "the document has no operation");
        refused(
            json!({"/a": {"get": {}}}),
            Some("a:1"),
            "`a:1` is not the URL of a node, such as http://127.0.0.1:9000",
        );
        refused(
            json!({"/a/*": {"get": {}}}),
            None,
            "the path `/a/*` has a `*` or begins a segment with `:`, which is special in a route",
        );
    }
}
