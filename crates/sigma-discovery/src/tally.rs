//! What a registry was asked, and what came of it: for the pages of metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sigma_config::discovery::Registry;

/// Counts of one registry, or of one cluster of it, since the start. They outlive what is asked for.
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
    /// A request is sent.
    pub(crate) fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has no answer, or none that says what was asked for.
    pub(crate) fn unanswered(&self) {
        self.request_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The registry has said something that can be used, be it that nothing is new.
    pub(crate) fn succeeded(&self) {
        self.last_success.store(unix_now(), Ordering::Relaxed);
    }

    /// No member of the registry has said anything that can be used: the last list stays.
    pub(crate) fn failed(&self) {
        self.update_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Other nodes are served from now on.
    pub(crate) fn updated(&self) {
        self.updates.fetch_add(1, Ordering::Relaxed);
    }

    /// So many lists are held back from now on.
    pub(crate) fn held_back(&self, lists: u64) {
        self.held_back.fetch_add(lists, Ordering::Relaxed);
    }

    /// All counts, for this registry; what is known now is still to be added.
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

/// How a registry does: what came of it since the start, and what is known of it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The registry.
    pub registry: Registry,
    /// Which of several clusters; empty where there is one.
    pub id: Box<str>,
    /// Requests that were sent to its members.
    pub requests: u64,
    /// Requests without an answer that says what was asked for.
    pub request_failures: u64,
    /// How often no member had anything to say that can be used.
    pub update_failures: u64,
    /// How often other nodes were taken over.
    pub updates: u64,
    /// How often a list that shrank was held back by `discovery.protection`.
    pub held_back: u64,
    /// When the registry last said something that can be used, in Unix seconds.
    pub last_success: Option<u64>,
    /// Services that are known now.
    pub services: u64,
    /// Nodes of all of them.
    pub nodes: u64,
    /// Services whose list is held back now.
    pub held_back_now: u64,
    /// Whether lists of `discovery.last_good` are served, because the registry has told none yet.
    pub is_stored: bool,
}

impl Report {
    /// That of a registry that was never asked.
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

/// The time in Unix seconds.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
