//! Memory that scripts have used up.
//!
//! All scripts of a worker share the memory of one state. When they have used nearly all of it, the collector runs before
//! the next script; if that frees too little, the state forgets the values that scripts keep between requests, and at last
//! it ends the scripts that wait. So one script cannot take the memory from the others for long.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::task::{self, Poll, Waker};

use super::exchange::Exchange;
use super::{Engine, message_of};

/// Fewer exchanges are not searched for ended ones.
const FEW: usize = 64;

/// The memory of one state, and the scripts that hold it.
#[derive(Default)]
pub(crate) struct Memory {
    most: usize,
    /// The use after the last collection.
    collected: Cell<usize>,
    /// Exchanges with values of scripts.
    exchanges: RefCell<Vec<Weak<Exchange>>>,
    sweep_at: Cell<usize>,
    waits: Rc<Waits>,
}

/// The scripts of one state that wait.
#[derive(Default)]
struct Waits {
    /// Scripts of an earlier epoch are ended.
    epoch: Cell<u64>,
    next: Cell<u64>,
    wakers: RefCell<HashMap<u64, Waker>>,
}

/// One script or timer that may wait.
pub(crate) struct Ticket {
    waits: Rc<Waits>,
    epoch: u64,
    number: u64,
    is_listed: Cell<bool>,
}

impl Ticket {
    /// Whether the script must end: it waited while the state had no memory left.
    pub(crate) fn is_evicted(&self) -> bool {
        self.epoch != self.waits.epoch.get()
    }

    /// Ready when the script must end.
    pub(crate) fn poll(&self, cx: &task::Context<'_>) -> Poll<()> {
        if self.is_evicted() {
            return Poll::Ready(());
        }
        self.is_listed.set(true);
        self.waits.wakers.borrow_mut().insert(self.number, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_listed.get() {
            self.waits.wakers.borrow_mut().remove(&self.number);
        }
    }
}

impl Memory {
    pub(super) fn new(most: usize) -> Memory {
        Memory { most, ..Memory::default() }
    }

    /// Lists a script that may wait.
    pub(crate) fn ticket(&self) -> Ticket {
        let waits = &self.waits;
        let number = waits.next.replace(waits.next.get() + 1);
        Ticket { waits: Rc::clone(waits), epoch: waits.epoch.get(), number, is_listed: Cell::new(false) }
    }

    /// Lists an exchange with values of scripts.
    pub(super) fn add(&self, exchange: &Rc<Exchange>) {
        let mut exchanges = self.exchanges.borrow_mut();
        if exchanges.len() >= self.sweep_at.get().max(FEW) {
            exchanges.retain(|exchange| exchange.strong_count() > 0);
            self.sweep_at.set(exchanges.len() * 2);
        }
        exchanges.push(Rc::downgrade(exchange));
    }

    /// Whether scripts have nearly all memory.
    fn is_scarce(&self, used: usize) -> bool {
        used > self.most / 8 * 7
    }

    /// Whether a collection is due: a good part of the memory was taken since the last one.
    fn is_collection_due(&self, used: usize) -> bool {
        used > self.most / 4 * 3 && used > self.collected.get() + self.most / 16
    }

    /// Ends all scripts that wait, and empties the tables of exchanges.
    fn evict(&self) -> mlua::Result<()> {
        self.waits.epoch.set(self.waits.epoch.get() + 1);
        self.waits.wakers.take().into_values().for_each(Waker::wake);
        for exchange in self.exchanges.take().iter().filter_map(Weak::upgrade) {
            exchange.empty()?;
        }
        Ok(())
    }
}

impl Engine {
    /// Frees memory before a script runs, if others have left too little.
    pub(crate) fn make_room(&self) {
        let used = self.lua.used_memory();
        if !self.memory.is_scarce(used) && !self.memory.is_collection_due(used) {
            return;
        }
        if self.is_roomy_after_collection() {
            return;
        }
        tracing::error!(
            bytes = self.lua.used_memory(),
            "the scripts of this worker use nearly all memory (`memory_mib`): the values that they keep between requests are dropped"
        );
        self.board_seat().reset();
        self.forget();
        if self.is_roomy_after_collection() {
            return;
        }
        tracing::error!("waiting scripts use up the memory of this worker's scripts: they are ended");
        if let Err(error) = self.memory.evict() {
            tracing::error!("cannot free the memory of scripts: {}", message_of(&error));
        }
        // Ended scripts free their memory when they are woken.
        self.is_roomy_after_collection();
    }

    /// Collects; whether scripts have memory again.
    fn is_roomy_after_collection(&self) -> bool {
        // The second one frees what finalizers have released.
        for _ in 0..2 {
            if let Err(error) = self.lua.gc_collect() {
                tracing::error!("cannot collect the garbage of scripts: {}", message_of(&error));
            }
        }
        let used = self.lua.used_memory();
        self.memory.collected.set(used);
        !self.memory.is_scarce(used)
    }

    /// Drops the values that scripts keep between requests.
    fn forget(&self) {
        self.instances.clear();
        self.generation.borrow_mut().take();
        for forget in self.host.of_forgetting_functions() {
            if let Err(error) = forget.call::<()>(()) {
                tracing::error!("cannot drop the values of scripts: {}", message_of(&error));
            }
        }
    }
}
