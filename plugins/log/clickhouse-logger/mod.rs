//! `clickhouse-logger`: entries in batches into a table of ClickHouse.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Build, Configuration, Descriptor};
use sigma_schema::Confidential;

use crate::shared::http_sender::{Address, Endpoints, Fields, HttpSender, Transport};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{EntryConfig, Logger};

const NAME: &str = "clickhouse-logger";

/// `clickhouse-logger`.
pub(crate) static CLICKHOUSE_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 398,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Inserts log entries in batches into a table of ClickHouse, over HTTP.
///
/// The members of an entry are columns of the table: `log_format` must match it; `route_id` and `service_id` are
/// always present. Requests never wait for the server. A failed batch is sent again `max_retry_count` times and then
/// dropped. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(
    transform = batch::named(NAME),
    extend("oneOf" = [
        {"required": ["endpoint_addr", "user", "password", "database", "logtable"]},
        {"required": ["endpoint_addrs", "user", "password", "database", "logtable"]}
    ])
)]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Servers; each batch is sent to a random one.
    #[schemars(length(min = 1))]
    endpoint_addrs: Option<Vec<Address>>,
    /// The server, in the former form of `endpoint_addrs`.
    endpoint_addr: Option<Address>,
    /// The user's name.
    #[schemars(extend("default" = ""))]
    user: String,
    /// The user's password.
    #[schemars(extend("default" = ""))]
    password: Confidential,
    /// The database.
    #[schemars(extend("default" = ""))]
    database: String,
    /// The table; `database.table` and names in backquotes are accepted too.
    #[schemars(extend("default" = ""))]
    logtable: String,
    /// Timeout in seconds, for the connection and for the exchange.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    /// Checks the servers' certificates.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.logtable.is_empty() {
            return Err("logtable: it is empty; write the name of a table".to_owned());
        }
        self.fields()?;
        self.endpoints().map(drop)
    }
}

impl Config {
    fn endpoints(&self) -> Result<Endpoints, String> {
        let all = self.endpoint_addrs.iter().flatten().chain(&self.endpoint_addr);
        Endpoints::new(all.cloned().collect())
    }

    fn fields(&self) -> Result<Fields, String> {
        let (mut fields, password) = (Fields::default(), self.password.reveal());
        fields.set("content-type", "application/json", "endpoint_addrs")?;
        fields.set("x-clickhouse-user", &self.user, "user")?;
        fields.set_secret("x-clickhouse-key", password, password, "password")?;
        fields.set("x-clickhouse-database", &self.database, "database")?;
        Ok(fields)
    }
}

fn logger(build: &Build<'_>) -> Result<Logger<Arc<Processor>>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let server = Server::new(&config)?;
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || server);
    Ok(Logger::new(config.entry, metadata.formats, processor))
}

/// The servers that take batches.
struct Server {
    endpoints: Endpoints,
    /// The text before the rows.
    insert: String,
    sender: HttpSender,
}

impl Server {
    fn new(config: &Config) -> Result<Server, String> {
        let endpoints = config.endpoints()?;
        let transport = Transport::new(batch::seconds(config.timeout), config.ssl_verify);
        let sender = HttpSender::new(NAME, endpoints.all(), transport, config.fields()?);
        let insert = format!("INSERT INTO {} FORMAT JSONEachRow ", config.logtable);
        Ok(Server { endpoints, insert, sender })
    }

    fn payload(&self, entries: &[Vec<u8>]) -> Vec<u8> {
        [self.insert.as_bytes(), &entries.join(&b' ')].concat()
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let answer = self.sender.post(self.endpoints.pick(), self.payload(entries)).await;
            let answer = answer.map_err(|failure| failure.to_string())?;
            Ok(answer.below_400().await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{config_of, refusal};

    fn conf(field: &str, value: Value) -> Value {
        let mut conf = json!({"user": "u", "password": "p", "database": "d", "logtable": "t"});
        conf[field] = value;
        conf
    }

    #[test]
    fn a_batch_is_one_statement() {
        let server = Server::new(&config_of(conf("endpoint_addr", json!("http://h:8123/?a=b")))).unwrap();
        let entries = [br#"{"a":1}"#.to_vec(), br#"{"a":"\n"}"#.to_vec()];
        let body = String::from_utf8(server.payload(&entries)).unwrap();
        assert_eq!(body, r#"INSERT INTO t FORMAT JSONEachRow {"a":1} {"a":"\n"}"#);
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        let none = "value should match only one schema, but matches none";
        check(conf("timeout", json!(1)), none);
        check(json!({"endpoint_addr": "http://h"}), "logtable: it is empty");
        let mut both = conf("endpoint_addr", json!("http://h"));
        both["endpoint_addrs"] = json!(["http://h"]);
        check(both, "value should match only one schema, but matches both schemas 1 and 2");
        check(conf("endpoint_addrs", json!([])), "expect array to have at least 1 items");
        let mut line = conf("endpoint_addr", json!("http://h"));
        line["password"] = json!("a\nb");
        check(line, "password: it contains a character that a header field cannot carry");
    }
}
