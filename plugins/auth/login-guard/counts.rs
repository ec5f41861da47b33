//! Failed logins, blocks and known pairs, in tables that all workers share.

use std::sync::{Arc, OnceLock};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sigma_plugin::counter::Shared;
use sigma_plugin::system::{Host, System};
use sigma_plugin::{Inheritable, Node, inheritance};

use sigma_plugin_kit::log_throttle::LogThrottle;

/// Bytes for addresses and accounts with failed logins: some 600,000 of them. Beyond that the oldest counts are forgotten.
const FAILURES_BYTES: usize = 64 << 20;

/// Bytes for blocked addresses and accounts: some 300,000 of them. A full table takes no further block: no attacker ends
/// the block of an address by having others blocked.
const BLOCKS_BYTES: usize = 32 << 20;

/// Bytes for pairs of account and address: some 300,000 of them. Beyond that the oldest logins are forgotten.
const KNOWN_BYTES: usize = 32 << 20;

/// Bytes of a key: enough that no two of millions are equal.
const KEY_BYTES: usize = 16;

/// An address, an account or a pair of both, hashed with the secret of the process.
pub(super) type Key = [u8; KEY_BYTES];

/// When failed logins lead to a block, and how long it lasts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// Failed logins within a window that lead to a block.
    pub(super) most: u64,
    pub(super) window_ms: u64,
    pub(super) block_ms: u64,
}

/// Failed logins in the window that passes and in the one before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Failures {
    count: u64,
    previous: u64,
    /// When the window began, in milliseconds.
    began_ms: u64,
}

impl Failures {
    /// Moves the window to this time.
    fn advance(&mut self, window_ms: u64, now_ms: u64) {
        match now_ms.saturating_sub(self.began_ms) / window_ms {
            0 if self.count + self.previous > 0 => {}
            1 if self.count > 0 => {
                *self = Failures { count: 0, previous: self.count, began_ms: self.began_ms + window_ms };
            }
            _ => *self = Failures { began_ms: now_ms, ..Failures::default() },
        }
    }

    /// Failed logins within the last window, of which the beginning is estimated.
    fn recent(mut self, window_ms: u64, now_ms: u64) -> u64 {
        self.advance(window_ms, now_ms);
        let left_ms = window_ms.saturating_sub(now_ms.saturating_sub(self.began_ms));
        self.count + (u128::from(self.previous) * u128::from(left_ms) / u128::from(window_ms)) as u64
    }
}

/// The secret that keys are hashed with.
#[derive(Debug, Clone)]
struct Secret {
    bytes: [u8; 32],
    key: hmac::Key,
}

impl Secret {
    fn new(bytes: [u8; 32]) -> Secret {
        Secret { bytes, key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) }
    }
}

/// The tables of this gateway.
pub(super) struct Counts {
    secret: OnceLock<Secret>,
    failures: Shared<Failures>,
    blocks: Shared<()>,
    known: Shared<()>,
}

impl Default for Counts {
    fn default() -> Self {
        Counts::with_limits(FAILURES_BYTES, BLOCKS_BYTES, KNOWN_BYTES)
    }
}

impl Inheritable for Counts {
    const NAME: &'static str = "login-guard";

    fn leave(&self) -> Value {
        let secret = self.secret.get().map(|secret| BASE64.encode(secret.bytes));
        json!({
            "secret": secret,
            "failures": inheritance::entries(&self.failures),
            "blocks": inheritance::entries(&self.blocks),
            "known": inheritance::entries(&self.known),
        })
    }

    fn take_over(&self, left: &Value) {
        let bytes = left["secret"].as_str().and_then(|text| BASE64.decode(text).ok());
        // Keys of another secret say nothing.
        let Some(bytes) = bytes.and_then(|bytes| bytes.try_into().ok()) else { return };
        if self.secret.set(Secret::new(bytes)).is_ok() {
            inheritance::enter(&self.failures, &left["failures"]);
            inheritance::enter(&self.blocks, &left["blocks"]);
            inheritance::enter(&self.known, &left["known"]);
        }
    }
}

impl Counts {
    /// The tables of the gateway, and the key of their secret.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if cannot get random bytes for the secret.
    pub(super) fn of(node: &Node) -> Result<(Arc<Counts>, hmac::Key), String> {
        let counts = node.inherited(Counts::default);
        let mut bytes = [0; 32];
        Host.fill_random(&mut bytes)?;
        let key = counts.secret.get_or_init(|| Secret::new(bytes)).key.clone();
        Ok((counts, key))
    }

    fn with_limits(failures_bytes: usize, blocks_bytes: usize, known_bytes: usize) -> Counts {
        Counts {
            secret: OnceLock::new(),
            failures: Shared::with_limit(failures_bytes),
            blocks: Shared::with_limit(blocks_bytes),
            known: Shared::with_limit(known_bytes),
        }
    }

    /// When the block of an address or account ends, in milliseconds; None if it is not blocked.
    pub(super) fn blocked_until(&self, key: &Key, limit: Limit, now_ms: u64) -> Option<u64> {
        let reached = || {
            // A full table of blocks has no room for it; its failures are still counted.
            self.failures.peek(key, now_ms, |slot| {
                let failures = slot.value;
                let is_reached = failures.recent(limit.window_ms, now_ms) >= limit.most;
                is_reached.then_some(now_ms.max(failures.began_ms + limit.window_ms))
            })
        };
        self.blocks.peek(key, now_ms, |slot| slot.expires_ms).or_else(|| reached().flatten())
    }

    /// Counts a failed login; true if a block begins with it.
    pub(super) fn fail(&self, key: &Key, limit: Limit, now_ms: u64) -> bool {
        let recent = self.failures.with(key, now_ms, |slot| {
            slot.value.advance(limit.window_ms, now_ms);
            slot.value.count += 1;
            slot.expires_ms = slot.value.began_ms.saturating_add(2 * limit.window_ms);
            slot.value.recent(limit.window_ms, now_ms)
        });
        if recent < limit.most {
            return false;
        }
        let begins = self.blocks.with_room(key, now_ms, |slot| {
            let begins = slot.expires_ms == u64::MAX;
            if begins {
                slot.expires_ms = now_ms.saturating_add(limit.block_ms);
            }
            begins
        });
        match begins {
            Some(begins) => {
                self.failures.remove(key);
                begins
            }
            None => {
                static FULL: LogThrottle = LogThrottle::new();
                if let Some(left_out) = FULL.due() {
                    tracing::error!(
                        left_out,
                        "login-guard: the table of blocks is full; further addresses and accounts are refused until their window ends"
                    );
                }
                recent == limit.most
            }
        }
    }

    /// Remembers a pair of account and address.
    pub(super) fn remember(&self, pair: &Key, lives_ms: u64, now_ms: u64) {
        self.known.with(pair, now_ms, |slot| slot.expires_ms = now_ms.saturating_add(lives_ms));
    }

    /// Whether the account has logged in from the address.
    pub(super) fn knows(&self, pair: &Key, now_ms: u64) -> bool {
        self.known.peek(pair, now_ms, |_| ()).is_some()
    }
}

/// The key of these parts.
pub(super) fn key(secret: &hmac::Key, parts: &[&[u8]]) -> Key {
    let mut context = hmac::Context::with_key(secret);
    for part in parts {
        // With its length, so that no two lists of parts are the same bytes.
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&context.sign().as_ref()[..KEY_BYTES]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { most: 3, window_ms: 1000, block_ms: 5000 };

    fn numbered(n: u32) -> Key {
        let mut key = [0; KEY_BYTES];
        key[..4].copy_from_slice(&n.to_be_bytes());
        key
    }

    /// Times of failures in milliseconds, and whether a block begins with the last one.
    #[test]
    fn failures_within_a_window_lead_to_a_block() {
        for (times, blocks) in [
            (&[0, 1, 2][..], true),
            (&[5000, 5000, 5999], true),
            (&[0, 1], false),
            (&[0, 1, 3000], false),
            // Around the end of a window: two in the one before, of which nearly two count.
            (&[0, 999, 1001, 1002], true),
            (&[0, 1, 1900], false),
            (&[0, 900, 1800, 2700, 3600], false),
        ] {
            let counts = Counts::default();
            let begun: Vec<bool> = times.iter().map(|at| counts.fail(&numbered(1), LIMIT, *at)).collect();
            let (last, before) = begun.split_last().unwrap();
            assert_eq!((*last, before.contains(&true)), (blocks, false), "{times:?}");
        }
    }

    #[test]
    fn a_block_ends_after_its_time_and_counts_begin_again() {
        let (counts, key) = (Counts::default(), numbered(1));
        let until = |now_ms| counts.blocked_until(&key, LIMIT, now_ms);
        assert_eq!([0, 1, 2].map(|at| counts.fail(&key, LIMIT, at)), [false, false, true]);
        assert_eq!([until(2), until(5001), until(5002)], [Some(5002), Some(5002), None]);
        // A login that was under way when the block began does not prolong it.
        assert!(!counts.fail(&key, LIMIT, 3));
        assert_eq!(until(4), Some(5002));
        assert_eq!([6000, 6001, 6002].map(|at| counts.fail(&key, LIMIT, at)), [false, false, true]);
        assert_eq!(counts.blocked_until(&numbered(2), LIMIT, 6002), None);
    }

    /// A flood of failing addresses neither takes more memory than the tables have, nor ends a block.
    #[test]
    fn full_tables_keep_the_blocks_that_there_are() {
        let counts = Counts::with_limits(256 << 10, 64 << 10, 64 << 10);
        let limit = Limit { most: 1, ..LIMIT };
        let at = |n: u32| 10 + u64::from(n) / 100;
        let blocked: Vec<u32> = (0..10_000).filter(|n| counts.fail(&numbered(*n), limit, at(*n))).collect();
        let kept = counts.blocks.len();
        assert!((300..1000).contains(&kept), "{kept}");
        assert!(counts.failures.len() < 3000, "{}", counts.failures.len());
        assert_eq!(blocked.len(), 10_000, "each is refused at least until its window ends");
        let is_blocked = |n: &u32, at| counts.blocked_until(&numbered(*n), limit, at).is_some();
        let before: Vec<u32> = (0..10_000).filter(|n| is_blocked(n, 4000)).collect();
        assert_eq!(before.len(), kept);
        // The newest ones are refused too, by their failures.
        assert!((9_900..10_000).all(|n| is_blocked(&n, 110)));
        (20_000..60_000).for_each(|n| assert!(counts.fail(&numbered(n), limit, 4000)));
        assert!(before.iter().all(|n| is_blocked(n, 5009)), "a flood has ended a block");
        assert_eq!(counts.blocks.len(), kept);
        // When blocks have ended there is room again.
        assert!(counts.fail(&numbered(70_000), limit, 5200) && is_blocked(&70_000, 10_000));
    }

    #[test]
    fn known_pairs_are_bounded_and_expire() {
        let counts = Counts::with_limits(1 << 10, 1 << 10, 64 << 10);
        (0..10_000).for_each(|n| counts.remember(&numbered(n), 1000, u64::from(n)));
        assert!(counts.known.len() < 1000, "{}", counts.known.len());
        assert!(counts.knows(&numbered(9_999), 10_998) && !counts.knows(&numbered(9_999), 10_999));
        assert!(!counts.knows(&numbered(0), 0));
    }

    #[test]
    fn parts_of_a_key_never_run_together() {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
        let other = hmac::Key::new(hmac::HMAC_SHA256, b"other");
        assert_ne!(key(&secret, &[b"ab", b"c"]), key(&secret, &[b"a", b"bc"]));
        assert_ne!(key(&secret, &[b"ab"]), key(&other, &[b"ab"]));
        assert_eq!(key(&secret, &[b"ab"]), key(&secret, &[b"ab"]));
    }

    #[test]
    fn a_successor_goes_on_with_counts_and_blocks() {
        let before = Node::default();
        let (counts, secret) = Counts::of(&before).unwrap();
        let now_ms = sigma_plugin_kit::clock::process_ms();
        let hour = Limit { most: 2, window_ms: 3_600_000, block_ms: 3_600_000 };
        let [one, two] = [b"1", b"2"].map(|part| key(&secret, &[part]));
        assert_eq!([&one, &two, &two].map(|key| counts.fail(key, hour, now_ms)), [false, false, true]);
        counts.remember(&one, 3_600_000, now_ms);
        let after = Node::default();
        after.find_inherited(before.inheritance());
        let (counts, secret) = Counts::of(&after).unwrap();
        let [one, two] = [b"1", b"2"].map(|part| key(&secret, &[part]));
        assert!(counts.blocked_until(&two, hour, now_ms).is_some() && counts.knows(&one, now_ms));
        assert!(counts.fail(&one, hour, now_ms), "the failure before the upgrade counts");
    }
}
