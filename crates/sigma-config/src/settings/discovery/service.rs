//! Service names of registries.

use std::fmt;
use std::str::FromStr;

use super::{ConsulKv, split_dns_service};
use crate::resources::DiscoveryArgs;

/// A registry that upstreams may take their nodes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Registry {
    /// DNS records.
    Dns,
    /// Services in Consul.
    Consul,
    /// Keys in Consul.
    ConsulKv,
    /// Eureka.
    Eureka,
    /// Nacos.
    Nacos,
    /// Endpoints in Kubernetes.
    Kubernetes,
    /// Keys in etcd.
    Etcd,
    /// Containers of Docker.
    Docker,
    /// Services in Nomad.
    Nomad,
}

impl Registry {
    /// All registries.
    pub const ALL: [Registry; 9] = [
        Registry::Dns,
        Registry::Consul,
        Registry::ConsulKv,
        Registry::Eureka,
        Registry::Nacos,
        Registry::Kubernetes,
        Registry::Etcd,
        Registry::Docker,
        Registry::Nomad,
    ];

    /// Returns its `discovery_type`, which is also the name of its settings.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Registry::Dns => "dns",
            Registry::Consul => "consul",
            Registry::ConsulKv => "consul_kv",
            Registry::Eureka => "eureka",
            Registry::Nacos => "nacos",
            Registry::Kubernetes => "kubernetes",
            Registry::Etcd => "etcd",
            Registry::Docker => "docker",
            Registry::Nomad => "nomad",
        }
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Registry {
    type Err = ();

    fn from_str(text: &str) -> Result<Registry, ()> {
        Registry::ALL.into_iter().find(|registry| registry.word() == text).ok_or(())
    }
}

/// The error for an invalid service name: a sentence and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceProblem {
    /// `service_name`, or a member of `discovery_args`.
    pub place: &'static str,
    /// The message.
    pub message: String,
    /// The remedy.
    pub hint: &'static str,
}

/// Checks that `name` and `args` can name a service of `registry`, with any settings.
///
/// # Errors
/// Returns an error if they cannot.
pub fn check_service(
    registry: Registry,
    name: &str,
    args: Option<&DiscoveryArgs>,
) -> Result<(), ServiceProblem> {
    let wrong = |message: String, hint| Err(ServiceProblem { place: "service_name", message, hint });
    if registry == Registry::Dns {
        return match split_dns_service(name) {
            Ok(_) => Ok(()),
            Err(message) => wrong(message, "write host or host:port"),
        };
    }
    if name.chars().any(char::is_control) {
        return wrong("a service name may not contain control characters".to_owned(), "remove them");
    }
    match registry {
        Registry::Kubernetes if !is_kubernetes(name) => {
            let message = format!("`{name}` is not a Kubernetes service");
            return wrong(
                message,
                "write <namespace>/<service>:<port name>, with several clusters <id>/ before it",
            );
        }
        Registry::ConsulKv if ConsulKv::folder(name).is_none() => {
            let message = format!("`{name}` is not the folder of a Consul key");
            return wrong(message, "write http://<consul>/v1/kv/<prefix>/<service>/ or <service>");
        }
        Registry::Etcd if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") => {
            let message = format!("`{name}` is not a folder of services in etcd");
            return wrong(message, "write the part of the keys between the prefix and the node's own name");
        }
        _ => {}
    }
    args.map_or(Ok(()), |args| check_args(registry, args))
}

fn check_args(registry: Registry, args: &DiscoveryArgs) -> Result<(), ServiceProblem> {
    let wrong = |message: String, hint| Err(ServiceProblem { place: "discovery_args", message, hint });
    if args.group_name.is_some() && registry != Registry::Nacos {
        let message = format!("services in {registry} have no `group_name`");
        return wrong(message, "remove it, or write discovery_type: nacos");
    }
    if args.namespace_id.is_some() && !matches!(registry, Registry::Nacos | Registry::Nomad) {
        let message = format!("services in {registry} have no `namespace_id`");
        return wrong(message, "remove it, or write discovery_type: nacos or nomad");
    }
    let of_consul = args.datacenter.is_some() || !args.tags.is_empty();
    if of_consul && !matches!(registry, Registry::Consul | Registry::Nomad) {
        let message = format!("services in {registry} have no `datacenter` and no `tags`");
        return wrong(message, "remove them, or write discovery_type: consul or nomad");
    }
    let words =
        [&args.namespace_id, &args.group_name, &args.datacenter].into_iter().flatten().chain(&args.tags);
    let is_word = |word: &str| !word.is_empty() && word.len() <= 256 && !word.chars().any(char::is_control);
    if words.into_iter().any(|word| !is_word(word)) {
        let message = "a name in `discovery_args` is empty, too long, or has control characters".to_owned();
        return wrong(message, "leave empty names out");
    }
    Ok(())
}

fn is_kubernetes(name: &str) -> bool {
    let Some((place, port)) = name.rsplit_once(':') else { return false };
    let parts: Vec<&str> = place.split('/').collect();
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    (2..=3).contains(&parts.len()) && parts.iter().all(|part| is_word(part)) && is_word(port)
}

impl ConsulKv {
    /// Returns the server in `service_name`, if it has one, and the folder of its keys, which includes the prefix if
    /// there is a server.
    #[must_use]
    pub fn folder(service_name: &str) -> Option<(Option<&str>, &str)> {
        let (server, folder) = match service_name.split_once("/v1/kv/") {
            Some((server, folder)) if server.contains("://") => (Some(server), folder),
            _ => (None, service_name),
        };
        let folder = folder.trim_end_matches('/');
        let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
        (folder.split('/').all(is_part) && !folder.contains(['?', '#', ' '])).then_some((server, folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_services() {
        let check = |registry: Registry, name: &str, want: bool| {
            assert_eq!(check_service(registry, name, None).is_ok(), want, "{registry} {name}");
        };
        check(Registry::Consul, "web", true);
        check(Registry::Consul, "we\nb", false);
        check(Registry::Dns, "web:81", true);
        check(Registry::Dns, "a..b", false);
        for (name, want) in [
            ("default/web:http", true),
            ("first/default/web:8080", true),
            ("web:http", false),
            ("default/web", false),
            ("a/b/c/d:http", false),
            ("default//web:http", false),
            ("default/web:", false),
        ] {
            check(Registry::Kubernetes, name, want);
        }
        for (name, want) in [
            ("http://127.0.0.1:8500/v1/kv/upstreams/web/", true),
            ("web", true),
            ("a/b", true),
            ("http://h", false),
            ("../web", false),
            ("", false),
        ] {
            check(Registry::ConsulKv, name, want);
        }
        check(Registry::Etcd, "shop/web", true);
        check(Registry::Etcd, "shop/../web", false);
    }

    #[test]
    fn arguments_of_services() {
        let check = |registry: Registry, args: serde_json::Value, want: bool| {
            let args: DiscoveryArgs = serde_json::from_value(args).expect("arguments");
            assert_eq!(check_service(registry, "web", Some(&args)).is_ok(), want, "{registry} {args:?}");
        };
        check(Registry::Consul, json!({ "datacenter": "dc2", "tags": ["v2"] }), true);
        check(Registry::Consul, json!({ "datacenter": "" }), false);
        check(Registry::Consul, json!({ "tags": ["v2", "a\nb"] }), false);
        check(Registry::Consul, json!({ "namespace_id": "a" }), false);
        check(Registry::Nacos, json!({ "namespace_id": "a", "group_name": "g" }), true);
        check(Registry::Nacos, json!({ "namespace_id": "" }), false);
        check(Registry::Nacos, json!({ "datacenter": "dc" }), false);
        check(Registry::Nomad, json!({ "namespace_id": "a", "datacenter": "dc", "tags": ["v2"] }), true);
        check(Registry::Nomad, json!({ "group_name": "g" }), false);
        check(Registry::Docker, json!({ "metadata": { "zone": "a" } }), true);
        check(Registry::Docker, json!({ "tags": ["v2"] }), false);
        check(Registry::Eureka, json!({ "metadata": { "zone": "a" } }), true);
    }
}
