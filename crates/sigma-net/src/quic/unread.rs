//! The unread bytes of a connection. The state machine holds them and reports no number: an estimate adds the datagrams
//! with stream frames, and subtracts the bytes of each read.

use sigma_buffer::held::Account;

/// The bytes of a datagram around its frames: header, packet number and tag.
const PACKET_BYTES: u64 = 27;

/// The bytes of a stream frame before its data, at most: an estimate that is too high would grow with each datagram.
const FRAME_BYTES: u64 = 16;

/// Frames in one datagram from which on their heads may be a trick: at least half of the datagram counts.
const MANY_FRAMES: u64 = 4;

/// The unread bytes of one connection.
#[derive(Debug, Default)]
pub(super) struct Unread {
    account: Account,
    /// The window of the connection, which the peer cannot exceed.
    most: u64,
    bytes: u64,
    /// Bytes read so far.
    read: u64,
    /// The stream frames of all datagrams so far.
    frames: u64,
}

impl Unread {
    /// Begins to estimate: `most` is the window of the connection.
    pub(super) fn begin(&mut self, most: u64) {
        self.most = most;
    }

    /// Counts in this account from now on.
    pub(super) fn count_in(&mut self, account: Account) {
        account.grow(self.bytes as usize);
        self.account = account;
    }

    /// Counts a datagram of `length` bytes, after which the connection has received `frames` stream frames.
    pub(super) fn arrived(&mut self, length: u64, frames: u64) {
        let new = frames - std::mem::replace(&mut self.frames, frames);
        if new > 0 && self.most > 0 {
            self.change((self.bytes + payload(length, new)).min(self.most));
        }
    }

    /// Subtracts bytes that were read.
    pub(super) fn took(&mut self, bytes: usize) {
        if self.most > 0 {
            self.read += bytes as u64;
            self.change(self.bytes.saturating_sub(bytes as u64));
        }
    }

    /// Returns true if the account was revoked.
    pub(super) fn is_revoked(&self) -> bool {
        self.account.is_revoked()
    }

    /// Forgets the errors of the estimate: no stream is open.
    pub(super) fn clear(&mut self) {
        self.change(0);
    }

    fn change(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if before != bytes {
            self.account.update(before as usize, bytes as usize, self.read);
        }
    }
}

fn payload(length: u64, frames: u64) -> u64 {
    let rest = length.saturating_sub(PACKET_BYTES + FRAME_BYTES * frames);
    if frames < MANY_FRAMES { rest } else { rest.max(length / 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_count_until_they_are_read() {
        let mut unread = Unread::default();
        unread.arrived(1200, 1);
        assert_eq!(unread.bytes, 0, "a client");
        unread.begin(10_000);
        unread.count_in(Account::of_connection());
        let check = |unread: &Unread, expected: u64| {
            assert_eq!((unread.bytes, unread.account.bytes() as u64), (expected, expected));
        };
        unread.arrived(1200, 2);
        check(&unread, 1157);
        // No stream frame.
        unread.arrived(1200, 2);
        check(&unread, 1157);
        unread.took(161);
        check(&unread, 996);
        // Frames of one byte each take half of a datagram at least.
        unread.arrived(1200, 302);
        check(&unread, 1596);
        for frames in 303..400 {
            unread.arrived(1200, frames);
        }
        check(&unread, 10_000);
        unread.took(1_000_000);
        check(&unread, 0);
        unread.arrived(1200, 400);
        unread.clear();
        check(&unread, 0);
    }
}
