//! A circuit breaker by failure ratio and slow request ratio (Resilience4j), for the whole process.
//!
//! While it is closed, a successful request costs one load and one worker-local addition: successes are forwarded in
//! batches ([`Tally`]). Failures, slow requests and trials are forwarded at once.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sigma_config::resources::CircuitBreaker;

use crate::lock::lock;

/// The parts of the window that expire one by one.
const BUCKETS: u64 = 10;

/// The limit of successes that a worker keeps, and its time limit.
const BATCH: u32 = 32;
const BATCH_MS: u64 = 100;

const CLOSED: u64 = 0;
const HALF_OPEN: u64 = 1;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A response in time
    Success,
    /// A slow response
    Slow,
    /// A failure
    Failure,
    /// No statement about the upstream: the client left
    Nothing,
}

/// The kind of an admitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// A normal request
    Normal,
    /// A trial that tests whether the upstream works again
    Trial,
}

/// A breaker.
#[derive(Debug)]
pub struct Breaker {
    /// [`CLOSED`], [`HALF_OPEN`], or the time until which it is open.
    state: AtomicU64,
    breaker_state: Mutex<BreakerState>,
}

/// Successes of one worker that are not passed to a breaker yet.
#[derive(Debug, Default)]
pub struct Tally {
    successes: Cell<u32>,
    told_ms: Cell<u64>,
}

impl Breaker {
    /// Returns a closed breaker.
    pub fn new(rules: CircuitBreaker) -> Breaker {
        Breaker { state: AtomicU64::new(CLOSED), breaker_state: Mutex::new(BreakerState::new(rules)) }
    }

    /// Returns its state without changing it: `closed`, `half_open` or `open`.
    pub fn state_name(&self) -> &'static str {
        match self.state.load(Ordering::Relaxed) {
            CLOSED => "closed",
            HALF_OPEN => "half_open",
            _ => "open",
        }
    }

    /// Returns the kind of an admitted request; None if it is rejected. The clock is the process's.
    pub fn admit(&self, now_ms: u64) -> Option<Pass> {
        match self.state.load(Ordering::Relaxed) {
            CLOSED => Some(Pass::Normal),
            until if until > HALF_OPEN && now_ms < until => None,
            _ => {
                let mut breaker_state = lock(&self.breaker_state);
                let pass = breaker_state.admit(now_ms);
                self.state.store(breaker_state.word(), Ordering::Relaxed);
                pass
            }
        }
    }

    /// Records the end of an admitted request. Returns the change of the breaker that it causes.
    pub fn record(&self, tally: &Tally, pass: Pass, outcome: Outcome, now_ms: u64) -> Option<Turn> {
        if pass == Pass::Normal && outcome == Outcome::Success {
            tally.successes.set(tally.successes.get() + 1);
            if tally.successes.get() < BATCH && now_ms < tally.told_ms.get() + BATCH_MS {
                return None;
            }
        } else if pass == Pass::Normal && outcome == Outcome::Nothing {
            return None;
        }
        tally.told_ms.set(now_ms);
        let mut breaker_state = lock(&self.breaker_state);
        breaker_state.succeeded(tally.successes.take(), now_ms);
        let turn = match pass {
            Pass::Trial => breaker_state.tried(outcome, now_ms),
            Pass::Normal => breaker_state.ended(outcome, now_ms),
        };
        self.state.store(breaker_state.word(), Ordering::Relaxed);
        turn
    }
}

/// A change of state for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is open now.
    Opened,
    /// It is closed again.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until_ms: u64 },
    HalfOpen(Trials),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Trials {
    under_way: u32,
    counts: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    total: u32,
    failed: u32,
    slow: u32,
}

impl Counts {
    fn add(&mut self, outcome: Outcome) {
        self.total += 1;
        self.failed += u32::from(outcome == Outcome::Failure);
        self.slow += u32::from(outcome == Outcome::Slow);
    }
}

/// The rules, without sharing.
#[derive(Debug)]
struct BreakerState {
    rules: CircuitBreaker,
    state: State,
    /// Counts with the number of their part of time.
    buckets: [(u64, Counts); BUCKETS as usize],
}

impl BreakerState {
    fn new(rules: CircuitBreaker) -> BreakerState {
        BreakerState {
            rules,
            state: State::Closed,
            buckets: [(u64::MAX, Counts::default()); BUCKETS as usize],
        }
    }

    fn word(&self) -> u64 {
        match self.state {
            State::Closed => CLOSED,
            State::HalfOpen(_) => HALF_OPEN,
            State::Open { until_ms } => until_ms.max(HALF_OPEN + 1),
        }
    }

    fn admit(&mut self, now_ms: u64) -> Option<Pass> {
        if let State::Open { until_ms } = self.state {
            if now_ms < until_ms {
                return None;
            }
            self.state = State::HalfOpen(Trials::default());
        }
        let permitted = self.rules.permitted_number_of_calls_in_half_open_state;
        match &mut self.state {
            State::HalfOpen(trials) if trials.under_way + trials.counts.total < permitted => {
                trials.under_way += 1;
                Some(Pass::Trial)
            }
            State::HalfOpen(_) => None,
            _ => Some(Pass::Normal),
        }
    }

    fn succeeded(&mut self, count: u32, now_ms: u64) {
        if self.state == State::Closed && count > 0 {
            self.bucket(now_ms).total += count;
        }
    }

    /// Handles the end of a request that is not a trial; one from before the opening does not count.
    fn ended(&mut self, outcome: Outcome, now_ms: u64) -> Option<Turn> {
        if self.state != State::Closed || !matches!(outcome, Outcome::Failure | Outcome::Slow) {
            return None;
        }
        self.bucket(now_ms).add(outcome);
        let counts = self.window(now_ms);
        if counts.total < self.rules.minimum_number_of_calls || !self.is_too_bad(counts) {
            return None;
        }
        self.open(now_ms);
        Some(Turn::Opened)
    }

    fn tried(&mut self, outcome: Outcome, now_ms: u64) -> Option<Turn> {
        let State::HalfOpen(trials) = &mut self.state else { return None };
        // A trial of an earlier period may end in a later one.
        trials.under_way = trials.under_way.saturating_sub(1);
        if outcome == Outcome::Nothing {
            return None;
        }
        trials.counts.add(outcome);
        let counts = trials.counts;
        if counts.total < self.rules.permitted_number_of_calls_in_half_open_state {
            return None;
        }
        if self.is_too_bad(counts) {
            self.open(now_ms);
            return Some(Turn::Opened);
        }
        *self = BreakerState::new(self.rules.clone());
        Some(Turn::Closed)
    }

    fn open(&mut self, now_ms: u64) {
        let wait_ms = (self.rules.wait_duration_in_open_state * 1000.0) as u64;
        *self = BreakerState::new(self.rules.clone());
        self.state = State::Open { until_ms: now_ms + wait_ms };
    }

    fn is_too_bad(&self, Counts { total, failed, slow }: Counts) -> bool {
        let percent = |count: u32| f64::from(count) * 100.0 / f64::from(total.max(1));
        percent(failed) >= self.rules.failure_rate_threshold
            || percent(slow) >= self.rules.slow_call_rate_threshold
    }

    fn part(&self, now_ms: u64) -> u64 {
        now_ms / ((self.rules.sliding_window * 1000.0) as u64 / BUCKETS).max(1)
    }

    fn bucket(&mut self, now_ms: u64) -> &mut Counts {
        let part = self.part(now_ms);
        let (of, counts) = &mut self.buckets[(part % BUCKETS) as usize];
        if *of != part {
            (*of, *counts) = (part, Counts::default());
        }
        counts
    }

    fn window(&self, now_ms: u64) -> Counts {
        let now = self.part(now_ms);
        let within = self.buckets.iter().filter(|(part, _)| *part <= now && now - part < BUCKETS);
        within.fold(Counts::default(), |sum, (_, counts)| Counts {
            total: sum.total + counts.total,
            failed: sum.failed + counts.failed,
            slow: sum.slow + counts.slow,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> CircuitBreaker {
        CircuitBreaker {
            minimum_number_of_calls: 10,
            permitted_number_of_calls_in_half_open_state: 2,
            ..CircuitBreaker::default()
        }
    }

    /// A breaker with a clock.
    struct Bench {
        breaker: Breaker,
        tally: Tally,
        now_ms: u64,
    }

    impl Bench {
        fn new(rules: CircuitBreaker) -> Bench {
            Bench { breaker: Breaker::new(rules), tally: Tally::default(), now_ms: 1_000_000 }
        }

        /// Requests one by one: `s`uccess, s`l`ow, `f`ailure, `n`othing. The results: `.` admitted, `!` the breaker
        /// opened by it, `c` it closed, `x` rejected.
        fn run(&mut self, requests: &str) -> String {
            let one = |request| {
                let Some(pass) = self.breaker.admit(self.now_ms) else { return 'x' };
                let outcome = match request {
                    's' => Outcome::Success,
                    'l' => Outcome::Slow,
                    'f' => Outcome::Failure,
                    _ => Outcome::Nothing,
                };
                match self.breaker.record(&self.tally, pass, outcome, self.now_ms) {
                    None => '.',
                    Some(Turn::Opened) => '!',
                    Some(Turn::Closed) => 'c',
                }
            };
            requests.chars().map(one).collect()
        }
    }

    #[test]
    fn it_opens_by_ratio_and_closes_by_trials() {
        let mut bench = Bench::new(rules());
        assert_eq!(bench.run("fffffffff"), ".........", "too few to be judged");
        assert_eq!(bench.run("fss"), "!xx");
        bench.now_ms += 9_999;
        assert_eq!(bench.run("s"), "x");
        bench.now_ms += 1;
        assert_eq!(bench.run("sss"), ".c.");
        assert_eq!(bench.run("ffffffff"), "........", "the window has begun anew");
    }

    #[test]
    fn successes_count_against_failures_though_they_come_in_batches() {
        let mut bench = Bench::new(rules());
        assert_eq!(bench.run("ssssssssssffffffffff"), "...................!");
        let mut bench = Bench::new(CircuitBreaker { failure_rate_threshold: 90.0, ..rules() });
        assert_eq!(bench.run("ssssssssssffffffffff"), "....................");
    }

    #[test]
    fn trials_that_fail_open_it_again() {
        let mut bench = Bench::new(rules());
        bench.run("ffffffffff");
        bench.now_ms += 10_000;
        assert_eq!(bench.run("sf"), ".!", "half of them");
        assert_eq!(bench.run("s"), "x");
        bench.now_ms += 10_000;
        // Only the permitted number is admitted at a time, and an inconclusive trial frees its place.
        let passes: Vec<_> = (0..4).map(|_| bench.breaker.admit(bench.now_ms)).collect();
        assert_eq!(passes, [Some(Pass::Trial), Some(Pass::Trial), None, None]);
        let record = |outcome| bench.breaker.record(&bench.tally, Pass::Trial, outcome, bench.now_ms);
        assert_eq!(record(Outcome::Nothing), None);
        assert_eq!(bench.breaker.admit(bench.now_ms), Some(Pass::Trial));
        assert_eq!([record(Outcome::Success), record(Outcome::Success)], [None, Some(Turn::Closed)]);
    }

    #[test]
    fn slow_requests_have_a_ratio_of_their_own() {
        let mut bench = Bench::new(CircuitBreaker { slow_call_rate_threshold: 60.0, ..rules() });
        assert_eq!(bench.run("sssssslllllllllx"), "..............!x");
    }

    #[test]
    fn old_results_expire() {
        let mut bench = Bench::new(rules());
        bench.run("fffffffff");
        bench.now_ms += 10_000;
        assert_eq!(bench.run("f"), ".");
        bench.now_ms += 9_000;
        assert_eq!(bench.run("fffffffff"), "........!");
    }

    #[test]
    fn requests_from_before_the_opening_change_nothing() {
        let mut bench = Bench::new(rules());
        let early = bench.breaker.admit(bench.now_ms).expect("closed");
        bench.run("ffffffffff");
        for outcome in [Outcome::Success, Outcome::Failure] {
            assert_eq!(bench.breaker.record(&bench.tally, early, outcome, bench.now_ms), None);
        }
        assert_eq!(bench.run("s"), "x");
    }
}
