//! Who may call: peers, keys, web pages.

use std::net::IpAddr;

use aws_lc_rs::constant_time;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use sigma_config::settings::{Admin, AdminKey, AdminRole};

use super::call::Arguments;
use super::reply::{Refusal, Reply};

/// Whether a peer may call at all.
pub(crate) fn admit(settings: &Admin, peer: IpAddr) -> Result<(), Refusal> {
    if settings.allow.contains(peer) {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::FORBIDDEN, "this address may not call the Admin API; see admin.allow"))
}

/// Whether the key that a call shows allows its method.
pub(crate) fn authorise(
    settings: &Admin,
    method: &Method,
    arguments: &Arguments,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    if !settings.key_required {
        return Ok(());
    }
    let refuse = |description: &str| {
        let body = json!({"error_msg": "failed to check token", "description": description});
        Err(Refusal(Box::new(Reply::json(StatusCode::UNAUTHORIZED, body))))
    };
    let Some(shown) = key_of(arguments, headers) else { return refuse("missing apikey") };
    match role_of(&settings.keys, shown.as_bytes()) {
        None => refuse("wrong apikey"),
        Some(AdminRole::Viewer) if *method != Method::GET => refuse("invalid method for role viewer"),
        Some(_) => Ok(()),
    }
}

/// The key in the query, in `X-API-KEY` or in the cookie `x_api_key`, whichever comes first.
fn key_of<'a>(arguments: &'a Arguments, headers: &'a HeaderMap) -> Option<&'a str> {
    let header = || headers.get("x-api-key")?.to_str().ok();
    let cookie = || {
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

/// The fields of every answer.
pub(crate) fn stamp(settings: &Admin, headers: &mut HeaderMap) {
    const SERVER: &str = concat!("sigma/", env!("CARGO_PKG_VERSION"));
    const CORS: [(&str, &str); 4] = [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", "*"),
        ("access-control-max-age", "3600"),
    ];
    headers.insert(header::SERVER, HeaderValue::from_static(SERVER));
    if settings.cors {
        for (name, value) in CORS {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
}
