//! The collector of the metrics, and the interval.

use reqwest::Url;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::PushProtocol;
use crate::shared::call::Callee;
use crate::shared::otlp::Protocol;
use crate::shared::post::{self, Collector};
use sigma_plugin_kit::batch::seconds;
use sigma_plugin_kit::cleartext::is_exposed;

/// `plugin_attr.prometheus.otlp`.
#[derive(Clone, Deserialize, JsonSchema)]
pub(in crate::prometheus) struct PushSettings {
    /// The collector, a URL. The default path is `/v1/metrics`. With `https` the certificate is verified.
    #[schemars(regex(pattern = "^https?://."))]
    endpoint: String,
    /// Protocol of the collector. For `grpc` the endpoint has no path.
    #[serde(default)]
    protocol: Protocol,
    /// Seconds between two pushes.
    #[serde(default = "usual_interval")]
    #[schemars(range(min = 1))]
    pub(super) interval: u64,
    /// Timeout of each request in seconds.
    #[serde(default = "usual_timeout")]
    #[schemars(range(min = 1))]
    pub(super) timeout: u64,
    /// Timeout in seconds of the last push when the gateway stops; 0: no last push.
    #[serde(default = "usual_last_timeout")]
    #[schemars(range(max = 4))]
    pub(super) last_timeout: u64,
    /// Fields that are sent with each request.
    #[schemars(extend("additionalProperties" = {"type": ["boolean", "number", "string"]}))]
    pub(super) headers: Option<Map<String, Value>>,
    /// Resource attributes of the gateway, such as `service.name`.
    #[schemars(extend("additionalProperties" = {"type": ["boolean", "number", "string"]}))]
    pub(super) resource: Option<Map<String, Value>>,
}

/// That of the SDKs.
fn usual_interval() -> u64 {
    60
}

fn usual_timeout() -> u64 {
    10
}

/// Of the five seconds that all plugins have together: logs have to leave as well.
fn usual_last_timeout() -> u64 {
    2
}

impl std::fmt::Debug for PushSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The fields may be secret.
        f.debug_struct("PushSettings").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl PushSettings {
    /// Returns the way to the collector.
    ///
    /// # Errors
    /// Returns an error if the collector cannot be reached so.
    pub(super) fn way(&self) -> Result<PushProtocol, String> {
        let url = Url::parse(&self.endpoint).map_err(|error| format!("endpoint: {error}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("endpoint: a user in the URL is not sent; set `headers`".to_owned());
        }
        let headers = post::fields("headers", self.headers.as_ref())?;
        if is_exposed(url.as_str()) {
            tracing::warn!("prometheus: metrics are sent to {url} in cleartext");
        }
        let timeout = seconds(self.timeout);
        match self.protocol {
            Protocol::Http => Ok(PushProtocol::Http(Collector::new(headers, timeout), asked_at(url))),
            Protocol::Grpc => Callee::new(&url, headers, timeout)
                .map(PushProtocol::Grpc)
                .ok_or_else(|| "endpoint: gRPC uses no path; remove it".to_owned()),
        }
    }
}

/// Returns an endpoint with the default path of metrics, if it has no path.
fn asked_at(mut endpoint: Url) -> Url {
    if endpoint.path() == "/" {
        endpoint.set_path("/v1/metrics");
    }
    endpoint
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn where_a_collector_is_asked() {
        let of = |settings: serde_json::Value, expected: Result<&str, &str>| {
            let read: PushSettings = serde_json::from_value(settings.clone()).unwrap();
            assert_eq!((read.interval, read.timeout, read.last_timeout), (60, 10, 2));
            match (read.way(), expected) {
                (Ok(PushProtocol::Http(_, url)), Ok(expected)) => assert_eq!(url.as_str(), expected),
                (Ok(PushProtocol::Grpc(callee)), Ok(expected)) => assert_eq!(callee.endpoint(), expected),
                (Err(told), Err(expected)) => assert!(told.contains(expected), "{told}"),
                _ => panic!("{settings}"),
            }
        };
        let check = |endpoint: &str, expected| of(json!({ "endpoint": endpoint }), expected);
        check("http://127.0.0.1:4318", Ok("http://127.0.0.1:4318/v1/metrics"));
        check("https://otel.test/", Ok("https://otel.test/v1/metrics"));
        check("https://otel.test/api/otlp", Ok("https://otel.test/api/otlp"));
        check("http://user:pass@otel.test", Err("a user in the URL is not sent"));
        check("http://:1", Err("endpoint: "));
        let check =
            |endpoint: &str, expected| of(json!({ "endpoint": endpoint, "protocol": "grpc" }), expected);
        check("http://127.0.0.1:4317/", Ok("http://127.0.0.1:4317"));
        check("https://otel.test:4317", Ok("https://otel.test:4317"));
        check("http://otel.test/v1/metrics", Err("gRPC uses no path"));
    }
}
