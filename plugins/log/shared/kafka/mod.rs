//! A topic of Kafka as the destination: its configuration, checks and warnings.

mod producer;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_schema::Problem;

pub(crate) use producer::{Producer, Settings};
use sigma_plugin_kit::cleartext::is_remote;
use sigma_plugin_kit::kafka::cluster::Broker;
use sigma_plugin_kit::kafka::is_topic;
use sigma_plugin_kit::kafka::sasl::{Mechanism, Sasl};
use sigma_plugin_kit::server::{Host, Security};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct BrokerConfig {
    /// Host of the broker, a name or an address.
    host: Host,
    /// Port of the broker.
    #[schemars(range(min = 1))]
    port: u16,
    /// Credentials for this broker and the brokers that it names.
    sasl_config: Option<Sasl>,
}

impl From<&BrokerConfig> for Broker {
    fn from(config: &BrokerConfig) -> Broker {
        let BrokerConfig { host, port, sasl_config } = config;
        Broker { host: host.clone(), port: *port, sasl: sasl_config.clone().map(Arc::new) }
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct TlsConfig {
    /// Checks the certificates of brokers.
    #[schemars(extend("default" = false))]
    verify: bool,
}

impl TlsConfig {
    /// How connections are secured with this.
    pub(crate) fn security(tls: Option<&TlsConfig>) -> Security {
        Security::of(tls.is_some(), tls.is_some_and(|tls| tls.verify))
    }
}

/// Checks what no schema does.
///
/// # Errors
/// Returns an error, which is a sentence, if no topic has such a name, or no broker takes such a login.
pub(crate) fn check(topic: &str, brokers: &[BrokerConfig]) -> Result<(), String> {
    if !is_topic(topic) {
        return Err("kafka_topic: a name has at most 249 letters, digits and `.`, `_`, `-`".to_owned());
    }
    brokers.iter().filter_map(|broker| broker.sasl_config.as_ref()).try_for_each(Sasl::check)
}

/// Returns warnings about brokers, TLS, and the APISIX fields that are `ignored`.
pub(crate) fn warnings_of(conf: &Value, ignored: &[&str]) -> Vec<Problem> {
    let mut found = Vec::new();
    let is_clear = conf.get("tls").is_none();
    let says_plain = |broker: &Value| {
        let is_exposed = broker.get("host").and_then(Value::as_str).is_some_and(is_remote);
        is_exposed
            && broker.get("sasl_config").is_some_and(|sasl| {
                sasl.get("mechanism").is_none_or(|mechanism| mechanism == Mechanism::Plain.name())
            })
    };
    let brokers = conf.get("brokers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if is_clear && let Some(at) = brokers.iter().position(says_plain) {
        let message = "the password is sent in cleartext";
        let place = format!("brokers[{at}].sasl_config");
        found.push(Problem::new(place, "cleartext", message).hint("add `tls`, or use SCRAM-SHA-256"));
    }
    if !is_clear && conf.pointer("/tls/verify") != Some(&Value::Bool(true)) {
        let message = "another server can impersonate the brokers and get the entries";
        found.push(Problem::new("tls", "unverified", message).hint("set `tls.verify` to true"));
    }
    for field in ignored.iter().filter(|field| conf.get(**field).is_some()) {
        let message = match *field {
            "api_version" => "it has no effect: messages always use the format of brokers since 0.11",
            "producer_type" => "it has no effect: the plugin waits for the acknowledgement of each batch",
            _ => "it has no effect: each configuration has its own producer",
        };
        found.push(Problem::new(*field, "without_effect", message).hint("leave it out"));
    }
    found
}
