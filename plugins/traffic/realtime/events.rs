//! A stream of events (`text/event-stream`) that is held open, and whose events are pushed.

use std::io;
use std::task::{Context as Task, Poll};

use sigma_http::Chunk;
use sigma_net::Deadline;
use sigma_plugin::BodySource;

use crate::shared::room::{Next, Seat};

/// A line that readers of events pass over: it shows both sides that the other one is there.
const COMMENT: &[u8] = b":\n\n";

/// The body of the response.
pub(super) struct Events {
    seat: Seat,
    /// The bytes being sent, and how many of them have left.
    sending: Vec<u8>,
    taken: usize,
    pulse: Deadline,
    ping_ms: u64,
    is_ending: bool,
}

impl Events {
    /// One that begins with these bytes.
    pub(super) fn new(seat: Seat, first: Vec<u8>, ping_ms: u64) -> Events {
        let pulse = Deadline::new();
        pulse.set(ping_ms);
        Events { seat, sending: first, taken: 0, pulse, ping_ms, is_ending: false }
    }
}

impl BodySource for Events {
    fn poll_piece(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if let Some(piece) = Chunk::next_of(&self.sending, &mut self.taken) {
                self.pulse.set(self.ping_ms);
                return Poll::Ready(Ok(Some(piece)));
            }
            self.taken = 0;
            match self.seat.next(task) {
                Some(Next::Message(_, bytes)) => self.sending = bytes.to_vec(),
                Some(Next::End(..)) => return Poll::Ready(Ok(None)),
                None if self.is_ending => return Poll::Ready(Ok(None)),
                None => {
                    self.sending = Vec::new();
                    if self.pulse.poll_expired(task).is_pending() {
                        return Poll::Pending;
                    }
                    self.sending = COMMENT.to_vec();
                }
            }
        }
    }

    fn say_goodbye(&mut self) {
        self.is_ending = true;
    }
}
