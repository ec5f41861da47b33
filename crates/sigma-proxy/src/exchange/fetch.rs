//! A shared fetch: the response arrives at the pace of its node, even if readers are slow or leave.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use sigma_cache::Fill;
use sigma_http::{Fault, FaultKind, Frame};
use sigma_net::deadline;
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::pool::InUse;

use super::Exchange;
use super::local_reply::LocalReply;
use super::plan::{Ended, Plan};
use crate::attempt::target::{self, Demands};
use crate::snapshot::Upstream;
use crate::worker::View;

/// The rest of a response after its head.
struct Fetch {
    view: Rc<View>,
    upstream: Arc<Upstream>,
    node: Endpoint,
    demands: Demands,
    connection: InUse,
    fill: Fill,
    /// The read timeout of the node.
    read_ms: u64,
}

impl Exchange<'_, '_> {
    /// Fetches the rest of a response in the background, and returns the connection to the pool. The exchange
    /// continues with its reply, which reads the arriving bytes.
    pub(super) fn fetch(
        &self,
        plan: &Plan<'_>,
        node: &Endpoint,
        connection: InUse,
        fill: Fill,
        own: LocalReply,
    ) -> Ended {
        let fetch = Fetch {
            view: Rc::clone(&self.view),
            upstream: Arc::clone(plan.attempts.upstream),
            node: node.clone(),
            demands: self.demands(plan, node, 0),
            connection,
            fill,
            read_ms: plan.timeouts().read_ms,
        };
        tokio::task::spawn_local(fetch.run());
        Ended::Instead(Box::new(own))
    }
}

impl Fetch {
    async fn run(mut self) {
        loop {
            match self.next_frame().await {
                Ok(frame) => {
                    let is_last = !matches!(frame, Frame::Data(_));
                    self.fill.see(&frame);
                    if is_last {
                        break;
                    }
                }
                Err(fault) => {
                    tracing::debug!(reason = fault.reason, "a response for the cache is incomplete");
                    return;
                }
            }
        }
        let Fetch { view, upstream, node, demands, connection, .. } = self;
        let target = target::target(&view.snapshot, &upstream, &node, &demands);
        connection.give_back(&target, deadline::now_ms());
    }

    async fn next_frame(&mut self) -> Result<Frame, Fault> {
        let connection = &mut self.connection;
        connection.deadline().set(self.read_ms);
        poll_fn(|task| {
            if let Poll::Ready(frame) = connection.poll_frame(task) {
                return Poll::Ready(frame);
            }
            let late = Fault::new(FaultKind::ResponseTimeout, "the response did not arrive in time");
            connection.deadline().poll_expired(task).map(|()| Err(late))
        })
        .await
    }
}
