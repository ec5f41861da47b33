//! Profiles of this process, where `process.profiling` allows them, and the figures of its memory.

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sigma_net::memory;

use super::{Control, found, refusal};
use crate::operators::profile::Profile;

/// The message where profiles are off.
const NO_PROFILES: &str = "profiling is off: set `process.profiling: true` and restart the gateway";

/// The message of a build without profiles.
pub(crate) const NOT_BUILT: &str = "this program was built without profiles of CPU and heap; build it with the cargo \
                                    feature `profiles`: `cargo build --release --features profiles`";

pub(super) async fn cpu(State(state): Control, RawQuery(query): RawQuery) -> Response {
    let Some(profiling) = &state.profiling else { return refusal(StatusCode::FORBIDDEN, NO_PROFILES) };
    match profiling.cpu(&arguments(query)).await {
        Ok(profile) => shown(profile),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

pub(super) async fn heap(State(state): Control, RawQuery(query): RawQuery) -> Response {
    let Some(profiling) = &state.profiling else { return refusal(StatusCode::FORBIDDEN, NO_PROFILES) };
    match profiling.heap(&arguments(query)).await {
        Ok(None) => match figures() {
            Some(figures) => found(&figures),
            None => refusal(StatusCode::SERVICE_UNAVAILABLE, "the allocator has no statistics"),
        },
        Ok(Some(profile)) => shown(profile),
        Err(refused) => refusal(refused.status, refused.message),
    }
}

fn shown(profile: Profile) -> Response {
    let (kind, body) = profile;
    // A picture that a browser shows has nothing to fetch and nothing to run.
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let fields = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (fields, body).into_response()
}

/// Returns the figures of the allocator and the system about this process's memory, at once. None without statistics of
/// the allocator.
fn figures() -> Option<Value> {
    let allocator: Value = serde_json::from_str(&memory::allocator_figures()?).ok()?;
    let status = std::fs::File::open("/proc/self/status");
    let own = status.and_then(|mut status| memory::own_bytes(&mut status)).ok();
    let limit = memory::cgroup_limit();
    Some(json!({"own_bytes": own, "limit_bytes": limit, "allocator": allocator}))
}

fn arguments(query: Option<String>) -> Vec<(String, String)> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shown_in_figures() {
        let figures = figures().expect("figures");
        assert!(
            figures["own_bytes"].as_u64() > Some(1 << 20) && figures["allocator"].is_object(),
            "{figures}"
        );
    }
}
