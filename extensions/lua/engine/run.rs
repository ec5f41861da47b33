//! One run of a script: its main coroutine and its light threads, from wait to wait.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{self, Poll};
use std::time::Duration;

use mlua::{Function, MultiValue, Thread, Value};
use sigma_plugin::step::{BodyRead, Resume};
use sigma_plugin::{Context, Env, Reply, Step};

use super::arguments::failed;
use super::exchange::Exchange;
use super::host::{Ready, ScriptNeed, Stage, Work};
use super::lifetime::Alone;
use super::memory::Ticket;
use super::pace::Pace;
use super::place::ScriptPosition;
use super::spare_threads::MainThread;
use super::{Engine, message_of, wish};

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The script returned these values.
    Returned(MultiValue),
    /// `ngx.exit` with this status.
    Exited(i64),
    /// An error that the script did not handle; it is logged already.
    Failed,
}

/// Continues the exchange after a run.
pub(crate) type Finish = Box<dyn FnOnce(Outcome, &Rc<Engine>, &Exchange, &mut Context, &Env<'_>) -> Step>;

/// Why a run stopped.
pub(super) enum Progress {
    Ended(Outcome),
    /// It needs the request body.
    NeedsBody {
        limit: usize,
    },
    /// It waits for work.
    Waits,
}

/// The state of a coroutine.
enum State {
    /// It continues with these values.
    Runnable(MultiValue),
    /// Its work is done; the results are made when it continues.
    Woken(Ready),
    Working(Work),
    /// It waits for the request body.
    Body {
        limit: usize,
    },
    /// It waits until the client has taken the output so far.
    Draining,
    /// It waits for the end of one of these.
    Joining(Vec<Thread>),
    /// It ended with true and results, or with false and an error.
    Ended(MultiValue),
    /// Its end was given to who waited for it.
    Gone,
}

struct Task {
    thread: Thread,
    /// The coroutine that made this light thread.
    parent: Option<Thread>,
    state: State,
}

/// The owner of a run.
enum Scope {
    Exchange(Rc<Exchange>),
    /// A timer.
    Alone(Rc<Alone>),
}

/// A run of one function, in a phase of one exchange.
pub(crate) struct Run {
    engine: Rc<Engine>,
    scope: Scope,
    stage: Stage,
    /// The first is the main coroutine.
    tasks: Vec<Task>,
    /// The main coroutine, until it has ended.
    main: Option<MainThread>,
    /// Where the log says that it ran.
    place: Rc<ScriptPosition>,
    ticket: Ticket,
    /// The processor time so far.
    used: Duration,
    /// The same when the worker last did something else.
    released: Duration,
}

/// The most processor time of a script with all its waits, as a multiple of its time between two waits. A timer may run
/// for as long as its worker; its turns are spaced instead.
const MOST_RUNS: u32 = 50;

impl Run {
    /// Prepares a run of a function.
    ///
    /// # Errors
    /// Returns a message if there is no memory for it.
    pub(crate) fn new(
        engine: &Rc<Engine>,
        exchange: &Rc<Exchange>,
        stage: Stage,
        place: &Rc<ScriptPosition>,
        function: Function,
        arguments: MultiValue,
    ) -> Result<Run, String> {
        let scope = Scope::Exchange(Rc::clone(exchange));
        let run = Run::of(engine, place, scope, stage);
        run.beginning(function, arguments).map_err(|error| message_of(&error))
    }

    /// Prepares a run of a timer's function.
    ///
    /// # Errors
    /// Returns a message if there is no memory for it.
    pub(crate) fn alone(
        engine: &Rc<Engine>,
        place: &Rc<ScriptPosition>,
        function: Function,
        arguments: MultiValue,
    ) -> Result<Run, String> {
        let made = || {
            let ngx_ctx = RefCell::new(engine.lua.create_table()?);
            let scope = Scope::Alone(Rc::new(Alone { lifetime: Rc::default(), ngx_ctx }));
            Run::of(engine, place, scope, Stage::Timer).beginning(function, arguments)
        };
        made().map_err(|error| message_of(&error))
    }

    fn of(engine: &Rc<Engine>, place: &Rc<ScriptPosition>, scope: Scope, stage: Stage) -> Run {
        let ticket = engine.memory.ticket();
        Run {
            engine: Rc::clone(engine),
            scope,
            stage,
            tasks: Vec::new(),
            main: None,
            place: Rc::clone(place),
            ticket,
            used: Duration::ZERO,
            released: Duration::ZERO,
        }
    }

    fn beginning(mut self, function: Function, mut arguments: MultiValue) -> mlua::Result<Run> {
        let main = self.engine.spare_threads.take(&self.engine.lua, &self.engine.runner)?;
        arguments.push_front(Value::Function(function));
        self.tasks.push(Task {
            thread: main.thread.clone(),
            parent: None,
            state: State::Runnable(arguments),
        });
        self.main = Some(main);
        Ok(self)
    }

    /// Runs a timer to its end. Its turns wait for the pace of all timers.
    pub(crate) async fn finish(mut self, pace: &Pace) -> Outcome {
        loop {
            let before = self.used;
            let progress = self.advanced_alone();
            pace.used(self.used.saturating_sub(before));
            match progress {
                Progress::Ended(outcome) => return outcome,
                // A timer has no request body.
                Progress::NeedsBody { .. } => return Outcome::Failed,
                Progress::Waits => self.woken().await,
            }
            pace.turn().await;
        }
    }

    /// Runs to the end, in a stage where scripts do not wait.
    pub(crate) fn at_once(mut self, ctx: &mut Context, env: &Env<'_>) -> Outcome {
        match self.advanced(ctx, env) {
            Progress::Ended(outcome) => outcome,
            // No function waits in such a stage.
            Progress::NeedsBody { .. } | Progress::Waits => Outcome::Failed,
        }
    }

    /// Runs until it ends or waits; the step goes on from there.
    pub(crate) fn step(mut self, ctx: &mut Context, env: &Env<'_>, then: Finish) -> Step {
        match self.advanced(ctx, env) {
            Progress::Ended(outcome) => {
                let Run { engine, scope, .. } = self;
                match scope {
                    Scope::Exchange(exchange) => then(outcome, &engine, &exchange, ctx, env),
                    Scope::Alone(_) => Step::Next,
                }
            }
            Progress::NeedsBody { limit } => Step::ReadBody {
                limit,
                then: Box::new(move |ctx, env, read| match read {
                    BodyRead::Whole => {
                        if let Scope::Exchange(exchange) = &self.scope {
                            exchange.is_body_read.set(true);
                        }
                        self.has_body();
                        self.step(ctx, env, then)
                    }
                    BodyRead::TooLarge => {
                        Reply::new(413).because("the request body is larger than scripts may read").into()
                    }
                }),
            },
            Progress::Waits => match self.streaming(ctx) {
                Some(exchange) => super::streamed::step(self, exchange, then, env),
                None => Step::Wait(Box::pin(async move {
                    self.woken().await;
                    Box::new(move |ctx: &mut Context, env: &Env<'_>| self.step(ctx, env, then)) as Resume
                })),
            },
        }
    }

    /// Waits until the work of at least one coroutine is done. Work that is done at once, such as a connection to a refused
    /// address, must not keep the worker from other requests: a script that has used its time waits for a turn.
    async fn woken(&mut self) {
        let mut has_waited = false;
        std::future::poll_fn(|cx| {
            let polled = self.poll_woken(cx);
            has_waited |= polled.is_pending();
            polled
        })
        .await;
        if !has_waited {
            if self.used.saturating_sub(self.released) < self.place.run_time {
                return;
            }
            tokio::task::yield_now().await;
        }
        self.released = self.used;
    }

    /// Ready when the work of at least one coroutine is done.
    pub(super) fn poll_woken(&mut self, cx: &mut task::Context<'_>) -> Poll<()> {
        let mut is_woken = false;
        for task in &mut self.tasks {
            if let State::Working(work) = &mut task.state
                && let Poll::Ready(ready) = work.as_mut().poll(cx)
            {
                task.state = State::Woken(ready);
                is_woken = true;
            }
        }
        if is_woken { Poll::Ready(()) } else { self.ticket.poll(cx) }
    }

    /// The exchange, if the client gets the output so far while the script continues.
    fn streaming(&self, ctx: &Context) -> Option<Rc<Exchange>> {
        let Scope::Exchange(exchange) = &self.scope else { return None };
        let is_due = exchange.may_stream(ctx) && exchange.is_output_due();
        is_due.then(|| Rc::clone(exchange))
    }

    /// Lets coroutines go on that wait until the client has taken their output; whether any coroutine continues.
    pub(super) fn goes_on(&mut self) -> bool {
        for task in &mut self.tasks {
            if matches!(task.state, State::Draining) {
                task.state = State::Runnable(drained());
            }
        }
        self.runnable().is_some()
    }

    /// Ends the wait for a request body that cannot be read any more.
    pub(super) fn lacks_body(&mut self) {
        for task in &mut self.tasks {
            if matches!(task.state, State::Body { .. }) {
                let lacking = "cannot read the request body after the response has begun".to_owned();
                task.state = State::Runnable(results(&self.engine, Err(lacking)));
            }
        }
    }

    pub(super) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// Where the log says that it runs.
    pub(crate) fn place(&self) -> &Rc<ScriptPosition> {
        &self.place
    }

    fn has_body(&mut self) {
        for task in &mut self.tasks {
            if matches!(task.state, State::Body { .. }) {
                task.state = State::Runnable(no_error());
            }
        }
    }

    /// Runs coroutines until none can continue.
    pub(super) fn advanced(&mut self, ctx: &mut Context, env: &Env<'_>) -> Progress {
        let Scope::Exchange(exchange) = &self.scope else { return Progress::Ended(Outcome::Failed) };
        let engine = Rc::clone(&self.engine);
        engine.host.enter(self.stage, ctx, env, Rc::clone(exchange), &self.place);
        let progress = self.budgeted(&engine);
        engine.host.leave(ctx);
        progress
    }

    /// As [`Run::advanced`], without an exchange.
    fn advanced_alone(&mut self) -> Progress {
        let Scope::Alone(alone) = &self.scope else { return Progress::Ended(Outcome::Failed) };
        let engine = Rc::clone(&self.engine);
        engine.host.enter_alone(alone, &self.place);
        let progress = self.budgeted(&engine);
        engine.host.leave_alone();
        progress
    }

    fn budgeted(&mut self, engine: &Rc<Engine>) -> Progress {
        let client = || engine.host.client();
        let given = match engine.begin_at(&self.place, &client) {
            Ok(given) => given,
            Err(message) => return self.failed(&message),
        };
        let progress = self.progress();
        self.used += engine.end_budget_at(&self.place, given, &client);
        let most = self.place.run_time * MOST_RUNS;
        match progress {
            Progress::Waits | Progress::NeedsBody { .. }
                if self.used > most && self.stage != Stage::Timer =>
            {
                engine.charge(&self.place, self.used, false, &client);
                self.failed(&format!(
                    "the script ran longer than {} ms, including its waits",
                    most.as_millis()
                ))
            }
            progress => progress,
        }
    }

    fn progress(&mut self) -> Progress {
        if self.ticket.is_evicted() {
            return self.failed(
                "the script was ended while it waited: the scripts of this worker have used up their memory",
            );
        }
        // Ends that were taken are no longer needed; the main coroutine keeps its place.
        if self.tasks.len() > 1 {
            let main = self.tasks.first().map(|main| main.thread.clone());
            self.tasks
                .retain(|task| !matches!(task.state, State::Gone) || Some(&task.thread) == main.as_ref());
        }
        while let Some(index) = self.runnable() {
            if let Some(outcome) = self.resume(index) {
                return Progress::Ended(outcome);
            }
            self.join();
        }
        let limits = self.tasks.iter().filter_map(|task| match task.state {
            State::Body { limit } => Some(limit),
            _ => None,
        });
        if let Some(limit) = limits.max() {
            return Progress::NeedsBody { limit };
        }
        if self.tasks.iter().any(|task| matches!(task.state, State::Working(_) | State::Draining)) {
            return Progress::Waits;
        }
        match self.tasks.first_mut().map(|main| std::mem::replace(&mut main.state, State::Gone)) {
            Some(State::Ended(values)) => {
                if let Some(main) = self.main.take() {
                    self.engine.spare_threads.keep(main);
                }
                Progress::Ended(Outcome::Returned(values))
            }
            // All coroutines wait for each other.
            _ => self.failed("the script waits for light threads that never end"),
        }
    }

    /// A coroutine that can continue.
    fn runnable(&self) -> Option<usize> {
        let is_runnable = |task: &Task| matches!(task.state, State::Runnable(_) | State::Woken(_));
        // The newest first: a light thread runs at once when it is made.
        self.tasks.iter().rposition(is_runnable)
    }

    /// Runs one coroutine until it waits or ends. Returns the end of the whole run, if that is it.
    fn resume(&mut self, index: usize) -> Option<Outcome> {
        let values = match std::mem::replace(&mut self.tasks[index].state, State::Gone) {
            State::Runnable(values) => values,
            State::Woken(ready) => results(&self.engine, ready(&self.engine.lua)),
            other => {
                self.tasks[index].state = other;
                return None;
            }
        };
        let thread = self.tasks[index].thread.clone();
        match thread.resume::<MultiValue>(values) {
            Err(error) => self.ended(index, failure(&self.engine, &message_of(&error))),
            Ok(values) if thread.is_resumable() => {
                if values.front() == Some(&wish()) {
                    // Without a wish the mark comes from nowhere, and means nothing.
                    if let Some(wish) = self.engine.host.take_wish() {
                        return self.wished(index, wish);
                    }
                }
                // A script's own yield at the top continues at once.
                self.tasks[index].state = State::Runnable(MultiValue::new());
                None
            }
            Ok(values) => self.ended(index, values),
        }
    }

    /// A coroutine ended, with the results of the prelude's `run`.
    fn ended(&mut self, index: usize, mut values: MultiValue) -> Option<Outcome> {
        let is_right = matches!(values.front(), Some(Value::Boolean(true)));
        if !is_right {
            let text = values.get(1).and_then(Value::as_string).map(|text| text.to_string_lossy());
            self.complain(&text.unwrap_or_else(|| "unknown reason".to_owned()));
            if index == 0 {
                return Some(Outcome::Failed);
            }
            let problem = values.get(2).cloned().unwrap_or(Value::Nil);
            values = MultiValue::from_iter([Value::Boolean(false), problem]);
        }
        if index == 0 {
            values.pop_front();
        }
        self.tasks[index].state = State::Ended(values);
        None
    }

    /// A coroutine needs something.
    fn wished(&mut self, index: usize, wish: ScriptNeed) -> Option<Outcome> {
        self.tasks[index].state = match wish {
            ScriptNeed::Exit(status) => return Some(Outcome::Exited(status)),
            ScriptNeed::Work(work) => State::Working(work),
            ScriptNeed::Drain => {
                match self.engine.host.with(|seat| Ok(seat.exchange.may_stream(&seat.ctx))) {
                    Ok(true) => State::Draining,
                    _ => State::Runnable(drained()),
                }
            }
            ScriptNeed::Body { limit } => State::Body { limit },
            ScriptNeed::Join(threads) => match self.foreign_thread(index, &threads) {
                None => State::Joining(threads),
                Some(message) => State::Runnable(results(&self.engine, Err(message.to_owned()))),
            },
            ScriptNeed::Spawn { function, arguments } => {
                let made = self.spawned(index, function, arguments);
                let made = made.map(|thread| MultiValue::from_iter([Value::Thread(thread)]));
                State::Runnable(results(&self.engine, made))
            }
            ScriptNeed::Kill(thread) => {
                let killed = match self.killed(index, &thread) {
                    Ok(()) => Ok(MultiValue::from_iter([Value::Integer(1)])),
                    Err(message) => failed(&self.engine.lua, message),
                };
                State::Runnable(results(&self.engine, killed))
            }
        };
        None
    }

    /// The error of a wait for threads that are not all the coroutine's own.
    fn foreign_thread(&self, index: usize, threads: &[Thread]) -> Option<&'static str> {
        let own = Some(&self.tasks[index].thread);
        let is_strange = |thread: &Thread| {
            self.tasks.iter().any(|task| task.thread == *thread && task.parent.as_ref() != own)
        };
        threads.iter().any(is_strange).then_some("only the parent coroutine can wait on the thread")
    }

    /// Makes a light thread.
    fn spawned(
        &mut self,
        index: usize,
        function: Function,
        mut arguments: MultiValue,
    ) -> Result<Thread, String> {
        let most = self.engine.settings.threads;
        let is_alive = |task: &&Task| !matches!(task.state, State::Ended(_) | State::Gone);
        // The coroutine that runs is not counted: that makes up for the main one.
        if self.tasks.iter().filter(is_alive).count() >= most {
            return Err(format!("a script may have {most} light threads at most"));
        }
        let thread = self.engine.lua.create_thread(self.engine.thread_runner.clone());
        let thread = thread.map_err(|error| message_of(&error))?;
        let parent = Some(self.tasks[index].thread.clone());
        arguments.push_front(Value::Function(function));
        self.tasks.push(Task { thread: thread.clone(), parent, state: State::Runnable(arguments) });
        Ok(thread)
    }

    /// Ends a light thread of a coroutine.
    fn killed(&mut self, index: usize, thread: &Thread) -> Result<(), &'static str> {
        let killer = self.tasks[index].thread.clone();
        let Some(task) = self.tasks.iter_mut().find(|task| task.thread == *thread) else {
            return Err("already waited or killed");
        };
        if task.parent.as_ref() != Some(&killer) {
            return Err("killer not parent");
        }
        match std::mem::replace(&mut task.state, State::Gone) {
            State::Gone => Err("already waited or killed"),
            State::Ended(_) => Err("already terminated"),
            _ => Ok(()),
        }
    }

    /// Gives the ends of light threads to those who wait for them.
    fn join(&mut self) {
        for index in 0..self.tasks.len() {
            let State::Joining(threads) = &self.tasks[index].state else { continue };
            let ended = threads.iter().find_map(|thread| {
                self.tasks
                    .iter()
                    .position(|task| task.thread == *thread && matches!(task.state, State::Ended(_)))
            });
            let is_lost = !threads.iter().any(|thread| {
                self.tasks.iter().any(|task| task.thread == *thread && !matches!(task.state, State::Gone))
            });
            if let Some(ended) = ended
                && let State::Ended(mut values) = std::mem::replace(&mut self.tasks[ended].state, State::Gone)
            {
                values.push_front(Value::Nil);
                self.tasks[index].state = State::Runnable(values);
            } else if is_lost {
                let lost = failed(&self.engine.lua, "already waited or killed");
                self.tasks[index].state = State::Runnable(results(&self.engine, lost));
            }
        }
    }

    fn failed(&self, message: &str) -> Progress {
        self.complain(message);
        Progress::Ended(Outcome::Failed)
    }

    /// Logs an error that a script did not handle.
    fn complain(&self, message: &str) {
        self.place.counts.failed();
        // The first line names the place; the stack follows it.
        let (first, stack) = message.split_once('\n').unwrap_or((message, ""));
        // Errors of the binding say so themselves.
        let first = first.strip_prefix("runtime error: ").unwrap_or(first);
        let limit = match first.contains("not enough memory") {
            true => {
                format!(": the scripts of a worker may use {} MiB", self.engine.settings.memory_bytes >> 20)
            }
            false => String::new(),
        };
        tracing::error!("{}: a Lua function failed: runtime error: {first}{limit}", self.place);
        if !stack.is_empty() {
            tracing::info!("{}: {stack}", self.place);
        }
    }
}

/// The results that a function of the gateway gives to its wrapper.
fn results(engine: &Engine, results: Result<MultiValue, String>) -> MultiValue {
    match results {
        Ok(mut values) => {
            values.push_front(Value::Nil);
            values
        }
        Err(message) => match engine.lua.create_string(message) {
            Ok(message) => MultiValue::from_iter([Value::String(message)]),
            Err(_) => MultiValue::from_iter([Value::Boolean(false)]),
        },
    }
}

/// The end of a coroutine that failed outside the prelude's `run`.
fn failure(engine: &Engine, message: &str) -> MultiValue {
    let text = engine.lua.create_string(message).map_or(Value::Nil, Value::String);
    MultiValue::from_iter([Value::Boolean(false), text])
}

/// The result of functions that write.
fn drained() -> MultiValue {
    MultiValue::from_iter([Value::Nil, Value::Integer(1)])
}

/// No error and no results.
fn no_error() -> MultiValue {
    MultiValue::from_iter([Value::Nil])
}
