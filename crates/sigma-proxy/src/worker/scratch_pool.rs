//! Memory of exchanges that is kept for later ones.

use std::cell::{Cell, RefCell};

/// The number that is kept on an idle worker too.
const KEPT_LEAST: usize = 256;

/// The most that are kept: a burst must not take much memory until the next sweep.
const KEPT_MOST: usize = 4_096;

/// The memory that is free. A worker keeps as many as it used at once lately: an allocation costs more than the
/// request of a plain route. A sweep frees half of the memory that no exchange needed since the last one.
#[derive(Debug)]
pub(crate) struct ScratchPool<T> {
    /// Boxed, so that taking one moves a pointer.
    free: RefCell<Vec<Box<T>>>,
    /// The least number of free ones since the last sweep.
    unused: Cell<usize>,
}

impl<T: Default> ScratchPool<T> {
    pub(crate) fn take(&self) -> Box<T> {
        let taken = self.free.borrow_mut().pop();
        self.unused.set(self.unused.get().min(self.free.borrow().len()));
        taken.unwrap_or_default()
    }

    pub(crate) fn give(&self, scratch: Box<T>) {
        let mut free = self.free.borrow_mut();
        if free.len() < KEPT_MOST {
            free.push(scratch);
        }
    }

    /// Frees half of the memory that was not used since the last sweep.
    pub(crate) fn sweep(&self) {
        let mut free = self.free.borrow_mut();
        let kept = free.len() - self.unused.get().min(free.len()) / 2;
        free.truncate(kept.max(KEPT_LEAST));
        self.unused.set(free.len());
    }
}

impl<T> Default for ScratchPool<T> {
    fn default() -> ScratchPool<T> {
        ScratchPool { free: RefCell::default(), unused: Cell::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_at_once(pool: &ScratchPool<u8>, count: usize) {
        let taken: Vec<_> = (0..count).map(|_| pool.take()).collect();
        taken.into_iter().for_each(|scratch| pool.give(scratch));
    }

    fn free(pool: &ScratchPool<u8>) -> usize {
        pool.free.borrow().len()
    }

    #[test]
    fn as_many_are_kept_as_are_used_at_once() {
        let pool = ScratchPool::default();
        for _ in 0..20 {
            use_at_once(&pool, 1_000);
            pool.sweep();
            assert_eq!(free(&pool), 1_000);
        }
    }

    #[test]
    fn a_burst_is_forgotten() {
        let pool = ScratchPool::default();
        use_at_once(&pool, 2 * KEPT_MOST);
        assert_eq!(free(&pool), KEPT_MOST);
        for _ in 0..20 {
            use_at_once(&pool, 1_000);
            pool.sweep();
        }
        assert!((1_000..1_010).contains(&free(&pool)), "{}", free(&pool));
        (0..20).for_each(|_| pool.sweep());
        assert_eq!(free(&pool), KEPT_LEAST);
    }
}
