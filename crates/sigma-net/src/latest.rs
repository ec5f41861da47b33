//! A cell between two threads: it accumulates the values of the writer until the reader takes them.
//!
//! It is not a queue: a slow reader gets the sum of its updates, not each step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

struct Cell<T> {
    state: Mutex<State<T>>,
    news: Notify,
}

struct State<T> {
    untaken: Option<T>,
    has_teller: bool,
    has_taker: bool,
}

impl<T> Cell<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The `add` functions of callers may panic; the remaining value is still valid to take.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing end.
pub struct Teller<T>(Arc<Cell<T>>);

/// The reading end.
pub struct Taker<T>(Arc<Cell<T>>);

/// Returns both ends of an empty cell.
pub fn latest<T: Default>() -> (Teller<T>, Taker<T>) {
    let state = State { untaken: None, has_teller: true, has_taker: true };
    let cell = Arc::new(Cell { state: Mutex::new(state), news: Notify::new() });
    (Teller(Arc::clone(&cell)), Taker(cell))
}

impl<T: Default> Teller<T> {
    /// Adds to the untaken value, or to the default value. Returns false if the reader is gone.
    pub fn tell(&self, add: impl FnOnce(&mut T)) -> bool {
        let mut state = self.0.state();
        if !state.has_taker {
            return false;
        }
        add(state.untaken.get_or_insert_default());
        drop(state);
        self.0.news.notify_one();
        true
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        self.0.state().has_teller = false;
        self.0.news.notify_one();
    }
}

impl<T> Taker<T> {
    /// Returns the untaken value, once there is one; None once the writer is gone.
    pub async fn take(&mut self) -> Option<T> {
        loop {
            {
                let mut state = self.0.state();
                if let Some(told) = state.untaken.take() {
                    return Some(told);
                }
                if !state.has_teller {
                    return None;
                }
            }
            self.0.news.notified().await;
        }
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.has_taker = false;
        // An untaken value may hold sockets that would never be accepted from.
        let untaken = state.untaken.take();
        drop(state);
        drop(untaken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_taker_finds_the_sum() {
        let (teller, mut taker) = latest::<Vec<u8>>();
        assert!((0..3).all(|number| teller.tell(|told| told.push(number))));
        assert_eq!(taker.take().await, Some(vec![0, 1, 2]));
        let later = tokio::spawn(async move { (taker.take().await, taker) });
        tokio::task::yield_now().await;
        assert!(teller.tell(|told| told.push(7)));
        let (told, mut taker) = later.await.expect("no panic");
        assert_eq!(told, Some(vec![7]));
        assert!(teller.tell(|told| told.push(8)));
        drop(teller);
        // The last value is not lost.
        assert_eq!((taker.take().await, taker.take().await), (Some(vec![8]), None));
    }

    #[test]
    fn no_value_is_kept_for_a_reader_that_is_gone() {
        let (teller, taker) = latest::<Vec<Arc<()>>>();
        let held = Arc::new(());
        assert!(teller.tell(|told| told.push(Arc::clone(&held))));
        drop(taker);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(!teller.tell(|told| told.push(Arc::clone(&held))));
    }
}
