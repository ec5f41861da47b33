//! `kafka-logger`: entries as messages of a Kafka topic.

mod queue;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{Build, Configuration, Descriptor};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::kafka::{BrokerConfig, Producer, Settings, TlsConfig, check, warnings_of};
use crate::shared::message::{self, Messages, MetaFormat};
use queue::{Bounds, Message, Queue};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Refusal, Sending};
use sigma_plugin_kit::kafka::cluster::Broker;
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger};
use sigma_plugin_kit::server::Host;

const NAME: &str = "kafka-logger";

/// `kafka-logger`.
pub(crate) static KAFKA_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 403,
    example: include_str!("example.md"),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Publishes log entries to a topic of Kafka.
///
/// Each batch is one message, a JSON array, or one object with `batch_max_size: 1`. Messages with a `key` go to the
/// partition of its CRC-32, others to the partitions in turn. It supports brokers from 0.11 on and sends to the
/// partition's leader. Missing topics are requested, and created if the brokers do so.
///
/// Requests never wait for it. With `producer_type: sync` a batch counts as sent when a broker has it; a failed one
/// is sent again `max_retry_count` times. With `async` messages are collected; after four more attempts a failed one
/// is dropped and counted. Entries beyond `max_pending_entries` of the plugin metadata, `producer_max_buffering` or
/// 64 MiB are dropped. When the gateway stops, it sends the rest of the buffer once.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("kafka logger"), transform = either_brokers)]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Some brokers of the cluster; they name the others.
    #[serde(default)]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    brokers: Option<Vec<BrokerConfig>>,
    /// Brokers in the former form: hosts with their ports.
    #[schemars(with = "Option<BrokerList>")]
    broker_list: Option<BTreeMap<Host, u16>>,
    /// The topic.
    kafka_topic: String,
    /// Key of the messages, which also selects the partition.
    key: Option<String>,
    /// Whether a batch counts as sent when a broker has it (`sync`), or when it is in the send buffer (`async`).
    #[schemars(extend("default" = "async"))]
    producer_type: ProducerType,
    /// Required acknowledgements: the leader of the partition (1), or all in-sync replicas (-1).
    #[schemars(extend("default" = 1, "enum" = [1, -1]))]
    required_acks: i16,
    /// Timeout in seconds, for the connection to a broker and for each response.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    /// The message: a JSON entry, or the head of the request as text (`origin`), followed by the body with
    /// `include_req_body`.
    #[schemars(extend("default" = "default"))]
    meta_format: MetaFormat,
    /// Encrypts connections with TLS.
    tls: Option<TlsConfig>,
    /// Without effect: each configuration has its own producer.
    #[serde(rename = "cluster_name")]
    #[schemars(range(min = 1), extend("default" = 1))]
    _cluster_name: u64,
    /// With `async`: maximum messages that are sent together.
    #[schemars(range(min = 1), extend("default" = 200))]
    producer_batch_num: usize,
    /// With `async`: maximum bytes of messages that are sent together. A single message may be larger.
    #[schemars(extend("default" = 1_048_576))]
    producer_batch_size: usize,
    /// With `async`: maximum messages in the buffer; more are refused.
    #[schemars(range(min = 1), extend("default" = 50_000))]
    producer_max_buffering: usize,
    /// With `async`: maximum seconds that a message waits for others.
    #[schemars(range(min = 1), extend("default" = 1))]
    producer_time_linger: u64,
    /// Seconds between two fetches of the partition metadata.
    #[schemars(range(min = 1), extend("default" = 30))]
    meta_refresh_interval: u64,
    /// Without effect: messages always have a timestamp, as with `2`.
    #[serde(rename = "api_version")]
    #[schemars(extend("default" = 1, "enum" = [0, 1, 2]))]
    _api_version: u8,
    #[serde(flatten)]
    batch: BatchSettings,
}

/// Hosts and their ports, in the schema.
struct BrokerList;

impl JsonSchema for BrokerList {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "BrokerList".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let port = json!({"type": "integer", "minimum": 1, "maximum": 65_535});
        json_schema!({"type": "object", "minProperties": 1, "patternProperties": {".*": port}})
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ProducerType {
    Async,
    Sync,
}

/// Exactly one of the two lists of brokers.
fn either_brokers(schema: &mut schemars::Schema) {
    schema.insert(
        "oneOf".to_owned(),
        serde_json::json!([
            { "required": ["broker_list", "kafka_topic"] },
            { "required": ["brokers", "kafka_topic"] },
        ]),
    );
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        check(&self.kafka_topic, self.brokers.as_deref().unwrap_or_default())
    }
}

fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    let mut found = warnings_of(conf, &["cluster_name", "api_version"]);
    found.extend(message::unheeded_format(conf));
    found
}

fn logger(build: &Build<'_>) -> Result<Logger<Messages>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || Destiny::new(&config, build));
    let single = config.batch.is_single();
    Ok(config.meta_format.logger(config.entry, metadata.formats, processor, single))
}

/// Where batches go.
struct Destiny {
    /// A batch is one entry, and no list.
    single: bool,
    way: DeliveryMode,
}

enum DeliveryMode {
    /// Batches wait for their brokers.
    Sync(Box<Producer>),
    /// Messages wait, and no batch does.
    Async(Arc<Queue>),
}

impl Destiny {
    fn new(config: &Config, build: &Build<'_>) -> Destiny {
        let listed = config.broker_list.iter().flatten();
        let listed = listed.map(|(host, port)| Broker { host: host.clone(), port: *port, sasl: None });
        let named = config.brokers.iter().flatten().map(Broker::from);
        let producer = Producer::new(Settings {
            plugin: NAME,
            brokers: named.chain(listed).collect(),
            security: TlsConfig::security(config.tls.as_ref()),
            topic: config.kafka_topic.clone(),
            key: config.key.clone(),
            acks: config.required_acks,
            timeout: batch::seconds(config.timeout),
            refresh: batch::seconds(config.meta_refresh_interval),
        });
        let bounds = Bounds {
            group: config.producer_batch_num,
            group_bytes: config.producer_batch_size,
            waiting: config.producer_max_buffering,
            linger: batch::seconds(config.producer_time_linger).max(Duration::from_secs(1)),
        };
        let way = match config.producer_type {
            ProducerType::Sync => DeliveryMode::Sync(Box::new(producer)),
            ProducerType::Async => DeliveryMode::Async(Queue::new(producer, bounds, build.node)),
        };
        Destiny { single: config.batch.is_single(), way }
    }
}

impl Destination for Destiny {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let value = log_entry::json_list(entries, self.single);
            match &self.way {
                DeliveryMode::Sync(producer) => {
                    producer.send(&[&value]).await.map_err(|(_, reason)| Refusal::from(reason))
                }
                DeliveryMode::Async(queue) => {
                    let message = Message { value, entries: entries.len() as u64 };
                    queue.push(message).map_err(Refusal::from)
                }
            }
        })
    }
}
