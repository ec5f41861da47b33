//! Answers: the result of an operation in the two forms of the API.

use std::fmt;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use sigma_config::settings::AdminApiVersion;
use sigma_schema::Problem;

use crate::operators::refused_call::RefusedCall;
use crate::operators::tap;
use crate::store::StoreError;

/// The field with warnings about a successful call.
const WARNING: HeaderName = HeaderName::from_static("x-sigma-warning");
/// Such fields in one response at most: common clients and proxies take a hundred fields.
const MAX_WARNINGS: usize = 16;

/// A response before it is put on the wire.
#[derive(Debug, PartialEq)]
pub(crate) struct Reply {
    /// The status.
    pub(crate) status: StatusCode,
    /// The body.
    pub(crate) content: Content,
    /// Fields besides those that every response has.
    pub(crate) headers: HeaderMap,
}

/// The body of a response.
#[derive(Debug, PartialEq)]
pub(crate) enum Content {
    /// Nothing.
    Empty,
    /// JSON; a newline is put after it.
    Json(Value),
    /// Text as it is.
    Text(&'static str),
    /// Text with its own media type.
    Typed(&'static str, String),
    /// Lines of JSON that come one after the other.
    Lines(Coming),
}

/// A body that is made while it is sent; no two are equal.
#[derive(Debug)]
pub(crate) struct Coming(Body);

impl PartialEq for Coming {
    fn eq(&self, _: &Coming) -> bool {
        false
    }
}

impl Reply {
    /// A response with a JSON body.
    pub(crate) fn json(status: StatusCode, body: Value) -> Reply {
        Reply { status, content: Content::Json(body), headers: HeaderMap::new() }
    }

    /// A response that goes on for as long as there is something to tell.
    pub(crate) fn lines(body: Body) -> Reply {
        Reply { status: StatusCode::OK, content: Content::Lines(Coming(body)), headers: HeaderMap::new() }
    }

    /// A response without a body.
    pub(crate) fn empty(status: StatusCode) -> Reply {
        Reply { status, content: Content::Empty, headers: HeaderMap::new() }
    }

    /// A response with a bare text.
    pub(crate) fn text(status: StatusCode, text: &'static str) -> Reply {
        Reply { status, content: Content::Text(text), headers: HeaderMap::new() }
    }

    /// The same with a field.
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Reply {
        // A digest that a client sent and that is no field value is not sent back.
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }

    /// Adds warnings about a successful call: a field for each.
    pub(crate) fn warning(mut self, warnings: &[Problem]) -> Reply {
        let more = warnings.len().saturating_sub(MAX_WARNINGS);
        let told = warnings.iter().take(MAX_WARNINGS).map(Problem::to_string);
        for text in told.chain((more > 0).then(|| format!("and {more} more"))) {
            // Characters that are illegal in a field value, such as a line break or a letter that is not
            // ASCII, are escaped.
            let text: String = text.chars().map(visible).collect();
            if let Ok(value) = HeaderValue::from_str(&text) {
                self.headers.append(WARNING, value);
            }
        }
        self
    }

    /// Adds the revision of the shown data.
    pub(crate) fn at(self, revision: u64) -> Reply {
        self.with("etag", &format!("\"{revision}\""))
    }
}

fn visible(letter: char) -> String {
    match letter {
        ' '..='~' => letter.to_string(),
        letter => letter.escape_default().to_string(),
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let (media_type, body) = match self.content {
            Content::Empty => ("application/json", Body::empty()),
            // A whole configuration may be large: the newline is appended, not copied with it.
            Content::Json(value) => {
                let mut text = value.to_string();
                text.push('\n');
                ("application/json", Body::from(text))
            }
            Content::Text(text) => ("text/plain; charset=utf-8", Body::from(text)),
            Content::Typed(media_type, text) => (media_type, Body::from(text)),
            Content::Lines(Coming(body)) => (tap::MEDIA_TYPE, body),
        };
        let mut response = (self.status, [(header::CONTENT_TYPE, media_type)], body).into_response();
        response.headers_mut().extend(self.headers);
        response
    }
}

/// Why a call is not answered as it wished.
#[derive(Debug, PartialEq)]
pub(crate) struct Refusal(pub(crate) Box<Reply>);

impl Refusal {
    /// A status and `{"error_msg": …}`.
    pub(crate) fn new(status: StatusCode, message: impl fmt::Display) -> Refusal {
        Refusal(Box::new(Reply::json(status, json!({"error_msg": message.to_string()}))))
    }

    /// 400.
    pub(crate) fn bad(message: impl fmt::Display) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns the response for a resource that does not exist.
    pub(crate) fn missing() -> Refusal {
        Refusal(Box::new(Reply::json(StatusCode::NOT_FOUND, json!({"message": "Key not found"}))))
    }

    /// A condition of the request's headers does not hold.
    pub(crate) fn precondition(message: impl fmt::Display) -> Refusal {
        Refusal::new(StatusCode::PRECONDITION_FAILED, message)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error)
    }
}

impl From<RefusedCall> for Refusal {
    fn from(refused: RefusedCall) -> Refusal {
        Refusal::new(refused.status, refused.message)
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        *refusal.0
    }
}

/// The result of most operations.
pub(crate) type Outcome = Result<Reply, Refusal>;

/// A resource as a response shows it, with its place in the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ResourceEntry {
    /// The key, with the store's prefix.
    pub(crate) key: String,
    /// The resource.
    pub(crate) value: Value,
    /// See [`crate::store::Record::created`].
    pub(crate) created: u64,
    /// See [`crate::store::Record::modified`].
    pub(crate) modified: u64,
}

impl ResourceEntry {
    fn into_value(self) -> Value {
        json!({
            "key": self.key,
            "value": self.value,
            "createdIndex": self.created,
            "modifiedIndex": self.modified,
        })
    }

    fn into_node(self) -> Value {
        json!({"key": self.key, "value": self.value})
    }
}

/// One resource that was requested.
pub(crate) fn one(version: AdminApiVersion, entry: ResourceEntry) -> Value {
    match version {
        AdminApiVersion::V3 => entry.into_value(),
        AdminApiVersion::V2 => json!({"action": "get", "node": entry.into_node()}),
    }
}

/// A collection; `total` counts what paging left out too.
pub(crate) fn list(
    version: AdminApiVersion,
    directory: &str,
    items: Vec<ResourceEntry>,
    total: usize,
) -> Value {
    match version {
        AdminApiVersion::V3 => {
            let list: Vec<Value> = items.into_iter().map(ResourceEntry::into_value).collect();
            json!({"list": list, "total": total})
        }
        AdminApiVersion::V2 => {
            let nodes: Vec<Value> = items.into_iter().map(ResourceEntry::into_node).collect();
            json!({
                "action": "get",
                "count": total,
                "node": {"key": directory, "dir": true, "nodes": nodes},
            })
        }
    }
}

/// A resource that was written by `action`, a word of etcd's second API.
pub(crate) fn written(version: AdminApiVersion, action: &str, key: &str, value: &Value) -> Value {
    let node = json!({"key": key, "value": value});
    match version {
        AdminApiVersion::V3 => node,
        AdminApiVersion::V2 => json!({"action": action, "node": node}),
    }
}

/// A resource that was deleted.
pub(crate) fn deleted(version: AdminApiVersion, key: &str) -> Value {
    let mut body = Map::new();
    if version == AdminApiVersion::V2 {
        body.insert("action".into(), "delete".into());
        body.insert("node".into(), json!({}));
    }
    // One was deleted, said as text: so does APISIX.
    body.insert("deleted".into(), "1".into());
    body.insert("key".into(), key.into());
    Value::Object(body)
}
