//! Background revalidation: a stale response is fetched again while it is still sent.

use std::cell::Cell;
use std::rc::Rc;

use sigma_http::{Fault, FaultKind};
use sigma_wire::{Downstream, NoClient};

use super::Turn;
use super::conditions::{ask_whether_good, ask_without_condition};
use crate::edge::connection::ConnectionInfo;
use crate::exchange::stage::Stage;
use crate::exchange::{Exchange, Scratch, websocket};
use crate::snapshot::Target;
use crate::worker::{View, Worker};

/// An exchange without a client.
pub(super) struct BackgroundExchange {
    pub(super) worker: Rc<Worker>,
    pub(super) view: Rc<View>,
    pub(super) info: ConnectionInfo,
    pub(super) stage: Stage,
    pub(super) scratch: Box<Scratch>,
}

impl Exchange<'_, '_> {
    /// Sends the request of `turn` to a node in the background, with the changes of plugins.
    pub(super) fn ask_in_background(&self, turn: Turn) {
        let Some(worker) = self.worker.calls.worker() else { return };
        let mut scratch = worker.take_scratch();
        self.scratch.ctx.repeat_in(&mut scratch.ctx);
        scratch.begin();
        ask_without_condition(&mut scratch.ctx.request.headers);
        if let Some(stale) = turn.stale.as_deref().filter(|_| turn.validates) {
            ask_whether_good(&mut scratch.ctx.request.headers, stale);
        }
        scratch.turn = Some(Box::new(turn));
        let info = ConnectionInfo { origin: *self.down.origin(), session: None, logs_in: Cell::default() };
        let (view, stage) = (Rc::clone(&self.view), self.stage.again());
        BackgroundExchange { worker, view, info, stage, scratch }.spawn();
    }
}

impl BackgroundExchange {
    /// Runs it in the background.
    pub(super) fn spawn(self) {
        tokio::task::spawn_local(self.run());
    }

    async fn run(mut self) {
        if let Err(fault) = self.ask().await {
            tracing::debug!(reason = fault.reason, "cannot revalidate a stored response");
            let now = self.worker.clock.borrow().unix_ms() / 1000;
            if let Some(lead) = self.scratch.turn.as_mut().and_then(|turn| turn.lead.take()) {
                lead.fail(now);
            }
        }
        (self.scratch.turn, self.scratch.ctx.keeper) = (None, None);
        self.worker.give_scratch(self.scratch);
    }

    async fn ask(&mut self) -> Result<(), Fault> {
        let BackgroundExchange { worker, view, info, stage, scratch } = self;
        let mut no_client = NoClient::default();
        let mut exchange = Exchange {
            worker,
            view: Rc::clone(view),
            down: websocket::Client::new(info, Downstream::NoClient(&mut no_client), &worker.counters),
            scratch,
            stage: stage.again(),
            asks_upgrade: false,
        };
        let gone = || Fault::new(FaultKind::Internal, "the route is gone");
        let route = exchange.stage.route(&view.snapshot).ok_or_else(gone)?;
        match exchange.target(view, route) {
            Target::Upstream(upstream) if view.snapshot.is_guarded(upstream) => {
                Box::pin(exchange.forward_guarded(view, route, upstream, true)).await?;
            }
            Target::Upstream(upstream) => exchange.forward(view, route, upstream).await?,
            _ => return Err(gone()),
        }
        match exchange.scratch.response.remainder.take() {
            Some(remainder) => exchange.deliver_remainder(*remainder).await,
            None => Ok(()),
        }
    }
}
