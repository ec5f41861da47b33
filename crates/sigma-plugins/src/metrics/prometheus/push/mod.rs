//! Pushes what the page shows to a collector of OpenTelemetry.
//!
//! | file | question |
//! |---|---|
//! | `settings` | what an operator may say |
//! | `page` | what the page says, as data points |
//! | `messages` | how these are told |

mod messages;
mod page;
pub(super) mod settings;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use reqwest::Url;
use sigma_plugin::Node;
use tokio::time::MissedTickBehavior;

use self::messages::{ExportRequest, ExportResponse, ResourceMetrics, ScopeMetrics};
use self::page::Reader;
use self::settings::PushSettings;
use super::render;
use super::series::Registry;
use super::shared_page::Pieces;
use super::text::Coding;
use crate::batch::seconds;
use crate::trace::otlp::{self, Resource, Scope};
use crate::trace::post::{self, Collector};

/// Data points of a request, and those of one more piece of the page: about a MiB. Collectors take 20.
const REQUEST_POINTS: usize = 4000;

/// Pushes have begun; a part of the node.
struct Begun;

/// Begins to push, once for the process, if somebody is to be told.
pub(super) fn begin(node: &Arc<Node>, registry: &Arc<Registry>) {
    let Some(settings) = &registry.settings.push else { return };
    node.part(|| {
        // A mistake in monitoring must not stop the traffic.
        match Push::new(settings, node, registry) {
            Ok(push) => node.spawn(push.go_on(seconds(settings.interval))),
            Err(reason) => tracing::error!("plugin_attr.prometheus.otlp: nothing is pushed: {reason}"),
        }
        Begun
    });
}

struct Push {
    collector: Collector,
    url: Url,
    resource: Resource,
    node: Arc<Node>,
    registry: Arc<Registry>,
}

impl Push {
    fn new(settings: &PushSettings, node: &Arc<Node>, registry: &Arc<Registry>) -> Result<Push, String> {
        let (url, headers) = (settings.url()?, post::fields("headers", settings.headers.as_ref())?);
        if url.scheme() == "http" {
            tracing::warn!("prometheus: metrics are sent to {url} in the clear");
        }
        Ok(Push {
            collector: Collector::new(headers, seconds(settings.timeout)),
            url,
            resource: otlp::resource(node.hostname(), settings.resource.as_ref()),
            node: Arc::clone(node),
            registry: Arc::clone(registry),
        })
    }

    /// Nothing is repeated: the next push has all that was counted. One that takes longer than the interval
    /// delays the next one, and they never lie beside each other.
    async fn go_on(self, interval: Duration) {
        let mut due = tokio::time::interval(interval.max(Duration::from_secs(1)));
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first one is at once, and there is nothing to tell.
        due.tick().await;
        loop {
            due.tick().await;
            let [taken, failed] = &self.registry.pushes;
            match self.push().await {
                Ok(()) => taken.add(1),
                Err(reason) => {
                    failed.add(1);
                    tracing::error!("prometheus: failed to push metrics: {reason}");
                }
            }
        }
    }

    async fn push(&self) -> Result<(), String> {
        let mut reading = self.reading();
        loop {
            // A page of many routes takes its time.
            let read = tokio::task::spawn_blocking(move || {
                let request = reading.request();
                (reading, request)
            });
            let request;
            (reading, request) = read.await.map_err(|error| format!("the page cannot be made: {error}"))?;
            let Some(request) = request else { return Ok(()) };
            self.post(request).await?;
        }
    }

    fn reading(&self) -> Reading {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let counted_for = Duration::from_millis(self.registry.now_ms());
        let start = nanos(since_epoch.saturating_sub(counted_for));
        let pieces = render::pieces(Arc::clone(&self.registry), Arc::clone(&self.node), Coding::Identity);
        Reading {
            pieces: Box::new(pieces),
            reader: Reader::new(start, nanos(since_epoch)),
            resource: self.resource.clone(),
        }
    }

    async fn post(&self, request: Vec<u8>) -> Result<(), String> {
        let answer = self.collector.post(&self.url, "application/x-protobuf", request).await?;
        if !answer.is_success() {
            return Err(answer.reason(&self.url));
        }
        // One that is no message says nothing of points that were refused.
        let told = ExportResponse::decode(&answer.body[..]).unwrap_or_default();
        match told.partial_success.filter(|partial| partial.rejected_data_points > 0) {
            Some(partial) => {
                let (refused, reason) = (partial.rejected_data_points, partial.error_message.escape_debug());
                Err(format!("{} has refused {refused} data points: {reason}", self.url))
            }
            None => Ok(()),
        }
    }
}

/// A page that is told piece by piece.
struct Reading {
    pieces: Pieces,
    reader: Reader,
    resource: Resource,
}

impl Reading {
    /// The next request; None at the end.
    fn request(&mut self) -> Option<Vec<u8>> {
        while self.reader.points() < REQUEST_POINTS
            && let Some(piece) = (self.pieces)()
        {
            self.reader.read(&piece);
        }
        let metrics = Some(self.reader.take()).filter(|metrics| !metrics.is_empty())?;
        let scope = Scope { name: "sigma".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
        let of_one = ResourceMetrics { resource: Some(self.resource.clone()), scope_metrics };
        Some(ExportRequest { resource_metrics: vec![of_one] }.encode_to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::messages::{Data, Metric, Number};
    use super::*;

    /// A page of any length leaves in requests of a bounded one.
    #[test]
    fn long_pages_leave_in_parts() {
        const LINES: usize = 10_000;
        let mut at = 0;
        let pieces = move || {
            let piece = (at..LINES.min(at + 100)).map(|line| format!("a{{n=\"{line}\"}} {line}\n"));
            let piece: String = piece.collect();
            at += 100;
            (!piece.is_empty()).then(|| {
                [if at == 100 { "# HELP a x\n# TYPE a counter\n" } else { "" }, &*piece].concat().into_bytes()
            })
        };
        let resource = Resource { attributes: Vec::new() };
        let mut reading = Reading { pieces: Box::new(pieces), reader: Reader::new(1, 2), resource };
        let mut numbers = Vec::new();
        while let Some(request) = reading.request() {
            let request = ExportRequest::decode(&request[..]).unwrap();
            let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
            let [Metric { name, data: Some(Data::Sum(sum)), .. }] = &metrics[..] else {
                panic!("{metrics:?}")
            };
            assert!(name == "a" && sum.data_points.len() <= REQUEST_POINTS, "{}", sum.data_points.len());
            numbers.extend(sum.data_points.iter().filter_map(|point| point.value.clone()));
        }
        assert_eq!(numbers, (0..LINES as i64).map(Number::Int).collect::<Vec<_>>());
    }
}
