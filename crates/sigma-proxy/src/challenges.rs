//! What an authority is answered that asks whether a name is this gateway's (RFC 8555 §8).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Where the authority asks for a token (RFC 8555 §8.3).
const PLACE: &[u8] = b"/.well-known/acme-challenge/";

/// The longest token. Authorities make them of some 43 characters.
const TOKEN_MAX: usize = 256;

/// The answers that are expected of this gateway now: written by the control thread while an order is under
/// way, and looked at by workers for requests to one place only.
#[derive(Debug, Default)]
pub struct Challenges {
    /// Whether there is an answer; without, nobody looks further.
    is_asked: AtomicBool,
    /// By token.
    answers: RwLock<HashMap<Box<str>, Box<str>>>,
}

/// An answer is given as long as this is kept.
#[derive(Debug)]
#[must_use]
pub struct Expected {
    challenges: Arc<Challenges>,
    token: Box<str>,
}

impl Challenges {
    /// Has whoever asks for `token` answered from now on. None if it is no token: it would stand in a path.
    pub fn expect(self: &Arc<Self>, token: &str, answer: &str) -> Option<Expected> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if token.is_empty() || token.len() > TOKEN_MAX || !token.bytes().all(is_token) {
            return None;
        }
        self.write(|answers| drop(answers.insert(token.into(), answer.into())));
        Some(Expected { challenges: Arc::clone(self), token: token.into() })
    }

    /// The answer to a request for `path`, which is compared as it was sent.
    pub(crate) fn answer(&self, path: &[u8]) -> Option<Vec<u8>> {
        if !self.is_asked.load(Ordering::Acquire) {
            return None;
        }
        let token = std::str::from_utf8(path.strip_prefix(PLACE)?).ok()?;
        let answers = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        Some(answers.get(token)?.as_bytes().to_vec())
    }

    fn write(&self, change: impl FnOnce(&mut HashMap<Box<str>, Box<str>>)) {
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut answers);
        self.is_asked.store(!answers.is_empty(), Ordering::Release);
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.challenges.write(|answers| drop(answers.remove(&self.token)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_answered_to_the_letter_while_it_is_expected() {
        let challenges = Arc::new(Challenges::default());
        let ask =
            |path: &str| challenges.answer(path.as_bytes()).map(|answer| String::from_utf8(answer).unwrap());
        assert_eq!(ask("/.well-known/acme-challenge/abc"), None);
        let first = challenges.expect("abc", "abc.key").unwrap();
        let second = challenges.expect("d-_9", "other").unwrap();
        assert_eq!(ask("/.well-known/acme-challenge/abc").as_deref(), Some("abc.key"));
        for other in ["abc/", "abcd", "ab", "", "ABC", "./abc", "abc?", "%61bc", "x/../abc"] {
            assert_eq!(ask(&format!("/.well-known/acme-challenge/{other}")), None, "{other}");
        }
        for other in ["/.well-known/acme-challenge", "/.well-known//acme-challenge/abc", "/x/abc"] {
            assert_eq!(ask(other), None, "{other}");
        }
        drop(first);
        assert_eq!(ask("/.well-known/acme-challenge/abc"), None);
        assert_eq!(ask("/.well-known/acme-challenge/d-_9").as_deref(), Some("other"));
        drop(second);
        assert!(!challenges.is_asked.load(Ordering::Acquire));
    }

    #[test]
    fn what_is_no_token_is_not_expected() {
        let challenges = Arc::new(Challenges::default());
        for odd in ["", "a/b", "..", "a%2fb", "a b", "\u{e4}", &"a".repeat(257)] {
            assert!(challenges.expect(odd, "x").is_none(), "{odd}");
        }
    }
}
