//! The run time of scripts: a hook in the interpreter ends those that take too long.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use mlua::{HookTriggers, Lua, VmState};
use rustix::time::{ClockId, clock_gettime};

/// Instructions between two readings of the clock: some 100 µs.
const INSTRUCTIONS: u32 = 10_000;

/// The time that the scripts of one state have used.
pub(crate) struct Budget {
    /// The most time of the run without a wait.
    run: Cell<Duration>,
    /// The time of the thread when the run began.
    began: Cell<Duration>,
    /// The time of the thread when the run ends at the latest.
    until: Cell<Duration>,
    /// The run has no time left. The hook fails at each instruction then: so `pcall` cannot go on.
    is_spent: Cell<bool>,
    /// A function outside the interpreter has seen the end of the time.
    is_late: Cell<bool>,
}

/// The processor time of this thread: other threads and a busy machine do not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

impl Budget {
    pub(crate) fn new() -> Budget {
        Budget {
            run: Cell::new(Duration::ZERO),
            began: Cell::new(Duration::ZERO),
            until: Cell::new(Duration::MAX),
            is_spent: Cell::new(false),
            is_late: Cell::new(false),
        }
    }

    /// The text of the error.
    fn message(&self) -> String {
        format!("the script ran longer than {} ms without a wait", self.run.get().as_millis())
    }

    /// Installs the hook.
    pub(super) fn install(self: &Rc<Self>, lua: &Lua) -> mlua::Result<()> {
        self.hook(lua, INSTRUCTIONS)
    }

    fn hook(self: &Rc<Self>, lua: &Lua, instructions: u32) -> mlua::Result<()> {
        let budget = Rc::clone(self);
        let triggers = HookTriggers::new().every_nth_instruction(instructions);
        lua.set_global_hook(triggers, move |lua, _| {
            if !budget.is_spent.get() && thread_time() < budget.until.get() {
                return Ok(VmState::Continue);
            }
            if !budget.is_spent.replace(true) {
                budget.hook(lua, 1)?;
            }
            Err(mlua::Error::runtime(budget.message()))
        })
    }

    /// Begins a run that may take so long.
    pub(super) fn begin(self: &Rc<Self>, lua: &Lua, run: Duration) -> mlua::Result<()> {
        if self.is_spent.replace(false) {
            self.hook(lua, INSTRUCTIONS)?;
        }
        self.is_late.set(false);
        let now = thread_time();
        self.run.set(run);
        self.began.set(now);
        self.until.set(now + run);
        Ok(())
    }

    /// Fails if the run has no time left. The hook ends the script with its next instructions.
    pub(super) fn check(&self) -> Result<(), String> {
        if thread_time() >= self.until.get() {
            self.is_late.set(true);
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
        self.is_spent.get()
    }

    /// The processor time since the run began.
    pub(super) fn used(&self) -> Duration {
        thread_time().saturating_sub(self.began.get())
    }
}
