//! A cell between two threads that holds what one has told and the other has not taken yet.
//!
//! It is no queue: what is told adds to what was not taken, so that a reader who is slow finds the sum
//! of what it missed and not each step.

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
        // What is added by others than this file may panic; what it has left is all there is to take.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that tells.
pub struct Teller<T>(Arc<Cell<T>>);

/// The end that takes.
pub struct Taker<T>(Arc<Cell<T>>);

/// Both ends of a cell in which nothing is.
pub fn latest<T: Default>() -> (Teller<T>, Taker<T>) {
    let state = State { untaken: None, has_teller: true, has_taker: true };
    let cell = Arc::new(Cell { state: Mutex::new(state), news: Notify::new() });
    (Teller(Arc::clone(&cell)), Taker(cell))
}

impl<T: Default> Teller<T> {
    /// Adds to what was not taken yet, or to a value that holds nothing. False if the taker is gone.
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
    /// All that was told and not taken, once there is something; None once that is over for good.
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
        // What nobody takes may hold sockets that nobody would accept from.
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
        // What was told last is not lost.
        assert_eq!((taker.take().await, taker.take().await), (Some(vec![8]), None));
    }

    #[test]
    fn nothing_is_kept_for_a_taker_that_is_gone() {
        let (teller, taker) = latest::<Vec<Arc<()>>>();
        let held = Arc::new(());
        assert!(teller.tell(|told| told.push(Arc::clone(&held))));
        drop(taker);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(!teller.tell(|told| told.push(Arc::clone(&held))));
    }
}
