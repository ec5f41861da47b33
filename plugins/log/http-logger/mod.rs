//! `http-logger`: entries in batches to an HTTP server.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env};
use sigma_schema::Confidential;

use crate::shared::http_sender::{Address, Fields, HttpSender, Transport};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger, Sink};

const NAME: &str = "http-logger";

/// `http-logger`.
pub(crate) static HTTP_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 410,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to an HTTP server.
///
/// Each batch is one `POST` with a JSON array, or one object a line (`concat_method: new_line`). Requests never wait
/// for the server. A failed batch is sent again `max_retry_count` times and then dropped. Entries beyond
/// `max_pending_entries` of the plugin metadata or 64 MiB are dropped. When the gateway stops, it sends the rest of
/// the buffer once.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("http logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// The URL for batches.
    uri: Address,
    /// Value of the `Authorization` field.
    auth_header: Option<Confidential>,
    /// Timeout in seconds, for the connection and for the whole exchange.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    /// Format of a batch: a JSON array (`json`), or one object per line (`new_line`).
    #[schemars(extend("default" = "json"))]
    concat_method: Concat,
    /// Checks the server's certificate.
    #[schemars(extend("default" = false))]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.fields().map(drop)
    }
}

impl Config {
    fn fields(&self) -> Result<Fields, String> {
        let mut fields = Fields::default();
        fields.set("host", self.uri.host(), "uri")?;
        let content_type = match self.concat_method {
            Concat::Json => "application/json",
            Concat::NewLine => "text/plain",
        };
        fields.set("content-type", content_type, "concat_method")?;
        if let Some(value) = self.auth_header.as_ref().map(Confidential::reveal) {
            fields.set_secret("authorization", value, value, "auth_header")?;
        }
        Ok(fields)
    }
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Concat {
    Json,
    NewLine,
}

fn logger(build: &Build<'_>) -> Result<Logger<HttpSink>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let server = Server::new(&config)?;
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || server);
    Ok(Logger::new(config.entry, metadata.formats, HttpSink(processor)))
}

struct HttpSink(Arc<Processor>);

impl Sink for HttpSink {
    fn take(&self, mut entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        entry.entry("route_id").or_insert_with(|| "no-matched".into());
        self.0.push(Value::Object(entry).to_string().into_bytes(), ctx, env);
    }
}

/// The server that takes batches.
struct Server {
    address: Address,
    concat: Concat,
    /// A batch is one entry, and no list.
    single: bool,
    sender: HttpSender,
}

impl Server {
    fn new(config: &Config) -> Result<Server, String> {
        let address = config.uri.clone();
        let transport = Transport::new(batch::seconds(config.timeout), config.ssl_verify);
        let sender = HttpSender::new(NAME, std::slice::from_ref(&address), transport, config.fields()?);
        Ok(Server { address, concat: config.concat_method, single: config.batch.is_single(), sender })
    }

    fn payload(&self, entries: &[Vec<u8>]) -> Vec<u8> {
        match self.concat {
            Concat::NewLine => entries.join(&b'\n'),
            Concat::Json => log_entry::json_list(entries, self.single),
        }
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let answer = self.sender.post(&self.address, self.payload(entries)).await;
            let answer = answer.map_err(|failure| failure.to_string())?;
            Ok(answer.below_400().await?)
        })
    }
}
