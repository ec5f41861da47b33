//! The guards of an upstream: limits, a circuit breaker, admission control, adaptive concurrency. The process has one
//! of each, or each worker has, as `sigma_upstream::overload` says. Their knowledge outlives a change of the
//! upstream: a new node must not make them forget that the others were failing.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sigma_config::resources::{self, AdaptiveConcurrency, AdmissionControl};
use sigma_schema::expr::VarName;
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::overload::admission::Admission;
use sigma_upstream::overload::breaker::{Breaker, Tally};
use sigma_upstream::overload::gate::{Bounds, Gate};
use sigma_upstream::overload::gradient::Gradient;

/// The guards of one upstream.
#[derive(Debug)]
pub(crate) struct Guards {
    pub(crate) limit: Option<Limit>,
    pub(crate) breaker: Option<BreakerRules>,
    pub(crate) admission: Option<AdmissionControl>,
    pub(crate) concurrency: Option<AdaptiveConcurrency>,
}

/// The bounds on concurrent requests.
#[derive(Debug)]
pub(crate) struct Limit {
    gate: Arc<Gate>,
    /// Of the upstream.
    max: Option<u32>,
    /// Of each node.
    per_node: Option<u32>,
    pub(crate) queue_length: u32,
    /// How long a request waits in the queue. None without a queue.
    pub(crate) queue_ms: Option<u64>,
    pub(crate) priority: Option<VarName>,
    pub(crate) dry_run: bool,
}

/// A gate with the bounds that hold now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundedGate<'g> {
    pub(crate) gate: &'g Arc<Gate>,
    pub(crate) bounds: Bounds,
}

#[derive(Debug)]
pub(crate) struct BreakerRules {
    pub(crate) breaker: Arc<Breaker>,
    /// The rules that it judges by.
    judging: resources::CircuitBreaker,
    pub(crate) slow_ms: Option<f64>,
    pub(crate) failures: Box<[u16]>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) dry_run: bool,
}

/// The replacement while a breaker is open.
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
    /// Returns the guards of an upstream. None without any. They keep the knowledge of the guards that it had
    /// `before`.
    pub(crate) fn of(upstream: &resources::Upstream, before: Option<&Guards>) -> Option<Box<Guards>> {
        let (limit, breaker) =
            before.map_or((None, None), |before| (before.limit.as_ref(), before.breaker.as_ref()));
        let guards = Guards {
            limit: upstream.limits.as_deref().map(|config| Limit::new(config, limit)),
            breaker: upstream.circuit_breaker.as_deref().map(|config| BreakerRules::new(config, breaker)),
            admission: upstream.admission_control.as_deref().copied(),
            concurrency: upstream.adaptive_concurrency.as_deref().copied(),
        };
        let any = guards.limit.is_some()
            || guards.breaker.is_some()
            || guards.admission.is_some()
            || guards.concurrency.is_some();
        any.then(|| Box::new(guards))
    }

    /// Returns true if one of them judges by the time of a response.
    pub(crate) fn asks_for_time(&self) -> bool {
        self.concurrency.is_some() || self.breaker.as_ref().is_some_and(|breaker| breaker.slow_ms.is_some())
    }
}

impl Limit {
    fn new(config: &resources::RequestLimits, before: Option<&Limit>) -> Limit {
        let queue = config.queue.as_ref();
        Limit {
            gate: before.map_or_else(Arc::default, |before| Arc::clone(&before.gate)),
            max: config.max_requests,
            per_node: config.max_requests_per_node,
            queue_length: queue.map_or(0, |queue| queue.length),
            queue_ms: queue.map(|queue| (queue.timeout * 1000.0).ceil() as u64),
            priority: queue.and_then(|queue| queue.priority.as_deref()).map(VarName::parse),
            dry_run: config.dry_run,
        }
    }

    /// The way to the upstream; None if it has no bound as a whole.
    pub(crate) fn to_upstream(&self) -> Option<BoundedGate<'_>> {
        let bounds = Bounds { inside: self.max?, waiting: self.queue_length };
        Some(BoundedGate { gate: &self.gate, bounds })
    }

    /// Returns true if each node has its own bound.
    pub(crate) fn is_per_node(&self) -> bool {
        self.per_node.is_some()
    }

    /// The way to one node; None if nodes have no bound of their own.
    pub(crate) fn to_node<'g>(&self, node: &'g Endpoint) -> Option<BoundedGate<'g>> {
        let inside = node.health.bounded(self.per_node?);
        Some(BoundedGate { gate: node.health.gate(), bounds: Bounds { inside, waiting: self.queue_length } })
    }
}

impl BreakerRules {
    fn new(config: &resources::CircuitBreaker, before: Option<&BreakerRules>) -> BreakerRules {
        // The others are looked at outside of it.
        let judging = resources::CircuitBreaker {
            slow_call_duration_threshold: None,
            failure_status_codes: Vec::new(),
            fallback: None,
            dry_run: false,
            ..config.clone()
        };
        let same = before.filter(|before| before.judging == judging);
        BreakerRules {
            slow_ms: config.slow_call_duration_threshold.map(|seconds| seconds * 1000.0),
            failures: config.failure_status_codes.clone().into(),
            fallback: config.fallback.as_ref().and_then(Fallback::of),
            dry_run: config.dry_run,
            breaker: match same {
                Some(same) => Arc::clone(&same.breaker),
                None => Arc::new(Breaker::new(judging.clone())),
            },
            judging,
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
    pub(crate) admission: Option<Rc<RefCell<Admission>>>,
    pub(crate) concurrency: Option<Rc<RefCell<Gradient>>>,
    pub(crate) tally: Tally,
}

impl OwnGuards {
    /// Returns the own part of `guards`; the part that belonged to the guards `before` is kept if its rules are the
    /// same.
    pub(crate) fn new(guards: &Guards, before: Option<(&Guards, &OwnGuards)>) -> OwnGuards {
        let admission = before.filter(|(before, _)| {
            let judging = |rules: AdmissionControl| AdmissionControl { dry_run: false, ..rules };
            before.admission.map(judging) == guards.admission.map(judging)
        });
        let concurrency = before.filter(|(before, _)| {
            let judging = |rules: AdaptiveConcurrency| AdaptiveConcurrency { dry_run: false, ..rules };
            before.concurrency.map(judging) == guards.concurrency.map(judging)
        });
        let new_admission = |rules| Rc::new(RefCell::new(Admission::new(rules)));
        let new_concurrency = |rules| Rc::new(RefCell::new(Gradient::new(rules)));
        OwnGuards {
            admission: match admission {
                Some((_, own)) => own.admission.clone(),
                None => guards.admission.map(new_admission),
            },
            concurrency: match concurrency {
                Some((_, own)) => own.concurrency.clone(),
                None => guards.concurrency.map(new_concurrency),
            },
            tally: Tally::default(),
        }
    }
}
