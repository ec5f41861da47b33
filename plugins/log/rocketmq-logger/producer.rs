//! Messages to the queues of a topic.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::NAME;
use super::address::Address;
use super::wire::{self, Envelope, Login, RocketmqResponse, Route};
use sigma_plugin_kit::cleartext::is_remote;
use sigma_plugin_kit::server::{Security, ServerLocation, TcpServer};

/// Bytes of a response: the brokers of a topic, some 200 bytes each, are the most.
const LONGEST_ANSWER: usize = 4 << 20;

/// The times before further attempts at a message, each at the next queue; as many as clients of the project make.
const PAUSES_MS: [u64; 2] = [100, 400];

/// How long queues are believed to be where they were (the clients' default).
const REFRESH: Duration = Duration::from_secs(30);

/// Connections that are kept to each server.
const KEPT: usize = 4;

/// For how long. Servers close connections that are idle for two minutes.
const IDLE: Duration = Duration::from_secs(60);

/// Brokers whose connections are kept.
const MOST_BROKERS: usize = 1000;

/// The group that the gateway's producers are of, as APISIX's are.
const GROUP: &str = "apisixLogProducer";

/// The settings of a producer.
pub(super) struct Settings {
    pub(super) nameservers: Vec<Address>,
    pub(super) security: Security,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) tag: Option<String>,
    pub(super) login: Option<Login>,
    pub(super) timeout: Duration,
}

/// A producer of one topic.
pub(super) struct Producer {
    settings: Settings,
    servers: Mutex<HashMap<Address, Arc<TcpServer>>>,
    known: Mutex<TopicQueues>,
}

/// Where the topic's queues are.
#[derive(Default)]
struct TopicQueues {
    route: Option<(Instant, Arc<Route>)>,
    /// The name server that is queried first.
    first: usize,
    /// The queue that is next.
    turn: u32,
}

/// Why a message was not taken.
struct Failure {
    reason: String,
    /// Another attempt may succeed.
    may_pass: bool,
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure { reason, may_pass: true }
    }
}

impl From<wire::Refused> for Failure {
    fn from(refused: wire::Refused) -> Failure {
        Failure { may_pass: refused.may_pass(), reason: refused.reason }
    }
}

impl Producer {
    pub(super) fn new(settings: Settings) -> Producer {
        // The brokers are known later; with a local name server they are local too.
        let is_exposed = settings.nameservers.iter().any(|server| is_remote(&server.host.to_string()));
        if settings.security == Security::Cleartext && is_exposed {
            tracing::warn!("{NAME}: entries are sent to the brokers of `{}` in cleartext", settings.topic);
        }
        Producer { settings, servers: Mutex::default(), known: Mutex::default() }
    }

    /// Sends a message, and waits until a broker has it.
    ///
    /// # Errors
    /// Returns an error, in the words of the error log, if none takes it.
    pub(super) async fn send(&self, value: &[u8]) -> Result<(), String> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            let Err(failure) = self.send_once(value).await else { return Ok(()) };
            let Some(pause) = pauses.next().filter(|_| failure.may_pass) else {
                return Err(self.in_words(&failure.reason));
            };
            // The queues may have moved.
            lock(&self.known).route = None;
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        }
    }

    fn in_words(&self, reason: &str) -> String {
        let servers: Vec<String> = self.settings.nameservers.iter().map(Address::to_string).collect();
        let servers = serde_json::Value::from(servers);
        format!("failed to send data to rocketmq topic: {reason}, nameserver_list: {servers}")
    }

    async fn send_once(&self, value: &[u8]) -> Result<(), Failure> {
        let route = self.route().await?;
        let turn = {
            let mut known = lock(&self.known);
            known.turn = known.turn.wrapping_add(1);
            known.turn
        };
        let (address, queue) = route.queue(turn);
        let broker = Address::try_from(address.to_owned())
            .map_err(|_| format!("the address of a broker is invalid: `{}`", address.escape_debug()))?;
        let Settings { topic, key, tag, login, .. } = &self.settings;
        let envelope = Envelope { group: GROUP, topic, key: key.as_deref(), tag: tag.as_deref() };
        let question = wire::send(&envelope, queue, unix_ms(), value, login.as_ref());
        let answer = self.ask(&broker, &question).await?;
        Ok(RocketmqResponse::new(&answer)?.taken()?)
    }

    /// Where the queues are: as it was said lately, or as a name server says now.
    async fn route(&self) -> Result<Arc<Route>, Failure> {
        let first = {
            let known = lock(&self.known);
            match &known.route {
                Some((since, route)) if since.elapsed() < REFRESH => return Ok(Arc::clone(route)),
                _ => known.first,
            }
        };
        let servers = &self.settings.nameservers;
        let mut last = Failure::from("no name server is configured".to_owned());
        for at in (0..servers.len()).map(|next| (first + next) % servers.len()) {
            match self.ask_for_route(&servers[at]).await {
                Ok(route) => {
                    let route = Arc::new(route);
                    let mut known = lock(&self.known);
                    (known.route, known.first) = (Some((Instant::now(), Arc::clone(&route))), at);
                    return Ok(route);
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn ask_for_route(&self, server: &Address) -> Result<Route, Failure> {
        let Settings { topic, login, .. } = &self.settings;
        let answer = self.ask(server, &wire::route(topic, login.as_ref())).await?;
        let unknown = match RocketmqResponse::new(&answer)?.route() {
            Ok(route) => return Ok(route?),
            Err(refused) if refused.is_unknown_topic() => refused,
            Err(refused) => return Err(refused.into()),
        };
        // Brokers that make topics say so by having this one, and make it when a message comes.
        let answer = self.ask(server, &wire::route(wire::TEMPLATE_TOPIC, login.as_ref())).await?;
        match RocketmqResponse::new(&answer)?.route() {
            Ok(route) => Ok(route?.into_template()),
            Err(_) => Err(unknown.into()),
        }
    }

    /// A question to a server, and its response.
    async fn ask(&self, address: &Address, question: &[u8]) -> Result<Vec<u8>, String> {
        let server = self.server(address);
        let mut stream = match server.kept() {
            Some(stream) => stream,
            None => server.connect().await?,
        };
        let answer = server.ask(&mut stream, question, LONGEST_ANSWER).await?;
        server.keep(stream);
        Ok(answer)
    }

    fn server(&self, address: &Address) -> Arc<TcpServer> {
        let Settings { security, timeout, .. } = &self.settings;
        let mut servers = lock(&self.servers);
        if servers.len() > MOST_BROKERS {
            // Brokers come and go; their connections close with the last message that has them.
            servers.clear();
        }
        let server = servers.entry(address.clone()).or_insert_with(|| {
            let Address { host, port } = address.clone();
            let place = ServerLocation { plugin: NAME, host, port, timeout: *timeout };
            Arc::new(TcpServer::quiet(place, *security).keeping_for(KEPT, IDLE))
        });
        Arc::clone(server)
    }
}

fn unix_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Its content is consistent after each line that writes it.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
