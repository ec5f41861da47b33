//! What a peer may cost without getting anything done.
//!
//! Frames that carry no part of a message, streams that are taken back, heads that break a rule: each is
//! cheap to send and costs the receiver. They are *glitches*. All of a connection are paid from one
//! budget: two rates say what its kinds cost, and a peer that uses up half of one has half of the other
//! left. It is over when both together are used up.

/// Bytes written for which a peer may send one more control frame: one that reads much has many
/// windows to update.
const BYTES_PER_CONTROL: u64 = 1024;

/// How often a peer may send what costs it nothing.
#[derive(Debug, Clone, Copy)]
pub struct FloodLimits {
    /// Streams taken back, or that had to be, per minute.
    pub resets_per_minute: u32,
    /// Frames that carry no part of a message, per second, besides what the bytes written allow.
    pub controls_per_second: u32,
}

impl FloodLimits {
    /// No limit: for peers that were chosen.
    pub const NONE: FloodLimits = FloodLimits { resets_per_minute: u32::MAX, controls_per_second: u32::MAX };
}

/// What a peer did that costs it nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glitch {
    /// It took back a stream that was not over.
    Reset,
    /// It broke a rule that costs it the stream.
    StreamError,
    /// Its head was over a limit or against a rule, and was answered.
    Head,
    /// A stream beyond the number that it may have.
    Refused,
    /// PING, SETTINGS, PRIORITY, PRIORITY_UPDATE, or a type that nobody knows.
    Control,
    /// WINDOW_UPDATE.
    Window,
    /// A DATA frame or a piece of a head without a byte, or padding alone.
    Empty,
    /// Another piece of a head.
    Continuation,
}

/// Kinds of glitches.
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

    /// The name of the kind, as metrics show it.
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

/// A count within a period of time.
#[derive(Debug, Default)]
struct Spent {
    began_ms: u64,
    count: u64,
}

impl Spent {
    /// Counts one; returns whether it began a new period.
    fn add(&mut self, now_ms: u64, period_ms: u64) -> bool {
        let fresh = now_ms.saturating_sub(self.began_ms) >= period_ms;
        if fresh {
            (self.began_ms, self.count) = (now_ms, 0);
        }
        self.count += 1;
        fresh
    }

    /// The count, as long as its period lasts.
    fn within(&self, now_ms: u64, period_ms: u64) -> u64 {
        if now_ms.saturating_sub(self.began_ms) < period_ms { self.count } else { 0 }
    }
}

/// The budget of one connection.
#[derive(Debug)]
pub(super) struct Budget {
    limits: FloodLimits,
    resets: Spent,
    controls: Spent,
    /// Bytes written when the period of `controls` began.
    written: u64,
    glitches: [u32; GLITCHES],
}

const MINUTE_MS: u64 = 60_000;
const SECOND_MS: u64 = 1_000;

impl Budget {
    pub(super) fn new(limits: FloodLimits) -> Budget {
        Budget {
            limits,
            resets: Spent::default(),
            controls: Spent::default(),
            written: 0,
            glitches: [0; GLITCHES],
        }
    }

    /// Pays for a glitch. `written` counts the bytes that the peer was sent so far. Returns whether
    /// something is left.
    #[must_use]
    pub(super) fn pays(&mut self, glitch: Glitch, now_ms: u64, written: u64) -> bool {
        self.glitches[glitch as usize] = self.glitches[glitch as usize].saturating_add(1);
        if glitch.is_reset() {
            self.resets.add(now_ms, MINUTE_MS);
        } else if self.controls.add(now_ms, SECOND_MS) {
            self.written = written;
        }
        let earned = written.saturating_sub(self.written) / BYTES_PER_CONTROL;
        let resets = u128::from(self.resets.within(now_ms, MINUTE_MS));
        let controls = u128::from(self.controls.within(now_ms, SECOND_MS).saturating_sub(earned));
        let resets_max = u128::from(self.limits.resets_per_minute);
        let controls_max = u128::from(self.limits.controls_per_second);
        // resets / resets_max + controls / controls_max <= 1
        resets * controls_max + controls * resets_max <= resets_max * controls_max
    }

    /// How many of each kind there were since this was asked last.
    pub(super) fn take(&mut self) -> [u32; GLITCHES] {
        std::mem::take(&mut self.glitches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_starts_over_and_grows_with_what_is_written() {
        let mut budget = Budget::new(FloodLimits { resets_per_minute: 4, controls_per_second: 2 });
        assert!(budget.pays(Glitch::Control, 5_000, 0) && budget.pays(Glitch::Window, 5_100, 0));
        assert!(!budget.pays(Glitch::Empty, 5_200, 0), "the third within a second");
        assert!(budget.pays(Glitch::Window, 5_300, 2 * BYTES_PER_CONTROL), "a reader has windows to update");
        assert!(!budget.pays(Glitch::Window, 5_400, 2 * BYTES_PER_CONTROL));
        assert!(budget.pays(Glitch::Control, 6_000, 0), "the next second");
        assert_eq!(budget.take(), [0, 0, 0, 0, 2, 3, 1, 0]);
        assert_eq!(budget.take(), [0; 8]);
    }

    #[test]
    fn what_one_kind_has_used_the_others_lack() {
        let mut budget = Budget::new(FloodLimits { resets_per_minute: 4, controls_per_second: 2 });
        assert!(budget.pays(Glitch::Reset, 1_000, 0) && budget.pays(Glitch::Refused, 1_000, 0));
        assert!(budget.pays(Glitch::Control, 1_000, 0));
        assert!(!budget.pays(Glitch::Control, 1_000, 0), "half of it was spent on streams");
        assert!(budget.pays(Glitch::StreamError, 2_000, 0) && budget.pays(Glitch::Head, 2_000, 0));
        assert!(!budget.pays(Glitch::Reset, 59_000, 0));
        assert!(budget.pays(Glitch::Reset, 61_000, 0), "the next minute");
    }

    #[test]
    fn no_limit_is_never_reached() {
        let mut budget = Budget::new(FloodLimits::NONE);
        assert!((0..100_000).all(|_| budget.pays(Glitch::Reset, 1, 0) && budget.pays(Glitch::Control, 1, 0)));
    }
}
