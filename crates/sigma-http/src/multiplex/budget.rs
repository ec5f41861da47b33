//! The cost budget of a peer for useless frames.
//!
//! Frames without a part of a message, streams that are cancelled, invalid heads: each is cheap to send and costs the
//! receiver. They are *glitches*. All of a connection are paid from one budget with two rates. A peer that uses up
//! half of one rate has half of the other left. The budget is empty when both parts together are used up.

/// Bytes written that allow the peer one more control frame: a peer that reads much updates many windows.
const BYTES_PER_CONTROL: u64 = 1024;

/// Control frames that a peer may send for each DATA frame sent to it, and for each stream that it is asked to serve.
/// Some peers open two windows for each message and measure the connection with a PING.
const CONTROLS_PER_FRAME: u64 = 4;

/// The rates of frames that cost the sender nothing.
#[derive(Debug, Clone, Copy)]
pub struct FloodLimits {
    /// Streams that the peer cancels, or forces this side to reset, per minute. `u32::MAX`: they count as control
    /// frames. That is right for a server, which cannot begin streams.
    pub resets_per_minute: u32,
    /// Frames without a part of a message, per second, in addition to the allowance for written bytes and frames.
    pub controls_per_second: u32,
}

impl FloodLimits {
    /// No limit.
    pub const NONE: FloodLimits = FloodLimits { resets_per_minute: u32::MAX, controls_per_second: u32::MAX };
}

/// The amount sent to a peer, which allows it control frames.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    /// DATA frames, and requests
    pub(crate) frames: u64,
}

impl Sent {
    fn earned_since(self, before: Sent) -> u64 {
        let frames = self.frames.saturating_sub(before.frames).saturating_mul(CONTROLS_PER_FRAME);
        (self.bytes.saturating_sub(before.bytes) / BYTES_PER_CONTROL).saturating_add(frames)
    }
}

/// An action of a peer that costs it nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glitch {
    /// It cancelled a stream before the end.
    Reset,
    /// It broke a rule of a stream.
    StreamError,
    /// Its head exceeded a limit or broke a rule, and got a response.
    Head,
    /// A stream beyond the allowed number.
    Refused,
    /// PING, SETTINGS, PRIORITY, PRIORITY_UPDATE, or an unknown type.
    Control,
    /// WINDOW_UPDATE
    Window,
    /// A DATA frame or a piece of a head without a byte, or with padding alone.
    Empty,
    /// Another piece of a head.
    Continuation,
}

/// The number of kinds.
pub const GLITCHES: usize = 8;

impl Glitch {
    /// All kinds.
    pub const ALL: [Glitch; GLITCHES] = [
        Glitch::Reset,
        Glitch::StreamError,
        Glitch::Head,
        Glitch::Refused,
        Glitch::Control,
        Glitch::Window,
        Glitch::Empty,
        Glitch::Continuation,
    ];

    /// Returns the name of the kind in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Glitch::Reset => "reset",
            Glitch::StreamError => "stream_error",
            Glitch::Head => "head",
            Glitch::Refused => "refused",
            Glitch::Control => "control",
            Glitch::Window => "window",
            Glitch::Empty => "empty",
            Glitch::Continuation => "continuation",
        }
    }

    fn is_reset(self) -> bool {
        matches!(self, Glitch::Reset | Glitch::StreamError | Glitch::Head | Glitch::Refused)
    }
}

/// A count within a period.
#[derive(Debug, Default)]
struct Spent {
    began_ms: u64,
    count: u64,
}

impl Spent {
    /// Adds one; returns true at the start of a new period.
    fn add(&mut self, now_ms: u64, period_ms: u64) -> bool {
        let fresh = now_ms.saturating_sub(self.began_ms) >= period_ms;
        if fresh {
            (self.began_ms, self.count) = (now_ms, 0);
        }
        self.count += 1;
        fresh
    }

    /// Returns the count within the current period.
    fn within(&self, now_ms: u64, period_ms: u64) -> u64 {
        if now_ms.saturating_sub(self.began_ms) < period_ms { self.count } else { 0 }
    }
}

/// The budget of one connection.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: FloodLimits,
    resets: Spent,
    controls: Spent,
    /// The amount sent at the start of the period of `controls`.
    sent: Sent,
    glitches: [u32; GLITCHES],
}

const MINUTE_MS: u64 = 60_000;
const SECOND_MS: u64 = 1_000;

impl Budget {
    pub(crate) fn new(limits: FloodLimits) -> Budget {
        Budget {
            limits,
            resets: Spent::default(),
            controls: Spent::default(),
            sent: Sent::default(),
            glitches: [0; GLITCHES],
        }
    }

    /// Pays for a glitch. Returns true if some budget is left.
    #[must_use]
    pub(crate) fn pays(&mut self, glitch: Glitch, now_ms: u64, sent: Sent) -> bool {
        self.glitches[glitch as usize] = self.glitches[glitch as usize].saturating_add(1);
        if glitch.is_reset() && self.limits.resets_per_minute != u32::MAX {
            self.resets.add(now_ms, MINUTE_MS);
        } else if self.controls.add(now_ms, SECOND_MS) {
            self.sent = sent;
        }
        let earned = sent.earned_since(self.sent);
        let resets = u128::from(self.resets.within(now_ms, MINUTE_MS));
        let controls = u128::from(self.controls.within(now_ms, SECOND_MS).saturating_sub(earned));
        let resets_max = u128::from(self.limits.resets_per_minute);
        let controls_max = u128::from(self.limits.controls_per_second);
        // resets / resets_max + controls / controls_max <= 1
        resets * controls_max + controls * resets_max <= resets_max * controls_max
    }

    /// Returns the number of each kind since the last call.
    pub(crate) fn take(&mut self) -> [u32; GLITCHES] {
        std::mem::take(&mut self.glitches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Sent = Sent { bytes: 0, frames: 0 };

    #[test]
    fn a_budget_is_renewed_and_grows_with_output() {
        let mut budget = Budget::new(FloodLimits { resets_per_minute: 4, controls_per_second: 2 });
        let much = Sent { bytes: 2 * BYTES_PER_CONTROL, frames: 0 };
        assert!(budget.pays(Glitch::Control, 5_000, NOTHING) && budget.pays(Glitch::Window, 5_100, NOTHING));
        assert!(!budget.pays(Glitch::Empty, 5_200, NOTHING), "the third within a second");
        assert!(budget.pays(Glitch::Window, 5_300, much), "a reader has windows to update");
        assert!(!budget.pays(Glitch::Window, 5_400, much));
        assert!(budget.pays(Glitch::Control, 6_000, NOTHING), "the next second");
        assert_eq!(budget.take(), [0, 0, 0, 0, 2, 3, 1, 0]);
        assert_eq!(budget.take(), [0; 8]);
    }

    #[test]
    fn each_message_earns_window_updates_and_a_ping() {
        let mut budget = Budget::new(FloodLimits { resets_per_minute: 4, controls_per_second: 10 });
        for frames in 0..1_000 {
            let sent = Sent { bytes: 20 * frames, frames };
            let glitches = [Glitch::Window, Glitch::Window, Glitch::Control];
            assert!(frames == 0 || glitches.iter().all(|glitch| budget.pays(*glitch, 5_000, sent)));
        }
    }

    #[test]
    fn resets_of_a_server_count_as_control_frames() {
        let mut budget = Budget::new(FloodLimits { resets_per_minute: u32::MAX, controls_per_second: 2 });
        let resets = |budget: &mut Budget, now_ms| budget.pays(Glitch::Reset, now_ms, NOTHING);
        assert!(resets(&mut budget, 1_000) && resets(&mut budget, 1_000) && !resets(&mut budget, 1_000));
        assert!(resets(&mut budget, 2_000), "the next second");
    }

    #[test]
    fn kinds_share_one_budget() {
        let mut budget = Budget::new(FloodLimits { resets_per_minute: 4, controls_per_second: 2 });
        let pays = |budget: &mut Budget, glitch, now_ms| budget.pays(glitch, now_ms, NOTHING);
        assert!(pays(&mut budget, Glitch::Reset, 1_000) && pays(&mut budget, Glitch::Refused, 1_000));
        assert!(pays(&mut budget, Glitch::Control, 1_000));
        assert!(!pays(&mut budget, Glitch::Control, 1_000), "half of it was spent on streams");
        assert!(pays(&mut budget, Glitch::StreamError, 2_000) && pays(&mut budget, Glitch::Head, 2_000));
        assert!(!pays(&mut budget, Glitch::Reset, 59_000));
        assert!(pays(&mut budget, Glitch::Reset, 61_000), "the next minute");
    }

    #[test]
    fn no_limit_is_never_reached() {
        let mut budget = Budget::new(FloodLimits::NONE);
        let glitches = [Glitch::Reset, Glitch::Control];
        assert!((0..100_000).all(|_| glitches.iter().all(|glitch| budget.pays(*glitch, 1, NOTHING))));
    }
}
