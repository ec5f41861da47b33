//! Who may call: peers, keys, web pages.

use std::net::IpAddr;

use aws_lc_rs::constant_time;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use sigma_config::settings::{Admin, AdminKey, AdminRole};

use super::AdminState;
use super::call::Arguments;
use super::reply::{Refusal, Reply};

/// Whether a peer may call at all, and where no key protects it, whether an operator calls.
pub(crate) fn admit(state: &AdminState, peer: IpAddr, headers: &HeaderMap) -> Result<(), Refusal> {
    if !state.settings.allow.contains(peer) {
        let message = "this address may not call the Admin API; see admin.allow";
        return Err(Refusal::new(StatusCode::FORBIDDEN, message));
    }
    if !state.settings.key_required {
        state.trusted.check(headers).map_err(|reason| Refusal::new(StatusCode::FORBIDDEN, reason))?;
    }
    Ok(())
}

/// What a caller may do by the key that the call shows; an error if that is not what it does.
pub(crate) fn authorise(
    state: &AdminState,
    method: &Method,
    arguments: &Arguments,
    headers: &HeaderMap,
) -> Result<AdminRole, Refusal> {
    let settings = &state.settings;
    if !settings.key_required {
        return Ok(AdminRole::Admin);
    }
    let refuse = |description: &str| {
        let body = json!({"error_msg": "failed to check token", "description": description});
        Err(Refusal(Box::new(Reply::json(StatusCode::UNAUTHORIZED, body))))
    };
    // Browsers add cookies to what pages of others send.
    let cookies = !state.trusted.is_foreign(headers);
    let Some(shown) = key_of(arguments, headers, cookies) else { return refuse("missing apikey") };
    match role_of(&settings.keys, shown.as_bytes()) {
        None => refuse("wrong apikey"),
        Some(AdminRole::Viewer) if *method != Method::GET => refuse("invalid method for role viewer"),
        Some(role) => Ok(role),
    }
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
fn role_of(keys: &[AdminKey], shown: &[u8]) -> Option<AdminRole> {
    let mut role = None;
    for key in keys {
        let equal = constant_time::verify_slices_are_equal(key.key.as_bytes(), shown).is_ok();
        // An empty key would let everybody in.
        if equal && !key.key.is_empty() && role.is_none() {
            role = Some(key.role);
        }
    }
    role
}

/// What browsers ask before they let a page call.
pub(crate) fn preflight() -> Reply {
    Reply::empty(StatusCode::OK)
        .with("access-control-allow-methods", "POST, GET, PUT, OPTIONS, DELETE, PATCH")
        .with("access-control-allow-headers", "*")
        .with("content-type", "text/plain")
        .with("content-length", "0")
}

/// The origins whose pages may read the answer to a call, as the field says it.
pub(crate) fn readers(state: &AdminState, headers: &HeaderMap) -> Option<HeaderValue> {
    match state.settings {
        Admin { cors: false, .. } => None,
        Admin { key_required: true, .. } => Some(HeaderValue::from_static("*")),
        _ => {
            let origin = headers.get(header::ORIGIN)?;
            origin.to_str().is_ok_and(|origin| state.trusted.lists(origin)).then(|| origin.clone())
        }
    }
}

/// The fields of every answer.
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
