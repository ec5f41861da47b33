//! The time as of the turn of a task: read once, and then the same for all that the task does until it waits.
//!
//! A clock costs some 40 ns, and an exchange passes six moments that its line shows in milliseconds. Between two times of
//! waiting a task computes for microseconds, so that the first reading does for all of them, as in nginx.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn::None) };
}

#[derive(Clone, Copy)]
enum Turn {
    /// No task has its turn: what was read would be old when it is asked for again.
    None,
    /// Nobody has asked yet.
    Begun,
    Read(Instant),
}

/// The time, at most as old as the turn of the task that asks.
pub fn now() -> Instant {
    TURN.with(|turn| match turn.get() {
        Turn::Read(at) => at,
        Turn::Begun => {
            let at = Instant::now();
            turn.set(Turn::Read(at));
            at
        }
        Turn::None => Instant::now(),
    })
}

/// Lets a task have its turn: whoever polls it does so in `run`.
#[inline]
pub fn turn<R>(run: impl FnOnce() -> R) -> R {
    /// The turn is over, even if what ran has panicked.
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
    fn time_stands_still_within_a_turn_and_nowhere_else() {
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
