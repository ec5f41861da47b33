//! Which traces are kept.

use super::ids::TraceId;

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampler {
    Always,
    Never,
    /// Traces whose first 32 bits are below this number: gateways with the same share keep the same ones.
    Below(u64),
}

impl Sampler {
    /// This share of all traces.
    pub(crate) fn share(fraction: f64) -> Sampler {
        if fraction >= 1.0 {
            return Sampler::Always;
        }
        // Numbers below 0 become 0.
        Sampler::Below((fraction * f64::from(u32::MAX)).ceil() as u64)
    }

    pub(crate) fn keeps(self, trace: TraceId) -> bool {
        match self {
            Sampler::Always => true,
            Sampler::Never => false,
            Sampler::Below(bound) => {
                let [a, b, c, d, ..] = trace.bytes();
                u64::from(u32::from_be_bytes([a, b, c, d])) < bound
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        let check = |fraction: f64, first: &str, expected: bool| {
            let trace = TraceId::parse(format!("{first}{}", "1".repeat(24)).as_bytes()).unwrap();
            assert_eq!(Sampler::share(fraction).keeps(trace), expected, "{fraction} {first}");
        };
        check(0.5, "00000000", true);
        check(0.5, "7fffffff", true);
        check(0.5, "80000000", false);
        check(0.0, "00000000", false);
        check(-1.0, "00000000", false);
        check(1.0, "ffffffff", true);
        check(7.0, "ffffffff", true);
    }
}
