//! Profiles of this process, where `process.profiling` allows them.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::{Control, found, refusal};
use crate::operators::profile::{self, Heap};

/// The message where profiles are off.
const NO_PROFILES: &str = "profiling is off: set `process.profiling: true` and restart the gateway";

pub(super) async fn cpu(State(state): Control, RawQuery(query): RawQuery) -> Response {
    let Some(profiling) = &state.profiling else { return refusal(StatusCode::FORBIDDEN, NO_PROFILES) };
    match profiling.cpu(&arguments(query)).await {
        Ok((kind, body)) => (profile::fields(kind), body).into_response(),
        Err((status, message)) => refusal(status, message),
    }
}

pub(super) async fn heap(State(state): Control, RawQuery(query): RawQuery) -> Response {
    let Some(profiling) = &state.profiling else { return refusal(StatusCode::FORBIDDEN, NO_PROFILES) };
    match profiling.heap(&arguments(query)).await {
        Ok(Heap::Figures(figures)) => found(&figures),
        Ok(Heap::Profile(kind, body)) => (profile::fields(kind), body).into_response(),
        Err((status, message)) => refusal(status, message),
    }
}

fn arguments(query: Option<String>) -> Vec<(String, String)> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect()
}
