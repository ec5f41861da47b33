//! Data of the running gateway, as it reports it: for the dashboard, and for operators who would otherwise
//! need the Control API, which requires no key.

use axum::http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::settings::{AdminApiVersion, AdminRole};

use super::call::Call;
use super::catalogue::only_get;
use super::collection::ProcessQuery;
use super::reply::{Outcome, Refusal, Reply};
use super::{AdminState, ProcessCalls};
use crate::operators::stress::StressCall;
use crate::serving::purges::{PurgeError, PurgeOrder, Purged};

/// `GET` of one of [`ProcessQuery::ALL`].
pub(crate) fn answer(state: &AdminState, question: ProcessQuery, call: &Call) -> Outcome {
    only_get(call)?;
    Ok(fresh((running(state)?.query)(question)))
}

/// The running gateway.
fn running(state: &AdminState) -> Result<&ProcessCalls, Refusal> {
    let none = || Refusal::new(StatusCode::NOT_FOUND, "nothing is served here");
    state.gateway.process.as_ref().ok_or_else(none)
}

/// `PUT /nodes/{type}/{id}/{node}`: the state of a node of this gateway.
pub(crate) fn node_state(state: &AdminState, upstream: &str, node: &str, call: &Call) -> Outcome {
    only(call, &Method::PUT)?;
    let set = (running(state)?.set_node_state)(upstream, node, call.body.as_ref());
    Ok(fresh(set?))
}

/// `POST /acme/{ssl}/order`: orders the certificate of an ssl now.
pub(crate) async fn order(state: &AdminState, ssl: &str, call: &Call) -> Outcome {
    only(call, &Method::POST)?;
    (running(state)?.order)(ssl.to_owned()).await?;
    Ok(Reply::json(StatusCode::ACCEPTED, json!({"ssl": ssl, "state": "ordering"})))
}

/// `stress/{type}/{id}`: `POST` starts a stress test, `DELETE` stops it, `GET` shows it; `GET /stress` shows all.
pub(crate) fn stress(state: &AdminState, upstream: Option<&str>, call: &Call) -> Outcome {
    let (wanted, status) = match (upstream, &call.method) {
        (None, &Method::GET) => (StressCall::List, StatusCode::OK),
        (Some(upstream), &Method::GET) => (StressCall::Show(upstream), StatusCode::OK),
        (Some(upstream), &Method::POST) => {
            only(call, &Method::POST)?;
            (StressCall::Start(upstream, call.body.as_ref()), StatusCode::ACCEPTED)
        }
        (Some(upstream), &Method::DELETE) => {
            only(call, &Method::DELETE)?;
            (StressCall::Stop(upstream), StatusCode::OK)
        }
        _ => return Err(Refusal::new(StatusCode::NOT_FOUND, "not found")),
    };
    let report = (running(state)?.stress)(wanted)?;
    Ok(Reply::json(status, report).with("cache-control", "no-store"))
}

/// Refuses other methods, and dry runs of a call that is about the running process.
fn only(call: &Call, method: &Method) -> Result<(), Refusal> {
    if call.method != *method {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not found"));
    }
    if call.is_dry() {
        return Err(Refusal::bad("this call has no dry run: leave out dry_run"));
    }
    Ok(())
}

/// `GET /tap`: exchanges as they end. Values that are no secrets to the gateway may be to those who sent them, so
/// who may only read resources may not read these.
pub(crate) fn tap(state: &AdminState, call: &Call) -> Outcome {
    only_get(call)?;
    if call.role != AdminRole::Admin {
        let message = "the role viewer may not see exchanges: use a key with the role admin";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, message));
    }
    let tapping = state.gateway.tapping.as_ref();
    let tapping =
        tapping.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "this gateway serves no configuration"))?;
    Ok(Reply::lines(tapping.open(&call.arguments.pairs())?).with("cache-control", "no-store"))
}

/// `GET /members`: the gateways of the store.
pub(crate) async fn members(state: &AdminState, call: &Call) -> Outcome {
    only_get(call)?;
    match &state.gateway.members {
        Some(members) => Ok(fresh(members().await)),
        None => Err(Refusal::new(StatusCode::NOT_FOUND, "this gateway serves no configuration")),
    }
}

/// `POST /cache/purge`: answers that are kept go, here and on all gateways of the store.
pub(crate) async fn purge(state: &AdminState, call: &Call) -> Outcome {
    only(call, &Method::POST)?;
    let purges =
        state.gateway.purges.as_ref().ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "not found"))?;
    let body = call.body.clone().unwrap_or_default();
    let order = PurgeOrder::deserialize(body)
        .map_err(|error| Refusal::bad(format_args!("invalid purge: {error}")))?;
    match purges.order(&order).await {
        Ok(Purged { forgotten, is_told }) => {
            let gateways = if is_told { "all" } else { "this" };
            Ok(fresh(json!({"forgotten": forgotten, "gateways": gateways})))
        }
        Err(error @ PurgeError::Unclear(_)) => Err(Refusal::bad(format_args!("invalid purge: {error}"))),
        Err(error @ PurgeError::Alone(_)) => Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error)),
    }
}

/// `GET /caller`: the permissions of a caller, and the form of responses.
pub(crate) fn caller(state: &AdminState, call: &Call) -> Outcome {
    only_get(call)?;
    Ok(fresh(json!({
        "role": match call.role {
            AdminRole::Admin => "admin",
            AdminRole::Viewer => "viewer",
        },
        "key_required": state.settings.key_required,
        "api_version": match state.settings.api_version {
            AdminApiVersion::V3 => "v3",
            AdminApiVersion::V2 => "v2",
        },
        "streams": (state.rules.has_streams)(),
        "version": env!("CARGO_PKG_VERSION"),
    })))
}

/// Figures of a moment ago are wrong.
fn fresh(body: Value) -> Reply {
    Reply::json(StatusCode::OK, body).with("cache-control", "no-store")
}
