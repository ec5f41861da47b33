//! Memory accounts of a connection and its streams in the budget of their thread.

use sigma_buffer::held::{Account, EXCHANGE_BYTES};

use super::connection::{Codec, Role};
use super::frame::ErrorCode;
use super::stream::{Fate, StreamKey};
use crate::{Fault, FaultKind};

/// The fault of an exchange that is ended because the budget is short.
pub const REVOKED: Fault =
    Fault::new(FaultKind::MemoryLimit, "the exchange made no progress while memory for clients was short");

/// Bytes that a stream moves before its account records them, unless bytes wait.
const NOTED_BYTES: u64 = 16 * 1024;

impl Role {
    /// Opens the account of a connection; connections to nodes count nothing themselves.
    pub(super) fn account(self) -> Account {
        match self {
            Role::Client => Account::default(),
            Role::Server => Account::of_connection(),
        }
    }
}

impl Codec {
    /// Opens the account of a stream whose head has `head` bytes of memory.
    pub(super) fn open_account(&mut self, key: StreamKey, head: usize) {
        let account = match self.config.role {
            Role::Client => Account::lasting(),
            Role::Server => Account::of_exchange(&self.account),
        };
        if self.config.role == Role::Server {
            account.grow(head + EXCHANGE_BYTES);
        }
        self.streams.get(key).account = account;
    }

    /// Counts the waiting bytes of a body to be sent.
    pub(super) fn count_piece(&mut self, slot: u32) {
        let stream = self.streams.at(slot);
        let held = if stream.output.piece.is_empty() { 0 } else { stream.output.piece.memory() };
        let moved = stream.moved();
        // Small bodies that leave at once are not worth an entry.
        if held != 0 || stream.output.piece_held != 0 || moved - stream.moved_noted >= NOTED_BYTES {
            stream.account.update(stream.output.piece_held, held, moved);
            (stream.output.piece_held, stream.moved_noted) = (held, moved);
        }
    }

    /// Counts the bytes that wait for the socket, and an incomplete head. Call it after bytes have arrived and left.
    pub fn count_output(&mut self) {
        let held = self.output.queue.memory() + self.headers.block.capacity();
        if held != self.output.held {
            self.account.update(self.output.held, held, self.output.queue.written());
            self.output.held = held;
        }
    }

    /// Sets the bytes of bodies that the exchange of a stream holds.
    pub fn hold(&mut self, key: StreamKey, bytes: usize) {
        let stream = self.streams.get(key);
        stream.account.change(stream.bodies_held, bytes);
        stream.bodies_held = bytes;
    }

    /// Ends the streams with revoked accounts, or the connection if its own account was revoked.
    pub fn end_revoked(&mut self) {
        if self.account.is_revoked() {
            self.fail(
                ErrorCode::ENHANCE_YOUR_CALM,
                "the peer does not read, and the memory for clients is nearly used up",
            );
            return;
        }
        for slot in self.streams.alive_slots() {
            if self.streams.at(slot).account.is_revoked() {
                self.reset_slot(slot, ErrorCode::ENHANCE_YOUR_CALM, Fate::Broken(REVOKED));
            }
        }
    }
}
