//! NiubiX's admin calls: any method, always 200, the outcome in the body.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::Config;
use sigma_config::resources::{Node, Upstream};
use sigma_config::settings::NiubixAdmin;
use tokio::sync::oneshot;

use crate::operators::caller::Trusted;
use crate::operators::running::{Command, Running, STOPPING};
use crate::operators::status::json_answer;

/// A change of one backend of the running configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    app: String,
    host: String,
    change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Down(bool),
    Weight(u32),
}

impl Edit {
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), String> {
        let upstreams = &mut config.resources.upstreams;
        let is_app = |u: &Upstream| u.name.as_deref() == Some(self.app.as_str()) || u.id.as_str() == self.app;
        let found = upstreams.ordered().find(|(_, u)| is_app(u));
        let (order, app) = found.ok_or("no app has this name")?;
        let mut app = Upstream::clone(app);
        let mut nodes = app.nodes.iter_mut();
        let node = nodes.find(|node| is_at(node, &self.host)).ok_or("no backend of the app has this host")?;
        change(node, self.change);
        upstreams.put(order.created(), Arc::new(app));
        Ok(())
    }
}

fn is_at(node: &Node, host: &str) -> bool {
    node.port.map_or_else(|| node.host.to_string(), |port| format!("{}:{port}", node.host)) == host
}

/// A backend that is down has weight 0 and remembers its own, as the translation writes it.
fn change(node: &mut Node, change: Change) {
    let mut metadata = node.metadata.take().map(|metadata| *metadata).unwrap_or_default();
    let down = metadata.get("down") == Some(&Value::Bool(true));
    let kept = metadata.get("weight").and_then(Value::as_u64).and_then(|w| u32::try_from(w).ok());
    let own = if down { kept.unwrap_or(1) } else { node.weight };
    let (down, own) = match change {
        Change::Down(down) => (down, own),
        Change::Weight(weight) => (down, weight),
    };
    node.weight = if down { 0 } else { own };
    if down {
        metadata.insert("down".into(), Value::Bool(true));
        metadata.insert("weight".into(), own.into());
    } else {
        metadata.remove("down");
        metadata.remove("weight");
    }
    node.metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
}

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
        return outcome(403, "this address may not call");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_and_up_again_keeps_the_weight() {
        let mut node = Node { host: "127.0.0.1".into(), port: Some(80), weight: 5, ..Node::default() };
        let mut check = |what, weight| {
            change(&mut node, what);
            assert_eq!(node.weight, weight, "{what:?}");
        };
        check(Change::Down(true), 0);
        check(Change::Weight(7), 0);
        check(Change::Down(true), 0);
        check(Change::Down(false), 7);
        check(Change::Weight(2), 2);
        assert!(node.metadata.is_none());
        assert!(is_at(&node, "127.0.0.1:80") && !is_at(&node, "127.0.0.1"));
    }
}
