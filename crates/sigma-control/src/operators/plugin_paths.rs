//! Paths of the Control API that plugins serve, and their requests and replies.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use sigma_http::RequestHead;
use sigma_http::h1::{HeadLimits, Tolerance, parse_request};
use sigma_plugin::step::End;
use sigma_plugin::{Consumers, Context, Env, Kind, Local, Node, Reply, Roster};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::LocalSet;

/// Largest body of a request to an endpoint; none of them has use for more.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

/// The most requests at a time. Each has a thread.
static TURNS: Semaphore = Semaphore::const_new(8);

/// The most time of one request.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The plugins that may have paths.
pub(crate) struct PluginPaths {
    pub(crate) roster: Arc<Roster>,
    pub(crate) node: Arc<Node>,
}

/// A request for a path of a plugin.
struct Call {
    node: Arc<Node>,
    kind: Arc<dyn Kind>,
    /// The position of its endpoint.
    at: usize,
    head: RequestHead,
    body: Vec<u8>,
}

impl PluginPaths {
    /// Responds to a request; None if no plugin has its path and method.
    pub(crate) async fn respond(&self, request: Request) -> Option<Response> {
        let (path, method) = (request.uri().path(), request.method().as_str());
        let (kind, at) = self.roster.kinds().find_map(|kind| {
            let mut all = kind.control_endpoints().iter();
            let at = all.position(|endpoint| endpoint.path == path && endpoint.method.as_str() == method)?;
            Some((Arc::clone(kind), at))
        })?;
        let Some(head) = head_of(&request) else { return Some(StatusCode::BAD_REQUEST.into_response()) };
        let Ok(body) = axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES).await else {
            return Some(StatusCode::PAYLOAD_TOO_LARGE.into_response());
        };
        let turn = TURNS.acquire().await.ok()?;
        let call = Call { node: Arc::clone(&self.node), kind, at, head, body: body.into() };
        let (answered, answer) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        // Scripts keep values by thread: a thread of its own ends with them.
        let thread = std::thread::Builder::new().name("control-call".to_owned());
        let started = thread.spawn(move || {
            // Scripts start local tasks.
            let local = LocalSet::new();
            drop(answered.send(runtime.block_on(local.run_until(call.run()))));
        });
        let reply = match started {
            Ok(_) => answer.await.unwrap_or_else(|_| Reply::new(500)),
            Err(_) => Reply::new(503),
        };
        drop(turn);
        Some(response(typed(reply)))
    }
}

/// The head as hooks see it; None if a worker would refuse it.
pub(crate) fn head_of(request: &Request) -> Option<RequestHead> {
    let target = request.uri().path_and_query()?;
    let mut text = format!("{} {target} HTTP/1.1\r\n", request.method()).into_bytes();
    for (name, value) in request.headers() {
        text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    text.extend(b"\r\n");
    let (head_bytes, fields) = (text.len(), request.headers().len());
    let limits = HeadLimits { line_bytes: head_bytes, head_bytes, fields, tolerance: Tolerance::NONE };
    let mut head = RequestHead::default();
    let end = parse_request(&text, &limits, &mut head).ok()??;
    (end == text.len()).then_some(head)
}

/// A reply of a plugin as a response.
pub(crate) fn response(reply: Reply) -> Response {
    let mut response = Response::new(Body::from(reply.body.unwrap_or_default()));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in reply.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value))
        {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// Adds the type of JSON if the handler has set none, as APISIX does for a table.
fn typed(reply: Reply) -> Reply {
    let has_type = reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let is_json = reply.body.as_ref().is_some_and(|body| body.starts_with(b"{") || body.starts_with(b"["));
    if is_json && !has_type { reply.header("Content-Type", "application/json") } else { reply }
}

impl Call {
    /// Calls the endpoint as workers call one; it can send no requests from here.
    async fn run(self) -> Reply {
        let Call { node, kind, at, head, body } = self;
        let (local, consumers) = (Rc::new(Local::default()), Consumers::default());
        let env = Env::new(&node, &local, &consumers);
        let mut ctx = Context::default();
        ctx.uri = head.raw_path().to_vec();
        ctx.request = head;
        let step = kind.respond_control(&kind.control_endpoints()[at], &mut ctx, &env);
        match tokio::time::timeout(TIME_LIMIT, step.ended(&mut ctx, &env, body)).await {
            Ok(End::Reply(reply)) => *reply,
            Ok(End::Next) => Reply { body: Some(Vec::new()), ..Reply::new(200) },
            Ok(End::Takeover(..) | End::Stream(..)) => Reply::new(501),
            Err(_) => Reply::new(504),
        }
    }
}
