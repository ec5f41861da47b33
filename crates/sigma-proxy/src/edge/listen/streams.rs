//! Connections with streams, and the exchanges on them.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use sigma_http::Chunk;
use sigma_net::{Deadline, Stream};
use sigma_observe::counters::Counter;
use sigma_wire::Downstream;
use sigma_wire::h2::{self, GLITCHES, Glitch};
use sigma_wire::h3;

use crate::edge::connection::{ConnectionInfo, session_limits};
use crate::exchange::Exchange;
use crate::worker::{Entered, Worker};

/// Most idle runners of a worker; further ones end. Each holds the memory of an exchange.
const IDLE_RUNNERS_MAX: usize = 128;

/// A connection with streams.
pub(super) enum Multiplexed {
    /// HTTP/2
    H2(h2::Session),
    /// HTTP/3
    H3(h3::Session),
}

/// A stream with a request.
#[expect(clippy::large_enum_variant, reason = "it is moved once, into the boxed task of its exchange")]
enum Incoming {
    H2(h2::Incoming),
    H3(h3::Incoming),
}

/// Serves a connection over TCP whose client has sent `early`. `alternative` is the value of `Alt-Svc` in its
/// responses.
pub(super) async fn multiplexed_over_tcp(
    entered: Entered,
    stream: Stream,
    early: Chunk,
    info: ConnectionInfo,
    open: Rc<Cell<bool>>,
    alternative: Option<Box<str>>,
) {
    let limits = session_limits(&entered.0.view().snapshot.settings);
    let session = h2::Session::accept(stream, early, info.origin.peer, limits, alternative);
    multiplexed(entered, Multiplexed::H2(session), info, open).await;
}

impl Multiplexed {
    async fn next(&mut self, closing: impl Fn() -> bool) -> Option<Incoming> {
        match self {
            Multiplexed::H2(session) => session.next(closing).await.map(Incoming::H2),
            Multiplexed::H3(session) => session.next(closing).await.map(Incoming::H3),
        }
    }

    fn take_glitches(&mut self) -> [u32; GLITCHES] {
        match self {
            Multiplexed::H2(session) => session.take_glitches(),
            Multiplexed::H3(session) => session.take_glitches(),
        }
    }
}

/// Serves a connection with streams: a runner for each of them, in addition to the connection's own task.
pub(super) async fn multiplexed(
    entered: Entered,
    mut session: Multiplexed,
    info: ConnectionInfo,
    open: Rc<Cell<bool>>,
) {
    let worker = Rc::clone(&entered.0);
    // It is counted out when the last of its exchanges has ended.
    let connection = Rc::new((entered, info));
    let runners = worker.local.part(Runners::default);
    let age = Age::of(&connection.1, &worker);
    loop {
        let next = session.next(|| worker.is_draining() || !open.get() || age.is_over());
        let Some(incoming) = age.watch(next).await else { break };
        runners.run(Job { connection: Rc::clone(&connection), incoming });
        count_glitches(&worker, &mut session);
    }
    count_glitches(&worker, &mut session);
}

/// The greatest age of a connection, which wakes its task when it is reached.
struct Age {
    deadline: Option<Deadline>,
    is_over: Cell<bool>,
}

impl Age {
    fn of(info: &ConnectionInfo, worker: &Worker) -> Age {
        let set = |left_ms: u32| {
            let deadline = Deadline::new();
            deadline.set(left_ms.into());
            deadline
        };
        Age { deadline: worker.left_ms(&info.origin).map(set), is_over: Cell::new(false) }
    }

    fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Polls `future` with the age set, if it is reached.
    async fn watch<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let expired = self.deadline.as_ref().is_some_and(|age| age.poll_expired(cx).is_ready());
            if expired {
                self.is_over.set(true);
            }
            future.as_mut().poll(cx)
        })
        .await
    }
}

fn count_glitches(worker: &Worker, session: &mut Multiplexed) {
    for (glitch, n) in Glitch::ALL.into_iter().zip(session.take_glitches()) {
        let counter = match glitch {
            _ if n == 0 => continue,
            Glitch::Reset => Counter::GlitchesReset,
            Glitch::StreamError => Counter::GlitchesStreamError,
            Glitch::Head => Counter::GlitchesHead,
            Glitch::Refused => Counter::GlitchesRefused,
            Glitch::Control => Counter::GlitchesControl,
            Glitch::Window => Counter::GlitchesWindow,
            Glitch::Empty => Counter::GlitchesEmpty,
            Glitch::Continuation => Counter::GlitchesContinuation,
        };
        worker.counters.add(counter, n.into());
    }
}

/// One exchange, with the state of its connection.
struct Job {
    connection: Rc<(Entered, ConnectionInfo)>,
    incoming: Incoming,
}

/// Tasks that run exchanges, one after another: creating a task for each costs more than waking an existing one.
#[derive(Default)]
struct Runners {
    idle: RefCell<Vec<Rc<Runner>>>,
}

/// A task that waits for its next exchange.
#[derive(Default)]
struct Runner {
    job: Cell<Option<Job>>,
    waker: Cell<Option<Waker>>,
}

impl Runners {
    /// Runs an exchange in its own task.
    fn run(self: &Rc<Self>, job: Job) {
        let idle = self.idle.borrow_mut().pop();
        let known = idle.is_some();
        let runner = idle.unwrap_or_default();
        runner.job.set(Some(job));
        if !known {
            tokio::task::spawn_local(run(runner, Rc::downgrade(self)));
        } else if let Some(waker) = runner.waker.take() {
            waker.wake();
        }
    }

    /// Keeps a runner for the next exchange; returns false if there are enough.
    fn keep(&self, runner: &Rc<Runner>) -> bool {
        let mut idle = self.idle.borrow_mut();
        let wanted = idle.len() < IDLE_RUNNERS_MAX;
        if wanted {
            idle.push(Rc::clone(runner));
        }
        wanted
    }
}

async fn run(runner: Rc<Runner>, runners: Weak<Runners>) {
    loop {
        let job = poll_fn(|cx| match runner.job.take() {
            Some(job) => Poll::Ready(job),
            None => {
                runner.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        });
        exchange_of_stream(job.await).await;
        if !runners.upgrade().is_some_and(|runners| runners.keep(&runner)) {
            return;
        }
    }
}

/// Runs the exchange of one stream, from its head to its end.
async fn exchange_of_stream(Job { connection, incoming }: Job) {
    let (Entered(worker), info) = &*connection;
    let mut scratch = worker.take_scratch();
    let key = [worker.random(), worker.random()];
    let request = &mut scratch.ctx.request;
    let (mut h2, mut h3);
    let (down, accepted) = match incoming {
        Incoming::H2(incoming) => {
            let accepted;
            (h2, accepted) = h2::ServerStream::accept(incoming, key, request);
            (Downstream::H2(&mut h2), accepted)
        }
        Incoming::H3(incoming) => {
            let accepted;
            (h3, accepted) = h3::ServerStream::accept(incoming, key, request);
            (Downstream::H3(&mut h3), accepted)
        }
    };
    match accepted {
        Ok(()) => Exchange::open(worker, info, down, &mut scratch).run().await,
        Err(fault) => Exchange::open(worker, info, down, &mut scratch).refuse(fault).await,
    }
    worker.give_scratch(scratch);
}
