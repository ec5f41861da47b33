//! The registries in the settings.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};
use sigma_config::discovery::{
    Clusters, Consul, ConsulKv, DefaultService, Discovery, Docker, Dump, EtcdDiscovery, Eureka, Nacos, Nomad,
    Registry, ServiceProblem, check_service,
};
use sigma_config::resources::{DiscoveryArgs, Node};
use sigma_schema::cidr::CidrSet;
use sigma_schema::confidential::MASK;

use crate::consul::{Agent, ConsulService};
use crate::consul_kv::ConsulKeys;
use crate::docker::Containers;
use crate::etcd::Folder;
use crate::eureka::Applications;
use crate::hub::{Hub, Topic};
use crate::kubernetes::Endpoints;
use crate::last_good::LastLists;
use crate::list_watch::ListWatch;
use crate::nacos::{NacosService, Server, ServiceKey};
use crate::node;
use crate::nomad::NomadService;
use crate::source::{Env, Listing, Source};
use crate::subscription::{Part, Subscription};
use crate::tally::{Report, Tally};

/// The service of an upstream.
#[derive(Debug, Clone, Copy)]
pub struct ServiceQuery<'w> {
    /// Its registry; not dns.
    pub registry: Registry,
    /// Its name there.
    pub service: &'w str,
    /// Its other identifying arguments.
    pub args: Option<&'w DiscoveryArgs>,
    /// Its nodes are used by gRPC.
    pub grpc: bool,
}

/// All registries of the process. No request is sent before an upstream needs its nodes.
pub struct Registries {
    settings: Discovery,
    hub: Hub,
    /// The counters of each registry, and of each of its clusters.
    tallies: Vec<(Registry, Box<str>, Arc<Tally>)>,
    /// Networks that nodes must not be in.
    refused: Arc<CidrSet>,
    last: Arc<LastLists>,
    /// The separate files of registries.
    of_consul: Option<Arc<LastLists>>,
    of_consul_kv: Option<Arc<LastLists>>,
    /// The shared part of Consul's services.
    consul: OnceLock<Arc<Agent>>,
    /// The shared part of Nomad's services.
    nomad: OnceLock<Arc<Agent>>,
    /// The shared part of Nacos' services.
    nacos: OnceLock<Arc<Server>>,
}

/// The topic of a service with the wanted part; or the reason for its absence.
type Followed = Result<(Arc<Topic>, Part), ServiceProblem>;

impl Registries {
    /// Returns the registries of the settings.
    #[must_use]
    pub fn new(settings: &Discovery) -> Registries {
        let own = |dump: Option<&Dump>| dump.map(|dump| LastLists::of(dump, &settings.last_good));
        Registries {
            hub: Hub::default(),
            tallies: tallies(settings),
            refused: Arc::new(settings.refused_networks.clone()),
            last: LastLists::new(&settings.last_good),
            of_consul: own(settings.consul.as_ref().and_then(|consul| consul.agents.dump.as_ref())),
            of_consul_kv: own(settings.consul_kv.as_ref().and_then(|consul| consul.agents.dump.as_ref())),
            consul: OnceLock::new(),
            nomad: OnceLock::new(),
            nacos: OnceLock::new(),
            settings: settings.clone(),
        }
    }

    /// Returns the nodes of a service, as they change. Equal subscriptions share one request.
    ///
    /// # Errors
    /// Returns an error if the registry has no settings, or cannot have such a service.
    pub fn follow(&self, wanted: ServiceQuery<'_>) -> Result<Subscription, ServiceProblem> {
        let ServiceQuery { registry, service, args, grpc } = wanted;
        check_service(registry, service, args)?;
        let metadata = args.map(|args| args.metadata.clone()).unwrap_or_default();
        let refused = Arc::clone(&self.refused);
        let part = Part { service: service.into(), metadata, grpc, refused, ..Part::default() };
        let unset = || {
            let message = format!("the registry `{registry}` has no settings");
            ServiceProblem {
                place: "discovery_type",
                message,
                hint: "write them at `discovery`, under this name",
            }
        };
        let settings = &self.settings;
        let (topic, part) = match registry {
            Registry::Consul => self.consul(settings.consul.as_ref().ok_or_else(unset)?, args, part)?,
            Registry::ConsulKv => self.consul_kv(settings.consul_kv.as_ref().ok_or_else(unset)?, part)?,
            Registry::Eureka => self.eureka(settings.eureka.as_ref().ok_or_else(unset)?, part),
            Registry::Nacos => self.nacos(settings.nacos.as_ref().ok_or_else(unset)?, args, part),
            Registry::Kubernetes => self.kubernetes(settings.kubernetes.as_ref().ok_or_else(unset)?, part)?,
            Registry::Etcd => self.etcd(settings.etcd.as_ref().ok_or_else(unset)?, part),
            Registry::Docker => self.docker(settings.docker.as_ref().ok_or_else(unset)?, part),
            Registry::Nomad => self.nomad(settings.nomad.as_ref().ok_or_else(unset)?, args, part),
            Registry::Dns => return Err(unset()),
        };
        Ok(Subscription::new(topic, part))
    }

    fn consul(&self, settings: &Consul, args: Option<&DiscoveryArgs>, part: Part) -> Followed {
        let service = &*part.service;
        if service == "consul" || settings.skip_services.iter().any(|skip| skip == service) {
            let message = format!("`{service}` is excluded by `discovery.consul.skip_services`");
            let hint = "remove it from `discovery.consul.skip_services`; `consul` itself is always excluded";
            return Err(ServiceProblem { place: "service_name", message, hint });
        }
        let last = self.of_consul.as_ref().unwrap_or(&self.last);
        let name = ConsulService::name(service, args);
        let env = self.env(Registry::Consul, "");
        let made = || Agent::new(settings.agents.timeout, settings.max_blocking_queries, &env);
        let agent = || Arc::clone(self.consul.get_or_init(made));
        let source = || ConsulService::new(agent(), settings, service, args, env.limits.nodes);
        let topic = self.topic(Registry::Consul, name, last, &env, source);
        Ok((topic, Part { stand_in: settings.agents.default_service.as_ref().and_then(stand_in), ..part }))
    }

    fn consul_kv(&self, settings: &ConsulKv, part: Part) -> Followed {
        let service = folder(settings, &part.service)?.into();
        let last = self.of_consul_kv.as_ref().unwrap_or(&self.last);
        let env = self.env(Registry::ConsulKv, "");
        let source = || ConsulKeys::new(settings, &env);
        let topic = self.topic(Registry::ConsulKv, Registry::ConsulKv.to_string(), last, &env, source);
        Ok((
            topic,
            Part { service, stand_in: settings.agents.default_service.as_ref().and_then(stand_in), ..part },
        ))
    }

    fn eureka(&self, settings: &Eureka, part: Part) -> (Arc<Topic>, Part) {
        let env = self.env(Registry::Eureka, "");
        let source = || Applications::polled(settings, &env);
        (self.topic(Registry::Eureka, Registry::Eureka.to_string(), &self.last, &env, source), part)
    }

    fn nacos(&self, settings: &Nacos, args: Option<&DiscoveryArgs>, part: Part) -> (Arc<Topic>, Part) {
        let key = ServiceKey::new(&part.service, args);
        let name = key.to_string();
        let env = self.env(Registry::Nacos, "");
        let server = || Arc::clone(self.nacos.get_or_init(|| Server::new(settings, &env)));
        let source = || NacosService::new(server(), key);
        let topic = self.topic(Registry::Nacos, format!("nacos {name}"), &self.last, &env, source);
        (topic, Part { service: name.into(), ..part })
    }

    fn kubernetes(&self, clusters: &Clusters, part: Part) -> Followed {
        // With an id before it, a name has three parts.
        let id = match part.service.split('/').count() {
            2 => "",
            _ => part.service.split('/').next().unwrap_or_default(),
        };
        let Some(cluster) = clusters.0.iter().find(|cluster| cluster.id == id) else {
            let message = format!("`{}` does not name a cluster of `discovery.kubernetes`", part.service);
            let hint = "begin with the `id` of a cluster if `discovery.kubernetes` is a list, else with the namespace";
            return Err(ServiceProblem { place: "service_name", message, hint });
        };
        let name = if id.is_empty() { Registry::Kubernetes.to_string() } else { format!("kubernetes {id}") };
        let env = self.env(Registry::Kubernetes, id);
        let source = || ListWatch::new(Endpoints::new(cluster, &env), &env);
        Ok((self.topic(Registry::Kubernetes, name, &self.last, &env, source), part))
    }

    fn etcd(&self, settings: &EtcdDiscovery, part: Part) -> (Arc<Topic>, Part) {
        let env = self.env(Registry::Etcd, "");
        let source = || ListWatch::new(Folder::new(settings, &env), &env);
        (self.topic(Registry::Etcd, Registry::Etcd.to_string(), &self.last, &env, source), part)
    }

    fn docker(&self, settings: &Docker, part: Part) -> (Arc<Topic>, Part) {
        let env = self.env(Registry::Docker, "");
        let source = || ListWatch::new(Containers::new(settings, &env), &env);
        (self.topic(Registry::Docker, Registry::Docker.to_string(), &self.last, &env, source), part)
    }

    fn nomad(&self, settings: &Nomad, args: Option<&DiscoveryArgs>, part: Part) -> (Arc<Topic>, Part) {
        let name = NomadService::name(settings, &part.service, args);
        let env = self.env(Registry::Nomad, "");
        let made = || Agent::new(settings.timeout, settings.max_blocking_queries, &env);
        let agent = || Arc::clone(self.nomad.get_or_init(made));
        let source = || NomadService::new(agent(), settings, &part.service, args, env.limits.nodes);
        (self.topic(Registry::Nomad, name, &self.last, &env, source), part)
    }

    /// Returns the environment for sources of a registry, or of one of its clusters.
    fn env(&self, registry: Registry, id: &str) -> Env {
        let known = self.tallies.iter().find(|(of, cluster, _)| *of == registry && **cluster == *id);
        let tally = known.map_or_else(Arc::default, |(_, _, tally)| Arc::clone(tally));
        Env { limits: self.settings.limits, tally }
    }

    /// Returns the reports of all registries with settings, except dns.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        let report = |(registry, id, tally): &(Registry, Box<str>, Arc<Tally>)| {
            let mut report = tally.report(*registry, id);
            self.hub.complete(tally, &mut report);
            report
        };
        self.tallies.iter().map(report).collect()
    }

    fn topic<S: Source>(
        &self,
        registry: Registry,
        name: String,
        last: &Arc<LastLists>,
        env: &Env,
        source: impl FnOnce() -> S,
    ) -> Arc<Topic> {
        #[cfg(feature = "simulation")]
        if let Some(scripted) = crate::simulation::source() {
            return self.hub.topic(registry, name, self.settings.protection, last, env, || scripted);
        }
        self.hub.topic(registry, name, self.settings.protection, last, env, source)
    }

    /// Returns a registry's content in the file of the last good lists, in the form of APISIX's dumps of Consul; None
    /// for dns, for a registry without settings, and without a file. Call it within a runtime.
    pub fn stored(
        &self,
        registry: Registry,
    ) -> Option<impl Future<Output = Result<Value, String>> + Send + use<>> {
        if registry == Registry::Dns || !self.settings.has(registry) {
            return None;
        }
        let last = match registry {
            Registry::Consul => self.of_consul.as_ref(),
            Registry::ConsulKv => self.of_consul_kv.as_ref(),
            _ => None,
        };
        let last = Arc::clone(last.unwrap_or(&self.last));
        let prefix = (registry == Registry::ConsulKv).then(|| self.settings.consul_kv.clone()).flatten();
        if !last.has_file() {
            return None;
        }
        Some(async move {
            let word = registry.word();
            let is_wanted = |topic: &str| {
                topic.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            };
            let stored = last.stored(is_wanted).await;
            let (lists, changed) = stored.map_err(|error| format!("cannot read the file: {error}"))?;
            let named = |service: &str| match &prefix {
                Some(settings) => folder_name(settings, service),
                None => service.to_owned(),
            };
            let services: Map<String, Value> = lists
                .iter()
                .map(|(service, nodes)| (named(service), Value::from_iter(nodes.iter().map(shown))))
                .collect();
            let expire = last.expire().map_or(0, |expire| expire.as_secs());
            Ok(json!({ "services": services, "last_update": changed, "expire": expire }))
        })
    }

    /// Returns the current state of a registry, in APISIX's form; None for dns, and for one without settings.
    #[must_use]
    pub fn dump(&self, registry: Registry) -> Option<Value> {
        if registry == Registry::Dns || !self.settings.has(registry) {
            return None;
        }
        let all = masked(serde_json::to_value(&self.settings).unwrap_or_default());
        let config = all.get(registry.word()).cloned().unwrap_or_default();
        let known = self.hub.known(registry);
        if let (Registry::Kubernetes, Some(clusters)) = (registry, &self.settings.kubernetes) {
            let endpoints: Vec<Value> =
                clusters.0.iter().map(|cluster| endpoints_of(&cluster.id, &known)).collect();
            return Some(json!({ "config": config, "endpoints": endpoints }));
        }
        let listed = |service: &str, nodes: &[Node]| {
            let nodes = Value::from_iter(nodes.iter().map(shown));
            match (registry, &self.settings.consul_kv) {
                (Registry::ConsulKv, Some(settings)) => (folder_name(settings, service), nodes),
                (Registry::Nacos, _) => (service.to_string(), json!({ "nodes": nodes })),
                _ => (service.to_string(), nodes),
            }
        };
        let services: Map<String, Value> =
            known.iter().map(|(service, nodes)| listed(service, nodes)).collect();
        match registry {
            Registry::Nacos => Some(json!({ "services": services })),
            _ => Some(json!({ "config": config, "services": services })),
        }
    }
}

/// Returns a tally for each registry with settings, and for each of its clusters.
fn tallies(settings: &Discovery) -> Vec<(Registry, Box<str>, Arc<Tally>)> {
    let has_tally = |registry: &Registry| *registry != Registry::Dns && settings.has(*registry);
    let of = |registry: Registry| -> Vec<Box<str>> {
        match (registry, &settings.kubernetes) {
            (Registry::Kubernetes, Some(clusters)) => {
                clusters.0.iter().map(|cluster| cluster.id.as_str().into()).collect()
            }
            _ => vec!["".into()],
        }
    };
    let registries = Registry::ALL.into_iter().filter(has_tally);
    registries
        .flat_map(|registry| of(registry).into_iter().map(move |id| (registry, id, Arc::default())))
        .collect()
}

/// Returns the state of one cluster: each service with the text of its ports and nodes.
fn endpoints_of(id: &str, known: &Listing) -> Value {
    let mut services: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (name, nodes) in known {
        let Some((place, port)) = name.rsplit_once(':') else { continue };
        let (cluster, service) = match place.split('/').count() {
            2 => ("", place),
            _ => place.split_once('/').unwrap_or(("", place)),
        };
        if cluster == id {
            let nodes = Value::from_iter(nodes.iter().map(shown));
            services.entry(service).or_default().insert(port.to_owned(), nodes);
        }
    }
    let service = |(name, ports)| json!({ "name": name, "value": Value::Object(ports).to_string() });
    let endpoints = Value::from_iter(services.into_iter().map(service));
    match id.is_empty() {
        true => json!({ "endpoints": endpoints }),
        false => json!({ "id": id, "endpoints": endpoints }),
    }
}

impl Default for Registries {
    fn default() -> Self {
        Registries::new(&Discovery::default())
    }
}

/// Formats a node for dumps.
fn shown(node: &Node) -> Value {
    let mut shown = Map::new();
    shown.insert("host".to_owned(), (&*node.host).into());
    if let Some(port) = node.port {
        shown.insert("port".to_owned(), port.into());
    }
    shown.insert("weight".to_owned(), node.weight.into());
    if node.priority != 0 {
        shown.insert("priority".to_owned(), node.priority.into());
    }
    if let Some(metadata) = &node.metadata {
        shown.insert("metadata".to_owned(), Value::Object((**metadata).clone()));
    }
    Value::Object(shown)
}

/// Removes secrets from settings, at any depth.
fn masked(mut settings: Value) -> Value {
    match &mut settings {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                let is_secret = matches!(name.as_str(), "token" | "password" | "secret_key" | "access_key");
                *value = match value.take() {
                    Value::String(text) if is_secret && !text.is_empty() => MASK.into(),
                    value => masked(value),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = masked(item.take())),
        Value::String(text) => {
            // An address with a user.
            if let (Some((scheme, _)), Some((_, place))) = (text.split_once("://"), text.rsplit_once('@')) {
                *text = format!("{scheme}://{MASK}@{place}");
            }
        }
        _ => {}
    }
    settings
}

/// Returns the folder below the prefix that a name means.
fn folder<'n>(settings: &ConsulKv, service_name: &'n str) -> Result<&'n str, ServiceProblem> {
    let wrong = |message: String, hint| ServiceProblem { place: "service_name", message, hint };
    let Some((server, folder)) = ConsulKv::folder(service_name) else {
        return Err(wrong(format!("`{service_name}` is not the folder of a Consul key"), "write <service>"));
    };
    let Some(server) = server else { return Ok(folder) };
    if !settings.agents.servers.iter().any(|known| known.base() == server) {
        let message = format!("`{server}` is not in `discovery.consul_kv.servers`");
        return Err(wrong(message, "use one of these servers, or write <service> alone"));
    }
    let prefix = settings.prefix.trim_matches('/');
    let below = folder.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
    below.ok_or_else(|| {
        let message = format!("`{folder}` does not begin with `discovery.consul_kv.prefix`, `{prefix}`");
        wrong(message, "begin with this prefix")
    })
}

/// Returns the name of a folder in APISIX's form.
fn folder_name(settings: &ConsulKv, folder: &str) -> String {
    let server = settings.agents.servers.first().map_or("", |server| server.base());
    format!("{server}/v1/kv/{}/{folder}/", settings.prefix.trim_matches('/'))
}

fn stand_in(settings: &DefaultService) -> Option<Node> {
    let stand_in = node::node(&settings.host, Some(settings.port), settings.metadata.weight);
    if stand_in.is_none() {
        tracing::warn!(host = settings.host, "`default_service` has no valid address and is ignored");
    }
    stand_in
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registries(value: Value) -> Registries {
        Registries::new(&serde_json::from_value(value).expect("settings"))
    }

    fn wanted(registry: Registry, service: &str) -> ServiceQuery<'_> {
        ServiceQuery { registry, service, args: None, grpc: false }
    }

    #[test]
    fn services_are_followed_if_possible() {
        let all = registries(json!({
            "consul": { "servers": ["http://h:8500"], "skip_services": ["old"] },
            "consul_kv": { "servers": ["http://h:8500"] },
            "eureka": { "host": ["http://h:8761"] },
            "nacos": { "host": ["http://h:8848"] },
            "kubernetes": [{ "id": "first" }, { "id": "second" }],
            "etcd": { "host": ["http://h:2379"] },
            "docker": {},
            "nomad": { "servers": ["http://h:4646"] },
        }));
        let check = |registry: Registry, service: &str, want: Result<&str, &str>| {
            let got = all.follow(wanted(registry, service));
            let got = got.as_ref().map(Subscription::name).map_err(|problem| problem.place);
            assert_eq!(got, want, "{registry} {service}");
        };
        check(Registry::Consul, "web", Ok("consul web"));
        check(Registry::Consul, "old", Err("service_name"));
        check(Registry::Consul, "consul", Err("service_name"));
        check(Registry::ConsulKv, "web", Ok("consul_kv"));
        check(Registry::ConsulKv, "http://h:8500/v1/kv/upstreams/web/", Ok("consul_kv"));
        check(Registry::ConsulKv, "http://other:8500/v1/kv/upstreams/web/", Err("service_name"));
        check(Registry::ConsulKv, "http://h:8500/v1/kv/upstream/web/", Err("service_name"));
        check(Registry::Eureka, "WEB", Ok("eureka"));
        check(Registry::Nacos, "web", Ok("nacos default/public/DEFAULT_GROUP/web"));
        check(Registry::Kubernetes, "second/default/web:http", Ok("kubernetes second"));
        check(Registry::Kubernetes, "third/default/web:http", Err("service_name"));
        check(Registry::Kubernetes, "default/web:http", Err("service_name"));
        check(Registry::Etcd, "shop/web", Ok("etcd"));
        check(Registry::Docker, "web", Ok("docker"));
        check(Registry::Nomad, "web", Ok("nomad web namespace=default"));
        let none = Registries::default();
        for registry in Registry::ALL {
            let name = if registry == Registry::Kubernetes { "a/b:c" } else { "web" };
            let problem = none.follow(wanted(registry, name)).map(drop).expect_err("a problem");
            assert_eq!(problem.place, "discovery_type", "{registry}");
            assert_eq!(none.dump(registry), None);
        }
    }

    #[test]
    fn arguments_identify_services() {
        let all = registries(json!({
            "consul": { "servers": ["http://h:8500"] },
            "nomad": { "servers": ["http://h:4646"], "region": "eu" },
        }));
        let args = DiscoveryArgs {
            datacenter: Some("dc2".into()),
            tags: vec!["v2".into()],
            ..DiscoveryArgs::default()
        };
        let name = |registry| {
            let wanted = ServiceQuery { args: Some(&args), ..wanted(registry, "web") };
            all.follow(wanted).expect("a subscription").name().to_owned()
        };
        assert_eq!(name(Registry::Consul), "consul web dc=dc2&tag=v2");
        assert_eq!(name(Registry::Nomad), "nomad web namespace=default&region=eu dc=dc2&tag=v2");
    }

    #[test]
    fn dumps_have_the_forms_of_apisix_and_no_secrets() {
        let all = registries(json!({
            "consul": { "servers": ["http://u:hush@h:8500"], "token": "hush" },
            "nacos": { "host": ["http://u:hush@h:8848"] },
            "kubernetes": { "client": { "token": "hush" } },
        }));
        let consul = all.dump(Registry::Consul).expect("a dump");
        assert_eq!((&consul["config"]["token"], &consul["services"]), (&json!("***"), &json!({})));
        assert_eq!(consul["config"]["servers"], json!(["http://***@h:8500"]));
        assert_eq!(all.dump(Registry::Nacos), Some(json!({ "services": {} })));
        let kubernetes = all.dump(Registry::Kubernetes).expect("a dump");
        assert_eq!(kubernetes["config"]["client"]["token"], "***");
        assert_eq!(kubernetes["endpoints"], json!([{ "endpoints": [] }]));
        assert_eq!(all.dump(Registry::Eureka), None);

        let node = node::node("10.0.0.1", Some(80), 50).expect("a node");
        let nodes: Arc<[Node]> = Arc::from([node]);
        let known = Listing::from([
            ("a/web:http".into(), Arc::clone(&nodes)),
            ("a/web:81".into(), Arc::clone(&nodes)),
            ("first/b/web:http".into(), nodes),
        ]);
        let text = r#"{"81":[{"host":"10.0.0.1","port":80,"weight":50}],"http":[{"host":"10.0.0.1","port":80,"weight":50}]}"#;
        assert_eq!(endpoints_of("", &known), json!({ "endpoints": [{ "name": "a/web", "value": text }] }));
        assert_eq!(endpoints_of("first", &known)["endpoints"][0]["name"], "b/web");
    }
}
