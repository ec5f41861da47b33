//! Used tokens of address validation (RFC 9000 §8.1.4): a token proves an address once.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use foldhash::fast::RandomState;
use quinn_proto::{TokenLog, TokenReuseError};

/// The time for which a client may use a token.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Tokens sent on each connection.
pub(super) const SENT: u32 = 1;

/// Tokens in one half of the log, of some 20 bytes each. An attacker who wants to use one again has to make so many
/// connections between.
const HALF: usize = 32 * 1024;

/// The tokens that clients have used, for all workers of an address.
#[derive(Default)]
pub(super) struct UsedTokens(Mutex<Halves>);

#[derive(Default)]
struct Halves {
    newer: HashSet<u128, RandomState>,
    older: HashSet<u128, RandomState>,
}

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        _issued: SystemTime,
        _lifetime: Duration,
    ) -> Result<(), TokenReuseError> {
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if halves.older.contains(&nonce) || !halves.newer.insert(nonce) {
            return Err(TokenReuseError);
        }
        if halves.newer.len() >= HALF {
            halves.older = std::mem::take(&mut halves.newer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_used_once_and_the_log_is_bounded() {
        let log = UsedTokens::default();
        let uses = |nonce| log.check_and_insert(nonce, SystemTime::UNIX_EPOCH, LIFETIME).is_ok();
        assert!(uses(1) && !uses(1));
        for nonce in 2..=(HALF as u128 * 3) {
            assert!(uses(nonce) && !uses(nonce));
        }
        let halves = log.0.lock().unwrap();
        assert!(halves.newer.len() + halves.older.len() <= 2 * HALF);
    }
}
