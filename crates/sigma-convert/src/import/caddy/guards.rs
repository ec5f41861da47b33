//! Lines that guard access: passwords, a login service, sizes. One that cannot be converted closes its route.

use serde_json::{Map, Value, json};

use super::proxy::address;
use super::run::{Item, Runner};
use super::state::Branch;

/// Applies a guard.
pub(super) fn apply(runner: &mut Runner<'_>, item: &Item, branch: Branch) -> Vec<Branch> {
    let kept = branch.clone();
    let result = match item.line.name() {
        "basic_auth" | "basicauth" => basic_auth(item, branch),
        "forward_auth" => forward_auth(runner, item, branch),
        "request_body" => request_body(runner, item, branch),
        _ => Err("rate_limit is not a directive of Caddy itself: use limit-req.".to_owned()),
    };
    match result {
        Ok(branch) => vec![branch],
        Err(reason) => {
            runner.remarks.closed(item.place(), format!("{reason} The route is closed until then."));
            vec![kept.close(reason)]
        }
    }
}

fn plugin(branch: &mut Branch, name: &str, conf: Value) -> Result<(), String> {
    match branch.decision.plugins.contains_key(name) {
        true => Err(format!("A route can have only one {name}, but two lines need it.")),
        false => {
            branch.decision.plugins.insert(name.to_owned(), conf);
            Ok(())
        }
    }
}

/// `basic_auth [hash [realm]] { name hash }`.
fn basic_auth(item: &Item, mut branch: Branch) -> Result<Branch, String> {
    let realm = item.args.get(1).map_or("restricted", String::as_str);
    if item.args.first().is_some_and(|hash| hash != "bcrypt") {
        return Err("Sigma knows hashes of bcrypt, SHA-crypt, apr1 and SHA-1, not this one.".to_owned());
    }
    let mut users = Vec::new();
    for line in item.line.lines() {
        let hash = line.arg(0).unwrap_or_default();
        if !hash.starts_with("$2") {
            return Err(format!(
                "The hash of `{}` is not bcrypt: make one with `caddy hash-password`.",
                line.name()
            ));
        }
        users.push(format!("{}:{hash}", line.name()));
    }
    if users.is_empty() {
        return Err("It has no users.".to_owned());
    }
    plugin(&mut branch, "basic-auth", json!({"users": users, "realm": realm}))?;
    Ok(branch)
}

/// `forward_auth upstream { uri path, copy_headers … }`.
fn forward_auth(runner: &mut Runner<'_>, item: &Item, mut branch: Branch) -> Result<Branch, String> {
    let target = item.args.first().ok_or("It has no service.")?;
    let node = address(target).ok_or_else(|| format!("`{target}` is not an address of a service."))?;
    if node.host.starts_with("unix:") {
        return Err("The service needs a TCP address.".to_owned());
    }
    let mut uri = "/".to_owned();
    let mut copied = Vec::new();
    let mut extra = Map::new();
    for line in item.line.lines() {
        match line.name() {
            "uri" => uri = line.arg(0).unwrap_or("/").to_owned(),
            "copy_headers" => {
                copied.extend(line.args());
                copied.extend(line.lines().iter().map(|line| line.name().to_owned()));
            }
            "header_up" if line.args().len() == 2 && !line.arg(0).unwrap_or("-").starts_with(['+', '-']) => {
                let value = runner.text(line.place(), line.arg(1).unwrap_or_default());
                extra.insert(line.arg(0).unwrap_or_default().to_owned(), value.into());
            }
            "transport" | "header_up" | "header_down" | "handle_response" => {
                return Err(format!("`{}` of forward_auth is not converted.", line.name()));
            }
            _ => runner.remarks.no_effect(
                line.place(),
                "Only one address of the service is used, with Sigma's own timeouts.",
            ),
        }
    }
    let renamed: Vec<(String, String)> = copied
        .iter()
        .filter_map(|name| name.split_once('>'))
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .collect();
    let copied: Vec<String> =
        copied.iter().map(|name| name.split('>').next().unwrap_or_default().to_owned()).collect();
    if uri.contains('{') {
        return Err("The path of the service depends on the request.".to_owned());
    }
    let scheme = if node.scheme == "https" { "https" } else { "http" };
    let mut conf = json!({
        "uri": format!("{scheme}://{}:{}{uri}", node.host, node.port), "request_headers": ["*"],
        "upstream_headers": copied, "client_headers": ["*"], "status_on_error": 502, "host": "$http_host",
    });
    if let Some(host) = extra.remove("Host").or_else(|| extra.remove("host")) {
        conf["host"] = host;
    }
    extra.entry("X-Forwarded-Host").or_insert_with(|| "$http_host".into());
    extra.insert("X-Forwarded-Normal-Path".to_owned(), "".into());
    conf["extra_headers"] = Value::Object(extra);
    plugin(&mut branch, "forward-auth", conf)?;
    if !renamed.is_empty() {
        plugin(&mut branch, "serverless-pre-function", moved(&renamed, &copied))?;
    }
    Ok(branch)
}

/// A function that moves fields of the service to other names, after its call. The client's own fields never stay.
fn moved(renamed: &[(String, String)], copied: &[String]) -> Value {
    let mut lines = String::new();
    for (from, to) in renamed {
        lines.push_str(&format!(
            "  core.request.set_header(ctx, {to:?}, core.request.header(ctx, {from:?}))\n"
        ));
    }
    for (from, to) in renamed {
        let is_wanted = copied.iter().filter(|name| *name == from).count() > 1;
        if !is_wanted && !from.eq_ignore_ascii_case(to) {
            lines.push_str(&format!("  core.request.set_header(ctx, {from:?}, nil)\n"));
        }
    }
    let function = format!("local core = require(\"apisix.core\")\nreturn function(conf, ctx)\n{lines}end\n");
    json!({"phase": "access", "functions": [function], "_meta": {"priority": 1000}})
}

fn request_body(runner: &mut Runner<'_>, item: &Item, mut branch: Branch) -> Result<Branch, String> {
    for line in item.line.lines() {
        match line.name() {
            "max_size" => {
                let bytes = line.arg(0).and_then(size).ok_or("The size is not a number of bytes.")?;
                plugin(&mut branch, "client-control", json!({"max_body_size": bytes}))?;
                let text = "Nodes get no part of a body that is too large.";
                runner.remarks.differs(line.place(), text);
            }
            _ => runner.remarks.no_effect(line.place(), "Sigma's own timeouts of bodies apply."),
        }
    }
    Ok(branch)
}

/// A size such as `10MB` (powers of 1000) or `10MiB`.
pub(super) fn size(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let factor = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "ki" | "kib" => 1024.0,
        "mi" | "mib" => 1_048_576.0,
        "gi" | "gib" => 1_073_741_824.0,
        _ => return None,
    };
    Some((number * factor) as u64)
}
