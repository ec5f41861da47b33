//! Containers of Docker, or of Podman by the same API: a list, and the events after it.
//!
//! The stream of events opens before the list is read, so that no event between them is lost. A container that ends is
//! removed at once, by its id. Every other event that matters leads to another list, since events do not name addresses.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use sigma_config::discovery::{Docker, Registry};
use sigma_config::resources::Node;

use crate::consul::encoded;
use crate::http::{Http, RegistryRequest, Trust, read_file};
use crate::labels::Labels;
use crate::list_watch::{Heard, Lines, Watched};
use crate::node::{self, LeftOut};
use crate::source::{Env, Listing, Trouble};

/// The label that makes a container a node.
const SERVICE: &str = "sigma.service";

/// The label by which Compose names a project; its networks are `<project>_<network>`.
const PROJECT: &str = "com.docker.compose.project";

/// The end of a stream of events: then everything is read again, in case an event was lost.
const WATCH: Duration = Duration::from_secs(240);

/// The events that may change a node. The daemon compares `health_status` without its result.
const EVENTS: [&str; 8] =
    ["start", "die", "pause", "unpause", "rename", "health_status", "connect", "disconnect"];

/// The containers of one daemon.
pub(crate) struct Containers {
    settings: Docker,
    env: Env,
    /// Made on first use, and again after a failure.
    http: Option<Http>,
    /// The events after the list, until they are followed.
    events: Option<Lines>,
    /// The nodes by the id of their container.
    known: BTreeMap<Box<str>, Container>,
}

/// A container that is a node.
#[derive(Debug)]
struct Container {
    service: Box<str>,
    node: Node,
}

impl Containers {
    pub(crate) fn new(settings: &Docker, env: &Env) -> Containers {
        Containers {
            settings: settings.clone(),
            env: env.clone(),
            http: None,
            events: None,
            known: BTreeMap::new(),
        }
    }

    /// Makes the client of the daemon.
    async fn client(&self) -> Result<Http, Trouble> {
        let Docker { ca, certificate, key, timeout, .. } = &self.settings;
        let trust = match ca {
            None => Trust::System,
            Some(ca) => Trust::Authorities(read_file(ca.clone()).await?),
        };
        let http = Http::new(Duration::from_millis(timeout.connect.into()), trust, &self.env);
        let (Some(certificate), Some(key)) = (certificate, key) else { return Ok(http) };
        let pem = [read_file(certificate.clone()).await?, read_file(key.clone()).await?].join(&b'\n');
        Ok(http.identified(pem))
    }

    /// Opens the stream of events.
    async fn listen(&self, http: &Http) -> Result<Lines, Trouble> {
        let filters = json!({ "type": ["container", "network"], "event": EVENTS });
        let target = format!("/events?filters={}", encoded(&filters.to_string()));
        let address = self.settings.endpoint.address();
        let response = http.open(address, RegistryRequest::get(&target, WATCH)).await?;
        match response.status().as_u16() {
            200 => Ok(Lines::new(response, self.env.limits.answer_bytes as usize)),
            status => Err(Trouble(format!("{address} responded with status {status}"))),
        }
    }

    async fn list(&self, http: &Http) -> Result<BTreeMap<Box<str>, Container>, Trouble> {
        let timeout = self.settings.timeout;
        let millis = u64::from(timeout.connect) + u64::from(timeout.send) + u64::from(timeout.read);
        let labels: Vec<&str> =
            [SERVICE].into_iter().chain(self.settings.labels.iter().map(String::as_str)).collect();
        let filters = json!({ "status": ["running"], "label": labels });
        let target = format!("/containers/json?filters={}", encoded(&filters.to_string()));
        let address = self.settings.endpoint.address();
        let answer = http.ask(address, RegistryRequest::get(&target, Duration::from_millis(millis))).await?;
        let list = answer.json(address).await?;
        let most = self.env.limits.objects;
        self.read(&list).ok_or_else(|| {
            Trouble(format!(
                "{address} returned no list of containers, or more than {most} (`discovery.limits.objects`)"
            ))
        })
    }

    /// Returns the nodes of a list; None if it is invalid, or too long.
    fn read(&self, list: &Value) -> Option<BTreeMap<Box<str>, Container>> {
        let list = list.as_array()?;
        if list.len() > self.env.limits.objects as usize {
            return None;
        }
        let mut left_out = LeftOut::default();
        let mut containers = 0;
        let mut known = BTreeMap::new();
        for about in list {
            let (id, labels) = (text(about, "/Id"), about.get("Labels").and_then(Value::as_object));
            let Some(labels) = labels.filter(|_| !id.is_empty()) else {
                left_out.note_malformed(about);
                continue;
            };
            containers += 1;
            let service = labels.get(SERVICE).and_then(Value::as_str).unwrap_or_default().trim();
            if service.is_empty() || !is_up(about) {
                continue;
            }
            match self.node(about, labels) {
                Ok(node) => drop(known.insert(id.into(), Container { service: service.into(), node })),
                Err(reason) => left_out.note(&format!("{}: {reason}", name(about))),
            }
        }
        left_out.tell(Registry::Docker);
        left_out.admits(containers).then_some(known)
    }

    /// Returns the node of a container.
    ///
    /// # Errors
    /// Returns an error, with a remedy, if the container has no address or no port.
    fn node(&self, about: &Value, labels: &Map<String, Value>) -> Result<Node, String> {
        let ours =
            Labels::new(labels.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))));
        let port = match ours.number::<u16>("port")? {
            Some(port) => port,
            None => smallest_port(about).ok_or("no TCP port is exposed; set the label `sigma.port`")?,
        };
        let project = labels.get(PROJECT).and_then(Value::as_str).unwrap_or_default();
        let host = self.host(about, ours.get("network"), project)?;
        let weight = ours.number("weight")?.unwrap_or(self.settings.weight);
        let found = node::node(host, Some(port), weight);
        let found = found.ok_or_else(|| format!("`{host}`, port {port}, is no address of a node"))?;
        Ok(Node { metadata: ours.metadata(), ..found })
    }

    /// Returns the address of a container.
    fn host<'a>(&'a self, about: &'a Value, network: Option<&str>, project: &str) -> Result<&'a str, String> {
        if text(about, "/HostConfig/NetworkMode") == "host" {
            let missing =
                "the container uses the network of its machine; set `discovery.docker.host_address`";
            return self.settings.host_address.as_deref().ok_or_else(|| missing.to_owned());
        }
        let networks = about.pointer("/NetworkSettings/Networks").and_then(Value::as_object);
        let addresses: Vec<(&str, &str)> = networks
            .into_iter()
            .flatten()
            .filter_map(|(name, network)| Some((name.as_str(), address(network)?)))
            .collect();
        let wanted = network.or(self.settings.network.as_deref());
        match (wanted, &addresses[..]) {
            (Some(wanted), _) => {
                let of_project = format!("{project}_{wanted}");
                let find = |searched: &str| addresses.iter().find(|(name, _)| *name == searched);
                let found = find(wanted).or_else(|| find(&of_project));
                found
                    .map(|(_, address)| *address)
                    .ok_or_else(|| format!("no address in the network `{wanted}`"))
            }
            (None, [(_, address)]) => Ok(address),
            (None, []) => Err("no address in any network".to_owned()),
            (None, several) => {
                let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                Err(format!(
                    "several networks ({names}); set the label `sigma.network` or `discovery.docker.network`"
                ))
            }
        }
    }
}

impl Watched for Containers {
    async fn load(&mut self) -> Result<(), Trouble> {
        let http = match self.http.take() {
            Some(http) => http,
            None => self.client().await?,
        };
        let events = self.listen(&http).await?;
        self.known = self.list(&http).await?;
        (self.http, self.events) = (Some(http), Some(events));
        Ok(())
    }

    /// Events from before the list cannot be opened again, so another list is read after each stream.
    async fn open(&mut self) -> Result<Option<Lines>, Trouble> {
        Ok(self.events.take())
    }

    fn hear(&mut self, message: &Value) -> Heard {
        let action = text(message, "/Action").split(':').next().unwrap_or_default();
        match (text(message, "/Type"), action) {
            ("container", "die" | "pause") => match self.known.remove(text(message, "/Actor/ID")) {
                Some(_) => Heard::Change,
                None => Heard::Nothing,
            },
            ("container", _) => {
                let labels = message.pointer("/Actor/Attributes");
                let is_ours = labels.is_some_and(|labels| labels.get(SERVICE).is_some());
                if is_ours { Heard::Gone } else { Heard::Nothing }
            }
            ("network", _) => {
                let is_known = self.known.contains_key(text(message, "/Actor/Attributes/container"));
                if is_known { Heard::Gone } else { Heard::Nothing }
            }
            _ => Heard::Nothing,
        }
    }

    fn listing(&self) -> Listing {
        let mut services: BTreeMap<&str, Vec<Node>> = BTreeMap::new();
        for Container { service, node } in self.known.values() {
            services.entry(service).or_default().push(node.clone());
        }
        let listed = |(service, nodes): (&str, Vec<Node>)| {
            (service.into(), node::list(service, nodes, self.env.limits.nodes))
        };
        services.into_iter().map(listed).collect()
    }

    /// The daemon itself has ended the container.
    fn names_what_is_gone(&self) -> bool {
        true
    }

    fn turn(&mut self) {
        // The certificates may have been renewed.
        (self.http, self.events) = (None, None);
    }
}

/// Returns the text at a JSON pointer; empty without a text there.
fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the name of a container, for the log.
fn name(about: &Value) -> &str {
    text(about, "/Names/0").trim_start_matches('/')
}

/// Returns true if a container runs, and its health check, if it has one, succeeds.
fn is_up(about: &Value) -> bool {
    let status = text(about, "/Status");
    text(about, "/State") == "running"
        && !["(unhealthy)", "(health: starting)", "(starting)"].iter().any(|bad| status.contains(bad))
}

/// Returns the smallest TCP port that a container exposes.
fn smallest_port(about: &Value) -> Option<u16> {
    let ports = about.get("Ports").and_then(Value::as_array).into_iter().flatten();
    ports
        .filter(|port| port.get("Type").is_none_or(|kind| kind == "tcp"))
        .filter_map(|port| node::port(port.get("PrivatePort")))
        .min()
}

/// Returns the address of a container in a network: IPv4 before IPv6.
fn address(network: &Value) -> Option<&str> {
    ["/IPAddress", "/GlobalIPv6Address"]
        .into_iter()
        .map(|name| text(network, name))
        .find(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
