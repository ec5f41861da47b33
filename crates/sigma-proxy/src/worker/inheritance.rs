//! The state that outlives a generation of workers and passes to the next one.
//!
//! Listening sockets, the keys of TLS tickets, counters and health are one value. A start, a reload and any
//! replacement of workers are the same two steps: [`Inheritance::bind`] binds the missing sockets, which may fail and
//! changes nothing, then [`Inheritance::take_over`], which cannot fail, activates them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sigma_config::settings::{ListenPlace, Listener, StreamListener};
use sigma_net::listen::{Claim, Occupant, SocketFile, Transport};
use sigma_net::tls::{SharedKey, TicketKeys};
use sigma_net::{BoundSocket, Sockets, TcpOptions};
use sigma_observe::counters::WorkerCounters;
use sigma_plugin::{Node, Roster};
use sigma_upstream::health::HealthReporter;

use crate::compile::{Compiler, Sessions};
use crate::edge::quic_state::QuicShared;
use crate::observe::live::LiveReporter;
use crate::observe::tap::TapBoard;
use crate::snapshot::Snapshot;
use crate::worker::steering::{Group, GroupOrder, steer};

/// An error that names the listener, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{remedy}")]
pub struct BindError {
    address: String,
    source: io::Error,
    remedy: String,
}

impl BindError {
    pub(crate) fn new(
        address: impl std::fmt::Display,
        place: Option<&ListenPlace>,
        source: io::Error,
    ) -> BindError {
        let port = place.and_then(port_of);
        let remedy = match (source.kind(), port) {
            (io::ErrorKind::AddrInUse, Some((addr, transport))) => {
                match sigma_net::listen::occupant(addr, transport) {
                    Some(Occupant { pid, name }) => format!(
                        "; pid {pid} ({name}) listens on this address: stop it, choose another port, or set `shared: true` on the listeners of both processes to share it"
                    ),
                    None => "; another program listens on this address: stop it, or choose another port"
                        .to_owned(),
                }
            }
            (io::ErrorKind::PermissionDenied, Some((addr, _))) if addr.port() < 1_024 => format!(
                "; ports below 1024 need a capability: `setcap cap_net_bind_service=+ep` on the program, `AmbientCapabilities=CAP_NET_BIND_SERVICE` in its unit, or a port such as {}",
                u32::from(addr.port()) + 8_000
            ),
            _ => String::new(),
        };
        BindError { address: address.to_string(), source, remedy }
    }
}

/// A change of listening sockets for one worker.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    /// Sockets to accept or receive from.
    pub(crate) open: Vec<(ListenPlace, BoundSocket, Option<String>)>,
    /// Places to do so no longer.
    pub(crate) close: Vec<ListenPlace>,
}

impl Listeners {
    /// Takes out the sockets of datagrams.
    pub(crate) fn split_datagrams(&mut self) -> Listeners {
        let open = self.open.extract_if(.., |(place, ..)| matches!(place, ListenPlace::Udp(_))).collect();
        Listeners { open, close: Vec::new() }
    }

    /// Adds a later change.
    pub(crate) fn then(&mut self, later: Listeners) {
        self.open.retain(|(place, ..)| !later.close.contains(place));
        for place in later.close {
            if !self.close.contains(&place) {
                self.close.push(place);
            }
        }
        self.open.extend(later.open);
    }
}

/// A listener with its sockets: one for each worker at least, and more if the process before had more workers.
struct ListenerSockets {
    listener: Listener,
    sockets: Vec<BoundSocket>,
    /// Removed when the listener is closed.
    file: Option<SocketFile>,
    /// For HTTP/3, until it is decided whether the kernel steers its packets.
    undecided: Option<GroupOrder>,
}

impl ListenerSockets {
    /// Returns true if its sockets are those that `wanted` requests. Sockets of UDP always are, for the same protocol:
    /// datagrams to a socket that is being replaced would be lost, and none of the options is about the socket.
    fn serves(&self, wanted: &Listener) -> bool {
        let place = wanted.place();
        let is_kept = matches!(place, ListenPlace::Udp(_))
            && self.listener.place() == place
            && self.listener.http3.is_some() == wanted.http3.is_some();
        self.listener == *wanted || is_kept
    }
}

/// The state that passes from one generation to the next.
pub struct Inheritance {
    listening: Vec<ListenerSockets>,
    sessions: Option<Arc<Sessions>>,
    counters: Vec<Arc<WorkerCounters>>,
    health: HealthReporter,
    node: Arc<Node>,
    live: LiveReporter,
    taps: Arc<TapBoard>,
    /// The sockets that are bound already.
    found: Arc<Sockets>,
}

/// Sockets that are bound and not in use yet.
pub(crate) struct Bound {
    added: Vec<ListenerSockets>,
    closed: Vec<ListenPlace>,
    /// For each worker, in order.
    pub(crate) changes: Vec<Listeners>,
}

impl Inheritance {
    /// Returns the state of a first generation with so many workers: no counts, no listeners. `health` receives the
    /// reports of workers, `node` is shared by plugins.
    pub fn new(workers: usize, health: HealthReporter, node: Arc<Node>) -> Inheritance {
        let counters = (0..workers).map(|_| Arc::default()).collect();
        let (live, taps, found) = (LiveReporter::default(), Arc::default(), Arc::default());
        Inheritance { listening: Vec::new(), sessions: None, counters, health, node, live, taps, found }
    }

    /// Adds a reporter of request figures, for an operator who watches.
    #[must_use]
    pub fn with_live_reporter(mut self, live: LiveReporter) -> Inheritance {
        self.live = live;
        self
    }

    /// Adds sockets that another process has bound: they are used before any others.
    #[must_use]
    pub fn with_sockets(mut self, found: Arc<Sockets>) -> Inheritance {
        self.found = found;
        self
    }

    /// Continues with the keys of tickets that another process has made, the newest first, which has this age:
    /// clients resume the sessions that they began there. Keys that cannot be used are left.
    pub fn resume_tickets(snapshot: &Snapshot, keys: &[SharedKey], age: Duration) {
        let ours = snapshot.sessions.as_deref().and_then(Sessions::ticket_keys);
        if let (Some(ours), Some(newest)) = (ours, keys.first())
            && let Err(error) = ours.give(newest, keys.get(1), age)
        {
            tracing::warn!(%error, "sessions of the previous process are not resumed");
        }
    }

    /// The keys of tickets in force, the newest first, and the age of that one.
    pub fn ticket_keys(&self) -> (Vec<SharedKey>, Duration) {
        self.sessions.as_deref().and_then(Sessions::ticket_keys).map(TicketKeys::in_force).unwrap_or_default()
    }

    /// The counters of every worker.
    pub fn counters(&self) -> &[Arc<WorkerCounters>] {
        &self.counters
    }

    /// A compiler with these plugins. Clients resume the TLS sessions that they began in the generation
    /// before.
    pub fn compiler(&self, roster: Arc<Roster>) -> Compiler {
        Compiler::new(roster, Arc::clone(&self.node)).resuming(self.sessions.clone())
    }

    /// Returns the reporter for observations of nodes.
    pub(crate) fn health(&self) -> &HealthReporter {
        &self.health
    }

    /// Returns the reporter of request figures.
    pub(crate) fn live(&self) -> &LiveReporter {
        &self.live
    }

    /// Returns the board where operators open taps.
    pub fn taps(&self) -> &Arc<TapBoard> {
        &self.taps
    }

    /// Returns the data that plugins of all workers share.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Binds the sockets of `wanted` that are missing here.
    ///
    /// # Errors
    /// Returns an error if a listener cannot be bound; nothing has changed then.
    pub(crate) fn bind(&self, wanted: &[Listener]) -> Result<Bound, BindError> {
        let wanted = &with_quic(wanted)[..];
        let is_held = |listener: &&Listener| self.listening.iter().any(|held| held.serves(listener));
        // Unix sockets first: a client that reaches a port may rely on them.
        let mut missing: Vec<(&Listener, ListenPlace)> =
            wanted.iter().filter(|l| !is_held(l)).map(|listener| (listener, listener.place())).collect();
        missing.sort_by_key(|(_, place)| !matches!(place, ListenPlace::Unix(_)));
        let mut added = Vec::with_capacity(missing.len());
        for (listener, place) in missing {
            let error = |source| BindError::new(&place, Some(&place), source);
            added.push(self.bind_one(listener, &place).map_err(error)?);
        }
        let mut changes = handles(&added, self.counters.len())?;
        let gone = self.listening.iter().filter(|held| !wanted.iter().any(|listener| held.serves(listener)));
        let closed: Vec<ListenPlace> = gone.map(|held| held.listener.place()).collect();
        changes.iter_mut().for_each(|change| change.close.clone_from(&closed));
        Ok(Bound { added, closed, changes })
    }

    /// Takes the sockets that are already bound for a listener, and binds one for each remaining worker.
    fn bind_one(&self, listener: &Listener, place: &ListenPlace) -> io::Result<ListenerSockets> {
        let held =
            |sockets, file| ListenerSockets { listener: listener.clone(), sockets, file, undecided: None };
        let workers = self.counters.len();
        Ok(match place {
            ListenPlace::Tcp(addr) => held(self.tcp(listener, *addr)?, None),
            ListenPlace::Udp(addr) => {
                let Group { sockets, order } =
                    Group::bind(&self.found, listener, *addr, self.claim(listener), workers)?;
                let undecided = listener.http3.is_some().then_some(order);
                ListenerSockets { undecided, ..held(sockets, None) }
            }
            ListenPlace::Unix(path) => {
                let mut sockets = self.found.unix(path)?;
                if sockets.is_empty() {
                    sockets.push(BoundSocket::unix(path)?);
                }
                while sockets.len() < workers {
                    sockets.push(sockets[0].try_clone()?);
                }
                held(sockets, Some(SocketFile::bound(path)))
            }
        })
    }

    fn tcp(&self, listener: &Listener, addr: SocketAddr) -> io::Result<Vec<BoundSocket>> {
        let options = tcp_options(listener);
        let mut sockets = self.found.tcp(addr, Some(listener.backlog), &options)?;
        let is_found = !sockets.is_empty();
        while sockets.len() < self.counters.len() {
            let claim = if sockets.is_empty() { self.claim(listener) } else { Claim::Further };
            let bound = BoundSocket::tcp(addr, listener.backlog, claim, &options);
            sockets.push(match (bound, sockets.first()) {
                // Only sockets of one user share a port, and a service manager binds as root.
                (Err(error), Some(first)) if is_found && error.kind() == io::ErrorKind::AddrInUse => {
                    first.try_clone()?
                }
                (bound, _) => bound?,
            });
        }
        Ok(sockets)
    }

    /// Returns whether this must be the only process on a listener's port. If it listens there already, with other
    /// options or on another address, its own sockets would conflict with the new ones.
    fn claim(&self, listener: &Listener) -> Claim {
        let of = |listener: &Listener| port_of(&listener.place()).map(|(addr, of)| (addr.port(), of));
        let is_own = self.listening.iter().any(|held| of(&held.listener) == of(listener));
        if listener.shared || is_own { Claim::Further } else { Claim::First }
    }

    /// Activates the bound sockets and `snapshot`.
    pub(crate) fn take_over(&mut self, bound: Bound, snapshot: &Snapshot) {
        // By place: a listener that is bound with other options replaces the one before.
        self.listening.retain(|held| !bound.closed.contains(&held.listener.place()));
        self.listening.extend(bound.added);
        // Sockets without a listener are closed.
        self.found = Arc::default();
        self.sessions.clone_from(&snapshot.sessions);
    }

    /// Makes the kernel steer packets of HTTP/3 to their workers where it can. Call it before the workers open the
    /// sockets, and not before another process that reads them has left.
    pub(crate) fn steer(&mut self) {
        let shared = QuicShared::of(&self.node);
        for held in &mut self.listening {
            if let (Some(order), Some(addr)) = (held.undecided.take(), held.listener.place().ip()) {
                shared.set_steered(addr, steer(addr, &held.sockets, order));
            }
        }
    }

    /// Handles of all listening sockets for each worker.
    ///
    /// # Errors
    /// Returns an error if there are too many open files.
    pub(crate) fn handles(&self) -> Result<Vec<Listeners>, BindError> {
        handles(&self.listening, self.counters.len())
    }

    /// Which worker has each socket of datagrams, by the socket's number.
    pub(crate) fn workers_by_socket(&self) -> HashMap<u64, usize> {
        let is_of_datagrams = |held: &&ListenerSockets| matches!(held.listener.place(), ListenPlace::Udp(_));
        let sockets =
            self.listening.iter().filter(is_of_datagrams).flat_map(|held| held.sockets.iter().enumerate());
        // As they are handed out.
        let workers = self.counters.len();
        sockets.filter_map(|(place, socket)| Some((socket.number()?, place % workers))).collect()
    }

    /// Handles of all listening sockets, for a process that continues with them.
    ///
    /// # Errors
    /// Returns an error if there are too many open files.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let of_workers = self.listening.iter().flat_map(|held| match held.listener.place() {
            ListenPlace::Tcp(_) | ListenPlace::Udp(_) => &held.sockets[..],
            // They are handles of one socket.
            ListenPlace::Unix(_) => &held.sockets[..1],
        });
        of_workers.map(|socket| Ok(socket.try_clone()?.into())).collect()
    }

    /// Another process continues with the sockets: their files stay when this one closes them.
    pub(crate) fn leave_files(&mut self) {
        self.listening.iter_mut().filter_map(|held| held.file.take()).for_each(SocketFile::leave);
    }

    /// Closes its own handles of the sockets: the workers' handles are the last ones.
    pub(crate) fn release_sockets(&mut self) {
        self.listening.iter_mut().for_each(|held| held.sockets.clear());
    }
}

/// Returns the listeners, and one of UDP for each that has HTTP/3: its socket is bound, inherited and closed alike.
fn with_quic(wanted: &[Listener]) -> Vec<Listener> {
    let of_quic =
        |listener: &Listener| Listener { stream: Some(StreamListener::Udp), tls: None, ..listener.clone() };
    let quic = wanted.iter().filter(|listener| listener.quic_place().is_some()).map(of_quic);
    wanted.iter().cloned().chain(quic).collect()
}

fn handles(held: &[ListenerSockets], workers: usize) -> Result<Vec<Listeners>, BindError> {
    let mut handles: Vec<Listeners> = (0..workers).map(|_| Listeners::default()).collect();
    for ListenerSockets { listener, sockets, .. } in held {
        let place = listener.place();
        for (number, socket) in sockets.iter().enumerate() {
            let socket = socket.try_clone().map_err(|source| BindError::new(&place, None, source))?;
            handles[number % workers].open.push((place.clone(), socket, listener.name.clone()));
        }
    }
    Ok(handles)
}

/// Returns the options of a listener's sockets.
fn tcp_options(listener: &Listener) -> TcpOptions {
    let Some(tcp) = &listener.tcp else { return TcpOptions::default() };
    let seconds = |time: Option<u16>| time.map(|time| Duration::from_secs(time.into()));
    TcpOptions {
        keepalive_idle: seconds(tcp.keepalive_idle_s),
        keepalive_interval: seconds(tcp.keepalive_interval_s),
        keepalive_probes: tcp.keepalive_probes.map(u32::from),
        fast_open: tcp.fast_open.map(u32::from),
        defer_accept: seconds(tcp.defer_accept_s),
        user_timeout: tcp.user_timeout_ms.map(|time| Duration::from_millis(time.into())),
    }
}

/// Returns the port of a place, and its transport.
fn port_of(place: &ListenPlace) -> Option<(SocketAddr, Transport)> {
    match place {
        ListenPlace::Tcp(addr) => Some((*addr, Transport::Tcp)),
        ListenPlace::Udp(addr) => Some((*addr, Transport::Udp)),
        ListenPlace::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use sigma_config::settings::Http3;

    use super::*;
    use crate::compile::tests::alone;

    #[test]
    fn a_refused_address_comes_with_its_remedy() {
        fn check(addr: &str, kind: io::ErrorKind, word: &str) {
            let place = addr.parse().ok().map(ListenPlace::Tcp);
            let error = BindError::new(addr, place.as_ref(), kind.into()).to_string();
            assert!(error.contains(addr) && error.contains(word), "{error}");
        }
        check("0.0.0.0:80", io::ErrorKind::PermissionDenied, "cap_net_bind_service");
        check("0.0.0.0:443", io::ErrorKind::PermissionDenied, "such as 8443");
        check("127.0.0.1:1", io::ErrorKind::AddrInUse, "choose another port");
    }

    fn tcp(port: u16) -> Listener {
        let text = format!("listeners: [\"127.0.0.1:{port}\"]");
        let checked = sigma_config::parse(&text, &sigma_config::ParseOptions::default()).unwrap();
        checked.config.settings.listeners[0].clone()
    }

    /// A socket of UDP stays even if its listener is renamed, and differs from the socket of TCP.
    #[test]
    fn sockets_of_datagrams_stay() {
        let health = sigma_upstream::health::passive_channel(1).0;
        let mut inheritance = Inheritance::new(2, health, Arc::default());
        let compiler = inheritance.compiler(Arc::new(Roster::new([], None)));
        let config = sigma_config::Config::default();
        let snapshot = alone(|sources| compiler.compile(&config, 0, sources)).unwrap().1;
        // Free for TCP as well, and not given to another program by the system.
        let is_free = |port: &u16| BoundSocket::udp(([127, 0, 0, 1], *port).into(), Claim::First).is_ok();
        let plain = tcp(std::iter::repeat_with(sigma_testkit::free_port).find(is_free).unwrap());
        let stream = Some(sigma_config::settings::StreamListener::Udp);
        let udp = Listener { stream, ..plain.clone() };
        let mut step = |wanted: &[Listener], counts: (usize, usize)| {
            let bound = inheritance.bind(wanted).unwrap();
            let change = &bound.changes[1];
            assert_eq!((change.open.len(), change.close.len()), counts, "{wanted:?}");
            inheritance.take_over(bound, &snapshot);
        };
        step(std::slice::from_ref(&udp), (1, 0));
        step(&[Listener { name: Some("dns".to_owned()), ..udp.clone() }], (0, 0));
        step(&[udp.clone(), plain.clone()], (1, 0));
        // The sockets of another protocol are not the same.
        step(&[Listener { http3: Some(Http3::default()), ..plain.clone() }], (2, 2));
        step(&[plain], (1, 2));
    }

    fn listeners(open: &[u16], close: &[u16]) -> Listeners {
        let address = |port: &u16| ListenPlace::Tcp(([127, 0, 0, 1], *port).into());
        let socket = |port: &u16| {
            let free = ([127, 0, 0, 1], 0).into();
            (address(port), BoundSocket::tcp(free, 1, Claim::First, &TcpOptions::default()).unwrap(), None)
        };
        Listeners { open: open.iter().map(socket).collect(), close: close.iter().map(address).collect() }
    }

    /// A worker that missed a change finds what both together come to.
    #[test]
    fn changes_of_listeners_add_up() {
        let check = |first: (&[u16], &[u16]), second: (&[u16], &[u16]), want: (&[u16], &[u16])| {
            let mut sum = listeners(first.0, first.1);
            sum.then(listeners(second.0, second.1));
            let port = |place: &ListenPlace| place.ip().map_or(0, |addr| addr.port());
            let open: Vec<u16> = sum.open.iter().map(|(address, ..)| port(address)).collect();
            let close: Vec<u16> = sum.close.iter().map(port).collect();
            assert_eq!((open.as_slice(), close.as_slice()), want);
        };
        check((&[1], &[]), (&[2], &[]), (&[1, 2], &[]));
        check((&[1], &[]), (&[], &[1]), (&[], &[1]));
        check((&[], &[1]), (&[1], &[]), (&[1], &[1]));
        check((&[1], &[1]), (&[1], &[1]), (&[1], &[1]));
        check((&[1, 2], &[3]), (&[], &[2, 3]), (&[1], &[3, 2]));
    }

    /// The two steps over one value: what stays is not bound again, what goes is closed.
    #[test]
    fn sockets_pass_to_the_next_generation() {
        let health = sigma_upstream::health::passive_channel(1).0;
        let mut inheritance = Inheritance::new(2, health, Arc::default());
        let plugins = Arc::new(Roster::new([], None));
        let compiler = inheritance.compiler(Arc::clone(&plugins));
        let config = sigma_config::Config::default();
        let compile = |compiler: &Compiler| alone(|sources| compiler.compile(&config, 0, sources)).unwrap().1;
        let snapshot = compile(&compiler);
        let free =
            BoundSocket::tcp(([127, 0, 0, 1], 0).into(), 1, Claim::First, &TcpOptions::default()).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let listener = tcp(port);
        let bound = inheritance.bind(std::slice::from_ref(&listener)).unwrap();
        assert!(bound.changes.iter().all(|change| change.open.len() == 1 && change.close.is_empty()));
        inheritance.take_over(bound, &snapshot);
        let successor = compile(&inheritance.compiler(plugins));
        let sessions = |snapshot: &Snapshot| snapshot.sessions.clone().unwrap();
        assert!(Arc::ptr_eq(&sessions(&snapshot), &sessions(&successor)), "tickets are worth nothing");
        let again = inheritance.bind(std::slice::from_ref(&listener)).unwrap();
        assert!(again.changes.iter().all(|change| change.open.is_empty() && change.close.is_empty()));
        inheritance.take_over(again, &snapshot);
        // A successor has a socket for each worker without binding any.
        assert!(inheritance.handles().unwrap().iter().all(|worker| worker.open.len() == 1));
        let gone = inheritance.bind(&[]).unwrap();
        assert!(gone.changes.iter().all(|change| change.close.len() == 1));
        inheritance.take_over(gone, &snapshot);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}
