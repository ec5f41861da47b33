//! The state machine of one target, free of clocks and sharing.

/// How healthy a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum State {
    /// No failure counted.
    #[default]
    Healthy,
    /// Failures counted, no limit reached.
    MostlyHealthy,
    /// Was unhealthy; successes counted, limit not reached.
    MostlyUnhealthy,
    /// A failure limit was reached.
    Unhealthy,
}

impl State {
    /// Whether requests may be sent to a target in this state.
    pub fn usable(self) -> bool {
        matches!(self, State::Healthy | State::MostlyHealthy)
    }

    /// The name in status output.
    pub fn name(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::MostlyHealthy => "mostly_healthy",
            State::MostlyUnhealthy => "mostly_unhealthy",
            State::Unhealthy => "unhealthy",
        }
    }
}

/// What a probe or a request has shown about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// It answered well.
    Success,
    /// It answered with a status that counts as failure, or not in HTTP.
    HttpFailure,
    /// No connection, or it broke.
    TcpFailure,
    /// No answer in time.
    Timeout,
}

/// After how many events in a row the state turns; 0 makes the target deaf to that event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Successes until healthy.
    pub successes: u8,
    /// HTTP failures until unhealthy.
    pub http_failures: u8,
    /// TCP failures until unhealthy.
    pub tcp_failures: u8,
    /// Timeouts until unhealthy.
    pub timeouts: u8,
}

impl Limits {
    fn of(self, event: Event) -> u8 {
        match event {
            Event::Success => self.successes,
            Event::HttpFailure => self.http_failures,
            Event::TcpFailure => self.tcp_failures,
            Event::Timeout => self.timeouts,
        }
    }
}

/// State and counters of a target; a new one is healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Standing {
    /// The state.
    pub state: State,
    /// Successes since the last failure.
    pub successes: u8,
    /// HTTP failures since the last success.
    pub http_failures: u8,
    /// TCP failures since the last success.
    pub tcp_failures: u8,
    /// Timeouts since the last success.
    pub timeouts: u8,
}

impl Standing {
    /// The standing after `event`, judged by `limits` of the section that saw it.
    pub fn after(self, event: Event, limits: Limits) -> Standing {
        let limit = limits.of(event);
        if limit == 0 || ignored(self.state, event) {
            return self;
        }
        let mut next = self;
        let count = match event {
            Event::Success => {
                next = Standing { state: self.state, successes: self.successes, ..Standing::default() };
                &mut next.successes
            }
            Event::HttpFailure => &mut next.http_failures,
            Event::TcpFailure => &mut next.tcp_failures,
            Event::Timeout => &mut next.timeouts,
        };
        *count = count.saturating_add(1);
        let reached = *count >= limit;
        next.state = match (event, self.state) {
            (Event::Success, _) if reached => State::Healthy,
            (Event::Success, State::Unhealthy) => State::MostlyUnhealthy,
            (Event::Success, state) => state,
            (_, _) if reached => State::Unhealthy,
            (_, State::Healthy) => State::MostlyHealthy,
            (_, state) => state,
        };
        if event != Event::Success {
            next.successes = 0;
        }
        next
    }

    /// All of it in one word, so that a reader never sees a state with another state's counters.
    pub(super) fn pack(self) -> u64 {
        let bytes =
            [self.state as u8, self.successes, self.http_failures, self.tcp_failures, self.timeouts, 0, 0, 0];
        u64::from_le_bytes(bytes)
    }

    /// The inverse of [`Standing::pack`].
    pub(super) fn unpack(word: u64) -> Standing {
        let [state, successes, http_failures, tcp_failures, timeouts, ..] = word.to_le_bytes();
        let state = match state {
            0 => State::Healthy,
            1 => State::MostlyHealthy,
            2 => State::MostlyUnhealthy,
            _ => State::Unhealthy,
        };
        Standing { state, successes, http_failures, tcp_failures, timeouts }
    }
}

/// Whether an event says what the full state says already.
pub(super) fn ignored(state: State, event: Event) -> bool {
    match state {
        State::Healthy => event == Event::Success,
        State::Unhealthy => event != Event::Success,
        State::MostlyHealthy | State::MostlyUnhealthy => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { successes: 2, http_failures: 3, tcp_failures: 2, timeouts: 1 };

    /// Events by letter: s(uccess), h(ttp), t(cp), o (timeout). The standing as
    /// `state success/http/tcp/timeout`.
    fn check(limits: Limits, events: &str, want: &str) {
        let mut standing = Standing::default();
        for event in events.chars() {
            let event = match event {
                's' => Event::Success,
                'h' => Event::HttpFailure,
                't' => Event::TcpFailure,
                'o' => Event::Timeout,
                other => panic!("no event {other}"),
            };
            standing = standing.after(event, limits);
            assert_eq!(Standing::unpack(standing.pack()), standing);
        }
        let Standing { state, successes, http_failures, tcp_failures, timeouts } = standing;
        let got = format!("{} {successes}/{http_failures}/{tcp_failures}/{timeouts}", state.name());
        assert_eq!(got, want, "after {events:?}");
    }

    #[test]
    fn every_rule() {
        // A report that confirms the full state is ignored.
        check(LIMITS, "", "healthy 0/0/0/0");
        check(LIMITS, "ss", "healthy 0/0/0/0");
        check(LIMITS, "hhhhht", "unhealthy 0/3/0/0");
        // Failures count per kind and turn healthy into mostly_healthy.
        check(LIMITS, "h", "mostly_healthy 0/1/0/0");
        check(LIMITS, "hht", "mostly_healthy 0/2/1/0");
        check(LIMITS, "hhh", "unhealthy 0/3/0/0");
        check(LIMITS, "htt", "unhealthy 0/1/2/0");
        check(LIMITS, "o", "unhealthy 0/0/0/1");
        // A success zeroes all failures; the limit of successes leads back to healthy.
        check(LIMITS, "hhts", "mostly_healthy 1/0/0/0");
        check(LIMITS, "hhtss", "healthy 2/0/0/0");
        check(LIMITS, "hhshh", "mostly_healthy 0/2/0/0");
        // Recovery passes mostly_unhealthy; a failure there zeroes the successes.
        check(LIMITS, "os", "mostly_unhealthy 1/0/0/0");
        check(LIMITS, "osh", "mostly_unhealthy 0/1/0/0");
        check(LIMITS, "oshs", "mostly_unhealthy 1/0/0/0");
        check(LIMITS, "oso", "unhealthy 0/0/0/1");
        check(LIMITS, "oss", "healthy 2/0/0/0");
    }

    #[test]
    fn a_limit_of_zero_makes_deaf() {
        let limits = Limits { successes: 0, http_failures: 0, tcp_failures: 1, timeouts: 0 };
        check(limits, "hhoo", "healthy 0/0/0/0");
        check(limits, "tss", "unhealthy 0/0/1/0");
    }

    #[test]
    fn counters_do_not_wrap() {
        let limits = Limits { successes: 255, http_failures: 255, tcp_failures: 1, timeouts: 1 };
        check(limits, &"h".repeat(254), "mostly_healthy 0/254/0/0");
        check(limits, &"h".repeat(300), "unhealthy 0/255/0/0");
    }
}
