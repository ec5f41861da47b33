//! The history of changes, as the process knows it: also where a file is the source, without an Admin API.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::{Control, ControlState, found, refusal};
use crate::operators::history::{HistoryReader, VersionFilter};
use crate::operators::refused_call::RefusedCall;

/// The arguments of these calls.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Arguments {
    limit: Option<String>,
    before: Option<String>,
    key: Option<String>,
}

fn reader(state: &ControlState) -> Result<&HistoryReader, RefusedCall> {
    let missing = || RefusedCall::new(StatusCode::NOT_FOUND, "the history is off: `history.keep` is 0");
    state.history.as_deref().ok_or_else(missing)
}

fn answered(answer: Result<Value, RefusedCall>) -> Response {
    match answer {
        Ok(answer) => found(&answer),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

/// `GET /v1/history`.
pub(super) async fn list(State(state): Control, Query(arguments): Query<Arguments>) -> Response {
    let Arguments { limit, before, key } = arguments;
    answered(async { reader(&state)?.list(VersionFilter { limit, before, key }).await }.await)
}

/// `GET /v1/history/{version}`.
pub(super) async fn one(
    State(state): Control,
    Path(version): Path<u64>,
    Query(arguments): Query<Arguments>,
) -> Response {
    answered(async { reader(&state)?.one(version, arguments.key).await }.await)
}

/// `GET /v1/history/{from}/diff/{to}`.
pub(super) async fn difference(
    State(state): Control,
    Path((from, to)): Path<(u64, u64)>,
    Query(arguments): Query<Arguments>,
) -> Response {
    answered(async { reader(&state)?.difference(from, to, arguments.key).await }.await)
}

/// `POST /v1/history/{version}/rollback`.
pub(super) async fn rollback(State(state): Control, Path(_): Path<u64>) -> Response {
    let message = match state.inspect.revisions().store.kind {
        "file" => {
            "the configuration comes from a file, which the gateway does not write: restore the file from version control or a backup, and run `sigma reload`"
        }
        _ => {
            "the Control API has no keys and changes no resources: call POST /apisix/admin/history/{version}/rollback"
        }
    };
    refusal(StatusCode::CONFLICT, message)
}
