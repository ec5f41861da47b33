//! The environment of a hook, besides the exchange.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use sigma_schema::cidr::CidrSet;

use crate::Consumers;
use crate::inheritance::{Inheritable, InheritedState};
use crate::outbound::{Nowhere, Outbound};
use crate::random::Random;
use crate::resident::OwnLogs;
use crate::system::{Host, System};

/// The environment of one call of a hook.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// State of the whole gateway.
    pub node: &'a Arc<Node>,
    /// State of this worker alone.
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
    pub machine: &'a dyn System,
    /// Milliseconds since the worker started, coarse: for timeouts and windows, not for logs.
    pub now_ms: u64,
}

impl<'a> Env<'a> {
    /// Time since 1970 by the machine's clock.
    pub fn unix_time(&self) -> Duration {
        self.machine.now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// Returns an environment without outbound calls, at time 0.
    pub fn new(node: &'a Arc<Node>, local: &'a Rc<Local>, consumers: &'a Consumers) -> Env<'a> {
        let (outbound, machine) = (&Nowhere, &Host);
        Env { node, local, outbound, consumers, https_port: None, trusted: None, machine, now_ms: 0 }
    }
}

/// State that all workers of this gateway share, for plugins.
#[derive(Default)]
pub struct Node {
    /// Shared parts of plugins, one of each type.
    parts: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    background: OnceLock<Box<Background>>,
    /// The setting `plugin_attr`: settings of plugins for the whole process.
    attributes: OnceLock<Value>,
    hostname: OnceLock<String>,
    /// The number of requests by operators to reopen log files.
    log_generation: AtomicU64,
    /// Log lines that plugins lost.
    lost_lines: Arc<AtomicU64>,
    own_logs: Mutex<OwnLogs>,
    reopening: OnceLock<Box<Reopening>>,
    /// Work before the process ends.
    endings: Mutex<Vec<Work>>,
    inherited: InheritedState,
}

/// Background work.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs work in the background.
type Background = dyn Fn(Work) + Send + Sync;

/// Reopens all logs of the process.
type Reopening = dyn Fn() + Send + Sync;

impl Node {
    /// Returns a node whose background work runs on `background`.
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

    /// Returns another node of this gateway, with its own parts and background work on `background`. Its lost lines
    /// are counted here.
    pub fn beside(&self, background: impl Fn(Work) + Send + Sync + 'static) -> Node {
        let attributes = self.attributes.get().cloned().unwrap_or_default();
        let node = Node::new(background, attributes, self.hostname().to_owned());
        Node { lost_lines: Arc::clone(&self.lost_lines), ..node }
    }

    /// Returns the part of type `T`; the first call makes it. For instances to keep, not for each request: it takes a
    /// lock.
    pub fn part<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        // After a panic under the lock the map lacks the part, as before.
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let part = parts.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(make()));
        let found = Arc::clone(part).downcast::<T>();
        // The key is the type, so the part is of it.
        found.unwrap_or_else(|_| unreachable!("a part is stored under its own type"))
    }

    /// Works as [`Node::part`], for a part that is passed from the previous process to this one, and on to the next.
    pub fn inherited<T: Inheritable>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut is_new = false;
        let part = self.part(|| {
            is_new = true;
            make()
        });
        if is_new {
            self.inherited.pass(&part);
        }
        part
    }

    /// Sets the state from the previous process, by the names of parts. The control plane calls it before there are
    /// parts.
    pub fn find_inherited(&self, left: BTreeMap<String, Value>) {
        self.inherited.find(left);
    }

    /// Returns the state for the next process.
    pub fn inheritance(&self) -> BTreeMap<String, Value> {
        self.inherited.leave()
    }

    /// Runs a future in the background, on the control thread's runtime. It does nothing in tools that only check a
    /// configuration.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(background) = self.background.get() {
            background(Box::pin(work));
        }
    }

    /// Returns the `plugin_attr` of a plugin; `null` if missing.
    pub fn attribute(&self, plugin: &str) -> &Value {
        self.attributes.get().and_then(|all| all.get(plugin)).unwrap_or(&Value::Null)
    }

    /// Returns the setting `plugin_attr` as a whole; `null` if missing.
    pub fn attributes(&self) -> &Value {
        self.attributes.get().unwrap_or(&Value::Null)
    }

    /// Requests that plugins reopen their log files, because the files were renamed.
    pub fn reopen_logs(&self) {
        self.log_generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a number that grows with each request to reopen log files.
    pub fn log_generation(&self) -> u64 {
        self.log_generation.load(Ordering::Relaxed)
    }

    /// Returns the logs that the process writes itself.
    pub fn own_logs(&self) -> OwnLogs {
        self.own_logs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the logs that the process writes itself.
    pub fn set_own_logs(&self, logs: OwnLogs) {
        *self.own_logs.lock().unwrap_or_else(PoisonError::into_inner) = logs;
    }

    /// Makes the process reopen all its logs, because a plugin renamed some. It does not wait for that.
    pub fn reopen_own_logs(&self) {
        if let Some(reopening) = self.reopening.get() {
            reopening();
        }
    }

    /// Sets the function that reopens logs; for the control plane, once.
    pub fn set_reopening(&self, reopening: impl Fn() + Send + Sync + 'static) {
        self.reopening.get_or_init(|| Box::new(reopening));
    }

    /// Counts log lines that were dropped or could not be written.
    pub fn lose_lines(&self, lines: u64) {
        self.lost_lines.fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the number of log lines that plugins have lost since the start.
    pub fn lost_lines(&self) -> u64 {
        self.lost_lines.load(Ordering::Relaxed)
    }

    /// Registers work for the end of the process, after the last exchange, such as a flush of buffers. It gets a few
    /// seconds.
    pub fn at_end(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.endings.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(work));
    }

    /// Runs the work of [`Node::at_end`], in order. For the control plane, once.
    pub async fn end(&self) {
        let endings = std::mem::take(&mut *self.endings.lock().unwrap_or_else(PoisonError::into_inner));
        for work in endings {
            work.await;
        }
    }

    /// Returns the name of this machine.
    pub fn hostname(&self) -> &str {
        self.hostname.get().map_or("", String::as_str)
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("hostname", &self.hostname()).finish_non_exhaustive()
    }
}

/// State of one worker, for plugins; it never leaves its thread.
#[derive(Default)]
pub struct Local {
    worker: usize,
    /// The number of workers; 0 if it is the only one.
    workers: usize,
    /// So few that a scan costs less than a hash.
    parts: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
    random: Random,
    is_ending: Cell<bool>,
    /// Wait for the end; one for each plugin that asks.
    wakers: RefCell<Vec<Waker>>,
    /// Background work in this thread.
    works: Cell<usize>,
}

/// Background work of a plugin in a worker's thread; the worker's end waits for it for a moment.
pub struct LocalWork(Rc<Local>);

impl Drop for LocalWork {
    fn drop(&mut self) {
        self.0.works.set(self.0.works.get().saturating_sub(1));
    }
}

impl Local {
    /// Returns the state of the worker with this number, from 0. `seed` starts its random bits.
    pub fn new(worker: usize, seed: u64) -> Local {
        Local { worker, random: Random::new(seed | 1), ..Local::default() }
    }

    /// Sets the number of workers.
    #[must_use]
    pub fn among(self, workers: usize) -> Local {
        Local { workers, ..self }
    }

    /// Returns the worker's number, from 0.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers.max(1)
    }

    /// Returns the part of type `T`; the first call makes it.
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

    /// Counts background work, until the value is dropped.
    pub fn begin_work(self: &Rc<Local>) -> LocalWork {
        self.works.set(self.works.get() + 1);
        LocalWork(Rc::clone(self))
    }

    /// Returns true while there is background work.
    pub fn has_work(&self) -> bool {
        self.works.get() > 0
    }

    /// Reports the end of the worker to background work, which then finishes soon. For the worker.
    pub fn end(&self) {
        self.is_ending.set(true);
        self.wakers.take().into_iter().for_each(Waker::wake);
    }

    /// Returns true once the worker ends.
    pub fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// Ready once the worker ends. For one task of each plugin: wakers stay until then.
    pub fn poll_ending(&self, cx: &mut task::Context<'_>) -> Poll<()> {
        if self.is_ending() {
            return Poll::Ready(());
        }
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Returns pseudo-random bits, for shares and samples; not for secrets.
    pub fn random(&self) -> u64 {
        self.random.bits()
    }
}
