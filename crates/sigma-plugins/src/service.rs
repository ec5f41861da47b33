//! Services that plugins ask: how connections to them are kept, and what is warned of.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::Problem;
use sigma_plugin::outbound::Service;

/// The fields by which APISIX's plugins keep connections to a service.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Keepalive {
    /// Whether connections are kept.
    #[schemars(extend("default" = true))]
    keepalive: bool,
    /// Milliseconds that a kept connection may idle.
    #[schemars(range(min = 1000), extend("default" = 60_000))]
    keepalive_timeout: u64,
    /// Connections that each worker keeps.
    #[schemars(range(min = 1), extend("default" = 5))]
    keepalive_pool: u64,
}

impl Keepalive {
    /// A service as an upstream, whose connections are kept like this.
    pub(crate) fn upstream(&self, service: &Service, verify: bool, timeout_ms: u64) -> Value {
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

/// What lets others read or answer what `whom` is asked, such as `the agent`, whose URLs stand in `fields`.
pub(crate) fn warnings(conf: &Value, fields: &[&str], whom: &str) -> Vec<Problem> {
    let is_clear = |field: &&&str| {
        conf.get(**field).and_then(Value::as_str).is_some_and(|url| url.starts_with("http://"))
    };
    let cleartext = |field: &&str| {
        let message = format!("{whom} is asked in cleartext");
        Problem::new(*field, "cleartext", message).hint("use https where others may listen")
    };
    let mut found: Vec<Problem> = fields.iter().filter(is_clear).map(cleartext).collect();
    if conf.get("ssl_verify") == Some(&Value::Bool(false)) {
        let message = format!("anybody may answer in {whom}'s place");
        found.push(Problem::new("ssl_verify", "unverified", message).hint("leave it out"));
    }
    found
}
