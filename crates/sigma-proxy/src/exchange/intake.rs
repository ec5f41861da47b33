//! The time limits of a client's request body.

use sigma_config::settings::Timeouts;
use sigma_http::{Fault, FaultKind};

/// The time that the gateway has waited for the body of one request. Time in which the gateway does not read, because
/// of a slow node or a rate limit, does not count.
#[derive(Debug, Default)]
pub(super) struct Intake {
    waited_ms: u64,
    /// The start of the current wait.
    since_ms: Option<u64>,
}

impl Intake {
    /// Records a wait for the client, with `received` bytes so far. Returns the time limit of the next bytes.
    ///
    /// # Errors
    /// Returns an error if the limit is exceeded.
    pub(super) fn wait(&mut self, now_ms: u64, received: u64, rules: &Timeouts) -> Result<u64, Fault> {
        let next_ms = u64::from(rules.request_body_ms);
        let (total_ms, rate) = (rules.request_body_total_ms, rules.request_body_min_bytes_per_second);
        if total_ms == 0 && rate == 0 {
            return Ok(next_ms);
        }
        self.pause(now_ms);
        self.since_ms = Some(now_ms);
        let total_ms = if total_ms == 0 { u64::MAX } else { total_ms.into() };
        let earned_ms = received.saturating_mul(1_000).checked_div(rate.into()).unwrap_or(u64::MAX);
        let allowed_ms = earned_ms.saturating_add(rules.request_body_grace_ms.into()).min(total_ms);
        match allowed_ms.checked_sub(self.waited_ms) {
            Some(left_ms) if left_ms > 0 => Ok(left_ms.min(next_ms)),
            _ => Err(Fault::new(FaultKind::RequestBodyTimeout, "the request body arrives too slowly")),
        }
    }

    /// Ends the wait for the client.
    pub(super) fn pause(&mut self, now_ms: u64) {
        if let Some(since_ms) = self.since_ms.take() {
            self.waited_ms += now_ms.saturating_sub(since_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(total_ms: u32, rate: u32) -> Timeouts {
        Timeouts {
            request_body_ms: 60_000,
            request_body_total_ms: total_ms,
            request_body_min_bytes_per_second: rate,
            request_body_grace_ms: 10_000,
            ..Timeouts::default()
        }
    }

    #[test]
    fn without_rules_each_read_has_its_own_time() {
        let mut intake = Intake::default();
        for now_ms in [0, 1_000_000] {
            assert_eq!(intake.wait(now_ms, 1, &rules(0, 0)), Ok(60_000));
        }
    }

    #[test]
    fn bytes_earn_time() {
        let (mut intake, rules) = (Intake::default(), rules(0, 100));
        assert_eq!(intake.wait(0, 0, &rules), Ok(10_000));
        assert_eq!(intake.wait(8_000, 500, &rules), Ok(7_000));
        assert_eq!(intake.wait(9_000, 100_000, &rules), Ok(60_000));
        let mut slow = Intake::default();
        assert_eq!(slow.wait(0, 0, &rules), Ok(10_000));
        assert!(slow.wait(11_000, 100, &rules).is_err());
    }

    #[test]
    fn time_without_reading_does_not_count() {
        let (mut intake, rules) = (Intake::default(), rules(20_000, 100));
        assert_eq!(intake.wait(0, 0, &rules), Ok(10_000));
        intake.pause(2_000);
        assert_eq!(intake.wait(900_000, 0, &rules), Ok(8_000));
        intake.pause(900_000);
        intake.pause(990_000);
        assert_eq!(intake.wait(1_000_000, 0, &rules), Ok(8_000));
    }

    #[test]
    fn the_total_holds_at_any_rate() {
        let (mut intake, rules) = (Intake::default(), rules(20_000, 0));
        assert_eq!(intake.wait(0, 0, &rules), Ok(20_000));
        assert_eq!(intake.wait(19_000, 1 << 40, &rules), Ok(1_000));
        assert!(intake.wait(20_000, 1 << 40, &rules).is_err());
    }
}
