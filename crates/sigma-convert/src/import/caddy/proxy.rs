//! `reverse_proxy`: nodes, balancing, checks, fields, transports.

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::decision::Target;
use super::super::source::SourceLine;
use super::guards::size;
use super::health::{active, health};
use super::matcher::{Condition, regex};
use super::parse::Line;
use super::php::fastcgi;
use super::run::{Item, Runner};
use super::state::{Branch, Change};

/// The least length of a secret for sessions.
const SECRET_BYTES: usize = 16;

/// The upstreams so far: equal ones are one.
#[derive(Debug, Default)]
pub(super) struct Upstreams {
    pub(super) list: Vec<(String, Value)>,
}

impl Upstreams {
    fn add(&mut self, name: &str, upstream: Value) -> String {
        if let Some((id, _)) = self.list.iter().find(|(_, known)| *known == upstream) {
            return id.clone();
        }
        let base = build::id(name);
        let mut id = base.clone();
        let mut number = 2;
        while self.list.iter().any(|(known, _)| *known == id) {
            id = format!("{base}-{number}");
            number += 1;
        }
        self.list.push((id.clone(), upstream));
        id
    }
}

/// The address of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) scheme: String,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Parses an address such as `host:80`, `https://host`, `h2c://host:80`, `unix//path`.
pub(super) fn address(text: &str) -> Option<Node> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    if let Some(path) = rest.strip_prefix("unix/").or_else(|| rest.strip_prefix("unix+h2c/")) {
        return Some(Node { scheme: scheme.to_owned(), host: format!("unix:{path}"), port: 0 });
    }
    let rest = rest.strip_prefix("tcp/").unwrap_or(rest);
    if rest.contains(['{', '/', ' ']) {
        return None;
    }
    let default = if scheme == "https" { 443 } else { 80 };
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (rest, default),
    };
    let host = if host.is_empty() { "localhost" } else { host };
    Some(Node { scheme: scheme.to_owned(), host: host.to_owned(), port })
}

/// The lines of a proxy.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) nodes: Vec<String>,
    pub(super) upstream: Map<String, Value>,
    pub(super) active: Map<String, Value>,
    pub(super) passive: Map<String, Value>,
    pub(super) max_fails: Option<i64>,
    pub(super) is_first: bool,
    pub(super) weights: Vec<i64>,
    pub(super) pages: Vec<Value>,
    pub(super) is_refused: Option<String>,
}

/// Applies `reverse_proxy`.
pub(super) fn reverse_proxy(runner: &mut Runner<'_>, item: &Item, branch: Branch) -> Vec<Branch> {
    let mut settings = Settings { nodes: item.args.clone(), ..Settings::default() };
    let mut branches = vec![branch];
    for line in item.line.lines() {
        branches = option(runner, line, &mut settings, branches);
    }
    if !branches[0].files.candidates.is_empty() {
        let text =
            "The path after try_files depends on files, which the node may not have: use static-files.";
        runner.remarks.gap(item.place(), text);
    }
    finish(runner, item, settings, branches, "http")
}

/// Makes the upstream and ends the branches.
pub(super) fn finish(
    runner: &mut Runner<'_>,
    item: &Item,
    mut settings: Settings,
    branches: Vec<Branch>,
    default: &str,
) -> Vec<Branch> {
    let mut nodes = Vec::new();
    let mut scheme: Option<String> = None;
    for (index, text) in settings.nodes.iter().enumerate() {
        let Some(node) = address(text) else {
            let reason = format!("`{text}` is not a fixed address of a node.");
            runner.remarks.closed(item.place(), format!("{reason} The route is closed."));
            return branches.into_iter().map(|branch| branch.close(reason.clone())).collect();
        };
        let wire = match node.scheme.as_str() {
            "https" => "https",
            "h2c" => "grpc",
            _ => default,
        };
        scheme.get_or_insert_with(|| wire.to_owned());
        let weight = settings.weights.get(index).copied().unwrap_or(1);
        let mut value = json!({"host": node.host, "weight": weight});
        if node.port != 0 {
            value["port"] = node.port.into();
        }
        if settings.is_first {
            value["priority"] = (settings.nodes.len() - index).into();
        }
        nodes.push(value);
    }
    if let Some(reason) = settings.is_refused {
        runner.remarks.closed(item.place(), format!("{reason} The route is closed."));
        return branches.into_iter().map(|branch| branch.close(reason.clone())).collect();
    }
    let upstream = upstream(&mut settings, nodes, scheme, default);
    let name = settings.nodes.first().map_or("upstream", String::as_str);
    let id = runner.upstreams.add(name, upstream);
    branches
        .into_iter()
        .map(|mut branch| {
            if branch.is_finished {
                return branch;
            }
            if !settings.pages.is_empty() {
                // The fields of the node are gone, the fields of the site stay.
                let kept: Vec<&String> = branch.response.iter().map(|(name, _)| name).collect();
                let mut pages = settings.pages.clone();
                pages.iter_mut().for_each(|page| page["keep_fields"] = json!(kept));
                let page = json!({"intercept": true, "pages": pages});
                branch.decision.plugins.insert("error-page".to_owned(), page);
            }
            branch.decision.fields.insert("enable_websocket".to_owned(), true.into());
            branch.finish(Target::Upstream(id.clone()))
        })
        .collect()
}

/// Returns the upstream of the settings.
fn upstream(settings: &mut Settings, nodes: Vec<Value>, scheme: Option<String>, default: &str) -> Value {
    let scheme =
        settings.upstream.remove("scheme").or(scheme.map(Value::from)).unwrap_or_else(|| default.into());
    let mut upstream = Map::new();
    upstream.insert("nodes".to_owned(), Value::Array(nodes));
    upstream.entry("type").or_insert_with(|| "random".into());
    upstream.insert("retries".to_owned(), 0.into());
    upstream.insert("timeout".to_owned(), json!({"connect": 3, "send": 600, "read": 600}));
    if scheme != "http" {
        upstream.insert("scheme".to_owned(), scheme.clone());
    }
    if scheme == "https" {
        // Caddy names the node in Host where it speaks TLS to it.
        upstream.insert("pass_host".to_owned(), "node".into());
        upstream.insert("tls".to_owned(), json!({"verify": true}));
    }
    for (key, value) in std::mem::take(&mut settings.upstream) {
        match (upstream.get_mut(&key), value) {
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
            (_, value) => {
                upstream.insert(key, value);
            }
        }
    }
    let mut checks = Map::new();
    if settings.active.contains_key("http_path") {
        checks.insert("active".to_owned(), Value::Object(active(std::mem::take(&mut settings.active))));
    }
    if !settings.passive.is_empty() {
        let fails = settings.max_fails.unwrap_or(1).clamp(1, 254);
        let unhealthy = settings.passive.entry("unhealthy").or_insert_with(|| json!({"http_failures": 0}));
        unhealthy["tcp_failures"] = fails.into();
        unhealthy["timeouts"] = fails.into();
        if unhealthy.get("http_statuses").is_some() {
            unhealthy["http_failures"] = fails.into();
        }
        checks.insert("passive".to_owned(), Value::Object(std::mem::take(&mut settings.passive)));
    }
    if !checks.is_empty() {
        upstream.insert("checks".to_owned(), Value::Object(checks));
    }
    Value::Object(upstream)
}

/// Parses a duration as a JSON number, whole where it can be.
pub(super) fn seconds(text: &str) -> Option<Value> {
    let seconds = super::duration(text)?;
    Some(if seconds.fract() == 0.0 { json!(seconds as u64) } else { json!(seconds) })
}

/// Reads one option.
pub(super) fn option(
    runner: &mut Runner<'_>,
    line: &Line,
    settings: &mut Settings,
    branches: Vec<Branch>,
) -> Vec<Branch> {
    let place = line.place();
    let arg = line.arg(0).unwrap_or_default().to_owned();
    match line.name() {
        "to" => settings.nodes.extend(line.args()),
        "lb_policy" => policy(runner, line, settings),
        "lb_retries" => {
            settings.upstream.insert("retries".to_owned(), arg.parse::<u64>().unwrap_or(0).into());
        }
        "lb_try_duration" => {
            if let Some(time) = seconds(&arg) {
                settings.upstream.entry("retries").or_insert_with(|| 8.into());
                settings.upstream.insert("retry_timeout".to_owned(), time);
                runner.remarks.differs(place, "Attempts end after eight retries as well.");
            }
        }
        "lb_try_interval" => runner.remarks.no_effect(place, "The next node is tried at once."),
        "fail_duration" => {
            if let Some(time) = seconds(&arg) {
                settings.passive.insert("fail_timeout".to_owned(), time);
            }
        }
        "max_fails" => settings.max_fails = arg.parse().ok(),
        "unhealthy_status" => {
            let statuses: Vec<u16> = line.args().iter().flat_map(|arg| statuses(arg)).collect();
            settings.passive.insert("unhealthy".to_owned(), json!({"http_statuses": statuses}));
        }
        name if name.starts_with("health_") => health(runner, line, settings),
        "header_up" => return header_up(runner, line, settings, branches),
        "header_down" => return header_down(runner, line, branches),
        "transport" => transport(runner, line, settings),
        "method" => return each(branches, |branch| branch.target.method = Some(arg.to_ascii_uppercase())),
        "rewrite" => return each(branches, |branch| runner.set_target(place, &arg, branch)),
        "handle_response" | "replace_status" => super::responses::response(runner, line, settings),
        "trusted_proxies" => {
            let text = "Set `trusted_addresses` for the whole gateway.";
            runner.remarks.gap(place, text);
        }
        "dynamic" => {
            settings.is_refused =
                Some(format!("Nodes by `dynamic {arg}` need `service_name` and `discovery`."))
        }
        "lb_retry_match" => runner.remarks.gap(place, "Set `methods` of `retry_policy`."),
        "request_buffers" | "response_buffers" if size(&arg).is_some() => {
            runner.remarks.no_effect(place, "Bodies are forwarded as they arrive.");
        }
        name if name.starts_with('@') => {}
        _ => runner.remarks.no_effect(place, "Sigma's own handling of streams applies."),
    }
    branches
}

fn each(mut branches: Vec<Branch>, mut change: impl FnMut(&mut Branch)) -> Vec<Branch> {
    branches.iter_mut().for_each(&mut change);
    branches
}

/// Statuses such as `404`, `5xx`, `2`.
pub(super) fn statuses(text: &str) -> Vec<u16> {
    match (text.parse::<u16>(), text.chars().next().and_then(|char| char.to_digit(10))) {
        (Ok(status), _) if status >= 100 => vec![status],
        (_, Some(class @ 2..=5)) => {
            let class = class as u16 * 100;
            (class..class + 100).collect()
        }
        _ => Vec::new(),
    }
}

fn policy(runner: &mut Runner<'_>, line: &Line, settings: &mut Settings) {
    let arg = line.arg(1).unwrap_or_default().to_owned();
    let mut hash_on = |source: &str, key: String| {
        settings.upstream.insert("type".to_owned(), "chash".into());
        settings.upstream.insert("hash_on".to_owned(), source.into());
        settings.upstream.insert("key".to_owned(), key.into());
    };
    let mut hash = |key: String| hash_on("vars", key);
    match line.arg(0).unwrap_or_default() {
        "first" => settings.is_first = true,
        "ip_hash" | "client_ip_hash" => hash("remote_addr".to_owned()),
        "uri_hash" => hash("request_uri".to_owned()),
        "query" => hash(format!("arg_{arg}")),
        "header" => {
            hash_on("vars_combinations", format!("$http_{}", arg.to_ascii_lowercase().replace('-', "_")));
        }
        "cookie" => {
            let name = if arg.is_empty() { "lb" } else { arg.as_str() };
            let mut secret =
                line.arg(2).map_or_else(|| format!("imported-session-secret-of-{name}"), str::to_owned);
            if secret.len() < SECRET_BYTES {
                secret.push_str(&format!("-imported-session-secret-of-{name}"));
            }
            let affinity =
                json!({"cookie": {"name": name, "http_only": true, "same_site": "lax"}, "secret": secret});
            settings.upstream.insert("session_affinity".to_owned(), affinity);
            runner.remarks.differs(
                line.place(),
                "The cookie has Sigma's keyed hash; change `secret` to your own secret.",
            );
        }
        "weighted_round_robin" => {
            settings.weights = line.args()[1..].iter().filter_map(|arg| arg.parse().ok()).collect();
            settings.upstream.insert("type".to_owned(), "roundrobin".into());
        }
        other => {
            let kind = match other {
                "round_robin" => "roundrobin",
                "least_conn" => "least_conn",
                "random_choose" => "least_request",
                _ => "random",
            };
            settings.upstream.insert("type".to_owned(), kind.into());
        }
    }
}

/// Changes of the node's request; a replacement inside a field needs a variable.
fn header_up(
    runner: &mut Runner<'_>,
    line: &Line,
    settings: &mut Settings,
    branches: Vec<Branch>,
) -> Vec<Branch> {
    let (place, args) = (line.place(), line.args());
    let name = args.first().cloned().unwrap_or_default();
    if name.eq_ignore_ascii_case("host") {
        let value = args.get(1).cloned().unwrap_or_default();
        if matches!(
            value.as_str(),
            "{upstream_hostport}" | "{http.reverse_proxy.upstream.hostport}" | "{rp.upstream.hostport}"
        ) {
            settings.upstream.insert("pass_host".to_owned(), "node".into());
            return branches;
        }
        settings.upstream.insert("pass_host".to_owned(), "pass".into());
        if matches!(
            value.as_str(),
            "{host}" | "{hostport}" | "{http.request.host}" | "{http.request.hostport}"
        ) {
            return branches;
        }
        let value = runner.text(place, &value);
        return each(branches, |branch| branch.target.host = Some(value.clone()));
    }
    if let [_, pattern, replacement] = args.as_slice() {
        return replaced(runner, place, &name, pattern, replacement, branches);
    }
    match runner.change(place, &args) {
        Some(change) => each(branches, |branch| branch.request.push(change.clone())),
        None => branches,
    }
}

fn replaced(
    runner: &mut Runner<'_>,
    place: SourceLine,
    name: &str,
    pattern: &str,
    replacement: &str,
    branches: Vec<Branch>,
) -> Vec<Branch> {
    let variable = match (regex(pattern), super::matcher::header_variable(name)) {
        (Ok(_), Ok(variable)) => variable,
        (Err(reason), _) | (_, Err(reason)) => {
            runner.remarks.gap(place, reason);
            return branches;
        }
    };
    // The text around the first match stays: its groups are the first and the last.
    let count = regex::Regex::new(pattern).map_or(1, |regex| regex.captures_len());
    let mut shifted = replacement.to_owned();
    for number in (1..count).rev() {
        shifted = shifted.replace(&format!("${number}"), &format!("${{{}}}", number + 1));
    }
    let own = format!("replaced_{variable}_{}", place.line);
    let rule = json!({"match": format!("^(.*?){pattern}(.*)$"), "value": format!("${{1}}{shifted}${{{}}}", count + 1)});
    let map = json!({"map": format!("${variable}"), "regex": [rule], "default": format!("${variable}")});
    runner.variables.own.insert(own.clone(), map);
    let mut out = Vec::new();
    for branch in branches {
        let condition = Condition::Variable(json!([variable, "~=", null]));
        let rest = branch.clone();
        if let Ok((Some(mut holds), _)) = branch.split(&condition) {
            holds.request.push((name.to_owned(), Change::Set(format!("$var_{own}"))));
            out.push(holds);
        }
        out.push(rest);
    }
    out
}

fn header_down(runner: &mut Runner<'_>, line: &Line, branches: Vec<Branch>) -> Vec<Branch> {
    let (place, args) = (line.place(), line.args());
    if let [name, pattern, replacement] = args.as_slice() {
        if !name.eq_ignore_ascii_case("location") {
            runner.remarks.gap(place, "Replacements inside a response field are done for Location only.");
            return branches;
        }
        return each(branches, |branch| {
            let plugin =
                branch.decision.plugins.entry("response-rewrite".to_owned()).or_insert_with(|| json!({}));
            let rule = json!({"regex": pattern, "to": replacement});
            match plugin.get_mut("location").and_then(Value::as_array_mut) {
                Some(list) => list.push(rule),
                None => plugin["location"] = json!([rule]),
            }
        });
    }
    match runner.change(place, &args) {
        Some(change) => each(branches, |branch| branch.response.push(change.clone())),
        None => branches,
    }
}

fn transport(runner: &mut Runner<'_>, line: &Line, settings: &mut Settings) {
    if line.arg(0) == Some("fastcgi") {
        settings.upstream.insert("scheme".to_owned(), "fcgi".into());
        settings.upstream.insert("fastcgi".to_owned(), fastcgi(runner, line.lines(), None));
        return;
    }
    let mut timeout = Map::new();
    let mut tls = Map::new();
    for option in line.lines() {
        let arg = option.arg(0).unwrap_or_default();
        match option.name() {
            "tls" | "tls_server_name" => {
                settings.upstream.insert("scheme".to_owned(), "https".into());
                if option.name() == "tls_server_name" {
                    settings.upstream.insert("pass_host".to_owned(), "node".into());
                    let text = "Sigma verifies the name of the node: use that name in `nodes`.";
                    runner.remarks.guard_differs(option.place(), text);
                }
            }
            "tls_insecure_skip_verify" => {
                settings.upstream.insert("scheme".to_owned(), "https".into());
                tls.insert("verify".to_owned(), false.into());
            }
            "tls_trusted_ca_certs" | "tls_trust_pool" => {
                settings.upstream.insert("scheme".to_owned(), "https".into());
                let files = option.args().into_iter().filter(|arg| arg != "file");
                let mut all = String::new();
                for file in files {
                    match runner.access.read(&file) {
                        Ok(text) => all.push_str(&text),
                        Err(reason) => {
                            settings.is_refused = Some(format!("`{file}` cannot be read: {reason}."))
                        }
                    }
                }
                tls.insert("ca".to_owned(), all.into());
            }
            "tls_client_auth" => {
                settings.is_refused =
                    Some("Give the client certificate in `tls` of the upstream.".to_owned());
            }
            "versions" if arg == "h2c" => {
                settings.upstream.insert("scheme".to_owned(), "grpc".into());
            }
            "dial_timeout" => {
                timeout.extend(seconds(arg).map(|time| ("connect".to_owned(), time)));
            }
            "read_timeout" | "response_header_timeout" => {
                timeout.extend(seconds(arg).map(|time| ("read".to_owned(), time)));
            }
            "write_timeout" => {
                timeout.extend(seconds(arg).map(|time| ("send".to_owned(), time)));
            }
            "proxy_protocol" => {
                settings.upstream.insert("proxy_protocol".to_owned(), arg.into());
            }
            "keepalive" if arg != "off" => {
                let pool = seconds(arg).map(|time| json!({"idle_timeout": time}));
                settings.upstream.extend(pool.map(|pool| ("keepalive_pool".to_owned(), pool)));
            }
            _ => runner.remarks.no_effect(option.place(), "Sigma's own handling of connections applies."),
        }
    }
    for (key, map) in [("timeout", timeout), ("tls", tls)] {
        if !map.is_empty() {
            settings.upstream.insert(key.to_owned(), Value::Object(map));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nodes() {
        let node = |scheme: &str, host: &str, port| {
            Some(Node { scheme: scheme.to_owned(), host: host.to_owned(), port })
        };
        assert_eq!(address(":9000"), node("", "localhost", 9000));
        assert_eq!(address("https://a.test"), node("https", "a.test", 443));
        assert_eq!(address("unix//run/php.sock"), node("", "unix:/run/php.sock", 0));
        assert_eq!(address("h2c://[::1]:80"), node("h2c", "[::1]", 80));
        for text in ["{host}:80", "a:b", "http://a/x"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
