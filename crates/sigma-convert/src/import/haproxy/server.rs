//! Backends: servers, balancing, checks and sessions become an upstream.

use serde_json::{Map, Value, json};

use super::super::source::Files;
use super::parser::Line;
use super::proxy::{Proxy, milliseconds};

/// Maximum number of servers of a template.
const MOST_OF_TEMPLATE: u32 = 256;

/// The result: fields of the upstream and remarks on lines.
#[derive(Debug, Default)]
pub(super) struct ServerFields {
    pub fields: Map<String, Value>,
    pub remarks: Vec<Note>,
}

/// A remark on a line.
#[derive(Debug)]
pub(super) struct Note {
    pub line: Line,
    pub text: String,
    /// Whether it guards access and is not possible.
    pub guards: bool,
}

/// A server with its options.
#[derive(Debug, Default, Clone)]
struct Server {
    host: String,
    port: Option<u16>,
    options: Vec<(String, String)>,
}

/// Options with a value.
const WITH_VALUE: [&str; 46] = [
    "weight",
    "inter",
    "rise",
    "fall",
    "fastinter",
    "downinter",
    "maxconn",
    "maxqueue",
    "minconn",
    "port",
    "cookie",
    "ca-file",
    "crl-file",
    "crt",
    "sni",
    "verify",
    "verifyhost",
    "alpn",
    "ciphers",
    "ciphersuites",
    "ssl-min-ver",
    "ssl-max-ver",
    "slowstart",
    "resolvers",
    "resolve-prefer",
    "resolve-net",
    "resolve-opts",
    "init-addr",
    "on-marked-down",
    "on-marked-up",
    "observe",
    "error-limit",
    "on-error",
    "track",
    "redir",
    "id",
    "addr",
    "agent-port",
    "agent-addr",
    "agent-inter",
    "agent-send",
    "source",
    "pool-max-conn",
    "pool-purge-delay",
    "proto",
    "log-proto",
];

impl Server {
    fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, name: &str) -> bool {
        let no = format!("no-{name}");
        self.options
            .iter()
            .rev()
            .find(|(key, _)| *key == name || *key == no)
            .is_some_and(|(key, _)| key == name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.option(name)?.parse().ok()
    }

    fn milliseconds(&self, name: &str) -> Option<u64> {
        milliseconds(self.option(name)?)
    }

    fn read_options(&mut self, words: &[String]) {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = if WITH_VALUE.contains(&word.as_str()) {
                words.next().cloned().unwrap_or_default()
            } else {
                String::new()
            };
            self.options.push((word.clone(), value));
        }
    }
}

/// Host and port of an address.
fn address(text: &str) -> (String, Option<u16>) {
    let text = ["ipv4@", "ipv6@", "tcp@", "tcp4@", "tcp6@"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text);
    if let Some(path) = text.strip_prefix("unix@").or_else(|| text.starts_with('/').then_some(text)) {
        return (format!("unix:{path}"), None);
    }
    match text.rsplit_once(':') {
        Some((host, port))
            if port.parse::<u16>().is_ok() && (!host.contains(':') || host.starts_with('[')) =>
        {
            (host.to_owned(), port.parse().ok())
        }
        Some((host, port)) if port.parse::<u16>().is_ok() && !text.starts_with('[') => {
            (format!("[{host}]"), port.parse().ok())
        }
        _ => (text.to_owned(), None),
    }
}

fn servers(proxy: &Proxy) -> Vec<Server> {
    let mut defaults = Server::default();
    let mut servers = Vec::new();
    for line in &proxy.lines {
        match line.word(0) {
            "default-server" => defaults.read_options(line.from(1)),
            "server" => {
                let (host, port) = address(line.word(2));
                let mut server = Server { host, port, options: defaults.options.clone() };
                server.read_options(line.from(3));
                servers.push(server);
            }
            "server-template" => {
                let count = line.word(2);
                let (first, last) = count.split_once('-').unwrap_or(("1", count));
                let (first, last) = (first.parse::<u32>().unwrap_or(1), last.parse::<u32>().unwrap_or(1));
                let (host, port) = address(line.word(3));
                // All addresses of the name are nodes: one entry is enough.
                let count =
                    if host.parse::<std::net::IpAddr>().is_ok() { last.saturating_sub(first) + 1 } else { 1 };
                for _ in 0..count.min(MOST_OF_TEMPLATE).min(1) {
                    let mut server = Server { host: host.clone(), port, options: defaults.options.clone() };
                    server.read_options(line.from(4));
                    servers.push(server);
                }
            }
            _ => {}
        }
    }
    servers
}

/// Makes the upstream of a backend.
pub(super) fn upstream(proxy: &Proxy, files: &dyn Files) -> ServerFields {
    let mut made = ServerFields::default();
    let servers = servers(proxy);
    let has_backup = servers.iter().any(|server| server.has("backup"));
    let mut states = Map::new();
    let mut nodes = Vec::new();
    for server in &servers {
        let mut node = json!({"host": server.host, "weight": server.number("weight").unwrap_or(1)});
        if let Some(port) = server.port {
            node["port"] = port.into();
        } else if !server.host.starts_with("unix:") {
            node["port"] = 80.into();
        }
        if has_backup && !server.has("backup") {
            node["priority"] = 1.into();
        }
        if server.has("disabled") {
            let name = server.port.map_or(server.host.clone(), |port| format!("{}:{port}", server.host));
            states.insert(name, "maintenance".into());
        }
        nodes.push(node);
    }
    made.fields.insert("nodes".to_owned(), Value::Array(nodes));
    if !states.is_empty() {
        made.fields.insert("node_states".to_owned(), Value::Object(states));
    }
    balance(proxy, &mut made);
    timeouts(proxy, &mut made);
    retries(proxy, &mut made);
    connections(proxy, &servers, &mut made, files);
    checks(proxy, &servers, &mut made);
    sessions(proxy, &mut made);
    made
}

fn note(made: &mut ServerFields, line: &Line, text: &str) {
    made.remarks.push(Note { line: line.clone(), text: text.to_owned(), guards: false });
}

fn balance(proxy: &Proxy, made: &mut ServerFields) {
    let Some(line) = proxy.last(&["balance"]) else { return };
    let (name, argument) = match line.word(1).split_once('(') {
        Some((name, rest)) => (name.to_owned(), rest.trim_end_matches(')').to_owned()),
        None => (line.word(1).to_owned(), line.word(2).to_owned()),
    };
    let key = match name.as_str() {
        "roundrobin" | "static-rr" => return,
        "leastconn" => {
            // Of two random nodes the one with fewer requests: ties do not all go to the first.
            made.fields.insert("type".to_owned(), "least_request".into());
            return;
        }
        "random" => {
            made.fields.insert("type".to_owned(), "random".into());
            return;
        }
        "first" => {
            note(
                made,
                line,
                "Sigma does not fill servers one after the other: the upstream uses round robin.",
            );
            return;
        }
        "source" => "remote_addr".to_owned(),
        "uri" => "uri".to_owned(),
        "url_param" => format!("arg_{argument}"),
        "hdr" => format!("http_{}", argument.to_ascii_lowercase().replace('-', "_")),
        "hash" => match super::sample::read(&argument, &super::sample::Variables::new()) {
            Ok(sample) if sample.variable.is_some() => sample.variable.unwrap_or_default(),
            _ => {
                note(made, line, "The key of the hash has no variable: the upstream uses round robin.");
                return;
            }
        },
        _ => {
            note(made, line, "The load-balancing method has no counterpart: the upstream uses round robin.");
            return;
        }
    };
    made.fields.insert("type".to_owned(), "chash".into());
    if !matches!(key.as_str(), "remote_addr" | "uri") && !key.starts_with("arg_") {
        made.fields.insert("hash_on".to_owned(), "vars_combinations".into());
    }
    let is_combined = made.fields.contains_key("hash_on");
    made.fields.insert("key".to_owned(), if is_combined { format!("${key}") } else { key }.into());
    if let Some(factor) = proxy
        .last(&["hash-balance-factor"])
        .and_then(|line| line.word(1).parse::<u64>().ok())
        .filter(|it| *it >= 100)
    {
        made.fields.insert("bounded_load".to_owned(), factor.into());
    }
    note(made, line, "The hash function differs, so keys move to other servers once.");
}

fn timeouts(proxy: &Proxy, made: &mut ServerFields) {
    let seconds = |name: &str, default: f64| {
        proxy.timeout(name).map_or(default, |time| (time as f64 / 1000.0).max(0.001))
    };
    let server = seconds("server", 3600.0);
    made.fields.insert(
        "timeout".to_owned(),
        json!({"connect": seconds("connect", 60.0), "send": server, "read": server}),
    );
}

fn retries(proxy: &Proxy, made: &mut ServerFields) {
    let count = proxy.last(&["retries"]).and_then(|line| line.word(1).parse::<u64>().ok()).unwrap_or(3);
    made.fields.insert("retries".to_owned(), count.into());
    let mut conditions = Vec::new();
    let mut statuses: Vec<u16> = Vec::new();
    let words = proxy
        .last(&["retry-on"])
        .map(|line| line.from(1).to_vec())
        .unwrap_or_else(|| vec!["conn-failure".to_owned()]);
    for word in &words {
        match word.as_str() {
            "none" => made.fields.insert("retries".to_owned(), 0.into()).map_or((), drop),
            "conn-failure" => conditions.push("connect-failure"),
            "empty-response" | "junk-response" | "response-timeout" => conditions.push("reset"),
            "0rtt-rejected" => {}
            "all-retryable-errors" => {
                conditions.extend(["connect-failure", "reset"]);
                statuses.extend([500, 502, 503, 504]);
            }
            status => statuses.extend(status.parse::<u16>().ok().filter(|status| *status >= 300)),
        }
    }
    conditions.dedup();
    if conditions.is_empty() && statuses.is_empty() {
        conditions.push("connect-failure");
    }
    if made.fields.get("retries").and_then(Value::as_u64) == Some(0) {
        return;
    }
    let mut policy = json!({"retry_on": conditions});
    if !statuses.is_empty() {
        policy["retriable_status_codes"] = json!(statuses);
    }
    made.fields.insert("retry_policy".to_owned(), policy);
}

/// TLS, limits, protocols of connections.
fn connections(proxy: &Proxy, servers: &[Server], made: &mut ServerFields, files: &dyn Files) {
    let is_tcp = proxy.is_tcp();
    let Some(first) = servers.first() else {
        if is_tcp {
            made.fields.insert("scheme".to_owned(), "tcp".into());
        }
        return;
    };
    let is_tls = first.has("ssl");
    let is_h2 = first.option("proto") == Some("h2")
        || first.option("alpn").is_some_and(|alpn| alpn.starts_with("h2"));
    let scheme = match (is_tcp, is_tls) {
        (true, true) => Some("tls"),
        (true, false) => Some("tcp"),
        (false, true) => Some("https"),
        (false, false) => None,
    };
    if let Some(scheme) = scheme {
        made.fields.insert("scheme".to_owned(), scheme.into());
    }
    if is_tls {
        let mut tls = json!({"verify": first.option("verify") != Some("none")});
        let line = proxy
            .lines
            .iter()
            .rev()
            .find(|line| matches!(line.word(0), "server" | "server-template"))
            .cloned();
        if let Some(path) = first.option("ca-file").filter(|path| !path.starts_with('@')) {
            match files.read(path) {
                Ok(text) => tls["ca"] = text.into(),
                Err(reason) => {
                    if let Some(line) = &line {
                        note(
                            made,
                            line,
                            &format!(
                                "Cannot read {path} ({reason}): the system's authorities verify the servers; set `tls.ca`."
                            ),
                        );
                    }
                }
            }
        }
        if let Some(path) = first.option("crt")
            && let Ok(text) = files.read(path)
        {
            tls["client_cert"] = text.clone().into();
            tls["client_key"] = text.into();
        }
        if is_h2 && !is_tcp {
            tls["alpn"] = json!(["h2", "http/1.1"]);
        }
        made.fields.insert("tls".to_owned(), tls);
    }
    if first.has("send-proxy") || first.has("send-proxy-v2") || first.has("send-proxy-v2-ssl") {
        let version = if first.has("send-proxy") { "v1" } else { "v2" };
        made.fields.insert("proxy_protocol".to_owned(), version.into());
    }
    if let Some(most) = first.number("maxconn").filter(|most| *most > 0) {
        let timeout = proxy.timeout("queue").or_else(|| proxy.timeout("connect")).unwrap_or(60_000);
        made.fields.insert(
            "limits".to_owned(),
            json!({"max_requests_per_node": most, "queue": {"length": 10_000, "timeout": timeout as f64 / 1000.0}}),
        );
    }
    if let Some(window) = first.milliseconds("slowstart")
        && !matches!(made.fields.get("type").and_then(Value::as_str), Some("chash"))
    {
        made.fields.insert("slow_start".to_owned(), json!({"window": window as f64 / 1000.0}));
    }
    if first.option("on-marked-down") == Some("shutdown-sessions") {
        made.fields.insert("on_unhealthy".to_owned(), "close".into());
    }
}

fn checks(proxy: &Proxy, servers: &[Server], made: &mut ServerFields) {
    let Some(server) = servers.iter().find(|server| server.has("check")) else { return };
    let seconds = |name: &str, default: u64| server.milliseconds(name).unwrap_or(default) as f64 / 1000.0;
    let interval = seconds("inter", 2000);
    let down = server.milliseconds("downinter").map_or(interval, |time| time as f64 / 1000.0);
    // Whole seconds are the unit of the interval.
    let whole = |time: f64| time.ceil().max(1.0) as u64;
    let mut active = json!({
        "type": "tcp",
        "healthy": {"interval": whole(interval), "successes": server.number("rise").unwrap_or(2)},
        "unhealthy": {"interval": whole(down), "tcp_failures": server.number("fall").unwrap_or(3),
            "http_failures": server.number("fall").unwrap_or(3), "timeouts": server.number("fall").unwrap_or(3)},
    });
    if let Some(time) = server.milliseconds("fastinter") {
        active["fast_interval"] = json!(time as f64 / 1000.0);
    }
    if let Some(time) = proxy.timeout("check") {
        active["timeout"] = json!(time as f64 / 1000.0);
    }
    if let Some(port) = server.number("port") {
        active["port"] = port.into();
    }
    if let Some(line) = proxy.option("httpchk") {
        http_check(proxy, line, server, &mut active, made);
    }
    made.fields.insert("checks".to_owned(), json!({"active": active}));
    for line in proxy.all(&["http-check", "connect"]).chain(proxy.all(&["tcp-check"])) {
        note(
            made,
            line,
            "A probe is one request or one connection: sequences of send and expect are not converted.",
        );
    }
    if server.has("agent-check") {
        note(made, &proxy.head, "Write `checks.agent` for the agent of the servers.");
    }
}

fn http_check(proxy: &Proxy, line: &Line, server: &Server, active: &mut Value, made: &mut ServerFields) {
    let is_tls = server.has("check-ssl") || (server.has("ssl") && !server.has("no-check-ssl"));
    active["type"] = if is_tls { "https" } else { "http" }.into();
    if is_tls && server.option("verify") == Some("none") {
        active["https_verify_certificate"] = false.into();
    }
    let (mut method, mut path, mut headers) = ("OPTIONS".to_owned(), "/".to_owned(), Vec::new());
    match line.from(2) {
        [] => {}
        [only] => path.clone_from(only),
        [first, second, rest @ ..] => {
            method.clone_from(first);
            path.clone_from(second);
            // The version may be followed by fields: `HTTP/1.1\r\nHost:\ a`.
            let rest = rest.join(" ").replace("\\r\\n", "\n").replace("\r\n", "\n");
            headers.extend(
                rest.lines()
                    .skip(1)
                    .filter(|line| line.contains(':'))
                    .map(|line| line.replace("\\ ", " ").trim().to_owned()),
            );
        }
    }
    for line in proxy.all(&["http-check", "send"]) {
        let mut words = line.from(2).iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "meth" => method = words.next().cloned().unwrap_or_default(),
                "uri" => path = words.next().cloned().unwrap_or_default(),
                "hdr" => {
                    let name = words.next().cloned().unwrap_or_default();
                    headers.push(format!("{name}: {}", words.next().cloned().unwrap_or_default()));
                }
                "ver" => drop(words.next()),
                _ => {}
            }
        }
    }
    if let Some(at) = headers.iter().position(|line| line.to_ascii_lowercase().starts_with("host:")) {
        let host = headers.remove(at);
        active["host"] = host.split_once(':').map_or("", |(_, host)| host.trim()).into();
    }
    active["healthy"]["http_statuses"] =
        json!([200, 201, 202, 203, 204, 205, 206, 300, 301, 302, 303, 304, 307, 308]);
    active["http_method"] = method.into();
    active["http_path"] = path.into();
    if !headers.is_empty() {
        active["req_headers"] = json!(headers);
    }
    for line in proxy.all(&["http-check", "expect"]) {
        match (line.word(2), line.word(3)) {
            ("status", statuses) => {
                let list: Vec<u16> = statuses.split(',').filter_map(|status| status.parse().ok()).collect();
                if !list.is_empty() {
                    active["healthy"]["http_statuses"] = json!(list);
                }
            }
            ("string", text) => active["http_expected_body"] = text.into(),
            ("rstatus", _) => {}
            _ => note(made, line, "The expectation has no counterpart: a status below 400 is a success."),
        }
    }
}

fn sessions(proxy: &Proxy, made: &mut ServerFields) {
    if let Some(line) = proxy.last(&["cookie"]) {
        let words = line.from(2);
        let has = |name: &str| words.iter().any(|word| word == name);
        let after = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
        if has("insert") {
            let mut cookie =
                json!({"name": line.word(1), "http_only": has("httponly"), "secure": has("secure")});
            if let Some(domain) = after("domain") {
                cookie["domain"] = domain.trim_start_matches('.').into();
            }
            let secret = format!("set your own secret for {}", proxy.name);
            made.fields.insert("session_affinity".to_owned(), json!({"cookie": cookie, "secret": secret}));
            note(
                made,
                line,
                "The cookie has a keyed hash of the node, not the name of the server: sessions start again once. Set `session_affinity.secret`.",
            );
        } else {
            made.fields.insert("stick_table".to_owned(), json!({"cookie": line.word(1)}));
            if has("rewrite") || has("prefix") {
                let text =
                    "The cookie of the application stays as it is; each of its values keeps its server.";
                note(made, line, text);
            }
        }
        return;
    }
    if let Some(line) = proxy.lines.iter().rev().find(|line| {
        matches!(line.word(0), "stick") && matches!(line.word(1), "on" | "match" | "store-request")
    }) {
        match line.word(2) {
            "src" => drop(made.fields.insert("stick_table".to_owned(), json!({"address": true}))),
            other => match other.split_once('(') {
                Some(("req.cook" | "cookie" | "cook", name)) => {
                    made.fields
                        .insert("stick_table".to_owned(), json!({"cookie": name.trim_end_matches(')')}));
                }
                _ => note(
                    made,
                    line,
                    "The key has no counterpart: requests of a session may go to other servers; use `type: chash`.",
                ),
            },
        }
    }
    if let Some(line) = proxy.last(&["stick", "store-response"])
        && let Some(("res.cook" | "set-cookie", name)) = line.word(2).split_once('(')
    {
        made.fields.insert("stick_table".to_owned(), json!({"cookie": name.trim_end_matches(')')}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_hosts_and_ports() {
        assert_eq!(address("10.0.0.1:80"), ("10.0.0.1".to_owned(), Some(80)));
        assert_eq!(address("[::1]:81"), ("[::1]".to_owned(), Some(81)));
        assert_eq!(address("::1:81"), ("[::1]".to_owned(), Some(81)));
        assert_eq!(address("unix@/run/a.sock"), ("unix:/run/a.sock".to_owned(), None));
        assert_eq!(address("ipv4@a.example"), ("a.example".to_owned(), None));
    }
}
