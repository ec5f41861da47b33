//! Messages to the partitions of a topic.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sigma_plugin_kit::cleartext::is_remote;
use sigma_plugin_kit::kafka::cluster::{self, Broker, Cluster, Failure, LONGEST_ANSWER};
use sigma_plugin_kit::kafka::records;
use sigma_plugin_kit::kafka::wire::{self, Absent, BrokerResponse, TopicPartition};
use sigma_plugin_kit::server::Security;

/// The times before further attempts at a message. A topic that is made by being requested takes a moment, and so does
/// another leader.
const PAUSES_MS: [u64; 4] = [100, 200, 400, 800];

/// The settings of a producer.
pub(crate) struct Settings {
    pub(crate) plugin: &'static str,
    pub(crate) brokers: Vec<Broker>,
    pub(crate) security: Security,
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    pub(crate) acks: i16,
    pub(crate) timeout: Duration,
    /// How long the partitions are believed to be where they were.
    pub(crate) refresh: Duration,
}

/// A producer of one topic.
pub(crate) struct Producer {
    cluster: Cluster,
    topic: String,
    key: Option<String>,
    acks: i16,
    timeout: Duration,
    /// The partition that is next.
    turn: AtomicUsize,
}

impl Producer {
    pub(crate) fn new(settings: Settings) -> Producer {
        if settings.security == Security::Cleartext {
            let remote = settings.brokers.iter().filter(|broker| is_remote(&broker.host.to_string()));
            for Broker { host, port, .. } in remote {
                tracing::warn!("{}: entries are sent to {host}:{port} in cleartext", settings.plugin);
            }
        }
        let Settings { plugin, brokers, security, topic, key, acks, timeout, refresh } = settings;
        let absent = Absent::Made;
        let settings = cluster::Settings { plugin, brokers, security, tls: None, timeout, refresh, absent };
        Producer { cluster: Cluster::new(settings), topic, key, acks, timeout, turn: AtomicUsize::new(0) }
    }

    /// Sends messages, and waits until brokers have them.
    ///
    /// # Errors
    /// Returns an error, and how many were taken before, if there is a message that none takes.
    pub(crate) async fn send(&self, values: &[&[u8]]) -> Result<(), (usize, String)> {
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

    /// Returns a function that words a reason for the error log: with the brokers, and without their secrets.
    fn in_words(&self) -> impl Fn(&str) -> String + use<> {
        let brokers = self.cluster.brokers().iter();
        let brokers: Vec<String> =
            brokers.map(|one| format!(r#"{{"host":"{}","port":{}}}"#, one.host, one.port)).collect();
        let brokers = brokers.join(",");
        move |reason| format!("failed to send data to Kafka topic: {reason}, brokers: [{brokers}]")
    }

    /// The partition of the next message, of so many: by the key, or in turn.
    fn partition(&self, count: usize) -> usize {
        match &self.key {
            Some(key) => crc32fast::hash(key.as_bytes()) as usize % count,
            None => {
                // Messages are shared out one at a time.
                let turn = (self.turn.load(Ordering::Relaxed) + 1) % count;
                self.turn.store(turn, Ordering::Relaxed);
                turn
            }
        }
    }

    /// How many partitions there are.
    async fn partitions(&self) -> Result<usize, String> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            match self.cluster.topic(&self.topic).await {
                Ok(topic) => return Ok(topic.partitions.len()),
                Err(failure) => self.cluster.pause(&self.topic, failure, &mut pauses).await?,
            }
        }
    }

    /// Appends messages to the partition that is the `at`-th now.
    async fn append(&self, at: usize, values: &[&[u8]]) -> Result<(), String> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            match self.append_once(at, values).await {
                Ok(()) => return Ok(()),
                Err(failure) => self.cluster.pause(&self.topic, failure, &mut pauses).await?,
            }
        }
    }

    async fn append_once(&self, at: usize, values: &[&[u8]]) -> Result<(), Failure> {
        let topic = self.cluster.topic(&self.topic).await?;
        let (partition, _) = topic.partitions[at % topic.partitions.len()];
        let leader = self.cluster.leader(&topic, partition)?;
        let records = records::records(self.key.as_deref().map(str::as_bytes), values, unix_ms());
        let timeout_ms = i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX);
        let to = TopicPartition { topic: &self.topic, partition };
        let question = wire::produce(to, self.acks, timeout_ms, &records);
        if self.acks == NO_ACKS {
            return leader.say(&question).await;
        }
        let answer = leader.ask(&question, LONGEST_ANSWER).await?;
        match BrokerResponse::new(&answer)?.outcome()? {
            0 => Ok(()),
            code => Err(Failure::of(code)),
        }
    }
}

/// No broker says that it has a message.
const NO_ACKS: i16 = 0;

fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
