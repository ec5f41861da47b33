//! The memory budget of a thread: bytes that it holds for its clients, in one sum with one limit.
//!
//! An [`Account`] is the share of one exchange or connection; a [`CountedBytes`] is a share that belongs to neither. Both
//! give their bytes back when they are dropped. If the budget is short, [`reclaim`] revokes the accounts of exchanges
//! without progress, on the connections with the most bytes.
//!
//! All data are local to the thread: counting costs a few additions.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

/// The default limit of a thread; [`set_limit`] changes it.
pub const DEFAULT_LIMIT_BYTES: usize = 256 << 20;

/// The cost of one exchange besides counted bytes: its task, its context, its stream.
pub const EXCHANGE_BYTES: usize = 6 * 1024;

/// An exchange makes progress if it moves this number of bytes.
const PROGRESS_BYTES: u64 = 1024;

/// A connection with at most this number of bytes is never revoked, and may start exchanges in the last quarter of
/// the budget.
const SMALL_BYTES: usize = 64 * 1024;

/// An account without an entry in the ledger.
const NONE: u32 = u32::MAX;

thread_local! {
    static TOTAL: Cell<usize> = const { Cell::new(0) };
    static LIMIT: Cell<usize> = const { Cell::new(DEFAULT_LIMIT_BYTES) };
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
    static REVOKED: Cell<u64> = const { Cell::new(0) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
    static LEDGER: RefCell<Ledger> = const { RefCell::new(Ledger { entries: Vec::new(), free: Vec::new(), opened: 0 }) };
}

/// Sets the limit of this thread.
pub fn set_limit(bytes: usize) {
    LIMIT.set(bytes);
}

/// Returns the bytes that this thread holds now.
#[inline]
pub fn total() -> usize {
    TOTAL.get()
}

/// Returns the free bytes of the budget.
#[inline]
pub fn room() -> usize {
    LIMIT.get().saturating_sub(TOTAL.get())
}

/// Returns the free bytes for bodies: the last quarter of the budget is for requests.
#[inline]
pub fn body_room() -> usize {
    let limit = LIMIT.get();
    (limit - limit / 4).saturating_sub(TOTAL.get())
}

/// Returns the free bytes for memory that its holder can do without: the first quarter of the budget. [`reclaim`]
/// revokes accounts beyond the second one.
#[inline]
pub fn spare_room() -> usize {
    (LIMIT.get() / 4).saturating_sub(TOTAL.get())
}

/// Returns true if the whole budget is used.
#[inline]
pub fn is_full() -> bool {
    TOTAL.get() >= LIMIT.get()
}

/// Returns how often [`reclaim`] has revoked accounts: a holder checks its own when this number has changed.
#[inline]
pub fn revocations() -> u64 {
    REVOKED.get()
}

/// Counts a request or a body that was rejected because the budget is full.
pub fn refused() {
    REFUSED.set(REFUSED.get() + 1);
}

/// Returns how many requests and bodies were rejected so far.
pub fn refusals() -> u64 {
    REFUSED.get()
}

fn count(before: usize, after: usize) {
    // At the end of a thread the cell may be gone.
    let _ = TOTAL.try_with(|total| total.set(total.get().wrapping_sub(before).wrapping_add(after)));
}

/// Bytes outside of an account, such as the copy of a body for a log plugin.
#[derive(Debug, Default)]
pub struct CountedBytes {
    bytes: usize,
    /// Not `Send`: the sum is this thread's.
    thread: PhantomData<*const ()>,
}

impl CountedBytes {
    /// Returns its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets its bytes.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            count(self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for CountedBytes {
    #[inline]
    fn drop(&mut self) {
        self.set(0);
    }
}

/// One account in the ledger.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Bytes of this account alone.
    bytes: usize,
    /// Bytes of this account and of the accounts that it owns.
    group: usize,
    /// The account of the connection; its own number for the connection itself.
    owner: u32,
    /// The number of accounts opened before it: numbers are reused.
    generation: u32,
    /// Bytes moved for it, in both directions.
    moved: u64,
    /// `moved` at the last recorded progress, and the time.
    marked: u64,
    marked_ms: u64,
    /// [`reclaim`] may revoke it.
    revocable: bool,
    revoked: bool,
    open: bool,
}

struct Ledger {
    entries: Vec<Entry>,
    free: Vec<u32>,
    opened: u32,
}

impl Ledger {
    fn open(&mut self, owner: Option<u32>, revocable: bool) -> u32 {
        let number = self.free.pop().unwrap_or(self.entries.len() as u32);
        self.opened = self.opened.wrapping_add(1);
        let entry = Entry {
            bytes: 0,
            group: 0,
            owner: owner.unwrap_or(number),
            generation: self.opened,
            moved: 0,
            marked: 0,
            marked_ms: NOW_MS.get(),
            revocable,
            revoked: false,
            open: true,
        };
        match self.entries.get_mut(number as usize) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        number
    }

    fn close(&mut self, number: u32) {
        self.set(number, 0);
        self.entries[number as usize].open = false;
        self.free.push(number);
        // Memory of a burst is freed.
        if self.free.len() == self.entries.len() && self.entries.len() > KEPT_ENTRIES {
            (self.entries, self.free) = (Vec::new(), Vec::new());
        }
    }

    fn set(&mut self, number: u32, bytes: usize) {
        let entry = &mut self.entries[number as usize];
        let before = std::mem::replace(&mut entry.bytes, bytes);
        if before == bytes {
            return;
        }
        let owner = entry.owner;
        count(before, bytes);
        if let Some(owner) = self.entries.get_mut(owner as usize) {
            owner.group = owner.group.wrapping_sub(before).wrapping_add(bytes);
        }
    }

    /// Revokes accounts until at most `goal` bytes are held; returns their number.
    fn reclaim(&mut self, now_ms: u64, patience_ms: u64, goal: usize) -> usize {
        let mut stalled = vec![0_usize; self.entries.len()];
        let mut expected = TOTAL.get();
        for entry in self.entries.iter_mut().filter(|entry| entry.open && entry.revocable) {
            if entry.revoked {
                expected = expected.saturating_sub(entry.bytes);
            } else if entry.moved.saturating_sub(entry.marked) >= PROGRESS_BYTES {
                (entry.marked, entry.marked_ms) = (entry.moved, now_ms);
            } else if now_ms.saturating_sub(entry.marked_ms) >= patience_ms
                && let Some(sum) = stalled.get_mut(entry.owner as usize)
            {
                *sum += entry.bytes;
            }
        }
        let mut owners: Vec<(usize, u32)> =
            stalled.into_iter().zip(0..).filter(|(bytes, _)| *bytes > SMALL_BYTES).collect();
        owners.sort_unstable_by(|one, other| other.cmp(one));
        let mut chosen = Vec::new();
        for (bytes, owner) in owners {
            if expected <= goal {
                break;
            }
            expected = expected.saturating_sub(bytes);
            chosen.push(owner);
        }
        chosen.sort_unstable();
        let mut revoked = 0;
        for entry in self.entries.iter_mut().filter(|entry| entry.open && entry.revocable && !entry.revoked) {
            if entry.bytes > 0
                && chosen.binary_search(&entry.owner).is_ok()
                && now_ms.saturating_sub(entry.marked_ms) >= patience_ms
            {
                entry.revoked = true;
                revoked += 1;
            }
        }
        revoked
    }
}

/// The number of entries that a thread without accounts keeps.
const KEPT_ENTRIES: usize = 1024;

/// The bytes of one exchange, or the bytes of a connection besides its exchanges.
#[derive(Debug)]
pub struct Account {
    number: u32,
    thread: PhantomData<*const ()>,
}

impl Default for Account {
    /// Returns an account that counts nothing.
    fn default() -> Account {
        Account { number: NONE, thread: PhantomData }
    }
}

impl Account {
    /// Returns the account of a client's connection.
    pub fn of_connection() -> Account {
        Account::open(None, true)
    }

    /// Returns the account of an exchange on the connection of `owner`.
    pub fn of_exchange(owner: &Account) -> Account {
        Account::open(Some(owner.number).filter(|number| *number != NONE), true)
    }

    /// Returns an account that is never revoked, such as the one of an exchange on a connection to a node.
    pub fn lasting() -> Account {
        Account::open(None, false)
    }

    fn open(owner: Option<u32>, revocable: bool) -> Account {
        let number = LEDGER.with_borrow_mut(|ledger| ledger.open(owner, revocable));
        Account { number, thread: PhantomData }
    }

    fn with<R: Default>(&self, act: impl FnOnce(&mut Ledger, u32) -> R) -> R {
        match self.number {
            NONE => R::default(),
            number => LEDGER.with_borrow_mut(|ledger| act(ledger, number)),
        }
    }

    /// Adds `bytes`.
    pub fn grow(&self, bytes: usize) {
        self.change(0, bytes);
    }

    /// Subtracts `bytes`.
    pub fn shrink(&self, bytes: usize) {
        self.change(bytes, 0);
    }

    /// Replaces `before` bytes with `after` bytes.
    pub fn change(&self, before: usize, after: usize) {
        if before != after {
            self.with(|ledger, number| {
                let bytes = ledger.entries[number as usize].bytes;
                ledger.set(number, bytes.saturating_sub(before).saturating_add(after));
            });
        }
    }

    /// As [`Account::change`], with `moved` bytes moved so far.
    pub fn update(&self, before: usize, after: usize, moved: u64) {
        self.with(|ledger, number| {
            let entry = &mut ledger.entries[number as usize];
            entry.moved = moved;
            let bytes = entry.bytes.saturating_sub(before).saturating_add(after);
            ledger.set(number, bytes);
        });
    }

    /// Sets its bytes.
    pub fn set(&self, bytes: usize) {
        self.with(|ledger, number| ledger.set(number, bytes));
    }

    /// Adds `bytes` until the loan is dropped: for memory whose owner does not know the account.
    pub fn lend(&self, bytes: usize) -> Loan {
        self.grow(bytes);
        let generation = self.with(|ledger, number| ledger.entries[number as usize].generation);
        Loan { number: self.number, generation, bytes }
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> usize {
        self.with(|ledger, number| ledger.entries[number as usize].bytes)
    }

    /// Records `moved` bytes moved so far for its exchange.
    pub fn moved(&self, moved: u64) {
        self.with(|ledger, number| ledger.entries[number as usize].moved = moved);
    }

    /// Starts another exchange on the connection of this account: it holds `bytes`, and `moved` bytes were moved
    /// before.
    pub fn begin(&self, bytes: usize, moved: u64) {
        self.with(|ledger, number| {
            ledger.set(number, bytes);
            let entry = &mut ledger.entries[number as usize];
            (entry.moved, entry.marked, entry.marked_ms, entry.revoked) = (moved, moved, NOW_MS.get(), false);
        });
    }

    /// Returns true if its connection may start another exchange: every connection up to three quarters of the
    /// budget, and beyond that connections that hold little.
    pub fn may_begin(&self) -> bool {
        let (total, limit) = (TOTAL.get(), LIMIT.get());
        total < limit - limit / 4
            || (total < limit
                && self.with(|ledger, number| ledger.entries[number as usize].group) <= SMALL_BYTES)
    }

    /// Returns true if it was revoked: its holder must release everything.
    pub fn is_revoked(&self) -> bool {
        self.with(|ledger, number| ledger.entries[number as usize].revoked)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.number != NONE {
            // At the end of a thread the ledger may be gone.
            let _ = LEDGER.try_with(|ledger| ledger.borrow_mut().close(self.number));
        }
    }
}

/// Bytes of an account in other hands, such as those that a peer has not acknowledged. Their return is progress.
///
/// It is `Send` for owners that request it, but it must be dropped in its thread: elsewhere it returns nothing.
#[derive(Debug)]
pub struct Loan {
    number: u32,
    generation: u32,
    bytes: usize,
}

impl Drop for Loan {
    fn drop(&mut self) {
        // At the end of a thread the ledger may be gone, and the account before its loans.
        let _ = LEDGER.try_with(|ledger| {
            let Ok(mut ledger) = ledger.try_borrow_mut() else { return };
            let Some(entry) = ledger.entries.get_mut(self.number as usize) else { return };
            if entry.open && entry.generation == self.generation {
                entry.moved += self.bytes as u64;
                let bytes = entry.bytes.saturating_sub(self.bytes);
                ledger.set(self.number, bytes);
            }
        });
    }
}

/// Revokes accounts if more than half of the budget is used, until it would be half; returns their number. Only
/// exchanges without progress lose their accounts, and only on connections that hold more than a little. The allowed
/// time without progress depends on the bytes held. Call it with the time of every tick.
pub fn reclaim(now_ms: u64) -> usize {
    NOW_MS.set(now_ms);
    let (total, limit) = (TOTAL.get(), LIMIT.get());
    if total <= limit / 2 {
        return 0;
    }
    let patience_ms = match () {
        () if total >= limit.saturating_add(limit / 8) => 0,
        () if total >= limit => 250,
        () if total >= limit - limit / 4 => 1_000,
        () => 5_000,
    };
    let revoked = LEDGER.with_borrow_mut(|ledger| ledger.reclaim(now_ms, patience_ms, limit / 2));
    if revoked > 0 {
        REVOKED.set(REVOKED.get() + 1);
    }
    revoked
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Returns connections with one exchange each, which hold these numbers of bytes.
    fn holding(bytes: &[usize]) -> Vec<(Account, Account)> {
        let of = |bytes: &usize| {
            let connection = Account::of_connection();
            let exchange = Account::of_exchange(&connection);
            exchange.begin(*bytes, 0);
            (connection, exchange)
        };
        bytes.iter().map(of).collect()
    }

    fn revoked(accounts: &[(Account, Account)]) -> Vec<bool> {
        accounts.iter().map(|(_, exchange)| exchange.is_revoked()).collect()
    }

    #[test]
    fn shares_are_given_back_on_drop() {
        set_limit(100);
        let mut held = CountedBytes::default();
        held.set(30);
        let connection = Account::of_connection();
        let exchange = Account::of_exchange(&connection);
        exchange.grow(40);
        exchange.shrink(10);
        assert_eq!((total(), room(), is_full()), (60, 40, false));
        connection.grow(40);
        assert_eq!((total(), room(), is_full()), (100, 0, true));
        drop(exchange);
        held.set(5);
        assert_eq!(total(), 45);
        drop((held, connection));
        assert_eq!(total(), 0);
        let nothing = Account::default();
        nothing.grow(5);
        assert_eq!((total(), nothing.bytes(), nothing.is_revoked()), (0, 0, false));
    }

    #[test]
    fn loans_return_to_the_account_that_lent_them() {
        set_limit(100);
        let account = Account::of_connection();
        let (first, second) = (account.lend(30), account.lend(20));
        assert_eq!((account.bytes(), total()), (50, 50));
        drop(first);
        assert_eq!((account.bytes(), total()), (20, 20));
        drop(account);
        let other = Account::of_connection();
        other.grow(7);
        drop(second);
        assert_eq!((other.bytes(), total()), (7, 7), "its number is used again");
        drop(Account::default().lend(5));
    }

    #[test]
    fn the_largest_connections_without_progress_are_revoked_first() {
        set_limit(8 * MIB);
        reclaim(0);
        let accounts = holding(&[MIB, 3 * MIB, MIB / 2, MIB]);
        assert_eq!((reclaim(4_999), reclaim(5_000)), (0, 1));
        assert_eq!(revoked(&accounts), [false, true, false, false]);
        assert_eq!((reclaim(5_050), revocations()), (0, 1), "what was revoked is about to go");
    }

    #[test]
    fn progress_protects_an_exchange() {
        set_limit(4 * MIB);
        reclaim(0);
        let accounts = holding(&[2 * MIB, MIB]);
        accounts[0].1.moved(PROGRESS_BYTES);
        accounts[1].1.moved(PROGRESS_BYTES - 1);
        assert_eq!(reclaim(5_000), 1);
        assert_eq!(revoked(&accounts), [false, true], "a few bytes are no progress");
    }

    #[test]
    fn patience_ends_as_the_budget_fills() {
        for (bytes, patience_ms) in [(5 * MIB, 5_000), (6 * MIB, 1_000), (8 * MIB, 250), (9 * MIB, 0)] {
            set_limit(8 * MIB);
            reclaim(0);
            let accounts = holding(&[bytes]);
            if patience_ms > 0 {
                assert_eq!(reclaim(patience_ms - 1), 0, "{bytes}");
            }
            assert_eq!((reclaim(patience_ms), revoked(&accounts)), (1, vec![true]), "{bytes}");
        }
    }

    #[test]
    fn exchanges_of_one_connection_count_together() {
        set_limit(8 * MIB);
        reclaim(0);
        let connection = Account::of_connection();
        let many: Vec<Account> = (0..6).map(|_| Account::of_exchange(&connection)).collect();
        many.iter().for_each(|account| account.begin(MIB / 2, 0));
        let others = holding(&[MIB, MIB]);
        assert_eq!(reclaim(5_000), 6);
        assert!(many.iter().all(Account::is_revoked) && revoked(&others) == [false, false]);
        assert!(!connection.is_revoked(), "it holds nothing itself");
    }

    #[test]
    fn the_last_quarter_is_for_connections_that_hold_little() {
        set_limit(8 * MIB);
        let large = holding(&[5 * MIB]);
        let small = holding(&[SMALL_BYTES]);
        assert!(large[0].0.may_begin() && small[0].0.may_begin());
        large[0].1.grow(MIB);
        assert!(!large[0].0.may_begin() && small[0].0.may_begin());
        large[0].1.grow(2 * MIB);
        assert!(!small[0].0.may_begin(), "nothing begins once all is used");
    }

    #[test]
    fn spare_memory_ends_before_accounts_are_revoked() {
        set_limit(8 * MIB);
        reclaim(0);
        let accounts = holding(&[MIB]);
        assert_eq!((spare_room(), body_room(), room()), (MIB, 5 * MIB, 7 * MIB));
        accounts[0].1.grow(spare_room());
        assert_eq!((spare_room(), reclaim(60_000)), (0, 0));
        accounts[0].1.grow(2 * MIB);
        assert_eq!((spare_room(), reclaim(60_000)), (0, 0));
    }

    #[test]
    fn connections_that_hold_little_are_never_revoked() {
        set_limit(MIB);
        reclaim(0);
        let accounts = holding(&[SMALL_BYTES; 20]);
        assert_eq!((is_full(), reclaim(60_000)), (true, 0));
        accounts[0].1.grow(1);
        assert_eq!(reclaim(60_000), 1);
    }

    #[test]
    fn a_burst_leaves_no_ledger_entries() {
        let accounts = holding(&[1; KEPT_ENTRIES]);
        drop(accounts);
        assert_eq!(LEDGER.with_borrow(|ledger| ledger.entries.capacity()), 0);
    }
}
