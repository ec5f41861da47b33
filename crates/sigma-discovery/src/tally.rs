//! Counters of requests to registries and their results, for metrics pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sigma_config::discovery::Registry;

/// Counters of one registry, or of one cluster of it, since the start. They outlive their topics.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    requests: AtomicU64,
    request_failures: AtomicU64,
    update_failures: AtomicU64,
    updates: AtomicU64,
    held_back: AtomicU64,
    /// In Unix seconds; 0 for never.
    last_success: AtomicU64,
}

impl Tally {
    /// Counts a sent request.
    pub(crate) fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request without a valid response.
    pub(crate) fn unanswered(&self) {
        self.request_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a valid response of the registry, also without changes.
    pub(crate) fn succeeded(&self) {
        self.last_success.store(unix_now(), Ordering::Relaxed);
    }

    /// Counts a round without a valid response of any member: the last list stays.
    pub(crate) fn failed(&self) {
        self.update_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a change of nodes.
    pub(crate) fn updated(&self) {
        self.updates.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts lists that are held back from now on.
    pub(crate) fn held_back(&self, lists: u64) {
        self.held_back.fetch_add(lists, Ordering::Relaxed);
    }

    /// Returns all counters of this registry; the caller adds the current state.
    pub(crate) fn report(&self, registry: Registry, id: &str) -> Report {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Report {
            requests: read(&self.requests),
            request_failures: read(&self.request_failures),
            update_failures: read(&self.update_failures),
            updates: read(&self.updates),
            held_back: read(&self.held_back),
            last_success: Some(read(&self.last_success)).filter(|at| *at > 0),
            ..Report::none(registry, id)
        }
    }
}

/// The state of a registry: results since the start, and the current data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The registry.
    pub registry: Registry,
    /// The id of one of several clusters; empty if there is one.
    pub id: Box<str>,
    /// Requests sent to its members.
    pub requests: u64,
    /// Requests without a valid response.
    pub request_failures: u64,
    /// Rounds in which no member had a valid response.
    pub update_failures: u64,
    /// Changes of nodes.
    pub updates: u64,
    /// Lists that shrank and were held back by `discovery.protection`.
    pub held_back: u64,
    /// The time of the last valid response, in Unix seconds.
    pub last_success: Option<u64>,
    /// Services known now.
    pub services: u64,
    /// Their nodes.
    pub nodes: u64,
    /// Services whose list is held back now.
    pub held_back_now: u64,
    /// Lists of `discovery.last_good` are in use, because the registry has not sent any yet.
    pub is_stored: bool,
}

impl Report {
    /// Returns the report of a registry without requests.
    #[must_use]
    pub fn none(registry: Registry, id: &str) -> Report {
        Report {
            registry,
            id: id.into(),
            requests: 0,
            request_failures: 0,
            update_failures: 0,
            updates: 0,
            held_back: 0,
            last_success: None,
            services: 0,
            nodes: 0,
            held_back_now: 0,
            is_stored: false,
        }
    }
}

/// Returns the time in Unix seconds.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
