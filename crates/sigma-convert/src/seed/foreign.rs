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

const FORMATS: [Foreign; 4] = [
    Foreign {
        is: |root| ["apisix", "deployment", "nginx_config"].iter().any(|key| root.contains_key(*key)),
        message: "this is the config.yaml of APISIX, the settings of its process",
        hint: "convert it with `sigma import apisix`, see docs/from-apisix.md; Sigma reads an apisix.yaml unchanged, and shares an etcd with `store: { kind: etcd }`",
    },
    Foreign {
        is: |root| root.contains_key("entryPoints") || root.contains_key("providers"),
        message: "this is the static configuration of Traefik",
        hint: "convert it with `sigma import traefik`; docs/configuration.md lists all settings",
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
        hint: "convert it with `sigma import traefik`",
    },
    Foreign {
        is: |root| root.contains_key("_format_version"),
        message: "this is the declarative configuration of Kong",
        hint: "convert it with `sigma import kong`",
    },
];

/// Returns the problem for a document of another program.
pub(crate) fn recognised(document: &Document) -> Option<Problem> {
    let root = document.value.as_object()?;
    let format = FORMATS.iter().find(|format| (format.is)(root))?;
    Some(Problem::new("", "foreign_format", format.message).hint(format.hint))
}
