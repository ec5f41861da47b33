//! `lago`: what requests used, as events in batches to Lago.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_plugin::credentials::Masked;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin};
use sigma_schema::Confidential;
use sigma_schema::described::schema_of;
use sigma_schema::template::Template;

use crate::shared::http_sender::{Address, Endpoints, Fields, HttpSender, Transport};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Limits, Processor, Refusal, Sending};
use sigma_plugin_kit::log_entry;
use sigma_plugin_kit::log_format::text_of;
use sigma_plugin_kit::service::Keepalive;

const NAME: &str = "lago";

/// Events that Lago takes in one call.
const EVENTS_OF_A_CALL: usize = 100;

/// `lago`.
pub(crate) static LAGO: Descriptor = Descriptor {
    name: NAME,
    priority: 415,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Log]),
    metadata_schema: Some(schema_of::<Metadata>),
    build: |build| Ok(Arc::new(Lago::new(build)?)),
    variables: &[
        VariableField::shown("event_transaction_id", VariableForm::Template),
        VariableField::shown("event_subscription_id", VariableForm::Template),
        VariableField::shown("event_properties.*", VariableForm::Template),
    ],
    ..Descriptor::of::<Config>()
};

/// Sends each request as an event to Lago for metering and billing.
///
/// Requests never wait for the server. A failed batch is sent again `max_retry_count` times and then dropped. Entries
/// beyond `max_pending_entries` of the plugin metadata or 64 MiB are dropped. Lago accepts 100 events in one call;
/// larger batches are split.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("lago logger"), transform = of_a_call)]
struct Config {
    /// Servers; each call is sent to a random one.
    #[schemars(length(min = 1))]
    endpoint_addrs: Vec<Address>,
    /// The path on each server.
    #[schemars(length(min = 1), extend("default" = "/api/v1/events/batch"))]
    endpoint_uri: String,
    /// The key of Lago's API, sent in `Authorization`.
    token: Confidential,
    /// Unique id of an event; may contain variables.
    event_transaction_id: Template,
    /// Id of the billed subscription; may contain variables.
    event_subscription_id: Template,
    /// The code of the billable metric.
    event_code: String,
    /// Properties of an event by name; values may contain variables. A value in which no variable exists is sent as
    /// configured.
    #[schemars(extend("additionalProperties" = {"type": "string", "minLength": 1}))]
    event_properties: Option<BTreeMap<String, String>>,
    /// Checks the servers' certificates.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Timeout in milliseconds, for the connection and for the exchange.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 3000))]
    timeout: u64,
    #[serde(flatten)]
    keepalive: Keepalive,
    #[serde(flatten)]
    batch: BatchSettings,
}

/// The metadata of the plugin.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Maximum events that wait to be sent; more are dropped.
    #[schemars(range(min = 1))]
    max_pending_entries: u64,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata { max_pending_entries: Limits::default().entries }
    }
}

/// Limits a batch to one call by default.
fn of_a_call(schema: &mut Schema) {
    if let Some(field) = schema.pointer_mut("/properties/batch_max_size") {
        field["default"] = EVENTS_OF_A_CALL.into();
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.fields()?;
        Endpoints::at(&self.endpoint_addrs, &self.endpoint_uri).map(drop)
    }
}

impl Config {
    fn fields(&self) -> Result<Fields, String> {
        let (mut fields, token) = (Fields::default(), self.token.reveal());
        fields.set("content-type", "application/json", "token")?;
        fields.set_secret("authorization", &format!("Bearer {token}"), token, "token")?;
        Ok(fields)
    }
}

/// Reports requests.
struct Lago {
    event: Event,
    processor: Arc<Processor>,
}

impl Lago {
    fn new(build: &Build<'_>) -> Result<Lago, String> {
        let (config, metadata): (Config, Metadata) = (build.config()?, build.metadata_as()?);
        let server = Server::new(&config)?;
        let pending = metadata.max_pending_entries;
        let processor = batch::processor(build, NAME, &config.batch, pending, || server);
        Ok(Lago { event: Event::new(config), processor })
    }
}

impl Plugin for Lago {
    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let event = self.event.of(ctx, log_entry::started_ms(ctx, env)).to_string();
        self.processor.push(event.into_bytes(), &*ctx, env);
    }
}

/// What events say.
struct Event {
    transaction: Template,
    subscription: Template,
    code: String,
    /// Names, and values as they were written and as templates.
    properties: Option<Vec<(String, String, Template)>>,
}

impl Event {
    fn new(config: Config) -> Event {
        let properties = config.event_properties.map(|properties| {
            let property = |(name, text): (String, String)| (name, text.clone(), Template::parse(&text));
            properties.into_iter().map(property).collect()
        });
        Event {
            transaction: config.event_transaction_id,
            subscription: config.event_subscription_id,
            code: config.event_code,
            properties,
        }
    }

    fn of(&self, ctx: &Context, started_ms: u64) -> Value {
        let mut event = json!({
            "transaction_id": text_of(&self.transaction.rendered(&Masked(ctx))),
            "external_subscription_id": text_of(&self.subscription.rendered(&Masked(ctx))),
            "code": self.code,
            "timestamp": started_ms as f64 / 1000.0,
        });
        if let Some(properties) = &self.properties {
            let property = |(name, written, template): &(String, String, Template)| {
                let mut value = Vec::new();
                let value = match template.render(&Masked(ctx), &mut value) {
                    0 => written.clone(),
                    _ => text_of(&value),
                };
                (name.clone(), Value::from(value))
            };
            event["properties"] = Value::Object(properties.iter().map(property).collect::<Map<_, _>>());
        }
        event
    }
}

/// The servers that take events.
struct Server {
    endpoints: Endpoints,
    sender: HttpSender,
}

impl Server {
    fn new(config: &Config) -> Result<Server, String> {
        let endpoints = Endpoints::at(&config.endpoint_addrs, &config.endpoint_uri)?;
        let transport = Transport::new(Duration::from_millis(config.timeout), config.ssl_verify);
        let transport = transport.keeping(&config.keepalive);
        let sender = HttpSender::new(NAME, endpoints.all(), transport, config.fields()?);
        Ok(Server { endpoints, sender })
    }

    async fn call(&self, events: &[Vec<u8>]) -> Result<(), String> {
        let body = [br#"{"events":["#, &events.join(&b',')[..], b"]}"].concat();
        let answer = self.sender.post(self.endpoints.pick(), body).await;
        let mut answer = answer.map_err(|failure| failure.to_string())?;
        let status = answer.status;
        if status < 300 {
            answer.finish().await;
            return Ok(());
        }
        let body = answer.shown_body().await;
        Err(format!("lago api returned status: {status}, body: {body}"))
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let mut taken = 0;
            for events in entries.chunks(EVENTS_OF_A_CALL) {
                self.call(events).await.map_err(|reason| Refusal { reason, taken })?;
                taken += events.len();
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, config_of, refusal};

    fn conf(field: &str, value: Value) -> Value {
        let mut conf = json!({
            "endpoint_addrs": ["http://h"], "token": "t", "event_transaction_id": "r_${arg_id}",
            "event_subscription_id": "${consumer_name}", "event_code": "$code"
        });
        conf[field] = value;
        conf
    }

    #[test]
    fn events() {
        let case = Case::new("GET /?id=%22%0a HTTP/1.1\nHost: h");
        let check = |conf: Value, expected: Value| {
            let event = Event::new(config_of(conf.clone())).of(&case.ctx, 1_700_000_000_250);
            let mut whole = json!({
                "transaction_id": "r_\"\n", "external_subscription_id": "", "code": "$code", "timestamp": 1_700_000_000.25
            });
            whole.as_object_mut().unwrap().extend(serde_json::from_value::<Map<_, _>>(expected).unwrap());
            assert_eq!(event, whole, "{conf}");
        };
        check(conf("timeout", json!(1)), json!({}));
        let properties =
            json!({"a": "$host-$arg_none", "b": "$arg_none", "c": "5 $", "d": "${arg_none ?? x}"});
        check(
            conf("event_properties", properties),
            json!({"properties": {"a": "h-", "b": "$arg_none", "c": "5 $", "d": "x"}}),
        );
    }

    #[test]
    fn a_batch_is_a_call_unless_it_is_said_otherwise() {
        let filled: Value = schema_of::<Config>();
        assert_eq!(filled["properties"]["batch_max_size"]["default"], 100);
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), "is required");
        check(conf("endpoint_addrs", json!([])), "expect array to have at least 1 items");
        check(
            conf("token", json!("a\nb")),
            "token: it contains a character that a header field cannot carry",
        );
        check(conf("event_properties", json!({"a": ""})), r#"property "event_properties" validation failed"#);
        check(conf("keepalive_pool", json!(0)), "expected 0 to be at least 1");
    }
}
