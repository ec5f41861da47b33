//! Accept: from a listening socket to exchanges, one task per connection.

mod loads;
pub(crate) mod quic;
mod streams;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::settings::{DEFAULT_CONNECTIONS_PER_ADDRESS, Limits, ListenPlace};
use sigma_http::{Chunk, EarlyRefusal, Fault, FaultKind};
use sigma_net::{Listening, Peer, Stream, deadline};
use sigma_observe::counters::Counter;
use sigma_observe::moment;
use sigma_plugin::traffic::Traffic;
use sigma_wire::Downstream;
use sigma_wire::h1::{NoRequest, Server, ServerLimits};
use tokio::sync::Notify;

use crate::edge::addresses::Counted;
use crate::edge::admit::{Admitted, admit};
use crate::edge::connection::{ConnectionInfo, Origin};
use crate::edge::refusals;
use crate::exchange::Exchange;
use crate::flow;
use crate::snapshot::edge::{ConnectionLimits, ListenerOptions};
use crate::worker::{Entered, View, Worker};
use loads::{Load, Loads, Reached};
use streams::multiplexed_over_tcp;

/// Pause after a failed accept: the usual reason, no free file descriptor, needs time to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Pause of a connection that waits for a limit of its listener.
const LOAD_PAUSE: Duration = Duration::from_millis(20);

/// The time between two equal lines in the log of one listener.
const LINE_MS: u64 = 10_000;

/// When a listener last logged something that it logs once in [`LINE_MS`].
#[derive(Default)]
struct LastLine(Option<u64>);

impl LastLine {
    /// Returns true if the line is due; then it counts as written.
    fn is_due(&mut self) -> bool {
        let now_ms = deadline::now_ms();
        let is_due = self.0.is_none_or(|then| now_ms.saturating_sub(then) >= LINE_MS);
        if is_due {
            self.0 = Some(now_ms);
        }
        is_due
    }
}

/// Accepts until stopped; then accepts the connections that the kernel has queued, so that none is lost, and ends.
/// `place` and `name` are the listener's in the settings.
pub(crate) async fn accept_loop(
    worker: Rc<Worker>,
    listening: Rc<Listening>,
    place: ListenPlace,
    name: Option<String>,
    stop: Rc<Notify>,
) {
    let fixed_addr = listening.fixed_addr();
    let open = Open::default();
    let mut crowded = false;
    let [mut address_line, mut full_line, mut descriptor_line] = [(); 3].map(|()| LastLine::default());
    let mut waiting = Waiting::default();
    // The traffic that its sessions are counted in, from the first one on.
    let mut traffic: Option<Arc<Traffic>> = None;
    loop {
        wait_for_room(&worker, &mut full_line).await;
        if std::mem::take(&mut crowded) {
            wait_for_descriptors(&worker, &listening, &mut descriptor_line).await;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listening.accept() => accepted,
            () = stop.notified() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                crowded = stream.is_last_for_clients();
                let load = wait_for_load(&worker, &place, &stop, &mut waiting).await;
                let view = worker.view();
                let options = view.snapshot.listener(&place).cloned();
                let counted = match counted(&worker, &view, peer, options.as_deref()) {
                    Ok(address) => Counts { _address: address, _load: load },
                    Err(too_many) => {
                        worker.counters.add(Counter::ConnectionsRefusedAddress, 1);
                        complain(too_many, peer, &mut address_line);
                        continue;
                    }
                };
                let listener = view.snapshot.listener_number(name.as_deref());
                let local = fixed_addr.or_else(|| stream.local_addr());
                let entered = Entered(Rc::clone(&worker));
                let origin = Origin::new(peer, local, worker.enter(), &worker.clock.borrow());
                let origin = match redirected(&stream, Origin { listener, ..origin }, options.as_deref()) {
                    Ok(origin) => origin,
                    Err(detail) => {
                        let kind = EarlyRefusal::NoDestination;
                        refusals::note(&worker, kind, peer, Some(&place), detail);
                        continue;
                    }
                };
                let open = Rc::clone(&open.0);
                match options {
                    None => {
                        let early = Chunk::empty();
                        let admitted = Admitted { stream, early, origin, is_misplaced: false };
                        start(counted, serve(entered, admitted, open, None));
                    }
                    Some(listener) if listener.is_stream => {
                        let own = || Traffic::of(&worker.node, &worker.local, &place.to_string());
                        let traffic = Arc::clone(traffic.get_or_insert_with(own));
                        start(counted, flow::serve(entered, stream, origin, listener, traffic));
                    }
                    Some(listener) => {
                        start(counted, serve_admitted(entered, stream, origin, listener, open));
                    }
                }
            }
            Err(error) if is_peers_fault(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; pausing");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns `origin` with the destination that the client has connected to, if the listener's connections are
/// redirected.
///
/// # Errors
/// Returns an error, for the log, if the connection has no such destination: it would lead back to the listener.
fn redirected(
    stream: &Stream,
    origin: Origin,
    listener: Option<&ListenerOptions>,
) -> Result<Origin, &'static str> {
    if !listener.is_some_and(|listener| listener.original_destination) {
        return Ok(origin);
    }
    destined(origin, stream.local_addr(), stream.original_destination())
}

/// Returns `origin` with the original destination of a connection, which has arrived at `local`.
fn destined(
    origin: Origin,
    local: Option<SocketAddr>,
    original: Option<SocketAddr>,
) -> Result<Origin, &'static str> {
    let Some(original) = original else {
        return Err("the kernel knows no original destination; redirect connections by iptables or nftables");
    };
    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    if local.is_none_or(|local| canonical(local) == canonical(original)) {
        return Err("the client has connected to the listener itself, without a redirection");
    }
    Ok(Origin { local: Some(original), is_redirected: true, ..origin })
}

/// The address has reached this limit of connections.
struct TooMany(u32);

/// Counts a connection for its address. None without a limit: by the settings, for peers that bring the connections
/// of others, and by default for this machine and for peers that send a PROXY header.
fn counted(
    worker: &Worker,
    view: &View,
    peer: Peer,
    listener: Option<&ListenerOptions>,
) -> Result<Option<Counted>, TooMany> {
    let Some(ip) = peer.ip() else { return Ok(None) };
    let proxy = listener.and_then(|listener| listener.proxy_protocol.as_ref());
    let introduces = || proxy.is_some_and(|rule| rule.trusted.contains(ip));
    match most_of(&view.snapshot.settings.limits, ip, introduces) {
        Some(most) if !view.snapshot.trusted().contains(ip) => {
            Counted::new(&worker.addresses, ip, most).map(Some).ok_or(TooMany(most))
        }
        _ => Ok(None),
    }
}

/// Returns the most connections of an address by the settings. None for no limit.
fn most_of(limits: &Limits, ip: IpAddr, introduces: impl FnOnce() -> bool) -> Option<u32> {
    let setting = limits.connections_per_address;
    let counts_loopback = limits.count_loopback.unwrap_or(setting.is_some());
    match setting {
        _ if !counts_loopback && ip.to_canonical().is_loopback() => None,
        Some(most) => Some(most).filter(|most| *most > 0),
        None if introduces() => None,
        None => Some(DEFAULT_CONNECTIONS_PER_ADDRESS),
    }
}

/// The counts of a connection, until this is dropped.
struct Counts {
    _address: Option<Counted>,
    _load: Option<loads::Open>,
}

impl Counts {
    /// Counts a connection for its address only.
    fn of_address(address: Option<Counted>) -> Counts {
        Counts { _address: address, _load: None }
    }

    fn are_none(&self) -> bool {
        self._address.is_none() && self._load.is_none()
    }
}

/// The state of an accept loop for the limits of its listener.
#[derive(Default)]
struct Waiting {
    /// Unset until the listener has limits.
    load: Option<Arc<Load>>,
    line: LastLine,
}

/// Waits until the listener may have another connection. Logs now and then that it waits.
async fn wait_for_load(
    worker: &Worker,
    place: &ListenPlace,
    stop: &Notify,
    waiting: &mut Waiting,
) -> Option<loads::Open> {
    loop {
        let limits = worker.view().snapshot.listener(place)?.connections;
        if limits == ConnectionLimits::default() {
            return None;
        }
        let load = waiting.load.get_or_insert_with(|| worker.node.part(Loads::default).of(place));
        let reached = match load.enter(&limits, worker.clock.borrow().unix_ms()) {
            Ok(open) => return Some(open),
            Err(reached) => reached,
        };
        if waiting.line.is_due() {
            let (setting, limit) = match reached {
                Reached::Most(limit) => ("max_connections", limit),
                Reached::PerSecond(limit) => ("max_connections_per_second", limit),
            };
            tracing::warn!(
                listener = %place,
                limit,
                "a listener has reached a limit of its connections; new ones wait (listeners: {setting})"
            );
        }
        // This worker is not notified when other workers release some.
        tokio::select! {
            () = worker.released.notified() => {}
            () = tokio::time::sleep(LOAD_PAUSE) => {}
            () = stop.notified() => {
                // The connection is accepted, so it is served; the loop ends after it.
                stop.notify_one();
                return None;
            }
        }
    }
}

/// Starts the task of a connection, which counts until the task ends, with a panic too.
fn start(counted: Counts, task: impl Future<Output = ()> + 'static) {
    if counted.are_none() {
        tokio::task::spawn_local(task);
        return;
    }
    // Boxed, because a future within another takes its room twice.
    let task = Box::pin(task);
    tokio::task::spawn_local(async move {
        let _counted = counted;
        task.await;
    });
}

/// Logs now and then that an address has too many connections.
fn complain(TooMany(most): TooMany, peer: Peer, line: &mut LastLine) {
    if line.is_due() {
        tracing::warn!(
            most,
            ?peer,
            "an address has reached its limit of connections; new ones are closed (limits.connections_per_address; add proxies in front to trusted_addresses)"
        );
    }
}

/// Returns true if the connection ended before the PROXY protocol header was accepted, which is no error here.
fn is_peers_fault(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidInput, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | InvalidInput | NotConnected)
}

/// Waits until the worker may have another connection; logs now and then that it waits.
async fn wait_for_room(worker: &Worker, line: &mut LastLine) {
    loop {
        let most = worker.view().snapshot.settings.limits.connections_per_worker;
        if worker.connections() < most {
            return;
        }
        if line.is_due() {
            tracing::warn!(
                most,
                "a worker has reached its limit of connections; new ones wait until one ends (limits.connections_per_worker)"
            );
        }
        worker.released.notified().await;
    }
}

/// Waits until clients may use more descriptors: the rest is for connections to nodes, for operators and health
/// checks.
async fn wait_for_descriptors(worker: &Worker, listening: &Listening, line: &mut LastLine) {
    if listening.has_room() {
        return;
    }
    if line.is_due() {
        tracing::warn!(
            "clients have used up their share of file descriptors; new connections wait (raise RLIMIT_NOFILE)"
        );
    }
    while !listening.has_room() {
        // This worker is not notified when other workers release some.
        tokio::select! {
            () = worker.released.notified() => {}
            () = tokio::time::sleep(ACCEPT_PAUSE) => {}
        }
    }
}

/// Whether a listener still accepts; its connections ask.
struct Open(Rc<Cell<bool>>);

impl Default for Open {
    fn default() -> Open {
        Open(Rc::new(Cell::new(true)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(false);
        // Idle connections check the flag.
        deadline::wake_all();
    }
}

/// Serves a connection that has to be admitted first: by its PROXY header, its TLS handshake or both.
async fn serve_admitted(
    entered: Entered,
    stream: Stream,
    origin: Origin,
    listener: Arc<ListenerOptions>,
    open: Rc<Cell<bool>>,
) {
    // Boxed, so that the memory of a handshake is free again when it has ended.
    let admitted = Box::pin(admit(&entered.0, stream, origin, &listener)).await;
    let alternative = quic::alternative(&entered.0, &listener);
    drop(listener);
    let Some(admitted) = admitted else { return };
    if admitted.is_misplaced {
        return Box::pin(answer_misplaced(entered, admitted, open)).await;
    }
    if admitted.stream.tls().is_some_and(|facts| facts.alpn.as_deref() == Some(b"h2")) {
        let Admitted { stream, early, origin, .. } = admitted;
        let info = ConnectionInfo::new(origin, &stream);
        Box::pin(multiplexed_over_tcp(entered, stream, early, info, open, alternative)).await;
    } else {
        Box::pin(serve(entered, admitted, open, alternative)).await;
    }
}

/// The fault of a request in cleartext on a listener of TLS, in the words of nginx.
const MISPLACED: Fault =
    Fault::new(FaultKind::CleartextOnTls, "The plain HTTP request was sent to HTTPS port");

/// Rejects a cleartext request to a listener of TLS, and ends the connection.
async fn answer_misplaced(entered: Entered, admitted: Admitted, open: Rc<Cell<bool>>) {
    let Admitted { stream, early, origin, .. } = admitted;
    let worker = &entered.0;
    let info = ConnectionInfo::new(origin, &stream);
    let mut server = Server::new(stream, early, Rc::clone(&worker.view().server_limits), open);
    let mut scratch = worker.take_scratch();
    match server.read_head(&mut scratch.ctx.request).await {
        Err(NoRequest::Closed) => Downstream::H1(&mut server).abort(),
        Ok(()) | Err(NoRequest::Refused(_)) => {
            let mut exchange = Exchange::open(worker, &info, Downstream::H1(&mut server), &mut scratch);
            exchange.refuse(MISPLACED).await;
        }
    }
    server.rest();
    worker.give_scratch(scratch);
    if server.has_farewell() {
        Box::pin(server.close()).await;
    }
}

/// Serves a connection that begins with HTTP/1. `alternative` is the value of `Alt-Svc` in its responses.
fn serve(
    entered: Entered,
    admitted: Admitted,
    open: Rc<Cell<bool>>,
    alternative: Option<Box<str>>,
) -> impl Future<Output = ()> {
    let Admitted { stream, early, origin, .. } = admitted;
    let mut limits = Rc::clone(&entered.0.view().server_limits);
    if alternative.is_some() {
        limits = Rc::new(ServerLimits { alternative, ..ServerLimits::clone(&limits) });
    }
    let info = ConnectionInfo::new(origin, &stream);
    let server = Server::new(stream, early, limits, Rc::clone(&open));
    converse(Box::new(Http1Connection { server, info, entered, open }))
}

/// The state of an HTTP/1 connection in one piece, so that its task holds no more than a pointer to it.
struct Http1Connection {
    server: Server,
    info: ConnectionInfo,
    entered: Entered,
    open: Rc<Cell<bool>>,
}

async fn converse(mut http1: Box<Http1Connection>) {
    loop {
        let Http1Connection { server, entered: Entered(worker), info, .. } = &mut *http1;
        // While the worker drains, the next response announces the end: no request is lost.
        let ends = |is_left| worker.is_closing() || is_left && !worker.is_draining();
        server.set_left_ms(worker.left_ms(&info.origin));
        if server.wait(ends).await.is_err() {
            break;
        }
        if server.may_be_preface() && Box::pin(server.is_preface()).await {
            let Http1Connection { server, info, entered, open } = *http1;
            let (stream, early) = server.into_parts();
            return Box::pin(multiplexed_over_tcp(entered, stream, early, info, open, None)).await;
        }
        // Boxed, so that an idle connection's task does not hold room for an exchange.
        let mut exchange = Box::pin(exchange(&mut http1));
        poll_fn(|task| moment::turn(|| exchange.as_mut().poll(task))).await;
        drop(exchange);
        let server = &mut http1.server;
        if !server.is_between_requests() {
            Box::pin(server.discard_rest()).await;
        }
        if !server.continues() {
            break;
        }
    }
    if http1.server.has_farewell() {
        Box::pin(http1.server.close()).await;
    } else if http1.server.needs_reset() {
        http1.server.reset();
    }
}

/// One exchange on a connection that has one at a time.
async fn exchange(http1: &mut Http1Connection) {
    let Http1Connection { server, info, entered: Entered(worker), .. } = http1;
    let mut scratch = worker.take_scratch();
    match server.read_head(&mut scratch.ctx.request).await {
        Ok(()) => Exchange::open(worker, info, Downstream::H1(server), &mut scratch).run().await,
        Err(NoRequest::Refused(fault)) => {
            if server.begins_tls() {
                let detail = "the client began TLS, but the listener has no TLS";
                let place = info.origin.listen_address().map(ListenPlace::Tcp);
                let peer = info.origin.peer;
                refusals::note(worker, EarlyRefusal::TlsOnCleartext, peer, place.as_ref(), detail);
            }
            Exchange::open(worker, info, Downstream::H1(server), &mut scratch).refuse(fault).await;
        }
        Err(NoRequest::Closed) => Downstream::H1(server).abort(),
    }
    server.rest();
    worker.give_scratch(scratch);
}

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
mod made_up;
#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    /// The room that the future of a function with these arguments takes.
    fn room<'a, F: Future>(_: fn(&'a mut Http1Connection) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn default_limit_spares_loopback_and_proxies() {
        let limits = |setting| Limits { connections_per_address: setting, ..Limits::default() };
        let most =
            |setting, ip: &str, introduces| most_of(&limits(setting), ip.parse().unwrap(), || introduces);
        assert_eq!(most(None, "192.0.2.1", false), Some(DEFAULT_CONNECTIONS_PER_ADDRESS));
        assert_eq!(most(None, "2001:db8::1", false), Some(DEFAULT_CONNECTIONS_PER_ADDRESS));
        for ip in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            assert_eq!((most(None, ip, false), most(Some(3), ip, false)), (None, Some(3)), "{ip}");
        }
        assert_eq!((most(None, "192.0.2.1", true), most(Some(3), "192.0.2.1", true)), (None, Some(3)));
        assert_eq!(most(Some(0), "192.0.2.1", false), None);
        let counting = |setting, counts, ip: &str| {
            most_of(&Limits { count_loopback: Some(counts), ..limits(setting) }, ip.parse().unwrap(), || {
                false
            })
        };
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(counting(Some(3), false, ip), None, "{ip}");
            assert_eq!(counting(Some(3), true, ip), Some(3), "{ip}");
            assert_eq!(counting(None, true, ip), Some(DEFAULT_CONNECTIONS_PER_ADDRESS), "{ip}");
        }
        assert_eq!(counting(Some(3), false, "192.0.2.1"), Some(3));
    }

    /// Nine thousand idle connections are nine thousand of these: the runtime rounds a task up to 256
    /// bytes, a hundred or so of which are its own, and the allocator has a size of 448.
    #[test]
    fn an_idle_connection_stays_small() {
        fn task<F: Future>(_: fn(Box<Http1Connection>) -> F) -> usize {
            size_of::<F>()
        }
        assert!(task(converse) <= 128, "{} bytes", task(converse));
        assert!(size_of::<Http1Connection>() <= 448, "{} bytes", size_of::<Http1Connection>());
    }

    /// Moved into its box once for every request: rarely needed state has its own box. Up to 1,024 bytes the allocator
    /// takes its short path; held bytes, HTTP/3, owners of connections and reading ahead take 72 bytes more, which is in
    /// the allocator's next size of 1,280.
    #[test]
    fn an_exchange_needs_little_room() {
        assert!(room(exchange) <= 1096, "{} bytes", room(exchange));
    }
}
