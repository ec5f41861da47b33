//! Tokens of configurations: the runner gives one for each configuration, and a call names it.
//!
//! Each worker has its own table; one table of the gateway spares the other workers the question. Tokens of a runner
//! that has ended, or that forgot one, belong to an earlier epoch and are used no more.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time in which a token is used. Runners keep it for [`CONF_EXPIRE_S`].
const LIFETIME: Duration = Duration::from_secs(3_240);

/// The time in which a runner has to keep a token, in seconds; it gets this number at its start.
pub(crate) const CONF_EXPIRE_S: u32 = 3_600;

/// The most tokens of a table. Configurations that change leave old ones behind.
const TOKENS_MAX: usize = 8_192;

/// A token, and the time in which it is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) number: u32,
    epoch: u64,
    /// The run time of the process at its end.
    expires: Duration,
}

impl Token {
    /// Returns the epoch of the runner that gave it.
    pub(crate) fn epoch(self) -> u64 {
        self.epoch
    }
}

/// The tokens of the gateway.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    epoch: AtomicU64,
    /// Taken once for each configuration, worker and hour.
    known: Mutex<Table>,
}

/// The tokens of a worker.
#[derive(Debug, Default)]
pub(crate) struct LocalTokens {
    known: RefCell<Table>,
    /// Keys whose tokens are being fetched: other calls wait for them.
    fetched: RefCell<HashMap<Box<str>, Rc<tokio::sync::Mutex<()>>>>,
}

#[derive(Debug, Default)]
struct Table(HashMap<Box<str>, Token>);

impl Table {
    fn get(&self, key: &str, epoch: u64, now: Duration) -> Option<Token> {
        self.0.get(key).copied().filter(|token| token.epoch == epoch && now < token.expires)
    }

    fn put(&mut self, key: &str, token: Token) {
        if self.0.len() >= TOKENS_MAX {
            self.0.retain(|_, known| known.epoch == token.epoch);
        }
        if self.0.len() >= TOKENS_MAX {
            self.0.clear();
        }
        self.0.insert(key.into(), token);
    }
}

impl Tokens {
    /// Returns the number of the current epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Drops the tokens of all workers: the runner has ended.
    pub(crate) fn drop_all(&self) {
        self.end_epoch(self.epoch());
    }

    /// Drops the tokens of all workers because the runner does not know this one. Only the first of many calls with
    /// tokens of an epoch ends it.
    pub(crate) fn forget(&self, token: Token) {
        self.end_epoch(token.epoch);
    }

    fn end_epoch(&self, epoch: u64) {
        // Not changed by another worker in the meantime, which is all that matters.
        let _ = self.epoch.compare_exchange(epoch, epoch + 1, Ordering::AcqRel, Ordering::Acquire);
    }

    fn with<R>(&self, use_table: impl FnOnce(&mut Table) -> R) -> R {
        // A panic cannot leave half of an entry.
        use_table(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LocalTokens {
    /// Returns the token for a key, of this worker or of another one.
    pub(crate) fn get(&self, all: &Tokens, key: &str, now: Duration) -> Option<Token> {
        let epoch = all.epoch();
        let known = self.known.borrow().get(key, epoch, now);
        known.or_else(|| {
            let token = all.with(|table| table.get(key, epoch, now))?;
            self.known.borrow_mut().put(key, token);
            Some(token)
        })
    }

    /// Stores the token that a runner gave in this epoch.
    pub(crate) fn put(&self, all: &Tokens, key: &str, number: u32, epoch: u64, now: Duration) -> Token {
        let token = Token { number, epoch, expires: now + LIFETIME };
        self.known.borrow_mut().put(key, token);
        all.with(|table| table.put(key, token));
        token
    }

    /// Returns the turn of a key: its holder alone fetches the token.
    pub(crate) fn turn(&self, key: &str) -> Rc<tokio::sync::Mutex<()>> {
        let mut fetched = self.fetched.borrow_mut();
        // Turns that no call holds are dropped.
        fetched.retain(|_, turn| Rc::strong_count(turn) > 1);
        Rc::clone(fetched.entry(key.into()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(7);

    #[test]
    fn workers_share_tokens() {
        let (all, first, second) = (Tokens::default(), LocalTokens::default(), LocalTokens::default());
        assert_eq!(second.get(&all, "a", NOW), None);
        let token = first.put(&all, "a", 5, all.epoch(), NOW);
        assert_eq!((first.get(&all, "a", NOW), second.get(&all, "a", NOW)), (Some(token), Some(token)));
        assert_eq!(second.get(&all, "b", NOW), None);
        let last = NOW + LIFETIME;
        assert!(second.get(&all, "a", last - Duration::from_secs(1)).is_some());
        assert_eq!((first.get(&all, "a", last), second.get(&all, "a", last)), (None, None));
        assert!(LIFETIME.as_secs() < u64::from(CONF_EXPIRE_S));
    }

    #[test]
    fn tokens_end_with_their_runner() {
        let (all, local) = (Tokens::default(), LocalTokens::default());
        let token = local.put(&all, "a", 5, all.epoch(), NOW);
        all.forget(token);
        assert_eq!(local.get(&all, "a", NOW), None);
        // Other calls with the same token arrive later.
        let newer = local.put(&all, "a", 6, all.epoch(), NOW);
        all.forget(token);
        assert_eq!(local.get(&all, "a", NOW), Some(newer));
        // A token that arrives after the end of its runner.
        let epoch = all.epoch();
        all.drop_all();
        local.put(&all, "a", 7, epoch, NOW);
        assert_eq!(local.get(&all, "a", NOW), None);
    }

    #[test]
    fn tables_are_bounded() {
        let (all, local) = (Tokens::default(), LocalTokens::default());
        for number in 0..TOKENS_MAX + 10 {
            local.put(&all, &number.to_string(), 1, all.epoch(), NOW);
        }
        assert!(local.known.borrow().0.len() <= TOKENS_MAX);
        let turn = local.turn("a");
        assert!(Rc::ptr_eq(&turn, &local.turn("a")));
        drop(turn);
        local.turn("b");
        assert_eq!(local.fetched.borrow().len(), 1);
    }
}
