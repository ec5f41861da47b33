//! The handling of requests that a restriction refuses.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::{Env, Reply, Step};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

/// The action of a restriction on refused requests, flattened into its configuration.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) struct Refusal {
    /// Treatment of refused clients: a response (`deny`), a delayed response (`tarpit`), or no response
    /// (`silent-drop`): the connection is closed, or the HTTP/2 stream is reset.
    #[schemars(extend("default" = "deny", "own_default" = true))]
    #[serde(default)]
    rejected_action: Action,
    /// Delay of the response to a `tarpit` request in milliseconds.
    #[schemars(range(min = 1, max = 300_000), extend("default" = 10_000, "own_default" = true))]
    #[serde(default = "tarpit_ms")]
    tarpit_ms: u64,
    /// Maximum number of delayed requests in each worker, over all tarpits; further requests get their response at
    /// once.
    #[schemars(range(min = 1, max = 100_000), extend("default" = 1000, "own_default" = true))]
    #[serde(default = "tarpit_max")]
    tarpit_max: usize,
}

fn tarpit_ms() -> u64 {
    10_000
}

fn tarpit_max() -> usize {
    1000
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Action {
    #[default]
    Deny,
    Tarpit,
    SilentDrop,
}

/// The requests that a worker holds.
#[derive(Default)]
struct Tarpit(Rc<Cell<usize>>);

/// A request's place among them; given back however its wait ends.
struct TarpitSlot(Rc<Cell<usize>>);

impl Tarpit {
    fn hold(&self, max: usize) -> Option<TarpitSlot> {
        let count = self.0.get();
        if count >= max {
            return None;
        }
        self.0.set(count + 1);
        Some(TarpitSlot(Rc::clone(&self.0)))
    }
}

impl Drop for TarpitSlot {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Refusal {
    /// Refuses a request, which `reply` answers if anything does.
    pub(crate) fn step(&self, reply: Reply, env: &Env<'_>) -> Step {
        let held = match self.rejected_action {
            Action::Deny => return reply.into(),
            Action::SilentDrop => return Reply::silent().into(),
            Action::Tarpit => env.local.part(Tarpit::default).hold(self.tarpit_max),
        };
        // A request beyond the limit of delayed ones is refused at once.
        let Some(held) = held else { return reply.into() };
        let time = Duration::from_millis(self.tarpit_ms);
        Step::wait(async move { tokio::time::sleep(time).await }, move |(), _, _| {
            drop(held);
            reply.into()
        })
    }
}

/// The warnings about fields that no action reads.
pub(crate) fn warnings(_: PluginScope, conf: &Value) -> Vec<Problem> {
    if conf.get("rejected_action").and_then(Value::as_str) == Some("tarpit") {
        return Vec::new();
    }
    let unread = ["tarpit_ms", "tarpit_max"].into_iter().filter(|field| conf.get(*field).is_some());
    let warning = |field| {
        let message = format!("`{field}` has no effect without `rejected_action: tarpit`");
        Problem::new(field, "no_effect", message).hint("write `rejected_action: tarpit`, or remove it")
    };
    unread.map(warning).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_plugin::Phase;

    use super::*;
    use crate::testing::{Case, entry, refusal, summary, warned};

    /// Every restriction, with a configuration that refuses, and the phase in which it does.
    fn restrictions() -> Vec<(&'static str, Value, Phase)> {
        vec![
            ("ip-restriction", json!({"whitelist": ["10.0.0.0/8"]}), Phase::Access),
            ("rbac", json!({"rules": {"policies": {}}}), Phase::Access),
            ("referer-restriction", json!({"whitelist": ["a.test"]}), Phase::Access),
            ("ua-restriction", json!({"allowlist": ["robot"]}), Phase::Access),
            ("uri-blocker", json!({"block_rules": ["^/"]}), Phase::Rewrite),
        ]
    }

    fn with(conf: &Value, more: Value) -> Value {
        let mut conf = conf.clone();
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf
    }

    #[test]
    fn every_restriction_denies_delays_or_drops() {
        for (name, conf, phase) in restrictions() {
            let run = |more: Value| {
                let entry = entry(name, with(&conf, more)).unwrap();
                Case::new("GET / HTTP/1.1\nHost: h").run(&entry, phase).expect("it is refused")
            };
            let denied = run(json!({}));
            assert!(!denied.is_silent && denied.status == 403, "{name}");
            let delayed = run(json!({"rejected_action": "tarpit", "tarpit_ms": 1}));
            assert_eq!(summary(Some(&delayed)), summary(Some(&denied)), "{name}");
            assert!(run(json!({"rejected_action": "silent-drop"})).is_silent, "{name}");
            assert_ne!(refusal(name, &with(&conf, json!({"rejected_action": "drop"}))), "", "{name}");
            assert_ne!(refusal(name, &with(&conf, json!({"tarpit_ms": 0}))), "", "{name}");
            let ineffective = with(&conf, json!({"tarpit_ms": 5}));
            assert_eq!(warned(name, PluginScope::Http, &ineffective), ["tarpit_ms"], "{name}");
        }
    }

    /// A tarpit is full at its limit, and has room again however a wait ended.
    #[test]
    fn tarpits_are_bounded() {
        let entry = entry(
            "ip-restriction",
            json!({"whitelist": ["10.0.0.0/8"], "rejected_action": "tarpit", "tarpit_ms": 300_000, "tarpit_max": 2}),
        );
        let (entry, mut case) = (entry.unwrap(), Case::new("GET / HTTP/1.1\nHost: h"));
        let Case { ctx, node, local, consumers, .. } = &mut case;
        let env = Env::new(node, local, consumers);
        let mut ask = || entry.plugin.access(ctx, &env);
        let held = [ask(), ask()];
        assert!(held.iter().all(|step| matches!(step, Step::Wait(_))));
        assert!(matches!(ask(), Step::Reply(_)), "it is full, and refuses all the same");
        // The clients leave.
        drop(held);
        assert!(matches!(ask(), Step::Wait(_)));
    }
}
