//! `tcp-logger`: entries in batches over TCP or TLS.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_net::tls::is_server_name;
use sigma_plugin::{Build, Configuration, Descriptor};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger};
use sigma_plugin_kit::server::{self, Host, Security, ServerLocation, TcpServer};

const NAME: &str = "tcp-logger";

/// `tcp-logger`.
pub(crate) static TCP_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 405,
    example: include_str!("example.md"),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to a server over TCP, or TLS.
///
/// Each batch uses one connection and is one JSON array, or one object with `batch_max_size: 1`, without a line end.
/// Requests never wait for the server. A failed batch is sent again `max_retry_count` times and then dropped. Entries
/// beyond `max_pending_entries` of the plugin metadata or 64 MiB are dropped. When the gateway stops, it sends the
/// rest of the buffer once.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("tcp logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Host of the server, a name or an address.
    host: Host,
    /// Port of the server.
    #[schemars(range(min = 1))]
    port: u16,
    /// Encrypts connections with TLS.
    #[schemars(extend("default" = false))]
    tls: bool,
    /// Server name in TLS. Default: `host`.
    tls_options: Option<String>,
    /// Checks the server's certificate; APISIX never does.
    #[schemars(extend("default" = false, "own_default" = true))]
    ssl_verify: bool,
    /// Timeout in milliseconds, for the connection, for the handshake and for sending a batch.
    #[schemars(range(min = 1), extend("default" = 1000))]
    timeout: u64,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match &self.tls_options {
            Some(name) if !is_server_name(name) => {
                Err(format!("tls_options: `{name}` is not a valid TLS server name"))
            }
            _ => Ok(()),
        }
    }
}

fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    server::warnings(conf, &["ssl_verify", "tls_options"])
}

fn logger(build: &Build<'_>) -> Result<Logger<Arc<Processor>>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let timeout = Duration::from_millis(config.timeout);
    let place = ServerLocation { plugin: NAME, host: config.host, port: config.port, timeout };
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || {
        let server = TcpServer::new(place, Security::of(config.tls, config.ssl_verify));
        let server = match &config.tls_options {
            Some(name) => server.named(name),
            None => server,
        };
        Lists { server, single: config.batch.is_single() }
    });
    Ok(Logger::new(config.entry, metadata.formats, processor))
}

/// The server, which gets each batch as one JSON text.
struct Lists {
    server: TcpServer,
    /// A batch is one entry, and no list.
    single: bool,
}

impl Destination for Lists {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async { self.server.send(&log_entry::json_list(entries, self.single)).await })
    }
}
