//! Who is told of the metrics, and how often.

use reqwest::Url;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

/// `plugin_attr.prometheus.otlp`.
#[derive(Clone, Deserialize, JsonSchema)]
pub(in crate::metrics::prometheus) struct PushSettings {
    /// The collector, a URL; one without a path is asked at `/v1/metrics`. The certificate of one with `https` is
    /// verified.
    #[schemars(regex(pattern = "^https?://."))]
    endpoint: String,
    /// Seconds between two pushes.
    #[serde(default = "usual_interval")]
    #[schemars(range(min = 1))]
    pub(super) interval: u64,
    /// Seconds that each request may take.
    #[serde(default = "usual_timeout")]
    #[schemars(range(min = 1))]
    pub(super) timeout: u64,
    /// Fields that are sent with each request.
    #[schemars(extend("additionalProperties" = {"type": ["boolean", "number", "string"]}))]
    pub(super) headers: Option<Map<String, Value>>,
    /// What the metrics are of: attributes of the gateway, such as `service.name`.
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

impl std::fmt::Debug for PushSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The fields may be secret.
        f.debug_struct("PushSettings").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl PushSettings {
    /// Where it is asked.
    ///
    /// # Errors
    /// Returns an error if the collector cannot be asked there.
    pub(super) fn url(&self) -> Result<Url, String> {
        let mut url = Url::parse(&self.endpoint).map_err(|error| format!("endpoint: {error}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("endpoint: a user in it is not sent; set `headers`".to_owned());
        }
        if url.path() == "/" {
            url.set_path("/v1/metrics");
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn where_a_collector_is_asked() {
        let check = |endpoint: &str, expected: Result<&str, &str>| {
            let settings: PushSettings = serde_json::from_value(json!({ "endpoint": endpoint })).unwrap();
            assert_eq!((settings.interval, settings.timeout), (60, 10));
            match (settings.url(), expected) {
                (Ok(url), Ok(expected)) => assert_eq!(url.as_str(), expected),
                (Err(told), Err(expected)) => assert!(told.contains(expected), "{told}"),
                other => panic!("{endpoint}: {other:?}"),
            }
        };
        check("http://127.0.0.1:4318", Ok("http://127.0.0.1:4318/v1/metrics"));
        check("https://otel.test/", Ok("https://otel.test/v1/metrics"));
        check("https://otel.test/api/otlp", Ok("https://otel.test/api/otlp"));
        check("http://user:pass@otel.test", Err("a user in it is not sent"));
        check("http://:1", Err("endpoint: "));
    }
}
