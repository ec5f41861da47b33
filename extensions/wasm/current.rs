//! The exchange whose callback runs on this thread. The store of an instance moves between threads while it starts, so
//! it cannot contain an exchange.

use std::cell::RefCell;

use sigma_http::Headers;
use sigma_plugin::Context;

/// The part of an exchange that a callback is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    RequestHead,
    RequestBody,
    RequestTrailers,
    ResponseHead,
    ResponseBody,
    ResponseTrailers,
    /// The end of the exchange
    Log,
    /// The start of a session over TCP
    NewConnection,
    /// Bytes of the client
    DownstreamData,
    /// Bytes of the node
    UpstreamData,
    /// The end of a session over TCP
    Close,
}

impl Hook {
    /// Returns the name of the callback.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Hook::RequestHead => "proxy_on_request_headers",
            Hook::RequestBody => "proxy_on_request_body",
            Hook::RequestTrailers => "proxy_on_request_trailers",
            Hook::ResponseHead => "proxy_on_response_headers",
            Hook::ResponseBody => "proxy_on_response_body",
            Hook::ResponseTrailers => "proxy_on_response_trailers",
            Hook::Log => "proxy_on_log",
            Hook::NewConnection => "proxy_on_new_connection",
            Hook::DownstreamData => "proxy_on_downstream_data",
            Hook::UpstreamData => "proxy_on_upstream_data",
            Hook::Close => "proxy_on_done",
        }
    }

    /// Returns true if there is a response, or it is about the bytes of a node.
    pub(crate) fn has_response(self) -> bool {
        use Hook::{DownstreamData, NewConnection, RequestBody, RequestHead, RequestTrailers};
        !matches!(self, RequestHead | RequestBody | RequestTrailers | NewConnection | DownstreamData)
    }

    /// Returns true in a session over TCP, which has no messages.
    pub(crate) fn is_tcp(self) -> bool {
        matches!(self, Hook::NewConnection | Hook::DownstreamData | Hook::UpstreamData | Hook::Close)
    }
}

/// The exchange of a callback.
pub(crate) struct Current {
    /// The id of its context in the instance.
    pub(crate) stream: u32,
    pub(crate) hook: Hook,
    /// The head of the message has not left: its fields may be changed.
    pub(crate) is_head_open: bool,
    /// The client has no response yet.
    pub(crate) may_respond: bool,
    /// The exchange's own context is empty meanwhile.
    pub(crate) ctx: Context,
    /// The part of the body that the callback sees.
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Box<Headers>>,
}

/// The parts of a message in a callback, besides its head.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// See [`Current::is_head_open`].
    pub(crate) is_head_open: bool,
    /// See [`Current::may_respond`].
    pub(crate) may_respond: bool,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Box<Headers>>,
}

impl Parts {
    /// Returns the parts of a message whose head has not left.
    pub(crate) fn open() -> Parts {
        Parts { is_head_open: true, may_respond: true, ..Parts::default() }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Runs a callback for an exchange.
pub(crate) fn during<R>(
    stream: u32,
    hook: Hook,
    ctx: &mut Context,
    parts: &mut Parts,
    run: impl FnOnce() -> R,
) -> R {
    let (body, trailers) = (std::mem::take(&mut parts.body), parts.trailers.take());
    let current = Current {
        stream,
        hook,
        is_head_open: parts.is_head_open,
        may_respond: parts.may_respond,
        ctx: std::mem::take(ctx),
        body,
        trailers,
    };
    CURRENT.set(Some(current));
    let result = run();
    if let Some(current) = CURRENT.take() {
        *ctx = current.ctx;
        (parts.body, parts.trailers) = (current.body, current.trailers);
    }
    result
}

/// As [`with`], for an exchange of HTTP only.
pub(crate) fn with_http<R>(stream: u32, run: impl FnOnce(&mut Current) -> R) -> Option<R> {
    with(stream, |current| (!current.hook.is_tcp()).then(|| run(current))).flatten()
}

/// Uses the exchange or session of the callback, if it is the one with the context `stream`.
pub(crate) fn with<R>(stream: u32, run: impl FnOnce(&mut Current) -> R) -> Option<R> {
    CURRENT.with_borrow_mut(|current| current.as_mut().filter(|current| current.stream == stream).map(run))
}
