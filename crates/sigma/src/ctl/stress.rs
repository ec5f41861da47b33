//! `sigma ctl stress`: stress tests of nodes with a growing share of live requests.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::client::{Client, Method};
use super::output::{self, Form, table, text};

/// The time between two looks of `start --wait`.
const LOOK: Duration = Duration::from_secs(1);

/// An action on stress tests.
#[derive(Debug, Subcommand)]
pub(super) enum Act {
    /// Start a test: the nodes get a share of all requests of their upstream, which grows by steps
    Start(Start),
    /// Stop the test of an upstream: its nodes get their normal share
    Stop {
        /// The resource that contains the upstream, such as upstreams/1 or routes/1
        #[arg(value_name = "UPSTREAM")]
        upstream: String,
    },
    /// Show the report of the last test of an upstream, or of all
    Show {
        /// The resource that contains the upstream, such as upstreams/1 or routes/1; all without it
        #[arg(value_name = "UPSTREAM")]
        upstream: Option<String>,
    },
}

/// The order for a test.
#[derive(Debug, Args)]
pub(super) struct Start {
    /// The resource that contains the upstream, such as upstreams/1 or routes/1
    #[arg(value_name = "UPSTREAM")]
    upstream: String,
    /// A node of the test, as `upstreams` lists it; may be given several times: the share is one sum for all
    #[arg(long = "node", value_name = "NODE", required = true)]
    nodes: Vec<String>,
    /// The first share, in percent of all requests [default: 10]
    #[arg(long = "start", value_name = "PERCENT")]
    start_percent: Option<u32>,
    /// The growth of the share from step to step [default: 10]
    #[arg(long = "step", value_name = "PERCENT")]
    step_percent: Option<u32>,
    /// The greatest share [default: 50]
    #[arg(long = "max", value_name = "PERCENT")]
    max_percent: Option<u32>,
    /// The length of a step [default: 30]
    #[arg(long, value_name = "SECONDS")]
    interval: Option<u32>,
    /// The limit of the 99th percentile of latency
    #[arg(long = "p99", value_name = "MS")]
    p99_ms: Option<f64>,
    /// The limit of the mean latency
    #[arg(long = "mean", value_name = "MS")]
    mean_ms: Option<f64>,
    /// The limit of errors, in percent of the requests [default: 1]
    #[arg(long = "errors", value_name = "PERCENT")]
    error_percent: Option<f64>,
    /// The requests that a step needs before it is judged [default: 100]
    #[arg(long, value_name = "COUNT")]
    min_requests: Option<u64>,
    /// The greatest length of the test, at most 3600 [default: 600]
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u32>,
    /// Wait for the end of the test
    #[arg(long)]
    wait: bool,
}

impl Start {
    /// Returns the body of the call; the gateway has the defaults.
    fn body(&self) -> Value {
        let mut body = Map::new();
        body.insert("nodes".to_owned(), json!(self.nodes));
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        add("start_percent", self.start_percent.map(Value::from));
        add("step_percent", self.step_percent.map(Value::from));
        add("max_percent", self.max_percent.map(Value::from));
        add("interval", self.interval.map(Value::from));
        add("p99_ms", self.p99_ms.map(Value::from));
        add("mean_ms", self.mean_ms.map(Value::from));
        add("error_percent", self.error_percent.map(Value::from));
        add("min_requests", self.min_requests.map(Value::from));
        add("duration", self.duration.map(Value::from));
        body.into()
    }
}

/// Carries out an action at a gateway.
pub(super) async fn execute(client: &Client, act: Act, form: Form) -> Result<ExitCode> {
    let reports = match act {
        Act::Show { upstream: None } => client.stress(Method::Get, None, None).await?,
        Act::Show { upstream: Some(upstream) } => {
            one(client.stress(Method::Get, Some(&upstream), None).await?)
        }
        Act::Stop { upstream } => one(client.stress(Method::Delete, Some(&upstream), None).await?),
        Act::Start(start) => {
            let mut report = client.stress(Method::Post, Some(&start.upstream), Some(&start.body())).await?;
            while start.wait && report["state"] == "running" {
                tokio::time::sleep(LOOK).await;
                report = client.stress(Method::Get, Some(&start.upstream), None).await?;
            }
            one(report)
        }
    };
    match form {
        Form::Table => print!("{}", listed(&reports)),
        form => output::print(form, &reports)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn one(report: Value) -> Value {
    Value::Array(vec![report])
}

/// Returns each test with a table of its steps.
fn listed(reports: &Value) -> String {
    let mut shown = String::new();
    for report in reports.as_array().into_iter().flatten() {
        let state = report.get("reason").map_or_else(|| text(&report["state"]), text);
        shown.push_str(&format!("{} {}: {state}\n", text(&report["upstream"]), text(&report["nodes"])));
        let columns = [
            "share_percent",
            "seconds",
            "requests",
            "rate",
            "error_percent",
            "mean_ms",
            "p50_ms",
            "p90_ms",
            "p99_ms",
            "passed",
        ];
        let row = |step: &Value| columns.iter().map(|column| text(&step[*column])).collect();
        let rows = report["steps"].as_array().into_iter().flatten().map(row).collect();
        let names = [
            "SHARE %",
            "SECONDS",
            "REQUESTS",
            "REQUESTS/S",
            "ERRORS %",
            "MEAN MS",
            "P50 MS",
            "P90 MS",
            "P99 MS",
            "PASSED",
        ];
        shown.push_str(&table(&names, rows));
        if report["state"] == "ended" {
            let share = match report["highest_share_percent_within_limits"].as_u64() {
                Some(percent) => format!("{percent} %"),
                None => "none".to_owned(),
            };
            shown.push_str(&format!("greatest share within the limits: {share}\n"));
        }
    }
    if shown.is_empty() { "no stress tests\n".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_rows() {
        let step = json!({
            "share_percent": 20, "seconds": 28.0, "requests": 560, "rate": 20.0, "errors": 0, "error_percent": 0.0,
            "mean_ms": 12.5, "p50_ms": 11.0, "p90_ms": 20.0, "p99_ms": 600.0, "passed": ["p99_ms"],
        });
        let report = json!({
            "upstream": "upstreams/1", "nodes": ["a:80", "b:80"], "state": "ended", "reason": "the limit was passed",
            "highest_share_percent_within_limits": 10, "steps": [step],
        });
        let expected = "\
upstreams/1 a:80,b:80: the limit was passed
SHARE %  SECONDS  REQUESTS  REQUESTS/S  ERRORS %  MEAN MS  P50 MS  P90 MS  P99 MS  PASSED
20       28.0     560       20.0        0.0       12.5     11.0    20.0    600.0   p99_ms
greatest share within the limits: 10 %
";
        assert_eq!(listed(&json!([report])), expected);
        let running = json!({"upstream": "routes/1", "nodes": ["a:80"], "state": "running", "steps": []});
        assert!(listed(&json!([running])).starts_with("routes/1 a:80: running\nSHARE %"));
        assert_eq!(listed(&json!([])), "no stress tests\n");
    }

    #[test]
    fn only_given_options_are_sent() {
        let start = Start {
            upstream: "upstreams/1".to_owned(),
            nodes: vec!["a:80".to_owned()],
            start_percent: Some(20),
            step_percent: None,
            max_percent: None,
            interval: None,
            p99_ms: Some(500.0),
            mean_ms: None,
            error_percent: None,
            min_requests: None,
            duration: None,
            wait: false,
        };
        assert_eq!(start.body(), json!({"nodes": ["a:80"], "start_percent": 20, "p99_ms": 500.0}));
    }
}
