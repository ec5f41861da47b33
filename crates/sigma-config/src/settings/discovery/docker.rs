//! Settings of Docker as a service registry.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{RegistryAddress, RegistryTimeout};

/// The start of an endpoint that is a Unix socket.
const SOCKET: &str = "unix://";

/// The address of a Docker daemon: `unix:///path`, `http://host:port` or `https://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DockerEndpoint(RegistryAddress);

impl DockerEndpoint {
    /// Returns the address of the daemon.
    #[must_use]
    pub fn address(&self) -> &RegistryAddress {
        &self.0
    }
}

impl FromStr for DockerEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<DockerEndpoint, String> {
        let wrong = || {
            "an endpoint of Docker is unix:///path, http://host:port or https://host:port; write tcp://host:port as \
             http://host:port"
                .to_owned()
        };
        let address = match text.strip_prefix(SOCKET) {
            Some(path) => {
                let is_path =
                    path.starts_with('/') && !path.ends_with('/') && !path.chars().any(char::is_control);
                RegistryAddress::of_socket(is_path.then(|| Path::new(path)).ok_or_else(wrong)?)
            }
            None => text.parse().map_err(|_| wrong())?,
        };
        Ok(DockerEndpoint(address))
    }
}

impl<'de> Deserialize<'de> for DockerEndpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for DockerEndpoint {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DockerEndpoint".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 2, "maxLength": 512 })
    }
}

/// Containers of a Docker daemon, or of Podman with the same API. A running container with the label
/// `sigma.service: NAME` is a node of the service `NAME`. Further labels of it: `sigma.port`, else the smallest TCP port
/// that it exposes; `sigma.weight`; `sigma.network`, the network of its address; `sigma.metadata.KEY`, metadata of the
/// node. An unhealthy or starting container is no node. Changes arrive at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Docker {
    /// The daemon: `unix:///path`, `http://host:port` or `https://host:port`. Access to it is access to its whole
    /// machine: let a proxy of the socket allow `GET /containers/json` and `GET /events` only.
    pub endpoint: DockerEndpoint,
    /// PEM file with the CA certificates of an `https` daemon. Unset: the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// PEM file with the client certificate for an `https` daemon; needs `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// PEM file with the key of `certificate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Further labels that a container must have: `name` or `name=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub labels: Vec<String>,
    /// The network of addresses, for containers without the label `sigma.network`; with Compose the name may be without
    /// the project. Unset: the container's only network. A container in several networks needs one of the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub network: Option<String>,
    /// The address of containers that use the network of their machine; they need the label `sigma.port`. Unset: such
    /// containers are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub host_address: Option<String>,
    /// Weight of containers without the label `sigma.weight`.
    #[schemars(range(min = 0))]
    pub weight: u32,
    /// Timeouts of lists. The stream of events lasts four minutes and is then renewed.
    pub timeout: RegistryTimeout,
}

impl Default for Docker {
    fn default() -> Self {
        Docker {
            endpoint: DockerEndpoint(RegistryAddress::of_socket(Path::new("/var/run/docker.sock"))),
            ca: None,
            certificate: None,
            key: None,
            labels: Vec::new(),
            network: None,
            host_address: None,
            weight: 1,
            timeout: RegistryTimeout::default(),
        }
    }
}

pub(super) fn breaches(discovery: &Map<String, Value>) -> Vec<(String, &'static str, &'static str)> {
    let Some(docker) = discovery.get("docker").and_then(Value::as_object) else { return Vec::new() };
    let mut found = Vec::new();
    if docker.contains_key("certificate") != docker.contains_key("key") {
        found.push((
            "docker.certificate".to_owned(),
            "`certificate` and `key` belong together",
            "name both, or neither",
        ));
    }
    let is_tls =
        docker.get("endpoint").and_then(Value::as_str).is_some_and(|text| text.starts_with("https://"));
    for name in ["ca", "certificate"] {
        if docker.contains_key(name) && !is_tls {
            let message = "the endpoint has no TLS, which certificates need";
            found.push((
                format!("docker.{name}"),
                message,
                "remove it, or write endpoint: https://host:port",
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_socket_or_an_address() {
        let check = |text: &str, socket: Option<&str>, shown: &str| {
            let read: DockerEndpoint = text.parse().expect(text);
            let address = read.address();
            assert_eq!(
                (address.socket(), address.to_string().as_str()),
                (socket.map(Path::new), shown),
                "{text}"
            );
        };
        check(
            "unix:///run/user/1000/docker.sock",
            Some("/run/user/1000/docker.sock"),
            "unix:///run/user/1000/docker.sock",
        );
        check("http://10.0.0.9:2375", None, "http://10.0.0.9:2375");
        check("https://u:hush@docker.test:2376", None, "https://docker.test:2376");
        for wrong in [
            "",
            "unix://",
            "unix://run/docker.sock",
            "unix:///run/",
            "unix:///a\nb",
            "tcp://h:2375",
            "/run/s",
        ] {
            let error = wrong.parse::<DockerEndpoint>().map(drop).expect_err(wrong);
            assert!(error.contains("unix:///path"), "{error}");
        }
    }

    #[test]
    fn certificates_need_tls_and_a_key() {
        let places = |docker: Value| -> Vec<String> {
            let discovery = serde_json::json!({ "docker": docker });
            breaches(discovery.as_object().expect("an object")).into_iter().map(|(place, ..)| place).collect()
        };
        let https = "https://h:2376";
        assert_eq!(
            places(serde_json::json!({ "endpoint": https, "ca": "a", "certificate": "c", "key": "k" })),
            [""; 0]
        );
        assert_eq!(
            places(serde_json::json!({ "endpoint": https, "certificate": "c" })),
            ["docker.certificate"]
        );
        assert_eq!(places(serde_json::json!({ "ca": "a" })), ["docker.ca"]);
        assert_eq!(places(serde_json::json!({})), [""; 0]);
    }
}
