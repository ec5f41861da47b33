//! Calls that plugins make to other services while a request waits.
//!
//! A service is an upstream that stands inside the plugin's configuration; see
//! [`crate::Descriptor::upstreams`]. So a call has all that a request to a node has: names that are
//! resolved beforehand, balancing and retries, TLS, kept connections, limits and counters.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::{Headers, Method};

use crate::Context;

/// The upstream's key of a [`Call`] to this gateway itself, for [`crate::Step::Ask`]: the call takes the way of a
/// request that the client of the exchange sends, through routes and plugins. No upstream has this key.
pub const GATEWAY: &str = "gateway";

/// How deep exchanges may be asked for by exchanges that were themselves asked for: enough for a composition
/// of compositions. Whoever needs more goes in a circle.
pub const MOST_WITHIN: u8 = 4;

/// One call.
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
    /// Through which gateways the request came that the call is made for: [`crate::Context::passes`].
    /// So a service that leads back here ends, as any loop does.
    pub passes: Vec<u8>,
    /// The body; sent with a length, also if it is empty and the method has one.
    pub body: Option<Vec<u8>>,
    /// Milliseconds for all of it.
    pub timeout_ms: u64,
    /// Most bytes of the answer's body; an answer with more is an error.
    pub limit: usize,
}

/// What a service answers.
#[derive(Debug, Default)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The fields, without those of the connection.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// The fields behind the body.
    pub trailers: Headers,
}

/// Why there is no answer: a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError(pub String);

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CallError {}

/// A call under way; dropping it ends it.
pub type Calling = Pin<Box<dyn Future<Output = Result<Answer, CallError>>>>;

/// A call in a protocol that is not HTTP: bytes there and bytes back, over a connection that is nobody else's
/// meanwhile. It may be made twice, where a kept connection has broken or a node cannot be reached.
#[derive(Debug)]
pub struct BytesCall {
    /// The upstream's key; see [`crate::Build::upstream_key`]. Its scheme is `http`: connections in cleartext, each
    /// for one exchange at a time.
    pub upstream: Box<str>,
    /// What is sent.
    pub request: Vec<u8>,
    /// Where the answer ends.
    pub end: AnswerEnd,
    /// Milliseconds for all of it; connecting, sending and reading have those of the upstream besides.
    pub timeout_ms: u64,
    /// Most bytes of the answer; one with more is an error.
    pub limit: usize,
}

/// Says how many bytes the answer takes of those that have come; None if there are more to come. It is asked again
/// with each piece that comes, from the first byte on. Bytes behind the end make it no answer: whoever sends
/// what nobody asked for is out of step. After an answer that came whole the connection is kept.
///
/// The error, which is a sentence without anything of the answer's, says that it is none.
pub type AnswerEnd = fn(&[u8]) -> Result<Option<usize>, &'static str>;

/// What a service answers to a [`BytesCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BytesAnswer {
    /// All of it.
    pub bytes: Vec<u8>,
    /// The host of the node that gave it.
    pub node: String,
}

/// Why there is no answer to a [`BytesCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BytesError {
    /// A sentence.
    pub reason: String,
    /// What there was none of.
    pub missing: Missing,
}

/// What a [`BytesCall`] came to lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// A node that may be asked.
    Node,
    /// Time.
    Time,
    /// An answer.
    Answer,
}

/// A [`BytesCall`] under way; dropping it ends it.
pub type CallingBytes = Pin<Box<dyn Future<Output = Result<BytesAnswer, BytesError>>>>;

/// Makes calls; each worker has one of its own.
pub trait Outbound {
    /// Begins a call. Nothing happens before what is returned is polled.
    fn call(&self, call: Call) -> Calling;

    /// One to be kept, for calls that begin where no hook runs.
    fn kept(&self) -> Rc<dyn Outbound> {
        Rc::new(Nowhere)
    }

    /// Begins a call that is not HTTP, in the same way.
    fn call_bytes(&self, call: BytesCall) -> CallingBytes {
        let reason = format!("{} cannot be called here", call.upstream);
        Box::pin(std::future::ready(Err(BytesError { reason, missing: Missing::Answer })))
    }
}

/// Where nothing can be called: in tools and in tests without a network.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nowhere;

impl Outbound for Nowhere {
    fn call(&self, call: Call) -> Calling {
        let error = CallError(format!("{} cannot be called here", call.upstream));
        Box::pin(std::future::ready(Err(error)))
    }
}

/// The parts of the URL of a service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Service {
    /// `http` or `https`.
    pub scheme: Box<str>,
    /// Name or address, IPv6 in brackets.
    pub node: Box<str>,
    /// The port, written or implied.
    pub port: u16,
    /// Host as it is sent.
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
    /// Reads `http://host[:port][/path[?query]]`, or the same with `https`.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the URL cannot be called.
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
            return Err(format!("`{url}` has a user, a fragment or characters that are not encoded"));
        }
        let (node, written) = sigma_config::nodes::split_address(authority)?;
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

    /// A call that asks the service what it says, for the request of `ctx`: GET, with at most 64 KiB of
    /// answer. `upstream` is the key that the service has as an upstream.
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

    /// The service as an upstream, for [`crate::descriptor::InlineUpstream`]. `verify` is about its certificate.
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
    fn a_service_is_an_upstream() {
        for url in ["http://a:1/x", "https://127.0.0.1"] {
            let upstream = Service::parse(url).unwrap().upstream(true, 1500);
            serde_json::from_value::<sigma_config::resources::Upstream>(upstream).unwrap();
        }
    }
}
