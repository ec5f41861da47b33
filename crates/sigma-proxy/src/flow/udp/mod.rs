//! Sessions over UDP: datagrams between one client and one address of the gateway, until they idle.
//!
//! | file | purpose |
//! |---|---|
//! | `mod` | receives from a listener's socket, and gives each datagram to its session |
//! | `table` | the sessions and their state: no socket is touched there |
//! | `session` | a session's life: its route's plugins, its node, answers, the end |
//! | `passage` | sessions that another process continues |
//!
//! A worker has its own socket for a listener, and the kernel gives all datagrams of a client to the same one. A
//! datagram costs a lookup in the table and a part of a system call: once the node is known, the session's task runs
//! only for replies.

mod passage;
mod session;
mod table;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::settings::ListenPlace;
use sigma_http::{Fault, FaultKind};
use sigma_net::datagram::{BATCH, DatagramAddresses, DatagramSocket};
use sigma_net::{Peer, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::flow::Transport;
use sigma_plugin::traffic::Traffic;
use sigma_plugin::{Client, Session};

pub(crate) use self::passage::go_on;
pub use self::passage::{Passing, UdpSession};
use super::Flow;
use crate::edge::connection::Origin;
use crate::edge::datagrams::{Complaint, Refusal, SessionLimits, SessionSlot};
use crate::edge::refusals;
use crate::snapshot::flows::{Approach, FlowRoute};
use crate::worker::{View, Worker};
use session::{Opened, serve};
use table::{Bounds, Seat, Table};

/// Pause after receiving has failed: the usual reason, no memory, needs time to pass.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener's socket on its worker, with the sessions over it.
pub(crate) struct Hall {
    socket: Rc<DatagramSocket>,
    bound: SocketAddr,
    /// The traffic of the listener, for metrics.
    traffic: Arc<Traffic>,
    table: RefCell<Table>,
}

impl Hall {
    /// Returns the state of a listener that is bound to this address.
    pub(crate) fn new(worker: &Worker, socket: DatagramSocket, bound: SocketAddr) -> Rc<Hall> {
        let traffic = Traffic::of(&worker.node, &worker.local, &ListenPlace::Udp(bound).to_string());
        Rc::new(Hall { socket: Rc::new(socket), bound, traffic, table: RefCell::default() })
    }
}

/// Tells the sessions of a listener that nothing comes by it any more.
struct ListenerEnd(Rc<Hall>);

impl Drop for ListenerEnd {
    fn drop(&mut self) {
        self.0.table.take().seats().for_each(|seat| seat.leave());
    }
}

/// Receives until stopped; sessions continue until they have their replies.
pub(crate) async fn receive_loop(worker: Rc<Worker>, hall: Rc<Hall>, stop: Rc<tokio::sync::Notify>) {
    let _leaving = ListenerEnd(Rc::clone(&hall));
    loop {
        worker.datagrams.fit(worker.view().snapshot.settings.limits.stream_udp_datagram_bytes);
        let received = tokio::select! {
            biased;
            () = stop.notified() => return,
            received = hall.socket.receive(&worker.datagrams.batch) => received,
        };
        match received {
            Ok(()) => {
                deliver(&worker, &hall);
                // New sessions get their turn before more datagrams come for them.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot receive datagrams; pausing");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Passes the received datagrams to their sessions.
fn deliver(worker: &Rc<Worker>, hall: &Rc<Hall>) {
    let view = worker.view();
    let bounds = Bounds::of(&view.snapshot.settings.limits);
    let (room, batch) = (&worker.datagrams.room, worker.datagrams.batch.borrow());
    let mut reached: Vec<Rc<Seat>> = Vec::with_capacity(BATCH);
    let mut dropped = 0;
    for received in batch.iter() {
        // Port 0 cannot receive a reply.
        let Some(peer) = received.from.filter(|peer| peer.port() != 0 && !received.is_cut) else {
            dropped += 1;
            continue;
        };
        let way = DatagramAddresses { peer, local: received.to };
        // One that has just given way takes no more, though its task has not run yet.
        let known = hall.table.borrow().find(&way).filter(|seat| !seat.place().is_evicted());
        let seat = known.or_else(|| open(worker, hall, &view, way));
        let Some(seat) = seat else { continue };
        if !seat.offer(received.bytes, room, &bounds) {
            dropped += 1;
            continue;
        }
        if seat.is_full() {
            hall.table.borrow_mut().forget(&seat);
        }
        if !reached.iter().any(|other| Rc::ptr_eq(other, &seat)) {
            reached.push(seat);
        }
    }
    drop(batch);
    for seat in reached {
        session::flush(worker, hall, &seat);
    }
    worker.counters.add(Counter::StreamDatagramsDropped, dropped);
}

/// Begins a session, if there is a place and a route for it.
fn open(worker: &Rc<Worker>, hall: &Rc<Hall>, view: &View, way: DatagramAddresses) -> Option<Rc<Seat>> {
    let place = enter(worker, hall, view, way.peer)?;
    worker.counters.add(Counter::StreamSessions, 1);
    let (origin, client, route) = introduced(worker, hall, view, way);
    let mut session = Session::default();
    (session.client, session.transport) = (client, Transport::Udp);
    session.traffic = Arc::clone(&hall.traffic);
    let Some(route) = route else {
        let flow = Flow::new(worker, session, origin);
        flow.finish(Err(Fault::new(FaultKind::NoRoute, "no stream route matches this session").into()));
        return None;
    };
    let seat = Rc::new(Seat::new(way, place, route.udp, deadline::now_ms()));
    hall.table.borrow_mut().insert(&seat);
    let opened = Box::new(Opened { session, origin, route, reached: None });
    tokio::task::spawn_local(serve(Rc::clone(worker), Rc::clone(hall), Rc::clone(&seat), opened));
    Some(seat)
}

/// A place for a session of this client. A refusal is counted, and logged now and then.
fn enter(worker: &Worker, hall: &Hall, view: &View, peer: SocketAddr) -> Option<SessionSlot> {
    let limits = SessionLimits::of(&view.snapshot.settings.limits);
    let (datagrams, now_ms) = (&worker.datagrams, deadline::now_ms());
    let is_own =
        view.snapshot.settings.limits.count_loopback == Some(false) && peer.ip().to_canonical().is_loopback();
    let is_exempt = is_own || view.snapshot.trusted().contains(peer.ip());
    let entered = datagrams.admission.enter(peer.ip(), is_exempt, &limits, now_ms);
    let complaint = match &entered {
        Ok((_, 0)) => None,
        Ok(_) => Some(Complaint::Evicted),
        Err(refusal) => {
            worker.counters.add(Counter::StreamDatagramsRefused, 1);
            match refusal {
                Refusal::Address => worker.counters.add(Counter::StreamDatagramsRefusedAddress, 1),
                Refusal::Network => worker.counters.add(Counter::StreamDatagramsRefusedNetwork, 1),
                Refusal::Worker | Refusal::Descriptors => {}
            }
            Some(Complaint::Refused(*refusal))
        }
    };
    if let Some(complaint) = complaint
        && datagrams.may_complain(complaint, now_ms)
    {
        let (listener, per_worker) = (&hall.bound, datagrams.admission.most(&limits));
        let (per_network, per_address) = (limits.of_network(per_worker), limits.of_address(per_worker));
        match complaint {
            Complaint::Refused(Refusal::Worker) => tracing::warn!(
                most = per_worker, %listener,
                "a worker has reached its limit of UDP sessions: new clients are refused (limits.stream_udp_sessions_per_worker)"
            ),
            Complaint::Refused(Refusal::Descriptors) => tracing::warn!(
                most = per_worker, %listener,
                "UDP sessions have used up their share of file descriptors: new clients are refused (raise RLIMIT_NOFILE; LimitNOFILE of a unit)"
            ),
            Complaint::Refused(Refusal::Network) => tracing::warn!(
                most = per_network, %peer, %listener,
                "a network has reached its limit of UDP sessions: its new clients are refused (limits.stream_udp_sessions_per_network)"
            ),
            Complaint::Refused(Refusal::Address) => tracing::warn!(
                most = per_address, %peer, %listener,
                "an address has reached its limit of UDP sessions: its new sessions are refused (limits.stream_udp_sessions_per_address)"
            ),
            Complaint::Evicted | Complaint::NoSocket => tracing::warn!(
                most = per_worker, %peer, %listener,
                "the limit of UDP sessions is reached: sessions without a reply are evicted for new ones"
            ),
        }
    }
    entered.ok().map(|(place, _)| place)
}

/// Returns the client of this way and its route, if there is one.
fn introduced(
    worker: &Worker,
    hall: &Hall,
    view: &View,
    way: DatagramAddresses,
) -> (Origin, Client, Option<Arc<FlowRoute>>) {
    let local = SocketAddr::new(way.local.unwrap_or(hall.bound.ip()), hall.bound.port());
    let (peer, connection) = (Peer::from_tcp(way.peer), worker.next_connection());
    let origin = Origin::new(peer, Some(local), connection, &worker.clock.borrow());
    let client = Client { geography: view.geography.clone(), ..origin.client() };
    let route = view.snapshot.flows.find(&Approach { client: &client, asked: None }).cloned();
    if route.is_none() {
        let detail = "no stream route matches this UDP session";
        let place = ListenPlace::Udp(hall.bound);
        refusals::note(worker, sigma_http::EarlyRefusal::NoStreamRoute, peer, Some(&place), detail);
    }
    (origin, client, route)
}
