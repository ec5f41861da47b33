//! The brokers of a cluster: their connections, and the leader of a partition.

use std::collections::HashMap;
use std::slice::Iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sigma_net::Stream;
use sigma_net::tls::ClientTls;
use tokio::time::Instant;

use super::sasl::Sasl;
use super::wire::{self, Absent, BrokerResponse, Topic};
use crate::server::{Host, Security, ServerLocation, TcpServer};

/// Bytes of most responses: the partitions of a topic, 30 bytes each, are the most.
pub const LONGEST_ANSWER: usize = 4 << 20;

/// Connections that are kept to each broker.
const KEPT: usize = 4;

/// Brokers whose connections are kept.
const MOST_BROKERS: usize = 1000;

/// Topics whose partitions are known.
const MOST_TOPICS: usize = 1000;

/// A broker as it was configured.
#[derive(Debug, Clone)]
pub struct Broker {
    /// The host name or address.
    pub host: Host,
    /// The TCP port.
    pub port: u16,
    /// The login; None if the broker needs none.
    pub sasl: Option<Arc<Sasl>>,
}

/// The configured facts about a cluster.
pub struct Settings {
    /// The name of the plugin, for log lines.
    pub plugin: &'static str,
    /// The brokers that list the others.
    pub brokers: Vec<Broker>,
    /// The encryption of connections.
    pub security: Security,
    /// The encryption of connections, as far as `security` does not define it.
    pub tls: Option<ClientTls>,
    /// The timeout of each step: connecting, the handshake, a request.
    pub timeout: Duration,
    /// How long the places of partitions are trusted.
    pub refresh: Duration,
    /// The treatment of missing topics.
    pub absent: Absent,
}

/// A cluster.
pub struct Cluster {
    settings: Settings,
    /// By host and port; a broker that has moved has another one.
    servers: Mutex<HashMap<(String, u16), Arc<Peer>>>,
    known: Mutex<PartitionLeaders>,
}

/// The places of partitions.
#[derive(Default)]
struct PartitionLeaders {
    topics: HashMap<Box<str>, (Instant, Arc<Topic>)>,
    /// The configured broker that is queried first.
    first: usize,
}

/// The reason why a request failed.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason, for a log line.
    pub reason: String,
    /// Another attempt may succeed.
    pub may_pass: bool,
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure { reason, may_pass: true }
    }
}

impl Failure {
    /// Returns the failure of an error code.
    pub fn of(code: i16) -> Failure {
        let reason = wire::failure(code).err().unwrap_or_default();
        Failure { reason, may_pass: wire::may_pass(code) }
    }
}

impl Cluster {
    /// Returns a cluster without connections.
    pub fn new(settings: Settings) -> Cluster {
        Cluster { settings, servers: Mutex::default(), known: Mutex::default() }
    }

    /// Returns the configured brokers.
    pub fn brokers(&self) -> &[Broker] {
        &self.settings.brokers
    }

    /// Waits before another attempt for a topic, whose partitions may have moved.
    ///
    /// # Errors
    /// Returns the reason of the failure if no attempt may succeed.
    pub async fn pause(
        &self,
        topic: &str,
        failure: Failure,
        pauses_ms: &mut Iter<'_, u64>,
    ) -> Result<(), String> {
        match pauses_ms.next().filter(|_| failure.may_pass) {
            None => Err(failure.reason),
            Some(pause) => {
                lock(&self.known).topics.remove(topic);
                tokio::time::sleep(Duration::from_millis(*pause)).await;
                Ok(())
            }
        }
    }

    /// Returns the partitions of a topic, at least one: as recently received, or from a broker now.
    pub async fn topic(&self, name: &str) -> Result<Arc<Topic>, Failure> {
        let first = {
            let known = lock(&self.known);
            match known.topics.get(name) {
                Some((since, topic)) if since.elapsed() < self.settings.refresh => {
                    return Ok(Arc::clone(topic));
                }
                _ => known.first,
            }
        };
        let brokers = &self.settings.brokers;
        let mut last = Failure::from("no broker is configured".to_owned());
        for at in (0..brokers.len()).map(|next| (first + next) % brokers.len()) {
            match self.ask_for_topic(&brokers[at], name).await {
                Ok(topic) => {
                    let topic = self.usable(topic)?;
                    let mut known = lock(&self.known);
                    if known.topics.len() >= MOST_TOPICS {
                        known.topics.clear();
                    }
                    known.topics.insert(name.into(), (Instant::now(), Arc::clone(&topic)));
                    known.first = at;
                    return Ok(topic);
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn ask_for_topic(&self, broker: &Broker, name: &str) -> Result<Topic, Failure> {
        let peer = self.peer_at(&broker.host, broker.port);
        let answer = peer.ask(&wire::metadata(name, self.settings.absent), LONGEST_ANSWER).await?;
        Ok(BrokerResponse::new(&answer)?.partitions()?)
    }

    /// Returns a topic if it exists.
    fn usable(&self, topic: Topic) -> Result<Arc<Topic>, Failure> {
        const UNKNOWN: i16 = 3;
        match topic.error {
            0 if topic.partitions.is_empty() => Err("the topic has no partitions".to_owned().into()),
            0 => Ok(Arc::new(topic)),
            // It is not created meanwhile.
            UNKNOWN if self.settings.absent == Absent::Missing => {
                Err(Failure { may_pass: false, ..Failure::of(UNKNOWN) })
            }
            code => Err(Failure::of(code)),
        }
    }

    /// Returns the broker that leads the partition of this number.
    pub fn leader(&self, topic: &Topic, partition: i32) -> Result<Arc<Peer>, Failure> {
        let found = topic.partitions.iter().find(|(number, _)| *number == partition);
        let (_, leader) = found.ok_or_else(|| Failure { may_pass: false, ..Failure::of(3) })?;
        let broker = topic.brokers.iter().find(|(number, ..)| number == leader);
        let (_, host, port) = broker.ok_or_else(|| format!("partition {partition} has no leader"))?;
        Ok(self.peer(host, *port)?)
    }

    /// Returns the broker at an address that another one has sent.
    fn peer(&self, host: &str, port: i32) -> Result<Arc<Peer>, String> {
        let host = Host::try_from(host.to_owned())
            .map_err(|_| format!("the address of a broker is invalid: `{}`", host.escape_debug()))?;
        let port = u16::try_from(port).map_err(|_| format!("the port of a broker is invalid: {port}"))?;
        Ok(self.peer_at(&host, port))
    }

    fn peer_at(&self, host: &Host, port: u16) -> Arc<Peer> {
        let Settings { plugin, brokers, security, tls, timeout, .. } = &self.settings;
        let mut servers = lock(&self.servers);
        if servers.len() > MOST_BROKERS {
            // Brokers come and go; their connections close with the last request that uses them.
            servers.clear();
        }
        let peer = servers.entry((host.to_string(), port)).or_insert_with(|| {
            let place = ServerLocation { plugin, host: host.clone(), port, timeout: *timeout };
            // A broker that is not configured is of the same cluster as those that are.
            let configured = brokers.iter().find(|known| known.host == *host && known.port == port);
            let sasl = configured.or(brokers.first()).and_then(|known| known.sasl.clone());
            let server = TcpServer::quiet(place, *security).keeping(KEPT);
            let server = match tls {
                Some(tls) => server.encrypted_by(tls.clone()),
                None => server,
            };
            Arc::new(Peer { server, sasl })
        });
        Arc::clone(peer)
    }
}

/// A broker, with its connection.
pub struct Peer {
    server: TcpServer,
    sasl: Option<Arc<Sasl>>,
}

impl Peer {
    /// Returns an authenticated connection.
    async fn connection(&self) -> Result<Stream, Failure> {
        if let Some(stream) = self.server.kept() {
            return Ok(stream);
        }
        let mut stream = self.server.connect().await?;
        self.log_in(&mut stream).await.map_err(|reason| Failure {
            reason: format!("failed to log in: {reason}"),
            // Repeated attempts with a wrong password may lock the user out.
            may_pass: false,
        })?;
        Ok(stream)
    }

    /// Sends a message that has no response.
    pub async fn say(&self, message: &[u8]) -> Result<(), Failure> {
        let mut stream = self.connection().await?;
        let length = u32::try_from(message.len()).map_err(|_| "the message is too long".to_owned())?;
        self.server.write(&mut stream, &[&length.to_be_bytes(), message].concat()).await?;
        self.server.keep(stream);
        Ok(())
    }

    /// Sends a request and returns its response, of at most `longest` bytes.
    pub async fn ask(&self, question: &[u8], longest: usize) -> Result<Vec<u8>, Failure> {
        let mut stream = self.connection().await?;
        let answer = self.server.ask(&mut stream, question, longest).await?;
        self.server.keep(stream);
        Ok(answer)
    }

    async fn log_in(&self, stream: &mut Stream) -> Result<(), String> {
        let Some(sasl) = &self.sasl else { return Ok(()) };
        let asked = self.server.ask(stream, &wire::handshake(sasl.mechanism.name()), LONGEST_ANSWER).await?;
        BrokerResponse::new(&asked)?.agreed()?;
        let Some(scram) = sasl.scram()? else {
            self.tell(stream, &sasl.plain()).await?;
            return Ok(());
        };
        let challenge = self.tell(stream, &scram.first()).await?;
        let proof = scram.prove(&challenge)?;
        proof.verify(&self.tell(stream, &proof.message).await?)
    }

    /// Sends a message of the mechanism and returns the broker's.
    async fn tell(&self, stream: &mut Stream, message: &[u8]) -> Result<Vec<u8>, String> {
        let answer = self.server.ask(stream, &wire::authenticate(message), LONGEST_ANSWER).await?;
        BrokerResponse::new(&answer)?.authenticated().map(<[u8]>::to_vec)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // The content is consistent after each line that writes it.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
