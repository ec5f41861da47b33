//! What stands in front of an upstream: limits, a circuit breaker, admission control, adaptive concurrency.
//! The process has one of each, or each worker has, as `sigma_upstream::overload` says.

use std::cell::RefCell;
use std::sync::Arc;

use sigma_config::expr::VarName;
use sigma_config::resources::{self, AdaptiveConcurrency, AdmissionControl};
use sigma_upstream::overload::admission::Admission;
use sigma_upstream::overload::breaker::{Breaker, Tally};
use sigma_upstream::overload::gate::Gate;
use sigma_upstream::overload::gradient::Gradient;

/// The guards of one upstream.
#[derive(Debug)]
pub(crate) struct Guards {
    pub(crate) limit: Option<Limit>,
    pub(crate) breaker: Option<BreakerRules>,
    pub(crate) admission: Option<AdmissionControl>,
    pub(crate) concurrency: Option<AdaptiveConcurrency>,
}

/// The bound on requests at a time.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) gate: Arc<Gate>,
    /// How long a request waits; None if none does.
    pub(crate) queue_ms: Option<u64>,
    pub(crate) priority: Option<VarName>,
    pub(crate) dry_run: bool,
}

#[derive(Debug)]
pub(crate) struct BreakerRules {
    pub(crate) breaker: Breaker,
    pub(crate) slow_ms: Option<f64>,
    pub(crate) failures: Box<[u16]>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) dry_run: bool,
}

/// What is served while a breaker is open.
#[derive(Debug)]
pub(crate) enum Fallback {
    /// The upstream with this key.
    Upstream(Box<str>),
    Answer {
        status: u16,
        content_type: Box<str>,
        body: Box<[u8]>,
    },
}

impl Guards {
    /// The guards that an upstream has; None if it has none.
    pub(crate) fn of(upstream: &resources::Upstream) -> Option<Box<Guards>> {
        let guards = Guards {
            limit: upstream.limits.as_deref().map(Limit::from),
            breaker: upstream.circuit_breaker.as_deref().map(BreakerRules::from),
            admission: upstream.admission_control.as_deref().copied(),
            concurrency: upstream.adaptive_concurrency.as_deref().copied(),
        };
        let any = guards.limit.is_some()
            || guards.breaker.is_some()
            || guards.admission.is_some()
            || guards.concurrency.is_some();
        any.then(|| Box::new(guards))
    }

    /// Whether one of them judges by the time that an answer took.
    pub(crate) fn asks_for_time(&self) -> bool {
        self.concurrency.is_some() || self.breaker.as_ref().is_some_and(|breaker| breaker.slow_ms.is_some())
    }
}

impl From<&resources::RequestLimits> for Limit {
    fn from(config: &resources::RequestLimits) -> Limit {
        let queue = config.queue.as_ref();
        Limit {
            gate: Gate::new(config.max_requests, queue.map_or(0, |queue| queue.length)),
            queue_ms: queue.map(|queue| (queue.timeout * 1000.0).ceil() as u64),
            priority: queue.and_then(|queue| queue.priority.as_deref()).map(VarName::parse),
            dry_run: config.dry_run,
        }
    }
}

impl From<&resources::CircuitBreaker> for BreakerRules {
    fn from(config: &resources::CircuitBreaker) -> BreakerRules {
        BreakerRules {
            slow_ms: config.slow_call_duration_threshold.map(|seconds| seconds * 1000.0),
            failures: config.failure_status_codes.clone().into(),
            fallback: config.fallback.as_ref().and_then(Fallback::of),
            dry_run: config.dry_run,
            breaker: Breaker::new(config.clone()),
        }
    }
}

impl Fallback {
    fn of(config: &resources::Fallback) -> Option<Fallback> {
        if let Some(id) = &config.upstream_id {
            return Some(Fallback::Upstream(format!("upstreams/{id}").into()));
        }
        Some(Fallback::Answer {
            status: config.status?,
            content_type: config.content_type.clone().unwrap_or_else(|| "text/plain".into()),
            body: config.body.as_deref().unwrap_or_default().as_bytes().into(),
        })
    }
}

/// The part of an upstream's guards that one worker has for itself.
#[derive(Debug)]
pub(crate) struct OwnGuards {
    pub(crate) admission: Option<RefCell<Admission>>,
    pub(crate) concurrency: Option<RefCell<Gradient>>,
    pub(crate) tally: Tally,
}

impl From<&Guards> for OwnGuards {
    fn from(guards: &Guards) -> OwnGuards {
        OwnGuards {
            admission: guards.admission.map(|rules| RefCell::new(Admission::new(rules))),
            concurrency: guards.concurrency.map(|rules| RefCell::new(Gradient::new(rules))),
            tally: Tally::default(),
        }
    }
}
