//! Batches of spans on their way to a collector, over HTTP or gRPC.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message as _;
use reqwest::Url;
use sigma_plugin::system::{Host, System};

use crate::shared::call::Callee;
use crate::shared::otlp::{self, ExportRequest, ExportResponse, Resource};
use crate::shared::post::Collector;
use sigma_plugin_kit::batch::{Destination, Refusal, Sending};

/// How often a batch is sent at most, and how long all of that may take with the pauses.
const ATTEMPTS: u32 = 3;
const OVERALL: Duration = Duration::from_secs(10);

/// Failures in a row after which the collector is left alone, and for how long.
const FAILURES: u64 = 5;
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// The protocol of a collector.
pub(super) enum ExportProtocol {
    Http(Collector, Url),
    Grpc(Callee),
}

/// A collector.
pub(super) struct Exporter {
    way: ExportProtocol,
    resource: Resource,
    breaker: Breaker,
}

/// Why a batch was not taken.
struct Failure {
    reason: String,
    /// The same batch may be taken later.
    is_passing: bool,
    /// How long the collector wants to be left alone.
    retry_after: Option<Duration>,
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure { reason, is_passing: true, retry_after: None }
    }
}

impl Exporter {
    pub(super) fn new(way: ExportProtocol, resource: Resource) -> Exporter {
        Exporter { way, resource, breaker: Breaker::default() }
    }

    /// Sends a batch, again after a pause if that may help.
    async fn export(&self, spans: &[Vec<u8>]) -> Result<(), String> {
        let uptime = || Host.uptime();
        if !self.breaker.admits(uptime()) {
            return Err(
                "the collector failed too often; the plugin waits some seconds before it retries".to_owned()
            );
        }
        let request = otlp::request(self.resource.clone(), spans);
        let began = uptime();
        for attempt in 1.. {
            let failure = match self.send(request.clone()).await {
                Ok(answer) => {
                    self.breaker.succeeded();
                    tell_rejected(answer);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            self.breaker.failed(uptime());
            let pause = failure.retry_after.unwrap_or_else(|| backoff(attempt));
            let is_late = uptime() - began + pause > OVERALL;
            if attempt == ATTEMPTS || !failure.is_passing || is_late {
                return Err(failure.reason);
            }
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    async fn send(&self, request: ExportRequest) -> Result<ExportResponse, Failure> {
        match &self.way {
            ExportProtocol::Http(collector, url) => over_http(collector, url, &request).await,
            ExportProtocol::Grpc(callee) => callee.call(otlp::EXPORT, request).await.map_err(|refused| {
                Failure { reason: refused.reason, is_passing: refused.is_passing, retry_after: None }
            }),
        }
    }
}

impl Destination for Exporter {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move { self.export(entries).await.map_err(Refusal::from) })
    }
}

async fn over_http(
    collector: &Collector,
    url: &Url,
    request: &ExportRequest,
) -> Result<ExportResponse, Failure> {
    let answer = collector.post(url, "application/x-protobuf", request.encode_to_vec()).await?;
    if answer.is_success() {
        // One that is no message says nothing of spans that were refused.
        return Ok(ExportResponse::decode(&answer.body[..]).unwrap_or_default());
    }
    let is_passing = matches!(answer.status, 429 | 502 | 503 | 504);
    Err(Failure { reason: answer.reason(url), is_passing, retry_after: answer.retry_after })
}

/// A collector may take a batch and leave some of it out: the rest is not sent again.
fn tell_rejected(answer: ExportResponse) {
    if let Some(partial) = answer.partial_success.filter(|partial| partial.rejected_spans > 0) {
        let reason = partial.error_message.escape_debug();
        tracing::error!(rejected = partial.rejected_spans, "the collector refused spans: {reason}");
    }
}

/// Before the attempt after this one: a random part of 2ⁿ seconds.
fn backoff(attempt: u32) -> Duration {
    let mut byte = [0; 1];
    // Without random bytes it is the whole time.
    let share = match Host.fill_random(&mut byte) {
        Ok(()) => f64::from(byte[0]) / 256.0,
        Err(_) => 1.0,
    };
    Duration::from_secs(1 << (attempt - 1)).mul_f64(share)
}

/// Leaves a collector alone that fails again and again.
#[derive(Debug, Default)]
struct Breaker {
    failures: AtomicU64,
    /// When the last one was, in milliseconds of the process.
    last_ms: AtomicU64,
}

impl Breaker {
    /// Whether a batch may be sent. After a while one is, whose fate decides on the others.
    fn admits(&self, uptime: Duration) -> bool {
        let now_ms = uptime.as_millis() as u64;
        let last_ms = self.last_ms.load(Ordering::Relaxed);
        if self.failures.load(Ordering::Relaxed) < FAILURES {
            return true;
        }
        if now_ms.saturating_sub(last_ms) < LEFT_ALONE.as_millis() as u64 {
            return false;
        }
        self.last_ms.store(now_ms, Ordering::Relaxed);
        true
    }

    fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    fn failed(&self, uptime: Duration) {
        self.last_ms.store(uptime.as_millis() as u64, Ordering::Relaxed);
        // Only the control thread's tasks count here, one at a time.
        self.failures.store(self.failures.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_fails_is_left_alone_for_a_while() {
        let (breaker, at) = (Breaker::default(), Duration::from_secs);
        for _ in 0..4 {
            breaker.failed(at(1));
        }
        assert!(breaker.admits(at(1)));
        breaker.failed(at(1));
        assert!(!breaker.admits(at(1)) && !breaker.admits(at(5)));
        assert!(breaker.admits(at(6)), "one tries");
        assert!(!breaker.admits(at(7)), "the others wait for it");
        breaker.succeeded();
        assert!(breaker.admits(at(7)));
    }

    #[test]
    fn pauses_grow_and_stay_within_bounds() {
        for attempt in 1..4 {
            assert!(backoff(attempt) <= Duration::from_secs(1 << (attempt - 1)));
        }
    }
}
