//! Stapled OCSP responses (RFC 6066 §8).

use std::sync::{Arc, PoisonError, RwLock};

/// The response that is stapled to a certificate. Newer ones replace it at any time; an expired one is not sent.
#[derive(Debug, Default)]
pub struct Staple {
    current: RwLock<Option<Current>>,
}

#[derive(Debug)]
struct Current {
    der: Arc<[u8]>,
    /// In Unix seconds.
    ends: i64,
}

impl Staple {
    /// Staples a response in DER, valid until a moment in Unix seconds.
    pub fn put(&self, der: &[u8], ends: i64) {
        self.set(Some(Current { der: der.into(), ends }));
    }

    /// Removes the response.
    pub fn clear(&self) {
        self.set(None);
    }

    fn set(&self, next: Option<Current>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// Returns the valid response at a moment.
    pub fn at(&self, now: i64) -> Option<Arc<[u8]>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|current| now < current.ends).map(|current| Arc::clone(&current.der))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_response_is_not_sent() {
        let staple = Staple::default();
        let check = |now: i64, expected: Option<&[u8]>| assert_eq!(staple.at(now).as_deref(), expected);
        check(0, None);
        staple.put(b"one", 10);
        check(9, Some(b"one"));
        check(10, None);
        staple.put(b"two", 20);
        check(10, Some(b"two"));
        staple.clear();
        check(10, None);
    }
}
