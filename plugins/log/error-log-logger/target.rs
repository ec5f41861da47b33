//! Where lines of the error log go.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_net::tls::is_server_name;
use sigma_schema::Confidential;
use sigma_schema::Problem;

use super::NAME;
use crate::shared::http_sender::{Address, Fields, HttpSender, Transport};
use crate::shared::kafka::{self, BrokerConfig, Producer, TlsConfig};
use sigma_plugin_kit::batch::{self, Destination, Refusal, Sending};
use sigma_plugin_kit::kafka::cluster::Broker;
use sigma_plugin_kit::log_entry::json_list;
use sigma_plugin_kit::log_format::text_of;
use sigma_plugin_kit::server::{self, Host, Security, ServerLocation, TcpServer};
use sigma_plugin_kit::service;

/// Connections over TCP that are kept: as many batches may be on their way at once.
const KEPT: usize = 16;

/// The server of the metadata: exactly one of these.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Targets {
    /// A server that accepts lines over TCP or TLS.
    tcp: Option<Tcp>,
    /// Apache SkyWalking.
    skywalking: Option<Skywalking>,
    /// A table of ClickHouse.
    clickhouse: Option<Clickhouse>,
    /// A topic of Kafka.
    kafka: Option<Kafka>,
    /// Host of the TCP server, in the former form of `tcp`.
    host: Option<Host>,
    /// Port of `host`.
    #[schemars(range(min = 1))]
    port: Option<u16>,
}

/// Exactly one of the servers.
pub(super) fn one_of(schema: &mut Schema) {
    let each = [&["tcp"][..], &["skywalking"], &["clickhouse"], &["kafka"], &["host", "port"]];
    let each: Vec<Value> = each.iter().map(|fields| json!({ "required": fields })).collect();
    schema.insert("oneOf".to_owned(), each.into());
}

#[derive(Deserialize, JsonSchema)]
struct Tcp {
    /// Host of the server, a name or an address.
    host: Host,
    /// Port of the server.
    #[schemars(range(min = 1))]
    port: u16,
    /// Encrypts connections with TLS.
    #[schemars(extend("default" = false))]
    tls: bool,
    /// Server name in TLS. Default: `host`.
    tls_server_name: Option<String>,
    /// Checks the server's certificate; APISIX never does.
    #[schemars(extend("default" = false, "own_default" = true))]
    ssl_verify: bool,
}

#[derive(Deserialize, JsonSchema)]
struct Skywalking {
    /// The URL for logs.
    #[schemars(extend("default" = "http://127.0.0.1:12900/v3/logs"))]
    endpoint_addr: Address,
    /// The name of the service.
    #[schemars(extend("default" = "APISIX"))]
    service_name: String,
    /// The name of this instance of the service; `$hostname` is the name of the machine.
    #[schemars(extend("default" = "APISIX Service Instance"))]
    service_instance_name: String,
}

#[derive(Deserialize, JsonSchema)]
struct Clickhouse {
    /// The URL of the server.
    #[schemars(extend("default" = "http://127.0.0.1:8123"))]
    endpoint_addr: Address,
    /// The user.
    #[schemars(extend("default" = "default"))]
    user: String,
    /// The user's password.
    #[schemars(extend("default" = ""))]
    password: Confidential,
    /// The database.
    #[schemars(extend("default" = ""))]
    database: String,
    /// The table; its column `data` gets the lines.
    #[schemars(extend("default" = ""))]
    logtable: String,
}

#[derive(Deserialize, JsonSchema)]
struct Kafka {
    /// Some brokers of the cluster; they name the others.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    brokers: Vec<BrokerConfig>,
    /// The topic.
    kafka_topic: String,
    /// Without effect: lines are always sent in the background, and a batch counts as sent when brokers have it.
    #[serde(rename = "producer_type")]
    #[schemars(extend("default" = "async", "enum" = ["async", "sync"]))]
    _producer_type: String,
    /// Required acknowledgements: none (0), the leader of the partition (1), or all in-sync replicas (-1).
    #[schemars(extend("default" = 1, "enum" = [0, 1, -1]))]
    required_acks: i16,
    /// Key of the messages, which also selects the partition.
    key: Option<String>,
    /// Without effect: the plugin has its own producer.
    #[serde(rename = "cluster_name")]
    #[schemars(range(min = 1), extend("default" = 1))]
    _cluster_name: u64,
    /// Seconds between two fetches of the partition metadata.
    #[schemars(range(min = 1), extend("default" = 30))]
    meta_refresh_interval: u64,
    /// Encrypts connections with TLS.
    tls: Option<TlsConfig>,
}

/// Returns warnings about the metadata.
pub(super) fn warnings(conf: &Value) -> Vec<Problem> {
    let within =
        |part: &str, found: Vec<Problem>| found.into_iter().map(|p| p.within(part)).collect::<Vec<_>>();
    let (nothing, told) = (Value::Null, "the lines are sent in cleartext");
    let part = |name: &str| conf.get(name).unwrap_or(&nothing);
    let mut found = within("tcp", server::warnings(part("tcp"), &["tls_server_name", "ssl_verify"]));
    for name in ["skywalking", "clickhouse"] {
        found.extend(within(
            name,
            service::cleartext(part(name), "endpoint_addr", told).into_iter().collect(),
        ));
    }
    found.extend(within("kafka", kafka::warnings_of(part("kafka"), &["producer_type", "cluster_name"])));
    if conf.get("host").is_some() {
        let message = "`tcp` replaces it";
        found.push(Problem::new("host", "deprecated", message).hint("write `tcp: { host: …, port: … }`"));
    }
    found
}

impl Targets {
    /// The server. `timeout` is for each step, and a connection may idle for `keepalive`.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no target or it is invalid.
    pub(super) fn chosen(
        self,
        timeout: Duration,
        keepalive: Duration,
        hostname: &str,
    ) -> Result<Target, String> {
        let Targets { tcp, skywalking, clickhouse, kafka, host, port } = self;
        let old = host.zip(port).map(|(host, port)| Tcp {
            host,
            port,
            tls: false,
            tls_server_name: None,
            ssl_verify: false,
        });
        if let Some(tcp) = tcp.or(old) {
            return tcp.target(timeout, keepalive);
        }
        if let Some(skywalking) = skywalking {
            return skywalking.target(timeout, hostname);
        }
        if let Some(clickhouse) = clickhouse {
            return clickhouse.target(timeout);
        }
        kafka.ok_or("one of `tcp`, `skywalking`, `clickhouse` and `kafka` is needed")?.target(timeout)
    }
}

impl Tcp {
    fn target(self, timeout: Duration, keepalive: Duration) -> Result<Target, String> {
        let place = ServerLocation { plugin: NAME, host: self.host, port: self.port, timeout };
        let security = Security::of(self.tls, self.ssl_verify);
        let server = TcpServer::new(place, security).keeping_for(KEPT, keepalive);
        match self.tls_server_name {
            Some(name) if !is_server_name(&name) => {
                Err(format!("tcp.tls_server_name: `{name}` is not a valid TLS server name"))
            }
            Some(name) => Ok(Target::Tcp(server.named(&name))),
            None => Ok(Target::Tcp(server)),
        }
    }
}

impl Skywalking {
    fn target(self, timeout: Duration, hostname: &str) -> Result<Target, String> {
        let instance = match &*self.service_instance_name {
            "$hostname" => hostname.to_owned(),
            name => name.to_owned(),
        };
        let mut fields = Fields::default();
        fields.set("content-type", "application/json", "skywalking")?;
        let form = Form::Skywalking { service: self.service_name, instance };
        Ok(Target::Http(Collector::new(self.endpoint_addr, timeout, fields, form)))
    }
}

impl Clickhouse {
    fn target(self, timeout: Duration) -> Result<Target, String> {
        if self.logtable.is_empty() {
            return Err("clickhouse.logtable: it is empty".to_owned());
        }
        let (mut fields, password) = (Fields::default(), self.password.reveal());
        fields.set("content-type", "application/json", "clickhouse")?;
        fields.set("x-clickhouse-user", &self.user, "clickhouse.user")?;
        fields.set_secret("x-clickhouse-key", password, password, "clickhouse.password")?;
        fields.set("x-clickhouse-database", &self.database, "clickhouse.database")?;
        let form = Form::Clickhouse { table: self.logtable };
        Ok(Target::Http(Collector::new(self.endpoint_addr, timeout, fields, form)))
    }
}

impl Kafka {
    fn target(self, timeout: Duration) -> Result<Target, String> {
        kafka::check(&self.kafka_topic, &self.brokers).map_err(|reason| format!("kafka.{reason}"))?;
        Ok(Target::Kafka(Producer::new(kafka::Settings {
            plugin: NAME,
            brokers: self.brokers.iter().map(Broker::from).collect(),
            security: TlsConfig::security(self.tls.as_ref()),
            topic: self.kafka_topic,
            key: self.key,
            acks: self.required_acks,
            timeout,
            refresh: batch::seconds(self.meta_refresh_interval),
        })))
    }
}

/// The server that takes batches.
pub(super) enum Target {
    /// Gets lines as they are.
    Tcp(TcpServer),
    Http(Collector),
    /// Gets a message for each line.
    Kafka(Producer),
}

impl Destination for Target {
    fn send<'s>(&'s self, lines: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            match self {
                Target::Tcp(server) => server.send(&[&lines.join(&b'\n')[..], b"\n"].concat()).await,
                Target::Http(collector) => Ok(collector.post(lines).await?),
                Target::Kafka(producer) => {
                    let values: Vec<Vec<u8>> = lines.iter().map(|line| quoted(line)).collect();
                    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
                    // The accepted messages belong to several partitions, so they are not the first of the
                    // lines.
                    producer.send(&values).await.map_err(|(_, reason)| Refusal::from(reason))
                }
            }
        })
    }
}

/// A line as a JSON string.
fn quoted(line: &[u8]) -> Vec<u8> {
    Value::from(text_of(line)).to_string().into_bytes()
}

/// A server that takes batches over HTTP.
pub(super) struct Collector {
    address: Address,
    sender: HttpSender,
    form: Form,
}

/// The form of a batch.
enum Form {
    Skywalking { service: String, instance: String },
    Clickhouse { table: String },
}

impl Form {
    fn payload(&self, lines: &[Vec<u8>]) -> Vec<u8> {
        let each = |form: &dyn Fn(String) -> Value| -> Vec<Vec<u8>> {
            lines.iter().map(|line| form(text_of(line)).to_string().into_bytes()).collect()
        };
        match self {
            Form::Skywalking { service, instance } => {
                let element = |line: String| json!({"service": service, "serviceInstance": instance, "endpoint": "", "body": {"text": {"text": line}}});
                json_list(&each(&element), false)
            }
            Form::Clickhouse { table } => {
                let rows = each(&|line| json!({ "data": line }));
                [format!("INSERT INTO {table} FORMAT JSONEachRow ").as_bytes(), &rows.join(&b' ')].concat()
            }
        }
    }
}

impl Collector {
    fn new(address: Address, timeout: Duration, fields: Fields, form: Form) -> Collector {
        let transport = Transport::new(timeout, true);
        let sender = HttpSender::new(NAME, std::slice::from_ref(&address), transport, fields);
        Collector { address, sender, form }
    }

    async fn post(&self, lines: &[Vec<u8>]) -> Result<(), String> {
        let answer = self.sender.post(&self.address, self.form.payload(lines)).await;
        answer.map_err(|failure| failure.to_string())?.below_400().await
    }
}
