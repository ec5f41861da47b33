//! A session over UDP from its route to its end.

use std::future::{pending, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use sigma_config::resources::OnUnhealthy;
use sigma_config::settings::Timeouts;
use sigma_http::{Chunk, Fault, FaultKind};
use sigma_net::datagram::DatagramSocket;
use sigma_net::{Deadline, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::Session;
use sigma_plugin::address::NodeAddr;
use sigma_plugin::flow::Tried;
use sigma_upstream::endpoint::Address;

use super::Hall;
use super::table::{Reached, Seat};
use crate::attempt::attempts::{Attempts, Decision, Failure};
use crate::attempt::judge::is_to_blame;
use crate::attempt::passage::{GuardOutcome, Passage};
use crate::attempt::picked::Picked;
use crate::attempt::target;
use crate::edge::connection::Origin;
use crate::edge::datagrams::Complaint;
use crate::edge::withdrawal::Withdrawal;
use crate::flow::carriage::NumberedUpstream;
use crate::flow::guarded::fallback;
use crate::flow::{Active, End, Flow, ms_since, now};
use crate::snapshot::Upstream;
use crate::snapshot::flows::FlowRoute;
use crate::worker::{View, Worker};

/// How long a session waits for another reply without datagrams of the client, if no number of replies is known.
const LAST_ANSWERS_MS: u64 = 1_000;

/// The state that a session begins with.
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) origin: Origin,
    pub(super) route: Arc<FlowRoute>,
    /// The node that it has already; boxed, as few have one.
    pub(super) reached: Option<Box<Reached>>,
}

/// Serves a session to its end.
pub(super) async fn serve(worker: Rc<Worker>, hall: Rc<Hall>, seat: Rc<Seat>, opened: Box<Opened>) {
    let _ended = Ended { worker: &worker, hall: &hall, seat: &seat };
    let _active = Active::begin(&worker, Arc::clone(&hall.traffic));
    let Opened { session, origin, route, reached } = *opened;
    let mut flow = Flow::new(&worker, session, origin);
    let outcome = tokio::select! {
        biased;
        () = seat.place().evicted() => {
            worker.counters.add(Counter::StreamSessionsEvicted, 1);
            let reason = "the session was evicted by another one";
            Err(Fault::new(FaultKind::GatewayOverloaded, reason).into())
        }
        outcome = flow.run_datagrams(&hall, &seat, route, reached) => outcome,
    };
    let received = seat.sent_bytes();
    (flow.session.course.received, flow.session.course.upstream_sent) = (received, received);
    flow.finish(outcome);
}

/// The reason why a session does not continue with its node.
enum Stopped {
    /// No datagram was sent to it.
    Unsent(Fault),
    /// The network reports that it does not exist.
    Refused,
    Other(Fault),
}

/// Takes a session out of its listener's table, however it ends.
struct Ended<'s> {
    worker: &'s Worker,
    hall: &'s Hall,
    seat: &'s Rc<Seat>,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.hall.table.borrow_mut().forget(self.seat);
        self.worker.counters.add(Counter::StreamDatagramsDropped, self.seat.give_up());
        // A worker that stops waits for its last sessions.
        self.worker.released.notify_waiters();
    }
}

/// Sends the waiting datagrams to the known node.
pub(super) fn flush(worker: &Worker, hall: &Hall, seat: &Seat) {
    let Some((node, mut gone)) = seat.departing() else { return };
    let total = gone.len();
    let sent = match node.socket.send(None, gone.iter().map(|datagram| &**datagram)) {
        Ok(sent) => sent,
        Err(error) => {
            if is_gone(&error) {
                tracing::debug!(node = %node.addr, %error, "a node accepts no datagrams");
                seat.fail(error);
            }
            0
        }
    };
    gone.truncate(sent);
    let bytes: usize = gone.iter().map(|datagram| datagram.len()).sum();
    worker.counters.add(Counter::StreamDatagramsIn, sent as u64);
    worker.counters.add(Counter::StreamBytesIn, bytes as u64);
    hall.traffic.pass(bytes as u64, 0);
    worker.counters.add(Counter::StreamDatagramsDropped, (total - sent) as u64);
    let most = worker.view().snapshot.settings.limits.stream_udp_waiting_bytes_per_worker;
    // Datagrams that are kept for another node must not take the room of waiting ones.
    let keeps = worker.datagrams.room.is_half_free(most as usize);
    seat.departed(gone, keeps, deadline::now_ms());
    if seat.is_over() {
        // No reply will come.
        seat.changed.notify_one();
    }
}

/// Returns true if the network reports that the node does not exist; other errors are about one datagram.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

impl Flow<'_> {
    async fn run_datagrams(
        &mut self,
        hall: &Hall,
        seat: &Seat,
        route: Arc<FlowRoute>,
        reached: Option<Box<Reached>>,
    ) -> Result<(), End> {
        let view = self.worker.view();
        self.enter_route(&route);
        if !self.plugins.is_empty() {
            self.session.early = seat.with_first(Chunk::copy_of).unwrap_or_default();
            // Boxed, so that the memory of plugins is free again when they are done.
            Box::pin(self.preread(None, &view)).await?;
            self.session.early = Chunk::empty();
        }
        if reached.is_none() && seat.with_first(|_| ()).is_none() {
            // There was no room for it.
            return Err(End::Nothing);
        }
        let (number, upstream) = self.upstream(&view, &route)?;
        drop(route);
        let of = NumberedUpstream { number, upstream: &upstream };
        self.carry_datagrams(hall, seat, view, of, reached, true).await
    }

    /// Finds a node and carries the session; all counts are right when it ends. A fallback of the upstream's breaker
    /// is used if `may_fall_back` is set.
    async fn carry_datagrams(
        &mut self,
        hall: &Hall,
        seat: &Seat,
        view: Rc<View>,
        of: NumberedUpstream<'_>,
        mut reached: Option<Box<Reached>>,
        may_fall_back: bool,
    ) -> Result<(), End> {
        let NumberedUpstream { number, upstream } = of;
        takes_datagrams(upstream)?;
        let mut passage = match self.begin_passage(number, upstream) {
            Ok(passage) => passage,
            // An inherited session is with a node of this upstream, or ends.
            Err(fault) if !may_fall_back || reached.is_some() => return Err(fault.into()),
            Err(fault) => {
                let (number, other) = fallback(&view, upstream, fault)?;
                let of = NumberedUpstream { number, upstream: &other };
                return Box::pin(self.carry_datagrams(hall, seat, view, of, None, false)).await;
            }
        };
        if let Some(passage) = &mut passage {
            Box::pin(self.ask_guards(passage, upstream, None)).await?;
        }
        let mut attempts = Attempts::new(self.worker, number, upstream, None, self.choice(upstream));
        let patience = Patience::of(upstream, &view.snapshot.settings.timeouts);
        drop(view);
        loop {
            let (node, reached) = match reached.take() {
                Some(reached) => match attempts.pick_at(reached.addr) {
                    Some(node) => (node, Some(reached)),
                    // The upstream no longer has that node. Later datagrams of the client begin another session.
                    None if seat.starts_over() => (self.pick(&mut attempts, None).await?, None),
                    None => return Err(End::Nothing),
                },
                None => (self.pick(&mut attempts, None).await?, None),
            };
            let in_flight = attempts.begin(&node);
            let connected = match reached {
                Some(reached) => Ok(self.reached(seat, *reached, None)),
                None => self.connect(&node, seat),
            };
            let ended = match connected {
                Ok(socket) => {
                    let with = With { attempts: &attempts, node: &node, passage: &mut passage };
                    self.relay_datagrams(hall, seat, &socket, with, patience).await
                }
                Err(fault) => Err(Stopped::Unsent(fault)),
            };
            drop(in_flight);
            // The meaning of a datagram, and whether it was read, is unknown: only one that reached no node is
            // repeated.
            let (fault, may_repeat) = match ended {
                Ok(()) => {
                    // No reply shows the opposite.
                    settle(&mut passage, GuardOutcome::Taken { connect_ms: None });
                    return Ok(());
                }
                Err(Stopped::Unsent(fault)) => (fault, true),
                Err(Stopped::Refused) => (refused(), seat.unsettle()),
                Err(Stopped::Other(fault)) => (fault, false),
            };
            let decision = if may_repeat { Decision::NextNode } else { Decision::GiveUp };
            let failure = Failure { fault, decision, request_sent: true, status: None };
            if !attempts.failed(&node, &failure) {
                settle(
                    &mut passage,
                    if is_to_blame(fault, true) { GuardOutcome::Failure } else { GuardOutcome::Nothing },
                );
                return Err(fault.into());
            }
        }
    }

    /// Returns a socket to the node of an attempt.
    fn connect(&mut self, node: &Picked, seat: &Seat) -> Result<Rc<DatagramSocket>, Fault> {
        let began = now();
        let Address::Tcp(addr) = node.addr else {
            return Err(Fault::new(FaultKind::ConnectRefused, "a Unix socket cannot receive UDP datagrams"));
        };
        let connected = DatagramSocket::connect(addr).map(Rc::new);
        let socket = match connected {
            Ok(socket) => socket,
            Err(error) => {
                self.session
                    .course
                    .nodes
                    .push(Tried { addr: target::node_addr(&node.addr), connect_ms: None });
                return Err(self.unconnected(&error));
            }
        };
        self.worker.counters.add(Counter::UpstreamConnects, 1);
        Ok(self.reached(seat, Reached { addr, socket }, Some(ms_since(began))))
    }

    /// Returns why there is no socket to a node.
    fn unconnected(&self, error: &io::Error) -> Fault {
        if !sigma_net::limits::is_own_lack(error) {
            return Fault::new(FaultKind::ConnectRefused, "the node cannot be reached");
        }
        if self.worker.datagrams.may_complain(Complaint::NoSocket, deadline::now_ms()) {
            tracing::error!(%error, "no socket for a UDP session; check the limits on open files and local ports");
        }
        Fault::new(
            FaultKind::OutOfSockets,
            "the gateway has no free file descriptor or local port for a session",
        )
    }

    /// Assigns this node to the session.
    fn reached(&mut self, seat: &Seat, node: Reached, connect_ms: Option<f64>) -> Rc<DatagramSocket> {
        self.session.course.nodes.push(Tried { addr: NodeAddr::Tcp(node.addr), connect_ms });
        let socket = Rc::clone(&node.socket);
        seat.settle(node);
        socket
    }

    /// Passes datagrams until the session has ended, idles, or its node is gone.
    async fn relay_datagrams(
        &mut self,
        hall: &Hall,
        seat: &Seat,
        socket: &DatagramSocket,
        with: With<'_, '_>,
        patience: Patience,
    ) -> Result<(), Stopped> {
        let With { attempts, node, passage } = with;
        let worker = self.worker;
        let closes = attempts.upstream.config.on_unhealthy == Some(OnUnhealthy::Close);
        let withdrawal = closes.then(|| Withdrawal::watch(&node.health));
        let idle = Deadline::new();
        idle.set(patience.with(seat).saturating_sub(seat.quiet_ms(deadline::now_ms())).max(1));
        flush(worker, hall, seat);
        let (mut has_answered, mut is_leaving) = (false, false);
        while !seat.is_over() {
            tokio::select! {
                biased;
                () = seat.changed.notified() => {}
                received = socket.receive(&worker.datagrams.batch) => match received {
                    Ok(()) => {
                        self.respond(hall, seat);
                        if !std::mem::replace(&mut has_answered, true) {
                            attempts.answered(node, Some(200));
                            attempts.keep_session();
                            settle(passage, GuardOutcome::Taken { connect_ms: None });
                        }
                    }
                    Err(error) if is_gone(&error) => return Err(Stopped::Refused),
                    Err(error) => tracing::debug!(%error, "a UDP session cannot receive"),
                },
                () = poll_fn(|cx| {
                    // A draining worker wakes all tasks that wait with a deadline.
                    let stops = worker.is_draining() && !is_leaving || worker.drain.poll_over().is_ready();
                    if stops { Poll::Ready(()) } else { idle.poll_expired(cx) }
                }) => {}
                fault = withdrawn(withdrawal.as_ref()) => return Err(Stopped::Other(fault)),
            }
            if seat.is_passed() {
                return Ok(());
            }
            if seat.take_failure().is_some() {
                return Err(Stopped::Refused);
            }
            if let Poll::Ready(Err(fault)) = worker.drain.poll_over()
                && seat.is_owed()
            {
                return Err(Stopped::Other(fault));
            }
            is_leaving = seat.is_leaving() || worker.is_draining();
            let idle_ms = patience.with(seat);
            let most_ms = match !is_leaving || seat.is_owed() {
                true => idle_ms,
                false if worker.drain.poll_over().is_ready() => 0,
                false => idle_ms.min(LAST_ANSWERS_MS),
            };
            let quiet_ms = seat.quiet_ms(deadline::now_ms());
            match most_ms.checked_sub(quiet_ms).filter(|left_ms| *left_ms > 0) {
                Some(left_ms) => idle.set(left_ms),
                None if seat.is_owed() && !is_leaving => {
                    let reason = "the node did not respond in time";
                    return Err(Stopped::Other(Fault::new(FaultKind::ResponseTimeout, reason)));
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sends the node's replies to the client.
    fn respond(&mut self, hall: &Hall, seat: &Seat) {
        let batch = self.worker.datagrams.batch.borrow();
        let whole = || batch.iter().filter(|received| !received.is_cut).map(|received| received.bytes);
        // Datagrams without room are dropped, as anywhere on their way; and an unreachable client stays unreachable.
        let sent = hall.socket.send(Some(seat.way), whole()).unwrap_or(0);
        let bytes: usize = whole().take(sent).map(<[u8]>::len).sum();
        let counters = &self.worker.counters;
        counters.add(Counter::StreamDatagramsOut, sent as u64);
        counters.add(Counter::StreamBytesOut, bytes as u64);
        hall.traffic.pass(0, bytes as u64);
        counters.add(Counter::StreamDatagramsDropped, (batch.len() - sent) as u64);
        seat.answered(batch.len() as u64, deadline::now_ms());
        self.session.course.sent += bytes as u64;
        self.session.course.upstream_received +=
            batch.iter().map(|received| received.bytes.len() as u64).sum::<u64>();
    }
}

/// How long a session may be without a datagram.
#[derive(Debug, Clone, Copy)]
struct Patience {
    idle_ms: u64,
    /// While the node has not replied.
    new_ms: u64,
}

impl Patience {
    fn of(upstream: &Upstream, timeouts: &Timeouts) -> Patience {
        if upstream.config.timeout.is_some() {
            let idle_ms = upstream.transport.timeouts.read_ms;
            return Patience { idle_ms, new_ms: idle_ms };
        }
        let idle_ms = timeouts.stream_udp_idle_ms.into();
        Patience { idle_ms, new_ms: idle_ms.min(timeouts.stream_udp_new_ms.into()) }
    }

    fn with(self, seat: &Seat) -> u64 {
        if seat.place().is_new() { self.new_ms } else { self.idle_ms }
    }
}

/// The rules of an attempt, and the passage whose guards learn from it.
struct With<'w, 'p> {
    attempts: &'w Attempts<'p>,
    node: &'w Picked,
    passage: &'w mut Option<Passage<'p>>,
}

fn settle(passage: &mut Option<Passage<'_>>, seen: GuardOutcome) {
    if let Some(passage) = passage {
        passage.tell(seen);
    }
}

/// Checks that the nodes of an upstream accept plain datagrams. An upstream that requires more accepts none: its
/// nodes would take a client for another one.
fn takes_datagrams(upstream: &Upstream) -> Result<(), Fault> {
    let reason = match (upstream.over_tls(), upstream.config.proxy_protocol) {
        (None, None) => return Ok(()),
        (Some(_), _) => "an upstream with TLS cannot receive datagrams: Sigma does not support DTLS",
        (None, Some(_)) => {
            "an upstream with `proxy_protocol` cannot receive datagrams: UDP has no connections"
        }
    };
    Err(Fault::new(FaultKind::NoUpstream, reason))
}

fn refused() -> Fault {
    Fault::new(FaultKind::ConnectRefused, "the node accepts no datagrams or cannot be reached")
}

/// Waits for the fault of a node that is taken out together with its sessions; never ready for others.
async fn withdrawn(withdrawal: Option<&Withdrawal>) -> Fault {
    let Some(withdrawal) = withdrawal else { return pending().await };
    match poll_fn(|cx| withdrawal.poll(cx)).await {
        Err(fault) => fault,
        Ok(()) => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the memory of a session: they are many, and idle for most of their time.
    #[test]
    fn a_session_stays_small() {
        type Serve<F> = fn(Rc<Worker>, Rc<Hall>, Rc<Seat>, Box<Opened>) -> F;
        fn task<F: Future>(_: Serve<F>) -> usize {
            size_of::<F>()
        }
        assert!(task(serve) <= 2_048, "{} bytes", task(serve));
    }
}
