//! The Admin API: resources are read and changed while the gateway runs.
//!
//! It responds as Apache APISIX's does, so that its scripts and dashboards work here;
//! `docs/admin-api.md` is the guide. A call goes peer → key → target → body → operation, and a
//! write ends in one transaction of the [`Store`]: nothing here reaches the workers, which follow
//! the store.
//!
//! | file | content |
//! |---|---|
//! | `access` | authentication of callers |
//! | `collection` | the roster of collections, and their paths |
//! | `call`, `decode` | the parsed call |
//! | `read`, `filter` | reading resources |
//! | `write`, `patch` | writing resources |
//! | `rules`, `credentials` | checks against the other resources |
//! | `proposal` | warnings that come from resources together |
//! | `secrecy` | encryption and masking of secrets |
//! | `configs` | the whole configuration at once |
//! | `history`, `rollback` | the history of changes, and rollback |
//! | `catalogue`, `openapi` | the schemas of resources, and the description of calls |
//! | `process` | data of the running gateway |
//! | `dashboard` | the page for browsers |
//! | `reply` | the format of responses |

mod access;
mod call;
mod catalogue;
mod collection;
mod configs;
mod convert;
mod credentials;
mod dashboard;
mod decode;
mod decoration;
mod filter;
mod history;
mod key;
mod openapi;
mod patch;
mod process;
mod proposal;
mod read;
mod reply;
mod rollback;
mod rules;
mod secrecy;
#[cfg(test)]
mod tests;
mod write;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Extensions, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde_json::{Value, json};
use sigma_config::Surroundings;
use sigma_config::crypt::Keyring;
use sigma_config::kind::Kind;
use sigma_config::settings::{Admin, AdminApiVersion, Operators, RouterKind, Settings, UnknownFields};
use sigma_config::stored::{self, AllowedFiles};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginSchemas;
use tokio::sync::RwLock;

use crate::operators::audit::{KeyOf, WrittenRevision};
use crate::operators::caller::Trusted;
use crate::operators::explain::{ExplainQuery, Explainer};
use crate::operators::history::HistoryReader;
use crate::operators::identity::CertificateOf;
use crate::operators::members::Listing;
use crate::operators::refused_call::RefusedCall;
use crate::operators::stress::StressCall;
use crate::operators::tap::Tapping;
use crate::serving::clock::unix_seconds;
use crate::serving::purges::Purges;
use crate::serving::trial::Trial;
use crate::store::history::{Author, By};
use crate::store::{Store, StoreError, Transaction};
pub(crate) use catalogue::{attributes as plugin_attributes, resource_schemas};
pub(crate) use collection::ProcessQuery;
pub use key::{KeyFile, KeyFileError, settle_key};
pub(crate) use proposal::Proposal;

use call::{Arguments, Call, Preconditions};
use collection::{ROOT, ResourcePath, Target};
use reply::{Outcome, Refusal, Reply};

/// Reads the files again. The error is the reason why everything stays as it is.
pub(crate) type Reload = dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync;

/// Returns the warnings about a change with the resources that are served. None while a write up to the revision is not
/// known there.
pub(crate) type Foresee = dyn Fn(&Proposal, u64) -> Option<Vec<Problem>> + Send + Sync;

/// The calls to the running gateway.
pub(crate) struct ProcessCalls {
    /// Answers queries.
    pub(crate) query: Arc<dyn Fn(ProcessQuery) -> Value + Send + Sync>,
    /// Sets the state of a node of an upstream, which the body names.
    pub(crate) set_node_state: Arc<SetNodeState>,
    /// Orders the certificate of an ssl.
    pub(crate) order: Arc<OrderNow>,
    /// Starts, stops and shows stress tests.
    pub(crate) stress: Arc<Stress>,
}

/// See [`ProcessCalls::set_node_state`].
pub(crate) type SetNodeState = dyn Fn(&str, &str, Option<&Value>) -> Result<Value, RefusedCall> + Send + Sync;

/// See [`ProcessCalls::stress`].
pub(crate) type Stress = dyn Fn(StressCall<'_>) -> Result<Value, RefusedCall> + Send + Sync;

/// See [`ProcessCalls::order`].
pub(crate) type OrderNow =
    dyn Fn(String) -> Pin<Box<dyn Future<Output = Result<(), RefusedCall>> + Send>> + Send + Sync;

/// The documentation of a plugin by its name.
pub type Documentation = dyn Fn(&str) -> Option<String> + Send + Sync;

/// State of the Admin API.
pub struct AdminState {
    /// Where resources are kept.
    pub store: Arc<dyn Store>,
    /// The plugins of this build.
    pub plugins: Arc<dyn PluginSchemas>,
    /// Encrypts secrets in the store.
    pub keyring: Keyring,
    /// The operator's settings, keys included.
    pub settings: Admin,
    /// The prefix of store keys in responses: `/apisix`, or the prefix in etcd.
    pub key_prefix: String,
    pub(crate) gateway: GatewayCalls,
    /// The page of a plugin in the reference, in Markdown.
    pub documentation: Arc<Documentation>,
    /// A short description of each plugin.
    pub summaries: Arc<dyn Fn() -> Value + Send + Sync>,
    /// The checks of a write beyond the schema of its resource.
    pub rules: WriteRules,
    /// A client that stops in the middle of its body is waited for this long.
    body_timeout: Duration,
    callers: Callers,
    /// Writes that depend only on the objects that they name share it; writes that check a whole collection
    /// hold it alone. So no reference is left dangling by two calls at once. Other nodes of an etcd are not
    /// held off by it, as they are not in APISIX.
    writes: RwLock<()>,
    /// The history of changes; None if no history is kept.
    pub(crate) history: Option<Arc<HistoryReader>>,
}

/// The calls of the API to the gateway; each is None where nothing is served.
#[derive(Default)]
pub(crate) struct GatewayCalls {
    pub(crate) process: Option<ProcessCalls>,
    /// Lists the gateways of the store.
    pub(crate) members: Option<Arc<dyn Fn() -> Listing + Send + Sync>>,
    /// Reads the configuration and the files of plugins again.
    pub(crate) reload: Option<Arc<Reload>>,
    /// Has caches forget.
    pub(crate) purges: Option<Arc<Purges>>,
    /// Returns warnings that come from resources together.
    pub(crate) foresee: Option<Arc<Foresee>>,
    /// Explains requests.
    pub(crate) explainer: Option<Arc<Explainer>>,
    /// Opens taps.
    pub(crate) tapping: Option<Arc<Tapping>>,
}

/// The checks of a write beyond the schema of its resource.
pub struct WriteRules {
    /// Tries a write before it is stored; None: every value that passes its check is stored.
    pub trial: Option<Trial>,
    /// The handling of unknown fields.
    pub unknown_fields: UnknownFields,
    /// The files that resources may name.
    pub files: AllowedFiles,
    /// The router, for messages about routes.
    pub router: RouterKind,
    /// The setting `trusted_addresses` names proxies.
    pub trusts_proxies: bool,
    /// Whether stream routes may be written: no, while nothing listens for streams.
    pub has_streams: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl WriteRules {
    fn new() -> WriteRules {
        WriteRules {
            trial: None,
            unknown_fields: UnknownFields::default(),
            files: AllowedFiles::default(),
            router: RouterKind::default(),
            trusts_proxies: false,
            has_streams: Arc::new(|| true),
        }
    }

    /// Applies the settings about resources.
    fn apply(&mut self, settings: &Settings) {
        self.unknown_fields = settings.compat.unknown_fields;
        self.files = AllowedFiles::of(settings);
        self.router = settings.router.http;
        self.trusts_proxies = !settings.trusted_addresses.is_empty();
    }
}

/// The identities of callers.
struct Callers {
    /// Callers that need no key.
    trusted: Trusted,
    /// The index of identities.
    credentials: credentials::Credentials,
    reader: Arc<credentials::Reader>,
    /// The names of the keys of the settings, in their order.
    key_names: Vec<Arc<str>>,
}

impl AdminState {
    /// An Admin API over a store, with APISIX's key prefix.
    pub fn new(
        store: Arc<dyn Store>,
        plugins: Arc<dyn PluginSchemas>,
        keyring: Keyring,
        settings: Admin,
    ) -> AdminState {
        let reader =
            Arc::new(credentials::Reader { keyring: keyring.clone(), plugins: Arc::clone(&plugins) });
        let key_names = settings.keys.iter().map(key::name_of).collect();
        AdminState {
            store,
            plugins,
            keyring,
            settings,
            key_prefix: "/apisix".to_owned(),
            gateway: GatewayCalls::default(),
            documentation: Arc::new(|_| None),
            summaries: Arc::new(|| json!({})),
            rules: WriteRules::new(),
            body_timeout: Duration::from_millis(Operators::default().body_timeout_ms.into()),
            callers: Callers {
                trusted: Trusted::default(),
                credentials: credentials::Credentials::default(),
                reader,
                key_names,
            },
            writes: RwLock::new(()),
            history: None,
        }
    }

    /// Applies the settings of the listeners about callers.
    pub fn behind(&mut self, operators: &Operators) {
        self.body_timeout = Duration::from_millis(operators.body_timeout_ms.into());
        self.callers.trusted = Trusted::from(operators);
    }

    /// Applies the settings about resources.
    pub fn check_by(&mut self, settings: &Settings) {
        self.rules.apply(settings);
    }

    /// Whether a resource that has passed its check could be served.
    fn try_out(&self, kind: Kind, id: &str, value: &Value) -> Result<(), String> {
        self.rules.trial.as_ref().map_or(Ok(()), |trial| trial.run(kind, id, value))
    }

    /// Every write of the API.
    async fn commit(&self, call: &Call, transaction: Transaction) -> Result<u64, StoreError> {
        self.commit_back(call, transaction, None).await
    }

    /// The same of a write that may bring back a version.
    async fn commit_back(
        &self,
        call: &Call,
        transaction: Transaction,
        rollback_to: Option<u64>,
    ) -> Result<u64, StoreError> {
        let revision = self.store.commit(transaction).await?;
        self.callers.credentials.wrote(revision);
        call.made.store(revision, Ordering::Relaxed);
        if let Some(reader) = &self.history {
            reader.history.wrote(revision, call.author.clone(), rollback_to);
        }
        Ok(revision)
    }

    /// The history, if it is kept.
    fn history(&self) -> Result<&HistoryReader, Refusal> {
        self.history.as_deref().ok_or_else(|| {
            let message = "the history is off: `history.keep` is 0; raise it and restart the gateway";
            Refusal::new(StatusCode::NOT_FOUND, message)
        })
    }

    /// The paths, for callers that have found none of them.
    fn overview(&self) -> String {
        let dashboard = if self.settings.ui { "the dashboard is at /ui/; " } else { "" };
        format!(
            "not found; {dashboard}the Admin API has {ROOT}/routes, {ROOT}/upstreams, {ROOT}/consumers and others: see docs/admin-api-calls.md"
        )
    }

    /// A store key as answers name it.
    fn shown_key(&self, key: &str) -> String {
        format!("{}/{key}", self.key_prefix)
    }

    /// Checks a resource by itself, see [`stored::check`]; returns what its writer should know.
    ///
    /// # Errors
    /// Returns an error, which is the whole text of the response, if the value is refused.
    fn check(&self, kind: Kind, id: Option<&str>, value: &Value) -> Result<Vec<Problem>, String> {
        stored::check(kind, id, value, &*self.plugins, self.rules.unknown_fields)?;
        let refused = self.rules.files.check(kind, id, value, &*self.plugins);
        refused.map_err(|reason| format!("invalid configuration: {reason}"))?;
        let (plugins, unknown) = (&*self.plugins, self.rules.unknown_fields);
        let (router, trusts_proxies) = (self.rules.router, self.rules.trusts_proxies);
        let around = Surroundings { plugins, unknown, router, now: unix_seconds(), trusts_proxies };
        Ok(stored::warnings(kind, id, value, &around))
    }

    /// See [`secrecy::open`].
    fn open(&self, kind: Kind, value: &mut Value) {
        secrecy::open(&self.keyring, kind, value, &*self.plugins);
    }
}

/// Unix time in seconds.
fn now() -> u64 {
    // A clock before 1970 is as good as none.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the API as a service, with the dashboard; it needs the peer's address ([`ConnectInfo`]).
pub fn router(state: AdminState) -> Router {
    let state = Arc::new(state);
    let api = Router::new().fallback(serve);
    let router = match state.settings.ui {
        true => api
            .route("/ui", any(dashboard::serve))
            .route("/ui/{*path}", any(dashboard::serve))
            .route("/ui/", any(dashboard::serve)),
        false => api,
    };
    router.with_state(state)
}

async fn serve(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    answer(&state, peer, request).await
}

/// The response to one call. It needs a runtime with a clock, and nothing else of the machine.
pub async fn answer(state: &AdminState, peer: SocketAddr, request: Request) -> Response {
    let readers = access::readers(state, request.headers());
    let mut seen = Seen::default();
    let reply = match admitted(state, peer, request, &mut seen).await {
        Ok(reply) => reply,
        Err(refusal) => refusal.into(),
    };
    let mut response = reply.into_response();
    access::stamp(readers, response.headers_mut());
    seen.tell(response.extensions_mut());
    response
}

/// The data of a call for the audit log.
#[derive(Default)]
struct Seen {
    key: Option<Arc<str>>,
    /// The revision that the call has made; 0 if none.
    made: Arc<AtomicU64>,
}

impl Seen {
    fn tell(self, extensions: &mut Extensions) {
        if let Some(key) = self.key {
            extensions.insert(KeyOf(key));
        }
        let made = self.made.load(Ordering::Relaxed);
        if made > 0 {
            extensions.insert(WrittenRevision(made));
        }
    }
}

/// Checks everything up to the body: refusals here cost nothing.
async fn admitted(state: &AdminState, peer: SocketAddr, request: Request, seen: &mut Seen) -> Outcome {
    let (head, body) = request.into_parts();
    access::admit(state, peer.ip(), &head.headers)?;
    let target = collection::target(head.uri.path());
    let not_found = || Err(Refusal::new(StatusCode::NOT_FOUND, "not found"));
    let method = match head.method {
        Method::OPTIONS if state.settings.cors && target != Target::Nothing => return Ok(access::preflight()),
        Method::HEAD if target == Target::Root => return Ok(Reply::empty(StatusCode::OK)),
        Method::HEAD => Method::GET,
        Method::GET | Method::PUT | Method::POST | Method::PATCH | Method::DELETE => head.method,
        _ => return not_found(),
    };
    match target {
        Target::Start | Target::Root => return Err(Refusal::new(StatusCode::NOT_FOUND, state.overview())),
        Target::Nothing => return not_found(),
        // It tells nothing that the documentation does not.
        Target::OpenApi if method == Method::GET => return openapi::serve(),
        _ => {}
    }
    let arguments = Arguments::parse(head.uri.query().unwrap_or_default());
    let caller = access::recognise(state, &method, &arguments, &head.headers)?;
    seen.key = caller.key.clone();
    caller.check(&method)?;
    let preconditions = Preconditions::read(&head.headers);
    let certificate = head.extensions.get::<CertificateOf>();
    let author = Author {
        key: caller.key.as_deref().map(str::to_owned),
        certificate: certificate.map(|CertificateOf(subject)| subject.to_string()),
        address: Some(peer.ip().to_string()),
        ..Author::of(By::Admin)
    };
    let made = Arc::clone(&seen.made);
    let call = Call { method, arguments, preconditions, role: caller.role, author, made, body: None };
    call.check_dry_run()?;
    let limit = state.settings.body_bytes as usize;
    match target {
        Target::Resource(place) => {
            if place.collection.is(Kind::StreamRoute) && !(state.rules.has_streams)() {
                return Err(Refusal::bad("stream mode is disabled, can not add stream routes"));
            }
            let text = call::read(state, &head.headers, body, limit).await?;
            let call = Call { body: call::decoded(&text)?, ..call };
            call.ttl()?;
            let mut reply = operate(state, &place, &call).await.unwrap_or_else(Reply::from);
            let version = match state.settings.api_version {
                AdminApiVersion::V3 => "v3",
                AdminApiVersion::V2 => "v2",
            };
            reply = reply.with("x-api-version", version);
            Ok(if call.is_dry() { reply.with("sigma-dry-run", "true") } else { reply })
        }
        Target::UnknownCollection(segment) => {
            Err(Refusal::new(StatusCode::NOT_FOUND, format_args!("Unsupported resource type: {segment}")))
        }
        Target::Explain => explain(state, &call).await,
        Target::History(wanted) => history::serve(state, &call, wanted).await,
        Target::Configs => configs::whole(state, &call, &head.headers, body).await,
        Target::ConfigsValidate => configs::validate(state, &call, &head.headers, body).await,
        Target::Caller => process::caller(state, &call),
        Target::Tap => process::tap(state, &call),
        Target::Members => process::members(state, &call).await,
        Target::Process(question) => process::answer(state, question, &call),
        other => {
            let text = call::read(state, &head.headers, body, limit).await?;
            let call = Call { body: call::decoded(&text)?, ..call };
            match other {
                Target::Schema(name) => catalogue::schema(state, &name, &call),
                Target::Plugin(name) => catalogue::plugin(state, &name, &call),
                Target::Documentation(name) => catalogue::documentation(state, &name, &call),
                Target::Plugins => catalogue::plugins(state, &call),
                Target::PluginNames => catalogue::names(state, &call),
                Target::PluginSummaries => catalogue::summaries(state, &call),
                Target::PluginReload => catalogue::reload(state, &call).await,
                Target::Validate(segment) => catalogue::validate(&segment, &call),
                Target::Purge => process::purge(state, &call).await,
                Target::NodeState { upstream, node } => process::node_state(state, &upstream, &node, &call),
                Target::Order(ssl) => process::order(state, &ssl, &call).await,
                Target::Stress(upstream) => process::stress(state, upstream.as_deref(), &call),
                Target::Convert(format) => convert::convert(&format, &call).await,
                _ => not_found(),
            }
        }
    }
}

/// Explains the result of a request.
async fn explain(state: &AdminState, call: &Call) -> Outcome {
    let explainer = state.gateway.explainer.as_ref().filter(|_| call.method == Method::GET);
    let Some(explainer) = explainer else { return Err(Refusal::new(StatusCode::NOT_FOUND, "not found")) };
    let explained = explainer.explain(ExplainQuery::read(call.arguments.pairs())).await?;
    Ok(Reply::json(StatusCode::OK, explained))
}

/// An operation on resources.
async fn operate(state: &AdminState, place: &ResourcePath, call: &Call) -> Outcome {
    if place.collection.refused.contains(&call.method.as_str()) {
        let message = format!("not supported `{}` method for {}", call.method, place.collection.word);
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    match call.method {
        Method::PUT => write::put(state, place, call).await,
        Method::POST => write::post(state, place, call).await,
        Method::PATCH => write::patch(state, place, call).await,
        Method::DELETE => write::delete(state, place, call).await,
        _ => read::get(state, place, call).await,
    }
}
