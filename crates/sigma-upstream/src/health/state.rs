//! The state machine of one target, without clocks and sharing.

pub use sigma_config::resources::NodeState;

use super::outlier::Rule;

/// The health state of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum State {
    /// No failure counted
    #[default]
    Healthy,
    /// Failures counted, no limit reached
    MostlyHealthy,
    /// It was unhealthy; successes counted, limit not reached
    MostlyUnhealthy,
    /// A failure limit was reached
    Unhealthy,
}

impl State {
    /// Returns true if a target in this state may get requests.
    pub fn usable(self) -> bool {
        matches!(self, State::Healthy | State::MostlyHealthy)
    }

    /// Returns the name in status output.
    pub fn name(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::MostlyHealthy => "mostly_healthy",
            State::MostlyUnhealthy => "mostly_unhealthy",
            State::Unhealthy => "unhealthy",
        }
    }
}

/// A result of a probe or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A successful response
    Success,
    /// A response with a failure status, or not HTTP
    HttpFailure,
    /// No connection, or a broken one
    TcpFailure,
    /// No response in time
    Timeout,
}

/// The number of events in a row that changes the state; 0 ignores the event.
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

impl Event {
    const ALL: [Event; 4] = [Event::Success, Event::HttpFailure, Event::TcpFailure, Event::Timeout];

    /// Returns the event with this name.
    pub(super) fn named(name: &str) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name() == name)
    }

    /// Returns the name in reasons.
    pub(super) fn name(self) -> &'static str {
        match self {
            Event::Success => "success",
            Event::HttpFailure => "http_failure",
            Event::TcpFailure => "tcp_failure",
            Event::Timeout => "timeout",
        }
    }
}

/// The source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A probe.
    Active,
    /// A request.
    Passive,
}

/// The event that made a target unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blame {
    /// Its source.
    pub by: Source,
    /// The event.
    pub event: Event,
}

impl std::fmt::Display for Blame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = match self.by {
            Source::Active => "active",
            Source::Passive => "passive",
        };
        write!(f, "{by} check: {}", self.event.name())
    }
}

/// The effective weight of a target, set by its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentWeight {
    /// A part of the configured weight
    Percent(u8),
    /// This weight instead of the configured one, at most [`AgentWeight::MAX`]. A configured weight of 0 stays: the
    /// operator wants no new sessions.
    Absolute(u16),
}

impl AgentWeight {
    /// The largest weight (HAProxy's).
    pub(super) const MAX: u16 = 256;
    /// The configured weight.
    pub(super) const WHOLE: AgentWeight = AgentWeight::Percent(100);
}

/// The wishes of a target's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AgentWish {
    /// The wanted state.
    pub state: NodeState,
    /// The agent reports that it is down.
    pub is_down: bool,
    /// The effective weight.
    pub weight: AgentWeight,
}

impl Default for AgentWish {
    fn default() -> AgentWish {
        AgentWish { state: NodeState::Ready, is_down: false, weight: AgentWeight::WHOLE }
    }
}

/// The state and counters of a target; a new one is healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Standing {
    /// The state by health checks.
    pub state: State,
    /// Successes since the last failure.
    pub successes: u8,
    /// HTTP failures since the last success.
    pub http_failures: u8,
    /// TCP failures since the last success.
    pub tcp_failures: u8,
    /// Timeouts since the last success.
    pub timeouts: u8,
    /// The event that made it unhealthy; None while it is healthy.
    pub blame: Option<Blame>,
    /// The rule of outlier detection that has ejected it now.
    pub ejected: Option<Rule>,
    /// The state that an operator wants.
    pub wanted: NodeState,
    /// The agent's wishes.
    pub agent: AgentWish,
    /// Other gateways' findings take it out.
    pub is_out_elsewhere: bool,
}

impl Standing {
    /// Returns true if it may get requests.
    pub fn usable(self) -> bool {
        self.is_well() && self.is_in_service()
    }

    /// Returns true if it may get requests that are bound to it.
    pub fn keeps_bound(self) -> bool {
        self.is_well() && ![self.wanted, self.agent.state].contains(&NodeState::Maintenance)
    }

    /// Returns true if it may get requests when no other node is healthy.
    pub fn is_in_service(self) -> bool {
        [self.wanted, self.agent.state] == [NodeState::Ready; 2]
    }

    fn is_well(self) -> bool {
        self.state.usable() && self.ejected.is_none() && !self.agent.is_down && !self.is_out_elsewhere
    }

    /// Returns the effective part of a configured weight; a part of a weight above 0 is at least 1.
    pub fn weighed(self, weight: u32) -> u32 {
        match self.agent.weight {
            AgentWeight::WHOLE => weight,
            AgentWeight::Percent(0) => 0,
            AgentWeight::Absolute(instead) => {
                if weight == 0 {
                    0
                } else {
                    instead.into()
                }
            }
            AgentWeight::Percent(percent) => {
                let part = u64::from(weight) * u64::from(percent) / 100;
                u32::try_from(part).unwrap_or(u32::MAX).max(weight.min(1))
            }
        }
    }

    /// Returns the values that readers decide by.
    pub(super) fn uses(self) -> ([bool; 3], AgentWeight) {
        ([self.usable(), self.keeps_bound(), self.is_in_service()], self.agent.weight)
    }

    /// Returns the reason why it gets no requests; None if it gets requests.
    pub fn reason(self) -> Option<String> {
        if self.usable() {
            return None;
        }
        if self.wanted != NodeState::Ready {
            return Some(format!("operator: {}", self.wanted.name()));
        }
        if self.agent.state != NodeState::Ready {
            return Some(format!("agent: {}", self.agent.state.name()));
        }
        if self.agent.is_down {
            return Some("agent: down".to_owned());
        }
        match (self.ejected, self.blame) {
            (Some(rule), _) => Some(format!("outlier: {}", rule.name())),
            (None, Some(blame)) => Some(blame.to_string()),
            (None, None) if self.is_out_elsewhere => Some("other gateways".to_owned()),
            (None, None) => Some(self.state.name().to_owned()),
        }
    }

    /// Ends its unhealthy time without a probe: it gets requests, and one failure of any kind makes it unhealthy
    /// again.
    pub(super) fn on_probation(self, limits: Limits) -> Standing {
        if self.state.usable() {
            return self;
        }
        Standing {
            state: State::MostlyHealthy,
            successes: 0,
            http_failures: limits.http_failures.saturating_sub(1),
            tcp_failures: limits.tcp_failures.saturating_sub(1),
            timeouts: limits.timeouts.saturating_sub(1),
            blame: None,
            ..self
        }
    }

    /// As [`Standing::after`], and records the source that made it unhealthy.
    pub(super) fn seen(self, by: Source, event: Event, limits: Limits) -> Standing {
        let mut next = self.after(event, limits);
        match next.state {
            State::Unhealthy if self.state != State::Unhealthy => next.blame = Some(Blame { by, event }),
            State::Healthy => next.blame = None,
            _ => {}
        }
        next
    }

    /// Returns the standing after `event`, judged by `limits` of the section that saw it.
    pub fn after(self, event: Event, limits: Limits) -> Standing {
        let limit = limits.of(event);
        if limit == 0 || ignored(self.state, event) {
            return self;
        }
        let mut next = self;
        let count = match event {
            Event::Success => {
                next = Standing { http_failures: 0, tcp_failures: 0, timeouts: 0, ..self };
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

    /// Packs everything in one word, so that a reader never sees a state with another state's counters.
    pub(super) fn pack(self) -> u64 {
        let Standing { state, successes, http_failures, tcp_failures, timeouts, .. } = self;
        let blame = self.blame.map_or(0, |blame| 1 + blame.by as u8 * 4 + blame.event as u8);
        let ejected = self.ejected.map_or(0, |rule| 1 + rule as u8);
        // The low byte of a weight is a byte of the word; one bit of the wishes is the rest.
        let (weight, kind) = match self.agent.weight {
            AgentWeight::Percent(percent) => (u16::from(percent), 0),
            AgentWeight::Absolute(weight) => (weight.min(AgentWeight::MAX), 1),
        };
        let [weight, high] = weight.to_le_bytes();
        let wishes = self.wanted as u8
            | (self.agent.state as u8) << 2
            | u8::from(self.agent.is_down) << 4
            | kind << 5
            | high << 6
            | u8::from(self.is_out_elsewhere) << 7;
        let out = blame | ejected << 4;
        u64::from_le_bytes([
            state as u8,
            successes,
            http_failures,
            tcp_failures,
            timeouts,
            out,
            wishes,
            weight,
        ])
    }

    /// The inverse of [`Standing::pack`].
    pub(super) fn unpack(word: u64) -> Standing {
        let [state, successes, http_failures, tcp_failures, timeouts, out, wishes, weight] =
            word.to_le_bytes();
        let state = match state {
            0 => State::Healthy,
            1 => State::MostlyHealthy,
            2 => State::MostlyUnhealthy,
            _ => State::Unhealthy,
        };
        let blame = (out & 15).checked_sub(1).map(|packed| Blame {
            by: if packed & 4 == 0 { Source::Active } else { Source::Passive },
            event: Event::ALL[usize::from(packed & 3)],
        });
        let ejected = (out >> 4).checked_sub(1).and_then(|rule| Rule::ALL.get(usize::from(rule))).copied();
        let wish = |bits: u8| NodeState::ALL.get(usize::from(bits & 3)).copied().unwrap_or_default();
        let weight = match wishes & 32 {
            0 => AgentWeight::Percent(weight),
            _ => AgentWeight::Absolute(u16::from_le_bytes([weight, wishes >> 6 & 1])),
        };
        let agent = AgentWish { state: wish(wishes >> 2), is_down: wishes & 16 != 0, weight };
        let (wanted, is_out_elsewhere) = (wish(wishes), wishes & 128 != 0);
        Standing {
            state,
            successes,
            http_failures,
            tcp_failures,
            timeouts,
            blame,
            ejected,
            wanted,
            agent,
            is_out_elsewhere,
        }
    }
}

/// Returns true if an event only confirms the full state.
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

    /// Events by letter: s(uccess), h(ttp), t(cp), o (timeout). The standing is `state success/http/tcp/timeout`.
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
        let Standing { state, successes, http_failures, tcp_failures, timeouts, .. } = standing;
        let got = format!("{} {successes}/{http_failures}/{tcp_failures}/{timeouts}", state.name());
        assert_eq!(got, want, "after {events:?}");
    }

    #[test]
    fn every_rule() {
        // A report that confirms the full state is ignored.
        check(LIMITS, "", "healthy 0/0/0/0");
        check(LIMITS, "ss", "healthy 0/0/0/0");
        check(LIMITS, "hhhhht", "unhealthy 0/3/0/0");
        // Failures count per kind and make healthy mostly_healthy.
        check(LIMITS, "h", "mostly_healthy 0/1/0/0");
        check(LIMITS, "hht", "mostly_healthy 0/2/1/0");
        check(LIMITS, "hhh", "unhealthy 0/3/0/0");
        check(LIMITS, "htt", "unhealthy 0/1/2/0");
        check(LIMITS, "o", "unhealthy 0/0/0/1");
        // A success clears all failures; the limit of successes leads back to healthy.
        check(LIMITS, "hhts", "mostly_healthy 1/0/0/0");
        check(LIMITS, "hhtss", "healthy 2/0/0/0");
        check(LIMITS, "hhshh", "mostly_healthy 0/2/0/0");
        // Recovery goes through mostly_unhealthy; a failure there clears the successes.
        check(LIMITS, "os", "mostly_unhealthy 1/0/0/0");
        check(LIMITS, "osh", "mostly_unhealthy 0/1/0/0");
        check(LIMITS, "oshs", "mostly_unhealthy 1/0/0/0");
        check(LIMITS, "oso", "unhealthy 0/0/0/1");
        check(LIMITS, "oss", "healthy 2/0/0/0");
    }

    #[test]
    fn a_limit_of_zero_ignores_events() {
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

    #[test]
    fn everything_fits_into_a_word() {
        let mut blames = vec![None];
        for by in [Source::Active, Source::Passive] {
            blames.extend(Event::ALL.map(|event| Some(Blame { by, event })));
        }
        for blame in blames {
            for ejected in std::iter::once(None).chain(Rule::ALL.map(Some)) {
                for wanted in NodeState::ALL {
                    for state in NodeState::ALL {
                        for (is_down, weight) in [
                            (false, AgentWeight::WHOLE),
                            (true, AgentWeight::Percent(0)),
                            (false, AgentWeight::Percent(255)),
                            (true, AgentWeight::Absolute(0)),
                            (false, AgentWeight::Absolute(100)),
                            (true, AgentWeight::Absolute(AgentWeight::MAX)),
                        ] {
                            let agent = AgentWish { state, is_down, weight };
                            let counted = Standing { successes: 255, timeouts: 7, ..Standing::default() };
                            for is_out_elsewhere in [false, true] {
                                let judged = Standing { blame, ejected, is_out_elsewhere, ..counted };
                                let standing = Standing { wanted, agent, ..judged };
                                assert_eq!(Standing::unpack(standing.pack()), standing);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_agent_takes_its_target_out_and_weighs_it() {
        let of = |agent| Standing { agent, ..Standing::default() };
        let ready = AgentWish::default();
        let check = |agent: AgentWish, usable, keeps_bound, reason: Option<&str>| {
            let standing = of(agent);
            assert_eq!((standing.usable(), standing.keeps_bound()), (usable, keeps_bound), "{agent:?}");
            assert_eq!(standing.reason().as_deref(), reason);
        };
        check(ready, true, true, None);
        check(AgentWish { is_down: true, ..ready }, false, false, Some("agent: down"));
        check(AgentWish { state: NodeState::Drain, ..ready }, false, true, Some("agent: drain"));
        check(AgentWish { state: NodeState::Maintenance, ..ready }, false, false, Some("agent: maintenance"));
        let percent = AgentWeight::Percent;
        for (wish, weight, weighed) in [
            (percent(100), 7, 7),
            (percent(50), 7, 3),
            (percent(1), 7, 1),
            (percent(1), 0, 0),
            (percent(0), 7, 0),
            (percent(255), 100, 255),
            (percent(255), u32::MAX, u32::MAX),
            (AgentWeight::Absolute(30), 7, 30),
            (AgentWeight::Absolute(0), 7, 0),
            (AgentWeight::Absolute(30), 0, 0),
        ] {
            assert_eq!(of(AgentWish { weight: wish, ..ready }).weighed(weight), weighed, "{wish:?} {weight}");
        }
    }

    #[test]
    fn the_reason_names_source_and_event() {
        let down = Standing::default().seen(Source::Passive, Event::Timeout, LIMITS);
        assert_eq!(down.reason().as_deref(), Some("passive check: timeout"));
        let still = down.seen(Source::Active, Event::TcpFailure, LIMITS);
        assert_eq!(still, down, "a failure of what is unhealthy says nothing new");
        let ejected = Standing { ejected: Some(Rule::SuccessRate), ..down };
        assert_eq!(ejected.reason().as_deref(), Some("outlier: success_rate"));
        let told = Standing { is_out_elsewhere: true, ..Standing::default() };
        assert_eq!((told.reason().as_deref(), told.usable()), (Some("other gateways"), false));
        assert!(told.is_in_service(), "nobody else is well");
        let up = "ss".chars().fold(down, |s, _| s.seen(Source::Active, Event::Success, LIMITS));
        assert_eq!((up.reason(), up.blame, up.usable()), (None, None, true));
    }

    #[test]
    fn operators_take_nodes_out_in_two_ways() {
        let check = |wanted: NodeState, usable, keeps_bound, reason: Option<&str>| {
            assert_eq!(NodeState::named(wanted.name()), Some(wanted));
            let standing = Standing { wanted, ..Standing::default() };
            assert_eq!((standing.usable(), standing.keeps_bound()), (usable, keeps_bound), "{wanted:?}");
            assert_eq!(standing.reason().as_deref(), reason);
            let down =
                "hhh".chars().fold(standing, |s, _| s.seen(Source::Active, Event::HttpFailure, LIMITS));
            assert_eq!((down.usable(), down.keeps_bound()), (false, false), "{wanted:?}");
            assert_eq!(down.is_in_service(), usable, "nobody else is well");
        };
        check(NodeState::Ready, true, true, None);
        check(NodeState::Drain, false, true, Some("operator: drain"));
        check(NodeState::Maintenance, false, false, Some("operator: maintenance"));
        assert_eq!(NodeState::named("up"), None);
    }

    #[test]
    fn on_probation_one_failure_is_enough() {
        let down = "hhh".chars().fold(Standing::default(), |s, _| s.after(Event::HttpFailure, LIMITS));
        let back = down.on_probation(LIMITS);
        assert!(back.usable());
        for event in [Event::HttpFailure, Event::TcpFailure, Event::Timeout] {
            assert_eq!(back.after(event, LIMITS).state, State::Unhealthy, "{event:?}");
        }
        let good = back.after(Event::Success, LIMITS);
        assert_eq!(good.after(Event::HttpFailure, LIMITS).state, State::MostlyHealthy);
        assert_eq!(good.on_probation(LIMITS), good, "one that is in use stays as it is");
    }
}
