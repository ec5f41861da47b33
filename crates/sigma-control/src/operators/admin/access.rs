//! Access control: peers, keys, web pages.

use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::constant_time;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use sigma_config::settings::{Admin, AdminRole};

use super::AdminState;
use super::call::Arguments;
use super::reply::{Refusal, Reply};

/// Whether a peer may call at all, and where no key protects it, whether an operator calls.
pub(crate) fn admit(state: &AdminState, peer: IpAddr, headers: &HeaderMap) -> Result<(), Refusal> {
    if !state.settings.allow.contains(peer) {
        let message = "this address is not allowed the Admin API; add it to admin.allow";
        return Err(Refusal::new(StatusCode::FORBIDDEN, message));
    }
    if !state.settings.key_required {
        state.callers.trusted.check(headers).map_err(|reason| Refusal::new(StatusCode::FORBIDDEN, reason))?;
    }
    Ok(())
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Its role.
    pub(crate) role: AdminRole,
    /// The name of its key; None where no key is required.
    pub(crate) key: Option<Arc<str>>,
}

impl Caller {
    /// Refuses methods that the caller's role does not allow.
    pub(crate) fn check(&self, method: &Method) -> Result<(), Refusal> {
        match self.role {
            AdminRole::Viewer if *method != Method::GET => {
                Err(unauthorised("invalid method for role viewer"))
            }
            _ => Ok(()),
        }
    }
}

fn unauthorised(description: &str) -> Refusal {
    let body = json!({"error_msg": "failed to check token", "description": description});
    Refusal(Box::new(Reply::json(StatusCode::UNAUTHORIZED, body)))
}

/// Returns the caller for the key of the call; an error if there is no such key.
pub(crate) fn recognise(
    state: &AdminState,
    method: &Method,
    arguments: &Arguments,
    headers: &HeaderMap,
) -> Result<Caller, Refusal> {
    if !state.settings.key_required {
        return Ok(Caller { role: AdminRole::Admin, key: None });
    }
    let cookies = state.callers.trusted.takes_cookie(method, headers);
    let Some(shown) = key_of(arguments, headers, cookies) else { return Err(unauthorised("missing apikey")) };
    caller_of(state, shown.as_bytes()).ok_or_else(|| unauthorised("wrong apikey"))
}

/// The key in the query, in `X-API-KEY` or in the cookie `x_api_key`, whichever comes first. The
/// field may be written with underscores, as the variable that APISIX reads it by.
fn key_of<'a>(arguments: &'a Arguments, headers: &'a HeaderMap, cookies: bool) -> Option<&'a str> {
    let header = || headers.get("x-api-key").or_else(|| headers.get("x_api_key"))?.to_str().ok();
    let cookie = || {
        if !cookies {
            return None;
        }
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(';')).find_map(|pair| pair.trim().strip_prefix("x_api_key="))
    };
    arguments.get("api_key").or_else(header).or_else(cookie)
}

/// Compares with every key, in time that does not depend on their content.
fn caller_of(state: &AdminState, shown: &[u8]) -> Option<Caller> {
    let mut found = None;
    for (key, name) in state.settings.keys.iter().zip(&state.callers.key_names) {
        let equal = constant_time::verify_slices_are_equal(key.key.as_bytes(), shown).is_ok();
        // An empty key would let everybody in.
        if equal && !key.key.is_empty() && found.is_none() {
            found = Some(Caller { role: key.role, key: Some(Arc::clone(name)) });
        }
    }
    found
}

/// Returns the response to a browser's preflight request.
pub(crate) fn preflight() -> Reply {
    Reply::empty(StatusCode::OK)
        .with("access-control-allow-methods", "POST, GET, PUT, OPTIONS, DELETE, PATCH")
        .with("access-control-allow-headers", "*")
        .with("content-type", "text/plain")
        .with("content-length", "0")
}

/// The origins whose pages may read the response to a call, as the field says it.
pub(crate) fn readers(state: &AdminState, headers: &HeaderMap) -> Option<HeaderValue> {
    match state.settings {
        Admin { cors: false, .. } => None,
        Admin { key_required: true, .. } => Some(HeaderValue::from_static("*")),
        _ => {
            let origin = headers.get(header::ORIGIN)?;
            origin.to_str().is_ok_and(|origin| state.callers.trusted.lists(origin)).then(|| origin.clone())
        }
    }
}

/// The fields of every response.
pub(crate) fn stamp(readers: Option<HeaderValue>, headers: &mut HeaderMap) {
    const SERVER: &str = concat!("sigma/", env!("CARGO_PKG_VERSION"));
    const CORS: [(&str, &str); 3] = [
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", "*"),
        ("access-control-max-age", "3600"),
    ];
    headers.insert(header::SERVER, HeaderValue::from_static(SERVER));
    if let Some(readers) = readers {
        if readers != "*" {
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
        }
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, readers);
        for (name, value) in CORS {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
}
