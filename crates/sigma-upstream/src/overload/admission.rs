//! Admission by success rate (Envoy's admission control).

use sigma_config::resources::AdmissionControl;

/// One worker's success rate.
#[derive(Debug)]
pub struct Admission {
    rules: AdmissionControl,
    /// The last seconds of the window.
    seconds: Box<[Second]>,
    /// The second of the sums.
    now: u64,
    requests: u64,
    successes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Second {
    requests: u32,
    successes: u32,
}

impl Admission {
    /// Returns an empty window.
    pub fn new(rules: AdmissionControl) -> Admission {
        let seconds = vec![Second::default(); rules.sampling_window as usize].into();
        Admission { rules, seconds, now: 0, requests: 0, successes: 0 }
    }

    /// Returns true if a request is admitted; `random` is uniform over all its values.
    ///
    /// The probability of a rejection is (n − s / threshold) / (n + 1), to the power of 1 / aggression, where n and s
    /// are the requests and successes of the window.
    pub fn admits(&mut self, now_ms: u64, random: u64) -> bool {
        self.advance(now_ms / 1000);
        let Admission { requests, successes, .. } = *self;
        let window = u64::from(self.rules.sampling_window);
        if requests == 0 || requests / window < u64::from(self.rules.rps_threshold) {
            return true;
        }
        let wanted = successes as f64 / (self.rules.sr_threshold / 100.0);
        let excess = ((requests as f64 - wanted) / (requests as f64 + 1.0)).max(0.0);
        let refused =
            excess.powf(1.0 / self.rules.aggression).min(self.rules.max_rejection_probability / 100.0);
        random as f64 / u64::MAX as f64 >= refused
    }

    /// Records the end of an admitted request.
    pub fn record(&mut self, now_ms: u64, success: bool) {
        self.advance(now_ms / 1000);
        let second = &mut self.seconds[(self.now % u64::from(self.rules.sampling_window)) as usize];
        second.requests += 1;
        second.successes += u32::from(success);
        self.requests += 1;
        self.successes += u64::from(success);
    }

    /// Drops seconds that have left the window.
    fn advance(&mut self, now: u64) {
        let window = u64::from(self.rules.sampling_window);
        for at in (self.now + 1..=now).take(self.seconds.len()) {
            // After a longer pause all entries are cleared, in any order.
            let gone = std::mem::take(&mut self.seconds[(at % window) as usize]);
            self.requests -= u64::from(gone.requests);
            self.successes -= u64::from(gone.successes);
        }
        self.now = self.now.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rejected share in percent after this number of requests and successes at second 0.
    fn refused(rules: AdmissionControl, requests: u32, successes: u32, at_ms: u64) -> u32 {
        let mut admission = Admission::new(rules);
        (0..requests).for_each(|n| admission.record(0, n < successes));
        (0..100u64).filter(|n| !admission.admits(at_ms, u64::MAX / 100 * n)).count() as u32
    }

    #[test]
    fn fewer_successes_cause_more_rejections() {
        let rules = AdmissionControl::default();
        assert_eq!(refused(rules, 0, 0, 0), 0);
        assert_eq!(refused(rules, 1000, 1000, 0), 0);
        assert_eq!(refused(rules, 1000, 950, 0), 0);
        assert_eq!(refused(rules, 1000, 475, 0), 50);
        assert_eq!(refused(rules, 1000, 0, 0), 80, "never more than the highest share");
        let aggressive = AdmissionControl { aggression: 2.0, ..rules };
        assert!((70..=71).contains(&refused(aggressive, 1000, 475, 0)));
    }

    #[test]
    fn few_and_old_requests_do_not_count() {
        let rules = AdmissionControl { rps_threshold: 10, ..AdmissionControl::default() };
        assert_eq!(refused(rules, 299, 0, 0), 0);
        assert_eq!(refused(rules, 300, 0, 0), 80);
        assert_eq!(refused(rules, 300, 0, 29_999), 80);
        assert_eq!(refused(rules, 300, 0, 30_000), 0);
    }

    #[test]
    fn an_entry_of_the_window_is_reused() {
        let mut admission = Admission::new(AdmissionControl { sampling_window: 2, ..Default::default() });
        (0..10).for_each(|_| admission.record(0, false));
        assert!(!admission.admits(1_000, 0));
        (0..10).for_each(|_| admission.record(2_000, true));
        assert!(admission.admits(2_000, 0));
    }
}
