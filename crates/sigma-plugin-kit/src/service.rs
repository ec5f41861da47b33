//! Services that plugins ask: their connections, and warnings about them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::outbound::Service;
use sigma_schema::Problem;

use crate::cleartext::is_exposed;

/// The connection options of APISIX's plugins that call a service.
#[derive(Deserialize, JsonSchema)]
pub struct Keepalive {
    /// Whether connections are kept alive.
    #[schemars(extend("default" = true))]
    keepalive: bool,
    /// Idle timeout of a connection in milliseconds.
    #[schemars(range(min = 1000), extend("default" = 60_000))]
    keepalive_timeout: u64,
    /// Maximum idle connections of each worker.
    #[schemars(range(min = 1), extend("default" = 5))]
    keepalive_pool: u64,
}

impl Keepalive {
    /// Returns how many connections are kept, and for how long. None without any.
    pub fn kept(&self) -> Option<(usize, Duration)> {
        let most = usize::try_from(self.keepalive_pool).unwrap_or(usize::MAX);
        self.keepalive.then_some((most, Duration::from_millis(self.keepalive_timeout)))
    }

    /// Returns a service as an upstream with these connections.
    pub fn upstream(&self, service: &Service, verify: bool, timeout_ms: u64) -> Value {
        let mut upstream = service.upstream(verify, timeout_ms);
        let idle_s = self.keepalive_timeout as f64 / 1000.0;
        let mut pool = json!({ "size": self.keepalive_pool, "idle_timeout": idle_s });
        if !self.keepalive {
            pool["requests"] = 1.into();
        }
        upstream["keepalive_pool"] = pool;
        upstream
    }
}

/// Returns warnings about settings with which others can read or answer requests to `whom`, such as `the agent`,
/// whose URLs are in `fields`.
pub fn warnings(conf: &Value, fields: &[&str], whom: &str) -> Vec<Problem> {
    let asked = format!("{whom} is called in cleartext");
    let clear = fields.iter().filter_map(|field| cleartext(conf, field, &asked));
    clear.chain(unverified(conf, &format!("another server can impersonate {whom}"))).collect()
}

/// Returns a warning if the URL in a field has no TLS and is on another machine.
pub fn cleartext(conf: &Value, field: &str, message: &str) -> Option<Problem> {
    let url = conf.get(field).and_then(Value::as_str).unwrap_or_default();
    let problem =
        || Problem::new(field, "cleartext", message).hint("use https unless the network is trusted");
    (url.starts_with("http://") && is_exposed(url)).then(problem)
}

/// Returns a warning if the certificate of a service is not verified.
pub fn unverified(conf: &Value, message: &str) -> Option<Problem> {
    let is_off = conf.get("ssl_verify") == Some(&Value::Bool(false));
    is_off.then(|| Problem::new("ssl_verify", "unverified", message).hint("leave it out"))
}
