//! Calls for an exchange's client, to upstreams or to this gateway itself.
//!
//! A subrequest to the gateway is an exchange on the connection of its parent: with its addresses and its TLS
//! session, and so with all restrictions of this client.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll};

use sigma_http::{Fault, HeaderId, Method};
use sigma_net::Peer;
use sigma_plugin::Context;
use sigma_plugin::outbound::{
    Call, CallError, GATEWAY, Internal, MOST_WITHIN, Outbound, ServiceResponse, internal_name,
};
use sigma_plugin::step::CallResult;
use sigma_wire::{Downstream, Subrequest};

use super::Exchange;
use super::transfer::client_gone;
use crate::attempt::outbound;
use crate::edge::connection::ConnectionInfo;
use crate::worker::Worker;

/// A running call, or its result.
enum CallState<'a> {
    /// To an upstream: dropped when the client leaves
    Out(Pin<Box<dyn Future<Output = CallResult>>>),
    /// To the gateway itself: notified when the client leaves, and ends like other exchanges
    Own(Pin<Box<dyn Future<Output = CallResult> + 'a>>),
    Ended(CallResult),
}

impl CallState<'_> {
    fn poll(&mut self, task: &mut task::Context<'_>) -> Poll<()> {
        let result = match self {
            CallState::Out(call) => call.as_mut().poll(task),
            CallState::Own(call) => call.as_mut().poll(task),
            CallState::Ended(_) => return Poll::Ready(()),
        };
        result.map(|asked| *self = CallState::Ended(asked))
    }

    fn abandon(&mut self) {
        if matches!(self, CallState::Out(_)) {
            *self = CallState::Ended(Err(CallError("the client is gone".to_owned())));
        }
    }
}

impl Exchange<'_, '_> {
    /// Makes concurrent calls, and waits for all of them.
    ///
    /// # Errors
    /// Returns an error if the client leaves meanwhile.
    pub(super) async fn ask(&mut self, calls: Vec<Call>) -> Result<Vec<CallResult>, Fault> {
        let info = info_of_asker(self.down.info(), &self.scratch.ctx, self.stage.is_guided());
        let asker = Asker::new(self.worker, &info, &self.scratch.ctx);
        asker.ask(calls, &mut self.down).await
    }
}

/// Returns the connection of a subrequest. Its peer is the client that plugins trust: a trusted proxy has not seen the
/// subrequest, and does not vouch for it.
pub(super) fn info_of_asker(info: &ConnectionInfo, ctx: &Context, is_guided: bool) -> ConnectionInfo {
    let mut origin = info.origin;
    let client = &ctx.client;
    if let Some(addr) = client.addr.filter(|addr| is_guided && Some(*addr) != origin.peer.ip()) {
        origin.peer = Peer::Ip(SocketAddr::new(addr, client.port));
    }
    ConnectionInfo { origin, session: info.session.clone(), logs_in: info.logs_in.clone() }
}

/// The parent of a subrequest.
#[derive(Clone, Copy)]
pub(super) struct Asker<'c> {
    worker: &'c Worker,
    info: &'c ConnectionInfo,
    within: u8,
    /// The target of the client's request.
    target: &'c [u8],
}

impl<'c> Asker<'c> {
    /// Returns the parent with this context; `info` comes from [`info_of_asker`].
    pub(super) fn new(worker: &'c Worker, info: &'c ConnectionInfo, ctx: &'c Context) -> Asker<'c> {
        let target = match &ctx.internal {
            Some(internal) => &internal.asked_target,
            None => ctx.request.path_and_query(),
        };
        Asker { worker, info, within: ctx.within.saturating_add(1), target }
    }

    /// Makes concurrent calls, and waits for all of them.
    ///
    /// # Errors
    /// Returns an error if the client leaves meanwhile.
    pub(super) async fn ask(
        self,
        calls: Vec<Call>,
        down: &mut Downstream<'_>,
    ) -> Result<Vec<CallResult>, Fault> {
        let abandoned = Rc::new(Cell::new(false));
        let is_own = |key: &str| key == GATEWAY || internal_name(key).is_some();
        let begin = |call: Call| match is_own(&call.upstream) {
            true => CallState::Own(Box::pin(self.exchange(call, Rc::clone(&abandoned)))),
            false => CallState::Out(self.worker.calls.call(call)),
        };
        let mut courses: Vec<CallState<'_>> = calls.into_iter().map(begin).collect();
        poll_fn(|task| {
            if !abandoned.get() && down.poll_departure(task).is_ready() {
                abandoned.set(true);
                courses.iter_mut().for_each(CallState::abandon);
            }
            let mut waits = false;
            for course in &mut courses {
                waits |= course.poll(task).is_pending();
            }
            if waits { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        if abandoned.get() {
            return Err(client_gone());
        }
        let ended = |course| match course {
            CallState::Ended(asked) => Some(asked),
            CallState::Out(_) | CallState::Own(_) => None,
        };
        Ok(courses.into_iter().filter_map(ended).collect())
    }

    async fn exchange(self, call: Call, abandoned: Rc<Cell<bool>>) -> CallResult {
        if self.within > MOST_WITHIN {
            return Err(CallError("the gateway sends requests to itself in a loop".to_owned()));
        }
        let mut digits = itoa::Buffer::new();
        let length =
            call.body.as_ref().map(|body| (HeaderId::ContentLength, digits.format(body.len()).as_bytes()));
        let limits = Rc::clone(&self.worker.view().server_limits);
        let head = outbound::head(&call, length.as_slice(), &limits.head)?;
        let Call { upstream, method, body, limit, timeout_ms, .. } = call;
        let body = body.unwrap_or_default();
        let mut client = Subrequest::new(method == Method::Head, body, limit, timeout_ms, abandoned);
        client.limit_body(limits.body_bytes);
        let mut scratch = self.worker.take_scratch();
        scratch.ctx.request.clone_from(&head);
        let mut exchange =
            Exchange::open(self.worker, self.info, Downstream::Subrequest(&mut client), &mut scratch);
        exchange.scratch.ctx.within = self.within;
        if let Some(name) = internal_name(&upstream) {
            let internal = Internal { name: name.to_owned(), asked_target: self.target.to_vec() };
            exchange.scratch.ctx.internal = Some(Box::new(internal));
        }
        exchange.run().await;
        self.worker.give_scratch(scratch);
        let received = client.into_received().map_err(|reason| CallError(reason.to_owned()))?;
        Ok(ServiceResponse {
            status: received.status,
            headers: received.headers,
            body: received.body,
            trailers: received.trailers,
        })
    }
}
