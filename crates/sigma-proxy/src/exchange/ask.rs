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
use sigma_plugin::outbound::{Answer, Call, CallError, GATEWAY, MOST_WITHIN, Outbound};
use sigma_plugin::step::Asked;
use sigma_wire::{Downstream, Subrequest};

use super::Exchange;
use super::transfer::client_gone;
use crate::connection::ConnectionInfo;
use crate::outbound;
use crate::worker::Worker;

/// A running call, or its result.
enum CallState<'a> {
    /// To an upstream: dropped when the client leaves
    Out(Pin<Box<dyn Future<Output = Asked>>>),
    /// To the gateway itself: notified when the client leaves, and ends like other exchanges
    Own(Pin<Box<dyn Future<Output = Asked> + 'a>>),
    Ended(Asked),
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
    pub(super) async fn ask(&mut self, calls: Vec<Call>) -> Result<Vec<Asked>, Fault> {
        let abandoned = Rc::new(Cell::new(false));
        let within = self.scratch.ctx.within.saturating_add(1);
        let info = self.info_of_asker();
        let asker = Asker { worker: self.worker, info: &info, within };
        let begin = |call: Call| match &*call.upstream {
            GATEWAY => CallState::Own(Box::pin(asker.exchange(call, Rc::clone(&abandoned)))),
            _ => CallState::Out(self.worker.calls.call(call)),
        };
        let mut courses: Vec<CallState<'_>> = calls.into_iter().map(begin).collect();
        poll_fn(|task| {
            if !abandoned.get() && self.down.poll_departure(task).is_ready() {
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
}

impl Exchange<'_, '_> {
    /// Returns the connection of a subrequest. Its peer is the client that plugins trust: a trusted proxy has not
    /// seen the subrequest, and does not vouch for it.
    fn info_of_asker(&self) -> ConnectionInfo {
        let info = self.down.info();
        let mut origin = info.origin;
        let client = &self.scratch.ctx.client;
        if let Some(addr) =
            client.addr.filter(|addr| self.stage.is_guided() && Some(*addr) != origin.peer.ip())
        {
            origin.peer = Peer::Ip(SocketAddr::new(addr, client.port));
        }
        ConnectionInfo { origin, session: info.session.clone() }
    }
}

/// The parent of a subrequest.
#[derive(Clone, Copy)]
struct Asker<'c> {
    worker: &'c Worker,
    info: &'c ConnectionInfo,
    within: u8,
}

impl Asker<'_> {
    async fn exchange(self, call: Call, abandoned: Rc<Cell<bool>>) -> Asked {
        if self.within > MOST_WITHIN {
            return Err(CallError("requests of the gateway to itself go in a circle".to_owned()));
        }
        let mut digits = itoa::Buffer::new();
        let length =
            call.body.as_ref().map(|body| (HeaderId::ContentLength, digits.format(body.len()).as_bytes()));
        let limits = Rc::clone(&self.worker.view().server_limits);
        let head = outbound::head(&call, length.as_slice(), &limits.head)?;
        let Call { method, body, limit, timeout_ms, .. } = call;
        let body = body.unwrap_or_default();
        let mut client = Subrequest::new(method == Method::Head, body, limit, timeout_ms, abandoned);
        client.limit_body(limits.body_bytes);
        let mut scratch = self.worker.take_scratch();
        scratch.ctx.request.clone_from(&head);
        let mut exchange =
            Exchange::open(self.worker, self.info, Downstream::Subrequest(&mut client), &mut scratch);
        exchange.scratch.ctx.within = self.within;
        exchange.run().await;
        self.worker.give_scratch(scratch);
        let received = client.into_received().map_err(|reason| CallError(reason.to_owned()))?;
        Ok(Answer {
            status: received.status,
            headers: received.headers,
            body: received.body,
            trailers: received.trailers,
        })
    }
}
