//! Messages to the partitions of a topic.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sigma_net::Stream;
use tokio::time::Instant;

use super::super::server::{Host, Place, Security, TcpServer};
use super::sasl::Sasl;
use super::wire::{self, Answer, Topic};

/// Bytes of an answer of a broker: the partitions of a topic, 30 bytes each, are the most.
const LONGEST_ANSWER: usize = 4 << 20;

/// The times before further attempts at a message. A topic that is made by being asked for takes a moment, and
/// so does another leader.
const PAUSES_MS: [u64; 4] = [100, 200, 400, 800];

/// Connections that are kept to each broker.
const KEPT: usize = 4;

/// A broker as it was configured.
#[derive(Debug, Clone)]
pub(in crate::log) struct Broker {
    pub(in crate::log) host: Host,
    pub(in crate::log) port: u16,
    pub(in crate::log) sasl: Option<Arc<Sasl>>,
}

/// What a producer is made of.
pub(in crate::log) struct Settings {
    pub(in crate::log) plugin: &'static str,
    pub(in crate::log) brokers: Vec<Broker>,
    pub(in crate::log) security: Security,
    pub(in crate::log) topic: String,
    pub(in crate::log) key: Option<String>,
    pub(in crate::log) acks: i16,
    pub(in crate::log) timeout: Duration,
    /// How long the partitions are believed to be where they were.
    pub(in crate::log) refresh: Duration,
}

/// A producer of one topic.
pub(in crate::log) struct Producer {
    settings: Settings,
    /// By host and port; a broker that says that it is elsewhere has another one.
    servers: Mutex<HashMap<(String, u16), Arc<Peer>>>,
    known: Mutex<Known>,
}

/// Where the topic's partitions are.
#[derive(Default)]
struct Known {
    topic: Option<(Instant, Arc<Topic>)>,
    /// The configured broker that is asked first.
    first: usize,
    /// The partition that is next.
    turn: usize,
}

/// A broker, as it is connected to.
struct Peer {
    server: TcpServer,
    sasl: Option<Arc<Sasl>>,
}

/// Why messages were not taken.
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

impl Producer {
    pub(in crate::log) fn new(settings: Settings) -> Producer {
        if settings.security == Security::Cleartext {
            for Broker { host, port, .. } in &settings.brokers {
                tracing::warn!("{}: entries are sent to {host}:{port} in the clear", settings.plugin);
            }
        }
        Producer { settings, servers: Mutex::default(), known: Mutex::default() }
    }

    /// Sends messages, and waits until brokers have them.
    ///
    /// # Errors
    /// Returns an error, and how many were taken before, if there is a message that none takes.
    pub(in crate::log) async fn send(&self, values: &[&[u8]]) -> Result<(), (usize, String)> {
        let mut left: BTreeMap<usize, Vec<&[u8]>> = BTreeMap::new();
        let told = self.in_words();
        let partitions = self.partitions().await.map_err(|reason| (0, told(&reason)))?;
        for value in values {
            left.entry(self.partition(partitions)).or_default().push(value);
        }
        let mut taken = 0;
        for (at, values) in left {
            self.append(at, &values).await.map_err(|reason| (taken, told(&reason)))?;
            taken += values.len();
        }
        Ok(())
    }

    /// A reason in the words of the error log: with the brokers, and without what is secret about them.
    fn in_words(&self) -> impl Fn(&str) -> String + use<> {
        let brokers = self.settings.brokers.iter();
        let brokers: Vec<String> =
            brokers.map(|one| format!(r#"{{"host":"{}","port":{}}}"#, one.host, one.port)).collect();
        let brokers = brokers.join(",");
        move |reason| format!("failed to send data to Kafka topic: {reason}, brokers: [{brokers}]")
    }

    /// The partition of the next message, of so many: by the key, or in turn.
    fn partition(&self, count: usize) -> usize {
        match &self.settings.key {
            Some(key) => crc32fast::hash(key.as_bytes()) as usize % count,
            None => {
                let mut known = lock(&self.known);
                known.turn = (known.turn + 1) % count;
                known.turn
            }
        }
    }

    /// Waits before another attempt.
    ///
    /// # Errors
    /// Returns the reason of the failure if none may succeed.
    async fn pause(&self, failure: Failure, pauses: &mut std::slice::Iter<'_, u64>) -> Result<(), String> {
        match pauses.next().filter(|_| failure.may_pass) {
            None => Err(failure.reason),
            Some(pause) => {
                // It may have moved.
                lock(&self.known).topic = None;
                tokio::time::sleep(Duration::from_millis(*pause)).await;
                Ok(())
            }
        }
    }

    /// How many partitions there are.
    async fn partitions(&self) -> Result<usize, String> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            match self.topic().await {
                Ok(topic) => return Ok(topic.partitions.len()),
                Err(failure) => self.pause(failure, &mut pauses).await?,
            }
        }
    }

    /// Appends messages to the partition that is the `at`-th now.
    async fn append(&self, at: usize, values: &[&[u8]]) -> Result<(), String> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            match self.append_once(at, values).await {
                Ok(()) => return Ok(()),
                Err(failure) => self.pause(failure, &mut pauses).await?,
            }
        }
    }

    async fn append_once(&self, at: usize, values: &[&[u8]]) -> Result<(), Failure> {
        let topic = self.topic().await?;
        let (partition, leader) = topic.partitions[at % topic.partitions.len()];
        let leader = topic.brokers.iter().find(|(number, ..)| *number == leader);
        let (_, host, port) = leader.ok_or_else(|| format!("partition {partition} has no leader"))?;
        let peer = self.peer(host, *port)?;
        let Settings { topic, key, acks, timeout, .. } = &self.settings;
        let records = wire::records(key.as_deref().map(str::as_bytes), values, unix_ms());
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let question = wire::produce((topic, partition), *acks, timeout_ms, &records);
        if *acks == NO_ACKS {
            return peer.say(&question).await;
        }
        let answer = peer.ask(&question).await?;
        let code = Answer::new(&answer)?.outcome()?;
        wire::failure(code).map_err(|reason| Failure { reason, may_pass: wire::may_pass(code) })
    }

    /// Where the topic is: as it was said lately, or as a broker says now.
    async fn topic(&self) -> Result<Arc<Topic>, Failure> {
        let first = {
            let known = lock(&self.known);
            match &known.topic {
                Some((since, topic)) if since.elapsed() < self.settings.refresh => {
                    return Ok(Arc::clone(topic));
                }
                _ => known.first,
            }
        };
        let brokers = &self.settings.brokers;
        let mut last = Failure::from("there is no broker".to_owned());
        for at in (0..brokers.len()).map(|next| (first + next) % brokers.len()) {
            match self.ask_for_topic(&brokers[at]).await {
                Ok(topic) => {
                    let topic = Arc::new(topic);
                    let mut known = lock(&self.known);
                    (known.topic, known.first) = (Some((Instant::now(), Arc::clone(&topic))), at);
                    return Ok(topic);
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn ask_for_topic(&self, broker: &Broker) -> Result<Topic, Failure> {
        let peer = self.peer_at(&broker.host, broker.port);
        let answer = peer.ask(&wire::metadata(&self.settings.topic)).await?;
        Ok(Answer::new(&answer)?.partitions()?)
    }

    /// The broker at a place that another one has told.
    fn peer(&self, host: &str, port: i32) -> Result<Arc<Peer>, String> {
        let host = Host::try_from(host.to_owned())
            .map_err(|_| format!("a broker is told to be at `{}`", host.escape_debug()))?;
        let port = u16::try_from(port).map_err(|_| format!("a broker is told to be at port {port}"))?;
        Ok(self.peer_at(&host, port))
    }

    fn peer_at(&self, host: &Host, port: u16) -> Arc<Peer> {
        let Settings { plugin, brokers, security, timeout, .. } = &self.settings;
        let mut servers = lock(&self.servers);
        if servers.len() > MOST_BROKERS {
            // Brokers come and go; their connections close with the last batch that has them.
            servers.clear();
        }
        let peer = servers.entry((host.to_string(), port)).or_insert_with(|| {
            let place = Place { plugin, host: host.clone(), port, timeout: *timeout };
            // A broker that is not configured is of the same cluster as those that are.
            let configured = brokers.iter().find(|known| known.host == *host && known.port == port);
            let sasl = configured.or(brokers.first()).and_then(|known| known.sasl.clone());
            Arc::new(Peer { server: TcpServer::quiet(place, *security).keeping(KEPT), sasl })
        });
        Arc::clone(peer)
    }
}

/// Brokers whose connections are kept.
const MOST_BROKERS: usize = 1000;

/// No broker says that it has a message.
const NO_ACKS: i16 = 0;

impl Peer {
    /// A connection that is logged in.
    async fn connection(&self) -> Result<Stream, Failure> {
        if let Some(stream) = self.server.kept() {
            return Ok(stream);
        }
        let mut stream = self.server.connect().await?;
        self.log_in(&mut stream).await.map_err(|reason| Failure {
            reason: format!("failed to log in: {reason}"),
            // Who tries a wrong password again and again is locked out.
            may_pass: false,
        })?;
        Ok(stream)
    }

    /// Something that has no answer.
    async fn say(&self, message: &[u8]) -> Result<(), Failure> {
        let mut stream = self.connection().await?;
        let length = u32::try_from(message.len()).map_err(|_| "the message is too long".to_owned())?;
        self.server.write(&mut stream, &[&length.to_be_bytes(), message].concat()).await?;
        self.server.keep(stream);
        Ok(())
    }

    /// A question and its answer.
    async fn ask(&self, question: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut stream = self.connection().await?;
        let answer = self.server.ask(&mut stream, question, LONGEST_ANSWER).await?;
        self.server.keep(stream);
        Ok(answer)
    }

    async fn log_in(&self, stream: &mut Stream) -> Result<(), String> {
        let Some(sasl) = &self.sasl else { return Ok(()) };
        let asked = self.server.ask(stream, &wire::handshake(sasl.mechanism.name()), LONGEST_ANSWER).await?;
        Answer::new(&asked)?.agreed()?;
        let Some(scram) = sasl.scram()? else {
            self.tell(stream, &sasl.plain()).await?;
            return Ok(());
        };
        let challenge = self.tell(stream, &scram.first()).await?;
        let proof = scram.prove(&challenge)?;
        proof.verify(&self.tell(stream, &proof.message).await?)
    }

    /// A message of the mechanism, and the broker's.
    async fn tell(&self, stream: &mut Stream, message: &[u8]) -> Result<Vec<u8>, String> {
        let answer = self.server.ask(stream, &wire::authenticate(message), LONGEST_ANSWER).await?;
        Answer::new(&answer)?.authenticated().map(<[u8]>::to_vec)
    }
}

fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in it is whole after each line that writes it.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
