//! One request and its response, from open to finish, independent of the protocol version.

mod among;
mod ask;
mod bridge;
mod cache;
mod choice;
mod client_address;
mod connect;
mod delivery;
mod dubbo;
mod early;
mod fetch;
mod finish;
mod forward;
mod grpc;
mod guarded;
mod headers;
mod hedge;
mod intake;
mod line;
mod local_reply;
mod phases;
mod plan;
mod proxy_status;
mod read_ahead;
mod read_along;
mod remainder;
mod reply;
mod report;
mod request;
mod response;
mod response_head;
mod sanitize;
mod stage;
mod target;
mod transfer;
mod tunnel;
mod upgrade;
mod upload;
mod via;
mod websocket;

use std::rc::Rc;

use sigma_http::{BodyLength, Fault, FaultKind, HeaderId, Method, RequestHead, ResponseHead};
use sigma_observe::counters::Counter;
use sigma_plugin::address::NodeAddr;
use sigma_plugin::body_fields::BodyFields;
use sigma_plugin::context::Client;
use sigma_plugin::record::{Interest, Source};
use sigma_plugin::variables::host_name;
use sigma_plugin::{Context, Reply};
use sigma_wire::Downstream;

use crate::edge::challenges::Challenges;
use crate::edge::connection::{ConnectionInfo, Origin, TlsSession};
use crate::route::{Outcome, Params};
use crate::snapshot::{Route, Target};
use crate::worker::{View, Worker};
use client_address::ForwardedAddress;
use local_reply::Draft;
use remainder::Remainder;
use request::RequestView;
use stage::Stage;
use tunnel::Leave;
use via::Onward;

#[cfg(test)]
pub(crate) use request::find;
pub(crate) use request::{PeerText, Viewed, accept, explain};
pub(crate) use via::{OwnName, mark_pass};

/// Largest head whose memory is kept for another exchange.
const KEPT_HEAD_BYTES: usize = 16 * 1024;

/// Memory that an exchange needs while it runs; recycled.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The exchange as plugins see it.
    pub(crate) ctx: Context,
    params: Params,
    body: upload::RequestBody,
    /// A header value being built.
    value: Vec<u8>,
    /// The protocol that the connection to a node changes to; empty for none.
    upgrade: Vec<u8>,
    attempt: LastAttempt,
    /// The framing of the request body, once it is ready to be sent.
    framing: Option<BodyLength>,
    /// The time spent on upstreams that did not respond.
    spent_ms: u64,
    /// The facts about the response that the cache needs; boxed, as few exchanges have any.
    turn: Option<Box<cache::Turn>>,
    /// No route can be found without the request body.
    asks_body: bool,
    /// The client's address as the proxies in front tell it.
    told: Option<ForwardedAddress>,
    response: NodeResponse,
}

/// The result of the last attempt.
#[derive(Debug, Default)]
struct LastAttempt {
    /// It failed because of its node.
    blames_node: bool,
    /// It failed, and the request may be sent again.
    may_repeat: bool,
    /// The status that its response counts as. None if it says nothing about its node.
    verdict: Option<u16>,
    /// Its node, if it failed.
    failed_node: Option<NodeAddr>,
}

/// The state of a node's response.
#[derive(Debug, Default)]
struct NodeResponse {
    /// A filter has rejected its body.
    is_refused: bool,
    /// It had begun, and was cut.
    is_cut: bool,
    /// The part that the node has sent and the client has not received yet.
    remainder: Option<Box<Remainder>>,
    /// The announcement of HTTP/3 in it, for the pool of the node.
    alternative: Option<Box<[u8]>>,
}

impl Scratch {
    /// Prepares all but the context for another exchange.
    fn begin(&mut self) {
        self.body.clear();
        (self.framing, self.spent_ms, self.turn, self.told) = (None, 0, None, None);
        self.asks_body = false;
        self.attempt.failed_node = None;
        self.response = NodeResponse::default();
    }

    /// Frees the memory that another exchange does not need.
    pub(crate) fn let_go(&mut self) {
        (self.ctx.body, self.ctx.request_copy, self.response.remainder) = (None, None, None);
        self.body.let_go();
        if self.ctx.request.headers.memory() > KEPT_HEAD_BYTES {
            self.ctx.request = RequestHead::default();
        }
        if self.ctx.response.headers.memory() > KEPT_HEAD_BYTES {
            self.ctx.response = ResponseHead::default();
        }
    }

    /// Returns true if the request has a body.
    fn has_body(&self) -> bool {
        !self.framing.unwrap_or_default().is_empty()
    }
}

/// An exchange in flight.
pub(crate) struct Exchange<'x, 'c> {
    worker: &'c Worker,
    view: Rc<View>,
    down: websocket::Client<'c>,
    scratch: &'x mut Scratch,
    stage: Stage,
    /// The client asks to change the protocol.
    asks_upgrade: bool,
}

impl<'x, 'c> Exchange<'x, 'c> {
    /// Opens an exchange whose head is in `scratch.ctx.request`.
    pub(crate) fn open(
        worker: &'c Worker,
        info: &'c ConnectionInfo,
        down: Downstream<'c>,
        scratch: &'x mut Scratch,
    ) -> Exchange<'x, 'c> {
        let down = websocket::Client::new(info, down, &worker.counters);
        let view = worker.view();
        worker.counters.add(Counter::Requests, 1);
        scratch.ctx.begin();
        scratch.begin();
        // Only configurations with such variables pay for the counter that all workers share.
        scratch.ctx.definitions.clone_from(&view.snapshot.definitions);
        scratch.ctx.record.watch(if worker.is_watched() { Interest::ALWAYS } else { view.interest });
        Exchange { worker, view, down, scratch, stage: Stage::Opened, asks_upgrade: false }
    }

    /// Runs it to its end.
    pub(crate) async fn run(&mut self) {
        let mut served = self.serve().await;
        if let Some(remainder) = self.scratch.response.remainder.take() {
            // Boxed, as few clients are slower than their nodes.
            served = Box::pin(self.deliver_remainder(*remainder)).await;
        }
        if let Err(fault) = served {
            self.fail(fault).await;
        }
        self.finish();
    }

    /// Responds to a head that was rejected before it became a request. Its known part is for logs only: no response
    /// depends on it.
    pub(crate) async fn refuse(&mut self, fault: Fault) {
        let known = Box::new(std::mem::take(&mut self.scratch.ctx.request));
        self.down.close_after();
        self.fail(fault).await;
        self.scratch.ctx.request = *known;
        // Other heads may lack fields of the proxy in front.
        if fault.kind == FaultKind::RequestBodyTooLarge {
            let view = Rc::clone(&self.view);
            self.learn_client_address(&view.snapshot);
        }
        self.finish();
    }

    async fn serve(&mut self) -> Result<(), Fault> {
        self.admit()?;
        let view = Rc::clone(&self.view);
        if view.snapshot.closed {
            return Err(Fault::new(FaultKind::NoUpstream, "a global rule is quarantined"));
        }
        self.enter(&view.snapshot);
        self.check_passes(&view.snapshot)?;
        if let Onward::No = self.count_forward() {
            return self.reply(last_recipient(self.scratch.ctx.request.method)).await;
        }
        // Boxed, as few requests are early.
        if let Some(early) = self.early_handshake()
            && let Some(refusal) = Box::pin(self.meet_early(&early)).await?
        {
            return self.reply(refusal).await;
        }
        if let Some(challenges) = &view.snapshot.challenges
            && let Some(proof) = proof(challenges, &self.scratch.ctx.request)
        {
            return self.reply(proof).await;
        }
        // Boxed, as all that follows would have room for it.
        let mut found = self.find_route(None);
        if self.scratch.asks_body {
            found = Box::pin(self.find_route_by_body()).await;
        }
        let (route, missed) = match found {
            Ok(number) => (view.snapshot.route(number), None),
            Err(fault) => (None, Some(Box::new(fault))),
        };
        if self.is_connect() && !route.is_some_and(connect::is_allowed) {
            return Err(connect::REFUSED);
        }
        if let Some(route) = route {
            self.worker.let_in(route.priority_class)?;
        }
        let plugins = !view.snapshot.global.is_empty() || route.is_some_and(|route| !route.chain.is_empty());
        if plugins && missed.as_ref().is_none_or(|fault| fault.kind == FaultKind::NoRoute) {
            self.open_to_plugins(route);
            if let Some(reply) = self.request_phases().await? {
                return self.reply(reply).await;
            }
        }
        if let Some(fault) = missed {
            return Err(*fault);
        }
        if self.is_connect() {
            // No plugin has opened a tunnel, and no node may.
            return Err(connect::REFUSED);
        }
        // The router and the routes belong to one snapshot: a found route exists.
        let Some(route) = route else { return Err(Fault::new(FaultKind::Internal, "the route is gone")) };
        if route.target.is_unguarded() {
            return Err(nowhere(route.target));
        }
        if let Some(reply) = self.lost_upstream(&view) {
            return self.reply(reply).await;
        }
        if let Some(cache) = route.cache() {
            self.wish_for_cache(cache);
        }
        // Boxed, as all exchanges without a cache would have room for it.
        if self.scratch.ctx.cache.is_some() && Box::pin(self.answer_from_cache()).await? {
            return Ok(());
        }
        match self.target(&view, route) {
            Target::Upstream(upstream) if view.snapshot.is_guarded(upstream) => {
                Box::pin(self.forward_guarded(&view, route, upstream, true)).await
            }
            Target::Upstream(upstream) => self.forward(&view, route, upstream).await,
            target => Err(nowhere(target)),
        }
    }

    /// Returns the route's upstream, or the one that a plugin chose.
    fn target(&self, view: &View, route: &Route) -> Target {
        match &self.scratch.ctx.upstream {
            Some(key) => view.snapshot.upstream_number(key).map_or(Target::NoUpstream, Target::Upstream),
            None => route.target,
        }
    }

    /// Returns the response for an upstream id, chosen by a plugin, that no upstream has any more.
    fn lost_upstream(&self, view: &View) -> Option<Box<Draft>> {
        let key = self.scratch.ctx.upstream.as_deref()?;
        let id = key.strip_prefix("upstreams/").filter(|_| view.snapshot.upstream_number(key).is_none())?;
        let text = format!("failed to fetch upstream info by upstream id: {id}");
        Some(Reply::new(500).text(text).into())
    }

    /// Fills in the facts that plugins see of the exchange.
    fn open_to_plugins(&mut self, route: Option<&Route>) {
        self.stage.guide(&self.view);
        let ctx = &mut self.scratch.ctx;
        ctx.has_request_body = !self.down.body_length().is_empty();
        ctx.client = client(&self.down, &self.view, self.scratch.told);
        ctx.record.connection_requests = self.down.request_number();
        if let Some(route) = route {
            ctx.route = Some(std::sync::Arc::clone(&route.facts));
            ctx.record.watch(route.chain.interest());
        }
        self.clear_owned();
    }

    /// Rejects requests that no route may serve.
    fn admit(&mut self) -> Result<(), Fault> {
        if self.is_connect() {
            return self.begin_connect();
        }
        let head = &self.scratch.ctx.request;
        target::check_method(head, &self.view.snapshot)?;
        let mut expectations = head.headers.get_all(HeaderId::Expect);
        if expectations.any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(Fault::new(FaultKind::ExpectationFailed, "only 100-continue is supported in Expect"));
        }
        Ok(())
    }

    /// Finds the route and prepares the target for its node. If a condition requests the body, which was not read,
    /// `asks_body` is set, and the returned number is meaningless.
    fn find_route(&mut self, body: Option<&BodyFields>) -> Result<u32, Fault> {
        let snapshot = &self.view.snapshot;
        let Scratch { ctx, params, value, asks_body, told, .. } = &mut *self.scratch;
        target::canonicalize(&mut ctx.request, snapshot)?;
        let path = target::normal_path(&ctx.request, snapshot)?;
        if snapshot.certificates.asks() {
            // The authority of a CONNECT is not a host of this gateway.
            let host = match (ctx.request.method, self.down.tls_session()) {
                (Method::Connect, session) => session.map_or("", TlsSession::name).as_bytes().into(),
                _ => host_name(ctx.request.authority()),
            };
            let (host, path) = (String::from_utf8_lossy(&host), String::from_utf8_lossy(&path.uri));
            match self.down.tls_session() {
                Some(session) => session.judge(&snapshot.certificates, &host, &path)?,
                None if snapshot.certificates.admits_cleartext(&host, &path) => {}
                None => {
                    let reason = "the host requires a client certificate, but the request came without TLS";
                    return Err(Fault::new(FaultKind::Misdirected, reason));
                }
            }
        }
        let tls = self.down.tls_session().map(|session| &*session.tls);
        let request = RequestView::new(&ctx.request, &path, *self.down.origin())
            .with_forwarded_address(*told)
            .within(tls);
        let request =
            request.located(snapshot.geography.as_ref()).with_body(body, self.down.body_length().is_empty());
        let internal = ctx.internal.as_ref().map(|internal| internal.name.as_str());
        let request = request.defined(snapshot.definitions.as_deref()).internal(internal);
        let found = snapshot.router.find(&request, params);
        *asks_body = request.asks_body();
        if *asks_body {
            return Err(Fault::new(FaultKind::NoRoute, "the request body decides"));
        }
        let number = match found {
            Outcome::Route(number) => number,
            Outcome::NotFound => {
                ctx.uri.extend_from_slice(&path.uri);
                return Err(Fault::new(FaultKind::NoRoute, "404 Route Not Found"));
            }
            Outcome::UnsupportedMediaType => {
                return Err(Fault::new(
                    FaultKind::UnsupportedMediaType,
                    "no route accepts this content type",
                ));
            }
            Outcome::NotAcceptable => {
                return Err(Fault::new(FaultKind::NotAcceptable, "no route produces an accepted type"));
            }
            Outcome::MethodNotAllowed(methods) => {
                *value = methods.to_string().into_bytes();
                return Err(Fault::new(FaultKind::MethodNotAllowed, "no route accepts this method"));
            }
        };
        self.stage = Stage::Routed(number);
        ctx.uri.extend_from_slice(&path.uri);
        for (name, range) in params.iter() {
            ctx.params.push(name, &path.matched()[range]);
        }
        if let Some(definitions) = snapshot.route(number).and_then(Route::definitions) {
            ctx.definitions = Some(std::sync::Arc::clone(definitions));
        }
        if let Some(rewrite) = snapshot.route(number).and_then(|route| route.rewrite()) {
            target::rewrite(rewrite, &path, ctx.request.query(), &mut ctx.target);
        }
        Ok(number)
    }

    /// Sends the response of a plugin.
    async fn reply(&mut self, mut draft: Box<Draft>) -> Result<(), Fault> {
        if draft.reply.is_silent {
            let record = &mut self.scratch.ctx.record;
            (record.source, record.status) = (Source::Gateway, draft.reply.status);
            self.down.abort();
            return Ok(());
        }
        if let Some(peer) = draft.peer.take() {
            return Box::pin(self.hand_over(draft.reply, peer, Leave::OfRoute)).await;
        }
        self.demand_as_proxy(&mut draft);
        if self.wants_tunnel() && (200..300).contains(&draft.reply.status) {
            // A success would tell the client that its tunnel is open (RFC 8441 §5).
            return Err(Fault::new(
                FaultKind::NotImplemented,
                "the request asks for a tunnel, but nothing opens one",
            ));
        }
        self.scratch.ctx.record.source = Source::Gateway;
        // Boxed, so that exchanges that are proxied have no room for it.
        Box::pin(self.send_reply(*draft)).await
    }
}

/// Returns the fault of a route without a valid upstream.
fn nowhere(target: Target) -> Fault {
    match target {
        Target::NoService => Fault::new(FaultKind::NoService, "the route's service does not exist"),
        Target::NoPluginConfig => {
            Fault::new(FaultKind::NoUpstream, "the route's plugin config does not exist")
        }
        Target::Closed => {
            Fault::new(FaultKind::NoUpstream, "the route or a resource that it uses is quarantined")
        }
        Target::NoUpstream | Target::Upstream(_) => {
            Fault::new(FaultKind::NoUpstream, "the route has no upstream")
        }
    }
}

/// Returns the response if `Max-Forwards` ends the request here. It shows nothing of routes, and does not echo a
/// TRACE: the request has fields of other gateways.
fn last_recipient(method: Method) -> Box<Draft> {
    let status = if method == Method::Options { 204 } else { 405 };
    Reply::new(status).into()
}

/// Returns the response to a certificate authority that checks a name of this gateway. It goes before all routes and
/// rules, whose responses (redirects, logins) would fail the check.
fn proof(challenges: &Challenges, head: &RequestHead) -> Option<Box<Draft>> {
    let answer = challenges.response(head.raw_path()).filter(|_| head.method == Method::Get)?;
    Some(Reply::new(200).header("Content-Type", "application/octet-stream").text(answer).into())
}

/// Where the request came from, for plugins.
fn client(down: &websocket::Client<'_>, view: &View, told: Option<ForwardedAddress>) -> Client {
    let mut client = Client { tls: down.tls(), geography: view.geography.clone(), ..down.origin().client() };
    if let Some(told) = told {
        (client.addr, client.port) = (Some(told.addr), told.port);
    }
    client
}

impl Origin {
    /// Returns the port that the client connected to.
    fn local_port(&self) -> u16 {
        self.local.map_or(0, |addr| addr.port())
    }
}
