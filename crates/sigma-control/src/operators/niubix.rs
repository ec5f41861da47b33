//! NiubiX's admin calls: any method, always 200, the outcome in the body.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;
use serde::Deserialize;
use serde_json::json;
use sigma_config::settings::NiubixAdmin;
use tokio::sync::oneshot;

use crate::operators::caller::Trusted;
use crate::operators::running::{Command, Running, STOPPING};
use crate::operators::status::json_answer;
use crate::serving::edit::{Change, Edit};

#[derive(Clone)]
struct Admin {
    running: Arc<Running>,
    allow: Arc<[IpAddr]>,
    trusted: Arc<Trusted>,
    version: Arc<str>,
}

pub(crate) fn router(running: Arc<Running>, config: &NiubixAdmin, trusted: &Arc<Trusted>) -> Router {
    let admin = Admin {
        running,
        allow: config.allow.clone().into(),
        trusted: Arc::clone(trusted),
        version: config.version.as_str().into(),
    };
    Router::new()
        .route("/set_backend_down", any(set_down))
        .route("/set_backend_weight", any(set_weight))
        .route("/reload", any(reload))
        .route("/shutdown", any(shutdown))
        .route("/conf_version", any(version))
        .fallback(|| async { outcome(404, "not found") })
        .layer(axum::middleware::from_fn_with_state(admin.clone(), only_allowed))
        .with_state(admin)
}

fn outcome(code: u16, message: &str) -> Response {
    json_answer(StatusCode::OK, &json!({"code": code, "msg": message}))
}

async fn only_allowed(
    State(admin): State<Admin>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    if !admin.allow.is_empty() && !admin.allow.contains(&peer.ip().to_canonical()) {
        return outcome(403, "this address is not allowed");
    }
    match admin.trusted.check_any_method(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(reason) => outcome(403, &reason),
    }
}

#[derive(Deserialize)]
struct Parameters {
    name: Option<String>,
    host: Option<String>,
    down: Option<String>,
    weight: Option<String>,
}

async fn set_down(State(admin): State<Admin>, Query(given): Query<Parameters>) -> Response {
    let down = match given.down.as_deref() {
        Some("true") => true,
        Some("false") => false,
        _ => return outcome(400, "down must be true or false"),
    };
    edit(&admin, given, Change::Down(down)).await
}

async fn set_weight(State(admin): State<Admin>, Query(given): Query<Parameters>) -> Response {
    let Some(weight) = given.weight.as_deref().and_then(|w| w.parse().ok()) else {
        return outcome(400, "weight must be a number from 0");
    };
    edit(&admin, given, Change::Weight(weight)).await
}

async fn edit(admin: &Admin, given: Parameters, change: Change) -> Response {
    let (Some(app), Some(host)) = (given.name, given.host) else {
        return outcome(400, "name and host must be given");
    };
    let (reply, answer) = oneshot::channel();
    if !admin.running.tell(Command::Edit(Edit { app, host, change }, reply)).await {
        return outcome(400, STOPPING);
    }
    match answer.await {
        Ok(Ok(())) => outcome(0, "ok"),
        Ok(Err(reason)) => outcome(404, &reason),
        Err(_) => outcome(400, STOPPING),
    }
}

async fn reload(State(admin): State<Admin>) -> Response {
    admin.running.tell(Command::Reload(None)).await;
    outcome(0, "reloading")
}

async fn shutdown(State(admin): State<Admin>) -> Response {
    admin.running.stop();
    outcome(0, "shutdowning")
}

async fn version(State(admin): State<Admin>) -> Response {
    json_answer(StatusCode::OK, &json!({"code": 0, "msg": "ok", "conf_version": &*admin.version}))
}
