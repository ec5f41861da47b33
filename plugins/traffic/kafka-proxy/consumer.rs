//! Requests of a client to brokers: offsets, and messages of a partition. They run on the control thread,
//! next to the traffic.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sigma_net::tls::ClientTls;
use sigma_plugin::Node;
use tokio::sync::Semaphore;

use super::pubsub::Message;
use sigma_plugin_kit::cleartext::is_remote;
use sigma_plugin_kit::kafka::cluster::{Broker, Cluster, Failure, LONGEST_ANSWER, Settings};
use sigma_plugin_kit::kafka::sasl::Sasl;
use sigma_plugin_kit::kafka::wire::{self, Absent, BrokerResponse, FetchBounds, TopicPartition};
use sigma_plugin_kit::kafka::{is_topic, records};
use sigma_plugin_kit::server::{Host, Security};

/// How long partitions are believed to be where they were, unless a broker says otherwise; as APISIX has it.
const REFRESH: Duration = Duration::from_secs(30 * 60);

/// The times before further attempts at a question: another leader takes a moment.
const PAUSES_MS: [u64; 3] = [100, 200, 400];

/// Parameters of a fetch: how long a broker waits for messages, and how many bytes it sends.
const WISH: FetchBounds = FetchBounds { wait_ms: 100, bytes: 1 << 20 };

/// Bytes of a response with messages: one batch comes whole however large it is.
const LONGEST_FETCH: usize = 8 << 20;

/// Bytes of the messages that a fetch gives, and of a batch that was compressed.
const FETCHED_BYTES: usize = 8 << 20;

/// Fetches in a row that found nothing but what brokers and transactions keep for themselves.
const ROUNDS: usize = 16;

/// Questions that the brokers of one upstream are queried at a time; others wait for one to end. It bounds the memory
/// that their responses take.
const AT_A_TIME: usize = 16;

/// All the time that a question may take, with all attempts.
const PATIENCE: Duration = Duration::from_secs(60);

/// The identity of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) brokers: Vec<(Host, u16)>,
    pub(super) tls: Option<ClientTls>,
    pub(super) sasl: Option<Sasl>,
    /// For each step at a broker.
    pub(super) timeout: Duration,
}

impl PartialEq for Target {
    fn eq(&self, other: &Target) -> bool {
        let same_tls = match (&self.tls, &other.tls) {
            (Some(one), Some(other)) => one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        same_tls && (&self.brokers, &self.sasl, self.timeout) == (&other.brokers, &other.sasl, other.timeout)
    }
}

/// The consumers in use on this gateway: sessions with the same target share one, with its connections.
#[derive(Default)]
struct Consumers(Mutex<Vec<(Target, Weak<Consumer>)>>);

/// Asks the brokers of a cluster.
pub(super) struct Consumer {
    cluster: Cluster,
    turns: Semaphore,
}

impl Consumer {
    /// The one of a target.
    pub(super) fn of(target: Target, node: &Node) -> Arc<Consumer> {
        let consumers = node.part(Consumers::default);
        let mut all = lock(&consumers.0);
        all.retain(|(_, consumer)| consumer.strong_count() > 0);
        let known = all.iter().find(|(known, _)| *known == target);
        if let Some(consumer) = known.and_then(|(_, consumer)| consumer.upgrade()) {
            return consumer;
        }
        let consumer = Arc::new(Consumer::new(&target));
        all.push((target, Arc::downgrade(&consumer)));
        consumer
    }

    fn new(target: &Target) -> Consumer {
        let sasl = target.sasl.clone().map(Arc::new);
        let broker =
            |(host, port): &(Host, u16)| Broker { host: host.clone(), port: *port, sasl: sasl.clone() };
        let security = if target.tls.is_some() { Security::Verified } else { Security::Cleartext };
        let is_exposed = target.brokers.iter().any(|(host, _)| is_remote(&host.to_string()));
        if target.tls.is_none() && is_exposed && target.sasl.as_ref().is_some_and(Sasl::is_plain) {
            tracing::warn!("kafka-proxy: a password is sent in cleartext: add `tls` to the upstream");
        }
        let cluster = Cluster::new(Settings {
            plugin: super::NAME,
            brokers: target.brokers.iter().map(broker).collect(),
            security,
            tls: target.tls.clone(),
            timeout: target.timeout,
            refresh: REFRESH,
            absent: Absent::Missing,
        });
        Consumer { cluster, turns: Semaphore::new(AT_A_TIME) }
    }

    /// The first offset at or after a time, in the words of [`wire::list_offsets`].
    ///
    /// # Errors
    /// Returns an error, which is a sentence or a broker's word, if there is no response.
    pub(super) async fn offset(&self, topic: &str, partition: i32, timestamp: i64) -> Result<i64, String> {
        let of = TopicPartition { topic, partition };
        let question = wire::list_offsets(of, timestamp);
        let asked = self.ask(of, &question, LONGEST_ANSWER, code_of_offset);
        let answer = self.in_time(asked).await?;
        BrokerResponse::new(&answer)?.offset()?.map_err(|code| Failure::of(code).reason)
    }

    /// Returns messages of a partition from an offset on; an empty list if it has no newer ones.
    ///
    /// # Errors
    /// Returns an error, which is a sentence or a broker's word, if there is no response.
    pub(super) async fn fetch(
        &self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<Vec<Message>, String> {
        self.in_time(async {
            let mut next = offset;
            for _ in 0..ROUNDS {
                let (messages, reached) = self.fetch_once(topic, partition, next).await?;
                if !messages.is_empty() || reached <= next {
                    return Ok(messages);
                }
                next = reached;
            }
            Ok(Vec::new())
        })
        .await
    }

    async fn fetch_once(
        &self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<(Vec<Message>, i64), String> {
        let from = TopicPartition { topic, partition };
        let question = wire::fetch(from, offset, WISH);
        let answer = self.ask(from, &question, LONGEST_FETCH, code_of_fetch).await?;
        // Decompressing takes its time, and the control thread has others to serve.
        let read = tokio::task::spawn_blocking(move || messages(&answer, offset)).await;
        read.map_err(|_| "the broker's response is malformed".to_owned())?
    }

    /// Asks the leader of a partition, again where that may help. `code` finds the error code in a response.
    async fn ask(
        &self,
        of: TopicPartition<'_>,
        question: &[u8],
        longest: usize,
        code: fn(&[u8]) -> Result<Option<i16>, String>,
    ) -> Result<Vec<u8>, String> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            match self.ask_once(of, question, longest, code).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.cluster.pause(of.topic, failure, &mut pauses).await?,
            }
        }
    }

    async fn ask_once(
        &self,
        of: TopicPartition<'_>,
        question: &[u8],
        longest: usize,
        code: fn(&[u8]) -> Result<Option<i16>, String>,
    ) -> Result<Vec<u8>, Failure> {
        let TopicPartition { topic, partition } = of;
        if !is_topic(topic) {
            const INVALID_TOPIC: i16 = 17;
            return Err(Failure::of(INVALID_TOPIC));
        }
        let known = self.cluster.topic(topic).await?;
        let answer = self.cluster.leader(&known, partition)?.ask(question, longest).await?;
        match code(&answer)? {
            None => Ok(answer),
            Some(code) => Err(Failure::of(code)),
        }
    }

    /// Waits for its turn, and gives up after a while.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let timed = tokio::time::timeout(PATIENCE, async {
            // Never closed.
            let _turn = self.turns.acquire().await;
            work.await
        });
        timed.await.unwrap_or_else(|_| Err("timeout".to_owned()))
    }
}

fn code_of_offset(answer: &[u8]) -> Result<Option<i16>, String> {
    Ok(BrokerResponse::new(answer)?.offset()?.err())
}

fn code_of_fetch(answer: &[u8]) -> Result<Option<i16>, String> {
    Ok(BrokerResponse::new(answer)?.fetched()?.err())
}

/// The messages in the response to a fetch, and the offset behind them.
fn messages(answer: &[u8], offset: i64) -> Result<(Vec<Message>, i64), String> {
    let batches = BrokerResponse::new(answer)?.fetched()?.map_err(|code| Failure::of(code).reason)?;
    let mut messages = Vec::new();
    let own = |part: Option<&[u8]>| part.unwrap_or_default().to_vec();
    let reached = records::read(batches, offset, FETCHED_BYTES, |record| {
        let (key, value) = (own(record.key), own(record.value));
        messages.push(Message { offset: record.offset, timestamp: record.timestamp, key, value });
    })?;
    Ok((messages, reached.next))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Its content is consistent after each line that writes it.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
