//! The data of an instance that functions of the host use.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use sigma_net::thread_time;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::AbortHandle;
use wasmtime::{Memory, StoreLimits, StoreLimitsBuilder, TypedFunc};

use crate::engine::CLOCK;
use crate::handler::state::Handling;
use crate::metrics::Metric;
use crate::shared_data::Listener;
use crate::vm_data::VmData;

/// The id of the plugin's context in each instance.
pub(crate) const ROOT: u32 = 1;

/// The most contexts that have ended and wait for `proxy_done`: a module that forgets it must not grow.
const ENDING_MAX: usize = 1000;

/// Names and values, as a call has them.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The data of one instance.
pub(crate) struct State {
    pub(crate) vm: Arc<VmData>,
    pub(crate) limits: StoreLimits,
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
    /// The module allocates memory for a value of the host. It may not call the host then.
    pub(crate) is_allocating: bool,
    /// The context that functions of the host are about.
    pub(crate) effective: u32,
    pub(crate) last_context: u32,
    pub(crate) streams: HashMap<u32, Stream>,
    /// Calls of the plugin's context that wait.
    pub(crate) root_calls: usize,
    pub(crate) calls: Calls,
    /// The response to a call, during its callback.
    pub(crate) answer: Option<CallAnswer>,
    /// The message of a call by gRPC, during its callback.
    pub(crate) message: Option<Vec<u8>>,
    /// The metadata of a stream by gRPC, during its callback: initial, or trailing.
    pub(crate) metadata: [Option<Pairs>; 2],
    /// The status of the last call by gRPC.
    pub(crate) grpc_end: GrpcEnd,
    /// The period of ticks; zero: none.
    pub(crate) tick: Duration,
    pub(crate) budget: Budget,
    /// Metrics that the instance has defined, in the order of their ids.
    pub(crate) metrics: Vec<Arc<Metric>>,
    /// Receives notices of shared queues.
    pub(crate) listener: Arc<Listener>,
    /// Lines that this callback has logged.
    pub(crate) lines: usize,
    /// Bytes of a line that the module has written to its standard output.
    pub(crate) output: Vec<u8>,
    /// Contexts that have ended later than their exchanges.
    pub(crate) done: Vec<u32>,
    ending: usize,
    /// The data of a module with the handler ABI.
    pub(crate) handling: Handling,
}

/// Calls to services.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) last: u32,
    /// Calls that the callback has begun.
    pub(crate) begun: Vec<Outgoing>,
    /// Calls by gRPC under way, by their ids.
    pub(crate) open: HashMap<u32, OpenCall>,
}

/// A call by gRPC under way. It ends when this is dropped.
pub(crate) struct OpenCall {
    pub(crate) context: u32,
    /// The sender of a stream; None for a single message, and after the end of this side.
    pub(crate) messages: Option<mpsc::Sender<Vec<u8>>>,
    /// Its task; None until the callback that has begun it ends.
    pub(crate) task: Option<AbortHandle>,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// A call to a service.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) id: u32,
    pub(crate) context: u32,
    /// The key of the upstream.
    pub(crate) upstream: Box<str>,
    /// The method of HTTP; None for a call by gRPC.
    pub(crate) method: Option<Vec<u8>>,
    pub(crate) target: Vec<u8>,
    pub(crate) host: String,
    pub(crate) headers: Pairs,
    /// The body, or the message.
    pub(crate) body: Vec<u8>,
    pub(crate) passes: Vec<u8>,
    pub(crate) timeout_ms: u64,
    /// The messages of a stream; None for another call.
    pub(crate) messages: Option<mpsc::Receiver<Vec<u8>>>,
}

/// The response to a call; empty after a failure.
#[derive(Debug, Default, Clone)]
pub(crate) struct CallAnswer {
    pub(crate) headers: Pairs,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Pairs,
}

/// The response to a call of either protocol, or a part of it.
#[derive(Debug)]
pub(crate) enum Arrived {
    Http(CallAnswer),
    /// The message of a call by gRPC, or its status
    Grpc(Result<Vec<u8>, GrpcEnd>),
    /// A part of a stream. The next one is read when the permit is free again: the module has got this one
    Stream {
        part: Part,
        _permit: OwnedSemaphorePermit,
    },
}

/// A part of a stream by gRPC.
#[derive(Debug)]
pub(crate) enum Part {
    Initial(Pairs),
    Message(Vec<u8>),
    /// The trailers, if there are some, and the status
    End(Option<Pairs>, GrpcEnd),
}

/// The status of a call by gRPC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GrpcEnd {
    pub(crate) code: u32,
    pub(crate) message: Vec<u8>,
}

/// A response by the module.
#[derive(Debug, Clone)]
pub(crate) struct LocalReply {
    pub(crate) status: u16,
    pub(crate) headers: Pairs,
    pub(crate) body: Vec<u8>,
    pub(crate) grpc_status: Option<u32>,
}

/// The data of an exchange in its instance.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) reply: Option<LocalReply>,
    /// The module has closed the exchange.
    pub(crate) is_closed: bool,
    pub(crate) is_request_resumed: bool,
    pub(crate) is_response_resumed: bool,
    /// Calls that wait.
    pub(crate) calls: usize,
    /// Responses to calls that no callback has seen.
    pub(crate) arrived: VecDeque<(u32, Arrived)>,
    pub(crate) aborts: Vec<AbortHandle>,
    /// The task that waits for one of these events.
    pub(crate) waker: Option<Waker>,
    /// The exchange waits: its task delivers responses to calls.
    pub(crate) is_waiting: bool,
    pub(crate) properties: HashMap<Vec<u8>, Vec<u8>>,
    /// Request fields that the module has set.
    pub(crate) claims: Vec<Box<str>>,
    /// Changes that were not permitted.
    pub(crate) rejected: u64,
    pub(crate) is_ending: bool,
}

impl Stream {
    /// Wakes the task that waits.
    pub(crate) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.aborts.drain(..).for_each(|call| call.abort());
    }
}

impl State {
    pub(crate) fn new(vm: &Arc<VmData>) -> State {
        let limits = StoreLimitsBuilder::new()
            .memory_size(vm.settings.memory_mib << 20)
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        State {
            vm: Arc::clone(vm),
            limits,
            memory: None,
            allocate: None,
            is_allocating: false,
            effective: ROOT,
            last_context: ROOT,
            streams: HashMap::new(),
            root_calls: 0,
            calls: Calls::default(),
            answer: None,
            message: None,
            metadata: [None, None],
            grpc_end: GrpcEnd::default(),
            tick: Duration::ZERO,
            budget: Budget::default(),
            metrics: Vec::new(),
            listener: Arc::default(),
            lines: 0,
            output: Vec::new(),
            done: Vec::new(),
            ending: 0,
            handling: Handling::default(),
        }
    }

    /// Adds the context of an exchange; returns its id. Ids are not used twice until all were used.
    pub(crate) fn add_stream(&mut self) -> u32 {
        loop {
            self.last_context = self.last_context.checked_add(1).unwrap_or(ROOT + 1);
            let id = self.last_context;
            if let std::collections::hash_map::Entry::Vacant(vacant) = self.streams.entry(id) {
                vacant.insert(Stream::default());
                return id;
            }
        }
    }

    /// Notes that a context waits for `proxy_done`. Returns false if too many do.
    pub(crate) fn begin_ending(&mut self, id: u32) -> bool {
        if self.ending >= ENDING_MAX {
            return false;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        stream.is_ending = true;
        self.ending += 1;
        true
    }

    /// Ends a context; returns false if it does not wait for that.
    pub(crate) fn end(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.is_ending) else { return false };
        stream.is_ending = false;
        self.ending -= 1;
        self.done.push(id);
        true
    }

    /// Removes the context of an exchange, with its calls.
    pub(crate) fn remove_stream(&mut self, id: u32) {
        self.streams.remove(&id);
        self.calls.open.retain(|_, call| call.context != id);
    }

    /// Ends a call by gRPC. Returns false for an unknown id.
    pub(crate) fn end_call(&mut self, id: u32) -> bool {
        let Some(call) = self.calls.open.remove(&id) else { return false };
        self.calls.begun.retain(|begun| begun.id != id);
        if let Some(waiting) = self.waiting_calls(call.context) {
            *waiting = waiting.saturating_sub(1);
        }
        true
    }

    /// Returns the number of calls of a context that wait.
    pub(crate) fn waiting_calls(&mut self, context: u32) -> Option<&mut usize> {
        match context {
            ROOT => Some(&mut self.root_calls),
            id => self.streams.get_mut(&id).map(|stream| &mut stream.calls),
        }
    }
}

/// The processor time of a callback.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Duration,
    /// The time of the thread at the first look; None before.
    began: Option<Duration>,
}

impl Budget {
    /// Begins a callback. The clock of the thread is read at the first tick of the engine's clock only: most callbacks
    /// end before it, and reading it is a system call.
    pub(crate) fn begin(&mut self, limit: Duration) {
        *self = Budget { limit, began: None };
    }

    /// Returns true if the callback has used its time.
    pub(crate) fn is_spent(&mut self) -> bool {
        let now = thread_time();
        now - *self.began.get_or_insert(now) >= self.limit.saturating_sub(CLOCK) && self.began != Some(now)
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }
}
