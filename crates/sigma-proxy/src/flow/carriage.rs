//! The node of a session, by the rules of attempts, and the session with it.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use sigma_config::expr::Variables;
use sigma_config::resources::OnUnhealthy;
use sigma_http::{Fault, FaultKind};
use sigma_net::{Deadline, Stream};
use sigma_observe::counters::Counter;
use sigma_plugin::flow::Tried;
use sigma_upstream::dial::reach;
use sigma_upstream::overload::gate::Permit;

use super::relay::{Broken, Relay};
use super::{End, Flow, ms_since, now};
use crate::attempts::{Attempts, Choice, Decision, Failure, Picked};
use crate::drain::{Leave, Turn};
use crate::snapshot::Upstream;
use crate::target::{self, Demands};
use crate::withdrawal::Withdrawal;
use crate::worker::View;

/// The name that a node is asked for over TLS by a session without one (APISIX).
const NAMELESS: &str = "apisix_backend";

impl Flow<'_> {
    /// Finds a node and carries the session, in the end of which all counts are right.
    pub(super) async fn carry(
        &mut self,
        down: Stream,
        view: Rc<View>,
        number: u32,
        upstream: &Arc<Upstream>,
    ) -> Result<(), End> {
        let worker = self.worker;
        let _permit = self.admit(upstream)?;
        let choice = self.choice(upstream);
        let mut attempts = Attempts::new(worker, number, upstream, None, choice);
        let (node, up, _in_flight) = loop {
            let node = self.pick(&mut attempts)?;
            let in_flight = attempts.begin(&node);
            // Boxed, so that what a connection takes to make is free again while it lasts.
            match Box::pin(self.reach(&view, upstream, &node)).await {
                Ok(stream) => break (node, stream, in_flight),
                Err(fault) => {
                    drop(in_flight);
                    let failure =
                        Failure { fault, decision: Decision::NextNode, request_sent: true, status: None };
                    if !attempts.failed(&node, &failure) {
                        return Err(fault.into());
                    }
                }
            }
        };
        // That it has taken the session is all that can be said of it.
        attempts.answered(&node, Some(200));
        let idle_ms = match &upstream.config.timeout {
            Some(_) => upstream.timeouts.read_ms,
            None => view.snapshot.settings.timeouts.stream_idle_ms.into(),
        };
        drop(view);
        let closes = upstream.config.on_unhealthy == Some(OnUnhealthy::Close);
        let withdrawal = closes.then(|| Withdrawal::watch(&node.health));
        self.relay(down, up, idle_ms, withdrawal).await
    }

    /// A place behind the gate of the upstream, if it has one.
    pub(super) fn admit(&self, upstream: &Upstream) -> Result<Option<Permit>, Fault> {
        let limit = upstream.guards.as_ref().and_then(|guards| guards.limit.as_ref());
        let Some((limit, way)) = limit.and_then(|limit| Some((limit, limit.to_upstream()?))) else {
            return Ok(None);
        };
        match way.gate.try_enter(way.bounds) {
            Some(permit) => Ok(Some(permit)),
            None => self.over_limit(limit.dry_run).map(|()| None),
        }
    }

    fn over_limit(&self, dry_run: bool) -> Result<(), Fault> {
        if dry_run {
            self.worker.counters.add(Counter::UpstreamRefusedDryRun, 1);
            return Ok(());
        }
        self.worker.counters.add(Counter::UpstreamRefusedLimit, 1);
        // A session that waits holds a connection that its client takes for open: it does not.
        Err(Fault::new(FaultKind::Overloaded, "the upstream has as many sessions as it may have"))
    }

    pub(super) fn pick(&self, attempts: &mut Attempts<'_>) -> Result<Picked, Fault> {
        let Some(limit) = attempts.upstream.node_limit() else { return attempts.pick() };
        let node = attempts.pick_free(limit)?;
        if !node.has_place() {
            self.over_limit(limit.dry_run)?;
        }
        Ok(node)
    }

    /// The wishes that the rules of an upstream ask for; None if they ask for none.
    pub(super) fn choice(&self, upstream: &Upstream) -> Option<Box<Choice>> {
        let session: &dyn Variables = &self.session;
        let address = || {
            let addr = self.session.client.addr;
            addr.map_or_else(|| b"unix:".to_vec(), |addr| addr.to_string().into_bytes())
        };
        let key = upstream.key_of(session, address).map(Vec::into_boxed_slice);
        let subset = upstream.subset_of(session);
        (key.is_some() || subset.is_some()).then(|| Box::new(Choice { key, subset, ..Choice::default() }))
    }

    /// One attempt on a node.
    async fn reach(&mut self, view: &View, upstream: &Upstream, node: &Picked) -> Result<Stream, Fault> {
        let began = now();
        let asked = self.session.asked.as_ref().and_then(|asked| asked.server_name.as_deref());
        let mut demands = Demands::of_session(upstream, self.origin, asked.unwrap_or(NAMELESS));
        demands.connect_ms = upstream.timeouts.connect_ms;
        let target = target::target(&view.snapshot, upstream, node, &demands);
        let deadline = Deadline::new();
        deadline.set(demands.connect_ms);
        let reached = reach(&node.addr, &target.dial, &deadline).await;
        if reached.is_ok() {
            self.worker.counters.add(Counter::UpstreamConnects, 1);
        }
        let connect_ms = reached.is_ok().then(|| ms_since(began));
        self.session.course.nodes.push(Tried { addr: node.addr.to_string().into(), connect_ms });
        reached
    }

    /// Moves bytes until both sides have ended, or one is broken, silent for too long, or withdrawn, or the worker
    /// ends.
    async fn relay(
        &mut self,
        down: Stream,
        up: Stream,
        idle_ms: u64,
        withdrawal: Option<Withdrawal>,
    ) -> Result<(), End> {
        let mut relay = Relay::new(down, up, std::mem::take(&mut self.session.early));
        let idle = Deadline::new();
        idle.set(idle_ms);
        let mut moved = relay.moved();
        let (worker, traffic) = (self.worker, &self.session.traffic);
        let mut leave = Leave::default();
        let ended = poll_fn(|cx| {
            match leave.turn(&worker.drain, || worker.random(), cx) {
                Turn::Stay => {}
                Turn::Begin => relay.say_goodbye(),
                Turn::End if relay.end(cx) => return Poll::Ready(Ok(())),
                Turn::End => return Poll::Ready(Err(Stopped::Stopping)),
            }
            let polled = relay.poll(cx);
            let now = relay.moved();
            if now != moved {
                let (from_client, to_client) = (now.0 - moved.0, now.1 - moved.1);
                worker.counters.add(Counter::StreamBytesIn, from_client);
                worker.counters.add(Counter::StreamBytesOut, to_client);
                traffic.pass(from_client, to_client);
                moved = now;
                idle.set(idle_ms);
            }
            match polled {
                Poll::Ready(ended) => return Poll::Ready(ended.map_err(Stopped::Broken)),
                Poll::Pending if idle.poll_expired(cx).is_ready() => {
                    return Poll::Ready(Err(Stopped::Idle));
                }
                Poll::Pending => {}
            }
            match withdrawal.as_ref().map(|withdrawal| withdrawal.poll(cx)) {
                Some(Poll::Ready(_)) => Poll::Ready(Err(Stopped::Withdrawn)),
                _ => Poll::Pending,
            }
        })
        .await;
        let course = &mut self.session.course;
        let (received, sent) = relay.moved();
        (course.received, course.upstream_sent) = (received, received);
        (course.sent, course.upstream_received) = (sent, sent);
        let stopped = match ended {
            Ok(()) => return Ok(()),
            Err(stopped) => stopped,
        };
        // What was cut short must not look like an end.
        relay.reset();
        Err(stopped.fault().into())
    }
}

/// Why bytes move no more.
enum Stopped {
    Broken(Broken),
    Idle,
    Withdrawn,
    Stopping,
}

impl Stopped {
    fn fault(&self) -> Fault {
        let (kind, reason) = match self {
            Stopped::Broken(Broken::Downstream) => (FaultKind::ClientGone, "the client broke the connection"),
            Stopped::Broken(Broken::Upstream) => {
                (FaultKind::ConnectionTerminated, "the node broke the connection")
            }
            Stopped::Idle => (FaultKind::ResponseTimeout, "nothing was sent for too long"),
            Stopped::Withdrawn => (FaultKind::NodeWithdrawn, "the node went out, and sessions end with it"),
            Stopped::Stopping => (FaultKind::Stopping, "the gateway stops amid the session"),
        };
        Fault::new(kind, reason)
    }
}
