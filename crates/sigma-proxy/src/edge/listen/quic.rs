//! Accept over QUIC: the UDP port of a listener with HTTP/3.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::settings::{Http3, ListenPlace};
use sigma_http::h3::ErrorCode;
use sigma_net::quic::{
    Arrival, ConnectionOwner, Endpoint, EndpointCounts, EndpointOptions, Identities, QuicLimits,
};
use sigma_net::tls::ServerIdentity;
use sigma_net::{BoundSocket, Peer};
use sigma_observe::counters::Counter;
use sigma_wire::h3::Session;
use tokio::sync::Notify;

use super::streams::{Multiplexed, multiplexed};
use super::{Counts, LastLine, Open, complain, counted, start};
use crate::edge::addresses::Counted;
use crate::edge::admit::{failed, unless_closing};
use crate::edge::connection::{ConnectionInfo, Origin, h3_limits};
use crate::edge::quic_state::QuicShared;
use crate::snapshot::Snapshot;
use crate::snapshot::edge::{ListenerOptions, TlsOptions};
use crate::worker::{Entered, View, Worker};

/// Counts an endpoint as open.
struct Up {
    worker: Rc<Worker>,
    addr: SocketAddr,
}

impl Up {
    fn new(worker: &Rc<Worker>, addr: SocketAddr) -> Up {
        worker.quic_ports.add(addr);
        Up { worker: Rc::clone(worker), addr }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.worker.quic_ports.remove(self.addr);
    }
}

/// The value of `Alt-Svc` for responses over a listener's TCP port (RFC 7838 §3); None while there is no endpoint.
pub(crate) fn alternative(worker: &Worker, listener: &ListenerOptions) -> Option<Box<str>> {
    let http3 = listener.http3.as_ref().filter(|http3| http3.alt_svc_max_age > 0)?;
    let addr = listener.place.ip().filter(|addr| worker.quic_ports.has(*addr))?;
    let port = http3.alt_svc_port.unwrap_or(addr.port());
    Some(format!("h3=\":{port}\"; ma={}", http3.alt_svc_max_age).into())
}

/// Returns the limits of the connections of a listener.
fn limits(http3: &Http3, tls: &TlsOptions) -> QuicLimits {
    QuicLimits {
        streams: http3.concurrent_streams,
        stream_window_bytes: http3.stream_window_bytes,
        window_bytes: http3.connection_window_bytes,
        send_window_bytes: http3.send_window_bytes,
        idle_ms: http3.idle_timeout_ms.into(),
        handshake_ms: tls.options.timeout_ms,
        retry_above: http3.retry_above_handshakes,
        half_open: http3.handshakes_per_worker,
        controls_per_second: http3.control_frames_per_second,
        hello_bytes: tls.options.hello_bytes,
    }
}

/// Opens the endpoint of a listener on its UDP socket; None if it has no HTTP/3.
pub(crate) fn open_endpoint(worker: &Worker, place: &ListenPlace, socket: BoundSocket) -> Option<Endpoint> {
    let addr = place.ip()?;
    let view = worker.view();
    let listener = view.snapshot.listener(&ListenPlace::Tcp(addr))?;
    let (http3, tls) = (listener.http3.as_ref()?, listener.tls.as_ref()?);
    let shared = QuicShared::of(&worker.node);
    let number = u16::try_from(worker.local.worker()).unwrap_or(u16::MAX);
    let options = EndpointOptions {
        keys: shared.keys()?,
        place: ConnectionOwner { generation: shared.generation(), worker: number },
        neighbours: shared.neighbours(addr),
        steering: socket.number().and_then(|number| shared.steering(addr, number)),
        limits: limits(http3, tls),
    };
    match Endpoint::server(socket.into(), options) {
        Ok(endpoint) => Some(endpoint),
        Err(error) => {
            tracing::error!(%place, %error, "cannot receive the packets of HTTP/3");
            None
        }
    }
}

/// The identities of one configuration, for the handshakes that begin under it.
struct Shown {
    snapshot: Arc<Snapshot>,
    listener: Arc<ListenerOptions>,
}

impl Identities for Shown {
    fn choose(&self, name: Option<&str>) -> Option<Arc<ServerIdentity>> {
        let own = self.listener.tls.as_ref().and_then(|tls| tls.own.as_ref());
        self.snapshot.certificates.by_name.choose(name).or(own).cloned()
    }
}

/// The time between two reports of an endpoint's counts.
const REPORT: Duration = Duration::from_secs(1);

/// Drives the connections of an endpoint, until the last one has ended after a stop.
pub(crate) async fn drive(worker: Rc<Worker>, endpoint: Endpoint) {
    let reported = Cell::new(EndpointCounts::default());
    let reporting = async {
        loop {
            tokio::time::sleep(REPORT).await;
            report(&worker, &endpoint, &reported);
        }
    };
    tokio::select! {
        ended = endpoint.run() => if let Err(error) = ended {
            tracing::error!(%error, "a socket of HTTP/3 failed");
        },
        () = reporting => {}
    }
    report(&worker, &endpoint, &reported);
}

/// Adds the counts of an endpoint since the last report to the counters of the worker.
fn report(worker: &Worker, endpoint: &Endpoint, reported: &Cell<EndpointCounts>) {
    let now = endpoint.counts();
    let before = reported.replace(now);
    worker.counters.add(Counter::QuicRetries, now.retried - before.retried);
    worker.counters.add(Counter::QuicIgnored, now.ignored - before.ignored);
    worker.counters.add(Counter::QuicForwarded, now.forwarded - before.forwarded);
    worker.counters.add(Counter::QuicDropped, now.dropped - before.dropped);
    worker.counters.add(Counter::QuicLate, now.late - before.late);
    worker.counters.add(Counter::QuicFloods, now.floods - before.floods);
}

/// Accepts connections until stopped. `addr` and `name` are the listener's in the settings.
pub(crate) async fn quic_loop(
    worker: Rc<Worker>,
    endpoint: Endpoint,
    addr: SocketAddr,
    name: Option<String>,
    stop: Rc<Notify>,
) {
    let place = ListenPlace::Tcp(addr);
    let (open, _up) = (Open::default(), Up::new(&worker, addr));
    let (crowding, mut full_line) = (Rc::<RefCell<LastLine>>::default(), LastLine::default());
    loop {
        let arrival = tokio::select! {
            biased;
            arrival = endpoint.next() => arrival,
            () = stop.notified() => None,
        };
        let Some(mut arrival) = arrival else {
            endpoint.close();
            return;
        };
        let Some(from) = arrival.from() else { continue };
        let (view, peer) = (worker.view(), Peer::from_tcp(from));
        let Some(listener) = view.snapshot.listener(&place).filter(|one| one.http3.is_some()).cloned() else {
            arrival.refuse();
            continue;
        };
        let most = view.snapshot.settings.limits.connections_per_worker;
        if worker.connections().saturating_add(endpoint.half_open()) >= most {
            if full_line.is_due() {
                tracing::warn!(
                    most,
                    "a worker has reached its limit of connections; new ones over QUIC are refused (limits.connections_per_worker)"
                );
            }
            arrival.refuse();
            continue;
        }
        if let Some(early) = listener.tls.as_ref().and_then(|tls| tls.options.early.as_ref()) {
            arrival.offer_early_data(early);
        }
        let number = view.snapshot.listener_number(name.as_deref());
        let (open, crowding) = (Rc::clone(&open.0), Rc::clone(&crowding));
        let newcomer = Newcomer { worker: Rc::clone(&worker), peer, number, listener, open, crowding };
        if !arrival.is_validated() {
            // Anyone can send packets with the address of another client, which would then reach its limit.
            start(Counts::of_address(None), newcomer.serve(arrival, true));
            continue;
        }
        match newcomer.count(&view) {
            Some(counted) => start(Counts::of_address(counted), newcomer.serve(arrival, false)),
            None => arrival.refuse(),
        }
    }
}

/// A client before the end of its handshake.
struct Newcomer {
    worker: Rc<Worker>,
    peer: Peer,
    /// The number of the listener.
    number: u16,
    listener: Arc<ListenerOptions>,
    /// The listener still accepts.
    open: Rc<Cell<bool>>,
    /// The last line about an address with too many connections.
    crowding: Rc<RefCell<LastLine>>,
}

impl Newcomer {
    /// Counts the connection for its address; None if the address is at its limit.
    fn count(&self, view: &View) -> Option<Option<Counted>> {
        match counted(&self.worker, view, self.peer, Some(&self.listener)) {
            Ok(counted) => Some(counted),
            Err(too_many) => {
                self.worker.counters.add(Counter::ConnectionsRefusedAddress, 1);
                complain(too_many, self.peer, &mut self.crowding.borrow_mut());
                None
            }
        }
    }

    /// Runs the handshake, and serves the connection. `counts` is true if the handshake has to prove the address first,
    /// and the connection counts for it from then on.
    async fn serve(self, arrival: Arrival, counts: bool) {
        let Some(tls) = &self.listener.tls else { return };
        let (worker, peer, local) = (&self.worker, self.peer, arrival.local_addr());
        let view = worker.view();
        let shown = Shown { snapshot: Arc::clone(&view.snapshot), listener: Arc::clone(&self.listener) };
        // Boxed, so that the memory of a handshake is free again when it has ended.
        let shaking = Box::pin(arrival.accept(Arc::new(shown), &tls.options.offer));
        drop(view);
        let Some(shaken) = unless_closing(worker, shaking).await else { return };
        // Only now: a forged address is no connection.
        let origin = |number| Origin {
            listener: self.number,
            ..Origin::new(peer, local, number, &worker.clock.borrow())
        };
        let connection = match shaken {
            Ok(connection) => connection,
            Err(error) => return failed(worker, origin(0), &self.listener, &error, true),
        };
        worker.counters.add(Counter::TlsHandshakes, 1);
        let counted = counts.then(|| self.count(&worker.view()));
        if matches!(counted, Some(None)) {
            connection.close(ErrorCode::EXCESSIVE_LOAD.0, "the address has too many connections");
            return;
        }
        let (entered, origin) = (Entered(Rc::clone(worker)), origin(worker.enter()));
        let Some(facts) = connection.facts() else { return };
        let info = ConnectionInfo::over_quic(origin, facts);
        let limits = h3_limits(&worker.view().snapshot.settings, self.listener.http3.as_ref());
        let open = Rc::clone(&self.open);
        drop(self);
        let session = Session::accept(connection, peer, limits);
        Box::pin(multiplexed(entered, Multiplexed::H3(session), info, open)).await;
        drop(counted);
    }
}

#[cfg(test)]
mod tests;
