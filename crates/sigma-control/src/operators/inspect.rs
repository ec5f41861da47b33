//! What the process tells the Control API of itself: the supervisor's answers, by way of its mailbox.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::Upstream;
use sigma_config::stored::AnyResource;
use sigma_config::table::Order;
use tokio::sync::oneshot;

use crate::operators::control_api::{Asked, HealthReport, InForce, Inspect, Revisions};
use crate::operators::status::{self, Shared};
use crate::process::supervisor::Request;
use crate::serving::desired::Desired;
use crate::serving::endpoints::Fleet;
use crate::store::{Store, StoreStatus};

/// A question to the supervisor.
#[derive(Debug)]
pub(crate) enum Question {
    /// See [`Inspect::in_force`].
    InForce(Kind, oneshot::Sender<Vec<InForce>>),
    /// See [`Inspect::health`].
    Health(oneshot::Sender<Vec<HealthReport>>),
    /// See [`Inspect::revisions`].
    Revisions(oneshot::Sender<Revisions>),
    /// See [`Inspector::newest`].
    Newest(oneshot::Sender<Vec<(Kind, u64)>>),
}

/// Asks the supervisor.
pub(crate) struct Inspector {
    pub(crate) shared: Arc<Shared>,
}

impl Inspector {
    /// The answer to a question; None while the process stops.
    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        if !self.shared.ask(question(reply)).await {
            return None;
        }
        answer.await.ok()
    }
}

impl Inspector {
    /// The highest revision among the resources of each kind that has some.
    pub(crate) async fn newest(&self) -> Vec<(Kind, u64)> {
        self.ask(|reply| Request::Inspect(Question::Newest(reply))).await.unwrap_or_default()
    }
}

impl Inspect for Inspector {
    fn in_force(&self, kind: Kind) -> Asked<'_, Vec<InForce>> {
        Box::pin(async move {
            let question = |reply| Request::Inspect(Question::InForce(kind, reply));
            self.ask(question).await.unwrap_or_default()
        })
    }

    fn health(&self) -> Asked<'_, Vec<HealthReport>> {
        Box::pin(async {
            let question = |reply| Request::Inspect(Question::Health(reply));
            self.ask(question).await.unwrap_or_default()
        })
    }

    fn revisions(&self) -> Asked<'_, Revisions> {
        Box::pin(async {
            let question = |reply| Request::Inspect(Question::Revisions(reply));
            let nothing = Revisions {
                store: file(),
                published: 0,
                workers: Vec::new(),
                quarantined: Vec::new(),
                warnings: Vec::new(),
            };
            self.ask(question).await.unwrap_or(nothing)
        })
    }

    fn reload(&self) -> Asked<'_, Result<(), String>> {
        Box::pin(async {
            let answer = self.ask(|reply| Request::Reload { reply: Some(reply) }).await;
            answer.unwrap_or_else(|| Err("the process is stopping".to_owned()))
        })
    }
}

/// The status of a configuration that comes from a file.
fn file() -> StoreStatus {
    StoreStatus { kind: "file", revision: 0, lost: None, copied: None }
}

/// What the supervisor knows when it is asked.
pub(crate) struct Knowledge<'k> {
    pub(crate) desired: &'k Desired,
    pub(crate) fleet: &'k Fleet,
    pub(crate) store: Option<&'k Arc<dyn Store>>,
    pub(crate) published: u64,
    pub(crate) workers: Vec<u64>,
}

impl Knowledge<'_> {
    /// Answers a question. Nobody may be waiting for it any more.
    pub(crate) fn answer(self, question: Question) {
        match question {
            Question::InForce(kind, reply) => drop(reply.send(self.in_force(kind))),
            Question::Health(reply) => drop(reply.send(self.health())),
            Question::Revisions(reply) => drop(reply.send(self.revisions())),
            Question::Newest(reply) => drop(reply.send(self.desired.newest())),
        }
    }

    fn in_force(&self, kind: Kind) -> Vec<InForce> {
        let resources = &self.desired.config.resources;
        let keys = resources.keys().into_iter().filter(|key| key.kind == kind);
        keys.filter_map(|key| {
            let resource = resources.get(&key)?;
            Some(InForce {
                created: resources.order(&key).map_or(0, Order::created),
                modified: self.desired.modified(&key),
                has_domain: has_domain(&resource),
                value: value_of(&resource),
                key,
            })
        })
        .collect()
    }

    fn health(&self) -> Vec<HealthReport> {
        let reports = status::health_by_upstream(self.fleet).into_iter();
        reports
            .filter_map(|(key, check, nodes)| {
                Some(HealthReport { key: ResourceKey::parse(&key)?, check, nodes })
            })
            .collect()
    }

    fn revisions(&self) -> Revisions {
        Revisions {
            store: self.store.map_or_else(file, |store| store.status()),
            published: self.published,
            workers: self.workers.clone(),
            quarantined: self.desired.quarantine().cloned().collect(),
            warnings: self.desired.warnings().cloned().collect(),
        }
    }
}

fn value_of(resource: &AnyResource) -> Value {
    let value = match resource {
        AnyResource::Route(route) => serde_json::to_value(route),
        AnyResource::Service(service) => serde_json::to_value(service),
        AnyResource::Upstream(upstream) => serde_json::to_value(upstream),
        AnyResource::PluginMetadata(metadata) => serde_json::to_value(metadata),
        // The Control API shows no other kind; certificates and consumers hold secrets.
        _ => Ok(Value::Null),
    };
    // None of the types has a map with keys that are no strings, nor a serializer that fails.
    value.unwrap_or_default()
}

fn has_domain(resource: &AnyResource) -> bool {
    let named = |upstream: &Upstream| {
        let is_name = |host: &str| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host.parse::<IpAddr>().is_err() && !host.starts_with("unix:")
        };
        upstream.nodes.iter().any(|node| is_name(&node.host))
    };
    match resource {
        AnyResource::Route(route) => route.upstream.as_deref().is_some_and(named),
        AnyResource::Service(service) => service.upstream.as_deref().is_some_and(named),
        AnyResource::Upstream(upstream) => named(upstream),
        _ => false,
    }
}
