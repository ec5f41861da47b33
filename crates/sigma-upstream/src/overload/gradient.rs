//! A limit of concurrent requests that follows latency (Envoy's gradient controller).

use sigma_config::resources::AdaptiveConcurrency;

/// The limit of latencies in one interval; later ones are ignored.
const SAMPLES_MAX: usize = 1000;

/// After this number of intervals at the minimum limit, the best latency is outdated.
const AT_MINIMUM_MAX: u32 = 5;

/// One worker's limit.
#[derive(Debug)]
pub struct Gradient {
    rules: AdaptiveConcurrency,
    limit: f64,
    in_flight: u32,
    phase: Phase,
    samples: Vec<f64>,
    interval_ends_ms: u64,
    measure_at_ms: u64,
    at_minimum: u32,
    /// The number of measurements of the best latency.
    measurements: u32,
}

/// A request that counts against the limit. It belongs to a measurement, or to the time after it.
#[derive(Debug, Clone, Copy)]
#[must_use = "it counts until it is ended"]
pub struct Begun(u32);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The best latency is being measured, at the smallest limit
    Measuring {
        /// The previous limit, which comes back.
        limit: f64,
    },
    /// The limit follows latency
    Following { best_ms: f64 },
}

impl Gradient {
    /// Starts with a measurement of the best latency.
    pub fn new(rules: AdaptiveConcurrency) -> Gradient {
        let limit = f64::from(rules.min_concurrency);
        Gradient {
            rules,
            limit,
            in_flight: 0,
            phase: Phase::Measuring { limit },
            samples: Vec::new(),
            interval_ends_ms: 0,
            measure_at_ms: 0,
            at_minimum: 0,
            measurements: 0,
        }
    }

    /// Returns the current limit.
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Returns true if one more request is within the limit.
    pub fn admits(&self) -> bool {
        self.in_flight < self.limit()
    }

    /// Counts the start of a request.
    pub fn begin(&mut self) -> Begun {
        self.in_flight += 1;
        Begun(self.measurements)
    }

    /// Handles the end of a request; its latency counts if it has a response. `random` spreads the next measurement.
    pub fn end(&mut self, begun: Begun, now_ms: u64, latency_ms: Option<f64>, random: u64) {
        self.in_flight -= 1;
        // Requests from before a measurement ran among more.
        let counts = begun.0 == self.measurements && self.samples.len() < SAMPLES_MAX;
        self.samples.extend(latency_ms.filter(|_| counts));
        match self.phase {
            Phase::Measuring { limit } => {
                if self.samples.len() >= self.rules.min_rtt_request_count as usize {
                    let best_ms = self.take_percentile();
                    self.phase = Phase::Following { best_ms };
                    self.limit = limit;
                    self.interval_ends_ms = now_ms + self.interval_ms();
                    self.measure_at_ms = now_ms + self.measure_after_ms(random);
                    self.at_minimum = 0;
                }
            }
            Phase::Following { best_ms } if now_ms >= self.interval_ends_ms && !self.samples.is_empty() => {
                let sample_ms = self.take_percentile();
                self.interval_ends_ms = now_ms + self.interval_ms();
                self.follow(best_ms, sample_ms);
                if now_ms >= self.measure_at_ms || self.at_minimum >= AT_MINIMUM_MAX {
                    self.phase = Phase::Measuring { limit: self.limit };
                    self.measurements += 1;
                    self.limit = f64::from(self.rules.min_concurrency);
                }
            }
            Phase::Following { .. } => {}
        }
    }

    fn follow(&mut self, best_ms: f64, sample_ms: f64) {
        let allowed = best_ms * (1.0 + self.rules.min_rtt_buffer / 100.0);
        let gradient = if sample_ms > 0.0 { (allowed / sample_ms).clamp(0.5, 2.0) } else { 2.0 };
        let (min, max) =
            (f64::from(self.rules.min_concurrency), f64::from(self.rules.max_concurrency_limit).max(1.0));
        let next = gradient * self.limit;
        self.limit = (next + next.sqrt()).clamp(min.min(max), max);
        self.at_minimum = if self.limit <= min { self.at_minimum + 1 } else { 0 };
    }

    fn take_percentile(&mut self) -> f64 {
        let mut samples = std::mem::take(&mut self.samples);
        let at = ((samples.len() - 1) as f64 * self.rules.sample_aggregate_percentile / 100.0) as usize;
        let (_, sample, _) = samples.select_nth_unstable_by(at, f64::total_cmp);
        *sample
    }

    fn interval_ms(&self) -> u64 {
        (self.rules.concurrency_update_interval * 1000.0) as u64
    }

    /// Returns the interval of measurements, plus up to 15 %, so that gateways do not measure together.
    fn measure_after_ms(&self, random: u64) -> u64 {
        let interval = (self.rules.min_rtt_interval * 1000.0) as u64;
        interval + ((u128::from(random) * u128::from(interval * 15 / 100 + 1)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that serves `places` requests at a time in 10 ms each, and queues the others. It gets all requests that
    /// the limit admits, for `rounds` rounds; returns the limit after each.
    fn run(gradient: &mut Gradient, places: u32, rounds: u64, from_ms: u64) -> Vec<u32> {
        let mut limits = Vec::new();
        for round in 0..rounds {
            let now_ms = from_ms + round * 200;
            let mut sent = Vec::new();
            while gradient.admits() {
                sent.push(gradient.begin());
            }
            let latency = 10.0 * f64::from(places.max(sent.len() as u32)) / f64::from(places);
            sent.into_iter().for_each(|begun| gradient.end(begun, now_ms, Some(latency), 0));
            limits.push(gradient.limit());
        }
        limits
    }

    #[test]
    fn the_limit_finds_the_capacity_of_a_node() {
        let mut gradient = Gradient::new(AdaptiveConcurrency::default());
        let limits = run(&mut gradient, 100, 250, 0);
        let settled = &limits[100..];
        assert!(settled.iter().all(|limit| (90..=200).contains(limit)), "{settled:?}");
        // The node loses most of its capacity: the limit follows.
        let limits = run(&mut gradient, 20, 40, 50_000);
        assert!(limits[30..].iter().all(|limit| *limit < 60), "{limits:?}");
    }

    #[test]
    fn a_node_that_never_slows_down_gets_the_highest_limit() {
        let rules = AdaptiveConcurrency { max_concurrency_limit: 50, ..Default::default() };
        let mut gradient = Gradient::new(rules);
        assert_eq!(run(&mut gradient, 1000, 100, 0).last(), Some(&50));
    }

    #[test]
    fn the_best_latency_is_measured_again() {
        let mut gradient =
            Gradient::new(AdaptiveConcurrency { min_rtt_interval: 10.0, ..Default::default() });
        let limits = run(&mut gradient, 100, 200, 0);
        let measured = limits.windows(2).filter(|pair| pair[0] > 10 && pair[1] == 3).count();
        assert!((2..=4).contains(&measured), "{limits:?}");
        // An end without a response frees its permit and does not count.
        let begun = gradient.begin();
        gradient.end(begun, 100_000, None, 0);
        assert_eq!(gradient.in_flight, 0);
    }
}
