//! Statistics of exchanges: counts, errors and latencies.

use std::time::Duration;

/// Latency classes. Each but the first and the last covers half an octave, a factor of √2: the first has times below
/// 64 µs, the last times of 33 s or more.
const CLASSES: usize = 40;
/// The start of the second class, as a power of two in microseconds.
const FIRST_OCTAVE: u32 = 6;

/// The largest error of a percentile in percent: a percentile is reported as the geometric middle of a class.
pub const PERCENTILE_ERROR_PERCENT: u32 = 19;

/// Sums over exchanges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// All exchanges.
    pub requests: u64,
    /// Exchanges with a status from 400 to 499.
    pub client_errors: u64,
    /// Exchanges with a status of 500 or more.
    pub server_errors: u64,
    /// Exchanges with a fault of the gateway's table, with any status.
    pub faults: u64,
    /// Exchanges with a known time, by its class.
    latency: [u32; CLASSES],
    /// The sum of the known times in microseconds.
    total_us: u64,
}

impl Default for Figures {
    fn default() -> Figures {
        let latency = [0; CLASSES];
        Figures { requests: 0, client_errors: 0, server_errors: 0, faults: 0, latency, total_us: 0 }
    }
}

impl Figures {
    /// Adds one exchange.
    pub fn add(&mut self, status: u16, is_fault: bool, latency: Option<Duration>) {
        self.requests += 1;
        self.client_errors += u64::from((400..500).contains(&status));
        self.server_errors += u64::from(status >= 500);
        self.faults += u64::from(is_fault);
        if let Some(latency) = latency {
            let sum = &mut self.latency[class_of(latency)];
            *sum = sum.saturating_add(1);
            self.total_us = self.total_us.saturating_add(micros_of(latency));
        }
    }

    /// Adds the sums of another source.
    pub fn merge(&mut self, other: &Figures) {
        self.requests += other.requests;
        self.client_errors += other.client_errors;
        self.server_errors += other.server_errors;
        self.faults += other.faults;
        for (sum, count) in self.latency.iter_mut().zip(other.latency) {
            *sum = sum.saturating_add(count);
        }
        self.total_us = self.total_us.saturating_add(other.total_us);
    }

    /// Returns the mean time in milliseconds; None without a known time.
    pub fn mean_ms(&self) -> Option<f64> {
        let known = self.known();
        (known > 0).then(|| self.total_us as f64 / known as f64 / 1000.0)
    }

    /// Returns the number of exchanges with a known time.
    fn known(&self) -> u64 {
        self.latency.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns the time in milliseconds that `percent` of the exchanges did not exceed, with an error of
    /// [`PERCENTILE_ERROR_PERCENT`]; None without a known time. Times outside the classes are reported as the ends of
    /// the range.
    pub fn percentile_ms(&self, percent: u8) -> Option<f64> {
        let known = self.known();
        if known == 0 {
            return None;
        }
        let rank = (known * u64::from(percent)).div_ceil(100).max(1);
        let mut passed = 0;
        let class = self.latency.iter().position(|count| {
            passed += u64::from(*count);
            passed >= rank
        });
        Some(middle_ms(class.unwrap_or(CLASSES - 1)))
    }
}

fn micros_of(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the class of a time.
fn class_of(latency: Duration) -> usize {
    let micros = micros_of(latency);
    let Some(octave) = micros.checked_ilog2().filter(|octave| *octave >= FIRST_OCTAVE) else { return 0 };
    // Its second half begins at 2^(octave + 1/2), whose square is a power of two.
    let is_second_half = octave >= 32 || micros * micros >= 1 << (2 * octave + 1);
    let class = 1 + 2 * (octave - FIRST_OCTAVE) as usize + usize::from(is_second_half);
    class.min(CLASSES - 1)
}

/// Returns the time that represents a class, in milliseconds.
fn middle_ms(class: usize) -> f64 {
    let first = f64::from(1 << FIRST_OCTAVE) / 1000.0;
    // Half octaves from the beginning of the second class.
    let halves = match class {
        0 => 0.0,
        last if last == CLASSES - 1 => (CLASSES - 2) as f64,
        class => class as f64 - 0.5,
    };
    first * (halves / 2.0).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_as_exact_as_documented() {
        let error = f64::from(PERCENTILE_ERROR_PERCENT) / 100.0;
        // From the second class to the last but one, in steps that reach every class.
        let mut micros = 64.0;
        while micros < f64::from(1 << 25) {
            let mut figures = Figures::default();
            figures.add(200, false, Some(Duration::from_micros(micros as u64)));
            let told = figures.percentile_ms(50).expect("a time") * 1000.0;
            assert!((told / micros - 1.0).abs() <= error, "{micros} µs are told as {told}");
            micros *= 1.07;
        }
    }

    #[test]
    fn classes_have_ends() {
        let told = |latency: Duration| {
            let mut figures = Figures::default();
            figures.add(200, false, Some(latency));
            figures.percentile_ms(99)
        };
        assert_eq!(told(Duration::ZERO), Some(0.064));
        assert_eq!(told(Duration::from_micros(63)), Some(0.064));
        for long in [Duration::from_micros(1 << 25), Duration::from_secs(1 << 40), Duration::MAX] {
            assert_eq!(told(long).map(|ms| ms as u64), Some(33_554), "{long:?}");
        }
        assert_eq!(Figures::default().percentile_ms(50), None);
    }

    #[test]
    fn ranks_count_from_the_fastest() {
        let mut figures = Figures::default();
        for (count, ms) in [(90, 1), (9, 10), (1, 100)] {
            (0..count).for_each(|_| figures.add(200, false, Some(Duration::from_millis(ms))));
        }
        let near = |percent: u8, ms: f64| {
            let told = figures.percentile_ms(percent).expect("a time");
            assert!((told / ms - 1.0).abs() < 0.19, "p{percent}: {told}");
        };
        near(0, 1.0);
        near(50, 1.0);
        near(90, 1.0);
        near(91, 10.0);
        near(99, 10.0);
        near(100, 100.0);
    }

    #[test]
    fn mean_counts_known_times() {
        let mut one = Figures::default();
        assert_eq!(one.mean_ms(), None);
        one.add(200, false, Some(Duration::from_millis(1)));
        one.add(200, false, None);
        let mut other = Figures::default();
        other.add(200, false, Some(Duration::from_millis(4)));
        one.merge(&other);
        assert_eq!(one.mean_ms(), Some(2.5));
    }

    #[test]
    fn sums_add_up() {
        let mut one = Figures::default();
        one.add(200, false, None);
        one.add(404, false, Some(Duration::from_millis(3)));
        let mut other = Figures::default();
        other.add(502, true, Some(Duration::from_millis(3)));
        other.add(0, true, None);
        one.merge(&other);
        let counts = (one.requests, one.client_errors, one.server_errors, one.faults);
        assert_eq!(counts, (4, 1, 1, 2));
        assert_eq!(one.latency.iter().sum::<u32>(), 2);
    }
}
