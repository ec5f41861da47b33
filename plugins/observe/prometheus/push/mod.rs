//! Pushes the metrics of the page to a collector of OpenTelemetry.
//!
//! | file | question |
//! |---|---|
//! | `settings` | the configuration |
//! | `page` | the page as data points |
//! | `messages` | the messages with the data points |

mod messages;
mod page;
pub(super) mod settings;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use reqwest::Url;
use sigma_plugin::Node;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use self::messages::{ExportRequest, ExportResponse, ResourceMetrics, ScopeMetrics};
use self::page::Reader;
use self::settings::PushSettings;
use super::render;
use super::series::Registry;
use super::shared_page::Pieces;
use super::text::{Coding, Form, Look};
use crate::shared::call::Callee;
use crate::shared::otlp::{self, Resource, Scope};
use crate::shared::post::Collector;
use sigma_plugin_kit::batch::seconds;

/// Data points of a request, and of one more piece of the page: about a MiB. Collectors take 20.
const REQUEST_POINTS: usize = 4000;

/// How the page is read here: its data points have no exemplars.
const PLAIN: Look = Look { form: Form::Text, coding: Coding::Identity };

/// Pushes have begun; a part of the node.
struct Begun;

/// The protocol of a collector.
enum PushProtocol {
    Http(Collector, Url),
    Grpc(Callee),
}

/// Requests a last push, and is notified when it has ended.
type LastOne = oneshot::Sender<()>;

/// Begins to push, once for the process, if a collector is configured.
pub(super) fn begin(node: &Arc<Node>, registry: &Arc<Registry>) {
    let Some(settings) = &registry.settings.push else { return };
    node.part(|| {
        // A mistake in monitoring must not stop the traffic.
        match Push::new(settings, node, registry) {
            Ok(push) => push.begin(settings),
            Err(reason) => tracing::error!("plugin_attr.prometheus.otlp: cannot push metrics: {reason}"),
        }
        Begun
    });
}

struct Push {
    way: PushProtocol,
    resource: Resource,
    node: Arc<Node>,
    registry: Arc<Registry>,
}

impl Push {
    fn new(settings: &PushSettings, node: &Arc<Node>, registry: &Arc<Registry>) -> Result<Push, String> {
        Ok(Push {
            way: settings.way()?,
            resource: otlp::resource(node.hostname(), settings.resource.as_ref()),
            node: Arc::clone(node),
            registry: Arc::clone(registry),
        })
    }

    /// Pushes from now on, and at the end the counts since the push before.
    fn begin(self, settings: &PushSettings) {
        let (node, interval) = (Arc::clone(&self.node), seconds(settings.interval));
        let (ask, asked) = oneshot::channel();
        node.spawn(self.go_on(interval, asked));
        let limit = seconds(settings.last_timeout);
        if limit.is_zero() {
            return;
        }
        node.at_end(async move {
            let (done, is_done) = oneshot::channel();
            if ask.send(done).is_ok() && tokio::time::timeout(limit, is_done).await.is_err() {
                tracing::error!("prometheus: the last push of metrics timed out");
            }
        });
    }

    /// No push is repeated: the next push has all counts. One that takes longer than the interval delays the
    /// next one, and they never overlap: one that is in progress when the last one is requested is aborted.
    async fn go_on(self, interval: Duration, last: oneshot::Receiver<LastOne>) {
        let done = tokio::select! {
            biased;
            asked = last => match asked {
                Ok(done) => done,
                // Nobody will ask.
                Err(_) => return self.push_for_ever(interval).await,
            },
            () = self.push_for_ever(interval) => return,
        };
        self.push_once().await;
        let _ = done.send(());
    }

    async fn push_for_ever(&self, interval: Duration) {
        let mut due = tokio::time::interval(interval.max(Duration::from_secs(1)));
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first one is at once, and there is nothing to tell.
        due.tick().await;
        loop {
            due.tick().await;
            self.push_once().await;
        }
    }

    async fn push_once(&self) {
        let [taken, failed] = &self.registry.pushes;
        match self.push().await {
            Ok(()) => taken.add(1),
            Err(reason) => {
                failed.add(1);
                tracing::error!("prometheus: failed to push metrics: {reason}");
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
            (reading, request) = read.await.map_err(|error| format!("cannot create the page: {error}"))?;
            let Some(request) = request else { return Ok(()) };
            self.send(request).await?;
        }
    }

    fn reading(&self) -> Reading {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let counted_for = Duration::from_millis(self.registry.now_ms());
        let start = nanos(since_epoch.saturating_sub(counted_for));
        let pieces = render::pieces(Arc::clone(&self.registry), Arc::clone(&self.node), PLAIN);
        Reading {
            pieces: Box::new(pieces),
            reader: Reader::new(start, nanos(since_epoch)),
            resource: self.resource.clone(),
        }
    }

    async fn send(&self, request: ExportRequest) -> Result<(), String> {
        let (place, answer) = match &self.way {
            PushProtocol::Http(collector, url) => (url.as_str(), over_http(collector, url, &request).await?),
            PushProtocol::Grpc(callee) => {
                let answer = callee.call(messages::EXPORT, request).await;
                (callee.endpoint(), answer.map_err(|refused| refused.reason)?)
            }
        };
        match answer.partial_success.filter(|partial| partial.rejected_data_points > 0) {
            Some(partial) => {
                let (refused, reason) = (partial.rejected_data_points, partial.error_message.escape_debug());
                Err(format!("{place} refused {refused} data points: {reason}"))
            }
            None => Ok(()),
        }
    }
}

async fn over_http(
    collector: &Collector,
    url: &Url,
    request: &ExportRequest,
) -> Result<ExportResponse, String> {
    let answer = collector.post(url, "application/x-protobuf", request.encode_to_vec()).await?;
    if !answer.is_success() {
        return Err(answer.reason(url));
    }
    // One that is no message says nothing of points that were refused.
    Ok(ExportResponse::decode(&answer.body[..]).unwrap_or_default())
}

/// A page that is pushed piece by piece.
struct Reading {
    pieces: Pieces,
    reader: Reader,
    resource: Resource,
}

impl Reading {
    /// The next request; None at the end.
    fn request(&mut self) -> Option<ExportRequest> {
        while self.reader.points() < REQUEST_POINTS
            && let Some(piece) = (self.pieces)()
        {
            self.reader.read(&piece);
        }
        let metrics = Some(self.reader.take()).filter(|metrics| !metrics.is_empty())?;
        let scope = Scope { name: "sigma".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
        let of_one = ResourceMetrics { resource: Some(self.resource.clone()), scope_metrics };
        Some(ExportRequest { resource_metrics: vec![of_one] })
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
