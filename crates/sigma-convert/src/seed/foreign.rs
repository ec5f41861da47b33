//! Detects configurations of unsupported programs, so that the error gives a remedy instead of many unknown keys.

use serde_json::{Map, Value};

use sigma_schema::document::Document;
use sigma_schema::problem::Problem;

struct Foreign {
    /// Returns whether a document has this format.
    is: fn(&Map<String, Value>) -> bool,
    /// The message with the kind of file.
    message: &'static str,
    /// The remedy.
    hint: &'static str,
}

const FORMATS: [Foreign; 8] = [
    Foreign {
        is: has_labels,
        message: "this is a compose file with labels of Traefik",
        hint: "`sigma import traefik FILE -o sigma.yaml` converts them, see docs/from-traefik.md",
    },
    Foreign {
        is: |root| ["apisix", "deployment", "nginx_config"].iter().any(|key| root.contains_key(*key)),
        message: "this is the config.yaml of APISIX, the settings of its process",
        hint: "`sigma import apisix FILE -o sigma.yaml` converts it, see docs/from-apisix.md; routes of an apisix.yaml are read as they \
            are, and an etcd is shared with `store: { kind: etcd }`",
    },
    Foreign {
        is: |root| root.contains_key("entryPoints") || root.contains_key("providers"),
        message: "this is the static configuration of Traefik",
        hint: "`sigma import traefik FILE -o sigma.yaml` converts it with its dynamic files, see docs/from-traefik.md",
    },
    Foreign {
        is: |root| {
            let parts = ["routers", "services", "middlewares"];
            let part = |name: &str| {
                root.get(name).is_some_and(|value| parts.iter().any(|key| value.get(key).is_some()))
            };
            ["http", "tcp", "udp"].into_iter().any(part)
        },
        message: "this is the dynamic configuration of Traefik",
        hint: "`sigma import traefik FILE -o sigma.yaml` converts it, see docs/from-traefik.md",
    },
    Foreign {
        is: |root| root.contains_key("_format_version"),
        message: "this is the declarative configuration of Kong",
        hint: "`sigma import kong FILE -o sigma.yaml` converts it, see docs/from-kong.md",
    },
    Foreign {
        is: |root| root.contains_key("static_resources"),
        message: "this is the bootstrap configuration of Envoy",
        hint: "`sigma import envoy FILE -o sigma.yaml` converts it, see docs/from-envoy.md",
    },
    Foreign {
        is: |root| root.contains_key("endpoints") && root.contains_key("version"),
        message: "this is the configuration of KrakenD",
        hint: "`sigma import krakend FILE -o sigma.yaml` converts it, see docs/from-krakend.md",
    },
    Foreign {
        is: |root| root.get("spring").is_some_and(Value::is_object),
        message: "this is the configuration of a Spring application",
        hint: "`sigma import spring FILE -o sigma.yaml` converts its gateway, see docs/from-spring-cloud-gateway.md",
    },
];

/// A format whose files are not documents with members.
struct ForeignText {
    /// Returns whether lines, trimmed and without comments, have this format.
    is: fn(&[&str]) -> bool,
    message: &'static str,
    hint: &'static str,
}

/// Number of lines by which a format is recognised.
const MOST_LINES: usize = 5_000;

const TEXTS: [ForeignText; 5] = [
    ForeignText {
        is: |lines| {
            let blocks =
                ["http", "events", "server", "stream", "mail", "location", "upstream", "map", "types"];
            let opens = |line: &&str| {
                line.ends_with('{')
                    && line.split_whitespace().next().is_some_and(|word| blocks.contains(&word))
            };
            lines.iter().any(opens) && lines.iter().any(|line| line.ends_with(';'))
        },
        message: "this is a configuration of nginx",
        hint: "`sigma import nginx FILE -o sigma.yaml` converts it, see docs/from-nginx.md",
    },
    ForeignText {
        is: |lines| {
            let first = |line: &&str| line.split_whitespace().next().unwrap_or_default().to_owned();
            let has = |words: &[&str]| lines.iter().any(|line| words.contains(&first(line).as_str()));
            has(&["frontend", "listen", "backend", "defaults"])
                && has(&["bind", "server", "mode", "timeout"])
                && !lines.iter().any(|line| line.ends_with('{'))
        },
        message: "this is a configuration of HAProxy",
        hint: "`sigma import haproxy FILE -o sigma.yaml` converts it, see docs/from-haproxy.md",
    },
    ForeignText {
        is: |lines| lines.iter().any(|line| line.starts_with("spring.") && line.contains('=')),
        message: "these are the properties of a Spring application",
        hint: "`sigma import spring FILE -o sigma.yaml` converts its gateway, see docs/from-spring-cloud-gateway.md",
    },
    ForeignText {
        is: |lines| {
            let tables =
                ["[entryPoints", "[providers", "[http.routers", "[http.services", "[http.middlewares"];
            lines.iter().any(|line| tables.iter().any(|table| line.starts_with(table)))
        },
        message: "this is a configuration of Traefik",
        hint: "`sigma import traefik FILE -o sigma.yaml` converts it, see docs/from-traefik.md",
    },
    ForeignText {
        is: |lines| {
            let words = [
                "reverse_proxy",
                "file_server",
                "respond",
                "php_fastcgi",
                "encode",
                "redir",
                "handle",
                "handle_path",
                "try_files",
                "root",
                "import",
                "tls",
                "basic_auth",
                "route",
            ];
            lines.iter().any(|line| line.split_whitespace().next().is_some_and(|word| words.contains(&word)))
                && !lines.iter().any(|line| line.ends_with(';'))
        },
        message: "this is a Caddyfile",
        hint: "`sigma import caddy FILE -o sigma.yaml` converts it, see docs/from-caddy.md",
    },
];

/// Returns the problem for a text of another program.
pub(crate) fn recognised_text(text: &str) -> Option<Problem> {
    let trimmed =
        text.lines().take(MOST_LINES).map(|line| line.split(" #").next().unwrap_or_default().trim());
    let lines: Vec<&str> = trimmed.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let format = TEXTS.iter().find(|format| (format.is)(&lines))?;
    Some(Problem::new("", "foreign_format", format.message).hint(format.hint))
}

/// Returns true if a service of a compose file has labels of Traefik.
fn has_labels(root: &Map<String, Value>) -> bool {
    let names_traefik = |label: &str| label.trim_start().starts_with("traefik.");
    let labelled = |service: &Value| {
        [service.get("labels"), service.pointer("/deploy/labels")].into_iter().flatten().any(|labels| {
            match labels {
                Value::Array(list) => list.iter().filter_map(Value::as_str).any(names_traefik),
                Value::Object(map) => map.keys().any(|label| names_traefik(label)),
                _ => false,
            }
        })
    };
    root.get("services").and_then(Value::as_object).is_some_and(|services| services.values().any(labelled))
}

/// Returns the problem for a document of another program.
pub(crate) fn recognised(document: &Document) -> Option<Problem> {
    let root = document.value.as_object()?;
    let format = FORMATS.iter().find(|format| (format.is)(root))?;
    Some(Problem::new("", "foreign_format", format.message).hint(format.hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_other_programs_are_recognised() {
        for (text, expected) in [
            ("events {}\nhttp {\n  server {\n    listen 80; # x\n  }\n}\n", Some("nginx")),
            ("server {\n    listen 80;\n}\n", Some("nginx")),
            ("global\n  maxconn 10\nfrontend f\n  bind :80\n", Some("haproxy")),
            ("defaults\n    mode http\n    timeout client 5s\n", Some("haproxy")),
            ("example.com {\n\treverse_proxy localhost:9000\n}\n", Some("caddy")),
            (":80\nrespond hello\n", Some("caddy")),
            ("spring.cloud.gateway.routes[0].id=a\n", Some("spring")),
            ("[entryPoints.web]\naddress = \":80\"\n", Some("traefik")),
            ("hello", None),
            ("- uri: /a", None),
            ("listeners: [:80\nroutes: []", None),
            ("", None),
        ] {
            let hint = recognised_text(text).and_then(|problem| problem.hint);
            let format = expected.map(|word| format!("`sigma import {word} FILE -o sigma.yaml`"));
            match (hint, format) {
                (Some(hint), Some(format)) => assert!(hint.starts_with(&format), "{text}: {hint}"),
                (hint, format) => assert_eq!(hint, format, "{text}"),
            }
        }
    }

    #[test]
    fn compose_files_with_labels_are_traefiks() {
        let root = serde_json::json!({"services": {"a": {"labels": ["traefik.enable=true"]}}});
        assert!(has_labels(root.as_object().expect("an object")));
        let root = serde_json::json!({"services": {"a": {"deploy": {"labels": {"traefik.enable": "true"}}}}});
        assert!(has_labels(root.as_object().expect("an object")));
        let root = serde_json::json!({"services": [{"id": "a"}]});
        assert!(!has_labels(root.as_object().expect("an object")));
    }
}
