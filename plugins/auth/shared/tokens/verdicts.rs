//! Signatures that a worker has found good already, so that a token costs them once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::token::Token;

/// Tokens that are remembered, twice at most.
const TOKENS: usize = 2048;

/// The longest token that is remembered.
const TOKEN_BYTES: usize = 8 << 10;

/// The tokens of one worker whose signatures hold. Other checks of a token, such as its times, are done each
/// time.
///
/// Two tables, of which the older is dropped when the younger one is full: no search for the oldest entries
/// is needed.
pub(crate) struct Verdicts<K>(RefCell<Tables<K>>);

type Tables<K> = [HashMap<Box<[u8]>, Verdict<K>>; 2];

struct Verdict<K> {
    /// By whom it was verified. The allocation stays as long as this does, so that no other has its address.
    by: Weak<K>,
    /// With which of its sets of keys.
    generation: u64,
}

impl<K> Default for Verdicts<K> {
    fn default() -> Self {
        Verdicts(RefCell::default())
    }
}

impl<K> Verdicts<K> {
    /// Whether `by` has verified the token by the keys that it still has.
    pub(crate) fn holds(&self, token: &Token, by: &Arc<K>, generation: u64) -> bool {
        let tables = &mut *self.0.borrow_mut();
        if let Some((key, verdict)) = tables[1].remove_entry(token.text()) {
            put(tables, key, verdict);
        }
        let verdict = tables[0].get(token.text());
        verdict
            .is_some_and(|verdict| verdict.by.as_ptr() == Arc::as_ptr(by) && verdict.generation == generation)
    }

    /// Remembers that `by` has verified a token.
    pub(crate) fn add(&self, token: &Token, by: &Arc<K>, generation: u64) {
        if token.text().len() > TOKEN_BYTES {
            return;
        }
        let verdict = Verdict { by: Arc::downgrade(by), generation };
        put(&mut self.0.borrow_mut(), token.text().into(), verdict);
    }
}

fn put<K>([young, old]: &mut Tables<K>, key: Box<[u8]>, verdict: Verdict<K>) {
    if young.len() >= TOKENS {
        *old = std::mem::take(young);
    }
    young.insert(key, verdict);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(signature: &str) -> Token {
        Token::parse(format!("e30.e30.{signature}").into_bytes()).unwrap()
    }

    #[test]
    fn a_verdict_is_of_one_key_holder_and_set() {
        let (verdicts, one, other) = (Verdicts::default(), Arc::new(1), Arc::new(2));
        assert!(!verdicts.holds(&token("a"), &one, 0));
        verdicts.add(&token("a"), &one, 0);
        assert!(verdicts.holds(&token("a"), &one, 0));
        assert!(!verdicts.holds(&token("a"), &other, 0));
        assert!(!verdicts.holds(&token("a"), &one, 1), "the keys have changed");
        assert!(!verdicts.holds(&token("b"), &one, 0));
    }

    #[test]
    fn there_is_a_bound() {
        let (verdicts, by) = (Verdicts::default(), Arc::new(()));
        let kept = token("kept");
        verdicts.add(&kept, &by, 0);
        for number in 0..10 * TOKENS {
            verdicts.add(&token(&number.to_string()), &by, 0);
            // An entry in use stays.
            assert!(verdicts.holds(&kept, &by, 0), "{number}");
        }
        let held: usize = verdicts.0.borrow().iter().map(HashMap::len).sum();
        assert!(held <= 2 * TOKENS, "{held}");
        let long = token(&"A".repeat(TOKEN_BYTES));
        verdicts.add(&long, &by, 0);
        assert!(!verdicts.holds(&long, &by, 0));
    }
}
