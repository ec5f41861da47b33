//! The stress tests of nodes.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use super::{Control, ControlState, answer, refusal};
use crate::operators::stress::StressCall;

/// Responds with the report of a stress test, or with a refusal.
fn stressed(state: &ControlState, call: StressCall<'_>, status: StatusCode) -> Response {
    match state.inspect.stress(call) {
        Ok(report) => answer(status, &report),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

pub(super) async fn all(State(state): Control) -> Response {
    stressed(&state, StressCall::List, StatusCode::OK)
}

pub(super) async fn show(State(state): Control, Path((section, id)): Path<(String, String)>) -> Response {
    stressed(&state, StressCall::Show(&format!("{section}/{id}")), StatusCode::OK)
}

pub(super) async fn start(
    State(state): Control,
    Path((section, id)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let body: Option<Value> = serde_json::from_slice(&body).ok();
    let call = &format!("{section}/{id}");
    stressed(&state, StressCall::Start(call, body.as_ref()), StatusCode::ACCEPTED)
}

pub(super) async fn stop(State(state): Control, Path((section, id)): Path<(String, String)>) -> Response {
    stressed(&state, StressCall::Stop(&format!("{section}/{id}")), StatusCode::OK)
}
