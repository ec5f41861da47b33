//! `ngx.timer`: functions that run later on this worker, outside requests.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use mlua::{Function, Lua, MultiValue, Table, Value};
use sigma_plugin::Local;
use sigma_plugin::env::LocalWork;
use tokio::sync::watch;

use super::sleep::duration_of;
use crate::engine::Engine;
use crate::engine::arguments::{Arguments, Results, failed, one};
use crate::engine::host::Host;
use crate::engine::memory::Ticket;
use crate::engine::pace::Pace;
use crate::engine::place::ScriptPosition;
use crate::engine::run::Run;
use crate::engine::settings::Settings;

/// The shortest delay: a timer that starts itself again at once leaves time for requests.
const LEAST: Duration = Duration::from_millis(1);

/// The timers of one state.
struct Timers {
    pending: Count,
    running: Count,
    most_pending: usize,
    most_running: usize,
    pace: Pace,
    /// Reports the end of the worker to all timers; the first timer starts the task behind it.
    ending: RefCell<Option<watch::Receiver<bool>>>,
}

/// A number of timers; each is counted by a [`Counted`].
#[derive(Default, Clone)]
struct Count(Rc<Cell<usize>>);

/// One timer of a [`Count`].
struct Counted(Count);

impl Count {
    fn get(&self) -> usize {
        self.0.get()
    }

    fn one(&self) -> Counted {
        self.0.set(self.get() + 1);
        Counted(self.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.set(self.0.get().saturating_sub(1));
    }
}

/// The members of `ngx.timer`.
pub(super) fn group(lua: &Lua, host: &Rc<Host>, settings: &Settings) -> mlua::Result<Table> {
    let group = lua.create_table()?;
    let timers = Rc::new(Timers {
        pending: Count::default(),
        running: Count::default(),
        most_pending: settings.pending_timers,
        most_running: settings.running_timers,
        pace: Pace::default(),
        ending: RefCell::default(),
    });
    for (name, is_repeated) in [("at", false), ("every", true)] {
        let timers = Rc::clone(&timers);
        host.function(lua, &group, name, move |host, arguments| {
            start(&timers, host, &arguments, is_repeated)
        })?;
    }
    let counted = timers.running.clone();
    host.function(lua, &group, "running_count", move |_, arguments| one(arguments.lua(), counted.get()))?;
    let counted = timers.pending.clone();
    host.function(lua, &group, "pending_count", move |_, arguments| one(arguments.lua(), counted.get()))?;
    Ok(group)
}

/// Starts a timer.
fn start(timers: &Rc<Timers>, host: &Host, arguments: &Arguments<'_>, is_repeated: bool) -> Results {
    let lua = arguments.lua();
    if arguments.count() < 2 {
        return Err(format!("expecting at least 2 arguments but got {}", arguments.count()));
    }
    let Ok(seconds) = arguments.number(1) else { return Err(anonymous(&arguments.wrong(1, "number"))) };
    let delay = duration_of(seconds * 1000.0);
    if is_repeated && delay.is_zero() {
        return Err("delay cannot be zero".to_owned());
    }
    let function = match arguments.value(2) {
        Value::Function(function) if is_of_script(&function) => function,
        _ => return Err(anonymous(&arguments.bad(2, "Lua function expected"))),
    };
    // A state that only checks texts starts nothing.
    let Some(local) = host.worker().map(|worker| worker.local.upgrade()) else { return one(lua, 1) };
    let Some(local) = local.filter(|local| !local.is_ending()) else { return failed(lua, "process exiting") };
    if timers.pending.get() >= timers.most_pending {
        return failed(lua, "too many pending timers");
    }
    if tokio::runtime::Handle::try_current().is_err() {
        return failed(lua, "no worker runs this script");
    }
    let timer = Timer {
        ending: timers.ending(&local),
        timers: Rc::clone(timers),
        engine: host.engine(),
        local: Rc::downgrade(&local),
        function,
        arguments: arguments.rest(3),
        starter: host.place(),
        ticket: host.engine().upgrade().map(|engine| engine.memory.ticket()),
        delay: delay.max(LEAST),
        is_repeated,
    };
    tokio::task::spawn_local(timer.run(timers.pending.one(), local.begin_work()));
    one(lua, 1)
}

/// A message without the name of the function: nginx calls it `?`.
fn anonymous(message: &str) -> String {
    message.replacen("'at'", "'?'", 1).replacen("'every'", "'?'", 1)
}

/// Whether a function is a script's, and neither Lua's nor the gateway's.
fn is_of_script(function: &Function) -> bool {
    let info = function.info();
    info.what != "C" && info.source.as_deref() != Some("=gateway")
}

impl Timers {
    /// Becomes true at the end of the worker.
    fn ending(&self, local: &Rc<Local>) -> watch::Receiver<bool> {
        let mut known = self.ending.borrow_mut();
        let receiver = known.get_or_insert_with(|| {
            let (sender, receiver) = watch::channel(false);
            let local = Rc::clone(local);
            tokio::task::spawn_local(async move {
                poll_fn(|cx| local.poll_ending(cx)).await;
                let _ = sender.send(true);
            });
            receiver
        });
        receiver.clone()
    }
}

/// One timer.
struct Timer {
    timers: Rc<Timers>,
    engine: Weak<Engine>,
    local: Weak<Local>,
    ending: watch::Receiver<bool>,
    function: Function,
    arguments: MultiValue,
    /// The position of the script that made it.
    starter: Option<Rc<ScriptPosition>>,
    ticket: Option<Ticket>,
    delay: Duration,
    is_repeated: bool,
}

/// Ready after the delay, when it is the timer's turn.
async fn due(delay: Duration, pace: &Pace) {
    tokio::time::sleep(delay).await;
    pace.turn().await;
}

impl Timer {
    /// Waits and runs the function, once or until the end of the worker.
    async fn run(mut self, mut pending: Counted, mut work: LocalWork) {
        loop {
            let is_premature = tokio::select! {
                // The sender goes with the worker.
                _ = self.ending.wait_for(|is_ending| *is_ending) => true,
                () = due(self.delay, &self.timers.pace) => false,
                // The state has no memory left.
                () = poll_fn(|cx| self.ticket.as_ref().map_or(Poll::Pending, |ticket| ticket.poll(cx))) => return,
            };
            drop(pending);
            let Some(engine) = self.engine.upgrade() else { return };
            let run = self.expired(engine, is_premature);
            let Some(local) = self.local.upgrade().filter(|_| self.is_repeated && !is_premature) else {
                return run.await;
            };
            let ended = std::mem::replace(&mut work, local.begin_work());
            tokio::task::spawn_local(async move {
                run.await;
                drop(ended);
            });
            pending = self.timers.pending.one();
        }
    }

    /// One run of the function.
    fn expired(&self, engine: Rc<Engine>, is_premature: bool) -> impl Future<Output = ()> + use<> {
        let info = self.function.info();
        let source = info.short_src.unwrap_or_default();
        let place = format!("timer at {source}:{}", info.line_defined.unwrap_or_default());
        let place = engine.place_below(&place, self.starter.as_deref());
        let most = self.timers.most_running;
        let is_full = self.timers.running.get() >= most;
        let running = self.timers.running.one();
        let timers = Rc::clone(&self.timers);
        let (function, mut arguments) = (self.function.clone(), self.arguments.clone());
        arguments.push_front(Value::Boolean(is_premature));
        async move {
            if is_full {
                tracing::error!("{place}: the timer was dropped: {most} timers of this worker already run");
                return;
            }
            match Run::alone(&engine, &place, function, arguments) {
                // Errors are logged by the run.
                Ok(run) => drop(run.finish(&timers.pace).await),
                Err(message) => tracing::error!("{place}: the timer failed: runtime error: {message}"),
            }
            drop(running);
        }
    }
}

#[cfg(test)]
#[path = "timer_tests.rs"]
mod tests;
