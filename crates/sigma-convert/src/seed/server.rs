//! `proxy-server` of `sigma.json`: its listeners, and their features besides routing.

use serde_json::{Map, Value, json};

use super::keys::{Report, SourceValue, Unknown};

/// An enabled listener.
pub(super) struct Listener {
    pub(super) id: Option<String>,
    port: Option<u64>,
    /// Files of certificate and key; none for cleartext.
    tls: Option<(String, String)>,
    /// `gzip` as a plugin's configuration.
    pub(super) gzip: Option<Value>,
    /// `static-resources` as a plugin's configuration, with its pointer.
    pub(super) static_files: Option<(Value, String)>,
    /// Whether all requests are redirected to https.
    pub(super) redirects: bool,
}

impl Listener {
    /// Returns the listener in Sigma's format.
    pub(super) fn written(&self) -> Value {
        let mut listener = json!({"address": format!("0.0.0.0:{}", self.port.unwrap_or_default())});
        if let Some(id) = &self.id {
            listener["name"] = id.as_str().into();
        }
        if let Some((cert, key)) = &self.tls {
            listener["tls"] = json!({"certificates": [{"cert": cert, "key": key}]});
        }
        listener
    }

    /// Returns the route that responds to all requests of a redirecting listener.
    pub(super) fn redirect(&self) -> Map<String, Value> {
        let mut route = Map::new();
        route.insert("name".into(), "http-redirect-https".into());
        route.insert("uri".into(), "/*".into());
        if let Some(id) = &self.id {
            route.insert("listeners".into(), json!([id]));
        }
        let redirect = json!({"uri": "https://$http_host$request_uri", "ret_code": 302});
        route.insert("plugins".into(), json!({"redirect": redirect}));
        route
    }
}

/// The listeners, the one of `http` first.
pub(super) fn listeners(root: &SourceValue<'_>, redirects: bool, report: &mut Report<'_>) -> Vec<Listener> {
    let Some(server) = report.object(root, "proxy-server") else { return Vec::new() };
    report.unknown(&server, &["http", "https"], Unknown::Refused);
    let https = https(&server, report);
    let Some(http) = report.object(&server, "http") else {
        if server.get("http").is_none() {
            report.missing(&server, "http");
        }
        return https.into_iter().collect();
    };
    report.unknown(&http, &["id", "server-id", "desc", "port", "plugin"], Unknown::Refused);
    report.inert(&http, &["server-id", "desc"]);
    if http.get("port").is_none() {
        report.missing(&http, "port");
    }
    let (gzip, static_files) = plugins(&http, report);
    let id = report.required_text(&http, "id");
    let port = report.number(&http, "port", 0..=65535);
    let http = Listener { id, port, tls: None, gzip, static_files, redirects };
    if let Some(https) = &https
        && https.id == http.id
    {
        let message = "`http` and `https` have the same `id`";
        report.error(&server.pointer_of("https"), "duplicate", message, "give each its own id");
    }
    std::iter::once(http).chain(https).collect()
}

fn https(server: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Listener> {
    let https = report.object(server, "https")?;
    let known = ["enable", "port", "id", "server-id", "desc", "ssl", "plugin"];
    report.unknown(&https, &known, Unknown::Ignored);
    if !report.flag(&https, "enable", false) {
        return None;
    }
    report.inert(&https, &["server-id", "desc"]);
    let tls = pem(&https, report);
    let (gzip, static_files) = plugins(&https, report);
    let port = report.number(&https, "port", 0..=65535).or(Some(443));
    let id = report.required_text(&https, "id");
    Some(Listener { id, port, tls, gzip, static_files, redirects: false })
}

/// The files with certificate and key.
fn pem(https: &SourceValue<'_>, report: &mut Report<'_>) -> Option<(String, String)> {
    let wrong = |report: &mut Report<'_>, pointer: String| {
        let message = "SSL config error, must config SSL, SSL type, SSL KeyPath and SSL certPath!";
        let hint = "write \"ssl\": {\"type\": \"pem\", \"keyPath\": …, \"certPath\": …}";
        report.error(&pointer, "missing", message, hint);
    };
    let Some(ssl) = report.object(https, "ssl") else {
        wrong(report, https.pointer_of("ssl"));
        return None;
    };
    report.unknown(&ssl, &["type", "keyPath", "certPath"], Unknown::Ignored);
    let kind = report.text(&ssl, "type").unwrap_or_default();
    let file = |key, report: &mut Report<'_>| report.text(&ssl, key).filter(|path| !path.is_empty());
    match (file("certPath", report), file("keyPath", report)) {
        (Some(cert), Some(key)) if kind.eq_ignore_ascii_case("pem") => Some((cert, key)),
        _ => {
            wrong(report, ssl.pointer);
            None
        }
    }
}

/// `gzip` and `static-resources` of a listener.
fn plugins(listener: &SourceValue<'_>, report: &mut Report<'_>) -> (Option<Value>, Option<(Value, String)>) {
    let Some(plugin) = report.object(listener, "plugin") else { return (None, None) };
    report.unknown(&plugin, &["gzip", "static-resources"], Unknown::Ignored);
    (gzip(&plugin, report), static_files(&plugin, report))
}

/// The default memory level of zlib, and the fixed one here.
const MEMORY_LEVEL: u64 = 8;

fn gzip(plugin: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Value> {
    let gzip = report.object(plugin, "gzip")?;
    report.unknown(&gzip, &["enable", "compression-level", "window-bits", "mem-level"], Unknown::Ignored);
    if !report.flag(&gzip, "enable", false) {
        return None;
    }
    let level = report.number(&gzip, "compression-level", 0..=9).unwrap_or(6);
    let window_bits = report.number(&gzip, "window-bits", 9..=15).unwrap_or(15);
    if report.number(&gzip, "mem-level", 1..=9).is_some_and(|level| level != MEMORY_LEVEL) {
        let message = format!("`mem-level` is accepted, without effect: it is always {MEMORY_LEVEL}");
        report.warn(
            &gzip.pointer_of("mem-level"),
            "without_effect",
            message,
            format!("write {MEMORY_LEVEL}"),
        );
    }
    if level == 0 {
        let message = "`compression-level` 0 compresses nothing: responses are sent as they are";
        report.warn(&gzip.pointer_of("compression-level"), "without_effect", message, "write 1 to 9");
        return None;
    }
    Some(json!({
        "types": "*",
        "min_length": 1,
        "comp_level": level,
        "http_version": 1.0,
        "window_bits": window_bits,
        "deflate": true
    }))
}

fn static_files(plugin: &SourceValue<'_>, report: &mut Report<'_>) -> Option<(Value, String)> {
    let files = report.object(plugin, "static-resources")?;
    report.unknown(&files, &["enable", "root-path", "url-pattern"], Unknown::Ignored);
    if !report.flag(&files, "enable", false) {
        return None;
    }
    if report.text(&files, "url-pattern").is_some_and(|pattern| pattern != "/static/*") {
        let message = "`url-pattern` is accepted, without effect: files are served under /static/";
        report.warn(&files.pointer_of("url-pattern"), "without_effect", message, "write /static/*");
    }
    let root = report.required_text(&files, "root-path")?;
    if !root.starts_with('/') {
        let message = format!("`root-path` `{root}` is not an absolute path");
        report.error(&files.pointer_of("root-path"), "path", message, "begin it with a slash");
        return None;
    }
    Some((json!({"root": root, "prefix": "/static"}), files.pointer))
}
