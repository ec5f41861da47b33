//! Connections that have changed their protocol: plain bytes between a client and a node or a plugin.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{self, Poll, ready};

use sigma_http::{Fault, FaultKind, Frame, HeaderId, Method};
use sigma_plugin::record::Source as AnsweredBy;
use sigma_plugin::{Context, Reply, Takeover};

use super::delivery::{FarEnd, Source};
use super::local_reply::LocalReply;
use super::plan::Ended;
use super::response::Verdict;
use super::stage::InForce;
use super::transfer::Transfer;
use super::websocket::Client;
use super::{Exchange, connect, upgrade};
use crate::edge::withdrawal::Withdrawal;
use crate::worker::Worker;
use crate::worker::drain::{self, Turn};

/// A plugin that has taken over a connection.
struct Plugged {
    peer: Box<dyn Takeover>,
    /// It accepts nothing until its output was read.
    full: bool,
}

fn broke_off(error: &std::io::Error) -> Fault {
    tracing::debug!(%error, "a connection that a plugin took over broke");
    Fault::new(FaultKind::Internal, "the plugin gave up the connection")
}

impl Source for Plugged {
    fn poll_frame(&mut self, _: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        let next = ready!(self.peer.poll_next(task));
        if std::mem::take(&mut self.full) {
            // It may have room now, and need not know who made it.
            task.waker().wake_by_ref();
        }
        Poll::Ready(next.map(|data| data.map_or(Frame::End, Frame::Data)).map_err(|error| broke_off(&error)))
    }
}

impl FarEnd for Plugged {
    fn upgrade(&mut self) {}

    fn send(&mut self, frame: Frame) {
        if let Frame::Data(data) = frame {
            self.peer.take(data);
        }
    }

    fn poll_flush(&mut self, task: &mut task::Context<'_>) -> Poll<Result<(), Fault>> {
        let ready = self.peer.poll_ready(task);
        self.full = ready.is_pending();
        ready.map_err(|error| broke_off(&error))
    }
}

/// Opens the tunnel that a node's 101 has agreed to, unless a header filter replaces the response.
pub(super) async fn begin<S: FarEnd>(
    transfer: &mut Transfer<'_, '_, S>,
    ctx: &mut Context,
    in_force: Option<InForce<'_, '_>>,
    protocol: &[u8],
    worker: &Worker,
    withdrawal: Option<&Withdrawal>,
) -> Result<Ended, Fault> {
    if let Some(own) = filter_head(in_force, ctx, transfer.down, Some(protocol)).await? {
        return Ok(Ended::Replaced(own));
    }
    run(transfer, ctx, worker, withdrawal).await?;
    Ok(Ended::Spent)
}

/// Runs the header filters on a 101, as on the head of any other response. Returns the response that replaces it.
/// `protocol` is the one that the head confirms; None for CONNECT.
///
/// # Errors
/// Returns an error if a filter has changed the status or the protocol: the tunnel does not open then.
async fn filter_head(
    in_force: Option<InForce<'_, '_>>,
    ctx: &mut Context,
    down: &mut Client<'_>,
    protocol: Option<&[u8]>,
) -> Result<Option<Box<LocalReply>>, Fault> {
    let Some(in_force) = in_force else { return Ok(None) };
    ctx.has_response_body = false;
    if let Verdict::Replaced(own) = in_force.respond(ctx, down, false).await? {
        return Ok(Some(own));
    }
    let head = &ctx.response;
    if head.status != 101 || protocol.is_some_and(|name| upgrade::check_agreement(head, name).is_err()) {
        let reason = "a plugin changed the status or the protocol of the response that opens a tunnel";
        return Err(Fault::new(FaultKind::UpgradeFailed, reason));
    }
    Ok(None)
}

/// Confirms the change of protocol to the client, and carries bytes until one side has closed, the node is taken
/// out together with its tunnels, or the worker ends.
pub(super) async fn run<S: FarEnd>(
    transfer: &mut Transfer<'_, '_, S>,
    ctx: &mut Context,
    worker: &Worker,
    withdrawal: Option<&Withdrawal>,
) -> Result<(), Fault> {
    open(transfer, ctx);
    let mut leave = drain::Leave::default();
    poll_fn(|task| {
        match leave.turn(&worker.drain, || worker.random(), task) {
            Turn::Stay => {}
            Turn::Begin => transfer.say_goodbye((worker.random() as u32).to_ne_bytes()),
            Turn::End => return Poll::Ready(Ok(())),
        }
        let polled = transfer.poll_tunnel(task, ctx);
        match withdrawal {
            Some(withdrawal) if polled.is_pending() && withdrawal.poll(task).is_ready() => {
                tracing::debug!("a tunnel was closed because its node was removed");
                Poll::Ready(Ok(()))
            }
            _ => polled,
        }
    })
    .await
}

fn open<S: FarEnd>(transfer: &mut Transfer<'_, '_, S>, ctx: &mut Context) {
    ctx.record.status = if ctx.request.method == Method::Connect { 200 } else { 101 };
    transfer.down.send_interim(&mut ctx.response);
    transfer.open_tunnel();
}

/// The source of the protocols that a connection may change to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// The route, as for a node.
    OfRoute,
    /// The upstream, which is served over WebSocket only.
    OfUpstream,
}

impl Exchange<'_, '_> {
    /// Hands the connection over to a plugin, if that is allowed.
    pub(super) async fn hand_over(
        &mut self,
        reply: Reply,
        peer: Box<dyn Takeover>,
        leave: Leave,
    ) -> Result<(), Fault> {
        let view = Rc::clone(&self.view);
        let ctx = &mut self.scratch.ctx;
        let is_connect = ctx.request.method == Method::Connect;
        let protocol = match leave {
            Leave::OfRoute if is_connect => {
                let route = self.stage.route(&view.snapshot);
                route.filter(|route| connect::is_allowed(route)).map(|_| &b""[..])
            }
            _ if !self.asks_upgrade => None,
            Leave::OfRoute => {
                let route = self.stage.route(&view.snapshot);
                route.and_then(|route| upgrade::admitted(&ctx.request, route))
            }
            Leave::OfUpstream => upgrade::websocket(&ctx.request),
        };
        let Some(protocol) = protocol else {
            let reason = "a plugin takes over the connection, but the route allows no other protocol";
            return Err(Fault::new(FaultKind::NotImplemented, reason));
        };
        let head = &mut ctx.response;
        head.start(101);
        if !is_connect {
            head.headers.set(HeaderId::Upgrade, protocol);
        }
        for (name, value) in &reply.headers {
            head.headers.append(name, value);
        }
        if !is_connect {
            upgrade::check_agreement(head, protocol)?;
        }
        self.down.check_answer(head)?;
        ctx.record.source = AnsweredBy::Gateway;
        let protocol = (!is_connect).then(|| protocol.to_vec());
        let in_force = self.stage.in_force(self.worker, &view);
        if let Some(own) = filter_head(in_force, ctx, &mut self.down, protocol.as_deref()).await? {
            return self.deliver_local(*own).await;
        }
        let timeouts = &view.snapshot.settings.timeouts;
        let mut far = Plugged { peer, full: false };
        run(&mut Transfer::handed_over(&mut self.down, &mut far, timeouts), ctx, self.worker, None).await
    }
}
