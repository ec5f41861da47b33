//! Runs of failures: workers number the runs of failures and successes that they see. So reports that wait, or are
//! dropped on the way to the control side, do not join separate runs.

use std::sync::atomic::{AtomicU32, Ordering};

use super::state::{Event, Limits};

/// The runs of one target. An odd number is a run of failures, an even one a run of successes.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// The run of the last event seen by a worker.
    seen: AtomicU32,
    /// The run of the last applied event. Control side only.
    applied: AtomicU32,
}

impl Runs {
    /// Records an event of a worker. Returns the number of its run, and true if it starts the run. Nothing is written
    /// while a run continues.
    #[inline]
    pub(super) fn note(&self, event: Event) -> (u32, bool) {
        let is_failure = event != Event::Success;
        loop {
            let run = self.seen.load(Ordering::Relaxed);
            if is_failure == is_odd(run) {
                return (run, false);
            }
            let next = run.wrapping_add(1);
            if self.seen.compare_exchange(run, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return (next, true);
            }
        }
    }

    /// Returns the events to apply for a report of `event` in this run (control side): none if a later run has ended
    /// it already, and first a success whose own report was lost or is late. If successes do not count by `limits`,
    /// runs do not either.
    pub(super) fn in_order(
        &self,
        event: Event,
        run: u32,
        limits: Limits,
    ) -> impl Iterator<Item = Event> + use<> {
        let ahead = run.wrapping_sub(self.applied.load(Ordering::Relaxed)).cast_signed();
        let counts = limits.successes > 0;
        if ahead > 0 {
            self.applied.store(run, Ordering::Relaxed);
        }
        let missed = (counts && ahead > 1).then_some(Event::Success);
        missed.into_iter().chain((!counts || ahead >= 0).then_some(event))
    }
}

fn is_odd(run: u32) -> bool {
    run % 2 == 1
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::Health;
    use super::super::state::{Standing, State};
    use super::*;

    const LIMITS: Limits = Limits { successes: 1, http_failures: 3, tcp_failures: 3, timeouts: 3 };

    fn event(letter: char) -> Event {
        if letter == 's' { Event::Success } else { Event::HttpFailure }
    }

    /// Handles a report on the control side.
    fn arrive(health: &Health, event: Event, run: u32, limits: Limits) {
        for event in health.runs.in_order(event, run, limits) {
            health.apply(event, limits);
        }
    }

    /// Reports of `seen` wait until all are there; those at the positions in `lost` never arrive.
    fn check(limits: Limits, seen: &str, lost: &[usize], want: State) {
        let health = Health::unchecked();
        let all: Vec<(Event, u32)> =
            seen.chars().map(event).map(|event| (event, health.runs.note(event).0)).collect();
        for (at, (event, run)) in all.into_iter().enumerate() {
            if !lost.contains(&at) {
                arrive(&health, event, run, limits);
            }
        }
        assert_eq!(health.standing().state, want, "{seen} without {lost:?}");
    }

    #[test]
    fn waiting_or_lost_reports_make_no_row() {
        check(LIMITS, "ffsf", &[], State::MostlyHealthy);
        check(LIMITS, "fff", &[], State::Unhealthy);
        check(LIMITS, "ffsff", &[2], State::MostlyHealthy);
        check(LIMITS, "ffsfsff", &[2, 3, 4], State::MostlyHealthy);
        check(LIMITS, "ffsfff", &[2], State::Unhealthy);
        check(LIMITS, "ffff", &[1], State::Unhealthy);
        let deaf = Limits { successes: 0, ..LIMITS };
        check(deaf, "fsfsf", &[], State::Unhealthy);
        check(deaf, "fsfsf", &[1, 3], State::Unhealthy);
    }

    #[test]
    fn a_late_report_does_not_count() {
        let health = Health::unchecked();
        let late: Vec<u32> = (0..2).map(|_| health.runs.note(Event::HttpFailure).0).collect();
        let (ended, _) = health.runs.note(Event::Success);
        arrive(&health, Event::Success, ended, LIMITS);
        late.into_iter().for_each(|run| arrive(&health, Event::HttpFailure, run, LIMITS));
        assert_eq!(health.standing().http_failures, 0);
    }

    #[test]
    fn numbers_may_wrap() {
        let runs = Runs { seen: AtomicU32::new(u32::MAX - 1), applied: AtomicU32::new(u32::MAX - 1) };
        for (event, want) in [(Event::Timeout, u32::MAX), (Event::Success, 0), (Event::Timeout, 1)] {
            let (run, begins) = runs.note(event);
            assert_eq!((run, begins), (want, true));
            assert_eq!(runs.in_order(event, run, LIMITS).collect::<Vec<_>>(), [event]);
        }
    }

    /// A target goes out with exactly the failure that completes a row of real events, for any reports of workers and
    /// any delay of the control side.
    #[test]
    fn rows_match_the_events() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (health, mut waiting, mut real) = (Health::unchecked(), VecDeque::new(), Standing::default());
            while real.state.usable() {
                let event = if random.u32(..5) < 2 { Event::Success } else { Event::HttpFailure };
                let (run, turned) = health.runs.note(event);
                // The reports of workers, by the state that they see.
                if turned || !super::super::state::ignored(health.standing().state, event) {
                    waiting.push_back((event, run));
                }
                real = real.after(event, LIMITS);
                while random.u32(..3) == 0 {
                    let Some((event, run)) = waiting.pop_front() else { break };
                    arrive(&health, event, run, LIMITS);
                    assert!(health.usable() || !real.state.usable(), "seed {seed}");
                }
            }
            for (event, run) in waiting {
                arrive(&health, event, run, LIMITS);
            }
            assert!(!health.usable(), "seed {seed}");
        }
    }
}
