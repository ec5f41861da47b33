//! One call of the Admin API, taken apart: query, conditions, body.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sigma_config::settings::AdminRole;

use super::reply::{Refusal, Reply};
use super::{AdminState, decode};
use crate::store::history::Author;

/// The longest time to live; a lease of etcd holds no more than this in practice.
const TTL_MAX_SECONDS: f64 = 9_000_000_000.0;

/// The arguments of the query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Arguments(Vec<(String, String)>);

impl Arguments {
    /// Reads a query, which has no `?`.
    pub(crate) fn parse(query: &str) -> Arguments {
        Arguments(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The first argument of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The last argument of a name.
    pub(crate) fn last(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Whether an argument is exactly `true`.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// All arguments of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// All arguments.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        self.0.clone()
    }

    /// The names of all arguments.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// The conditions of a request on the resource's present state (RFC 9110, 13.1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Preconditions {
    if_match: Option<Vec<String>>,
    if_none_match: Option<Vec<String>>,
}

impl Preconditions {
    /// Reads `If-Match` and `If-None-Match`; both count revisions, with or without quotes.
    pub(crate) fn read(headers: &HeaderMap) -> Preconditions {
        let tags = |name: header::HeaderName| {
            let mut lines = headers.get_all(name).iter().peekable();
            lines.peek()?;
            let texts = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
            Some(texts.map(|tag| tag.trim().trim_start_matches("W/").trim_matches('"').to_owned()).collect())
        };
        Preconditions { if_match: tags(header::IF_MATCH), if_none_match: tags(header::IF_NONE_MATCH) }
    }

    /// Whether a write may continue; `modified` is the present revision, None for no resource.
    pub(crate) fn check(&self, modified: Option<u64>) -> Result<(), Refusal> {
        let found = |tags: &Vec<String>| {
            modified.is_some_and(|now| tags.iter().any(|tag| tag == "*" || *tag == now.to_string()))
        };
        let state = modified.map_or_else(|| "it does not exist".to_owned(), |now| format!("it is at {now}"));
        if self.if_match.as_ref().is_some_and(|tags| !found(tags)) {
            let message = format!(
                "If-Match does not match the revision of the resource: {state}; read the resource again"
            );
            return Err(Refusal::precondition(message));
        }
        if self.if_none_match.as_ref().is_some_and(found) {
            let message = format!("If-None-Match does not allow this revision of the resource: {state}");
            return Err(Refusal::precondition(message));
        }
        Ok(())
    }

    /// Whether a reader has this revision already.
    pub(crate) fn is_current(&self, modified: u64) -> bool {
        let now = modified.to_string();
        self.if_none_match.as_ref().is_some_and(|tags| tags.iter().any(|tag| tag == "*" || *tag == now))
    }
}

/// One call, its body read and decoded.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The method; HEAD is read as GET.
    pub(crate) method: Method,
    /// The query.
    pub(crate) arguments: Arguments,
    /// Conditions.
    pub(crate) preconditions: Preconditions,
    /// The role of the caller.
    pub(crate) role: AdminRole,
    /// The caller, for the history.
    pub(crate) author: Author,
    /// Where the revision is noted that the call makes.
    pub(crate) made: Arc<AtomicU64>,
    /// The body; None if it is empty.
    pub(crate) body: Option<Value>,
}

impl Call {
    /// Refuses a `dry_run` that is neither true nor false: a rehearsal must not become a write.
    pub(crate) fn check_dry_run(&self) -> Result<(), Refusal> {
        let mut given = self.arguments.all("dry_run");
        match given.all(|value| value == "true" || value == "false") {
            true => Ok(()),
            false => Err(Refusal::bad("invalid argument dry_run: should be true or false")),
        }
    }

    /// Whether nothing is to be stored.
    pub(crate) fn is_dry(&self) -> bool {
        self.arguments.all("dry_run").any(|value| value == "true")
    }

    /// The time to live that a write requests.
    pub(crate) fn ttl(&self) -> Result<Option<Duration>, Refusal> {
        let Some(text) = self.arguments.get("ttl") else { return Ok(None) };
        let seconds = text.trim().parse::<f64>().ok();
        let seconds = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= TTL_MAX_SECONDS);
        match seconds {
            Some(seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
            None => Err(Refusal::bad("invalid argument ttl: should be a number")),
        }
    }
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read(
    state: &AdminState,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<Bytes, Refusal> {
    let too_large = |size: u64| {
        Refusal::bad(format_args!(
            "invalid request body: request size {size} is greater than the maximum size {limit} allowed"
        ))
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(size) = announced.filter(|size| *size > limit as u64) {
        return Err(too_large(size));
    }
    let collect = async {
        let mut body = body;
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Refusal::bad(format_args!("invalid request body: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            whole.extend_from_slice(&data);
            if whole.len() > limit {
                return Err(too_large(whole.len() as u64));
            }
        }
        Ok(whole.freeze())
    };
    match tokio::time::timeout(state.body_timeout, collect).await {
        Ok(read) => read,
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time")),
    }
}

/// Decodes JSON; None if there is nothing.
pub(crate) fn decoded(body: &[u8]) -> Result<Option<Value>, Refusal> {
    if body.is_empty() {
        return Ok(None);
    }
    decode::json(body, decode::RESOURCE_DEPTH).map(Some).map_err(|reason| {
        let message = format!("invalid request body: {reason}");
        let body = json!({"error_msg": message, "req_body": String::from_utf8_lossy(body)});
        Refusal(Box::new(Reply::json(StatusCode::BAD_REQUEST, body)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preconditions_hold_or_not() {
        let check = |name: &'static str, value: &str, modified: Option<u64>, holds: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a field value"));
            let got = Preconditions::read(&headers).check(modified).is_ok();
            assert_eq!(got, holds, "{name}: {value} against {modified:?}");
        };
        check("if-match", "\"7\"", Some(7), true);
        check("if-match", "7", Some(7), true);
        check("if-match", "W/\"6\", \"7\"", Some(7), true);
        check("if-match", "\"6\"", Some(7), false);
        check("if-match", "\"7\"", None, false);
        check("if-match", "*", Some(7), true);
        check("if-match", "*", None, false);
        check("if-none-match", "*", None, true);
        check("if-none-match", "*", Some(7), false);
        check("if-none-match", "\"6\"", Some(7), true);
        check("if-none-match", "\"7\"", Some(7), false);
    }
}
