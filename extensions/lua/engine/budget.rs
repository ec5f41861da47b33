//! The run time of scripts: a hook in the interpreter ends those that take too long.
//!
//! The hook counts instructions. One instruction on a text of megabytes takes as long as a million others, so the hook
//! comes more often while a script is slow or the state holds much memory.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mlua::{HookTriggers, Lua, VmState};
use sigma_net::{machine_time, thread_time};

/// Instructions between two calls of the hook: some microseconds.
const INSTRUCTIONS: u32 = 1000;

/// The same after instructions that took long.
const FEW_INSTRUCTIONS: u32 = 10;

/// The same in a run that works on large texts or tables.
const MUCH_INSTRUCTIONS: u32 = 100;

/// The same by the memory of the scripts in MiB, besides the state's own.
const BY_MEMORY: [(usize, u32); 3] = [(32, 50), (16, 100), (4, 500)];

/// So many instructions never take so long, unless they work on much data.
const SLOW: Duration = Duration::from_millis(1);

/// The time for which the hook comes often after slow instructions.
const WATCHED: Duration = Duration::from_secs(60);

/// The further time of a script that spends it in calls of the gateway, as a multiple of its time. Without optimization
/// they take ten times as long.
const CALL_GRACE: u32 = if cfg!(debug_assertions) { 20 } else { 2 };

/// The time between two looks at the processor time of the thread, which is a system call.
const LOOK: Duration = Duration::from_micros(500);

/// So long after a look, the processor time of the thread is estimated by the time that has passed: the thread cannot
/// have used more. A run gets so much more time than its own at most.
const ESTIMATED: Duration = Duration::from_millis(1);

/// The clock is read once in so many calls of the gateway.
const CALLS: u32 = 8;

/// The time of the machine and the processor time of the thread at one moment.
#[derive(Clone, Copy)]
struct Moment {
    machine: Instant,
    thread: Duration,
}

/// The time that the scripts of one state have used.
pub(crate) struct Budget {
    /// The most time of the run without a wait.
    run: Cell<Duration>,
    /// When the run began. The time of the thread is an estimate, and never too small.
    began: Cell<Moment>,
    /// The last look at the processor time.
    known: Cell<Option<Moment>>,
    /// The number of calls of the gateway since the clock was read.
    calls: Cell<u32>,
    /// The time of the thread when the run ends at the latest.
    until: Cell<Duration>,
    /// The time of the last look at the processor time.
    looked: Cell<Instant>,
    /// The time of the last call of the hook.
    hooked: Cell<Instant>,
    /// The time until which the hook comes often.
    watched: Cell<Instant>,
    /// The instructions between two calls of the hook.
    interval: Cell<u32>,
    /// The run works on large texts or tables.
    has_much: Cell<bool>,
    /// The memory of the state without scripts.
    own_memory: Cell<usize>,
    /// The run has no time left. The hook fails at each instruction then: so `pcall` cannot continue.
    is_spent: Cell<bool>,
    /// A function outside the interpreter has seen the end of the time.
    is_late: Cell<bool>,
}

impl Budget {
    pub(crate) fn new() -> Budget {
        let machine = machine_time();
        Budget {
            run: Cell::new(Duration::ZERO),
            began: Cell::new(Moment { machine, thread: Duration::ZERO }),
            known: Cell::new(None),
            calls: Cell::new(0),
            until: Cell::new(Duration::MAX),
            looked: Cell::new(machine),
            hooked: Cell::new(machine),
            watched: Cell::new(machine),
            interval: Cell::new(INSTRUCTIONS),
            has_much: Cell::new(false),
            own_memory: Cell::new(0),
            is_spent: Cell::new(false),
            is_late: Cell::new(false),
        }
    }

    /// The text of the error.
    fn message(&self) -> String {
        format!("the script ran longer than {} ms without a wait", self.run.get().as_secs_f64() * 1000.0)
    }

    /// Installs the hook in a state without scripts.
    pub(super) fn install(self: &Rc<Self>, lua: &Lua) -> mlua::Result<()> {
        self.own_memory.set(lua.used_memory());
        self.hook(lua, INSTRUCTIONS)
    }

    fn hook(self: &Rc<Self>, lua: &Lua, instructions: u32) -> mlua::Result<()> {
        self.interval.set(instructions);
        let budget = Rc::clone(self);
        let triggers = HookTriggers::new().every_nth_instruction(instructions);
        lua.set_global_hook(triggers, move |lua, _| {
            let now = machine_time();
            budget.note_slowness(now);
            if !budget.is_spent.get() && !budget.is_over(now) {
                budget.adapt(lua, now)?;
                return Ok(VmState::Continue);
            }
            if !budget.is_spent.replace(true) {
                budget.hook(lua, 1)?;
            }
            Err(mlua::Error::runtime(budget.message()))
        })
    }

    /// Sets how often the hook comes.
    fn adapt(self: &Rc<Self>, lua: &Lua, now: Instant) -> mlua::Result<()> {
        let wanted = self.wanted_interval(lua, now);
        if wanted == self.interval.get() { Ok(()) } else { self.hook(lua, wanted) }
    }

    /// Lets the hook come often for some time if the instructions since the last one took long. On a busy machine the
    /// time passes without the thread, so its processor time decides.
    fn note_slowness(&self, now: Instant) {
        if now.saturating_duration_since(self.hooked.replace(now)) < SLOW {
            return;
        }
        let began = self.began.get().thread;
        let before = self.known.get().map_or(began, |known| known.thread.max(began));
        if self.look(now).saturating_sub(before) >= SLOW {
            self.watched.set(now + WATCHED);
        }
    }

    /// Reads the processor time of the thread.
    fn look(&self, machine: Instant) -> Duration {
        let thread = thread_time();
        self.known.set(Some(Moment { machine, thread }));
        thread
    }

    fn wanted_interval(&self, lua: &Lua, now: Instant) -> u32 {
        if now < self.watched.get() {
            return FEW_INSTRUCTIONS;
        }
        if self.has_much.get() {
            return MUCH_INSTRUCTIONS;
        }
        let mib = lua.used_memory().saturating_sub(self.own_memory.get()) >> 20;
        let by_memory = BY_MEMORY.iter().find(|(from, _)| mib >= *from);
        by_memory.map_or(INSTRUCTIONS, |(_, instructions)| *instructions)
    }

    /// Whether the run has no time left. The processor time is read now and then only.
    fn is_over(&self, now: Instant) -> bool {
        if now.saturating_duration_since(self.looked.get()) < LOOK {
            return self.is_late.get();
        }
        self.looked.set(now);
        self.is_late.get() || self.look(now) >= self.until.get()
    }

    /// Begins a run that may take so long.
    pub(super) fn begin(self: &Rc<Self>, lua: &Lua, run: Duration) -> mlua::Result<()> {
        let machine = machine_time();
        self.is_late.set(false);
        self.has_much.set(false);
        if self.is_spent.replace(false) {
            self.hook(lua, self.wanted_interval(lua, machine))?;
        }
        let began = self.estimated(machine);
        self.run.set(run);
        self.began.set(began);
        self.until.set(began.thread + run);
        self.looked.set(machine);
        self.hooked.set(machine);
        Ok(())
    }

    /// The processor time of the thread at this time of the machine, which is now. It is read only if the last look was
    /// too long ago for an estimate.
    fn estimated(&self, machine: Instant) -> Moment {
        match self.known.get() {
            Some(known) if machine.saturating_duration_since(known.machine) < ESTIMATED => {
                Moment { machine, thread: known.thread + machine.saturating_duration_since(known.machine) }
            }
            _ => Moment { machine, thread: self.look(machine) },
        }
    }

    /// Fails if the run has no time left. The hook ends the script with its next instructions.
    pub(super) fn check(&self) -> Result<(), String> {
        if thread_time() >= self.until.get() {
            self.is_late.set(true);
        }
        self.check_late()
    }

    /// As `check`, in functions of Lua that work on much data: so does the rest of the script, probably.
    pub(super) fn check_much(self: &Rc<Self>, lua: &Lua) -> Result<(), String> {
        if !self.has_much.replace(true) && self.interval.get() > MUCH_INSTRUCTIONS {
            self.hook(lua, MUCH_INSTRUCTIONS).map_err(|error| error.to_string())?;
        }
        self.check()
    }

    /// As `check`, before each call of the gateway, with some more time: a call may be the last one of a script. The
    /// clock is read now and then, and the processor time only if some time has passed.
    pub(super) fn check_call(&self) -> Result<(), String> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() < CALLS {
            return self.check_late();
        }
        self.calls.set(0);
        let now = machine_time();
        if now.saturating_duration_since(self.looked.get()) >= LOOK {
            let grace = self.run.get() * CALL_GRACE;
            self.looked.set(now);
            if self.look(now) >= self.until.get().saturating_add(grace) {
                self.is_late.set(true);
            }
        }
        self.check_late()
    }

    /// As `check`, without a look at the clock: fails once another check has failed.
    pub(super) fn check_late(&self) -> Result<(), String> {
        if self.is_spent.get() || self.is_late.get() {
            return Err(self.message());
        }
        Ok(())
    }

    /// Whether the run has no time left.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    /// Ends a run; whether it has used its time up.
    pub(super) fn end(&self) -> bool {
        self.until.set(Duration::MAX);
        self.is_late.set(false);
        self.is_spent.get()
    }

    /// The processor time since the run began; in a short run, the time that has passed.
    pub(super) fn used(&self) -> Duration {
        let began = self.began.get();
        let machine = machine_time();
        let passed = machine.saturating_duration_since(began.machine);
        if passed < LOOK {
            return passed;
        }
        self.look(machine).saturating_sub(began.thread).min(passed)
    }
}
