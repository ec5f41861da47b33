//! The status listener: `/status`, `/status/ready`, `/status/counters`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use sigma_config::kind::Kind;
use sigma_http::FaultKind;
use sigma_observe::counters::{Counter, Totals, WorkerCounters, merge};
use sigma_plugin::Node;
use tokio::sync::{mpsc, oneshot};

use crate::operators::control_api::{self, Inspect};
use crate::operators::inspect::Inspector;
use crate::operators::pages;
use crate::process::supervisor::Request;
use crate::serving::desired::Quarantined;
use crate::serving::endpoints::Fleet;

/// What the operators' listeners see of the process.
pub(crate) struct Shared {
    counters: Vec<Arc<WorkerCounters>>,
    node: Arc<Node>,
    ready: AtomicBool,
    reloads: AtomicU64,
    last_problem: Mutex<Option<String>>,
    quarantine: Mutex<Arc<[Quarantined]>>,
    started: Instant,
    ask: mpsc::Sender<Request>,
}

impl Shared {
    pub(crate) fn new(
        counters: Vec<Arc<WorkerCounters>>,
        node: Arc<Node>,
        ask: mpsc::Sender<Request>,
    ) -> Shared {
        Shared {
            counters,
            node,
            ready: AtomicBool::new(false),
            reloads: AtomicU64::new(0),
            last_problem: Mutex::new(None),
            quarantine: Mutex::default(),
            started: Instant::now(),
            ask,
        }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    pub(crate) fn reloaded(&self, problem: Option<String>) {
        self.reloads.fetch_add(1, Ordering::Relaxed);
        *self.last_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// What is quarantined from now on.
    pub(crate) fn set_quarantine(&self, quarantine: Arc<[Quarantined]>) {
        *self.quarantine.lock().unwrap_or_else(PoisonError::into_inner) = quarantine;
    }

    /// What is quarantined. It is told even while nobody else answers.
    pub(crate) fn quarantine(&self) -> Arc<[Quarantined]> {
        Arc::clone(&self.quarantine.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) async fn ask(&self, request: Request) -> bool {
        self.ask.send(request).await.is_ok()
    }

    /// The counters of every worker.
    pub(crate) fn counters(&self) -> &[Arc<WorkerCounters>] {
        &self.counters
    }

    fn totals(&self) -> Totals {
        let mut totals = merge(&self.counters);
        // Loggers among the plugins write access lines as well.
        totals.add(Counter::AccessLinesDropped, self.node.lost_lines());
        totals
    }
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/status/ready", get(ready))
        .route("/status/counters", get(counters))
        .with_state(shared)
}

fn fault_names() -> Vec<&'static str> {
    FaultKind::ALL.iter().map(|kind| kind.error_type()).collect()
}

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    let (reply, answer) = oneshot::channel();
    let upstreams = if shared.ask(Request::Health { reply }).await {
        answer.await.unwrap_or_default()
    } else {
        Value::Null
    };
    let inspector = Inspector { shared: Arc::clone(&shared) };
    let configuration = control_api::shown(&inspector.revisions().await);
    let problem = shared.last_problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let counters: Value =
        serde_json::from_str(&shared.totals().render_json(&fault_names())).unwrap_or_default();
    let body = json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": shared.started.elapsed().as_secs(),
        "workers": shared.counters.len(),
        "reloads": shared.reloads.load(Ordering::Relaxed),
        "last_reload_problem": problem,
        "configuration": configuration,
        "upstreams": upstreams,
        "counters": counters,
    });
    json_answer(StatusCode::OK, &body)
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    // A gateway with something in quarantine serves everything else: to take it out of rotation would
    // be for whoever wrote that to decide for all.
    let quarantined: Value = shared.quarantine().iter().map(control_api::quarantined_item).collect();
    if shared.ready.load(Ordering::Relaxed) {
        return json_answer(StatusCode::OK, &json!({"status": "ok", "quarantined": quarantined}));
    }
    let error = "a worker has ended or the process is stopping";
    let body = json!({"status": "error", "error": error, "quarantined": quarantined});
    json_answer(StatusCode::SERVICE_UNAVAILABLE, &body)
}

async fn counters(State(shared): State<Arc<Shared>>) -> Response {
    let mut text = shared.totals().render_text(&fault_names());
    text.push_str("# TYPE sigma_quarantined_objects gauge\n");
    for (kind, count) in quarantined_by_kind(&shared.quarantine()) {
        text.push_str(&format!("sigma_quarantined_objects{{kind=\"{kind}\"}} {count}\n"));
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// How many objects of each kind are quarantined; all kinds, so that a series does not come and go.
pub(crate) fn quarantined_by_kind(quarantine: &[Quarantined]) -> Vec<(&'static str, u64)> {
    let of = |kind: Kind| {
        let is_of = |one: &&Quarantined| one.key.kind == kind;
        (pages::label_of(kind), quarantine.iter().filter(is_of).count() as u64)
    };
    Kind::ALL.map(of).into()
}

pub(crate) fn json_answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Health of all checked upstreams, nodes in the form of APISIX's `/v1/healthcheck`.
pub(crate) fn health(fleet: &Fleet) -> Value {
    let upstreams = health_by_upstream(fleet).into_iter();
    upstreams.map(|(key, _, nodes)| json!({"name": key, "nodes": nodes})).collect()
}

/// Key, kind of probe and nodes of every checked upstream.
pub(crate) fn health_by_upstream(fleet: &Fleet) -> Vec<(String, &'static str, Vec<Value>)> {
    let node = |target: sigma_upstream::health::checker::TargetStatus| {
        let standing = target.standing;
        json!({
            "ip": target.ip,
            "port": target.port,
            "hostname": target.hostname,
            "status": standing.state.name(),
            "counter": {
                "success": standing.successes,
                "http_failure": standing.http_failures,
                "tcp_failure": standing.tcp_failures,
                "timeout_failure": standing.timeouts,
            },
        })
    };
    let upstreams = fleet.health().into_iter();
    upstreams.map(|(key, probe, targets)| (key, probe, targets.into_iter().map(node).collect())).collect()
}
