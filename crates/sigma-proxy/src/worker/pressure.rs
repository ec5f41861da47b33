//! Pressure: how close the process is to the limits of memory and descriptors, and a worker to the limit of its time.
//! Under pressure requests are rejected, the least important ones first (`load_shedding`).
//!
//! The control side measures the process once a second. A worker reads that, and the lateness of its own clock, on
//! each tick; a request reads one number of its worker.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sigma_config::resources::PriorityClass;
use sigma_config::settings::LoadShedding;

/// The share of its limits that the process has used, in percent.
#[derive(Debug)]
pub struct Pressure {
    memory: AtomicU32,
    descriptors: AtomicU32,
    held_limit: AtomicU64,
}

impl Default for Pressure {
    fn default() -> Pressure {
        Pressure {
            memory: AtomicU32::new(0),
            descriptors: AtomicU32::new(0),
            held_limit: AtomicU64::new(sigma_buffer::held::DEFAULT_LIMIT_BYTES as u64),
        }
    }
}

impl Pressure {
    /// Sets how much of the memory and of the descriptors is used. Control side.
    pub fn set(&self, memory: u32, descriptors: u32) {
        self.memory.store(memory, Ordering::Relaxed);
        self.descriptors.store(descriptors, Ordering::Relaxed);
    }

    /// Sets how many bytes each worker may hold for clients without a setting. Control side.
    pub fn set_held_limit(&self, bytes: u64) {
        self.held_limit.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that a worker may hold for clients without a setting.
    pub fn held_limit(&self) -> u64 {
        self.held_limit.load(Ordering::Relaxed)
    }

    /// Returns the share of the memory.
    pub fn memory(&self) -> u32 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Returns the share of the descriptors that connections may have.
    pub fn descriptors(&self) -> u32 {
        self.descriptors.load(Ordering::Relaxed)
    }
}

/// The pressure that one worker is under.
#[derive(Debug)]
pub(crate) struct Strain {
    process: Arc<Pressure>,
    queue: Cell<u32>,
    /// The highest of all; 0 below the percentage from which on requests are rejected.
    felt: Cell<u32>,
    /// The time of the last message about it.
    told_ms: Cell<Option<u64>>,
}

/// The least time between two messages that a worker is under pressure.
const TELL_MS: u64 = 10_000;

impl Strain {
    pub(crate) fn new(process: Arc<Pressure>) -> Strain {
        Strain { process, queue: Cell::new(0), felt: Cell::new(0), told_ms: Cell::new(None) }
    }

    /// Updates the pressure; call it once per tick of the worker's clock, which is late by so much. Returns true if a
    /// message about it is due.
    pub(crate) fn tick(&self, now_ms: u64, late_ms: u64, rules: &LoadShedding) -> bool {
        // Ready tasks wait as long as the clock does. A peak decreases by a quarter each tick.
        self.queue.set(percent(late_ms, rules.queue_time_ms.into()).max(self.queue.get() / 4 * 3));
        let highest = self.process.memory().max(self.process.descriptors()).max(self.queue.get());
        let is_felt = rules.enabled && highest >= rules.sheddable_percent.into();
        self.felt.set(if is_felt { highest } else { 0 });
        let is_news = is_felt && self.told_ms.get().is_none_or(|told_ms| now_ms >= told_ms + TELL_MS);
        if is_news {
            self.told_ms.set(Some(now_ms));
        }
        is_news
    }

    /// Returns the pressure as the control side has set it.
    pub(crate) fn process(&self) -> &Pressure {
        &self.process
    }

    /// Returns the pressure in percent; 0 if nothing is rejected.
    #[inline]
    pub(crate) fn felt(&self) -> u32 {
        self.felt.get()
    }
}

/// Returns the percentage of a part, where 0 is no bound.
fn percent(part: u64, whole: u64) -> u32 {
    match whole {
        0 => 0,
        _ => u32::try_from(part.saturating_mul(100) / whole).unwrap_or(u32::MAX),
    }
}

/// Returns true if a request of this class is rejected at a pressure. `random` are 64 random bits.
pub(crate) fn is_refused(class: PriorityClass, pressure: u32, rules: &LoadShedding, random: u64) -> bool {
    let Some((some, all)) = rules.range(class) else { return false };
    if pressure < some {
        return false;
    }
    // All of them from the end of the range on, and some already where it begins.
    let (above, span) = (u64::from(pressure - some + 1), u64::from(all.saturating_sub(some) + 1));
    above >= span || random % span < above
}

#[cfg(test)]
mod tests {
    use sigma_net::deadline;

    use super::*;

    const CLASSES: [PriorityClass; 4] = [
        PriorityClass::Sheddable,
        PriorityClass::SheddablePlus,
        PriorityClass::Critical,
        PriorityClass::CriticalPlus,
    ];

    /// How many of a thousand requests of each class are refused.
    fn refused(pressure: u32, rules: &LoadShedding) -> [usize; 4] {
        CLASSES.map(|class| (0..1_000).filter(|n| is_refused(class, pressure, rules, *n)).count())
    }

    #[test]
    fn the_least_important_go_first_and_more_of_them_the_higher_it_is() {
        let rules = LoadShedding::default();
        let expected = [
            (0, [0, 0, 0, 0]),
            (79, [0, 0, 0, 0]),
            (80, [91, 0, 0, 0]),
            (85, [546, 0, 0, 0]),
            (90, [1_000, 167, 0, 0]),
            (95, [1_000, 1_000, 167, 0]),
            (98, [1_000, 1_000, 668, 0]),
            (100, [1_000, 1_000, 1_000, 0]),
            (u32::MAX, [1_000, 1_000, 1_000, 0]),
        ];
        for (pressure, expected) in expected {
            assert_eq!(refused(pressure, &rules), expected, "{pressure}");
        }
        let step = LoadShedding { sheddable_percent: 90, ..LoadShedding::default() };
        assert_eq!(refused(90, &step)[0], 1_000);
    }

    #[test]
    fn a_clock_that_is_late_is_felt_for_a_while() {
        let strain = Strain::new(Arc::default());
        let rules = LoadShedding { queue_time_ms: 100, ..LoadShedding::default() };
        let mut now_ms = 0;
        let mut tick = |late_ms| {
            now_ms += deadline::TICK_MS + late_ms;
            (strain.tick(now_ms, late_ms, &rules), strain.felt())
        };
        assert_eq!([tick(0), tick(20)], [(false, 0), (false, 0)]);
        assert_eq!(tick(200), (true, 200));
        assert_eq!(
            [tick(0), tick(0), tick(0), tick(0)],
            [(false, 150), (false, 111), (false, 81), (false, 0)]
        );
        assert_eq!(tick(90), (false, 90), "that was told a moment ago");
        assert_eq!(tick(10_000), (true, 10_000));
        let off = LoadShedding { enabled: false, ..rules.clone() };
        assert!(!strain.tick(now_ms + 10_000, 10_000, &off) && strain.felt() == 0);
    }

    #[test]
    fn the_highest_counts() {
        let process = Arc::<Pressure>::default();
        let strain = Strain::new(Arc::clone(&process));
        let rules = LoadShedding::default();
        for ((memory, descriptors), felt) in [((79, 10), 0), ((80, 10), 80), ((10, 96), 96), ((0, 0), 0)] {
            process.set(memory, descriptors);
            strain.tick(0, 0, &rules);
            assert_eq!(strain.felt(), felt);
        }
    }
}
