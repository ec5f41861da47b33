//! Numbers with names.

use mlua::{LightUserData, Lua, Table, Value};

const NUMBERS: &[(&str, i64)] = &[
    ("OK", 0),
    ("ERROR", -1),
    ("AGAIN", -2),
    ("DONE", -4),
    ("DECLINED", -5),
    ("STDERR", 0),
    ("EMERG", 1),
    ("ALERT", 2),
    ("CRIT", 3),
    ("ERR", 4),
    ("WARN", 5),
    ("NOTICE", 6),
    ("INFO", 7),
    ("DEBUG", 8),
    ("HTTP_GET", 2),
    ("HTTP_HEAD", 4),
    ("HTTP_POST", 8),
    ("HTTP_PUT", 16),
    ("HTTP_DELETE", 32),
    ("HTTP_MKCOL", 64),
    ("HTTP_COPY", 128),
    ("HTTP_MOVE", 256),
    ("HTTP_OPTIONS", 512),
    ("HTTP_PROPFIND", 1024),
    ("HTTP_PROPPATCH", 2048),
    ("HTTP_LOCK", 4096),
    ("HTTP_UNLOCK", 8192),
    ("HTTP_PATCH", 16384),
    ("HTTP_TRACE", 32768),
    ("HTTP_CONTINUE", 100),
    ("HTTP_SWITCHING_PROTOCOLS", 101),
    ("HTTP_OK", 200),
    ("HTTP_CREATED", 201),
    ("HTTP_ACCEPTED", 202),
    ("HTTP_NO_CONTENT", 204),
    ("HTTP_PARTIAL_CONTENT", 206),
    ("HTTP_SPECIAL_RESPONSE", 300),
    ("HTTP_MOVED_PERMANENTLY", 301),
    ("HTTP_MOVED_TEMPORARILY", 302),
    ("HTTP_SEE_OTHER", 303),
    ("HTTP_NOT_MODIFIED", 304),
    ("HTTP_TEMPORARY_REDIRECT", 307),
    ("HTTP_PERMANENT_REDIRECT", 308),
    ("HTTP_BAD_REQUEST", 400),
    ("HTTP_UNAUTHORIZED", 401),
    ("HTTP_PAYMENT_REQUIRED", 402),
    ("HTTP_FORBIDDEN", 403),
    ("HTTP_NOT_FOUND", 404),
    ("HTTP_NOT_ALLOWED", 405),
    ("HTTP_NOT_ACCEPTABLE", 406),
    ("HTTP_REQUEST_TIMEOUT", 408),
    ("HTTP_CONFLICT", 409),
    ("HTTP_GONE", 410),
    ("HTTP_UPGRADE_REQUIRED", 426),
    ("HTTP_TOO_MANY_REQUESTS", 429),
    ("HTTP_CLOSE", 444),
    ("HTTP_ILLEGAL", 451),
    ("HTTP_INTERNAL_SERVER_ERROR", 500),
    ("HTTP_NOT_IMPLEMENTED", 501),
    ("HTTP_METHOD_NOT_IMPLEMENTED", 501),
    ("HTTP_BAD_GATEWAY", 502),
    ("HTTP_SERVICE_UNAVAILABLE", 503),
    ("HTTP_GATEWAY_TIMEOUT", 504),
    ("HTTP_VERSION_NOT_SUPPORTED", 505),
    ("HTTP_INSUFFICIENT_STORAGE", 507),
];

/// Registers the constants, and `ngx.null`.
pub(super) fn register(_lua: &Lua, ngx: &Table) -> mlua::Result<()> {
    for (name, number) in NUMBERS {
        ngx.raw_set(*name, *number)?;
    }
    ngx.raw_set("null", null())
}

/// `ngx.null`, also `cjson.null`.
pub(crate) fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}

/// Whether a value is `ngx.null`.
pub(crate) fn is_null(value: &Value) -> bool {
    matches!(value, Value::LightUserData(LightUserData(pointer)) if pointer.is_null())
}
