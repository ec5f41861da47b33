//! `http-logger`: entries in batches to an HTTP server.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::wording::is_secret_reference;
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::{
    BodyFilter, Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep, Step,
};
use tokio::sync::OnceCell;

use super::entry::{self, Entries, EntryConfig, entry_schema};
use crate::batch::{self, BatchSettings, Batches, Destination, Processor, Refusal, Sending};

const NAME: &str = "http-logger";

/// Bytes of a refusing answer that the error log shows.
const SHOWN_ANSWER_BYTES: usize = 1024;

/// `http-logger`.
pub(crate) static HTTP_LOGGER: Descriptor = Descriptor {
    name: NAME,
    version: "0.1",
    priority: 410,
    doc: "Sends log entries in batches to an HTTP server.\n\n\
        Each batch is one `POST` with a JSON array, or one object a line (`concat_method: new_line`). \
        Requests never wait for it: what the server does not take is retried `max_retry_count` times \
        and dropped then, and so is what exceeds `max_pending_entries` of the plugin metadata or 64 MiB. \
        What is still buffered when the gateway stops is sent once.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]),
    schema,
    metadata_schema: Some(batch::metadata_schema),
    secret_fields: &["auth_header"],
    check: Some(|conf| {
        entry::check(conf)?;
        let authorization = conf.get("auth_header").and_then(Value::as_str).unwrap_or_default();
        if reqwest::header::HeaderValue::from_str(authorization).is_err() {
            return Err("auth_header: it holds what no field can".to_owned());
        }
        let uri = conf.get("uri").and_then(Value::as_str).unwrap_or_default();
        // One that is kept elsewhere is not known yet.
        if is_secret_reference(uri) { Ok(()) } else { address(uri).map(drop) }
    }),
    build,
    variables: &[
        VariablePlace::shown("log_format", VariableForm::LogFormat),
        VariablePlace::shown("log_format_extra", VariableForm::LogFormat),
        VariablePlace::shown("include_req_body_expr", VariableForm::Condition),
        VariablePlace::shown("include_resp_body_expr", VariableForm::Condition),
    ],
    ..Descriptor::BASE
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

fn schema() -> Value {
    let mut properties = entry_schema();
    properties["uri"] = json!({
        "type": "string",
        "pattern": r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?",
        "description": "Where batches are sent to."
    });
    properties["auth_header"] =
        json!({"type": "string", "description": "Value of the `Authorization` field."});
    properties["timeout"] = json!({
        "type": "integer", "minimum": 1, "default": 3,
        "description": "Seconds that connecting may take, and the whole exchange after that."
    });
    properties["concat_method"] = json!({
        "type": "string", "enum": ["json", "new_line"], "default": "json",
        "description": "A batch is a JSON array (`json`), or one object a line (`new_line`)."
    });
    properties["ssl_verify"] =
        json!({"type": "boolean", "default": false, "description": "Checks the server's certificate."});
    BatchSettings::add_schema(&mut properties, "http logger");
    json!({"type": "object", "properties": properties, "required": ["uri"]})
}

#[derive(Debug, Deserialize)]
struct Config {
    uri: String,
    auth_header: Option<String>,
    timeout: u64,
    concat_method: Concat,
    ssl_verify: bool,
    #[serde(flatten)]
    entry: EntryConfig,
    #[serde(flatten)]
    batch: BatchSettings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Concat {
    Json,
    NewLine,
}

fn build(build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
    let config: Config = build.config()?;
    let entries = Entries::new(&config.entry, build.metadata)?;
    let server = Server::new(&config)?;
    let max_pending =
        build.metadata.get("max_pending_entries").and_then(Value::as_u64).unwrap_or(batch::DEFAULT_PENDING);
    let processor =
        Batches::processor(build.node, NAME, build.conf_hash(), &config.batch, max_pending, || {
            Arc::new(server)
        });
    Ok(Arc::new(HttpLogger { entries, processor }))
}

struct HttpLogger {
    entries: Entries,
    processor: Arc<Processor>,
}

impl Plugin for HttpLogger {
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        self.entries.access(ctx);
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        self.entries.header_filter(self, ctx);
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        self.entries.body_filter(self, ctx)
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let mut entry = self.entries.entry(self, ctx, env);
        entry.entry("route_id").or_insert_with(|| "no-matched".into());
        self.processor.push(Value::Object(entry).to_string().into_bytes(), ctx, env);
    }
}

/// The server that takes batches.
struct Server {
    url: reqwest::Url,
    host: String,
    port: u16,
    authorization: Option<String>,
    timeout: Duration,
    verify: bool,
    concat: Concat,
    /// A batch is one entry, and no list.
    single: bool,
    /// Made with the first batch: it reads the system's certificates.
    client: OnceCell<reqwest::Client>,
}

/// Reads the place that batches are sent to.
fn address(uri: &str) -> Result<reqwest::Url, String> {
    let url = reqwest::Url::parse(uri).map_err(|error| format!("uri: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("uri: the scheme {other} is neither http nor https")),
    }
}

impl Server {
    fn new(config: &Config) -> Result<Server, String> {
        let url = address(&config.uri)?;
        if url.scheme() == "http" {
            tracing::warn!("http-logger: entries are sent to {} in the clear", config.uri);
        } else if !config.ssl_verify {
            tracing::warn!("http-logger: the certificate of {} is not checked (ssl_verify)", config.uri);
        }
        let (host, port) =
            (url.host_str().unwrap_or_default().to_owned(), url.port_or_known_default().unwrap_or(80));
        Ok(Server {
            url,
            host,
            port,
            authorization: config.auth_header.clone(),
            timeout: batch::seconds(config.timeout),
            verify: config.ssl_verify,
            concat: config.concat_method,
            single: config.batch.is_single(),
            client: OnceCell::new(),
        })
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
            request = request.header("Authorization", authorization.as_str());
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
