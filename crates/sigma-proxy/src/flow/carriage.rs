//! The choice of a session's node, by the rules of attempts, and the transfer of its bytes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use sigma_config::resources::OnUnhealthy;
use sigma_http::{Fault, FaultKind};
use sigma_net::{Deadline, Stream, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::flow::Tried;
use sigma_schema::expr::Variables;
use sigma_upstream::balance::{Balancer, InFlight};
use sigma_upstream::dial::{reach, request_tls};
use sigma_upstream::overload::gate::Permit;

use super::guarded::fallback;
use super::relay::{Broken, Relay};
use super::trust::untrusted;
use super::{End, Flow, ms_since, now};
use crate::attempt::attempts::{Attempts, Choice, Decision, Failure};
use crate::attempt::judge::is_to_blame;
use crate::attempt::passage::GuardOutcome;
use crate::attempt::picked::Picked;
use crate::attempt::target::{self, Demands};
use crate::edge::withdrawal::Withdrawal;
use crate::snapshot::{Affinity, Upstream};
use crate::worker::drain::{Leave, Turn};
use crate::worker::{UpstreamState, View};

/// The name that a session without one asks a node for over TLS (APISIX).
const NAMELESS: &str = "apisix_backend";

/// The parts of its node that a session holds while bytes move.
pub(super) struct Hold {
    idle_ms: u64,
    withdrawal: Option<Withdrawal>,
    _node: Picked,
    _busy: InFlight<Counting>,
    _permit: Option<Permit>,
}

/// The balancer that counts a session, for as long as it lasts.
struct Counting(Rc<UpstreamState>);

impl Deref for Counting {
    type Target = RefCell<Balancer>;

    fn deref(&self) -> &RefCell<Balancer> {
        &self.0.balancer
    }
}

/// An upstream, and its number in the snapshot.
#[derive(Clone, Copy)]
pub(super) struct NumberedUpstream<'u> {
    pub(super) number: u32,
    pub(super) upstream: &'u Arc<Upstream>,
}

impl Flow<'_> {
    /// Finds a node that accepts the session of the client `down`, and connects to it. A fallback of the
    /// upstream's breaker is used if `may_fall_back` is set.
    pub(super) async fn find(
        &mut self,
        down: &mut Stream,
        view: &View,
        of: NumberedUpstream<'_>,
        may_fall_back: bool,
    ) -> Result<(Stream, Hold), End> {
        let NumberedUpstream { number, upstream } = of;
        let timeouts = &view.snapshot.settings.timeouts;
        let mut passage = match self.begin_passage(number, upstream) {
            Ok(passage) => passage,
            Err(fault) if !may_fall_back => return Err(fault.into()),
            Err(fault) => {
                let (number, other) = fallback(view, upstream, fault)?;
                let of = NumberedUpstream { number, upstream: &other };
                return Box::pin(self.find(down, view, of, false)).await;
            }
        };
        if let Some(passage) = &mut passage {
            let client = Some((&mut *down, timeouts.half_close_ms.into()));
            Box::pin(self.ask_guards(passage, upstream, client)).await?;
        }
        let mut attempts = Attempts::new(self.worker, number, upstream, None, self.choice(upstream));
        let mut is_failing = false;
        let (node, up, busy) = match self.meet(down, view, &mut attempts, &mut is_failing).await {
            Ok(met) => met,
            Err(fault) => {
                if let Some(passage) = passage.filter(|_| is_failing) {
                    passage.end(GuardOutcome::Failure);
                }
                return Err(fault.into());
            }
        };
        // It has accepted the session; more is not known about it.
        attempts.answered(&node, Some(200));
        attempts.keep_session();
        let connect_ms = self.session.course.nodes.last().and_then(|tried| tried.connect_ms);
        let permit = passage.and_then(|passage| passage.settle(GuardOutcome::Taken { connect_ms }));
        let idle_ms = match &upstream.config.timeout {
            Some(_) => upstream.transport.timeouts.read_ms,
            None => timeouts.stream_idle_ms.into(),
        };
        let closes = upstream.config.on_unhealthy == Some(OnUnhealthy::Close);
        let withdrawal = closes.then(|| Withdrawal::watch(&node.health));
        Ok((up, Hold { idle_ms, withdrawal, _node: node, _busy: busy, _permit: permit }))
    }

    /// Returns the node that accepts the session, and the connection to it. Sets `is_failing` if the last attempt
    /// failed because of its node.
    async fn meet(
        &mut self,
        down: &mut Stream,
        view: &View,
        attempts: &mut Attempts<'_>,
        is_failing: &mut bool,
    ) -> Result<(Picked, Stream, InFlight<Counting>), Fault> {
        let half_close_ms = view.snapshot.settings.timeouts.half_close_ms.into();
        loop {
            let node = self.pick(attempts, Some((&mut *down, half_close_ms))).await?;
            let counting = Counting(Rc::clone(&attempts.upstream_state));
            let busy = InFlight::begin(counting, node.id(), deadline::now_ms());
            match self.reach(view, attempts, &node).await {
                Ok(stream) => return Ok((node, stream, busy)),
                Err(fault) => {
                    drop(busy);
                    *is_failing = is_to_blame(fault, true);
                    let failure =
                        Failure { fault, decision: Decision::NextNode, request_sent: true, status: None };
                    if !attempts.failed(&node, &failure) {
                        return Err(fault);
                    }
                }
            }
        }
    }

    /// Returns the preferences that the rules of an upstream ask for. None without any.
    pub(super) fn choice(&self, upstream: &Upstream) -> Option<Box<Choice>> {
        if let Some(destinations) = &upstream.destinations {
            return Some(Box::new(Choice::destined(destinations.of(&self.origin))));
        }
        let session: &dyn Variables = &self.session;
        let address = || {
            let addr = self.session.client.addr;
            addr.map_or_else(|| b"unix:".to_vec(), |addr| addr.to_string().into_bytes())
        };
        let key = upstream.selection.key_of(session, address).map(Vec::into_boxed_slice);
        let subset = upstream.selection.subset_of(session);
        let of_client = |affinity: &Affinity| affinity.session_of_client(self.session.client.addr);
        let kept = upstream.selection.affinity.as_deref().and_then(of_client);
        (key.is_some() || subset.is_some() || kept.is_some())
            .then(|| Box::new(Choice::new(key, kept.unwrap_or_default(), subset)))
    }

    /// Makes one attempt on a node.
    async fn reach(&mut self, view: &View, attempts: &Attempts<'_>, node: &Picked) -> Result<Stream, Fault> {
        let upstream = attempts.upstream;
        let began = now();
        let asked = self.session.asked.as_ref().and_then(|asked| asked.server_name.as_deref());
        let mut demands = Demands::of_session(upstream, self.origin, asked.unwrap_or(NAMELESS));
        demands.connect_ms = upstream.transport.timeouts.connect_ms;
        demands.link_ms = attempts.link_ms(node);
        let target = target::target(&view.snapshot, upstream, node, &demands);
        let deadline = Deadline::new();
        deadline.set(demands.connect_ms);
        let mut reached = reach(&node.addr, &target.dial, &deadline).await;
        if let Ok(stream) = &mut reached
            && self.requests_tls
            && let Err(fault) = request_tls(&node.addr, stream, &deadline).await
        {
            reached = Err(fault);
        }
        if reached.is_ok() {
            self.worker.counters.add(Counter::UpstreamConnects, 1);
        }
        let connect_ms = reached.is_ok().then(|| ms_since(began));
        self.session.course.nodes.push(Tried { addr: target::node_addr(&node.addr), connect_ms });
        reached
    }

    /// Moves bytes until both sides have ended, or one is broken, idle for too long, or withdrawn, or the worker
    /// ends.
    pub(super) async fn relay(&mut self, relay: &mut Relay, hold: &Hold) -> Result<(), Stopped> {
        let trust = self.trust.take();
        let idle = Deadline::new();
        idle.set(hold.idle_ms);
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
                idle.set(hold.idle_ms);
            }
            match polled {
                Poll::Ready(ended) => return Poll::Ready(ended.map_err(Stopped::Broken)),
                Poll::Pending if relay.is_slowed() => idle.set(hold.idle_ms),
                Poll::Pending if idle.poll_expired(cx).is_ready() => {
                    return Poll::Ready(Err(Stopped::Idle));
                }
                Poll::Pending => {}
            }
            if let Some(withdrawal) = &hold.withdrawal
                && withdrawal.poll(cx).is_ready()
            {
                return Poll::Ready(Err(Stopped::Withdrawn));
            }
            match &trust {
                Some(trust) => {
                    trust.poll(worker, cx).map(|()| Err(Stopped::Untrusted { in_order: relay.part(cx) }))
                }
                None => Poll::Pending,
            }
        })
        .await;
        let course = &mut self.session.course;
        let (received, sent) = relay.moved();
        (course.received, course.upstream_sent) = (received, received);
        (course.sent, course.upstream_received) = (sent, sent);
        if let Err(Stopped::Untrusted { .. }) = ended {
            worker.counters.add(Counter::StreamSessionsDistrusted, 1);
        }
        ended
    }
}

/// The reason why bytes move no more.
#[derive(Clone, Copy)]
pub(super) enum Stopped {
    Broken(Broken),
    Idle,
    Withdrawn,
    /// The client would be rejected now. The value says whether all bytes read so far have reached the other
    /// side.
    Untrusted {
        in_order: bool,
    },
    Stopping,
}

impl Stopped {
    pub(super) fn fault(self) -> Fault {
        let (kind, reason) = match self {
            Stopped::Broken(Broken::Downstream) => (FaultKind::ClientGone, "the client broke the connection"),
            Stopped::Broken(Broken::Upstream) => {
                (FaultKind::ConnectionTerminated, "the node broke the connection")
            }
            Stopped::Broken(Broken::Filter) => (FaultKind::Internal, "a filter of the session failed"),
            Stopped::Idle => (FaultKind::ResponseTimeout, "the session was idle for too long"),
            Stopped::Withdrawn => (FaultKind::NodeWithdrawn, "the node was removed, and its sessions end"),
            Stopped::Untrusted { .. } => return untrusted(true),
            Stopped::Stopping => (FaultKind::Stopping, "the gateway stops during the session"),
        };
        Fault::new(kind, reason)
    }
}
