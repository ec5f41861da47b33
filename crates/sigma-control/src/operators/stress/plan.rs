//! The order for a stress test.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most nodes of a test.
const NODES_MAX: usize = 16;

/// The longest test, in seconds.
const DURATION_MAX: u32 = 3_600;

/// The shortest step, in seconds: workers report once a second, and the first seconds of a step do not count.
const INTERVAL_MIN: u32 = 5;

/// A stress test as an operator orders it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StressPlan {
    /// The nodes, by name or address.
    pub(super) nodes: Vec<String>,
    /// The first share, in percent of all requests of the upstream.
    pub(super) start_percent: u32,
    /// The growth of the share from step to step.
    pub(super) step_percent: u32,
    /// The greatest share.
    pub(super) max_percent: u32,
    /// The length of a step in seconds.
    pub(super) interval: u32,
    /// The limit of the 99th percentile of latency in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99_ms: Option<f64>,
    /// The limit of the mean latency in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mean_ms: Option<f64>,
    /// The limit of errors in percent of requests.
    pub(super) error_percent: f64,
    /// The requests that a step needs before it is judged.
    pub(super) min_requests: u64,
    /// The greatest length of the test in seconds.
    pub(super) duration: u32,
}

impl Default for StressPlan {
    fn default() -> StressPlan {
        StressPlan {
            nodes: Vec::new(),
            start_percent: 10,
            step_percent: 10,
            max_percent: 50,
            interval: 30,
            p99_ms: None,
            mean_ms: None,
            error_percent: 1.0,
            min_requests: 100,
            duration: 600,
        }
    }
}

impl StressPlan {
    /// Reads an order.
    ///
    /// # Errors
    /// Returns an error, which names all problems, if it is invalid.
    pub(crate) fn read(body: Option<&Value>) -> Result<StressPlan, String> {
        let Some(body @ Value::Object(_)) = body else {
            return Err(
                "the body must be a JSON object such as {\"nodes\": [\"10.0.0.1:80\"], \"p99_ms\": 500}"
                    .to_owned(),
            );
        };
        let plan = StressPlan::deserialize(body).map_err(|error| error.to_string())?;
        let problems = plan.problems();
        if problems.is_empty() { Ok(plan) } else { Err(problems.join("; ")) }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |is_valid: bool, problem: String| {
            if !is_valid {
                problems.push(problem);
            }
        };
        let nodes = self.nodes.len();
        check((1..=NODES_MAX).contains(&nodes), format!("`nodes`: name 1 to {NODES_MAX} nodes"));
        let percents = [
            ("start_percent", self.start_percent),
            ("step_percent", self.step_percent),
            ("max_percent", self.max_percent),
        ];
        for (name, percent) in percents {
            check((1..=100).contains(&percent), format!("`{name}`: write a number from 1 to 100"));
        }
        let is_ordered = self.start_percent <= self.max_percent;
        check(is_ordered, format!("`max_percent`: write at least `start_percent`, {}", self.start_percent));
        let is_long = (1..=DURATION_MAX).contains(&self.duration);
        check(is_long, format!("`duration`: write a number of seconds from 1 to {DURATION_MAX}"));
        let is_step = (INTERVAL_MIN..=DURATION_MAX).contains(&self.interval);
        check(
            is_step,
            format!("`interval`: write a number of seconds from {INTERVAL_MIN} to {DURATION_MAX}"),
        );
        check(
            self.interval <= self.duration,
            format!("`duration`: write at least `interval`, {}", self.interval),
        );
        check(self.min_requests > 0, "`min_requests`: write at least 1".to_owned());
        check(
            (0.0..=100.0).contains(&self.error_percent),
            "`error_percent`: write a number from 0 to 100".to_owned(),
        );
        for (name, limit) in [("p99_ms", self.p99_ms), ("mean_ms", self.mean_ms)] {
            check(
                limit.is_none_or(|limit| limit > 0.0),
                format!("`{name}`: write a number of milliseconds above 0"),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn orders_have_defaults() {
        let plan = StressPlan::read(Some(&json!({"nodes": ["a:80"], "p99_ms": 500}))).expect("a valid order");
        let expected =
            StressPlan { nodes: vec!["a:80".to_owned()], p99_ms: Some(500.0), ..StressPlan::default() };
        assert_eq!(plan, expected);
    }

    #[test]
    fn invalid_orders_are_refused_with_all_problems() {
        let check = |body: Value, expected: &[&str]| {
            let error = StressPlan::read(Some(&body)).expect_err("a refusal");
            for part in expected {
                assert!(error.contains(part), "{error} for {body}");
            }
        };
        check(json!({}), &["`nodes`: name 1 to 16 nodes"]);
        check(json!({"nodes": vec!["a"; 17]}), &["`nodes`"]);
        check(
            json!({"nodes": ["a"], "start_percent": 0}),
            &["`start_percent`: write a number from 1 to 100"],
        );
        check(
            json!({"nodes": ["a"], "start_percent": 60}),
            &["`max_percent`: write at least `start_percent`, 60"],
        );
        check(json!({"nodes": ["a"], "interval": 4, "p99_ms": 0}), &["`interval`", "`p99_ms`"]);
        check(
            json!({"nodes": ["a"], "interval": 60, "duration": 30}),
            &["`duration`: write at least `interval`, 60"],
        );
        check(
            json!({"nodes": ["a"], "duration": 3601}),
            &["`duration`: write a number of seconds from 1 to 3600"],
        );
        check(
            json!({"nodes": ["a"], "error_percent": 101, "min_requests": 0}),
            &["`error_percent`", "`min_requests`"],
        );
        check(json!({"nodes": ["a"], "percent": 1}), &["unknown field `percent`"]);
        check(json!({"nodes": "a"}), &["invalid type"]);
        for body in [None, Some(json!([]))] {
            assert!(StressPlan::read(body.as_ref()).is_err());
        }
    }
}
