//! Calls of plugins to other services while a request waits.
//!
//! A service is an upstream inside the plugin's configuration; see [`crate::Descriptor::upstreams`]. So a call has
//! the features of a request to a node: resolved names, balancing and retries, TLS, connection pools, limits and
//! counters.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::{Headers, Method};

use crate::Context;

/// The upstream key of a [`Call`] to this gateway itself, for [`crate::Step::Ask`]: the call is a subrequest, with
/// the routes and plugins of a request by the client. No upstream has this key.
pub const GATEWAY: &str = "gateway";

/// The key of a [`Call`] as to [`GATEWAY`] that may reach internal routes. Only the configuration may choose its
/// target, never a client.
pub const GATEWAY_INTERNAL: &str = "gateway/internal";

/// Returns the key of an internal call with a name, by which routes find it: `$internal_name` in their conditions.
#[must_use]
pub fn named_internal(name: &str) -> Box<str> {
    format!("{GATEWAY_INTERNAL}/{name}").into()
}

/// Returns the name of an internal call, which may be empty; None for another key.
#[must_use]
pub fn internal_name(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(GATEWAY_INTERNAL)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

/// A request that the gateway itself sends, for an error page or a fallback. It may reach internal routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Internal {
    /// Its name, by which routes find it; may be empty.
    pub name: String,
    /// The target of the client's request.
    pub asked_target: Vec<u8>,
}

/// The limit of nested subrequests; it allows a composition of compositions. A deeper nesting is a loop.
pub const MOST_WITHIN: u8 = 4;

/// A call to a service.
#[derive(Debug)]
pub struct Call {
    /// The upstream's key; see [`crate::Build::upstream_key`].
    pub upstream: Box<str>,
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: Vec<u8>,
    /// The Host.
    pub host: Box<str>,
    /// Fields besides Host and those that frame the message.
    pub headers: Headers,
    /// The gateways on the path of the original request: [`crate::Context::passes`]. So a service that leads back
    /// here ends, as any loop does.
    pub passes: Vec<u8>,
    /// The body; sent with a length, also if it is empty and the method has one.
    pub body: Option<Vec<u8>>,
    /// The total timeout in milliseconds.
    pub timeout_ms: u64,
    /// The largest response body in bytes; a larger one is an error.
    pub limit: usize,
}

/// The response of a service.
#[derive(Debug, Default)]
pub struct ServiceResponse {
    /// The status.
    pub status: u16,
    /// The fields, without connection fields.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// The trailers.
    pub trailers: Headers,
}

/// The reason for a missing response: a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError(pub String);

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CallError {}

/// A running call; dropping it cancels it.
pub type Calling = Pin<Box<dyn Future<Output = Result<ServiceResponse, CallError>>>>;

/// A call in another protocol than HTTP: bytes both ways over a connection that it has for itself. It may be sent
/// twice, if a pooled connection is broken or a node is unreachable.
#[derive(Debug)]
pub struct BytesCall {
    /// The upstream's key; see [`crate::Build::upstream_key`]. Its scheme is `http`: cleartext connections, each for
    /// one exchange at a time.
    pub upstream: Box<str>,
    /// The request bytes.
    pub request: Vec<u8>,
    /// Finds the end of the response.
    pub end: AnswerEnd,
    /// The total timeout in milliseconds; the upstream's timeouts for connecting, sending and reading apply as well.
    pub timeout_ms: u64,
    /// The largest response in bytes; a larger one is an error.
    pub limit: usize,
}

/// Returns the length of the response within the received bytes; None if it is not complete. It is called with all
/// bytes so far after each piece. Bytes after the end make the response invalid: the peer is out of step. After a
/// complete response the connection returns to the pool.
///
/// The error, a sentence without bytes of the response, means that the response is invalid.
pub type AnswerEnd = fn(&[u8]) -> Result<Option<usize>, &'static str>;

/// The response to a [`BytesCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BytesAnswer {
    /// The whole response.
    pub bytes: Vec<u8>,
    /// The host of the node.
    pub node: String,
}

/// The reason for a missing response to a [`BytesCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BytesError {
    /// A sentence.
    pub reason: String,
    /// The failed part.
    pub missing: Missing,
}

/// The part of a [`BytesCall`] that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// No node is available.
    Node,
    /// The timeout expired.
    Time,
    /// There is no valid response.
    Response,
}

/// A running [`BytesCall`]; dropping it cancels it.
pub type CallingBytes = Pin<Box<dyn Future<Output = Result<BytesAnswer, BytesError>>>>;

/// A gRPC stream to a service: messages both ways, at the same time.
///
/// The upstream's scheme is `grpc` or `grpcs`. Its timeouts bound the connection (`connect`) and each message that the
/// service does not read (`send`). The wait for a message has no limit here: its caller knows which messages are due.
#[derive(Debug)]
pub struct StreamCall {
    /// The upstream's key; see [`crate::Build::upstream_key`].
    pub upstream: Box<str>,
    /// The path of the method: `/package.Service/Method`.
    pub target: Box<str>,
    /// The Host.
    pub host: Box<str>,
    /// Metadata of the call, besides the fields of gRPC itself.
    pub headers: Headers,
    /// The gateways on the path of the original request: [`crate::Context::passes`].
    pub passes: Vec<u8>,
    /// The largest received message in bytes; a larger one is an error.
    pub limit: usize,
}

/// The failure of a [`MessageStream`]: its reason, and the failed part.
pub type StreamError = BytesError;

/// An open [`StreamCall`]. It makes progress only while it is polled, and only one task may poll it. Dropping it
/// cancels the call.
///
/// In each direction it holds one message, so the slower side stops the faster one by flow control. After an error all
/// methods return that error.
pub trait MessageStream {
    /// Ready when every message so far was written to the connection, or the stream has ended. Only then may the
    /// next one be sent.
    ///
    /// # Errors
    /// Returns an error if the stream cannot be opened, or has failed.
    fn poll_sent(&mut self, task: &mut task::Context<'_>) -> Poll<Result<(), StreamError>>;

    /// Queues a message, which replaces one that was not written yet. It is dropped if the stream has ended.
    fn send(&mut self, message: &[u8]);

    /// Ends this side after the messages so far.
    fn finish(&mut self);

    /// Returns the next message. None if the service has ended the call with the status 0.
    ///
    /// # Errors
    /// Returns an error if the call ends in any other way.
    fn poll_message(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Option<Vec<u8>>, StreamError>>;

    /// Returns a copy of the metadata that the service has sent so far.
    fn metadata(&self) -> Metadata {
        Metadata::default()
    }
}

/// The metadata of a service in a [`StreamCall`].
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    /// The fields of its head. None before it is here, and if the head ends the call.
    pub initial: Option<Headers>,
    /// The fields of its trailers, or of a head that ends the call.
    pub trailing: Option<Headers>,
}

/// The stream of an instance without a network.
struct NoStream(StreamError);

impl MessageStream for NoStream {
    fn poll_sent(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Err(self.0.clone()))
    }

    fn send(&mut self, _: &[u8]) {}

    fn finish(&mut self) {}

    fn poll_message(&mut self, _: &mut task::Context<'_>) -> Poll<Result<Option<Vec<u8>>, StreamError>> {
        Poll::Ready(Err(self.0.clone()))
    }
}

/// Makes calls; each worker has its own instance.
pub trait Outbound {
    /// Starts a call. It does nothing until the future is polled.
    fn call(&self, call: Call) -> Calling;

    /// Returns an instance to keep, for calls outside hooks.
    fn kept(&self) -> Rc<dyn Outbound> {
        Rc::new(Nowhere)
    }

    /// Returns the name that this gateway adds to `CDN-Loop`, for requests that a plugin sends itself; empty where
    /// there is no gateway.
    fn own_name(&self) -> String {
        String::new()
    }

    /// Starts a call in another protocol than HTTP.
    fn call_bytes(&self, call: BytesCall) -> CallingBytes {
        let reason = format!("{} is not available here", call.upstream);
        Box::pin(std::future::ready(Err(BytesError { reason, missing: Missing::Response })))
    }

    /// Opens a gRPC stream. It connects when it is first polled.
    fn open_stream(&self, call: StreamCall) -> Box<dyn MessageStream> {
        let reason = format!("{} is not available here", call.upstream);
        Box::new(NoStream(StreamError { reason, missing: Missing::Response }))
    }
}

/// An instance without a network, for tools and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nowhere;

impl Outbound for Nowhere {
    fn call(&self, call: Call) -> Calling {
        let error = CallError(format!("{} is not available here", call.upstream));
        Box::pin(std::future::ready(Err(error)))
    }
}

/// The parts of the URL of a service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Service {
    /// `http` or `https`
    pub scheme: Box<str>,
    /// The name or address, IPv6 in brackets.
    pub node: Box<str>,
    /// The port, explicit or default.
    pub port: u16,
    /// The Host field.
    pub host: Box<str>,
    /// Path and query.
    pub target: Box<str>,
}

impl TryFrom<String> for Service {
    type Error = String;

    fn try_from(url: String) -> Result<Service, String> {
        Service::parse(&url)
    }
}

impl Service {
    /// Parses `http://host[:port][/path[?query]]`, or the same with `https`.
    ///
    /// # Errors
    /// Returns an error message if the URL cannot be called.
    pub fn parse(url: &str) -> Result<Service, String> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("`{url}` has no scheme"))?;
        let port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return Err(format!("the scheme of `{url}` is neither http nor https")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let is_text = |b: u8| b.is_ascii_graphic() && b != b'#';
        if authority.contains('@') || !target.bytes().all(is_text) {
            return Err(format!("`{url}` has a user, a fragment or unencoded characters"));
        }
        let (node, written) = sigma_schema::node_address::split_address(authority)?;
        if node.is_empty() || authority.starts_with("unix:") {
            return Err(format!("`{url}` has no host"));
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Service {
            scheme: scheme.into(),
            node: node.as_ref().into(),
            port: written.unwrap_or(port),
            host: authority.into(),
            target: format!("{slash}{target}").into(),
        })
    }

    /// Returns the URL of a target of the service, without arguments.
    #[must_use]
    pub fn url_of(&self, target: &str) -> String {
        let path = target.split('?').next().unwrap_or_default();
        format!("{}://{}:{}{path}", self.scheme, self.node, self.port)
    }

    /// Returns a GET call to the service for the request of `ctx`, with a response of at most 64 KiB. `upstream` is
    /// the key of the service as an upstream.
    pub fn get(&self, upstream: &str, ctx: &Context, timeout_ms: u64) -> Call {
        Call {
            upstream: upstream.into(),
            method: Method::Get,
            target: self.target.as_bytes().to_vec(),
            host: self.host.clone(),
            headers: Headers::default(),
            passes: ctx.passes(),
            body: None,
            timeout_ms,
            limit: 64 << 10,
        }
    }

    /// Returns the service as an upstream, for [`crate::descriptor::InlineUpstream`]. `verify` turns the verification
    /// of its certificate on.
    pub fn upstream(&self, verify: bool, timeout_ms: u64) -> Value {
        let seconds = timeout_ms.max(1) as f64 / 1000.0;
        let mut upstream = json!({
            "scheme": self.scheme,
            "nodes": [{ "host": self.node, "port": self.port, "weight": 1 }],
            "timeout": { "connect": seconds, "send": seconds, "read": seconds },
        });
        if &*self.scheme == "https" {
            upstream["tls"] = json!({ "verify": verify });
        }
        upstream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_services() {
        let check = |url: &str, expected: Option<(&str, u16, &str, &str)>| {
            let got = Service::parse(url);
            let got = got.as_ref().ok().map(|s| (&*s.node, s.port, &*s.host, &*s.target));
            assert_eq!(got, expected, "{url}");
        };
        check("http://auth", Some(("auth", 80, "auth", "/")));
        check("https://auth:8443/check?x=1", Some(("auth", 8443, "auth:8443", "/check?x=1")));
        check("https://[::1]/a", Some(("[::1]", 443, "[::1]", "/a")));
        check("http://auth?x", Some(("auth", 80, "auth", "/?x")));
        for wrong in
            ["auth", "ftp://auth", "http://", "http://a@b/", "http://a/#x", "http://a/b c", "http://a:x/"]
        {
            check(wrong, None);
        }
    }

    #[test]
    fn a_service_becomes_an_upstream() {
        for url in ["http://a:1/x", "https://127.0.0.1"] {
            let upstream = Service::parse(url).unwrap().upstream(true, 1500);
            serde_json::from_value::<sigma_config::resources::Upstream>(upstream).unwrap();
        }
    }
}
