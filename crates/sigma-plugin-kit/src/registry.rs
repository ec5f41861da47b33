//! Objects that equal settings share.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// How many unconfigured objects are kept, until the next one is added.
const MOST_IDLE: usize = 64;

/// One value of the whole gateway for each of the configured settings.
pub struct Registry<S, T>(Mutex<HashMap<S, Arc<T>>>);

impl<S, T> Default for Registry<S, T> {
    fn default() -> Self {
        Registry(Mutex::default())
    }
}

impl<S: Clone + Eq + Hash, T> Registry<S, T> {
    /// Returns the one with these settings. For instances to keep; do not call it per request.
    pub fn get(&self, settings: S, make: impl FnOnce(S) -> T) -> Arc<T> {
        // A panic elsewhere leaves a table as good as before.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = known.get(&settings) {
            return Arc::clone(one);
        }
        if known.values().filter(|one| Arc::strong_count(one) == 1).count() > MOST_IDLE {
            known.retain(|_, one| Arc::strong_count(one) > 1);
        }
        let one = Arc::new(make(settings.clone()));
        known.insert(settings, Arc::clone(&one));
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_settings_have_one_and_idle_ones_are_bounded() {
        let registry = Registry::default();
        let used = registry.get(0, |number| number);
        assert!(Arc::ptr_eq(&used, &registry.get(0, |_| unreachable!("it is there"))));
        for number in 1..10 * MOST_IDLE {
            drop(registry.get(number, |number| number));
        }
        assert!(registry.0.lock().unwrap().len() <= MOST_IDLE + 3);
        assert!(Arc::ptr_eq(&used, &registry.get(0, |_| unreachable!("it is in use"))));
    }
}
