//! The history of changes, with authors.

use axum::http::{Method, StatusCode};

use super::call::Call;
use super::collection::Past;
use super::reply::{Outcome, Refusal, Reply};
use super::{AdminState, rollback};
use crate::operators::history::VersionFilter;

/// A call below `history`.
pub(super) async fn serve(state: &AdminState, call: &Call, wanted: Past) -> Outcome {
    let method = if matches!(wanted, Past::Rollback(_)) { Method::POST } else { Method::GET };
    if call.method != method {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not found"));
    }
    let reader = state.history()?;
    let argument = |name: &str| call.arguments.get(name).map(str::to_owned);
    let body = match wanted {
        Past::Rollback(version) => return rollback::to(state, call, version).await,
        Past::List => {
            let [limit, before, key] = ["limit", "before", "key"].map(argument);
            // First: a version that comes in between is in the list, and not in the tag.
            let newest = reader.newest().await?;
            let body = reader.list(VersionFilter { limit, before, key }).await?;
            return Ok(Reply::json(StatusCode::OK, body).at(newest));
        }
        Past::Version(version) => reader.one(version, argument("key")).await?,
        Past::Between(from, to) => reader.difference(from, to, argument("key")).await?,
    };
    Ok(Reply::json(StatusCode::OK, body))
}
