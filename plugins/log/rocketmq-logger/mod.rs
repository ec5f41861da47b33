//! `rocketmq-logger`: entries as messages of a topic of Apache RocketMQ.

mod address;
mod producer;
mod wire;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::{Build, Configuration, Descriptor};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::message::{self, Messages, MetaFormat};
use address::Address;
use producer::{Producer, Settings};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Refusal, Sending};
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger};
use sigma_plugin_kit::server::Security;
use wire::Login;

const NAME: &str = "rocketmq-logger";

/// The longest name that a topic has.
const LONGEST_TOPIC: usize = 127;

/// Bytes of keys and tags: brokers take 32 KiB of what goes with a message.
const LONGEST_PROPERTY: usize = 8 << 10;

/// `rocketmq-logger`.
pub(crate) static ROCKETMQ_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 402,
    example: include_str!("example.md"),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Publishes log entries to a topic of Apache RocketMQ.
///
/// Each batch is one message, a JSON array, or one object with `batch_max_size: 1`. Name servers list the brokers
/// with queues of the topic, which are used in turn. Brokers with `autoCreateTopicEnable` create a missing topic.
///
/// Requests never wait for it. A failed batch is sent to two other queues, then again `max_retry_count` times, and
/// then dropped. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB are dropped. When the gateway
/// stops, it sends the rest of the buffer once.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("rocketmq logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Name servers, each `host:port`. If one does not respond, the next one is used.
    #[schemars(with = "Vec<String>", length(min = 1))]
    nameserver_list: Vec<Address>,
    /// The topic.
    topic: String,
    /// Key of the messages, by which they are found.
    key: Option<String>,
    /// Tag of the messages, by which consumers select them.
    tag: Option<String>,
    /// The message: a JSON entry, or the head of the request as text (`origin`), followed by the body with
    /// `include_req_body`.
    #[schemars(extend("default" = "default"))]
    meta_format: MetaFormat,
    /// Timeout in seconds, for the connection to a server and for each response.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    /// Encrypts connections with TLS.
    #[schemars(extend("default" = false))]
    use_tls: bool,
    /// Checks the certificates of servers; APISIX never does.
    #[schemars(extend("default" = false, "own_default" = true))]
    ssl_verify: bool,
    /// Access key that signs requests; empty: no signature.
    #[schemars(extend("default" = ""))]
    access_key: String,
    /// The secret of the access key.
    #[schemars(extend("default" = ""))]
    secret_key: Confidential,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-%|".contains(c);
        let topic = &self.topic;
        if topic.is_empty() || topic.len() > LONGEST_TOPIC || !topic.chars().all(is_part) {
            return Err("topic: a name has at most 127 letters, digits and `_`, `-`, `%`, `|`".to_owned());
        }
        for (name, text) in [("key", &self.key), ("tag", &self.tag)] {
            let text = text.as_deref().unwrap_or_default();
            if text.len() > LONGEST_PROPERTY || text.contains(char::is_control) {
                return Err(format!("{name}: it has at most 8192 bytes, and no control character"));
            }
        }
        match !self.access_key.is_empty() && self.secret_key.reveal().is_empty() {
            true => {
                Err("secret_key: it is empty, but requests with an `access_key` are signed with it"
                    .to_owned())
            }
            false => Ok(()),
        }
    }
}

fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    let is = |field: &str| conf.get(field) == Some(&Value::Bool(true));
    let has = |field: &str| conf.get(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let mut found = Vec::new();
    if is("use_tls") && !is("ssl_verify") {
        let message = "another server can impersonate the servers and get the entries";
        found.push(Problem::new("use_tls", "unverified", message).hint("set `ssl_verify` to true"));
    }
    if !is("use_tls") && is("ssl_verify") {
        let message = "it has no effect: the entries are sent in cleartext";
        found.push(Problem::new("ssl_verify", "without_effect", message).hint("set `use_tls` to true"));
    }
    if has("secret_key") && !has("access_key") {
        let message = "it has no effect without `access_key`";
        found.push(Problem::new("secret_key", "without_effect", message).hint("add the `access_key`"));
    }
    found.extend(message::unheeded_format(conf));
    found
}

fn logger(build: &Build<'_>) -> Result<Logger<Messages>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let single = config.batch.is_single();
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || {
        let login = (!config.access_key.is_empty())
            .then_some(Login { access_key: config.access_key, secret_key: config.secret_key });
        let producer = Producer::new(Settings {
            nameservers: config.nameserver_list,
            security: Security::of(config.use_tls, config.ssl_verify),
            topic: config.topic,
            key: config.key,
            tag: config.tag,
            login,
            timeout: batch::seconds(config.timeout),
        });
        Topic { producer, single }
    });
    Ok(config.meta_format.logger(config.entry, metadata.formats, processor, single))
}

/// Where batches go.
struct Topic {
    producer: Producer,
    /// A batch is one entry, and no list.
    single: bool,
}

impl Destination for Topic {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async {
            let value = log_entry::json_list(entries, self.single);
            self.producer.send(&value).await.map_err(Refusal::from)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refusal;

    fn conf(field: &str, value: Value) -> Value {
        let mut conf = json!({ "nameserver_list": ["127.0.0.1:9876"], "topic": "t" });
        conf[field] = value;
        conf
    }

    #[test]
    fn bad_configurations() {
        let check = |field: &str, value: Value, expected: &str| {
            let refused = refusal(NAME, &conf(field, value));
            assert!(refused.contains(expected), "{field}: {refused}");
        };
        check("nameserver_list", json!([]), "expect array to have at least 1 items");
        check("nameserver_list", json!(["h"]), "`h` is not `host:port`");
        check("topic", json!("a b"), "topic: a name has at most 127 letters");
        check("topic", json!(""), "topic: a name has at most 127 letters");
        check("key", json!("a\u{1}b"), "key: it has at most 8192 bytes, and no control character");
        check("tag", json!("t".repeat(LONGEST_PROPERTY + 1)), "tag: it has at most 8192 bytes");
        check("timeout", json!(0), "expected 0 to be at least 1");
        check("access_key", json!("a"), "secret_key: it is empty");
    }

    #[test]
    fn risky_configurations_have_warnings() {
        let check = |field: &str, value: Value, expected: &[(&str, &str)]| {
            let found = warnings(PluginScope::Http, &conf(field, value));
            let found: Vec<_> = found.iter().map(|problem| (&*problem.pointer, problem.code)).collect();
            assert_eq!(found, expected, "{field}");
        };
        check("timeout", json!(1), &[]);
        check("use_tls", json!(true), &[("use_tls", "unverified")]);
        check("ssl_verify", json!(true), &[("ssl_verify", "without_effect")]);
        check("secret_key", json!("s"), &[("secret_key", "without_effect")]);
    }
}
