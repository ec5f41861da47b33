//! Services of Consul.
//!
//! A request waits at Consul for a change after the index of the last response (a blocking query). An index that goes
//! back means that Consul has restarted: then the next request does not wait. A request occupies a connection. If
//! there are more services than connections, they take turns with shorter waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderName;
use serde_json::Value;
use sigma_config::discovery::{Consul, ConsulAgents, ConsulTimeout, Registry, RegistryAddress, SortType};
use sigma_config::resources::{DiscoveryArgs, Node};
use sigma_schema::Confidential;
use tokio::sync::Semaphore;

use crate::http::{Http, Members, RegistryRequest, RegistryResponse, Trust};
use crate::node::{self, LeftOut};
use crate::source::{Env, Listing, Source, Trouble};

/// The port of services without one.
const PORT: u16 = 80;

/// The pause between two responses: a service that changes all the time does not keep the gateway busy.
const PACE: Duration = Duration::from_millis(100);

/// The longest time between two turns of a service at Consul.
const ROUND: Duration = Duration::from_secs(10);

/// Characters that need no escape in a path or a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Escapes a text for a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// The shared part of all requests to one Consul or Nomad: the client, and its connections.
pub(crate) struct Agent {
    http: Http,
    /// The limit of concurrent requests to Consul. A connection is opened only if none is idle, and an extra one is
    /// left only if a request got another one meanwhile: so there are at most twice as many.
    turns: Semaphore,
    most: u32,
    /// The number of requesters.
    askers: AtomicU32,
}

impl Agent {
    pub(crate) fn new(timeout: ConsulTimeout, most: u32, env: &Env) -> Arc<Agent> {
        let connect = Duration::from_millis(timeout.connect.into());
        Agent::over(Http::new(connect, Trust::System, env), most)
    }

    /// Returns the shared part over this client.
    pub(crate) fn over(http: Http, most: u32) -> Arc<Agent> {
        Arc::new(Agent { http, turns: Semaphore::new(most as usize), most, askers: AtomicU32::new(0) })
    }

    /// Returns how long a request may wait at Consul, up to `whole`: less if there are more requesters than turns, so
    /// that each has its turn within [`ROUND`].
    fn wait(&self, whole: Duration) -> Duration {
        let askers = self.askers.load(Ordering::Relaxed).max(1);
        if askers <= self.most { whole } else { whole.min(ROUND * self.most / askers) }
    }
}

/// The names of blocking queries: Nomad took them over from Consul.
#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    /// The field of requests with the token.
    pub(crate) token: HeaderName,
    /// The field of responses with the index.
    pub(crate) index: HeaderName,
}

/// The settings of blocking queries.
pub(crate) struct BlockingSettings<'s> {
    pub(crate) servers: &'s [RegistryAddress],
    pub(crate) token: &'s Confidential,
    pub(crate) timeout: ConsulTimeout,
    /// The pause in seconds if requests do not wait.
    pub(crate) interval: u32,
    /// Requests wait for a change.
    pub(crate) waits: bool,
    pub(crate) dialect: Dialect,
}

/// Blocking queries.
pub(crate) struct Blocking {
    members: Members,
    agent: Arc<Agent>,
    token: Confidential,
    dialect: Dialect,
    timeout: ConsulTimeout,
    /// The pause if requests do not wait at Consul.
    interval: Duration,
    waits: bool,
    /// The index of the last response; 0 if there is no usable one.
    index: u64,
    has_answer: bool,
}

impl Blocking {
    pub(crate) fn new(agent: Arc<Agent>, settings: &ConsulAgents) -> Blocking {
        let dialect = Dialect {
            token: HeaderName::from_static("x-consul-token"),
            index: HeaderName::from_static("x-consul-index"),
        };
        Blocking::of(
            agent,
            BlockingSettings {
                servers: &settings.servers,
                token: &settings.token,
                timeout: settings.timeout,
                interval: settings.fetch_interval,
                waits: settings.keepalive,
                dialect,
            },
        )
    }

    pub(crate) fn of(agent: Arc<Agent>, settings: BlockingSettings<'_>) -> Blocking {
        agent.askers.fetch_add(1, Ordering::Relaxed);
        Blocking {
            members: Members::new(settings.servers),
            agent,
            token: settings.token.clone(),
            dialect: settings.dialect,
            timeout: settings.timeout,
            interval: Duration::from_secs(settings.interval.into()),
            waits: settings.waits,
            index: 0,
            has_answer: false,
        }
    }

    /// Returns the next response that may have changes. `target` has a query.
    pub(crate) async fn next(&mut self, target: &str) -> Result<RegistryResponse, Trouble> {
        loop {
            if let Some(answer) = self.ask_once(target).await? {
                return Ok(answer);
            }
        }
    }

    /// Sends one request when it is due; returns None if Consul reports no change.
    pub(crate) async fn ask_once(&mut self, target: &str) -> Result<Option<RegistryResponse>, Trouble> {
        if self.has_answer {
            let pause = if self.index == 0 { self.interval } else { PACE };
            tokio::time::sleep(pause).await;
        }
        let before = self.index;
        match self.ask_members(target).await {
            Ok(answer) => {
                let is_news = !self.has_answer || self.index != before || self.index == 0;
                self.has_answer = true;
                if !is_news {
                    self.agent.http.tally().succeeded();
                }
                Ok(is_news.then_some(answer))
            }
            Err(trouble) => {
                (self.index, self.has_answer) = (0, false);
                Err(trouble)
            }
        }
    }

    /// Tries the members one after the other until one responds.
    async fn ask_members(&mut self, target: &str) -> Result<RegistryResponse, Trouble> {
        let mut tries = self.members.len();
        loop {
            let failed = match self.ask(target).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            tries -= 1;
            self.members.turn();
            // Another member may be at another index.
            self.index = 0;
            if tries == 0 {
                return Err(failed);
            }
        }
    }

    async fn ask(&mut self, target: &str) -> Result<RegistryResponse, Trouble> {
        let ConsulTimeout { connect, read, wait } = self.timeout;
        let mut target = target.to_owned();
        let mut within = Duration::from_millis(u64::from(connect) + u64::from(read));
        let closed = |_| Trouble("the queue of requests to the registry is closed".to_owned());
        let _turn = self.agent.turns.acquire().await.map_err(closed)?;
        if self.index > 0 {
            let wait = self.agent.wait(Duration::from_secs(wait.into()));
            target = format!("{target}&index={}&wait={}", self.index, shown(wait));
            // Consul adds up to a sixteenth, so that not all come back at once.
            within += wait.mul_f64(17.0 / 16.0);
        }
        let question = RegistryRequest::get(&target, within);
        let question = question.secret(self.dialect.token.clone(), self.token.reveal())?;
        let address = self.members.current();
        let answer = self.agent.http.ask(address, question).await?;
        // Missing keys are a valid response, and can be waited for.
        if answer.status != 200 && answer.status != 404 {
            return Err(Trouble(format!("{} responded with status {}", address.base(), answer.status)));
        }
        let index =
            answer.headers.get(&self.dialect.index).and_then(|index| index.to_str().ok()?.parse().ok());
        let index: u64 = index.unwrap_or(0);
        self.index = if !self.waits || index < self.index { 0 } else { index };
        Ok(answer)
    }

    /// Parses the response with `read`. After an invalid response, the next request does not wait.
    pub(crate) async fn read<T>(
        &mut self,
        answer: RegistryResponse,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Trouble> {
        let address = self.members.current();
        let unusable = || Trouble(format!("{} sent an unexpected response", address.base()));
        let found = answer.json(address).await.and_then(|value| read(&value).ok_or_else(unusable));
        if found.is_err() {
            (self.index, self.has_answer) = (0, false);
        }
        found
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.agent.askers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Formats a time for Consul.
fn shown(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

/// The nodes of one service.
pub(crate) struct ConsulService {
    blocking: Blocking,
    service: Arc<str>,
    target: String,
    weight: u32,
    sort: SortType,
    most: u32,
}

/// Returns the path and query for a service.
fn target(service: &str, args: Option<&DiscoveryArgs>) -> String {
    let mut target = format!("/v1/health/service/{}?passing=true", encoded(service));
    if let Some(datacenter) = args.and_then(|args| args.datacenter.as_deref()) {
        target.push_str(&format!("&dc={}", encoded(datacenter)));
    }
    for tag in args.map_or(&[][..], |args| &args.tags) {
        target.push_str(&format!("&tag={}", encoded(tag)));
    }
    target
}

impl ConsulService {
    pub(crate) fn new(
        agent: Arc<Agent>,
        settings: &Consul,
        service: &str,
        args: Option<&DiscoveryArgs>,
        most: u32,
    ) -> ConsulService {
        ConsulService {
            blocking: Blocking::new(agent, &settings.agents),
            service: service.into(),
            target: target(service, args),
            weight: settings.agents.weight,
            sort: settings.sort_type,
            most,
        }
    }

    /// Returns the name that identifies the topic of a service.
    pub(crate) fn name(service: &str, args: Option<&DiscoveryArgs>) -> String {
        match target(service, args).split_once("?passing=true&") {
            Some((_, further)) => format!("consul {service} {further}"),
            None => format!("consul {service}"),
        }
    }
}

impl Source for ConsulService {
    async fn next(&mut self) -> Result<Listing, Trouble> {
        let answer = self.blocking.next(&self.target).await?;
        let nodes = self.blocking.read(answer, |value| nodes(value, self.weight)).await?;
        let nodes = node::list(&self.service, sorted(nodes, self.sort), self.most);
        Ok(Listing::from([(self.service.clone(), nodes)]))
    }
}

/// Returns the nodes in a response of `/v1/health/service`; None if it is invalid.
fn nodes(answer: &Value, weight: u32) -> Option<Vec<Node>> {
    let entries = answer.as_array()?;
    let mut nodes = Vec::with_capacity(entries.len());
    let mut left_out = LeftOut::default();
    for entry in entries {
        let Some(service) = entry.get("Service").filter(|service| service.is_object()) else {
            left_out.note_malformed(entry);
            continue;
        };
        let text = |value: &Value, name: &str| {
            value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        // A service without its own address uses its machine's.
        let host =
            text(service, "Address").or_else(|| text(entry.get("Node")?, "Address")).unwrap_or_default();
        let port = node::port(service.get("Port")).unwrap_or(PORT);
        match node::node(&host, Some(port), weight) {
            Some(node) => nodes.push(Node { metadata: node::metadata(service.get("Meta")), ..node }),
            None => left_out.note(&host),
        }
    }
    left_out.tell(Registry::Consul);
    left_out.admits(nodes.len()).then_some(nodes)
}

fn sorted(mut nodes: Vec<Node>, sort: SortType) -> Vec<Node> {
    match sort {
        SortType::Origin => {}
        SortType::HostSort => nodes.sort_by(|a, b| a.host.cmp(&b.host)),
        SortType::PortSort => nodes.sort_by_key(|node| node.port),
        SortType::CombineSort => nodes.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port))),
    }
    nodes
}

#[cfg(test)]
mod tests;
