//! Unread streams on a shared connection.
//!
//! Unread bytes of a message stay in the connection's window. A few such streams use it up, and then the peer can
//! send nothing to the others.

use super::connection::Codec;
use super::frame::ErrorCode;
use super::stream::Fate;
use crate::{Fault, FaultKind};

/// The connection is starved while less than this fraction of its window is free.
const LEAST_FREE_PART: i64 = 8;

impl Codec {
    /// Returns true if unread bytes use up the connection's window while another stream waits for bytes.
    pub fn is_starved(&self) -> bool {
        let free = self.window.left + i64::from(self.window.unannounced);
        free < i64::from(self.config.windows.connection_bytes) / LEAST_FREE_PART
            && self.end.failed.is_none()
            && self.streams.is_any_waiting()
    }

    /// Marks the streams with unread bytes; reading from a stream removes its mark.
    pub fn mark_stalled(&mut self) {
        self.streams.mark_stalled();
    }

    /// Opens no further streams on this connection.
    pub fn retire(&mut self) {
        self.peer.leaves = true;
    }

    /// Ends the marked streams, and gives back their part of the window. A stream without unread bytes continues: its
    /// exchange has its last bytes. Returns the number of ended streams.
    pub fn end_stalled(&mut self) -> usize {
        let mut ended = 0;
        for slot in self.streams.stalled_slots() {
            self.release_taken(slot);
            let stream = self.streams.at(slot);
            stream.input.is_stalled = false;
            if stream.input.data.is_empty() {
                continue;
            }
            ended += 1;
            let bytes = stream.discard_input();
            stream.fate = Some(Fate::Broken(not_read()));
            if stream.alive {
                self.reset_slot(slot, ErrorCode::CANCEL, Fate::Broken(not_read()));
            } else {
                self.events.woken.push(slot);
            }
            self.credit(bytes);
        }
        ended
    }
}

fn not_read() -> Fault {
    let reason = "the client does not read a response, which blocks others";
    Fault::new(FaultKind::ResponseSendTimeout, reason)
}
