//! Settings of service discovery, and service names.

mod address;
mod consul;
mod dns;
mod docker;
mod etcd;
mod eureka;
mod guards;
mod kubernetes;
mod nacos;
mod nomad;
mod service;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use sigma_schema::cidr::CidrSet;
use sigma_schema::forms::CidrText;
use sigma_schema::problem::{Problem, join};

pub use address::RegistryAddress;
pub use consul::{
    Consul, ConsulAgents, ConsulKv, ConsulTimeout, DefaultMetadata, DefaultService, Dump, SortType,
};
pub use dns::{DnsDiscovery, DnsRecords, split_dns_service};
pub use docker::{Docker, DockerEndpoint};
pub use etcd::EtcdDiscovery;
pub use eureka::{Eureka, RegistryTimeout};
pub use guards::{DiscoveryLimits, LastGood, Protection};
pub use kubernetes::{
    Cluster, ClusterClient, ClusterService, Clusters, KubernetesSchema, LabelPattern, NamespaceSelector,
};
pub use nacos::Nacos;
pub use nomad::Nomad;
pub use service::{Registry, ServiceProblem, check_service};

/// Registries in which upstreams with a `service_name` find their nodes. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Discovery {
    /// For `discovery_type: dns`; unset: the name servers of `dns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsDiscovery>,
    /// For `discovery_type: consul`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consul: Option<Consul>,
    /// For `discovery_type: consul_kv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consul_kv: Option<ConsulKv>,
    /// For `discovery_type: eureka`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eureka: Option<Eureka>,
    /// For `discovery_type: nacos`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nacos: Option<Nacos>,
    /// For `discovery_type: kubernetes`: one cluster, or a list of clusters with an `id` each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Clusters>,
    /// For `discovery_type: etcd`: services that register in etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdDiscovery>,
    /// For `discovery_type: docker`: containers that name their service in a label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docker: Option<Docker>,
    /// For `discovery_type: nomad`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nomad: Option<Nomad>,
    /// Protection against lists that shrink by mistake; for every registry but dns.
    pub protection: Protection,
    /// The file with the last good lists; for every registry but dns.
    pub last_good: LastGood,
    /// Limits on responses of a registry; for every registry but dns.
    pub limits: DiscoveryLimits,
    /// Networks in which no node may be, including nodes of dns and the addresses of node names. A client that can
    /// register a service could otherwise redirect requests to them.
    #[schemars(with = "Vec<CidrText>")]
    pub refused_networks: CidrSet,
}

/// Metadata addresses of clouds and other link-local networks.
const REFUSED_NETWORKS: [&str; 4] =
    ["169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32"];

impl Default for Discovery {
    fn default() -> Self {
        Discovery {
            dns: None,
            consul: None,
            consul_kv: None,
            eureka: None,
            nacos: None,
            kubernetes: None,
            etcd: None,
            docker: None,
            nomad: None,
            protection: Protection::default(),
            last_good: LastGood::default(),
            limits: DiscoveryLimits::default(),
            // All texts are valid: a test parses them.
            refused_networks: REFUSED_NETWORKS.into_iter().filter_map(|text| text.parse().ok()).collect(),
        }
    }
}

impl Discovery {
    /// Returns whether an upstream may use this registry.
    #[must_use]
    pub fn has(&self, registry: Registry) -> bool {
        match registry {
            // Without settings, DNS uses the name servers of `dns`.
            Registry::Dns => true,
            Registry::Consul => self.consul.is_some(),
            Registry::ConsulKv => self.consul_kv.is_some(),
            Registry::Eureka => self.eureka.is_some(),
            Registry::Nacos => self.nacos.is_some(),
            Registry::Kubernetes => self.kubernetes.is_some(),
            Registry::Etcd => self.etcd.is_some(),
            Registry::Docker => self.docker.is_some(),
            Registry::Nomad => self.nomad.is_some(),
        }
    }
}

/// Returns the contradictions in `discovery`: place, message and remedy.
pub(crate) fn breaches(discovery: &Map<String, Value>) -> Vec<(String, &'static str, &'static str)> {
    let mut found = dns::breaches(discovery);
    found.extend(kubernetes::breaches(discovery));
    found.extend(etcd::breaches(discovery));
    found.extend(docker::breaches(discovery));
    found
}

/// Warns about APISIX fields without effect that differ from their default.
pub(crate) fn without_effect(discovery: &Discovery) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut note = |place: &str, reason: &str| {
        let message = format!("`{place}` has no effect: {reason}");
        found.push(Problem::new(join("discovery", place), "no_effect", message).hint("remove it"));
    };
    let no_memory = "workers share no memory";
    let of_services = discovery.consul.iter().map(|settings| ("consul", &settings.agents));
    let of_keys = discovery.consul_kv.iter().map(|settings| ("consul_kv", &settings.agents));
    for (name, agents) in of_services.chain(of_keys) {
        if consul::is_chosen(agents.shared_size.as_ref()) {
            note(&format!("{name}.shared_size"), no_memory);
        }
        let metadata = agents.default_service.as_ref().map(|default| default.metadata).unwrap_or_default();
        if (metadata.max_fails, metadata.fail_timeout) != (1, 1) {
            let reason = "failures are counted by health checks";
            note(&format!("{name}.default_service.metadata"), reason);
        }
    }
    for (at, cluster) in discovery.kubernetes.iter().flat_map(|clusters| clusters.0.iter().enumerate()) {
        if consul::is_chosen(cluster.shared_size.as_ref()) {
            note(&format!("kubernetes[{at}].shared_size"), no_memory);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_match_apisix() {
        let value = json!({
            "consul": { "servers": ["http://127.0.0.1:8500"] },
            "consul_kv": { "servers": ["http://127.0.0.1:8500"] },
            "eureka": { "host": ["http://user:pw@127.0.0.1:8761"] },
            "nacos": { "host": ["http://127.0.0.1:8848"] },
            "kubernetes": {},
            "etcd": { "host": ["http://127.0.0.1:2379"] },
            "docker": {},
            "nomad": { "servers": ["http://127.0.0.1:4646"] },
        });
        let read: Discovery = serde_json::from_value(value).expect("settings");
        let consul = read.consul.expect("consul").agents;
        assert_eq!((consul.fetch_interval, consul.keepalive, consul.weight), (3, true, 1));
        assert_eq!((consul.timeout.connect, consul.timeout.read, consul.timeout.wait), (2000, 2000, 60));
        assert_eq!(read.consul_kv.expect("consul_kv").prefix, "upstreams");
        let eureka = read.eureka.expect("eureka");
        assert_eq!((eureka.fetch_interval, eureka.weight, eureka.timeout.read), (30, 100, 5000));
        let nacos = read.nacos.expect("nacos");
        assert_eq!((nacos.prefix.as_str(), nacos.weight), ("/nacos/v1/", 100));
        let clusters = read.kubernetes.expect("kubernetes");
        assert_eq!((clusters.0.len(), clusters.0[0].default_weight), (1, 50));
        assert_eq!(clusters.0[0].service.host, "${KUBERNETES_SERVICE_HOST}");
        assert_eq!(
            read.docker.expect("docker").endpoint.address().to_string(),
            "unix:///var/run/docker.sock"
        );
        let nomad = read.nomad.expect("nomad");
        assert_eq!((nomad.namespace.as_str(), nomad.timeout.wait, nomad.weight), ("default", 60, 1));
        assert_eq!((read.protection.max_vanished_percent, read.protection.believed_after_ms), (80, 60_000));
        assert_eq!(read.refused_networks.as_slice().len(), REFUSED_NETWORKS.len());
    }

    #[test]
    fn secrets_are_not_shown() {
        let value = json!({
            "consul": { "servers": ["http://u:hush@127.0.0.1:8500"], "token": "hush" },
            "consul_kv": { "servers": ["http://127.0.0.1:8500"], "token": "hush" },
            "nacos": { "host": ["http://u:hush@127.0.0.1:8848"], "access_key": "a", "secret_key": "hush" },
            "eureka": { "host": ["http://u:hush@127.0.0.1:8848"] },
            "kubernetes": { "client": { "token": "hush" } },
            "etcd": { "host": ["http://127.0.0.1:2379"], "user": "u", "password": "hush" },
            "docker": { "endpoint": "http://u:hush@127.0.0.1:2375" },
            "nomad": { "servers": ["http://u:hush@127.0.0.1:4646"], "token": "hush" },
        });
        let read: Discovery = serde_json::from_value(value).expect("settings");
        let shown = format!("{read:?}");
        assert!(!shown.contains("hush"), "{shown}");
    }

    #[test]
    fn fields_without_effect_are_reported() {
        let value = json!({
            "consul": { "servers": ["http://h:1"], "shared_size": "1m" },
            "consul_kv": {
                "servers": ["http://h:1"],
                "default_service": { "host": "h", "port": 1, "metadata": { "max_fails": 3 } }
            },
            "kubernetes": [{ "id": "a", "shared_size": "2m" }],
        });
        let read: Discovery = serde_json::from_value(value).expect("settings");
        let places: Vec<String> = without_effect(&read).into_iter().map(|found| found.pointer).collect();
        assert_eq!(
            places,
            [
                "discovery.consul.shared_size",
                "discovery.consul_kv.default_service.metadata",
                "discovery.kubernetes[0].shared_size"
            ]
        );
        assert!(without_effect(&Discovery::default()).is_empty());
    }
}
