//! What a hook may use besides the exchange.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use sigma_config::cidr::CidrSet;

use crate::Consumers;
use crate::legacy::{Legacies, Legacy};
use crate::machine::{Host, Machine};
use crate::outbound::{Nowhere, Outbound};
use crate::resident::OwnLogs;

/// The world around one call of a hook.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// What the whole gateway shares.
    pub node: &'a Arc<Node>,
    /// What belongs to this worker alone.
    pub local: &'a Rc<Local>,
    /// Calls to other services.
    pub outbound: &'a dyn Outbound,
    /// The consumers of the configuration in force.
    pub consumers: &'a Consumers,
    /// The smallest port of the listeners with TLS, if there is one.
    pub https_port: Option<u16>,
    /// The setting `trusted_addresses`.
    pub trusted: Option<&'a CidrSet>,
    /// The time of day and unpredictable bytes.
    pub machine: &'a dyn Machine,
    /// Milliseconds since the worker started, coarse: for timeouts and windows, not for logs.
    pub now_ms: u64,
}

impl<'a> Env<'a> {
    /// Time since 1970 by the machine's clock.
    pub fn unix_time(&self) -> Duration {
        self.machine.now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// One from which nothing can be called, at the beginning of time.
    pub fn new(node: &'a Arc<Node>, local: &'a Rc<Local>, consumers: &'a Consumers) -> Env<'a> {
        let (outbound, machine) = (&Nowhere, &Host);
        Env { node, local, outbound, consumers, https_port: None, trusted: None, machine, now_ms: 0 }
    }
}

/// What all workers of this gateway share, for plugins.
#[derive(Default)]
pub struct Node {
    /// Parts that plugins keep for the whole gateway, one of each type.
    parts: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    background: OnceLock<Box<Background>>,
    /// The setting `plugin_attr`: what a plugin is told once for the whole process.
    attributes: OnceLock<Value>,
    hostname: OnceLock<String>,
    /// How often operators asked for log files to be opened anew.
    log_generation: AtomicU64,
    /// Lines of logs that plugins could not keep.
    lost_lines: Arc<AtomicU64>,
    own_logs: Mutex<OwnLogs>,
    reopening: OnceLock<Box<Reopening>>,
    /// What is to be finished before the process ends.
    endings: Mutex<Vec<Work>>,
    legacies: Legacies,
}

/// Work that goes on beside the traffic.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes work and sees to it that it goes on.
type Background = dyn Fn(Work) + Send + Sync;

/// Has all logs of the process opened anew.
type Reopening = dyn Fn() + Send + Sync;

impl Node {
    /// A node whose background work runs on `background`.
    pub fn new(
        background: impl Fn(Work) + Send + Sync + 'static,
        attributes: Value,
        hostname: String,
    ) -> Node {
        let node = Node::default();
        // All three are new, so setting them cannot fail.
        crate::variables::set_hostname(&hostname);
        let _ = node.background.set(Box::new(background));
        let _ = node.attributes.set(attributes);
        let _ = node.hostname.set(hostname);
        node
    }

    /// Another node of this gateway, with parts of its own, whose background work runs on `background`. What it loses
    /// is counted here.
    pub fn beside(&self, background: impl Fn(Work) + Send + Sync + 'static) -> Node {
        let attributes = self.attributes.get().cloned().unwrap_or_default();
        let node = Node::new(background, attributes, self.hostname().to_owned());
        Node { lost_lines: Arc::clone(&self.lost_lines), ..node }
    }

    /// The one part of type `T`, made when first asked for. For instances to keep, not to be
    /// called per request: it takes a lock.
    pub fn part<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        // A panic while the lock was held leaves a map without the part, which is as good as before.
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let part = parts.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(make()));
        let found = Arc::clone(part).downcast::<T>();
        // The key is the type, so the part is of it.
        found.unwrap_or_else(|_| unreachable!("a part is stored under its own type"))
    }

    /// As [`Node::part`], of one that begins as the process before this one has left it, and that the next one will
    /// begin with.
    pub fn legacy<T: Legacy>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut is_new = false;
        let part = self.part(|| {
            is_new = true;
            make()
        });
        if is_new {
            self.legacies.pass(&part);
        }
        part
    }

    /// What the process before this one has left, by the names of parts. For the control plane, before there are any.
    pub fn find_legacies(&self, left: BTreeMap<String, Value>) {
        self.legacies.find(left);
    }

    /// What a process that takes the place of this one begins with.
    pub fn legacies(&self) -> BTreeMap<String, Value> {
        self.legacies.leave()
    }

    /// Runs something beside the traffic, on the control thread's runtime. Nothing runs in tools
    /// that only check a configuration.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(background) = self.background.get() {
            background(Box::pin(work));
        }
    }

    /// What `plugin_attr` says for a plugin; `null` if nothing.
    pub fn attribute(&self, plugin: &str) -> &Value {
        self.attributes.get().and_then(|all| all.get(plugin)).unwrap_or(&Value::Null)
    }

    /// Files that plugins write to are to be opened anew, because somebody renamed them.
    pub fn reopen_logs(&self) {
        self.log_generation.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that grows whenever log files are to be opened anew.
    pub fn log_generation(&self) -> u64 {
        self.log_generation.load(Ordering::Relaxed)
    }

    /// The logs that the process writes itself.
    pub fn own_logs(&self) -> OwnLogs {
        self.own_logs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells which they are now.
    pub fn set_own_logs(&self, logs: OwnLogs) {
        *self.own_logs.lock().unwrap_or_else(PoisonError::into_inner) = logs;
    }

    /// Has the process open all its logs anew, because a plugin renamed some. Does not wait for it.
    pub fn reopen_own_logs(&self) {
        if let Some(reopening) = self.reopening.get() {
            reopening();
        }
    }

    /// How that is done; for the control plane, once.
    pub fn set_reopening(&self, reopening: impl Fn() + Send + Sync + 'static) {
        self.reopening.get_or_init(|| Box::new(reopening));
    }

    /// Counts lines of a log that were dropped or could not be written.
    pub fn lose_lines(&self, lines: u64) {
        self.lost_lines.fetch_add(lines, Ordering::Relaxed);
    }

    /// How many lines plugins have lost since the start.
    pub fn lost_lines(&self) -> u64 {
        self.lost_lines.load(Ordering::Relaxed)
    }

    /// Has something finished before the process ends, after the last exchange: what is still
    /// buffered, for instance. It gets a few seconds.
    pub fn at_end(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.endings.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(work));
    }

    /// Runs what [`Node::at_end`] was given, in order. For the control plane, once.
    pub async fn end(&self) {
        let endings = std::mem::take(&mut *self.endings.lock().unwrap_or_else(PoisonError::into_inner));
        for work in endings {
            work.await;
        }
    }

    /// The name of this machine.
    pub fn hostname(&self) -> &str {
        self.hostname.get().map_or("", String::as_str)
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("hostname", &self.hostname()).finish_non_exhaustive()
    }
}

/// What belongs to one worker, for plugins; never leaves its thread.
#[derive(Default)]
pub struct Local {
    worker: usize,
    /// So few that a look at each costs less than a hash.
    parts: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
    random: Cell<u64>,
}

impl Local {
    /// That of the worker with this number, from 0. `seed` starts its random bits.
    pub fn new(worker: usize, seed: u64) -> Local {
        // xorshift must not start at 0.
        Local { worker, parts: RefCell::default(), random: Cell::new(seed | 1) }
    }

    /// The worker's number, from 0.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// The one part of type `T`, made when first asked for.
    pub fn part<T: Any>(&self, make: impl FnOnce() -> T) -> Rc<T> {
        let of = TypeId::of::<T>();
        let known =
            self.parts.borrow().iter().find(|(known, _)| *known == of).map(|(_, part)| Rc::clone(part));
        let part = known.unwrap_or_else(|| {
            let made: Rc<dyn Any> = Rc::new(make());
            self.parts.borrow_mut().push((of, Rc::clone(&made)));
            made
        });
        // The key is the type, so the part is of it.
        part.downcast::<T>().unwrap_or_else(|_| unreachable!("a part is stored under its own type"))
    }

    /// Pseudo-random bits (xorshift64*), for shares and samples; not for secrets.
    pub fn random(&self) -> u64 {
        let mut x = self.random.get() | 1;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
