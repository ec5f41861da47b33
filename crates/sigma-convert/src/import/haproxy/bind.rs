//! Addresses of frontends, with TLS.

use serde_json::{Map, Value, json};

use super::super::decision::Listener;
use super::parser::Line;
use super::proxy::Proxy;
use super::{Outcome, Translation};

/// Options of `bind` with a value.
const WITH_VALUE: [&str; 34] = [
    "crt",
    "crt-list",
    "ca-file",
    "ca-verify-file",
    "crl-file",
    "verify",
    "alpn",
    "npn",
    "ciphers",
    "ciphersuites",
    "curves",
    "ecdhe",
    "ssl-min-ver",
    "ssl-max-ver",
    "name",
    "id",
    "maxconn",
    "backlog",
    "mode",
    "user",
    "group",
    "uid",
    "gid",
    "process",
    "thread",
    "shards",
    "nice",
    "level",
    "mss",
    "tcp-ut",
    "interface",
    "proto",
    "namespace",
    "severity-output",
];

/// Maximum number of ports of a range.
const MOST_PORTS: u16 = 1024;

impl Translation<'_, '_> {
    /// Adds the listeners of a proxy, and returns their ports. `stream`: the protocol of sessions.
    pub(super) fn binds(&mut self, proxy: &Proxy, stream: Option<&str>) -> Vec<u16> {
        let mut ports = Vec::new();
        let lines: Vec<Line> = proxy.lines.iter().filter(|line| line.word(0) == "bind").cloned().collect();
        for line in &lines {
            let options = options(line.from(2));
            let tls = self.tls(line, &options);
            for part in line.word(1).split(',') {
                for address in addresses(part) {
                    let mut listener =
                        Listener { address: address.0, port: address.1, ..Listener::default() };
                    if let Some(kind) = stream {
                        let kind = if options.iter().any(|(name, _)| name == "ssl") { "tls" } else { kind };
                        listener.fields.insert("stream".to_owned(), kind.into());
                    }
                    if let Some(tls) = &tls {
                        listener.fields.insert("tls".to_owned(), tls.clone());
                    }
                    if options.iter().any(|(name, _)| name == "accept-proxy") {
                        listener
                            .fields
                            .insert("proxy_protocol".to_owned(), json!({"trusted": ["0.0.0.0/0", "::/0"]}));
                    }
                    ports.push(listener.port);
                    if !self.plan.listeners.iter().any(|known| known.address == listener.address) {
                        self.plan.listeners.push(listener);
                    }
                }
            }
            match options.iter().any(|(name, _)| name == "accept-proxy") {
                true => self.tell(
                    line,
                    Outcome::Differs,
                    "Every peer must send a PROXY header: list your balancers in `proxy_protocol.trusted`.",
                ),
                false => self.tell(line, Outcome::Done, ""),
            }
        }
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// The TLS fields of an address. Client certificates that cannot be checked close everything.
    fn tls(&mut self, line: &Line, options: &[(String, String)]) -> Option<Value> {
        let all = |name: &str| {
            options.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        let has = |name: &str| options.iter().any(|(key, _)| key == name);
        if !has("ssl") {
            return None;
        }
        let mut certificates = Vec::new();
        for path in all("crt") {
            self.certificate_files(&path, &mut certificates);
        }
        for path in all("crt-list") {
            match self.input.access.read(&path) {
                Ok(text) => {
                    for entry in
                        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
                    {
                        let file = entry.split([' ', '[']).next().unwrap_or_default().to_owned();
                        self.certificate_files(&file, &mut certificates);
                    }
                }
                Err(reason) => self.tell(line, Outcome::Missing, format!("{path} cannot be read: {reason}.")),
            }
        }
        let mut tls = Map::new();
        if !certificates.is_empty() {
            tls.insert("certificates".to_owned(), Value::Array(certificates));
        }
        let default = self.global.bind_options.clone();
        let minimum = all("ssl-min-ver").pop().or_else(|| value_of(&default, "ssl-min-ver"));
        let maximum = all("ssl-max-ver").pop().or_else(|| value_of(&default, "ssl-max-ver"));
        let versions: Vec<&str> = ["TLSv1.2", "TLSv1.3"]
            .into_iter()
            .filter(|version| {
                minimum.as_deref().is_none_or(|minimum| *version >= minimum) || *version == "TLSv1.3"
            })
            .filter(|version| maximum.as_deref().is_none_or(|maximum| *version <= maximum))
            .collect();
        if versions.len() == 1 || (minimum.is_some() && !versions.is_empty()) {
            tls.insert("protocols".to_owned(), json!(versions));
        }
        let alpn: Vec<String> =
            all("alpn").pop().map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default();
        let alpn: Vec<String> =
            alpn.into_iter().filter(|name| matches!(name.as_str(), "h2" | "http/1.1")).collect();
        if !alpn.is_empty() {
            tls.insert("alpn".to_owned(), json!(alpn));
        }
        if matches!(all("verify").pop().as_deref(), Some("required" | "optional")) {
            self.closed = Some("Client certificates need `client` of an ssl".to_owned());
            self.tell(line, Outcome::Guard, "Client certificates are checked by `client` of an ssl: write it with the CA, and open the closed routes.");
        }
        Some(if tls.is_empty() { true.into() } else { Value::Object(tls) })
    }

    /// A file with certificate and key, or a folder of such files.
    fn certificate_files(&mut self, path: &str, certificates: &mut Vec<Value>) {
        let path = match &self.global.crt_base {
            Some(base) if !path.starts_with('/') => format!("{}/{path}", base.trim_end_matches('/')),
            _ => path.to_owned(),
        };
        let pair = |file: &str| {
            let key = format!("{file}.key");
            let key = if self.input.access.exists(&key) { key } else { file.to_owned() };
            json!({"cert": file, "key": key})
        };
        let files = self.input.access.list(&format!("{}/*", path.trim_end_matches('/')));
        if files.is_empty() {
            certificates.push(pair(&path));
        } else {
            let extra = [".key", ".ocsp", ".issuer", ".sctl"];
            certificates.extend(
                files
                    .iter()
                    .filter(|file| !extra.iter().any(|end| file.ends_with(end)))
                    .map(|file| pair(file)),
            );
        }
    }
}

/// The value after a word of `ssl-default-bind-options`.
fn value_of(words: &[String], name: &str) -> Option<String> {
    if name == "ssl-min-ver" && words.iter().any(|word| word == "no-tlsv12") {
        return Some("TLSv1.3".to_owned());
    }
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).cloned()
}

fn options(words: &[String]) -> Vec<(String, String)> {
    let mut words = words.iter();
    let mut out = Vec::new();
    while let Some(word) = words.next() {
        let value = if WITH_VALUE.contains(&word.as_str()) {
            words.next().cloned().unwrap_or_default()
        } else {
            String::new()
        };
        out.push((word.clone(), value));
    }
    out
}

/// The addresses of a word: `*:80`, `:80`, `10.0.0.1:80-85`, `[::]:80`, `unix@/path`, `/path`.
fn addresses(text: &str) -> Vec<(String, u16)> {
    let bare = ["ipv4@", "ipv6@", "tcp@", "tcp4@", "tcp6@", "udp@", "quic4@", "quic6@"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix));
    let text = bare.unwrap_or(text);
    if let Some(path) = text.strip_prefix("unix@").or_else(|| text.starts_with('/').then_some(text)) {
        return vec![(format!("unix:{path}"), 0)];
    }
    let (host, ports) = text.rsplit_once(':').unwrap_or(("", text));
    let host = match host {
        "*" | "0.0.0.0" | "" => {
            if host == "0.0.0.0" || host == "*" {
                "0.0.0.0"
            } else {
                ""
            }
        }
        host => host,
    };
    let host =
        if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().unwrap_or(0), last.parse().unwrap_or(0));
    let last = last.min(first.saturating_add(MOST_PORTS));
    (first..=last).filter(|port| *port > 0).map(|port| (format!("{host}:{port}"), port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_ports() {
        assert_eq!(addresses("*:80"), [("0.0.0.0:80".to_owned(), 80)]);
        assert_eq!(addresses(":80-81"), [(":80".to_owned(), 80), (":81".to_owned(), 81)]);
        assert_eq!(addresses("[::]:443"), [("[::]:443".to_owned(), 443)]);
        assert_eq!(addresses("/run/a.sock"), [("unix:/run/a.sock".to_owned(), 0)]);
        assert!(addresses("x").is_empty());
    }
}
