//! Connections of one worker that wait for requests, by endpoint: idle ones that serve one
//! exchange at a time, and shared ones that serve several.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use sigma_http::Fault;
use sigma_net::Deadline;
use sigma_net::tls::ClientTls;
use sigma_wire::Connection;
use sigma_wire::h2::{Reused, SharedConnection};
use tokio::sync::Notify;

use crate::dial::{Dial, Dialled, dial, timed_out};
use crate::endpoint::{Address, Endpoint};
use crate::identity::{EndpointId, LeaseWatch};

/// How long and how many idle connections are kept.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// Most connections per endpoint and worker that no exchange is on, whatever they were made
    /// for: clients may choose the name that a node is asked for. The least recently used gives way.
    pub size: usize,
    /// An idle connection is closed after this.
    pub idle_timeout_ms: u64,
    /// Requests on one connection.
    pub requests: u32,
}

/// Where a connection leads and how it is made.
#[derive(Debug, Clone, Copy)]
pub struct Target<'t> {
    /// The endpoint.
    pub endpoint: &'t Endpoint,
    /// How it is reached.
    pub dial: Dial<'t>,
    /// How long its connections are kept.
    pub limits: PoolLimits,
}

/// The target that a connection was made for. Upstreams that share an endpoint may differ in whom they trust
/// and what they ask for, so that only the same serves again.
#[derive(Debug)]
struct Made {
    addr: Address,
    tls: Option<(ClientTls, Box<str>)>,
    introduction: Box<[u8]>,
}

impl Made {
    fn of(target: &Target<'_>) -> Made {
        let tls = target.dial.tls.map(|tls| (tls.client.clone(), tls.name.into()));
        Made { addr: target.endpoint.addr.clone(), tls, introduction: target.dial.introduction.into() }
    }

    fn fits(&self, target: &Target<'_>) -> bool {
        let same_tls = match (&self.tls, &target.dial.tls) {
            (None, None) => true,
            (Some((client, name)), Some(wanted)) => client.is_same(wanted.client) && **name == *wanted.name,
            _ => false,
        };
        same_tls && *self.introduction == *target.dial.introduction && self.addr == target.endpoint.addr
    }
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    made: Made,
    used_ms: u64,
    expires_ms: u64,
}

#[derive(Debug)]
struct Shared {
    connection: Rc<SharedConnection>,
    made: Made,
    limits: PoolLimits,
    /// When it was last given to an exchange, or still had one in a sweep.
    used_ms: u64,
}

/// The connections of a worker to one endpoint.
#[derive(Debug, Default)]
struct Pool {
    /// The endpoint; unset as long as there was none with this number.
    owner: Option<LeaseWatch>,
    /// The least recently used first.
    idle: VecDeque<Idle>,
    shared: Vec<Shared>,
    /// Shared connections that are being dialled.
    opening: Vec<Weak<Opening>>,
}

/// The connections of a worker that may be used. The most recently used goes out first, so that
/// a pool shrinks to what the traffic needs.
#[derive(Debug, Default)]
pub struct Pools {
    /// By number of the endpoint; see [`EndpointId::index`].
    by_endpoint: Vec<Pool>,
}

impl Pools {
    /// The pool of an endpoint. Whoever has the endpoint keeps it from being gone, so that another
    /// one with the same number is a former one: what is left of its connections is closed.
    fn pool(&mut self, endpoint: &Endpoint) -> &mut Pool {
        let index = endpoint.id().index();
        if self.by_endpoint.len() <= index {
            self.by_endpoint.resize_with(index + 1, Pool::default);
        }
        let pool = &mut self.by_endpoint[index];
        if !pool.is_of(endpoint.id()) {
            *pool = Pool { owner: Some(endpoint.lease.watch()), ..Pool::default() };
        }
        pool
    }

    /// How many endpoints have a place here.
    pub fn endpoints(&self) -> usize {
        self.by_endpoint.iter().filter(|pool| pool.owner.is_some()).count()
    }

    /// Takes a place on a shared connection, or an idle connection that is still open and silent. An idle one on
    /// which bytes came that nobody asked for is closed instead: they would be read as the next
    /// answer.
    pub fn checkout(&mut self, target: &Target<'_>, now_ms: u64) -> Option<Connection> {
        let id = target.endpoint.id();
        let pool = self.by_endpoint.get_mut(id.index()).filter(|pool| pool.is_of(id))?;
        if let Some(stream) = pool.shared_place(target, Reused::Yes, now_ms) {
            return Some(stream);
        }
        let mut end = pool.idle.len();
        while let Some(at) = pool.idle.range(..end).rposition(|idle| idle.made.fits(target)) {
            let mut candidate = pool.idle.remove(at)?;
            if candidate.expires_ms > now_ms && candidate.connection.is_quiet() {
                return Some(candidate.connection);
            }
            end = at;
        }
        None
    }

    /// Keeps a connection for the next request if the exchange left it fit. In a full pool the one
    /// that was not used for the longest time gives way.
    pub fn checkin(&mut self, target: &Target<'_>, connection: Connection, now_ms: u64) {
        let size = target.limits.size;
        if size == 0 || !connection.is_reusable(target.limits.requests) {
            return;
        }
        connection.deadline().clear();
        let pool = self.pool(target.endpoint);
        while pool.len() >= size {
            if !pool.evict() {
                return;
            }
        }
        let expires_ms = now_ms + target.limits.idle_timeout_ms;
        pool.idle.push_back(Idle { connection, made: Made::of(target), used_ms: now_ms, expires_ms });
    }

    /// Closes connections that idled too long, that the other side closed, that are too many, or
    /// that lead to endpoints which are gone.
    pub fn sweep(&mut self, now_ms: u64) {
        let left = self.by_endpoint.iter().rposition(|pool| !pool.is_over());
        self.by_endpoint.truncate(left.map_or(0, |at| at + 1));
        for pool in &mut self.by_endpoint {
            if pool.is_over() {
                *pool = Pool::default();
                continue;
            }
            pool.idle.retain_mut(|c| c.expires_ms > now_ms && c.connection.is_quiet());
            pool.shared.retain_mut(|shared| {
                if !shared.connection.is_idle() {
                    shared.used_ms = now_ms;
                }
                let idle_ms = now_ms.saturating_sub(shared.used_ms);
                // A spent one ends with its last exchange, which holds on to it.
                !shared.connection.is_spent(shared.limits.requests) && idle_ms < shared.limits.idle_timeout_ms
            });
            if let Some(size) = pool.shared.iter().map(|shared| shared.limits.size).max() {
                pool.shrink_to(size);
            }
        }
    }

    /// Closes all.
    pub fn clear(&mut self) {
        self.by_endpoint.clear();
    }
}

impl Pool {
    fn is_of(&self, id: EndpointId) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.id() == id)
    }

    /// Whether nobody comes for these connections any more.
    fn is_over(&self) -> bool {
        self.owner.as_ref().is_none_or(LeaseWatch::is_over)
    }

    fn len(&self) -> usize {
        self.idle.len() + self.shared.len()
    }

    /// Closes the connection that was not used for the longest time, of those that no exchange is
    /// on; false if there is none.
    fn evict(&mut self) -> bool {
        let unused = self.shared.iter().enumerate().filter(|(_, shared)| shared.connection.is_idle());
        let shared = unused.min_by_key(|(_, shared)| shared.used_ms).map(|(at, shared)| (at, shared.used_ms));
        let idle = self.idle.front().map(|idle| idle.used_ms);
        match (idle, shared) {
            (Some(idle_ms), Some((at, shared_ms))) if shared_ms < idle_ms => drop(self.shared.remove(at)),
            (Some(_), _) => drop(self.idle.pop_front()),
            (None, Some((at, _))) => drop(self.shared.remove(at)),
            (None, None) => return false,
        }
        true
    }

    /// Connections that exchanges are on stay, however many: they are no more than the exchanges.
    fn shrink_to(&mut self, size: usize) {
        while self.len() > size && self.evict() {}
    }

    /// The shared connection that is being dialled for such a target. Those who still wake up from an
    /// earlier one hold on to it.
    fn opening(&self, target: &Target<'_>) -> Option<Rc<Opening>> {
        let all = self.opening.iter().filter_map(Weak::upgrade);
        all.filter(|opening| !opening.over.get()).find(|opening| opening.made.fits(target))
    }

    fn open(&mut self, target: &Target<'_>) -> Opener {
        self.opening.retain(|opening| opening.upgrade().is_some_and(|opening| !opening.over.get()));
        let opening = Rc::new(Opening {
            made: Made::of(target),
            timeout_ms: target.dial.timeout_ms,
            failed: Cell::new(None),
            over: Cell::new(false),
            told: Notify::new(),
        });
        self.opening.push(Rc::downgrade(&opening));
        Opener(opening)
    }

    /// A connection for the exchange that dialled it; a shared one stays for others.
    fn adopt(&mut self, target: &Target<'_>, dialled: Dialled, now_ms: u64) -> Connection {
        match dialled {
            Dialled::Single(connection) => connection,
            Dialled::Shared(connection) => {
                let place = Connection::on(&connection, Reused::No);
                let (made, limits) = (Made::of(target), target.limits);
                self.shared.push(Shared { connection, made, limits, used_ms: now_ms });
                self.shrink_to(limits.size);
                place
            }
        }
    }

    fn shared_place(&mut self, target: &Target<'_>, reused: Reused, now_ms: u64) -> Option<Connection> {
        let fits = |s: &&mut Shared| s.made.fits(target) && s.connection.has_room(s.limits.requests);
        let shared = self.shared.iter_mut().rev().find(fits)?;
        shared.used_ms = now_ms;
        Some(Connection::on(&shared.connection, reused))
    }
}

/// A connection to `target` that no earlier exchange has used. Exchanges that come while a shared
/// one is being dialled wait for it instead of dialling more, and fail with it. All of it, the waiting
/// included, takes no longer than the target's connect timeout.
///
/// # Errors
/// Returns an error in the cases in which [`dial`] does.
pub async fn connect(pools: &RefCell<Pools>, target: &Target<'_>, now_ms: u64) -> Result<Connection, Fault> {
    let endpoint = target.endpoint;
    if !target.dial.is_shared() {
        let dialled = dial(&endpoint.addr, &target.dial).await?;
        return Ok(pools.borrow_mut().pool(endpoint).adopt(target, dialled, now_ms));
    }
    let deadline = Deadline::new();
    deadline.set(target.dial.timeout_ms);
    deadline.bound(share(pools, target, now_ms)).await.unwrap_or_else(|| Err(timed_out()))
}

async fn share(pools: &RefCell<Pools>, target: &Target<'_>, now_ms: u64) -> Result<Connection, Fault> {
    let endpoint = target.endpoint;
    loop {
        // Not in the condition of the loop, where the borrow would last over the wait.
        let Some(opening) = pools.borrow_mut().pool(endpoint).opening(target) else { break };
        opening.told.notified().await;
        match opening.failed.get() {
            // Whoever gave it less time than this target has says little about the node.
            Some(fault) if opening.timeout_ms >= target.dial.timeout_ms => return Err(fault),
            _ => {}
        }
        let stream = pools.borrow_mut().pool(endpoint).shared_place(target, Reused::No, now_ms);
        if let Some(stream) = stream {
            return Ok(stream);
        }
    }
    // Dropped on every way out, an abort included; then nobody waits for it any more.
    let opener = pools.borrow_mut().pool(endpoint).open(target);
    let dialled = dial(&endpoint.addr, &target.dial).await.inspect_err(|fault| opener.fail(*fault))?;
    Ok(pools.borrow_mut().pool(endpoint).adopt(target, dialled, now_ms))
}

/// A shared connection on its way.
#[derive(Debug)]
struct Opening {
    made: Made,
    /// The time that whoever dials gives it.
    timeout_ms: u64,
    failed: Cell<Option<Fault>>,
    /// It is there, or will not be.
    over: Cell<bool>,
    told: Notify,
}

/// Whoever dials a shared connection; tells those who wait for it, whatever became of it.
struct Opener(Rc<Opening>);

impl Opener {
    fn fail(&self, fault: Fault) {
        self.0.failed.set(Some(fault));
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.0.over.set(true);
        self.0.told.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use sigma_config::resources::Scheme;
    use sigma_http::h1::{HeadLimits, Tolerance};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::health::Health;
    use crate::identity::EndpointIds;
    use sigma_wire::h2::SharedLimits;

    const LIMITS: PoolLimits = PoolLimits { size: 4, idle_timeout_ms: 60_000, requests: 1000 };

    fn endpoint(ids: &EndpointIds, host: &str, addr: &Address) -> Endpoint {
        Endpoint {
            lease: ids.lease(Scheme::Grpc, host, 80, None),
            host: host.to_owned(),
            port: 80,
            addr: addr.clone(),
            host_header: String::new(),
            weight: 1,
            priority: 0,
            health: Arc::new(Health::unchecked()),
        }
    }

    fn target(endpoint: &Endpoint) -> Target<'_> {
        let shared = SharedLimits {
            head: HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE },
            streams: 10,
            stream_window_bytes: 65_535,
            connection_window_bytes: 65_535,
            frame_bytes: 16_384,
            header_list_bytes: 16_384,
        };
        let dial = Dial { scheme: Scheme::Grpc, timeout_ms: 60_000, shared, tls: None, introduction: b"" };
        Target { endpoint, dial, limits: LIMITS }
    }

    async fn connections_of_the_former_are_not_used() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = Address::Tcp(listener.local_addr().expect("address"));
        let (ids, pools) = (EndpointIds::default(), RefCell::new(Pools::default()));
        let former = endpoint(&ids, "former", &addr);
        drop(connect(&pools, &target(&former), 0).await.expect("a connection"));
        let (mut accepted, _) = listener.accept().await.expect("accept");
        assert!(pools.borrow_mut().checkout(&target(&former), 1).is_some());

        let number = former.id().index();
        drop(former);
        assert_eq!(ids.live(), 0);
        let next = endpoint(&ids, "next", &addr);
        assert_eq!(next.id().index(), number);
        assert!(pools.borrow_mut().checkout(&target(&next), 2).is_none());
        pools.borrow_mut().sweep(3);
        assert_eq!(pools.borrow().endpoints(), 0);
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), accepted.read_to_end(&mut rest));
        assert!(closed.await.is_ok(), "the node sees the end of its connection");

        // The endpoint that is there has a place, and loses it when it is gone too.
        drop(connect(&pools, &target(&next), 4).await.expect("a connection"));
        pools.borrow_mut().sweep(5);
        assert_eq!(pools.borrow().endpoints(), 1);
        drop(next);
        pools.borrow_mut().sweep(6);
        assert_eq!((pools.borrow().endpoints(), pools.borrow().by_endpoint.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_number_that_is_given_again_brings_no_connections() {
        tokio::task::LocalSet::new().run_until(connections_of_the_former_are_not_used()).await;
    }
}
