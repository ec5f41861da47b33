//! Connections of one worker that wait for requests, by endpoint: idle ones that serve one
//! exchange at a time, and trunks that serve several.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use sigma_http::Fault;
use sigma_net::tls::ClientTls;
use tokio::sync::Notify;

use crate::connection::h2::{Reused, Trunk};
use crate::connection::{Connection, Dial, Dialled, dial};
use crate::endpoint::{Address, Endpoint};

/// How long and how many idle connections are kept.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// Most idle connections per endpoint and worker.
    pub size: usize,
    /// An idle connection is closed after this.
    pub idle_timeout_ms: u64,
    /// Requests on one connection.
    pub requests: u32,
}

/// Where a connection is to lead, and on which terms.
#[derive(Debug, Clone, Copy)]
pub struct Target<'t> {
    /// The endpoint.
    pub endpoint: &'t Endpoint,
    /// How it is reached.
    pub dial: Dial<'t>,
    /// How long its connections are kept.
    pub limits: PoolLimits,
}

/// What a connection was made for. Upstreams that share an endpoint may differ in whom they trust
/// and what they ask for, so that only the same serves again.
#[derive(Debug)]
struct Made {
    addr: Address,
    tls: Option<(ClientTls, Box<str>)>,
    introduction: Box<[u8]>,
}

impl Made {
    fn of(target: &Target<'_>) -> Made {
        let tls = target.dial.tls.map(|tls| (tls.terms.clone(), tls.name.into()));
        Made { addr: target.endpoint.addr.clone(), tls, introduction: target.dial.introduction.into() }
    }

    fn fits(&self, target: &Target<'_>) -> bool {
        let same_tls = match (&self.tls, &target.dial.tls) {
            (None, None) => true,
            (Some((terms, name)), Some(wanted)) => terms.is_same(wanted.terms) && **name == *wanted.name,
            _ => false,
        };
        same_tls && *self.introduction == *target.dial.introduction && self.addr == target.endpoint.addr
    }
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    made: Made,
    expires_ms: u64,
}

#[derive(Debug)]
struct Shared {
    trunk: Rc<Trunk>,
    made: Made,
    limits: PoolLimits,
    /// When it last had an exchange, as of the last sweep.
    used_ms: u64,
}

/// The connections of a worker to one endpoint.
#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Idle>,
    shared: Vec<Shared>,
    /// The trunk that was dialled last.
    opening: Weak<Opening>,
}

/// The connections of a worker that may be used. The most recently used goes out first, so that
/// a pool shrinks to what the traffic needs.
#[derive(Debug, Default)]
pub struct Pools {
    /// Indexed by [`Endpoint::id`], which is dense.
    by_endpoint: Vec<Pool>,
}

impl Pools {
    fn pool(&mut self, endpoint: &Endpoint) -> &mut Pool {
        let index = endpoint.id as usize;
        if self.by_endpoint.len() <= index {
            self.by_endpoint.resize_with(index + 1, Pool::default);
        }
        &mut self.by_endpoint[index]
    }

    /// Takes a place on a trunk, or an idle connection that is still open and silent. An idle one on
    /// which bytes came that nobody asked for is closed instead: they would be read as the next
    /// answer.
    pub fn checkout(&mut self, target: &Target<'_>, now_ms: u64) -> Option<Connection> {
        let pool = self.by_endpoint.get_mut(target.endpoint.id as usize)?;
        if let Some(stream) = pool.shared_stream(target, Reused::Yes) {
            return Some(stream);
        }
        let mut end = pool.idle.len();
        while let Some(at) = pool.idle[..end].iter().rposition(|idle| idle.made.fits(target)) {
            let mut candidate = pool.idle.remove(at);
            if candidate.expires_ms > now_ms && candidate.connection.is_quiet() {
                return Some(candidate.connection);
            }
            end = at;
        }
        None
    }

    /// Keeps a connection for the next request if the exchange left it fit and there is room.
    pub fn checkin(&mut self, target: &Target<'_>, connection: Connection, now_ms: u64) {
        if !connection.is_reusable(target.limits.requests) {
            return;
        }
        connection.deadline().clear();
        let idle = &mut self.pool(target.endpoint).idle;
        if idle.len() < target.limits.size {
            let expires_ms = now_ms + target.limits.idle_timeout_ms;
            idle.push(Idle { connection, made: Made::of(target), expires_ms });
        }
    }

    /// Closes connections that idled too long, or that the other side closed.
    pub fn sweep(&mut self, now_ms: u64) {
        for pool in &mut self.by_endpoint {
            pool.idle.retain_mut(|c| c.expires_ms > now_ms && c.connection.is_quiet());
            pool.shared.retain_mut(|shared| {
                if !shared.trunk.is_idle() {
                    shared.used_ms = now_ms;
                }
                let idle_ms = now_ms.saturating_sub(shared.used_ms);
                // A spent trunk ends with its last exchange, which holds on to it.
                !shared.trunk.is_spent(shared.limits.requests) && idle_ms < shared.limits.idle_timeout_ms
            });
        }
    }

    /// Closes all.
    pub fn clear(&mut self) {
        self.by_endpoint.clear();
    }
}

impl Pool {
    /// The trunk that is being dialled. Those who still wake up from an earlier one hold on to it.
    fn opening(&self) -> Option<Rc<Opening>> {
        self.opening.upgrade().filter(|opening| !opening.over.get())
    }

    /// A connection for the exchange that dialled it; a trunk stays for others.
    fn adopt(&mut self, target: &Target<'_>, dialled: Dialled, now_ms: u64) -> Connection {
        match dialled {
            Dialled::Single(connection) => connection,
            Dialled::Shared(trunk) => {
                let stream = trunk.stream(Reused::No);
                let (made, limits) = (Made::of(target), target.limits);
                self.shared.push(Shared { trunk, made, limits, used_ms: now_ms });
                Connection::H2(Box::new(stream))
            }
        }
    }

    fn shared_stream(&self, target: &Target<'_>, reused: Reused) -> Option<Connection> {
        let fits = |s: &&Shared| s.made.fits(target) && s.trunk.has_room(s.limits.requests);
        let shared = self.shared.iter().rev().find(fits)?;
        Some(Connection::H2(Box::new(shared.trunk.stream(reused))))
    }
}

/// A connection to `target` that no earlier exchange has used. Exchanges that come while a trunk is
/// being dialled wait for it instead of dialling more.
///
/// # Errors
/// As [`dial`].
pub async fn connect(pools: &RefCell<Pools>, target: &Target<'_>, now_ms: u64) -> Result<Connection, Fault> {
    let endpoint = target.endpoint;
    if !target.dial.is_shared() {
        let dialled = dial(&endpoint.addr, &target.dial).await?;
        return Ok(pools.borrow_mut().pool(endpoint).adopt(target, dialled, now_ms));
    }
    loop {
        // Not in the condition of the loop, where the borrow would last over the wait.
        let Some(opening) = pools.borrow_mut().pool(endpoint).opening() else { break };
        opening.told.notified().await;
        let stream = pools.borrow_mut().pool(endpoint).shared_stream(target, Reused::No);
        if let Some(stream) = stream {
            return Ok(stream);
        }
    }
    // Dropped on every way out, an abort included; then nobody waits for it any more.
    let opener = Opener(Rc::default());
    pools.borrow_mut().pool(endpoint).opening = Rc::downgrade(&opener.0);
    let dialled = dial(&endpoint.addr, &target.dial).await?;
    Ok(pools.borrow_mut().pool(endpoint).adopt(target, dialled, now_ms))
}

/// A trunk on its way.
#[derive(Debug, Default)]
struct Opening {
    /// It is there, or will not be.
    over: Cell<bool>,
    told: Notify,
}

/// Whoever dials a trunk; tells those who wait for it, whatever became of it.
struct Opener(Rc<Opening>);

impl Drop for Opener {
    fn drop(&mut self) {
        self.0.over.set(true);
        self.0.told.notify_waiters();
    }
}
