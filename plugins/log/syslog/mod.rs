//! `syslog`: entries of requests and sessions as lines of RFC 5424, to a server over TCP or UDP.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_schema::Problem;

use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Flow, FlowPlugin, Session};
use sigma_schema::plugins::PluginScope;

use crate::shared::rfc5424;
use sigma_plugin_kit::batch::{self, BatchSettings, Batches, Destination, Limits, Processor, Sending};
use sigma_plugin_kit::log_entry::{EntryConfig, Logger, Sink};
use sigma_plugin_kit::log_format::{Bodies, LogFormat};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::server::{self, Host, Security, ServerLocation, TcpServer, UdpServer};

const NAME: &str = "syslog";

/// `syslog`.
pub(crate) static SYSLOG: Descriptor = Descriptor {
    name: NAME,
    priority: 401,
    doc: DOC,
    example: include_str!("example.md"),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(requests(build)?)),
    flow: Some(Flow::of::<SessionConfig>(|build| Ok(Arc::new(Sessions::new(build)?)))),
    ..super::shipper::<Config>()
};

const DOC: &str = "Sends log entries to a syslog server.

An entry is a line of RFC 5424, `<46>1 TIME HOST apisix PID - - JSON`, with facility syslog and severity info. \
HOST is the Host of the request; JSON has the fields of `log_format`, or the default fields. Over TCP a line ends \
with a line feed (RFC 6587, §3.4.2). Over UDP each line is a datagram (RFC 5426), and a line that is too long is \
dropped.

Lines are sent in batches; requests and sessions never wait for them. A failed batch is sent again \
`max_retry_count` times and then dropped. Lines beyond `max_pending_entries` of the plugin metadata or \
`drop_limit` are dropped. When the gateway stops, it sends the rest of the buffer once.

On stream routes there are no default members: set `log_format` here or in the plugin metadata, or nothing \
is sent.";

/// The server, and the connections to it.
#[derive(Deserialize, JsonSchema)]
struct Shipping {
    /// Host of the server, a name or an address.
    host: Host,
    /// Port of the server.
    #[schemars(range(min = 1))]
    port: u16,
    /// Protocol to the server: `tcp` or `udp`.
    #[schemars(extend("default" = "tcp"))]
    sock_type: SockType,
    /// Encrypts connections with TLS; requires `tcp`.
    #[schemars(extend("default" = false))]
    tls: bool,
    /// Checks the server's certificate; APISIX never does.
    #[schemars(extend("default" = false, "own_default" = true))]
    ssl_verify: bool,
    /// Timeout in milliseconds, for the connection and for sending a batch.
    #[schemars(range(min = 1), extend("default" = 3000))]
    timeout: u64,
    /// Maximum idle connections for later batches.
    #[schemars(range(min = 5), extend("default" = 5))]
    pool_size: usize,
    /// Without effect: a due batch is sent however small it is.
    #[serde(rename = "flush_limit")]
    #[schemars(range(min = 1), extend("default" = 4096))]
    _flush_limit: u64,
    /// Maximum bytes of lines that wait to be sent; more are dropped.
    #[schemars(extend("default" = 1_048_576))]
    drop_limit: usize,
    #[serde(flatten)]
    batch: BatchSettings,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SockType {
    Tcp,
    Udp,
}

impl Shipping {
    fn check(&self) -> Result<(), String> {
        match self.tls && self.sock_type == SockType::Udp {
            true => Err("tls: UDP has no TLS; write `sock_type: tcp`".to_owned()),
            false => Ok(()),
        }
    }

    /// The processor of lines for this server, which equal configurations share.
    fn processor(&self, build: &Build<'_>, max_pending_entries: u64) -> Arc<Processor> {
        let timeout = Duration::from_millis(self.timeout);
        let place = ServerLocation { plugin: NAME, host: self.host.clone(), port: self.port, timeout };
        let security = Security::of(self.tls, self.ssl_verify);
        let server = match self.sock_type {
            SockType::Tcp => Server::Tcp(TcpServer::new(place, security).keeping(self.pool_size)),
            SockType::Udp => Server::Udp(UdpServer::new(place, build.node)),
        };
        let limits = Limits { entries: max_pending_entries, bytes: self.drop_limit };
        Batches::processor(build.node, NAME, build.conf_hash(), &self.batch, limits, || Arc::new(server))
    }
}

/// Where lines go.
enum Server {
    Tcp(TcpServer),
    Udp(UdpServer),
}

impl Destination for Server {
    fn send<'s>(&'s self, lines: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            // A datagram ends by itself.
            let bare = |line: &'s Vec<u8>| line.strip_suffix(b"\n").unwrap_or(line);
            match self {
                Server::Tcp(server) => server.send(&lines.concat()).await,
                Server::Udp(server) => server.send(lines.iter().map(bare)).await,
            }
        })
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("sys logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    #[serde(flatten)]
    shipping: Shipping,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.shipping.check()
    }
}

/// The configuration on stream routes.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("stream sys logger"))]
struct SessionConfig {
    /// Members of an entry. A value that begins with `$` is a variable.
    log_format: Option<LogFormat>,
    #[serde(flatten)]
    shipping: Shipping,
}

impl Configuration for SessionConfig {
    fn check(&self) -> Result<(), String> {
        self.shipping.check()
    }
}

fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    let mut found = Vec::new();
    if conf.get("flush_limit").is_some() {
        let message = "it has no effect: the plugin sends a batch as soon as it is due";
        found.push(
            Problem::new("flush_limit", "without_effect", message)
                .hint("remove it; `batch_max_size` sets the size of batches"),
        );
    }
    found.extend(server::warnings(conf, &["ssl_verify"]));
    found
}

fn line(host: &[u8], unix_ms: u64, entry: Map<String, Value>) -> Vec<u8> {
    let line = rfc5424::line(rfc5424::SYSLOG_INFO, host, unix_ms, rfc5424::NO_DATA, entry);
    format!("{line}\n").into_bytes()
}

fn requests(build: &Build<'_>) -> Result<Logger<Lines>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let processor = config.shipping.processor(build, metadata.max_pending_entries);
    Ok(Logger::new(config.entry, metadata.formats, Lines(processor)))
}

/// Lines about requests.
struct Lines(Arc<Processor>);

impl Sink for Lines {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        let unix_ms = env.unix_time().as_millis() as u64;
        self.0.push(line(&ctx.host_name(), unix_ms, entry), ctx, env);
    }
}

/// Lines about sessions.
struct Sessions {
    /// Without one there are no lines.
    format: Option<LogFormat>,
    processor: Arc<Processor>,
}

impl Sessions {
    fn new(build: &Build<'_>) -> Result<Sessions, String> {
        let (config, metadata): (SessionConfig, batch::Metadata) = (build.config()?, build.metadata_as()?);
        let processor = config.shipping.processor(build, metadata.max_pending_entries);
        let format = LogFormat::in_force(config.log_format, metadata.formats.log_format);
        Ok(Sessions { format, processor })
    }
}

impl FlowPlugin for Sessions {
    fn log(&self, session: &Session, env: &Env<'_>) {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let Some(format) = &self.format else {
            if let Some(left_out) = COMPLAINT.due() {
                tracing::error!(left_out, route = %session.route.id, "syslog's log_format is not set");
            }
            return;
        };
        let mut entry = Map::new();
        format.fill(session, Bodies::default(), &mut entry);
        entry.insert("route_id".into(), (*session.route.id).into());
        if let Some(service) = session.route.service_id.as_deref() {
            entry.insert("service_id".into(), service.into());
        }

        let unix_ms = env.unix_time().as_millis() as u64;
        self.processor.push(line(b"", unix_ms, entry), session, env);
    }
}
