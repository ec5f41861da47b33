//! Open and new connections of listeners with limits, over all workers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sigma_config::settings::ListenPlace;

use crate::snapshot::edge::ConnectionLimits;

/// A second, in the unit of rates: microseconds.
const SECOND_US: u64 = 1_000_000;

/// The loads of all listeners with limits; a load outlives changes of its listener.
#[derive(Default)]
pub(super) struct Loads(Mutex<HashMap<ListenPlace, Arc<Load>>>);

impl Loads {
    /// Returns the load of a listener.
    pub(super) fn of(&self, place: &ListenPlace) -> Arc<Load> {
        let mut loads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(loads.entry(place.clone()).or_default())
    }
}

/// The connections of one listener.
#[derive(Debug, Default)]
pub(super) struct Load {
    open: AtomicU32,
    /// The time in Unix microseconds at which the rate has no arrears.
    even_us: AtomicU64,
}

/// A limit of a listener that keeps a connection waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// The number of open connections.
    Most(u32),
    /// The rate of new connections.
    PerSecond(u32),
}

impl Load {
    /// Counts a new connection, unless it has to wait. `now_ms` is the time of the worker's clock.
    pub(super) fn enter(self: &Arc<Self>, limits: &ConnectionLimits, now_ms: u64) -> Result<Open, Reached> {
        let most = limits.most.unwrap_or(u32::MAX);
        let entered = self
            .open
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| (open < most).then_some(open + 1));
        if entered.is_err() {
            return Err(Reached::Most(most));
        }
        // It counts as open until it is dropped, so also if the rate is reached.
        let open = Open(Arc::clone(self));
        match limits.per_second {
            Some(rate) if !self.is_in_rate(rate, now_ms) => Err(Reached::PerSecond(rate)),
            _ => Ok(open),
        }
    }

    /// Counts a connection in the rate, unless a second's worth of them has just come.
    fn is_in_rate(&self, rate: u32, now_ms: u64) -> bool {
        let now_us = now_ms.saturating_mul(1_000);
        let each_us = SECOND_US / u64::from(rate.max(1));
        let next = |even_us: u64| {
            // Arrears of more than two seconds are of a clock that was set back.
            let is_of_clock = even_us > now_us.saturating_add(2 * SECOND_US);
            let begins = if is_of_clock { now_us } else { even_us.max(now_us) };
            let next = begins.saturating_add(each_us);
            (next <= now_us.saturating_add(SECOND_US)).then_some(next)
        };
        self.even_us.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }
}

/// A connection of a listener with limits, which counts until this is dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<Load>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_have_a_maximum() {
        let load = Arc::new(Load::default());
        let limits = ConnectionLimits { most: Some(2), per_second: None };
        let first = load.enter(&limits, 0).unwrap();
        let _second = load.enter(&limits, 0).unwrap();
        assert_eq!(load.enter(&limits, 0).unwrap_err(), Reached::Most(2));
        drop(first);
        assert!(load.enter(&limits, 0).is_ok());
    }

    #[test]
    fn new_connections_have_a_rate() {
        let load = Arc::new(Load::default());
        let limits = ConnectionLimits { most: None, per_second: Some(4) };
        let came = |after_ms: u64| load.enter(&limits, 100_000 + after_ms).is_ok();
        assert_eq!([came(0), came(0), came(0), came(0), came(0)], [true, true, true, true, false]);
        assert_eq!([came(249), came(250), came(251)], [false, true, false]);
        // A pause saves at most a second's worth.
        let after: Vec<bool> = (0..6).map(|_| came(60_000)).collect();
        assert_eq!(after, [true, true, true, true, false, false]);
        // The clock is set back.
        assert!(load.enter(&limits, 1_000).is_ok());
        // A rejected connection is not open.
        assert_eq!(load.open.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn listeners_do_not_share_a_load() {
        let loads = Loads::default();
        let place = |port: u16| ListenPlace::Tcp(([127, 0, 0, 1], port).into());
        assert!(Arc::ptr_eq(&loads.of(&place(1)), &loads.of(&place(1))));
        assert!(!Arc::ptr_eq(&loads.of(&place(1)), &loads.of(&place(2))));
    }
}
