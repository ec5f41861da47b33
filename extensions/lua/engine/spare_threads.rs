//! Coroutines that have run to their end, for further runs: a new one costs more than most scripts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlua::{Function, Lua, Thread};

/// The most that are kept.
const MOST: usize = 64;

#[derive(Default)]
pub(super) struct SpareThreads {
    threads: RefCell<Vec<Thread>>,
    /// How often scripts have asked for the coroutine that runs.
    shown: Rc<Cell<u64>>,
}

/// The coroutine of a run, which runs further functions after its end unless a script may have kept it: the script could
/// resume it while it waits for another request.
pub(super) struct MainThread {
    pub(super) thread: Thread,
    shown: u64,
}

impl SpareThreads {
    /// The function that the prelude calls when a script asks for the coroutine that runs.
    pub(super) fn note_shown(&self, lua: &Lua) -> mlua::Result<Function> {
        let shown = Rc::clone(&self.shown);
        lua.create_function(move |_, ()| {
            shown.set(shown.get() + 1);
            Ok(())
        })
    }

    /// A coroutine that runs this function.
    ///
    /// # Errors
    /// Fails if there is no memory for it.
    pub(super) fn take(&self, lua: &Lua, function: &Function) -> mlua::Result<MainThread> {
        let spare = self.threads.borrow_mut().pop();
        let thread = match spare {
            Some(thread) if thread.reset(function.clone()).is_ok() => thread,
            _ => lua.create_thread(function.clone())?,
        };
        Ok(MainThread { thread, shown: self.shown.get() })
    }

    /// Keeps the coroutine of a run that has ended.
    pub(super) fn keep(&self, MainThread { thread, shown }: MainThread) {
        let mut threads = self.threads.borrow_mut();
        if shown == self.shown.get() && threads.len() < MOST && thread.is_finished() {
            threads.push(thread);
        }
    }
}
