//! Counters of scripts by plugin, for metrics and the status page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counters of the scripts of one plugin in one worker, which alone writes them.
#[derive(Debug, Default)]
pub struct ScriptCounts {
    runs: AtomicU64,
    cpu_us: AtomicU64,
    errors: AtomicU64,
    aborted: AtomicU64,
    refused: AtomicU64,
}

/// The numbers of one plugin, of all workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScriptTotals {
    /// Runs: from the beginning of a script, or the end of a wait, to the next wait or the end.
    pub runs: u64,
    /// Microseconds of processor time.
    pub cpu_us: u64,
    /// Runs that ended with an error.
    pub errors: u64,
    /// Runs that were aborted because they took too long.
    pub aborted: u64,
    /// Runs that did not begin, because too many runs of their script were aborted.
    pub refused: u64,
}

impl ScriptCounts {
    /// Counts a run.
    pub fn ran(&self, cpu: Duration, is_aborted: bool) {
        let micros = u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX);
        for (counter, more) in [(&self.runs, 1), (&self.cpu_us, micros), (&self.aborted, is_aborted.into())] {
            // One thread writes: no atomic addition is needed.
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }

    /// Counts an error.
    pub fn failed(&self) {
        self.errors.store(self.errors.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts a run that did not begin.
    pub fn refused(&self) {
        self.refused.store(self.refused.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn totals(&self) -> ScriptTotals {
        ScriptTotals {
            runs: self.runs.load(Ordering::Relaxed),
            cpu_us: self.cpu_us.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            aborted: self.aborted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

impl ScriptTotals {
    fn add(&mut self, other: ScriptTotals) {
        self.runs += other.runs;
        self.cpu_us += other.cpu_us;
        self.errors += other.errors;
        self.aborted += other.aborted;
        self.refused += other.refused;
    }
}

/// The number of open sockets of the scripts of one worker, which alone writes it.
#[derive(Debug, Default)]
pub struct OpenSockets(AtomicU64);

impl OpenSockets {
    /// Sets the number.
    pub fn set(&self, open: usize) {
        self.0.store(open as u64, Ordering::Relaxed);
    }
}

/// The counters of one engine.
#[derive(Debug, Default)]
struct EngineCounts {
    sockets: Arc<OpenSockets>,
    plugins: Mutex<BTreeMap<Box<str>, Arc<ScriptCounts>>>,
    memory: AtomicU64,
    resets: AtomicU64,
}

/// The counters of all engines of a gateway; a part of the [`crate::Node`].
#[derive(Debug, Default)]
pub struct ScriptBoard {
    engines: Mutex<Vec<Arc<EngineCounts>>>,
    /// Counts of engines that have ended.
    ended: Mutex<BTreeMap<Box<str>, ScriptTotals>>,
    ended_resets: AtomicU64,
}

/// The entry of one engine on the board; its counts stay when it is dropped.
#[derive(Debug)]
pub struct EngineSeat {
    board: Arc<ScriptBoard>,
    counts: Arc<EngineCounts>,
}

impl ScriptBoard {
    /// Adds an engine.
    pub fn enter(self: &Arc<ScriptBoard>) -> EngineSeat {
        let counts = Arc::<EngineCounts>::default();
        lock(&self.engines).push(Arc::clone(&counts));
        EngineSeat { board: Arc::clone(self), counts }
    }

    /// Returns the numbers of each plugin with scripts.
    pub fn totals(&self) -> BTreeMap<Box<str>, ScriptTotals> {
        let mut all = lock(&self.ended).clone();
        for engine in lock(&self.engines).iter() {
            for (plugin, counts) in lock(&engine.plugins).iter() {
                all.entry(plugin.clone()).or_default().add(counts.totals());
            }
        }
        all
    }

    /// Returns how often engines dropped the values of scripts because they had no memory left.
    pub fn resets(&self) -> u64 {
        let running =
            lock(&self.engines).iter().map(|engine| engine.resets.load(Ordering::Relaxed)).sum::<u64>();
        self.ended_resets.load(Ordering::Relaxed) + running
    }

    /// Returns the open sockets of the scripts of each engine.
    pub fn sockets(&self) -> Vec<u64> {
        lock(&self.engines).iter().map(|engine| engine.sockets.0.load(Ordering::Relaxed)).collect()
    }

    /// Returns the bytes in use by the scripts of each engine.
    pub fn memory(&self) -> Vec<u64> {
        lock(&self.engines).iter().map(|engine| engine.memory.load(Ordering::Relaxed)).collect()
    }
}

impl EngineSeat {
    /// Returns the counters of a plugin, to keep: it takes a lock.
    pub fn counts(&self, plugin: &str) -> Arc<ScriptCounts> {
        let mut plugins = lock(&self.counts.plugins);
        if let Some(known) = plugins.get(plugin) {
            return Arc::clone(known);
        }
        let made = Arc::<ScriptCounts>::default();
        plugins.insert(plugin.into(), Arc::clone(&made));
        made
    }

    /// Returns the number of open sockets, to keep.
    pub fn sockets(&self) -> Arc<OpenSockets> {
        Arc::clone(&self.counts.sockets)
    }

    /// Counts that the values of scripts were dropped.
    pub fn reset(&self) {
        self.counts.resets.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the bytes in use by scripts.
    pub fn set_memory(&self, bytes: usize) {
        self.counts.memory.store(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for EngineSeat {
    fn drop(&mut self) {
        lock(&self.board.engines).retain(|engine| !Arc::ptr_eq(engine, &self.counts));
        let resets = self.counts.resets.load(Ordering::Relaxed);
        self.board.ended_resets.fetch_add(resets, Ordering::Relaxed);
        let mut ended = lock(&self.board.ended);
        for (plugin, counts) in lock(&self.counts.plugins).iter() {
            ended.entry(plugin.clone()).or_default().add(counts.totals());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock loses at most one number.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_ended_engines_stay() {
        let board = Arc::<ScriptBoard>::default();
        let (one, other) = (board.enter(), board.enter());
        one.counts("a").ran(Duration::from_micros(5), false);
        other.counts("a").ran(Duration::from_micros(7), true);
        other.counts("b").failed();
        other.counts("b").refused();
        other.set_memory(9);
        other.sockets().set(3);
        other.reset();
        assert_eq!((board.memory(), board.sockets(), board.resets()), (vec![0, 9], vec![0, 3], 1));
        drop(other);
        let totals = board.totals();
        assert_eq!(totals["a"], ScriptTotals { runs: 2, cpu_us: 12, aborted: 1, ..ScriptTotals::default() });
        assert_eq!((totals["b"].errors, totals["b"].refused), (1, 1));
        assert_eq!((board.memory(), board.sockets(), board.resets()), (vec![0], vec![0], 1));
    }
}
