//! Outlier detection: nodes are judged by real requests, and compared with each other (Envoy's rules).
//!
//! The code has no clocks, randomness and sharing: they are arguments. The counts of workers are in [`super::tally`],
//! and the handling of verdicts is in [`super::sweep`].

use sigma_config::resources::OutlierDetection;

/// A rule that finds outliers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Rule {
    /// Responses of 500 and above in a row
    Consecutive5xx,
    /// Responses of 502, 503 and 504 in a row
    ConsecutiveGatewayFailure,
    /// Connection failures in a row
    ConsecutiveLocalOriginFailure,
    /// A success rate far below the other nodes'
    SuccessRate,
    /// The same, for connection failures
    LocalOriginSuccessRate,
    /// A percentage of failures
    FailurePercentage,
    /// The same, for connection failures
    LocalOriginFailurePercentage,
}

impl Rule {
    /// Every rule, in order of its number.
    pub const ALL: [Rule; 7] = [
        Rule::Consecutive5xx,
        Rule::ConsecutiveGatewayFailure,
        Rule::ConsecutiveLocalOriginFailure,
        Rule::SuccessRate,
        Rule::LocalOriginSuccessRate,
        Rule::FailurePercentage,
        Rule::LocalOriginFailurePercentage,
    ];

    /// Returns the rule with this name.
    pub(super) fn named(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Returns the name in configurations and reasons.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Consecutive5xx => "consecutive_5xx",
            Rule::ConsecutiveGatewayFailure => "consecutive_gateway_failure",
            Rule::ConsecutiveLocalOriginFailure => "consecutive_local_origin_failure",
            Rule::SuccessRate => "success_rate",
            Rule::LocalOriginSuccessRate => "local_origin_success_rate",
            Rule::FailurePercentage => "failure_percentage",
            Rule::LocalOriginFailurePercentage => "failure_percentage_local_origin",
        }
    }
}

/// The result of a request for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeOutcome {
    /// A response with this status
    Answer(u16),
    /// A connection failure: refused, reset or timed out
    LocalOriginFailure,
}

/// Compiled rules of one upstream. Times in milliseconds; a limit of 0 turns its rule off.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// By [`Rule`]: the number in a row, for rules that count runs.
    pub(super) limits: Limits,
    /// Connection failures are judged separately from responses.
    pub(super) splits: bool,
    /// Time between two sweeps.
    pub interval_ms: u64,
    base_ejection_ms: u64,
    max_ejection_ms: u64,
    jitter_ms: u64,
    max_ejection_percent: u64,
    success_rate: Volume,
    stdev_factor: f64,
    failure_percentage: Volume,
    failure_threshold: f64,
    /// By [`Rule`], in percent.
    enforcing: [u8; Rule::ALL.len()],
}

/// The limits of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) server_errors: u32,
    pub(super) gateway_failures: u32,
    pub(super) local_origin: u32,
}

/// The least data for a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Volume {
    hosts: usize,
    requests: u32,
}

fn ms(seconds: f64) -> u64 {
    // Negative times and NaN become 0; the schema has rejected them.
    (seconds * 1000.0) as u64
}

impl Rules {
    /// Compiles the configuration of an upstream.
    pub fn compile(config: &OutlierDetection) -> Rules {
        let splits = config.split_external_local_origin_errors;
        let local = |percent: u8| if splits { percent } else { 0 };
        let enforcing = [
            config.enforcing_consecutive_5xx,
            config.enforcing_consecutive_gateway_failure,
            local(config.enforcing_consecutive_local_origin_failure),
            config.enforcing_success_rate,
            local(config.enforcing_local_origin_success_rate),
            config.enforcing_failure_percentage,
            local(config.enforcing_failure_percentage_local_origin),
        ];
        let base_ejection_ms = ms(config.base_ejection_time).max(1);
        let longest = config.max_ejection_time.map_or(300_000, ms);
        Rules {
            limits: Limits {
                server_errors: config.consecutive_5xx,
                gateway_failures: config.consecutive_gateway_failure,
                local_origin: if splits { config.consecutive_local_origin_failure } else { 0 },
            },
            splits,
            interval_ms: ms(config.interval).max(1),
            base_ejection_ms,
            max_ejection_ms: longest.max(base_ejection_ms),
            jitter_ms: ms(config.max_ejection_time_jitter),
            max_ejection_percent: config.max_ejection_percent.into(),
            success_rate: Volume {
                hosts: config.success_rate_minimum_hosts as usize,
                requests: config.success_rate_request_volume,
            },
            stdev_factor: f64::from(config.success_rate_stdev_factor) / 1000.0,
            failure_percentage: Volume {
                hosts: config.failure_percentage_minimum_hosts as usize,
                requests: config.failure_percentage_request_volume,
            },
            failure_threshold: config.failure_percentage_threshold.into(),
            enforcing,
        }
    }

    /// Returns the longest time of an ejection.
    pub(super) fn longest_ms(&self) -> u64 {
        self.max_ejection_ms.saturating_add(self.jitter_ms)
    }

    /// Returns true if a node that `rule` has found is ejected; `random` are 64 random bits.
    pub fn enforces(&self, rule: Rule, random: u64) -> bool {
        below(random, 100) < u64::from(self.enforcing[rule as usize])
    }

    /// Returns true if one more of `all` nodes may be ejected while `out` of them get no requests.
    pub fn allows(&self, out: usize, all: usize) -> bool {
        let (out, all) = (out as u64, all as u64);
        self.max_ejection_percent > 0 && (out == 0 || out * 100 < all * self.max_ejection_percent)
    }

    /// Returns the outliers since the last sweep, each with its rule: the worst first.
    pub fn outliers(&self, nodes: &[Sample]) -> Vec<(usize, Rule)> {
        self.found_by(nodes, |rule| self.enforcing[rule as usize] > 0)
    }

    /// Returns the same for rules that never eject: they only count.
    pub fn would_be_outliers(&self, nodes: &[Sample]) -> Vec<(usize, Rule)> {
        self.found_by(nodes, |rule| self.enforcing[rule as usize] == 0)
    }

    fn found_by(&self, nodes: &[Sample], counts: impl Fn(Rule) -> bool) -> Vec<(usize, Rule)> {
        let kinds = [
            (Rule::SuccessRate, Rule::FailurePercentage, false),
            (Rule::LocalOriginSuccessRate, Rule::LocalOriginFailurePercentage, true),
        ];
        let mut found: Vec<(usize, Rule)> = Vec::new();
        for (by_rate, by_percentage, is_local) in kinds {
            let mut add = |rule: Rule, at: Vec<usize>| {
                for index in at {
                    if !found.iter().any(|(known, _)| *known == index) {
                        found.push((index, rule));
                    }
                }
            };
            if counts(by_rate) {
                add(by_rate, self.by_success_rate(&rates(nodes, is_local, self.success_rate)));
            }
            if counts(by_percentage) {
                let rates = rates(nodes, is_local, self.failure_percentage);
                let failing = |rate: &&Rate| rate.percent <= 100.0 - self.failure_threshold;
                if rates.len() >= self.failure_percentage.hosts {
                    add(by_percentage, rates.iter().filter(failing).map(|rate| rate.index).collect());
                }
            }
        }
        found
    }

    fn by_success_rate(&self, rates: &[Rate]) -> Vec<usize> {
        if rates.len() < self.success_rate.hosts {
            return Vec::new();
        }
        let count = rates.len() as f64;
        let mean = rates.iter().map(|rate| rate.percent).sum::<f64>() / count;
        let variance = rates.iter().map(|rate| (rate.percent - mean).powi(2)).sum::<f64>() / count;
        let threshold = mean - self.stdev_factor * variance.sqrt();
        rates.iter().filter(|rate| rate.percent < threshold).map(|rate| rate.index).collect()
    }
}

/// The success rate of one node.
struct Rate {
    index: usize,
    percent: f64,
}

/// Returns the nodes with enough requests, the worst first.
fn rates(nodes: &[Sample], is_local: bool, volume: Volume) -> Vec<Rate> {
    let rate = |(index, sample): (usize, &Sample)| {
        let Totals { answers, failures, attempts, local_failures } = sample.seen;
        let (all, failed) = if is_local { (attempts, local_failures) } else { (answers, failures) };
        let counts = sample.is_in_use && all > 0 && all >= volume.requests;
        let percent = 100.0 * (1.0 - f64::from(failed) / f64::from(all));
        counts.then_some(Rate { index, percent })
    };
    let mut rates: Vec<Rate> = nodes.iter().enumerate().filter_map(rate).collect();
    rates.sort_by(|a, b| a.percent.total_cmp(&b.percent));
    rates
}

/// The sums of request results for a node. The numbers wrap; only differences count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Responses.
    pub answers: u32,
    /// Failed responses.
    pub failures: u32,
    /// Attempts, if connection failures are judged separately.
    pub attempts: u32,
    /// Attempts with connection failures.
    pub local_failures: u32,
}

impl Totals {
    /// Adds another worker's totals.
    #[must_use]
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            answers: self.answers.wrapping_add(other.answers),
            failures: self.failures.wrapping_add(other.failures),
            attempts: self.attempts.wrapping_add(other.attempts),
            local_failures: self.local_failures.wrapping_add(other.local_failures),
        }
    }

    fn since(self, earlier: Totals) -> Totals {
        Totals {
            answers: self.answers.wrapping_sub(earlier.answers),
            failures: self.failures.wrapping_sub(earlier.failures),
            attempts: self.attempts.wrapping_sub(earlier.attempts),
            local_failures: self.local_failures.wrapping_sub(earlier.local_failures),
        }
    }
}

/// A node between two sweeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Its request results.
    pub seen: Totals,
    /// It gets requests.
    pub is_in_use: bool,
}

/// The ejections of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeEjections {
    /// The number of ejections that make the next one longer.
    multiplier: u32,
    /// The end of the current ejection.
    pub until_ms: Option<u64>,
    /// The totals at the last sweep.
    seen: Totals,
}

impl NodeEjections {
    /// Returns the course of a node with this number of ejections, the last of which ends then.
    pub(super) fn after(multiplier: u32, until_ms: Option<u64>) -> NodeEjections {
        NodeEjections { multiplier, until_ms, seen: Totals::default() }
    }

    /// Returns the number of ejections that make the next one longer.
    pub(super) fn ejections(&self) -> u32 {
        self.multiplier
    }

    /// Ejects the node at `now_ms`; returns the time of its return. `random` are 64 random bits.
    pub fn eject(&mut self, rules: &Rules, now_ms: u64, random: u64) -> u64 {
        self.multiplier = self.multiplier.saturating_add(1);
        let time_ms =
            rules.base_ejection_ms.saturating_mul(self.multiplier.into()).min(rules.max_ejection_ms);
        let until_ms = now_ms + time_ms + below(random, rules.jitter_ms + 1);
        self.until_ms = Some(until_ms);
        until_ms
    }

    /// Puts the node back in use. Earlier results do not count any more.
    pub fn come_back(&mut self, seen: Totals) {
        self.until_ms = None;
        self.seen = seen;
    }

    /// Handles a sweep; returns the results since the last one. Each sweep while it is in use takes one of its
    /// ejections back.
    pub fn sweep(&mut self, seen: Totals, is_in_use: bool) -> Sample {
        if is_in_use && self.until_ms.is_none() {
            self.multiplier = self.multiplier.saturating_sub(1);
        }
        let sample = Sample { seen: seen.since(self.seen), is_in_use };
        self.seen = seen;
        sample
    }
}

/// Maps 64 random bits to `0..bound`.
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(change: impl FnOnce(&mut OutlierDetection)) -> Rules {
        let mut config = OutlierDetection::default();
        change(&mut config);
        Rules::compile(&config)
    }

    fn sample(answers: u32, failures: u32) -> Sample {
        Sample { seen: Totals { answers, failures, ..Totals::default() }, is_in_use: true }
    }

    #[test]
    fn the_defaults_are_envoys() {
        let rules = rules(|_| ());
        let limits = Limits { server_errors: 5, gateway_failures: 5, local_origin: 0 };
        assert_eq!(rules.limits, limits);
        assert_eq!(
            (rules.interval_ms, rules.base_ejection_ms, rules.max_ejection_ms),
            (10_000, 30_000, 300_000)
        );
        assert_eq!(rules.enforcing, [100, 0, 0, 100, 0, 0, 0]);
        assert_eq!(self::rules(|c| c.base_ejection_time = 400.0).max_ejection_ms, 400_000);
        let split = self::rules(|c| c.split_external_local_origin_errors = true);
        assert_eq!((split.limits.local_origin, split.enforcing), (5, [100, 0, 100, 100, 100, 0, 0]));
    }

    #[test]
    fn a_share_of_the_nodes_stays() {
        let check = |percent, out, all, allowed: bool| {
            let rules = rules(|c| c.max_ejection_percent = percent);
            assert_eq!(rules.allows(out, all), allowed, "{percent}%: {out} of {all}");
        };
        check(10, 0, 2, true);
        check(10, 1, 2, false);
        check(10, 1, 11, true);
        check(10, 1, 10, false);
        check(50, 4, 10, true);
        check(50, 5, 10, false);
        check(100, 9, 10, true);
        check(100, 10, 10, false);
        check(0, 0, 10, false);
    }

    #[test]
    fn an_ejection_grows_and_is_forgotten() {
        let rules = rules(|c| (c.base_ejection_time, c.max_ejection_time) = (10.0, Some(25.0)));
        let (mut course, mut now) = (NodeEjections::default(), 0);
        let mut check = |course: &mut NodeEjections, expected_s: u64| {
            let until = course.eject(&rules, now, 0);
            assert_eq!(until - now, expected_s * 1000);
            assert_eq!(course.sweep(Totals::default(), false).seen.answers, 0);
            now = until;
            course.come_back(Totals::default());
        };
        check(&mut course, 10);
        check(&mut course, 20);
        check(&mut course, 25);
        // Sweeps while it is in use take ejections back; those while it is out did not.
        let in_use = |course: &mut NodeEjections, sweeps: u32| {
            (0..sweeps).for_each(|_| assert!(course.sweep(Totals::default(), true).is_in_use));
        };
        in_use(&mut course, 2);
        check(&mut course, 20);
        in_use(&mut course, 9);
        check(&mut course, 10);
    }

    #[test]
    fn jitter_is_within_its_bounds() {
        let rules = rules(|c| (c.base_ejection_time, c.max_ejection_time_jitter) = (1.0, 0.5));
        for (random, extra) in [(0, 0), (u64::MAX / 2, 250), (u64::MAX, 500)] {
            assert_eq!(NodeEjections::default().eject(&rules, 7, random), 7 + 1_000 + extra, "{random}");
        }
    }

    #[test]
    fn percentages_are_kept() {
        let rules = rules(|c| c.enforcing_consecutive_5xx = 30);
        let mut random = fastrand::Rng::with_seed(1);
        let ejected = (0..10_000).filter(|_| rules.enforces(Rule::Consecutive5xx, random.u64(..))).count();
        assert!((2_800..3_200).contains(&ejected), "{ejected}");
        assert!(!rules.enforces(Rule::FailurePercentage, 0), "0 is never");
        assert!(rules.enforces(Rule::SuccessRate, u64::MAX), "100 is always");
    }

    #[test]
    fn a_success_rate_far_below_the_mean_is_found() {
        let by_rate = rules(|c| c.enforcing_failure_percentage = 0);
        let mut nodes = vec![sample(100, 1); 10];
        assert_eq!(by_rate.outliers(&nodes), []);
        nodes[3] = sample(100, 40);
        assert_eq!(by_rate.outliers(&nodes), [(3, Rule::SuccessRate)]);
        // A node with no or few requests is not compared, nor are too few nodes.
        nodes[3].is_in_use = false;
        assert_eq!(by_rate.outliers(&nodes), []);
        nodes[3] = sample(99, 99);
        assert_eq!(by_rate.outliers(&nodes), []);
        assert_eq!(by_rate.outliers(&[sample(100, 0), sample(100, 0), sample(100, 0), sample(100, 90)]), []);
        // All equally bad: no outliers, except for a rule that only counts.
        let bad = [sample(100, 90); 10];
        assert_eq!(by_rate.outliers(&bad), []);
        let counted = by_rate.would_be_outliers(&bad);
        assert!(counted.len() == 10 && counted.iter().all(|(_, rule)| *rule == Rule::FailurePercentage));
    }

    #[test]
    fn a_percentage_of_failures_is_found_the_worst_first() {
        let rules = rules(|c| {
            (c.enforcing_success_rate, c.enforcing_failure_percentage) = (0, 100);
            c.failure_percentage_threshold = 50;
        });
        let mut nodes = vec![sample(50, 0); 5];
        nodes[1] = sample(50, 25);
        nodes[2] = sample(50, 24);
        nodes[4] = sample(200, 200);
        let found = [(4, Rule::FailurePercentage), (1, Rule::FailurePercentage)];
        assert_eq!(rules.outliers(&nodes), found);
        assert_eq!(rules.outliers(&nodes[1..]), [], "too few nodes");
    }

    #[test]
    fn connection_failures_have_their_own_rates() {
        let rules = rules(|c| {
            c.split_external_local_origin_errors = true;
            c.enforcing_failure_percentage_local_origin = 100;
            c.enforcing_local_origin_success_rate = 0;
        });
        let seen = |local_failures| Totals { attempts: 60, local_failures, ..Totals::default() };
        let nodes = [0, 0, 60, 0, 0].map(|failed| Sample { seen: seen(failed), is_in_use: true });
        assert_eq!(rules.outliers(&nodes), [(2, Rule::LocalOriginFailurePercentage)]);
    }

    #[test]
    fn earlier_results_do_not_count() {
        let mut course = NodeEjections::default();
        let totals = |answers| Totals { answers, failures: answers, ..Totals::default() };
        assert_eq!(course.sweep(totals(10), true).seen.answers, 10);
        course.come_back(totals(50));
        assert_eq!(course.sweep(totals(53), true).seen, totals(3));
        // Numbers wrap.
        course.come_back(totals(u32::MAX));
        assert_eq!(course.sweep(totals(1), true).seen.answers, 2);
    }
}
