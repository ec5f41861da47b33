//! Settings of the process: logs, timeouts, limits, addresses of clients, names, caches.

use serde_json::{Map, Value, json};

use super::super::report::Verdict;
use super::access::option;
use super::converter::Converter;
use super::level::{Level, milliseconds, size};
use super::parse::Directive;
use super::texts::pretty;

/// nginx's format `combined`.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                        \"$http_referer\" \"$http_user_agent\"";

impl<'a> Converter<'a> {
    /// Settings of the main level.
    pub(super) fn main_settings(&mut self, main: &Level<'a>) {
        if let Some(number) = main.text("worker_processes").and_then(|text| text.parse::<u64>().ok()) {
            self.setting("workers", number.into());
        }
        if let Some(path) = main.text("pid").filter(|path| path.starts_with('/')) {
            self.setting("pid_file", path.into());
        }
        self.error_log(main);
        let events = main.own("events").map(Directive::children).unwrap_or_default();
        let connections = events.iter().find(|directive| directive.name == "worker_connections");
        if let Some(number) = connections.and_then(|directive| directive.arg(0).parse::<u64>().ok()) {
            self.member("limits", "connections_per_worker", number.into());
        }
    }

    fn error_log(&mut self, level: &Level<'a>) {
        let Some(directive) = level.own("error_log") else { return };
        let path = directive.arg(0);
        if path.starts_with("syslog:") || path.starts_with("memory:") {
            return self.remark(directive, Verdict::NotPossible, "write the log to `stderr` or a file");
        }
        let level = match directive.arg(1) {
            "debug" => "debug",
            "info" | "notice" => "info",
            "warn" => "warn",
            _ => "error",
        };
        let path = if matches!(path, "/dev/null") || !path.starts_with('/') { "stderr" } else { path };
        self.setting("error_log", json!({"path": path, "level": level}));
    }

    /// Settings of the level `http` and of its servers.
    pub(super) fn http_settings(&mut self, http: &Level<'a>) {
        let servers: Vec<&Directive> = http.own_all(&["server"]);
        let first = |name: &str| {
            http.own(name).or_else(|| {
                servers
                    .iter()
                    .find_map(|server| server.children().iter().rev().find(|child| child.name == name))
            })
        };
        for (name, key) in [
            ("client_header_timeout", "request_head_ms"),
            ("client_body_timeout", "request_body_ms"),
            ("keepalive_timeout", "keepalive_ms"),
            ("send_timeout", "response_send_ms"),
        ] {
            if let Some(time) = first(name).and_then(|directive| milliseconds(directive.arg(0))) {
                self.member("timeouts", key, time.into());
            }
        }
        if let Some(number) = first("keepalive_requests").and_then(|it| it.arg(0).parse::<u64>().ok()) {
            self.member("limits", "keepalive_requests", number.into());
        }
        if let Some(directive) = first("large_client_header_buffers") {
            let number = directive.arg(0).parse::<u64>().unwrap_or(4);
            if let Some(bytes) = size(directive.arg(1)) {
                self.member("limits", "request_line_bytes", bytes.into());
                self.member("limits", "request_head_bytes", bytes.saturating_mul(number).into());
            }
        }
        if first("underscores_in_headers").is_none_or(|directive| directive.arg(0) != "on") {
            self.setting("underscores_in_headers", "drop".into());
        } else if let (Some(directive), true) = (
            first("underscores_in_headers"),
            http.own("underscores_in_headers").is_none() && http.own_all(&["server"]).len() > 1,
        ) {
            self.remark(directive, Verdict::Differs, "It applies to all servers.");
        }
        // nginx matches the resolved path and sends the client's own on; so does this setting.
        self.member("router", "ambiguous_paths", "allow".into());
        self.client_address(first("real_ip_header"), first("real_ip_recursive"), http);
        if let Some(resolver) = first("resolver") {
            let servers: Vec<&String> = resolver.args.iter().filter(|arg| !arg.contains('=')).collect();
            if servers.iter().all(|server| {
                server.parse::<std::net::IpAddr>().is_ok() || server.parse::<std::net::SocketAddr>().is_ok()
            }) {
                self.setting("dns", json!({"servers": servers}));
            }
        }
        self.error_log(http);
        self.access_log(http);
        self.cache_path(http);
        self.body_limits(http);
    }

    /// `set_real_ip_from` and its relatives.
    fn client_address(
        &mut self,
        header: Option<&'a Directive>,
        recursive: Option<&'a Directive>,
        http: &Level<'a>,
    ) {
        let mut trusted: Vec<String> = Vec::new();
        let servers = http.own_all(&["server"]);
        let lines = http.own_all(&["set_real_ip_from"]).into_iter().chain(
            servers
                .iter()
                .flat_map(|server| server.children())
                .filter(|child| child.name == "set_real_ip_from"),
        );
        for line in lines {
            if line.arg(0) != "unix:" && !trusted.iter().any(|known| known == line.arg(0)) {
                trusted.push(line.arg(0).to_owned());
            }
        }
        if trusted.is_empty() {
            return;
        }
        let mut inner = servers.iter().flat_map(|server| server.children());
        if let Some(line) = inner.find(|child| child.name == "set_real_ip_from").filter(|_| servers.len() > 1)
        {
            self.remark(line, Verdict::Differs, "It applies to all servers.");
        }
        self.setting("trusted_addresses", json!(trusted));
        let field = header.map_or("X-Real-IP", |directive| directive.arg(0));
        if field.eq_ignore_ascii_case("proxy_protocol") {
            return;
        }
        if let Some(directive) = header.filter(|_| {
            recursive.is_none_or(|it| it.arg(0) != "on") && field.eq_ignore_ascii_case("X-Forwarded-For")
        }) {
            let text = "Trusted addresses are skipped from the right, as with `real_ip_recursive on`.";
            self.remark(directive, Verdict::Differs, text);
        }
        self.setting("client_address", json!({"field": field}));
    }

    /// `log_format` and the first `access_log`.
    fn access_log(&mut self, http: &Level<'a>) {
        let servers = http.own_all(&["server"]);
        let own = http.own_all(&["access_log"]);
        let inner =
            servers.iter().flat_map(|server| server.children()).filter(|child| child.name == "access_log");
        let logs: Vec<&Directive> = own.into_iter().chain(inner).filter(|log| log.arg(0) != "off").collect();
        let Some(log) = logs.first() else { return };
        for other in logs.iter().skip(1).filter(|other| other.args != log.args) {
            let text = "Sigma has one access log for all servers: the first one of the file.";
            self.remark(other, Verdict::Differs, text);
        }
        let path = log.arg(0);
        if path.starts_with("syslog:") || path.contains('$') {
            return self.remark(
                log,
                Verdict::NotPossible,
                "use the plugin syslog, or write the log to a file",
            );
        }
        let name = log.args.get(1).filter(|name| !name.contains('=')).map_or("combined", String::as_str);
        let format = match http.own_all(&["log_format"]).into_iter().find(|format| format.arg(0) == name) {
            Some(format) => {
                let words = format.args.iter().skip(1).filter(|word| !word.starts_with("escape="));
                let source: String = words.map(String::as_str).collect();
                pretty(&self.global_text(format, &source))
            }
            None => COMBINED.to_owned(),
        };
        let path = if path == "/dev/stdout" { "stdout" } else { path };
        let mut config = json!({"path": path, "format": format});
        if let Some(condition) = option(log, "if") {
            let text = self.global_text(log, condition);
            let variable = self.variables.name_of(&text);
            config["if"] = json!([[variable, "~~", "^(?:[^0]|0.)"]]);
        }
        self.setting("access_log", config);
    }

    /// `proxy_cache_path`: one cache for all zones.
    fn cache_path(&mut self, http: &Level<'a>) {
        let paths = http.own_all(&["proxy_cache_path", "fastcgi_cache_path"]);
        let Some(first) = paths.first() else { return };
        for path in &paths {
            if let Some(zone) = option(path, "keys_zone") {
                self.blocks.caches.insert(zone.split(':').next().unwrap_or(zone).to_owned(), path);
            }
        }
        if !super::mentions(http.directives, &["proxy_cache", "fastcgi_cache"]) {
            return;
        }
        let mut disk = json!({"path": first.arg(0)});
        if let Some(bytes) = option(first, "max_size").and_then(size) {
            disk["max_bytes"] = bytes.into();
        }
        if let Some(time) = option(first, "inactive").and_then(milliseconds) {
            disk["inactive"] = (time / 1000).into();
        }
        self.setting("cache", json!({"disk": disk}));
    }

    /// One body limit for all locations is a setting; several are plugins of the routes.
    fn body_limits(&mut self, http: &Level<'a>) {
        let mut limits: Vec<u64> = Vec::new();
        let own = |directives: &[Directive]| {
            directives
                .iter()
                .rev()
                .find(|it| it.name == "client_max_body_size")
                .and_then(|it| size(it.arg(0)))
        };
        let of_http = own(http.directives);
        let mut stack: Vec<(&[Directive], Option<u64>)> = Vec::new();
        for server in http.own_all(&["server"]) {
            let limit = own(server.children()).or(of_http);
            limits.push(limit.unwrap_or(1 << 20));
            stack.push((server.children(), limit));
        }
        while let Some((directives, around)) = stack.pop() {
            for child in directives.iter().filter(|child| matches!(child.name.as_str(), "location" | "if")) {
                let limit = own(child.children()).or(around);
                limits.push(limit.unwrap_or(1 << 20));
                stack.push((child.children(), limit));
            }
        }
        limits.sort_unstable();
        limits.dedup();
        if let [limit] = limits.as_slice() {
            self.common_body_limit = Some(*limit);
            if *limit > 0 {
                self.member("limits", "request_body_bytes", (*limit).into());
            }
        }
    }

    pub(super) fn setting(&mut self, key: &str, value: Value) {
        self.plan.settings.entry(key).or_insert(value);
    }

    pub(super) fn member(&mut self, key: &str, member: &str, value: Value) {
        let section = self.plan.settings.entry(key).or_insert_with(|| Value::Object(Map::new()));
        section[member] = value;
    }
}
