//! What one worker thread owns. Nothing here is shared: cells, not locks.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use sigma_observe::counters::{Counter, WorkerCounters};
use sigma_observe::date::Clock;
use sigma_observe::log_buffer::LogSink;
use sigma_upstream::balance::Balancer;
use sigma_upstream::health::HealthReporter;
use sigma_upstream::pool::Pools;
use tokio::sync::Notify;

use crate::exchange::Scratch;
use crate::snapshot::Snapshot;

/// Scratch memory kept for reuse; one is in use per exchange in flight.
const SCRATCH_KEPT: usize = 256;

/// One generation of configuration as one worker sees it.
pub(crate) struct View {
    pub(crate) snapshot: Arc<Snapshot>,
    /// By upstream number; made when the upstream is first used.
    balancers: Vec<OnceCell<Rc<RefCell<Balancer>>>>,
}

impl View {
    /// Takes over the balancers of upstreams that stay.
    fn new(snapshot: Arc<Snapshot>, previous: Option<&View>) -> View {
        let balancers: Vec<OnceCell<_>> = snapshot.upstreams.iter().map(|_| OnceCell::new()).collect();
        for (number, balancer) in previous.iter().flat_map(|p| p.live_balancers()) {
            let Some(old) = previous.map(|p| &p.snapshot.upstreams[number]) else { continue };
            let Some(&number) = snapshot.upstream_numbers.get(&old.key) else { continue };
            let new = &snapshot.upstreams[number as usize];
            if !Arc::ptr_eq(old, new) {
                if old.balance != new.balance {
                    continue;
                }
                balancer.borrow_mut().follow(Arc::clone(&new.cell));
            }
            // The cell is fresh: setting cannot fail.
            let _ = balancers[number as usize].set(balancer);
        }
        View { snapshot, balancers }
    }

    fn live_balancers(&self) -> impl Iterator<Item = (usize, Rc<RefCell<Balancer>>)> {
        self.balancers.iter().enumerate().filter_map(|(n, cell)| Some((n, Rc::clone(cell.get()?))))
    }

    /// The balancer of an upstream.
    pub(crate) fn balancer(&self, number: u32, seed: u64) -> &Rc<RefCell<Balancer>> {
        let upstream = &self.snapshot.upstreams[number as usize];
        self.balancers[number as usize].get_or_init(|| {
            Rc::new(RefCell::new(Balancer::new(upstream.balance, Arc::clone(&upstream.cell), seed)))
        })
    }
}

fn set_buffer_size(snapshot: &Snapshot) {
    sigma_http::chunk::set_size(snapshot.settings.limits.exchange_buffer_bytes as usize);
}

/// State of one worker thread.
pub(crate) struct Worker {
    view: RefCell<Rc<View>>,
    pub(crate) pools: RefCell<Pools>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) clock: RefCell<Clock>,
    pub(crate) log: RefCell<Option<LogSink>>,
    pub(crate) health: HealthReporter,
    /// Boxed, so that taking one moves a pointer and not the heads themselves.
    #[expect(clippy::vec_box)]
    scratch: RefCell<Vec<Box<Scratch>>>,
    random: Cell<u64>,
    draining: Cell<bool>,
    connections: Cell<u32>,
    connection_numbers: Cell<u64>,
    /// A connection ended: accepting may go on, draining may be over.
    pub(crate) released: Notify,
}

impl Worker {
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        counters: Arc<WorkerCounters>,
        log: Option<LogSink>,
        health: HealthReporter,
        seed: u64,
    ) -> Worker {
        set_buffer_size(&snapshot);
        Worker {
            view: RefCell::new(Rc::new(View::new(snapshot, None))),
            pools: RefCell::default(),
            counters,
            clock: RefCell::new(Clock::new(0)),
            log: RefCell::new(log),
            health,
            scratch: RefCell::default(),
            // xorshift must not start at 0.
            random: Cell::new(seed | 1),
            draining: Cell::new(false),
            connections: Cell::new(0),
            connection_numbers: Cell::new(0),
            released: Notify::new(),
        }
    }

    /// The configuration in force.
    pub(crate) fn view(&self) -> Rc<View> {
        Rc::clone(&self.view.borrow())
    }

    /// Puts another configuration in force for requests that begin from now on.
    pub(crate) fn publish(&self, snapshot: Arc<Snapshot>) {
        set_buffer_size(&snapshot);
        let view = Rc::new(View::new(snapshot, Some(&self.view())));
        self.view.replace(view);
    }

    pub(crate) fn take_scratch(&self) -> Box<Scratch> {
        self.scratch.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give_scratch(&self, scratch: Box<Scratch>) {
        let mut kept = self.scratch.borrow_mut();
        if kept.len() < SCRATCH_KEPT {
            kept.push(scratch);
        }
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

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    pub(crate) fn drain(&self) {
        self.draining.set(true);
    }

    pub(crate) fn connections(&self) -> u32 {
        self.connections.get()
    }

    /// Counts a connection in; returns its number.
    pub(crate) fn enter(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        self.counters.add(Counter::ConnectionsAccepted, 1);
        self.counters.add(Counter::ConnectionsActive, 1);
        self.connection_numbers.set(self.connection_numbers.get() + 1);
        self.connection_numbers.get()
    }

    pub(crate) fn leave(&self) {
        self.connections.set(self.connections.get() - 1);
        self.counters.lower(Counter::ConnectionsActive, 1);
        self.released.notify_waiters();
    }

    /// To be called once per tick of the worker's clock.
    pub(crate) fn tick(&self) {
        let mut clock = self.clock.borrow_mut();
        clock.set_system(std::time::SystemTime::now());
    }
}
