//! The state that one worker thread owns. Nothing here is shared: cells, not locks.

mod budget;
pub(crate) mod caches;
pub(crate) mod drain;
pub mod gateway;
pub(crate) mod heartbeat;
pub mod inheritance;
pub(crate) mod pressure;
mod scratch_pool;
mod steering;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use sigma_config::resources::PriorityClass;
use sigma_http::{Fault, FaultKind};
use sigma_net::deadline;
use sigma_net::tls::Handshakes;
use sigma_observe::counters::{Counter, WorkerCounters};
use sigma_observe::date::Clock;
use sigma_observe::log_buffer::LogSink;
use sigma_plugin::geography::Geography;
use sigma_plugin::record::Interest;
use sigma_plugin::system::Host;
use sigma_plugin::variables::tick;
use sigma_plugin::{Chain, Consumer, Env, Local, Node};
use sigma_upstream::balance::Balancer;
use sigma_upstream::health::HealthReporter;
use sigma_upstream::pool::{self, InUse, Pools};
use sigma_wire::HeadLimits;
use sigma_wire::h1::ServerLimits;
use tokio::sync::Notify;

use crate::attempt::guards::{Guards, OwnGuards};
use crate::attempt::outbound::Calls;
use crate::attempt::retry::{Load, Recent};
use crate::edge::addresses::Addresses;
use crate::edge::connection::{Origin, answer_limits, server_limits};
use crate::edge::datagrams::Datagrams;
use crate::edge::quic_state::QuicPorts;
use crate::exchange::{OwnName, Scratch};
use crate::observe::live::{Live, LiveReporter};
use crate::observe::tap::{TapOrders, Taps};
use crate::snapshot::{ChosenNodes, Snapshot, Upstream};
use crate::worker::budget::Budget;
use crate::worker::caches::Caches;
use crate::worker::drain::Drain;
use crate::worker::pressure::{Pressure, Strain, is_refused};
use crate::worker::scratch_pool::ScratchPool;

/// Chains merged with consumers' plugins that one generation keeps.
const MERGED_KEPT: usize = 10_000;

/// One generation of configuration as one worker sees it.
pub(crate) struct View {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The limits of connections that are accepted now.
    pub(crate) server_limits: Rc<ServerLimits>,
    /// The limits of heads that nodes send.
    pub(crate) answer_limits: HeadLimits,
    /// Where addresses are. A copy of this worker's own: exchanges count theirs of it.
    pub(crate) geography: Option<Rc<Geography>>,
    /// The facts that are queried of exchanges on all routes: by plugins of all routes, and by the access log.
    pub(crate) interest: Interest,
    /// Routes' chains with the plugins of consumers, made when the two first meet.
    merged: RefCell<HashMap<(usize, usize), Rc<Chain>>>,
}

impl View {
    fn new(snapshot: Arc<Snapshot>) -> View {
        let server_limits = Rc::new(server_limits(&snapshot.settings));
        let answer_limits = answer_limits(&snapshot.settings);
        let geography = snapshot.geography.clone().map(Rc::new);
        let mut interest = snapshot.global.interest();
        if snapshot.settings.server_timing {
            interest = interest.and(Interest::ALWAYS);
        }
        if snapshot.access_format.is_some() {
            interest = interest.and(Interest::LINES);
        }
        View { snapshot, server_limits, answer_limits, geography, interest, merged: RefCell::default() }
    }

    /// A route's chain together with the plugins of a consumer.
    pub(crate) fn merged_chain(&self, route: &Chain, consumer: &Arc<Consumer>) -> Rc<Chain> {
        // Both belong to this generation and live as long as it does, so their places name them.
        let key = (std::ptr::from_ref(route).addr(), Arc::as_ptr(consumer).addr());
        let mut merged = self.merged.borrow_mut();
        if merged.len() >= MERGED_KEPT {
            merged.clear();
        }
        let make = || Rc::new(route.overridden_by(&consumer.entries));
        Rc::clone(merged.entry(key).or_insert_with(make))
    }
}

/// Per-worker state of an upstream.
pub(crate) struct UpstreamState {
    pub(crate) balancer: RefCell<Balancer>,
    pub(crate) load: Load,
    pub(crate) recent: RefCell<Recent>,
    /// Made when they are first asked; of the upstream that is followed.
    guards: RefCell<Option<Rc<OwnGuards>>>,
    /// The nodes that clients have chosen, for an upstream of original destinations.
    pub(crate) chosen: RefCell<ChosenNodes>,
}

impl UpstreamState {
    /// This worker's part of the upstream's guards.
    pub(crate) fn own_guards(&self, guards: &Guards) -> Rc<OwnGuards> {
        let make = || Rc::new(OwnGuards::new(guards, None));
        Rc::clone(self.guards.borrow_mut().get_or_insert_with(make))
    }

    /// Another compilation of the upstream has these guards.
    fn follow_guards(&self, before: Option<&Guards>, guards: Option<&Guards>) {
        let own = self.guards.take();
        let known = before.zip(own.as_deref());
        self.guards.replace(guards.map(|guards| Rc::new(OwnGuards::new(guards, known))));
    }
}

/// The same, with the upstream that it follows.
struct Following {
    upstream: Arc<Upstream>,
    upstream_state: Rc<UpstreamState>,
}

impl Following {
    /// Takes over another compilation of the same upstream; false if `upstream` is not that.
    fn follow(&mut self, upstream: &Arc<Upstream>) -> bool {
        if Arc::ptr_eq(&self.upstream, upstream) {
            return true;
        }
        if self.upstream.key != upstream.key
            || self.upstream.selection.balancing != upstream.selection.balancing
        {
            return false;
        }
        self.upstream_state.balancer.borrow_mut().follow(Arc::clone(&upstream.cell));
        self.upstream_state.follow_guards(self.upstream.guards.as_deref(), upstream.guards.as_deref());
        self.upstream = Arc::clone(upstream);
        true
    }
}

fn set_buffer_size(snapshot: &Snapshot) {
    sigma_buffer::chunk::set_size(snapshot.settings.limits.exchange_buffer_bytes as usize);
}

fn handshakes_max(snapshot: &Snapshot) -> usize {
    snapshot.settings.tls.handshakes_per_worker as usize
}

/// State of one worker thread.
pub(crate) struct Worker {
    view: RefCell<Rc<View>>,
    /// By upstream number; made when the upstream is first used.
    upstreams: RefCell<Vec<Option<Following>>>,
    /// The data of plugins that all workers share, and the data of this worker alone.
    pub(crate) node: Arc<Node>,
    pub(crate) local: Rc<Local>,
    pub(crate) calls: Calls,
    pub(crate) caches: Caches,
    /// The name of this process in fields that detect loops.
    pub(crate) own_name: Arc<OwnName>,
    /// How many connections each address has, over all workers.
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) pools: RefCell<Pools>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) clock: RefCell<Clock>,
    pub(crate) log: RefCell<Option<LogSink>>,
    pub(crate) health: HealthReporter,
    scratch: ScratchPool<Scratch>,
    pub(crate) strain: Strain,
    budget: Budget,
    random: Cell<u64>,
    pub(crate) drain: Drain,
    connections: Cell<u32>,
    /// The addresses where it has HTTP/3.
    pub(crate) quic_ports: QuicPorts,
    /// The state that sessions over UDP share.
    pub(crate) datagrams: Datagrams,
    /// Bounds the TLS handshakes under way.
    handshakes: RefCell<Rc<Handshakes>>,
    connection_numbers: Cell<u64>,
    /// The figures of requests, while an operator watches.
    pub(crate) live: Live,
    /// The open taps of operators.
    pub(crate) taps: Taps,
    /// An operator watches in one of these two ways.
    is_watched: Cell<bool>,
    /// A connection ended: accepting may continue, draining may be over.
    pub(crate) released: Notify,
}

/// The parts that a worker gets from the gateway.
pub(crate) struct WorkerParts {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) log: Option<LogSink>,
    pub(crate) health: HealthReporter,
    /// The data of plugins that all workers share.
    pub(crate) node: Arc<Node>,
    /// The data of plugins on this worker alone.
    pub(crate) local: Local,
    pub(crate) live: LiveReporter,
    pub(crate) taps: TapOrders,
    /// Begins its random numbers.
    pub(crate) seed: u64,
}

/// A connection that is counted until its task ends, with a panic too.
pub(crate) struct Entered(pub(crate) Rc<Worker>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Worker {
    pub(crate) fn new(parts: WorkerParts) -> Rc<Worker> {
        let WorkerParts { snapshot, counters, log, health, node, local, live, taps, seed } = parts;
        set_buffer_size(&snapshot);
        counters.set_revision(snapshot.revision);
        let handshakes = Handshakes::new(handshakes_max(&snapshot));
        Rc::new_cyclic(|own| Worker {
            calls: Calls::new(Weak::clone(own)),
            handshakes: RefCell::new(Rc::new(handshakes)),
            view: RefCell::new(Rc::new(View::new(snapshot))),
            upstreams: RefCell::default(),
            own_name: node.part(OwnName::default),
            addresses: node.part(Addresses::default),
            strain: Strain::new(node.part(Pressure::default)),
            budget: Budget::default(),
            caches: Caches::new(&node),
            node,
            local: Rc::new(local),
            pools: RefCell::new(Pools::new(Arc::clone(&counters))),
            counters,
            clock: RefCell::new(Clock::new(0)),
            log: RefCell::new(log),
            health,
            scratch: ScratchPool::default(),
            // xorshift must not start at 0.
            random: Cell::new(seed | 1),
            drain: Drain::default(),
            connections: Cell::new(0),
            datagrams: Datagrams::default(),
            quic_ports: QuicPorts::default(),
            connection_numbers: Cell::new(0),
            live: Live::new(live),
            taps: Taps::new(taps),
            is_watched: Cell::new(false),
            released: Notify::new(),
        })
    }

    /// Returns the current configuration.
    pub(crate) fn view(&self) -> Rc<View> {
        Rc::clone(&self.view.borrow())
    }

    /// Activates another configuration for requests that begin from now on.
    pub(crate) fn publish(&self, snapshot: Arc<Snapshot>) {
        set_buffer_size(&snapshot);
        self.counters.set_revision(snapshot.revision);
        let handshakes_max = handshakes_max(&snapshot);
        if handshakes_max != self::handshakes_max(&self.view().snapshot) {
            self.handshakes.replace(Rc::new(Handshakes::new(handshakes_max)));
        }
        self.view.replace(Rc::new(View::new(snapshot)));
    }

    /// Returns the bound on TLS handshakes of this worker.
    pub(crate) fn handshakes(&self) -> Rc<Handshakes> {
        Rc::clone(&self.handshakes.borrow())
    }

    /// Returns this worker's state of the upstream with this number. After a change of the configuration the new state takes over the known facts about its nodes.
    pub(crate) fn upstream_state(&self, number: u32, upstream: &Arc<Upstream>) -> Rc<UpstreamState> {
        let mut upstreams = self.upstreams.borrow_mut();
        let number = number as usize;
        if number >= upstreams.len() {
            upstreams.resize_with(number + 1, || None);
        }
        let slot = &mut upstreams[number];
        if let Some(known) = slot
            && known.follow(upstream)
        {
            return Rc::clone(&known.upstream_state);
        }
        let (rules, cell) = (upstream.selection.balancing.clone(), Arc::clone(&upstream.cell));
        let balancer = Balancer::new(rules, cell, self.random());
        let upstream_state = Rc::new(UpstreamState {
            balancer: RefCell::new(balancer),
            load: Load::default(),
            recent: RefCell::default(),
            guards: RefCell::default(),
            chosen: RefCell::default(),
        });
        *slot =
            Some(Following { upstream: Arc::clone(upstream), upstream_state: Rc::clone(&upstream_state) });
        upstream_state
    }

    /// Forgets balancers of removed upstreams, and updates the nodes of the others: without a request a balancer
    /// would keep removed nodes forever.
    pub(crate) fn sweep_balancers(&self) {
        let view = self.view();
        let mut upstreams = self.upstreams.borrow_mut();
        for (number, slot) in (0u32..).zip(upstreams.iter_mut()) {
            let Some(known) = slot else { continue };
            let current = view.snapshot.upstream(number);
            if current.is_some_and(|upstream| known.follow(upstream)) {
                known.upstream_state.balancer.borrow_mut().refresh(deadline::now_ms());
            } else {
                *slot = None;
            }
        }
    }

    pub(crate) fn take_scratch(&self) -> Box<Scratch> {
        self.scratch.take()
    }

    pub(crate) fn give_scratch(&self, mut scratch: Box<Scratch>) {
        scratch.let_go();
        self.scratch.give(scratch);
    }

    /// Frees memory of exchanges that was not used lately.
    pub(crate) fn sweep_scratch(&self) {
        self.scratch.sweep();
    }

    /// Pseudo-random bits for balancing (xorshift64*); not for secrets.
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns the environment for one call of a plugin's hook.
    pub(crate) fn env<'e>(&'e self, view: &'e View) -> Env<'e> {
        Env {
            node: &self.node,
            local: &self.local,
            outbound: &self.calls,
            consumers: &view.snapshot.consumers,
            machine: &Host,
            https_port: view.snapshot.https_port,
            trusted: Some(&view.snapshot.settings.trusted_addresses),
            now_ms: deadline::now_ms(),
        }
    }

    /// A kept connection for one request.
    pub(crate) fn checkout(&self, target: &pool::Target<'_>) -> Option<InUse> {
        let connection = self.pools.borrow().checkout(target, deadline::now_ms())?;
        self.counters.add(Counter::UpstreamReuses, 1);
        Some(connection)
    }

    /// Makes a new connection for one request, or returns a share of an existing one.
    ///
    /// # Errors
    /// Returns an error if the connection cannot be made.
    pub(crate) async fn connect(&self, target: &pool::Target<'_>) -> Result<InUse, Fault> {
        pool::connect(&self.pools, target, deadline::now_ms()).await
    }

    /// Returns true if an operator watches exchanges.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.get()
    }

    /// Returns the milliseconds until the greatest age of a connection; None without one.
    pub(crate) fn left_ms(&self, origin: &Origin) -> Option<u32> {
        let now = tick(self.clock.borrow().unix_ms());
        origin.left_ms(&self.view().snapshot.settings.timeouts, now)
    }

    /// Returns true if a connection has reached its age.
    pub(crate) fn is_past_age(&self, origin: &Origin) -> bool {
        self.left_ms(origin) == Some(0)
    }

    /// Returns true if each response must be its connection's last.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.has_begun()
    }

    /// Returns true if a connection without a request must end.
    pub(crate) fn is_closing(&self) -> bool {
        self.drain.closes_idle()
    }

    pub(crate) fn connections(&self) -> u32 {
        self.connections.get()
    }

    /// Counts a connection in; returns its number.
    pub(crate) fn enter(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        sigma_net::uring::note_connections(self.connections.get());
        self.counters.add(Counter::ConnectionsAccepted, 1);
        self.counters.add(Counter::ConnectionsActive, 1);
        self.next_connection()
    }

    /// Returns a number for something that counts as a connection in logs.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connection_numbers.set(self.connection_numbers.get() + 1);
        self.connection_numbers.get()
    }

    /// Returns true if anything is open that a stop waits for.
    pub(crate) fn is_busy(&self) -> bool {
        self.connections.get() > 0 || self.datagrams.admission.sessions() > 0
    }

    pub(crate) fn leave(&self) {
        self.connections.set(self.connections.get() - 1);
        sigma_net::uring::note_connections(self.connections.get());
        self.counters.lower(Counter::ConnectionsActive, 1);
        self.released.notify_waiters();
    }

    /// Admits a request, or rejects it because the worker is under pressure.
    ///
    /// # Errors
    /// Returns an error if it is rejected.
    pub(crate) fn let_in(&self, class: PriorityClass) -> Result<(), Fault> {
        let pressure = self.strain.felt();
        if pressure == 0 {
            return Ok(());
        }
        let view = self.view();
        let rules = &view.snapshot.settings.load_shedding;
        if !is_refused(class, pressure, rules, self.random()) {
            return Ok(());
        }
        self.counters.add(if rules.dry_run { Counter::RequestsShedDryRun } else { Counter::RequestsShed }, 1);
        match rules.dry_run {
            true => Ok(()),
            false => Err(Fault::new(
                FaultKind::GatewayOverloaded,
                "the gateway is short of resources and serves more important requests",
            )),
        }
    }

    /// Updates the wall-clock time.
    pub(crate) fn look_at_clock(&self) {
        self.clock.borrow_mut().set_system(sigma_net::wall_clock::now());
    }

    /// Does the regular work; call it once per tick of the worker's clock, which is late by so much.
    pub(crate) fn tick(&self, late_ms: u64) {
        self.live.tick();
        self.taps.tick();
        self.is_watched.set(self.live.is_watched() || self.taps.is_open());
        let view = self.view();
        let settings = &view.snapshot.settings;
        Budget::limit(&settings.limits, self.strain.process());
        self.budget.tick(&self.counters);
        self.look_at_clock();
        if self.strain.tick(deadline::now_ms(), late_ms, &settings.load_shedding) {
            let percent = self.strain.felt();
            tracing::warn!(percent, "the worker is under pressure: less important requests are rejected");
        }
    }
}
