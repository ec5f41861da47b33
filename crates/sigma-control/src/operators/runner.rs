//! The state of the plugin runner, for metrics and the status page.

use serde_json::{Value, json};
use sigma_plugin::facts::Measure;
use sigma_plugin::runner_state::{RunnerPhase, RunnerState};

/// The metrics of the runner; none without a runner.
pub(super) fn measures(state: &RunnerState) -> Vec<Measure> {
    let facts = state.facts();
    if facts.phase == RunnerPhase::Unused {
        return Vec::new();
    }
    let one =
        |name, help, is_counter, value| Measure { name, help, is_counter, series: vec![(Vec::new(), value)] };
    let failures = state.failures().map(|(reason, count)| (vec![("reason", reason.to_owned())], count));
    let mut measures = vec![
        one("runner_calls_total", "Calls to the plugin runner", true, state.calls()),
        Measure {
            name: "runner_failures_total",
            help: "Calls to the plugin runner that failed",
            is_counter: true,
            series: failures.into(),
        },
    ];
    if facts.phase != RunnerPhase::External {
        let is_up = u64::from(facts.phase == RunnerPhase::Running);
        measures.push(one("runner_up", "Whether the process of the plugin runner runs", false, is_up));
        measures.push(one("runner_starts_total", "Starts of the plugin runner", true, facts.starts));
    }
    measures
}

/// The same for the status page; null without a runner.
pub(super) fn shown(state: &RunnerState) -> Value {
    let facts = state.facts();
    if facts.phase == RunnerPhase::Unused {
        return Value::Null;
    }
    let failures: serde_json::Map<String, Value> =
        state.failures().into_iter().map(|(reason, count)| (reason.to_owned(), json!(count))).collect();
    json!({
        "state": facts.phase.as_str(),
        "socket": facts.socket,
        "pid": facts.pid,
        "starts": facts.starts,
        "last_end": facts.last_end,
        "starts_again_in_seconds": facts.pause_s,
        "output": state.lines(),
        "calls": state.calls(),
        "failures": failures,
    })
}

#[cfg(test)]
mod tests {
    use sigma_plugin::runner_state::RunnerFailure;

    use super::*;
    use crate::operators::measures::text;

    #[test]
    fn a_runner_is_shown_with_its_failures() {
        let state = RunnerState::default();
        assert_eq!((text(&measures(&state)).as_str(), shown(&state)), ("", Value::Null));
        state.change(|facts| {
            (facts.phase, facts.starts, facts.last_end) =
                (RunnerPhase::Waiting, 2, Some("signal: 9".to_owned()));
        });
        state.called();
        state.failed(RunnerFailure::Refused);
        let text = text(&measures(&state));
        for line in [
            "sigma_runner_calls_total 1\n",
            "sigma_runner_failures_total{reason=\"refused\"} 1\n",
            "sigma_runner_failures_total{reason=\"timeout\"} 0\n",
            "sigma_runner_up 0\n",
            "sigma_runner_starts_total 2\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let shown = shown(&state);
        assert_eq!((&shown["state"], &shown["last_end"]), (&json!("waiting"), &json!("signal: 9")));
    }
}
