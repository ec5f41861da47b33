//! Responses to the challenges of an ACME authority (RFC 8555 §8). They are read before routing, and only while an
//! order is open.

use std::sync::Arc;

use sigma_net::answers::{Answers, PublishedResponse};
use sigma_net::tls::{Proofs, ServerIdentity};

/// The path prefix of HTTP challenges (RFC 8555 §8.3).
const PLACE: &[u8] = b"/.well-known/acme-challenge/";

/// The longest token. Authorities use about 43 characters.
const TOKEN_MAX: usize = 256;

/// The current proofs: during an order, and only for their requesters.
#[derive(Debug, Default)]
pub struct Challenges {
    /// By token, for requests to one path.
    tokens: Arc<Answers<Box<str>>>,
    /// By name, for handshakes (RFC 8737).
    names: Arc<Proofs>,
}

/// A proof is given while this exists.
#[derive(Debug)]
#[must_use]
pub struct Expected {
    _given: Which,
}

#[derive(Debug)]
enum Which {
    Token { _given: PublishedResponse<Box<str>> },
    Name { _given: PublishedResponse<Arc<ServerIdentity>> },
}

impl Challenges {
    /// Sets the response to requests for `token`. None for an invalid token: it becomes part of a path.
    pub fn expect(&self, token: &str, answer: &str) -> Option<Expected> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if token.is_empty() || token.len() > TOKEN_MAX || !token.bytes().all(is_token) {
            return None;
        }
        let given = self.tokens.give(token, answer.into());
        Some(Expected { _given: Which::Token { _given: given } })
    }

    /// Sets the identity for handshakes that check a proof of `name`, which is in lower case.
    pub fn show(&self, name: &str, identity: ServerIdentity) -> Expected {
        Expected { _given: Which::Name { _given: self.names.give(name, Arc::new(identity)) } }
    }

    /// Returns the proofs for handshakes.
    pub(crate) fn names(&self) -> &Arc<Proofs> {
        &self.names
    }

    /// Returns the response to a request for `path`, compared as it was sent.
    pub(crate) fn response(&self, path: &[u8]) -> Option<Vec<u8>> {
        if !self.tokens.is_asked() {
            return None;
        }
        let token = std::str::from_utf8(path.strip_prefix(PLACE)?).ok()?;
        Some(self.tokens.get(token)?.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_answered_literally_while_it_is_expected() {
        let challenges = Challenges::default();
        let ask = |path: &str| {
            challenges.response(path.as_bytes()).map(|answer| String::from_utf8(answer).unwrap())
        };
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
        assert!(!challenges.tokens.is_asked());
    }

    #[test]
    fn invalid_tokens_are_not_expected() {
        let challenges = Challenges::default();
        for odd in ["", "a/b", "..", "a%2fb", "a b", "\u{e4}", &"a".repeat(257)] {
            assert!(challenges.expect(odd, "x").is_none(), "{odd}");
        }
    }
}
