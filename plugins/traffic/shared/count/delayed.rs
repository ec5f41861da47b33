//! Local counting with periodic synchronisation to Redis: a response costs no round trip, at the price of an overrun
//! by the requests that other gateways accept between two messages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sigma_plugin::Node;
use sigma_plugin::counter::Shared;

use super::remote::{self, Counting};
use super::window::{Counters, Quota, Verdict, WindowType};
use sigma_plugin_kit::clock;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::redis::{Connections, SharedConnection, Target};

/// Keys that wait for synchronisation; further keys are synchronised when their window has ended.
const MOST_WAITING: usize = 10_000;

/// Local state of one key.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// The rest that Redis reported, and until when that is valid; None before it was queried.
    remote: Option<(u64, u64)>,
    /// Requests that passed since.
    delta: u64,
    /// The part of them that is being sent to Redis.
    told: u64,
}

/// Local state of all keys, of all configurations: one table, so that its limit is one.
#[derive(Default)]
struct States(Shared<State>);

/// Counting of one configuration.
pub(super) struct Delayed {
    interval: Duration,
    kind: WindowType,
    target: Arc<Target>,
    states: Arc<States>,
    /// Keys with requests that Redis does not know of.
    waiting: Mutex<HashMap<Box<[u8]>, Quota>>,
    /// Where requests are counted while Redis is gone.
    local: Arc<Counters>,
    telling: AtomicBool,
}

impl Delayed {
    pub(super) fn new(
        interval: Duration,
        kind: WindowType,
        target: &Arc<Target>,
        node: &Node,
    ) -> Arc<Delayed> {
        Arc::new(Delayed {
            interval,
            kind,
            target: Arc::clone(target),
            states: node.part(States::default),
            waiting: Mutex::default(),
            local: node.inherited(Counters::default),
            telling: AtomicBool::new(false),
        })
    }

    /// Whether windows are long enough for synchronisation in between.
    pub(super) fn suits(&self, quota: Quota) -> bool {
        Duration::from_secs(quota.window_s) > self.interval
    }

    /// Starts telling Redis, on the control thread, until the configuration is gone.
    pub(super) fn keep_telling(self: &Arc<Self>, node: &Arc<Node>) {
        // Read first: workers must not write to memory that others read with every request.
        if self.telling.load(Ordering::Relaxed) || self.telling.swap(true, Ordering::Relaxed) {
            return;
        }
        let (me, interval) = (Arc::downgrade(self), self.interval);
        let connection = node.part(Connections::default).to(&self.target);
        node.spawn(tell_until_gone(me, interval, connection));
    }

    /// Counts a request by local state; None if Redis has to be asked.
    pub(super) fn count_here(&self, key: &[u8], quota: Quota, cost: u64) -> Option<Verdict> {
        let now_ms = clock::process_ms();
        let verdict = self.states.0.with(key, now_ms, |slot| {
            slot.expires_ms = now_ms.saturating_add(quota.window_ms().saturating_mul(2));
            let state = &mut slot.value;
            let (remaining, until_ms) = state.remote.filter(|(_, until_ms)| now_ms < *until_ms)?;
            let left = remaining.checked_sub(state.delta + cost);
            if left.is_some() {
                state.delta += cost;
            }
            Some(Verdict::new(left, (until_ms - now_ms) as f64 / 1000.0))
        })?;
        if !verdict.is_refusal() {
            self.wait(key, quota);
        }
        Some(verdict)
    }

    /// Counts a cost that is known later; Redis gets it with the next message.
    pub(super) fn add(&self, key: &[u8], quota: Quota, cost: u64) {
        self.states.0.with(key, clock::process_ms(), |slot| {
            slot.expires_ms = clock::process_ms().saturating_add(quota.window_ms().saturating_mul(2));
            slot.value.delta = slot.value.delta.saturating_add(cost);
        });
        self.wait(key, quota);
    }

    /// Counts a request, after asking Redis where that is needed.
    pub(super) async fn count(
        &self,
        connection: &SharedConnection,
        key: &[u8],
        quota: Quota,
        cost: u64,
    ) -> Verdict {
        if let Some(verdict) = self.count_here(key, quota, cost) {
            return verdict;
        }
        self.tell(connection, key, quota).await;
        // Only a window that ended just now is still unknown: the request is its first.
        self.count_here(key, quota, cost).unwrap_or(Verdict::fixed(quota, cost, quota.window_ms()))
    }

    fn wait(&self, key: &[u8], quota: Quota) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = waiting.get_mut(key) {
            *known = quota;
        } else if waiting.len() < MOST_WAITING {
            waiting.insert(key.into(), quota);
        } else {
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if let Some(left_out) = COMPLAINT.due() {
                tracing::warn!(
                    left_out,
                    "limit-count: more than {MOST_WAITING} keys wait to be synchronised with Redis"
                );
            }
        }
    }

    /// Sends the requests of one key to Redis, and reads the remaining quota.
    async fn tell(&self, connection: &SharedConnection, key: &[u8], quota: Quota) {
        let untold = self.states.0.with(key, clock::process_ms(), |slot| {
            let state = &mut slot.value;
            let untold = state.delta - state.told;
            state.told = state.delta;
            untold
        });
        let verdict = match remote::count(connection, self.kind, Counting::Always, key, quota, untold).await {
            Ok(verdict) => verdict,
            Err(_) => self.local.count(self.kind, key, quota, untold),
        };
        let now_ms = clock::process_ms();
        let until_ms = now_ms.saturating_add((verdict.reset_s * 1000.0) as u64);
        self.states.0.with(key, now_ms, |slot| {
            let state = &mut slot.value;
            // Another task may have sent the same requests at the same time, or removed them.
            state.delta = state.delta.saturating_sub(untold);
            state.told = state.told.saturating_sub(untold);
            state.remote = Some((verdict.remaining.unwrap_or(0), until_ms));
            slot.expires_ms = now_ms.saturating_add(quota.window_ms().saturating_mul(2));
        });
    }
}

async fn tell_until_gone(delayed: Weak<Delayed>, interval: Duration, connection: Arc<SharedConnection>) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(delayed) = delayed.upgrade() else { return };
        let waiting = std::mem::take(&mut *delayed.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for (key, quota) in waiting {
            delayed.tell(&connection, &key, quota).await;
        }
    }
}
