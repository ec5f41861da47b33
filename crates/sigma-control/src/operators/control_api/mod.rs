//! The Control API (`/v1/…`): the served configuration, as opposed to the stored one.
//!
//! It needs no key and belongs on a loopback address. The running gateway answers through [`Inspect`]; everything
//! here only puts answers into APISIX's form. `/v1/revision`, `/v1/certificates` and `/v1/acme` are Sigma's own.

mod health_page;
mod history;
mod profiles;
mod stress;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use serde_json::{Map, Value, json};
use sigma_config::crypt::mask_resource;
use sigma_config::discovery::Registry;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_schema::Problem;
use sigma_schema::plugins::{PluginSchemas, PluginScope};
use sigma_upstream::health::NodeState;

use crate::operators::admin::{plugin_attributes, resource_schemas};
use crate::operators::explain::{ExplainQuery, Explainer};
use crate::operators::history::HistoryReader;
use crate::operators::node_states;
use crate::operators::nodes::UpstreamNodes;
use crate::operators::plugin_paths::PluginPaths;
use crate::operators::profile::Profiling;
use crate::operators::refused_call::RefusedCall;
use crate::operators::stress::StressCall;
use crate::operators::tap::{MEDIA_TYPE, Tapping};
pub use crate::serving::quarantined::{Quarantined, Standing};
use crate::store::StoreStatus;

/// A response of the process that is on its way.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Data of the running process. Every call may be made at any time, from any task of the control runtime, and
/// costs the workers nothing. Queries are answered at once, during any other work of the process.
pub trait Inspect: Send + Sync {
    /// The resources of a kind that are in force, defaults filled in.
    fn in_force(&self, kind: Kind) -> Vec<InForce>;

    /// The health of every upstream that is checked.
    fn health(&self) -> Vec<HealthReport>;

    /// Returns the data of a registry of services, in APISIX's form; None without this registry.
    fn registry(&self, registry: Registry) -> Option<Value>;

    /// Returns the stored list of a registry for the next start, in APISIX's form; None if nothing is stored.
    fn registry_file(&self, registry: Registry) -> Option<Asked<'static, Result<Value, String>>>;

    /// The nodes of every upstream in force.
    fn nodes(&self) -> Vec<UpstreamNodes>;

    /// Puts a node of an upstream, by its name or its address, into a state. Returns the resulting state: a
    /// node that the configuration takes out stays out.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no such node.
    fn set_node_state(&self, upstream: &str, node: &str, state: NodeState) -> Result<NodeState, String>;

    /// Starts, stops or shows stress tests.
    ///
    /// # Errors
    /// Returns the refusal if that cannot be.
    fn stress(&self, call: StressCall<'_>) -> Result<Value, RefusedCall>;

    /// The certificates that clients and nodes are shown: an object for each.
    fn certificates(&self) -> Vec<Value>;

    /// How the orders of certificates stand; None if none are ordered.
    fn orders(&self) -> Option<Vec<Value>>;

    /// Has the certificate of an ssl ordered now.
    ///
    /// # Errors
    /// Returns an error if that cannot be; its status is the reason's kind.
    fn order_now(&self, ssl: &str) -> Asked<'_, Result<(), RefusedCall>>;

    /// Which revision is served, and what of the store is not.
    fn revisions(&self) -> Revisions;

    /// Returns rates and times of requests: since the start, and in a window of the last seconds, which
    /// begins at the first query. Each query keeps the workers counting for some seconds.
    fn live(&self) -> Value;

    /// The gateways of the store: `members`, an object for each, the revision of the newest change that is known
    /// (`changed`), and a `problem` if the others are not known.
    fn members(&self) -> Asked<'static, Value>;

    /// Returns the data of the plugin server-info.
    fn server_info(&self) -> Asked<'static, Value>;

    /// Reads the configuration file again, as SIGHUP does.
    fn reload(&self) -> Asked<'_, Result<(), String>>;
}

/// A resource in force.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// Its kind and identity.
    pub key: ResourceKey,
    /// The resource; nodes are a list.
    pub value: Value,
    /// The store's revision in which it came into being, or its place in the file.
    pub created: u64,
    /// The store's revision in which it was written.
    pub modified: u64,
    /// Whether a node of it is a name.
    pub has_domain: bool,
}

/// The health of the nodes of one upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthReport {
    /// The resource that holds the upstream.
    pub key: ResourceKey,
    /// `http`, `https` or `tcp`.
    pub check: &'static str,
    /// `{ip, port, hostname, status, counter}` of each node.
    pub nodes: Vec<Value>,
}

/// Which revisions the process is at.
#[derive(Debug, Clone, PartialEq)]
pub struct Revisions {
    /// The store.
    pub store: StoreStatus,
    /// The newest revision that was compiled and sent to the workers.
    pub published: u64,
    /// The revision that each worker serves.
    pub workers: Vec<u64>,
    /// Objects of the store that cannot be served as they were written.
    pub quarantined: Vec<Quarantined>,
    /// Warnings about the file and the store's objects.
    pub warnings: Vec<Problem>,
}

/// State of the Control API.
pub struct ControlState {
    /// The process.
    pub inspect: Arc<dyn Inspect>,
    /// The plugins of this build.
    pub plugins: Arc<dyn PluginSchemas>,
    /// The prefix of keys in responses, e.g. `/apisix`; empty for keys of a file.
    pub key_prefix: String,
    /// The history of changes; None if no history is kept.
    pub(crate) history: Option<Arc<HistoryReader>>,
    /// Explains requests; None where nothing is served.
    pub(crate) explainer: Option<Arc<Explainer>>,
    /// Opens taps; None where nothing is served.
    pub(crate) tapping: Option<Arc<Tapping>>,
    /// Takes profiles; None where they are off.
    pub(crate) profiling: Option<Arc<Profiling>>,
    /// Paths of plugins; None where nothing is served.
    pub(crate) plugin_paths: Option<PluginPaths>,
}

impl ControlState {
    /// The Control API of a process whose keys begin with `key_prefix`.
    pub fn new(inspect: Arc<dyn Inspect>, plugins: Arc<dyn PluginSchemas>, key_prefix: &str) -> ControlState {
        ControlState {
            inspect,
            plugins,
            key_prefix: key_prefix.to_owned(),
            history: None,
            explainer: None,
            tapping: None,
            profiling: None,
            plugin_paths: None,
        }
    }
}

/// The API as a service.
pub fn router(state: ControlState) -> Router {
    Router::new()
        .route("/", get(async || refusal(StatusCode::NOT_FOUND, ROOT)))
        .route("/v1/schema", get(schema))
        .route("/v1/healthcheck", get(health))
        .route("/v1/healthcheck/{type}", get(health_without_id))
        .route("/v1/healthcheck/{type}/{id}", get(health_of))
        .route("/v1/nodes", get(nodes))
        .route("/v1/nodes/{type}/{id}", get(nodes_of))
        .route("/v1/nodes/{type}/{id}/{node}", put(set_node_state))
        .route("/v1/stress", get(stress::all))
        .route("/v1/stress/{type}/{id}", get(stress::show).post(stress::start).delete(stress::stop))
        .route("/v1/routes", get(|state| list(state, Kind::Route)))
        .route("/v1/services", get(|state| list(state, Kind::Service)))
        .route("/v1/upstreams", get(|state| list(state, Kind::Upstream)))
        .route("/v1/route/{id}", get(|state, id| one(state, Kind::Route, id)))
        .route("/v1/service/{id}", get(|state, id| one(state, Kind::Service, id)))
        .route("/v1/upstream/{id}", get(|state, id| one(state, Kind::Upstream, id)))
        .route("/v1/plugin_metadatas", get(all_metadata))
        .route("/v1/plugin_metadata/{plugin}", get(metadata))
        .route("/v1/gc", post(async || StatusCode::OK))
        .route("/v1/plugins/reload", put(reload))
        .route("/v1/revision", get(revision))
        .route("/v1/members", get(members))
        .route("/v1/server_info", get(server_info))
        .route("/v1/explain", get(explain))
        .route("/v1/tap", get(tap))
        .route("/v1/profile/cpu", get(profiles::cpu))
        .route("/v1/profile/heap", get(profiles::heap))
        .route("/v1/history", get(history::list))
        .route("/v1/history/{version}", get(history::one))
        .route("/v1/history/{from}/diff/{to}", get(history::difference))
        .route("/v1/history/{version}/rollback", post(history::rollback))
        .route("/v1/certificates", get(certificates))
        .route("/v1/acme", get(orders))
        .route("/v1/acme/{ssl}/order", post(order_now))
        .route("/v1/discovery/{type}/dump", get(registry_dump))
        .route("/v1/discovery/{type}/show_dump_file", get(registry_file))
        .fallback(plugin_path)
        // As APISIX, whose router knows no path without its method.
        .method_not_allowed_fallback(async || refusal(StatusCode::NOT_FOUND, "not found"))
        .with_state(Arc::new(state))
}

/// The message at the root.
const ROOT: &str = "not found; the Control API has /v1/routes, /v1/nodes, /v1/revision, /v1/certificates, \
                    /v1/explain, /v1/members, /v1/healthcheck, /v1/schema and others: see docs/control-api.md";

/// The message where no certificates are ordered.
pub(crate) const NO_ORDERS: &str = "this gateway orders no certificates: set `acme`";

pub(crate) use profiles::NOT_BUILT;

type Control = State<Arc<ControlState>>;

/// Responds to a request for a path of a plugin; an unknown path is 404.
async fn plugin_path(State(state): Control, request: Request) -> Response {
    let found = match &state.plugin_paths {
        Some(paths) => paths.respond(request).await,
        None => None,
    };
    found.unwrap_or_else(|| refusal(StatusCode::NOT_FOUND, "not found"))
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

fn found(body: &Value) -> Response {
    answer(StatusCode::OK, body)
}

fn refusal(status: StatusCode, message: impl Into<String>) -> Response {
    answer(status, &json!({"error_msg": message.into()}))
}

async fn schema(State(state): Control) -> Response {
    let plugins = |scope| Value::Object(plugin_attributes(&*state.plugins, scope));
    let mut main = resource_schemas(&*state.plugins);
    main.insert(
        "upstream_hash_header_schema".to_owned(),
        json!({"type": "string", "pattern": "^[a-zA-Z0-9-_]+$"}),
    );
    main.insert(
        "upstream_hash_vars_schema".to_owned(),
        json!({
            "type": "string",
            "pattern": "^((uri|server_name|server_addr|request_uri|remote_port|remote_addr|query_string|\
                host|hostname|mqtt_client_id)|arg_[0-9a-zA-z_-]+)$",
        }),
    );
    found(&json!({
        "main": main,
        "plugins": plugins(PluginScope::Http),
        "stream_plugins": plugins(PluginScope::Stream),
    }))
}

/// A list; an empty one is an empty object, as Lua has but one of the two.
fn listed(items: impl Iterator<Item = Value>) -> Value {
    let items: Vec<Value> = items.collect();
    if items.is_empty() { json!({}) } else { items.into() }
}

/// Removes fields of an upstream that APISIX shows only if they were written: here the types always have
/// them.
fn without_silent_defaults(upstream: &mut Value) {
    let is_zero = |value: Option<&Value>| value.and_then(Value::as_f64) == Some(0.0);
    let Some(upstream) = upstream.as_object_mut() else { return };
    if is_zero(upstream.get("retry_timeout")) {
        upstream.shift_remove("retry_timeout");
    }
    let nodes = upstream.get_mut("nodes").and_then(Value::as_array_mut);
    for node in nodes.into_iter().flatten().filter_map(Value::as_object_mut) {
        if is_zero(node.get("priority")) {
            node.shift_remove("priority");
        }
    }
}

impl ControlState {
    /// Adds the defaults of plugins, and `_meta`, which APISIX gives to every plugin.
    fn fill_plugins(&self, resource: &mut Value) {
        let confs = resource.get_mut("plugins").and_then(Value::as_object_mut);
        for (name, conf) in confs.into_iter().flatten() {
            self.plugins.show_defaults(name, PluginScope::Http, conf);
            if let Some(conf) = conf.as_object_mut() {
                conf.entry("_meta").or_insert_with(|| json!({}));
            }
        }
    }

    fn shown_key(&self, key: &ResourceKey) -> String {
        format!("{}/{key}", self.key_prefix)
    }

    fn health(&self, report: HealthReport) -> Value {
        json!({"name": self.shown_key(&report.key), "type": report.check, "nodes": report.nodes})
    }

    fn metadata(&self, mut item: InForce) -> Value {
        mask_resource(item.key.kind, &mut item.value, &*self.plugins);
        item.value
    }

    fn item(&self, mut item: InForce) -> Value {
        self.fill_plugins(&mut item.value);
        if let Some(route) = item.value.as_object_mut().filter(|_| item.key.kind == Kind::Route)
            && route.get("method_not_allowed") == Some(&Value::Bool(false))
        {
            route.shift_remove("method_not_allowed");
        }
        match item.key.kind {
            Kind::Upstream => without_silent_defaults(&mut item.value),
            _ => item.value.get_mut("upstream").map_or((), without_silent_defaults),
        }
        // It needs no key.
        mask_resource(item.key.kind, &mut item.value, &*self.plugins);
        let mut shown = Map::new();
        shown.insert("key".into(), self.shown_key(&item.key).into());
        shown.insert("value".into(), item.value);
        shown.insert("createdIndex".into(), item.created.into());
        shown.insert("modifiedIndex".into(), item.modified.into());
        shown.insert("has_domain".into(), item.has_domain.into());
        if item.key.kind == Kind::Route {
            shown.insert("orig_modifiedIndex".into(), item.modified.into());
        }
        Value::Object(shown)
    }
}

async fn health(State(state): Control, headers: HeaderMap) -> Response {
    let reports = state.inspect.health().into_iter().map(|report| state.health(report));
    match health_page::is_wanted(&headers) {
        true => health_page::answer(&reports.collect::<Vec<_>>()),
        false => found(&listed(reports)),
    }
}

/// The kinds whose health can be requested.
fn checked_kind(section: &str) -> Option<Kind> {
    let kinds = [Kind::Route, Kind::Service, Kind::Upstream, Kind::StreamRoute];
    kinds.into_iter().find(|kind| kind.section() == section)
}

async fn health_without_id(Path(section): Path<String>) -> Response {
    match checked_kind(&section) {
        Some(_) => refusal(StatusCode::NOT_FOUND, format!("missing src id for src type {section}")),
        None => refusal(StatusCode::BAD_REQUEST, format!("invalid src type {section}")),
    }
}

async fn health_of(
    State(state): Control,
    Path((section, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let Some(kind) = checked_kind(&section) else {
        return refusal(StatusCode::BAD_REQUEST, format!("invalid src type {section}"));
    };
    let key = ResourceKey::new(kind, id.as_str());
    let reports = state.inspect.health();
    if let Some(report) = reports.into_iter().find(|report| report.key == key) {
        let report = state.health(report);
        return if health_page::is_wanted(&headers) {
            health_page::answer(&[report])
        } else {
            found(&report)
        };
    }
    let exists = state.inspect.in_force(kind).iter().any(|item| item.key == key);
    let message = match exists {
        true => format!("no checker for {section}[{id}]"),
        false => format!("{section}[{id}] not found"),
    };
    refusal(StatusCode::NOT_FOUND, message)
}

async fn registry_dump(Path(word): Path<String>, State(state): Control) -> Response {
    match word.parse().ok().and_then(|registry| state.inspect.registry(registry)) {
        Some(dump) => found(&dump),
        None => refusal(StatusCode::NOT_FOUND, "not found"),
    }
}

async fn registry_file(Path(word): Path<String>, State(state): Control) -> Response {
    let Some(stored) = word.parse().ok().and_then(|registry| state.inspect.registry_file(registry)) else {
        return refusal(StatusCode::NOT_FOUND, "not found");
    };
    match stored.await {
        Ok(stored) => found(&stored),
        Err(reason) => refusal(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

async fn nodes(State(state): Control) -> Response {
    let all: Vec<Value> = state.inspect.nodes().into_iter().map(UpstreamNodes::shown).collect();
    found(&all.into())
}

async fn nodes_of(State(state): Control, Path((section, id)): Path<(String, String)>) -> Response {
    let key = format!("{section}/{id}");
    match state.inspect.nodes().into_iter().find(|upstream| upstream.key == key) {
        Some(upstream) => found(&upstream.shown()),
        None => refusal(StatusCode::NOT_FOUND, format!("{key} has no upstream")),
    }
}

async fn set_node_state(
    State(state): Control,
    Path((section, id, node)): Path<(String, String, String)>,
    body: Bytes,
) -> Response {
    let body: Option<Value> = serde_json::from_slice(&body).ok();
    let change = |upstream: &str, node: &str, wanted| state.inspect.set_node_state(upstream, node, wanted);
    match node_states::set(&change, &format!("{section}/{id}"), &node, body.as_ref()) {
        Ok(set) => found(&set),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

async fn list(State(state): Control, kind: Kind) -> Response {
    let items = state.inspect.in_force(kind);
    found(&listed(items.into_iter().map(|item| state.item(item))))
}

async fn one(State(state): Control, kind: Kind, Path(id): Path<String>) -> Response {
    let items = state.inspect.in_force(kind);
    match items.into_iter().find(|item| item.key.id == id) {
        Some(item) => found(&state.item(item)),
        None => refusal(StatusCode::NOT_FOUND, format!("{}[{id}] not found", kind.word())),
    }
}

async fn all_metadata(State(state): Control) -> Response {
    let items = state.inspect.in_force(Kind::PluginMetadata);
    found(&listed(items.into_iter().map(|item| state.metadata(item))))
}

async fn metadata(State(state): Control, Path(plugin): Path<String>) -> Response {
    let items = state.inspect.in_force(Kind::PluginMetadata);
    match items.into_iter().find(|item| item.key.id == plugin) {
        Some(item) => found(&state.metadata(item)),
        None => refusal(StatusCode::NOT_FOUND, format!("plugin metadata[{plugin}] not found")),
    }
}

async fn reload(State(state): Control) -> Response {
    match state.inspect.reload().await {
        Ok(()) => (StatusCode::OK, "done").into_response(),
        Err(reason) => refusal(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

async fn explain(State(state): Control, RawQuery(query): RawQuery) -> Response {
    let Some(explainer) = &state.explainer else { return refusal(StatusCode::NOT_FOUND, "not found") };
    let query = query.unwrap_or_default();
    let arguments = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    match explainer.explain(ExplainQuery::read(arguments)).await {
        Ok(explained) => found(&explained),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

async fn tap(State(state): Control, RawQuery(query): RawQuery) -> Response {
    let Some(tapping) = &state.tapping else { return refusal(StatusCode::NOT_FOUND, "not found") };
    if !tapping.is_open_to_all() {
        let message = "the Control API does not show exchanges: use the Admin API with a key of the role admin, or set `tap.control_api`";
        return refusal(StatusCode::FORBIDDEN, message);
    }
    let query = query.unwrap_or_default();
    let arguments: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    match tapping.open(&arguments) {
        Ok(body) => ([(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response(),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

async fn members(State(state): Control) -> Response {
    found(&state.inspect.members().await)
}

async fn server_info(State(state): Control) -> Response {
    // The plugin serves it: without that there is no such path.
    match state.plugins.names().contains(&"server-info") {
        true => found(&state.inspect.server_info().await),
        false => refusal(StatusCode::NOT_FOUND, "not found"),
    }
}

async fn certificates(State(state): Control) -> Response {
    found(&state.inspect.certificates().into())
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn orders(State(state): Control) -> Response {
    match state.inspect.orders() {
        Some(orders) => found(&orders.into()),
        None => refusal(StatusCode::NOT_FOUND, NO_ORDERS),
    }
}

async fn order_now(State(state): Control, Path(ssl): Path<String>) -> Response {
    match state.inspect.order_now(&ssl).await {
        Ok(()) => answer(StatusCode::ACCEPTED, &json!({"ssl": ssl, "state": "ordering"})),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

async fn revision(State(state): Control) -> Response {
    found(&shown(&state.inspect.revisions()))
}

fn warning(problem: &Problem) -> Value {
    json!({"place": problem.pointer, "message": problem.message, "remedy": problem.hint})
}

pub(crate) fn quarantined_item(one: &Quarantined) -> Value {
    json!({
        "key": one.key.to_string(),
        "reason": one.reason,
        "since": unix_seconds(one.since),
        "revision": one.revision,
        "served": one.standing.name(),
        "last_good_served": one.standing == Standing::LastGood,
    })
}

/// Returns the served revision and its source, for operators.
pub(crate) fn shown(revisions: &Revisions) -> Value {
    let store = &revisions.store;
    let lost =
        store.lost.as_ref().map(|(since, reason)| json!({"since": unix_seconds(*since), "reason": reason}));
    let workers: Vec<Value> = revisions
        .workers
        .iter()
        .enumerate()
        .map(|(worker, revision)| json!({"worker": worker, "revision": revision}))
        .collect();
    let quarantined: Vec<Value> = revisions.quarantined.iter().map(quarantined_item).collect();
    // A revision that all workers have passed is in force everywhere.
    let served = revisions.workers.iter().min().copied().unwrap_or(revisions.published);
    json!({
        "revision": served,
        "published": revisions.published,
        "workers": workers,
        "store": {
            "kind": store.kind,
            "revision": store.revision,
            "lost": lost,
            "copied": store.copied.map(unix_seconds),
        },
        "quarantined": quarantined,
        "warnings": revisions.warnings.iter().map(warning).collect::<Vec<_>>(),
    })
}
