//! `google-cloud-logging`: entries in batches to Google Cloud Logging.

mod account;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_plugin::cloud::{Cloud, CloudIdentities, Recipient};
use sigma_plugin::system::{Host, System};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, FileAccess, FileMember, Plugin};
use tokio::sync::OnceCell;

use crate::shared::http_sender::{Address, Fields, HttpSender, Transport};
use account::{Account, AuthConfig, Tokens};
use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Sending};
use sigma_plugin_kit::log_entry::{self, Formats, Shape};
use sigma_plugin_kit::log_format::Bodies;
use sigma_plugin_kit::utc;

const NAME: &str = "google-cloud-logging";

/// `google-cloud-logging`.
pub(crate) static GOOGLE_CLOUD_LOGGING: Descriptor = Descriptor {
    name: NAME,
    priority: 407,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(GoogleCloudLogging::new(build)?)),
    files: &[FileMember { name: "auth_file", access: FileAccess::ReadFile }],
    ..super::bodiless_shipper::<Config>()
};

/// Sends log entries in batches to Google Cloud Logging.
///
/// The gateway logs in with the key of a service account, or with the identity of its machine, and renews its token a
/// minute before its expiry. Requests never wait for the service. A failed batch is sent again `max_retry_count` times
/// and then dropped. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB are dropped.
#[derive(Deserialize, JsonSchema)]
#[schemars(
    transform = batch::named(NAME),
    extend("oneOf" = [
        {"required": ["auth_config"]}, {"required": ["auth_file"]}, {"required": ["machine_identity"]}
    ])
)]
struct Config {
    /// The service account.
    auth_config: Option<AuthConfig>,
    /// A file with the service account as JSON, on each gateway. It must contain `entries_uri`, and is read for the
    /// first batch.
    auth_file: Option<PathBuf>,
    /// The identity of the gateway's machine. `cloud_identity.gcp` in the settings of the gateway must name the host of
    /// `entries_uri`.
    #[schemars(extend("own_default" = true))]
    machine_identity: Option<MachineProject>,
    /// Checks the certificates of the service.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Timeout in seconds, for the connection and for the exchange.
    #[schemars(range(min = 1), extend("default" = 10, "own_default" = true))]
    timeout: u64,
    /// The monitored resource of the entries.
    #[schemars(extend("default" = {"type": "global"}))]
    resource: Resource,
    /// The name of the log, percent-encoded.
    #[schemars(extend("default" = "apisix.apache.org%2Flogs"))]
    log_id: String,
    #[serde(flatten)]
    formats: Formats,
    #[serde(flatten)]
    batch: BatchSettings,
}

/// A project that the identity of the machine may write to.
#[derive(Deserialize, JsonSchema)]
struct MachineProject {
    /// The project of the entries.
    #[schemars(length(min = 1))]
    project_id: String,
    /// The URL that entries are sent to.
    #[schemars(extend("default" = "https://logging.googleapis.com/v2/entries:write"))]
    entries_uri: Address,
}

/// A monitored resource.
#[derive(Deserialize, JsonSchema)]
struct Resource {
    /// The type of the resource.
    #[serde(rename = "type")]
    kind: String,
    /// The labels of the resource.
    labels: Option<Map<String, Value>>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.auth_config.as_ref().map_or(Ok(()), |settings| Account::new(settings).map(drop))
    }
}

struct GoogleCloudLogging {
    shape: Shape,
    resource: Value,
    processor: Arc<Processor>,
}

impl GoogleCloudLogging {
    fn new(build: &Build<'_>) -> Result<GoogleCloudLogging, String> {
        let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
        let Resource { kind, labels } = &config.resource;
        let mut resource = json!({ "type": kind });
        if let Some(labels) = labels {
            resource["labels"] = Value::Object(labels.clone());
        }
        let service = Service::new(&config, build)?;
        let pending = metadata.max_pending_entries;
        let processor = batch::processor(build, NAME, &config.batch, pending, || service);
        Ok(GoogleCloudLogging { shape: Shape::new(config.formats, metadata.formats), resource, processor })
    }
}

impl Plugin for GoogleCloudLogging {
    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let entry = log_entry(&self.shape, &self.resource, ctx, env).to_string();
        self.processor.push(entry.into_bytes(), &*ctx, env);
    }
}

/// An entry of the log, without the name of the log.
fn log_entry(shape: &Shape, resource: &Value, ctx: &Context, env: &Env<'_>) -> Value {
    let body = log_entry::request_body(ctx);
    let bodies = Bodies { request: body.as_deref(), response: None };
    let mut out = Map::new();
    let payload = shape.formatted(ctx, bodies).unwrap_or_else(|| {
        let usual = Value::Object(shape.usual(ctx, env, Bodies::default()));
        let mut payload = Map::new();
        for name in ["route_id", "service_id"] {
            payload.extend(usual.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        shape.extend(ctx, bodies, &mut payload);
        out.insert("httpRequest".to_owned(), http_request(&usual));
        payload
    });
    out.insert("jsonPayload".to_owned(), Value::Object(payload));
    out.insert("labels".to_owned(), json!({"source": "apache-apisix-google-cloud-logging"}));
    let now_ms = env.unix_time().as_millis() as u64;
    out.insert("timestamp".to_owned(), utc::rfc3339(now_ms).into());
    out.insert("resource".to_owned(), resource.clone());
    out.insert("insertId".to_owned(), ctx.request_id().into());
    Value::Object(out)
}

/// The usual fields of an entry in the words of the service.
fn http_request(usual: &Value) -> Value {
    const MEMBERS: [(&str, &str); 8] = [
        ("requestMethod", "/request/method"),
        ("requestUrl", "/request/url"),
        ("requestSize", "/request/size"),
        ("status", "/response/status"),
        ("responseSize", "/response/size"),
        ("userAgent", "/request/headers/user-agent"),
        ("remoteIp", "/client_ip"),
        ("serverIp", "/upstream"),
    ];
    let mut request = Map::new();
    for (name, pointer) in MEMBERS {
        let value = match usual.pointer(pointer) {
            // Of a field that came several times, the first.
            Some(Value::Array(values)) => values.first(),
            value => value,
        };
        request.extend(value.map(|value| (name.to_owned(), value.clone())));
    }
    let latency = usual.get("latency").and_then(Value::as_f64).unwrap_or_default();
    request.insert("latency".to_owned(), format!("{:.3}s", latency / 1000.0).into());
    Value::Object(request)
}

/// The service that takes batches.
struct Service {
    /// The file with the account, unless the configuration has it.
    file: Option<PathBuf>,
    account: OnceCell<Account>,
    /// The identity of the machine, instead of an account.
    machine: Option<MachineAccount>,
    log_id: String,
    tokens: Tokens,
    sender: HttpSender,
}

/// The identity of the machine at Google Cloud, and its use.
struct MachineAccount {
    identities: Arc<CloudIdentities>,
    project: String,
    entries: Address,
    is_verified: bool,
}

impl MachineAccount {
    fn new(settings: &MachineProject, verifies: bool, build: &Build<'_>) -> Result<MachineAccount, String> {
        let machine = MachineAccount {
            identities: build.node.part(CloudIdentities::default),
            project: settings.project_id.clone(),
            entries: settings.entries_uri.clone(),
            is_verified: verifies && settings.entries_uri.as_str().starts_with("https://"),
        };
        machine.identities.check(Cloud::Gcp, machine.recipient())?;
        Ok(machine)
    }

    fn recipient(&self) -> Recipient<'_> {
        Recipient { host: self.entries.host(), is_verified: self.is_verified }
    }

    /// Returns the value of `Authorization`.
    fn authorization(&self) -> Result<String, String> {
        let now_s = Host.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let token = self.identities.token(Cloud::Gcp, self.recipient(), now_s);
        token.map(|token| format!("Bearer {}", token.reveal())).map_err(|error| error.to_string())
    }
}

impl Service {
    fn new(config: &Config, build: &Build<'_>) -> Result<Service, String> {
        let account = config.auth_config.as_ref().map(Account::new).transpose()?;
        let machine = config.machine_identity.as_ref();
        let machine =
            machine.map(|settings| MachineAccount::new(settings, config.ssl_verify, build)).transpose()?;
        let addresses = account.iter().flat_map(|account| [account.entries.clone(), account.token.clone()]);
        let addresses: Vec<_> =
            addresses.chain(machine.iter().map(|machine| machine.entries.clone())).collect();
        let transport = Transport::new(batch::seconds(config.timeout), config.ssl_verify);
        let mut fields = Fields::default();
        fields.set("content-type", "application/json", "auth_config")?;
        let sender = HttpSender::new(NAME, &addresses, transport.clone(), fields);
        Ok(Service {
            file: config.auth_file.clone(),
            account: OnceCell::new_with(account),
            machine,
            log_id: config.log_id.clone(),
            tokens: Tokens::new(transport)?,
            sender,
        })
    }

    async fn account(&self) -> Result<&Account, String> {
        let read = || async {
            let file = self.file.as_deref().ok_or("set auth_config, auth_file or machine_identity")?;
            Account::read(file).await
        };
        let account = self.account.get_or_try_init(read).await;
        account.map_err(|reason: String| format!("failed to fetch {NAME}.oauth object: {reason}"))
    }

    async fn write(&self, entries: &[Vec<u8>]) -> Result<(), String> {
        let (token, project, address) = match &self.machine {
            Some(machine) => (machine.authorization()?, &machine.project, &machine.entries),
            None => {
                let account = self.account().await?;
                (self.tokens.current(account).await?, &account.project, &account.entries)
            }
        };
        let body = payload(entries, &format!("projects/{project}/logs/{}", self.log_id));
        let answer = self.sender.post_with(address, "authorization", &token, body).await;
        let mut answer = answer.map_err(|failure| format!("failed to write log to google, {failure}"))?;
        match answer.status {
            200 => Ok(()),
            _ => Err(answer.shown_body().await),
        }
    }
}

impl Destination for Service {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move { Ok(self.write(entries).await?) })
    }
}

/// A batch, whose entries get the name of their log.
fn payload(entries: &[Vec<u8>], log: &str) -> Vec<u8> {
    let name = format!(",\"logName\":{}}}", Value::from(log));
    let named = |entry: &Vec<u8>| {
        let members = entry.strip_suffix(b"}").unwrap_or(entry);
        [members, name.as_bytes()].concat()
    };
    let entries: Vec<Vec<u8>> = entries.iter().map(named).collect();
    [br#"{"entries":["#, &entries.join(&b',')[..], br#"],"partialSuccess":false}"#].concat()
}

#[cfg(test)]
mod tests;
