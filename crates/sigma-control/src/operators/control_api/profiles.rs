//! Profiles of this process, where `process.profiling` allows them.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::{Control, found, refusal};
use crate::operators::profile;

/// What is said where profiles are off.
const NO_PROFILES: &str = "profiles are off: set `process.profiling: true` and start the gateway anew";

pub(super) async fn cpu(State(state): Control, RawQuery(query): RawQuery) -> Response {
    let Some(profiling) = &state.profiling else { return refusal(StatusCode::FORBIDDEN, NO_PROFILES) };
    let query = query.unwrap_or_default();
    let arguments: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    match profiling.cpu(&arguments).await {
        Ok((kind, body)) => (profile::fields(kind), body).into_response(),
        Err((status, message)) => refusal(status, message),
    }
}

pub(super) async fn heap(State(state): Control) -> Response {
    if state.profiling.is_none() {
        return refusal(StatusCode::FORBIDDEN, NO_PROFILES);
    }
    match profile::heap() {
        Some(figures) => found(&figures),
        None => refusal(StatusCode::SERVICE_UNAVAILABLE, "the allocator tells nothing"),
    }
}
