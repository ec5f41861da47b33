//! Notifications by a call over HTTP.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sigma_config::health_events::Webhook;
use sigma_net::tls::reason::innermost;
use sigma_upstream::health::HealthEvent;

use super::Service;

/// Calls a service.
pub(super) struct Caller {
    url: String,
    /// The client, or the reason why it cannot be built.
    client: Result<reqwest::Client, String>,
}

impl Caller {
    pub(super) fn new(webhook: &Webhook) -> Caller {
        let client = reqwest::Client::builder()
            // The events are for the address that was configured, and for no other.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("sigma/", env!("CARGO_PKG_VERSION")))
            .build();
        Caller { url: webhook.url.clone(), client: client.map_err(|error| innermost(&error)) }
    }
}

impl Service for Caller {
    const PLACE: &'static str = "health_events.webhook";

    fn interval(&self) -> Duration {
        Duration::ZERO
    }

    async fn send(&self, events: &[HealthEvent]) -> Result<(), String> {
        let client = self.client.as_ref().map_err(|error| format!("no HTTP client: {error}"))?;
        let body = body(events, SystemTime::now()).to_string();
        let call = client.post(&self.url).header("content-type", "application/json");
        match call.body(body).send().await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(format!("the service responded {}", response.status())),
            // Without the address, which may hold a token.
            Err(error) => Err(innermost(&error.without_url())),
        }
    }
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
