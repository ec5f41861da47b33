//! The time at the turn of a task: read once, and then the same until the task waits.
//!
//! A clock reading costs about 40 ns, and an exchange has six moments that its line shows in milliseconds. Between
//! two waits a task computes for microseconds, so that one reading is enough for all of them, as in nginx.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn::None) };
}

#[derive(Clone, Copy)]
enum Turn {
    /// No task has its turn: a stored time would be outdated at the next reading.
    None,
    /// The time was not read yet.
    Begun,
    Read(Instant),
}

/// Returns the time, at most as old as the turn of the calling task.
pub fn now() -> Instant {
    TURN.with(|turn| match turn.get() {
        Turn::Read(at) => at,
        Turn::Begun => {
            let at = exact();
            turn.set(Turn::Read(at));
            at
        }
        Turn::None => exact(),
    })
}

/// Returns the time, read now.
#[inline]
pub fn exact() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(clock) = CLOCK.get() {
        return clock();
    }
    Instant::now()
}

#[cfg(feature = "simulation")]
thread_local! {
    static CLOCK: Cell<Option<fn() -> Instant>> = const { Cell::new(None) };
}

/// Makes this thread read another clock, for simulations.
#[cfg(feature = "simulation")]
pub fn read_clock(clock: fn() -> Instant) {
    CLOCK.set(Some(clock));
}

/// Gives a task its turn: `run` polls it.
#[inline]
pub fn turn<R>(run: impl FnOnce() -> R) -> R {
    /// Ends the turn, even after a panic.
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            TURN.set(Turn::None);
        }
    }
    TURN.set(Turn::Begun);
    let _over = Over;
    run()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves() -> bool {
        let began = now();
        // Bounded by the clock itself: it is finer than a microsecond.
        (0..1_000_000).any(|_| now() != began)
    }

    #[test]
    fn time_is_constant_within_a_turn_only() {
        assert!(moves());
        let first = turn(|| {
            assert!(!moves());
            now()
        });
        assert!(moves());
        assert!(turn(now) > first);
    }

    #[test]
    fn a_panic_ends_a_turn() {
        let broken = std::panic::catch_unwind(|| turn(|| panic!("at {:?}", now())));
        assert!(broken.is_err() && moves());
    }
}
