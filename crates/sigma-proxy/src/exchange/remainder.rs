//! The part of a response that its node has sent and the client has not received yet.
//!
//! A node has done its work once the last byte of its response was read. From then on its connection serves others,
//! and balancing, limits, queues and breakers count the request no more; the client reads the rest at its own pace.

use std::fmt;
use std::future::poll_fn;
use std::task::Poll;

use sigma_http::Fault;
use sigma_net::{Deadline, deadline};
use sigma_wire::Rest;

use super::Exchange;
use super::delivery::{Delivery, OwnBody};
use super::transfer::Transfer;

/// A response that no longer needs its node.
pub(super) struct Remainder {
    delivery: Delivery,
    body: OwnBody,
    /// The end of the exchange's time, if it has one, and the fault then.
    end: Option<(u64, Fault)>,
}

impl Remainder {
    /// Returns the part of a response that is left to `delivery`. `end` is the end of the exchange's time, if it has
    /// one, and the fault then.
    pub(super) fn new(delivery: Delivery, rest: Rest, end: Option<(u64, Fault)>) -> Box<Remainder> {
        Box::new(Remainder { delivery, body: OwnBody::Rest(rest), end })
    }
}

impl fmt::Debug for Remainder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remainder").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Exchange<'_, '_> {
    /// Sends the client the rest of a response. It counts among the bytes that are held for clients.
    pub(super) async fn deliver_remainder(&mut self, remainder: Remainder) -> Result<(), Fault> {
        let Remainder { mut delivery, mut body, end } = remainder;
        let bodies = self.bodies_held();
        let timeouts = &self.view.snapshot.settings.timeouts;
        let limit = Deadline::new();
        if let Some((ends_ms, _)) = end {
            limit.set(ends_ms.saturating_sub(deadline::now_ms()).max(1));
        }
        let (ctx, drain) = (&mut self.scratch.ctx, &self.worker.drain);
        let mut transfer = Transfer::own(&mut self.down, &mut body, timeouts);
        poll_fn(|task| {
            let polled = transfer.poll_body(task, &mut delivery, ctx);
            if polled.is_ready() {
                return polled;
            }
            transfer.down.hold(bodies + transfer.up.rest_memory());
            if let Some((_, fault)) = end
                && limit.poll_expired(task).is_ready()
            {
                return Poll::Ready(Err(fault));
            }
            drain.poll_over()
        })
        .await
    }
}
