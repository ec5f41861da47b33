//! The budget of a peer for frames without data.
//!
//! A datagram holds more than a thousand PING frames, and each costs the receiver more than the sender. Packets of
//! this side allow the peer acknowledgements and window updates; all further frames without data are paid from a
//! budget per second.

use std::time::{Duration, Instant};

use quinn_proto::ConnectionStats;

/// The code of a connection that ends for it: HTTP/3's H3_EXCESSIVE_LOAD.
pub(super) const CODE: u64 = 0x107;

/// The text that the peer gets with the code.
pub(super) const REASON: &str = "too many frames without data";

/// Frames without data that each frame of this side allows: an acknowledgement and a window update.
const ALLOWED_PER_FRAME: u64 = 2;

/// Received bytes that allow a STREAM or DATAGRAM frame: smaller ones carry next to nothing.
const BYTES_PER_CARRIER: u64 = 32;

const PERIOD: Duration = Duration::from_secs(1);

/// Totals of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    /// Received frames without data.
    empty: u64,
    /// Received STREAM and DATAGRAM frames.
    carriers: u64,
    bytes: u64,
    /// Sent frames that call for a response.
    sent: u64,
}

impl Totals {
    fn of(stats: &ConnectionStats) -> Totals {
        let (rx, tx) = (&stats.frame_rx, &stats.frame_tx);
        let updates = rx.max_data + rx.max_stream_data + rx.max_streams_bidi + rx.max_streams_uni;
        let blocked =
            rx.data_blocked + rx.stream_data_blocked + rx.streams_blocked_bidi + rx.streams_blocked_uni;
        let ids = rx.new_connection_id + rx.retire_connection_id + rx.new_token;
        let probes = rx.ping + rx.path_challenge + rx.path_response + rx.immediate_ack + rx.ack_frequency;
        let ends = rx.reset_stream + rx.stop_sending;
        // A response to a frame of the peer allows it nothing: no ACK, PATH_RESPONSE or RETIRE_CONNECTION_ID.
        let own_updates = tx.max_data + tx.max_stream_data + tx.max_streams_bidi + tx.max_streams_uni;
        let own = tx.stream + tx.datagram + tx.crypto + tx.new_connection_id + tx.ping + tx.path_challenge;
        Totals {
            empty: rx.acks + rx.crypto + updates + blocked + ids + probes + ends,
            carriers: rx.stream + rx.datagram,
            bytes: stats.udp_rx.bytes,
            sent: own + own_updates,
        }
    }

    /// Returns the frames since `before` that nothing allows.
    fn useless_since(&self, before: &Totals) -> u64 {
        let allowed = (self.sent - before.sent).saturating_mul(ALLOWED_PER_FRAME);
        let tiny =
            (self.carriers - before.carriers).saturating_sub((self.bytes - before.bytes) / BYTES_PER_CARRIER);
        (self.empty - before.empty).saturating_sub(allowed).saturating_add(tiny)
    }
}

/// The budget of one connection.
#[derive(Debug)]
pub(super) struct FloodGuard {
    since: Instant,
    /// The totals at the start of the period.
    before: Totals,
    /// The peer has exceeded its budget.
    is_spent: bool,
    /// Datagrams since then.
    late: u32,
}

/// Of so many datagrams of a connection that has ended, the state machine sees one: its response repeats the code.
const LATE_PART: u32 = 64;

impl FloodGuard {
    pub(super) fn new(now: Instant) -> FloodGuard {
        FloodGuard { since: now, before: Totals::default(), is_spent: false, late: 0 }
    }

    /// Checks the counts after a datagram. Returns true when the peer has just exceeded its budget.
    pub(super) fn exceeds(&mut self, stats: &ConnectionStats, now: Instant, per_second: u32) -> bool {
        let totals = Totals::of(stats);
        let exceeds = !self.is_spent && totals.useless_since(&self.before) > per_second.into();
        if now.saturating_duration_since(self.since) >= PERIOD {
            (self.since, self.before) = (now, totals);
        }
        self.is_spent |= exceeds;
        exceeds
    }

    /// Returns true if the next datagram need not be read.
    pub(super) fn drops(&mut self) -> bool {
        self.late = self.late.wrapping_add(self.is_spent.into());
        self.is_spent && !self.late.is_multiple_of(LATE_PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_this_side_allow_responses() {
        let start = Instant::now();
        let mut guard = FloodGuard::new(start);
        let mut stats = ConnectionStats::default();
        let mut check = |change: &dyn Fn(&mut ConnectionStats), at_ms: u64| {
            change(&mut stats);
            guard.exceeds(&stats, start + Duration::from_millis(at_ms), 10)
        };
        assert!(!check(&|stats| stats.frame_rx.ping = 10, 0));
        // A reader acknowledges and opens windows.
        assert!(!check(
            &|stats| {
                stats.frame_tx.stream = 1_000;
                stats.frame_rx.acks = 1_000;
                stats.frame_rx.max_data = 1_000;
            },
            500
        ));
        // Responses to its own frames allow a peer nothing.
        assert!(!check(&|stats| stats.frame_tx.path_response = 1_000, 1_000));
        assert!(!check(&|stats| stats.frame_rx.path_challenge = 10, 1_500));
        assert!(!check(&|_| {}, 2_000));
        // Data is never a flood, unless it comes in tiny pieces.
        assert!(!check(
            &|stats| {
                stats.frame_rx.stream = 1_000;
                stats.udp_rx.bytes = 32_000;
            },
            2_100
        ));
        assert!(check(&|stats| stats.frame_rx.stream = 1_011, 2_200));
        assert!(!check(&|stats| stats.frame_rx.stream = 2_000, 2_300), "it is reported once");
        let passed = (0..6_400).filter(|_| !guard.drops()).count();
        assert_eq!(passed, 100);
    }
}
