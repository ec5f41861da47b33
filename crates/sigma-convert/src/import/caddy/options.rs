//! Global options.

use serde_json::{Map, Value, json};

use super::super::source::SourceLine;
use super::matcher::range;
use super::parse::Line;
use super::run::Runner;

/// The global options.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) http_port: u16,
    pub(super) https_port: u16,
    /// Whether HTTPS is never automatic.
    pub(super) is_off: bool,
    pub(super) has_no_redirects: bool,
    pub(super) is_internal: bool,
    pub(super) email: Option<String>,
    pub(super) directory: Option<String>,
    pub(super) binds: Vec<String>,
}

/// Reads the options, and puts those with a counterpart into the settings.
pub(super) fn read(runner: &mut Runner<'_>, lines: &[Line], settings: &mut Map<String, Value>) -> Options {
    let mut options = Options {
        http_port: 80,
        https_port: 443,
        is_off: false,
        has_no_redirects: false,
        is_internal: false,
        email: None,
        directory: None,
        binds: Vec::new(),
    };
    for line in lines {
        let (place, arg) = (line.place(), line.arg(0).unwrap_or_default().to_owned());
        match line.name() {
            "http_port" => options.http_port = arg.parse().unwrap_or(80),
            "https_port" => options.https_port = arg.parse().unwrap_or(443),
            "auto_https" => {
                options.is_off |= arg == "off";
                options.has_no_redirects |= arg == "off" || arg == "disable_redirects";
                options.is_internal |= arg == "disable_certs";
            }
            "local_certs" => options.is_internal = true,
            "email" => options.email = Some(arg),
            "acme_ca" => options.directory = Some(arg),
            "default_bind" => options.binds = line.args(),
            "order" => order(runner, line),
            "grace_period" => {
                if let Some(seconds) = super::duration(&arg) {
                    settings.insert("timeouts".to_owned(), json!({"drain_ms": (seconds * 1000.0) as u64}));
                }
            }
            "debug" => {
                settings.insert("error_log".to_owned(), json!({"level": "debug"}));
            }
            "admin" if arg == "off" => runner.remarks.done(place),
            "admin" => runner.remarks.gap(place, "Sigma has another Admin API: see `admin`."),
            "servers" => servers(runner, line, settings),
            "log" => runner.remarks.differs(place, "Set `access_log` and `error_log`."),
            "persist_config" | "storage_clean_interval" | "ocsp_stapling" | "shutdown_delay" | "metrics" => {
                runner.remarks.no_effect(place, "It has no counterpart and needs none.");
            }
            "on_demand_tls" => runner.remarks.gap(place, "Use `acme.on_demand`."),
            "storage" => runner.remarks.gap(place, "Certificates are stored in `acme.storage`."),
            _ => runner.remarks.gap(place, "The importer does not know this option; look it up by hand."),
        }
    }
    options
}

/// `order NAME first|last`, `order NAME before|after OTHER`.
fn order(runner: &mut Runner<'_>, line: &Line) {
    let args = line.args();
    let Some(name) = args.first() else { return };
    runner.order.retain(|known| known != name);
    let at = |other: Option<&String>, runner: &Runner<'_>| {
        other.and_then(|other| runner.order.iter().position(|known| known == other))
    };
    let index = match args.get(1).map(String::as_str) {
        Some("first") => 0,
        Some("before") => at(args.get(2), runner).unwrap_or(0),
        Some("after") => at(args.get(2), runner).map_or(runner.order.len(), |index| index + 1),
        _ => runner.order.len(),
    };
    runner.order.insert(index, name.clone());
}

fn servers(runner: &mut Runner<'_>, line: &Line, settings: &mut Map<String, Value>) {
    for option in line.lines() {
        let place: SourceLine = option.place();
        match option.name() {
            "trusted_proxies" => {
                let ranges: Vec<String> = option.args().iter().skip(1).flat_map(|text| range(text)).collect();
                match option.arg(0) {
                    Some("static") => {
                        settings.insert("trusted_addresses".to_owned(), json!(ranges));
                        let field = json!({"field": "X-Forwarded-For"});
                        settings.entry("client_address").or_insert(field);
                        runner.variables.has_proxies = true;
                        if !line.lines().iter().any(|option| option.name() == "trusted_proxies_strict") {
                            let text = "The client is the last address that is not a trusted proxy, as with `trusted_proxies_strict`.";
                            runner.remarks.differs(place, text);
                        }
                    }
                    _ => {
                        runner.remarks.gap(place, "List the networks of the proxies in `trusted_addresses`.")
                    }
                }
            }
            "client_ip_headers" => {
                let field = option.arg(0).unwrap_or("X-Forwarded-For");
                settings.insert("client_address".to_owned(), json!({"field": field}));
            }
            "max_header_size" => {
                let bytes = option.arg(0).and_then(super::guards::size);
                settings
                    .extend(bytes.map(|bytes| ("limits".to_owned(), json!({"request_head_bytes": bytes}))));
            }
            "timeouts" => {
                for timeout in option.lines() {
                    let key = match timeout.name() {
                        "read_header" => "request_head_ms",
                        "read_body" => "request_body_ms",
                        "idle" => "keepalive_ms",
                        _ => continue,
                    };
                    let time = timeout.arg(0).and_then(super::duration);
                    let timeouts = settings.entry("timeouts").or_insert_with(|| json!({}));
                    if let Some(time) = time {
                        timeouts[key] = ((time * 1000.0) as u64).into();
                    }
                }
            }
            "trusted_proxies_strict" => runner.remarks.done(place),
            "protocols" if option.args().iter().any(|protocol| protocol == "h3") => {
                runner.remarks.gap(place, "HTTP/3 is not converted: set `http3: true` at the listener.");
            }
            _ => runner.remarks.no_effect(place, "Sigma's own defaults apply."),
        }
    }
}
