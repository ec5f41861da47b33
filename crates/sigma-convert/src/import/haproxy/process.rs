//! Settings of the process and of all connections, and remarks on lines that become no route.

use serde_json::{Value, json};

use super::parser::{Line, Section};
use super::proxy::Kind;
use super::{Outcome, Translation};

impl Translation<'_, '_> {
    /// Settings of the process.
    pub(super) fn process(&mut self) {
        let sections = self.sections;
        for line in sections.iter().filter(|it| it.kind == "global").flat_map(|it| &it.lines) {
            match line.word(0) {
                "nbthread" => {
                    if let Ok(threads) = line.word(1).parse::<u16>() {
                        self.plan.settings.insert("workers".to_owned(), threads.max(1).into());
                        self.tell(line, Outcome::Done, "");
                    }
                }
                "lua-load" | "lua-load-per-thread" => {
                    self.tell(
                        line,
                        Outcome::Missing,
                        "Lua of HAProxy does not run here: write serverless functions.",
                    );
                }
                _ => {}
            }
        }
        self.timeouts();
        self.access_log();
    }

    /// Timeouts of clients: the first frontend decides for all.
    fn timeouts(&mut self) {
        let Some(proxy) = self.proxies.iter().find(|proxy| proxy.kind != Kind::Backend) else { return };
        let mut timeouts = serde_json::Map::new();
        let mut insert = |name: &str, value: Option<u64>| {
            if let Some(value) = value.filter(|value| *value > 0) {
                timeouts.insert(name.to_owned(), value.into());
            }
        };
        let client = proxy.timeout("client");
        insert("request_head_ms", proxy.timeout("http-request").or(client));
        insert("request_body_ms", client);
        insert("response_send_ms", client);
        insert(
            "keepalive_ms",
            proxy.timeout("http-keep-alive").or_else(|| proxy.timeout("http-request")).or(client),
        );
        insert("tunnel_idle_ms", proxy.timeout("tunnel").or(client));
        insert("half_close_ms", proxy.timeout("client-fin"));
        if !timeouts.is_empty() {
            self.plan.settings.insert("timeouts".to_owned(), Value::Object(timeouts));
        }
    }

    /// The format of the access log, if one is written.
    fn access_log(&mut self) {
        let found =
            self.proxies.iter().flat_map(|proxy| &proxy.lines).find(|line| line.word(0) == "log-format");
        let Some(line) = found.cloned() else { return };
        let (format, missing) = log_format(line.word(1));
        self.plan.settings.insert("access_log".to_owned(), json!({"path": "stdout", "format": format}));
        match missing.is_empty() {
            true => self.tell(&line, Outcome::Differs, "Log lines go to standard output."),
            false => {
                let text = format!("Log lines go to standard output, without {}.", missing.join(", "));
                self.tell(&line, Outcome::Differs, text);
            }
        }
    }
}

/// A format of log lines with Sigma's variables, and the names that have no counterpart.
fn log_format(text: &str) -> (String, Vec<String>) {
    let mut out = String::new();
    let mut missing = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let mut after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('%') {
            out.push('%');
            rest = tail;
            continue;
        }
        if let Some(flags) = after.strip_prefix('{') {
            after = flags.split_once('}').map_or("", |(_, tail)| tail);
        }
        if let Some(inner) = after.strip_prefix('[') {
            let end = inner.find(']').unwrap_or(inner.len());
            let sample = super::sample::read(&inner[..end], &super::sample::Variables::new());
            match sample.ok().and_then(|sample| sample.text) {
                Some(text) => out.push_str(&text),
                None => {
                    missing.push(format!("`%[{}]`", &inner[..end]));
                    out.push('-');
                }
            }
            rest = inner.get(end + 1..).unwrap_or_default();
            continue;
        }
        let end = after.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(after.len());
        match log_variable(&after[..end]) {
            Some(variable) => out.push_str(&format!("${{{variable}}}")),
            None => {
                missing.push(format!("`%{}`", &after[..end]));
                out.push('-');
            }
        }
        rest = &after[end..];
    }
    out.push_str(rest);
    (out, missing)
}

fn log_variable(name: &str) -> Option<&'static str> {
    Some(match name {
        "ci" => "remote_addr",
        "cp" => "remote_port",
        "fi" => "server_addr",
        "fp" => "server_port",
        "si" | "s" => "upstream_addr",
        "b" | "ft" | "f" => "route_id",
        "r" => "request",
        "HM" => "request_method",
        "HP" => "uri",
        "HU" => "request_uri",
        "HQ" => "args",
        "HV" => "server_protocol",
        "ST" => "status",
        "B" => "bytes_sent",
        "U" => "request_length",
        "t" | "tr" | "trl" | "T" | "Tl" => "time_local",
        "Ts" => "msec",
        "Ta" | "Tt" | "TR" => "request_time_ms",
        "Tr" => "upstream_header_time",
        "Tc" => "upstream_connect_time",
        "ID" => "request_id",
        "H" => "hostname",
        "pid" => "pid",
        "sslv" => "ssl_protocol",
        "sslc" => "ssl_cipher",
        "rt" => "connection_requests",
        _ => return None,
    })
}

/// The verdict on a line without a remark of a rule.
pub(super) fn verdict(section: &Section, line: &Line) -> (Outcome, &'static str) {
    match section.kind.as_str() {
        "global" => global(line),
        "resolvers" => match line.word(0) {
            "nameserver" => (
                Outcome::Differs,
                "Names are resolved with `dns.servers`, or with the system's servers if it is not set.",
            ),
            _ => (Outcome::Nothing, "Names are resolved again when their records expire."),
        },
        "peers" | "program" | "ring" | "log-forward" | "traces" | "mailers" => {
            (Outcome::Nothing, "Sigma needs no such section.")
        }
        "userlist" => (Outcome::Done, ""),
        "cache" => match line.word(0) {
            "max-age" => (Outcome::Done, ""),
            _ => (Outcome::Nothing, "The size of the cache is `cache.memory_bytes`."),
        },
        "fcgi-app" => (Outcome::Missing, "Write `fastcgi` of the upstream."),
        _ => of_proxy(line),
    }
}

fn global(line: &Line) -> (Outcome, &'static str) {
    match line.word(0) {
        "ssl-default-bind-options" | "crt-base" | "ca-base" | "user" | "group" => (Outcome::Done, ""),
        "ssl-default-bind-ciphers"
        | "ssl-default-bind-ciphersuites"
        | "ssl-default-bind-curves"
        | "ssl-default-server-ciphers"
        | "ssl-default-server-ciphersuites"
        | "ssl-default-server-options" => {
            (Outcome::Differs, "Sigma's own list of ciphers is used: TLS 1.2 and 1.3 with forward secrecy.")
        }
        "ssl-server-verify" => {
            (Outcome::Differs, "Certificates of servers are verified unless their line has `verify none`.")
        }
        "log" => (Outcome::Differs, "The access log is off: set `access_log`."),
        "stats" => (Outcome::Differs, "Sigma is controlled by `control` and `sigma ctl`."),
        "chroot" | "daemon" | "pidfile" | "master-worker" => {
            (Outcome::Nothing, "The service manager and `process` set how Sigma runs.")
        }
        _ => (Outcome::Nothing, "This tuning option has no counterpart."),
    }
}

fn of_proxy(line: &Line) -> (Outcome, &'static str) {
    match (line.word(0), line.word(1)) {
        (
            "mode"
            | "bind"
            | "server"
            | "server-template"
            | "default-server"
            | "default_backend"
            | "use_backend"
            | "use-server"
            | "balance"
            | "cookie"
            | "retries"
            | "retry-on"
            | "acl"
            | "compression"
            | "hash-type"
            | "hash-balance-factor"
            | "stick-table"
            | "redirect"
            | "monitor-uri"
            | "errorfile"
            | "http-check"
            | "stats"
            | "description",
            _,
        ) => (Outcome::Done, ""),
        (
            "timeout",
            "connect" | "client" | "server" | "http-request" | "http-keep-alive" | "tunnel" | "check"
            | "queue" | "client-fin",
        ) => (Outcome::Done, ""),
        ("timeout", _) => (Outcome::Nothing, "This timeout has no counterpart."),
        (
            "option",
            "forwardfor" | "httpchk" | "redispatch" | "http-server-close" | "httpclose" | "http-keep-alive"
            | "http-tunnel" | "ssl-hello-chk" | "tcp-check",
        ) => (Outcome::Done, ""),
        (
            "option",
            "httplog"
            | "tcplog"
            | "dontlognull"
            | "dontlog-normal"
            | "log-separate-errors"
            | "logasap"
            | "log-health-checks",
        ) => (Outcome::Differs, "The access log is off: set `access_log`."),
        (
            "log" | "log-format" | "log-format-sd" | "log-tag" | "unique-id-format" | "unique-id-header"
            | "capture" | "declare",
            _,
        ) => (Outcome::Differs, "The access log is off: set `access_log`."),
        (
            "option",
            "accept-invalid-http-request"
            | "accept-unsafe-violations-in-http-request"
            | "accept-invalid-http-response",
        ) => (Outcome::Differs, "Sigma refuses invalid messages."),
        ("filter", _) => (Outcome::Missing, "Filters of HAProxy do not run here."),
        ("monitor", _) => (Outcome::Nothing, "The state of Sigma is at the address of `status`."),
        ("errorfiles" | "errorloc" | "errorloc302" | "errorloc303" | "http-error", _) => {
            (Outcome::Missing, "Write the plugin error-page for these statuses.")
        }
        ("use-fcgi-app", _) => (Outcome::Missing, "Write `scheme: fcgi` and `fastcgi` for the upstream."),
        ("stick" | "hold" | "no" | "option", _) => (Outcome::Done, ""),
        _ => (Outcome::Nothing, "This tuning option has no counterpart."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_formats_have_variables() {
        let (format, missing) = log_format("%ci:%cp [%tr] %{+Q}r %ST %hr %[req.hdr(host)] 5%%");
        assert_eq!(
            format,
            "${remote_addr}:${remote_port} [${time_local}] ${request} ${status} - ${http_host} 5%"
        );
        assert_eq!(missing, ["`%hr`"]);
    }
}
