//! `http-logger`: entries in batches to an HTTP server.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_config::described::schema_of;
use sigma_config::resources::Confidential;
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet};
use tokio::sync::OnceCell;

use super::entry::{EntryConfig, Logger, Sink};
use crate::batch::{self, BatchSettings, Batches, Destination, Limits, Processor, Refusal, Sending};

const NAME: &str = "http-logger";

/// Bytes of a refusing answer that the error log shows.
const SHOWN_ANSWER_BYTES: usize = 1024;

/// `http-logger`.
pub(crate) static HTTP_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 410,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]),
    metadata_schema: Some(schema_of::<batch::Metadata>),
    build: |build| Ok(Arc::new(logger(build)?)),
    variables: &[
        VariablePlace::shown("log_format", VariableForm::LogFormat),
        VariablePlace::shown("log_format_extra", VariableForm::LogFormat),
        VariablePlace::shown("include_req_body_expr", VariableForm::Condition),
        VariablePlace::shown("include_resp_body_expr", VariableForm::Condition),
    ],
    ..Descriptor::of::<Config>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      http-logger:
        uri: http://127.0.0.1:9000/logs      # the server that collects
        log_format: { uri: $uri, status: $status, client: $remote_addr }
        batch_max_size: 100
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 200 OK
…
```
"#;

/// Sends log entries in batches to an HTTP server.
///
/// Each batch is one `POST` with a JSON array, or one object a line (`concat_method: new_line`). Requests
/// never wait for it: what the server does not take is retried `max_retry_count` times and dropped then,
/// and so is what exceeds `max_pending_entries` of the plugin metadata or 64 MiB. What is still buffered
/// when the gateway stops is sent once.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("http logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Where batches are sent to.
    #[schemars(regex(pattern = r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?"))]
    uri: Address,
    /// Value of the `Authorization` field.
    auth_header: Option<Confidential>,
    /// Seconds that connecting may take, and the whole exchange after that.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    /// A batch is a JSON array (`json`), or one object a line (`new_line`).
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
        let value = self.auth_header.as_ref().map_or("", Confidential::reveal);
        match reqwest::header::HeaderValue::from_str(value) {
            Ok(_) => Ok(()),
            Err(_) => Err("auth_header: it holds what no field can".to_owned()),
        }
    }
}

/// The place that batches are sent to.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct Address(#[schemars(with = "String")] reqwest::Url);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(uri: String) -> Result<Address, String> {
        let url = reqwest::Url::parse(&uri).map_err(|error| format!("uri: {error}"))?;
        match url.scheme() {
            "http" | "https" => Ok(Address(url)),
            other => Err(format!("uri: the scheme {other} is neither http nor https")),
        }
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
    let (server, key) = (Server::new(&config), build.conf_hash());
    let limits = Limits { entries: metadata.max_pending_entries, ..Limits::default() };
    let make = || Arc::new(server) as Arc<dyn Destination>;
    let processor = Batches::processor(build.node, NAME, key, &config.batch, limits, make);
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
    url: reqwest::Url,
    host: String,
    port: u16,
    authorization: Option<Confidential>,
    timeout: Duration,
    verify: bool,
    concat: Concat,
    /// A batch is one entry, and no list.
    single: bool,
    /// Made with the first batch: it reads the system's certificates.
    client: OnceCell<reqwest::Client>,
}

impl Server {
    fn new(config: &Config) -> Server {
        let url = config.uri.0.clone();
        if url.scheme() == "http" {
            tracing::warn!("http-logger: entries are sent to {url} in the clear");
        } else if !config.ssl_verify {
            tracing::warn!("http-logger: the certificate of {url} is not checked (ssl_verify)");
        }
        Server {
            host: url.host_str().unwrap_or_default().to_owned(),
            port: url.port_or_known_default().unwrap_or(80),
            url,
            authorization: config.auth_header.clone(),
            timeout: batch::seconds(config.timeout),
            verify: config.ssl_verify,
            concat: config.concat_method,
            single: config.batch.is_single(),
            client: OnceCell::new(),
        }
    }

    async fn client(&self) -> Result<&reqwest::Client, String> {
        let make = || async {
            reqwest::Client::builder()
                .connect_timeout(self.timeout)
                .timeout(2 * self.timeout)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                // A connection that the server has closed meanwhile would lose a batch.
                .pool_max_idle_per_host(0)
                .tls_danger_accept_invalid_certs(!self.verify)
                .build()
                .map_err(|error| format!("the HTTP client cannot be made: {}", causes(&error)))
        };
        self.client.get_or_try_init(make).await
    }

    fn payload(&self, entries: &[Vec<u8>]) -> Vec<u8> {
        match self.concat {
            Concat::NewLine => entries.join(&b'\n'),
            Concat::Json if self.single => entries.concat(),
            Concat::Json => [b"[", &entries.join(&b',')[..], b"]"].concat(),
        }
    }

    async fn post(&self, entries: &[Vec<u8>]) -> Result<(), Refusal> {
        let content_type = match self.concat {
            Concat::Json => "application/json",
            Concat::NewLine => "text/plain",
        };
        let mut request = self
            .client()
            .await?
            .post(self.url.clone())
            .header("Host", self.host.as_str())
            .header("Content-Type", content_type)
            .body(self.payload(entries));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization.reveal());
        }
        let (host, port) = (&self.host, self.port);
        let mut response = request.send().await.map_err(|error| self.failure(&error))?;
        let status = response.status().as_u16();
        if status < 400 {
            return Ok(());
        }
        // The status says enough if the body does not come.
        let mut body = Vec::new();
        while body.len() < SHOWN_ANSWER_BYTES
            && let Ok(Some(piece)) = response.chunk().await
        {
            body.extend_from_slice(&piece);
        }
        body.truncate(SHOWN_ANSWER_BYTES);
        // The server's text must not look like lines of the log.
        let body = String::from_utf8_lossy(&body).escape_debug().to_string();
        Err(format!("server returned status code[{status}] host[{host}] port[{port}] body[{body}]").into())
    }

    fn failure(&self, error: &reqwest::Error) -> String {
        let (host, port, reason) = (&self.host, self.port, causes(error));
        if !error.is_connect() {
            format!("error while sending data to [{host}] port[{port}] {reason}")
        } else if is_about_tls(error) {
            format!("failed to perform SSL with host[{host}] port[{port}] {reason}")
        } else {
            format!("failed to connect to host[{host}] port[{port}] {reason}")
        }
    }
}

impl Destination for Server {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(self.post(entries))
    }
}

/// Errors of TLS come as invalid data of the connection.
fn is_about_tls(error: &reqwest::Error) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let mut system = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    system.any(|cause| cause.kind() == std::io::ErrorKind::InvalidData)
}

/// An error with everything that led to it, without the address that the message names already.
fn causes(error: &reqwest::Error) -> String {
    let all = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let texts: Vec<String> = all.map(ToString::to_string).collect();
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}
