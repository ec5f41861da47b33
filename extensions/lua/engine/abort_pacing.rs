//! Pacing of scripts whose runs were aborted.
//!
//! An aborted run has held its worker for its whole run time, and other requests have waited for it. So the aborted runs
//! of a worker may take a small share of its time. The share has two halves:
//!
//! - A script with an aborted run pays the time back before it gets the whole run time again.
//! - Until then its runs get a short time, which is paid back from the second half. A run that ends by itself is free. So
//!   a script that only some requests make endless continues to serve the others. Clients whose runs were aborted get
//!   the short time only while nothing of it is owed, so one client cannot use up the short time of the others.
//! - Without short time left, a run is refused.
//!
//! Scripts that were never aborted are not affected. All aborted scripts of a worker share both halves equally.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A setting of so many milliseconds a second limits nothing.
const NO_LIMIT_MS: u64 = 1000;

/// The short time, as a part of the run time.
const SHORT: u32 = 40;

/// The longest that one script alone pays back.
const LONGEST_DEBT: Duration = Duration::from_secs(60);

/// The most scripts with a debt. The script with the smallest debt is forgotten for another one.
const MOST_SCRIPTS: usize = 1024;

/// The most clients of one script that are known for their aborted runs.
const MOST_CLIENTS: usize = 8;

/// The time between two searches for scripts without a debt.
const SWEEP: Duration = Duration::from_secs(1);

/// The time that a run gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunAdmission {
    /// The run time of its plugin.
    Whole,
    /// A part of it, because the script owes time.
    Short(Duration),
    /// None.
    Refused {
        /// Its runs that were aborted since it last owed nothing.
        aborted: u64,
        /// It gets the whole run time after this at the latest, if no further script is aborted.
        wait: Duration,
    },
}

/// The client of a run, hashed; runs without a client share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClientHash(u64);

/// The aborted scripts of one worker.
pub(crate) struct AbortPacing {
    hasher: RandomState,
    /// One half of the share: the part of a second that is paid back in a second. None without a limit.
    half: Option<f64>,
    scripts: RefCell<HashMap<u64, AbortedScript>>,
    /// The time for which one script has paid back: it runs slower the more scripts there are.
    paid: Cell<Duration>,
    /// The time up to which `paid` is right.
    now: Cell<Option<Instant>>,
    swept: Cell<Option<Instant>>,
}

/// A script that owes time.
#[derive(Default)]
struct AbortedScript {
    /// The time of its aborted runs that had the whole run time.
    debt: Duration,
    /// The time of its aborted runs that had a short time.
    short_debt: Duration,
    /// [`AbortPacing::paid`] as of the last payment.
    paid: Duration,
    /// Its longest run that ended by itself since it owes time.
    usual: Duration,
    aborted: u64,
    /// Clients of aborted runs, the newest instead of the oldest.
    clients: [Option<ClientHash>; MOST_CLIENTS],
}

impl AbortedScript {
    /// The short time: twice the usual one, if that is known.
    fn short(&self, run: Duration) -> Duration {
        (run / SHORT).max(self.usual * 2).min(run)
    }

    fn owes(&self) -> bool {
        !(self.debt.is_zero() && self.short_debt.is_zero())
    }

    fn pay(&mut self, paid: Duration, half: f64) {
        let more = paid.saturating_sub(self.paid).mul_f64(half);
        self.paid = paid;
        self.debt = self.debt.saturating_sub(more);
        self.short_debt = self.short_debt.saturating_sub(more);
    }
}

/// A script may owe so much before it gets less time: one aborted run may be an accident.
fn tolerated(run: Duration) -> Duration {
    run * 3 / 2
}

impl AbortPacing {
    /// The pacing for aborted runs that may take so many milliseconds of each second.
    pub(crate) fn new(aborted_ms_per_second: u64) -> AbortPacing {
        let half = (aborted_ms_per_second < NO_LIMIT_MS)
            .then(|| Duration::from_millis(aborted_ms_per_second.max(1)).as_secs_f64() / 2.0);
        AbortPacing {
            hasher: RandomState::new(),
            half,
            scripts: RefCell::default(),
            paid: Cell::default(),
            now: Cell::default(),
            swept: Cell::default(),
        }
    }

    /// The identity of a script: its position, and a number that differs with its text.
    pub(crate) fn script(&self, position: &str, version: u64) -> u64 {
        self.hasher.hash_one((position, version))
    }

    /// The client at an address. Clients in one IPv6 network of 64 bits are one.
    pub(crate) fn client(&self, address: Option<IpAddr>) -> ClientHash {
        ClientHash(match address {
            None => 0,
            Some(IpAddr::V4(address)) => self.hasher.hash_one(address.to_bits()),
            Some(IpAddr::V6(address)) => self.hasher.hash_one(address.to_bits() >> 64),
        })
    }

    /// Whether no script owes time.
    pub(crate) fn is_idle(&self) -> bool {
        self.scripts.borrow().is_empty()
    }

    /// The time that a run of a script gets.
    pub(crate) fn admit(&self, script: u64, client: ClientHash, run: Duration, now: Instant) -> RunAdmission {
        let Some(half) = self.half.filter(|_| !self.is_idle()) else { return RunAdmission::Whole };
        self.pay(half, now);
        let mut scripts = self.scripts.borrow_mut();
        let sharing = scripts.len().try_into().unwrap_or(u32::MAX);
        let Some(script) = scripts.get_mut(&script) else { return RunAdmission::Whole };
        script.pay(self.paid.get(), half);
        let Some(over) = script.debt.checked_sub(tolerated(run)).filter(|over| !over.is_zero()) else {
            return RunAdmission::Whole;
        };
        let short = script.short(run);
        let most = if script.clients.contains(&Some(client)) { Duration::ZERO } else { short };
        if script.short_debt <= most {
            return RunAdmission::Short(short);
        }
        let wait = over.div_f64(half).saturating_mul(sharing);
        RunAdmission::Refused { aborted: script.aborted, wait }
    }

    /// Notes an aborted run that took so long.
    pub(crate) fn aborted(
        &self,
        script: u64,
        client: ClientHash,
        run: Duration,
        used: Duration,
        is_short: bool,
        now: Instant,
    ) {
        let Some(half) = self.half else { return };
        self.pay(half, now);
        let mut scripts = self.scripts.borrow_mut();
        if scripts.len() >= MOST_SCRIPTS && !scripts.contains_key(&script) {
            let least = scripts.iter().min_by_key(|(_, known)| known.debt).map(|(id, _)| *id);
            least.and_then(|least| scripts.remove(&least));
        }
        let paid = self.paid.get();
        let script = scripts.entry(script).or_insert_with(|| AbortedScript { paid, ..Default::default() });
        script.pay(paid, half);
        let most = LONGEST_DEBT.mul_f64(half);
        match is_short {
            true => script.short_debt = (script.short_debt + used).min(script.short(run) + most),
            false => script.debt = (script.debt + used).min(tolerated(run) + most),
        }
        script.aborted += 1;
        if !script.clients.contains(&Some(client)) {
            script.clients.rotate_right(1);
            script.clients[0] = Some(client);
        }
    }

    /// Notes a run that ended by itself.
    pub(crate) fn ended(&self, script: u64, used: Duration) {
        if let Some(script) = self.scripts.borrow_mut().get_mut(&script) {
            script.usual = script.usual.max(used);
        }
    }

    /// Lets time pass, and forgets scripts that owe nothing.
    fn pay(&self, half: f64, now: Instant) {
        let mut scripts = self.scripts.borrow_mut();
        let before = self.now.replace(Some(now)).unwrap_or(now);
        let sharing = u32::try_from(scripts.len()).unwrap_or(u32::MAX).max(1);
        let paid = self.paid.get() + now.saturating_duration_since(before) / sharing;
        self.paid.set(paid);
        let swept = self.swept.get();
        if swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP) {
            return;
        }
        self.swept.set(Some(now));
        scripts.retain(|_, script| {
            script.pay(paid, half);
            script.owes()
        });
    }
}

#[cfg(test)]
#[path = "abort_pacing_tests.rs"]
mod tests;
