//! `limit-conn` on stream routes: sessions at the same time.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Build, Configuration, Env, Flow, FlowPlugin, FlowStep, Session};

use super::counts::{Counts, waits};
use crate::shared::quota::{Key, KeyType, Space};

/// The plugin's part in stream routes.
pub(super) const FLOW: Flow = Flow::of::<Config>(|build| Ok(Arc::new(LimitSessions::new(build)?)));

/// The status of a session that is one too many.
const REFUSED: u16 = 503;

/// Limits concurrent sessions.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// Concurrent sessions without a delay.
    #[schemars(range(min = 1))]
    conn: u64,
    /// Additional concurrent sessions, which are delayed.
    burst: u64,
    /// Delay in seconds of a session beyond `conn`.
    #[schemars(extend("exclusiveMinimum" = 0))]
    default_conn_delay: f64,
    /// Without effect: the delay is always `default_conn_delay`, as with `true`.
    #[serde(rename = "only_use_default_delay")]
    #[schemars(extend("default" = false))]
    _only_default: bool,
    /// Key of the counter; see `key_type`. Without a value the client's address is used. IPv6 addresses count by
    /// network (/64), unless a text with variables names `$remote_addr`.
    key: String,
    /// Form of `key`: the name of a variable (`var`), or a text with variables (`var_combination`).
    #[schemars(with = "String", extend("enum" = ["var", "var_combination"], "default" = "var"))]
    key_type: KeyType,
}

impl Configuration for Config {}

struct LimitSessions {
    counts: Arc<Counts>,
    key: Key,
    space: Space,
    conn: u64,
    most: u64,
    delay_s: f64,
}

/// A slot that a session takes up; given back when it has ended, however it ends.
struct LimitedSession {
    counts: Arc<Counts>,
    key: Vec<u8>,
}

impl Drop for LimitedSession {
    fn drop(&mut self) {
        self.counts.leave(&self.key);
    }
}

impl LimitSessions {
    fn new(build: &Build<'_>) -> Result<LimitSessions, String> {
        let Config { conn, burst, default_conn_delay, key, key_type, .. } = build.config()?;
        Ok(LimitSessions {
            counts: build.node.part(Counts::default),
            key: Key::new(&key, key_type),
            space: Space::of(build),
            conn,
            most: conn.saturating_add(burst),
            delay_s: default_conn_delay,
        })
    }
}

impl FlowPlugin for LimitSessions {
    fn preread(&self, session: &mut Session, _: &Env<'_>) -> FlowStep {
        let key = self.space.by_value_or_address(&self.key, &*session);
        let Some(value) = self.counts.enter(&key, self.most) else { return FlowStep::Close(REFUSED) };
        session.keep(LimitedSession { counts: Arc::clone(&self.counts), key });
        let delay = waits(self.delay_s, value, self.conn);
        if delay < Duration::from_millis(1) {
            return FlowStep::Next;
        }
        FlowStep::Wait(Box::pin(async move {
            tokio::time::sleep(delay).await;
            FlowStep::Next
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{FlowCase, flow_entry, refusal_in};

    fn conf(key: &str) -> Value {
        json!({"conn": 1, "burst": 1, "default_conn_delay": 0.05, "key": key})
    }

    /// Returns a name for the result of a hook.
    fn word(step: &FlowStep) -> String {
        match step {
            FlowStep::Next => "next".to_owned(),
            FlowStep::Wait(_) => "wait".to_owned(),
            FlowStep::More => "more".to_owned(),
            FlowStep::Close(status) => status.to_string(),
        }
    }

    #[test]
    fn sessions_count_until_they_are_over() {
        for key in ["remote_addr", "ssl_server_name"] {
            let plugin = flow_entry("limit-conn", conf(key)).unwrap();
            let case = FlowCase::default();
            let session = |addr: &str| {
                let mut session = Session::default();
                session.client.addr = addr.parse().ok();
                let step = case.preread(&plugin, &mut session);
                (word(&step), session)
            };
            let (first, held) = session("192.0.2.1");
            let (second, other) = session("192.0.2.1");
            let (third, _) = session("192.0.2.1");
            assert_eq!([&*first, &*second, &*third], ["next", "wait", "503"], "{key}");
            // Another client has its own, also where the key has no value.
            assert_eq!(session("192.0.2.2").0, "next");
            drop((held, other));
            assert_eq!(session("192.0.2.1").0, "next");
        }
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: &Value, expected: &str| {
            assert_eq!(refusal_in("limit-conn", PluginScope::Stream, conf), expected, "{conf}");
        };
        check(&conf("remote_addr"), "");
        check(&json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1}), "property \"key\" is required");
        check(&conf("uri"), "a TCP or UDP session has no variables of a request (at key)");
        let zero = json!({"conn": 0, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"});
        check(&zero, "property \"conn\" validation failed: expected 0 to be at least 1");
    }
}
