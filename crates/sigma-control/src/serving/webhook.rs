//! Tells a service when nodes go out and come back.
//!
//! Events wait in a queue with a limit, and those that wait together go together. An unreachable service
//! delays only later events.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sigma_config::health_events::Webhook;
use sigma_upstream::health::{HealthEvent, HealthEvents};
use tokio::sync::mpsc;

/// Events in one call.
const TOGETHER: usize = 100;

/// The longest pause between two calls.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Where events go from now on, and where they come out.
pub(crate) fn queue(webhook: &Webhook) -> (HealthEvents, Teller) {
    let (sender, queue) = mpsc::channel(webhook.queue as usize);
    let events = HealthEvents::into_queue(sender);
    (events.clone(), Teller { webhook: webhook.clone(), events, queue })
}

/// Tells the service.
pub(crate) struct Teller {
    webhook: Webhook,
    events: HealthEvents,
    queue: mpsc::Receiver<HealthEvent>,
}

impl Teller {
    /// Sends events until the process ends.
    pub(crate) async fn run(mut self) {
        let built = reqwest::Client::builder()
            .timeout(Duration::from_millis(self.webhook.timeout_ms.into()))
            // The events are for the address that was configured, and for no other.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")))
            .build();
        let client = match built {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(%error, "health_events.webhook: no HTTP client; no health events are sent");
                return;
            }
        };
        let mut events = Vec::new();
        while self.queue.recv_many(&mut events, TOGETHER).await > 0 {
            let dropped = self.events.take_dropped();
            if dropped > 0 {
                tracing::warn!(dropped, "health_events.webhook: more events than `queue` has room for");
            }
            self.tell(&client, &body(&events, SystemTime::now())).await;
            events.clear();
        }
    }

    async fn tell(&self, client: &reqwest::Client, body: &Value) {
        let mut pause = Duration::from_millis(self.webhook.retry_delay_ms.into());
        for attempt in 0..=self.webhook.retries {
            let call = client.post(&self.webhook.url).header("content-type", "application/json");
            let problem = match call.body(body.to_string()).send().await {
                Ok(answer) if answer.status().is_success() => return,
                Ok(answer) => format!("the service responded {}", answer.status()),
                // Without the address, which may hold a token.
                Err(error) => innermost(&error.without_url()),
            };
            tracing::warn!(attempt, problem, "health_events.webhook: cannot send an event to the service");
            if attempt < self.webhook.retries {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        tracing::error!("health_events.webhook: events are lost; see that the service runs, and its `url`");
    }
}

/// The reason behind the words of the HTTP client.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn body(events: &[HealthEvent], now: SystemTime) -> Value {
    let sent = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let event = |event: &HealthEvent| {
        json!({
            "upstream": &*event.upstream,
            "node": event.node,
            "address": event.address,
            "in_use": event.reason.is_none(),
            "reason": event.reason,
        })
    };
    json!({"sent": sent, "events": events.iter().map(event).collect::<Vec<_>>()})
}
