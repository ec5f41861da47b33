//! Sessions by names that nodes have set: the node of each session (HAProxy's stick table).
//!
//! All workers of a process share a table, as the next request of a session may reach another worker at once. It has
//! no lock: an entry is a few words, written one by one, with a check that they belong together. It is written when a
//! session begins or moves, or after a while without use; otherwise it is only read.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Token;

/// The possible entries of a session.
const WAYS: usize = 8;

/// A use is recorded after this fraction of the expiry since the last record.
const NOTED: u64 = 16;

/// The nodes of sessions by the hashes of their names, with an unpredictable hash key. A session without room
/// replaces the least recently used one of a few.
#[derive(Debug)]
pub struct StickTable {
    hasher: RandomState,
    sets: Box<[[Entry; WAYS]]>,
    expire_s: u64,
}

/// The hash of a session's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionHash(u64);

#[derive(Debug, Default)]
struct Entry {
    /// The session's hash, XOR the node: words of two writers look like another session to a reader.
    check: AtomicU64,
    /// 0: the entry is free.
    node: AtomicU64,
    /// The time of the last use, in seconds.
    used_s: AtomicU32,
}

/// The words of an entry, possibly of two writers.
#[derive(Clone, Copy)]
struct Read {
    session: u64,
    node: u64,
    used_s: u64,
}

impl Entry {
    fn read(&self) -> Read {
        let (node, check) = (self.node.load(Ordering::Relaxed), self.check.load(Ordering::Relaxed));
        Read { session: check ^ node, node, used_s: self.used_s.load(Ordering::Relaxed).into() }
    }

    fn write(&self, session: u64, node: u64, now_s: u64) {
        self.used_s.store(seconds(now_s), Ordering::Relaxed);
        self.check.store(session ^ node, Ordering::Relaxed);
        self.node.store(node, Ordering::Relaxed);
    }
}

fn seconds(now_s: u64) -> u32 {
    u32::try_from(now_s).unwrap_or(u32::MAX)
}

impl StickTable {
    /// Returns an empty table with room for about `size` sessions, which expire `expire_s` seconds after their last
    /// use.
    pub fn new(size: usize, expire_s: u64) -> StickTable {
        StickTable { hasher: RandomState::new(), sets: sets(size), expire_s }
    }

    /// Returns a table of another size or expiry with the same sessions. Sessions that workers add to the old one
    /// meanwhile may be lost.
    pub fn resized(&self, size: usize, expire_s: u64, now_s: u64) -> StickTable {
        let next = StickTable { hasher: self.hasher.clone(), sets: sets(size), expire_s };
        for entry in self.sets.iter().flatten() {
            let Read { session, node, used_s } = entry.read();
            if node != 0 && !is_over(used_s, now_s, self.expire_s) {
                next.put(session, node, used_s, now_s);
            }
        }
        next
    }

    /// Returns true if it has this size and expiry.
    pub fn is_of(&self, size: usize, expire_s: u64) -> bool {
        self.sets.len() == sets_of(size) && self.expire_s == expire_s
    }

    /// Returns the hash of a name.
    pub fn hash(&self, name: &[u8]) -> SessionHash {
        SessionHash(self.hasher.hash_one(name))
    }

    /// Returns the node of a session, and counts it as used now.
    pub fn find(&self, SessionHash(session): SessionHash, now_s: u64) -> Option<Token> {
        for entry in self.set(session) {
            let read = entry.read();
            if read.session == session && read.node != 0 && !is_over(read.used_s, now_s, self.expire_s) {
                // Not each time: a write of one worker costs the others a cache miss.
                if now_s.saturating_sub(read.used_s) > self.expire_s / NOTED {
                    entry.used_s.store(seconds(now_s), Ordering::Relaxed);
                }
                return Some(read.node.into());
            }
        }
        None
    }

    /// Stores the node of a session, which is used now.
    pub fn store(&self, SessionHash(session): SessionHash, node: Token, now_s: u64) {
        // Shared tokens have 64 bits, and 0 means no node.
        self.put(session, (node as u64).max(1), now_s, now_s);
    }

    fn put(&self, session: u64, node: u64, used_s: u64, now_s: u64) {
        let set = self.set(session);
        let known = set.iter().find(|entry| entry.read().session == session);
        // A free entry, or the least recently used one.
        let age = |entry: &&Entry| {
            let Read { node, used_s, .. } = entry.read();
            if node == 0 { u64::MAX } else { now_s.saturating_sub(used_s) }
        };
        if let Some(entry) = known.or_else(|| set.iter().max_by_key(age)) {
            entry.write(session, node, used_s);
        }
    }

    fn set(&self, session: u64) -> &[Entry; WAYS] {
        // The upper bits; the rest identifies the sessions of a set.
        &self.sets[((u128::from(session) * self.sets.len() as u128) >> 64) as usize]
    }
}

fn is_over(used_s: u64, now_s: u64, expire_s: u64) -> bool {
    now_s.saturating_sub(used_s) > expire_s
}

/// One and a half times the sessions, since sets do not fill evenly: at `size` sessions 3 in 100 find no room.
fn sets_of(size: usize) -> usize {
    (size + size / 2).div_ceil(WAYS).max(1)
}

fn sets(size: usize) -> Box<[[Entry; WAYS]]> {
    (0..sets_of(size)).map(|_| Default::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRE_S: u64 = 160;

    fn name(session: u64) -> [u8; 8] {
        session.to_le_bytes()
    }

    #[test]
    fn unused_sessions_expire() {
        let table = StickTable::new(100, EXPIRE_S);
        let session = table.hash(b"s");
        assert_eq!(table.find(session, 0), None);
        table.store(session, 7, 1_000);
        assert_eq!(table.find(session, 1_160), Some(7));
        // That was a use.
        assert_eq!(table.find(session, 1_320), Some(7));
        assert_eq!(table.find(session, 1_481), None);
        table.store(session, 8, 1_500);
        assert_eq!(table.find(session, 1_500), Some(8));
        assert_eq!(table.find(table.hash(b"S"), 1_500), None);
        // It moves.
        table.store(session, 9, 1_500);
        assert_eq!(table.find(session, 1_500), Some(9));
    }

    #[test]
    fn a_full_table_replaces_the_least_recently_used() {
        let table = StickTable::new(1_024, EXPIRE_S);
        let known = |now_s: u64, sessions: std::ops::Range<u64>| {
            sessions.filter(|&s| table.find(table.hash(&name(s)), now_s) == Some(Token::from(s + 1))).count()
        };
        let store = |now_s: u64, sessions: std::ops::Range<u64>| {
            sessions.for_each(|s| table.store(table.hash(&name(s)), Token::from(s + 1), now_s));
        };
        store(100, 0..400);
        assert!(known(100, 0..400) > 390);
        // They are in use, and a flood of sessions with one use follows.
        let mut now_s = 100;
        for step in 0..300 {
            now_s += 20;
            known(now_s, 0..400);
            store(now_s, 1_000 + step * 60..1_060 + step * 60);
        }
        let left = known(now_s, 0..400);
        assert!(left > 380, "{left}");
        assert!(known(now_s, 1_000..19_000) <= 1_536);
    }

    #[test]
    fn a_resized_table_has_the_same_sessions() {
        let table = StickTable::new(1_000, EXPIRE_S);
        (0..300).for_each(|s| table.store(table.hash(&name(s)), Token::from(s + 1), 10 + s));
        assert!(table.is_of(1_000, EXPIRE_S) && !table.is_of(1_000, 9) && !table.is_of(10_000, EXPIRE_S));
        let larger = table.resized(10_000, EXPIRE_S, 200);
        let known = |table: &StickTable| {
            (0..300).filter(|s| table.find(table.hash(&name(*s)), 200) == Some(Token::from(s + 1))).count()
        };
        // 30 have expired.
        assert!(known(&table) > 265);
        assert_eq!(known(&table), known(&larger));
        assert!(known(&larger.resized(64, EXPIRE_S, 200)) <= 96);
    }

    #[test]
    fn no_worker_finds_a_node_that_was_not_stored_for_the_session() {
        let table = StickTable::new(64, EXPIRE_S);
        let node = |session: u64, n: u64| Token::from(session * 2 + n % 2 + 1);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for n in 0..100_000 {
                        let session = random.u64(..500);
                        let hash = table.hash(&name(session));
                        if random.bool() {
                            table.store(hash, node(session, n), 0);
                        } else if let Some(found) = table.find(hash, 0) {
                            assert!(
                                found == node(session, 0) || found == node(session, 1),
                                "{session}: {found}"
                            );
                        }
                    }
                });
            }
        });
    }
}
