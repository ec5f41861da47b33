//! Log entries collected and sent in batches, for all plugins that send logs.
//!
//! Workers hand over an entry and continue; everything else happens on the control thread's runtime. Entries that a
//! server does not accept in time are dropped and counted; no worker waits for them.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::{Build, Context, Env, Node, Session};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::log_entry::{Formats, Sink};
use crate::log_throttle::LogThrottle;

mod backlog;

use backlog::{Backlog, PENDING_BYTES};

/// The bounds on waiting entries.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Entries of the plugin, all configurations together.
    pub entries: u64,
    /// Bytes of the configuration's entries.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { entries: 8192, bytes: PENDING_BYTES }
    }
}

/// Batches of one configuration that are on their way at once. More would open a connection for each waiting batch,
/// to a server that is slow already.
const LANES: usize = 16;

/// The batching options of a plugin.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct BatchSettings {
    /// Name in the error log and in the metric `batch_process_entries`.
    name: String,
    /// Additional attempts after a failure.
    #[schemars(with = "u64", extend("default" = 0))]
    max_retry_count: u32,
    /// Seconds before each additional attempt.
    #[schemars(extend("default" = 1))]
    retry_delay: u64,
    /// Age of the oldest entry in seconds at which a batch is sent.
    #[schemars(range(min = 1), extend("default" = 60))]
    buffer_duration: u64,
    /// Seconds without a new entry after which a batch is sent.
    #[schemars(range(min = 1), extend("default" = 5))]
    inactive_timeout: u64,
    /// Number of entries at which a batch is sent.
    #[schemars(range(min = 1), extend("default" = 1000))]
    batch_max_size: usize,
}

/// Gives `name` of [`BatchSettings`] its default in the schema of a plugin.
pub fn named(name: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(field) = schema.pointer_mut("/properties/name") {
            field["default"] = name.into();
        }
    }
}

impl BatchSettings {
    /// Returns true if each entry is sent on its own.
    pub fn is_single(&self) -> bool {
        self.batch_max_size == 1
    }
}

/// How entries become batches, and how these are sent.
#[derive(Debug, Clone)]
pub struct Pace {
    /// In the error log and in the metric `batch_process_entries`.
    pub name: String,
    /// A batch is sent when it has this many entries.
    pub batch_max_size: usize,
    /// A batch is sent when no entry came for this long.
    pub inactive_timeout: Duration,
    /// A batch is sent when its oldest entry is this old.
    pub buffer_duration: Duration,
    /// Further attempts after a failure.
    pub max_retry_count: u32,
    /// The pause before each further attempt.
    pub retry_delay: Duration,
}

impl From<&BatchSettings> for Pace {
    fn from(settings: &BatchSettings) -> Pace {
        Pace {
            name: settings.name.clone(),
            batch_max_size: settings.batch_max_size,
            inactive_timeout: seconds(settings.inactive_timeout),
            buffer_duration: seconds(settings.buffer_duration),
            max_retry_count: settings.max_retry_count,
            retry_delay: seconds(settings.retry_delay),
        }
    }
}

/// The metadata of a batching logger.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
pub struct Metadata {
    /// The members of an entry, by kind of metadata.
    #[serde(flatten)]
    pub formats: Formats,
    /// Maximum entries that wait to be sent; more are dropped.
    #[schemars(range(min = 1))]
    pub max_pending_entries: u64,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata { formats: Formats::default(), max_pending_entries: Limits::default().entries }
    }
}

/// Returns so many seconds, or thirty years: no timer goes on for longer, and none may overflow its clock.
pub fn seconds(number: u64) -> Duration {
    const LONGEST: u64 = 1_000_000_000;
    Duration::from_secs(number.min(LONGEST))
}

/// The reason why a batch was not accepted.
#[derive(Debug)]
pub struct Refusal {
    /// The reason, for the error log.
    pub reason: String,
    /// Entries before this one were accepted all the same.
    pub taken: usize,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal { reason, taken: 0 }
    }
}

/// The future of a sent batch.
pub type Sending<'s> = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 's>>;

/// The destination of batches.
pub trait Destination: Send + Sync + 'static {
    /// Sends entries, each one a JSON text.
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s>;
}

/// The labels of the metric, from the request of the first entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchLabels {
    /// The configured name.
    pub name: String,
    /// The matched route; empty for a processor that a request without one began.
    pub route_id: String,
    /// The address that was connected to.
    pub server_addr: String,
}

/// The source of an entry, as far as [`BatchLabels`] show it.
pub struct Source<'e> {
    route: Option<&'e str>,
    server: Option<SocketAddr>,
}

impl<'e> From<&'e Context> for Source<'e> {
    fn from(ctx: &'e Context) -> Source<'e> {
        Source { route: ctx.route.as_ref().map(|route| &*route.id), server: ctx.client.local }
    }
}

impl<'e> From<&'e Session> for Source<'e> {
    fn from(session: &'e Session) -> Source<'e> {
        Source { route: Some(&session.route.id), server: session.client.local }
    }
}

/// Returns the processor for the configuration of `plugin` that is being built, with a bound on waiting entries.
pub fn processor<D: Destination>(
    build: &Build<'_>,
    plugin: &'static str,
    settings: &BatchSettings,
    max_pending_entries: u64,
    destination: impl FnOnce() -> D,
) -> Arc<Processor> {
    let limits = Limits { entries: max_pending_entries, ..Limits::default() };
    let make = || Arc::new(destination()) as Arc<dyn Destination>;
    Batches::processor(build.node, plugin, build.conf_hash(), settings, limits, make)
}

/// Returns a number that changes with the configuration that is being built, and with the plugin's metadata.
pub fn key_with_metadata(build: &Build<'_>) -> u64 {
    let metadata = Build::new(build.plugin, build.metadata, "", &Value::Null, build.node);
    build.conf_hash() ^ metadata.conf_hash()
}

/// All batching of this gateway; a part of the node.
#[derive(Default)]
pub struct Batches {
    processors: Mutex<HashMap<(&'static str, u64), Weak<Processor>>>,
    backlogs: Mutex<HashMap<&'static str, Arc<Backlog>>>,
    /// Registered to be flushed at the end.
    ending: OnceLock<()>,
}

impl Batches {
    /// Returns the processor for a configuration: instances with equal ones share it.
    ///
    /// `key` distinguishes configurations of `plugin`.
    pub fn processor(
        node: &Node,
        plugin: &'static str,
        key: u64,
        pace: impl Into<Pace>,
        limits: Limits,
        destination: impl FnOnce() -> Arc<dyn Destination>,
    ) -> Arc<Processor> {
        let all = node.part(Batches::default);
        let backlog = {
            let mut backlogs = all.backlogs.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(backlogs.entry(plugin).or_default())
        };
        let mut processors = all.processors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = processors.get(&(plugin, key)).and_then(Weak::upgrade) {
            known.max_pending.store(limits.entries, Ordering::Relaxed);
            return known;
        }
        processors.retain(|_, known| known.strong_count() > 0);
        let processor = Arc::new(Processor {
            pace: pace.into(),
            max_pending: AtomicU64::new(limits.entries),
            max_bytes: limits.bytes,
            held: Arc::default(),
            backlog,
            gauge: Arc::default(),
            hurried: Arc::default(),
            destination: destination(),
            queue: OnceLock::new(),
        });
        processors.insert((plugin, key), Arc::downgrade(&processor));
        processor
    }

    /// Returns the entries buffered now, for the metric.
    pub fn buffered(&self) -> Vec<(BatchLabels, usize)> {
        let processors = self.processors.lock().unwrap_or_else(PoisonError::into_inner);
        let started = processors.values().filter_map(Weak::upgrade).filter_map(|processor| {
            let queue = processor.queue.get()?;
            let labels = queue.labels.clone().filter(|_| processor.pace.batch_max_size > 1)?;
            Some((labels, processor.gauge.load(Ordering::Relaxed)))
        });
        started.collect()
    }
}

/// Sends all buffered entries, and waits until they are gone.
async fn flush_all(all: Weak<Batches>) {
    let Some(all) = all.upgrade() else { return };
    let processors: Vec<Arc<Processor>> = {
        let known = all.processors.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().filter_map(Weak::upgrade).collect()
    };
    let mut waiting = Vec::new();
    for queue in processors.iter().filter_map(|processor| processor.queue.get()) {
        let (reply, done) = oneshot::channel();
        if queue.sender.send(Message::Flush(reply)).is_ok() {
            waiting.push(done);
        }
    }
    for done in waiting {
        // An error means that the task has ended: nothing is left to send.
        let _ = done.await;
    }
}

/// The entries of the next batch. Workers add to them without waking the task: a wake-up for each entry would cost
/// more than the entry.
struct Buffer {
    entries: Vec<Vec<u8>>,
    /// When the oldest and the newest entry came.
    first: Instant,
    last: Instant,
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer { entries: Vec::new(), first: Instant::now(), last: Instant::now() }
    }
}

impl Buffer {
    /// Adds an entry. Returns a message for the task: the first entry starts its clocks, and the last one makes a batch.
    fn add(&mut self, entry: Vec<u8>, batch_max_size: usize) -> Option<Message> {
        self.last = Instant::now();
        if self.entries.is_empty() {
            self.first = self.last;
        }
        self.entries.push(entry);
        match self.entries.len() {
            length if length >= batch_max_size => Some(Message::Full(std::mem::take(&mut self.entries))),
            1 => Some(Message::Begun),
            _ => None,
        }
    }
}

/// A message to a processor's task.
enum Message {
    /// The buffer has its first entry.
    Begun,
    /// A batch with as many entries as it may have.
    Full(Vec<Vec<u8>>),
    /// Send the buffered entries now.
    Hurry,
    /// Send everything now, and report when it is gone.
    Flush(oneshot::Sender<()>),
}

struct Queue {
    sender: mpsc::UnboundedSender<Message>,
    buffer: Arc<Mutex<Buffer>>,
    labels: Option<BatchLabels>,
}

/// Batches of one configuration.
pub struct Processor {
    pace: Pace,
    max_pending: AtomicU64,
    max_bytes: usize,
    /// Bytes of the entries that wait or are being sent.
    held: Arc<AtomicUsize>,
    backlog: Arc<Backlog>,
    /// Entries buffered.
    gauge: Arc<AtomicUsize>,
    /// The buffered entries must be sent at once, and the task does not know it yet.
    hurried: Arc<AtomicBool>,
    destination: Arc<dyn Destination>,
    /// Begins with the first entry.
    queue: OnceLock<Queue>,
}

impl Processor {
    /// Adds an entry, or drops it. Never waits.
    pub fn push<'e>(&self, entry: Vec<u8>, source: impl Into<Source<'e>>, env: &Env<'_>) {
        self.offer(entry, source, env);
    }

    /// Adds an entry of the gateway itself.
    pub fn push_own(&self, entry: Vec<u8>, node: &Arc<Node>) {
        self.admit(entry, &Source { route: None, server: None }, node);
    }

    /// Adds an entry; returns true if there was room.
    pub fn offer<'e>(&self, entry: Vec<u8>, source: impl Into<Source<'e>>, env: &Env<'_>) -> bool {
        self.admit(entry, &source.into(), env.node)
    }

    fn admit(&self, entry: Vec<u8>, source: &Source<'_>, node: &Arc<Node>) -> bool {
        let fits = self.held.load(Ordering::Relaxed) + entry.len() <= self.max_bytes;
        if !self.backlog.admit(fits.then_some(entry.len()), self.max_pending.load(Ordering::Relaxed)) {
            node.lose_lines(1);
            return false;
        }
        let queue = self.queue.get_or_init(|| self.start(source, node));
        self.held.fetch_add(entry.len(), Ordering::Relaxed);
        self.gauge.fetch_add(1, Ordering::Relaxed);
        let message = locked(&queue.buffer).add(entry, self.pace.batch_max_size);
        if let Some(Err(mpsc::error::SendError(message))) = message.map(|message| queue.sender.send(message))
        {
            // The runtime is gone: the process ends.
            let entries = match message {
                Message::Full(entries) => entries,
                _ => std::mem::take(&mut locked(&queue.buffer).entries),
            };
            self.gauge.fetch_sub(entries.len(), Ordering::Relaxed);
            self.held.fetch_sub(entries.iter().map(Vec::len).sum(), Ordering::Relaxed);
            self.backlog.release(&entries);
        }
        true
    }

    /// Sends the buffered entries now, before their time.
    pub fn hurry(&self) {
        // At most once: the queue of messages is bounded as well.
        if let Some(queue) = self.queue.get()
            && !self.hurried.swap(true, Ordering::Relaxed)
        {
            // An error means that the process ends, and that it is sent anyway.
            let _ = queue.sender.send(Message::Hurry);
        }
    }

    fn start(&self, source: &Source<'_>, node: &Arc<Node>) -> Queue {
        let (sender, inbox) = mpsc::unbounded_channel();
        let buffer = Arc::<Mutex<Buffer>>::default();
        let labels = source.route.map(|route| BatchLabels {
            name: self.pace.name.clone(),
            route_id: route.to_owned(),
            server_addr: source.server.map_or_else(String::new, |addr| addr.ip().to_canonical().to_string()),
        });
        let task = Task {
            pace: self.pace.clone(),
            outgoing: Outgoing {
                name: self.pace.name.clone(),
                max_retry_count: self.pace.max_retry_count,
                retry_delay: self.pace.retry_delay,
                backlog: Arc::clone(&self.backlog),
                held: Arc::clone(&self.held),
                destination: Arc::clone(&self.destination),
                lanes: Arc::new(Semaphore::new(LANES)),
                node: Arc::clone(node),
                complaints: Arc::default(),
            },
            gauge: Arc::clone(&self.gauge),
            hurried: Arc::clone(&self.hurried),
            buffer: Arc::clone(&buffer),
            in_flight: tokio::task::JoinSet::new(),
        };
        node.spawn(task.run(inbox));
        let all = node.part(Batches::default);
        all.ending.get_or_init(|| node.at_end(flush_all(Arc::downgrade(&all))));
        Queue { sender, buffer, labels }
    }
}

/// The work of a processor.
struct Task {
    pace: Pace,
    outgoing: Outgoing,
    gauge: Arc<AtomicUsize>,
    hurried: Arc<AtomicBool>,
    buffer: Arc<Mutex<Buffer>>,
    in_flight: tokio::task::JoinSet<()>,
}

fn locked(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        loop {
            let due = self.due();
            tokio::select! {
                message = inbox.recv() => match message {
                    // The clocks are read again.
                    Some(Message::Begun) => {}
                    Some(Message::Full(entries)) => self.deliver(entries),
                    Some(Message::Hurry) => {
                        self.hurried.store(false, Ordering::Relaxed);
                        self.flush();
                    }
                    Some(Message::Flush(reply)) => {
                        self.flush();
                        while self.in_flight.join_next().await.is_some() {}
                        // The receiver may have stopped waiting.
                        let _ = reply.send(());
                    }
                    // The configuration is gone.
                    None => break,
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    // Entries may have come meanwhile.
                    if self.due().is_some_and(|due| due <= Instant::now()) {
                        self.flush();
                    }
                }
                // Sent batches leave nothing behind.
                Some(_) = self.in_flight.join_next() => {}
            }
        }
        self.flush();
        while self.in_flight.join_next().await.is_some() {}
    }

    /// When the buffered entries are to be sent, if there are any.
    fn due(&self) -> Option<Instant> {
        let buffer = locked(&self.buffer);
        let idle = buffer.last + self.pace.inactive_timeout;
        (!buffer.entries.is_empty()).then(|| idle.min(buffer.first + self.pace.buffer_duration))
    }

    fn flush(&mut self) {
        let entries = std::mem::take(&mut locked(&self.buffer).entries);
        if !entries.is_empty() {
            self.deliver(entries);
        }
    }

    fn deliver(&mut self, entries: Vec<Vec<u8>>) {
        self.gauge.fetch_sub(entries.len(), Ordering::Relaxed);
        self.in_flight.spawn(self.outgoing.clone().deliver(entries));
    }
}

/// The sending of a batch.
#[derive(Clone)]
struct Outgoing {
    name: String,
    max_retry_count: u32,
    retry_delay: Duration,
    backlog: Arc<Backlog>,
    held: Arc<AtomicUsize>,
    destination: Arc<dyn Destination>,
    /// One for each batch that is being sent.
    lanes: Arc<Semaphore>,
    /// Counts the lost entries.
    node: Arc<Node>,
    complaints: Arc<Complaints>,
}

/// Lines of the error log; a batch may be as small as a request.
#[derive(Default)]
struct Complaints {
    failed: LogThrottle,
    dropped: LogThrottle,
}

impl Outgoing {
    async fn send(&self, entries: &[Vec<u8>]) -> Result<(), Refusal> {
        // Never closed. Given back while a retry waits for its time.
        let _lane = self.lanes.acquire().await;
        self.destination.send(entries).await
    }

    async fn deliver(self, entries: Vec<Vec<u8>>) {
        let mut from = 0;
        for attempt in 0..=self.max_retry_count {
            if attempt > 0 {
                tokio::time::sleep(self.retry_delay).await;
            }
            match self.send(&entries[from..]).await {
                Ok(()) => break,
                Err(Refusal { reason, taken }) => {
                    self.report(&reason, taken, entries.len() - from);
                    from += taken.min(entries.len() - from);
                }
            }
            if attempt == self.max_retry_count {
                let dropped = entries.len() - from;
                self.node.lose_lines(dropped as u64);
                if let Some(left_out) = self.complaints.dropped.due() {
                    tracing::error!(
                        left_out,
                        dropped,
                        "Batch Processor[{}] exceeded the max_retry_count[{}] dropping the entries",
                        self.name,
                        self.max_retry_count
                    );
                }
            }
        }
        self.held.fetch_sub(entries.iter().map(Vec::len).sum(), Ordering::Relaxed);
        self.backlog.release(&entries);
    }

    fn report(&self, reason: &str, taken: usize, all: usize) {
        let Some(left_out) = self.complaints.failed.due() else { return };
        if taken > 0 {
            let first = taken + 1;
            tracing::error!(
                left_out,
                "Batch Processor[{}] failed to process entries [{first}/{all}]: {reason}",
                self.name
            );
        } else {
            tracing::error!(left_out, "Batch Processor[{}] failed to process entries: {reason}", self.name);
        }
    }
}

/// Entries that leave as they are, each a JSON text.
impl Sink for Arc<Processor> {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        self.push(Value::Object(entry).to_string().into_bytes(), ctx, env);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Case;

    /// A destination that accepts batches after a number of failures.
    #[derive(Default)]
    struct Memory {
        failures: AtomicUsize,
        /// How many entries of a failing batch it accepts.
        taken: usize,
        batches: Mutex<Vec<Vec<String>>>,
        arrived: tokio::sync::Notify,
    }

    impl Destination for Memory {
        fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
            Box::pin(async move {
                if self.failures.load(Ordering::Relaxed) > 0 {
                    self.failures.fetch_sub(1, Ordering::Relaxed);
                    return Err(Refusal { reason: "no".to_owned(), taken: self.taken });
                }
                let texts = entries.iter().map(|entry| String::from_utf8(entry.clone()).unwrap());
                self.batches.lock().unwrap().push(texts.collect());
                self.arrived.notify_one();
                Ok(())
            })
        }
    }

    /// Pushes `entries` and ends; checks the received batches and the number of dropped entries.
    fn check(
        settings: Value,
        failures: usize,
        taken: usize,
        pending: u64,
        entries: &[&str],
        expected: &[&[&str]],
    ) {
        let mut conf = json!({
            "name": "t", "batch_max_size": 1000, "inactive_timeout": 5, "buffer_duration": 60,
            "max_retry_count": 0, "retry_delay": 0
        });
        conf.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let settings: BatchSettings = serde_json::from_value(conf).unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let memory = Arc::new(Memory { failures: failures.into(), taken, ..Memory::default() });
        let limits = Limits { entries: pending, bytes: 3 };
        runtime.block_on(async {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.node = Arc::new(Node::new(
                crate::testing::spawning(&tokio::runtime::Handle::current()),
                Value::Null,
                String::new(),
            ));
            let destination = Arc::clone(&memory);
            let processor = Batches::processor(&case.node, "t", 1, &settings, limits, || destination);
            for entry in entries {
                let env = Env::new(&case.node, &case.local, &case.consumers);
                processor.push(entry.as_bytes().to_vec(), &case.ctx, &env);
            }
            case.node.end().await;
            assert_eq!(processor.gauge.load(Ordering::Relaxed), 0);
            assert_eq!(processor.held.load(Ordering::Relaxed), 0);
            let backlog = &processor.backlog;
            assert_eq!(backlog.bytes.load(Ordering::Relaxed), 0);
            assert_eq!(backlog.pushed.load(Ordering::Relaxed), backlog.processed.load(Ordering::Relaxed));
        });
        assert_eq!(*memory.batches.lock().unwrap(), expected);
    }

    #[test]
    fn batches_are_full_or_flushed_at_the_end() {
        check(json!({"batch_max_size": 2}), 0, 0, 10, &["a", "b", "c"], &[&["a", "b"], &["c"]]);
        check(json!({"batch_max_size": 1}), 0, 0, 10, &["a", "b"], &[&["a"], &["b"]]);
    }

    #[test]
    fn failures_are_retried_as_often_as_configured() {
        check(json!({"max_retry_count": 2}), 2, 0, 10, &["a", "b"], &[&["a", "b"]]);
        check(json!({"max_retry_count": 1}), 2, 0, 10, &["a", "b"], &[]);
        check(json!({"max_retry_count": 1}), 1, 1, 10, &["a", "b"], &[&["b"]]);
    }

    #[test]
    fn a_full_backlog_drops() {
        check(json!({}), 0, 0, 2, &["a", "b", "c"], &[&["a", "b"]]);
        // By the bound of one configuration.
        check(json!({}), 0, 0, 10, &["ab", "cd", "e", "f"], &[&["ab", "e"]]);
    }

    /// A destination that accepts nothing, and counts the batches being sent.
    #[derive(Default)]
    struct Stalled {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Destination for Stalled {
        fn send<'s>(&'s self, _entries: &'s [Vec<u8>]) -> Sending<'s> {
            Box::pin(async move {
                let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
                self.most.fetch_max(now, Ordering::Relaxed);
                let never = std::future::pending::<()>();
                let _ = tokio::time::timeout(Duration::from_secs(3), never).await;
                self.now.fetch_sub(1, Ordering::Relaxed);
                Err("no".to_owned().into())
            })
        }
    }

    #[test]
    fn a_stalled_server_is_not_flooded_and_losses_are_counted() {
        let settings: BatchSettings = serde_json::from_value(json!({
            "name": "t", "batch_max_size": 1, "inactive_timeout": 5, "buffer_duration": 60,
            "max_retry_count": 1, "retry_delay": 1
        }))
        .unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let stalled = Arc::new(Stalled::default());
        runtime.block_on(async {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            let spawning = crate::testing::spawning(&tokio::runtime::Handle::current());
            case.node = Arc::new(Node::new(spawning, Value::Null, String::new()));
            let destination = Arc::clone(&stalled);
            let processor = Batches::processor(
                &case.node,
                "t",
                1,
                &settings,
                Limits { entries: 100, ..Limits::default() },
                || destination,
            );
            let env = Env::new(&case.node, &case.local, &case.consumers);
            for _ in 0..110 {
                processor.push(b"a".to_vec(), &case.ctx, &env);
            }
            assert_eq!(case.node.lost_lines(), 10, "more than may wait");
            case.node.end().await;
            assert_eq!(case.node.lost_lines(), 110);
        });
        assert_eq!(stalled.most.load(Ordering::Relaxed), LANES);
    }

    #[test]
    fn times_may_have_any_length() {
        let forever =
            json!({"inactive_timeout": u64::MAX, "buffer_duration": u64::MAX, "retry_delay": u64::MAX});
        check(forever, 0, 0, 10, &["a"], &[&["a"]]);
    }

    /// Pushes an entry every so many seconds; returns how many have come when the first batch arrives, and after how
    /// many seconds that is.
    async fn first_batch(pause_s: u64, inactive_timeout: u64, buffer_duration: u64) -> (usize, u64) {
        let settings: BatchSettings = serde_json::from_value(json!({
            "name": "t", "batch_max_size": 1000, "inactive_timeout": inactive_timeout,
            "buffer_duration": buffer_duration, "max_retry_count": 0, "retry_delay": 0
        }))
        .unwrap();
        let memory = Arc::new(Memory::default());
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.node = Arc::new(Node::new(
            crate::testing::spawning(&tokio::runtime::Handle::current()),
            Value::Null,
            String::new(),
        ));
        let destination = Arc::clone(&memory);
        let processor = Batches::processor(
            &case.node,
            "t",
            1,
            &settings,
            Limits { entries: 10, ..Limits::default() },
            || destination,
        );
        let env = Env::new(&case.node, &case.local, &case.consumers);
        let began = Instant::now();
        let pushing = async {
            let mut clock = tokio::time::interval(Duration::from_secs(pause_s));
            loop {
                clock.tick().await;
                processor.push(b"a".to_vec(), &case.ctx, &env);
            }
        };
        tokio::select! {
            () = memory.arrived.notified() => {}
            () = pushing => {}
        }
        let sent = memory.batches.lock().unwrap()[0].len();
        (sent, began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn batches_leave_in_time() {
        assert_eq!(first_batch(1000, 5, 60).await, (1, 5), "none has come for five seconds");
        assert_eq!(first_batch(3, 5, 10).await, (4, 10), "the oldest is ten seconds old");
    }
}
