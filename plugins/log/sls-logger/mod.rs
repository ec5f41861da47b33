//! `sls-logger`: entries to Alibaba Cloud Log Service, as syslog over TLS.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::rfc5424;
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{EntryConfig, Logger, Sink};
use sigma_plugin_kit::server::{Host, Security, ServerLocation, TcpServer};
use sigma_plugin_kit::service;

const NAME: &str = "sls-logger";

/// Connections that are kept for the next batch, and for how long.
const KEPT: usize = 20;
const IDLE: Duration = Duration::from_secs(120);

/// `sls-logger`.
pub(crate) static SLS_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 406,
    example: include_str!("example.md"),
    warnings: Some(warnings),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries to Alibaba Cloud Log Service, by syslog over TLS.
///
/// An entry is a line of RFC 5424, `<46>1 TIME HOST apisix PID - [logservice …] JSON`, with the project, the store
/// and the access key. The service sends no response. Requests never wait for it. A failed batch is sent again
/// `max_retry_count` times and then dropped. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB
/// are dropped. When the gateway stops, it sends the rest of the buffer once.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named(NAME))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Host of the service, a name or an address; also the server name in TLS.
    host: Host,
    /// Port of the service.
    #[schemars(range(min = 1))]
    port: u16,
    /// The project.
    project: String,
    /// The log store of the project.
    logstore: String,
    /// The id of the access key.
    access_key_id: String,
    /// The secret of the access key.
    access_key_secret: Confidential,
    /// Timeout in milliseconds, for the connection, for the handshake and for sending a batch.
    #[schemars(range(min = 1), extend("default" = 5000))]
    timeout: u64,
    /// Checks the service's certificate.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let secret = self.access_key_secret.reveal();
        let fields = [
            ("project", &*self.project),
            ("logstore", &*self.logstore),
            ("access_key_id", &*self.access_key_id),
            ("access_key_secret", secret),
        ];
        match fields.into_iter().find(|(_, value)| value.contains(char::is_control)) {
            Some((name, _)) => Err(format!("{name}: it contains a control character; remove it")),
            None => Ok(()),
        }
    }
}

fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    let message = "another server can impersonate the service and get the entries and the access key";
    service::unverified(conf, message).into_iter().collect()
}

fn logger(build: &Build<'_>) -> Result<Logger<Lines>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let data = data(&config);
    let place = ServerLocation {
        plugin: NAME,
        host: config.host,
        port: config.port,
        timeout: Duration::from_millis(config.timeout),
    };
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || {
        Service(TcpServer::new(place, Security::of(true, config.ssl_verify)).keeping_for(KEPT, IDLE))
    });
    Ok(Logger::new(config.entry, metadata.formats, Lines { data, processor }))
}

/// The structured data of all lines.
fn data(config: &Config) -> String {
    let Config { project, logstore, access_key_id, access_key_secret, .. } = config;
    let [project, logstore, id, secret] =
        [project, logstore, access_key_id, access_key_secret.reveal()].map(rfc5424::escaped);
    format!(
        r#"[logservice project="{project}" logstore="{logstore}" access-key-id="{id}" access-key-secret="{secret}"]"#
    )
}

struct Lines {
    data: String,
    processor: Arc<Processor>,
}

impl Sink for Lines {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        let unix_ms = env.unix_time().as_millis() as u64;
        let line = rfc5424::line(rfc5424::SYSLOG_INFO, &ctx.host_name(), unix_ms, &self.data, entry);
        self.processor.push((line + "\n").into_bytes(), ctx, env);
    }
}

/// The service, which gets lines one after the other.
struct Service(TcpServer);

impl Destination for Service {
    fn send<'s>(&'s self, lines: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async { self.0.send(&lines.concat()).await })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{config_of, refusal};

    fn conf(field: &str, value: Value) -> Value {
        let mut conf = json!({
            "host": "h", "port": 1, "project": "p", "logstore": "l", "access_key_id": "i", "access_key_secret": "s"
        });
        conf[field] = value;
        conf
    }

    #[test]
    fn each_line_has_the_credentials_of_the_service() {
        let check = |project: &str, expected: &str| {
            let data = data(&config_of(conf("project", json!(project))));
            let rest = r#"logstore="l" access-key-id="i" access-key-secret="s"]"#;
            assert_eq!(data, format!("[logservice project=\"{expected}\" {rest}"));
        };
        check("p", "p");
        check(r#"a"] ["#, r#"a\"\] ["#);
    }

    #[test]
    fn bad_configurations() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal(NAME, &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        for field in ["host", "port", "project", "logstore", "access_key_id", "access_key_secret"] {
            let mut conf = conf("timeout", json!(1));
            conf.as_object_mut().unwrap().remove(field);
            check(conf, &format!("property \"{field}\" is required"));
        }
        check(conf("timeout", json!(0)), "expected 0 to be at least 1");
        check(conf("access_key_secret", json!("a\nb")), "access_key_secret: it contains a control character");
    }

    #[test]
    fn risky_configurations_have_warnings() {
        let found = warnings(PluginScope::Http, &conf("ssl_verify", json!(false)));
        assert_eq!((found.len(), found[0].code), (1, "unverified"));
        assert!(warnings(PluginScope::Http, &conf("ssl_verify", json!(true))).is_empty());
    }
}
