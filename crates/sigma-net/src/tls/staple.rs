//! What is stapled to certificates: what their authorities say of them (RFC 6066 §8).

use std::sync::{Arc, PoisonError, RwLock};

/// The answer that is stapled to a certificate. Others take its place at any time; one that is over is not shown.
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
    /// Staples an answer in DER that is good until a moment in Unix seconds.
    pub fn put(&self, der: &[u8], ends: i64) {
        self.set(Some(Current { der: der.into(), ends }));
    }

    /// Staples nothing from now on.
    pub fn clear(&self) {
        self.set(None);
    }

    fn set(&self, next: Option<Current>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// The answer that is stapled at a moment.
    pub fn at(&self, now: i64) -> Option<Arc<[u8]>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|current| now < current.ends).map(|current| Arc::clone(&current.der))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_not_shown() {
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
