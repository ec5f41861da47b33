//! Profiles: sets of defaults. A profile changes defaults only; a value in a file or an object has precedence.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A set of defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// For a gateway on the Internet. `docs/edge-profile.md` lists the defaults and their costs.
    Edge,
}

/// The setting or field with a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultOf {
    /// A setting of the process, e.g. `limits.request_body_bytes`.
    Setting(&'static str),
    /// A field of each upstream: of objects, within routes and services, and within plugins.
    Upstream(&'static str),
    /// A plugin, and a field of its configuration on routes, services and so on.
    Plugin(&'static str, &'static str),
}

/// One default of a profile.
#[derive(Debug, Clone, Copy)]
pub struct ProfileDefault {
    /// The setting or field.
    pub of: DefaultOf,
    /// The value, as JSON.
    pub value: &'static str,
    /// The default without a profile, as the documentation shows it.
    pub otherwise: &'static str,
    /// The reason and the cost, one sentence each.
    pub price: &'static str,
}

/// The upstream field that decides whether nodes are verified.
const VERIFY: DefaultOf = DefaultOf::Upstream("tls.verify");

/// The defaults of `edge`. After a change run `cargo xtask docs`.
const EDGE: &[ProfileDefault] = &[
    ProfileDefault {
        of: DefaultOf::Setting("limits.connections_per_address"),
        value: "256",
        otherwise: "4096",
        price: "One client cannot take all connections. More than 256 connections of users behind one address (NAT) \
                are closed at once.",
    },
    ProfileDefault {
        of: DefaultOf::Setting("limits.count_loopback"),
        value: "false",
        otherwise: "–",
        price: "A proxy or a health check on the same machine does not meet the limits per address. Programs of this \
                machine can open as many connections as a worker takes. Name proxies on other machines in \
                `trusted_addresses`.",
    },
    ProfileDefault {
        of: DefaultOf::Setting("limits.request_body_bytes"),
        value: "8388608",
        otherwise: "0",
        price: "A request cannot fill memory or a node's disk: 8 MiB hold JSON, forms and most pictures. Larger uploads get 413 until the limit is raised.",
    },
    ProfileDefault {
        of: DefaultOf::Setting("router.forward_path"),
        value: "\"canonical\"",
        otherwise: "raw",
        price: "Routes, plugins, caches and nodes see one path. A node does not get `%2F` inside a segment, a double slash \
                or a dot segment as the client wrote it; `match_uri_encoded_slash` keeps the first.",
    },
    ProfileDefault {
        of: DefaultOf::Setting("show_reason"),
        value: "\"never\"",
        otherwise: "always",
        price: "Errors reveal nothing about nodes to clients. Only logs have the reason; `internal` shows it to \
                clients with private addresses.",
    },
    ProfileDefault {
        of: DefaultOf::Setting("untrusted_fields"),
        value: r#"["Proxy", "X-Forwarded-Prefix", "X-Forwarded-Server", "X-Forwarded-Ssl", "X-Forwarded-Scheme", "X-Forwarded-Path", "X-Forwarded-Uri", "X-Forwarded-Method", "Front-End-Https", "X-Original-URL", "X-Original-Host", "X-Rewrite-URL", "X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "True-Client-IP", "X-Client-IP", "X-Client-Cert"]"#,
        otherwise: "[\"Proxy\"]",
        price: "A client cannot choose a path, method, scheme or address that a framework reads from a field. Name proxies \
                in front that send such fields in `trusted_addresses`.",
    },
    ProfileDefault {
        of: DefaultOf::Setting("timeouts.request_body_min_bytes_per_second"),
        value: "500",
        otherwise: "0",
        price: "A client cannot hold a request and its connection to a node with a slow upload. After the grace of 20 s a slower upload gets 408.",
    },
    ProfileDefault {
        of: DefaultOf::Setting("timeouts.request_body_total_ms"),
        value: "600000",
        otherwise: "0",
        price: "An upload ends after ten minutes: 8 MiB need 14 kB/s. Streams of clients that last longer need `0`.",
    },
    ProfileDefault {
        of: VERIFY,
        value: "true",
        otherwise: "false",
        price: "Only the node itself gets the request. A node whose certificate is self-signed, expired or for another name causes 502; name its authority in `tls.ca`, or write `tls: { verify: false }`.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("openid-connect", "claim_validator.audience.required"),
        value: "true",
        otherwise: "false",
        price: "A bearer token must say for which application it is. Issuers that leave `aud` out need `false`.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("openid-connect", "claim_validator.audience.match_with_client_id"),
        value: "true",
        otherwise: "false",
        price: "A token for another application of the same issuer is refused. An audience other than `client_id` \
                needs `false` and a `claim_schema`.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("openid-connect", "use_pkce"),
        value: "true",
        otherwise: "false",
        price: "A stolen code is of no use. The issuer must support PKCE with S256, as most do.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("openid-connect", "use_nonce"),
        value: "true",
        otherwise: "false",
        price: "An ID token is valid for one login. The issuer must return `nonce`, as OpenID Connect demands.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("jwt-auth", "require_exp"),
        value: "true",
        otherwise: "–",
        price: "A stolen token expires. Tokens without `exp` are refused.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("ldap-auth", "tls_verify"),
        value: "true",
        otherwise: "false",
        price: "Only the directory gets passwords. Its certificate must be valid where `use_tls` is on.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("http-logger", "ssl_verify"),
        value: "true",
        otherwise: "false",
        price: "Only the receiver gets logs. Its certificate must be valid.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("loki-logger", "ssl_verify"),
        value: "true",
        otherwise: "false",
        price: "Only the receiver gets logs. Its certificate must be valid.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("graphql-limit-count", "introspection_ssl_verify"),
        value: "true",
        otherwise: "false",
        price: "Costs come from the schema of the server itself. Its certificate must be valid.",
    },
    ProfileDefault {
        of: DefaultOf::Plugin("real-ip", "trust_any_peer"),
        value: "false",
        otherwise: "–",
        price: "A client cannot choose its address. Name the balancers in front in `trusted_addresses`.",
    },
];

impl Profile {
    /// Returns the defaults of the profile.
    #[must_use]
    pub fn defaults(self) -> &'static [ProfileDefault] {
        match self {
            Profile::Edge => EDGE,
        }
    }

    /// Returns the profile that a document names. The schema refuses unknown names.
    pub(crate) fn of_document(root: &Map<String, Value>) -> Option<Profile> {
        root.get("profile").and_then(|word| Profile::deserialize(word).ok())
    }

    /// Writes the defaults of settings into a document where they are absent.
    pub(crate) fn fill_settings(self, root: &mut Map<String, Value>) {
        for default in self.defaults() {
            if let DefaultOf::Setting(path) = default.of {
                fill(root, path, default.value);
            }
        }
    }

    /// Writes the defaults of a plugin into its configuration where they are absent.
    pub fn fill_plugin(self, name: &str, conf: &mut Value) {
        let Some(conf) = conf.as_object_mut() else { return };
        for default in self.defaults() {
            if let DefaultOf::Plugin(plugin, path) = default.of
                && plugin == name
            {
                fill(conf, path, default.value);
            }
        }
    }

    /// Returns whether the profile's default requires valid certificates of nodes.
    #[must_use]
    pub fn verifies_nodes(self) -> bool {
        self.defaults().iter().any(|default| default.of == VERIFY && default.value == "true")
    }
}

/// Sets the member at a path unless it exists. A value on the path that is not an object stays, and the schema refuses
/// it.
fn fill(object: &mut Map<String, Value>, path: &str, value: &'static str) {
    match path.split_once('.') {
        Some((first, rest)) => {
            let inner = object.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                fill(inner, rest, value);
            }
        }
        None if !object.contains_key(path) => {
            // All values are valid: a test parses them.
            object.insert(path.to_owned(), serde_json::from_str(value).unwrap_or_default());
        }
        None => {}
    }
}

/// Returns the page about the profile `edge` in Markdown.
#[must_use]
pub fn edge_markdown() -> String {
    let mut out = String::from(
        "# The edge profile\n\n\
         Many defaults are the same as in Apache APISIX, and suit a gateway inside a network. One line at the top \
         of the file chooses defaults for a gateway that the Internet reaches:\n\n\
         ```yaml\nprofile: edge\n```\n\n\
         `sigma init` writes it. The profile changes defaults only: a value in the file, or in an object of the \
         Admin API or etcd, wins. Objects stay as they were written; `sigma check --print` shows the settings in \
         force. A change of the profile needs a restart.\n\n\
         Objects that APISIX has written have its defaults written out, so the profile does not change them. \
         `sigma check` and the Admin API warn of those that matter.\n\n\
         | default of | value | without | reason and price |\n|---|---|---|---|\n",
    );
    for ProfileDefault { of, value, otherwise, price } in EDGE {
        let place = match of {
            DefaultOf::Setting(path) => format!("`{path}`"),
            DefaultOf::Upstream(path) => format!("`{path}` of upstreams"),
            DefaultOf::Plugin(name, path) => format!("`{path}` of [{name}](plugins/{name}.md)"),
        };
        let otherwise = if *otherwise == "–" { "–".to_owned() } else { format!("`{otherwise}`") };
        out += &format!("| {place} | `{value}` | {otherwise} | {price} |\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::UntrustedFields;

    #[test]
    fn written_values_win() {
        let filled = |mut root: Value| {
            Profile::Edge.fill_settings(root.as_object_mut().unwrap());
            root
        };
        assert_eq!(
            filled(json!({})),
            json!({
                "limits": {"connections_per_address": 256, "count_loopback": false, "request_body_bytes": 8_388_608},
                "router": {"forward_path": "canonical"},
                "show_reason": "never",
                "untrusted_fields": UntrustedFields::EDGE,
                "timeouts": {"request_body_min_bytes_per_second": 500, "request_body_total_ms": 600_000},
            })
        );
        let own = json!({
            "limits": {"connections_per_address": 0, "count_loopback": true, "request_body_bytes": 1},
            "router": {"forward_path": "raw"},
            "show_reason": "internal",
            "untrusted_fields": [],
            "timeouts": {"request_body_min_bytes_per_second": 0, "request_body_total_ms": 0},
        });
        assert_eq!(filled(own.clone()), own);
        assert_eq!(filled(json!({"limits": 7}))["limits"], 7);

        let plugin = |name: &str, mut conf: Value| {
            Profile::Edge.fill_plugin(name, &mut conf);
            conf
        };
        assert_eq!(plugin("jwt-auth", json!({})), json!({"require_exp": true}));
        assert_eq!(plugin("jwt-auth", json!({"require_exp": false})), json!({"require_exp": false}));
        assert_eq!(plugin("key-auth", json!({})), json!({}));
        let audience = json!({"claim_validator": {"audience": {"claim": "azp", "required": false}}});
        let audience = plugin("openid-connect", audience);
        assert_eq!(
            audience["claim_validator"]["audience"],
            json!({"claim": "azp", "required": false, "match_with_client_id": true})
        );
    }

    #[test]
    fn defaults_are_unique_json() {
        for (at, default) in EDGE.iter().enumerate() {
            assert!(serde_json::from_str::<Value>(default.value).is_ok(), "{default:?}");
            assert!(EDGE[..at].iter().all(|other| other.of != default.of), "{default:?}");
            assert!(default.price.ends_with('.'), "{default:?}");
        }
    }
}
