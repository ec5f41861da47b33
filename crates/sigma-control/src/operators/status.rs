//! The status listener: `/status`, `/status/ready`, `/status/counters`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use crate::operators::control_api::{self, Inspect};
use crate::operators::measures;
use crate::operators::pages::quarantined_by_kind;
use crate::operators::running::{Running, fault_names};
use crate::operators::{documents, registration, runner, scripts};

/// The body of a 404.
const PATHS: &str =
    "not found; the status listener has these paths:\n/status\n/status/ready\n/status/counters\n";

pub(crate) fn router(running: Arc<Running>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/status/ready", get(ready))
        .route("/status/counters", get(counters))
        .fallback(async || (StatusCode::NOT_FOUND, PATHS))
        .with_state(running)
}

async fn status(State(running): State<Arc<Running>>) -> Response {
    let counters: Value =
        serde_json::from_str(&running.totals().render_json(&fault_names())).unwrap_or_default();
    let body = json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": running.started().elapsed().as_secs(),
        "workers": running.counters().len(),
        "reloads": running.reloads(),
        "last_reload_problem": running.last_problem(),
        "configuration": control_api::shown(&running.revisions()),
        "config_sources": documents::shown(running.follower()),
        "registration": registration::shown(running.registration()),
        "upstreams": running.upstreams(),
        "lua": scripts::shown(running.scripts()),
        "runner": runner::shown(running.runner()),
        "counters": counters,
    });
    json_answer(StatusCode::OK, &body)
}

async fn ready(State(running): State<Arc<Running>>) -> Response {
    // A gateway with something in quarantine serves everything else: otherwise one invalid object could take
    // all gateways out of rotation.
    let quarantined: Value = running.quarantine().iter().map(control_api::quarantined_item).collect();
    match running.unready() {
        None => json_answer(StatusCode::OK, &json!({"status": "ok", "quarantined": quarantined})),
        Some(error) => {
            let body = json!({"status": "error", "error": error, "quarantined": quarantined});
            json_answer(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    }
}

async fn counters(State(running): State<Arc<Running>>) -> Response {
    let mut text = running.totals().render_text(&fault_names());
    text.push_str("# TYPE sigma_quarantined_objects gauge\n");
    for (kind, count) in quarantined_by_kind(&running.quarantine()) {
        text.push_str(&format!("sigma_quarantined_objects{{kind=\"{kind}\"}} {count}\n"));
    }
    let pressure = running.pressure();
    text.push_str("# TYPE sigma_pressure_percent gauge\n");
    for (resource, percent) in [("memory", pressure.memory()), ("descriptors", pressure.descriptors())] {
        text.push_str(&format!("sigma_pressure_percent{{resource=\"{resource}\"}} {percent}\n"));
    }
    text.push_str(&measures::text(&running.measures()));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

pub(crate) fn json_answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
