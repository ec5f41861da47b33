//! `plugin` of a router of `sigma.json`: response headers for browsers.

use serde_json::{Map, Value, json};

use super::keys::{Report, SourceValue, Unknown};

/// The plugins of a router's routes, in Sigma's format.
pub(super) fn translate(plugin: &SourceValue<'_>, report: &mut Report<'_>) -> Map<String, Value> {
    report.unknown(
        plugin,
        &["x-frame", "cors", "hsts", "csp", "metadata", "sub-router", "log-config"],
        Unknown::Ignored,
    );
    report.inert(plugin, &["metadata", "sub-router", "log-config"]);
    let mut plugins = Map::new();
    if let Some(cors) = enabled(plugin, "cors", report) {
        plugins.extend(translate_cors(&cors, report).map(|conf| ("cors".to_owned(), conf)));
    }
    let mut headers = Map::new();
    if let Some(hsts) = enabled(plugin, "hsts", report) {
        report.unknown(&hsts, &["enable", "max-age", "include-sub-domains"], Unknown::Ignored);
        let max_age = report.number(&hsts, "max-age", 0..=i64::MAX as u64).unwrap_or(15_768_000);
        let subdomains = report.flag(&hsts, "include-sub-domains", false);
        headers.insert("hsts".into(), json!({"max_age": max_age, "include_subdomains": subdomains}));
    }
    if let Some(csp) = enabled(plugin, "csp", report) {
        headers.extend(translate_csp(&csp, report).map(|conf| ("csp".to_owned(), conf)));
    }
    match report.text(plugin, "x-frame").map(|word| word.to_ascii_uppercase()).as_deref() {
        None | Some("NONE") => {}
        Some(word @ ("SAMEORIGIN" | "DENY")) => drop(headers.insert("frame".into(), word.into())),
        Some(word) => {
            let message = format!("`x-frame` cannot be `{word}`: no header is sent");
            report.warn(&plugin.pointer_of("x-frame"), "type", message, "write NONE, SAMEORIGIN or DENY");
        }
    }
    if !headers.is_empty() {
        plugins.insert("security-headers".into(), headers.into());
    }
    plugins
}

/// The member `key`, if it is enabled.
fn enabled<'v>(plugin: &SourceValue<'v>, key: &str, report: &mut Report<'_>) -> Option<SourceValue<'v>> {
    let member = report.object(plugin, key)?;
    report.flag(&member, "enable", false).then_some(member)
}

fn translate_cors(cors: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Value> {
    report.unknown(
        cors,
        &["enable", "allow-origins", "allow-methods", "allow-credentials"],
        Unknown::Ignored,
    );
    let credentials = report.flag(cors, "allow-credentials", false);
    let mut origins = Vec::new();
    for (origin, pointer) in report.texts(cors, "allow-origins") {
        let is_origin = origin.split_once("://").is_some_and(|(scheme, host)| {
            let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            !scheme.is_empty() && scheme.bytes().all(is_word) && !host.is_empty() && !host.contains(',')
        });
        if origin != "*" && !is_origin {
            let message = format!("`{origin}` is not an origin");
            report.error(&pointer, "type", message, "write `*`, or an origin such as https://example.com");
            return None;
        }
        origins.push(origin);
    }
    let all = origins.is_empty() || origins.iter().any(|origin| origin == "*");
    if !all {
        let message =
            "requests from other origins reach the upstream and get no 403; browsers hide the response";
        report.warn(
            &cors.pointer_of("allow-origins"),
            "approximate",
            message,
            "no change is needed if all clients are browsers",
        );
    }
    let methods = report.texts(cors, "allow-methods");
    let methods: Vec<String> = methods.into_iter().map(|(name, _)| name.to_ascii_uppercase()).collect();
    Some(json!({
        "allow_origins": match (all, credentials) {
            (true, true) => "**".to_owned(),
            (true, false) => "*".to_owned(),
            (false, _) => origins.join(","),
        },
        // Defaults of an empty list: methods that need no permission. The same applies to header fields.
        "allow_methods": if methods.is_empty() { "GET,HEAD,POST".to_owned() } else { methods.join(",") },
        "allow_headers": "Accept",
        "allow_credential": credentials
    }))
}

/// Policy words that need quotes.
const QUOTED: [&str; 4] = ["none", "self", "unsafe-inline", "unsafe-eval"];

fn translate_csp(csp: &SourceValue<'_>, report: &mut Report<'_>) -> Option<Value> {
    report.unknown(csp, &["enable", "directive", "report-only"], Unknown::Ignored);
    let report_only = report.flag(csp, "report-only", false);
    let mut directives: Vec<(String, String)> = Vec::new();
    for directive in report.objects(csp, "directive") {
        report.unknown(&directive, &["name", "value"], Unknown::Ignored);
        let Some(name) = report.required_text(&directive, "name") else { continue };
        let value = report.text(&directive, "value").unwrap_or_default();
        let words = value.split_whitespace().map(|word| match QUOTED.contains(&word) {
            true => format!("'{word}'"),
            false => word.to_owned(),
        });
        let value = words.collect::<Vec<_>>().join(" ");
        if !name.bytes().chain(value.bytes()).all(|b| (0x20..0x7f).contains(&b) && b != b';') {
            let message = format!("`{name} {value}` cannot be a directive");
            report.error(&directive.pointer, "type", message, "write one directive in plain ASCII");
            continue;
        }
        match directives.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => *values = format!("{values} {value}"),
            None => directives.push((name, value)),
        }
    }
    if directives.is_empty() {
        let message = "`csp` without a directive: no policy is sent";
        report.warn(&csp.pointer, "without_effect", message, "add a `directive`, or set `enable` to false");
        return None;
    }
    let written = directives.iter().map(|(name, value)| format!("{name} {value}").trim_end().to_owned());
    Some(json!({"policy": written.collect::<Vec<_>>().join("; "), "report_only": report_only}))
}
