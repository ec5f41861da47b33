//! Rules for upstreams of FastCGI applications.

use regex::bytes::Regex;
use serde_json::Value;

use super::{Object, problem, word};
use crate::resources::FastCgi;
use sigma_schema::problem::{Problem, member};
use sigma_schema::template::Template;

/// Parameters that only the gateway may set: the length of the body that it sends, and a variable that programs use as
/// their own outgoing proxy.
const OWN: [&str; 2] = ["CONTENT_LENGTH", "HTTP_PROXY"];

pub(super) fn rules(upstream: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    let fastcgi = upstream.get("fastcgi").and_then(Value::as_object);
    if word(upstream, "scheme") != Some("fcgi") {
        if fastcgi.is_some() {
            let message = "`fastcgi` has no effect without `scheme: fcgi`";
            found.push(problem("fastcgi", "conflict", message, "set it, or remove the field"));
        }
        return found;
    }
    for field in ["tls", "proxy_protocol"].into_iter().filter(|field| upstream.contains_key(*field)) {
        let message = format!("`{field}` is not supported with `scheme: fcgi`");
        found.push(problem(field, "conflict", message, "remove it"));
    }
    if let Some(active) = upstream.get("checks").and_then(|checks| checks.get("active")?.as_object())
        && word(active, "type") != Some("tcp")
        && !active.contains_key("port")
    {
        let message = "nodes with `scheme: fcgi` do not answer HTTP or gRPC probes";
        let hint = "write `type: tcp`, or set the `port` of a server that responds to them";
        found.push(problem("checks.active.type", "conflict", message, hint));
    }
    found.extend(fastcgi.map(of_script).unwrap_or_default());
    found
}

fn of_script(fastcgi: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    if word(fastcgi, "root").is_some_and(|root| leads_astray(root) || root.contains('$')) {
        let message = "`root` has a `..` segment, a control character or a `$`";
        found.push(problem("fastcgi.root", "path", message, "write a plain path"));
    }
    if let Some(pattern) = word(fastcgi, "split_path_info") {
        let hint = "for example ^(.+?\\.php)(/.*)?$, in the syntax of the Rust crate `regex`";
        let message = match Regex::new(pattern) {
            Err(error) => Some(format!("invalid regex: {error}")),
            Ok(regex) if regex.captures_len() != 3 => {
                Some(format!("`{pattern}` has {} groups; it needs two", regex.captures_len() - 1))
            }
            Ok(_) => None,
        };
        found.extend(message.map(|message| problem("fastcgi.split_path_info", "regex", message, hint)));
    }
    let names_script = fastcgi.contains_key("root") || fastcgi.contains_key("script_filename");
    for field in ["index", "split_path_info"] {
        let is_default = field == "index" && word(fastcgi, field) == Some(&*FastCgi::default().index);
        if !names_script && fastcgi.contains_key(field) && !is_default {
            let message = format!("`{field}` has no effect without `root` or `script_filename`");
            found.push(problem(format!("fastcgi.{field}"), "conflict", message, "add one of them"));
        }
    }
    found
        .extend(word(fastcgi, "script_filename").and_then(|text| variables("fastcgi.script_filename", text)));
    for (name, text) in fastcgi.get("params").and_then(Value::as_object).into_iter().flatten() {
        let place = member("fastcgi.params", name);
        if OWN.contains(&name.as_str()) {
            let message = format!("the gateway sets `{name}` itself");
            found.push(problem(place, "conflict", message, "remove it"));
        } else {
            found.extend(text.as_str().and_then(|text| variables(&place, text)));
        }
    }
    found
}

/// Reports the first variable of a text that requests do not have.
fn variables(place: &str, text: &str) -> Option<Problem> {
    // A variable with a default is never empty.
    let reason = Template::parse(text).unknown_beside(&FastCgi::VARIABLES)?;
    Some(problem(place, "variable", reason, "see the variables in docs/variables.md"))
}

/// Returns whether a path has a `..` segment, or characters that paths never have.
fn leads_astray(path: &str) -> bool {
    path.chars().any(char::is_control) || path.split('/').any(|segment| segment == "..")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn valid_combinations() {
        let check = |upstream: Value, expected: &[&str]| {
            let upstream = upstream.as_object().unwrap();
            let found: Vec<String> = rules(upstream)
                .iter()
                .map(|problem| format!("{}: {}", problem.pointer, problem.message))
                .collect();
            assert_eq!(found, expected, "{upstream:?}");
        };
        let of = |fastcgi: Value| json!({ "scheme": "fcgi", "fastcgi": fastcgi });
        check(json!({ "scheme": "fcgi" }), &[]);
        check(json!({ "scheme": "http" }), &[]);
        check(json!({ "fastcgi": {} }), &["fastcgi: `fastcgi` has no effect without `scheme: fcgi`"]);
        check(
            json!({ "scheme": "fcgi", "tls": {}, "proxy_protocol": "v1" }),
            &[
                "tls: `tls` is not supported with `scheme: fcgi`",
                "proxy_protocol: `proxy_protocol` is not supported with `scheme: fcgi`",
            ],
        );
        let probed = |active: Value| json!({ "scheme": "fcgi", "checks": { "active": active } });
        check(probed(json!({ "type": "tcp" })), &[]);
        check(probed(json!({ "type": "http", "port": 80 })), &[]);
        check(
            probed(json!({})),
            &["checks.active.type: nodes with `scheme: fcgi` do not answer HTTP or gRPC probes"],
        );
        check(
            of(
                json!({ "root": "/a", "script_filename": "$document_root$fastcgi_script_name", "index": "a.php" }),
            ),
            &[],
        );
        check(of(json!({ "root": "/a", "split_path_info": "^(.+?\\.php)(/.*)?$" })), &[]);
        check(of(json!({ "index": "index.php", "params": { "A": "$arg_a", "B": "" } })), &[]);
        for root in ["/a/../b", "/a/$host", "/a\nb"] {
            let message = "fastcgi.root: `root` has a `..` segment, a control character or a `$`";
            check(of(json!({ "root": root })), &[message]);
        }
        check(
            of(json!({ "root": "/a", "split_path_info": "^(.+)$" })),
            &["fastcgi.split_path_info: `^(.+)$` has 1 groups; it needs two"],
        );
        check(
            of(json!({ "split_path_info": "(a)(b)", "index": "a.php" })),
            &[
                "fastcgi.index: `index` has no effect without `root` or `script_filename`",
                "fastcgi.split_path_info: `split_path_info` has no effect without `root` or `script_filename`",
            ],
        );
        check(
            of(json!({ "script_filename": "/a/$fastcgi_script", "params": { "A": "$urn" } })),
            &[
                "fastcgi.script_filename: unknown variable `fastcgi_script`",
                "fastcgi.params.A: unknown variable `urn`; did you mean `uri`?",
            ],
        );
        check(
            of(json!({ "params": { "CONTENT_LENGTH": "1", "HTTP_PROXY": "x" } })),
            &[
                "fastcgi.params.CONTENT_LENGTH: the gateway sets `CONTENT_LENGTH` itself",
                "fastcgi.params.HTTP_PROXY: the gateway sets `HTTP_PROXY` itself",
            ],
        );
    }
}
