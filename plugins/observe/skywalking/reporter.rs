//! Messages to the OAP server: the properties of the gateway, heartbeats, and segments.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::Identity;
use crate::shared::post::Collector;
use sigma_plugin_kit::batch::{Destination, Refusal, Sending};
use sigma_plugin_kit::cleartext::is_exposed;
use sigma_plugin_kit::log_throttle::LogThrottle;

/// How long the server may take for anything.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The way to the server.
pub(super) struct Reporter {
    server: Arc<Server>,
    /// Begins with the first batch.
    living: OnceLock<()>,
}

struct Server {
    base: Url,
    identity: Identity,
    interval: Duration,
    collector: Collector,
}

impl Reporter {
    /// One to the server at this URL.
    ///
    /// # Errors
    /// Returns an error if it is invalid.
    pub(super) fn new(address: &str, identity: Identity, interval: Duration) -> Result<Reporter, String> {
        let base = Url::parse(address).map_err(|error| format!("`{address}` is not a URL: {error}"))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(format!("`{address}` is not a URL with http or https"));
        }
        if is_exposed(base.as_str()) {
            tracing::warn!("skywalking: segments are sent to {base} in cleartext");
        }
        let server =
            Server { base, identity, interval, collector: Collector::new(HeaderMap::new(), TIMEOUT) };
        Ok(Reporter { server: Arc::new(server), living: OnceLock::new() })
    }
}

impl Destination for Reporter {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            self.living.get_or_init(|| drop(tokio::spawn(live(Arc::downgrade(&self.server)))));
            let body = [b"[", &entries.join(&b',')[..], b"]"].concat();
            self.server.post("v3/segments", body).await.map_err(Refusal::from)
        })
    }
}

/// Tells the server who this is until it knows, and then that it lives, as long as segments may come.
async fn live(server: Weak<Server>) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    let mut is_known = false;
    while let Some(server) = server.upgrade() {
        let told = if is_known { server.keep_alive().await } else { server.introduce().await };
        match told {
            Ok(()) => is_known = true,
            Err(reason) => {
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, "skywalking: {reason}");
                }
            }
        }
        let interval = server.interval;
        drop(server);
        tokio::time::sleep(interval).await;
    }
}

impl Server {
    async fn introduce(&self) -> Result<(), String> {
        let properties = json!([{"key": "language", "value": "rust"}]);
        self.tell("v3/management/reportProperties", Some(properties)).await
    }

    async fn keep_alive(&self) -> Result<(), String> {
        self.tell("v3/management/keepAlive", None).await
    }

    async fn tell(&self, path: &str, properties: Option<Value>) -> Result<(), String> {
        let Identity { service, instance } = &self.identity;
        let mut message = json!({"service": service, "serviceInstance": instance});
        if let Some(properties) = properties {
            message["properties"] = properties;
        }
        self.post(path, message.to_string().into_bytes()).await
    }

    async fn post(&self, path: &str, body: Vec<u8>) -> Result<(), String> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/{path}", self.base.path().trim_end_matches('/')));
        let answer = self.collector.post(&url, "application/json", body).await?;
        if answer.is_success() { Ok(()) } else { Err(answer.reason(&url)) }
    }
}
