//! The progress of a stress test, from step to step. Time and measurements are arguments.

use serde_json::{Value, json};
use sigma_observe::figures::Figures;

use super::plan::StressPlan;

/// The time at the beginning of a step that does not count: workers learn the share, and report once a second.
const SETTLE_MS: u64 = 2_000;

/// Why a test has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// A limit was passed.
    LimitPassed,
    /// The greatest share was reached within the limits.
    Reached,
    /// The longest time has passed.
    OutOfTime,
    /// An operator has stopped it.
    Stopped,
    /// The nodes or the upstream have changed.
    Changed(String),
}

impl End {
    fn name(&self) -> &'static str {
        match self {
            End::LimitPassed => "limit_passed",
            End::Reached => "max_percent_reached",
            End::OutOfTime => "duration_over",
            End::Stopped => "stopped",
            End::Changed(_) => "changed",
        }
    }
}

/// One step, as it was measured.
#[derive(Debug)]
struct Step {
    percent: u32,
    measured_ms: u64,
    figures: Figures,
    /// The limits that were passed.
    passed: Vec<&'static str>,
}

/// The progress of one test.
#[derive(Debug)]
pub(super) struct Progress {
    plan: StressPlan,
    /// The share of the current step.
    percent: u32,
    began_ms: u64,
    step_began_ms: u64,
    figures: Figures,
    steps: Vec<Step>,
    ended: Option<End>,
}

impl Progress {
    /// Begins with the first step.
    pub(super) fn begin(plan: StressPlan, now_ms: u64) -> Progress {
        Progress {
            percent: plan.start_percent,
            plan,
            began_ms: now_ms,
            step_began_ms: now_ms,
            figures: Figures::default(),
            steps: Vec::new(),
            ended: None,
        }
    }

    /// Returns the share that the nodes get, in percent; 0 after the end.
    pub(super) fn percent(&self) -> u32 {
        if self.ended.is_some() { 0 } else { self.percent }
    }

    /// Returns true if it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Ends it, unless it has ended already.
    pub(super) fn end(&mut self, end: End, now_ms: u64) {
        if self.ended.is_none() {
            self.close_step(now_ms, Vec::new());
            self.ended = Some(end);
        }
    }

    /// Takes the measurements since the last call; the next step or the end may follow.
    pub(super) fn tick(&mut self, measured: &Figures, now_ms: u64) {
        if self.ended.is_some() {
            return;
        }
        let in_step_ms = now_ms.saturating_sub(self.step_began_ms);
        if in_step_ms > SETTLE_MS {
            self.figures.merge(measured);
        }
        let is_judged = self.figures.requests >= self.plan.min_requests;
        let passed = if is_judged { self.passed() } else { Vec::new() };
        if !passed.is_empty() {
            self.close_step(now_ms, passed);
            self.ended = Some(End::LimitPassed);
        } else if is_judged && in_step_ms >= u64::from(self.plan.interval) * 1_000 {
            self.close_step(now_ms, Vec::new());
            if self.percent >= self.plan.max_percent {
                self.ended = Some(End::Reached);
                return;
            }
            self.percent = (self.percent + self.plan.step_percent).min(self.plan.max_percent);
            self.step_began_ms = now_ms;
        }
        if now_ms.saturating_sub(self.began_ms) >= u64::from(self.plan.duration) * 1_000 {
            self.end(End::OutOfTime, now_ms);
        }
    }

    fn close_step(&mut self, now_ms: u64, passed: Vec<&'static str>) {
        let measured_ms = now_ms.saturating_sub(self.step_began_ms).saturating_sub(SETTLE_MS);
        let figures = std::mem::take(&mut self.figures);
        self.steps.push(Step { percent: self.percent, measured_ms, figures, passed });
    }

    /// Returns the limits that the current step has passed.
    fn passed(&self) -> Vec<&'static str> {
        let StressPlan { p99_ms, mean_ms, error_percent, .. } = self.plan;
        let is_above = |value: Option<f64>, limit: Option<f64>| matches!((value, limit), (Some(value), Some(limit)) if value > limit);
        let mut passed = Vec::new();
        if is_above(self.figures.percentile_ms(99), p99_ms) {
            passed.push("p99_ms");
        }
        if is_above(self.figures.mean_ms(), mean_ms) {
            passed.push("mean_ms");
        }
        if is_above(errors_percent(&self.figures), Some(error_percent)) {
            passed.push("error_percent");
        }
        passed
    }

    /// Returns the greatest share of a judged step within the limits.
    fn highest_within_limits(&self) -> Option<u32> {
        let is_good =
            |step: &&Step| step.passed.is_empty() && step.figures.requests >= self.plan.min_requests;
        let ended_early = matches!(self.ended, Some(End::Changed(_) | End::Stopped));
        // A step that was cut short proves nothing.
        let whole = self.steps.len() - usize::from(ended_early && !self.steps.is_empty());
        self.steps[..whole].iter().filter(is_good).map(|step| step.percent).max()
    }

    /// Returns the report.
    pub(super) fn report(&self, now_ms: u64) -> Value {
        let mut steps: Vec<Value> = self.steps.iter().map(Step::shown).collect();
        if self.ended.is_none() {
            let measured_ms = now_ms.saturating_sub(self.step_began_ms).saturating_sub(SETTLE_MS);
            let figures = self.figures.clone();
            steps.push(Step { percent: self.percent, measured_ms, figures, passed: Vec::new() }.shown());
        }
        let mut report = json!({
            "state": if self.ended.is_some() { "ended" } else { "running" },
            "share_percent": self.percent(),
            "highest_share_percent_within_limits": self.highest_within_limits(),
            "plan": self.plan,
            "steps": steps,
        });
        if let Some(end) = &self.ended {
            report["ended_by"] = end.name().into();
            report["reason"] = self.reason(end).into();
        }
        report
    }

    /// Returns why it has ended, as a sentence.
    fn reason(&self, end: &End) -> String {
        match end {
            End::LimitPassed => {
                let last = self.steps.last();
                let passed = last.map(|step| step.passed.join(", ")).unwrap_or_default();
                format!("the limit of {passed} was passed with a share of {} %", self.percent)
            }
            End::Reached => format!("the greatest share, {} %, was within the limits", self.percent),
            End::OutOfTime => format!("the duration of {} s is over", self.plan.duration),
            End::Stopped => "an operator has stopped the test".to_owned(),
            End::Changed(reason) => reason.clone(),
        }
    }
}

impl Step {
    fn shown(&self) -> Value {
        let Step { percent, measured_ms, figures, passed } = self;
        let seconds = *measured_ms as f64 / 1_000.0;
        let rate = if seconds > 0.0 { figures.requests as f64 / seconds } else { 0.0 };
        let mut shown = json!({
            "share_percent": percent,
            "seconds": rounded(seconds),
            "requests": figures.requests,
            "rate": rounded(rate),
            "errors": errors(figures),
            "error_percent": errors_percent(figures).map(rounded),
            "mean_ms": figures.mean_ms().map(rounded),
            "p50_ms": figures.percentile_ms(50).map(rounded),
            "p90_ms": figures.percentile_ms(90).map(rounded),
            "p99_ms": figures.percentile_ms(99).map(rounded),
        });
        if !passed.is_empty() {
            shown["passed"] = json!(passed);
        }
        shown
    }
}

/// Returns the attempts that failed: with a status of 500 or more, or without a response.
fn errors(figures: &Figures) -> u64 {
    figures.server_errors + figures.faults
}

fn errors_percent(figures: &Figures) -> Option<f64> {
    (figures.requests > 0).then(|| errors(figures) as f64 * 100.0 / figures.requests as f64)
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn plan() -> StressPlan {
        StressPlan {
            nodes: vec!["a:80".to_owned()],
            start_percent: 20,
            step_percent: 30,
            max_percent: 60,
            interval: 10,
            p99_ms: Some(100.0),
            mean_ms: Some(50.0),
            error_percent: 5.0,
            min_requests: 50,
            duration: 100,
        }
    }

    /// The requests of one second: their number, latency and number of failures.
    fn second(requests: u64, ms: u64, failures: u64) -> Figures {
        let mut figures = Figures::default();
        for n in 0..requests {
            let status = if n < failures { 503 } else { 200 };
            figures.add(status, false, Some(Duration::from_millis(ms)));
        }
        figures
    }

    /// Runs a test with the traffic of each second, given the share, at most for 1,000 s.
    fn run(plan: StressPlan, traffic: impl Fn(u32) -> Figures) -> (Progress, Vec<(u64, u32)>) {
        let mut progress = Progress::begin(plan, 0);
        let mut shares = vec![(0, progress.percent())];
        for s in 1..1_000 {
            progress.tick(&traffic(progress.percent()), s * 1_000);
            if shares.last().is_some_and(|(_, percent)| *percent != progress.percent()) {
                shares.push((s, progress.percent()));
            }
        }
        (progress, shares)
    }

    #[test]
    fn share_grows_by_steps_and_goes_back() {
        let (progress, shares) = run(plan(), |_| second(20, 10, 0));
        assert_eq!(shares, [(0, 20), (10, 50), (20, 60), (30, 0)]);
        let report = progress.report(0);
        assert_eq!((&report["ended_by"], &report["state"]), (&json!("max_percent_reached"), &json!("ended")));
        assert_eq!(report["highest_share_percent_within_limits"], 60);
        let first = &report["steps"][0];
        // Two of ten seconds do not count.
        assert_eq!(
            (&first["requests"], &first["seconds"], &first["rate"]),
            (&json!(160), &json!(8.0), &json!(20.0))
        );
        assert_eq!((&first["errors"], &first["mean_ms"]), (&json!(0), &json!(10.0)));
    }

    #[test]
    fn limits_end_it_within_the_step() {
        let check = |traffic: fn(u32) -> Figures, end: (u64, u32), passed: Value| {
            let (progress, shares) = run(plan(), traffic);
            assert_eq!(shares.last(), Some(&end), "{passed}");
            let report = progress.report(0);
            assert_eq!(report["ended_by"], "limit_passed", "{report}");
            let steps = report["steps"].as_array().cloned().unwrap_or_default();
            assert_eq!(steps.last().map(|step| &step["passed"]), Some(&passed));
            assert_eq!(report["highest_share_percent_within_limits"], 20);
        };
        // 50 requests are there after three seconds that count.
        check(
            |share| second(20, if share > 20 { 200 } else { 10 }, 0),
            (15, 0),
            json!(["p99_ms", "mean_ms"]),
        );
        check(|share| second(20, if share > 20 { 70 } else { 10 }, 0), (15, 0), json!(["mean_ms"]));
        check(|share| second(20, 10, u64::from(share > 20) * 2), (15, 0), json!(["error_percent"]));
        check(|share| second(100, 10, u64::from(share > 20) * 6), (13, 0), json!(["error_percent"]));
    }

    #[test]
    fn step_without_enough_requests_does_not_lead_to_the_next() {
        let (progress, shares) = run(plan(), |_| second(1, 1_000, 1));
        // Its 50 requests are bad.
        assert_eq!(shares, [(0, 20), (52, 0)]);
        assert_eq!(progress.report(0)["highest_share_percent_within_limits"], Value::Null);
        let (progress, shares) = run(plan(), |_| Figures::default());
        assert_eq!(shares, [(0, 20), (100, 0)]);
        let report = progress.report(0);
        assert_eq!(
            (&report["ended_by"], &report["steps"][0]["p99_ms"]),
            (&json!("duration_over"), &Value::Null)
        );
    }

    #[test]
    fn first_end_counts() {
        let mut progress = Progress::begin(plan(), 0);
        assert_eq!(progress.report(5_000)["steps"][0]["seconds"], 3.0, "a running test shows its step");
        progress.end(End::Changed("a:80 is unhealthy".to_owned()), 5_000);
        progress.end(End::Stopped, 6_000);
        progress.tick(&second(1_000, 1_000, 1_000), 7_000);
        let report = progress.report(8_000);
        assert_eq!(
            (progress.percent(), progress.has_ended(), &report["reason"]),
            (0, true, &json!("a:80 is unhealthy"))
        );
        assert_eq!(report["steps"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn attempts_without_a_response_are_errors() {
        let mut figures = Figures::default();
        figures.add(0, true, None);
        figures.add(500, false, None);
        figures.add(404, false, None);
        figures.add(200, false, None);
        assert_eq!((errors(&figures), errors_percent(&figures)), (2, Some(50.0)));
        assert_eq!(errors_percent(&Figures::default()), None);
    }
}
